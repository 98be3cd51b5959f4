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
from whimbrel.core.migration.keeper import TableKeeper
from whimbrel.core.migration.mail import Mail
from whimbrel.core.migration.progress import Process
from whimbrel.core.migration.publication import Publisher
from whimbrel.core.migration.repair import Batch, Repair, image_of
from whimbrel.core.migration.telling import Told
from whimbrel.core.model import MigrationInfo, RowState, Verdict


class SerialRepair(Repair):
    """Repairs the table; at most one batch of promotions is undecided."""

    def __init__(
        self,
        ctx: Context,
        keeper: TableKeeper,
        publisher: Publisher,
        mail: Mail,
        owed: dict[PartitionId, dict[MemberId, None]],
        on_lost: Callable[[PartitionId, int], None],
        on_decided: Callable[[Process], None],
    ) -> None:
        super().__init__(ctx, keeper, publisher, mail, owed, on_lost, on_decided)
        self._waiting: deque[tuple[MemberId, tuple[MigrationInfo, ...], Process, Told | None]] = (
            deque()
        )
        """Batches of this run that are not started; at most one per member and 1,000 rows."""
        self.rows_max = keeper.table.partition_count  # all changes of a run are one table

    def stop(self) -> None:
        """Forget everything: this member is no longer master."""
        self._drop_waiting()
        super().stop()

    def _drop_waiting(self) -> None:
        """Start none of the batches that wait; to listeners their process is over."""
        waiting, self._waiting = self._waiting, deque()
        for *_, told in waiting:
            self.teller.end(told)

    def run(self, process: Process, busy: Collection[PartitionId]) -> None:
        """Repair all rows, then promote member by member."""
        self._drop_waiting()
        super().run(process, busy)
        self._promote_next()

    def _promote(
        self,
        destination: MemberId,
        migrations: tuple[MigrationInfo, ...],
        process: Process,
        told: Told | None,
    ) -> None:
        self._waiting.append((destination, migrations, process, told))

    def _promote_next(self) -> None:
        """Start the next batch, its promotions one after another in the table's version."""
        if self.batches or not self._waiting:
            return
        destination, migrations, process, told = self._waiting.popleft()
        version = self._keeper.current_version(migrations[0].partition_id)
        stamped: list[MigrationInfo] = []
        for migration in migrations:
            stamped.append(msgspec.structs.replace(migration, initial_version=version))
            version = stamped[-1].final_version
        super()._promote(destination, tuple(stamped), process, told)

    def _send(self, batch: Batch) -> None:
        self._ctx.resume(batch.process.cause)
        batch.sent_us = self._ctx.now_us
        table = self._keeper.table
        states = {pid: table.state(PartitionId(pid)) for pid in range(table.partition_count)}
        for migration in batch.migrations:
            pid = migration.partition_id
            row = migration.step.apply(table.row(pid))
            states[pid] = RowState(pid, migration.final_version, row)
        image = image_of(table.partition_count, (one for one in states.values() if one.version))
        losses = tuple(loss for loss in table.losses.values() if states[loss.partition_id].version)
        image = msgspec.structs.replace(image, losses=losses)
        self._mail.post(
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
            self._keeper.change(pid, self._keeper.table.row(pid), beyond + number)
            self._publisher.stage_row(pid)
