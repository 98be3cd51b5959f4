"""Promotions below cluster version 4.1: one batch after another, each with the whole table.

The promotions of a batch follow one another in the table's version; the promoted member takes the
table as it is after all of them, unless its own is newer (paper 07, 1.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import PromotionRequested
from whimbrel.core.migration.loopback import Loopback
from whimbrel.core.migration.progress import MigrationProcess
from whimbrel.core.migration.publication import Publisher
from whimbrel.core.migration.repair import Batch, Repair, image_of
from whimbrel.core.migration.reporter import ReportedProcess
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, RowState, Verdict


class SerialRepair(Repair):
    """Repairs the table; at most one batch of promotions is undecided."""

    def __init__(
        self,
        ctx: Context,
        manager: PartitionStateManager,
        publisher: Publisher,
        loopback: Loopback,
        owed: dict[PartitionId, dict[MemberId, None]],
        on_lost: Callable[[PartitionId, int], None],
        on_decided: Callable[[MigrationProcess], None],
    ) -> None:
        super().__init__(ctx, manager, publisher, loopback, owed, on_lost, on_decided)
        self._waiting: deque[
            tuple[MemberId, tuple[MigrationInfo, ...], MigrationProcess, ReportedProcess | None]
        ] = deque()
        """Batches of this run that are not started; at most one per member and 1,000 rows."""
        self.rows_max = manager.table.partition_count  # all changes of a run are one table

    def stop(self) -> None:
        """Forget everything: this member is no longer master."""
        self._drop_waiting()
        super().stop()

    def _drop_waiting(self) -> None:
        """Start none of the batches that wait; to listeners their process is over."""
        waiting, self._waiting = self._waiting, deque()
        for *_, reported in waiting:
            self.reporter.end(reported)

    def run(self, process: MigrationProcess, busy: Collection[PartitionId]) -> None:
        """Repair all rows, then promote member by member."""
        self._drop_waiting()
        super().run(process, busy)
        self._promote_next()

    def _promote(
        self,
        destination: MemberId,
        migrations: tuple[MigrationInfo, ...],
        process: MigrationProcess,
        reported: ReportedProcess | None,
    ) -> None:
        self._waiting.append((destination, migrations, process, reported))

    def _promote_next(self) -> None:
        """Start the next batch, its promotions one after another in the table's version."""
        if self.batches or not self._waiting:
            return
        destination, migrations, process, reported = self._waiting.popleft()
        version = self._manager.current_version(migrations[0].partition_id)
        stamped: list[MigrationInfo] = []
        for migration in migrations:
            stamped.append(msgspec.structs.replace(migration, initial_version=version))
            version = stamped[-1].final_version
        super()._promote(destination, tuple(stamped), process, reported)

    def _send(self, batch: Batch) -> None:
        self._ctx.resume(batch.process.cause)
        batch.sent_us = self._ctx.now_us
        table = self._manager.table
        states = {pid: table.state(PartitionId(pid)) for pid in range(table.partition_count)}
        for migration in batch.migrations:
            pid = migration.partition_id
            row = migration.step.apply(table.row(pid))
            states[pid] = RowState(pid, migration.final_version, row)
        image = image_of(table.partition_count, (one for one in states.values() if one.version))
        losses = tuple(loss for loss in table.losses.values() if states[loss.partition_id].version)
        image = msgspec.structs.replace(image, losses=losses)
        self._loopback.post(
            batch.destination, PromotionRequested(batch.number, batch.migrations, image)
        )

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Whoever left is no longer asked; the run that follows finds what is left to do."""
        if gone:
            self._drop_waiting()
        super().members_changed(gone)

    def _decide(self, batch: Batch, verdict: Verdict) -> None:
        super()._decide(batch, verdict)
        self._promote_next()

    def _apply(self, decisions: Sequence[MigrationInfo]) -> None:
        """Success follows the versions; failure moves the table beyond all of them (ADL-21)."""
        if decisions[0].verdict is Verdict.SUCCESS:
            super()._apply(decisions)
            return
        beyond = max(
            migration.with_verdict(Verdict.SUCCESS).final_version for migration in decisions
        )
        for number, migration in enumerate(decisions, 1):
            pid = migration.partition_id
            self._manager.change(pid, self._manager.table.row(pid), beyond + number)
            self._publisher.stage_row(pid)
