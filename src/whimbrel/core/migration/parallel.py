"""How a cluster from version 4.1 on migrates: every row has a version, many migrations at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whimbrel.core.context import Context
from whimbrel.core.ids import PartitionId
from whimbrel.core.migration.mode import ClusterMode
from whimbrel.core.migration.publication import NewsPublisher, NewsSubscriber
from whimbrel.core.migration.settlement import settling_rows
from whimbrel.core.migration.state_manager import PartitionStateManager, state_after
from whimbrel.core.model import MigrationInfo, RowState
from whimbrel.core.partition.table import PartitionTable


class RowVersions:
    """A version for every row: changes of different rows know nothing of one another (PIM-01)."""

    table_version = None

    def __init__(self, ctx: Context, table: PartitionTable) -> None:
        self._table = table
        self.rows_max = ctx.settings.step_rows_max

    def of(self, pid: PartitionId) -> int:
        """The partition's own."""
        return self._table.version(pid)

    def concerns(self, pid: PartitionId, finished: MigrationInfo) -> bool:
        """Those of the partition (PIM-08)."""
        return finished.partition_id == pid

    def may_begin(self, under_way: int) -> bool:
        """Whatever runs is about other rows."""
        return True

    def numbered(self, promotions: tuple[MigrationInfo, ...]) -> tuple[MigrationInfo, ...]:
        """They were made with the versions of their rows."""
        return promotions

    def promoted_rows(self, promotions: Sequence[MigrationInfo]) -> list[RowState]:
        """The rows of the batch."""
        return [state_after(one, self._table) for one in promotions]

    def take_promoted(
        self, manager: PartitionStateManager, rows: Sequence[RowState]
    ) -> tuple[Collection[PartitionId], str]:
        """Rows that are not newer than ours are skipped one by one (PIM-11, PIM-12)."""
        return {row.partition_id: None for row in rows if manager.apply_row(row)}, ""

    def decide_promotions(
        self, manager: PartitionStateManager, decided: Sequence[MigrationInfo]
    ) -> Sequence[MigrationInfo]:
        """Row by row."""
        for migration in decided:
            manager.apply_completed(migration)
        return decided


PARALLEL = ClusterMode("parallel", RowVersions, NewsPublisher, NewsSubscriber, settling_rows)
