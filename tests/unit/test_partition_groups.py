"""Member groups: each member, each machine, each zone."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import EMPTY_ROW, Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.partition.assignment import assign
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


def test_groups_by_patterns_of_addresses() -> None:
    """FN-4, ADL-01: the first list with a pattern that names the address or the host
    decides; a member that none names is grouped by its host, and an operator is told.
    """
    members = [
        MemberInfo(MemberId(name), Address(host, 5701), host=machine)
        for name, host, machine in (
            ("a", "10.0.1.7", ""),
            ("b", "10.0.2.40", ""),
            ("c", "10.0.2.41", ""),
            ("d", "127.0.0.1", "db-3.example"),
            ("e", "10.0.1.9", ""),
        )
    ]
    patterns = "10.0.1.*, 10.0.2.1-40; db-*.example"
    assert member_groups(members, "custom", patterns) == [("a", "b", "e"), ("c",), ("d",)]
    [warning] = group_warnings(members, "custom", patterns)
    assert "member c fits no pattern" in warning and "10.0.2.41" in warning


@pytest.mark.parametrize("patterns", ["", " ; ", "a;", "a,,b", ";a"])
def test_patterns_without_sense_are_refused(patterns: str) -> None:
    """Goal: a mistake names the key and shows an example. Method: empty groups and patterns."""
    with pytest.raises(UsageError, match=r"partition\.groups needs .* such as"):
        member_groups(MEMBERS, "custom", patterns)


def test_a_zone_that_is_too_small_degrades_with_a_warning() -> None:
    """ADL-01: one member alone in one of two zones carries a replica of every partition, and with
    fewer zones than replicas there are fewer backups: members go on, and the operator is told.
    """
    names = [f"m{number}" for number in range(8)]
    members = [info(name, zone="big" if number else "small") for number, name in enumerate(names)]
    [warning] = group_warnings(members, "zone", depth=2)
    assert "member m0 is too small" in warning and "4.0 times" in warning
    [warning] = group_warnings(members, "zone", depth=3)
    assert "2 groups by zone for 3 replicas" in warning
    rows = assign([EMPTY_ROW] * 31, member_groups(members, "zone"), 3)
    assert all(sum(holder is not None for holder in row) == 2 for row in rows)
    assert all("m0" in row for row in rows)
    even = [info(name, zone=f"z{number % 2}") for number, name in enumerate(names)]
    assert group_warnings(even, "zone", depth=2) == []
    assert group_warnings(members, "zone", depth=1) == []


def test_unknown_kind_is_refused() -> None:
    """Goal: a mistake in the configuration is told. Method: another word."""
    with pytest.raises(UsageError, match="member, host, zone"):
        member_groups(MEMBERS, "rack")
    assert member_groups([], "zone") == []
