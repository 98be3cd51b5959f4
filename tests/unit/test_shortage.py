"""Writes with fewer copies than they should have: counted, or refused where a map asks for it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.unit.admin_fakes import FakeNode, as_node, fakes
from tests.unit.engine_pump import Client, Error, Pump, quick_settings
from tests.unit.replication_net import SETTINGS, Net, map_of
from tests.unit.test_cluster_states import losing, set_state, unsafe
from tests.unit.test_serving_cluster import fill, get, key_of, put

from whimbrel.admin.documents import ClusterDocuments
from whimbrel.core import messages as m
from whimbrel.core.ids import namespace_of
from whimbrel.core.model import ClusterState
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import RetryableError
from whimbrel.serialization.data import to_data
from whimbrel.structures.map.settings import MapSettings
from whimbrel.wire.errors import OPERATION_TIMEOUT, RETRYABLE

MAPS = (
    MapSettings("default"),
    MapSettings("b0*", 0),
    MapSettings("kept*", 1, min_in_sync=1),
    MapSettings("twice", 2, min_in_sync=2),
)
ENTRY = {"thread_id": 1, **key_of(0)}
VALUE = to_data("new")
WRITES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("put", {"value": VALUE, "ttl": -1}),
    ("set", {"value": VALUE, "ttl": -1}),
    ("putTransient", {"value": VALUE, "ttl": -1}),
    ("putIfAbsent", {"value": VALUE, "ttl": -1}),
    ("replace", {"value": VALUE}),
    ("replaceIfSame", {"test_value": to_data("value 0"), "value": VALUE}),
    ("remove", {}),
    ("removeIfSame", {"value": to_data("value 0")}),
    ("delete", {}),
    ("evict", {}),
    ("tryPut", {"value": VALUE, "timeout": 0}),
    ("tryRemove", {"timeout": 0}),
)


def documents(fake: FakeNode) -> ClusterDocuments:
    return ClusterDocuments(as_node(fake))


def short_by_map(fake: FakeNode) -> dict[str, int]:
    rows = asyncio.run(documents(fake).structures())
    return {row["name"]: row["writes_short_of_backups"] for row in rows}


def short_in_all(fake: FakeNode) -> int:
    total: int = asyncio.run(documents(fake).status())["writes_short_of_backups"]
    return total


# -- counting -----------------------------------------------------------------------------


def test_writes_between_a_join_and_its_copies_are_counted() -> None:
    """Goal: an acknowledgement with fewer backups than ``min(b, data members - 1)`` is counted in
    status, by map and in the metrics; one with all there can be is not. Method: one member; a
    second one joins while copies do not get through; then they do.
    """
    pump = Pump(quick_settings(migration_max_parallel=1))
    pump.form(1)
    client = pump.client(pump.nodes[0])
    (first,) = fakes(pump)
    fill(client, 10)
    fill(client, 10, "b0 none")
    assert short_in_all(first) == 0
    mend = losing(pump, (m.MigrationOpened,))
    joiner = pump.start()
    pump.run_until(lambda: joiner.joined, 20)
    first = fakes(pump)[0]
    movable = [pid for pid in range(7) if not _migrates(pump, pid)]
    for pid in movable:
        put(client, pid, "short")
        put(client, pid, "not asked for", "b0 none")
    assert movable
    assert short_in_all(first) == len(movable)
    assert short_by_map(first) == {"b1": len(movable), "b0 none": 0}
    assert first.engine.metrics()["writes_short_of_backups_total"] == len(movable)
    mend()
    pump.run_until(lambda: not unsafe(pump), 60)
    fill(client, 20)
    assert short_by_map(first) == {"b1": len(movable), "b0 none": 0}


def _migrates(pump: Pump, pid: int) -> bool:
    return any(node.engine.member.dataplane.partitions[pid].migrating for node in pump.living())


def test_a_seat_that_is_kept_is_due() -> None:
    """GCM-09: in FROZEN the copies of a dead member are missing: writes without them count, also
    those that were under way to it, and those after its return do not.
    """
    pump = Pump(quick_settings(state_lock_lease_us=20_000_000))
    pump.form(2)
    client = pump.client(pump.nodes[0])
    fill(client)
    set_state(pump, ClusterState.FROZEN)
    pump.kill(pump.nodes[1])
    pump.run(20)
    first = fakes(pump)[0]
    rows = pump.nodes[0].engine.member.migrations.table.rows
    mine = [pid for pid, row in enumerate(rows) if row[0] == pump.nodes[0].id]
    before = short_in_all(first)
    for pid in mine:
        put(client, pid, "one copy")
    assert short_in_all(first) == before + len(mine) > before


def test_a_backup_that_dies_with_writes_under_way() -> None:
    """Goal: what a dead backup had not acknowledged is acknowledged without it, and counted, unless
    there are no more members than copies. Method: acknowledgements are lost, then the member goes.
    """
    for staying, counted in (("ac", 3), ("a", 0)):
        net = Net("abc" if staying == "ac" else "ab")
        net.set_row(0, "ab", 2)
        net.drop = lambda sender, _to, _what: sender == "b"
        replies = [net.put("m", number, "x") for number in range(3)]
        net.pump()
        assert [reply.remaining for reply in replies] == [1, 1, 1]
        net.crash("b")
        net.set_members(staying)
        assert [reply.remaining for reply in replies] == [0, 0, 0]
        assert net["a"].plane.shortage.total == counted


@pytest.mark.parametrize("seed", range(30))
def test_the_count_against_a_twin(seed: int) -> None:
    """Goal: counting by versions counts what counting each write would. Method: random rows, lists
    and writes to maps of every depth; a twin looks at the acknowledgements of each single write.
    """
    generator = random.Random(seed)
    net = Net("abcd", SETTINGS)
    plane = net["a"].plane
    expected: dict[str, int] = {}
    version, listed, row = 2, "abcd", "abcd"
    net.set_row(0, row, version)
    for _ in range(60):
        deed = generator.random()
        if deed < 0.15:
            version += 1
            row = "".join(generator.sample("abcd", generator.randint(1, 4)))
            net.set_row(0, row, version)
        elif deed < 0.3:
            listed = "a" + "".join(one for one in "bcd" if generator.random() < 0.7)
            net.set_members(listed)
        elif plane.partitions[0].writable:
            name = generator.choice(["m", "b0", "b2", "b3", "a1"])
            reply = net.put(name, generator.randrange(4), "x")
            asked = SETTINGS.structure(MapSettings, name).backup_count
            is_short = reply.remaining < min(asked, len(listed) - 1)
            expected[name] = expected.get(name, 0) + is_short
        net.pump()
    found = plane.shortage.counts()
    counted = {name: found.get(namespace_of("map", name), 0) for name in expected}
    assert counted == expected
    assert plane.shortage.total == sum(expected.values())
    net.set_row(0, "b", version + 1)
    assert not plane.shortage._short, "who holds nothing keeps nothing for its figures"
    assert plane.shortage.total == sum(expected.values())


def test_a_destroyed_map_begins_at_zero() -> None:
    """Goal: the figures of a map are its own. Method: destroy a map with short writes."""
    net = Net("ab")
    net.set_row(0, "a", 2)
    net.put("m", 1, "x")
    plane = net["a"].plane
    plane.holdings.destroy(namespace_of("map", "m"), 1)
    assert plane.shortage.counts() == {}
    assert plane.shortage.total == 1


# -- refusing -----------------------------------------------------------------------------


@pytest.fixture
def alone() -> tuple[Pump, Client]:
    """A lone member with ten entries in a map without, and none in one with ``min_in_sync``."""
    pump = Pump(quick_settings(structures=MAPS))
    pump.form(1)
    client = pump.client(pump.nodes[0])
    fill(client, 10)
    return pump, client


@pytest.mark.parametrize(("method", "fields"), WRITES, ids=[method for method, _ in WRITES])
def test_a_write_with_too_few_backups_has_no_effect(method: str, fields: dict[str, Any]) -> None:
    """Goal: every write is refused as retryable before it has an effect. Method: two members with
    an entry; one dies and its copies are not made again, for there is nobody.
    """
    pump = Pump(quick_settings(structures=MAPS))
    pump.form(2)
    client = pump.client(pump.nodes[0])
    put(client, 0, "value 0", "kept")
    pump.kill(pump.nodes[1])
    pump.run(20)
    fragment = pump.nodes[0].engine.member.dataplane.partitions[0].fragments[map_of("kept")]
    before = (fragment.value, dict(fragment.store.records))  # type: ignore[attr-defined]
    with pytest.raises(Error, match=r"0 synchronous backups now, map\.kept\*\.min_in_sync") as told:
        client.call(f"Map.{method}", 0, name="kept", **ENTRY, **fields)
    assert told.value.code == RETRYABLE
    assert (fragment.value, dict(fragment.store.records)) == before  # type: ignore[attr-defined]
    assert get(client, 0, "kept") == to_data("value 0")
    assert put(client, 0, "no backup asked for", "b0 none") is None


def test_writes_are_admitted_when_their_backups_are_there(alone: tuple[Pump, Client]) -> None:
    """Goal: refused with none, also the first write and many at once; served when the copies are
    there, refused again when they are not; a member with enough asks nobody.
    """
    pump, client = alone
    plane = pump.nodes[0].engine.member.dataplane
    assert plane.outgoing.must_ask == 7
    with pytest.raises(Error):
        put(client, 1, "x", "kept")
    entries = [(to_data(f"key {number}"), VALUE) for number in range(3)]
    with pytest.raises(Error):
        client.call("Map.putAll", 1, name="kept", entries=entries, trigger_map_loader=False)
    assert map_of("kept") not in plane.partitions[1].fragments
    assert pump.nodes[0].engine.metrics()["refused_min_in_sync_total"] == 2
    assert pump.nodes[0].engine.metrics()["partitions_short_of_min_in_sync"] == 7
    put(client, 1, "x")
    pump.form(1)
    pump.run_until(lambda: not unsafe(pump), 30)
    put(client, 1, "x", "kept")
    with pytest.raises(Error, match=r"1 synchronous backups now, map\.twice\.min_in_sync asks"):
        put(client, 1, "x", "twice")
    pump.form(1)
    put(client, 1, "x", "b0 none")
    client.call("Client.createProxy", name="twice", service_name="hz:impl:mapService")
    pump.run_until(lambda: not unsafe(pump), 30)
    put(client, 1, "x", "twice")
    assert [node.engine.member.dataplane.outgoing.must_ask for node in pump.nodes] == [0, 0, 0]
    pump.kill(pump.nodes[2])
    pump.run(10)
    with pytest.raises(Error):
        put(client, 1, "y", "twice")
    put(client, 1, "y", "kept")


def test_a_clear_waits_for_the_backups(alone: tuple[Pump, Client]) -> None:
    """Goal: a whole-map write passes over no partition with too few backups and clears none there:
    it waits for them and ends as unknown when they do not come.
    """
    pump, client = alone
    pump.form(1)
    pump.run_until(lambda: not unsafe(pump), 30)
    fill(client, 20, "kept")
    pump.kill(pump.nodes[1])
    pump.run(10)
    asked = client.ask("Map.clear", name="kept")
    pump.run(1)
    assert asked not in client.messages
    assert client.call("Map.size", name="kept") == 20
    pump.start()
    client.answer(asked)
    assert client.call("Map.size", name="kept") == 0
    fill(client, 5, "kept")
    pump.kill(pump.nodes[2])
    pump.run(10)
    with pytest.raises(Error) as told:
        client.answer(client.ask("Map.clear", name="kept"), 200)
    assert told.value.code == OPERATION_TIMEOUT
    assert client.call("Map.size", name="kept") == 5


def test_an_asynchronous_backup_does_not_count() -> None:
    """Goal: only who is waited for is in step. Method: the row's one backup stands at an index
    that is asynchronous for one map and synchronous for the other.
    """
    maps = (MapSettings("m", 1, 1, min_in_sync=1), MapSettings("b2", 2, min_in_sync=1))
    net = Net("ab", CoreSettings(partition_count=4, structures=maps))
    net.set_row(0, "a-b", 2)
    assert net.put("b2", 1, "x").remaining == 1
    with pytest.raises(RetryableError, match="0 synchronous backups now"):
        net.put("m", 1, "x")


def test_a_dirty_backup_is_there() -> None:
    """Goal: a backup that lacks something older applies and acknowledges this write: it counts."""
    net = Net("ab", CoreSettings(partition_count=4, structures=MAPS))
    net.set_row(0, "ab", 2)
    net.put("kept", 1, "x")
    net.pump()
    net["b"].fragment(0, "kept").is_dirty = True
    reply = net.put("kept", 2, "y")
    net.pump()
    assert reply.remaining == 0
    assert len(net["b"].content(0, "kept")) == 2
    net.set_row(0, "a", 3)
    with pytest.raises(RetryableError, match="min_in_sync asks for 1"):
        net.put("kept", 3, "z")


def test_writes_are_asked_for_while_a_backup_is_lacking_and_no_longer() -> None:
    """Goal: the hot path asks from the very row that takes a backup away, until the row that
    brings it back; a structure that asks for nothing is never refused.
    """
    net = Net("ab", CoreSettings(partition_count=4, structures=MAPS[:3]))
    outgoing = net["a"].plane.outgoing
    net.set_row(0, "ab", 2)
    assert outgoing.must_ask == 0
    net.put("kept", 1, "x")
    net.set_row(0, "a", 3)
    assert outgoing.must_ask == 1
    with pytest.raises(RetryableError, match="min_in_sync asks for 1"):
        net.put("kept", 2, "y")
    assert net.put("b0", 2, "y").remaining == 0
    net.set_row(0, "ab", 4)
    assert outgoing.must_ask == 0
    assert net.put("kept", 2, "y").remaining == 1
