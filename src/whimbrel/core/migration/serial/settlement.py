"""Settling a change of master below cluster version 4.1: the newest table is the table."""

from __future__ import annotations

from collections.abc import Sequence

from whimbrel.core.check import check
from whimbrel.core.jobs import Job, finish
from whimbrel.core.migration.serial.versioning import version_of_rows
from whimbrel.core.migration.settlement import Account, Settlement, without_data
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, Verdict


def settling_table(
    manager: PartitionStateManager, accounts: Sequence[Account], _rows_max: int
) -> Job[Settlement]:
    """Decide, and bring our own table to the decision."""
    yield from ()  # all rows at once
    settlement = settle_table(accounts)
    for row in settlement.rows:
        manager.apply_row(row)
    for migration in settlement.rolled_back:
        if not manager.apply_completed(migration):
            pid, table = migration.partition_id, manager.table
            beyond = max(table.version_max, migration.final_version) + 1
            manager.change(pid, table.row(pid), beyond)
    return settlement


def settle_table(accounts: Sequence[Account]) -> Settlement:
    """Decide table and open migrations; independent of the order of the accounts.

    The table with the highest version has all that was ever decided, and what was committed at
    its destination. An open migration of an older version was decided by it; one of this very
    version fails (ADL-29).

    Raises:
        InvariantViolation: Two tables have one version and are different.
    """
    ordered = sorted(accounts, key=lambda account: account.member)
    newest = max(ordered, key=lambda account: version_of_rows(account.rows))
    version = version_of_rows(newest.rows)
    for account in ordered:
        if version and version_of_rows(account.rows) == version:
            check(account.rows == newest.rows, "one table version stands for one table")
    completed = {
        migration.id: migration
        for account in ordered
        for migration in account.completed
        if migration.final_version <= version
    }
    open_ones = {
        migration.id: migration
        for account in ordered
        for migration in account.active
        if migration.id not in completed and migration.initial_version >= version
    }
    rolled_back = tuple(
        migration.with_verdict(Verdict.FAILED)
        for migration in sorted(open_ones.values(), key=_order)
    )
    finished = (*sorted(completed.values(), key=_order), *rolled_back)
    rows = {row.partition_id: row for row in newest.rows}
    lacking = finish(without_data(rows, ordered))
    return Settlement(newest.rows, finished, rolled_back, lacking)


def _order(migration: MigrationInfo) -> tuple[int, str]:
    return (migration.initial_version, migration.id)
