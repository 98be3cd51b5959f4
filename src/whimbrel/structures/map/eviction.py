"""Keeping maps within their bounds: how many entries are too many, and which of them go.

A bound (``map.PATTERN.max_size``) is of what one member holds of a map as primary. Nobody counts
that: as the field does (PER_NODE) each partition has its quota of it, which is looked at when an
entry comes, so that a decision needs nothing but the partition at hand. Keys are spread evenly, and
a map that is full has about as many entries as bound times data members.

Which entry goes is decided by its use among a few that are sampled, as exact orders cost memory and
time with each read. An entry that has just been written never goes, nor does one whose key somebody
has locked. Whoever evicts is the primary; backups are told to remove what it removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast
from zlib import crc32

from whimbrel.core.context import Context
from whimbrel.core.model import MemberList
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.structures.map.record import RECORD_BYTES
from whimbrel.structures.map.settings import LFU, LRU
from whimbrel.structures.map.store import MapStore
from whimbrel.structures.map.usage_store import UsageMapStore

SAMPLE: Final = 15
"""Entries of which one is evicted, as many as in the field: more hardly choose better."""
EVICTED_AT_ONCE_MAX: Final = 100
"""Entries that make room for one, a millisecond's work. There are more when a quota has become
smaller, after a death or a merge; then the entries that come next make room for the rest."""

Evicted = Callable[[PartitionReplica, Fragment, bytes, bytes, bytes], None]
"""Takes what was evicted: (partition, fragment, key Data, value, backup operation)."""


def quota_of(max_size: int, data_members: int, partition_count: int) -> int:
    """Entries that a partition may have, so that each member has ``max_size`` of them as primary.

    One at least, so a bound below the number of a member's partitions is not kept.
    """
    return max(1, max_size * data_members // partition_count)


class Evictor:
    """Finds out what has to go, and evicts it."""

    def __init__(self, ctx: Context, tell: Evicted) -> None:
        """Begin with nothing; ``tell`` says it to backups and listeners."""
        self._ctx = ctx
        self._tell = tell
        self._members: MemberList | None = None
        self._data_members = 0

    def excess(self, store: MapStore, max_size: int) -> int:
        """How many entries of a partition have to go now; below 0 where there is room."""
        members = self._ctx.members
        if members is not self._members:
            self._members = members
            self._data_members = len(self._ctx.data_members())
        quota = quota_of(max_size, self._data_members, self._ctx.settings.partition_count)
        return min(len(store) - quota, EVICTED_AT_ONCE_MAX)

    def evict(
        self,
        partition: PartitionReplica,
        fragment: Fragment,
        policy: str,
        spared: bytes,
        count: int,
    ) -> None:
        """Evict so many entries, none if ``count`` is negative; that with the key ``spared`` stays.

        Beside it there are more of them. Fewer go where those that are looked at are locked.
        """
        store = cast("MapStore", fragment.store)
        for _ in range(count):
            key = choose(store, policy, spared)
            if key is None:
                return
            data, value = store.key_data(key), store.records[key][RECORD_BYTES:]
            _, operation = store.remove(key)
            self._tell(partition, fragment, data, value, operation)


def choose(store: MapStore, policy: str, spared: bytes) -> bytes | None:
    """The stored key of the entry that goes next; None where all of a sample are locked."""
    sample = store.sample(SAMPLE, spared)
    if store.locks is not None:
        sample = [key for key in sample if key not in store.locks.held]
    if not sample:
        return None
    if policy == LRU:
        return cast("UsageMapStore", store).least_recently_used(sample)
    if policy == LFU:
        return cast("UsageMapStore", store).least_often_read(sample)
    return sample[crc32(spared) % len(sample)]
