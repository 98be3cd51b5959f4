"""Rules of the partition table and of migrations: P1 to P9, P11 (facts/reliability 3.2)."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import (
    LegacyTablePublished,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    PromotionRequested,
    TablePublished,
)
from whimbrel.core.model import MemberList, MigrationKind, Verdict
from whimbrel.core.stimuli import Received
from whimbrel.sim.host import Host
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.world import STALENESS, World

STALE_WRITE = "a stale primary takes a write"
_TABLES = (TablePublished, LegacyTablePublished)
_FROM_MASTER = (*_TABLES, PromotionRequested, MigrationCommitRequested, MigrationRequested)
_WITH_COMPLETED = (*_TABLES, MigrationRequested, MigrationOpened, MigrationCommitRequested)


class RisingVersions(Checker):
    """P1: every member's partition versions only rise, and only the master's word counts."""

    rule = "P1"
    sentence = "versions rise strictly, and a table from a non-master changes nothing"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._versions: dict[str, dict[int, int]] = {}

    def started(self, host: Host) -> None:
        """A fresh process begins at zero."""
        self._versions[host.name] = {}

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        versions = self._versions[host.name]
        if version <= versions.get(pid, 0):
            self.fail(f"p{pid} from version {versions.get(pid, 0)} to {version}", host.name)
        versions[pid] = version
        cause = host.cause
        if isinstance(cause, Received) and isinstance(cause.message, _FROM_MASTER):
            ctx = member_of(host).ctx
            if cause.sender not in (ctx.master, ctx.id):
                sender = self.world.watch.name_of(cause.sender)
                self.fail(f"p{pid} taken from {sender}, who is not the master", host.name)


class EqualVersions(Checker):
    """P2: one version of one master means one row."""

    rule = "P2"
    sentence = "equal master, partition and version imply equal rows on any two members"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rows: dict[tuple[int, int, MemberId | None], Row] = {}

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        key = (pid, version, member_of(host).ctx.master)
        if self._rows.setdefault(key, after) != after:
            self.fail(f"p{pid} version {version}", host.name)


class OnePrimary(Checker):
    """P3: whoever accepts writes under a lower version than somebody else did is stale."""

    rule = "P3"
    sentence = "one member accepts writes as primary per partition and version; none goes back"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._newest: dict[tuple[int, MemberId | None], tuple[int, MemberId, int]] = {}

    def accepted(self, host: Host, pid: PartitionId) -> None:
        """E."""
        member = member_of(host)
        version, mine = member.migrations.table.versions[pid], host.info.id
        key = (pid, member.ctx.master)
        newest = self._newest.get(key)
        if newest is None or version > newest[0]:
            self._newest[key] = (version, mine, self.world.now_us)
        elif newest[1] == mine:
            return
        elif version == newest[0] or not self._may_be_stale():
            other = self.world.watch.name_of(newest[1])
            self.fail(
                f"p{pid} at version {version}, while {other} accepted at {newest[0]}", host.name
            )
        else:
            self._measure(host, pid, newest[2])

    def _measure(self, host: Host, pid: PartitionId, since_us: int) -> None:
        """A stale primary that has not heard took a write: for how long may it do so?

        That is the window that the promise table names: since the new primary took its first write,
        or since the old one woke when it slept at that moment.
        """
        world = self.world
        world.sometimes(STALE_WRITE)
        woken_us = host.woken_us or 0
        span_us = world.now_us - max(since_us, woken_us)
        world.stale_window_us = max(world.stale_window_us, span_us)
        bound_us = self._woken_bound_us() if woken_us > since_us else world.plan.one_way_bound_us
        if span_us > bound_us and not world.plan.profile.split:
            self.fail(f"p{pid}: stale for {span_us / 1e6:.1f} s", host.name)

    def _woken_bound_us(self) -> int:
        """Until a member that has woken hears that it was removed: it says at once that it lives.

        The others answer each stranger once in a heartbeat interval. Where paths are clogged or cut
        for less than the time-out, the answer takes that much longer.
        """
        plan, faults = self.world.plan, self.world.fault_counts
        bound_us = plan.settings.heartbeat_interval_us + plan.timer_late_us + plan.round_trip_us
        if any(faults.get(verb) for verb in STALENESS if verb != "pause"):
            bound_us += plan.settings.heartbeat_timeout_us
        return bound_us

    def _may_be_stale(self) -> bool:
        """Whether the faults of this run can leave a primary that has not heard."""
        faults = self.world.fault_counts
        return any(faults.get(verb) for verb in STALENESS)


class MasterDecides(Checker):
    """P4: a row changes at the master, or because of the master's word."""

    rule = "P4"
    sentence = "only a master's decision changes the table"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        if member_of(host).ctx.is_master:
            return
        cause = host.cause
        if not isinstance(cause, Received) or not isinstance(
            cause.message, (*_FROM_MASTER, MigrationOpened)
        ):
            what = type(cause.message if isinstance(cause, Received) else cause).__name__
            self.fail(f"p{pid} changed by {what}", host.name)


class CopiesKept(Checker):
    """P5: a plan never lowers the number of complete replicas below what it must end with.

    What it must end with is decided when the plan is made: who stays then, and how deep. When
    members die meanwhile, it is what those who are left can hold.
    """

    rule = "P5"
    sentence = "a planned migration never lowers the count of available replicas"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._needed: dict[str, int] = {}

    def started(self, host: Host) -> None:
        """A fresh process has planned nothing."""
        self._needed[host.name] = 0

    def planned(self, host: Host) -> None:
        """T."""
        self._needed[host.name] = self._needed_now(host)

    def _needed_now(self, host: Host) -> int:
        ctx = member_of(host).ctx
        plan = self.world.plan
        stay = [info for info in ctx.data_members() if info.id not in ctx.leaving]
        if plan.settings.member_group != "member":
            return min(1 + plan.backup_count + plan.async_backup_count, len({m.host for m in stay}))
        return min(1 + plan.backup_count + plan.async_backup_count, len(stay))

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        ctx = member_of(host).ctx
        if not ctx.is_master:
            return
        members = ctx.members
        had = sum(one is not None and members.get(one) is not None for one in before)
        has = sum(one is not None and members.get(one) is not None for one in after)
        needed = min(self._needed[host.name], self._needed_now(host))
        if has < had and has < needed and self._loses_data(ctx.members, pid, before, after):
            self.fail(f"p{pid} from {had} to {has} replicas, {needed} are needed", host.name)

    def _loses_data(self, members: MemberList, pid: PartitionId, before: Row, after: Row) -> bool:
        """Whether one that loses its seat has data; who came back to it may have none (GCM-09)."""
        for member in before:
            if member is None or member in after or members.get(member) is None:
                continue
            host = self.world.watch.host_of(member)
            if host is None or member_of(host).dataplane.partitions[pid].has_data:
                return True
        return False


class CommitOrder(Checker):
    """P6: the destination commits before the master, the master before anybody drops data."""

    rule = "P6"
    sentence = "destination commits first, then the master, then the source"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        ctx = member_of(host).ctx
        if ctx.is_master:
            self._at_master(host, pid, before, after, version)
            return
        mine = host.info.id
        index, index_after = index_in(before, mine), index_in(after, mine)
        if index < 0 or 0 <= index_after <= index:
            return
        if self._steps_down(host, pid, index, index_after):
            return  # the one who goes to a colder slot is the destination and commits first
        master = self.world.watch.host_of(ctx.master)
        if master is not None and member_of(master).ctx.is_master:
            known = member_of(master).migrations.table.versions[pid]
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
            destination = self.world.watch.host_of(member)
            if destination is not None:
                table = member_of(destination).migrations.table
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
        cause = host.cause
        if not isinstance(cause, Received):
            return False
        message = cause.message
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
        members = member_of(host).ctx.members
        return any(one is not None and members.get(one) is not None for one in before)


class OneVerdict(Checker):
    """P7: nobody ever sees two verdicts of one migration; nothing stays undecided."""

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
            for migration in member_of(host).migrations.active_migrations():
                self.fail(f"p{migration.partition_id} has an undecided migration", host.name)


class OneMigration(Checker):
    """P8: caps hold at the master, and what is finished is forgotten in the end."""

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
        master = self.world.watch.host_of(message.migration.master)
        if master is not None:
            self._look(master)

    def _look(self, master: Host) -> None:
        migrations = member_of(master).migrations
        running = migrations.running_migrations()
        if migrations.table_version is not None and len(running) > 1:
            # ADL-35: one version for the whole table allows one migration in the cluster.
            self.fail(f"{len(running)} migrations run below cluster version 4.1", master.name)
        counted = migrations.counted_migrations()
        if not migrations.is_in_charge or len(counted) <= self._cap:
            return
        roles: dict[MemberId | None, int] = {}
        for migration in counted:
            source = migrations.table.rows[migration.partition_id][0]
            for member in (source, migration.step.destination):
                roles[member] = roles.get(member, 0) + 1
        for member, count in roles.items():
            if count > self._cap:
                name = self.world.watch.name_of(member)
                self.fail(f"{name} takes part in {count}, {self._cap} are allowed", master.name)


class CleanRows(Checker):
    """P9: who may stand in a row."""

    rule = "P9"
    sentence = "no member twice in a row; no lite, leaving or unknown member enters one"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        holders = [member for member in after if member is not None]
        if len(set(holders)) != len(holders):
            self.fail(f"p{pid} names a member twice", host.name)
        ctx = member_of(host).ctx
        if not ctx.is_master or member_of(host).migrations.is_fetching:
            return
        for member in holders:
            if member in before:
                continue
            info = ctx.members.get(member)
            if info is None or info.lite:
                name = self.world.watch.name_of(member)
                self.fail(f"p{pid} gives a replica to {name}", host.name)


class EqualStamps(Checker):
    """P11: at rest all tables are one table, and every client's owners are its primaries."""

    rule = "P11"
    sentence = "all members' stamps are equal and equal to a recomputation"

    def quiet(self) -> None:
        """Q."""
        hosts = self.world.up_hosts()
        if not hosts:
            return
        first = member_of(hosts[0]).migrations.table
        for host in hosts:
            table = member_of(host).migrations.table
            if table.stamp != table.recompute_stamp():
                self.fail("the cached stamp is not that of the table", host.name)
            if table.stamp != first.stamp:
                self.fail(f"stamp {table.stamp}, {hosts[0].name} has {first.stamp}", host.name)
            elif table.rows != first.rows:
                self.fail("one stamp stands for two tables", host.name)


TABLE_CHECKERS: tuple[type[Checker], ...] = (
    RisingVersions,
    EqualVersions,
    OnePrimary,
    MasterDecides,
    CopiesKept,
    CommitOrder,
    OneVerdict,
    OneMigration,
    CleanRows,
    EqualStamps,
)
