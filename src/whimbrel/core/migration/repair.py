"""Table repair at the master: empty the slots of departed members, promote, replace what is lost.

The changes of a row that need no copying. Slots and lost partitions are decided here and now
(ADL-04, ADL-05); a promotion is first committed at the promoted member (ADL-06), one batch per
member, repeated until answered or until that member has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from whimbrel.core.ids import LOST_ALL, MemberId, PartitionId, ReplicaIndex, Row
from whimbrel.core.jobs import Job
from whimbrel.core.messages import PromotionAnswered, PromotionRequested, TableImage
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.progress import MigrationProcess, ReportedProcess
from whimbrel.core.model import Loss, MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable

PROMOTION_BATCH_MAX = 1_000
"""Promotions in one message: about 200 kB, so that control messages behind it hardly wait."""


@dataclass(slots=True)
class Batch:
    """Promotions on their way to one member, or waiting for their turn."""

    asked: MemberId
    migrations: tuple[MigrationInfo, ...]
    process: MigrationProcess
    reported: ReportedProcess | None
    """The promotions of this repair as listeners know them."""
    number: int = 0
    """Drawn when it begins."""
    started_us: int = 0
    sent_us: int = 0
    is_held: bool = False
    """Whether it has not been sent, because its member is being sent a whole table."""


def without_departed(
    row: Row, allowed: Collection[MemberId], departed: Collection[MemberId] = ()
) -> tuple[Row, int]:
    """The row with the slots of members that may not be there emptied, and how many those are."""
    after = tuple(
        member if member in allowed and member not in departed else None for member in row
    )
    return after, sum(old is not new for old, new in zip(row, after, strict=True))


def _will_promote(row: Row, allowed: Collection[MemberId], departed: Collection[MemberId]) -> bool:
    """Whether a row lacks its primary, and has a backup for the place, once it is repaired."""
    first = row[0]
    if first is not None and first in allowed and first not in departed:
        return False
    return any(one is not None and one in allowed and one not in departed for one in row[1:])


def promotion_step(row: Row) -> Step | None:
    """The promotion of the hottest live backup; None when there is a primary or nobody."""
    if row[0] is not None:
        return None
    for index, member in enumerate(row):
        if member is not None:
            return Step(
                MigrationKind.PROMOTION,
                source=None,
                destination=member,
                destination_current=ReplicaIndex(index),
                destination_new=ReplicaIndex(0),
            )
    return None


def image_of(
    partition_count: int, rows: Iterable[RowState], losses: dict[PartitionId, Loss] | None = None
) -> TableImage:
    """An image of rows that are not in anybody's table yet, and of the marks of their losses."""
    scratch = PartitionTable(partition_count)
    scratch.losses = losses or {}
    pids: list[PartitionId] = []
    for row in rows:
        scratch.set_row(row.partition_id, row.row, row.version)
        pids.append(row.partition_id)
    return scratch.image(pids)


class Repair:
    """Repairs the table and follows the promotions until they are decided."""

    def __init__(self, shared: MigrationContext) -> None:
        self._ctx, self._manager, self._versioning = shared.ctx, shared.manager, shared.versioning
        self._publisher, self._loopback = shared.publisher, shared.loopback
        self._reporter, self._losses = shared.reporter, shared.losses
        self.owed = shared.owed
        self.batches: dict[int, Batch] = {}
        """Promotions that are not answered yet, by batch number."""
        self._waiting: deque[Batch] = deque()
        """Those of this run that may not begin while others are under way."""
        self._left: deque[PartitionId] = deque()
        """Rows of this run that may need repair and were not looked at yet."""
        self._run: tuple[MigrationProcess, ReportedProcess | None] | None = None

    @property
    def is_promoting(self) -> bool:
        """Whether rows wait for their repair, or some promotion is undecided."""
        return bool(self.batches or self._left)

    @property
    def has_rows_left(self) -> bool:
        """Whether ``go_on`` has something to do."""
        return bool(self._left)

    def stop(self) -> None:
        """Forget everything: this member is no longer master."""
        self._drop_run()
        self.batches.clear()
        self.owed.clear()

    # -- departures -----------------------------------------------------------------------

    def note_departed(self, gone: Collection[MemberId]) -> None:
        """Remember which rows have lost which members, in case they come back soon."""
        partitions_of = self._manager.table.partitions_of
        self.note_without_data((pid, member) for member in gone for pid in partitions_of(member))

    def note_without_data(self, found: Iterable[tuple[PartitionId, MemberId]]) -> None:
        """Remember members that stand in a row and have never heard of it: they restarted."""
        for pid, member in found:
            self.owed.setdefault(pid, {})[member] = None

    # -- one repair -----------------------------------------------------------------------

    def run(self, process: MigrationProcess, busy: Collection[PartitionId]) -> None:
        """Repair all rows except those of busy partitions (a migration or promotion is on).

        At most ``rows_max`` of them at once; ``go_on`` goes on.

        Args:
            process: Counts the promotions.
            busy: Partitions to leave alone until their verdict is known.
        """
        self._drop_run()
        allowed = self._allowed()
        promoting = self._being_promoted()
        pids = [pid for pid in self._suspect(allowed) if pid not in busy and pid not in promoting]
        self._left.extend(pids)
        rows, owed = self._manager.table.rows, self.owed
        promotions = (_will_promote(rows[pid], allowed, owed.get(pid, {})) for pid in pids)
        self._run = (process, self._reporter.tell_plan(sum(promotions)))
        self.go_on(busy)

    def _allowed(self) -> dict[MemberId, None]:
        return dict.fromkeys(member.id for member in self._ctx.data_members())

    def _suspect(self, allowed: Collection[MemberId]) -> list[PartitionId]:
        """The rows that may need repair, ascending."""
        table = self._manager.table
        found = dict.fromkeys(self.owed)
        found.update(dict.fromkeys(table.without_primary()))
        for member in table.holders():
            if member not in allowed:
                found.update(dict.fromkeys(table.partitions_of(member)))
        return sorted(found)

    def _being_promoted(self) -> dict[PartitionId, None]:
        return {
            migration.partition_id: None
            for batch in self.batches.values()
            for migration in batch.migrations
        }

    def _drop_run(self) -> None:
        """Look at no further row of a run, and begin none of its batches; for listeners it ends."""
        if self._left and self._run is not None:
            self._reporter.end(self._run[1])
        self._left.clear()
        self._run = None
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        for batch in self._waiting:
            self._reporter.end(batch.reported)
        self._waiting.clear()

    def go_on(self, busy: Collection[PartitionId]) -> None:
        """Repair the next rows of the run.

        Args:
            busy: Partitions to leave alone until their verdict is known.
        """
        if self._run is None:
            return
        process, reported = self._run
        self._ctx.resume(process.cause)
        allowed = self._allowed()
        promoting = self._being_promoted()
        wanted: dict[MemberId, list[MigrationInfo]] = {}
        for _ in range(min(self._versioning.rows_max, len(self._left))):
            pid = self._left.popleft()
            if pid in busy or pid in promoting:
                continue
            row = self._empty_slots(pid, allowed)
            step = promotion_step(row)
            if step is None or step.destination is None:
                continue
            migration = MigrationInfo(
                self._ctx.next_name("promotion"),
                pid,
                step,
                self._ctx.id,
                self._versioning.of(pid),
                Verdict.SUCCESS,
            )
            wanted.setdefault(step.destination, []).append(migration)
        self._publisher.flush()  # members see the emptied slots before they are promoted
        for destination, migrations in wanted.items():
            for start in range(0, len(migrations), PROMOTION_BATCH_MAX):
                part = tuple(migrations[start : start + PROMOTION_BATCH_MAX])
                self._waiting.append(Batch(destination, part, process, reported))
        self._promote_next()

    def _empty_slots(self, pid: PartitionId, allowed: Collection[MemberId]) -> Row:
        """Empty the slots of departed members, one version per slot; returns the row then."""
        before = self._manager.table.row(pid)
        departed = self.owed.pop(pid, {})
        row, emptied = without_departed(before, allowed, departed)
        if not emptied:
            return before
        self._manager.change(pid, row, self._versioning.of(pid) + emptied)
        self._losses.slots_emptied(pid, before)
        self._publisher.stage_row(pid)
        if row.count(None) == len(row):
            self._tell_lost(pid, LOST_ALL)
        return row

    def _tell_lost(self, pid: PartitionId, lost_backup_count: int) -> None:
        self._reporter.lost(pid, lost_backup_count, self._losses.tell(pid))

    def replacing_lost(self, targets: dict[PartitionId, MemberId]) -> Job[None]:
        """Give lost partitions their new, empty primaries (ADL-05): version + 1."""
        reported = self._reporter.tell_plan(len(targets))
        try:
            for number, (pid, primary) in enumerate(targets.items(), 1):
                step = Step(MigrationKind.COPY, None, primary, destination_new=ReplicaIndex(0))
                row = step.apply(self._manager.table.row(pid))
                self._manager.change(pid, row, self._versioning.of(pid) + step.increment)
                self._publisher.stage_row(pid)
                self._reporter.replica(reported, pid, step, succeeded=True, elapsed_us=0)
                if not number % self._versioning.rows_max:
                    yield
        finally:
            self._reporter.end(reported)  # also of a run that was dropped

    def tell_known(self) -> None:
        """Tell the losses that an earlier master knew: it may have died before it told them.

        A row that waits for its promotion is told with that.
        """
        for loss in self._losses.untold():
            pid = loss.partition_id
            if promotion_step(self._manager.table.row(pid)) is None:
                known = self._losses.tell(pid)
                self._reporter.lost(pid, loss.lost_backup_count, known, is_known=True)

    # -- promotions -----------------------------------------------------------------------

    def _promote_next(self) -> None:
        """Begin the batches that may begin now."""
        while self._waiting and self._versioning.may_begin(len(self.batches)):
            batch = self._waiting.popleft()
            batch.migrations = self._versioning.numbered(batch.migrations)
            batch.number, batch.started_us = self._ctx.next_number(), self._ctx.now_us
            batch.process.planned += len(batch.migrations)
            for migration in batch.migrations:
                self._reporter.started(batch.process, migration)
            self.batches[batch.number] = batch
            self.ask(batch)

    def send_held(self) -> None:
        """Send the batches that a whole table on its way to their member has held up."""
        for batch in self.batches.values():
            if batch.is_held:
                self.ask(batch)

    def unanswered(self) -> Iterable[Batch]:
        """Batches whose member has not said that it is promoted."""
        return self.batches.values()

    def ask(self, request: Batch) -> None:
        """Ask; but a member learns the emptied slots first, after the table it is being sent."""
        self._ctx.resume(request.process.cause)
        request.sent_us = self._ctx.now_us
        request.is_held = self._publisher.owes_parts(request.asked)
        if request.is_held:
            return
        rows = self._versioning.promoted_rows(request.migrations)
        table = self._manager.table
        image = image_of(table.partition_count, rows, table.losses)
        message = PromotionRequested(request.number, request.migrations, image)
        self._loopback.post(request.asked, message)

    def answered(self, sender: MemberId, message: PromotionAnswered) -> None:
        """A batch is applied at its member: now it is our decision too."""
        batch = self.batches.get(message.batch)
        if batch is not None and batch.asked == sender and message.accepted:
            self._decide(batch, Verdict.SUCCESS)

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """A promoted member that left: its promotions failed, the next one is asked (ADL-21).

        The run that follows finds what the batches that wait would have done.
        """
        if gone:
            self._drop_waiting()
        for batch in list(self.batches.values()):
            if batch.asked in gone:
                self._decide(batch, Verdict.FAILED)

    def _decide(self, batch: Batch, verdict: Verdict) -> None:
        del self.batches[batch.number]
        decisions = [migration.with_verdict(verdict) for migration in batch.migrations]
        for told in self._versioning.decide_promotions(self._manager, decisions):
            self._publisher.stage_completed(told)
        for decided in decisions:
            if verdict is Verdict.SUCCESS:
                self._tell_lost(decided.partition_id, decided.step.destination_current - 1)
            self._reporter.decided(batch.process, batch.reported, decided, batch.started_us)
        self._promote_next()
