"""Plans against brute force: all small rows, and random rows of full length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import end_row, row_from, slots_changed

from whimbrel.core.ids import REPLICA_SLOTS, MemberId, Row
from whimbrel.core.model import MigrationKind, Step
from whimbrel.core.partition.planner import has_cycle, plan_row, prioritise, remove_cycles

MEMBERS = [MemberId(name) for name in "ABCDEFGHIJKLMN"]


def all_rows(member_count: int, width: int) -> Iterator[Row]:
    """Every row over some members, holes anywhere."""
    for count in range(width + 1):
        for places in itertools.combinations(range(width), count):
            for members in itertools.permutations(MEMBERS[:member_count], count):
                holders = dict(zip(places, members, strict=True))
                yield row_from(holders.get(place) for place in range(width))


def hole_patterns(width: int) -> Iterator[Row]:
    """One row for each pattern of holes; renaming members gives all the others.

    Rows with backups but no primary are left out: table repair promotes before anything is planned.
    """
    for filled in itertools.product((False, True), repeat=width):
        names = iter(MEMBERS)
        if any(filled) and not filled[0]:
            continue
        yield row_from(next(names) if full else None for full in filled)


def filled(row: Row) -> list[int]:
    """Filled slots of each prefix."""
    return list(itertools.accumulate(member is not None for member in row))


def check_plan(current: Row, target: Row) -> tuple[Step, ...]:
    """Assert all that holds for any plan, step by step; return the plan."""
    wanted = remove_cycles(current, target)
    steps = plan_row(current, target)
    least = [min(pair) for pair in zip(filled(current), filled(wanted), strict=True)]
    row = current
    for step in steps:
        after = step.apply(row)
        label = (current, target, steps)
        assert step.increment == slots_changed(row, after), label
        members = [member for member in after if member is not None]
        assert len(set(members)) == len(members), label
        assert all(has >= need for has, need in zip(filled(after), least, strict=True)), label
        assert after[0] is not None or current[0] is None, label
        for index in range(REPLICA_SLOTS):
            if row[index] == wanted[index]:
                assert after[index] == wanted[index], label
            if row[index] is not None and wanted[index] is not None and after[index] is None:
                assert 0 <= step.destination_new < index, label
        row = after
    kinds = [step.kind for step in steps]
    clears = kinds.count(MigrationKind.CLEAR)
    assert kinds[len(kinds) - clears :] == [MigrationKind.CLEAR] * clears
    excused = has_cycle(row, wanted) or None in wanted[: max(filled(wanted))]
    assert row == wanted or excused, (current, target, steps)
    return steps


def test_all_rows_of_five_members_and_four_indexes() -> None:
    """Goal: no step lowers the copies of any prefix below both rows (ADL-46), hotter before colder
    (ADL-47), equal slots untouched (ADL-56), the end row reached unless a cycle keeps it
    (ADL-51, ADL-59). Method: all current rows up to renaming, all targets with a primary.
    """
    targets = [row for row in all_rows(5, 4) if row[0] is not None]
    count = longest = missed = 0
    for current in hole_patterns(4):
        for target in targets:
            steps = check_plan(current, target)
            longest = max(longest, len(steps))
            missed += end_row(current, steps) != remove_cycles(current, target)
            count += 1
    assert count == 9 * len(targets) > 2_000
    assert longest <= REPLICA_SLOTS
    assert missed <= 10


@st.composite
def row_pairs(draw: st.DrawFn, *, holes: bool) -> tuple[Row, Row]:
    """A current row and a target with some of its members and some new ones."""
    width = draw(st.integers(1, REPLICA_SLOTS))
    current: list[MemberId | None] = list(MEMBERS[:width])
    if holes:
        for index in draw(st.lists(st.integers(1, width), max_size=3)):
            if index < width:
                current[index] = None
    pool = draw(st.permutations([m for m in current if m is not None] + MEMBERS[7:]))
    size = draw(st.integers(1, REPLICA_SLOTS))
    target: list[MemberId | None] = list(pool[:size])
    if holes:
        for index in draw(st.lists(st.integers(1, REPLICA_SLOTS), max_size=2)):
            if index < size:
                target[index] = None
    return row_from(current), row_from(target)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(row_pairs(holes=False))
def test_random_rows_without_holes(rows: tuple[Row, Row]) -> None:
    """Goal: hole-free rows reach their cycle-fixed target in at most 7 changes and the clears
    (ADL-46, ADL-59, ADL-66). Method: random full-length rows.
    """
    current, target = rows
    steps = check_plan(current, target)
    assert end_row(current, steps) == remove_cycles(current, target)
    assert len(steps) <= REPLICA_SLOTS


@settings(max_examples=300, deadline=None, derandomize=True)
@given(row_pairs(holes=True))
def test_random_rows_with_holes(rows: tuple[Row, Row]) -> None:
    """Goal: the principles hold for any target, also one restored from elsewhere (ADL-46, APR-38).
    Method: random rows with holes on both sides.
    """
    check_plan(*rows)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(row_pairs(holes=True))
def test_prioritisation_keeps_conflicts_and_end(rows: tuple[Row, Row]) -> None:
    """Goal: prioritising is a permutation, idempotent, and keeps the order of steps that share a
    member and of COPYs and SHIFT UPs among themselves (ADL-69, ADL-70). Method: random plans.
    """
    steps = plan_row(*rows)
    ordered = prioritise(steps)
    assert sorted(map(repr, ordered)) == sorted(map(repr, steps))
    assert prioritise(ordered) == ordered
    for earlier, later in itertools.combinations(steps, 2):
        shared = {earlier.source, earlier.destination} & {later.source, later.destination} - {None}
        pure = all(s.source is None for s in (earlier, later))
        if pure or (shared and later.destination in shared):
            assert ordered.index(earlier) < ordered.index(later)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_upstream_random_shape(length: int) -> None:
    """Goal: the random test of the shipped planner holds (ADL-66). Method: current plus 0 to
    7 - length new members, in every hundredth order.
    """
    current = row_from(MEMBERS[:length])
    for new in range(REPLICA_SLOTS - length + 1):
        members = MEMBERS[: length + new]
        for order in itertools.islice(itertools.permutations(members), 0, None, 101):
            check_plan(current, row_from(order))
