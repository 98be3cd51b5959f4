"""One version for the whole table (PIM-07), and all that follows from it below cluster version 4.1.

Every change raises the table's version, and the partition that changed gets that number as its
own. So the table's version is the greatest partition version, a partition's version still rises
with each change of its row, and no two changes of the table share a number. Because requests name
the table's version, nothing may change the table while anything is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import PartitionId
from whimbrel.core.migration.state_manager import PartitionStateManager, state_after
from whimbrel.core.model import MigrationInfo, RowState, Verdict
from whimbrel.core.partition.table import PartitionTable
from whimbrel.errors import ProtocolError


class TableVersion:
    """The version of a table as ``mode.Versioning``; 0 before the first arrangement."""

    def __init__(self, _ctx: Context, table: PartitionTable) -> None:
        self._table = table
        self.rows_max = table.partition_count  # all changes of a run are one table

    @property
    def table_version(self) -> int:
        """That of the last change."""
        return self._table.version_max

    def of(self, pid: PartitionId) -> int:
        """The version of the whole table, whichever partition is asked for."""
        return self._table.version_max

    def concerns(self, pid: PartitionId, finished: MigrationInfo) -> bool:
        """Those of all partitions (PIM-07)."""
        return True

    def may_begin(self, under_way: int) -> bool:
        """One migration or batch of promotions after another (ADL-35)."""
        return not under_way

    def numbered(self, promotions: tuple[MigrationInfo, ...]) -> tuple[MigrationInfo, ...]:
        """They follow one another in the table's version."""
        version = self._table.version_max
        found: list[MigrationInfo] = []
        for migration in promotions:
            found.append(msgspec.structs.replace(migration, initial_version=version))
            version = found[-1].final_version
        return tuple(found)

    def promoted_rows(self, promotions: Sequence[MigrationInfo]) -> list[RowState]:
        """The whole table as it will be (paper 07, 1.1)."""
        table = self._table
        rows = [table.state(PartitionId(pid)) for pid in range(table.partition_count)]
        for migration in promotions:
            rows[migration.partition_id] = state_after(migration, table)
        return [row for row in rows if row.version]

    def take_promoted(
        self, manager: PartitionStateManager, rows: Sequence[RowState]
    ) -> tuple[Collection[PartitionId], str]:
        """The whole table, unless ours is newer."""
        if apply_table(manager, version_of_rows(rows), rows):
            return {row.partition_id: None for row in rows}, ""
        return (), f"the table is at version {self.table_version} already"

    def decide_promotions(
        self, manager: PartitionStateManager, decided: Sequence[MigrationInfo]
    ) -> Sequence[MigrationInfo]:
        """Success follows the versions; failure moves the table beyond all of them (ADL-21).

        The member that has died may have applied the whole batch.
        """
        if decided[0].verdict is Verdict.SUCCESS:
            for migration in decided:
                manager.apply_completed(migration)
            return decided
        beyond = max(one.with_verdict(Verdict.SUCCESS).final_version for one in decided)
        for number, migration in enumerate(decided, 1):
            pid = migration.partition_id
            manager.change(pid, self._table.row(pid), beyond + number)
        return ()


def version_of_rows(rows: Iterable[RowState]) -> int:
    """The table version that a whole table's rows tell; 0 when there is none."""
    return max((row.version for row in rows), default=0)


def apply_table(manager: PartitionStateManager, version: int, rows: Sequence[RowState]) -> bool:
    """Take the master's whole table when ours is lower (ADL-08, PIM-07).

    Returns:
        Whether it was not lower than ours.

    Raises:
        ProtocolError: The rows are not a whole table of that version; nothing was applied.
        InvariantViolation: One version stands for two different rows.
    """
    table = manager.table
    if len(rows) != table.partition_count:
        raise ProtocolError("a table with one version lists every partition")
    if version != version_of_rows(rows):
        raise ProtocolError("the version of a table is that of its last change")
    if version < table.version_max:
        return False
    if version == table.version_max:
        same = all(row == table.state(row.partition_id) for row in rows)
        check(same, "one table version stands for one table")
        return True
    for row in rows:
        manager.apply_row(row)
    return True
