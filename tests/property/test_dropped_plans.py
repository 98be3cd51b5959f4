"""Goal: a plan that another membership change cuts short leaves nobody with uneven roles.

The plan is carried out as the master does it, some migrations at a time, and dropped at a random
point; the next one starts from the table as it is then (ADL-50).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.core.ids import EMPTY_ROW, MemberId, PartitionId, Row
from whimbrel.core.jobs import finish
from whimbrel.core.migration.plan_queue import PlanQueue
from whimbrel.core.model import Step
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.planner import plan_row

NAMES = [MemberId(f"m{number}") for number in range(10)]
DEPTH = 2


def groups(names: Sequence[MemberId]) -> list[tuple[MemberId, ...]]:
    return [(name,) for name in names]


def carry_out(
    rows: Sequence[Row], targets: Sequence[Row], share: float, rng: random.Random
) -> list[Row]:
    """The rows after this share of a plan's steps, which end in random order."""
    now = list(rows)
    plan: list[tuple[PartitionId, tuple[Step, ...]]] = []
    for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
        if row != target and (steps := plan_row(row, target)):
            plan.append((PartitionId(number), tuple(steps)))
    queue = PlanQueue(10, lambda pid: now[pid][0])
    finish(queue.loading(plan))
    wanted = int(queue.waiting_count * share)
    running: list[tuple[PartitionId, Step, MemberId]] = []
    while wanted > 0:
        while (found := queue.take()) is not None:
            pid, step = found
            source = now[pid][0]
            assert source is not None
            running.append((pid, step, source))
        pid, step, source = running.pop(rng.randrange(len(running)))
        now[pid] = step.apply(now[pid])
        assert step.destination is not None
        queue.release(source, step.destination)
        queue.proceed(pid)
        wanted -= 1
    return now


def spread(rows: Sequence[Row], names: Sequence[MemberId]) -> tuple[int, int]:
    """How far members differ in primaries, and in replicas."""
    primaries = [sum(row[0] == name for row in rows) for name in names]
    replicas = [sum(name in row for row in rows) for name in names]
    return max(primaries) - min(primaries), max(replicas) - min(replicas)


def copies(before: Sequence[Row], after: Sequence[Row]) -> int:
    """Replicas that came to a member without one of that partition."""
    return sum(
        member is not None and member not in row
        for row, target in zip(before, after, strict=True)
        for member in target
    )


@given(
    st.sampled_from([31, 53, 271]),
    st.integers(3, 6),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 1 << 16),
)
@settings(max_examples=25, deadline=None)
def test_two_joins_one_after_the_other_end_level(
    count: int, start: int, share: float, seed: int
) -> None:
    """ADL-50: a join in the middle of a join's plan; replicas and primaries end within one.

    The plan for the second join makes up for nearly everything; what is left of uneven primaries
    is levelled afterwards with a few copies, and then nothing moves any more.
    """
    rng = random.Random(seed)
    rows = assign([EMPTY_ROW] * count, groups(NAMES[:start]), DEPTH)
    first, second = NAMES[: start + 1], NAMES[: start + 2]
    middle = carry_out(rows, assign(rows, groups(first), DEPTH), share, rng)
    joined = carry_out(middle, assign(middle, groups(second), DEPTH), 1, rng)
    primaries, replicas = spread(joined, second)
    assert replicas <= 1
    assert primaries <= 5
    level = assign(joined, groups(second), DEPTH)
    assert copies(joined, level) <= 2 * primaries * len(second)
    level = carry_out(joined, level, 1, rng)
    assert max(spread(level, second)) <= 1
    assert assign(level, groups(second), DEPTH) == level
