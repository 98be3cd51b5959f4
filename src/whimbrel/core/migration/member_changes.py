"""What a new member list means for the table: who is gone, and why a new plan is due."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo, MemberList


def reason_of(old: MemberList, new: MemberList) -> str:
    """Why a new list calls for a new plan, in words; empty when it does not."""
    dropped = [info for info in old.missing if not _has_seat(new, info.id)]
    if dropped:
        return "missing members did not return"
    joined_count = len(departed(new, old))
    left_count = len(departed(old, new))
    if joined_count and left_count:
        return "members joined and left"
    if joined_count:
        return "a member joined" if joined_count == 1 else f"{joined_count} members joined"
    if left_count:
        return "a member left" if left_count == 1 else f"{left_count} members left"
    kinds_changed = any(info.lite != _was_lite(old, info) for info in new.members)
    return "a member changed between lite and data" if kinds_changed else ""


def departed(old: MemberList, new: MemberList) -> dict[MemberId, None]:
    """Members of the old list that are not in the new one, as the processes they were.

    A member that restarted with its identity is another process and has lost its data (M4).
    """
    present = {member.id: member.started_us for member in new.members}
    return {
        member.id: None for member in old.members if present.get(member.id, -1) != member.started_us
    }


def forfeited(old: MemberList, new: MemberList) -> dict[MemberId, None]:
    """Who has lost its seats with this list: departed, and not kept as missing (GCM-09)."""
    gone = [member for member in departed(old, new) if not new.is_missing(member)]
    dropped = [info.id for info in old.missing if not _has_seat(new, info.id)]
    return dict.fromkeys((*gone, *dropped))


def _has_seat(members: MemberList, member: MemberId) -> bool:
    return members.get(member) is not None or members.is_missing(member)


def _was_lite(old: MemberList, info: MemberInfo) -> bool:
    """Whether the member was lite in the old list."""
    earlier = old.get(info.id)
    return earlier is not None and earlier.lite
