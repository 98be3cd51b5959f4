"""Rules of the partition table: P1 to P5, P9 to P11, L4."""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.jobs import finish
from whimbrel.core.messages import (
    LegacyTablePublished,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    PromotionRequested,
    TablePublished,
)
from whimbrel.core.model import MemberList, MigrationKind
from whimbrel.core.partition.planner import has_cycle, plan_row
from whimbrel.core.stimuli import Received
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import STALENESS, World

STALE_WRITE = "a stale primary takes a write"
_TABLES = (TablePublished, LegacyTablePublished)
_FROM_MASTER = (*_TABLES, PromotionRequested, MigrationCommitRequested, MigrationRequested)
CHANGES_PER_REPLICA = 2
"""Row changes per configured replica after the last change of the list (L4)."""
STALE_TABLE = "a stale table arrives"
DIRTY_PROMOTION = "a backup is promoted while it is dirty"
STALE_PRIMARY = "a paused primary wakes after it was removed"
PROMOTION = f"migration {MigrationKind.PROMOTION.value}"


class RisingVersions(Rule):
    """P1 (ADL-07, ADL-08, PIM-03; T): every member's partition versions only rise, and only the
    master's word counts.
    """

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
        stimulus = host.stimulus
        if isinstance(stimulus, Received) and isinstance(stimulus.message, _FROM_MASTER):
            ctx = host.member.ctx
            if stimulus.sender not in (ctx.master, ctx.id):
                sender = self.world.name_of(stimulus.sender)
                self.fail(f"p{pid} taken from {sender}, who is not the master", host.name)


class EqualVersions(Rule):
    """P2 (ADL-07, PIM-02; T): one version of one master means one row."""

    rule = "P2"
    sentence = "equal master, partition and version imply equal rows on any two members"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rows: dict[tuple[int, int, MemberId | None, int], Row] = {}

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        key = (pid, version, host.member.ctx.master, self.world.era)
        if self._rows.setdefault(key, after) != after:
            self.fail(f"p{pid} version {version}", host.name)


class OnePrimary(Rule):
    """P3 (ADL-06, ADL-09; E): whoever accepts writes under a lower version than somebody else did
    is stale.
    """

    rule = "P3"
    sentence = "one member accepts writes as primary per partition and version; none goes back"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._newest: dict[tuple[int, MemberId | None, int], tuple[int, MemberId, int]] = {}

    def accepted(self, host: Host, pid: PartitionId) -> None:
        """E."""
        member = host.member
        version, mine = member.migrations.table.versions[pid], host.info.id
        key = (pid, member.ctx.master, self.world.era)
        newest = self._newest.get(key)
        if newest is None or version > newest[0]:
            self._newest[key] = (version, mine, self.world.now_us)
        elif newest[1] == mine:
            return
        elif version == newest[0] or not self._may_be_stale():
            other = self.world.name_of(newest[1])
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


class MasterDecides(Rule):
    """P4 (ADL-02; T): a row changes at the master, or because of the master's word."""

    rule = "P4"
    sentence = "only a master's decision changes the table"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        if host.member.ctx.is_master:
            return
        stimulus = host.stimulus
        if not isinstance(stimulus, Received) or not isinstance(
            stimulus.message, (*_FROM_MASTER, MigrationOpened)
        ):
            what = type(stimulus.message if isinstance(stimulus, Received) else stimulus).__name__
            self.fail(f"p{pid} changed by {what}", host.name)


class CopiesKept(Rule):
    """P5 (ADL-46; T): a plan never lowers the number of complete replicas below what it must end
    with.

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
        ctx = host.member.ctx
        plan = self.world.plan
        stay = [info for info in ctx.data_members() if info.id not in ctx.leaving]
        if plan.settings.member_group != "member":
            return min(1 + plan.backup_count + plan.async_backup_count, len({m.host for m in stay}))
        return min(1 + plan.backup_count + plan.async_backup_count, len(stay))

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        ctx = host.member.ctx
        if not ctx.is_master:
            return
        members = ctx.members
        had = sum(one is not None and members.get(one) is not None for one in before)
        has = sum(one is not None and members.get(one) is not None for one in after)
        needed = min(self._needed[host.name], self._needed_now(host))
        if has < had and has < needed and self._loses_data(ctx.members, pid, before, after):
            self.fail(f"p{pid} from {had} to {has} replicas, {needed} are needed", host.name)

    def _loses_data(self, members: MemberList, pid: PartitionId, before: Row, after: Row) -> bool:
        """Whether one that loses its seat has data; who came back to it may have none (GCM-09).

        Nor has a new process that does not know yet that a row still names it.
        """
        for member in before:
            if member is None or member in after or members.get(member) is None:
                continue
            host = self.world.host_of(member)
            if host is None:
                return True
            replica = host.member.dataplane.partitions[pid]
            if replica.index >= 0 and replica.has_data:
                return True
        return False


class CleanRows(Rule):
    """P9 (ADL-01, GCM-14; T): who may stand in a row."""

    rule = "P9"
    sentence = "no member twice in a row; no lite, leaving or unknown member enters one"

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        holders = [member for member in after if member is not None]
        if len(set(holders)) != len(holders):
            self.fail(f"p{pid} names a member twice", host.name)
        ctx = host.member.ctx
        if not ctx.is_master or host.member.migrations.loop.recovery.running:
            return
        for member in holders:
            if member in before:
                continue
            info = ctx.members.get(member)
            if info is None or info.lite:
                name = self.world.name_of(member)
                self.fail(f"p{pid} gives a replica to {name}", host.name)


class BalancedPlans(Rule):
    """P10 (ADL-50, ADL-51; Q): no cycle is carried out; at rest nothing is left to plan and members
    are level.

    Primaries are not judged: with few partitions the holders that stay do not always allow them
    to be level without further copies, and none are spent on that (``partition.assignment``).
    """

    rule = "P10"
    sentence = "no cycle is planned, at rest nothing is due, and replicas differ by at most one"

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            member = host.member
            if member.ctx.is_master:
                self._look(host)

    def _look(self, host: Host) -> None:
        member = host.member
        rows = member.migrations.table.rows
        for pid, target in enumerate(finish(member.migrations.loop._targets())):
            row = rows[pid]
            if row == target:
                continue
            if has_cycle(row, target):
                self.fail(f"p{pid}: the target is reached by a cycle only", host.name)
            elif plan_row(row, target):
                self.fail(f"p{pid}: there is still something to plan at rest", host.name)
        data = [info.id for info in member.ctx.data_members()]
        plan = self.world.plan
        if (
            member.migrations.loop.replica_depth >= len(data)
            or plan.settings.member_group != "member"
        ):
            return  # every place is forced then (docs/design/0003, "Known limits")
        counts = [member.migrations.table.replica_count(one) for one in data]
        is_deep = plan.settings.plan_depth == "deep"
        if counts and max(counts) - min(counts) > 1 and not is_deep:
            self.fail(f"replicas per member at rest: {counts}", host.name)


class EqualStamps(Rule):
    """P11 (PIM-16, PIM-17; Q): at rest all tables are one table, and every client's owners are its
    primaries.
    """

    rule = "P11"
    sentence = "all members' stamps are equal and equal to a recomputation"

    def quiet(self) -> None:
        """Q."""
        hosts = self.world.up_hosts()
        if not hosts:
            return
        first = hosts[0].member.migrations.table
        for host in hosts:
            table = host.member.migrations.table
            if table.stamp != table.recompute_stamp():
                self.fail("the cached stamp is not that of the table", host.name)
            if table.stamp != first.stamp:
                self.fail(f"stamp {table.stamp}, {hosts[0].name} has {first.stamp}", host.name)
            elif table.rows != first.rows:
                self.fail("one stamp stands for two tables", host.name)


class NoPingPong(Rule):
    """L4 (ADL-50, PIM-28; T): after the last fault and the last change of the list the table comes
    to rest.

    Counted during harm as well: between two faults of a long run a table may go to and fro for
    minutes. A failed migration changes the version of a row and not the row, and is not counted.
    """

    rule = "L4"
    sentence = "row changes after the last change of the member list are bounded"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._changes: dict[str, int] = {}
        self._faults = 0
        """Faults when the counting began."""
        plan = world.plan
        depth = 1 + plan.backup_count + plan.async_backup_count
        if plan.settings.plan_depth == "deep":
            depth = 7
        # A migration that fails late is undone, and some plans follow faults by a time-out.
        self._limit = 3 * plan.settings.partition_count * depth * CHANGES_PER_REPLICA + 20

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        self._changes.clear()

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T."""
        faults = sum(self.world.fault_counts.values())
        if faults != self._faults:
            self._faults = faults
            self._changes.clear()
        if before != after and host.member.ctx.is_master:
            count = self._changes[host.name] = self._changes.get(host.name, 0) + 1
            if count == self._limit:
                self.fail(f"{count} row changes and no end", host.name)


class TableSightings(Sightings):
    """Old news, promotions, primaries that are none any more."""

    messages = (TablePublished,)
    situations = (STALE_TABLE, DIRTY_PROMOTION, STALE_PRIMARY, STALE_WRITE, PROMOTION)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        image, versions = message.image, host.member.migrations.table.versions
        numbers = zip(image.partitions, image.versions, strict=True)
        if any(version < versions[pid] for pid, version in numbers):
            self.saw(STALE_TABLE)

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: the row is there, the data have not followed."""
        mine = host.info.id
        if after[0] != mine or before[0] == mine or index_in(before, mine) < 1:
            return
        self.saw(PROMOTION)
        partition = host.member.dataplane.partitions[pid]
        if any(fragment.is_dirty for fragment in partition.fragments.values()):
            self.saw(DIRTY_PROMOTION)

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind == "was_paused":
            mine = host.info.id
            if host.member.migrations.table.primary_count(mine) and not any(
                other.member.ctx.is_member(mine)
                for other in self.world.up_hosts()
                if other is not host
            ):
                self.saw(STALE_PRIMARY)


RULES: tuple[type[Rule], ...] = (
    RisingVersions,
    EqualVersions,
    OnePrimary,
    MasterDecides,
    CopiesKept,
    CleanRows,
    EqualStamps,
    BalancedPlans,
    NoPingPong,
    TableSightings,
)
