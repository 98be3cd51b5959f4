"""Reports to listeners how the master's migrations go on (PIM-58, FN-16).

A process of listeners is what was planned together: the promotions of one repair, the new empty
primaries of one repair, or one plan. Steps that only empty a slot copy nothing and are not told.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.context import Context
from whimbrel.core.events import (
    Endpoint,
    GridEvent,
    Hook,
    MigrationFinished,
    MigrationStarted,
    MigrationState,
    Moment,
    ReplicaMigrated,
    event_of,
)
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.model import MigrationInfo, Verdict

US_PER_MS = 1_000


class ReportedProcess:
    """A process as listeners know it."""

    __slots__ = ("completed", "ended", "failed", "planned", "started_ms", "started_us")

    def __init__(self, planned: int, started_us: int, started_ms: int) -> None:
        self.planned = planned
        self.started_us = started_us
        self.started_ms = started_ms
        self.completed = 0
        self.failed = 0
        self.ended = False

    def state(self, now_us: int) -> MigrationState:
        """The figures now."""
        elapsed_ms = max(0, now_us - self.started_us) // US_PER_MS
        return MigrationState(
            self.started_ms, self.planned, self.completed, self.failed, elapsed_ms
        )


class MigrationReporter:
    """Reports of the master; silent while nobody is set to hear them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.emit: Callable[[GridEvent], None] | None = None
        self.hook: Hook | None = None

    def begin(self, planned: int) -> ReportedProcess | None:
        """A process of so many replicas begins; None when it is empty."""
        if planned <= 0:
            return None
        reported = ReportedProcess(planned, self._ctx.now_us, self._ctx.wall_ms)
        if self.emit is not None:
            self.emit(MigrationStarted(reported.state(self._ctx.now_us)))
        return reported

    def started(self, migration: MigrationInfo) -> None:
        """The master asks for a migration or promotion."""
        if self.hook is not None:
            self.hook(Moment.START, event_of(migration, Endpoint.MASTER, self._ctx.id))

    def decided(
        self, reported: ReportedProcess | None, migration: MigrationInfo, elapsed_us: int
    ) -> None:
        """A migration or promotion of a process has its verdict."""
        if self.hook is not None:
            self.hook(Moment.COMPLETE, event_of(migration, Endpoint.MASTER, self._ctx.id))
        step = migration.step
        self.replica(
            reported,
            migration.partition_id,
            step.destination_new,
            step.source,
            step.destination,
            migration.verdict is Verdict.SUCCESS,
            elapsed_us,
        )

    def replica(
        self,
        reported: ReportedProcess | None,
        partition_id: PartitionId,
        index: ReplicaIndex,
        source: MemberId | None,
        destination: MemberId | None,
        success: bool,
        elapsed_us: int,
    ) -> None:
        """One replica of a process is decided; with the last one the process ends."""
        if reported is None or reported.ended:
            return
        reported.completed += success
        reported.failed += not success
        if self.emit is not None:
            elapsed_ms = elapsed_us // US_PER_MS
            state = reported.state(self._ctx.now_us)
            self.emit(
                ReplicaMigrated(
                    state, partition_id, index, source, destination, success, elapsed_ms
                )
            )
        if reported.completed + reported.failed == reported.planned:
            self.end(reported)

    def end(self, reported: ReportedProcess | None) -> None:
        """Nothing of a process runs any more; telling it twice is telling it once."""
        if reported is None or reported.ended:
            return
        reported.ended = True
        if self.emit is not None:
            self.emit(MigrationFinished(reported.state(self._ctx.now_us)))
