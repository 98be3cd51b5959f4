"""What the master's planning costs: targets and ordered steps for a join and a graceful leave.

Pure computation over the rows; nothing is copied and nobody is asked. CPU time, the least of a few
rounds, and the number of copies beside the lower bound, which no plan can undercut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.bounds import lower_bound_copies, summary
from whimbrel.core.partition.planner import plan_row

CASES = ((271, 3, 2), (271, 10, 3), (5_003, 20, 2), (20_011, 10, 2))
"""Partitions, members, replicas of each partition."""
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
    return figures


def _groups(members: Sequence[MemberId]) -> list[tuple[MemberId, ...]]:
    return [(member,) for member in members]


def _measure(
    rows: Sequence[Row], members: Sequence[MemberId], depth: int, leaving: tuple[MemberId, ...]
) -> dict[str, float]:
    groups = _groups(members)
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
