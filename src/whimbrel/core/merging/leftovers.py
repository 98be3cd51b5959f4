"""What an incarnation that lost a split hands to the next one of the same process.

The stores themselves change hands and are not copied: nobody writes to them any more. They shrink
as entries are merged. Knows no messages and no kinds of structures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from whimbrel.core.ids import MemberId, PartitionId, Row, hottest_index
from whimbrel.core.messages import MergeRequested, RegistryEntry
from whimbrel.core.replication.fragments import Fragment, PartitionReplica


@dataclass(slots=True, eq=False)
class Offer:
    """A chunk of a leftover that is offered to primaries until one of them accepts it.

    Attributes:
        message: The request, the same every time.
        asked: Who may have decided it already, and is asked before anybody else.
    """

    message: MergeRequested
    asked: MemberId | None = None

    def again(self, call: int) -> Offer:
        """The same offer by another incarnation, under a call of its own."""
        return Offer(msgspec.structs.replace(self.message, call=call), self.asked)


class Leftover:
    """One structure's entries in one partition, and how far they are merged.

    Attributes:
        namespace: The structure.
        generation: The number of its destruction that the fragment was begun after.
        copies: The row's seats that may have a copy.
        cursor: How far the store has been read.
        remaining: Entries not yet merged or discarded.
        offer: A chunk that an earlier incarnation offered and that may be decided.
    """

    __slots__ = (
        "copies", "cursor", "generation", "namespace", "offer", "partition_id", "remaining",
        "store",
    )  # fmt: skip

    def __init__(self, fragment: Fragment, row: Row) -> None:
        self.namespace = fragment.namespace
        self.partition_id = fragment.partition_id
        self.store = fragment.store
        self.generation = fragment.generation
        self.copies = row[: fragment.backup_count + 1]
        self.cursor = fragment.store.open_cursor()
        self.remaining = len(fragment.store)
        self.offer: Offer | None = None


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


def leftovers_of(
    partitions: Iterable[PartitionReplica], is_listed: Callable[[MemberId], bool]
) -> list[Leftover]:
    """The fragments, of every kind, that we answer for: as primary, or as the hottest survivor.

    Every entry that the part of the cluster acknowledged is so handed over by one of its members.

    Args:
        partitions: What this member holds.
        is_listed: Whether a member is one of its part.
    """
    found: list[Leftover] = []
    for partition in partitions:
        fragments = partition.fragments
        if fragments and hottest_index(partition.row, is_listed) == partition.index:
            held = [fragments[namespace] for namespace in sorted(fragments)]
            # without entries it may hold something all the same that its kind has to give up
            found += [
                Leftover(one, partition.row)
                for one in held
                if len(one.store) or one.store.bytes_used
            ]
    return found


def split_by_copies(
    held: Iterable[Leftover], gone_on: Collection[MemberId], moving: Collection[PartitionId]
) -> tuple[list[Leftover], list[Leftover]]:
    """What only we hold, and what one of those who expelled us has, or may have, a copy of.

    The cluster goes on from that copy, which is newer than ours by now. A migration whose verdict
    we do not know may have made one.

    Args:
        held: What we answer for.
        gone_on: The members that go on without us; none when nobody named them.
        moving: Partitions with such a migration.
    """
    ours: list[Leftover] = []
    theirs: list[Leftover] = []
    for leftover in held:
        has_copy = any(holder in gone_on for holder in leftover.copies)
        is_theirs = has_copy or not gone_on or leftover.partition_id in moving
        (theirs if is_theirs else ours).append(leftover)
    return ours, theirs
