"""Backup operations that come in: which may be applied, and what is owed for them.

A receiver checks a head once and then finds its fragment in a dictionary; the format is that of
``backups_out``. An operation that is not simply the next one of a clean replica raises a doubt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from whimbrel.core.ids import BACKUP_COUNT_MAX, MemberId, Namespace
from whimbrel.core.replication.backups_out import CLIENT_ACK_BYTES, COUNTERS, HEAD, PREFIX
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.outbox import REFUSED_DISK, REFUSED_STALE_PRIMARY, Inbox
from whimbrel.core.replication.vectors import ZERO, lineage_version, slot_of
from whimbrel.errors import ProtocolError, SerializationError

HEADS_MAX: Final = 200_000
"""Checked heads remembered of one sender; more than partitions times maps is a flood."""

PassedBy = Callable[[Fragment, int, bytes], None]
_unpack_prefix = PREFIX.unpack_from
_unpack_counter = struct.Struct("<Q").unpack_from
_unpack_correlation = struct.Struct("<q").unpack_from


class BackupsIn:
    """Everything that comes to this member as a backup.

    Attributes:
        inboxes: By sender.
        owes_acks: Whether ``take_acks`` may have something to send.
        is_disk_full: Whether our disk takes nothing now: what must be on it is refused, although
            it is applied. Heads that were checked before are forgotten when this changes.
        notifications: What ``take_notifications`` will return.
    """

    def __init__(self, holdings: Holdings, counters: dict[str, int], passed_by: PassedBy) -> None:
        """``passed_by`` hears of operations, with their counter, of fragments in doubt (AE-08)."""
        self._holdings = holdings
        self._doubts, self._heads = holdings.doubts, holdings.heads
        self._counters = counters
        self._passed_by = passed_by
        self.inboxes: dict[MemberId, Inbox] = {}
        self.owes_acks = False
        self.is_disk_full = False
        self.notifications: list[tuple[bytes, int, MemberId]] = []

    def apply_backups(self, sender: MemberId, payload: bytes) -> None:
        """Apply a BACKUPS payload; acknowledgements are taken with ``take_acks``.

        Raises:
            ProtocolError: The payload is malformed. Versions of operations not applied have not
                advanced (bug 31), and the frame is not acknowledged.
        """
        inbox = self.inboxes.get(sender)
        if inbox is None:
            inbox = self.inboxes[sender] = Inbox(tail=self._holdings.make_tail())
            self._heads.setdefault(sender, {})  # they go together: ``member_left``
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
        if inbox.tail is not None:
            inbox.tail.add(payload)

    def _apply_frame(
        self, sender: MemberId, inbox: Inbox, payload: bytes, sequence: int, count: int
    ) -> None:
        heads = self._heads[sender]
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
                    inbox.refuse(sequence, position, REFUSED_STALE_PRIMARY)
                    at = end
                    continue
                if self.is_disk_full and fragment is not None and fragment.log is not None:
                    del heads[payload[start:body]]
                    if fragment.log.waits:
                        inbox.refuse(sequence, position, REFUSED_DISK)
            if fragment is not None:
                if fragment.slot:
                    (counter,) = _unpack_counter(payload, at + 8 + 8 * fragment.slot)
                if counter == fragment.value + 1 and not fragment.is_dirty:
                    fragment.apply(payload, body, end)
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
        self._counters["backups_applied"] += applied

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
        partitions = self._holdings.partitions
        if pid >= len(partitions) or not 1 <= k <= BACKUP_COUNT_MAX or names > len(head):
            raise ProtocolError("a backup operation has an impossible head")
        base = COUNTERS[k].unpack_from(head, HEAD.size) + ZERO[k:]
        namespace = Namespace(head[names:].decode())
        partition = partitions[pid]
        fragment = partition.fragments.get(namespace)
        if _is_stale(partition, fragment, sender, version):
            self._counters["backups_refused"] += 1
            return None, True
        if self._holdings.is_destroyed(namespace, generation):
            return None, False  # and the write with it
        self._holdings.destroy(namespace, generation)
        fragment = partition.fragments.get(namespace)
        if partition.primary != sender:
            # Our table is behind the sender's: apply, the row that follows decides what we keep.
            partition.ahead_version = max(partition.ahead_version, version)
        elif not 1 <= partition.index <= k:
            # The row changed under the operation. Whoever has our place got the data with it.
            return None, False
        slot = slot_of(partition.index) if 0 <= partition.index <= k else k - 1
        if fragment is None:
            fragment = self._holdings.make(partition.pid, namespace)
            fragment.set_counters(ZERO, slot)
            self._holdings.hold(partition, fragment)
        if fragment.backup_count != k:
            counters, fragment.backup_count = fragment.counters(), k
            fragment.set_counters(counters, slot)
        if fragment.lineage != lineage:
            self._holdings.forget_heads()
            if not fragment.meet_lineage(lineage, base_lineage, base, slot):
                self._doubts.mark_dirty(fragment, fragment.sound)
        if len(heads) >= HEADS_MAX:
            heads.clear()
        heads[head] = fragment
        return fragment, False

    def _apply_out_of_step(
        self, fragment: Fragment, counter: int, counters: Sequence[int], operation: bytes
    ) -> None:
        """An operation that is not simply the next one of a clean replica (AE-06 to AE-09)."""
        if counter <= fragment.value:
            self._counters["backups_ignored"] += 1
        else:
            self._counters["backups_applied"] += 1
            if counter == fragment.value + 1:
                fragment.apply(operation, 0, len(operation))
                fragment.value = counter
            else:
                self._apply_over_gap(fragment, counters, operation)
        if fragment.is_dirty:
            self._passed_by(fragment, counter, operation)

    def _apply_over_gap(
        self, fragment: Fragment, counters: Sequence[int], operation: bytes
    ) -> None:
        """An operation with others missing before it (AE-08): the doubt is older than its log."""
        fragment.store.apply(operation, 0, len(operation))
        slot, k = fragment.slot, len(counters)
        received = ZERO[:slot] + tuple(counters[slot:]) + fragment.counters()[k:]
        self._doubts.mark_dirty(fragment, fragment.last_sound())
        fragment.set_counters(received, slot)
        self._holdings.applied(fragment, fragment.value, operation)

    def take_acks(self) -> list[tuple[MemberId, bytes]]:
        """The ACKS payloads owed for what was applied since the last call."""
        payloads: list[tuple[MemberId, bytes]] = []
        self.owes_acks = False
        for sender, inbox in self.inboxes.items():
            if inbox.owed:
                owed = inbox.take_acks()
                if len(owed) == 1:
                    payloads.append((sender, owed[0]))
                else:
                    payloads += [(sender, payload) for payload in owed]
        return payloads

    def disk_changed(self, *, is_full: bool) -> None:
        """Our disk takes nothing any more, or takes things again."""
        self.is_disk_full = is_full
        self._holdings.forget_heads()

    def refuse_held(self, sender: MemberId, payload: bytes) -> bytes:
        """An acknowledgement that waited for our disk, which has not taken what it covers."""
        inbox = self.inboxes.get(sender)
        return payload if inbox is None else inbox.refuse_held(payload)

    def take_notifications(self) -> list[tuple[bytes, int, MemberId]]:
        """(client uuid, correlation, primary) of applied operations that clients wait for."""
        taken, self.notifications = self.notifications, []
        return taken

    def answer_again(self, member: MemberId) -> None:
        """There was no link for what we owe a member (decision 4)."""
        inbox = self.inboxes.get(member)
        if inbox is not None:
            inbox.answer_again()
            self.owes_acks = True

    def member_left(self, member: MemberId) -> None:
        """The member is off the list: nothing is owed to it."""
        self.inboxes.pop(member, None)
        self._holdings.forget_sender(member)


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
