"""Which mode a cluster version has, and the switch to 4.1: the one place where the two meet.

At the switch every partition's version becomes the last one of the table. Each member notes at
which version its table stood when the list with the new cluster version came; the change was agreed
on while all stood at one version. The master then raises every row below it, once it has heard
everybody, and publishes. A row at or above it is never touched again, so it does not matter which
master does it, nor how often it is tried (PIM-43).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whimbrel.core.check import check
from whimbrel.core.ids import PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.migration.mode import ClusterMode
from whimbrel.core.migration.parallel import PARALLEL
from whimbrel.core.migration.serial.publication import TablePublisher, TableSubscriber
from whimbrel.core.migration.serial.settlement import settling_table
from whimbrel.core.migration.serial.versioning import TableVersion
from whimbrel.core.migration.settlement import Account, Settlement, settling_rows
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.partition.table import PartitionTable

SERIAL = ClusterMode("serial", TableVersion, TablePublisher, TableSubscriber, settling_table)
"""One version for the table, one migration at a time, whole tables (PIM-41)."""
SERIAL_VERSION = "4.0"


def next_mode(
    current: ClusterMode | None, cluster_version: str, table: PartitionTable
) -> ClusterMode:
    """The mode of a cluster version for a member that was in ``current`` so far.

    Raises:
        InvariantViolation: A table with a version for every partition never gets back to one
            version (PIM-43).
    """
    was_serial = current is not None and current.name == SERIAL.name
    if cluster_version == SERIAL_VERSION:
        is_fresh = current is None or was_serial or not table.initialised
        check(is_fresh, "no cluster is downgraded")
        return SERIAL
    if was_serial:
        return upgraded(table.version_max)
    return current or PARALLEL


def upgraded(floor: int) -> ClusterMode:
    """Parallel migrations on a member whose table stood at version ``floor`` at the switch."""

    def settling(
        manager: PartitionStateManager, accounts: Sequence[Account], rows_max: int
    ) -> Job[Settlement]:
        settlement = yield from settling_rows(manager, accounts, rows_max)
        raise_versions(manager, floor)
        return settlement

    return replace(PARALLEL, name="upgraded", settling=settling)


def raise_versions(manager: PartitionStateManager, floor: int) -> None:
    """Give every arranged partition below ``floor`` that version, its row as it is (PIM-43)."""
    table = manager.table
    below = [pid for pid, version in enumerate(table.versions) if 0 < version < floor]
    for pid in map(PartitionId, below):
        manager.change(pid, table.row(pid), floor)
