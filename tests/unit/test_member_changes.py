"""What a new member list means for the table, in words and in seats."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import Address, MemberId, hottest_index
from whimbrel.core.migration.member_changes import forfeited, reason_of
from whimbrel.core.model import ClusterState, MemberInfo, MemberList
from whimbrel.errors import UsageError
from whimbrel.structures.map.policies import PUT_IF_ABSENT, policy_of, register_merge_policy

A, B, C = (MemberId(name) for name in "abc")


def listed(names: str, missing: str = "", lite: str = "") -> MemberList:
    def infos(wanted: str) -> tuple[MemberInfo, ...]:
        return tuple(
            MemberInfo(MemberId(name), Address("127.0.0.1", 5_000 + ord(name)), lite=name in lite)
            for name in wanted
        )

    state = ClusterState.FROZEN if missing else ClusterState.ACTIVE
    return MemberList(1, infos(names), state=state, missing=infos(missing))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (listed("a"), listed("ab"), "a member joined"),
        (listed("a"), listed("abc"), "2 members joined"),
        (listed("ab"), listed("a"), "a member left"),
        (listed("abc"), listed("a"), "2 members left"),
        (listed("ab"), listed("ac"), "members joined and left"),
        (listed("ab", lite="b"), listed("ab"), "a member changed between lite and data"),
        (listed("a", missing="b"), listed("a"), "missing members did not return"),
        (listed("ab"), listed("ab"), ""),
    ],
)
def test_each_change_has_its_reason(old: MemberList, new: MemberList, reason: str) -> None:
    """Goal: operators read why a plan was made. Method: one change of the list at a time."""
    assert reason_of(old, new) == reason


def test_seats_are_lost_by_those_who_are_not_waited_for() -> None:
    """GCM-09: who left while joining is forbidden keeps its seat until that ends. Method: lists."""
    assert list(forfeited(listed("abc"), listed("ab"))) == [C]
    assert not forfeited(listed("abc"), listed("ab", missing="c"))
    assert list(forfeited(listed("ab", missing="c"), listed("ab"))) == [C]


def test_the_hottest_holder_is_one_that_is_there() -> None:
    """Goal: holes and members that are gone answer for nothing. Method: rows."""
    row = (None, C, B, A, None, None, None)
    assert hottest_index(row, [A, B].__contains__) == row.index(B)
    assert hottest_index(row, ().__contains__) == len(row)
    assert hottest_index(row) == row.index(C)


@pytest.mark.parametrize("name", ["", "x" * 256, "two\nlines"])
def test_a_merge_policy_has_a_name_that_can_be_shown(name: str) -> None:
    """Goal: a name that a configuration could not hold is refused. Method: three of them."""
    with pytest.raises(UsageError, match="printable"):
        register_merge_policy(name, policy_of(PUT_IF_ABSENT))
