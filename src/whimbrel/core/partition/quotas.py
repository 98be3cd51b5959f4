"""How many replicas, and how many primaries, each member should have.

Knows counts only, no rows. Members are numbers, and ``group_of[member]`` is a group's number.
"""

from __future__ import annotations

from collections.abc import Sequence


def replica_quotas(
    partition_count: int, depth: int, loads: Sequence[int], group_of: Sequence[int]
) -> list[int]:
    """Share ``partition_count * depth`` replicas out as evenly as the group rule allows.

    A group holds at most one replica of a partition, so its share is at most the partition
    count; small groups beyond that are levelled among themselves. All other members get the
    same, or one more: those with the highest load, so that as little as possible moves.

    Args:
        partition_count: Number of partitions.
        depth: Replicas per row; not above the number of groups.
        loads: Replicas of each member now.
        group_of: The group of each member.

    Returns:
        The quota of each member.
    """
    groups: dict[int, list[int]] = {}
    for member, group in enumerate(group_of):
        groups.setdefault(group, []).append(member)
    quotas = [0] * len(loads)
    left = partition_count * depth
    open_groups = list(groups.values())
    while open_groups:
        count = sum(len(members) for members in open_groups)
        # Small groups that would get more than one replica of a partition.
        full = [part for part in open_groups if left * len(part) > partition_count * count]
        if not full:
            _share(quotas, left, open_groups, loads, partition_count)
            break
        for part in full:
            _share(quotas, partition_count, [part], loads, partition_count)
            left -= partition_count
        open_groups = [part for part in open_groups if part not in full]
    return quotas


def _share(
    quotas: list[int],
    total: int,
    groups: Sequence[Sequence[int]],
    loads: Sequence[int],
    group_max: int,
) -> None:
    """Share a total among the members of some groups, no group above ``group_max``."""
    members = [
        (loads[member], number, member) for number, group in enumerate(groups) for member in group
    ]
    base, extra = divmod(total, len(members))
    room = [group_max - base * len(group) for group in groups]
    members.sort(key=lambda entry: -entry[0])
    for _, group, member in members:
        quotas[member] = base
        if extra and room[group]:
            quotas[member] += 1
            extra -= 1
            room[group] -= 1


def primary_quotas(
    partition_count: int, primaries: Sequence[int], replicas: Sequence[int]
) -> list[int]:
    """Share the primaries out evenly; nobody gets more than its quota of replicas.

    Args:
        partition_count: Number of partitions.
        primaries: Primaries of each member now; the highest get the one more.
        replicas: The replica quota of each member.

    Returns:
        The quota of each member.
    """
    base, extra = divmod(partition_count, len(primaries))
    quotas = [base] * len(primaries)
    ranked = sorted(range(len(primaries)), key=lambda member: -primaries[member])
    for member in ranked:
        if extra and replicas[member] > base:
            quotas[member] += 1
            extra -= 1
    return quotas
