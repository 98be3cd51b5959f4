"""What a new member list means for the table: who is gone, and why a new plan is due."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo, MemberList, members_came, members_left


def reason_of(old: MemberList, new: MemberList) -> str:
    """Why a new list calls for a new plan, in words; empty when it does not."""
    if old.stable is not None and new.stable is None:
        return "the stable table is given up"
    if new.stable is not None and new.state.migration_allowed and not old.state.migration_allowed:
        return "rows go back to the stable table"
    if not all(_has_seat(new, info.id) for info in old.seats_kept):
        return "missing members did not return"
    joined_count = len(members_came(old, new))
    left_count = len(members_left(old, new))
    if joined_count and left_count:
        return "members joined and left"
    if joined_count:
        return "a member joined" if joined_count == 1 else f"{joined_count} members joined"
    if left_count:
        return "a member left" if left_count == 1 else f"{left_count} members left"
    kinds_changed = any(info.lite != _was_lite(old, info) for info in new.members)
    return "a member changed between lite and data" if kinds_changed else ""


def forfeited(old: MemberList, new: MemberList) -> dict[MemberId, None]:
    """Who has lost its seats with this list: it left, and is not kept as missing (GCM-09)."""
    gone = [member for member in members_left(old, new) if not new.is_missing(member)]
    dropped = [info.id for info in old.seats_kept if not _has_seat(new, info.id)]
    return dict.fromkeys((*gone, *dropped))


def _has_seat(members: MemberList, member: MemberId) -> bool:
    return members.get(member) is not None or members.is_missing(member)


def _was_lite(old: MemberList, info: MemberInfo) -> bool:
    """Whether the member was lite in the old list."""
    earlier = old.get(info.id)
    return earlier is not None and earlier.lite
