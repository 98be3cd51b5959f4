"""Whose files count: groups of equal tables, the three policies, crossing tables, moved members."""

from __future__ import annotations

import msgspec
import pytest

from whimbrel.core.ids import REPLICA_SLOTS, Address, MemberId, PartitionId, Row
from whimbrel.core.model import ClusterState, MemberInfo, MemberList, RowState
from whimbrel.core.recovery.decision import Finding, Rows, choose, recovery_of, with_moved
from whimbrel.core.settings import RecoveryPolicy

FULL: RecoveryPolicy = "FULL_RECOVERY_ONLY"
RECENT: RecoveryPolicy = "PARTIAL_RECOVERY_MOST_RECENT"
COMPLETE: RecoveryPolicy = "PARTIAL_RECOVERY_MOST_COMPLETE"
NAMES = tuple(map(MemberId, "abcde"))


def info(name: str, port: int = 1, *, lite: bool = False) -> MemberInfo:
    return MemberInfo(MemberId(name), Address(f"host-{name}", port), lite=lite)


def members(version: int, names: str = "abc") -> MemberList:
    return MemberList(version, tuple(map(info, names)), cluster_id="c")


def row(*names: str | None) -> Row:
    held = tuple(None if name is None else MemberId(name) for name in names)
    return held + (None,) * (REPLICA_SLOTS - len(held))


def table(*versions: int, holders: str = "ab") -> Rows:
    return tuple(
        RowState(PartitionId(pid), version, row(*holders)) for pid, version in enumerate(versions)
    )


def versions(rows: Rows) -> list[int]:
    return [one.version for one in rows]


def find(name: str, rows: Rows, version: int = 9) -> Finding:
    return Finding(MemberId(name), members(version), rows)


def test_the_data_members_of_the_newest_list_are_expected() -> None:
    """With the state that they were in; a lite member holds nothing that could be missed."""
    before = MemberList(7, (info("a"), info("b", lite=True)), state=ClusterState.FROZEN)
    recovery = recovery_of(before)
    assert [one.id for one in recovery.expected] == ["a"]
    assert (recovery.list_version, recovery.state) == (7, ClusterState.FROZEN)
    assert not recovery.order and not recovery.is_given_up


def test_the_greatest_sum_is_the_most_recent() -> None:
    """PIM-38: sums 100, 101, 99: the second."""
    choice = choose(
        RECENT,
        [find("a", table(50, 50), 7), find("b", table(50, 51), 8), find("c", table(49, 50), 6)],
    )
    assert choice.chosen == ("b",) and sum(versions(choice.rows)) == 101


def test_the_most_recent_need_not_be_the_most() -> None:
    """PIM-38 against PIM-39: one newer, two older and equal."""
    findings = [find("a", table(5, 6), 9), find("b", table(5, 5), 4), find("c", table(5, 5), 4)]
    assert choose(RECENT, findings).chosen == ("a",)
    assert choose(COMPLETE, findings).chosen == ("b", "c")
    assert versions(choose(COMPLETE, findings).rows) == [5, 5]


def test_the_largest_group_wins_even_with_the_lower_sum() -> None:
    """PIM-39: sizes 3 and 2."""
    findings = [find(name, table(1, 1), 4) for name in "abc"]
    findings += [find(name, table(9, 9), 8) for name in "de"]
    assert choose(COMPLETE, findings).chosen == ("a", "b", "c")


def test_of_equal_groups_the_greater_sum_wins() -> None:
    """PIM-39, the choice at a tie."""
    findings = [find("a", table(2, 2), 8), find("b", table(2, 1), 4)]
    assert choose(COMPLETE, findings).chosen == ("a",)
    assert choose(COMPLETE, findings[::-1]).chosen == ("a",)


def test_crossing_tables_are_merged_by_partition() -> None:
    """PIM-40, bug 61: each newer somewhere; nobody is wrong, the newest row of each counts."""
    findings = [find("a", table(5, 2, 7), 9), find("b", table(4, 3, 7), 8)]
    choice = choose(RECENT, findings)
    assert choice.chosen == ("a", "b") and choice.tables == 2
    assert versions(choice.rows) == [5, 3, 7]
    assert choose(FULL, findings).rows == choice.rows


@pytest.mark.parametrize("policy", [RECENT, COMPLETE])
def test_lite_members_are_no_group_of_their_own(policy: RecoveryPolicy) -> None:
    """PIM-38, PIM-39: who knows the newest table without having anything of it is not chosen
    instead of those who have the data, however many there are.
    """
    lite = [find(name, table(9, 9), 12)._replace(is_lite=True) for name in "cde"]
    choice = choose(policy, [find("a", table(1, 1)), *lite])
    assert choice.chosen == ("a",) and versions(choice.rows) == [1, 1]
    alike = find("c", table(1, 1))._replace(is_lite=True)
    assert choose(policy, [find("a", table(1, 1)), alike]).chosen == ("a", "c")


def test_who_is_only_behind_is_left_out() -> None:
    """PIM-40: where sums agree with the order of each partition they are used."""
    behind, ahead = find("a", table(4, 3), 7), find("b", table(5, 3), 9)
    choice = choose(RECENT, [behind, ahead])
    assert (choice.chosen, choice.tables) == (("b",), 1)
    assert choose(FULL, [behind, ahead]).chosen == ("a", "b")


def test_who_had_the_newest_list_is_not_left_out() -> None:
    """All were killed at one moment, and the last changes of some rows had not reached a disk:
    that member was there to the end, and nobody else may have its data.
    """
    findings = [find("a", table(4, 3)), find("b", table(5, 3)), find("c", table(5, 2))]
    for policy in (RECENT, COMPLETE, FULL):
        choice = choose(policy, findings)
        assert choice.chosen == ("a", "b", "c") and versions(choice.rows) == [5, 3]


def test_a_partition_that_one_does_not_know_is_newer_at_the_other() -> None:
    """A row that was never arranged has no version and is in no table."""
    choice = choose(RECENT, [find("a", table(9), 9), find("b", table(1, 1), 8)])
    assert choice.chosen == ("a", "b") and versions(choice.rows) == [9, 1]


def test_equal_versions_of_parts_that_went_separate_ways() -> None:
    """Neither is behind: both count, and the newer list says which row stands."""
    findings = [find("a", table(5, holders="ab"), 8), find("c", table(5, holders="cb"), 9)]
    choice = choose(RECENT, findings)
    assert choice.chosen == ("a", "c") and choice.rows[0].row == row("c", "b")


def test_rows_of_who_moved_get_one_version_more() -> None:
    """PIM-36: once for a row, however many of its members moved; nobody else's."""
    rows = (
        RowState(PartitionId(0), 4, row("a", "b")),
        RowState(PartitionId(1), 5, row("b", "c")),
        RowState(PartitionId(2), 6, row("c")),
    )
    before = (info("a"), info("b"), info("c"))
    moved = (info("a", 2), info("b", 2), info("c"))
    now = msgspec.structs.replace(members(10), members=moved)
    assert versions(with_moved(rows, before, now)) == [5, 6, 6]
    assert with_moved(rows, before, members(10)) is rows
    assert with_moved(rows, before, members(10, "c")) is rows, "who is missing has not moved"
