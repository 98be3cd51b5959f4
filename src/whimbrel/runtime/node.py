"""One member in this process: drives a serving engine with a real loop, sockets and clocks.

The node carries out what the engine says and reports what the world does; every decision is the
engine's. Outputs are taken once per turn of the loop, so that each connection is written once
however many requests the turn brought.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import socket
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from whimbrel.config import Config, RuntimeSettings, parse_address
from whimbrel.core.effects import (
    ArmTimer,
    DiskWork,
    Expelled,
    Joined,
    LinkUnwanted,
    LinkWanted,
    Note,
    Stopped,
)
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.role_change import Then
from whimbrel.core.model import MemberInfo, structures_in_words
from whimbrel.core.persistence.encryption import PLAIN
from whimbrel.core.stimuli import (
    DiskDone,
    DiskFailed,
    LeaveWanted,
    Started,
    Stimulus,
    TimerFired,
)
from whimbrel.errors import IllegalStateError, InvariantViolation, OperationError
from whimbrel.runtime.clients import Acceptor, EngineScope
from whimbrel.runtime.clock import now_us, wall_ms
from whimbrel.runtime.encryption import open_encryption
from whimbrel.runtime.identity import Identity, open_identity
from whimbrel.runtime.links import LinkHost, Links
from whimbrel.runtime.logs import Logger, log_note, make_logger
from whimbrel.runtime.neighbours import namesakes
from whimbrel.runtime.occupation import Occupation
from whimbrel.runtime.sockets import Ports, open_ports
from whimbrel.runtime.subscriptions import Subscriptions
from whimbrel.runtime.timers import Timers
from whimbrel.serving.engine import Engine
from whimbrel.serving.outputs import Answered, CloseClient, EventsTold, ToAddress, ToClient, ToPeer
from whimbrel.storage.disk import Disk
from whimbrel.storage.writer import DiskThread
from whimbrel.structures.kinds import KINDS
from whimbrel.wire.links import Greeting, encode_greeting

TICK_S = 0.05
"""How often the engine looks at its time-outs."""
DRAIN_STEP_US = 5_000
LAG_TOLD_S = 1.0
"""A loop that was late by this much is reported: requests stood still for as long."""
ASK_TIMEOUT_S = 10.0
ASKED_MAX = 1_000
"""Questions to members without an answer; more are refused."""
EVENTS_TOLD_MAX = 1_000
"""Newest events that are told to others at once, however many are kept."""
EXIT_CRASHED = 70
"""Exit status after a broken invariant (sysexits: internal software error)."""

ADMIN_PAUSE_S = 1.0
"""Pause before an admin server that could not start is tried again; doubled each time."""
ADMIN_PAUSE_MAX_S = 30.0

AdminStarter = Callable[["Node"], Awaitable[Callable[[], Awaitable[None]]]]
"""Starts the admin HTTP server on ``node.admin_socket``; answers how to stop it. A server that ends
by itself tells ``node.admin_ended``."""


class Node:
    """A member: its sockets, its engine, and what an embedding program may ask of it."""

    def __init__(
        self,
        config: Config,
        *,
        admin: AdminStarter | None = None,
        logger: Logger | None = None,
        on_ready: Callable[[Node], None] | None = None,
        on_recovering: Callable[[Node], None] | None = None,
    ) -> None:
        """Prepare; nothing is opened before ``start``.

        Args:
            config: The configuration.
            admin: Starts the admin server; without one no admin port is opened.
            logger: Where notes go; by default lines on stderr.
            on_ready: Called once, when ``ready`` is done.
            on_recovering: Called once, when files were found from which the cluster is to recover;
                ``ready`` is done later.
        """
        self.config = config
        self.settings: RuntimeSettings = config.runtime
        self.cluster_name = config.core.cluster_name
        self.logger = logger or make_logger(config.runtime)
        self.engine_scope = EngineScope(self.crashed, self.flush_soon)
        self.occupation = Occupation()
        self.counters: dict[str, float] = {}
        """Counters of the shell by name; the engine has its own."""
        self.events: deque[dict[str, object]] = deque(maxlen=config.core.events_max)
        """Notes of level info and above, oldest first, with ``at`` and ``kind``."""
        self.subscriptions = Subscriptions(self._listen, self._listener_failed)
        """Callbacks for the cluster's events."""
        self.new_cause: Callable[[], str] = str
        """Makes the id of what begins here, an operator's order for example; empty ones before
        there is a member."""
        self.crash_report = ""
        """What stopped the member, when its engine broke."""
        self._admin = admin
        self._on_ready = on_ready
        self._on_recovering = on_recovering
        self._has_joined = False
        self._ready_by_s = 0.0
        """When ``ready`` is waited for no longer; counted from joining."""
        self._stop_admin: Callable[[], Awaitable[None]] | None = None
        self._cuts = False
        """Whether the end cuts connections instead of letting written bytes leave."""
        self._flush_waits = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._asked: dict[int, asyncio.Future[Answered]] = {}
        self._server: asyncio.AbstractServer | None = None
        self._disk: DiskThread | None = None
        """Writes to the data directory, where the member keeps more there than its identity."""
        self._encryption = PLAIN
        """Of what is written there; salts go on counting from incarnation to incarnation."""
        self._tick: asyncio.TimerHandle | None = None
        self._tick_due_s = 0.0
        self._perform: dict[type, Callable[[Any], None]] = {
            ToClient: self._to_client,
            ToAddress: self._to_address,
            CloseClient: self._close_client,
            Answered: self._answered,
            EventsTold: self._events_told,
            ArmTimer: self._arm,
            DiskWork: self._disk_work,
            Note: self.note,
            LinkWanted: self._link_wanted,
            LinkUnwanted: self._link_unwanted,
            Joined: self._joined,
            Expelled: self._expelled,
            Stopped: self._stopped,
        }

    # -- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Open ports and identity, then look for the cluster.

        Raises:
            ConfigError: A port, the data directory or the key cannot be used. Nothing stays open.
            DataDirectoryError: What lies in the data directory cannot. Nothing stays open.
        """
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[Stopped] = self.loop.create_future()
        self.ready: asyncio.Future[None] = self.loop.create_future()
        """Done once the member serves and its replicas are there, or take longer than is waited."""
        self._encryption = await asyncio.to_thread(open_encryption, self.config)
        self.ports: Ports = open_ports(self.settings, self._admin is not None)
        with contextlib.ExitStack() as undo:
            undo.callback(self.ports.close)
            self.identity: Identity = open_identity(
                self.settings.data_dir,
                self.cluster_name,
                keeps_data=self.config.core.persistence.enabled,
            )
            undo.callback(self.identity.release)
            self._build()
            self._disk = self._open_disk()
            if self._disk is not None:
                undo.callback(self._disk.close, 0.0)
            self._server = await self.loop.create_server(
                self.acceptor.new_connection, sock=self.ports.data
            )
            undo.pop_all()
        self._tick_due_s = self.loop.time()
        self._on_tick()
        self.stimulate(Started(self._join_addresses()))
        if self._admin is not None:
            self.spawn(self._start_admin(self._admin))

    def _build(self) -> None:
        self.address = self._advertised()
        self.link_host = LinkHost(
            self.loop, self.settings, self.greeting, self.stimulate, self.count, self.spawn
        )
        self.links = Links(self.link_host)
        self.timers = Timers(self.loop, self._timer_fired)
        self.acceptor = Acceptor(self, self.loop)
        self._new_engine(self.settings.lite)

    def leave(self, cause: str | None = None) -> None:
        """Hand over all data and leave; ``stopped`` tells when that is done."""
        self.stimulate(LeaveWanted(cause=cause))

    def want_role(self, lite: bool, then: Then) -> None:
        """Become lite or a data member; ``then`` is told how it ended, in this loop."""
        if self.stopped.done():
            then(IllegalStateError("this member has ended"))
            return
        with self.engine_scope:
            self.engine.want_role(lite, then, now_us(), wall_ms())

    def stop_now(self, reason: str, exit_status: int = 1) -> None:
        """End without leaving: to the cluster it is a crash."""
        self._cuts = True
        gone = self.engine.member.discarded(False) if self._has_joined else ()
        if gone and not self.stopped.done():
            self.note(Note("warning", "discarded", {"structures": structures_in_words(gone)}))
        self._stopped(Stopped(reason, exit_status))

    async def close(self) -> None:
        """Close everything; bytes that were written get ``network.stop_timeout_s`` to leave."""
        if self._tick is not None:
            self._tick.cancel()
        self.timers.clear()
        self.acceptor.end()
        if self._server is not None:
            self._server.close()
        if self._stop_admin is not None:
            stop, self._stop_admin = self._stop_admin, None
            await stop()
        cut = self._cuts
        await self._drain([*self.links.close_all(cut), *self.acceptor.close_all(cut)])
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        has_disk_ended = await self._close_disk()
        self.ports.close()
        if has_disk_ended:  # else the lock stays ours until the process has ended
            self.identity.release()
        for future in self._asked.values():
            future.cancel()
        await asyncio.sleep(0)  # lets the transports say goodbye

    async def _drain(self, transports: list[asyncio.Transport]) -> None:
        """Wait a bounded time until everything written is in the kernel's hands; then cut."""
        for _ in range(max(1, self.settings.stop_timeout_us // DRAIN_STEP_US)):
            if not any(transport.get_write_buffer_size() for transport in transports):
                break
            await asyncio.sleep(DRAIN_STEP_US / 1_000_000)
        for transport in transports:
            transport.abort()

    async def _close_disk(self) -> bool:
        """Let what was to be written be written, for a bounded time; whether that is over."""
        disk, self._disk = self._disk, None
        if disk is None:
            return True
        timeout_s = self.settings.stop_timeout_us / 1_000_000
        has_ended = await asyncio.to_thread(disk.close, timeout_s)
        if not has_ended:
            text = "the disk is busy; the last that was to be written may not be on it"
            self.note(Note("error", "disk_cut", {"waited_s": timeout_s, "text": text}))
        return has_ended

    # -- what others ask ------------------------------------------------------------------

    @property
    def member_id(self) -> MemberId:
        """Identity of the present incarnation."""
        return self.identity.member

    @property
    def admin_socket(self) -> socket.socket | None:
        """The listening socket of the admin server."""
        return self.ports.admin

    @property
    def has_joined(self) -> bool:
        """Whether the member was on the list of a cluster at least once."""
        return self._has_joined

    async def ask(
        self,
        member: MemberId | None,
        what: str,
        arguments: Mapping[str, object] | None = None,
        cause: str | None = None,
    ) -> Any:
        """Ask a member a question, or give it an order.

        Args:
            member: Whom; None is the master.
            what: Name of the question.
            arguments: JSON values by name.
            cause: What the question follows from; it begins a story by default.

        Returns:
            The JSON document of the answer.

        Raises:
            OperationError: The member answered with an error sentence, or not in time.
        """
        if len(self._asked) >= ASKED_MAX:
            raise OperationError(f"{ASKED_MAX} questions wait for their answers already")
        body = json.dumps(dict(arguments or {})).encode()
        call = 0
        with self.engine_scope:
            call = self.engine.ask(member, what, body, now_us(), wall_ms(), cause)
        future: asyncio.Future[Answered] = self.loop.create_future()
        self._asked[call] = future
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            whom = "the master" if member is None else f"member {member}"
            raise OperationError(f"no answer from {whom} within {ASK_TIMEOUT_S:g} s") from None
        finally:
            self._asked.pop(call, None)
        if answer.error:
            raise OperationError(answer.error)
        return json.loads(answer.document)

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of shell and engine by name."""
        return {
            **self.engine.metrics(),
            **{f"{name}_total": value for name, value in self.counters.items()},
            **self.acceptor.gauges(),
            **self.links.gauges(),
            **self.occupation.gauges(),
        }

    def note(self, note: Note) -> None:
        """Log a note and keep it for ``events``; what the shell says of itself begins a story."""
        if not note.cause:
            note = msgspec.structs.replace(note, cause=self.new_cause())
        log_note(self.logger, note)
        if note.level != "debug":
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            entry = {"at": at, "kind": note.kind, "level": note.level, "cause": note.cause}
            self.events.append({**entry, **note.fields})

    def _events_document(self, arguments: bytes) -> bytes:
        """The latest events, or the latest of one cause, for the cluster's document of them."""
        cause = json.loads(arguments or b"{}").get("cause")
        found = [event for event in self.events if cause in (None, event["cause"])]
        return json.dumps(found[-EVENTS_TOLD_MAX:], default=str).encode()

    # -- what links and the data port need ------------------------------------------------

    def greeting(self, channel: str) -> bytes:
        """First bytes of a connection to a member."""
        return encode_greeting(Greeting(self.cluster_name, self.engine.member.ctx.me, channel))

    def count(self, name: str) -> None:
        """Raise a counter of the shell by one."""
        self.counters[name] = self.counters.get(name, 0) + 1

    def hint(self, kind: str, **fields: str | int) -> None:
        """A warning that concerns this process only."""
        self.note(Note("warning", kind, dict(fields)))

    def stimulate(self, stimulus: Stimulus) -> None:
        """Hand something to the control plane."""
        if not self.stopped.done():
            moment_us = now_us()
            with self.engine_scope:
                self.engine.handle(stimulus, moment_us, wall_ms())
            self.occupation.stepped(moment_us)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine; an exception it does not catch stops the member."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def flush_soon(self) -> None:
        """Carry out the engine's outputs in the next turn of the loop, once."""
        if not self._flush_waits:
            self._flush_waits = True
            self.loop.call_soon(self._flush)

    def crashed(self, problem: BaseException) -> None:
        """A fact that must hold does not: stop rather than spoil data (safety rule 8)."""
        if self.crash_report:
            return
        text = "".join(traceback.format_exception(problem))
        self.crash_report = (
            f"member {self.member_id} at {self.address} of cluster {self.cluster_name!r} "
            f"stopped itself: {problem!r}\n\n{text}"
        )
        self._stopped(Stopped(f"internal error: {problem!r}", EXIT_CRASHED))
        self.links.close_all(at_once=True)
        self.acceptor.close_all(at_once=True)

    # -- outputs --------------------------------------------------------------------------

    def _flush(self) -> None:
        """Carry out everything the engine has said."""
        self._flush_waits = False
        if self.stopped.done():
            return
        moment_us, engine, links = now_us(), self.engine, self.links
        try:
            for output in engine.take_outputs():
                if type(output) is ToPeer:  # nearly all of them
                    links.send(
                        output.peer, output.channel, output.kind, output.payload, output.cause
                    )
                    continue
                self._perform[type(output)](output)
                if engine is not self.engine:
                    return  # expelled: the rest was said by an incarnation that is no more
            if links.dirty:
                links.flush()
            if engine.overflowing:
                self.loop.call_soon(self._resume_input)
            self.occupation.stepped(moment_us)
        except BaseException as problem:
            # an output that is not carried out is as bad as one that was never said
            self.crashed(problem)

    def _resume_input(self) -> None:
        with self.engine_scope:
            self.engine.resume_input(now_us(), wall_ms())

    def _to_client(self, output: ToClient) -> None:
        client = self.acceptor.clients.get(output.conn)
        if client is not None:
            client.send(output.data)

    def _to_address(self, output: ToAddress) -> None:
        self.links.send_to(output.address, output.message, output.cause)

    def _close_client(self, output: CloseClient) -> None:
        self.acceptor.close_client(output.conn, output.reason)

    def _answered(self, output: Answered) -> None:
        future = self._asked.get(output.call)
        if future is not None and not future.done():
            future.set_result(output)

    def _events_told(self, output: EventsTold) -> None:
        self.subscriptions.tell(output.events)

    def _listen(self, wanted: bool) -> None:
        with self.engine_scope:
            self.engine.want_events(wanted, now_us(), wall_ms())

    def _listener_failed(self, problem: BaseException) -> None:
        self.count("listener_errors")
        self.hint("listener_failed", problem=repr(problem))

    def _arm(self, output: ArmTimer) -> None:
        self.timers.arm(output)

    def _disk_work(self, output: DiskWork) -> None:
        if self._disk is None:
            raise InvariantViolation("only a member that has a disk asks anything of it")
        self._disk.submit(output, partial(self._disk_answered, self.engine))

    def _disk_answered(self, asker: Engine, answer: DiskDone | DiskFailed) -> None:
        if asker is self.engine:  # else it was expelled meanwhile; works are numbered per engine
            self.stimulate(answer)

    def _link_wanted(self, output: LinkWanted) -> None:
        self.links.want(output.member, output.address)

    def _link_unwanted(self, output: LinkUnwanted) -> None:
        self.links.unwant(output.member)

    def _joined(self, output: Joined) -> None:
        fields = {"member": self.member_id, "address": str(self.address)}
        self.note(Note("info", "joined", {**fields}, cause=output.cause))
        is_first, self._has_joined = not self._has_joined, True  # else again, after an expulsion
        self._ready_by_s = self.loop.time() + self.settings.ready_wait_us / 1_000_000
        self._look_ready()
        if is_first and not self.settings.join:
            self.spawn(self._hint_at_neighbours())

    def _look_ready(self) -> None:
        """Say that the member is ready, once: a client that connects then finds its backups.

        Bounded, because another member may be slow, and much data may be to come: the member
        serves all the while.
        """
        if self.ready.done() or not self.engine.member.is_joined:
            return
        reason = self.engine.member.safety.arriving_because()
        if reason and self.loop.time() < self._ready_by_s:
            return
        if reason:
            self.note(Note("info", "ready_before_replicas", {"reason": reason}))
        self.ready.set_result(None)
        self._on_recovering = None  # who is expelled and begins again has been ready
        if self._on_ready is not None:
            self._on_ready(self)

    async def _hint_at_neighbours(self) -> None:
        """Nobody was named to join, so this cluster is one of its own: say so, and who is near."""
        own = Address(self.settings.host, self.ports.data_port)
        found = await namesakes(self.link_host, own, self.cluster_name)
        members = self.engine.member.ctx.members
        strangers = [str(info.address) for info in found if members.get(info.id) is None]
        if strangers:
            text = (
                "a cluster of this name runs on this machine and was not joined; to make them one, "
            )
            text += f"start this member with --join {strangers[0]} (key network.join)"
            self.hint("founded_beside", members=", ".join(strangers), text=text)
        else:
            text = "no --join was given, so this member founded a cluster of its own; "
            text += f"others join it with --join {self.address} (key network.join)"
            self.note(Note("info", "founded_alone", {"text": text}))

    def _expelled(self, output: Expelled) -> None:
        """The cluster goes on without us: drop everything, come back as somebody new."""
        fields = {"member": self.member_id, "reason": output.reason}
        self.note(Note("warning", "expelled", {**fields}, cause=output.cause))
        self.count("expulsions")
        self.timers.clear()
        self.links.close_all()
        self.acceptor.close_all(at_once=True)
        member = self.engine.member
        # Where nobody new may join, only its old uuid brings it back to its seat (GCM-09); and
        # files are of whom they name.
        if member.ctx.members.state.join_allowed and not self.config.core.persistence.enabled:
            self.identity.renew()
        data = member.split_data
        # Whoever was promoted or demoted comes back as what it was.
        self._new_engine(member.ctx.me.lite)
        if data is not None:
            self.engine.member.merging.take_over(data)
        self.stimulate(Started(self._join_addresses(), output.addresses, cause=output.cause))

    def _stopped(self, output: Stopped) -> None:
        if self.stopped.done():
            return
        level = "info" if output.exit_status == 0 else "error"
        fields: dict[str, str | int | float | bool | None] = {
            "reason": output.reason,
            "exit_status": output.exit_status,
        }
        if self.config.core.persistence.enabled:
            fields["data_dir"] = self.settings.data_dir
        self.note(Note(level, "ended", fields, cause=output.cause))
        self.links.flush()
        self.stopped.set_result(output)
        if not self.ready.done():
            self.ready.set_exception(OperationError(output.reason))
            self.ready.exception()  # told through ``stopped`` as well

    # -- parts ----------------------------------------------------------------------------

    def _new_engine(self, lite: bool) -> None:
        settings = self.settings
        me = MemberInfo(
            self.member_id,
            self.address,
            lite=lite,
            host=settings.machine or socket.gethostname(),
            zone=settings.zone,
            admin_port=self.ports.admin_port,
        )
        self.engine: Engine = Engine(me, self.config.core, KINDS, now_us(), self._encryption)
        """The engine of the present incarnation."""
        self.new_cause = self.engine.member.ctx.new_cause
        self.engine.questions.documents["events"] = self._events_document
        if self.subscriptions.any:
            self._listen(True)

    def _open_disk(self) -> DiskThread | None:
        if not self.config.core.persistence.enabled or self.identity.folder is None:
            return None
        disk = Disk(self.identity.folder)
        return DiskThread(disk, self.loop.call_soon_threadsafe, self.crashed)

    def _advertised(self) -> Address:
        port = self.ports.data_port
        if self.settings.advertise:
            return parse_address(self.settings.advertise, port)
        return Address(self.settings.host, port)

    def _join_addresses(self) -> tuple[Address, ...]:
        """Where the cluster may be: what was configured, then every member we have known."""
        found = dict.fromkeys((*self.settings.join, *self.links.known))
        found.pop(self.address, None)
        return tuple(found)

    def _timer_fired(self, key: str, generation: int) -> None:
        self.stimulate(TimerFired(key, generation))

    def _on_tick(self) -> None:
        late_s = self.loop.time() - self._tick_due_s
        self.occupation.ticked(int(late_s * 1_000_000))
        if late_s > LAG_TOLD_S:
            self.count("stalls")
            self.hint("stalled", late_ms=int(late_s * 1000))
        moment_us = now_us()
        with self.engine_scope:
            self.engine.tick(moment_us, wall_ms())
        self.occupation.stepped(moment_us)
        self._tick_due_s = self.loop.time() + TICK_S
        self._tick = self.loop.call_later(TICK_S, self._on_tick)
        with self.engine_scope:
            self._look_recovering()
            self._look_ready()

    def _look_recovering(self) -> None:
        """Say once that files were found; what becomes of them is the cluster's affair."""
        if self._on_recovering is not None and self.engine.member.persistence.found is not None:
            tell, self._on_recovering = self._on_recovering, None
            tell(self)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self.crashed(problem)

    def admin_ended(self, why: str) -> None:
        """The admin server has ended though nobody stopped it: it is started anew."""
        self._stop_admin = None
        self.note(Note("error", "admin_ended", {"why": why}))
        if self._admin is not None and not self.stopped.done():
            self.spawn(self._start_admin(self._admin, ADMIN_PAUSE_S))

    async def _start_admin(self, admin: AdminStarter, pause_s: float = 0.0) -> None:
        """Start the admin server, so that probes are answered while the member still joins.

        A member without its admin server still holds its data: a failure, for want of open files
        or of memory, is told, and it is tried again until it starts.
        """
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, ADMIN_PAUSE_S), ADMIN_PAUSE_MAX_S)
            try:
                self.ports.renew_admin(self.settings.host)
                self._stop_admin = await admin(self)
                return
            except Exception as problem:
                fields: dict[str, str | int | float | bool | None] = {
                    "problem": repr(problem),
                    "again_in_s": pause_s,
                }
                self.note(Note("error", "admin_failed", fields))
