"""Where rows go in STABLE_CLUSTER, as pure functions: ``partition.stable``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import pytest

from whimbrel.core.ids import EMPTY_ROW, MemberId, Row
from whimbrel.core.jobs import finish
from whimbrel.core.migration.repair import promotion_step, without_departed
from whimbrel.core.partition.planner import plan_row
from whimbrel.core.partition.stable import ROWS_AIMED, restoring, slots_differing


def row_of(text: str) -> Row:
    """A row of members with one letter; ``-`` is a hole."""
    members = [None if one == "-" else MemberId(one) for one in text]
    return (*members, *EMPTY_ROW[len(members) :])


def text_of(row: Row) -> str:
    return "".join(one or "-" for one in row).rstrip("-")


def aimed(row: str, stable: str, present: str, depth: int, missing_max: int = 0) -> str:
    groups = [(MemberId(one),) for one in present]
    targets = finish(restoring([row_of(row)], [row_of(stable)], groups, depth, missing_max))
    return text_of(targets[0])


@pytest.mark.parametrize(
    ("row", "stable", "present", "depth", "target"),
    [
        ("BC", "AB", "ABCD", 2, "AB"),  # all back: the stable row
        ("B", "AB", "BCD", 2, "BC"),  # what is open goes to whoever holds least
        ("BD", "AB", "BCD", 2, "BD"),  # who took a place keeps it
        ("CD", "ABC", "BCDE", 3, "BCD"),  # one of two is back
        ("DE", "ABC", "ADE", 3, "ADE"),  # it is primary again, with the data of the others
        ("AB", "AB", "ABCD", 3, "ABC"),  # a structure asks for more than there was
        ("ABCD", "ABCD", "ABCDE", 2, "ABCD"),  # or for less: the stable row stays
        ("AB", "AB", "AB", 3, "AB"),  # more than there are members
        ("CB", "ABC", "BCD", 3, "CBD"),  # no cycle for a row that is interim anyway
        ("", "AB", "CD", 2, "CD"),  # all lost
    ],
)
def test_where_a_row_goes(row: str, stable: str, present: str, depth: int, target: str) -> None:
    """APR-36."""
    assert aimed(row, stable, present, depth) == target


@pytest.mark.parametrize(
    ("row", "stable", "present", "k", "target"),
    [
        ("AB", "ABC", "ABDE", 1, "AB"),  # one is missing, one may be
        ("A", "ABC", "ADE", 1, "ADE"),  # two are
        ("A", "ABC", "ADE", 2, "A"),
        ("", "ABC", "DEF", 6, "D"),  # never without an owner
        ("AD", "ABC", "ABDE", 1, "AB"),  # who is there has its seat all the same
        ("AB", "AB", "ABCD", 1, "ABC"),  # nobody is missing: a deeper structure gets its copies
    ],
)
def test_k_safety(row: str, stable: str, present: str, k: int, target: str) -> None:
    """APR-66: by partition, and what survives is not given up."""
    assert aimed(row, stable, present, 3, k)[: len(target)] == target
    assert len(aimed(row, stable, present, 3, k)) <= 3


def test_places_hold_one_replica_each() -> None:
    """GCM-22: of an interim row as of any other."""
    groups = [(MemberId("B"), MemberId("C")), (MemberId("D"),)]
    targets = finish(restoring([row_of("B"), row_of("BC")], [row_of("AB")] * 2, groups, 2))
    assert [text_of(row) for row in targets] == ["BD", "BD"]


def test_without_members_nothing_is_aimed_at() -> None:
    assert finish(restoring([row_of("AB")], [row_of("AB")], [], 2)) == [row_of("AB")]


def test_interim_holders_are_spread() -> None:
    """APR-35: who is left open goes to whoever holds least; and it takes pieces."""
    count = 2 * ROWS_AIMED + 3
    groups = [(MemberId(one),) for one in "BCDE"]
    job = restoring([row_of("B")] * count, [row_of("AB")] * count, groups, 2)
    pieces = 0
    try:
        while True:
            next(job)
            pieces += 1
    except StopIteration as end:
        held = Counter(one for row in end.value for one in row[1:2])
    assert pieces == 4
    assert max(held.values()) - min(held.values()) <= 1 and set(held) == {"C", "D", "E"}


@pytest.mark.parametrize(
    ("row", "stable", "depth", "count"),
    [("AB", "AB", 2, 0), ("BA", "AB", 2, 2), ("A", "AB", 2, 1), ("ABC", "AB", 2, 1),
     ("ABC", "AB", 3, 0), ("ACB", "ABC", 3, 2)],
)  # fmt: skip
def test_slots_differing(row: str, stable: str, depth: int, count: int) -> None:
    """APR-73."""
    assert slots_differing([row_of(row)], [row_of(stable)], depth) == count


# -- APR-38: the stable row is reached ----------------------------------------------------

State = tuple[Row, frozenset[str]]
"""A row, and who is there."""


def repaired(row: Row, present: frozenset[str]) -> Row:
    after, _ = without_departed(row, {MemberId(one): None for one in present})
    step = promotion_step(after)
    return after if step is None else step.apply(after)


def neighbours(state: State, stable: str, depth: int) -> Iterator[State]:
    """Where a row may be next: a departure, a return, each step of the plan that is made now."""
    row, present = state
    everybody = frozenset("ABCDE"[: max(len(stable), 4)])
    for member in sorted(present):
        if len(present) > 1:
            yield repaired(row, present - {member}), present - {member}
    for member in sorted(everybody - present):
        yield row, present | {member}
    target = row_of(aimed(text_of(row), stable, "".join(sorted(present)), depth))
    if row[0] is None:
        yield (target[0], *EMPTY_ROW[1:]), present
        return
    after = row
    for step in plan_row(row, target):
        after = step.apply(after)
        yield after, present
    if frozenset(stable) <= present:
        assert after == row_of(stable), f"{text_of(row)} ends as {text_of(after)}"


@pytest.mark.parametrize(("stable", "depth"), [("AB", 2), ("ABC", 3)])
def test_every_row_comes_back(stable: str, depth: int) -> None:
    """APR-36, APR-38: whatever departures, returns and interrupted plans have led to."""
    first: State = (row_of(stable), frozenset("ABCD"))
    seen, due = {first: None}, deque([first])
    while due:
        for state in neighbours(due.popleft(), stable, depth):
            if state not in seen:
                seen[state] = None
                due.append(state)
    assert len(seen) > 50
