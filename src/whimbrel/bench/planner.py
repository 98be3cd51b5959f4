"""What the master's planning costs: targets and ordered steps for a join and a graceful leave.

Also for members in zones, with the crash of a member and of a zone. Pure computation over the rows;
nothing is copied and nobody is asked. CPU time, the least of a few rounds, and the number of copies
beside the lower bound, which no plan can undercut.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.bounds import lower_bound_copies, summary
from whimbrel.core.partition.planner import plan_row

CASES = ((271, 3, 2), (271, 10, 3), (5_003, 20, 2), (20_011, 10, 2))
"""Partitions, members, replicas of each partition."""
ZONES = (
    (1_549, (3, 3, 3), 2),
    (1_549, (4, 3, 2), 2),
    (3_217, (3, 3, 2), 2),
    (3_217, (2, 2, 2, 2), 3),
    (3_217, (3, 3, 2, 2, 1), 3),
    (20_011, (5, 5), 2),
    (20_011, (3, 3, 2, 2, 1), 2),
    (20_011, (3, 3, 3), 3),
)
"""Partitions, members of each zone, replicas of each partition in different zones."""
ROUNDS = 3


def run() -> dict[str, dict[str, float]]:
    """Figures by case: milliseconds of CPU, steps, copies and their lower bound."""
    figures: dict[str, dict[str, float]] = {}
    for partitions, members, depth in CASES:
        names = [MemberId(f"member-{number:03d}") for number in range(members + 1)]
        stay = names[:members]
        rows = assign([EMPTY_ROW] * partitions, _groups(stay), depth)
        name = f"{partitions}_partitions_{members}_members_{depth}_replicas"
        figures[f"join_{name}"] = _measure(rows, names, depth, ())
        figures[f"leave_{name}"] = _measure(rows, stay[:-1], depth, (stay[-1],))
    for partitions, sizes, depth in ZONES:
        figures.update(_zone_figures(partitions, sizes, depth))
    return figures


def _zone_figures(partitions: int, sizes: Sequence[int], depth: int) -> dict[str, dict[str, float]]:
    """A join, a leave, and crashes of a member and of a whole zone."""
    zones = [
        tuple(MemberId(f"zone-{zone}-{number:02d}") for number in range(size))
        for zone, size in enumerate(sizes)
    ]
    rows = assign([EMPTY_ROW] * partitions, zones, depth)
    last, others = zones[0][-1], zones[1:]
    dead, left = frozenset(zones[1]), [zones[0], *zones[2:]]
    name = f"{partitions}_partitions_zones_{'_'.join(map(str, sizes))}_{depth}_replicas"
    return {
        f"join_{name}": _measure_groups(rows, [(*zones[0], MemberId("new")), *others], depth),
        f"leave_{name}": _measure_groups(rows, zones, depth, (last,)),
        f"crash_{name}": _measure_groups(_without(rows, {last}), [zones[0][:-1], *others], depth),
        f"zone_crash_{name}": _measure_groups(_without(rows, dead), left, depth),
    }


def _without(rows: Sequence[Row], gone: Collection[MemberId]) -> list[Row]:
    return [tuple(None if member in gone else member for member in row) for row in rows]


def _groups(members: Sequence[MemberId]) -> list[tuple[MemberId, ...]]:
    return [(member,) for member in members]


def _measure(
    rows: Sequence[Row], members: Sequence[MemberId], depth: int, leaving: tuple[MemberId, ...]
) -> dict[str, float]:
    return _measure_groups(rows, _groups(members), depth, leaving)


def _measure_groups(
    rows: Sequence[Row],
    groups: Sequence[tuple[MemberId, ...]],
    depth: int,
    leaving: tuple[MemberId, ...] = (),
) -> dict[str, float]:
    times_ns = []
    targets: list[Row] = []
    steps = 0
    for _ in range(ROUNDS):
        begin_ns = time.process_time_ns()
        targets = assign(rows, groups, depth, leaving)
        plans = [plan_row(row, target) for row, target in zip(rows, targets, strict=True)]
        times_ns.append(time.process_time_ns() - begin_ns)
        steps = sum(map(len, plans))
    return {
        "cpu_ms": round(min(times_ns) / 1e6, 1),
        "steps": steps,
        "copies": summary(rows, targets).copies,
        "copies_lower_bound": lower_bound_copies(rows, groups, depth, leaving),
    }
