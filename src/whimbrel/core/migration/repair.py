"""Table repair at the master: empty the slots of departed members, promote, replace what is lost.

The changes of a row that need no copying. Slots and lost partitions are decided here and now
(ADL-04, ADL-05); a promotion is first committed at the promoted member (ADL-06), one batch per
member, repeated until answered or until that member has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex, Row
from whimbrel.core.jobs import Job
from whimbrel.core.messages import PromotionAnswered, PromotionRequested, TableImage
from whimbrel.core.migration.loopback import Loopback
from whimbrel.core.migration.losses import LOST_ALL, Losses
from whimbrel.core.migration.progress import MigrationProcess
from whimbrel.core.migration.publication import Publisher
from whimbrel.core.migration.reporter import MigrationReporter, ReportedProcess
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import Loss, MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable

PROMOTION_BATCH_MAX = 1_000
"""Promotions in one message: about 200 kB, so that control messages behind it hardly wait."""


@dataclass(slots=True)
class Batch:
    """Promotions on their way to one member."""

    number: int
    destination: MemberId
    migrations: tuple[MigrationInfo, ...]
    process: MigrationProcess
    started_us: int
    reported: ReportedProcess | None
    """The promotions of this repair as listeners know them."""
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


def image_of(partition_count: int, rows: Iterable[RowState]) -> TableImage:
    """An image of rows that are not in anybody's table yet."""
    scratch = PartitionTable(partition_count)
    pids: list[PartitionId] = []
    for row in rows:
        scratch.set_row(row.partition_id, row.row, row.version)
        pids.append(row.partition_id)
    return scratch.image(pids)


class Repair:
    """Repairs the table and follows the promotions until they are decided."""

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
        self._ctx = ctx
        self._manager = manager
        self._publisher = publisher
        self._loopback = loopback
        self._on_lost = on_lost
        self._on_decided = on_decided
        self.on_verdict: Callable[[MigrationInfo, int], None] | None = None
        """Told of each decided promotion and of the microseconds since its start."""
        self.reporter = MigrationReporter(ctx)
        """Tells listeners; the control loop's."""
        self.losses = Losses(ctx, manager.table)
        """Where losses are put down; the room's."""
        self.on_known_loss: Callable[[Loss], None] | None = None
        """Told, at a change of master, of a loss that this member has not told."""
        self.batches: dict[int, Batch] = {}
        """Promotions that are not answered yet, by batch number."""
        self.owed: dict[PartitionId, dict[MemberId, None]] = owed
        """Members to be taken out of a row although they may be on the list: they left and came
        back with the same identity, and have none of the data (M4)."""
        self.rows_max = ctx.settings.step_rows_max
        """Rows that are repaired in one step."""
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
        for member in gone:
            for pid in self._manager.table.partitions_of(member):
                self.owed.setdefault(pid, {})[member] = None

    def note_without_data(self, found: Collection[tuple[PartitionId, MemberId]]) -> None:
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
        allowed = dict.fromkeys(member.id for member in self._ctx.data_members())
        promoting = self._being_promoted()
        pids = [pid for pid in self._suspect(allowed) if pid not in busy and pid not in promoting]
        self._left.extend(pids)
        rows, owed = self._manager.table.rows, self.owed
        promotions = (_will_promote(rows[pid], allowed, owed.get(pid, {})) for pid in pids)
        self._run = (process, self.reporter.begin(sum(promotions)))
        self.go_on(busy)

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
        """Look at no further row of a run; to listeners it is over."""
        if self._left and self._run is not None:
            self.reporter.end(self._run[1])
        self._left.clear()
        self._run = None

    def go_on(self, busy: Collection[PartitionId]) -> None:
        """Repair the next rows of the run.

        Args:
            busy: Partitions to leave alone until their verdict is known.
        """
        if self._run is None:
            return
        process, reported = self._run
        self._ctx.resume(process.cause)
        allowed = dict.fromkeys(member.id for member in self._ctx.data_members())
        promoting = self._being_promoted()
        wanted: dict[MemberId, list[MigrationInfo]] = {}
        for _ in range(min(self.rows_max, len(self._left))):
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
                self._manager.current_version(pid),
                Verdict.SUCCESS,
            )
            wanted.setdefault(step.destination, []).append(migration)
        self._publisher.flush()  # members see the emptied slots before they are promoted
        for destination, migrations in wanted.items():
            for start in range(0, len(migrations), PROMOTION_BATCH_MAX):
                part = tuple(migrations[start : start + PROMOTION_BATCH_MAX])
                self._promote(destination, part, process, reported)

    def _empty_slots(self, pid: PartitionId, allowed: Collection[MemberId]) -> Row:
        """Empty the slots of departed members, one version per slot; returns the row then."""
        table = self._manager.table
        before = table.row(pid)
        departed = self.owed.pop(pid, {})
        row, emptied = without_departed(before, allowed, departed)
        if not emptied:
            return before
        self._manager.change(pid, row, self._manager.current_version(pid) + emptied)
        self.losses.slots_emptied(pid, before)
        self._publisher.stage_row(pid)
        if row.count(None) == len(row):
            self._on_lost(pid, LOST_ALL)
        return row

    def replacing_lost(self, targets: dict[PartitionId, MemberId]) -> Job[None]:
        """Give lost partitions their new, empty primaries (ADL-05): version + 1."""
        table = self._manager.table
        reported = self.reporter.begin(len(targets))
        try:
            for number, (pid, primary) in enumerate(targets.items(), 1):
                row: Row = (primary, *table.row(pid)[1:])
                self._manager.change(pid, row, self._manager.current_version(pid) + 1)
                self._publisher.stage_row(pid)
                self.reporter.replica(reported, pid, ReplicaIndex(0), None, primary, True, 0)
                if not number % self.rows_max:
                    yield
        finally:
            self.reporter.end(reported)  # also of a run that was dropped

    def tell_known(self) -> None:
        """Tell the losses that an earlier master knew: it may have died before it told them.

        A row that waits for its promotion is told with that.
        """
        for loss in self.losses.untold():
            row = self._manager.table.row(loss.partition_id)
            if self.on_known_loss is not None and promotion_step(row) is None:
                self.on_known_loss(loss)

    def lost_partitions(self) -> list[PartitionId]:
        """Partitions without any replica, ascending."""
        return self._manager.table.empty_partitions()

    # -- promotions -----------------------------------------------------------------------

    def _promote(
        self,
        destination: MemberId,
        migrations: tuple[MigrationInfo, ...],
        process: MigrationProcess,
        reported: ReportedProcess | None,
    ) -> None:
        process.planned += len(migrations)
        process.running += len(migrations)
        number, now_us = self._ctx.next_number(), self._ctx.now_us
        batch = Batch(number, destination, migrations, process, now_us, reported)
        for migration in migrations:
            self.reporter.started(migration)
        self.batches[batch.number] = batch
        self._send(batch)

    def send_held(self) -> None:
        """Send the batches that a whole table on its way to their member has held up."""
        for batch in self.batches.values():
            if batch.is_held:
                self._send(batch)

    def _send(self, batch: Batch) -> None:
        """Ask; but a member learns the emptied slots first, after the table it is being sent."""
        self._ctx.resume(batch.process.cause)
        batch.sent_us = self._ctx.now_us
        batch.is_held = self._publisher.owes_parts(batch.destination)
        if batch.is_held:
            return
        table = self._manager.table
        image = image_of(
            table.partition_count,
            (
                RowState(
                    migration.partition_id,
                    migration.final_version,
                    migration.step.apply(table.row(migration.partition_id)),
                )
                for migration in batch.migrations
            ),
        )
        known = table.losses
        losses = [known[one.partition_id] for one in batch.migrations if one.partition_id in known]
        image = msgspec.structs.replace(image, losses=tuple(losses))
        message = PromotionRequested(batch.number, batch.migrations, image)
        self._loopback.post(batch.destination, message)

    def answered(self, sender: MemberId, message: PromotionAnswered) -> None:
        """A batch is applied at its member: now it is our decision too."""
        batch = self.batches.get(message.batch)
        if batch is None or batch.destination != sender or not message.accepted:
            return
        self._decide(batch, Verdict.SUCCESS)

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """A promoted member that left: its promotions failed, the next one is asked (ADL-21)."""
        for batch in list(self.batches.values()):
            if batch.destination in gone:
                self._decide(batch, Verdict.FAILED)

    def _decide(self, batch: Batch, verdict: Verdict) -> None:
        del self.batches[batch.number]
        process, count = batch.process, len(batch.migrations)
        decisions = [migration.with_verdict(verdict) for migration in batch.migrations]
        self._apply(decisions)
        for decided in decisions:
            if verdict is Verdict.SUCCESS:
                self._on_lost(decided.partition_id, decided.step.destination_current - 1)
            elapsed_us = self._ctx.now_us - batch.started_us
            if self.on_verdict is not None:
                self.on_verdict(decided, elapsed_us)
            self.reporter.decided(batch.reported, decided, elapsed_us)
        process.running -= count
        if verdict is Verdict.SUCCESS:
            process.completed += count
            process.promotions += count
        else:
            process.failed += count
        self._on_decided(process)

    def _apply(self, decisions: Sequence[MigrationInfo]) -> None:
        """The verdict of one batch: our own rows, and the news for everybody."""
        for decided in decisions:
            self._manager.apply_completed(decided)
            self._publisher.stage_completed(decided)

    def repeat(self) -> None:
        """Send unanswered batches again after the call timeout."""
        for batch in self.batches.values():
            if self._ctx.now_us - batch.sent_us >= self._ctx.settings.call_timeout_us:
                self._send(batch)

    def link_restored(self, member: MemberId) -> None:
        """The request or its answer may be lost."""
        for batch in self.batches.values():
            if batch.destination == member:
                self._send(batch)
