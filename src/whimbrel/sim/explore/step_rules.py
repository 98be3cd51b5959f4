"""The simulator's rules, fed from snapshots: what they need of a world, and nothing else.

A rule of ``whimbrel.sim`` collects history along one run. An exploration has a tree of
histories, so a rule gets here what it must remember from the state itself, and is otherwise the
very same code.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.member import Member
from whimbrel.core.safety import doubted_because
from whimbrel.core.stimuli import Received
from whimbrel.sim.disks.rules import is_idle, is_told
from whimbrel.sim.explore.worlds import TinyWorld, identity_of, name_of
from whimbrel.sim.host import Host
from whimbrel.sim.migration.rules import CommitOrder, OneVerdict
from whimbrel.sim.replication.rules import NothingLeaks, ReplicasEqual
from whimbrel.sim.safety.words import acting_master, restless_because, safety_words
from whimbrel.sim.table.rules import (
    CleanRows,
    CopiesKept,
    EqualStamps,
    MasterDecides,
    RisingVersions,
)
from whimbrel.sim.world import World

Broken = list[tuple[str, str]]


class FakeHost:
    """A member as the rules see a host."""

    is_up = joined = True
    is_paused = is_leaving = lite = False

    def __init__(self, member: Member, stimulus: object = None) -> None:
        self.name = name_of(member.ctx.id)
        self.info = member.ctx.me
        self.stimulus = stimulus if isinstance(stimulus, Received) else None
        self.member = member


class _Profile(msgspec.Struct):
    split: bool = False
    over_budget: bool = False


class _Plan(msgspec.Struct):
    settings: object
    backup_count: int
    async_backup_count: int
    profile: _Profile


class FakeWorld:
    """Some members as the rules see a world."""

    def __init__(self, world: TinyWorld) -> None:
        self.plan = _Plan(world.settings, copies_promised(world) - 1, 0, _Profile())
        self.hosts: list[FakeHost] = []
        self.broken: Broken = []

    def up_hosts(self) -> list[FakeHost]:
        """All members there are."""
        return self.hosts

    def violation(self, rule: str, sentence: str, who: str = "", _error: object = None) -> None:
        """Collect a broken rule."""
        self.broken.append((rule, f"{who}: {sentence}" if who else sentence))

    def name_of(self, member: MemberId | None) -> str:
        """For people."""
        return "-" if member is None else name_of(member)

    def host_of(self, member: MemberId | None) -> FakeHost | None:
        """The member, if it is there."""
        return next((host for host in self.hosts if host.info.id == member), None)

    def take(self) -> Broken:
        """Rules broken since the last take."""
        broken, self.broken = self.broken, []
        return broken


def copies_promised(world: TinyWorld) -> int:
    """Replicas that a world's plan never goes below."""
    rows = (*world.rows_before, *world.rows_after)
    return min(sum(slot is not None for slot in row) for row in rows)


def copies_ahead(world: TinyWorld) -> int:
    """Replicas without a hole before them in each row a world ends with."""
    return min((*row, None).index(None) for row in world.rows_after)


class StepRules:
    """Rules about one member's step, and about all members at once."""

    def __init__(self, world: TinyWorld) -> None:
        self._one = FakeWorld(world)
        self._all = FakeWorld(world)
        self._ahead = self._all.plan.backup_count = copies_ahead(world) - 1
        """Backups that each row ends with before its first hole."""
        one, every = cast("World", self._one), cast("World", self._all)
        self._rising = RisingVersions(one)
        self._copies = CopiesKept(one)
        self._at_row = (MasterDecides(one), CleanRows(one))
        self._order = CommitOrder(every)
        self._quiet = (
            OneVerdict(every), EqualStamps(every), NothingLeaks(every), ReplicasEqual(every),
        )  # fmt: skip

    @staticmethod
    def host(member: Member, stimulus: object) -> FakeHost:
        """A member with what it is handling."""
        return FakeHost(member, stimulus)

    def row(
        self,
        host: FakeHost,
        pid: PartitionId,
        before: Row,
        after: Row,
        version_before: int,
        version: int,
    ) -> Broken:
        """P1, P4, P5, P9: a row changes in a member's table."""
        place = cast("Host", host)
        self._one.hosts = [host]
        self._rising._versions[host.name] = {pid: version_before}
        self._rising.row(place, pid, before, after, version)
        if host.member.ctx.members.recovery is not None:
            return self._one.take()  # rows out of files, in force with a list of the master's
        if host.member.migrations.loop.recovery.running:
            self._taken_over(host, pid, before, after)
        else:
            self._copies._needed[host.name] = self._copies._needed_now(place)
            self._copies.row(place, pid, before, after, version)
        for rule in self._at_row:
            rule.row(place, pid, before, after, version)
        return self._one.take()

    def _taken_over(self, host: FakeHost, pid: PartitionId, before: Row, after: Row) -> None:
        """P5 for a row that the former master decided: who has died since was there then."""
        listed = host.member.ctx.members
        holders = [one for one in after if one is not None]
        dropped = [
            one for one in before if one is not None and one not in after and listed.get(one)
        ]
        added = [one for one in holders if one not in before]
        staying = {member.id for member in host.member.ctx.data_members()} | set(holders)
        needed = min(1 + self._one.plan.backup_count, len(staying))
        if len(dropped) > len(added) and len(holders) < needed:
            self._one.violation(
                "P5",
                f"p{pid} taken over without {dropped}, {needed} replicas are needed",
                host.name,
            )

    def commit_order(
        self,
        members: list[Member],
        who: str,
        rows: tuple[tuple[PartitionId, Row, Row, int], ...],
        stimulus: object,
    ) -> Broken:
        """P6: rows have just changed at one of these members, because of what it handled."""
        self._all.hosts = [FakeHost(member, stimulus) for member in members]
        place = cast("Any", self._all.host_of(identity_of(who)))
        if place is not None:
            for pid, before, after, version in rows:
                self._order.row(place, pid, before, after, version)
        return self._all.take()

    def unsafe_because(self, members: list[Member]) -> str:
        """Why a state in which nothing is on its way is not settled; empty when it is."""
        self._all.hosts = [FakeHost(member) for member in members]
        world = cast("World", self._all)
        words, master = safety_words(world), acting_master(world)
        if words is None or master is None:
            return "there is no master"
        # How deep the rows end is the world's affair: it is given the steps and not the aim.
        reason = restless_because(world) or _unserved(members) or doubted_because(*words)
        if reason:
            return reason
        depth = min(1 + self._ahead, len(members))
        for pid, row in enumerate(master.migrations.table.rows):
            if any(self._all.host_of(one) is None for one in row[:depth]):
                return f"p{pid} has a hole within its first {depth} indexes"
        # The others forget with the next publication, whatever it is about (ADL-25).
        masters = [member for member in members if member.migrations.loop.in_charge]
        waiting = any(member.migrations.completed_migrations() for member in masters)
        return "finished migrations are not forgotten" if waiting else ""

    def at_rest(self, members: list[Member]) -> Broken:
        """P7, P11, D8, D9: what must hold in a settled state."""
        self._all.hosts = [FakeHost(member) for member in members]
        for rule in self._quiet:
            rule.quiet()
        return self._all.take()


def _unserved(members: list[Member]) -> str:
    """Who does not serve, or has something on its way to its disk."""
    for member in members:
        log = member.persistence.log
        if not member.is_joined:
            return f"{name_of(member.ctx.id)} does not serve yet"
        if log is not None and not (is_idle(log) and is_told(log)):
            return f"the disk of {name_of(member.ctx.id)} has not caught up"
    return ""
