"""Which members count as one place, so that a partition never has two replicas there.

Knows how members are told apart: each for itself, by machine, or by zone (ADL-01, facts 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.errors import UsageError

GroupKind = Literal["member", "host", "zone"]
"""What may not hold two replicas of one partition."""

GROUP_KINDS: tuple[str, ...] = ("member", "host", "zone")


def member_groups(members: Sequence[MemberInfo], kind: str) -> list[tuple[MemberId, ...]]:
    """The groups of the data members, in the order of their first member; lite ones are in none.

    A member without a zone is grouped by its host, one without a host by its address's host;
    ``group_warnings`` says so.

    Args:
        members: The member list, oldest first.
        kind: ``member``, ``host`` or ``zone``.

    Raises:
        UsageError: The kind is another word.
    """
    if kind not in GROUP_KINDS:
        message = f"member groups are made by one of {', '.join(GROUP_KINDS)}, not by {kind!r}"
        raise UsageError(message)
    groups: dict[tuple[str, str], list[MemberId]] = {}
    for member in members:
        if not member.lite:
            groups.setdefault(_group_key(member, kind), []).append(member.id)
    return [tuple(group) for group in groups.values()]


def group_warnings(members: Sequence[MemberInfo], kind: str) -> list[str]:
    """One sentence for each data member that cannot be grouped as asked."""
    if kind != "zone":
        return []
    return [
        f"member {member.id} names no zone: it is grouped by its host {_host_of(member)}"
        for member in members
        if not member.lite and not member.zone
    ]


def _group_key(member: MemberInfo, kind: str) -> tuple[str, str]:
    """What members of one group have in common. The first part keeps hosts and zones apart."""
    if kind == "member":
        return ("member", member.id)
    if kind == "zone" and member.zone:
        return ("zone", member.zone)
    return ("host", _host_of(member))


def _host_of(member: MemberInfo) -> str:
    """The machine of a member, as far as it is known."""
    return member.host or member.address.host
