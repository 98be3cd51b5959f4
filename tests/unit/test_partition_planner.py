"""Plans of one row: every vector of the paper and of the described algorithm, and the hazards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rows import end_row, row_from

from whimbrel.core.ids import EMPTY_ROW, MemberId, ReplicaIndex, Row
from whimbrel.core.model import MigrationKind, Step
from whimbrel.core.partition.planner import has_cycle, plan_row, prioritise, remove_cycles
from whimbrel.core.partition.table import filled_count
from whimbrel.errors import InvariantViolation

CASES = json.loads((Path(__file__).parents[1] / "data" / "planner-cases.json").read_text())


def cases(prefix: str) -> list[Any]:
    return [
        pytest.param(case, id=case.get("id", ""))
        for name, group in CASES["groups"].items()
        if name.startswith(prefix)
        for case in group["cases"]
    ]


def row(members: list[str | None] | str) -> Row:
    return row_from(None if member in (None, "-") else MemberId(str(member)) for member in members)


def as_list(step: Step) -> list[Any]:
    return [
        step.kind.value,
        step.source,
        step.destination,
        step.source_current,
        step.source_new,
        step.destination_current,
        step.destination_new,
    ]


def as_step(entry: list[Any]) -> Step:
    kind, source, destination, *indexes = entry
    return Step(MigrationKind(kind), source, destination, *map(ReplicaIndex, indexes))


@pytest.mark.parametrize("case", [c for c in cases("planner_") if "plan" in c.values[0]])
def test_plan_vectors(case: dict[str, Any]) -> None:
    """Goal: exactly the stated plan, rows and version steps (ADL-38 to ADL-45, ADL-51 to ADL-66,
    APR-40, APR-41, PIM-13). Method: all cases of the planner groups.
    """
    current, target = row(case["current"]), row(case["target"])
    smallest = case.get("options", {}).get("smallest_backup_count", 1)
    steps = plan_row(current, target, smallest)
    assert [as_list(step) for step in steps] == case["plan"]
    assert [step.increment for step in steps] == case["version_increments"]
    rows = []
    for step in steps:
        current = step.apply(current)
        rows.append(current)
    assert rows == [row(after) for after in case["rows_after"]]


@pytest.mark.parametrize("case", cases("planner_haz"))
def test_hazard_vectors(case: dict[str, Any]) -> None:
    """Goal: a target that the plain algorithm reaches over a lost copy is not reached that way
    (ADL-46, APR-38). Method: the plain plan loses one; ours never has fewer than required, and
    what is not reached is a cycle.
    """
    start, target = row(case["current"]), row(case["target"])
    current, lowest = start, filled_count(start)
    for entry in case["plain_plan"]:
        current = as_step(entry).apply(current)
        lowest = min(lowest, filled_count(current))
    assert (current, lowest) == (target, case["plain_plan_lowest_filled"])
    current = start
    for step in plan_row(start, target):
        current = step.apply(current)
        assert filled_count(current) >= case["required_lowest_filled"]
        for index, least in enumerate(case["required_lowest_filled_by_prefix"]):
            assert sum(member is not None for member in current[: index + 1]) >= least
    assert current == row("KLJFG") != target
    assert has_cycle(current, target)
    assert plan_row(current, target) == ()


@pytest.mark.parametrize("case", cases("cycles_"))
def test_cycle_vectors(case: dict[str, Any]) -> None:
    """Goal: holders of a cycle stay where they are (ADL-51). Method: targets before and after."""
    current, target = row(case["current"]), row(case["target"])
    assert has_cycle(current, target) == case["cyclic"]
    assert remove_cycles(current, target) == row(case["target_after_fix"])


@pytest.mark.parametrize("case", cases("prioritisation_"))
def test_prioritisation_vectors(case: dict[str, Any]) -> None:
    """Goal: COPY and SHIFT UP first, conflicts keep their order (ADL-67 to ADL-70)."""
    steps = [as_step(entry) for entry in case["input"]]
    assert [steps.index(step) for step in prioritise(steps)] == case["expected_order"]


def test_nothing_to_do_is_no_plan() -> None:
    """Goal: equal rows need no step (ADL-56). Method: a full row, a holey row, an empty one."""
    for members in ("ABC", "A-C", "-------"):
        assert plan_row(row(members), row(members)) == ()


def test_last_primary_is_never_cleared() -> None:
    """Goal: no plan leaves a partition without a primary that it had (ADL-53). Method: such a
    target is a bug of the caller.
    """
    with pytest.raises(InvariantViolation, match="last primary"):
        plan_row(row("AB"), EMPTY_ROW)


def test_clears_come_last() -> None:
    """Goal: a slot is cleared when all other steps of the row are done (ADL-53). Method: a row
    that is shortened and changed at once.
    """
    steps = plan_row(row("ABCDE"), row("FBG"))
    kinds = [step.kind for step in steps]
    assert kinds == [
        MigrationKind.MOVE,
        MigrationKind.MOVE,
        MigrationKind.CLEAR,
        MigrationKind.CLEAR,
    ]
    assert end_row(row("ABCDE"), steps) == row("FBG")


def test_holder_goes_down_over_a_hole_of_the_target() -> None:
    """Goal: a target with a hole before its last replica is reached without losing a copy
    (ADL-46). Method: `AE-` to `A-E`.
    """
    (step,) = plan_row(row("AE-"), row("A-E"))
    assert as_list(step) == ["STEP_DOWN", None, "E", -1, -1, 1, 2]


def test_a_slot_that_is_to_be_filled_from_elsewhere_moves_nobody() -> None:
    """Goal: a hole is closed with a holder, not with the hole of a colder slot. Method: a
    target with a hole, whose colder slot waits for a member that still stands in a hotter one.
    """
    current, target = row("ECD"), row("CB-ED")
    steps = plan_row(current, target)
    assert [step.kind for step in steps] == [
        MigrationKind.MOVE,
        MigrationKind.SHIFT_DOWN,
        MigrationKind.STEP_DOWN,
    ]
    assert [step.destination for step in steps] == ["B", "C", "D"]
    assert end_row(current, steps) == target


def test_rejoin_chain_of_three_needs_deep_structures() -> None:
    """Goal: holders step down first only where every structure keeps them (APR-41). Method: a
    chain of three with smallest backup counts 3 and 2.
    """
    current, target = row("ABC-"), row("DABC")
    deep = plan_row(current, target, smallest_backup_count=3)
    assert [step.kind for step in deep] == [
        MigrationKind.STEP_DOWN,
        MigrationKind.STEP_DOWN,
        MigrationKind.SHIFT_DOWN,
    ]
    assert end_row(current, deep) == target
    shallow = plan_row(current, target, smallest_backup_count=2)
    assert MigrationKind.STEP_DOWN not in [step.kind for step in shallow]
    assert end_row(current, shallow) == target
