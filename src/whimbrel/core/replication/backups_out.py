"""Backup operations on their way out: to whom, in which bytes, and who waits for them.

Knows the targets of our partitions, an outbox for each member, and when a write must be refused. An
operation travels as (little-endian)

    u32 length of all, u16 length of the head, u8 k, u8 flags, k counters u64,
    16 + 8 bytes client and correlation (when flag 1 is set), head, the store's operation

where the head is what stays the same for a fragment until its row changes: partition, row version,
generation, lineage, base lineage, k, k base counters, namespace (AE-04, AE-11, AE-19).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import BACKUP_COUNT_MAX, MemberId, Namespace, ReplicaIndex
from whimbrel.core.messages import TableRequested
from whimbrel.core.replication.fragments import Follow, Fragment, PartitionReplica
from whimbrel.core.replication.outbox import (
    ACKS,
    FAILED_DISK,
    REFUSED_DISK,
    WHOLE_FRAMES,
    Outbox,
    PendingReply,
    make_tail,
    read_acks,
)
from whimbrel.core.replication.shortage import Shortage
from whimbrel.errors import OverloadedError, RetryableError

PREFIX: Final = struct.Struct("<IHBBQ")
HEAD: Final = struct.Struct("<IIQQQB")
COUNTERS: Final = tuple(struct.Struct(f"<{count}Q") for count in range(BACKUP_COUNT_MAX + 1))
CLIENT_ACK_BYTES: Final = 24
"""A client's uuid and the correlation number of its request."""
WITH_CLIENT_ACK: Final = 1
DISK_TRUSTED_US: Final = 1_000_000
"""So long after a backup's disk took nothing, a write is tried again there."""
TABLE_REQUEST_PAUSE_US: Final = 1_000_000
"""A stale primary asks for the table at most this often."""

_pack_prefix = PREFIX.pack
_unpack_acks = ACKS.unpack


class BackupsOut:
    """Everything under way from this member to its backups.

    Attributes:
        outboxes: By member.
        completed: Replies that are decided; the serving layer takes them out.
        must_ask: Outboxes over their limit and partitions with too few backups; not 0 means that
            writes must be admitted by ``admit``.
        observers: Told of every change of ours, beside the backups.
        has_backups: Whether ``take_backups`` may have something to send or to find out.
        on_refused: Told of each write that a backup takes for that of a stale primary.
    """

    def __init__(
        self,
        ctx: Context,
        partitions: Sequence[PartitionReplica],
        shortage: Shortage,
        counters: dict[str, int],
        on_refused: Callable[[MemberId, PendingReply], None],
    ) -> None:
        self._ctx = ctx
        self.on_refused = on_refused
        self._partitions = partitions
        self._shortage = shortage
        self._counters = counters
        self.outboxes: dict[MemberId, Outbox] = {}
        self.completed: list[PendingReply] = []
        self.must_ask = 0
        self.has_backups = False
        self.observers: tuple[Follow, ...] = ()
        self._congested = 0
        """Outboxes over their limit."""
        self._table_asked_us = -TABLE_REQUEST_PAUSE_US
        self._full_disks: dict[MemberId, int] = {}
        """Backups whose disks take nothing, and when they said so last."""
        self.disk_trouble = ""
        """Why our own disk takes nothing now; empty while it does."""

    # -- refusing -------------------------------------------------------------------------

    def admit(self, partition: PartitionReplica, namespace: Namespace | None) -> None:
        """Look at all reasons to refuse a write to a structure, before it has any effect.

        Without a structure it is a merge: its clients were answered before, on the other side of a
        split, and no number of missing backups keeps it out.

        Raises:
            RetryableError: We are not the primary, the partition is migrating, or fewer than
                ``min_in_sync`` backups are there.
            OverloadedError: Too much is under way to a backup (``Outbox.is_full``).
        """
        if not partition.writable:
            reason = "is migrating" if partition.is_primary else "has its primary elsewhere"
            raise RetryableError(f"partition {partition.pid} {reason}")
        if not self.must_ask:
            return
        limit = self._ctx.settings.unacknowledged_backups_max
        for _, member in partition.backups:
            outbox = self.outboxes.get(member)
            if outbox is not None and outbox.is_full(limit):
                raise OverloadedError(f"{outbox.in_flight} backup operations wait for {member}")
        if namespace is not None:
            self._shortage.admit(partition, namespace)
            if self.disk_trouble or self._full_disks:
                self._admit_disks(partition, namespace)

    def _admit_disks(self, partition: PartitionReplica, namespace: Namespace) -> None:
        """Refuse a write that a disk does not take, before it has any effect."""
        settings = self._ctx.settings
        if not settings.structure_of(namespace).persistent:
            return
        if self.disk_trouble:
            raise OverloadedError(
                f"the write is refused: {self.disk_trouble} (member {self._ctx.id})", reason="disk"
            )
        if settings.fsync_of(namespace) != "always":
            return
        for _, member in partition.backups:
            if self._full_disks.get(member, -DISK_TRUSTED_US) > self._ctx.now_us - DISK_TRUSTED_US:
                raise OverloadedError(
                    f"the write is refused: {FAILED_DISK} (member {member})", reason="disk"
                )

    def backup_disk_told(self, member: MemberId, *, is_full: bool) -> None:
        """A backup's disk takes nothing any more, or does again."""
        if is_full:
            self._full_disks[member] = self._ctx.now_us
        else:
            self._full_disks.pop(member, None)
        self._count_must_ask()

    def disk_changed(self, trouble: str) -> None:
        """Our own disk takes nothing for this reason; empty when it does again."""
        self.disk_trouble = trouble
        self._count_must_ask()

    # -- targets --------------------------------------------------------------------------

    def refresh_targets(self, partition: PartitionReplica) -> None:
        """Work out anew who our backups are and to whom each fragment's operations go."""
        if not partition.is_primary:
            partition.backups = ()
            self._shortage.close(partition)
            self._count_must_ask()
            for fragment in partition.fragments.values():
                fragment.stop_sending()
            return
        members = self._ctx.members
        partition.backups = tuple(
            (ReplicaIndex(index), member)
            for index, member in enumerate(partition.row)
            if index and member is not None and members.get(member)
        )
        for fragment in partition.fragments.values():
            fragment.head = b""
            sync, both = fragment.sync_count, fragment.backup_count
            fragment.sync_targets = tuple(
                self._outbox(member) for index, member in partition.backups if index <= sync
            )
            waitless = [
                self._outbox(member).follow
                for index, member in partition.backups
                if sync < index <= both
            ]
            fragment.others = (*waitless, *self.observers)
        self.look_at_shortage(partition)

    def look_at_shortage(self, partition: PartitionReplica) -> None:
        """The backups of a partition of ours, or how many there could be, have changed."""
        self._shortage.look(partition)
        self._count_must_ask()

    def _count_must_ask(self) -> None:
        disks = bool(self.disk_trouble) + len(self._full_disks)
        self.must_ask = self._congested + len(self._shortage.lacking) + disks

    def _outbox(self, member: MemberId) -> Outbox:
        found = self.outboxes.get(member)
        if found is None:
            found = Outbox(member, self._ctx.started_us, self._ctx.next_number())
            found.tail = make_tail(self._ctx.settings)
            self.outboxes[member] = found
        return found

    # -- frames and acknowledgements ------------------------------------------------------

    def take_backups(self) -> list[tuple[MemberId, bytes]]:
        """The BACKUPS payloads of this turn, in the order in which they must be sent."""
        payloads: list[tuple[MemberId, bytes]] = []
        limit = self._ctx.settings.unacknowledged_backups_max
        congested = 0
        for member, outbox in self.outboxes.items():
            if outbox.operations or outbox.must_resend:
                fresh = outbox.take(self._ctx.now_us)
                if len(fresh) == 1:
                    payloads.append((member, fresh[0]))
                else:
                    payloads += [(member, payload) for payload in fresh]
            congested += outbox.is_full(limit)
        if self._full_disks:
            since_us = self._ctx.now_us - DISK_TRUSTED_US
            kept = {one: at_us for one, at_us in self._full_disks.items() if at_us > since_us}
            self._full_disks = kept
        if congested or self.must_ask:  # else nothing is counted, and nothing is to be
            self._congested = congested
            self._count_must_ask()
        self.has_backups = congested > 0
        return payloads

    def apply_acks(self, sender: MemberId, payload: bytes) -> None:
        """Take an ACKS payload: releases replies into ``completed``; ``on_refused`` hears the rest.

        Raises:
            ProtocolError: The payload is malformed, or acknowledges what was never sent; nothing
                has changed.
        """
        outbox = self.outboxes.get(sender)
        if outbox is not None and len(payload) == ACKS.size:
            incarnation, stream, sequence, gap, count = _unpack_acks(payload)
            is_plain = not gap and not count and sequence <= outbox.sequence
            if is_plain and stream == outbox.stream and incarnation == outbox.incarnation:
                outbox.acknowledge(sequence, self.completed)  # nearly every one
                return
        incarnation, stream, sequence, gap, refusals = read_acks(payload)
        if outbox is None or not outbox.is_answered_by(incarnation, stream, sequence):
            return
        found = self._take_refusals(sender, outbox, refusals)
        self.has_backups = self.has_backups or gap != 0
        if gap and sequence < outbox.acknowledged:
            outbox.renumber(self._ctx.next_number())
        else:
            outbox.acknowledge(sequence, self.completed)
            outbox.must_resend = outbox.must_resend or gap != 0
        for reply in found:
            self.on_refused(sender, reply)

    def _take_refusals(
        self, sender: MemberId, outbox: Outbox, refusals: Sequence[tuple[int, int, int]]
    ) -> list[PendingReply]:
        """Who waits for what a backup refuses as from a stale primary.

        What its disk does not take it has applied all the same: those replies fail here.
        """
        stale: list[PendingReply] = []
        for sequence, position, reason in refusals:
            if position == WHOLE_FRAMES:
                found = outbox.refuse_frames(sequence)
            else:
                reply = outbox.refuse(sequence, position)
                found = [] if reply is None else [reply]
            if reason == REFUSED_DISK:
                self.completed += [reply for reply in found if reply.fail(FAILED_DISK)]
                self._full_disks[sender] = self._ctx.now_us
            else:
                stale += found
        if stale:
            self._ask_for_table()
        self._count_must_ask()
        return stale

    def _ask_for_table(self) -> None:
        """We were taken for a stale primary: get the present table (decision 5)."""
        ctx = self._ctx
        master = ctx.master
        if master is None or master == ctx.id:
            return
        if ctx.now_us - self._table_asked_us >= TABLE_REQUEST_PAUSE_US:
            self._table_asked_us = ctx.now_us
            ctx.send(master, TableRequested(stamp=0))

    def expire_replies(self, before_us: int) -> None:
        """Decide replies whose frames were closed before that moment."""
        for outbox in self.outboxes.values():
            self._counters["backup_timeouts"] += outbox.expire(before_us, self.completed)

    def stalled(self, before_us: int) -> int:
        """Backups that owe us an acknowledgement since before that moment."""
        since = [outbox.waits_since_us() for outbox in self.outboxes.values()]
        return sum(moment is not None and moment < before_us for moment in since)

    # -- links and members ----------------------------------------------------------------

    def link_lost(self, member: MemberId) -> None:
        """Keep what goes to a member."""
        outbox = self.outboxes.get(member)
        if outbox is not None:
            outbox.link_lost()

    def link_restored(self, member: MemberId) -> None:
        """Send again what was not acknowledged (decision 4)."""
        outbox = self.outboxes.get(member)
        if outbox is not None:
            outbox.link_restored()
            self.has_backups = True

    def member_left(self, member: MemberId) -> None:
        """The member is off the list: what waits for it counts as done, and as not backed up."""
        outbox = self.outboxes.pop(member, None)
        self._full_disks.pop(member, None)
        self._count_must_ask()
        if outbox is None:
            return
        bodies = outbox.unacknowledged()
        heads = Counter(head for body in bodies for head, _, _ in operations_in(body))
        found: Counter[Fragment] = Counter()
        for head, count in heads.items():
            partition = self._partitions[HEAD.unpack_from(head)[0]]
            for fragment in partition.fragments.values() if partition.is_primary else ():
                if fragment.head == head:
                    found[fragment] = count
        self._shortage.lost_on_the_way(outbox, found)
        outbox.close(self.completed)


def encode(fragment: Fragment, head: bytes, operation: bytes, ack_to: bytes) -> bytes:
    """A backup operation with any number of counters."""
    count = fragment.backup_count
    counters = fragment.counters()
    length = 8 + 8 * count + len(ack_to) + len(head) + len(operation)
    flags = WITH_CLIENT_ACK if ack_to else 0
    prefix = _pack_prefix(length, len(head), count, flags, counters[0])
    more = COUNTERS[count - 1].pack(*counters[1:count])
    return b"".join((prefix, more, ack_to, head, operation))


def make_head(partition: PartitionReplica, fragment: Fragment) -> bytes:
    """What a fragment's operations begin with until its row changes."""
    count = fragment.backup_count
    began = (partition.pid, partition.version, fragment.generation)
    fixed = HEAD.pack(*began, fragment.lineage, fragment.base_lineage, count)
    base = COUNTERS[count].pack(*fragment.base[:count])
    fragment.head = fixed + base + fragment.namespace.encode()
    return fragment.head


def operations_in(body: bytes) -> Iterator[tuple[bytes, tuple[int, ...], bytes]]:
    """The operations of a frame that was made, or applied: head, counters, the store's own."""
    at = 0
    while at < len(body):
        length, head_length, k, flags, _ = PREFIX.unpack_from(body, at)
        start = at + 8 + 8 * k + (CLIENT_ACK_BYTES if flags else 0)
        split, end = start + head_length, at + length
        yield body[start:split], COUNTERS[k].unpack_from(body, at + 8), body[split:end]
        at = end
