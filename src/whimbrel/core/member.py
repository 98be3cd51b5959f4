"""One member: puts the rooms together, routes what comes in, wires the rooms' callbacks.

The control plane enters through ``handle`` and leaves as effects. The data plane is called
directly by the serving layer, between ``begin`` and ``take_effects``. Nothing else mutates a
member, and nothing here decides anything that belongs to a room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from whimbrel.core import messages as m
from whimbrel.core.audit.service import Audits
from whimbrel.core.backups.service import Backups
from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.effects import Effect, Expelled, Joined, TableChanged
from whimbrel.core.ids import REPLICA_SLOTS, MemberId, PartitionId, hottest_index, namespace_of
from whimbrel.core.kinds import StructureKind, StructureService
from whimbrel.core.membership.service import Membership
from whimbrel.core.merging.leftovers import SplitData, leftovers_of, split_by_copies
from whimbrel.core.merging.service import Merging
from whimbrel.core.messages import Message, RegistryEntry
from whimbrel.core.migration.service import Migrations
from whimbrel.core.model import ClusterState, LostStructure, MemberInfo, MemberList, RowState
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.core.persistence.metadata import ClusterFile, LogFiles
from whimbrel.core.persistence.service import Persistence
from whimbrel.core.recovery.service import ClusterRecovery
from whimbrel.core.registry import Registry, RegistryHook, backups_of, is_structure
from whimbrel.core.replication.census import EntryCounts
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.discarding import discarded_with
from whimbrel.core.safety import Safety
from whimbrel.core.settings import CoreSettings
from whimbrel.core.stimuli import (
    AddressUnreachable,
    DiskDone,
    DiskFailed,
    LeaveWanted,
    LinkFailed,
    LinkLost,
    LinkRestored,
    Received,
    Started,
    Stimulus,
    TimerFired,
)

OF_SEEKERS = (m.ProbeRequested, m.ProbeAnswered, m.JoinRequested)
"""Messages that name the process that sends them, because it may not be on any list yet."""

S = TypeVar("S", bound=StructureService)


class Member:
    """The core of one member, for one incarnation: after ``Expelled`` it is thrown away."""

    def __init__(
        self,
        me: MemberInfo,
        settings: CoreSettings,
        kinds: Sequence[StructureKind],
        started_us: int = 0,
        encryption: Encryption = PLAIN,
    ) -> None:
        """Build the rooms; nothing happens before ``Started`` is handled.

        Args:
            me: Our entry of the member list, with the identity of this incarnation.
            settings: Limits and periods.
            kinds: The structures that there may be.
            started_us: Monotonic time of the start; part of the names we make.
            encryption: The keys for files.
        """
        self.ctx = Context(me, settings, started_us)
        self.dataplane = DataPlane(self.ctx)
        self.persistence = Persistence(self.ctx, self.dataplane, encryption)
        self.entry_counts = EntryCounts(self.ctx, self.dataplane.partitions)
        self.migrations = Migrations(self.ctx, self.dataplane.roles)
        self.membership = Membership(self.ctx, self.migrations)
        self.registry = Registry(self.ctx)
        self.recovery = ClusterRecovery(self.ctx, self.membership, self.migrations, self.registry)
        self.kinds = {kind.name: kind for kind in kinds}
        self.services: dict[str, StructureService] = {
            kind.name: kind.make_service(self.dataplane)
            for kind in kinds
            if kind.make_service is not None
        }
        """By the names of their kinds."""
        self.merging = Merging(
            self.ctx, self.dataplane, self.services, self.registry, self.migrations.table
        )
        self.backups = Backups(
            self.ctx, self.dataplane, self.persistence, self.membership, self.migrations,
            self.services, self.registry, self.merging,
        )  # fmt: skip
        self.audits = Audits(
            self.ctx, self.dataplane, self.migrations.table, self.registry, self.services
        )
        self.safety = Safety(
            self.ctx, self.membership, self.migrations, self.registry, self.dataplane
        )
        self.split_data: SplitData | None = None
        """After ``Expelled``: what the next incarnation has to merge, if anything."""
        self.is_expelled = False
        self.strangers_total = 0
        """Messages dropped because their sender is not on our list."""
        self.on_question: Callable[[MemberId, Message], None] = lambda _sender, _message: None
        """Takes QuestionAsked and QuestionAnswered; set by the layer that knows documents."""
        self.on_view_changed: Callable[[MemberList, MemberList], None] = lambda *_: None
        self.on_state_changed: Callable[[ClusterState, ClusterState], None] = lambda *_: None
        """Told of the old and the new cluster state once the list with it is installed here."""
        self.on_link_lost: Callable[[MemberId], None] = lambda _member: None
        """Told that a link is down or could not be made; maybe again and again."""
        self.on_link_restored: Callable[[MemberId], None] = lambda _member: None
        self.on_registry_changed: RegistryHook = lambda _entry, _before: None
        self._depth = 0
        self._said: dict[PartitionId, None] = {}
        """While all data members leave: partitions of which one said what goes and has left."""
        self.is_depth_stale = True
        """Whether ``settle`` has something to do."""
        self._depth_cause: str | None = None
        self._routes = self._make_routes()
        self._timers = self._make_timers()
        self._wire_callbacks()

    def _make_timers(self) -> dict[str, Callable[[str], None]]:
        """Who takes which timer, by the first word of its key."""
        return {
            "membership": self.membership.on_timer,
            "migration": self.migrations.on_timer,
            "replication": self.dataplane.on_timer,
            "registry": self.registry.on_timer,
            "merging": self.merging.on_timer,
            "persistence": self.persistence.on_timer,
            "recovery": self.recovery.on_timer,
            "backups": self.backups.on_timer,
            "audit": self.audits.on_timer,
        }

    @property
    def is_joined(self) -> bool:
        """Whether we serve: on the list of a cluster that runs, and not expelled since."""
        return self.membership.is_joined and not self.is_expelled

    def service(self, wanted: type[S]) -> S:
        """The service of a kind, by its class."""
        found = self.services[wanted.kind_name]
        check(isinstance(found, wanted), "a kind's service is of its class")
        return cast("S", found)

    # -- in and out -----------------------------------------------------------------------

    def begin(self, now_us: int, wall_ms: int) -> None:
        """Set the time of a step; called before any room is."""
        self.ctx.now_us = now_us
        self.ctx.wall_ms = wall_ms
        self.ctx.known_cause = None

    def handle(self, stimulus: Stimulus, now_us: int, wall_ms: int) -> list[Effect]:
        """Take one stimulus; returns what the shell has to do, in order."""
        self.begin(now_us, wall_ms)
        self.apply(stimulus)
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """Effects since the last take."""
        self.settle()
        effects = self.ctx.effects
        self.ctx.effects = []
        return effects

    def settle(self) -> None:
        """Draw the consequences that must wait until the running operation is over.

        A structure that comes to be while it is written first may make rows deeper; the master
        then starts migrations, and that write must not find its partition migrating half-way.
        """
        if self.is_depth_stale:
            self.is_depth_stale = False
            self.ctx.resume(self._depth_cause or self.ctx.cause)
            self._update_depth()
            self.safety.look_at_places()

    def apply(self, stimulus: Stimulus) -> None:
        """Route a stimulus to the rooms concerned; an expelled member takes none."""
        if self.is_expelled:
            return
        self.ctx.known_cause = stimulus.cause
        match stimulus:
            case Received():
                self._on_message(stimulus)
            case TimerFired():
                self._on_timer(stimulus.key, stimulus.generation)
            case LinkLost():
                self.on_link_lost(stimulus.member)
                self.dataplane.link_lost(stimulus.member)
            case LinkRestored():
                self._on_link_restored(stimulus.member)
            case LinkFailed():
                self.on_link_lost(stimulus.member)
                self.membership.on_link_failed(stimulus.member)
            case AddressUnreachable():
                self.membership.on_address_unreachable(stimulus.address)
            case Started():
                self.persistence.begin(lambda: self._seek(stimulus))
            case DiskDone() | DiskFailed():
                self.persistence.on_disk(stimulus)
                self.migrations.conclude()
            case LeaveWanted():
                self._want_leave()
            case _:
                raise TypeError(f"no room takes a {type(stimulus).__name__}")

    def _seek(self, started: Started) -> None:
        """What our files are of is known: look for the cluster."""
        found = self.membership.found
        if found is not None and found.stable is not None and found.members.stable is not None:
            self.migrations.stable.remember(found.members.stable, found.stable)
        self.dataplane.anti_entropy.start()
        self.membership.on_started(started.join_addresses, started.heard)

    # -- routing --------------------------------------------------------------------------

    def _make_routes(self) -> dict[type[Message], Callable[[MemberId, Any], object]]:
        rooms: tuple[tuple[type[Message], Callable[[MemberId, Any], object]], ...] = (
            (m.MigrationMessage, self.migrations.on_message),
            (m.TransferMessage, self._on_transfer),
            (m.ReplicationMessage, self.dataplane.on_message),
            (m.RegistryMessage, self.registry.on_message),
            (m.RecoveryMessage, self.recovery.on_message),
            (m.BackupMessage, self.backups.on_message),
            (m.AuditMessage, self.audits.on_message),
            (m.MergingMessage, self.merging.on_message),
            (m.QuestionMessage, lambda sender, message: self.on_question(sender, message)),
        )
        return {kind: take for room, take in rooms for kind in room.__subclasses__()}

    def _on_transfer(self, sender: MemberId, message: m.TransferSent | m.TransferAnswered) -> None:
        """Copies for migrations are the migration room's, all others replication's."""
        is_migration = message.purpose is m.Purpose.MIGRATION
        room = self.migrations if is_migration else self.dataplane
        room.on_message(sender, message)

    def _on_message(self, received: Received) -> None:
        sender, message = received.sender, received.message
        take = self._routes.get(type(message))
        if self.is_outlived(received):
            self.strangers_total += 1
        elif take is None:
            self.membership.on_message(sender, received.address, message)
        elif self.ctx.is_member(sender) or self._is_before_our_list(message):
            self.membership.detector.spoke(sender)
            take(sender, message)
        else:
            self.strangers_total += 1

    def _is_before_our_list(self, message: Message) -> bool:
        """Whether this may have overtaken our first list: the registry's entries.

        Once we have a list a stranger's are not merged: nobody would tell the others, who know
        what only members say; whoever is on the next list repeats them.
        """
        return not self.is_joined and isinstance(message, m.RegistryTold)

    def is_outlived(self, received: Received) -> bool:
        """Whether this is a late word of a process before the listed one of its identity (M4).

        It might suspect, claim, answer or say goodbye in the other's name. A seeker's messages
        name their process themselves.
        """
        started_us = received.started_us
        if started_us is None or isinstance(received.message, OF_SEEKERS):
            return False
        listed = self.ctx.members.get(received.sender)
        return listed is not None and started_us < listed.started_us

    def _on_timer(self, key: str, generation: int) -> None:
        if self.ctx.take_timer(key, generation):
            self._timers[key.partition(".")[0]](key)
            self.ctx.timer_done()

    def _on_link_restored(self, member: MemberId) -> None:
        ctx, cause = self.ctx, self.ctx.cause
        self.membership.on_link_restored(member)
        ctx.resume(cause)
        self.migrations.link_restored(member)
        ctx.resume(cause)
        self.dataplane.link_restored(member)
        self.on_link_restored(member)

    # -- callbacks of the rooms -----------------------------------------------------------

    def _wire_callbacks(self) -> None:
        membership, migrations = self.membership, self.migrations
        membership.on_view_changed = self._view_changed
        membership.on_became_master = self._became_master
        membership.on_leave_requested = migrations.leave_requested
        membership.on_joined = self._joined
        membership.on_expelled = self._expelled
        migrations.on_rows_changed = self._rows_changed
        self.recovery.use_files(self.persistence)
        self.recovery.take_base = self._take_base
        self.recovery.on_over = self.dataplane.anti_entropy.compare_now
        self.registry.when_durable = self.persistence.when_kept
        membership.states.when_durable = self.persistence.when_kept
        self.dataplane.holdings.returns = migrations.stable.names_us
        self.dataplane.holdings.key_logs.awaits = migrations.stable.awaits
        membership.states.incomplete = self.safety.incomplete_because
        membership.numbers.on_changed = self.persistence.note_cluster
        membership.numbers.when_durable = self.persistence.when_durable
        migrations.loop.when_durable = self.persistence.when_durable
        membership.on_stopping = self.persistence.end
        self.persistence.stop = lambda reason: membership.stop(reason, 1)
        self.persistence.describe = self._describe
        migrations.is_grid_empty = self.registry.is_empty
        migrations.on_may_leave = membership.allow_leave
        migrations.losses.structures_lost = self._structures_lost
        membership.discarded = self.discarded
        membership.on_end_told = self._end_told
        membership.on_end_seen = self.persistence.end_with_all
        membership.make_census = self.entry_counts.make
        membership.on_census = self.entry_counts.take
        self.dataplane.recovery.on_seat_lost = migrations.seat_lost
        self.registry.on_changed = self._registry_changed

    def _rows_changed(self, pids: Sequence[PartitionId]) -> None:
        self.ctx.emit(TableChanged(tuple(pids)))
        self.persistence.note_cluster()
        self.dataplane.holdings.key_logs.look_at(pids)
        kept, rows = self.dataplane.holdings.kept, self.migrations.table.rows
        if len(kept):
            stable = self.migrations.stable.rows or ()
            for pid in pids:  # what was not of use when the row went back is of none any more
                if pid < len(stable) and rows[pid] == stable[pid]:
                    kept.release(pid)

    def _take_base(self, seats: Sequence[RowState]) -> None:
        """We return with what our files had: it is in our seats, or waits for copies (APR-39)."""
        plane = self.dataplane
        plane.recovery.files = {one.partition_id: one.version for one in seats}
        if not seats:
            for partition in plane.partitions:
                for namespace in list(partition.fragments):
                    plane.holdings.keep(partition, namespace)

    def _describe(self, log: LogFiles, has_left: bool) -> ClusterFile:
        """What is worth knowing when this member begins again."""
        settings, table = self.ctx.settings, self.migrations.table
        pids = map(PartitionId, range(table.partition_count))
        return ClusterFile(
            member=self.ctx.id,
            cluster_name=settings.cluster_name,
            partition_count=table.partition_count,
            members=self.ctx.members,
            rows=tuple(map(table.state, pids)),
            losses=tuple(table.losses.values()),
            registry=tuple(self.registry.entries()),
            numbering=self.membership.numbers.kept,
            has_left=has_left,
            log=log,
            stable=self.migrations.stable.packed,
        )

    def _view_changed(self, old: MemberList, new: MemberList) -> None:
        ctx, cause = self.ctx, self.ctx.cause
        self.dataplane.view_changed(old, new)
        self.registry.view_changed(old, new)
        ctx.resume(cause)
        self.recovery.view_changed(old, new)
        if new.stable is None and len(self.dataplane.holdings.kept):
            self.dataplane.holdings.kept.clear()
        self.persistence.note_cluster()
        ctx.resume(cause)
        self.migrations.view_changed(old, new)
        self.dataplane.holdings.key_logs.look_at_all()
        ctx.resume(cause)
        self.backups.view_changed(old, new)
        ctx.resume(cause)
        self.safety.look_at_places()
        self.on_view_changed(old, new)
        if old.version and old.state is not new.state:
            self.on_state_changed(old.state, new.state)

    def _became_master(self) -> None:
        self.entry_counts.forget()
        self.registry.became_master()
        self._update_depth()
        self.migrations.became_master()

    def _joined(self) -> None:
        self.ctx.emit(Joined())
        self.merging.joined()

    def _expelled(self, reason: str) -> None:
        if not self.is_expelled:
            self.is_expelled = True
            self._keep_for_merge()
            self.ctx.emit(Expelled(reason, self.membership.gone_on_at))

    def _keep_for_merge(self) -> None:
        """Leave to the next incarnation what it has to merge into the cluster that goes on.

        Nothing from a recovery: what was loaded still lies on the disk, and nobody was served.
        """
        if self.ctx.members.recovery is not None:
            return
        unfinished = self.merging.hand_over()
        held = leftovers_of(self.dataplane.partitions, self.ctx.is_member)
        if not self.membership.is_split:
            # The cluster removed us. What it has a copy of it has newer by now; the rest it lost.
            moving = {one.partition_id for one in self.migrations.active_migrations()}
            held, dropped = split_by_copies(held, self.membership.gone_on, moving)
            if dropped:
                count = sum(leftover.remaining for leftover in dropped)
                self.ctx.note("expelled.dropped", "warning", entries=count)
        if held or unfinished:
            self.split_data = SplitData((*held, *unfinished), self.registry.alive())

    def _want_leave(self) -> None:
        """Leave; what is still to be merged goes into the cluster first."""
        if self.merging.is_active:
            self.merging.on_done = self.membership.want_leave
        else:
            self.membership.want_leave()

    def discarded(self, is_end: bool) -> tuple[LostStructure, ...]:
        """What ends with us if we end now; ``is_end`` when all data members leave."""
        said = self._said if is_end else ()
        ctx, partitions = self.ctx, self.dataplane.partitions
        is_persistent = ctx.settings.is_persistent
        return discarded_with(ctx.id, partitions, ctx.is_member, is_end, said, is_persistent)

    def _end_told(self, member: MemberId) -> None:
        """One that leaves with all of us has said what it was the hottest holder of."""
        if self.membership.leave.is_wanted:
            self.persistence.end_with_all()
        for partition in self.dataplane.partitions:
            hottest = hottest_index(partition.row, self.ctx.is_member)
            if hottest < REPLICA_SLOTS and partition.row[hottest] == member:
                self._said[partition.pid] = None

    def _structures_lost(self, pid: PartitionId, fewest: int, most: int) -> list[LostStructure]:
        """The structures with so many backups, and how many entries of them a partition had."""
        found: list[LostStructure] = []
        for entry in self.registry.structures():
            if fewest <= sum(backups_of(entry)) <= most:
                namespace = namespace_of(entry.kind, entry.key)
                entries, as_of_ms = self.entry_counts.last_told(pid, namespace)
                found.append(LostStructure(entry.kind, entry.key, entries, as_of_ms))
        return found

    def _registry_changed(self, entry: RegistryEntry, before: RegistryEntry | None) -> None:
        if is_structure(entry):
            if entry.destroyed > (0 if before is None else before.destroyed):
                namespace = namespace_of(entry.kind, entry.key)
                self.dataplane.holdings.destroy(namespace, entry.destroyed)
                if entry.kind in self.services:
                    self.services[entry.kind].destroyed(namespace)
            self.is_depth_stale = True
            self._depth_cause = self.ctx.cause
        self.persistence.note_cluster()
        self.on_registry_changed(entry, before)

    def _update_depth(self) -> None:
        """Tell the migration room how deep rows must be; it acts when it is the master."""
        settings = self.ctx.settings
        stored = [entry for entry in self.registry.structures() if entry.kind in self.services]
        self.migrations.fewest_backups(min([sum(backups_of(one)) for one in stored], default=1))
        depth = REPLICA_SLOTS if settings.plan_depth == "deep" else self.registry.depth()
        if depth != self._depth:
            self._depth = depth
            self.migrations.depth_changed(depth)
