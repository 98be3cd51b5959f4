"""How two stores of one map are compared: their leaves summed up, and taken over from one another.

Knows keys, records and what is kept beside them; nothing of trees. A leaf is a range of CRC-32s of
stored keys. The hash of an entry is that of its bytes in a chunk, so of all that a copy carries,
save for the moment of its last access: reads are the primary's alone. Locks are not compared: there
are few, and every copy carries them all.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from whimbrel.core.replication.comparison import (
    SUM_BYTES,
    SUM_MASK,
    WORK_BYTES,
    Comparison,
    Leaves,
)
from whimbrel.core.replication.fragments import Store
from whimbrel.core.replication.walk import KEYS_TAKEN, Walk
from whimbrel.serialization.data import HASH_BYTES
from whimbrel.structures.map.record import (
    CHUNK_ENTRY,
    CHUNK_HASH,
    CHUNK_TIMING,
    CLEAR,
    KIND_MASK,
    LOCK_STATE,
    OPERATION,
    OPERATION_BYTES,
    PUT,
    REMOVE,
    TIMING_BYTES,
    WITH_HASH,
    WITH_TIMING,
)

if TYPE_CHECKING:
    from whimbrel.structures.map.store import MapStore

HASH_BITS: Final = 32
"""Of CRC-32."""
KEYS_LOOKED_AT: Final = 10_000
"""Keys whose leaf is looked up in one step, a millisecond or two."""
CHUNK_BYTES: Final = 512 * 1024
"""Of keys and values, about, that one step takes where they are wanted as a chunk, too."""
ACCESS_BYTES: Final = 8
"""At the end of a timing: when the entry was last read."""
_unpack_operation = OPERATION.unpack_from

_pack_head = CHUNK_ENTRY.pack


class StoreWalk(Walk):
    """A walk over the entries of a store and, behind them, its locks.

    Attributes:
        locks: The walk over the locks; None before it has begun.
    """

    __slots__ = ("locks",)

    def __init__(self, store: MapStore) -> None:
        super().__init__(store.changes, store.records)
        self.locks: Walk | None = None


class LeafWalk(StoreWalk):
    """The same over the entries of leaves that differ; there may be no keys at hand, and more."""

    __slots__ = ("_leaves", "_listed", "_looked_at")

    def __init__(self, store: MapStore, leaves: Leaves) -> None:
        self._leaves = leaves
        self._listed: list[bytes] = []
        self._looked_at = 0
        super().__init__(store)

    def go_on(self, changes: int) -> None:
        """Take the next keys that are in such leaves, of a bounded number that is looked at."""
        if self._looked_at >= len(self._listed):
            super().go_on(changes)
            self._listed, self._looked_at = self.keys, 0
        begin = self._looked_at
        self._looked_at = begin + KEYS_LOOKED_AT
        self.position = 0
        self.keys = chosen(self._listed[begin : self._looked_at], self._leaves, differs=1)

    @property
    def is_over(self) -> bool:
        """Whether there are no more keys."""
        is_listed = self._looked_at >= len(self._listed) < KEYS_TAKEN
        return is_listed and not self.keys


class KeyWalk(StoreWalk):
    """The same over some keys, whichever of them are there: of those that come, none is another."""

    __slots__ = ("_left",)

    def __init__(self, store: MapStore, keys: Iterable[bytes]) -> None:
        self._left = iter(keys)
        super().__init__(store)

    def go_on(self, changes: int) -> None:
        """Take the next keys."""
        self.keys, self.position = list(islice(self._left, KEYS_TAKEN)), 0


def chosen(keys: list[bytes], leaves: Leaves, *, differs: int) -> list[bytes]:
    """Those of some keys whose leaf differs (1), or does not (0)."""
    if not leaves.count:
        return [] if differs else keys
    table, shift = leaves.differs, HASH_BITS - leaves.bits
    return [key for key in keys if table[crc32(key) >> shift] == differs]


def hash_of(key: bytes, record: bytes, timing: bytes, key_hash: bytes) -> int:
    """The hash of one entry, 64 bits."""
    length, beside = len(key), b""
    if timing or key_hash:
        beside = timing[:-ACCESS_BYTES] + key_hash
        length |= (CHUNK_TIMING if timing else 0) | (CHUNK_HASH if key_hash else 0)
    entry = b"".join((_pack_head(length, len(record)), beside, key, record))
    return int.from_bytes(blake2b(entry, digest_size=SUM_BYTES).digest(), "little")


class MapSumming:
    """The sums of the leaves of a store; see ``comparison.Summing``."""

    def __init__(self, store: MapStore, bits: int) -> None:
        self._store = store
        self._shift = HASH_BITS - bits
        self._nothing = bytes(SUM_BYTES << bits)
        self._walk = StoreWalk(store)
        self._begun = self._walk.begun
        self.sums = array("Q", self._nothing)
        self.is_over = self._walk.is_over

    def step(self, work_max: int) -> int:
        """Look at the next entries; a walk that begins anew begins with sums of nothing."""
        walk, store = self._walk, self._store
        records, timings, hashes = store.records, store.timings, store.hashes
        sums, shift, keys, position = self.sums, self._shift, walk.keys, walk.position
        end = len(keys)
        while position < end and work_max > 0:
            key = keys[position]
            position += 1
            work_max -= 1
            record = records.get(key)
            if record is None:
                continue
            timing = key_hash = b""
            if timings or hashes:
                timing, key_hash = timings.get(key, b""), hashes.get(key, b"")
            work_max -= len(record) // WORK_BYTES
            leaf = crc32(key) >> shift
            sums[leaf] = sums[leaf] + hash_of(key, record, timing, key_hash) & SUM_MASK
        walk.position = position
        if position == end:
            walk.go_on(store.changes)
            if walk.begun != self._begun:
                self._begun = walk.begun
                self.sums = array("Q", self._nothing)
            self.is_over = walk.is_over
        return work_max


class MapFilling:
    """A store that takes entries from a base; see ``comparison.Filling``."""

    def __init__(
        self, store: MapStore, base: MapStore, choose: Callable[[list[bytes]], list[bytes]]
    ) -> None:
        """``choose`` says of some keys of the base whose entries are to be taken."""
        self._store = store
        self._base = base
        self._choose = choose
        self._walk = StoreWalk(base)
        self._begun = self._walk.begun
        self._looked_at = 0
        self.is_over = self._walk.is_over

    @property
    def work_left(self) -> int:
        """Entries of the base that were not looked at."""
        return 0 if self.is_over else max(1, len(self._base) - self._looked_at)

    def step(self, work_max: int, *, wants_chunk: bool) -> tuple[int, bytes]:
        """Take the next entries as they are in the base now; the objects are shared.

        One that was taken before is taken again when the walk begins anew: what has changed since
        has changed in both stores.
        """
        walk, base = self._walk, self._base
        begin, count = walk.position, max(1, work_max)
        if wants_chunk:
            count = min(count, 1 + CHUNK_BYTES // (1 + base.bytes_used // (1 + len(base))))
        looked_at = walk.keys[begin : begin + count]
        keys = self._choose(looked_at)
        records, timings, hashes, take = base.records, base.timings, base.hashes, self._store.take
        for key in keys:
            record = records.get(key)
            if record is not None:
                take(key, record, timings.get(key, b""), hashes.get(key, b""))
        walk.position = begin + len(looked_at)
        self._looked_at += len(looked_at)
        if walk.position == len(walk.keys):
            walk.go_on(base.changes)
            if walk.begun != self._begun:
                self._begun, self._looked_at = walk.begun, 0
            self.is_over = walk.is_over
        chunk = base.chunk_of(keys) if wants_chunk else b""
        return work_max - (work_max if wants_chunk else len(looked_at)), chunk


class MapComparison(Comparison):
    """How the store of a map is compared; see ``comparison.Comparison``."""

    def __init__(self, store: MapStore) -> None:
        self._store = store

    def sum_up(self, bits: int) -> MapSumming:
        """Begin to sum up its leaves."""
        return MapSumming(self._store, bits)

    def open_export(self, leaves: Leaves) -> StoreWalk:
        """A cursor over entries of leaves that differ, and over all locks."""
        return LeafWalk(self._store, leaves) if leaves.count else KeyWalk(self._store, ())

    def fill_from(self, base: Store, leaves: Leaves) -> MapFilling:
        """Begin to take the entries of all other leaves from a base."""

        def choose(keys: list[bytes]) -> list[bytes]:
            return chosen(keys, leaves, differs=0)

        return MapFilling(self._store, cast("MapStore", base), choose)

    def changed_key(self, operation: bytes) -> bytes | None:
        """The stored key of a backup operation; the state of a lock is no entry's."""
        kind, length = _unpack_operation(operation)
        if kind in (PUT, REMOVE):  # nearly all
            return operation[OPERATION_BYTES : OPERATION_BYTES + length]
        start = OPERATION_BYTES
        if kind > KIND_MASK:
            start += TIMING_BYTES if kind & WITH_TIMING else 0
            start += HASH_BYTES if kind & WITH_HASH else 0
            kind &= KIND_MASK
        if kind == CLEAR:
            return None
        return b"" if kind == LOCK_STATE else operation[start : start + length]

    def parted(self, keys: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Those of some keys that have an entry here, and those that have none."""
        records = self._store.records
        return [key for key in keys if key in records], [key for key in keys if key not in records]

    def open_export_of(self, keys: Sequence[bytes]) -> StoreWalk:
        """A cursor over the entries of these keys, and over all locks."""
        return KeyWalk(self._store, keys)

    def fill_beside(self, base: Store, removed: Collection[bytes]) -> MapFilling:
        """Begin to take from a base the entries that are neither removed nor here."""
        store = self._store

        def choose(keys: list[bytes]) -> list[bytes]:
            records = store.records
            return [key for key in keys if key not in records and key not in removed]

        return MapFilling(store, cast("MapStore", base), choose)
