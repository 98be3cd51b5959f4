"""Goal: a map with a bound keeps it in a cluster, whoever comes, dies or was cut off, and clients
see what goes. Method: requests of clients to engines side by side, 7 partitions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.engine_pump import Client, quick_settings
from tests.unit.split_pump import SplitPump, data

from whimbrel.core.ids import namespace_of
from whimbrel.structures.map.eviction import quota_of
from whimbrel.structures.map.service import ADDED, EVICTED, EVICTED_COUNTER
from whimbrel.structures.map.settings import LRU, MapSettings
from whimbrel.structures.map.store import MapStore

NAME = "full"
PER_MEMBER = 14
SETTINGS = quick_settings(
    structures=(MapSettings("default"), MapSettings(NAME, max_size=PER_MEMBER, eviction_policy=LRU))
)


class Grid(SplitPump):
    """Members with the map, and what they hold of it."""

    def __init__(self, members: int) -> None:
        super().__init__(SETTINGS)
        self.form(members)

    def fill(self, client: Client, prefix: str, count: int = 200) -> list[bytes]:
        """Put entries one after the other; their keys."""
        names = [f"{prefix}{number}" for number in range(count)]
        for name in names:
            self.put(client, NAME, name, name)
        self.settle()
        return [data(name) for name in names]

    def fill_at_once(self, client: Client, prefix: str, count: int = 200) -> None:
        """Put entries with one call for each partition."""
        names = [f"{prefix}{number}" for number in range(count)]
        for pid in range(SETTINGS.partition_count):
            entries = [(data(name), data(name)) for name in names if self.pid(name) == pid]
            call: dict[str, Any] = {"entries": entries, "trigger_map_loader": True}
            client.call("Map.putAll", pid, name=NAME, **call)
        self.settle()

    def primaries(self) -> dict[int, dict[bytes, bytes]]:
        """The records of each partition at its primary; its backup has the same."""
        copies: dict[int, list[dict[bytes, bytes]]] = {}
        found: dict[int, dict[bytes, bytes]] = {}
        for node in self.living():
            for partition in node.engine.member.dataplane.partitions:
                fragment = partition.fragments.get(namespace_of("map", NAME))
                if fragment is None:
                    continue
                assert isinstance(fragment.store, MapStore)
                copies.setdefault(partition.pid, []).append(fragment.store.records)
                if partition.is_primary:
                    found[partition.pid] = fragment.store.records
        assert all(held == [held[0]] * 2 for held in copies.values())
        return found

    def check_bound(self) -> None:
        """Every partition is within its quota, and full."""
        quota = quota_of(PER_MEMBER, len(list(self.living())), SETTINGS.partition_count)
        assert {len(records) for records in self.primaries().values()} == {quota}

    @property
    def evicted(self) -> int:
        """As the members that live count it."""
        nodes = self.living()
        return sum(node.engine.member.dataplane.counters[EVICTED_COUNTER] for node in nodes)


@pytest.fixture
def grid() -> Grid:
    return Grid(3)


def test_a_client_hears_of_each_entry_that_goes(grid: Grid) -> None:
    """Every entry is told as added, and once as evicted if it is there no more."""
    listener = grid.client(grid.nodes[0])
    flags = ADDED | EVICTED
    fields = {"include_value": True, "listener_flags": flags, "local_only": False}
    listener.call("Map.addEntryListener", name=NAME, **fields)
    grid.settle()
    keys = grid.fill(grid.client(grid.nodes[1], number=2), "k")
    grid.check_bound()
    told = Counter((f["event_type"], f["key"]) for _, _, f in listener.taken_events())
    there = set(grid.client(grid.nodes[2], number=3).call("Map.keySet", name=NAME))
    assert told == Counter(
        [(ADDED, key) for key in keys] + [(EVICTED, key) for key in keys if key not in there]
    )
    assert grid.evicted == len(keys) - len(there) == 200 - 7 * 6


def test_a_bound_follows_the_members(grid: Grid) -> None:
    """The quota rises with a member that comes and falls with one that dies; many entries of one
    call obey as single ones do.
    """
    one = grid.client(grid.nodes[0])
    grid.fill_at_once(one, "a")
    grid.check_bound()
    grid.kill(grid.nodes[2])
    grid.run(30)
    grid.fill(one, "b")
    grid.check_bound()
    grid.start()
    grid.run(30)
    grid.fill_at_once(one, "c")
    grid.check_bound()
    assert grid.get(one, NAME, "c199") == "c199"


def test_what_a_part_held_is_merged_within_the_bound() -> None:
    """M6: both parts are full when they meet; together they have no more than one cluster may."""
    grid = Grid(4)
    big, small = grid.nodes[:3], grid.nodes[3:]
    one = grid.client(big[0])
    grid.fill(one, "before", 20)
    grid.separate(60, big, small)
    grid.fill(one, "big")
    grid.fill(grid.client(small[0], number=2), "small")
    grid.heal_and_wait()
    grid.run(30)
    assert sum(told["entries"] for told in grid.notes("split_brain.merging")) > 0
    quota = quota_of(PER_MEMBER, 4, SETTINGS.partition_count)
    assert all(0 < len(records) <= quota for records in grid.primaries().values())
    keys = {key for records in grid.primaries().values() for key in records}
    assert any(b"small" in key for key in keys) and any(b"big" in key for key in keys)
