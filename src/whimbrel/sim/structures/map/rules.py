"""Rules of maps alone: D1 to D4, D14, C3."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Namespace, PartitionId, namespace_of
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.sim.bug import replace
from whimbrel.sim.history import ABSENT, Operation, Outcome, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.configured import BOUNDED_ENTRIES, BOUNDED_MAP
from whimbrel.sim.structures.map.model import (
    MORTAL_MAP,
    REGISTER_MAP,
    WRITTEN_AGAIN,
    KeyLedger,
    MapOperation,
    MapRead,
    MapScan,
    store_of,
)
from whimbrel.sim.world import ClientProcess, World
from whimbrel.structures.map.eviction import quota_of
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.service import EVICTED_COUNTER, MapService

EVENT_US = 5_000_000
"""A listener hears of a change within this span, in a window without faults."""
EVICTS = "an entry is evicted to make room"
BOUNDED: Namespace = namespace_of("map", BOUNDED_MAP)


class NothingInvented(Rule):
    """D2 (promise table; H): every value read was written to that key before the read ended."""

    rule = "D2"
    sentence = "a value read for a key was written to that key"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        seen, writes = operation.seen, operation.ledger.changes
        if not seen or not isinstance(operation, MapOperation):
            return
        if seen > len(writes) or writes[seen - 1].effect != seen:
            self.fail(f"{operation!r} saw a write that was never begun")
        elif writes[seen - 1].outcome is Outcome.FAILED:
            self.fail(f"{operation!r} saw {writes[seen - 1]!r}")


class Linearizable(Rule):
    """D4 (promise table; H): reads of a key with one writer, judged where no stale primary may be
    about.

    The writer's order is known, so a read is right when it returns the newest write acknowledged
    before it began, or one that was begun since, or one of unknown outcome. In a calm window
    no later read may return an older value than an earlier one did.
    """

    rule = "D4"
    sentence = "reads of one key through its primary are linearizable in calm windows"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        seen = operation.seen
        if seen is None or not isinstance(operation, MapRead) or not operation.ledger.is_judged:
            return
        ledger, floor = operation.ledger, operation.floor
        if floor is not None and floor.outcome is not Outcome.OK:
            return  # lost with everybody since, or not; nobody had promised that it would not be
        since_us = operation.invoked_us if floor is None else floor.invoked_us
        calm = self.world.is_calm_since(since_us)
        if (calm or self.world.reads_are_fresh()) and not self._is_allowed(ledger, floor, seen):
            self.fail(f"{operation!r} is older than {floor!r}")
        if not seen:
            return
        newest = ledger.newest_seen
        if (
            newest is not None
            and newest.seen is not None
            and seen < newest.seen
            and newest.completed_us < operation.invoked_us
            and self.world.is_calm_since(newest.invoked_us)
            and ledger.changes[seen - 1].outcome is not Outcome.UNKNOWN
        ):
            self.fail(f"{operation!r} went back behind {newest!r}")
        if newest is None or newest.seen is None or seen >= newest.seen:
            ledger.newest_seen = operation

    @staticmethod
    def _is_allowed(ledger: KeyLedger, floor: Operation | None, seen: int) -> bool:
        if seen == (ABSENT if floor is None else floor.effect):
            return True
        least = 0 if floor is None else floor.number
        for write in reversed(ledger.changes):
            if write.number <= least:
                break
            if write.effect == seen and write.outcome is not Outcome.FAILED:
                return True
        return any(write.effect == seen for write in ledger.unknown)


class FreshReads(Rule):
    """D4 (ADL-20, GCM-32; E): between a destination's commit and its source's nobody reads."""

    rule = "D4"
    sentence = "with stale reads disabled nobody answers a read once another primary has committed"

    def started(self, host: Host) -> None:
        """Look at the reads of a fresh process."""
        if not self.world.plan.settings.stale_read_disabled:
            return
        maps = host.member.service(MapService)
        get = maps.get

        def probed_get(partition: PartitionReplica, *arguments: Any) -> bytes | None:
            if not host.is_outside:
                self._reads(host, partition.pid)
            return get(partition, *arguments)

        replace(maps, "get", probed_get)

    def _reads(self, host: Host, pid: PartitionId) -> None:
        if not self.world.reads_are_fresh():
            return
        version = host.member.migrations.table.versions[pid]
        for other in self.world.up_hosts():
            table = other.member.migrations.table
            if table.rows[pid][0] == other.info.id and table.versions[pid] > version:
                detail = f"p{pid} read at version {version}, {other.name} has {table.versions[pid]}"
                self.fail(detail, host.name)


class ExpiryHolds(Rule):
    """D3 (promise table; H): an entry with a time to live is there until then and gone afterwards,
    but for the skew of the clocks.
    """

    rule = "D3"
    sentence = "an expired key stays gone, and none goes before its time"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        world = self.world
        if not isinstance(operation, MapRead) or operation.ledger.name != MORTAL_MAP:
            return
        write = operation.ledger.changes[0]
        if operation.seen is None or write.outcome is not Outcome.OK:
            return
        world.clocks_jumped()
        skew_ms = max(world.plan.clock_skew_ms, world.clock_jumps_ms)
        drift = 1 + world.plan.clock_drift_ppm / 500_000
        slack_us = int((2 * skew_ms + 100) * 1_000 * drift)
        life_ms = operation.ledger.life_ms
        if operation.seen != ABSENT:
            if operation.invoked_us > write.completed_us + life_ms * 1_000 + slack_us:
                self.fail(f"{operation!r} saw what {write!r} wrote for {life_ms} ms")
        elif (
            operation.invoked_us > write.completed_us  # else it may have come before the write
            and operation.completed_us < write.invoked_us + life_ms * 1_000 - slack_us
            and world.data_is_promised()
            and (world.is_calm_since(write.invoked_us) or world.reads_are_fresh())
        ):
            self.fail(f"{operation!r} misses what {write!r} wrote for {life_ms} ms")


class WholeMapOnce(Rule):
    """D1 (promise table; H): a whole-map read in a calm window has every acknowledged key, and each
    once.
    """

    rule = "D1"
    sentence = "a whole-map read returns every acknowledged key once"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        world = self.world
        if not isinstance(operation, MapScan) or operation.outcome is not Outcome.OK:
            return
        if not world.is_calm_since(operation.invoked_us) or not world.data_is_promised():
            return
        found = {bytes(key) for key in operation.keys}
        if len(found) != len(operation.keys):
            self.fail(f"{operation!r}: {len(operation.keys)} keys, {len(found)} of them different")
        missing = [key for key in operation.expected if key not in found]
        if missing:
            self.fail(f"{operation!r} misses {len(missing)} keys")


class BoundKept(Rule):
    """D14 (promise table; EQ): looked at after each write to the bounded map, and at rest.

    A quota is a bound by the member list of the moment at which an entry comes. At rest a partition
    may have what was right when there were more members than now.
    """

    rule = "D14"
    sentence = "a map with a bound keeps to it, and has the entry that came last"

    def started(self, host: Host) -> None:
        """Look at the writes of a fresh process."""
        maps = host.member.service(MapService)
        put = maps.set
        counters = host.member.dataplane.counters

        def probed_put(
            partition: PartitionReplica, namespace: Namespace, key: bytes, *given: Any
        ) -> bytes | None:
            evicted = counters[EVICTED_COUNTER]
            old = put(partition, namespace, key, *given)
            if namespace == BOUNDED:
                self._came(host, partition, stored_key(key), is_new=old is None)
                if counters[EVICTED_COUNTER] > evicted:
                    self.world.sometimes(EVICTS)
            return old

        replace(maps, "set", probed_put)

    def _came(self, host: Host, partition: PartitionReplica, key: bytes, *, is_new: bool) -> None:
        records = store_of(partition.fragments[BOUNDED].store).records
        if key not in records:
            self.fail(f"p{partition.pid} has evicted what came last", host.name)
        quota = self._quota(len(host.member.ctx.data_members()))
        if is_new and len(records) > quota:
            self.fail(f"p{partition.pid} has {len(records)} entries, not {quota}", host.name)

    def _quota(self, data_members: int) -> int:
        count = self.world.plan.settings.partition_count
        return quota_of(BOUNDED_ENTRIES, data_members, count)

    def quiet(self) -> None:
        """Q."""
        quota = self._quota(self.world.plan.hosts)
        for host in self.world.up_hosts():
            for replica in host.member.dataplane.partitions:
                fragment = replica.fragments.get(BOUNDED)
                if replica.is_primary and fragment is not None and len(fragment.store) > quota:
                    count = len(fragment.store)
                    self.fail(f"p{replica.pid} rests with {count} entries", host.name)


class EventsArrive(Rule):
    """C3 (promise table; SH): a listener hears of every acknowledged change, of one key in order,
    in calm windows.
    """

    rule = "C3"
    sentence = "each acknowledged change is heard by listeners, and per key in order"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[tuple[str, int], tuple[int, int]] = {}
        self._due: dict[tuple[str, int, int], tuple[int, MapOperation]] = {}

    def listened(self, client: ClientProcess, key: int, number: int) -> None:
        """H."""
        self._due.pop((client.name, key, number), None)
        if not number:
            return
        last = self._heard.get((client.name, key))
        self._heard[client.name, key] = (number, self.world.now_us)
        if last is not None and number < last[0] and self.world.is_calm_since(last[1] - EVENT_US):
            self.fail(f"{client.name} heard #{last[0]} and then #{number} of key {key}")

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: from now on the event is due, unless it has come already."""
        world = self.world
        if (
            not isinstance(operation, MapOperation)
            or operation.ledger.name != REGISTER_MAP
            or operation.outcome is not Outcome.OK
            or operation.is_read
            or operation.effect == ABSENT
            or not world.is_calm_since(operation.invoked_us)
        ):
            return
        for client in world.clients:
            if not client.is_listening_since(operation.invoked_us):
                continue
            heard = self._heard.get((client.name, operation.ledger.key))
            if heard is None or heard[0] < operation.number:
                self._due[client.name, operation.ledger.key, operation.number] = (
                    world.now_us + EVENT_US,
                    operation,
                )

    def sample(self) -> None:
        """Look at what is overdue; a window that was disturbed is not judged."""
        if not self._due:
            return
        world = self.world
        for due, (deadline_us, operation) in list(self._due.items()):
            client = next(one for one in world.clients if one.name == due[0])
            calm = world.is_calm_since(operation.invoked_us)
            if not calm or not client.is_listening_since(operation.invoked_us):
                del self._due[due]
            elif world.now_us > deadline_us:
                del self._due[due]
                self.fail(f"{client.name} never heard of {operation!r}")


class MapSightings(Sightings):
    """What clients did; counted by the model."""

    situations = (WRITTEN_AGAIN, EVICTS)


RULES: tuple[type[Rule], ...] = (
    NothingInvented,
    Linearizable,
    EventsArrive,
    ExpiryHolds,
    WholeMapOnce,
    FreshReads,
    BoundKept,
    MapSightings,
)
