"""Random histories of a cluster: sound and level tables, reached with the fewest copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import end_row

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.model import MigrationKind
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.bounds import lower_bound_copies, summary
from whimbrel.core.partition.planner import plan_row

EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "leave", "crash"]), st.integers(0, 99)),
    min_size=1,
    max_size=12,
)


def without(rows: Sequence[Row], dead: MemberId) -> list[Row]:
    """The rows after table repair."""
    repaired = []
    for row in rows:
        slots = [None if member == dead else member for member in row]
        if slots[0] is None and any(slots):
            hottest = next(index for index, member in enumerate(slots) if member)
            slots[0], slots[hottest] = slots[hottest], None
        repaired.append(tuple(slots))
    return repaired


def differences(rows: Sequence[Row], ids: Sequence[MemberId]) -> tuple[int, int]:
    """Largest difference between members: in replicas, in primaries."""
    replicas = Counter(member for row in rows for member in row)
    primaries = Counter(row[0] for row in rows)
    counts, firsts = [replicas[m] for m in ids], [primaries[m] for m in ids]
    return max(counts) - min(counts), max(firsts) - min(firsts)


class History:
    """A cluster that members join, leave and drop out of."""

    def __init__(self, partition_count: int, depth: int, group_count: int) -> None:
        self.depth = depth
        self.group_count = group_count
        self.ids = [MemberId("m0")]
        self.born = 1
        self.rows = assign([EMPTY_ROW] * partition_count, self.groups(), depth)

    def groups(self) -> list[tuple[MemberId, ...]]:
        """Members by the last digits of their number, or each for itself."""
        places: dict[int, list[MemberId]] = {}
        for member in self.ids:
            number = int(member[1:])
            key = number % self.group_count if self.group_count else number
            places.setdefault(key, []).append(member)
        return [tuple(group) for group in places.values()]

    def happen(self, event: str, choice: int) -> tuple[list[Row], list[MemberId]]:
        """Let an event happen; return the rows to plan from and who leaves."""
        member = self.ids[choice % len(self.ids)]
        if event == "join" or len(self.ids) == 1:
            self.ids.append(MemberId(f"m{self.born}"))
            self.born += 1
        elif event == "leave":
            return list(self.rows), [member]
        else:
            self.ids.remove(member)
            return without(self.rows, member), []
        return list(self.rows), []

    def settle(self, current: list[Row], leaving: list[MemberId]) -> int:
        """Assign, check what always holds, carry the plan out; return copies above the bound."""
        target = assign(current, self.groups(), self.depth, leaving)
        bound = lower_bound_copies(current, self.groups(), self.depth, leaving)
        place = {member: n for n, group in enumerate(self.groups()) for member in group}
        self.ids = [member for member in self.ids if member not in leaving]
        live_groups = len({place[member] for member in self.ids})
        for row, wanted in zip(current, target, strict=True):
            holders = [member for member in wanted if member is not None]
            assert wanted[0] is not None
            assert len(holders) == min(self.depth, live_groups)
            assert len({place[member] for member in holders}) == len(holders)
            assert all(member in self.ids for member in holders)
            steps = plan_row(row, wanted)
            assert end_row(row, steps) == wanted
            # A target without inner holes needs none (sim.coverage.OUT_OF_REACH relies on it).
            assert all(step.kind is not MigrationKind.STEP_DOWN for step in steps)
            arrivals = [s.destination for s in steps if s.destination and s.destination_current < 0]
            assert sorted(arrivals) == sorted(member for member in holders if member not in row)
        assert assign(target, self.groups(), self.depth) == target
        self.rows = target
        return summary(current, target).copies - bound


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([60, 128, 271]), EVENTS)
def test_one_backup_histories_are_level_and_minimal(
    count: int, events: list[tuple[str, int]]
) -> None:
    """Goal: with one backup every join, leave and crash costs exactly the bound, replicas are level
    to one, and so are primaries while there is a third member to choose (ADL-01, PIM-30, APR-64).
    Method: random histories; nothing moves when nothing changed.
    """
    history = History(count, depth=2, group_count=0)
    for event, choice in events:
        assert history.settle(*history.happen(event, choice)) == 0
        replicas, primaries = differences(history.rows, history.ids)
        assert replicas <= 1
        # From three to two every place is forced, so primaries are as level as the pairs were.
        assert primaries <= (1 if len(history.ids) != 2 else 3)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from([3, 31, 60]), st.integers(1, 7), st.sampled_from([0, 2, 3]), EVENTS)
def test_any_depth_and_groups_stay_sound(
    count: int, depth: int, group_count: int, events: list[tuple[str, int]]
) -> None:
    """Goal: rows are full, distinct by group, stable, and never below the bound; with groups of one
    replicas are level to one (ADL-01). Method: random histories with random depth and groups.
    """
    history = History(count, depth, group_count)
    for event, choice in events:
        assert history.settle(*history.happen(event, choice)) >= 0
        if not group_count:
            assert differences(history.rows, history.ids)[0] <= 1


MEMBER_COUNTS = (3, 6, 9, 10, 11, 17, 57, 100, 130, 77, 179, 93, 37, 26, 15, 5)
"""Sizes of one cluster, one after the other (FN-5)."""


@pytest.mark.parametrize("partition_count", [271, 787])
@pytest.mark.parametrize("depth", [2, 3])
def test_members_that_come_and_go_in_large_numbers(partition_count: int, depth: int) -> None:
    """ADL-01, FN-5: after each size no hole, no member twice, replicas and primaries level to
    within one, and as few copies as possible; sizes with fewer than ten partitions for a member end
    the sequence.
    """
    ids = [MemberId(f"m{number}") for number in range(MEMBER_COUNTS[0])]
    rows = assign([EMPTY_ROW] * partition_count, [(member,) for member in ids], depth)
    for count in MEMBER_COUNTS[1:]:
        if partition_count // count < 10:
            break
        stay = [MemberId(f"m{number}") for number in range(count)]
        leaving = [member for member in ids if member not in stay]
        groups = [(member,) for member in stay]
        least = lower_bound_copies(rows, groups, depth, leaving)
        target = assign(rows, groups, depth, leaving)
        assert summary(rows, target).copies == least
        for row in target:
            assert None not in row[:depth] and len({*row[:depth]}) == depth
        replicas, primaries = differences(target, stay)
        assert replicas <= 1 and primaries <= 1
        rows, ids = target, stay
