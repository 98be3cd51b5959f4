"""Goal: who observes a member knows at each moment what it holds. Method: random histories; an
observer applies all that it is told to a mirror, which is compared after every step (design 0015).
"""

from __future__ import annotations

import msgspec
import pytest
from tests.property.test_replication_random import PARTITIONS, Story
from tests.unit.replication_net import Host, key, map_of, value

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.structures.map.locks import Locks
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.map.store import MapStore

Key = tuple[int, str]
MAPS = ("m", "b0", "a1")
"""With the backups of the story, without any, with an asynchronous one."""


class Mirror:
    """What a member holds, as far as an observer can tell."""

    def __init__(self) -> None:
        self.stores: dict[Key, MapStore] = {}
        self.changes: dict[Key, int] = {}

    def held(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """See ``Observer``."""
        place = (partition.pid, fragment.namespace)
        assert place not in self.stores, "what it replaces is discarded first"
        store = self.stores[place] = MapStore()
        cursor, last = fragment.store.open_cursor(), False
        while not last:
            data, _, last = fragment.store.export(cursor, 1_000)
            store.ingest(data)

    def changed(self, fragment: Fragment, operation: bytes) -> None:
        """See ``Observer``."""
        place = (fragment.partition_id, fragment.namespace)
        self.stores[place].apply(operation, 0, len(operation))
        self.changes[place] = self.changes.get(place, 0) + 1

    def discarded(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """See ``Observer``."""
        del self.stores[partition.pid, fragment.namespace]

    def check(self, host: Host) -> None:
        """The mirror shows the member as it is."""
        held = {
            (partition.pid, namespace): fragment.store
            for partition in host.plane.partitions
            for namespace, fragment in partition.fragments.items()
        }
        assert self.stores.keys() == held.keys()
        for place, store in held.items():
            mirror = self.stores[place]
            assert mirror.records == store.records, place  # type: ignore[attr-defined]
            own, told = store.locks or Locks(), mirror.locks or Locks()  # type: ignore[attr-defined]
            assert (own.held, own.unlocked) == (told.held, told.unlocked), place


class Observed(Story):
    """A history with an observer at each member, one of which comes when there are data already."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        maps = (MapSettings("default", self.backups), MapSettings("b0", 0), MapSettings("a1", 0, 1))
        settings = msgspec.structs.replace(self.net.settings, structures=maps)
        for host in self.net.hosts.values():
            host.ctx.settings = settings
        self.mirrors: dict[str, Mirror] = {}
        for name in self.names[1:]:
            self.observe(name)
        for _ in range(10):
            self.change()
        self.net.pump()
        self.observe(self.names[0])

    def observe(self, name: str) -> None:
        """Begin to watch a member."""
        mirror = self.mirrors[name] = Mirror()
        self.net[name].plane.holdings.observe(mirror)

    def change(self) -> None:
        """One change of any kind."""
        pid = self.rng.randrange(PARTITIONS)
        primary = self.rows[pid][0]
        if primary not in self.alive or not self.net[primary].plane.partitions[pid].writable:
            return
        host, name = self.net[primary], self.rng.choice(MAPS)
        partition, number = host.plane.partitions[pid], key(100_000 + self.rng.randrange(12))
        match self.rng.randrange(7):
            case 0:
                host.maps.remove(partition, map_of(name), number, None)
            case 1 if self.rng.random() < 0.2 and name != "m":
                host.maps.clear(partition, map_of(name), None)
            case 2:
                host.maps.set(partition, map_of(name), number, value("gone soon"), None, 200)
            case 3:
                host.maps.sweep(host.ctx.wall_ms, 100)
            case 4 if self.rng.random() < 0.1 and name != "m":
                self.destroy(name)
            case 5:
                self.lock(host, partition, map_of(name))
            case _:
                host.maps.put(partition, map_of(name), number, value(str(self.rng.random())), None)

    def lock(self, host: Host, partition: PartitionReplica, namespace: Namespace) -> None:
        """Lock or unlock a key that nobody writes."""
        self.reference = getattr(self, "reference", 0) + 1
        number, owner = key(200_000 + self.rng.randrange(3)), bytes(24)
        if self.rng.random() < 0.5:
            lease_ms = self.rng.choice((-1, 200))
            host.maps.locks.lock(
                partition, namespace, number, owner, lease_ms, self.reference, None
            )
        elif host.maps.locks.is_locked(partition, namespace, number):
            host.maps.locks.unlock(partition, namespace, number, owner, self.reference, None)

    def destroy(self, name: str) -> None:
        """A map ends; the members hear of it at once."""
        self.generation = getattr(self, "generation", 0) + 1
        for host in self.net.hosts.values():
            host.destroy(name, self.generation)

    def check(self) -> None:
        """Every mirror is right."""
        for name in self.alive:
            self.mirrors[name].check(self.net[name])


@pytest.mark.parametrize("seed", range(16))
def test_an_observer_knows_what_its_member_holds(seed: int) -> None:
    """After each step of a history of writes, syncs, moves, promotions, crashes and destructions;
    also of maps without backups.
    """
    story = Observed(seed)
    steps = (
        [story.change] * 10 + [story.write] * 2 + [story.wait] * 3 + [story.cut, story.mend]
        + [story.crash, story.refill, story.refill, story.move, story.swap]
    )  # fmt: skip
    for _ in range(120):
        story.rng.choice(steps)()
        story.check()
    while story.cuts:
        story.mend()
    story.net.advance(10_000_000)
    story.check()
    counted: dict[str, int] = {}
    for mirror in story.mirrors.values():
        for (_, namespace), count in mirror.changes.items():
            counted[namespace] = counted.get(namespace, 0) + count
    assert all(counted.get(f"map/{name}") for name in MAPS)
