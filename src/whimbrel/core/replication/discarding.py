"""What ends with a member that leaves: entries of which no copy stays behind, nor on its disk.

A member that has handed over everything takes nothing along. The last ones do, and whoever leaves
where nothing may be moved. When all data members leave together the hottest holder of a partition
that is still there says what goes, so that all of them together say it once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from whimbrel.core.ids import (
    NO_INDEX,
    MemberId,
    Namespace,
    PartitionId,
    hottest_index,
    split_namespace,
)
from whimbrel.core.model import LostStructure
from whimbrel.core.replication.fragments import PartitionReplica


def discarded_with(
    me: MemberId,
    partitions: Sequence[PartitionReplica],
    is_here: Callable[[MemberId], bool],
    is_end: bool,
    said: Collection[PartitionId],
    is_persistent: Callable[[Namespace], bool],
) -> tuple[LostStructure, ...]:
    """The structures and numbers of entries that end with us, by kind and name.

    Args:
        me: This member.
        partitions: What it holds.
        is_here: Whether a member is on the list.
        is_end: Whether all data members leave: nobody keeps what they hold.
        said: Partitions of which somebody said it that left before us.
        is_persistent: Whether a structure is kept on disk, so that nothing of it ends with us.
    """
    counts: dict[Namespace, int] = {}
    for partition in partitions:
        if partition.index == NO_INDEX or partition.pid in said:
            continue
        other = hottest_index(partition.row, lambda member: member != me and is_here(member))
        if other < partition.index:
            continue
        for namespace, fragment in partition.fragments.items():
            if len(fragment.store) and (is_end or fragment.backup_count < other):
                counts[namespace] = counts.get(namespace, 0) + len(fragment.store)
    found: list[LostStructure] = []
    for namespace in sorted(name for name in counts if not is_persistent(name)):
        kind, name = split_namespace(namespace)
        found.append(LostStructure(kind, name, counts[namespace]))
    return tuple(found)
