"""Whose files count, and what the table is then: pure functions of what the files say.

A table has no version of its own. The sum of its rows' versions orders tables only where one is
nowhere behind the other (PIM-38, PIM-40); after a crash two may each be newer somewhere. Then
nobody is wrong: rows are merged as a new master does it, the newest of each partition (ADL-11).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo, MemberList, Recovery, RowState
from whimbrel.core.partition.hashing import VERSION_MAX
from whimbrel.core.settings import RecoveryPolicy

Rows = tuple[RowState, ...]
"""One row of each partition that has a version, ascending."""


class Finding(NamedTuple):
    """What one member's files say."""

    member: MemberId
    members: MemberList
    rows: Rows
    is_lite: bool = False
    """It has no data, whatever it knows of rows."""


class Choice(NamedTuple):
    """Whose files count, and the table that they make together."""

    chosen: tuple[MemberId, ...]
    rows: Rows
    tables: int
    """How many different tables were merged."""


class _Group(NamedTuple):
    """Findings that go together."""

    findings: tuple[Finding, ...]
    rows: Rows

    @property
    def size(self) -> int:
        """Members that may have data."""
        return sum(not one.is_lite for one in self.findings)

    @property
    def rank(self) -> tuple[int, tuple[int, int, MemberId]]:
        """Sum of versions (PIM-38); where two are equal the newer list, so that all agree."""
        return sum(row.version for row in self.rows), max(map(_newness, self.findings))


def recovery_of(members: MemberList) -> Recovery:
    """A recovery of a cluster that had this list: all its data members are expected."""
    expected = tuple(info for info in members.members if not info.lite)
    return Recovery(members.version, expected, members.state)


def choose(policy: RecoveryPolicy, findings: Sequence[Finding]) -> Choice:
    """Decide; independent of the order of the findings, of which there is at least one.

    ``FULL_RECOVERY_ONLY`` leaves nobody out. ``PARTIAL_RECOVERY_MOST_RECENT`` takes the group with
    the greatest sum of versions, and whoever is newer than it somewhere;
    ``PARTIAL_RECOVERY_MOST_COMPLETE`` the largest group, of equal ones the one with the greater
    sum (PIM-37 to PIM-40). Lite members alone are no group: what they know nobody there has.
    """
    if policy == "FULL_RECOVERY_ONLY":
        return _choice(findings)
    groups = _groups_of(findings)
    groups = [group for group in groups if group.size] or groups
    if policy == "PARTIAL_RECOVERY_MOST_COMPLETE":
        return _choice(max(groups, key=lambda one: (one.size, one.rank)).findings)
    best = max(groups, key=lambda one: (one.rank[0], one.size, one.rank))
    newer = [one for one in groups if one is best or _is_newer_somewhere(one.rows, best.rows)]
    return _choice([finding for group in newer for finding in group.findings])


def with_moved(rows: Rows, before: Iterable[MemberInfo], now: MemberList) -> Rows:
    """The rows, with a version more where a replica's address is another one now (PIM-36).

    Args:
        rows: A table.
        before: The members, where they listened when it was in force.
        now: The members that are here.
    """
    moved: dict[MemberId | None, None] = {}
    for info in before:
        present = now.get(info.id)
        if present is not None and present.address != info.address:
            moved[info.id] = None
    if not moved:
        return rows
    return tuple(
        msgspec.structs.replace(one, version=min(one.version + 1, VERSION_MAX))
        if any(member in moved for member in one.row)
        else one
        for one in rows
    )


def _choice(findings: Sequence[Finding]) -> Choice:
    ordered = sorted(findings, key=_newness, reverse=True)
    chosen = tuple(sorted(one.member for one in ordered))
    return Choice(chosen, _merged(ordered), len(dict.fromkeys(one.rows for one in ordered)))


def _groups_of(findings: Sequence[Finding]) -> list[_Group]:
    """Findings with equal tables, or of the same member list.

    Whoever had the newest list was there to the end. If its table is another one, the last changes
    of some rows had not reached its disk: it is behind by a moment, and its data are as good.
    """
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=_newness):
        alike = [group for group in groups if any(_goes_with(finding, one) for one in group)]
        groups = [group for group in groups if group not in alike]
        groups.append([*(one for group in alike for one in group), finding])
    return [_Group(tuple(one), _merged(sorted(one, key=_newness, reverse=True))) for one in groups]


def _goes_with(one: Finding, other: Finding) -> bool:
    is_same_list = (one.members.version, one.members.master) == (
        other.members.version,
        other.members.master,
    )
    return is_same_list or one.rows == other.rows


def _merged(findings: Sequence[Finding]) -> Rows:
    """The newest row of each partition; of equal versions that of the first finding.

    Equal versions are equal rows unless parts of a split went separate ways.
    """
    newest: dict[int, RowState] = {}
    for finding in findings:
        for row in finding.rows:
            best = newest.get(row.partition_id)
            if best is None or row.version > best.version:
                newest[row.partition_id] = row
    return tuple(newest[pid] for pid in sorted(newest))


def _is_newer_somewhere(rows: Rows, others: Rows) -> bool:
    """Whether a table is not just behind another one."""
    known = {row.partition_id: row for row in others}
    for row in rows:
        other = known.get(row.partition_id)
        if other is None or row.version > other.version:
            return True
        if row.version == other.version and row.row != other.row:
            return True
    return False


def _newness(finding: Finding) -> tuple[int, int, MemberId]:
    """Findings by their lists, older first; no two are equal."""
    members = finding.members
    return members.version, len(members.members), finding.member
