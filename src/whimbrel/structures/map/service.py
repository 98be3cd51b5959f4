"""What the map's operations mean, on the primary of a partition.

Knows values, limits on the life of entries, events and which change is sent to the backups. Knows
nothing of clients, their protocol or routing: the serving layer finds the partition first and asks
``writable`` or catches ``RetryableError``. Keys and values are whole Data. Calls over whole maps
are made partition by partition; that each counts once is the caller's affair, and so is telling
listeners once when several members have cleared their share of a map.

After a change its ``reply``, if anybody waits, says in ``remaining`` how many acknowledgements will
come. ``put_all`` waits with its last entry only: backups are acknowledged in order.

A write of a key says for whom (``owner``, None for nobody), and raises KeyLockedError, before any
effect, while somebody else holds the key's lock (``locking``). ``put_all`` and a merge after a
split write over it; what clears a partition leaves the entries of locked keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.kinds import StructureService
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment, PartitionReplica, Store
from whimbrel.core.replication.outbox import PendingReply, Reply
from whimbrel.errors import UsageError
from whimbrel.serialization.data import DATA_HEADER_BYTES, HASH_BYTES
from whimbrel.structures.map.comparing import StoreWalk
from whimbrel.structures.map.eviction import Evictor
from whimbrel.structures.map.locking import KeyLocks
from whimbrel.structures.map.locks import EVERYBODY, Owner
from whimbrel.structures.map.merging import Decide, Merger, make_chunk, split_chunk
from whimbrel.structures.map.policies import HIGHER_HITS
from whimbrel.structures.map.record import (
    ORDINARY_KEY,
    RECORD_BYTES,
    SHORT_AT,
    TIMING,
    EntryView,
    make_timing,
    same_value,
    split_key,
    stored_key,
)
from whimbrel.structures.map.settings import LFU, LRU, NAME, UNLIMITED, Limits, settings_of
from whimbrel.structures.map.store import MapStore
from whimbrel.structures.map.usage_store import UsageMapStore

ENTRY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Key and value of one entry together; larger ones would stall a member's other partitions."""
SWEEP_PARTITIONS_MIN: Final = 16
SWEEP_SHARE: Final = 10
"""One sweep looks at a tenth of the partitions, so a round takes ten ticks."""

SIZE_SWEEP_MAX: Final = 10_000
"""Asking for a size removes at most this many expired entries of a partition first."""

EVICTED_COUNTER: Final = "map_entries_evicted"
"""In ``/metrics``."""

DEFAULT_SPAN: Final = -1
"""A time to live or idle span that stands for the map's configured one; 0 stands for none."""

ADDED: Final = 1
REMOVED: Final = 2
UPDATED: Final = 4
EVICTED: Final = 8
EXPIRED: Final = 16
MERGED: Final = 128

"""Flags of events. There is none for a partition's share of a clear or an evictAll: whoever gathers
the shares tells listeners, once for the map."""


class MapService(StructureService):
    """All maps of a member.

    Attributes:
        expired: Entries swept so far.
        evictor: Keeps maps within their bounds.
        merger: Merges entries after a split.
        locks: Who may write which keys.
    """

    kind_name = NAME

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self._listened = self._events.listened
        self._happened = self._events.happened
        self.expired = 0
        self.evictor = Evictor(self._ctx, self._evicted)
        self.merger = Merger(self._ctx, self._merge_entry)
        self.locks = KeyLocks(plane)
        self._counters = plane.counters
        self._counters[EVICTED_COUNTER] = 0
        self._limits: dict[Namespace, Limits] = {}
        self._sweep_at = 0

    def new_store(self, namespace: Namespace) -> MapStore:
        """An empty store; one that notes reads where a policy of the map asks for them."""
        settings, free = settings_of(self._ctx.settings, namespace), self._holdings.deferred.take
        counts_reads = settings.merge_policy == HIGHER_HITS or settings.eviction_policy == LFU
        dates_reads = settings.eviction_policy == LRU
        if not counts_reads and not dates_reads:
            return MapStore(free, compares=settings.comparison)
        return UsageMapStore(
            free,
            compares=settings.comparison,
            counts_reads=counts_reads,
            dates_reads=dates_reads,
        )

    def _find_limits(self, namespace: Namespace) -> Limits:
        """The configured limits of a map, remembered."""
        limits = settings_of(self._ctx.settings, namespace).limits()
        self._limits[namespace] = limits
        return limits

    def destroyed(self, namespace: Namespace) -> None:
        """See ``StructureService.destroyed``."""
        self._limits.pop(namespace, None)

    # -- reading one key ------------------------------------------------------------------

    def get(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> bytes | None:
        """The value, or None."""
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            return None
        store: MapStore = fragment.store  # type: ignore[assignment]  # a cast costs on this path
        stored = key[SHORT_AT:] if key.startswith(ORDINARY_KEY) else stored_key(key)
        return store.get(stored, self._ctx.wall_ms)

    def contains_key(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> bool:
        """Whether the key is there."""
        store = self._store(partition, namespace)
        return store is not None and store.contains(stored_key(key), self._ctx.wall_ms)

    def get_all(
        self, partition: PartitionReplica, namespace: Namespace, keys: Iterable[bytes]
    ) -> list[tuple[bytes, bytes]]:
        """(key, value) of those keys that are there."""
        store = self._store(partition, namespace)
        if store is None:
            return []
        now_ms = self._ctx.wall_ms
        found = [(key, store.get(stored_key(key), now_ms)) for key in keys]
        return [(key, value) for key, value in found if value is not None]

    def entry_view(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes
    ) -> EntryView | None:
        """Everything known about an entry, or None."""
        store = self._store(partition, namespace)
        return None if store is None else store.entry_view(stored_key(key), self._ctx.wall_ms)

    # -- changing one key ------------------------------------------------------------------

    def put(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
        ttl_ms: int = DEFAULT_SPAN,
        max_idle_ms: int = DEFAULT_SPAN,
        owner: Owner | None = None,
    ) -> bytes | None:
        """Store a value; the former one or None. Errors are those of ``set``."""
        old = self.set(partition, namespace, key, value, reply, ttl_ms, max_idle_ms, owner)
        return None if old is None else old[RECORD_BYTES:]

    def set(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
        ttl_ms: int = DEFAULT_SPAN,
        max_idle_ms: int = DEFAULT_SPAN,
        owner: Owner | None = None,
    ) -> bytes | None:
        """Store a value and tell; the former record or None. The path of every put.

        Raises:
            RetryableError: We are not the primary, or the partition is migrating.
            OverloadedError: A backup cannot keep up.
            UsageError: The entry is too large or the key is no serialized object.
            KeyLockedError: Another than ``owner`` has locked the key.
        """
        if len(key) + len(value) > ENTRY_BYTES_MAX:
            raise too_large(key, value)
        fragment = partition.fragments.get(namespace)
        if fragment is None or not partition.writable or self._outgoing.must_ask:
            self._outgoing.admit(partition, namespace)
            fragment = self._holdings.begin(partition, namespace)
        store: MapStore = fragment.store  # type: ignore[assignment]  # a cast costs on this path
        now_ms = self._ctx.wall_ms
        key_hash = b""
        if len(key) < DATA_HEADER_BYTES or not key.startswith(ORDINARY_KEY):
            key_hash, stored = split_key(key)
        else:
            stored = key[SHORT_AT:]
        if store.locks is not None:
            self.locks.admit(partition, fragment, stored, owner)
        timing = b""
        limits = self._limits.get(namespace) or self._find_limits(namespace)
        if ttl_ms > 0 or max_idle_ms > 0 or limits is not UNLIMITED:
            timing = make_timing(
                limits[0] if ttl_ms < 0 else ttl_ms,
                limits[1] if max_idle_ms < 0 else max_idle_ms,
                now_ms,
            )
        if store.timings:
            self._reap(partition, fragment, stored)
        old, operation = store.put(stored, value, now_ms, timing, key_hash)
        self._holdings.change(partition, fragment, operation, reply)
        if self._listened and self._listened.get(namespace):
            flag = ADDED if old is None else UPDATED
            former = None if old is None else old[RECORD_BYTES:]
            self._happened.append((namespace, flag, store.key_data(stored), value, former))
        if old is None and limits is not UNLIMITED:
            self._make_room(partition, fragment, stored, limits)
        return old

    def put_if_absent(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
        ttl_ms: int = DEFAULT_SPAN,
        max_idle_ms: int = DEFAULT_SPAN,
        owner: Owner | None = None,
    ) -> bytes | None:
        """Store a value unless there is one: that one is returned, None when stored."""
        self._admit(partition, namespace, key, owner)
        present = self.get(partition, namespace, key)
        if present is None:
            self.set(partition, namespace, key, value, reply, ttl_ms, max_idle_ms, owner)
        return present

    def replace(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        value: bytes,
        reply: Reply,
        owner: Owner | None = None,
    ) -> bytes | None:
        """Store a value only where there is one: the former one, None when nothing was there."""
        self._admit(partition, namespace, key, owner)
        if self.get(partition, namespace, key) is None:
            return None
        return self.put(partition, namespace, key, value, reply, owner=owner)

    def replace_if_same(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        expected: bytes,
        value: bytes,
        reply: Reply,
        owner: Owner | None = None,
    ) -> bool:
        """Store a value only where the present one equals ``expected``."""
        is_same = self._is_same(partition, namespace, key, expected, owner)
        if is_same:
            self.set(partition, namespace, key, value, reply, owner=owner)
        return is_same

    def remove(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        reply: Reply,
        flag: int = REMOVED,
        owner: Owner | None = None,
    ) -> bytes | None:
        """Remove a key, told as REMOVED or EVICTED; its value or None."""
        self._outgoing.admit(partition, namespace)
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            return None
        store = cast("MapStore", fragment.store)
        stored = stored_key(key)
        if store.locks is not None:
            self.locks.admit(partition, fragment, stored, owner)
        if store.timings:
            self._reap(partition, fragment, stored)
        data = store.key_data(stored) if self._listened else key
        record, operation = store.remove(stored)
        if record is None:
            return None
        self._holdings.change(partition, fragment, operation, reply)
        value = record[RECORD_BYTES:]
        self._events.tell((namespace, flag, data, None, value))
        return value

    def remove_if_same(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        expected: bytes,
        reply: Reply,
        owner: Owner | None = None,
    ) -> bool:
        """Remove a key only where its value equals ``expected``."""
        is_same = self._is_same(partition, namespace, key, expected, owner)
        if is_same:
            self.remove(partition, namespace, key, reply, owner=owner)
        return is_same

    def _admit(
        self, partition: PartitionReplica, namespace: Namespace, key: bytes, owner: Owner | None
    ) -> None:
        """See whether a key may be written, before it is looked at.

        Raises:
            As ``set``.
        """
        self._outgoing.admit(partition, namespace)
        fragment = partition.fragments.get(namespace)
        if fragment is not None and cast("MapStore", fragment.store).locks is not None:
            self.locks.admit(partition, fragment, stored_key(key), owner)

    def _is_same(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        expected: bytes,
        owner: Owner | None,
    ) -> bool:
        """Whether a key that may be written has this value."""
        self._admit(partition, namespace, key, owner)
        present = self.get(partition, namespace, key)
        return present is not None and same_value(present, expected)

    def set_ttl(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
        ttl_ms: int,
        reply: Reply,
        owner: Owner | None = None,
    ) -> bool:
        """Give an entry another time to live from now on, 0 for ever; whether the key is there."""
        self._admit(partition, namespace, key, owner)
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            return False
        store = cast("MapStore", fragment.store)
        _, stored = split_key(key)
        timing = store.timings.get(stored)
        idle_ms = 0 if timing is None else TIMING.unpack(timing)[2]
        if ttl_ms < 0:
            ttl_ms = self._find_limits(namespace).ttl_ms
        operation = store.set_timing(stored, ttl_ms, idle_ms, self._ctx.wall_ms)
        if operation is None:
            return False
        self._holdings.change(partition, fragment, operation, reply)
        return True

    def put_all(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        entries: Sequence[tuple[bytes, bytes]],
        reply: Reply,
    ) -> None:
        """Store many entries of one partition; the reply waits for the last, hence for all.

        Errors are those of ``set``; where one of the entries is wrong none is stored. Locks do not
        stop it: whoever sends it does not say which of its threads it is.
        """
        self._outgoing.admit(partition, namespace)
        for key, value in entries:
            if len(key) < DATA_HEADER_BYTES or len(key) + len(value) > ENTRY_BYTES_MAX:
                split_key(key)
                raise too_large(key, value)
        last = len(entries) - 1
        for position, (key, value) in enumerate(entries):
            waits = reply if position == last else None
            self.set(partition, namespace, key, value, waits, owner=EVERYBODY)

    # -- after a split --------------------------------------------------------------------

    def leftover_chunk(self, store: Store, cursor: StoreWalk, bytes_max: int) -> tuple[bytes, int]:
        """See ``StructureService.leftover_chunk``; with the hits where they are counted."""
        held = cast("MapStore", store)
        self.locks.drop(held)
        return make_chunk(held, cursor, bytes_max)

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """See ``StructureService.merge``; by the map's policy."""
        return self.merger.merge(partition, namespace, chunk, reply)

    def restore(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """See ``StructureService.restore``."""
        return self.merger.restore(partition, namespace, chunk, reply)

    def split(
        self, namespace: Namespace, chunk: bytes, entries: int, partition_count: int
    ) -> list[tuple[PartitionId, bytes, int]]:
        """See ``StructureService.split``; each entry by its key."""
        return split_chunk(chunk, partition_count)

    def _merge_entry(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        stored: bytes,
        incoming: MapStore,
        decide: Decide,
        reply: PendingReply,
    ) -> str:
        """Merge one entry; limits on its life go on as they were. See ``merging.MergeEntry``."""
        self._outgoing.admit(partition, None)
        fragment = self._holdings.begin(partition, namespace)
        store = cast("MapStore", fragment.store)
        now_ms = self._ctx.wall_ms
        merging = incoming.entry_view(stored, now_ms)
        if merging is None:
            return "expired"
        if store.timings:
            self._reap(partition, fragment, stored)
        existing = store.entry_view(stored, now_ms)
        old = None if existing is None else existing.value
        value = decide(existing, merging)
        if old is not None and (value is None or same_value(value, old)):
            return "same" if same_value(old, merging.value) else "discarded"
        if value is None:
            return "discarded"
        taken = value if not same_value(value, merging.value) else None
        operation = store.put_merged(stored, incoming, taken, now_ms)
        self._holdings.change(partition, fragment, operation, reply)
        self._events.tell((namespace, MERGED, store.key_data(stored), value, old))
        if old is None:
            limits = self._limits.get(namespace) or self._find_limits(namespace)
            self._make_room(partition, fragment, stored, limits)
        return "added" if old is None else "replaced"

    # -- whole maps -----------------------------------------------------------------------

    def key_set(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """The keys in a partition."""
        return [key for key, _ in self.entries(partition, namespace)]

    def values(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        """The values in a partition."""
        return [value for _, value in self.entries(partition, namespace)]

    def entries(
        self, partition: PartitionReplica, namespace: Namespace
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries in a partition; no change may come between."""
        store = self._store(partition, namespace)
        return iter(()) if store is None else store.entries(self._ctx.wall_ms)

    def contains_value(
        self, partition: PartitionReplica, namespace: Namespace, value: bytes
    ) -> bool:
        """Whether some entry in a partition has an equal value."""
        wanted = value[HASH_BYTES:]
        return any(found[HASH_BYTES:] == wanted for _, found in self.entries(partition, namespace))

    def clear(self, partition: PartitionReplica, namespace: Namespace, reply: Reply) -> int:
        """Remove or evict all but locked keys of a partition; how many entries that were."""
        self._outgoing.admit(partition, namespace)
        fragment = partition.fragments.get(namespace)
        if fragment is None or not len(fragment.store):
            return 0
        store = cast("MapStore", fragment.store)
        now_ms = self._ctx.wall_ms
        self.locks.end_leases(partition, fragment, now_ms)
        count = store.size(now_ms)
        self._holdings.change(partition, fragment, store.clear(), reply)
        return count - store.size(now_ms)

    def fetch_entries(
        self, partition: PartitionReplica, namespace: Namespace, cursor: int, count: int
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The next entries of a walk; see ``MapStore.scan``."""
        store = self._store(partition, namespace)
        if store is None:
            return -1, []
        return store.scan(cursor, max(1, count), self._ctx.wall_ms)

    # -- expiry ---------------------------------------------------------------------------

    def sweep(self, wall_ms: int, budget: int) -> int:
        """Remove expired entries of partitions that we are the writable primary of.

        One call looks at a share of the partitions, removes ``budget`` entries at most and goes on
        at the next call. Returns how many were removed; each is told to listeners and backups once.
        """
        partitions = self._holdings.partitions
        count = len(partitions)
        removed = 0
        for _ in range(min(count, max(SWEEP_PARTITIONS_MIN, -(-count // SWEEP_SHARE)))):
            if removed >= budget:
                break
            partition = partitions[self._sweep_at]
            self._sweep_at = (self._sweep_at + 1) % count
            if not self._sweep_at:
                self.locks.end_round()
            for fragment in partition.fragments.values():
                store = fragment.store
                if not isinstance(store, MapStore):
                    continue
                store.forget_idle_scan(wall_ms)
                self.locks.sweep(partition, fragment, wall_ms)
                if not partition.writable or not store.timings:
                    continue
                removed += self._sweep_fragment(partition, fragment, wall_ms, budget - removed)
        return removed

    def _sweep_fragment(
        self, partition: PartitionReplica, fragment: Fragment, wall_ms: int, limit: int
    ) -> int:
        store = cast("MapStore", fragment.store)
        gone = store.sweep_expired(wall_ms, limit)
        for key, value, operation in gone:
            self._expire(partition, fragment, key, value, operation)
        return len(gone)

    def size(self, partition: PartitionReplica, namespace: Namespace) -> int:
        """Entries that are not expired: sweeping first is cheaper than looking at each entry."""
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            return 0
        store = cast("MapStore", fragment.store)
        now_ms = self._ctx.wall_ms
        if store.timings and partition.writable:
            limit = SIZE_SWEEP_MAX
            if self._sweep_fragment(partition, fragment, now_ms, limit) < limit:
                return len(store)
        return store.size(now_ms)

    def _reap(self, partition: PartitionReplica, fragment: Fragment, stored: bytes) -> None:
        """Before a change: make an expired entry disappear for good."""
        store = cast("MapStore", fragment.store)
        if store.is_expired(stored, self._ctx.wall_ms):
            key = store.key_data(stored)
            record, operation = store.remove(stored)
            if record is not None:
                self._expire(partition, fragment, key, record[RECORD_BYTES:], operation)

    def _expire(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        key: bytes,
        value: bytes,
        operation: bytes,
    ) -> None:
        self.expired += 1
        self._drop(partition, fragment, key, value, operation, EXPIRED)

    # -- eviction -------------------------------------------------------------------------

    def _make_room(
        self, partition: PartitionReplica, fragment: Fragment, stored: bytes, limits: Limits
    ) -> None:
        """An entry has come: let others go if there are too many now, expired ones first."""
        if not limits.max_size:
            return
        store = cast("MapStore", fragment.store)
        excess = self.evictor.excess(store, limits.max_size)
        if excess > 0 and store.timings:
            excess -= self._sweep_fragment(partition, fragment, self._ctx.wall_ms, excess)
        self.evictor.evict(partition, fragment, limits.eviction_policy, stored, excess)

    def _evicted(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        key: bytes,
        value: bytes,
        operation: bytes,
    ) -> None:
        self._counters[EVICTED_COUNTER] += 1
        self._drop(partition, fragment, key, value, operation, EVICTED)

    def _drop(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        key: bytes,
        value: bytes,
        operation: bytes,
        flag: int,
    ) -> None:
        """An entry went without a call that asks for it: a change like any other."""
        self._holdings.change(partition, fragment, operation, None)
        self._events.tell((fragment.namespace, flag, key, None, value))

    # -- inside ---------------------------------------------------------------------------

    def _store(self, partition: PartitionReplica, namespace: Namespace) -> MapStore | None:
        fragment = partition.fragments.get(namespace)
        return None if fragment is None else cast("MapStore", fragment.store)


def too_large(key: bytes, value: bytes) -> UsageError:
    """The error for an entry beyond ``ENTRY_BYTES_MAX``."""
    return UsageError(f"an entry of {len(key) + len(value)} bytes is too large")
