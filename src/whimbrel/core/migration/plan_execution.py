"""Carrying out a plan at the master: start migrations, follow each one to its verdict.

A migration is copied (master asks the data source), committed at its destination, and then
decided here (ADL-16 to ADL-21). The data side is not touched by this module; when the master is
itself source or destination it gets the same messages as anybody else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from whimbrel.core.check import check
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationRequested,
)
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.plan_queue import PlanQueue
from whimbrel.core.migration.progress import MigrationProcess
from whimbrel.core.migration.state_manager import step_fits
from whimbrel.core.model import MigrationInfo, Step, Verdict
from whimbrel.errors import InvariantViolation

DISPATCH_TIMER = "migration.dispatch"
EMPTY_PARALLEL_MAX = 512
"""Migrations a member takes part in at once while the grid holds nothing that could be copied."""


class MigrationPhase(enum.StrEnum):
    """Where a running migration is, as the master sees it."""

    COPYING = "COPYING"
    COMMITTING = "COMMITTING"


@dataclass(slots=True, eq=False)
class RunningMigration:
    """A migration that was started and is not decided, as the master sees it."""

    migration: MigrationInfo
    source: MemberId
    """Of the data: the primary."""
    destination: MemberId
    process: MigrationProcess
    started_us: int
    is_counted: bool
    """Whether it counts against ``migration_max_parallel``: the grid was not empty."""
    phase: MigrationPhase = MigrationPhase.COPYING
    sent_us: int = 0

    @property
    def asked(self) -> MemberId:
        """Whose answer is due."""
        return self.source if self.phase is MigrationPhase.COPYING else self.destination


class PlanExecution:
    """The plan under way and its migrations.

    Args:
        is_grid_empty: Whether no structure is known that could have entries.
    """

    def __init__(self, shared: MigrationContext, is_grid_empty: Callable[[], bool]) -> None:
        self._ctx, self._manager, self._versioning = shared.ctx, shared.manager, shared.versioning
        self._publisher, self._loopback = shared.publisher, shared.loopback
        self._reporter = shared.reporter
        self._is_grid_empty = is_grid_empty
        self.running_migrations: dict[PartitionId, RunningMigration] = {}
        """Running migrations; at most one per partition (inv P8)."""
        self._by_id: dict[str, RunningMigration] = {}
        self.queue = PlanQueue(
            max(1, shared.ctx.settings.migration_max_parallel),
            lambda pid: shared.manager.table.rows[pid][0],
        )
        self._process: MigrationProcess | None = None
        self._next_start_us = 0
        self.failure = ""
        """Why the plan failed, empty while it has not: then nothing more is started (PIM-28)."""
        self.late: dict[PartitionId | MemberId, None] = {}
        """Partitions and members with a failure since their last success: they come last."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running_migrations and self.queue.waiting_count == 0

    def involves(self, member: MemberId) -> bool:
        """Whether some undecided migration reads from, writes to or displaces a member."""
        return any(
            member in (running.source, running.destination, running.migration.step.source)
            for running in self.running_migrations.values()
        )

    def stop(self) -> None:
        """Forget everything: this member is no longer master."""
        self.queue.drop()
        for running in self.running_migrations.values():
            self.queue.release(running.source, running.destination)
        self.running_migrations.clear()
        self._by_id.clear()
        self.failure = ""
        self._process = None

    # -- the plan -------------------------------------------------------------------------

    def load(
        self, plan: Sequence[tuple[PartitionId, Sequence[Step]]], process: MigrationProcess
    ) -> None:
        """Take over a plan whose steps are queued; they are counted in ``process``."""
        self.failure = ""
        self._process = process
        process.planned += sum(len(steps) for _, steps in plan)
        copied = (step.destination is not None for _, steps in plan for step in steps)
        process.reported = self._reporter.tell_plan(sum(copied))

    def drop_rest(self) -> None:
        """Start nothing more of this plan; what runs goes on to its verdict (PIM-28)."""
        self.queue.drop()
        self._ctx.disarm(DISPATCH_TIMER)

    def advance(self) -> None:
        """Start what may start now; after a failure nothing more of the plan does (PIM-28)."""
        self._apply_clears()
        self.queue.parallel_max = self._parallel_max()
        while self.queue.waiting_count and not self.failure:
            if not self._may_start() or self._must_pause():
                return
            taken = self.queue.take()
            if taken is None:
                break
            self._start(*taken)
        if self.queue.waiting_count and not self.running_migrations:
            self._fail_plan("no migration of the plan can start")
        if self.failure:
            self.drop_rest()

    def _may_start(self) -> bool:
        return self._versioning.may_begin(len(self.running_migrations))

    def _parallel_max(self) -> int:
        """Migrations that a member may take part in (PIM-24).

        The limit is there for what is copied. In an empty grid a migration is two short questions,
        and each further round of them is time in which writes would have no backup. A structure
        that comes to be meanwhile is copied like any other: only the limit is looser.
        """
        limit = max(1, self._ctx.settings.migration_max_parallel)
        return max(limit, EMPTY_PARALLEL_MAX) if self._is_grid_empty() else limit

    def _must_pause(self) -> bool:
        """Keep the cluster-wide interval between two starts."""
        interval_us = self._ctx.settings.migration_interval_us
        if interval_us <= 0:
            return False
        wait_us = self._next_start_us - self._ctx.now_us
        if wait_us > 0:
            if not self._ctx.is_armed(DISPATCH_TIMER):
                self._ctx.arm(DISPATCH_TIMER, wait_us)
            return True
        self._next_start_us = self._ctx.now_us + interval_us
        return False

    def _apply_clears(self) -> None:
        """CLEAR needs no copying: the master decides it alone and publishes it (FN-3)."""
        while self._may_start() and (taken := self.queue.take_clear()) is not None:
            pid, step = taken
            migration = self._make("clear", pid, step).with_verdict(Verdict.SUCCESS)
            check(step.source_current > 0, "a primary is never cleared")
            self._manager.apply_completed(migration)
            self._publisher.stage_completed(migration)
            if self._process is not None:
                self._process.completed += 1
            self.queue.proceed(pid)

    def _make(self, kind: str, pid: PartitionId, step: Step) -> MigrationInfo:
        version = self._versioning.of(pid)
        return MigrationInfo(self._ctx.next_name(kind), pid, step, self._ctx.id, version)

    def _start(self, pid: PartitionId, step: Step) -> None:
        row, destination = self._manager.table.row(pid), step.destination
        check(step_fits(step, row), "a plan is made for the rows as they are")
        source, process = row[0], self._process
        if source is None or destination is None or process is None:
            raise InvariantViolation("a migration has a data source and a destination")
        check(source != destination, "a primary does not copy to itself")
        check(pid not in self.running_migrations, "a partition has at most one migration")
        migration = self._make("migration", pid, step)
        now_us, is_counted = self._ctx.now_us, not self._is_grid_empty()
        running = RunningMigration(migration, source, destination, process, now_us, is_counted)
        self.running_migrations[pid] = self._by_id[migration.id] = running
        self._reporter.started(process, migration)
        if not (self._ctx.is_member(source) and self._ctx.is_member(destination)):
            self._decide(running, Verdict.FAILED, "a participant is not in the member list")
            return
        self.ask(running)

    def unanswered(self) -> Iterable[RunningMigration]:
        """All that run; elapsed time alone decides nothing here (ADL-18).

        The source answers in the end, when its destination is silent for too long at the latest,
        or it leaves the cluster.
        """
        return self.running_migrations.values()

    def ask(self, request: RunningMigration) -> None:
        """Ask the source to copy, or the destination to commit (ADL-18, ADL-28)."""
        self._ctx.resume(request.process.cause)
        request.sent_us = self._ctx.now_us
        migration = request.migration
        completed = self._publisher.completed_of(migration.partition_id)
        message: MigrationRequested | MigrationCommitRequested
        if request.phase is MigrationPhase.COPYING:
            message = MigrationRequested(migration, completed)
        else:
            message = MigrationCommitRequested(migration.with_verdict(Verdict.SUCCESS), completed)
        self._loopback.post(request.asked, message)

    # -- answers --------------------------------------------------------------------------

    def _awaited(
        self, sender: MemberId, migration_id: str, phase: MigrationPhase
    ) -> RunningMigration | None:
        """The migration that an answer is about; None when it is not, or no longer, awaited."""
        running = self._by_id.get(migration_id)
        if running is None or running.phase is not phase or running.asked != sender:
            return None
        return running

    def data_answered(self, sender: MemberId, message: MigrationDataAnswered) -> None:
        """The source has copied everything, or could not."""
        running = self._awaited(sender, message.migration_id, MigrationPhase.COPYING)
        if running is None:
            return
        running.process.bytes_moved += message.bytes_moved
        running.process.entries_moved += message.entries_moved
        if message.success:
            running.phase = MigrationPhase.COMMITTING
            self.ask(running)
        else:
            self._decide(running, Verdict.FAILED, message.reason)

    def commit_answered(self, sender: MemberId, message: MigrationCommitAnswered) -> None:
        """The destination has committed, or never will; now the master does (ADL-19)."""
        running = self._awaited(sender, message.migration_id, MigrationPhase.COMMITTING)
        if running is not None:
            verdict = Verdict.SUCCESS if message.committed else Verdict.FAILED
            self._decide(running, verdict, message.reason)

    def _decide(self, running: RunningMigration, verdict: Verdict, reason: str = "") -> None:
        """The master's verdict: apply, tell, count, let the next step go."""
        migration = running.migration.with_verdict(verdict)
        pid, process = migration.partition_id, running.process
        del self.running_migrations[pid]
        del self._by_id[migration.id]
        check(self._manager.apply_completed(migration), "the master's row waited for this verdict")
        self._publisher.stage_completed(migration)
        self.queue.release(running.source, running.destination)
        if verdict is Verdict.SUCCESS:
            for key in (pid, running.source, running.destination):
                self.late.pop(key, None)
            self.queue.proceed(pid)
        else:
            for key in (pid, running.destination):
                self.late[key] = None
            self._fail_plan(reason)
            self._reporter.failed(migration, running.source, reason)
        self._reporter.decided(process, process.reported, migration, running.started_us)

    def _fail_plan(self, reason: str) -> None:
        self.failure = self.failure or reason or "a migration failed"

    # -- time, links, members -------------------------------------------------------------

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Decide the migrations whose outcome a departure has settled (ADL-18, ADL-21).

        Copying also ends in every row that has lost a member, so that it can be repaired at
        once: a promotion must not wait for a copy.
        """
        for running in list(self.running_migrations.values()):
            row = self._manager.table.row(running.migration.partition_id)
            if running.destination in gone:
                self._decide(running, Verdict.FAILED, "the destination left the member list")
            elif running.phase is MigrationPhase.COPYING and any(member in gone for member in row):
                self._decide(running, Verdict.FAILED, "a replica of the row left the member list")
        for member in gone:
            self.late.pop(member, None)
