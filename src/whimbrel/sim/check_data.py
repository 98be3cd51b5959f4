"""Rules of the data themselves: D6 to D9, D11, R1 to R3, X1, X2 (facts/reliability 3)."""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, Namespace, PartitionId, Row, index_in
from whimbrel.core.messages import (
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    Purpose,
    SyncRefused,
    SyncRequested,
    TransferAnswered,
    TransferSent,
    VersionsTold,
)
from whimbrel.core.model import MigrationInfo
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.host import Host
from whimbrel.sim.profile import Plan
from whimbrel.sim.stores import (
    entry_count,
    leaks_of,
    number_in,
    records_of,
    replica_difference,
    replica_of,
    store_of,
    vectors_of,
)
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.workload import ABSENT, SCRATCH_MAP
from whimbrel.sim.world import World

_SYNC_MESSAGES = (SyncRequested, TransferSent, TransferAnswered, SyncRefused)
BACKLOG_LOOKED_AT = 100_000
"""Events that may wait for a member that is paused."""
EVENTS_PER_S_MAX = 60_000
"""Events of clients and of data on the move in a simulated second, whatever the cluster's size; a
rebalance of many partitions makes some thousands, a message storm makes ever more."""
TURN_MAX = 1_000
"""Operations that one turn may add before the limit of those under way is looked at again."""
LOST_ALL = 6
"""Lost backup count that stands for "no replica is left"."""


class CopyRemains(Checker):
    """D6: looked at whenever a member drops a replica or ends.

    A write of unknown outcome may take effect after one that was acknowledged later: then the key
    may show that one (``KeyHistory.is_allowed``).
    """

    rule = "D6"
    messages = (
        MigrationOpened,
        TransferSent,
        TransferAnswered,
        MigrationRequested,
        MigrationCommitRequested,
        MigrationCommitAnswered,
    )
    sentence = "of every acknowledged write a complete copy exists at any instant"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._partition_of: dict[str, PartitionId] = {}
        self._concerned: tuple[Host, PartitionId] | None = None
        self._entries = 0

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E: remember which partition a message about a migration concerns, and what is there."""
        self._concerned = None
        migration = getattr(message, "migration", None)
        pid: PartitionId | None = None
        if isinstance(migration, MigrationInfo):
            pid = self._partition_of[migration.id] = migration.partition_id
        else:
            transfer = getattr(message, "transfer", "")
            pid = self._partition_of.get(transfer or message.migration_id)
        if pid is not None:
            self._concerned = (host, pid)
            self._entries = entry_count(host, pid)

    def step(self, host: Host) -> None:
        """E: after a message of a migration that made a member hold less than before."""
        if self._concerned is None or self._concerned[0] is not host:
            return
        pid = self._concerned[1]
        self._concerned = None
        if entry_count(host, pid) < self._entries:
            self._look(pid, host)

    def row_settled(
        self, host: Host, pid: PartitionId, before: Row, after: Row, version: int
    ) -> None:
        """T."""
        mine = host.info.id
        index, index_after = index_in(before, mine), index_in(after, mine)
        if index >= 0 and (index_after < 0 or index_after > index):
            self._look(pid, host)

    def ended(self, host: Host, reason: str) -> None:
        """E."""
        for pid in range(self.world.plan.settings.partition_count):
            self._look(pid, host)

    def _look(self, pid: int, host: Host) -> None:
        world = self.world
        if not world.data_is_promised() or world.violations:
            return
        hosts = world.up_hosts()
        stores: dict[Namespace, list[dict[bytes, bytes]]] = {}
        for history in world.workload.history.by_partition[pid]:
            acked = history.acked
            if acked is None or acked.effect == ABSENT or acked is not history.writes[-1]:
                continue
            records = stores.get(history.namespace)
            if records is None:
                records = stores[history.namespace] = records_of(hosts, pid, history.namespace)
            numbers = [number_in(held, history) for held in records]
            if not any(one >= acked.number or history.is_allowed(one) for one in numbers):
                self.fail(f"p{pid}: nobody holds {acked!r} any more", host.name)
                return


class LossIsTold(Checker):
    """D7: a lost partition is told, with the right count; nothing else is told as lost."""

    rule = "D7"
    sentence = "partition loss is signalled if and only if all replicas up to an index are gone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._expected: dict[str, dict[tuple[int, int], int]] = {}

    def started(self, host: Host) -> None:
        """A fresh process has told nothing; it tells what is lost of seats that it came back to."""
        self._expected[host.name] = {}
        dataplane = member_of(host).dataplane.recovery
        seat_lost = dataplane.on_seat_lost

        def probed(pid: PartitionId, count: int) -> None:
            self._lost(host, pid, count)
            if seat_lost is not None:
                seat_lost(pid, count)

        dataplane.on_seat_lost = probed

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: at the master a row loses its last replica, or one without primary gets one."""
        member = member_of(host)
        if not member.ctx.is_master or member.migrations.is_fetching:
            return
        if any(before) and not any(after):
            count = LOST_ALL
        elif any(before) and before[0] is None and after[0] is not None:
            count = index_in(before, after[0]) - 1
        else:
            return
        self._lost(host, pid, count)

    def _lost(self, host: Host, pid: PartitionId, count: int) -> None:
        self._book(host, pid, count, 1)
        within = count >= self.world.plan.backup_count and self.world.data_is_promised()
        if within and self._held_data(pid):
            self.fail(f"p{pid} lost {count} backups within the promise", host.name)

    def _held_data(self, pid: int) -> bool:
        return any(
            history.acked is not None and history.acked.effect != ABSENT
            for history in self.world.workload.history.by_partition[pid]
        )

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind != "partition.lost" or note.fields.get("known_before"):
            return  # what an earlier master saw and may have told
        pid, count = note.fields["partition"], note.fields["lost_backup_count"]
        self._book(host, int(pid or 0), int(count or 0), -1)

    def _book(self, host: Host, pid: int, count: int, change: int) -> None:
        open_ones = self._expected[host.name]
        left = open_ones.get((pid, count), 0) + change
        if left:
            open_ones[pid, count] = left
        else:
            open_ones.pop((pid, count), None)

    def quiet(self) -> None:
        """Q: what was lost has been told, what was told was lost."""
        for host in self.world.up_hosts():
            for (pid, count), left in self._expected[host.name].items():
                what = "was not told" if left > 0 else "was told, though a copy survived"
                self.fail(f"p{pid}, lost backup count {count}: {what}", host.name)
            self._expected[host.name] = {}


class NothingLeaks(Checker):
    """D8: at rest nobody holds what it should not."""

    rule = "D8"
    sentence = "a fragment is held only at an index up to its structure's backup count"

    def quiet(self) -> None:
        """Q."""
        for host in self.world.up_hosts():
            for leak in leaks_of(host)[:1]:
                self.fail(leak, host.name)


class NothingReturns(Checker):
    """D11: what was destroyed stays away, whatever copies of it were under way."""

    rule = "D11"
    sentence = "no entry of a destroyed map is there again"

    def quiet(self) -> None:
        """Q; not where a part that did not hear of it may be merged in."""
        workload = self.world.workload
        if self.world.plan.profile.split or not workload.destroyed_keys:
            return
        gone = {workload.history.key(SCRATCH_MAP, key).stored for key in workload.destroyed_keys}
        for host in self.world.up_hosts():
            for replica in member_of(host).dataplane.partitions:
                fragment = replica.maps.get(SCRATCH_MAP)
                if fragment is not None and not gone.isdisjoint(store_of(fragment).records):
                    self.fail(f"p{replica.pid} holds some at index {replica.index}", host.name)


class ReplicasEqual(Checker):
    """D9: at rest all replicas are equal, and accounts are those of the records.

    At a safe point clients may go on writing: a backup to which something is on its way is passed.
    """

    rule = "D9"
    sentence = "all replicas of a namespace are equal in content and version"

    def quiet(self) -> None:
        """Q."""
        hosts = self.world.up_hosts()
        by_id: dict[MemberId | None, Host] = {host.info.id: host for host in hosts}
        for host in hosts:
            for replica in member_of(host).dataplane.partitions:
                for fragment in replica.fragments.values():
                    store = store_of(fragment)
                    if len(store) != len(store.records):
                        self.fail(f"p{replica.pid} counts {len(store)} entries", host.name)
                primary = by_id.get(replica.row[0])
                if replica.index < 1 or primary is None or self._is_on_its_way(primary, host):
                    continue
                difference = replica_difference(
                    replica_of(primary, replica.pid), replica, replica.index
                )
                if difference:
                    self.fail(f"p{replica.pid}: {difference}", host.name)
                    return

    @staticmethod
    def _is_on_its_way(primary: Host, backup: Host) -> bool:
        outbox = member_of(primary).dataplane.outgoing.outboxes.get(backup.info.id)
        return outbox is not None and bool(outbox.operations or outbox.in_flight)


class InOrder(Checker):
    """R1: what a backup does with an operation that is not the next one."""

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


class PermitsKept(Checker):
    """R3: permits are never exceeded, and all come back."""

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
            syncs = member_of(host).dataplane.syncs
            for key in syncs.exchange.given:
                held[host.info.id, key] = self._held.get((host.info.id, key), self.world.now_us)
        limit_us = self.world.now_us - 2 * self.world.plan.settings.migration_timeout_us
        for (member, key), since_us in held.items():
            if since_us < limit_us:
                self.fail(f"sync {key} holds permits since {since_us / 1e6:.1f} s", member[:8])
        self._held = held

    @staticmethod
    def _used(host: Host) -> int:
        syncs = member_of(host).dataplane.syncs
        return syncs.permits_requested + syncs.permits_served


class Bounded(Checker):
    """X1: queues and buffers, looked at now and then."""

    rule = "X1"
    sentence = "queues, calls and buffers stay below their named limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last_us = 0
        self._last_events = 0

    def sample(self) -> None:
        """Looked at every quarter of a second."""
        limit = self.world.plan.settings.unacknowledged_backups_max
        for host in self.world.up_hosts():
            for outbox in member_of(host).dataplane.outgoing.outboxes.values():
                if outbox.in_flight > limit + TURN_MAX:
                    self.fail(f"{outbox.in_flight} backup operations wait", host.name)
            if host.backlog > BACKLOG_LOOKED_AT:
                self.fail(f"{host.backlog} events wait for a paused member", host.name)
        self._look_at_rate()

    def _look_at_rate(self) -> None:
        """Members that keep one another busy for nothing are a queue without a bound, too."""
        world = self.world
        span_us = world.now_us - self._last_us
        if span_us < 1_000_000:
            return
        rate = (world.scheduler.events - self._last_events) * 1_000_000 // span_us
        self._last_us, self._last_events = world.now_us, world.scheduler.events
        limit = events_per_s_max(world.plan)
        if rate > limit:
            self.fail(f"{rate} events in a simulated second, {limit} are allowed")


def events_per_s_max(plan: Plan) -> int:
    """How many events a simulated second may have at most, in the busiest case there is.

    That is a cluster that comes to be in that second. Per ordered pair of its places: a question
    and its answer in each round of discovery, and the heartbeats, with their timers. Per slot of
    the table: it is filled once, which the master tells everybody, and everybody acknowledges.
    """
    settings = plan.settings
    pairs = plan.hosts * plan.hosts
    rounds_per_s = -(-1_000_000 // settings.discovery_interval_us)
    heartbeats_per_s = -(-1_000_000 // settings.heartbeat_interval_us)
    depth = 1 + plan.backup_count + plan.async_backup_count
    told = 2 * plan.hosts * settings.partition_count * depth
    return EVENTS_PER_S_MAX + 2 * pairs * (rounds_per_s + heartbeats_per_s) + told


class PrimarySpeaks(Checker):
    """R2: versions and syncs of somebody who is not our primary change nothing."""

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
        rows = member_of(host).migrations.table.rows
        for pid in pids:
            if rows[pid][0] != sender:
                self._before.append((host, pid, vectors_of(host, pid), sender))

    def step(self, host: Host) -> None:
        """E."""
        if not self._before:
            return
        for where, pid, before, sender in self._before:
            if where is host and vectors_of(host, pid) != before:
                self.fail(f"p{pid} changed by {self.world.watch.name_of(sender)}", host.name)
        self._before.clear()


class QuietNotes(Checker):
    """X2: an error is explained by a fault, or it is an error of ours."""

    rule = "X2"
    sentence = "no error is noted unless an injected fault explains it"

    def note(self, host: Host, note: Note) -> None:
        """E."""
        condemned = self.world.nemesis.is_condemned(host) or self.world.plan.profile.split
        if note.kind == "expelled" and condemned:
            return
        if note.kind == "stopped" and len(self.world.up_hosts()) == 1:
            return  # every other machine is silent: it must not found a cluster of its own
        if note.level == "error" and not note.kind.startswith("partition"):
            fields = ", ".join(f"{name}={value}" for name, value in note.fields.items())
            self.fail(f"{note.kind}: {fields}", host.name)


DATA_CHECKERS: tuple[type[Checker], ...] = (
    CopyRemains,
    LossIsTold,
    NothingLeaks,
    NothingReturns,
    ReplicasEqual,
    InOrder,
    PrimarySpeaks,
    PermitsKept,
    Bounded,
    QuietNotes,
)
