"""Assignments over zones: copies beside the bound when members and whole zones come and go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.partition import levelling
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.bounds import lower_bound_copies, summary

PARTITIONS = 1_549
Zones = list[list[MemberId]]


def zones_of(sizes: Sequence[int]) -> Zones:
    """Members of zones of these sizes."""
    return [
        [MemberId(f"z{zone}m{number}") for number in range(size)] for zone, size in enumerate(sizes)
    ]


def without(rows: Sequence[Row], gone: Collection[MemberId]) -> list[Row]:
    """The rows after members have died."""
    return [tuple(None if member in gone else member for member in row) for row in rows]


def copies_and_bound(
    rows: Sequence[Row], zones: Zones, depth: int, leaving: Collection[MemberId] = ()
) -> tuple[int, int]:
    """Copies of the plan and their bound; the plan is checked, and nothing is due after it."""
    groups = [tuple(zone) for zone in zones if zone]
    target = assign(rows, groups, depth, leaving)
    zone_of = {member: number for number, group in enumerate(groups) for member in group}
    for row in target:
        holders = [member for member in row if member is not None]
        assert len({zone_of[member] for member in holders}) == len(holders)
        assert len(holders) == min(depth, len(groups))
    stay = [tuple(member for member in group if member not in leaving) for group in groups]
    assert assign(target, stay, depth) == target
    return summary(rows, target).copies, lower_bound_copies(rows, groups, depth, leaving)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize(
    "sizes",
    [[3, 3], [4, 3], [2, 2, 2], [3, 3, 2], [2, 2, 2, 2], [4, 3, 2, 1], [3, 3, 2, 2, 1]],
    ids=lambda sizes: "-".join(map(str, sizes)),
)
def test_zones_cost_what_they_force_and_no_more(sizes: list[int], depth: int) -> None:
    """ADL-01, PIM-30: a join, a new zone, a leave, a crash and the crash of a whole zone make no
    copy beyond the bound, which counts what zones of unequal size force; a second plan makes none.
    """
    zones = zones_of(sizes)
    rows = assign([EMPTY_ROW] * PARTITIONS, [tuple(zone) for zone in zones], depth)
    new = MemberId("new")
    first = zones[0][-1]
    fewer = [zones[0][:-1], *zones[1:]]
    found = {
        "join": copies_and_bound(rows, [[*zones[0], new], *zones[1:]], depth),
        "zone": copies_and_bound(rows, [*zones, [new]], depth),
        "leave": copies_and_bound(rows, zones, depth, (first,)),
        "crash": copies_and_bound(without(rows, {first}), fewer, depth),
        "zone crash": copies_and_bound(without(rows, zones[1]), [zones[0], *zones[2:]], depth),
    }
    assert {name: copies for name, (copies, _) in found.items()} == {
        name: bound for name, (_, bound) in found.items()
    }


def test_bound_counts_what_unequal_zones_force() -> None:
    """PIM-30: a zone cannot fill the holes of rows in which it stands already. Of three zones with
    3, 3 and 2 members one leaves: 129 of its 387 rows lack a holder in the second zone, whose
    members need 167 for an even share: 38 replicas must move besides.
    """
    zones = zones_of([3, 3, 2])
    groups = [tuple(zone) for zone in zones]
    rows = assign([EMPTY_ROW] * PARTITIONS, groups, 2)
    leaver = zones[0][-1]
    held = [row for row in rows if leaver in row]
    open_to_second = [row for row in held if not set(row) & set(zones[1])]
    bound = lower_bound_copies(rows, groups, 2, (leaver,))
    assert (len(held), len(open_to_second)) == (387, 129)
    alone = [(member,) for zone in zones for member in zone]
    assert lower_bound_copies(rows, alone, 2, (leaver,)) == len(held)
    assert bound == 425


def test_level_primaries_walk_each_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a join into one of two zones is planned in time that grows with the table and not with
    its square, so that the master is not taken for dead. Method: the rows looked at to level
    primaries, at two sizes of the table.
    """
    looks = 0
    fits = levelling._Roles._fits

    def counted(roles: levelling._Roles, pid: int, giver: int, taker: int, role: bool) -> bool:
        nonlocal looks
        looks += 1
        return fits(roles, pid, giver, taker, role)

    monkeypatch.setattr(levelling._Roles, "_fits", counted)
    seen = []
    for partitions in (701, 2_803):
        zones = zones_of([3, 3])
        rows = assign([EMPTY_ROW] * partitions, [tuple(zone) for zone in zones], 2)
        looks = 0
        assign(rows, [(*zones[0], MemberId("new")), tuple(zones[1])], 2)
        seen.append(looks)
    assert 0 < seen[1] < 6 * seen[0]
