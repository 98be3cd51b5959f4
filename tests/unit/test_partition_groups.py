"""Member groups: each member, each machine, each zone."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.partition.groups import group_warnings, member_groups
from whimbrel.errors import UsageError


def info(name: str, *, host: str = "", zone: str = "", lite: bool = False) -> MemberInfo:
    address = Address(f"ip-{name[0]}", 5701)
    return MemberInfo(MemberId(name), address, host=host, zone=zone, lite=lite)


MEMBERS = [
    info("a1", host="h1", zone="z1"),
    info("b1", host="h2", zone="z2"),
    info("lite", host="h3", zone="z3", lite=True),
    info("a2", host="h1", zone="z2"),
    info("c1", host="h2"),
    info("c2"),
    info("c3", zone="h2"),
]


def test_one_group_per_data_member() -> None:
    """Goal: by default every data member is its own place (ADL-01). Method: lite ones excluded."""
    groups = member_groups(MEMBERS, "member")
    assert groups == [("a1",), ("b1",), ("a2",), ("c1",), ("c2",), ("c3",)]
    assert group_warnings(MEMBERS, "member") == group_warnings(MEMBERS, "host") == []


def test_groups_by_host() -> None:
    """Goal: members of one machine are one place (ADL-01; bug 19c). Method: host, else the
    address's host.
    """
    assert member_groups(MEMBERS, "host") == [("a1", "a2"), ("b1", "c1"), ("c2", "c3")]


def test_groups_by_zone_fall_back_to_hosts_and_say_so() -> None:
    """Goal: a member without a zone is grouped by host, with a warning. Method: a host and a
    zone of the same name stay two groups.
    """
    groups = member_groups(MEMBERS, "zone")
    assert groups == [("a1",), ("b1", "a2"), ("c1",), ("c2",), ("c3",)]
    warnings = group_warnings(MEMBERS, "zone")
    assert len(warnings) == 2
    assert "c1" in warnings[0] and "h2" in warnings[0]
    assert "c2" in warnings[1] and "ip-c" in warnings[1]


def test_unknown_kind_is_refused() -> None:
    """Goal: a mistake in the configuration is told. Method: another word."""
    with pytest.raises(UsageError, match="member, host, zone"):
        member_groups(MEMBERS, "rack")
    assert member_groups([], "zone") == []
