"""Plans stay what they are: the same rows are arranged and planned alike from release to release.

A plan that changes without being better moves data for nothing, and makes a history that was
recorded before worthless. A digest that changes on purpose is written anew, with the reason in the
commit.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pytest
from tests.unit.test_partition_assignment import Groups, crash, members

from whimbrel.core.ids import EMPTY_ROW, REPLICA_SLOTS, MemberId, Row
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.planner import plan_row


def grouped(count: int, size: int) -> Groups:
    ids = members(count)
    return [tuple(ids[at : at + size]) for at in range(0, count, size)]


def digest(found: object) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def history(count: int, size: int, depth: int, partitions: int) -> list[Row]:
    """First arrangement, a join, a crash, rows made deeper and shallower, a leave."""
    rows = assign([EMPTY_ROW] * partitions, grouped(count - size, size), depth)
    seen = [*rows]
    groups, ids = grouped(count, size), members(count)
    for change in ("join", "crash", "deeper", "shallower", "leave", "gone"):
        wanted = depth + 2 if change == "deeper" else depth
        leaving = ids[:1] if change == "leave" else []
        left = groups[1:] if change == "gone" else groups
        before = crash(rows, ids[1])[0] if change == "crash" else rows
        rows = assign(before, left, wanted, leaving)
        seen += rows
    return seen


@pytest.mark.parametrize(
    ("count", "size", "depth", "partitions", "expected"),
    [
        (4, 1, 2, 271, "db25e2d688ff"),
        (7, 1, 3, 271, "0f57b3f11870"),
        (12, 3, 2, 128, "259063d01138"),
        (24, 1, 2, 271, "748e5cf3ce84"),
        (40, 1, 3, 271, "3c59c913256c"),
    ],
)
def test_arrangements_stay_the_same(
    count: int, size: int, depth: int, partitions: int, expected: str
) -> None:
    """Goal: the same input, the same rows. Method: digests of whole histories."""
    assert digest(history(count, size, depth, partitions)) == expected


def random_row(draw: random.Random, names: Sequence[MemberId], holes: float) -> Row:
    depth = draw.randint(1, REPLICA_SLOTS)
    chosen: list[MemberId | None] = [*draw.sample(list(names), min(depth, len(names)))]
    for index in range(1, len(chosen)):
        if draw.random() < holes:
            chosen[index] = None
    return tuple(chosen + [None] * (REPLICA_SLOTS - len(chosen)))


@pytest.mark.parametrize(("holes", "expected"), [(0.0, "6e9f35f35446"), (0.3, "0da9a33abc77")])
def test_plans_of_rows_stay_the_same(holes: float, expected: str) -> None:
    """Goal: the same steps in the same order. Method: digests of the plans of random rows."""
    draw = random.Random(7)
    names = members(9)
    rows = [(random_row(draw, names, holes), random_row(draw, names, holes)) for _ in range(2_000)]
    assert digest([plan_row(*pair) for pair in rows]) == expected
