"""Dry runs as arithmetic: minimal, complete, harmless."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import EMPTY_ROW, Address, MemberId, Row
from whimbrel.core.model import MemberInfo
from whimbrel.core.partition.assignment import assign
from whimbrel.errors import UsageError
from whimbrel.serving.dry_run import DryRun, PlanQuestion, dry_run

COUNT = 61


def members(count: int, **fields: str) -> list[MemberInfo]:
    return [
        MemberInfo(MemberId(f"m{number}"), Address("h", number), **fields)  # type: ignore[arg-type]
        for number in range(count)
    ]


def balanced(infos: list[MemberInfo], depth: int) -> list[Row]:
    return assign([EMPTY_ROW] * COUNT, [(info.id,) for info in infos], depth)


def plan(question: PlanQuestion, count: int, depth: int = 2, kind: str = "member") -> DryRun:
    infos = members(count)
    return dry_run(
        question,
        rows=balanced(infos, depth),
        members=infos,
        already_leaving=(),
        group_kind=kind,
        group_patterns="",
        depth=depth,
    )


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_join_costs_the_share(count: int) -> None:
    """Goal: a join copies the joiner's share and nothing else. Method: several sizes."""
    found = plan(PlanQuestion(join=1), count)
    assert found.copies == found.lower_bound_copies
    assert abs(found.copies - COUNT * 2 // (count + 1)) <= 1
    assert found.promotions == found.partitions_lost == 0
    newcomer = found.shares[-1]
    assert (newcomer.replicas_before, newcomer.copies_received) == (0, found.copies)
    assert newcomer.replicas_after == found.copies
    assert newcomer.address == ""


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_leave_costs_what_was_held(count: int) -> None:
    """Goal: a leave copies just what the leaver held. Method: by uuid and by address."""
    found = plan(PlanQuestion(leave=("m1",)), count)
    assert found == plan(PlanQuestion(leave=("h:1",)), count)
    leaver = found.shares[1]
    assert found.copies == found.lower_bound_copies == leaver.replicas_before
    assert leaver.replicas_after == leaver.primaries_after == 0
    assert found.promotions == 0


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_crash_promotes_and_refills(count: int) -> None:
    """Goal: after a crash each lost primary is promoted once and each lost replica copied once."""
    found = plan(PlanQuestion(crash=("m0",)), count)
    victim = found.shares[0]
    assert found.promotions == victim.primaries_before
    assert found.copies == found.lower_bound_copies == victim.replicas_before
    assert found.role_changes >= found.promotions
    assert found.partitions_lost == 0
    assert sum(found.copied.values()) == found.copies


def test_a_crash_of_all_replicas_is_told() -> None:
    """Goal: an operator sees what two crashes at once would lose. Method: two of three members
    with one backup.
    """
    found = plan(PlanQuestion(crash=("m0", "m1")), 3)
    assert 0 < found.partitions_lost < COUNT
    assert found.shares[2].primaries_after == COUNT


def test_the_last_member_may_leave_on_paper() -> None:
    """Goal: a plan without anybody to give data to is zeros, not an error. Method: one member."""
    found = plan(PlanQuestion(leave=("m0",)), 1)
    assert (found.copies, found.lower_bound_copies, found.copied) == (0, 0, {})


def test_zones_bound_the_depth() -> None:
    """Goal: the group rule holds in dry runs too. Method: all members in one zone; a newcomer
    gets a share of the single replica only.
    """
    infos = members(3, zone="a")
    rows = assign([EMPTY_ROW] * COUNT, [tuple(info.id for info in infos)], 2)
    found = dry_run(
        PlanQuestion(join=1),
        rows=rows,
        members=infos,
        already_leaving=(),
        group_kind="zone",
        group_patterns="",
        depth=2,
    )
    assert found.copies == COUNT // 4


def test_members_that_leave_already_count_as_leaving() -> None:
    """Goal: a dry run starts from what the master is about to do. Method: a leaver in any case."""
    infos = members(4)
    found = dry_run(
        PlanQuestion(join=1),
        rows=balanced(infos, 2),
        members=infos,
        already_leaving=(MemberId("m3"),),
        group_kind="member",
        group_patterns="",
        depth=2,
    )
    assert found.shares[3].replicas_after == 0


@pytest.mark.parametrize(
    "question",
    [
        PlanQuestion(),
        PlanQuestion(join=-1),
        PlanQuestion(join=1_001),
        PlanQuestion(leave=("nobody",)),
        PlanQuestion(crash=("",)),
        PlanQuestion(leave=("m0", "h:0")),
        PlanQuestion(leave=("m0",), crash=("m0",)),
    ],
    ids=str,
)
def test_senseless_questions_are_refused(question: PlanQuestion) -> None:
    """Goal: a question without sense is told. Method: seven of them."""
    with pytest.raises(UsageError):
        plan(question, 3)
