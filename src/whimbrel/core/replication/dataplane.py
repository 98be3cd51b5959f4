"""The data plane: partitions, and backup operations out and in. The path of every write.

Knows which fragments this member holds, who must hear of a change, and whether a backup operation
that arrives may be applied. What follows from a changed row is in ``roles``, healing in
``anti_entropy``. An operation travels as (little-endian)

    u32 length of all, u16 length of the head, u8 k, u8 flags, k counters u64,
    16 + 8 bytes client and correlation (when flag 1 is set), head, the store's operation

where the head is what stays the same for a fragment until its row changes: partition, row version,
lineage, base lineage, k, k base counters, namespace (AE-04, AE-11, AE-19). A receiver checks a head
once and then finds it in a dictionary.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.effects import Effect, PartitionReleased
from whimbrel.core.ids import (
    BACKUP_COUNT_MAX,
    MemberId,
    Namespace,
    PartitionId,
    ReplicaIndex,
    Row,
)
from whimbrel.core.messages import FragmentPart, Message, TableRequested
from whimbrel.core.model import MemberList, MigrationInfo, members_came, members_left
from whimbrel.core.ports import Export
from whimbrel.core.replication.anti_entropy import AntiEntropy
from whimbrel.core.replication.deferred_free import FREE
from whimbrel.core.replication.doubts import Doubts
from whimbrel.core.replication.fragments import Fragment, PartitionReplica, Store
from whimbrel.core.replication.handover import HANDOVER, Handovers
from whimbrel.core.replication.holdings import HEADS_MAX, Holdings
from whimbrel.core.replication.outbox import (
    ACKS,
    AcksRead,
    Inbox,
    Outbox,
    PendingReply,
)
from whimbrel.core.replication.refill import REFILL, Refills
from whimbrel.core.replication.roles import Roles
from whimbrel.core.replication.shortage import Shortage
from whimbrel.core.replication.vectors import ZERO, lineage_version, slot_of
from whimbrel.errors import OverloadedError, ProtocolError, SerializationError

PREFIX: Final = struct.Struct("<IHBBQ")
HEAD: Final = struct.Struct("<IIQQQB")
COUNTERS: Final = tuple(struct.Struct(f"<{count}Q") for count in range(BACKUP_COUNT_MAX + 1))
CLIENT_ACK_BYTES: Final = 24
"""A client's uuid and the correlation number of its request."""
WITH_CLIENT_ACK: Final = 1
TABLE_REQUEST_PAUSE_US: Final = 1_000_000
"""A stale primary asks for the table at most this often."""

_pack_prefix = PREFIX.pack
_unpack_prefix = PREFIX.unpack_from
_unpack_acks = ACKS.unpack
_unpack_counter = struct.Struct("<Q").unpack_from
_unpack_correlation = struct.Struct("<q").unpack_from


class DataPlane:
    """All partitions of this member and the traffic between replicas.

    Implements ``ports.FragmentHost``. Calls may add to ``ctx.effects`` (syncs are asked for while
    backups are applied), so whoever calls from outside ``Member.handle`` sets ``ctx.now_us`` and
    ``ctx.wall_ms`` before and takes the effects after.

    Attributes:
        partitions: By partition id.
        reply: Who waits for the backups of the changes made now; set by the serving layer before
            it calls a structure's service, see ``replicate``.
        ack_to: Client uuid and correlation that backups shall tell directly, or empty.
        completed: Replies that are decided; the serving layer takes them out.
        notifications: What ``take_notifications`` will return.
        must_ask: Outboxes over their limit and partitions with too few backups; not 0 means that
            writes must ask ``admit_write`` and ``shortage.admit``.
        has_backups: Whether ``take_backups`` may have something to send or to find out.
        owes_acks: Whether ``take_acks`` may have something to send.
        counters: Numbers for metrics, by name.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.shortage = Shortage(ctx)
        self.doubts = Doubts(ctx)
        self.holdings = Holdings(ctx, self.shortage, self.doubts)
        self.partitions = self.holdings.partitions
        self.reply: PendingReply | None = None
        self.ack_to = b""
        self.completed: list[PendingReply] = []
        self.must_ask = 0
        self.has_backups = self.owes_acks = False
        self.counters: dict[str, int] = {
            "backups_applied": 0,
            "backups_ignored": 0,
            "backups_refused": 0,
            "backup_timeouts": 0,
        }
        self.outboxes: dict[MemberId, Outbox] = {}
        self._inboxes: dict[MemberId, Inbox] = {}
        self.notifications: list[tuple[bytes, int, MemberId]] = []
        self._table_asked_us = -TABLE_REQUEST_PAUSE_US
        self._congested = 0
        """Outboxes over their limit."""
        self.anti_entropy = AntiEntropy(self)
        self.roles = Roles(self)
        self.refills = Refills(self)
        self.handovers = Handovers(self)
        self.on_seat_lost: Callable[[PartitionId, int], None] | None = None
        """Told of each partition that a returned primary serves again, and how many backups were
        lost: 0 when the hottest backup had the data, 6 when nobody had any (GCM-09)."""

    # -- structures -----------------------------------------------------------------------

    def partition(self, pid: int) -> PartitionReplica:
        """The partition with this number."""
        return self.partitions[pid]

    def fragment(self, partition: PartitionReplica, namespace: Namespace) -> Fragment:
        """The primary's fragment, made and counted from zero when it is not there."""
        found = partition.fragments.get(namespace)
        if found is not None:
            return found
        fragment = self.holdings.begin(partition, namespace)
        self.refresh_targets(partition)
        return fragment

    def fragment_store(self, partition: PartitionReplica, name: str) -> Store:
        """The store of a map in a partition of ours, made at its first write."""
        return self.fragment(partition, Namespace(f"map/{name}")).store

    # -- backups out ----------------------------------------------------------------------

    def replicate(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        operation: bytes,
        reply: PendingReply | None = None,
        ack_to: bytes = b"",
    ) -> int:
        """Count a change and send it to the backups there are (AE-02, AE-04).

        Args:
            partition: The partition, of which we are the primary.
            fragment: What was changed.
            operation: The store's backup operation.
            reply: Its ``remaining`` rises by the acknowledgements that will come.
            ack_to: Client uuid (16 bytes) and correlation (8, little-endian) that the synchronous
                backups tell when they have applied it; empty for nobody.

        Returns:
            The number of acknowledgements that will come.
        """
        count = fragment.backup_count
        if not count:
            return 0
        value = fragment.value + 1
        fragment.value = value
        targets = fragment.sync_targets
        if not targets and not fragment.async_targets:
            return 0
        head = fragment.head or self._make_head(partition, fragment)
        if count == 1:
            length = 16 + len(ack_to) + len(head) + len(operation)
            prefix = _pack_prefix(length, len(head), 1, 1 if ack_to else 0, value)
            record = b"".join((prefix, ack_to, head, operation))
        else:
            record = self._encode(fragment, head, operation, ack_to)
        self.has_backups = True
        for outbox in targets:
            outbox.operations.append(record)
            outbox.replies.append(reply)
        if fragment.async_targets:
            if ack_to:
                record = self._encode(fragment, head, operation, b"")
            for outbox in fragment.async_targets:
                outbox.operations.append(record)
                outbox.replies.append(None)
        acks = len(targets)
        if reply is not None:
            reply.remaining += acks
            reply.partition_id = partition.pid
        return acks

    @staticmethod
    def _encode(fragment: Fragment, head: bytes, operation: bytes, ack_to: bytes) -> bytes:
        """An operation with any number of counters."""
        count = fragment.backup_count
        counters = fragment.counters()
        length = 8 + 8 * count + len(ack_to) + len(head) + len(operation)
        flags = WITH_CLIENT_ACK if ack_to else 0
        prefix = _pack_prefix(length, len(head), count, flags, counters[0])
        more = COUNTERS[count - 1].pack(*counters[1:count])
        return b"".join((prefix, more, ack_to, head, operation))

    @staticmethod
    def _make_head(partition: PartitionReplica, fragment: Fragment) -> bytes:
        count = fragment.backup_count
        fixed = HEAD.pack(
            partition.pid,
            partition.version,
            fragment.generation,
            fragment.lineage,
            fragment.base_lineage,
            count,
        )
        base = COUNTERS[count].pack(*fragment.base[:count])
        fragment.head = fixed + base + fragment.namespace.encode()
        return fragment.head

    def refresh_targets(self, partition: PartitionReplica) -> None:
        """Work out anew who our backups are and to whom each fragment's operations go."""
        if not partition.is_primary:
            partition.backups = ()
            self.shortage.close(partition)
            self._count_must_ask()
            for fragment in partition.fragments.values():
                fragment.stop_sending()
            return
        members = self.ctx.members
        partition.backups = tuple(
            (ReplicaIndex(index), member)
            for index, member in enumerate(partition.row)
            if index and member is not None and members.get(member)
        )
        for fragment in partition.fragments.values():
            fragment.head = b""
            sync, both = fragment.sync_count, fragment.backup_count
            fragment.sync_targets = tuple(
                self.outbox(member) for index, member in partition.backups if index <= sync
            )
            fragment.async_targets = tuple(
                self.outbox(member) for index, member in partition.backups if sync < index <= both
            )
        self._look_at_shortage(partition)

    def _look_at_shortage(self, partition: PartitionReplica) -> None:
        self.shortage.look(partition)
        self._count_must_ask()

    def _count_must_ask(self) -> None:
        self.must_ask = self._congested + len(self.shortage.lacking)

    def outbox(self, member: MemberId) -> Outbox:
        """The outbox to a member."""
        found = self.outboxes.get(member)
        if found is None:
            found = Outbox(member, self.ctx.started_us, self.ctx.next_number())
            self.outboxes[member] = found
        return found

    def take_backups(self) -> list[tuple[MemberId, bytes]]:
        """The BACKUPS payloads of this turn, in the order in which they must be sent."""
        payloads: list[tuple[MemberId, bytes]] = []
        limit = self.ctx.settings.unacknowledged_backups_max
        congested = 0
        for member, outbox in self.outboxes.items():
            if outbox.operations or outbox.must_resend:
                fresh = outbox.take(self.ctx.now_us)
                if len(fresh) == 1:
                    payloads.append((member, fresh[0]))
                else:
                    payloads += [(member, payload) for payload in fresh]
            if outbox.is_full(limit):
                congested += 1
        self._congested = congested
        self.must_ask = congested + len(self.shortage.lacking)
        self.has_backups = congested > 0
        return payloads

    def admit_write(self, partition: PartitionReplica) -> None:
        """Refuse a write, before it has any effect, when a backup cannot keep up.

        Raises:
            OverloadedError: ``unacknowledged_backups_max`` operations, or BYTES_IN_FLIGHT_MAX,
                are under way to a backup.
        """
        limit = self.ctx.settings.unacknowledged_backups_max
        for _, member in partition.backups:
            outbox = self.outboxes.get(member)
            if outbox is not None and outbox.is_full(limit):
                raise OverloadedError(f"{outbox.in_flight} backup operations wait for {member}")

    def apply_acks(self, sender: MemberId, payload: bytes) -> None:
        """Take an ACKS payload: releases replies into ``completed``.

        Raises:
            ProtocolError: The payload is malformed.
        """
        outbox = self.outboxes.get(sender)
        if outbox is not None and len(payload) == ACKS.size:
            incarnation, stream, sequence, gap, count = _unpack_acks(payload)
            if not gap and not count:  # nearly every one
                if stream == outbox.stream and incarnation == outbox.incarnation:
                    outbox.acknowledge(sequence, self.completed)
                return
        acks = AcksRead(payload)
        if outbox is None or acks.stream != outbox.stream:
            return
        if acks.incarnation != outbox.incarnation:
            return
        for sequence, position, _ in acks.refusals:
            reply = outbox.refuse(sequence, position)
            if reply is not None:
                self.handovers.refused(sender, reply)
        if acks.refusals:
            self._ask_for_table()
        if acks.sequence < outbox.acknowledged and acks.gap:
            outbox.renumber(self.ctx.next_number())
            self.has_backups = True
            return
        outbox.acknowledge(acks.sequence, self.completed)
        if acks.gap:
            outbox.request_again()
            self.has_backups = True

    def _ask_for_table(self) -> None:
        """We were taken for a stale primary: get the present table (decision 5)."""
        ctx = self.ctx
        master = ctx.master
        if master is None or master == ctx.id:
            return
        if ctx.now_us - self._table_asked_us >= TABLE_REQUEST_PAUSE_US:
            self._table_asked_us = ctx.now_us
            ctx.send(master, TableRequested(stamp=0))

    def expire_replies(self) -> None:
        """Decide replies that have waited longer than ``backup_timeout_us``."""
        before_us = self.ctx.now_us - self.ctx.settings.backup_timeout_us
        for outbox in self.outboxes.values():
            self.counters["backup_timeouts"] += outbox.expire(before_us, self.completed)
        self.counters["backup_timeouts"] += self.handovers.expire(before_us)

    # -- backups in -----------------------------------------------------------------------

    def apply_backups(self, sender: MemberId, payload: bytes) -> None:
        """Apply a BACKUPS payload; acknowledgements are taken with ``take_acks``.

        Raises:
            ProtocolError: The payload is malformed. Versions of operations not applied have not
                advanced (bug 31), and the frame is not acknowledged.
        """
        inbox = self._inboxes.get(sender)
        if inbox is None:
            inbox = self._inboxes[sender] = Inbox()
        self.owes_acks = True
        admitted = inbox.admit(payload)
        if admitted is None:
            return
        try:
            self._apply_frame(sender, inbox, payload, *admitted)
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError("a backup frame ends within an operation") from error
        except SerializationError as error:
            raise ProtocolError(str(error), reason="unknown_service") from error
        inbox.applied_frame(admitted[0])

    def _apply_frame(
        self, sender: MemberId, inbox: Inbox, payload: bytes, sequence: int, count: int
    ) -> None:
        heads = self.holdings.heads_of(sender)
        size = len(payload)
        at = 24
        applied = 0
        for position in range(count):
            length, head_length, k, flags, counter = _unpack_prefix(payload, at)
            end = at + length
            start = at + 8 + 8 * k
            if flags:
                start += CLIENT_ACK_BYTES
            body = start + head_length
            if end > size or body > end:
                raise ProtocolError("a backup operation is longer than its frame")
            fragment = heads.get(payload[start:body])
            if fragment is None:
                fragment, refused = self._admit(sender, heads, payload[start:body])
                if refused:
                    inbox.refuse(sequence, position)
                    at = end
                    continue
            if fragment is not None:
                if fragment.slot:
                    (counter,) = _unpack_counter(payload, at + 8 + 8 * fragment.slot)
                if counter == fragment.value + 1 and not fragment.is_dirty:
                    fragment.store.apply(payload, body, end)
                    fragment.value = counter
                    applied += 1
                else:
                    counters = COUNTERS[k].unpack_from(payload, at + 8)
                    self._apply_out_of_step(fragment, counter, counters, payload[body:end])
            if flags:
                client = start - CLIENT_ACK_BYTES
                (correlation,) = _unpack_correlation(payload, client + 16)
                uuid = payload[client : client + 16]
                self.notifications.append((uuid, correlation, sender))
            at = end
        self.counters["backups_applied"] += applied

    def _admit(
        self, sender: MemberId, heads: dict[bytes, Fragment], head: bytes
    ) -> tuple[Fragment | None, bool]:
        """Check a head that is not remembered (AE-10, AE-11, decisions 5 and 6).

        Returns:
            The fragment to apply to, or None when the operation is not for us; and whether it is
            refused because the sender is no longer the primary.
        """
        pid, version, generation, lineage, base_lineage, k = HEAD.unpack_from(head)
        names = HEAD.size + 8 * k
        if pid >= len(self.partitions) or not 1 <= k <= BACKUP_COUNT_MAX or names > len(head):
            raise ProtocolError("a backup operation has an impossible head")
        base = COUNTERS[k].unpack_from(head, HEAD.size) + ZERO[k:]
        namespace = Namespace(head[names:].decode())
        partition = self.partitions[pid]
        fragment = partition.fragments.get(namespace)
        if _is_stale(partition, fragment, sender, version):
            self.counters["backups_refused"] += 1
            return None, True
        if self.holdings.is_destroyed(namespace, generation):
            return None, False  # and the write with it
        self.holdings.destroy(namespace, generation)
        fragment = partition.fragments.get(namespace)
        if partition.primary != sender:
            # Our table is behind the sender's: apply, the row that follows decides what we keep.
            partition.ahead_version = max(partition.ahead_version, version)
        elif not 1 <= partition.index <= k:
            # The row changed under the operation. Whoever has our place got the data with it.
            return None, False
        slot = slot_of(partition.index) if 0 <= partition.index <= k else k - 1
        if fragment is None:
            fragment = self.holdings.make(partition.pid, namespace)
            fragment.set_counters(ZERO, slot)
            self.holdings.hold(partition, fragment)
        if fragment.backup_count != k:
            fragment.set_counters(fragment.counters(), slot)
            fragment.backup_count = k
        if fragment.lineage != lineage:
            self.holdings.forget_heads()
            if not fragment.meet_lineage(lineage, base_lineage, base, slot):
                self.doubts.mark_dirty(fragment)
        if len(heads) >= HEADS_MAX:
            heads.clear()
        heads[head] = fragment
        return fragment, False

    def _apply_out_of_step(
        self, fragment: Fragment, counter: int, counters: Sequence[int], operation: bytes
    ) -> None:
        """An operation that is not simply the next one of a clean replica (AE-06 to AE-09)."""
        if counter <= fragment.value:
            self.counters["backups_ignored"] += 1
        else:
            is_next = counter == fragment.value + 1
            fragment.store.apply(operation, 0, len(operation))
            self.counters["backups_applied"] += 1
            if is_next:
                fragment.value = counter
            else:
                slot, k = fragment.slot, len(counters)
                own = fragment.counters()
                received = ZERO[:slot] + tuple(counters[slot:]) + own[k:]
                fragment.set_counters(received, slot)
                self.doubts.mark_dirty(fragment)
        if fragment.is_dirty:
            self.anti_entropy.passed_by(fragment, counter, operation)

    def take_acks(self) -> list[tuple[MemberId, bytes]]:
        """The ACKS payloads owed for what was applied since the last call."""
        payloads: list[tuple[MemberId, bytes]] = []
        self.owes_acks = False
        for sender, inbox in self._inboxes.items():
            if inbox.owed:
                owed = inbox.take_acks()
                if len(owed) == 1:
                    payloads.append((sender, owed[0]))
                else:
                    payloads += [(sender, payload) for payload in owed]
        return payloads

    def take_notifications(self) -> list[tuple[bytes, int, MemberId]]:
        """(client uuid, correlation, primary) of applied operations that clients wait for."""
        taken, self.notifications = self.notifications, []
        return taken

    # -- links and members ----------------------------------------------------------------

    def link_lost(self, member: MemberId) -> None:
        """The connection to a member broke: keep what goes there, end syncs with it."""
        outbox = self.outboxes.get(member)
        if outbox is not None:
            outbox.link_lost()
        self.anti_entropy.link_lost(member)
        self.refills.link_lost(member)

    def link_restored(self, member: MemberId) -> None:
        """Send again what was not acknowledged, and our own acknowledgements (decision 4)."""
        outbox = self.outboxes.get(member)
        if outbox is not None:
            outbox.link_restored()
            self.has_backups = True
        inbox = self._inboxes.get(member)
        if inbox is not None:
            inbox.answer_again()
            self.owes_acks = True
        self.anti_entropy.link_restored(member)

    def member_left(self, member: MemberId) -> None:
        """The member is off the list: whatever waits for it counts as done."""
        outbox = self.outboxes.pop(member, None)
        if outbox is not None:
            outbox.close(self.completed)
        self._inboxes.pop(member, None)
        self.holdings.forget_sender(member)
        self.anti_entropy.member_left(member)
        self.refills.link_lost(member)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """A member list was installed: ``ctx.members`` is the new one.

        Backups go to listed members only; rows may be ahead of the list or behind it.
        """
        if self.shortage.members_changed():
            for partition in self.partitions:
                if partition.is_primary:
                    self._look_at_shortage(partition)
        if old.ids() == new.ids():
            return
        for member in members_left(old, new):
            if member != self.ctx.id:
                self._count_unacknowledged(member)
                self.member_left(member)
        for member in members_came(old, new):
            inbox = self._inboxes.get(member)
            if inbox is not None:
                inbox.answer_again()  # there was no link for what we owed a newcomer
                self.owes_acks = True
        changed = (*members_left(old, new), *members_came(old, new))
        for partition in self.partitions:
            if partition.is_primary and not partition.row_has_none_of(changed):
                self.refresh_targets(partition)
        self.refills.members_changed()
        self.handovers.members_changed()
        self.anti_entropy.start()

    def _count_unacknowledged(self, member: MemberId) -> None:
        """Tell the shortage what a member that is gone had of our writes under way."""
        outbox = self.outboxes.get(member)
        if outbox is None:
            return
        heads = Counter(head for body in outbox.unacknowledged() for head in _heads_in(body))
        found: Counter[Fragment] = Counter()
        for head, count in heads.items():
            partition = self.partitions[HEAD.unpack_from(head)[0]]
            for fragment in partition.fragments.values() if partition.is_primary else ():
                if fragment.head == head:
                    found[fragment] = count
        self.shortage.lost_on_the_way(outbox, found)

    def on_message(self, sender: MemberId, message: Message) -> None:
        """A message of the replication part of ``core.messages``."""
        self.anti_entropy.on_message(sender, message)
        self.refills.on_message(sender, message)
        self.handovers.on_message(sender, message)

    def on_timer(self, key: str) -> None:
        """A timer whose key starts with ``replication.`` fired."""
        if key == REFILL:
            self.refills.on_timer()
        elif key == FREE:
            self.holdings.deferred.on_timer()
        elif key == HANDOVER:
            self.handovers.on_timer()
        else:
            self.anti_entropy.on_timer(key)

    def unsettled(self) -> int:
        """What keeps this member's replicas from being known to be in step; 0 is safe."""
        return self.anti_entropy.unsettled() + len(self.refills.lacking)

    # -- FragmentHost ---------------------------------------------------------------------

    def copy_bytes(self, migration: MigrationInfo) -> int:
        """See ``ports.FragmentHost``."""
        return self.roles.copy_bytes(migration)

    def begin_source(self, migration: MigrationInfo) -> None:
        """See ``ports.FragmentHost``."""
        self.partitions[migration.partition_id].set_migrating(True)
        self.roles.begin_source(migration)

    def end_source(self, partition_id: PartitionId) -> None:
        """See ``ports.FragmentHost``; parked requests hear of it."""
        partition = self.partitions[partition_id]
        self.roles.end_source(partition_id)
        if partition.migrating:
            partition.set_migrating(False)
            self.ctx.emit(PartitionReleased(partition_id))

    def open_export(self, migration: MigrationInfo) -> Export:
        """See ``ports.FragmentHost``."""
        return self.roles.open_export(migration)

    def begin_destination(self, migration: MigrationInfo) -> None:
        """See ``ports.FragmentHost``."""
        self.roles.begin_destination(migration)

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> None:
        """See ``ports.FragmentHost``."""
        self.roles.ingest(migration, parts)

    def rollback_destination(self, migration: MigrationInfo) -> None:
        """See ``ports.FragmentHost``."""
        self.roles.rollback_destination(migration)

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        """See ``ports.FragmentHost``."""
        self.roles.row_changed(partition_id, before, after, version)

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """See ``ports.FragmentHost``."""
        return self.refills.lacking

    def take_effects(self) -> list[Effect]:
        """The effects gathered by calls from outside ``Member.handle``."""
        taken, self.ctx.effects = self.ctx.effects, []
        return taken


def _heads_in(body: bytes) -> list[bytes]:
    """The heads of the operations of a frame of ours."""
    heads: list[bytes] = []
    at = 0
    while at < len(body):
        length, head_length, k, flags, _ = _unpack_prefix(body, at)
        start = at + 8 + 8 * k + (CLIENT_ACK_BYTES if flags else 0)
        heads.append(body[start : start + head_length])
        at += length
    return heads


def _is_stale(
    partition: PartitionReplica, fragment: Fragment | None, sender: MemberId, version: int
) -> bool:
    """Whether a backup operation, sent under this row's version, is of a primary of before."""
    since = partition.primary_since
    if fragment is not None:
        since = max(since, lineage_version(fragment.lineage))
    if partition.primary == sender:
        # A former primary may be it again; what it sent before that is as stale as ever.
        return version < since
    return version <= partition.version or version < since
