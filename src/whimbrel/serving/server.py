"""The request path of one member: routing, replies, frames between members.

A request of a partition runs here when this member is the primary, waits when the partition
migrates (``parking``), or goes to the primary (``forwarding``). Replies and events collect in
their origin's ``out`` and leave once per turn. How bytes become requests is in ``intake``; what
requests mean is in the ``handlers`` modules; this module knows neither.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.member import Member
from whimbrel.core.merging.target import MergeWait
from whimbrel.core.model import ClusterState, MemberList, members_came, members_left
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import (
    GridError,
    OverloadedError,
    ProtocolError,
    UnsupportedError,
    UsageError,
)
from whimbrel.serving.absent import Absences
from whimbrel.serving.calls import Call, Calls
from whimbrel.serving.forwarding import Forwarding
from whimbrel.serving.grid_events import GridEvents
from whimbrel.serving.intake import Intake
from whimbrel.serving.listeners import Listeners, MapEvent
from whimbrel.serving.outputs import BULK, Output, ToClient, ToPeer
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.passive import REFUSED_TYPES, refusal
from whimbrel.serving.protection import Protection
from whimbrel.serving.scatter import Scatter
from whimbrel.serving.session import (
    IN_FLIGHT_MAX,
    Connection,
    ForwardOrigin,
    Origin,
    Request,
)
from whimbrel.serving.views import Views
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire import errors as codes
from whimbrel.wire.errors import encode_error, encode_exception
from whimbrel.wire.frames import RawMessage, message_bytes, parse_message
from whimbrel.wire.hot import backup_event
from whimbrel.wire.links import (
    ACKS,
    BACKUPS,
    FORWARD,
    FORWARD_REPLY,
    NOTIFY,
    SCATTER,
    SCATTER_REPLY,
)
from whimbrel.wire.protocol_table import SHAPES, message_name

SWEEP_PER_TICK = 2_000
"""Expired entries removed in one tick."""

SMALL_REPLY_BYTES = 4096
"""Longer replies count towards the limit of reply bytes per turn."""

NOTIFY_BACKUPS = b"\x00"
NOTIFY_EVENT = b"\x01"
NOTIFY_GRID = b"\x02"
_BACKUP_NOTICE = struct.Struct("<16sq")
"""Client and correlation id of the call whose backup is done."""

RunOnPartition = Callable[[Origin, PartitionReplica, RawMessage], None]
RunOnConnection = Callable[[Connection, RawMessage], None]


class PartitionOperation:
    """A request that belongs to one partition, and how it runs on the primary."""

    __slots__ = ("count", "name", "retryable", "run", "write")

    def __init__(self, name: str, write: bool, retryable: bool, run: RunOnPartition) -> None:
        self.name = name
        self.write = write
        self.retryable = retryable
        """Whether running it twice is harmless, so that a lost forward may be repeated."""
        self.run = run
        self.count = 0


def correlation_of(message: bytes) -> int:
    """The correlation id of an encoded message."""
    return int.from_bytes(message[10:18], "little", signed=True)


class Server:
    """Request routing of one member, and the parts of its serving layer."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ctx = member.ctx
        self.dataplane = member.dataplane
        self.table = member.migrations.table
        self.maps = member.maps
        self.clients: dict[bytes, Connection] = {}
        """Authenticated clients by uuid; the newest connection of each."""
        self._partitions = self.dataplane.partitions
        self._partition_count = len(self._partitions)
        self.counters: dict[str, int] = {}
        self.outputs: list[Output] = []
        self.partition_operations: dict[int, PartitionOperation] = {}
        self.connection_operations: dict[int, RunOnConnection] = {}
        self.parking = ParkingLot(self.ctx.settings.backup_timeout_us)
        self.calls = Calls(self.ctx.started_us, self.send_frame)
        self.forwarding = Forwarding(self)
        self.scatter = Scatter(self)
        self.listeners = Listeners(self, self.maps.listened)
        self.grid = GridEvents(self)
        self.views = Views(self)
        self.absences = Absences(self.ctx)
        self.protection = Protection(self)
        self.intake = Intake(self)
        self.only_read = False
        """Whether what a client sent last were nothing but reads that are answered by now."""
        self.is_passive = False
        """Whether the cluster state refuses what changes data (GCM-07)."""
        self.dirty: list[Origin] = []
        """Origins to flush at the end of this turn."""
        self._newcomers: list[MemberId] = []
        """Members that came in this step; what is sent before their links is lost."""

    # -- small tools ----------------------------------------------------------------------

    def tally(self, name: str, count: int = 1) -> None:
        """Count something by name, for ``/metrics``."""
        self.counters[name] = self.counters.get(name, 0) + count

    def send_frame(self, peer: MemberId, kind: int, payload: bytes) -> None:
        """Send a frame to a member, over its bulk connection."""
        self.outputs.append(ToPeer(peer, BULK, kind, payload))

    def deliver(self, origin: Origin, data: bytes) -> None:
        """Give reply or event bytes to an origin; dropped when it is gone."""
        if not origin.alive:
            return
        origin.out.append(data)
        if len(data) > SMALL_REPLY_BYTES:
            origin.out_bytes += len(data)
        if not origin.dirty:
            origin.dirty = True
            self.dirty.append(origin)

    def mark(self, origin: Origin) -> None:
        """Have an origin flushed whose ``out`` was filled directly."""
        if not origin.dirty:
            origin.dirty = True
            self.dirty.append(origin)

    def fail(self, origin: Origin, correlation: int, code: int, text: str) -> None:
        """Answer a request with an error."""
        self.tally(f"errors_{code}")
        self.deliver(origin, encode_error(correlation, code, text))

    def refuse(self, origin: Origin, correlation: int, error: GridError) -> None:
        """Answer a request with an exception of ours."""
        self.tally(f"errors_{codes.code_of(error)}")
        self.tally(f"refused_{error.reason}")
        self.deliver(origin, encode_exception(correlation, error))

    # -- requests -------------------------------------------------------------------------

    def add_partition_operation(self, name: str, write: bool, run: RunOnPartition) -> None:
        """Offer a request that belongs to one partition."""
        shape = SHAPES[name]
        retryable = shape.retryable or not write
        operation = PartitionOperation(name, write, retryable, run)
        self.partition_operations[shape.type] = operation

    def dispatch(self, origin: Origin, message: RawMessage, hops: int = 0) -> None:
        """Run a request here, or park it, or send it on; its errors become replies."""
        operation = self.partition_operations.get(message[4])
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
            partition = self._partitions[pid]
            if operation.write:
                if self.is_passive:
                    raise refusal(message[4])
                self.only_read = False
                ready = partition.writable
            else:
                ready = partition.readable
            if ready and origin.in_flight < IN_FLIGHT_MAX:
                operation.count += 1
                operation.run(origin, partition, message)
            else:
                self.only_read = False
                self._wait_or_refuse(origin, partition, message, hops)
        except GridError as error:
            self.refuse(origin, message[5], error)

    def _dispatch_other(self, origin: Origin, message: RawMessage) -> None:
        run = self.connection_operations.get(message[4])
        if self.is_passive and message[4] in REFUSED_TYPES:
            raise refusal(message[4])
        if run is not None and isinstance(origin, Connection):
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

    def dispatch_request(self, request: Request) -> None:
        """Run a request that waited, unless nobody waits for it any more."""
        origin = request.origin
        if not origin.alive:
            return
        operation = self.partition_operations[request.type]
        partition = self.dataplane.partition(request.partition)
        try:
            if operation.write and self.is_passive:
                origin.in_flight -= 1
                raise refusal(request.type)
            if not partition.is_primary:
                self.forwarding.route(request)
            elif not (partition.writable if operation.write else partition.readable):
                self.park(request)
            else:
                origin.in_flight -= 1
                operation.count += 1
                operation.run(origin, partition, parse_message(request.data))
        except GridError as error:
            self.refuse(origin, request.correlation, error)

    def _wait_or_refuse(
        self, origin: Origin, partition: PartitionReplica, message: RawMessage, hops: int
    ) -> None:
        """A request that cannot run here and now: park it or send it on."""
        if origin.in_flight >= IN_FLIGHT_MAX:
            raise OverloadedError(f"{IN_FLIGHT_MAX} requests of this connection wait already")
        origin.in_flight += 1
        request = Request(origin, message, message_bytes(message), hops)
        if partition.is_primary:
            self.park(request)
        else:
            self.forwarding.route(request)

    def park(self, request: Request) -> None:
        """Keep a request until its partition is free, or refuse it as retryable."""
        if not self.parking.park(request, self.ctx.now_us):
            self.tally("parking_overflows")
            self.answer_error(
                request,
                codes.PARTITION_MIGRATING,
                f"partition {request.partition} cannot serve now and too many requests wait",
            )

    def answer(self, request: Request, data: bytes) -> None:
        """Give a waiting request its reply."""
        request.origin.in_flight -= 1
        self.deliver(request.origin, data)

    def answer_error(self, request: Request, code: int, text: str) -> None:
        """Give a waiting request an error."""
        request.origin.in_flight -= 1
        self.fail(request.origin, request.correlation, code, text)

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
            self._take_notice(payload)
        else:
            raise ProtocolError(f"a frame of kind {kind} is not for the serving layer")

    def _run_call(self, peer: MemberId, kind: int, number: int, body: bytes) -> None:
        room = self.forwarding if kind == FORWARD else self.scatter
        room.on_call(peer, number, body)

    def _take_reply(self, call: Call, body: bytes) -> None:
        if isinstance(call.token, Request):
            self.answer(call.token, body)
        else:
            self.scatter.on_reply(call.token, body)

    def _take_notice(self, payload: bytes) -> None:
        what, body = payload[:1], payload[1:]
        if what == NOTIFY_EVENT:
            self.listeners.on_event(body)
        elif what == NOTIFY_GRID:
            self.grid.on_frame(body)
        elif what == NOTIFY_BACKUPS and len(body) % _BACKUP_NOTICE.size == 0:
            for client_id, correlation in _BACKUP_NOTICE.iter_unpack(body):
                self._tell_backup_done(client_id, correlation)
        else:
            raise ProtocolError("a notice of unknown kind or length")

    def notify_event(self, member: MemberId, body: bytes) -> None:
        """Send an event to a member that wants it."""
        self.send_frame(member, NOTIFY, NOTIFY_EVENT + body)

    def notify_grid(self, member: MemberId, body: bytes) -> None:
        """Send a batch of the cluster's events to a member that wants them."""
        self.send_frame(member, NOTIFY, NOTIFY_GRID + body)

    def link_restored(self, member: MemberId) -> None:
        """Send again what the broken link may have lost."""
        self.calls.link_restored(member)

    def link_lost(self, member: MemberId) -> None:
        """What is sent to a member from now on does not leave."""
        self.calls.link_lost(member)

    def members_changed(self, old: MemberList, new: MemberList) -> None:
        """The member list changed: tell clients, end calls to those who left."""
        self.is_passive = new.state is ClusterState.PASSIVE
        self.protection.members_changed()
        for member in members_left(old, new):
            self.listeners.member_left(member)
            for call, was_sent in self.calls.member_left(member):
                self._lose(call, was_sent)
        self._newcomers += members_came(old, new)
        self.views.members_changed()

    def greet_newcomers(self) -> None:
        """Speak to those who came, now that links to them have been asked for."""
        newcomers, self._newcomers = self._newcomers, []
        for member in newcomers:
            if member != self.ctx.id and self.ctx.is_member(member):
                self.calls.member_came(member)
                self.listeners.member_came(member)

    def _lose(self, call: Call, was_sent: bool) -> None:
        if isinstance(call.token, Request):
            self.forwarding.on_lost(call, call.token, was_sent)
        else:
            self.scatter.on_lost(call, was_sent)

    # -- news of the core -----------------------------------------------------------------

    def table_changed(self, partitions: Sequence[PartitionId]) -> None:
        """Rows changed: tell clients, look at requests that waited for that."""
        self.views.table_changed()
        self._run_parked(partitions)
        self.scatter.ask_again()

    def partition_released(self, partition_id: PartitionId) -> None:
        """A partition may be written again."""
        self._run_parked((partition_id,))

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
        self.scatter.ask_again()
        for call in self.calls.take_overdue(self.ctx.now_us):
            self.tally("calls_overdue")
            if isinstance(call.token, Request):
                self.forwarding.on_overdue(call, call.token)
            else:
                self.scatter.on_overdue(call)
        self.calls.tick()
        self.maps.sweep(self.ctx.wall_ms, SWEEP_PER_TICK)

    def _can_go_on(self, partition_id: PartitionId) -> bool:
        partition = self.dataplane.partition(partition_id)
        if partition.is_primary:
            return not partition.migrating
        return self.forwarding.primary_to_ask(partition_id) is not None

    # -- once per turn --------------------------------------------------------------------

    def flush(self) -> None:
        """Turn what a step has produced into outputs: replies, events, backups, their answers."""
        dataplane = self.dataplane
        if dataplane.outgoing.completed:
            self._take_completed()
        if self.maps.events:
            self._take_events()
        grid, views = self.grid, self.views
        if grid.fresh or grid.for_shell or (views.table_dirty and views.listeners):
            grid.flush()
            views.flush()
        if dataplane.incoming.notifications:
            self._take_notifications()
        outputs = self.outputs
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for origin in dirty:
                if origin.out:
                    self.flush_origin(origin)
                else:
                    origin.dirty = False
        if dataplane.outgoing.has_backups:
            for member, payload in dataplane.outgoing.take_backups():
                outputs.append(ToPeer(member, BULK, BACKUPS, payload))
        if dataplane.incoming.owes_acks:
            for member, payload in dataplane.incoming.take_acks():
                outputs.append(ToPeer(member, BULK, ACKS, payload))

    def flush_origin(self, origin: Origin) -> None:
        """Turn what an origin has collected into an output."""
        origin.dirty = False
        out = origin.out
        if not out:
            return
        if isinstance(origin, Connection):
            data = out[0] if len(out) == 1 else b"".join(out)
            self.outputs.append(ToClient(origin.conn, data))
        elif isinstance(origin, ForwardOrigin):
            self.forwarding.finish(origin)
        origin.out = []
        origin.out_bytes = 0

    def _take_completed(self) -> None:
        """Send the replies whose backups are there; tell what became of the others."""
        completed = self.dataplane.outgoing.completed
        self.dataplane.outgoing.completed = []
        for reply in completed:
            owner, payload = reply.owner, reply.payload
            if isinstance(owner, Origin):
                if type(payload) is bytes:
                    owner.in_flight -= 1
                    if reply.failed:
                        self._fail_write(owner, correlation_of(payload), reply.failed)
                    elif owner.dirty and owner.alive and len(payload) <= SMALL_REPLY_BYTES:
                        owner.out.append(payload)  # as ``deliver``: the path of every put
                    else:
                        self.deliver(owner, payload)
                elif isinstance(owner, Connection) and isinstance(payload, int):
                    self._release_backups(owner, payload, reply.released)
            elif isinstance(owner, WriteGroup | MergeWait):
                owner.take(reply)

    def _fail_write(self, origin: Origin, correlation: int, reason: str) -> None:
        """Whatever a backup said or did not say, the write is done here: others may have it too."""
        text = f"the write is done here but not on every backup: {reason}"
        self.fail(origin, correlation, codes.INDETERMINATE, text)

    def _release_backups(self, connection: Connection, correlation: int, count: int) -> None:
        """A client counts backups that will never tell it anything: tell it ourselves."""
        listener = connection.backup_correlation
        if listener is not None:
            for _ in range(count):
                self.deliver(connection, backup_event(listener, correlation))

    def _take_events(self) -> None:
        """Publish what the map service has recorded."""
        events = self.maps.events
        self.maps.events = []
        source = self.ctx.id
        for name, kind, key, value, old_value in events:
            self.listeners.publish(MapEvent(name, kind, key, value, old_value, source))

    def _take_notifications(self) -> None:
        """Tell clients whose calls we have backed up; those not connected here by the primary."""
        notices: dict[MemberId, list[bytes]] = {}
        for client_id, correlation, primary in self.dataplane.incoming.take_notifications():
            if not self._tell_backup_done(client_id, correlation):
                notice = _BACKUP_NOTICE.pack(client_id, correlation)
                notices.setdefault(primary, []).append(notice)
        for primary, packed in notices.items():
            self.send_frame(primary, NOTIFY, NOTIFY_BACKUPS + b"".join(packed))

    def _tell_backup_done(self, client_id: bytes, correlation: int) -> bool:
        """Tell a client that a backup of its call is done; False when it is not connected here."""
        connection = self.clients.get(client_id)
        if connection is None or connection.backup_correlation is None:
            return False
        self.deliver(connection, backup_event(connection.backup_correlation, correlation))
        return True
