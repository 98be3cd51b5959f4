"""What an incarnation that lost a split hands to the next one of the same process.

The stores themselves change hands and are not copied: nobody writes to them any more. They shrink
as entries are merged. Knows no messages and no policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import MergeRequested, RegistryEntry
from whimbrel.core.structures.map_store import MapStore

if TYPE_CHECKING:
    from whimbrel.core.member import Member


class Offer:
    """A chunk of a leftover that is offered to primaries until one of them accepts it.

    Attributes:
        message: The request, the same every time.
        entries: How many entries it has.
        asked: Who may have decided it already, and is asked before anybody else.
    """

    __slots__ = ("asked", "entries", "message")

    def __init__(
        self, message: MergeRequested, entries: int, asked: MemberId | None = None
    ) -> None:
        self.message = message
        self.entries = entries
        self.asked = asked

    def again(self, call: int) -> Offer:
        """The same offer by another incarnation, under a call of its own."""
        message = msgspec.structs.replace(self.message, call=call)
        return Offer(message, self.entries, self.asked)


class Leftover:
    """One map's entries in one partition, and how far they are merged.

    Attributes:
        remaining: Entries not yet merged or discarded.
    """

    __slots__ = ("cursor", "generation", "name", "offer", "partition_id", "remaining", "store")

    def __init__(
        self, name: str, partition_id: PartitionId, store: MapStore, generation: int = 0
    ) -> None:
        self.name = name
        self.partition_id = partition_id
        self.store = store
        self.generation = generation
        """The number of the map's destruction that the fragment was begun after."""
        self.cursor = store.open_cursor()
        self.remaining = len(store)
        self.offer: Offer | None = None
        """A chunk that an earlier incarnation offered and that may be decided."""

    def next_chunk(self, bytes_max: int) -> tuple[bytes, tuple[int, ...], int]:
        """The next entries as a chunk, their hits when they are counted, and how many they are."""
        chunk, entries, _ = self.store.export(self.cursor, bytes_max)
        return chunk, self.cursor.hits, entries


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
                fragment = partition.maps[name]
                store = cast("MapStore", fragment.store)
                if len(store):
                    found.append(Leftover(name, partition.pid, store, fragment.generation))
    return found


def split_by_copies(
    member: Member, held: Sequence[Leftover]
) -> tuple[list[Leftover], list[Leftover]]:
    """What only we hold, and what one of those who expelled us has, or may have, a copy of.

    The cluster goes on from that copy, which is newer than ours by now. A migration whose verdict
    we do not know may have made one.
    """
    gone_on = member.membership.gone_on
    moving = {one.partition_id for one in member.migrations.active_migrations()}
    ours: list[Leftover] = []
    theirs: list[Leftover] = []
    for leftover in held:
        partition = member.dataplane.partition(leftover.partition_id)
        copies = partition.row[: partition.maps[leftover.name].backup_count + 1]
        has_copy = any(holder in gone_on for holder in copies)
        is_theirs = has_copy or not gone_on or leftover.partition_id in moving
        (theirs if is_theirs else ours).append(leftover)
    return ours, theirs
