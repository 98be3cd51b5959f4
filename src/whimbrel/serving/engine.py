"""One member as a shell sees it: stimuli, frames and client bytes go in, outputs come out.

Knows which core effect becomes which output and in which order the parts of a step run. It
knows no socket, clock or client message; the shells (``runtime``, ``sim``) drive the very same
object.
"""

from __future__ import annotations

from collections.abc import Sequence

from whimbrel.core.effects import (
    ArmTimer,
    DiskWork,
    Effect,
    Expelled,
    Joined,
    LinkUnwanted,
    LinkWanted,
    MembersChanged,
    Note,
    PartitionReleased,
    Send,
    SendTo,
    Stopped,
    TableChanged,
)
from whimbrel.core.ids import MemberId, namespace_of
from whimbrel.core.member import Member
from whimbrel.core.membership.role_change import Then
from whimbrel.core.messages import DATA_CHANNEL, RegistryEntry
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.core.registry import is_structure
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import Received, Stimulus, TimerFired
from whimbrel.serving import shares
from whimbrel.serving.documents import Documents
from whimbrel.serving.handlers_client import ClientHandlers
from whimbrel.serving.handlers_events import EventHandlers
from whimbrel.serving.kinds import ServedKind
from whimbrel.serving.metrics import metrics_of
from whimbrel.serving.outputs import BULK, CONTROL, Output, ToAddress, ToPeer
from whimbrel.serving.questions import Questions
from whimbrel.serving.server import Server
from whimbrel.serving.validation import validate
from whimbrel.wire.links import ACKS, BACKUPS, MESSAGE

CLIENT_BACKLOG_BYTES_MAX = 64 * 1024 * 1024
"""Bytes a shell keeps unsent for a client before it ends the connection: a stopped reader."""


class Engine:
    """A member with its client sessions; one per identity, never reused after ``Expelled``."""

    client_backlog_limit_bytes = CLIENT_BACKLOG_BYTES_MAX

    def __init__(
        self,
        me: MemberInfo,
        settings: CoreSettings,
        kinds: Sequence[ServedKind],
        started_us: int = 0,
        encryption: Encryption = PLAIN,
    ) -> None:
        """Build the member and its serving layer; nothing happens before ``Started``.

        Args:
            me: Our entry of the member list; its id is new with every engine unless the shell
                keeps identities on disk.
            settings: Limits and periods.
            kinds: The structures that there may be; the same on all members.
            started_us: Monotonic time of the start.
            encryption: The keys for files.
        """
        self.member = Member(me, settings, kinds, started_us, encryption)
        self._ctx = self.member.ctx
        self._registry = self.member.registry
        self._incoming = self.member.dataplane.incoming
        self._outgoing = self.member.dataplane.outgoing
        self.server = Server(self.member)
        self._turn_end = self.server.turn_end
        self.overflowing = self.server.intake.overflowing
        """Clients whose bytes wait in the engine because its replies grew large; while there are
        some, the shell calls ``resume_input`` in its next loop turn."""
        self.clients = ClientHandlers(self.server)
        self.handlers = {kind.name: kind.make_handlers(self.server, kind) for kind in kinds}
        """By kind of structure."""
        self.server.operations.add(self.clients.operations())
        self.server.operations.add(EventHandlers(self.server).operations())
        for handlers in self.handlers.values():
            self.server.operations.add(handlers.operations())
        self.member.migrations.tell_events(self.server.grid.take)
        self.questions = Questions(self.server)
        Documents(self.member, self.server.admission.protection, self.questions)
        self.member.on_question = self.questions.on_message
        self.member.on_view_changed = self._view_changed
        self.member.on_link_lost = self.server.calls.link_lost
        self.member.on_link_restored = self.server.link_restored
        self.member.on_registry_changed = self._registry_changed

    # -- in -------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now_us: int, wall_ms: int) -> None:
        """Take a control-plane stimulus: start, message, timer, link news, wish to leave.

        Raises:
            ProtocolError: A message that no member of ours would send; nothing has changed, and
                the shell ends the connection it came by.
        """
        if isinstance(stimulus, Received):
            count = self.member.ctx.settings.partition_count
            validate(stimulus.message, count, self.member.kinds)
        self.member.begin(now_us, wall_ms)
        if isinstance(stimulus, TimerFired) and stimulus.key == shares.TIMER:
            is_current = self._ctx.take_timer(stimulus.key, stimulus.generation)
            if is_current and not self.member.is_expelled:
                self.server.shares.go_on()
        else:
            self.member.apply(stimulus)
        self._carry_out_effects()

    def want_role(self, lite: bool, then: Then, now_us: int, wall_ms: int) -> None:
        """Become lite or a data member; ``then`` is told how it ended (GCM-15)."""
        self.member.begin(now_us, wall_ms)
        self.member.membership.want_role(lite, then)
        self._carry_out_effects()

    def want_events(self, wanted: bool, now_us: int, wall_ms: int) -> None:
        """Begin or end to tell the shell the cluster's events (``EventsTold``)."""
        self.member.begin(now_us, wall_ms)
        self.server.listeners.listen_for_shell(wanted)

    def peer_frame(
        self, peer: MemberId, kind: int, payload: bytes, now_us: int, wall_ms: int
    ) -> None:
        """Take a frame of another kind than MESSAGE from a member.

        Raises:
            ProtocolError: The payload does not follow its kind's format; the shell ends the link.
        """
        ctx = self._ctx
        ctx.now_us = now_us
        ctx.wall_ms = wall_ms
        ctx.known_cause = None
        if self.member.is_expelled:
            return
        if kind == BACKUPS:
            self._incoming.apply_backups(peer, payload)
        elif kind == ACKS:
            self._outgoing.apply_acks(peer, payload)
        else:
            self.server.peer_frame(peer, kind, payload)

    def client_opened(self, conn: int, remote: str) -> None:
        """A client connected; ``conn`` is a number of the shell's, ``remote`` for the log."""
        self._ctx.known_cause = None
        self.server.intake.opened(conn, remote)

    def client_bytes(self, conn: int, data: bytes, now_us: int, wall_ms: int) -> None:
        """Take bytes of a client, the three-byte prelude ``CP2`` included, cut anywhere."""
        ctx = self._ctx
        ctx.now_us = now_us
        ctx.wall_ms = wall_ms
        ctx.known_cause = None
        if not self.member.is_expelled:
            self.server.intake.feed(conn, data)

    def take_reply(self, conn: int) -> bytes | None:
        """Replies that may be written at once, taken right after ``client_bytes`` of that client.

        Reads change nothing, so a shell that writes their replies itself need not take outputs.
        None means that there is more to carry out, and that all of it comes with the outputs.
        """
        server = self.server
        return server.intake.take_reply(conn) if server.only_read else None

    def client_closed(self, conn: int) -> None:
        """The client's connection is gone, or was closed by the shell itself."""
        self._ctx.known_cause = None
        self.server.intake.closed(conn)

    def unfinished_clients(self) -> list[tuple[int, bool]]:
        """Clients that owe us bytes: (conn, whether it is authenticated), for the shell's clock.

        Those that have not authenticated, and those that have sent half a message.
        """
        return self.server.intake.unfinished()

    def client_paused(self, conn: int) -> None:
        """The client does not read: the shell's write buffer is above its high-water mark.

        Until ``client_resumed`` no further request of it runs; the shell should stop reading.
        """
        self.server.intake.pause(conn)

    def client_resumed(self, conn: int, now_us: int, wall_ms: int) -> None:
        """The client reads again; requests that waited in the engine run now."""
        self.member.begin(now_us, wall_ms)
        self.server.intake.resume(conn)

    def tick(self, now_us: int, wall_ms: int) -> None:
        """Every 50 ms: time-outs of parked requests, expiry sweep, coalesced views."""
        self.member.begin(now_us, wall_ms)
        if not self.member.is_expelled:
            self.server.tick()
            self.questions.tick()

    def ask(
        self,
        member: MemberId | None,
        what: str,
        arguments: bytes,
        now_us: int,
        wall_ms: int,
        cause: str | None = None,
    ) -> int:
        """Put a question to a member (None: to the master).

        Args:
            member: Whom to ask; ourselves is fine.
            what: Name of the document, one of ``questions.documents``.
            arguments: JSON of the question's arguments.
            now_us: Monotonic time.
            wall_ms: Wall clock.
            cause: What it follows from, when that is known already.

        Returns:
            The number that the output ``Answered`` will carry; it always comes.
        """
        self.member.begin(now_us, wall_ms)
        self._ctx.known_cause = cause
        return self.questions.ask(member, what, arguments)

    # -- out ------------------------------------------------------------------------------

    def take_outputs(self) -> list[Output]:
        """Everything to be carried out since the last take, in order."""
        server, ctx = self.server, self._ctx
        if self.member.is_depth_stale:
            self.member.settle()
        if ctx.effects:
            self._carry_out_effects()
        if self._registry.completed:
            self.clients.drain_announcements()
        self._turn_end.flush()
        if ctx.effects:
            self._carry_out_effects()
            self._turn_end.flush()
        outputs = server.outputs
        server.outputs = []
        return outputs

    def _view_changed(self, old: MemberList, new: MemberList) -> None:
        self.server.members_changed(old, new)
        self.server.grid.lists_changed(old, new)
        self.questions.members_changed(old, new)

    def _registry_changed(self, entry: RegistryEntry, before: RegistryEntry | None) -> None:
        if is_structure(entry) and not entry.alive and entry.kind in self.handlers:
            self.handlers[entry.kind].forget(namespace_of(entry.kind, entry.key))
        self.server.listeners.structure_changed(entry, before)
        if not entry.alive:
            self.server.waits.destroyed(namespace_of(entry.kind, entry.key))

    def _carry_out_effects(self) -> None:
        """Turn effects into outputs and calls of the server, until there are none left."""
        member, server = self.member, self.server
        while member.ctx.effects:
            for effect in member.take_effects():
                self._carry_out(effect, server)

    def _carry_out(self, effect: Effect, server: Server) -> None:
        self._ctx.resume(effect.cause)
        match effect:
            case Send():
                channel = BULK if isinstance(effect.message, DATA_CHANNEL) else CONTROL
                server.outputs.append(
                    ToPeer(effect.to, channel, MESSAGE, effect.message, effect.cause)
                )
            case SendTo():
                server.outputs.append(ToAddress(effect.address, effect.message, effect.cause))
            case TableChanged():
                server.table_changed(effect.partitions)
            case PartitionReleased():
                server.partition_released(effect.partition_id)
            case MembersChanged():
                server.views.members_changed()
                server.greet_newcomers()
            case (
                ArmTimer()
                | DiskWork()
                | Note()
                | LinkWanted()
                | LinkUnwanted()
                | Joined()
                | Expelled()
            ):
                server.outputs.append(effect)
            case Stopped():
                self._report_unmerged(effect)
                server.outputs.append(effect)
            case _:
                raise TypeError(f"no output for a {type(effect).__name__}")

    def _report_unmerged(self, effect: Stopped) -> None:
        """The member ends in the middle of a merge: say so before the shell hears of the end."""
        ctx = self.member.ctx
        rest, ctx.effects = ctx.effects, []
        self.member.merging.abandon(effect.reason)
        self.server.outputs += [note for note in ctx.effects if isinstance(note, Note)]
        ctx.effects = rest

    def resume_input(self, now_us: int, wall_ms: int) -> None:
        """Go on with requests that were put off by the limit of reply bytes per turn."""
        self.member.begin(now_us, wall_ms)
        self.server.intake.resume_input()

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by name, for ``/metrics``."""
        return metrics_of(self.server, self.questions)
