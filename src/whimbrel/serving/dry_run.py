"""What a join, a leave or a crash would move: arithmetic on a table, nothing is changed.

Uses the very functions the master plans with, so that carrying out costs what the dry run says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whimbrel.core.ids import MemberId, Row
from whimbrel.core.migration.repair import promotion_step, without_departed
from whimbrel.core.model import MemberInfo
from whimbrel.core.partition.assignment import assign
from whimbrel.core.partition.bounds import lower_bound_copies, summary
from whimbrel.core.partition.groups import member_groups
from whimbrel.errors import UsageError

JOIN_MAX = 1_000
"""Members that a dry run may add."""


class PlanQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a dry run is asked: members that join, and ids or addresses that leave or crash."""

    join: int = 0
    leave: tuple[str, ...] = ()
    crash: tuple[str, ...] = ()


class MemberFigures(msgspec.Struct, frozen=True):
    """What one member has before and after."""

    member: MemberId
    address: str
    primaries_before: int
    primaries_after: int
    replicas_before: int
    replicas_after: int
    copies_received: int


class DryRun(msgspec.Struct, frozen=True):
    """The figures of a plan. ``copied`` has a number of copies by partition, where not 0."""

    copies: int
    promotions: int
    role_changes: int
    lower_bound_copies: int
    partitions_lost: int
    copied: dict[str, int]
    shares: tuple[MemberFigures, ...]


def dry_run(
    question: PlanQuestion,
    *,
    rows: Sequence[Row],
    members: Sequence[MemberInfo],
    already_leaving: Sequence[MemberId],
    group_kind: str,
    group_patterns: str,
    depth: int,
) -> DryRun:
    """Work out what a change of members would move.

    Args:
        question: The change.
        rows: The master's table.
        members: Data members, oldest first.
        already_leaving: Members that the master lets go already.
        group_kind: What may not hold two replicas: member, host, zone or custom.
        group_patterns: For ``custom``, as for ``member_groups``.
        depth: Replicas per row that the live structures need.

    Raises:
        UsageError: A member is unknown or named twice, or nothing is asked.
    """
    if not 0 <= question.join <= JOIN_MAX:
        raise UsageError(f"join is a number of members from 0 to {JOIN_MAX}")
    if not (question.join or question.leave or question.crash):
        raise UsageError("a plan needs members that join, leave or crash")
    leaving = [_find(members, text) for text in question.leave]
    crashed = [_find(members, text) for text in question.crash]
    if len(dict.fromkeys([*leaving, *crashed])) < len(leaving) + len(crashed):
        raise UsageError("a member leaves or crashes only once")
    newcomers = [_newcomer(members[0], number) for number in range(question.join)]
    after = [info for info in members if info.id not in crashed] + newcomers
    out = [*dict.fromkeys([*already_leaving, *leaving])]
    allowed = [info.id for info in after]
    emptied = [without_departed(row, allowed)[0] for row in rows]
    steps = [promotion_step(row) for row in emptied]
    promoted = [
        row if step is None else step.apply(row) for row, step in zip(emptied, steps, strict=True)
    ]
    groups = member_groups(
        [info for info in after if info.id not in out], group_kind, group_patterns
    )
    target = assign(promoted, groups, depth, out)
    copied = {
        str(pid): count
        for pid, (row, wanted) in enumerate(zip(promoted, target, strict=True))
        if (count := sum(1 for holder in wanted if holder is not None and holder not in row))
    }
    numbers = summary(emptied, target)
    return DryRun(
        copies=numbers.copies,
        promotions=sum(step is not None for step in steps),
        role_changes=numbers.role_changes,
        lower_bound_copies=lower_bound_copies(promoted, groups, depth, out),
        partitions_lost=sum(row.count(None) == len(row) for row in emptied),
        copied=copied,
        shares=tuple(_figures(info, rows, target) for info in [*members, *newcomers]),
    )


def _find(members: Sequence[MemberInfo], text: str) -> MemberId:
    for info in members:
        if text in (info.id, str(info.address)):
            return info.id
    raise UsageError(f"there is no data member {text}")


def _newcomer(like: MemberInfo, number: int) -> MemberInfo:
    """A member that does not exist, on a machine of its own, in a zone there is."""
    name = MemberId(f"newcomer-{number + 1}")
    return msgspec.structs.replace(like, id=name, host=name)


def _figures(info: MemberInfo, before: Sequence[Row], after: Sequence[Row]) -> MemberFigures:
    member = info.id
    is_new = info.host == member
    return MemberFigures(
        member=member,
        address="" if is_new else str(info.address),
        primaries_before=sum(row[0] == member for row in before),
        primaries_after=sum(row[0] == member for row in after),
        replicas_before=sum(member in row for row in before),
        replicas_after=sum(member in row for row in after),
        copies_received=sum(
            member in new and member not in old for old, new in zip(before, after, strict=True)
        ),
    )
