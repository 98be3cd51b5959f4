"""What a changed row means for a partition's data: roles taken and left, migrations in and out.

Knows when fragments are dropped, promoted, demoted or installed (ADL-42, ADL-43, ADL-73, ADL-74,
FN-7, FN-9). Decides nothing about rows; the migration room calls in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.effects import PartitionReleased
from whimbrel.core.ids import NO_INDEX, MemberId, Namespace, PartitionId, Row, index_in
from whimbrel.core.messages import CopyBase, FragmentPart, Progress
from whimbrel.core.model import MigrationInfo
from whimbrel.core.replication.anti_entropy import AntiEntropy
from whimbrel.core.replication.comparison import base_of
from whimbrel.core.replication.fragments import Fragment, PartitionReplica, in_step
from whimbrel.core.replication.handover import Handovers
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.primary_recovery import PrimaryRecovery
from whimbrel.core.replication.syncs import Syncs
from whimbrel.core.replication.transfer import FragmentExport, Shadows, refuse_older
from whimbrel.core.replication.vectors import NO_LINEAGE, lineage_version, make_lineage
from whimbrel.errors import SerializationError

DRAIN_POLLS_MAX = 200
"""How often a migration asks whether backups under way have arrived before it goes on anyway."""


class Roles:
    """The migration room's side of the data plane: implements ``ports.FragmentHost``."""

    def __init__(
        self,
        ctx: Context,
        holdings: Holdings,
        anti_entropy: AntiEntropy,
        syncs: Syncs,
        recovery: PrimaryRecovery,
        handovers: Handovers,
    ) -> None:
        self._ctx, self._holdings, self._doubts = ctx, holdings, holdings.doubts
        self._outgoing, self._shortage = holdings.outgoing, holdings.shortage
        self._anti_entropy, self._handovers = anti_entropy, handovers
        self._syncs, self._recovery = syncs, recovery
        self._staged: dict[PartitionId, tuple[MigrationInfo, Shadows]] = {}
        """What arrives for a migration, apart from what is held until it is decided."""
        self._copied: dict[PartitionId, MigrationInfo] = {}

    # -- source ---------------------------------------------------------------------------

    def begin_source(self, migration: MigrationInfo) -> None:
        """Writes wait from now on: what is done by now goes along with the copy."""
        self._holdings.partitions[migration.partition_id].set_migrating(True)
        self._copied[migration.partition_id] = migration

    def end_source(self, partition_id: PartitionId) -> None:
        """The migration is decided here, parked requests hear of it; safe to call twice."""
        self._copied.pop(partition_id, None)
        partition = self._holdings.partitions[partition_id]
        if partition.migrating:
            partition.set_migrating(False)
            self._ctx.emit(PartitionReleased(partition_id))

    def _is_handed_over(self, pid: PartitionId, before: Row, after: Row, version: int) -> bool:
        """Whether a row is the success of the migration that makes another member the primary.

        Only that success can have made this version (ADL-24): the new primary has our copy.
        """
        migration = self._copied.get(pid)
        if migration is None or version != migration.final_version:
            return False
        return migration.step.apply(before) == after

    def copy_bytes(self, migration: MigrationInfo) -> int:
        """About how many bytes an export would copy: keys and values."""
        copied, _ = self._needed(migration)
        return sum(fragment.store.bytes_used for fragment in copied)

    def _needed(self, migration: MigrationInfo) -> tuple[list[Fragment], list[Fragment]]:
        """What the destination lacks at its new index, and what it has and must compare.

        Copied: every namespace whose backup count reaches the new index and that the destination
        does not hold at its present one (ADL-42, GCM-33). Compared: those that it holds.
        """
        step = migration.step
        new, current = step.destination_new, step.destination_current
        check(step.destination is not None and new >= 0, "an export has a destination")
        copied: list[Fragment] = []
        verified: list[Fragment] = []
        for fragment in self._holdings.partitions[migration.partition_id].fragments.values():
            if fragment.backup_count >= new:
                held = NO_INDEX < current <= fragment.backup_count
                (verified if held else copied).append(fragment)
        return copied, verified

    def open_export(self, migration: MigrationInfo) -> FragmentExport:
        """A cursor over what the destination needs; begins when older backups have arrived."""
        partition = self._holdings.partitions[migration.partition_id]
        copied, verified = self._needed(migration)
        pid, row = migration.partition_id, migration.step.apply(partition.row)
        drains = []
        if copied or verified:
            for _, member in partition.backups:
                outbox = self._outgoing.outboxes.get(member)
                if outbox is not None:
                    drains.append((outbox, outbox.sequence + bool(outbox.operations)))
        return FragmentExport(
            copied,
            verified,
            drains,
            index=migration.step.destination_new,
            figures=self._holdings.copies,
            bounds=self._holdings.bounds,
            polls_max=DRAIN_POLLS_MAX,
            in_one=not self._ctx.settings.migration_fragments_enabled,
            with_logs=self._holdings.key_logs.is_wanted(pid, row),
        )

    # -- destination ----------------------------------------------------------------------

    def begin_destination(self, migration: MigrationInfo) -> None:
        """Stage what will arrive; beginning the same migration again changes nothing."""
        pid = migration.partition_id

        def kept(namespace: Namespace) -> Fragment | None:
            return self._holdings.kept.of(pid).get(namespace)

        if self._find(migration) is None:
            self._release(pid)
            shadows = Shadows(
                self._holdings, pid, migration.step.destination_new, kept, is_staged=True
            )
            self._staged[pid] = (migration, shadows)

    def _find(self, migration: MigrationInfo) -> Shadows | None:
        """What is staged for this migration."""
        staged = self._staged.get(migration.partition_id)
        return staged[1] if staged is not None and staged[0].id == migration.id else None

    def bases(self, migration: MigrationInfo) -> tuple[CopyBase, ...]:
        """What is kept of the partition; a copy to us begins with a comparison (APR-43)."""
        kept = self._holdings.kept.of(migration.partition_id).values()
        found = [base_of(fragment, is_trusted=True) for fragment in kept]
        return tuple(base for base in found if base is not None)

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> Progress:
        """Take parts into the staging area; live fragments are not touched.

        Returns:
            How far we are with comparisons.

        Raises:
            SerializationError: A part is damaged, out of order or for another migration; a copy
                counts less than what we hold; or a namespace that we hold and are to become primary
                of is not in step.
        """
        shadows = self._find(migration)
        if shadows is None:
            raise SerializationError(f"no migration {migration.id} is being received")
        partition = self._holdings.partitions[migration.partition_id]
        for part, shadow in shadows.take(parts):
            disk = self._holdings.disk
            if shadow is not None and disk is not None and (part.data or part.last):
                disk.stage(shadow, part.data, is_last=part.last)
            held = partition.fragments.get(part.namespace)
            if shadow is not None:
                refuse_older(shadow, held)
            if shadow is not None or shadows.index:
                continue
            is_destroyed = self._holdings.is_destroyed(part.namespace, part.generation)
            if not is_destroyed and not in_step(held, part.vector, partition.index):
                raise SerializationError(f"our replica of {part.namespace} is not in step")
        return shadows.progress()

    def rollback_destination(self, migration: MigrationInfo) -> None:
        """Forget what was staged (ADL-43, ADL-74); the row that follows decides what we keep."""
        if self._find(migration) is not None:
            self._release(migration.partition_id)

    def _release(self, pid: PartitionId) -> None:
        """Nobody looks any more at what was staged and is not held."""
        staged = self._staged.pop(pid, None)
        if staged is not None:
            staged[1].give_up()

    # -- rows -----------------------------------------------------------------------------

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        """Take the role that the row gives us; see ``ports.FragmentHost``."""
        partition = self._holdings.partitions[partition_id]
        was, was_primary = partition.index, partition.is_primary
        former_backups = [member for member in before[1:] if member is not None]
        index = index_in(after, self._ctx.id)
        self._recovery.row_coming(partition, index)
        self._shortage.close(partition)
        partition.take_row(after, version, index)
        self._holdings.forget_heads()
        self._syncs.row_changed(partition_id)
        installed = self._install(partition)
        self._drop_beyond(partition)
        if index > 0:
            for fragment in partition.fragments.values():
                fragment.become_backup(index)
                if lineage_version(fragment.lineage) > version:
                    self._forget_lineage(fragment)
        elif partition.is_primary and not was_primary:
            self._take_over(partition, promoted=was > 0 and not installed)
        self._anti_entropy.role_taken(partition)
        self._outgoing.refresh_targets(partition)
        if was_primary and not partition.is_primary:
            planned = self._is_handed_over(partition_id, before, after, version)
            self._handovers.primary_lost(partition, planned=planned)
        if was_primary:
            self._release_former(partition, former_backups)
        self._handovers.row_changed(partition)
        self._anti_entropy.start()

    def _forget_lineage(self, fragment: Fragment) -> None:
        """It counted under a row that no file of a recovery had, so the row's version went back.

        Whoever counts now does so under a lower version, and would be taken for somebody of before.
        """
        fragment.lineage = fragment.base_lineage = NO_LINEAGE
        self._holdings.doubts.mark_dirty(fragment)

    def _install(self, partition: PartitionReplica) -> bool:
        """Bring staged fragments to life when this row is what their migration led to."""
        migration, shadows = self._staged.get(partition.pid, (None, None))
        if migration is None or shadows is None or partition.index != shadows.index:
            return False
        if partition.version < migration.initial_version + migration.step.increment:
            return False
        for namespace, fragment in list(shadows.whole.items()):
            if not shadows.index and namespace in shadows.filled:
                # Its base has not seen the reads at the former primary.
                fragment.store.restart_idleness(self._ctx.wall_ms)
            self._holdings.hold(partition, shadows.whole.pop(namespace))
            if namespace in shadows.logs and fragment.key_log is not None:
                fragment.key_log.go_on_from(*shadows.logs[namespace])
            kept = self._holdings.kept.take(partition.pid, namespace)
            if kept is not None:
                self._holdings.free(kept)
        self._release(partition.pid)
        for namespace, part in shadows.compared.items():
            if self._holdings.is_destroyed(namespace, part.generation):
                continue
            held = partition.fragments.get(namespace)
            if held is None or held.generation != part.generation:
                held = self._holdings.make(partition.pid, namespace, part)
                self._holdings.hold(partition, held)
            if in_step(held, part.vector, held.slot + 1):
                held.install(part.vector, partition.index)
            else:
                self._doubts.mark_dirty(held)
        return True

    def _drop_beyond(self, partition: PartitionReplica) -> None:
        """Hold nothing that our index does not ask for (ADL-73, inv D8)."""
        index = partition.index
        for namespace, fragment in list(partition.fragments.items()):
            if index == NO_INDEX or fragment.backup_count < index:
                self._holdings.give_up(partition, namespace)

    def _take_over(self, partition: PartitionReplica, *, promoted: bool) -> None:
        """We are the primary now: count under a lineage of our own (decision 6).

        Where rows outlive processes it is this process's: one before us may have counted under the
        same version of the row, and what it counted last need not be on any disk.
        """
        ctx = self._ctx
        is_kept = ctx.settings.persistence.enabled
        name = f"{ctx.id}@{ctx.started_us}/{ctx.wall_ms}" if is_kept else ctx.id
        partition.lineage = make_lineage(partition.version, name)
        for fragment in partition.fragments.values():
            fragment.become_primary(partition.lineage)
            self._doubts.forget(fragment)
            if promoted:
                fragment.store.restart_idleness(self._ctx.wall_ms)

    def _release_former(self, partition: PartitionReplica, former: list[MemberId]) -> None:
        """Do not wait for members that ceased to be backups: their successors have it all.

        One that stays a backup is waited for even when we are the primary no longer: the new
        primary has the write, but a second copy is what the client is waiting for. If the write
        reaches that backup too late it is refused (``handover``). Where no planned move explains
        that we are not the primary, a successor may have it or not.
        """
        is_known = partition.is_primary or self._handovers.is_planned(partition.pid)
        for member in former:
            outbox = self._outgoing.outboxes.get(member)
            if outbox is None or member in partition.row[1:]:
                continue
            if is_known:
                outbox.release(partition.pid, self._outgoing.completed)
            else:
                outbox.disown(partition.pid, self._outgoing.completed)

    def when_durable(self, then: Callable[[], None]) -> None:
        """See ``ports.FragmentHost``."""
        if self._holdings.disk is None:
            then()
        else:
            self._holdings.disk.when_durable(then)

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """See ``ports.FragmentHost``."""
        return self._recovery.lacking
