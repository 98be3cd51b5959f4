"""What a changed row means for a partition's data: roles taken and left, migrations in and out.

Knows when fragments are dropped, promoted, demoted or installed (ADL-42, ADL-43, ADL-73, ADL-74,
facts 4.5 and 5.1). Decides nothing about rows; the migration room calls in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whimbrel.core.check import check
from whimbrel.core.effects import PartitionReleased
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, ReplicaIndex, Row, index_in
from whimbrel.core.messages import FragmentPart
from whimbrel.core.model import MigrationInfo
from whimbrel.core.replication.fragments import (
    Fragment,
    FragmentExport,
    PartitionReplica,
    Staging,
    check_parts,
    in_step,
    same_migration,
)
from whimbrel.core.replication.vectors import take_over_lineage
from whimbrel.errors import SerializationError

if TYPE_CHECKING:
    from whimbrel.core.replication.dataplane import DataPlane

DRAIN_POLLS_MAX = 200
"""How often a migration asks whether backups under way have arrived before it goes on anyway."""


class Roles:
    """The migration room's side of the data plane: implements ``ports.FragmentHost``."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._ctx = plane.ctx
        self._staged: dict[PartitionId, Staging] = {}
        self._outgoing: dict[PartitionId, MigrationInfo] = {}

    # -- source ---------------------------------------------------------------------------

    def begin_source(self, migration: MigrationInfo) -> None:
        """Writes wait from now on: what is done by now goes along with the copy."""
        self._plane.partitions[migration.partition_id].set_migrating(True)
        self._outgoing[migration.partition_id] = migration

    def end_source(self, partition_id: PartitionId) -> None:
        """The migration is decided here, parked requests hear of it; safe to call twice."""
        self._outgoing.pop(partition_id, None)
        partition = self._plane.partitions[partition_id]
        if partition.migrating:
            partition.set_migrating(False)
            self._ctx.emit(PartitionReleased(partition_id))

    def _is_handed_over(self, pid: PartitionId, before: Row, after: Row, version: int) -> bool:
        """Whether a row is the success of the migration that makes another member the primary.

        Only that success can have made this version (ADL-24): the new primary has our copy.
        """
        migration = self._outgoing.get(pid)
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
        for fragment in self._plane.partitions[migration.partition_id].fragments.values():
            if fragment.backup_count >= new:
                held = NO_INDEX < current <= fragment.backup_count
                (verified if held else copied).append(fragment)
        return copied, verified

    def open_export(self, migration: MigrationInfo) -> FragmentExport:
        """A cursor over what the destination needs; begins when older backups have arrived."""
        plane = self._plane
        partition = plane.partitions[migration.partition_id]
        copied, verified = self._needed(migration)
        drains = []
        if copied or verified:
            for _, member in partition.backups:
                outbox = plane.outgoing.outboxes.get(member)
                if outbox is not None:
                    drains.append((outbox, outbox.sequence + bool(outbox.operations)))
        return FragmentExport(
            copied,
            verified,
            drains,
            polls_max=DRAIN_POLLS_MAX,
            in_one=not self._ctx.settings.migration_fragments_enabled,
        )

    # -- destination ----------------------------------------------------------------------

    def begin_destination(self, migration: MigrationInfo) -> None:
        """Stage what will arrive; beginning the same migration again changes nothing."""
        before = self._staged.get(migration.partition_id)
        if not same_migration(before, migration):
            if before is not None:
                self._release(before)
            self._staged[migration.partition_id] = Staging(migration)

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> None:
        """Take parts into the staging area; live fragments are not touched.

        Raises:
            SerializationError: A part is damaged, out of order or for another migration; or a
                namespace that we hold and are to become primary of is not in step.
        """
        pid = migration.partition_id
        staging = self._staged.get(pid)
        if staging is None or not same_migration(staging, migration):
            raise SerializationError(f"no migration {migration.id} is being received")
        check_parts(parts)
        partition = self._plane.partitions[pid]
        for part in parts:
            former = staging.take(part, self._plane.holdings.make(pid, part.namespace, part))
            if former is not None:
                self._plane.holdings.free(former)
            if self._plane.holdings.is_destroyed(part.namespace, part.generation):
                continue
            if staging.index == 0 and part.namespace in staging.compared:
                held = partition.fragments.get(part.namespace)
                if not in_step(held, part.vector, partition.index):
                    raise SerializationError(f"our replica of {part.namespace} is not in step")

    def rollback_destination(self, migration: MigrationInfo) -> None:
        """Forget what was staged (ADL-43, ADL-74); the row that follows decides what we keep."""
        staging = self._staged.get(migration.partition_id)
        if staging is not None and same_migration(staging, migration):
            del self._staged[migration.partition_id]
            self._release(staging)

    def _release(self, staging: Staging) -> None:
        """Nobody looks at what has arrived and is not held."""
        for fragment in (*staging.arriving.values(), *staging.complete.values()):
            self._plane.holdings.free(fragment)
        staging.arriving.clear()
        staging.complete.clear()

    # -- rows -----------------------------------------------------------------------------

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        """Take the role that the row gives us; see ``ports.FragmentHost``."""
        plane = self._plane
        partition = plane.partitions[partition_id]
        was, was_primary = partition.index, partition.is_primary
        former_backups = [member for member in before[1:] if member is not None]
        index = index_in(after, self._ctx.id)
        plane.refills.row_coming(partition, index)
        plane.shortage.close(partition)
        partition.take_row(after, version, index)
        plane.holdings.forget_heads()
        plane.anti_entropy.cancel_partition(partition_id)
        installed = self._install(partition)
        self._drop_beyond(partition)
        if index > 0:
            for fragment in partition.fragments.values():
                fragment.become_backup(index)
        elif partition.is_primary and not was_primary:
            self._take_over(partition, promoted=was > 0 and not installed)
        plane.anti_entropy.role_taken(partition)
        plane.outgoing.refresh_targets(partition)
        if was_primary and not partition.is_primary:
            planned = self._is_handed_over(partition_id, before, after, version)
            plane.handovers.primary_lost(partition, planned=planned)
        if was_primary:
            self._release_former(partition, former_backups)
        plane.handovers.row_changed(partition)
        plane.anti_entropy.start()

    def _install(self, partition: PartitionReplica) -> bool:
        """Bring staged fragments to life when this row is what their migration led to."""
        staging = self._staged.get(partition.pid)
        if staging is None or not staging.applies_to(partition.index, partition.version):
            return False
        del self._staged[partition.pid]
        plane = self._plane
        for namespace in list(staging.complete):
            plane.holdings.hold(partition, staging.complete.pop(namespace))
        self._release(staging)
        for namespace, part in staging.compared.items():
            if plane.holdings.is_destroyed(namespace, part.generation):
                continue
            held = partition.fragments.get(namespace)
            if held is None or held.generation != part.generation:
                held = plane.holdings.make(partition.pid, namespace, part)
                plane.holdings.hold(partition, held)
            if in_step(held, part.vector, held.slot + 1):
                held.install(part.vector, partition.index)
            else:
                plane.doubts.mark_dirty(held)
        return True

    def _drop_beyond(self, partition: PartitionReplica) -> None:
        """Hold nothing that our index does not ask for (ADL-73, inv D8)."""
        index = partition.index
        for namespace, fragment in list(partition.fragments.items()):
            if index == NO_INDEX or fragment.backup_count < index:
                self._plane.holdings.discard(partition, namespace)

    def _take_over(self, partition: PartitionReplica, *, promoted: bool) -> None:
        """We are the primary now: count under a lineage of our own (decision 6)."""
        partition.lineage = take_over_lineage(partition.version, self._ctx.id)
        for fragment in partition.fragments.values():
            fragment.become_primary(partition.lineage)
            self._plane.doubts.forget(fragment)
            if promoted:
                fragment.store.restart_idleness(self._ctx.wall_ms)

    def _release_former(self, partition: PartitionReplica, former: list[MemberId]) -> None:
        """Do not wait for members that ceased to be backups: their successors have it all.

        One that stays a backup is waited for even when we are the primary no longer: the new
        primary has the write, but a second copy is what the client is waiting for. If the write
        reaches that backup too late it is refused (``handover``). Where no planned move explains
        that we are not the primary, a successor may have it or not.
        """
        plane = self._plane
        is_known = partition.is_primary or plane.handovers.is_planned(partition.pid)
        for member in former:
            outbox = plane.outgoing.outboxes.get(member)
            if outbox is None or member in partition.row[1:]:
                continue
            if is_known:
                outbox.release(partition.pid, plane.outgoing.completed)
            else:
                outbox.disown(partition.pid, plane.outgoing.completed)

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """See ``ports.FragmentHost``."""
        return self._plane.refills.lacking

    def staged_index(self, partition_id: PartitionId) -> ReplicaIndex:
        """The index that a migration in progress leads us to, NO_INDEX without one."""
        staging = self._staged.get(partition_id)
        return NO_INDEX if staging is None else staging.index
