"""The one version of the whole table, and how a member's table follows it (PIM-07).

Every change raises the table's version, and the partition that changed gets that number as its
own. So the table's version is the greatest partition version, a partition's version still rises
with each change of its row, and no two changes of the table share a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import PartitionId, Row
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, RowState
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.ports import FragmentHost
from whimbrel.errors import InvariantViolation, ProtocolError


def version_of_rows(rows: Iterable[RowState]) -> int:
    """The table version that a whole table's rows tell; 0 when there is none."""
    return max((row.version for row in rows), default=0)


class SerialStateManager(PartitionStateManager):
    """Owner of a table that has one version.

    Attributes:
        version: The table's version; 0 before the first arrangement.
    """

    def __init__(self, ctx: Context, host: FragmentHost, table: PartitionTable) -> None:
        super().__init__(ctx, host, table)
        self.version = max(table.versions)

    def current_version(self, pid: PartitionId) -> int:
        """The version of the whole table, whichever partition is asked for."""
        return self.version

    def apply_carried(self, pid: PartitionId, completed: Iterable[MigrationInfo]) -> None:
        """Apply all finished migrations that a request carries, of any partition (PIM-07)."""
        for migration in completed:
            self.apply_completed(migration)

    def change(self, pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        """As in the modern manager; the table's version follows."""
        self.version = max(self.version, version)
        super().change(pid, row, version, committed)

    def apply_table(self, version: int, rows: Sequence[RowState]) -> bool:
        """Take the master's whole table when ours is lower (ADL-08, PIM-07).

        Returns:
            Whether it was not lower than ours.

        Raises:
            ProtocolError: The rows are not a whole table of that version; nothing was applied.
            InvariantViolation: One version stands for two different rows.
        """
        if len(rows) != self.table.partition_count:
            raise ProtocolError("a table with one version lists every partition")
        if version != version_of_rows(rows):
            raise ProtocolError("the version of a table is that of its last change")
        if version < self.version:
            return False
        if version == self.version:
            same = all(row == self.table.state(row.partition_id) for row in rows)
            check(same, "one table version stands for one table")
            return True
        for row in rows:
            self.apply_row(row)
        return True


def serial_manager(manager: PartitionStateManager) -> SerialStateManager:
    """The manager as what it is in this mode.

    Raises:
        InvariantViolation: It keeps a table of the modern kind.
    """
    if not isinstance(manager, SerialStateManager):
        raise InvariantViolation("serial migrations need a table with one version")
    return manager
