"""How much a change of rows costs, and how little any change could cost (FN-17)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from whimbrel.core.ids import MemberId, Row
from whimbrel.core.partition.board import HOLE, Board
from whimbrel.core.partition.quotas import replica_quotas

SETS_OF_GROUPS_MAX = 8
"""Groups of which every set is looked at for what it forces; of more only single ones."""


class PlanSummary(msgspec.Struct, frozen=True):
    """A change of the table in numbers.

    ``copies`` is how often a member gets a partition it did not hold. ``promotions`` is how many
    partitions go from a holder to a primary that held them already. ``role_changes`` is how
    many holders stay under another index, promotions included. ``lower_bound_copies`` is what
    the holders in ``target`` cost at least: the replicas each member has more than before.
    """

    copies: int
    promotions: int
    role_changes: int
    lower_bound_copies: int


def summary(current_rows: Sequence[Row], target_rows: Sequence[Row]) -> PlanSummary:
    """Count what leads from one table to another."""
    copies = promotions = role_changes = lacking = 0
    gained: dict[MemberId, int] = {}
    for current, target in zip(current_rows, target_rows, strict=True):
        if current == target:
            continue
        for member in current:
            if member is not None:
                gained[member] = gained.get(member, 0) - 1
        for index, member in enumerate(target):
            if member is None:
                continue
            gained[member] = gained.get(member, 0) + 1
            if member not in current:
                copies += 1
            elif current[index] != member:
                role_changes += 1
                promotions += index == 0
    lacking = sum(max(0, count) for count in gained.values())
    return PlanSummary(copies, promotions, role_changes, lacking)


def lower_bound_copies(
    rows: Sequence[Row],
    groups: Sequence[Sequence[MemberId]],
    depth: int,
    leaving: Collection[MemberId] = (),
) -> int:
    """The fewest copies that fill all rows to the depth and level the members.

    Args:
        rows: The rows as they are.
        groups: As for ``assignment.assign``.
        depth: As for ``assignment.assign``.
        leaving: As for ``assignment.assign``.

    Returns:
        The greatest of the holders that are missing, the replicas that members lack of an even
        share, and what places of several members force; no plan can do with less.
    """
    board = Board(rows, groups, depth, leaving)
    if board.depth == 0:
        return 0
    quotas = replica_quotas(len(rows), board.depth, board.kept_loads, board.group_of)
    # No plan can do without a copy per hole, and per replica that a member lacks.
    loads = zip(quotas, board.kept_loads, strict=True)
    least = max(board.hole_count, sum(max(0, quota - load) for quota, load in loads))
    if board.is_ungrouped or board.has_spares:
        return least
    return max(least, board.hole_count + _forced_by_groups(board, quotas))


def _forced_by_groups(board: Board, quotas: Sequence[int]) -> int:
    """Copies besides those into holes: what groups lack and the holes cannot give them.

    A copy to a group fills a hole only in a row in which the group has no holder, and a row has
    only as many such copies as holes; any other copy takes the place of a holder that could stay.
    That is true of each set of groups together, so the worst set counts.
    """
    groups = max(board.group_of) + 1
    lacking = [0] * groups
    for member, quota in enumerate(quotas):
        lacking[board.group_of[member]] += max(0, quota - board.kept_loads[member])
    sorts: dict[tuple[int, int], int] = {}
    for target in board.slots:
        holes = target.count(HOLE)
        if holes:
            present = sum(1 << board.group_of[member] for member in target if member >= 0)
            sorts[present, holes] = sorts.get((present, holes), 0) + 1
    every = (
        range(1, 1 << groups) if groups <= SETS_OF_GROUPS_MAX else (1 << n for n in range(groups))
    )
    worst = 0
    for chosen in every:
        wanted = sum(count for group, count in enumerate(lacking) if chosen >> group & 1)
        if wanted > worst:
            offered = sum(
                count * min(holes, (chosen & ~present).bit_count())
                for (present, holes), count in sorts.items()
            )
            worst = max(worst, wanted - offered)
    return worst
