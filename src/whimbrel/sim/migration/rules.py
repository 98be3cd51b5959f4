"""Rules of migrations: P6 to P8, P13, P14, X1."""

from __future__ import annotations

from functools import partial
from typing import Any

from whimbrel.core.events import (
    Endpoint,
    GridEvent,
    MigrationFinished,
    MigrationStarted,
    MigrationState,
    Moment,
    PartitionMigrationEvent,
    ReplicaMigrated,
)
from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import (
    LegacyTablePublished,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    Purpose,
    TablePublished,
    TransferSent,
)
from whimbrel.core.model import MigrationKind, Verdict
from whimbrel.core.stimuli import Received
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import World

_TABLES = (TablePublished, LegacyTablePublished)
_WITH_COMPLETED = (*_TABLES, MigrationRequested, MigrationOpened, MigrationCommitRequested)
RECORD_SLACK_BYTES = 4_096
"""A chunk may go over its limit by its last record and the namespace's name."""
PREPARED = "the master dies between prepare and commit"
CONFIRMED = "the master dies between the destination's commit and publication"
DESTINATION = "the destination dies after its commit, before publication"
SHIFT_UP_BACK = "a SHIFT UP is rolled back"
OLD_WORDS = "a message of a process that is gone arrives"
KINDS = tuple(
    f"migration {kind.value}"
    for kind in MigrationKind
    if kind not in (MigrationKind.STEP_DOWN, MigrationKind.PROMOTION)
)
_SHIFTS_UP = (MigrationKind.SHIFT_UP, MigrationKind.SHIFT_UP_SHIFT_DOWN)


class CommitOrder(Rule):
    """P6 (ADL-16, ADL-20; T): the destination commits before the master, the master before anybody
    drops data.
    """

    rule = "P6"
    sentence = "destination commits first, then the master, then the source"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        ctx = host.member.ctx
        if ctx.is_master:
            self._at_master(host, pid, before, after, version)
            return
        mine = host.info.id
        index, index_after = index_in(before, mine), index_in(after, mine)
        if index < 0 or 0 <= index_after <= index:
            return
        if self._steps_down(host, pid, index, index_after):
            return  # the one who goes to a colder slot is the destination and commits first
        master = self.world.host_of(ctx.master)
        if master is not None and master.member.ctx.is_master:
            known = master.member.migrations.table.versions[pid]
            if known < version:
                self.fail(
                    f"p{pid} gives up index {index} at version {version}, the master is at {known}",
                    host.name,
                )

    def _at_master(
        self, host: Host, pid: PartitionId, before: Row, after: Row, version: int
    ) -> None:
        if not any(before):
            return
        for member in after:
            if member is None or member in before or member == host.info.id:
                continue
            destination = self.world.host_of(member)
            if destination is not None:
                table = destination.member.migrations.table
                known = table.versions[pid]
                # A new master may settle several migrations in one jump of the version; the
                # destination has committed its own when its own row names it.
                has_committed = index_in(table.rows[pid], member) >= 0
                if known < version and not has_committed and self._still_there(before, host):
                    self.fail(
                        f"p{pid} version {version} committed by the master, its new holder "
                        f"{destination.name} is at {known}",
                        host.name,
                    )

    @staticmethod
    def _steps_down(host: Host, pid: PartitionId, index: int, index_after: int) -> bool:
        """Whether the member commits a STEP DOWN of which it is the destination."""
        stimulus = host.stimulus
        if not isinstance(stimulus, Received):
            return False
        message = stimulus.message
        if not isinstance(message, MigrationCommitRequested):
            return False
        migration, step = message.migration, message.migration.step
        return (
            step.kind is MigrationKind.STEP_DOWN
            and migration.partition_id == pid
            and step.destination == host.info.id
            and (step.destination_current, step.destination_new) == (index, index_after)
        )

    def _still_there(self, before: Row, host: Host) -> bool:
        """Whether somebody of the old row is in the master's list (else data are lost anyway)."""
        members = host.member.ctx.members
        return any(one is not None and members.get(one) is not None for one in before)


class OneVerdict(Rule):
    """P7 (ADL-23, ADL-31; EQ): nobody ever sees two verdicts of one migration; nothing stays
    undecided.
    """

    rule = "P7"
    messages = _WITH_COMPLETED
    sentence = "source and destination end with the same verdict on each migration"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._verdicts: dict[str, Verdict] = {}

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        for migration in message.completed:
            known = self._verdicts.setdefault(migration.id, migration.verdict)
            if known is not migration.verdict and not self.world.plan.profile.split:
                self.fail(f"{migration.id} is {known} and {migration.verdict}", host.name)

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            for migration in host.member.migrations.active_migrations():
                self.fail(f"p{migration.partition_id} has an undecided migration", host.name)


class OneMigration(Rule):
    """P8 (ADL-25, ADL-27, ADL-35, PIM-24; E): caps hold at the master, and what is finished is
    forgotten in the end.
    """

    rule = "P8"
    messages = (*_TABLES, MigrationRequested, MigrationOpened)
    sentence = "one active migration per partition, parallel limits hold, finished ones drain"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cap = world.plan.settings.migration_max_parallel

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E: no member takes part in more migrations than its limit; lists stay bounded."""
        if isinstance(message, _TABLES):
            bound = self.world.plan.settings.completed_batch_max
            if len(message.completed) > bound:
                self.fail(
                    f"{len(message.completed)} finished migrations travel, {bound} are allowed",
                    host.name,
                )
            return
        master = self.world.host_of(message.migration.master)
        if master is not None:
            self._look(master)

    def _look(self, master: Host) -> None:
        migrations = master.member.migrations
        running = migrations.running_migrations()
        if migrations.table_version is not None and len(running) > 1:
            # ADL-35: one version for the whole table allows one migration in the cluster.
            self.fail(f"{len(running)} migrations run below cluster version 4.1", master.name)
        counted = migrations.counted_migrations()
        if not migrations.loop.in_charge or len(counted) <= self._cap:
            return
        roles: dict[MemberId | None, int] = {}
        for migration in counted:
            source = migrations.table.rows[migration.partition_id][0]
            for member in dict.fromkeys((source, migration.step.destination)):
                roles[member] = roles.get(member, 0) + 1
        for member, count in roles.items():
            if count > self._cap:
                name = self.world.name_of(member)
                self.fail(f"{name} takes part in {count}, {self._cap} are allowed", master.name)


class HookOrder(Rule):
    """P13 (ADL-71, ADL-72; ETQ): every member's services, by the hook that the migration room
    offers.
    """

    rule = "P13"
    sentence = "services hear before any change of an index, then commit or rollback, once each"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: dict[str, dict[PartitionId, PartitionMigrationEvent]] = {}

    def started(self, host: Host) -> None:
        """Listen to a fresh process."""
        self._open[host.name] = {}
        host.member.migrations.set_hook(partial(self._told, host))

    def _told(self, host: Host, moment: Moment, event: PartitionMigrationEvent) -> None:
        if event.endpoint is Endpoint.MASTER or host.is_outside:
            return
        open_ones, pid = self._open[host.name], event.partition_id
        index = index_in(host.member.migrations.table.rows[pid], host.info.id)
        what = f"p{pid} {moment.value} {event.current_replica_index}>{event.new_replica_index}"
        if moment is Moment.BEFORE:
            if pid in open_ones:
                self.fail(f"{what} comes twice", host.name)
            if index != event.current_replica_index:
                self.fail(f"{what}, its index is {index}", host.name)
            open_ones[pid] = event
            return
        if open_ones.pop(pid, None) != event:
            self.fail(f"{what} does not end what was told before", host.name)
        if moment is Moment.COMMIT and index != event.new_replica_index:
            self.fail(f"{what}, its index is {index}", host.name)

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: whatever changes the index, services are waiting for its end."""
        index, index_after = index_in(before, host.info.id), index_in(after, host.info.id)
        event = self._open[host.name].get(pid)
        if index != index_after and (event is None or event.new_replica_index != index_after):
            self.fail(f"p{pid} {index}>{index_after} was not told", host.name)

    def quiet(self) -> None:
        """Q: nothing is begun and not ended."""
        for host in self.world.up_hosts():
            for event in self._open[host.name].values():
                self.fail(f"p{event.partition_id} is begun and not ended", host.name)


class ProcessesTold(Rule):
    """P14 (PIM-21, PIM-58; EQ): what listeners hear of a master's processes, whatever the replica
    index (PIM-58).
    """

    rule = "P14"
    sentence = "a process is told once, each of its replicas once, and the figures follow (PIM-21)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: dict[str, list[MigrationState]] = {}
        """Of each member, its processes that have not ended, as they were told last."""

    def started(self, host: Host) -> None:
        """Listen to a fresh process, beside whoever does."""
        self._open[host.name] = []
        if host.engine is None:
            return
        take = host.engine.server.grid.take

        def told(event: GridEvent) -> None:
            if not host.is_outside:
                self._told(host, event)
            take(event)

        host.engine.member.migrations.tell_events(told)

    def _told(self, host: Host, event: GridEvent) -> None:
        open_ones = self._open[host.name]
        if isinstance(event, MigrationStarted):
            open_ones.append(event.state)
        elif isinstance(event, ReplicaMigrated):
            self._follows(host, event, event.success, not event.success)
            open_ones.append(event.state)
            index, pid = event.replica_index, event.partition_id
            row = host.member.migrations.table.rows[pid]
            if event.success and row[index] != event.destination:
                self.fail(f"p{pid} index {index} is not where it was told to be", host.name)
        elif isinstance(event, MigrationFinished):
            self._follows(host, event, 0, 0)

    def _follows(
        self,
        host: Host,
        event: ReplicaMigrated | MigrationFinished,
        completed: int,
        failed: int,
    ) -> None:
        """Take the open process that this is the next event of off the list."""
        state = event.state
        for known in self._open[host.name]:
            if (
                (known.started_ms, known.planned) == (state.started_ms, state.planned)
                and known.completed + completed == state.completed
                and known.failed + failed == state.failed
                and state.remaining >= 0
            ):
                self._open[host.name].remove(known)
                return
        self.fail(f"{event} follows nothing that was told", host.name)

    def quiet(self) -> None:
        """Q: a master at rest has told the end of everything that it began."""
        for host in self.world.up_hosts():
            if host.member.ctx.is_master and self._open[host.name]:
                self.fail(f"{self._open[host.name][0]} has no end", host.name)


class ChunksBounded(Rule):
    """X1 (GCM-43, PIM-29; E): bytes of one migration under way (GCM-43, PIM-29)."""

    rule = "X1"
    messages = (TransferSent,)
    sentence = "a migration has at most one chunk of the stated size under way"

    def received(self, host: Host, sender: MemberId, message: TransferSent) -> None:
        """E."""
        settings = self.world.plan.settings
        if not settings.migration_fragments_enabled or message.purpose is not Purpose.MIGRATION:
            return
        limit = settings.migration_chunk_bytes_max + self._record_bytes_max()
        size = sum(len(part.data) for part in message.parts)
        if size > limit:
            pid = message.partition_id
            self.fail(f"p{pid}: {size} bytes in one message, {limit} are allowed", host.name)

    def _record_bytes_max(self) -> int:
        return RECORD_SLACK_BYTES + self.world.plan.value_bytes_max


class MigrationSightings(Sightings):
    """Deaths between the messages of a migration, and what finished migrations were."""

    messages = (TablePublished, MigrationRequested, MigrationOpened, MigrationCommitRequested)
    situations = (PREPARED, CONFIRMED, DESTINATION, SHIFT_UP_BACK, OLD_WORDS, *KINDS)

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        for migration in host.member.migrations.running_migrations():
            destination = self.world.host_of(migration.step.destination)
            self.saw(CONFIRMED if self._has_committed(destination, migration) else PREPARED)
        for other in self.world.up_hosts():
            if other is host or not other.member.migrations.loop.in_charge:
                continue
            for migration in other.member.migrations.running_migrations():
                mine = migration.step.destination == host.info.id
                if mine and self._has_committed(host, migration):
                    self.saw(DESTINATION)

    @staticmethod
    def _has_committed(destination: Host | None, migration: Any) -> bool:
        if destination is None:
            return False
        version = destination.member.migrations.table.versions[migration.partition_id]
        return bool(version >= migration.with_verdict(Verdict.SUCCESS).final_version)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        if self.world.host_of(sender) is None:
            self.saw(OLD_WORDS)
        for migration in message.completed:
            if migration.verdict is not Verdict.FAILED:
                self.saw(f"migration {migration.step.kind.value}")
            elif migration.step.kind in _SHIFTS_UP:
                self.saw(SHIFT_UP_BACK)


RULES: tuple[type[Rule], ...] = (
    CommitOrder,
    OneVerdict,
    OneMigration,
    HookOrder,
    ProcessesTold,
    ChunksBounded,
    MigrationSightings,
)
