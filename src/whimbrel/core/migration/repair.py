"""Table repair at the master: empty the slots of departed members, promote, replace what is lost.

The changes of a row that need no copying. Slots and lost partitions are decided here and now
(ADL-04, ADL-05); a promotion is first committed at the promoted member (ADL-06), one batch per
member, repeated until answered or until that member has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex, Row
from whimbrel.core.messages import PromotionAnswered, PromotionRequested, TableImage
from whimbrel.core.migration.keeper import TableKeeper
from whimbrel.core.migration.mail import Mail
from whimbrel.core.migration.progress import Process
from whimbrel.core.migration.publication import Publisher
from whimbrel.core.migration.telling import Teller, Told
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable

PROMOTION_BATCH_MAX = 1_000
"""Promotions in one message: about 200 kB, so that control messages behind it hardly wait."""
LOST_ALL = 6
"""The lost backup count that means: no replica of the partition is left (facts section 7)."""


@dataclass(slots=True)
class Batch:
    """Promotions on their way to one member."""

    number: int
    destination: MemberId
    migrations: tuple[MigrationInfo, ...]
    process: Process
    started_us: int
    told: Told | None
    """The promotions of this repair as listeners know them."""
    sent_us: int = 0


def without_departed(
    row: Row, allowed: Collection[MemberId], departed: Collection[MemberId] = ()
) -> tuple[Row, int]:
    """The row with the slots of members that may not be there emptied, and how many those are."""
    after = tuple(
        member if member in allowed and member not in departed else None for member in row
    )
    return after, sum(old is not new for old, new in zip(row, after, strict=True))


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
        keeper: TableKeeper,
        publisher: Publisher,
        mail: Mail,
        owed: dict[PartitionId, dict[MemberId, None]],
        on_lost: Callable[[PartitionId, int], None],
        on_decided: Callable[[Process], None],
    ) -> None:
        self._ctx = ctx
        self._keeper = keeper
        self._publisher = publisher
        self._mail = mail
        self._on_lost = on_lost
        self._on_decided = on_decided
        self.on_verdict: Callable[[MigrationInfo, int], None] | None = None
        """Told of each decided promotion and of the microseconds since its start."""
        self.teller = Teller(ctx)
        """Tells listeners; the control loop's."""
        self.batches: dict[int, Batch] = {}
        """Promotions that are not answered yet, by batch number."""
        self.owed: dict[PartitionId, dict[MemberId, None]] = owed
        """Members to be taken out of a row although they may be on the list: they left and came
        back with the same identity, and have none of the data (M4)."""

    @property
    def is_promoting(self) -> bool:
        """Whether some promotion is undecided."""
        return bool(self.batches)

    def stop(self) -> None:
        """Forget everything: this member is no longer master."""
        self.batches.clear()
        self.owed.clear()

    # -- departures -----------------------------------------------------------------------

    def note_departed(self, gone: Collection[MemberId]) -> None:
        """Remember which rows have lost which members, in case they come back soon."""
        table = self._keeper.table
        if not any(table.replica_count(member) for member in gone):
            return
        for pid, row in enumerate(table.rows):
            lost = [member for member in row if member is not None and member in gone]
            if lost:
                self.owed.setdefault(PartitionId(pid), {}).update(dict.fromkeys(lost))

    def note_without_data(self, found: Collection[tuple[PartitionId, MemberId]]) -> None:
        """Remember members that stand in a row and have never heard of it: they restarted."""
        for pid, member in found:
            self.owed.setdefault(pid, {})[member] = None

    # -- one repair -----------------------------------------------------------------------

    def run(self, process: Process, busy: Collection[PartitionId]) -> None:
        """Repair all rows except those of busy partitions (a migration or promotion is on).

        Args:
            process: Counts the promotions.
            busy: Partitions to leave alone until their verdict is known.
        """
        table = self._keeper.table
        allowed = dict.fromkeys(member.id for member in self._ctx.data_members())
        promoting = {
            migration.partition_id: None
            for batch in self.batches.values()
            for migration in batch.migrations
        }
        wanted: dict[MemberId, list[MigrationInfo]] = {}
        for pid in map(PartitionId, range(table.partition_count)):
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
                self._keeper.current_version(pid),
                Verdict.SUCCESS,
            )
            wanted.setdefault(step.destination, []).append(migration)
        self._publisher.flush()  # members see the emptied slots before they are promoted
        told = self.teller.begin(sum(map(len, wanted.values())))
        for destination, migrations in wanted.items():
            for start in range(0, len(migrations), PROMOTION_BATCH_MAX):
                part = tuple(migrations[start : start + PROMOTION_BATCH_MAX])
                self._promote(destination, part, process, told)

    def _empty_slots(self, pid: PartitionId, allowed: Collection[MemberId]) -> Row:
        """Empty the slots of departed members, one version per slot; returns the row then."""
        table = self._keeper.table
        before = table.row(pid)
        departed = self.owed.pop(pid, {})
        row, emptied = without_departed(before, allowed, departed)
        if not emptied:
            return before
        self._keeper.change(pid, row, self._keeper.current_version(pid) + emptied)
        self._publisher.stage_row(pid)
        if row.count(None) == len(row):
            self._on_lost(pid, LOST_ALL)
        return row

    def replace_lost(self, targets: dict[PartitionId, MemberId]) -> None:
        """Give lost partitions their new, empty primaries (ADL-05): version + 1."""
        table = self._keeper.table
        told = self.teller.begin(len(targets))
        for pid, primary in targets.items():
            row: Row = (primary, *table.row(pid)[1:])
            self._keeper.change(pid, row, self._keeper.current_version(pid) + 1)
            self._publisher.stage_row(pid)
            self.teller.replica(told, pid, ReplicaIndex(0), None, primary, True, 0)

    def lost_partitions(self) -> list[PartitionId]:
        """Partitions without any replica, ascending."""
        rows = self._keeper.table.rows
        return [PartitionId(pid) for pid, row in enumerate(rows) if row.count(None) == len(row)]

    # -- promotions -----------------------------------------------------------------------

    def _promote(
        self,
        destination: MemberId,
        migrations: tuple[MigrationInfo, ...],
        process: Process,
        told: Told | None,
    ) -> None:
        process.planned += len(migrations)
        process.running += len(migrations)
        number, now_us = self._ctx.next_number(), self._ctx.now_us
        batch = Batch(number, destination, migrations, process, now_us, told)
        for migration in migrations:
            self.teller.started(migration)
        self.batches[batch.number] = batch
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        batch.sent_us = self._ctx.now_us
        table = self._keeper.table
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
        message = PromotionRequested(batch.number, batch.migrations, image)
        self._mail.post(batch.destination, message)

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
            self.teller.decided(batch.told, decided, elapsed_us)
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
            self._keeper.apply_completed(decided)
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
