"""What the multimap's operations mean, on the primary of a partition.

Knows values, events and which change is sent to the backups. Knows nothing of clients, their
protocol or routing: the serving layer finds the partition first. Keys and values are whole Data.

After a change its ``reply``, if anybody waits, says in ``remaining`` how many acknowledgements will
come. ``put_all`` waits with its last change only: backups are acknowledged in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.kinds import StructureService, note_damaged
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import Fragment, PartitionReplica, Store
from whimbrel.core.replication.outbox import PendingReply, Reply
from whimbrel.errors import SerializationError, UsageError
from whimbrel.serialization.data import DATA_HEADER_BYTES
from whimbrel.structures.multimap.cursor import Cursor
from whimbrel.structures.multimap.merging import Missing, make_chunk, read_values, split_chunk
from whimbrel.structures.multimap.settings import LIST, NAME, settings_of
from whimbrel.structures.multimap.store import MultiMapStore
from whimbrel.structures.multimap.typed_stores import ListStore, SetStore

ENTRY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Key and value of one entry together; larger ones would stall a member's other partitions."""

ADDED: Final = 1
REMOVED: Final = 2
"""Flags of events. There is none for a partition's share of a clear: whoever gathers the shares
tells listeners, once for the multimap."""


class MultiMapService(StructureService):
    """All multimaps of a member."""

    kind_name = NAME

    def new_store(self, namespace: Namespace) -> MultiMapStore:
        """An empty store of the configured type of collection."""
        is_list = settings_of(self._ctx.settings, namespace).value_collection_type == LIST
        return (ListStore if is_list else SetStore)(self._holdings.deferred.take)

    # -- reading one key ------------------------------------------------------------------

    def get(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> list[bytes]:
        """The values of a key."""
        store = self._store(partition, namespace)
        return [] if store is None else store.get(key)

    def contains_key(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> bool:
        """Whether the key has a value."""
        store = self._store(partition, namespace)
        return store is not None and store.contains_key(key)

    def contains_entry(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes, value: bytes
    ) -> bool:
        """Whether the key has an equal value."""
        store = self._store(partition, namespace)
        return store is not None and store.contains_entry(key, value)

    def count(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> int:
        """How many values the key has."""
        store = self._store(partition, namespace)
        return 0 if store is None else store.count(key)

    # -- changing one key ------------------------------------------------------------------

    def put(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
    ) -> bool:
        """Add a value to a key; False when a set has it already.

        Raises:
            RetryableError: We are not the primary, or the partition is migrating.
            OverloadedError: A backup cannot keep up.
            UsageError: The entry is too large or the key is no serialized object.
        """
        return self.put_all(partition, namespace, ((key, (value,)),), reply) > 0

    def put_all(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        entries: Sequence[tuple[bytes, Sequence[bytes]]],
        reply: Reply,
    ) -> int:
        """Add values to keys of one partition; how many were added.

        Errors are those of ``put``; where one of the entries is wrong none is added.
        """
        self._outgoing.admit(partition, namespace)
        for key, values in entries:
            _check(key, values)
        fragment = self._holdings.begin(partition, namespace)
        store = cast("MultiMapStore", fragment.store)
        changes: list[bytes] = []
        for key, values in entries:
            for value in values:
                operation = store.put(key, value)
                if operation is not None:
                    changes.append(operation)
                    self._events.tell((namespace, ADDED, key, value, None))
        last = len(changes) - 1
        for position, operation in enumerate(changes):
            self._holdings.change(
                partition, fragment, operation, reply if position == last else None
            )
        return len(changes)

    def remove_entry(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
    ) -> bool:
        """Remove a value of a key, of a list the first equal one; whether it was there."""
        fragment = self._written(partition, namespace)
        if fragment is None:
            return False
        removed = cast("MultiMapStore", fragment.store).remove_entry(key, value)
        if removed is None:
            return False
        old, operation = removed
        self._holdings.change(partition, fragment, operation, reply)
        self._events.tell((namespace, REMOVED, key, None, old))
        return True

    def remove(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes, reply: Reply
    ) -> list[bytes]:
        """Remove a key: the values that it had."""
        values = self.get(partition, namespace, key)
        self.delete(partition, namespace, key, reply)
        return values

    def delete(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes, reply: Reply
    ) -> None:
        """Remove a key, each of its values told as REMOVED."""
        fragment = self._written(partition, namespace)
        if fragment is None:
            return
        store = cast("MultiMapStore", fragment.store)
        told = store.get(key) if self._events.listened.get(namespace) else ()
        operation = store.remove_key(key)
        if operation is not None:
            self._holdings.change(partition, fragment, operation, reply)
            for value in told:
                self._events.tell((namespace, REMOVED, key, None, value))

    # -- whole multimaps, a partition at a time --------------------------------------------

    def key_set(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """The keys in a partition, each once."""
        store = self._store(partition, namespace)
        return [] if store is None else store.keys()

    def values(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """The values in a partition, of all keys."""
        store = self._store(partition, namespace)
        return [] if store is None else store.values()

    def entries(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """The entries in a partition: each value after its key, in turn."""
        store = self._store(partition, namespace)
        return [] if store is None else store.entries()

    def contains_value(
        self, partition: PartitionReplica, namespace: Namespace, value: bytes
    ) -> bool:
        """Whether some key in a partition has an equal value."""
        store = self._store(partition, namespace)
        return store is not None and store.contains_value(value)

    def clear(self, partition: PartitionReplica, namespace: Namespace, reply: Reply) -> int:
        """Remove everything in a partition; how many values that were."""
        fragment = self._written(partition, namespace)
        if fragment is None or not len(fragment.store):
            return 0
        store = cast("MultiMapStore", fragment.store)
        count = len(store)
        self._holdings.change(partition, fragment, store.clear(), reply)
        return count

    # -- after a split ---------------------------------------------------------------------

    def leftover_chunk(self, store: Store, cursor: Cursor, bytes_max: int) -> tuple[bytes, int]:
        """See ``StructureService.leftover_chunk``."""
        return make_chunk(cast("MultiMapStore", store), cursor, bytes_max)

    def split(
        self, namespace: Namespace, chunk: bytes, entries: int, partition_count: int
    ) -> list[tuple[PartitionId, bytes, int]]:
        """See ``StructureService.split``; each value by its key."""
        return split_chunk(chunk, partition_count)

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """See ``StructureService.merge``: what is missing is added, told as ADDED."""
        fragment = self._holdings.begin(partition, namespace)
        store = cast("MultiMapStore", fragment.store)
        missing = Missing(store)
        added = same = 0
        try:
            for key, value, ordinal in read_values(chunk):
                operation = None
                if missing.is_missing(key, value, ordinal):
                    operation = store.put(key, value)
                if operation is None:
                    same += 1
                    continue
                added += 1
                self._holdings.change(partition, fragment, operation, reply)
                self._events.tell((namespace, ADDED, key, value, None))
        except SerializationError as error:
            note_damaged(self._ctx, namespace, error)
        return MergeCounts(added=added, same=same)

    # -- inside ----------------------------------------------------------------------------

    def _store(self, partition: PartitionReplica, namespace: Namespace) -> MultiMapStore | None:
        fragment = partition.fragments.get(namespace)
        return None if fragment is None else cast("MultiMapStore", fragment.store)

    def _written(self, partition: PartitionReplica, namespace: Namespace) -> Fragment | None:
        """The fragment that may be written now, None when nothing is there; errors as ``put``."""
        self._outgoing.admit(partition, namespace)
        return partition.fragments.get(namespace)


def _check(key: bytes, values: Iterable[bytes]) -> None:
    """Refuse what is no entry.

    Raises:
        UsageError: It is too large, or the key or a value is no serialized object.
    """
    for value in values:
        if len(key) + len(value) > ENTRY_BYTES_MAX:
            raise UsageError(f"an entry of {len(key) + len(value)} bytes is too large")
        if min(len(key), len(value)) < DATA_HEADER_BYTES:
            raise UsageError(f"{min(len(key), len(value))} bytes are no serialized object")
