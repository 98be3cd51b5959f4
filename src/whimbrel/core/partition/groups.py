"""Which members count as one place, so that a partition never has two replicas there.

Knows how members are told apart: each for itself, by machine, by zone, or by lists of addresses
from the configuration (ADL-01, FN-4).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.errors import UsageError

GROUP_KINDS: tuple[str, ...] = ("member", "host", "zone", "custom")
"""What may not hold two replicas of one partition."""

LARGE_SHARE = 2
"""A member of a small group is worth a warning when it gets this many even shares."""


def member_groups(
    members: Sequence[MemberInfo], kind: str, patterns: str = ""
) -> list[tuple[MemberId, ...]]:
    """The groups of the data members, in the order of their first member; lite ones are in none.

    A member without a zone is grouped by its host, one without a host by its address's host; one
    that no pattern names is grouped by its host too. ``group_warnings`` says so.

    Args:
        members: The member list, oldest first.
        kind: ``member``, ``host``, ``zone`` or ``custom``.
        patterns: For ``custom``; see ``parse_patterns``.

    Raises:
        UsageError: The kind is another word, or the patterns make no sense.
    """
    if kind not in GROUP_KINDS:
        message = f"member groups are made by one of {', '.join(GROUP_KINDS)}, not by {kind!r}"
        raise UsageError(message)
    custom = parse_patterns(patterns) if kind == "custom" else []
    groups: dict[tuple[str, str], list[MemberId]] = {}
    for member in members:
        if not member.lite:
            groups.setdefault(_group_key(member, kind, custom), []).append(member.id)
    return [tuple(group) for group in groups.values()]


def parse_patterns(text: str) -> list[list[str]]:
    """Lists of address patterns, one list for each group.

    Groups are separated by ``;`` and patterns by ``,``: ``10.0.1.*, 10.0.2.1-40; db-*.example``. A
    pattern names hosts; ``*`` stands for any characters, and ``1-40`` for a number of an address.

    Raises:
        UsageError: There is no group, or a group without a pattern.
    """
    groups = [[word.strip() for word in group.split(",")] for group in text.split(";")]
    if not all(word for group in groups for word in group):
        raise UsageError(
            f"partition.groups needs groups of address patterns, such as "
            f"'10.0.1.*, 10.0.2.1-40; 10.0.3.*', not {text!r}"
        )
    return groups


def group_warnings(
    members: Sequence[MemberInfo], kind: str, patterns: str = "", depth: int = 1
) -> list[str]:
    """What an operator should know about the groups: one sentence each.

    Members that cannot be grouped as asked; fewer groups than replicas, so that backups are left
    out; and groups so small that their members carry far more than the others.

    Args:
        members: The member list, oldest first.
        kind: As for ``member_groups``.
        patterns: As for ``member_groups``.
        depth: Replicas that each partition should have.
    """
    if kind == "member":
        return []
    data_members = [member for member in members if not member.lite]
    custom = parse_patterns(patterns) if kind == "custom" else []
    warnings = [
        f"member {member.id} {_lacking(kind)}: it is grouped by its host {_host_of(member)}"
        for member in data_members
        if kind != "host" and _group_key(member, kind, custom)[0] == "host"
    ]
    groups = member_groups(members, kind, patterns)
    return warnings + _size_warnings(groups, kind, depth, len(data_members))


def _size_warnings(
    groups: Sequence[Sequence[MemberId]], kind: str, depth: int, member_count: int
) -> list[str]:
    """Sentences about groups that are too few or too small for their part."""
    if not groups or depth < 2:
        return []
    if len(groups) < depth:
        return [
            f"there are {len(groups)} groups by {kind} for {depth} replicas: "
            f"partitions have {len(groups)} replicas until there are more groups"
        ]
    return [
        f"the group by {kind} of member {group[0]} is too small: its {len(group)} members carry up "
        f"to {member_count / depth / len(group):.1f} times an even share each"
        for group in groups
        if len(groups) == depth and member_count >= LARGE_SHARE * depth * len(group)
    ]


def _lacking(kind: str) -> str:
    return "names no zone" if kind == "zone" else "fits no pattern of partition.groups"


def _group_key(member: MemberInfo, kind: str, custom: Sequence[Sequence[str]]) -> tuple[str, str]:
    """What members of one group have in common. The first part keeps hosts and zones apart."""
    if kind == "member":
        return ("member", member.id)
    if kind == "zone" and member.zone:
        return ("zone", member.zone)
    if kind == "custom":
        number = _custom_group(member, custom)
        if number is not None:
            return ("custom", str(number))
    return ("host", _host_of(member))


def _custom_group(member: MemberInfo, custom: Sequence[Sequence[str]]) -> int | None:
    """The first group with a pattern that names the member's address or host."""
    for number, patterns in enumerate(custom):
        for host in (member.address.host, member.host):
            if any(_matches(host, pattern) for pattern in patterns):
                return number
    return None


def _matches(host: str, pattern: str) -> bool:
    """Whether a pattern names a host; part by part when one of its parts is a range."""
    parts, wanted = host.split("."), pattern.split(".")
    ranges = [_range_of(part) for part in wanted]
    if not any(ranges) or len(parts) != len(wanted):
        return bool(host) and fnmatchcase(host, pattern)
    for part, word, span in zip(parts, wanted, ranges, strict=True):
        if span is None:
            if not fnmatchcase(part, word):
                return False
        elif not (part.isdecimal() and span[0] <= int(part) <= span[1]):
            return False
    return True


def _range_of(word: str) -> tuple[int, int] | None:
    """The numbers of ``1-40``; None for any other word."""
    low, dash, high = word.partition("-")
    return (int(low), int(high)) if dash and low.isdecimal() and high.isdecimal() else None


def _host_of(member: MemberInfo) -> str:
    """The machine of a member, as far as it is known."""
    return member.host or member.address.host
