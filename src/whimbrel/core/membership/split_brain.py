"""Two parts of a cluster that went separate ways: which of them gives way (M6, FN-15).

Each side knows its own list and what the other tells about its own. The rule uses nothing else, so
both come to the same answer: more data members win; of equal parts the one whose master has the
smaller address. Two parts never have the same master address, because two processes cannot listen
at one.
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import SuspicionTold
from whimbrel.core.model import MemberList

ADDRESSES_TOLD_MAX = 64
"""Addresses of a list that somebody outside is told; each of them knows the master."""


def data_member_count(members: MemberList) -> int:
    """Members of a list that may hold data."""
    return sum(not info.lite for info in members.members)


def told_of(
    members: MemberList, to: MemberId | None = None, partition_count: int = 0
) -> SuspicionTold:
    """What a list says to somebody who is not on it."""
    return SuspicionTold(
        members.version,
        members.master,
        members.ids(),
        to,
        data_member_count(members),
        tuple(info.address for info in members.members[:ADDRESSES_TOLD_MAX]),
        partition_count,
        members.cluster_id,
        members.recovery is not None,
    )


def is_apart(ours: MemberList, told: SuspicionTold) -> bool:
    """Whether the lists have no member in common: two clusters, not one that removed somebody."""
    return bool(told.members) and not any(ours.get(member) for member in told.members)


def is_split(ours: MemberList, told: SuspicionTold) -> bool:
    """Whether what we hold may be known to nobody who goes on: the other part went its own way.

    So it is when the lists have no member in common, and when ours has lost the master of theirs:
    a list that was on its way while the parts were cut off from each other may still name members
    that follow us, and that will be told the same.
    """
    if not told.members:
        return False
    return is_apart(ours, told) or (told.master is not None and ours.get(told.master) is None)


def is_weaker(ours: MemberList, told: SuspicionTold) -> bool:
    """Whether our part merges into the one that told us of its list.

    Args:
        ours: Our list.
        told: Of a list without any of our members (``is_apart``), with weight and addresses.
    """
    mine, theirs = data_member_count(ours), told.data_members
    if mine != theirs:
        return mine < theirs
    return ours.members[0].address > told.addresses[0]
