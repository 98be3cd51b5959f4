"""What the ring buffer's operations mean, on the primary of its partition.

A ring buffer lies whole in one partition. Knows capacity, time to live, what wakes whom and which
change is sent to the backups; nothing of clients, their protocol or routing. Items are whole Data.

What is added is answered when the synchronous backups have it, so a sequence that a client was
given is given to nobody else. Nothing here waits: an attempt to read what is not there yet says for
which sequence to wait (``awaited``), and every sequence that is given is said. All who wait for one
are to have it, or to hear that it is gone, so each who reads it says it again for the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from whimbrel.core.ids import Namespace, split_namespace
from whimbrel.core.items import ANSWER_BYTES_MAX, check_items
from whimbrel.core.kinds import StructureService, note_damaged
from whimbrel.core.merging.past import Past
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.outbox import PendingReply, Reply
from whimbrel.errors import SerializationError, StaleSequenceError, UsageError
from whimbrel.structures.ringbuffer.record import (
    FOR_EVER,
    SEQUENCE,
    TIME_BYTES,
    ends_ms,
    read_items,
)
from whimbrel.structures.ringbuffer.settings import NAME, RingbufferSettings
from whimbrel.structures.ringbuffer.store import RingbufferStore, read_head

BATCH_MAX: Final = 10_000
"""Items of one answer; clients ask for 1,000 at most."""
SWEEP_SHARE: Final = 10
"""One sweep looks at a tenth of the partitions, so a round takes ten ticks."""
FAILED: Final = -1
"""Stands for the sequence of what was not added."""

OVERWRITE: Final = 0
FAIL: Final = 1
"""What becomes of an item for which there is no room: it takes that of the oldest, or is refused.
Without a time to live there is always room: the oldest items are kept for nobody."""


class Batch(NamedTuple):
    """What was read at once."""

    sequences: list[int]
    values: list[bytes]
    first: int
    """The sequence with which reading began."""
    next: int
    """The sequence to go on with."""


def awaited(sequence: int) -> bytes:
    """What those wait for who need the item of this sequence."""
    return SEQUENCE.pack(sequence)


class RingbufferService(StructureService):
    """All ring buffers of a member."""

    kind_name = NAME

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self._wakes = plane.wakes
        self._settings: dict[Namespace, RingbufferSettings] = {}
        """Of those in use."""
        self._sweep_at = 0

    def new_store(self, namespace: Namespace) -> RingbufferStore:
        """See ``StructureService.new_store``."""
        return RingbufferStore()

    def destroyed(self, namespace: Namespace) -> None:
        """See ``StructureService.destroyed``."""
        self._settings.pop(namespace, None)

    # -- looking --------------------------------------------------------------------------

    def capacity(self, namespace: Namespace) -> int:
        """How many items there may be, as configured."""
        return self._settings_of(namespace).capacity

    def bounds(self, partition: PartitionReplica, namespace: Namespace) -> tuple[int, int]:
        """The head, and the sequence after the tail; equal when nothing is there."""
        store = self._store(partition, namespace)
        return (0, 0) if store is None else (store.live_from(self._ctx.wall_ms), store.next)

    def size(self, partition: PartitionReplica, namespace: Namespace) -> int:
        """Sequences from the head to the tail."""
        head, end = self.bounds(partition, namespace)
        return end - head

    def remaining_capacity(self, partition: PartitionReplica, namespace: Namespace) -> int:
        """How many items could be added before one is overwritten whose time is not over."""
        settings = self._settings_of(namespace)
        if not settings.time_to_live_s:
            return settings.capacity
        return max(0, settings.capacity - self.size(partition, namespace))

    def read_one(
        self, partition: PartitionReplica, namespace: Namespace, sequence: int
    ) -> bytes | None:
        """The item of a sequence; None when it is the next one to be given.

        Raises:
            StaleSequenceError: It is not there any more.
            UsageError: Others will be given before it.
        """
        head, end = self.bounds(partition, namespace)
        if not 0 <= sequence <= end:
            raise UsageError(f"there is no sequence {sequence} yet: the tail is {end - 1}")
        if sequence == end:
            return None
        self._wake(partition, namespace, sequence, sequence + 1)
        store = self._store(partition, namespace)
        item = b"" if store is None or sequence < head else store.item(sequence)
        if not item:
            raise StaleSequenceError(
                f"sequence {sequence} is not there any more: the head is {head}, the tail {end - 1}"
            )
        return item[TIME_BYTES:]

    def read_many(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        start: int,
        count_min: int,
        count_max: int,
        *,
        is_again: bool = False,
    ) -> Batch | bytes:
        """Items from a sequence on, from the head when that is higher.

        A reader may know a sequence that was never given here, because the partition was lost
        since. It waits for the next items; when it asks again it is given the newest ones.

        Args:
            partition: Its partition.
            namespace: The ring buffer.
            start: The sequence to begin with.
            count_min: Sequences that must be there, ...
            count_max: ... and that are looked at, at most. Less when the answer grows too large.
            is_again: Whether the call has waited.

        Returns:
            What was read, or what to wait for.

        Raises:
            UsageError: The numbers make no sense together, or can never be there at once.
        """
        most = min(self.capacity(namespace), BATCH_MAX)
        if start < 0 or not 0 <= count_min <= min(count_max, most):
            raise UsageError(
                f"{count_min} to {count_max} items from {start} on cannot be read; {most} are the "
                "most that can be asked for"
            )
        head, end = self.bounds(partition, namespace)
        if start > end:
            start = end - count_min if is_again else end
        first = max(start, head)
        last = first + count_min - 1
        if last >= end:
            return awaited(last)
        store = self._store(partition, namespace)
        end = min(end, first + min(count_max, most))
        batch = Batch([], [], first, first) if store is None else _read(store, first, end)
        if count_min:
            self._wake(partition, namespace, last, last + 1)
        return batch

    # -- adding ---------------------------------------------------------------------------

    def add(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        values: Sequence[bytes],
        policy: int,
        reply: Reply,
    ) -> int:
        """Put items at the tail, all of them or, when they are refused for want of room, none.

        Args:
            partition: Its partition.
            namespace: The ring buffer.
            values: One at least.
            policy: OVERWRITE or FAIL.
            reply: Who waits for the backups.

        Returns:
            The sequence of the last one, FAILED when they are refused.

        Raises:
            RetryableError: We are not the primary, or the partition is migrating.
            OverloadedError: A backup cannot keep up.
            UsageError: An item is too large or no serialized object, or there is none.
        """
        if not values or policy not in (OVERWRITE, FAIL):
            raise UsageError(f"{len(values)} items cannot be added by the policy {policy}")
        check_items(values)
        self._outgoing.admit(partition, namespace)
        if policy == FAIL and len(values) > self.remaining_capacity(partition, namespace):
            return FAILED
        store = self._add(partition, self._holdings.begin(partition, namespace), values, reply)
        return store.next - 1

    def _add(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        values: Sequence[bytes],
        reply: Reply,
    ) -> RingbufferStore:
        namespace, store = fragment.namespace, cast("RingbufferStore", fragment.store)
        if not store.past.is_under(fragment.lineage):
            self._holdings.change(partition, fragment, store.begin(fragment.lineage), None)
        settings, wall_ms = self._settings_of(namespace), self._ctx.wall_ms
        until_ms = (
            wall_ms + settings.time_to_live_s * 1_000 if settings.time_to_live_s else FOR_EVER
        )
        first, head = store.next, store.live_from(wall_ms)
        operation = store.add(values, until_ms, head, settings.capacity)
        self._holdings.change(partition, fragment, operation, reply)
        self._wake(partition, namespace, first, store.next)
        return store

    def _wake(
        self, partition: PartitionReplica, namespace: Namespace, first: int, end: int
    ) -> None:
        """Say of these sequences that they are there."""
        for sequence in range(first, end):
            self._wakes.wake(partition, namespace, awaited(sequence))

    # -- as time passes -------------------------------------------------------------------

    def sweep(self, wall_ms: int, budget: int) -> int:
        """Drop items whose time is over, of partitions that we are the writable primary of.

        Nobody is shown them any more; their memory is given back here and at the backups.
        """
        partitions = self._holdings.partitions
        removed = 0
        for _ in range(-(-len(partitions) // SWEEP_SHARE)):
            partition = partitions[self._sweep_at]
            self._sweep_at = (self._sweep_at + 1) % len(partitions)
            for fragment in partition.fragments.values():
                store = fragment.store
                if not isinstance(store, RingbufferStore) or not partition.writable:
                    continue
                head = min(store.live_from(wall_ms), store.head + budget - removed)
                if head > store.head:
                    removed += head - store.head
                    self._holdings.change(partition, fragment, store.drop_to(head), None)
        return removed

    # -- after a split --------------------------------------------------------------------

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """Add what the smaller part added since the split, under new sequences.

        They are the old ones where nothing has been added here since, or ever. What both parts had
        is left as the bigger one has it.
        """
        own: list[bytes] = []
        known = expired = lowest = 0
        try:
            past, _, first, start = read_head(chunk)
            store = self._store(partition, namespace)
            parting = (Past(0, ()) if store is None else store.past).parting(past)
            for sequence, item in enumerate(read_items(chunk, start, len(chunk)), first):
                if sequence < parting:
                    known += bool(item)
                elif item and ends_ms(item) <= self._ctx.wall_ms:
                    expired += 1
                elif item:
                    lowest = lowest if own else sequence
                    own.append(item[TIME_BYTES:])
        except SerializationError as error:
            note_damaged(self._ctx, namespace, error)
        if own:
            fragment = self._holdings.begin(partition, namespace)
            store = cast("RingbufferStore", fragment.store)
            if not store.next and lowest:
                self._holdings.change(partition, fragment, store.drop_to(lowest), None)
            self._add(partition, fragment, own, reply)
        return MergeCounts(added=len(own), same=known, expired=expired)

    # -- inside ---------------------------------------------------------------------------

    def _settings_of(self, namespace: Namespace) -> RingbufferSettings:
        """Remembered."""
        known = self._settings.get(namespace)
        if known is None:
            _, name = split_namespace(namespace)
            known = self._settings[namespace] = self._ctx.settings.structure(
                RingbufferSettings, name
            )
        return known

    @staticmethod
    def _store(partition: PartitionReplica, namespace: Namespace) -> RingbufferStore | None:
        fragment = partition.fragments.get(namespace)
        return None if fragment is None else cast("RingbufferStore", fragment.store)


def _read(store: RingbufferStore, first: int, end: int) -> Batch:
    """What is there of these sequences, as far as an answer may have it."""
    batch = Batch([], [], first, end)
    size = 0
    for sequence, item in enumerate(store.items(first, end), first):
        size += len(item)
        if size > ANSWER_BYTES_MAX and batch.values:
            return batch._replace(next=sequence)
        if item:
            batch.sequences.append(sequence)
            batch.values.append(item[TIME_BYTES:])
    return batch
