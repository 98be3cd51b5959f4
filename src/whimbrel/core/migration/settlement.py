"""What a new master decides: the newest row of every partition, and every open migration.

Pure functions of what the members answered; ``recovery`` asks them (ADL-11 to ADL-13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whimbrel.core.check import check
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, RowState, Verdict

ROWS_COMPARED = 2_048
"""Rows of an account that are compared in one piece of settling, about 1 us each."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one member knows: its rows, and the migrations it has seen finished or takes part in."""

    member: MemberId
    rows: tuple[RowState, ...]
    completed: tuple[MigrationInfo, ...]
    active: tuple[MigrationInfo, ...]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the new master decided."""

    rows: tuple[RowState, ...]
    """The rows from which to start, newest per partition, ascending."""
    completed: tuple[MigrationInfo, ...]
    """Finished migrations to apply to those rows in this order, and to publish."""
    rolled_back: tuple[MigrationInfo, ...]
    """Those of ``completed`` that nobody knew to be finished (ADL-29)."""
    without_data: tuple[tuple[PartitionId, MemberId], ...]
    """Members that stand in the newest row of a partition they have never heard of: they have
    restarted with their identity (M4), or were arranged and not told, and hold nothing."""


def settling_rows(
    manager: PartitionStateManager, accounts: Sequence[Account], rows_max: int
) -> Job[Settlement]:
    """Decide, and bring our own table to the decision, in pieces of so many changed rows."""
    settlement = yield from settling(accounts)
    yield from applying(manager, settlement, rows_max)
    return settlement


def settling(accounts: Sequence[Account]) -> Job[Settlement]:
    """Decide the table and every open migration; independent of the order of the accounts.

    An open migration whose partition has moved on is decided by the row: only its verdict can
    have moved it, because a partition has one migration at a time. Otherwise it fails, and its
    version rises by its increment and one (PIM-14, PIM-15).

    Raises:
        InvariantViolation: Two members hold different rows under one version.
    """
    newest: dict[PartitionId, RowState] = {}
    for account in accounts:
        for number, row in enumerate(account.rows, 1):
            if not number % ROWS_COMPARED:
                yield
            best = newest.get(row.partition_id)
            if best is None or row.version > best.version:
                newest[row.partition_id] = row
            elif row.version == best.version:
                check(row.row == best.row, "equal partition versions mean equal rows")
    completed: dict[str, MigrationInfo] = {}
    for account in accounts:
        for migration in account.completed:
            known = completed.get(migration.id)
            # A failed verdict overrules a commit at a destination that was cut off (ADL-21).
            if known is None or migration.final_version > known.final_version:
                completed[migration.id] = migration
    open_ones = {migration.id: migration for account in accounts for migration in account.active}
    yield
    # Also an open one that somebody has seen finished: its final version decides it (ADL-30).
    in_doubt = dict.fromkeys(one.partition_id for one in open_ones.values())
    versions = {pid: newest[pid].version for pid in in_doubt if pid in newest}
    for migration in completed.values():
        pid = migration.partition_id
        if pid in versions:
            versions[pid] = max(versions[pid], migration.final_version)
    rolled_back = tuple(
        migration.with_verdict(Verdict.FAILED)
        for migration in sorted(open_ones.values(), key=_order)
        if versions.get(migration.partition_id, 0) <= migration.initial_version
    )
    finished = sorted([*completed.values(), *rolled_back], key=_order)
    rows = tuple([newest[pid] for pid in sorted(newest)])
    yield
    lacking = yield from without_data(newest, accounts)
    return Settlement(rows, tuple(finished), rolled_back, lacking)


def without_data(
    newest: dict[PartitionId, RowState], accounts: Sequence[Account]
) -> Job[tuple[tuple[PartitionId, MemberId], ...]]:
    """Who stands in a row without having any version of it."""
    found: list[tuple[PartitionId, MemberId]] = []
    pids = sorted(newest)
    for account in sorted(accounts, key=lambda account: account.member):
        known = {row.partition_id: None for row in account.rows if row.version}
        yield
        for start in range(0, len(pids), 2 * ROWS_COMPARED):
            found += [
                (pid, account.member)
                for pid in pids[start : start + 2 * ROWS_COMPARED]
                if account.member in newest[pid].row and pid not in known
            ]
            yield
    return tuple(found)


def _order(migration: MigrationInfo) -> tuple[int, int, str]:
    return (migration.partition_id, migration.initial_version, migration.id)


def applying(manager: PartitionStateManager, settlement: Settlement, rows_max: int) -> Job[None]:
    """Bring our own table to the decision, in pieces of so many changed rows.

    A part of it does no harm: whoever settles again after it finds the same, because the rows are
    the newest known, and a migration that was rolled back here has been decided by its row's
    higher version. Where no row is known from which a version could have come, it is raised all
    the same (PIM-15).
    """
    table = manager.table
    changed = table.change_count
    for number, row in enumerate(settlement.rows, 1):
        manager.apply_row(row)
        if table.change_count >= changed + rows_max or not number % ROWS_COMPARED:
            changed = table.change_count
            yield
    for number, migration in enumerate(settlement.completed, 1):
        if not number % rows_max:
            yield
        if not manager.apply_completed(migration):
            pid = migration.partition_id
            manager.change(pid, table.row(pid), migration.final_version)
