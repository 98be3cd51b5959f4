"""What an incarnation that lost a split hands to the next one of the same process.

The stores themselves change hands and are not copied: nobody writes to them any more. They shrink
as entries are merged. Knows no messages and no policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import RegistryEntry
from whimbrel.core.structures.counting_store import CountingMapStore
from whimbrel.core.structures.map_store import MapStore

if TYPE_CHECKING:
    from whimbrel.core.member import Member


class Leftover:
    """One map's entries in one partition, and how far they are merged."""

    __slots__ = ("keys", "name", "partition_id", "position", "store")

    def __init__(self, name: str, partition_id: PartitionId, store: MapStore) -> None:
        self.name = name
        self.partition_id = partition_id
        self.store = store
        self.keys: list[bytes] = store.keys_now()
        self.position = 0

    @property
    def remaining(self) -> int:
        """Entries not yet merged or discarded."""
        return len(self.keys) - self.position

    def next_chunk(self, bytes_max: int) -> tuple[bytes, tuple[int, ...], int]:
        """The next entries as a chunk, their hits when they are counted, the position after."""
        chunk, after = self.store.export_chunk(self.keys, self.position, bytes_max)
        hits: tuple[int, ...] = ()
        if isinstance(self.store, CountingMapStore):
            counted = self.store.hits
            hits = tuple(counted.get(key, 0) for key in self.keys[self.position : after])
        return chunk, hits, after


class SplitData:
    """Everything that one incarnation leaves to the next."""

    def __init__(self, leftovers: Sequence[Leftover], entries: Sequence[RegistryEntry]) -> None:
        """Take over stores and the live registry entries (structures and schemas)."""
        self.leftovers = list(leftovers)
        self.entries = tuple(entries)

    @property
    def entry_count(self) -> int:
        """Entries to be merged."""
        return sum(leftover.remaining for leftover in self.leftovers)


def hottest_listed(row: Row, listed: Sequence[MemberId]) -> MemberId | None:
    """The hottest holder of a row that is on a member list: the primary, or who would become it."""
    for member in row:
        if member is not None and member in listed:
            return member
    return None


def leftovers_of(member: Member) -> list[Leftover]:
    """The map fragments that this member answers for: as primary, or as the hottest survivor.

    Every entry that the part of the cluster acknowledged is so handed over by one of its members.
    """
    listed = member.ctx.members.ids()
    mine = member.ctx.id
    found: list[Leftover] = []
    for partition in member.dataplane.partitions:
        if partition.maps and hottest_listed(partition.row, listed) == mine:
            for name in sorted(partition.maps):
                store = cast("MapStore", partition.maps[name].store)
                if len(store):
                    found.append(Leftover(name, partition.pid, store))
    return found
