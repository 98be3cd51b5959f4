"""Whose files count, against what may be said of any choice."""

from __future__ import annotations

from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.core.ids import REPLICA_SLOTS, Address, MemberId, PartitionId
from whimbrel.core.model import MemberInfo, MemberList, RowState
from whimbrel.core.recovery.decision import Finding, choose
from whimbrel.core.settings import RecoveryPolicy

POLICIES = st.sampled_from(get_args(RecoveryPolicy))
PARTITIONS = 3
EMPTY = (None,) * (REPLICA_SLOTS - 1)


def finding(number: int, list_version: int, versions: list[int]) -> Finding:
    member = MemberId(f"m{number}")
    members = MemberList(list_version, (MemberInfo(MemberId("m"), Address("h", 1)),))
    rows = tuple(
        RowState(PartitionId(pid), version, (MemberId(f"h{pid}-{version}"), *EMPTY))
        for pid, version in enumerate(versions)
        if version
    )
    return Finding(member, members, rows)


TABLES = st.lists(st.integers(0, 3), min_size=PARTITIONS, max_size=PARTITIONS)
FINDINGS = st.lists(st.tuples(st.integers(1, 3), TABLES), min_size=1, max_size=6).map(
    lambda found: [finding(number, *one) for number, one in enumerate(found)]
)


def versions(rows: tuple[RowState, ...]) -> dict[int, int]:
    return {row.partition_id: row.version for row in rows}


def is_newer_somewhere(one: dict[int, int], other: dict[int, int]) -> bool:
    return any(version > other.get(pid, 0) for pid, version in one.items())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(POLICIES, FINDINGS)
def test_any_choice(policy: RecoveryPolicy, findings: list[Finding]) -> None:
    """PIM-37 to PIM-40: the order of the telling is nothing, somebody is chosen, the table is the
    newest row of each partition that the chosen know and of nobody else.
    """
    choice = choose(policy, findings)
    for turn in range(1, len(findings)):
        assert choose(policy, [*findings[turn:], *findings[:turn]]) == choice
    assert choose(policy, findings[::-1]) == choice
    assert choice.chosen
    chosen = [one for one in findings if one.member in choice.chosen]
    newest: dict[int, int] = {}
    for one in chosen:
        for pid, version in versions(one.rows).items():
            newest[pid] = max(version, newest.get(pid, 0))
    assert versions(choice.rows) == newest
    assert [row.partition_id for row in choice.rows] == sorted(newest)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(FINDINGS)
def test_most_recent_leaves_out_nothing_newer(findings: list[Finding]) -> None:
    """S6 for tables, PIM-38: nobody who is left out knows a newer row, or as great a sum."""
    choice = choose("PARTIAL_RECOVERY_MOST_RECENT", findings)
    taken = versions(choice.rows)
    for one in findings:
        assert not is_newer_somewhere(versions(one.rows), taken)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(FINDINGS)
def test_full_leaves_nobody_out(findings: list[Finding]) -> None:
    """All who are expected are here, so all count."""
    choice = choose("FULL_RECOVERY_ONLY", findings)
    assert choice.chosen == tuple(sorted(one.member for one in findings))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(FINDINGS)
def test_most_complete_takes_no_smaller_group(findings: list[Finding]) -> None:
    """PIM-39: no set of equal tables is larger than those that are chosen."""
    choice = choose("PARTIAL_RECOVERY_MOST_COMPLETE", findings)
    for one in findings:
        alike = [other for other in findings if other.rows == one.rows]
        assert len(alike) <= len(choice.chosen)
