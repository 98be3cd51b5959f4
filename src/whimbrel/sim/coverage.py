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
    FragmentSent,
    MigrationCommitRequested,
    MigrationRequested,
    SyncSent,
    TablePublished,
)
from whimbrel.core.model import MemberList, MigrationKind, Verdict
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.check_table import STALE_WRITE
from whimbrel.sim.host import Host
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

KINDS = tuple(f"migration {kind.value}" for kind in MigrationKind)
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
    *(STALE_PRIMARY, FEW_BACKUPS, STALE_WRITE, OLD_WORDS),
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
    "merge of equal halves": "the simulated workload does not judge merged data",
    "every merge policy": "the simulated workload does not judge merged data",
    "a cycle is dropped": "the assignment makes none (P10 checks it); a property test drops them",
    "torn tail": "members keep no files",
    "fsync failure": "members keep no files",
    "recovery interrupted": "members keep no files",
    "disk full": "members keep no files",
}
"""Of the list, what no run can meet, and why."""


class Sightings(Checker):
    """Writes down what came about; breaks no rule."""

    rule = ""
    messages = (
        TablePublished,
        MigrationRequested,
        FragmentSent,
        MigrationCommitRequested,
        SyncSent,
    )

    def saw(self, name: str) -> None:
        """A situation has come about."""
        self.world.sometimes(name)

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        migrations = member_of(host).migrations
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
        if isinstance(message, SyncSent):
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
        if note.kind == "partition.lost":
            self.saw(LOST)
        elif note.kind == "was_paused":
            mine = host.info.id
            if member_of(host).migrations.table.primary_count(mine) and not any(
                member_of(other).ctx.is_member(mine)
                for other in self.world.up_hosts()
                if other is not host
            ):
                self.saw(STALE_PRIMARY)

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
