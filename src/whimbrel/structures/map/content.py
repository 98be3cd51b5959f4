"""What equal replicas of a map have in common: keys, records and what is kept beside them.

The same that is compared before a copy (``comparing``): without locks, and without the moment of an
entry's last access.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from whimbrel.core.replication.comparison import WORK_BYTES, Leaves
from whimbrel.core.replication.content import ABSENT, Content, shown
from whimbrel.structures.map.comparing import LeafWalk, MapSumming, hash_of

if TYPE_CHECKING:
    from whimbrel.structures.map.store import MapStore


class MapKeys:
    """The keys of some leaves; see ``content.KeyWalk``."""

    def __init__(self, store: MapStore, leaves: Leaves) -> None:
        self._store = store
        self._walk = LeafWalk(store, leaves)

    @property
    def is_over(self) -> bool:
        """Whether there are no more keys."""
        return self._walk.is_over

    def step(self, work_max: int) -> list[bytes]:
        """The next keys."""
        walk = self._walk
        begin = walk.position
        keys = walk.keys[begin : begin + work_max]
        walk.position = begin + len(keys)
        if walk.position == len(walk.keys):
            walk.go_on(self._store.changes)
        return keys


class MapContent(Content):
    """The content of the store of a map; see ``content.Content``."""

    def __init__(self, store: MapStore) -> None:
        self._store = store

    def sum_up(self, bits: int) -> MapSumming:
        """Begin to sum up its leaves."""
        return MapSumming(self._store, bits)

    def keys_in(self, leaves: Leaves) -> MapKeys:
        """Begin a walk over the keys of leaves that differ."""
        return MapKeys(self._store, leaves)

    def sums_of(self, keys: Sequence[bytes], work_max: int) -> array[int]:
        """The sums of the entries of the first keys."""
        store, sums = self._store, array("Q")
        records, timings, hashes = store.records, store.timings, store.hashes
        for key in keys:
            record = records.get(key)
            if record is None:
                sums.append(ABSENT)
                work_max -= 1
            else:
                beside = timings.get(key, b""), hashes.get(key, b"")
                sums.append(hash_of(key, record, *beside) or 1)
                work_max -= 1 + len(record) // WORK_BYTES
            if work_max <= 0:
                break
        return sums

    def name_of(self, key: bytes) -> str:
        """The key's value."""
        return shown(self._store.key_data(key))
