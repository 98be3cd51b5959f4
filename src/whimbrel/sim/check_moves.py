"""Rules of what services see of a migration, of bytes under way, of what is left over.

P13 is the rule of the upstream harness: before-events equal commit-events plus rollback-events,
matched one to one (ADL-71, ADL-72). P14 is the same for those who follow the master's processes.
"""

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
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import Purpose, TransferSent
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.sim.bug import replace
from whimbrel.sim.host import Host
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.world import World

RECORD_SLACK_BYTES = 4_096
"""A chunk may go over its limit by its last record and the namespace's name."""
PRUNED_US = 10_000_000
"""Beside two rounds of comparison, how long a backup may keep what its primary does not have."""


class HookOrder(Checker):
    """P13: every member's services, by the hook that the migration room offers."""

    rule = "P13"
    sentence = "services hear before any change of an index, then commit or rollback, once each"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._open: dict[str, dict[PartitionId, PartitionMigrationEvent]] = {}

    def started(self, host: Host) -> None:
        """Listen to a fresh process."""
        self._open[host.name] = {}
        member_of(host).migrations.set_hook(partial(self._told, host))

    def _told(self, host: Host, moment: Moment, event: PartitionMigrationEvent) -> None:
        if event.endpoint is Endpoint.MASTER or host.is_outside:
            return
        open_ones, pid = self._open[host.name], event.partition_id
        index = index_in(member_of(host).migrations.table.rows[pid], host.info.id)
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


class ProcessesTold(Checker):
    """P14: what listeners hear of a master's processes, whatever the replica index (PIM-58)."""

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
            row = member_of(host).migrations.table.rows[pid]
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
            if member_of(host).ctx.is_master and self._open[host.name]:
                self.fail(f"{self._open[host.name][0]} has no end", host.name)


class ChunksBounded(Checker):
    """X1: bytes of one migration under way (GCM-43, PIM-29)."""

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


class FreshReads(Checker):
    """D4: between a destination's commit and its source's nobody reads (ADL-20, GCM-32)."""

    rule = "D4"
    sentence = "with stale reads disabled nobody answers a read once another primary has committed"

    def started(self, host: Host) -> None:
        """Look at the reads of a fresh process."""
        if not self.world.plan.settings.stale_read_disabled:
            return
        maps = member_of(host).maps
        get = maps.get

        def probed_get(partition: PartitionReplica, *arguments: Any) -> bytes | None:
            if not host.is_outside:
                self._reads(host, partition.pid)
            return get(partition, *arguments)

        replace(maps, "get", probed_get)

    def _reads(self, host: Host, pid: PartitionId) -> None:
        if not self.world.reads_are_fresh():
            return
        version = member_of(host).migrations.table.versions[pid]
        for other in self.world.up_hosts():
            table = member_of(other).migrations.table
            if table.rows[pid][0] == other.info.id and table.versions[pid] > version:
                detail = f"p{pid} read at version {version}, {other.name} has {table.versions[pid]}"
                self.fail(detail, host.name)


class NothingIsLeft(Checker):
    """D8: a backup gives up, in bounded time, what its primary does not have (AE-17, AE-21)."""

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
            for replica in member_of(host).dataplane.partitions:
                primary = by_id.get(replica.row[0])
                if replica.index == NO_INDEX or primary is None or primary is host:
                    continue
                theirs = member_of(primary).dataplane.partitions[replica.pid].fragments
                for namespace, fragment in replica.fragments.items():
                    if namespace in theirs or not len(fragment.store):
                        continue
                    key = (host.info.id, replica.pid, namespace)
                    found[key] = self._since_us.get(key, world.now_us)
                    if world.now_us - found[key] > limit_us:
                        self.fail(f"p{replica.pid} {namespace}", host.name)
        self._since_us = found


MOVE_CHECKERS: tuple[type[Checker], ...] = (
    HookOrder,
    ProcessesTold,
    ChunksBounded,
    FreshReads,
    NothingIsLeft,
)
