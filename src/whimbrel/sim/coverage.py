"""The "sometimes" list: rare situations that a good set of runs must have met (reliability 3.8).

A run that meets none of them is too tame to prove anything. Each probe is derived from the true
state of the members or from the messages and notes that pass; the core has no probe in it. What
no run can meet yet is named with the reason, never silently left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import (
    MergeRequested,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    Purpose,
    TablePublished,
    TransferSent,
)
from whimbrel.core.model import ClusterState, MemberList, MigrationKind, Verdict
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.check_more import ONE_WAY
from whimbrel.sim.check_table import STALE_WRITE
from whimbrel.sim.host import Host
from whimbrel.sim.profile import MERGE_POLICIES
from whimbrel.sim.sim_client import Reply
from whimbrel.sim.stores import replica_of
from whimbrel.sim.traps import TRAPS
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.workload import READS, WRITTEN_AGAIN, Operation, Outcome
from whimbrel.wire import errors as codes

PREPARED = "the master dies between prepare and commit"
CONFIRMED = "the master dies between the destination's commit and publication"
DESTINATION = "the destination dies after its commit, before publication"
TWO_MASTERS = "two masters at once"
STALE_TABLE = "a stale table arrives"
DIRTY_PROMOTION = "a backup is promoted while it is dirty"
SHIFT_UP_BACK = "a SHIFT UP is rolled back"
GAP = "a gap of two in backup versions"
LATE_SYNC = "a sync arrives after its receiver ceased to be a backup"
SAME_ADDRESS = "a member starts on an address whose former member is still listed"
LOST = "a partition is lost"
STALE_PRIMARY = "a paused primary wakes after it was removed"
FEW_BACKUPS = "a write is acknowledged with fewer backups because the cluster is small"
OLD_WORDS = "a message of a process that is gone arrives"

EQUAL_HALVES = "equal halves are merged"
RETURNED = "a member finds its seat again while nobody new may join"
DIED_FROZEN = "a member dies while backups may not be promoted"
POSTPONED = "a plan is put off because of the cluster state"
STATE_REFUSED = "a change of the cluster state is refused"
MASTER_CHANGING = "the master dies while the cluster state changes"
PROMOTED = "a lite member becomes a data member"
DEMOTED = "a data member becomes lite"
ROLE_REFUSED = "a change of role is refused"
UPGRADED = "a cluster goes from 4.0 to 4.1 while it is in use"
SYNC = "a backup is made equal to its primary"

STATES = tuple(
    f"the cluster is {state.value}"
    for state in (ClusterState.NO_MIGRATION, ClusterState.FROZEN, ClusterState.PASSIVE)
)
POLICIES = tuple(f"merge by {policy}" for policy in MERGE_POLICIES)
KINDS = tuple(
    f"migration {kind.value}" for kind in MigrationKind if kind is not MigrationKind.STEP_DOWN
)
ERRORS = {
    codes.OVERLOAD: "error 20: overload",
    codes.PARTITION_MIGRATING: "error 39: a partition was busy for too long",
    codes.RETRYABLE: "error 46: try again",
    codes.INDETERMINATE: "error 80: indeterminate",
}
"""Codes that a well-behaved client can get; the others answer bad requests and are unit tests."""
SITUATIONS: tuple[str, ...] = (
    *(PREPARED, CONFIRMED, DESTINATION, TWO_MASTERS, STALE_TABLE, DIRTY_PROMOTION),
    *(SHIFT_UP_BACK, GAP, LATE_SYNC, WRITTEN_AGAIN, SAME_ADDRESS, LOST),
    *(STALE_PRIMARY, FEW_BACKUPS, STALE_WRITE, OLD_WORDS, SYNC, ONE_WAY, EQUAL_HALVES),
    *(RETURNED, DIED_FROZEN, POSTPONED, STATE_REFUSED, MASTER_CHANGING),
    *(PROMOTED, DEMOTED, ROLE_REFUSED, UPGRADED),
    *STATES,
    *POLICIES,
    *KINDS,
    *ERRORS.values(),
    *(
        f"killed {when} {kind.__name__ if isinstance(kind, type) else f'frame kind {kind}'}"
        for kind in TRAPS
        for when in ("before", "after")
    ),
)
"""Everything that a soak must have met."""
OUT_OF_REACH: dict[str, str] = {
    "migration STEP_DOWN": "no target of the assignment needs one (a property test shows it)",
    "a cycle is dropped": "the assignment makes none (P10 checks it); a property test drops them",
    "torn tail": "members keep no files",
    "fsync failure": "members keep no files",
    "recovery interrupted": "members keep no files",
    "disk full": "members keep no files",
}
"""Of the list, what no run can meet, and why."""


_NOTES = {
    "partition.lost": LOST,
    "migration.postponed": POSTPONED,
    "state_change_refused": STATE_REFUSED,
    "member_promoted": PROMOTED,
    "member_demoted": DEMOTED,
}
"""Notes that say by themselves what has come about."""


class Sightings(Checker):
    """Writes down what came about; breaks no rule."""

    rule = ""
    messages = (
        TablePublished,
        MigrationRequested,
        MigrationOpened,
        MigrationCommitRequested,
        TransferSent,
        MergeRequested,
    )

    def saw(self, name: str) -> None:
        """A situation has come about."""
        self.world.sometimes(name)

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        member = member_of(host)
        if not member.ctx.members.state.promotion_allowed:
            self.saw(DIED_FROZEN)
        if member.membership.states._transaction is not None:
            self.saw(MASTER_CHANGING)
        migrations = member.migrations
        for migration in migrations.running_migrations():
            destination = self.world.watch.host_of(migration.step.destination)
            self.saw(CONFIRMED if self._has_committed(destination, migration) else PREPARED)
        for other in self.world.up_hosts():
            if other is host or not member_of(other).migrations.is_in_charge:
                continue
            for migration in member_of(other).migrations.running_migrations():
                mine = migration.step.destination == host.info.id
                if mine and self._has_committed(host, migration):
                    self.saw(DESTINATION)

    @staticmethod
    def _has_committed(destination: Host | None, migration: Any) -> bool:
        if destination is None:
            return False
        version = member_of(destination).migrations.table.versions[migration.partition_id]
        return bool(version >= migration.with_verdict(Verdict.SUCCESS).final_version)

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.get(host.info.id) is not None and new.is_missing(host.info.id):
            self.saw(RETURNED)
        if new.state is not old.state and f"the cluster is {new.state.value}" in STATES:
            self.saw(f"the cluster is {new.state.value}")
        if old.members and old.cluster_version != new.cluster_version:
            self.saw(UPGRADED)
        if new.master == host.info.id:
            for other in self.world.up_hosts():
                if other is not host and member_of(other).ctx.is_master:
                    self.saw(TWO_MASTERS)

    def started(self, host: Host) -> None:
        """A process begins: is the one before it on this address still believed to be there?"""
        for other in self.world.up_hosts():
            if other is host:
                continue
            members = member_of(other).ctx.members.members
            if any(info.address == host.address for info in members):
                self.saw(SAME_ADDRESS)
                return

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        table = member_of(host).migrations.table
        if isinstance(message, MergeRequested):
            policy = self.world.plan.settings.map_settings(message.name).merge_policy
            self.saw(f"merge by {policy}")
            return
        if isinstance(message, TransferSent):
            if message.purpose is not Purpose.SYNC:
                return
            if message.last:
                self.saw(SYNC)
            if table.rows[message.partition_id][0] != sender:
                self.saw(LATE_SYNC)
            return
        if self.world.watch.host_of(sender) is None:
            self.saw(OLD_WORDS)
        if isinstance(message, TablePublished):
            image = message.image
            numbers = zip(image.partitions, image.versions, strict=True)
            if any(version < table.versions[pid] for pid, version in numbers):
                self.saw(STALE_TABLE)
        for migration in message.completed:
            if migration.verdict is Verdict.FAILED:
                if migration.step.kind in (
                    MigrationKind.SHIFT_UP,
                    MigrationKind.SHIFT_UP_SHIFT_DOWN,
                ):
                    self.saw(SHIFT_UP_BACK)
            else:
                self.saw(f"migration {migration.step.kind.value}")

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: the row is there, the data have not followed."""
        mine = host.info.id
        if after[0] != mine or before[0] == mine or index_in(before, mine) < 1:
            return
        self.saw(f"migration {MigrationKind.PROMOTION.value}")
        if any(fragment.is_dirty for fragment in replica_of(host, pid).fragments.values()):
            self.saw(DIRTY_PROMOTION)

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E."""
        if counter == before + 2:
            self.saw(GAP)

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind in _NOTES:
            self.saw(_NOTES[note.kind])
        elif note.kind == "role_change_ended" and note.fields["problem"]:
            self.saw(ROLE_REFUSED)
        elif note.kind == "expelled":
            self._look_at_halves(host)
        elif note.kind == "was_paused":
            mine = host.info.id
            if member_of(host).migrations.table.primary_count(mine) and not any(
                member_of(other).ctx.is_member(mine)
                for other in self.world.up_hosts()
                if other is not host
            ):
                self.saw(STALE_PRIMARY)

    def _look_at_halves(self, host: Host) -> None:
        """A master yields: is the part that goes on as big as its own?"""
        member = member_of(host)
        if not member.membership.is_split or not member.ctx.is_master:
            return
        for other in self.world.up_hosts():
            ctx = member_of(other).ctx
            is_apart = ctx.is_master and not ctx.is_member(host.info.id)
            if is_apart and len(ctx.data_members()) == len(member.ctx.data_members()):
                self.saw(EQUAL_HALVES)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        is_write = operation.outcome is Outcome.OK and operation.kind not in READS
        if is_write and self.world.data_member_count() <= self.world.plan.backup_count:
            self.saw(FEW_BACKUPS)


def report_lines(seen: Mapping[str, int]) -> list[str]:
    """The whole list with how often each situation was met, for people."""
    met = sum(1 for name in SITUATIONS if seen.get(name))
    lines = [f"{met} of {len(SITUATIONS)} situations were met"]
    lines += [f"{seen.get(name, 0):>9}  {name}" for name in SITUATIONS]
    lines += [f"        -  {name} (out of reach: {why})" for name, why in OUT_OF_REACH.items()]
    return lines
