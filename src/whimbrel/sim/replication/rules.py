"""Rules of replicas: D8, D9, R1 to R3, R5."""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId
from whimbrel.core.messages import (
    Purpose,
    ReplicaAsked,
    SyncRefused,
    SyncRequested,
    TransferAnswered,
    TransferSent,
    VersionsTold,
)
from whimbrel.core.messages.audit import Compare, GoOn
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.kinds import content_of
from whimbrel.sim.world import World

_SYNC_MESSAGES = (SyncRequested, TransferSent, TransferAnswered, SyncRefused)
PRUNED_US = 10_000_000
"""Beside two rounds of comparison, how long a backup may keep what its primary does not have."""
GAP = "a gap of two in backup versions"
LATE_SYNC = "a sync arrives after its receiver ceased to be a backup"
SYNC = "a backup is made equal to its primary"
COMPARED = "a copy begins with a comparison"
SAME = "a copy is there already, by its versions"
BY_LOG = "a copy goes by a log of changed keys"
LOG_GOES_ALONG = "a log of changed keys goes along with a copy"
KEYS = "an audit compares keys at one version"
WAITS = "a backup that is audited has not reached the version"


class NothingLeaks(Rule):
    """D8 (AE-03, ADL-34, ADL-73; Q): at rest nobody holds what it should not."""

    rule = "D8"
    sentence = "a fragment is held only at an index up to its structure's backup count"

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            for replica in host.member.dataplane.partitions:
                for namespace, fragment in replica.fragments.items():
                    if not 0 <= replica.index <= fragment.backup_count:
                        self.fail(f"p{replica.pid} {namespace} at index {replica.index}", host.name)
                        return


class NothingIsLeft(Rule):
    """D8 (AE-17, AE-21; Q): a backup gives up, in bounded time, what its primary does not have
    (AE-17, AE-21).
    """

    rule = "D8"
    sentence = "a backup does not keep for long what its primary does not have"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._since_us: dict[tuple[MemberId, int, str], int] = {}

    def quiet(self) -> None:
        """Q: what was left over at an earlier safe point and still is."""
        world = self.world
        limit_us = 2 * world.plan.settings.backup_sync_interval_us + PRUNED_US
        found: dict[tuple[MemberId, int, str], int] = {}
        hosts = world.up_hosts()
        by_id: dict[MemberId | None, Host] = {host.info.id: host for host in hosts}
        for host in hosts:
            for replica in host.member.dataplane.partitions:
                primary = by_id.get(replica.row[0])
                if replica.index == NO_INDEX or primary is None or primary is host:
                    continue
                theirs = primary.member.dataplane.partitions[replica.pid].fragments
                for namespace, fragment in replica.fragments.items():
                    if namespace in theirs or not len(fragment.store):
                        continue
                    key = (host.info.id, replica.pid, namespace)
                    found[key] = self._since_us.get(key, world.now_us)
                    if world.now_us - found[key] > limit_us:
                        self.fail(f"p{replica.pid} {namespace}", host.name)
        self._since_us = found


class ReplicasEqual(Rule):
    """D9 (AE-24; Q): at rest all replicas are equal, and accounts are those of the records.

    At a safe point clients may go on writing: a backup to which something is on its way is passed.
    """

    rule = "D9"
    sentence = "all replicas of a namespace are equal in content and version"

    def quiet(self) -> None:
        """Q."""
        hosts = self.world.up_hosts()
        by_id: dict[MemberId | None, Host] = {host.info.id: host for host in hosts}
        for host in hosts:
            for replica in host.member.dataplane.partitions:
                for fragment in replica.fragments.values():
                    if len(fragment.store) != len(content_of(fragment)):
                        count = len(fragment.store)
                        self.fail(f"p{replica.pid} counts {count} entries", host.name)
                primary = by_id.get(replica.row[0])
                if replica.index < 1 or primary is None or self._is_on_its_way(primary, host):
                    continue
                difference = replica_difference(
                    primary.member.dataplane.partitions[replica.pid], replica
                )
                if difference:
                    self.fail(f"p{replica.pid}: {difference}", host.name)
                    return

    @staticmethod
    def _is_on_its_way(primary: Host, backup: Host) -> bool:
        outbox = primary.member.dataplane.outgoing.outboxes.get(backup.info.id)
        return outbox is not None and bool(outbox.operations or outbox.in_flight)


class InOrder(Rule):
    """R1 (AE-05 to AE-09; E): what a backup does with an operation that is not the next one."""

    rule = "R1"
    sentence = "a backup ignores old operations, applies on a gap and marks itself dirty"

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E."""
        what = f"p{fragment.partition_id} {fragment.namespace}: version {before}, got {counter}"
        if counter <= before:
            if fragment.value != before or len(fragment.store) != entries:
                self.fail(f"{what}, took the old one", host.name)
        elif fragment.value != counter:
            self.fail(f"{what}, now at {fragment.value}", host.name)
        elif counter > before + 1 and not fragment.is_dirty:
            self.fail(f"{what}, the gap is not marked", host.name)


class PrimarySpeaks(Rule):
    """R2 (AE-12; E): versions and syncs of somebody who is not our primary change nothing."""

    rule = "R2"
    messages = (TransferSent, VersionsTold)
    sentence = "anti-entropy flows only from the primary"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._before: list[tuple[Host, PartitionId, object, MemberId]] = []

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        self._before.clear()
        if isinstance(message, TransferSent):
            pids = [message.partition_id] if message.purpose is Purpose.SYNC else []
        else:
            pids = [replica.partition_id for replica in message.replicas]
        rows = host.member.migrations.table.rows
        for pid in pids:
            if rows[pid][0] != sender:
                self._before.append((host, pid, vectors_of(host, pid), sender))

    def step(self, host: Host) -> None:
        """E."""
        if not self._before:
            return
        for where, pid, before, sender in self._before:
            if where is host and vectors_of(host, pid) != before:
                self.fail(f"p{pid} changed by {self.world.name_of(sender)}", host.name)
        self._before.clear()


class PermitsKept(Rule):
    """R3 (AE-14, AE-16; EQ): permits are never exceeded, and all come back."""

    rule = "R3"
    messages = _SYNC_MESSAGES
    sentence = "syncs in flight stay within the permits, and every permit comes back"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._held: dict[tuple[MemberId, tuple[MemberId, int]], int] = {}

    def step(self, host: Host) -> None:
        """E: looked at after the messages that take or give permits."""
        used = self._used(host)
        limit = self.world.plan.settings.replication_max_parallel
        if used > limit:
            self.fail(f"{used} permits are used, there are {limit}", host.name)

    def quiet(self) -> None:
        """Q: a sync of the last safe point that still holds permits will never give them back."""
        held: dict[tuple[MemberId, tuple[MemberId, int]], int] = {}
        for host in self.world.up_hosts():
            syncs = host.member.dataplane.syncs
            for key in syncs.exchange.given:
                held[host.info.id, key] = self._held.get((host.info.id, key), self.world.now_us)
        limit_us = self.world.now_us - 2 * self.world.plan.settings.migration_timeout_us
        for (member, key), since_us in held.items():
            if since_us < limit_us:
                self.fail(f"sync {key} holds permits since {since_us / 1e6:.1f} s", member[:8])
        self._held = held

    @staticmethod
    def _used(host: Host) -> int:
        syncs = host.member.dataplane.syncs
        return syncs.permits_requested + syncs.permits_served


class AuditsAreRight(Rule):
    """R5 (0018; E): an audit beside writes and faults reports nothing where nothing is damaged."""

    rule = "R5"
    sentence = "an audit reports no difference where replicas are as their primary"

    def note(self, host: Host, note: Note) -> None:
        """E: nothing is ever damaged here but by a bug."""
        if note.kind == "audit_over" and note.fields["differing"]:
            self.fail(
                f"{note.fields['differing']} entries, first {note.fields['first']}", host.name
            )


def replica_difference(primary: PartitionReplica, backup: PartitionReplica) -> str:
    """How a backup differs from its primary, in a few words; empty when it does not (D9)."""
    if primary.migrating or backup.migrating:
        return "the migrating flag is on"
    index = backup.index
    for namespace, fragment in primary.fragments.items():
        if index > fragment.backup_count:
            continue
        mine = content_of(fragment)
        other = backup.fragments.get(namespace)
        if other is None:
            if mine:
                return f"{namespace} is missing ({len(mine)} entries)"
            continue
        if other.is_dirty:
            return f"{namespace} is dirty"
        if content_of(other) != mine:
            return f"{namespace} has other entries"
        slot = max(index - 1, 0)
        if mine and other.counters()[slot:] != fragment.counters()[slot:]:
            return f"{namespace} has other versions"
    return ""


def vectors_of(host: Host, pid: PartitionId) -> dict[str, tuple[int, tuple[int, ...], int]]:
    """Lineage, counters and entries of each namespace, to see whether anything changed."""
    return {
        namespace: (fragment.lineage, fragment.counters(), len(fragment.store))
        for namespace, fragment in host.member.dataplane.partitions[pid].fragments.items()
    }


class ReplicationSightings(Sightings):
    """Gaps, and how they are made good."""

    messages = (TransferSent, ReplicaAsked)
    situations = (GAP, LATE_SYNC, SYNC, COMPARED, SAME, BY_LOG, LOG_GOES_ALONG, KEYS, WAITS)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        if isinstance(message, ReplicaAsked):
            if isinstance(message.question, Compare):
                self.saw(KEYS)
            elif isinstance(message.question, GoOn):
                self.saw(WAITS)
            return
        for part in message.parts:
            if part.first and part.bits:
                self.saw(COMPARED)
            elif part.first and part.is_same:
                self.saw(SAME)
            if part.is_told:
                self.saw(BY_LOG)
            if part.log is not None and part.log.keys:
                self.saw(LOG_GOES_ALONG)
        if message.purpose is not Purpose.SYNC:
            return
        if message.last:
            self.saw(SYNC)
        if host.member.migrations.table.rows[message.partition_id][0] != sender:
            self.saw(LATE_SYNC)

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E."""
        if counter == before + 2:
            self.saw(GAP)


RULES: tuple[type[Rule], ...] = (
    NothingLeaks,
    ReplicasEqual,
    InOrder,
    PrimarySpeaks,
    PermitsKept,
    NothingIsLeft,
    AuditsAreRight,
    ReplicationSightings,
)
