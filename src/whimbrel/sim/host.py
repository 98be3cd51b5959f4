"""A place where members run: the simulator's shell around one serving engine.

Knows how outputs become deliveries, timers and client bytes, how a process is paused, killed and
started again under a new identity. It decides nothing: decisions are the engine's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

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
from whimbrel.core.ids import Address, MemberId, Namespace, PartitionId
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberInfo
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.core.stimuli import (
    DiskDone,
    DiskFailed,
    LeaveWanted,
    Received,
    Started,
    Stimulus,
    TimerFired,
)
from whimbrel.errors import InvariantViolation, ProtocolError
from whimbrel.serving.engine import Engine
from whimbrel.serving.outputs import (
    Answered,
    CloseClient,
    EventsTold,
    ToAddress,
    ToClient,
    ToPeer,
)
from whimbrel.sim.disk import SimDisk
from whimbrel.sim.disk_works import DiskWorks
from whimbrel.sim.links import LINGER_US, AddressLinks, PeerLink
from whimbrel.sim.network import Network, Pipe
from whimbrel.sim.persisted import draw_encryption
from whimbrel.wire import links as wire_links

if TYPE_CHECKING:
    from whimbrel.core.context import Context
    from whimbrel.core.member import Member
    from whimbrel.core.merging.leftovers import SplitData
    from whimbrel.core.replication.fragments import Store
    from whimbrel.sim.world import World

BACKLOG_MAX = 200_000
"""Events a paused member may have waiting; sockets would have pushed back long before."""
CRASHED = "crash"
"""Why a process ended that was killed."""
EXPELLED = "expelled"
"""Why an incarnation ended that is followed by another one of the same process."""

Call = tuple[Callable[..., None], tuple[Any, ...], bool]
"""(method, arguments, whether it is a timer)"""
Again = Callable[[], None]
"""Handles a message as if it arrived now."""


GETS, HAS = "gets", "has"
"""Before and after a member handles a message or a frame."""


class Delivery:
    """A message or data frame that a member is handed."""

    __slots__ = ("again", "frame", "here", "kind", "message", "sender", "what")

    def __init__(
        self, here: Host, what: type[Message] | int, sender: MemberId, message: Any, again: Again
    ) -> None:
        self.here = here
        self.what = what
        """Type of a control message, kind of a data frame as links know it."""
        self.frame = what if isinstance(what, int) else 0
        self.kind = what.__name__ if isinstance(what, type) else FRAME_NAMES[what]
        """In words."""
        self.sender = sender
        self.message = message
        self.again = again


class Interceptor(Protocol):
    """Harm that waits for a message."""

    @property
    def is_idle(self) -> bool:
        """Whether it waits for none."""
        ...

    def stops(self, delivery: Delivery, side: str) -> bool:
        """Whether the member does not go on with the message; asked on both sides of it."""
        ...


class ClientConnection:
    """The member's end of one client's connection."""

    __slots__ = ("closed", "on_closed", "to_client")

    def __init__(self, to_client: Pipe, on_closed: Callable[[], None]) -> None:
        self.to_client = to_client
        self.on_closed = on_closed
        self.closed = False


class Host:
    """One address and the member process that runs there, if any."""

    def __init__(
        self, world: World, name: str, address: Address, lite: bool = False, machine: str = ""
    ) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.lite = lite
        self.starts_lite = lite
        """What a process here is configured as; ``lite`` is what the member is on its own list."""
        self.machine = machine or name
        """Several members may run on one; they stall together, and share no replica."""
        generator = world.entropy.of(f"member-{name}")
        self.clock_offset_us = generator.randrange(1, 10_000_000_000)
        """The monotonic clock of this machine started somewhere else than that of others."""
        self.skew_ms = generator.randint(-world.plan.clock_skew_ms, world.plan.clock_skew_ms)
        drift_ppm = world.plan.clock_drift_ppm
        self.drift_ppm = generator.randint(-drift_ppm, drift_ppm)
        """How much faster than true time this machine's clock runs, in millionths."""
        self._jitter = generator.randrange
        self.incarnation = 0
        """Rises with every start and every end of a process here."""
        self.is_up = False
        self.is_silent = False
        """The machine is gone without a word: no refusal, no reset (power failure)."""
        self.is_paused = False
        self.woken_us: int | None = None
        """When this process last went on after a pause."""
        self.is_leaving = False
        self.is_draining = False
        """Ordered to become lite; its copies are being moved away."""
        self.condemned = -1
        """The incarnation that was silenced for longer than the heartbeat timeout."""
        self.is_outside = False
        """Left outside the core for ever: no rule looks at it any more."""
        self.joined = False
        self.wall_frozen_ms: int | None = None
        """What the wall clock shows while it stands still; the monotonic clock goes on."""
        self.info = MemberInfo(MemberId(""), address, lite, host=self.machine)
        self.engine: Engine | None = None
        self.joins: tuple[Address, ...] = ()
        """Addresses that processes here are configured with."""
        self.known: dict[Address, None] = {}
        """Addresses of members that this process was ever linked to."""
        self.links: dict[MemberId, PeerLink] = {}
        self.address_links = AddressLinks(self)
        self.clients: dict[int, ClientConnection] = {}
        self.exit_status: int | None = None
        self.exit_reason = ""
        """With the status: what the process has said at its end."""
        self.works = DiskWorks(self, world.scheduler, partial(world.entropy.of, f"disk-{name}"))
        self.stimulus: Stimulus | None = None
        """What the engine is handling right now; rules ask for it."""
        self._backlog: deque[Call] = deque()
        self._flush_waits = False

    @property
    def member(self) -> Member:
        """The core of the member that runs here.

        Raises:
            LookupError: No process runs here.
        """
        if self.engine is None:
            raise LookupError(f"{self.name} is not running")
        return self.engine.member

    @property
    def disk(self) -> SimDisk:
        """The disk of this place."""
        return self.works.disk

    @property
    def is_condemned(self) -> bool:
        """Whether the cluster is expected to go on without this process."""
        return self.condemned == self.incarnation

    def store_at(self, pid: PartitionId, namespace: Namespace) -> Store | None:
        """What the member holds of a structure in a partition."""
        fragment = self.member.dataplane.partitions[pid].fragments.get(namespace)
        return None if fragment is None else fragment.store

    def entry_count(self, pid: PartitionId) -> int:
        """Entries the member holds of a partition, all structures together."""
        fragments = self.member.dataplane.partitions[pid].fragments
        return sum(len(fragment.store) for fragment in fragments.values())

    def condemn(self) -> None:
        """What this process does from now on is not judged as that of a member."""
        self.condemned = self.incarnation

    @property
    def is_master(self) -> bool:
        """Whether a process here takes itself for the master."""
        return self.engine is not None and self.engine.member.ctx.is_master

    @property
    def network(self) -> Network:
        """The network of its world."""
        return self.world.network

    def endpoint_at(self, address: Address) -> Host | None:
        """The place with that address."""
        return self.world.host_at(address)

    # -- life -----------------------------------------------------------------------------

    def start(
        self,
        join_addresses: tuple[Address, ...],
        split_data: SplitData | None = None,
        heard: tuple[Address, ...] = (),
        cause: str = "",
    ) -> None:
        """Start a process under a fresh identity, maybe with what it held and heard in a split."""
        world = self.world
        self.incarnation += 1
        self.is_up, self.is_silent, self.is_paused = True, False, False
        self.woken_us = None
        self.is_leaving = self.joined = self.is_draining = False
        self.lite = self.starts_lite
        self.exit_status = None
        self._flush_waits = False
        known = self.info.id if world.plan.profile.keeps_identity else ""
        identity = known or world.entropy.uuid()
        self.info = MemberInfo(MemberId(identity), self.address, self.lite, host=self.machine)
        self.engine = world.make_engine(
            self.info, world.plan.settings, self._clock_us(), self._encryption()
        )
        self.info = self.engine.member.ctx.me
        if split_data is not None:
            self.engine.member.merging.take_over(split_data)
        world.tell("started", self)
        cause = cause or self.member.ctx.new_cause()
        world.trace.mark(world.now_us, self.name, "start", self.info.id[:8], cause)
        self._schedule_tick()
        self.stimulate(Started(join_addresses, heard, cause=cause))

    def _encryption(self) -> Encryption:
        """What this incarnation writes its files with."""
        world = self.world
        return draw_encryption(world.entropy.of("keys")) if world.plan.encrypted else PLAIN

    def end(self, reason: str, keep_sent: bool) -> None:
        """The process is gone; what it had sent may still arrive (``keep_sent``) or only a part."""
        if not self.is_up:
            return
        self.world.host_ending(self, reason)
        self.works.process_ends(is_killed=reason == CRASHED, is_last=reason != EXPELLED)
        self.incarnation += 1
        self.is_up = self.joined = self.is_paused = self.is_leaving = False
        self.engine = None
        self._backlog.clear()
        for link in self.links.values():
            if link.pipes is not None:
                for pipe in link.pipes.values():
                    if keep_sent:
                        pipe.end(len(pipe.queue))
                    else:
                        self.world.network.reset(pipe)
        self.links.clear()
        self.address_links.drop()
        if reason != EXPELLED:
            self.known.clear()
        clients, self.clients = self.clients, {}
        for connection in clients.values():
            connection.closed = True
            if keep_sent:
                connection.to_client.end(len(connection.to_client.queue))
            else:
                self.world.network.reset(connection.to_client)
            if not self.is_silent:
                self.world.scheduler.after(self._notice_us(), connection.on_closed)
        self.world.tell("ended", self, reason)

    def crash(self, silent: bool = False) -> None:
        """Kill the process (``kill -9``), or the whole machine with it (``silent``)."""
        self.is_silent = silent
        self.end(CRASHED, keep_sent=False)
        if silent:
            self.works.lose_power()
        self.world.break_links_to(self, notice=not silent)

    @property
    def backlog(self) -> int:
        """Events that wait because the process is paused."""
        return len(self._backlog)

    def leave(self) -> None:
        """Ask the member to leave gracefully (SIGTERM); asking twice is an operator's habit."""
        if self.is_up:
            self.is_leaving = True
            self.world.trace.mark(self.world.now_us, self.name, "leave asked")
            self.stimulate(LeaveWanted())

    def pause(self) -> None:
        """Stop the process (SIGSTOP): everything that arrives waits, timers become late."""
        if self.is_up:
            self.is_paused = True

    def resume(self) -> None:
        """Let the process run again; by the toss of a coin late timers or waiting bytes first."""
        if not self.is_paused:
            return
        self.is_paused = False
        self.woken_us = self.world.now_us
        waiting = list(self._backlog)
        self._backlog.clear()
        if self._jitter(2):
            waiting.sort(key=lambda call: not call[2])
        incarnation = self.incarnation
        for method, arguments, _ in waiting:
            if self.incarnation != incarnation:
                return
            if self.is_paused:
                self._backlog.append((method, arguments, False))
            else:
                self._run(method, arguments)
        if self.is_up and not self.is_paused:
            self.flush()

    # -- in -------------------------------------------------------------------------------

    def stimulate(self, stimulus: Stimulus) -> None:
        """Hand a stimulus to the engine, or keep it while the process is paused."""
        self._submit(self._do_handle, (stimulus,), False)

    def damaged_frame(self, sender: MemberId, kind: int, payload: bytes) -> bool:
        """Give the engine a frame that is damaged; whether it refuses it, which ends the link."""
        engine = self.engine
        if engine is None:
            return False
        try:
            engine.peer_frame(sender, kind, payload, self._clock_us(), self.wall_ms())
        except ProtocolError:
            return True
        return False

    def order(self, what: str, arguments: bytes, to: MemberId | None = None) -> None:
        """An operator's order, given through this member: to a member, or else to the master."""
        self._submit(self._do_order, (what, arguments, to), False)

    def frame_arrived(self, incarnation: int, sender: MemberInfo, kind: int, payload: Any) -> None:
        """A frame of a member's link came out of the network."""
        if incarnation != self.incarnation:
            return
        if kind == wire_links.MESSAGE:
            self.message_arrived(incarnation, sender, payload)
            again_us = self.world.repeated_after_us(self, sender)
            if again_us:
                self.world.scheduler.after(
                    again_us, self.message_arrived, incarnation, sender, payload
                )
        else:
            self._submit(self._do_frame, (sender.id, kind, payload), False)

    def message_arrived(self, incarnation: int, sender: MemberInfo, payload: Any) -> None:
        """A control message came out of the network, encoded or as an object."""
        if incarnation != self.incarnation:
            return
        is_encoded = type(payload) is bytes
        cause, message = wire_links.decode_message(payload) if is_encoded else payload
        received = Received(sender.id, sender.address, message, sender.started_us, cause=cause)
        self._submit(self._do_handle, (received,), False)

    def client_opened(self, connection: int, end: ClientConnection, remote: str) -> None:
        """A client's connection is made."""
        self.clients[connection] = end
        self._submit(self._do_client_opened, (connection, remote), False)

    def client_bytes(self, incarnation: int, connection: int, data: bytes) -> None:
        """Bytes of a client came out of the network."""
        if incarnation == self.incarnation and connection in self.clients:
            self._submit(self._do_client_bytes, (connection, data), False)

    def client_closed(self, incarnation: int, connection: int) -> None:
        """The client closed its connection, or it broke."""
        if incarnation == self.incarnation and self.clients.pop(connection, None) is not None:
            self._submit(self._do_client_closed, (connection,), False)

    def _submit(self, method: Callable[..., None], arguments: tuple[Any, ...], timer: bool) -> None:
        if not self.is_up:
            return
        if self.is_paused:
            if len(self._backlog) < BACKLOG_MAX:
                self._backlog.append((method, arguments, timer))
            return
        self._run(method, arguments)

    def _run(self, method: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """One step of the engine, and what it wants done."""
        world, engine = self.world, self.engine
        outer = world.trace.begin_step()
        goes_on = self._step(method, arguments)
        cause = None if engine is None else engine.member.ctx.known_cause
        world.trace.end_step(cause or "", outer)
        if not goes_on:
            return
        if world.plan.flush_delay_us:
            if not self._flush_waits:
                self._flush_waits = True
                world.scheduler.after(
                    self._jitter(world.plan.flush_delay_us + 1), self._flush_later, self.incarnation
                )
        else:
            self.flush()

    def _step(self, method: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """Run it: no exception may escape (X2). Whether the process is still the same one."""
        world = self.world
        incarnation = self.incarnation
        self.stimulus = None
        try:
            method(*arguments)
        except InvariantViolation as error:
            world.violation("X2", f"{self.name} stopped: {error}", self.name)
            self.crash()
            return False
        except Exception as error:
            world.violation("X2", f"{self.name}: {type(error).__name__}: {error}", self.name, error)
            self.crash()
            return False
        if self.incarnation != incarnation:
            return False  # it has died at a crash point
        world.tell("stepped", self)
        self.stimulus = None
        return True

    def _do_handle(self, stimulus: Stimulus) -> None:
        engine, world = self.engine, self.world
        if engine is None:
            return
        stimulus = with_cause(stimulus, engine.member.ctx)
        self.stimulus = stimulus
        world.trace.add(world.now_us, self.name, *describe(stimulus), stimulus.cause or "")
        delivery = None
        if isinstance(stimulus, Received) and world.is_intercepted:
            again = partial(self._submit, self._do_handle, (stimulus,), False)
            message = stimulus.message
            delivery = Delivery(self, type(message), stimulus.sender, message, again)
            if world.stops(delivery, GETS):
                return
        world.tell("stimulus", self, stimulus)
        engine.handle(stimulus, self._clock_us(), self.wall_ms())
        if delivery is not None:
            world.stops(delivery, HAS)

    def _do_order(self, what: str, arguments: bytes, to: MemberId | None) -> None:
        if self.engine is not None:
            self.world.trace.add(self.world.now_us, self.name, "order", what)
            self.engine.ask(to, what, arguments, self._clock_us(), self.wall_ms())

    def _do_frame(self, sender: MemberId, kind: int, payload: bytes) -> None:
        engine, world = self.engine, self.world
        if engine is None:
            return
        world.trace.add(world.now_us, self.name, FRAME_NAMES[kind], f"{sender[:8]} {len(payload)}")
        delivery = None
        if world.is_intercepted:
            again = partial(self._submit, self._do_frame, (sender, kind, payload), False)
            delivery = Delivery(self, kind, sender, payload, again)
            if world.stops(delivery, GETS):
                return
        engine.peer_frame(sender, kind, payload, self._clock_us(), self.wall_ms())
        if delivery is not None:
            world.stops(delivery, HAS)

    def _do_client_opened(self, connection: int, remote: str) -> None:
        if self.engine is not None:
            self.engine.client_opened(connection, remote)

    def _do_client_bytes(self, connection: int, data: bytes) -> None:
        engine, world = self.engine, self.world
        if engine is None:
            return
        world.trace.add(world.now_us, self.name, "request", f"{connection} {len(data)}")
        engine.client_bytes(connection, data, self._clock_us(), self.wall_ms())

    def _do_client_closed(self, connection: int) -> None:
        if self.engine is not None:
            self.engine.client_closed(connection)

    # -- time -----------------------------------------------------------------------------

    def _clock_us(self) -> int:
        now_us = self.world.now_us
        return now_us + now_us * self.drift_ppm // 1_000_000 + self.clock_offset_us

    def wall_ms(self) -> int:
        """What the wall clock of this machine shows."""
        if self.wall_frozen_ms is not None:
            return self.wall_frozen_ms
        return self.world.wall_base_ms + self.world.now_us // 1000 + self.skew_ms

    def _schedule_tick(self) -> None:
        self.world.scheduler.after(self.world.plan.tick_us, self._tick, self.incarnation)

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if not self.is_paused:
            self._run(self._do_tick, ())
        if incarnation == self.incarnation:
            self._schedule_tick()

    def _do_tick(self) -> None:
        if self.engine is not None:
            self.engine.tick(self._clock_us(), self.wall_ms())

    def _timer(self, incarnation: int, key: str, generation: int) -> None:
        if incarnation == self.incarnation:
            self._submit(self._do_handle, (TimerFired(key, generation),), True)

    # -- out ------------------------------------------------------------------------------

    def _flush_later(self, incarnation: int) -> None:
        self._flush_waits = False
        if incarnation == self.incarnation and not self.is_paused:
            self.flush()

    def flush(self) -> None:
        """Carry out everything the engine wants done, in order."""
        engine = self.engine
        if engine is None:
            return
        incarnation = self.incarnation
        outputs = engine.take_outputs()
        for position, output in enumerate(outputs):
            PERFORM[type(output)](self, output)
            if self.incarnation != incarnation:
                if isinstance(output, Stopped):  # it writes what it asked for in the same turn
                    self.works.carry_out(outputs[position + 1 :])
                return

    def _disk_work(self, output: DiskWork) -> None:
        self.works.take(output)

    def disk_turn(self, incarnation: int) -> None:
        """The time of a work is over: it is carried out, unless the process stands still."""
        if incarnation == self.incarnation:
            self._submit(self.works.do_next, (), False)

    def disk_answered(self, incarnation: int, answer: DiskDone | DiskFailed) -> None:
        """The process hears of a work."""
        if incarnation == self.incarnation:
            self.stimulate(answer)

    def _to_peer(self, output: ToPeer) -> None:
        link = self.links.get(output.peer)
        if link is None:
            return
        payload = output.payload
        if isinstance(payload, bytes):
            link.send(output.channel, output.kind, payload)
        elif self.world.plan.encoded:
            encoded = wire_links.encode_message(payload, output.cause)
            link.send(output.channel, output.kind, encoded)
        else:
            link.send(output.channel, output.kind, (output.cause, payload))

    def _to_address(self, output: ToAddress) -> None:
        self.address_links.send(output.address, (output.cause, output.message))

    def _to_client(self, output: ToClient) -> None:
        connection = self.clients.get(output.conn)
        if connection is not None:
            connection.to_client.send(output.data)

    def _close_client(self, output: CloseClient) -> None:
        connection = self.clients.pop(output.conn, None)
        if connection is not None:
            connection.closed = True
            connection.to_client.end(len(connection.to_client.queue))
            self.world.scheduler.after(self._notice_us(), connection.on_closed)

    def _arm(self, output: ArmTimer) -> None:
        late_us = self._jitter(self.world.plan.timer_late_us + 1)
        since_us = output.at_us - self.clock_offset_us
        self.world.scheduler.at(
            1 + since_us * 1_000_000 // (1_000_000 + self.drift_ppm) + late_us,
            self._timer,
            self.incarnation,
            output.key,
            output.generation,
        )

    def _events_told(self, _output: EventsTold) -> None:
        """Nobody in the simulator asks for them."""

    def _answered(self, _output: Answered) -> None:
        """Nobody asks questions in a simulated run."""

    def _note(self, output: Note) -> None:
        self.world.noted(self, output)

    def _link_wanted(self, output: LinkWanted) -> None:
        present = self.links.get(output.member)
        if present is not None and present.address == output.address and not present.closing:
            present.is_unwanted = False
            return
        if present is not None:
            present.close()
        self.known[output.address] = None
        link = self.links[output.member] = PeerLink(self, output.member, output.address)
        link.connect()

    def _link_unwanted(self, output: LinkUnwanted) -> None:
        link = self.links.get(output.member)
        if link is not None:
            link.is_unwanted = True
            self.world.scheduler.after(LINGER_US, self._drop_link, output.member, link)

    def _drop_link(self, member: MemberId, link: PeerLink) -> None:
        if link.is_unwanted and self.links.get(member) is link:
            del self.links[member]
            link.close()

    def _joined(self, output: Joined) -> None:
        self.joined = True
        self.world.served()
        self.world.trace.mark(self.world.now_us, self.name, "joined", cause=output.cause)

    def _expelled(self, output: Expelled) -> None:
        world = self.world
        world.trace.mark(world.now_us, self.name, "expelled", output.reason, output.cause)
        world.host_expelled(self)
        data = None if self.engine is None else self.engine.member.split_data
        is_open = self.engine is None or self.engine.member.ctx.members.state.join_allowed
        self.end(EXPELLED, keep_sent=True)
        # Where nobody new may join, only the old identity finds its seat (GCM-09); and files are of
        # whom they name.
        if is_open and not world.plan.settings.persistence.enabled:
            self.info = msgspec.structs.replace(self.info, id=MemberId(""))
        world.break_links_to(self, notice=True)
        self.start((*self.joins, *self.known), data, output.addresses, output.cause)

    def _stopped(self, output: Stopped) -> None:
        world = self.world
        words = f"{output.exit_status} {output.reason}"
        world.trace.mark(world.now_us, self.name, "stopped", words, output.cause)
        self.exit_status, self.exit_reason = output.exit_status, output.reason
        self.end("left" if output.exit_status == 0 else "gave up", keep_sent=True)
        world.break_links_to(self, notice=True)

    def _notice_us(self) -> int:
        return 50 + self._jitter(500)


PERFORM: dict[type, Callable[[Host, Any], None]] = {
    ToPeer: Host._to_peer,
    ToAddress: Host._to_address,
    ToClient: Host._to_client,
    CloseClient: Host._close_client,
    Answered: Host._answered,
    EventsTold: Host._events_told,
    ArmTimer: Host._arm,
    DiskWork: Host._disk_work,
    Note: Host._note,
    LinkWanted: Host._link_wanted,
    LinkUnwanted: Host._link_unwanted,
    Joined: Host._joined,
    Expelled: Host._expelled,
    Stopped: Host._stopped,
}

FRAME_NAMES = {
    wire_links.BACKUPS: "backups",
    wire_links.ACKS: "acks",
    wire_links.FORWARD: "forward",
    wire_links.FORWARD_REPLY: "forward-reply",
    wire_links.SCATTER: "scatter",
    wire_links.SCATTER_REPLY: "scatter-reply",
    wire_links.NOTIFY: "notify",
}


def with_cause(stimulus: Stimulus, ctx: Context) -> Stimulus:
    """The stimulus with the cause that its step will have, so that its line can tell it."""
    if stimulus.cause is not None:
        return stimulus
    cause = None
    if isinstance(stimulus, TimerFired):
        cause = ctx.cause_of_timer(stimulus.key, stimulus.generation)
    return msgspec.structs.replace(stimulus, cause=cause or ctx.new_cause())


def describe(stimulus: Stimulus) -> tuple[str, str]:
    """A stimulus for the trace: what, and the partition or version it is about."""
    if isinstance(stimulus, Received):
        message = stimulus.message
        return type(message).__name__, f"{stimulus.sender[:8]} {subject_of(message)}"
    if isinstance(stimulus, TimerFired):
        return "timer", stimulus.key
    if isinstance(stimulus, DiskDone | DiskFailed):
        return type(stimulus).__name__, f"work {stimulus.number}"
    member = getattr(stimulus, "member", None)
    return type(stimulus).__name__, "" if member is None else member[:8]


def subject_of(message: Message) -> str:
    """What a message is about, as far as one word says it."""
    migration = getattr(message, "migration", None)
    if migration is not None:
        step = migration.step
        return (
            f"p{migration.partition_id} {step.kind.value} v{migration.initial_version} "
            f"{(step.source or '-')[:8]}>{(step.destination or '-')[:8]}"
        )
    for field in ("partition_id", "list_version", "publication", "migration_id", "member"):
        value = getattr(message, field, None)
        if value is not None:
            return f"p{value}" if field == "partition_id" else f"{field} {value}"
    return ""
