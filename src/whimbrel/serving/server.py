"""The request path of one member: routing, replies, frames between members.

A request of a partition runs here when this member is the primary, waits when the partition
migrates (``parking``), or goes to the primary (``forwarding``). Replies and events collect in
their origin's ``out`` and leave once per turn (``turn_end``). How bytes become requests is in
``intake``; what requests mean is in the ``handlers`` modules; this module knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.member import Member
from whimbrel.core.model import MemberList, members_came, members_left
from whimbrel.errors import (
    GridError,
    ProtocolError,
    RetryableError,
    UnsupportedError,
    UsageError,
)
from whimbrel.serving.absent import Absences
from whimbrel.serving.admission import Admission
from whimbrel.serving.calls import Call
from whimbrel.serving.forwarding import Forwarding
from whimbrel.serving.grid_events import GridEvents
from whimbrel.serving.hub import (
    NOTIFY_BACKUPS,
    NOTIFY_EVENT,
    NOTIFY_GRID,
    NOTIFY_WAIT_OVER,
    NOTIFY_WAKE,
    Hub,
)
from whimbrel.serving.intake import Intake
from whimbrel.serving.listeners import Listeners
from whimbrel.serving.operations import Operations, RunAnywhere, Scope
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.presence import Presence
from whimbrel.serving.scatter import Scatter
from whimbrel.serving.session import IN_FLIGHT_MAX, Connection, ForwardOrigin, Origin, Request
from whimbrel.serving.shares import Shares
from whimbrel.serving.turn_end import TurnEnd
from whimbrel.serving.views import Views
from whimbrel.serving.wait_frames import LOST, WOULD_WAIT, code_in, error_in
from whimbrel.serving.waits import Waits
from whimbrel.wire import errors as codes
from whimbrel.wire.frames import RawMessage, parse_message
from whimbrel.wire.links import (
    FORWARD,
    FORWARD_REPLY,
    NOTIFY,
    SCATTER,
    SCATTER_REPLY,
)
from whimbrel.wire.protocol_table import message_name

SWEEP_PER_TICK = 2_000
"""Expired entries of a kind removed in one tick."""


class Server(Hub):
    """Request routing of one member, and the parts of its serving layer."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._partitions = self.dataplane.partitions
        self._partition_count = len(self._partitions)
        self.operations = Operations()
        self._in_partition = self.operations.in_partition
        self.admission = Admission(self.ctx, member.kinds.values(), self.operations)
        self.absences = Absences(self.ctx)
        self.parking = ParkingLot(self.ctx.settings.backup_timeout_us)
        self.waits = Waits(self, self.parking, self._try_again)
        self.forwarding = Forwarding(self, self.operations, self.parking, self.waits)
        self.shares = Shares(self, self.operations, self.admission)
        self.scatter = Scatter(self, self.operations, self.shares)
        self.presence = Presence(self, self.scatter)
        self.listeners = Listeners(self, self.scatter)
        self.grid = GridEvents(self, self.listeners)
        self.views = Views(self)
        self.turn_end = TurnEnd(self, self.waits, self.listeners, self.grid, self.views)
        self.intake = Intake(self, self.views, self.listeners, self.waits, self.dispatch)
        self._newcomers: list[MemberId] = []
        """Members that came in this step; what is sent before their links is lost."""

    # -- requests -------------------------------------------------------------------------

    def dispatch(self, origin: Origin, message: RawMessage, hops: int = 0) -> None:
        """Run a request here, or park it, or send it on; its errors become replies."""
        operation = self._in_partition.get(message[4])
        try:
            if operation is None:
                self.only_read = False
                self._dispatch_other(origin, message)
                return
            pid = message[6]
            if not 0 <= pid < self._partition_count:
                raise UsageError(
                    f"there is no partition {pid}; {operation.name} needs one",
                    reason="partition_id",
                )
            if operation.is_guarded:
                self.admission.admit(operation, message)
            partition = self._partitions[pid]
            if operation.is_write:
                self.only_read = False
                ready = partition.writable
            else:
                ready = partition.readable
            if ready and origin.in_flight < IN_FLIGHT_MAX:
                operation.count += 1
                operation.run(origin, partition, message)
            else:
                self.only_read = False
                origin.begin_waiting()
                self.forwarding.wait(Request.of(origin, message, hops), partition)
        except GridError as error:
            self.refuse(origin, message[5], error)

    def _dispatch_other(self, origin: Origin, message: RawMessage) -> None:
        operation = self.operations.others.get(message[4])
        if operation is not None:
            if operation.is_guarded:
                self.admission.admit(operation, message)
            if isinstance(origin, Connection) or operation.scope is Scope.ANYWHERE:
                run: RunAnywhere = operation.run  # type: ignore[assignment]  # no other is passed on
                run(origin, message)
                return
        name = message_name(message[4])
        if name is None:
            if message[4] == 0:
                self.tally("refused_type_0")
                return
            raise UnsupportedError(
                f"there is no request of type 0x{message[4] & 0xFFFFFFFF:06X}",
                reason="unknown_request",
            )
        self.tally("unsupported_requests")
        raise self.absences.request(name)

    def dispatch_request(self, request: Request, message: RawMessage | None = None) -> None:
        """Run a request that waited, unless nobody waits for it any more.

        Args:
            request: It counts as under way.
            message: The same, where it has just been read.
        """
        origin = request.origin
        if not origin.alive:
            return
        operation = self._in_partition.get(request.type)
        message = message or parse_message(request.data)
        origin.in_flight -= 1
        wait, attempt = request.wait, request.attempt
        try:
            if operation is None:
                self._dispatch_other(origin, message)
                return
            partition = self._partitions[request.partition]
            if operation.is_guarded:
                self.admission.admit(operation, message)
            if partition.writable if operation.is_write else partition.readable:
                operation.count += 1
                if wait is not None:
                    wait.is_here = True
                if attempt is None or operation.recognise is None:
                    operation.run(origin, partition, message)
                else:
                    operation.recognise(request, partition, message)
                if wait is not None and wait.is_here:  # it did not say ``later`` again
                    self.waits.end(request)
            else:
                origin.in_flight += 1
                self.forwarding.wait(request, partition)
        except GridError as error:
            if request.is_in_doubt:
                origin.in_flight += 1
                self.answer_error(request, codes.code_of(error), str(error))
            elif not self.waits.goes_on(request, codes.code_of(error)):
                self.refuse(origin, request.correlation, error)

    def _try_again(self, request: Request) -> bool:
        """Make an attempt of a call that waits; False when its partition cannot be asked now."""
        primary = self.primary_to_ask(request.partition)
        can_go = self._can_go_on(request.partition) and not self.calls.is_down(primary)
        must_hear = self._in_partition[request.type].is_guarded or not self.ctx.data_members()
        if not can_go and not must_hear:
            return False
        request.origin.in_flight += 1
        self.dispatch_request(request)
        return True

    def answer_error(self, request: Request, code: int, text: str) -> None:
        """Give a waiting request an error, unless its call goes on after that.

        An error says that its attempt has had no effect. Of a request in doubt that is no answer:
        an attempt before it may have had one.
        """
        if request.is_in_doubt:
            if self.forwarding.keeps(request, code):
                return
            self.waits.end(request)
            if code != codes.INDETERMINATE:
                code, text = codes.INDETERMINATE, f"it may have taken effect before this: {text}"
            super().answer_error(request, code, text)
        elif self.waits.goes_on(request, code):
            request.origin.in_flight -= 1
        else:
            super().answer_error(request, code, text)

    # -- frames of other members ----------------------------------------------------------

    def peer_frame(self, peer: MemberId, kind: int, payload: bytes) -> None:
        """Take a frame of a member; BACKUPS and ACKS go to the data plane without us.

        Raises:
            ProtocolError: The payload does not follow its kind's format.
        """
        if kind in (FORWARD, SCATTER):
            taken = self.calls.take_request(peer, payload)
            if taken is not None and not self.calls.hold(peer, kind, *taken):
                self._run_call(peer, kind, *taken)
            while (held := self.calls.take_held(peer)) is not None:
                self._run_call(peer, *held)
        elif kind in (FORWARD_REPLY, SCATTER_REPLY):
            answered = self.calls.take_reply(peer, payload)
            if answered is not None:
                self._take_reply(*answered)
            else:
                self.tally("replies_unasked")
        elif kind == NOTIFY:
            self._take_notice(peer, payload)
        else:
            raise ProtocolError(f"a frame of kind {kind} is not for the serving layer")

    def _run_call(self, peer: MemberId, kind: int, number: int, body: bytes) -> None:
        if kind == FORWARD:
            self._run_forwarded(ForwardOrigin(peer, number), body)
        else:
            self.scatter.on_call(peer, number, body)

    def _run_forwarded(self, origin: ForwardOrigin, body: bytes) -> None:
        """Another member sends a request of one of its clients: a head and the request."""
        if not body:
            raise ProtocolError("a forwarded request is empty")
        attempt, start = self.waits.came(origin, body)
        message = parse_message(body[start:])
        if attempt is None or not 0 <= message[6] < self._partition_count:
            self.dispatch(origin, message, origin.hops)
        elif origin.hops > 1 and not self.ctx.is_member(origin.member):
            left = f"member {origin.member} is not on the list; whoever asked it asks again"
            self.refuse(origin, message[5], RetryableError(left))
        else:
            origin.begin_waiting()
            request = Request.of(origin, message, origin.hops)
            request.attempt = attempt
            self.dispatch_request(request, message)
        if origin.out:  # at once, so that the bytes of answers are known before the next call
            self.flush_origin(origin)

    def _take_reply(self, call: Call, body: bytes) -> None:
        request = call.token
        if not isinstance(request, Request):
            self.scatter.on_reply(request, body)
        elif body.startswith(WOULD_WAIT):
            self.waits.told(call, request, body)
        elif body == LOST:
            if self.forwarding.on_told_lost(call, request):
                self.dispatch_request(request)
        elif request.is_in_doubt and (error := error_in(body)) is not None:
            self.answer_error(request, error.error_code, str(error.message))
        elif request.wait is not None and self.waits.goes_on(request, code_in(body)):
            request.origin.in_flight -= 1
        else:
            self.answer(request, body)

    def _take_notice(self, peer: MemberId, payload: bytes) -> None:
        what, body = payload[:1], payload[1:]
        if what == NOTIFY_EVENT:
            self.listeners.on_event(body)
        elif what == NOTIFY_GRID:
            self.grid.on_frame(body)
        elif what == NOTIFY_WAKE:
            self.waits.on_wake(peer, body)
        elif what == NOTIFY_WAIT_OVER:
            self.waits.on_over(peer, body)
        elif what == NOTIFY_BACKUPS:
            self.turn_end.on_backups_done(body)
        else:
            raise ProtocolError("a notice of unknown kind")

    def members_changed(self, old: MemberList, new: MemberList) -> None:
        """The member list changed: tell clients, end calls to those who left."""
        self.admission.members_changed()
        for member in members_left(old, new):
            self.listeners.member_left(member)
            for call, was_sent in self.calls.member_left(member):
                self._lose(call, was_sent)
            self.waits.member_left(member)
        self.presence.members_changed(old, new)
        self.waits.hurry(lambda request, wait: self._in_partition[request.type].is_guarded)
        self._newcomers += members_came(old, new)
        self.views.members_changed()

    def greet_newcomers(self) -> None:
        """Speak to those who came, now that links to them have been asked for."""
        newcomers, self._newcomers = self._newcomers, []
        for member in newcomers:
            if member != self.ctx.id and self.ctx.is_member(member):
                self.calls.member_came(member)
                self.waits.link_restored(member)
                self.listeners.member_came(member)

    def link_restored(self, member: MemberId) -> None:
        """The link to a member stands again: repeat what it may have lost."""
        self.calls.link_restored(member)
        self.waits.link_restored(member)

    def _lose(self, call: Call, was_sent: bool) -> None:
        if isinstance(call.token, Request):
            if self.forwarding.on_lost(call, call.token, was_sent):
                self.dispatch_request(call.token)
        else:
            self.scatter.on_lost(call, was_sent)

    # -- news of the core -----------------------------------------------------------------

    def table_changed(self, partitions: Sequence[PartitionId]) -> None:
        """Rows changed: tell clients, look at requests that waited for that."""
        self.views.table_changed()
        self._run_parked(partitions)
        for pid in partitions:
            self.waits.row_changed(pid)
        self.scatter.ask_again()

    def partition_released(self, partition_id: PartitionId) -> None:
        """A partition may be written again."""
        self._run_parked((partition_id,))
        self.waits.released(partition_id)

    def _run_parked(self, partitions: Sequence[PartitionId]) -> None:
        for request in self.parking.take(partitions):
            self.dispatch_request(request)

    def tick(self) -> None:
        """Time has passed: expiry, requests that waited too long, calls to ask again."""
        for request in self.parking.take_expired(self.ctx.now_us):
            if request.origin.alive:
                self.tally("parking_timeouts")
                self.answer_error(
                    request,
                    codes.PARTITION_MIGRATING,
                    f"partition {request.partition} could not serve in time",
                )
        self._run_parked(self.parking.partitions(self._can_go_on))
        self.waits.tick()
        self.shares.begin()
        self.scatter.ask_again()
        for call in self.calls.take_overdue(self.ctx.now_us):
            self.tally("calls_overdue")
            if isinstance(call.token, Request):
                if self.forwarding.on_overdue(call, call.token):
                    self.dispatch_request(call.token)
            else:
                self.scatter.on_overdue(call)
        self.calls.tick()
        if self.ctx.members.recovery is None:  # else backups may not know yet that they are some
            for service in self.member.services.values():
                service.sweep(self.ctx.wall_ms, SWEEP_PER_TICK)
            self.presence.tick()

    def _can_go_on(self, partition_id: PartitionId) -> bool:
        partition = self._partitions[partition_id]
        if partition.is_primary:
            return not partition.migrating
        return self.primary_to_ask(partition_id) is not None
