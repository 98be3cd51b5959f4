"""What the queue's operations mean, on the primary of its partition.

A queue lies whole in one partition. Knows capacity, events, what wakes whom and which change is
sent to the backups; nothing of clients, their protocol or routing. Items are whole Data.

What is offered or taken is answered when the synchronous backups have it, so what a client was
given is gone there, too. A call that another member sends on has a name (``Attempt``); sent again,
because its answer was lost, it is answered as the first time. Nothing here waits: an attempt that
finds nothing, or no room, has no effect, and whoever wants to wait waits for TAKE or PUT, which
every change says that gives hope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from whimbrel.core.ids import Attempt, Namespace, split_namespace
from whimbrel.core.items import ANSWER_BYTES_MAX, check_items
from whimbrel.core.kinds import StructureService, note_damaged
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment, PartitionReplica, Store
from whimbrel.core.replication.outbox import PendingReply, Reply
from whimbrel.errors import (
    IndeterminateError,
    OperationError,
    RetryableError,
    SerializationError,
)
from whimbrel.structures.queue.record import ID_BYTES, item_id, read_head, read_items
from whimbrel.structures.queue.settings import NAME, SIZE_MAX, QueueSettings
from whimbrel.structures.queue.store import FENCE_OPERATION, QueueStore

TAKE: Final = b"take"
"""What those wait for who found nothing to take."""
PUT: Final = b"put"
"""What those wait for who found no room."""

ADDED: Final = 1
REMOVED: Final = 2
"""Flags of events."""


class QueueService(StructureService):
    """All queues of a member."""

    kind_name = NAME

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self._wakes = plane.wakes
        self._sizes: dict[Namespace, int] = {}
        """Most items of a queue, as configured."""

    def new_store(self, namespace: Namespace) -> QueueStore:
        """See ``StructureService.new_store``."""
        return QueueStore(self._holdings.deferred.take)

    def destroyed(self, namespace: Namespace) -> None:
        """See ``StructureService.destroyed``."""
        self._sizes.pop(namespace, None)

    # -- looking --------------------------------------------------------------------------

    def remaining_capacity(self, partition: PartitionReplica, namespace: Namespace) -> int:
        """How many items could be offered now; a merge may have left more than there is room."""
        return max(0, self._size_max(namespace) - self.size(partition, namespace))

    def peek(self, partition: PartitionReplica, namespace: Namespace) -> bytes | None:
        """The item at the head, or None."""
        store = self._store(partition, namespace)
        first = [] if store is None else store.values(1)
        return first[0] if first else None

    def values(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """All items, from the head on.

        Raises:
            OperationError: They are more than an answer may have.
        """
        store = self._store(partition, namespace)
        if store is None:
            return []
        size = store.bytes_used + ID_BYTES * len(store)
        if size > ANSWER_BYTES_MAX:
            raise OperationError(
                f"the queue has {size} bytes, and an answer at most {ANSWER_BYTES_MAX}"
            )
        return store.values()

    def contains_all(
        self, partition: PartitionReplica, namespace: Namespace, values: Sequence[bytes]
    ) -> bool:
        """Whether each of these is equal to an item."""
        store = self._store(partition, namespace)
        return not values if store is None else store.contains_all(values)

    # -- offering -------------------------------------------------------------------------

    def offer(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        values: Sequence[bytes],
        reply: Reply,
        attempt: Attempt | None = None,
    ) -> bool:
        """Put items at the tail, all of them or, when there is no room for that, none.

        Raises:
            RetryableError: We are not the primary, or the partition is migrating, or the call comes
                long after later ones.
            IndeterminateError: The call is a repetition and may have been forgotten.
            OverloadedError: A backup cannot keep up.
            UsageError: An item is too large or no serialized object.
        """
        check_items(values)
        self._outgoing.admit(partition, namespace)
        if attempt is not None and self._answer(partition, namespace, attempt, reply) is not None:
            return True
        if len(values) > self.remaining_capacity(partition, namespace):
            return False
        if values:
            fragment = self._holdings.begin(partition, namespace)
            self._add(partition, fragment, values, reply, attempt)
        return True

    def _add(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        values: Sequence[bytes],
        reply: Reply,
        attempt: Attempt | None = None,
    ) -> None:
        store = cast("QueueStore", fragment.store)
        if not store.is_begun(fragment.lineage):
            self._holdings.change(partition, fragment, store.begin(fragment.lineage), None)
        operation = store.offer(values)
        if attempt is not None:
            operation = store.remember(attempt, b"", operation)
        self._holdings.change(partition, fragment, operation, reply)
        self._tell(fragment.namespace, ADDED, values)
        self._wake(partition, fragment.namespace, store)

    # -- taking ---------------------------------------------------------------------------

    def poll(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        reply: Reply,
        attempt: Attempt | None = None,
    ) -> bytes | None:
        """Take the item at the head; None when there is none. Errors are those of ``offer``."""
        self._outgoing.admit(partition, namespace)
        if attempt is not None:
            answer = self._answer(partition, namespace, attempt, reply)
            if answer is not None:
                return answer
        taken = self._take(partition, namespace, 1, reply, attempt)
        return taken[0] if taken else None

    def drain(
        self, partition: PartitionReplica, namespace: Namespace, count_max: int, reply: Reply
    ) -> list[bytes]:
        """Take so many items from the head, all when it is negative; what an answer may have."""
        self._outgoing.admit(partition, namespace)
        if not count_max:
            return []
        return self._take(partition, namespace, count_max if count_max > 0 else SIZE_MAX, reply)

    def _take(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        count_max: int,
        reply: Reply,
        attempt: Attempt | None = None,
    ) -> list[bytes]:
        store = self._store(partition, namespace)
        if store is None:
            return []
        taken, operation = store.take(count_max, ANSWER_BYTES_MAX)
        if operation and attempt is not None:
            operation = store.remember(attempt, taken[0], operation)
        self._removed(partition, namespace, taken, operation, reply)
        return taken

    def remove(
        self, partition: PartitionReplica, namespace: Namespace, value: bytes, reply: Reply
    ) -> bool:
        """Remove the first item that is equal; whether there was one."""
        self._outgoing.admit(partition, namespace)
        store = self._store(partition, namespace)
        operation = b"" if store is None else store.remove(value)
        self._removed(partition, namespace, [value], operation, reply)
        return bool(operation)

    def remove_all(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        values: Sequence[bytes],
        reply: Reply,
        *,
        but: bool = False,
    ) -> bool:
        """Remove every item equal to one of these, or all ``but`` those; whether there were any."""
        self._outgoing.admit(partition, namespace)
        store = self._store(partition, namespace)
        if store is None:
            return False
        gone, operation = store.remove_all(values, but=but)
        self._removed(partition, namespace, gone, operation, reply)
        return bool(gone)

    def clear(self, partition: PartitionReplica, namespace: Namespace, reply: Reply) -> None:
        """Remove all items; each is told to listeners."""
        self._outgoing.admit(partition, namespace)
        store = self._store(partition, namespace)
        if store is not None:
            gone = store.values() if self._events.listened.get(namespace) else []
            self._removed(partition, namespace, gone, store.clear(), reply)

    def _removed(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        values: Sequence[bytes],
        operation: bytes,
        reply: Reply,
    ) -> None:
        """These are gone by this operation; nothing has happened when it is empty."""
        if operation:
            fragment = partition.fragments[namespace]
            self._holdings.change(partition, fragment, operation, reply)
            self._tell(namespace, REMOVED, values)
            self._wake(partition, namespace, cast("QueueStore", fragment.store))

    # -- being asked again ----------------------------------------------------------------

    def _answer(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        attempt: Attempt,
        reply: Reply,
    ) -> bytes | None:
        """What a call was answered that has been carried out before; None for any other.

        The reply waits until the backups have got whatever was sent to them up to now, the call's
        change included.
        """
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            return None
        answered = cast("QueueStore", fragment.store).answered
        answer = answered.find(attempt)
        if answer is not None:
            self._holdings.change(partition, fragment, FENCE_OPERATION, reply)
        elif answered.may_have_forgotten(attempt):
            if attempt.is_repetition:
                raise IndeterminateError("the call may have been carried out; that is forgotten")
            raise RetryableError("the call comes long after later ones of its member")
        return answer

    # -- telling --------------------------------------------------------------------------

    def _tell(self, namespace: Namespace, flag: int, values: Sequence[bytes]) -> None:
        if self._events.listened.get(namespace):
            for value in values:
                self._events.tell((namespace, flag, None, value, None))

    def _wake(self, partition: PartitionReplica, namespace: Namespace, store: QueueStore) -> None:
        """Say what there is: one who waits is woken, and whoever is served says it again."""
        if store.items:
            self._wakes.wake(partition, namespace, TAKE)
        size_max = self._size_max(namespace)
        if len(store) < size_max < SIZE_MAX:
            self._wakes.wake(partition, namespace, PUT)

    # -- after a split --------------------------------------------------------------------

    def leftover_chunk(self, store: Store, cursor: Any, bytes_max: int) -> tuple[bytes, int]:
        """See ``StructureService.leftover_chunk``; whose calls they were is nobody's affair now."""
        return cast("QueueStore", store).export_items(cursor, bytes_max)

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """Add what the smaller part offered since the split, whatever room there is.

        What both parts had is left as the bigger one has it: there, or taken.
        """
        own: list[bytes] = []
        known = 0
        try:
            past, _, start = read_head(chunk)
            store = self._store(partition, namespace)
            parting = 0 if store is None else store.past.parting(past)
            for item in read_items(chunk, start, len(chunk)):
                if item_id(item) >= parting:
                    own.append(item[ID_BYTES:])
                else:
                    known += 1
        except SerializationError as error:
            note_damaged(self._ctx, namespace, error)
        if own:
            self._add(partition, self._holdings.begin(partition, namespace), own, reply)
        return MergeCounts(added=len(own), same=known)

    # -- inside ---------------------------------------------------------------------------

    def _size_max(self, namespace: Namespace) -> int:
        """Most items of a queue; remembered."""
        known = self._sizes.get(namespace)
        if known is None:
            _, name = split_namespace(namespace)
            known = self._ctx.settings.structure(QueueSettings, name).max_size or SIZE_MAX
            self._sizes[namespace] = known
        return known

    @staticmethod
    def _store(partition: PartitionReplica, namespace: Namespace) -> QueueStore | None:
        fragment = partition.fragments.get(namespace)
        return None if fragment is None else cast("QueueStore", fragment.store)
