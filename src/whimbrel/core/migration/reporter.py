"""What happens at the master, told once: here it becomes events, moments, figures and notes.

``progress`` has the figures; listeners are told of whole processes and of each replica (PIM-58,
FN-16), services of the moments of each migration (ADL-71).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.events import (
    Endpoint,
    GridEvent,
    Hook,
    MigrationFinished,
    MigrationStarted,
    Moment,
    PartitionLost,
    ReplicaMigrated,
    event_of,
)
from whimbrel.core.ids import LOST_ALL, NO_INDEX, MemberId, PartitionId
from whimbrel.core.migration.losses import told_structures
from whimbrel.core.migration.progress import US_PER_MS, Figure, MigrationProcess, ReportedProcess
from whimbrel.core.model import Loss, MigrationInfo, MigrationKind, Step, Verdict


class MigrationReporter:
    """The reports of one member; silent while nobody is set to hear them.

    Attributes:
        emit: Takes the events for listeners.
        hook: Told of the moments of migrations at the master.
        finished: Documents of the latest finished processes, oldest first.
        open: The processes that have not ended.
        partitions_lost: Times that this member told that every replica of a partition is gone.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.emit: Callable[[GridEvent], None] = lambda _event: None
        self.hook: Hook | None = None
        self.finished: deque[dict[str, Figure]] = deque(maxlen=max(1, ctx.settings.history_max))
        self.open: list[MigrationProcess] = []
        self.partitions_lost = 0
        self._number = 0

    # -- processes of the control loop ------------------------------------------------------

    def begin(self, reason: str, cause: str) -> MigrationProcess:
        """A new process, current until it is closed."""
        self._number += 1
        process = MigrationProcess(self._number, reason, self._ctx.now_us, cause)
        self.open.append(process)
        return process

    @property
    def current(self) -> MigrationProcess | None:
        """The newest open process that has found something to do."""
        return next((process for process in reversed(self.open) if process.planned), None)

    def close(self, process: MigrationProcess) -> None:
        """No more work is added: drop what waits; it ends when nothing of it runs any more."""
        process.dropped += process.waiting
        process.closing = True
        self._settle(process)

    def _settle(self, process: MigrationProcess) -> None:
        """Move a closing process without running migrations to the finished ones."""
        check(process.waiting >= 0 and process.running >= 0, "a process counts every step once")
        if not process.closing or process.running or process.ended_us is not None:
            return
        process.ended_us = self._ctx.now_us
        self.end(process.reported)
        self.open.remove(process)
        if process.planned:
            self.finished.append(process.document(self._ctx.now_us))

    # -- what was planned together ----------------------------------------------------------

    def tell_plan(self, planned: int) -> ReportedProcess | None:
        """So many replicas are to be migrated together; None when there are none."""
        if planned <= 0:
            return None
        reported = ReportedProcess(planned, self._ctx.now_us, self._ctx.wall_ms)
        self.emit(MigrationStarted(reported.state(self._ctx.now_us)))
        return reported

    def end(self, reported: ReportedProcess | None) -> None:
        """Nothing of a plan runs any more; telling it twice is telling it once."""
        if reported is None or reported.ended:
            return
        reported.ended = True
        self.emit(MigrationFinished(reported.state(self._ctx.now_us)))

    # -- migrations and promotions ------------------------------------------------------------

    def started(self, process: MigrationProcess, migration: MigrationInfo) -> None:
        """The master asks for a migration or promotion."""
        process.running += 1
        self._tell_moment(Moment.START, migration)

    def decided(
        self,
        process: MigrationProcess,
        reported: ReportedProcess | None,
        migration: MigrationInfo,
        started_us: int,
    ) -> None:
        """A migration or promotion has its verdict; the last one of a closed process ends it."""
        succeeded = migration.verdict is Verdict.SUCCESS
        step = migration.step
        process.running -= 1
        if succeeded:
            process.completed += 1
            process.copies += step.destination_current == NO_INDEX
            process.promotions += step.kind is MigrationKind.PROMOTION
        else:
            process.failed += 1
        self._tell_moment(Moment.COMPLETE, migration)
        elapsed_us = self._ctx.now_us - started_us
        self.replica(reported, migration.partition_id, step, succeeded, elapsed_us)
        self._settle(process)

    def failed(self, migration: MigrationInfo, data_source: MemberId, reason: str) -> None:
        """Why a migration failed, for operators."""
        self._ctx.note(
            "migration.failed",
            "warning",
            migration=migration.id,
            partition=migration.partition_id,
            step_kind=str(migration.step.kind),
            source=data_source,
            destination=migration.step.destination,
            reason=reason,
        )

    def _tell_moment(self, moment: Moment, migration: MigrationInfo) -> None:
        if self.hook is not None:
            self.hook(moment, event_of(migration, Endpoint.MASTER, self._ctx.id))

    def replica(
        self,
        reported: ReportedProcess | None,
        pid: PartitionId,
        step: Step,
        succeeded: bool,
        elapsed_us: int,
    ) -> None:
        """One replica of a plan is decided; with the last one the plan ends."""
        if reported is None or reported.ended:
            return
        reported.completed += succeeded
        reported.failed += not succeeded
        self.emit(
            ReplicaMigrated(
                reported.state(self._ctx.now_us),
                pid,
                step.destination_new,
                step.source,
                step.destination,
                succeeded,
                elapsed_us // US_PER_MS,
            )
        )
        if reported.completed + reported.failed == reported.planned:
            self.end(reported)

    # -- losses -------------------------------------------------------------------------------

    def lost(
        self, pid: PartitionId, lost_backup_count: int, loss: Loss | None, is_known: bool = False
    ) -> None:
        """A primary is lost (ADL-05, ADL-06).

        Args:
            pid: Its partition.
            lost_backup_count: How many backups went with it; LOST_ALL when no replica is left.
            loss: What went with it, None when nothing did.
            is_known: Whether an earlier master knew, who may have told nobody.
        """
        self.partitions_lost += lost_backup_count == LOST_ALL
        level = "info" if loss is None and lost_backup_count != LOST_ALL else "error"
        self._ctx.note(
            "partition.lost",
            level,
            partition=pid,
            lost_backup_count=lost_backup_count,
            **({} if loss is None else {"structures": told_structures(loss)}),
            **({"known_before": True} if is_known else {}),
        )
        version = 0 if loss is None else loss.version
        self.emit(PartitionLost(pid, lost_backup_count, self._ctx.id, version))
