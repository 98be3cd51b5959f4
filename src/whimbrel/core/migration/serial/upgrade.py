"""The switch to cluster version 4.1: every partition's version becomes the last one of the table.

Each member notes at which version its table stood when the list with the new cluster version came;
the change was agreed on while all stood at one version. The master then raises every row below it,
once it has heard everybody, and publishes. A row at or above it is never touched again, so it does
not matter which master does it, nor how often it is tried (PIM-43).
"""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.core.ids import PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.migration.recovery import Recovery, Settlement
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo


class UpgradedStateManager(PartitionStateManager):
    """The manager of a table that had one version until the switch."""

    floor = 0
    """The last version of the whole table, as far as this member knew."""


class UpgradedRecovery(Recovery):
    """Settles a change of master, and brings every partition's version to the floor."""

    def finishing(self, own_completed: Iterable[MigrationInfo]) -> Job[Settlement]:
        """As the modern one; then raise what is below the last version of the table."""
        settlement = yield from super().finishing(own_completed)
        if isinstance(self._manager, UpgradedStateManager):
            raise_versions(self._manager, self._manager.floor)
        return settlement


def raise_versions(manager: PartitionStateManager, floor: int) -> int:
    """Give every arranged partition below ``floor`` that version, its row as it is (PIM-43).

    Returns:
        How many were raised.
    """
    table = manager.table
    below = [pid for pid, version in enumerate(table.versions) if 0 < version < floor]
    for pid in map(PartitionId, below):
        manager.change(pid, table.row(pid), floor)
    return len(below)
