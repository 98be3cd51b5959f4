"""Two parts of a cluster decide on their own which one yields, and never differ (M6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.membership.split_brain import is_apart, is_weaker
from whimbrel.core.messages import SuspicionTold
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.settings import CoreSettings

NAMES = [MemberId(f"m{number}") for number in range(8)]


@st.composite
def two_parts(draw: st.DrawFn) -> tuple[MemberList, MemberList]:
    order = draw(st.permutations(range(len(NAMES))))
    ports = draw(st.permutations(range(5701, 5701 + len(NAMES))))
    hosts = draw(st.lists(st.sampled_from(["a", "b"]), min_size=8, max_size=8))
    lite = draw(st.lists(st.booleans(), min_size=8, max_size=8))
    cut = draw(st.integers(1, 7))
    end = draw(st.integers(cut + 1, 8))
    versions = draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
    infos = [
        MemberInfo(NAMES[item], Address(hosts[item], ports[item]), lite=lite[item])
        for item in order
    ]
    one = MemberList(version=versions[0], members=tuple(infos[:cut]))
    return one, MemberList(version=versions[1], members=tuple(infos[cut:end]))


def told_by(members: MemberList) -> SuspicionTold:
    """What a member of a list tells a stranger."""
    ctx = Context(members.members[0], CoreSettings())
    ctx.members = members
    return MembershipState(ctx).suspicion(MemberId("stranger"))


@given(two_parts())
def test_exactly_one_part_yields(parts: tuple[MemberList, MemberList]) -> None:
    """M6: of two parts one yields and one stays, whatever their sizes, versions and addresses."""
    one, other = parts
    assert is_apart(one, told_by(other)) and is_apart(other, told_by(one))
    assert is_weaker(one, told_by(other)) is not is_weaker(other, told_by(one))


@given(two_parts())
def test_more_data_members_win(parts: tuple[MemberList, MemberList]) -> None:
    """M6: lite members do not count, list versions neither; equal parts: the smaller address."""
    one, other = parts
    counts = [sum(not info.lite for info in part.members) for part in parts]
    masters = [part.members[0].address for part in parts]
    if counts[0] != counts[1]:
        assert is_weaker(one, told_by(other)) is (counts[0] < counts[1])
    else:
        assert is_weaker(one, told_by(other)) is (masters[0] > masters[1])


@given(two_parts(), st.integers(0, 6))
def test_common_member_is_no_split(parts: tuple[MemberList, MemberList], at: int) -> None:
    """M5: lists with a member in common are one cluster that removed somebody."""
    one, other = parts
    common = one.with_members((*one.members, other.members[at % len(other.members)]))
    assert not is_apart(common, told_by(other))
