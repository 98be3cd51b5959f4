"""The destination side of a migration, and of a promotion.

Knows when to open (GCM-39) and the commit by versions (PIM-10). The destination commits first of
all (ADL-16): after its answer the migration is decided, unless it leaves the cluster before the
answer arrives.
"""

from __future__ import annotations

from whimbrel.core.events import Endpoint
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    NOTHING_COMPARED,
    CopyBase,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationOpened,
    Progress,
    PromotionAnswered,
    PromotionRequested,
    Purpose,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.source import participant_refusal
from whimbrel.core.migration.state_manager import ActiveMigration
from whimbrel.core.model import MigrationInfo, Verdict
from whimbrel.core.ports import FragmentHost
from whimbrel.core.replication.transfer import Receiving


class Incoming(ActiveMigration):
    """A migration of which we are the destination."""

    def __init__(self, migration: MigrationInfo, receiving: Receiving) -> None:
        super().__init__(migration, Endpoint.DESTINATION)
        self.receiving = receiving

    @property
    def complete(self) -> bool:
        """Whether the last parts have arrived."""
        return self.receiving.complete


class DestinationSide:
    """All migrations of which this member is the destination."""

    def __init__(self, shared: MigrationContext, host: FragmentHost) -> None:
        self._ctx, self._manager, self._versioning = shared.ctx, shared.manager, shared.versioning
        self._subscriber, self._loopback = shared.subscriber, shared.loopback
        self._host, self._unkept = host, shared.unkept
        self._refused: dict[PartitionId, str] = {}
        """Of each partition, the last migration whose commit was refused: its master takes that for
        the verdict, so whatever arrives later it is never committed here (ADL-18)."""

    # -- fragments ------------------------------------------------------------------------

    def opened(self, sender: MemberId, message: MigrationOpened) -> None:
        """Open the migration, or acknowledge a repeat."""
        migration = message.migration
        reason = self._open(sender, message)
        bases = () if reason else self._host.bases(migration)
        self._answer(sender, migration.id, 0, reason, bases=bases)

    def sent(self, sender: MemberId, message: TransferSent) -> None:
        """Take in the next parts, or acknowledge a repeat."""
        incoming = self._manager.find(message.transfer, message.partition_id)
        progress = NOTHING_COMPARED
        if not isinstance(incoming, Incoming) or incoming.receiving.member != sender:
            reason = "the migration is not active at its destination"
        else:
            receiving, migration = incoming.receiving, incoming.migration
            reason = receiving.take(message, lambda parts: self._host.ingest(migration, parts))
            progress = receiving.progress
            if receiving.problem:
                reason = f"the destination cannot take a fragment: {reason}"
        self._answer(sender, message.transfer, message.sequence, reason, progress)

    def _answer(
        self,
        sender: MemberId,
        transfer: str,
        sequence: int,
        reason: str,
        progress: Progress = NOTHING_COMPARED,
        bases: tuple[CopyBase, ...] = (),
    ) -> None:
        name = (Purpose.MIGRATION, transfer, sequence)
        answer = TransferAnswered(*name, not reason, reason, progress, bases)
        self._loopback.post(sender, answer)

    def _open(self, sender: MemberId, message: MigrationOpened) -> str:
        """Check and register a migration; returns why it is refused, or an empty string."""
        migration = message.migration
        pid = migration.partition_id
        if migration.master != self._ctx.master:
            return "the migration is not one of the present master's"
        if migration.step.destination != self._ctx.id:
            return "this member is not the destination"
        self._manager.apply_carried(pid, message.completed)
        mine = self._manager.find(migration.id, pid)
        if isinstance(mine, Incoming) and mine.receiving.member == sender:
            return ""  # a repeat
        reason = participant_refusal(self._ctx, self._manager, migration)
        if reason:
            return reason
        if self._manager.table.row(pid)[0] != sender:
            return "the sender is not the primary of the partition"
        self._manager.begin(Incoming(migration, Receiving(self._ctx, sender)))
        return ""

    # -- commit ---------------------------------------------------------------------------

    def commit_requested(self, sender: MemberId, message: MigrationCommitRequested) -> None:
        """Commit before everybody else and once, or refuse for good (ADL-16, ADL-18, PIM-10)."""
        migration = message.migration
        if sender != self._ctx.master or migration.master != sender:
            self._ctx.note("migration.foreign_commit", "warning", sender=sender)
            return
        self._manager.apply_carried(migration.partition_id, message.completed)
        reason = self._commit(migration)
        if reason:
            self._refused[migration.partition_id] = migration.id
        elif sender != self._ctx.id:
            self._subscriber.remember(migration)
        answer = MigrationCommitAnswered(migration.id, not reason, reason)
        if reason:
            self._loopback.post(sender, answer)
            return
        cause, pid = self._ctx.cause, migration.partition_id

        def tell() -> None:
            self._unkept.pop(pid, None)
            self._ctx.resume(cause)
            self._loopback.post(sender, answer)

        # The source lets go once this is heard: what is only in our memory could be lost with it.
        # Until then nobody hears of the row in any other way, if we are master, or become it.
        self._unkept[pid] = None
        self._host.when_durable(tell)

    def _commit(self, migration: MigrationInfo) -> str:
        """Commit by versions; returns why not, or an empty string."""
        if migration.verdict is not Verdict.SUCCESS:
            return "only a successful migration can be committed"
        pid = migration.partition_id
        local = self._versioning.of(pid)
        if local == migration.final_version:
            return ""  # committed before; the answer was lost
        if local > migration.final_version:
            return f"the partition version is already {local}"
        if local != migration.initial_version:
            return f"the partition version is {local}, not {migration.initial_version}"
        if self._refused.get(pid) == migration.id:
            return "its commit has been refused"
        incoming = self._manager.find(migration.id, pid)
        if not isinstance(incoming, Incoming):
            return "the migration is not active at its destination"
        if not incoming.complete:
            return "the destination has not received everything"
        self._manager.apply_completed(migration)
        return ""

    # -- promotion ------------------------------------------------------------------------

    def promotion_requested(self, sender: MemberId, message: PromotionRequested) -> None:
        """Become primary of the partitions the master says, as one batch (FN-7).

        The image holds rows as they are after the promotions; a repeated batch changes nothing.
        """
        if sender != self._ctx.master:
            self._ctx.note("migration.foreign_promotion", "warning", sender=sender)
            return
        rows = self._manager.table.take_image(message.image)
        taken, reason = self._versioning.take_promoted(self._manager, rows)
        if sender != self._ctx.id:
            for migration in message.migrations:
                if migration.partition_id in taken:
                    self._subscriber.remember(migration)
        self._loopback.post(sender, PromotionAnswered(message.batch, not reason, reason))
