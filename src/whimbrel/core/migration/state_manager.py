"""The one place where this member's table changes and where migrations are finalised.

Knows how a finished migration or a received row is applied, and what a participant must do
when it learns a verdict: exactly once, whichever way the news comes (ADL-24). It does not know
who may tell the news: its callers have checked the sender.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.effects import PartitionReleased
from whimbrel.core.events import (
    Endpoint,
    Hook,
    Moment,
    PartitionMigrationEvent,
    event_of,
    event_of_row,
)
from whimbrel.core.ids import NO_INDEX, PartitionId, Row, index_in
from whimbrel.core.model import MigrationInfo, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.ports import FragmentHost


class ActiveMigration:
    """A migration we take part in and whose verdict we do not know yet."""

    def __init__(self, migration: MigrationInfo, endpoint: Endpoint) -> None:
        self.migration = migration
        self.endpoint = endpoint

    @property
    def complete(self) -> bool:
        """Whether nothing more has to arrive here before it can be committed."""
        return True


class Versions(Protocol):
    """What a version is of."""

    def of(self, pid: PartitionId) -> int:
        """The version that a change of the partition starts from, and requests must have met."""

    def concerns(self, pid: PartitionId, finished: MigrationInfo) -> bool:
        """Whether a request for a partition needs this migration that it carries."""


class PartitionStateManager:
    """Owner of the table and of the active migrations of one member.

    Attributes:
        versions: Those of the cluster mode; another one when the cluster has another version.
    """

    def __init__(
        self, ctx: Context, host: FragmentHost, table: PartitionTable, versions: Versions
    ) -> None:
        self._ctx = ctx
        self._host = host
        self.table = table
        self.versions = versions
        self.active: dict[PartitionId, ActiveMigration] = {}
        """At most one per partition (ADL-27, inv P8)."""
        self.changed: dict[PartitionId, None] = {}
        """Partitions whose row or version changed since the last ``take_changed``."""
        self.hook: Hook | None = None
        """Told of the moments of migrations and promotions here (ADL-71, ADL-72)."""

    # -- taking part ----------------------------------------------------------------------

    def begin(self, active: ActiveMigration) -> None:
        """Register a migration and get the data side ready; before the table changes (ADL-72)."""
        pid = active.migration.partition_id
        check(pid not in self.active, "a partition has at most one active migration")
        self.active[pid] = active
        if self.hook is not None:
            self.hook(Moment.BEFORE, self._event(active))
        if active.endpoint is Endpoint.SOURCE:
            self._host.begin_source(active.migration)
        else:
            self._host.begin_destination(active.migration)

    def find(self, migration_id: str, partition_id: PartitionId) -> ActiveMigration | None:
        """Our side of a migration; None when it is not active here."""
        active = self.active.get(partition_id)
        if active is None or active.migration.id != migration_id:
            return None
        return active

    # -- news -----------------------------------------------------------------------------

    def apply_carried(self, pid: PartitionId, completed: Iterable[MigrationInfo]) -> None:
        """Apply the finished migrations that a request for a partition carries (PIM-07, PIM-08)."""
        for migration in completed:
            if self.versions.concerns(pid, migration):
                self.apply_completed(migration)

    def apply_completed(self, migration: MigrationInfo) -> bool:
        """Apply a finished migration if it is the next change of its partition.

        Returns:
            False when our version is not the migration's initial version and below its final one:
            we have missed something and need the row (PIM-09).
        """
        check(migration.verdict is not Verdict.ACTIVE, "a finished migration has a verdict")
        pid = migration.partition_id
        local = self.versions.of(pid)
        if local >= migration.final_version:
            return True
        if local != migration.initial_version:
            return False
        row = before = self.table.row(pid)
        success = migration.verdict is Verdict.SUCCESS
        if success:
            check(step_fits(migration.step, row), "equal partition versions mean equal rows")
            row = migration.step.apply(row)
            check(before[0] is None or row[0] is not None, "a migration leaves a primary")
        self.change(pid, row, migration.final_version, migration.id if success else "")
        return True

    def apply_row(self, state: RowState) -> bool:
        """Take a row of the master's when it is newer than ours (ADL-08, PIM-02).

        Returns:
            Whether it was newer.

        Raises:
            InvariantViolation: The same version stands for another row here.
        """
        pid = state.partition_id
        local = self.table.version(pid)
        if state.version == local:
            check(state.row == self.table.row(pid), "equal partition versions mean equal rows")
        if state.version <= local:
            return False
        active = self.active.get(pid)
        committed = ""
        if active is not None:
            # A version that only this migration's success can have made tells its verdict.
            done, row = active.migration.with_verdict(Verdict.SUCCESS), self.table.row(pid)
            if state.version == done.final_version and step_fits(done.step, row):
                committed = done.id if state.row == done.step.apply(row) else ""
        self.change(pid, state.row, state.version, committed)
        return True

    def change(self, pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        """Change a row for good and finalise the active migration of the partition, if any.

        Args:
            pid: The partition.
            row: Its new row; the old one again when only the version rises.
            version: Its new version.
            committed: Id of the migration that this change commits; an active migration with
                another id is rolled back, because its row can no longer come about.
        """
        before = self.table.row(pid)
        active = self.active.pop(pid, None)
        if active is not None and active.migration.id == committed:
            check(active.complete, "a destination commits what has arrived whole")
        event, moment = self._announce(pid, before, row, active, committed)
        self.table.set_row(pid, row, version)
        self.changed[pid] = None
        try:
            incoming = active is not None and active.endpoint is Endpoint.DESTINATION
            if active is not None and incoming and active.migration.id != committed:
                self._host.rollback_destination(active.migration)
            self._host.row_changed(pid, before, row, version)
            if self.hook is not None and event is not None:
                self.hook(moment, event)
        finally:
            # Whatever a handler does, writes must not wait for ever (bugs 19 and 38).
            if active is not None and active.endpoint is Endpoint.SOURCE:
                self._host.end_source(pid)
                self._ctx.emit(PartitionReleased(pid))

    def _announce(
        self,
        pid: PartitionId,
        before: Row,
        after: Row,
        active: ActiveMigration | None,
        committed: str,
    ) -> tuple[PartitionMigrationEvent | None, Moment]:
        """Tell services what is about to change for us here, if they do not know (ADL-72).

        A row that has moved on tells no verdict. Where it gives us the index that the migration
        leads to, services see its commit; where it gives another one, the migration is over first
        and the change is one of its own.

        Returns:
            What they must be told when it has changed, and how it ended.
        """
        if self.hook is None:
            return None, Moment.COMMIT
        now, then = index_in(before, self._ctx.id), index_in(after, self._ctx.id)
        if active is not None:
            event = self._event(active)
            if active.migration.id == committed or now != then == event.new_replica_index:
                return event, Moment.COMMIT
            if now == then:
                return event, Moment.ROLLBACK
            self.hook(Moment.ROLLBACK, event)
        change = event_of_row(pid, now, then)
        if change is not None:
            self.hook(Moment.BEFORE, change)
        return change, Moment.COMMIT

    def _event(self, active: ActiveMigration) -> PartitionMigrationEvent:
        return event_of(active.migration, active.endpoint, self._ctx.id)

    def take_changed(self) -> list[PartitionId]:
        """The partitions changed since the last call, in order of change."""
        changed = list(self.changed)
        self.changed.clear()
        return changed


def step_fits(step: Step, row: Row) -> bool:
    """Whether a step can be applied to a row: its old slots are held as it says."""
    if step.source_current > NO_INDEX and row[step.source_current] != step.source:
        return False
    if step.destination_current > NO_INDEX and row[step.destination_current] != step.destination:
        return False
    if step.destination is not None and row[step.destination_new] not in (None, step.source):
        return False
    if step.source is not None and step.source_new > NO_INDEX:
        return row[step.source_new] in (None, step.destination)
    return True


def state_after(migration: MigrationInfo, table: PartitionTable) -> RowState:
    """The row of a migration's partition as it is when the migration has succeeded."""
    pid = migration.partition_id
    return RowState(pid, migration.final_version, migration.step.apply(table.row(pid)))
