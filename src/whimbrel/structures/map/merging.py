"""Maps after a split: what a part hands over, and how the policy merges it at the primary.

A chunk of a leftover is (little-endian) u32 number of hits, so many u64 (none where they are not
counted, else one for each entry), and a chunk of the store.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import Namespace, PartitionId, split_namespace
from whimbrel.core.kinds import note_damaged
from whimbrel.core.messages import MergeCounts
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import SerializationError
from whimbrel.structures.map.comparing import StoreWalk
from whimbrel.structures.map.policies import MergePolicy, policy_of
from whimbrel.structures.map.record import EntryView
from whimbrel.structures.map.settings import NAME, settings_of
from whimbrel.structures.map.store import MapStore
from whimbrel.structures.map.usage_store import UsageMapStore

_COUNT: Final = struct.Struct("<I")
_HITS_BYTES: Final = 8
ALL_BYTES: Final = 1 << 62
"""No chunk has so many."""

Decide = Callable[[EntryView | None, EntryView], bytes | None]
"""Takes the entry that is there and the merging one; the value to keep, or None to leave what is
there."""
MergeEntry = Callable[[PartitionReplica, Namespace, bytes, MapStore, Decide, PendingReply], str]
"""Merges one entry: (partition, map, stored key, the store with the merging entry, what decides,
who waits). Returns what became of the entry: a field of ``MergeCounts``."""


def make_chunk(store: MapStore, cursor: StoreWalk, bytes_max: int) -> tuple[bytes, int]:
    """The next entries of a store that nobody writes to, and how many they are."""
    keys, begin = cursor.keys, cursor.position
    chunk, entries, _ = store.export(cursor, bytes_max)
    counted = store.hits if isinstance(store, UsageMapStore) else None
    if counted is None:
        return _COUNT.pack(0) + chunk, entries
    hits = [counted.get(key, 0) for key in keys[begin : begin + entries]]
    return b"".join((_COUNT.pack(entries), struct.pack(f"<{entries}Q", *hits), chunk)), entries


def read_hits(chunk: bytes) -> tuple[tuple[int, ...], int]:
    """The hits in a chunk, in the order of its entries, and where the store's chunk begins.

    Raises:
        SerializationError: The chunk is damaged.
    """
    try:
        (count,) = _COUNT.unpack_from(chunk)
        hits = struct.unpack_from(f"<{count}Q", chunk, _COUNT.size)
    except struct.error as error:
        raise SerializationError("a chunk of a map ends within its hits") from error
    return hits, _COUNT.size + _HITS_BYTES * count


def split_chunk(chunk: bytes, partition_count: int) -> list[tuple[PartitionId, bytes, int]]:
    """A chunk of ``make_chunk`` by the partitions that its keys have among so many.

    Raises:
        SerializationError: It is damaged.
    """
    hits, begin = read_hits(chunk)
    store = MapStore()
    store.ingest(chunk[begin:])
    counted = dict(zip(store.records, hits, strict=False))
    found: dict[PartitionId, MapStore] = {}
    for key in store.records:
        pid = partition_of(partition_hash(store.key_data(key)), partition_count)
        piece = found.get(pid)
        if piece is None:
            piece = found[pid] = UsageMapStore(counts_reads=True) if hits else MapStore()
        piece.put_merged(key, store, None, 0)
        if isinstance(piece, UsageMapStore) and piece.hits is not None:
            piece.hits[key] = counted.get(key, 0)
    return [
        (pid, make_chunk(piece, piece.open_cursor(), ALL_BYTES)[0], len(piece))
        for pid, piece in found.items()
    ]


def _keep_present(existing: EntryView | None, merging: EntryView) -> bytes | None:
    return merging.value if existing is None else None


class Merger:
    """Merges chunks into the maps of one member.

    Attributes:
        failures: Entries for which a registered policy raised an error or returned no value.
    """

    def __init__(self, ctx: Context, merge_entry: MergeEntry) -> None:
        self._ctx = ctx
        self._merge_entry = merge_entry
        self.failures = 0

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """See ``StructureService.merge``; each entry by the map's policy."""
        policy = policy_of(settings_of(self._ctx.settings, namespace).merge_policy)
        decide = partial(self._ask, policy, split_namespace(namespace)[1])
        return self._take(partition, namespace, chunk, decide, reply)

    def _take(
        self,
        partition: PartitionReplica,
        namespace: Namespace,
        chunk: bytes,
        decide: Decide,
        reply: PendingReply,
    ) -> MergeCounts:
        """Merge the entries of a chunk, up to where it is damaged."""
        incoming = MapStore()
        hits: tuple[int, ...] = ()
        try:
            hits, begin = read_hits(chunk)
            if hits:
                incoming = UsageMapStore(counts_reads=True)
            incoming.ingest(chunk[begin:])
        except SerializationError as error:
            note_damaged(self._ctx, namespace, error)
        if isinstance(incoming, UsageMapStore):
            incoming.hits = dict(zip(incoming.records, hits, strict=False))
        tally = dict.fromkeys(MergeCounts.__struct_fields__, 0)
        for key in incoming.records:
            tally[self._merge_entry(partition, namespace, key, incoming, decide, reply)] += 1
        return MergeCounts(**tally)

    def restore(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """See ``StructureService.restore``."""
        return self._take(partition, namespace, chunk, _keep_present, reply)

    def _ask(
        self, policy: MergePolicy, name: str, existing: EntryView | None, merging: EntryView
    ) -> bytes | None:
        """Ask a policy; one that fails leaves the entry that is there."""
        try:
            value = policy(existing, merging)
        except Exception as error:
            problem = repr(error)
        else:
            if value is None or (isinstance(value, bytes) and len(value) >= 8):
                return value
            problem = f"returned {type(value).__name__}, not a value's Data or None"
        self.failures += 1
        self._ctx.note("split_brain.policy_failed", "warning", **{NAME: name}, problem=problem)
        return None
