"""Goal: multimaps mean what Hazelcast's mean, as sets and as lists, wherever their keys are and
whoever dies. Method: requests of clients to engines side by side.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, quick_settings
from tests.unit.split_pump import SplitPump, data

from whimbrel.core.ids import PartitionId, namespace_of
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import UsageError
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.multimap import service as services
from whimbrel.structures.multimap.service import MultiMapService
from whimbrel.structures.multimap.settings import LIST, MultiMapSettings
from whimbrel.structures.multimap.store import MultiMapStore

SERVICE = "hz:impl:multiMapService"
STRUCTURES = (
    MapSettings("default"),
    MultiMapSettings("default"),
    MultiMapSettings("list*", value_collection_type=LIST),
    MultiMapSettings("deep", 2, 1),
)
ADDED, REMOVED, CLEAR_ALL = 1, 2, 64
TYPES = pytest.mark.parametrize("name", ["set", "list"])


class Grid(SplitPump):
    """Members with multimaps, and shorthand for the requests of a client."""

    def __init__(self, members: int, **changes: Any) -> None:
        super().__init__(quick_settings(**{"structures": STRUCTURES, **changes}))
        self.form(members)
        self.one = self.client(self.nodes[0])

    def call(self, method: str, name: str, at: Client | None = None, **fields: Any) -> Any:
        """A request about a key if there is one, else about a whole multimap."""
        pid = -1
        if "key" in fields:
            pid = self.pid(fields["key"])
            fields["key"] = data(fields["key"])
        if "value" in fields:
            fields["value"] = data(fields["value"])
        if pid >= 0 or method == "putAll":
            fields.setdefault("thread_id", 1)
        return (at or self.one).call(f"MultiMap.{method}", pid, name=name, **fields)

    def add(self, name: str, key: str, *values: str, at: Client | None = None) -> list[bool]:
        return [self.call("put", name, at, key=key, value=value) for value in values]

    def find(self, name: str, key: str, at: Client | None = None) -> list[str]:
        return texts(self.call("get", name, at, key=key))

    def held(self, node: Node, name: str) -> dict[int, tuple[Counter[Any], tuple[int, ...]]]:
        """What a member holds of a multimap, and its counters, by partition."""
        found: dict[int, tuple[Counter[Any], tuple[int, ...]]] = {}
        for partition in node.engine.member.dataplane.partitions:
            fragment = partition.fragments.get(namespace_of("multimap", name))
            if fragment is not None:
                assert isinstance(fragment.store, MultiMapStore)
                found[partition.pid] = Counter(fragment.store.items()), fragment.counters()
        return found

    def check_equal(self, name: str) -> None:
        """Each partition's replicas hold the same."""
        copies = [self.held(node, name) for node in self.living()]
        for pid in range(self.settings.partition_count):
            contents = [held[pid][0] for held in copies if pid in held and held[pid][0]]
            assert all(one == contents[0] for one in contents)
            assert len(contents) in (0, 2)


def texts(values: list[bytes]) -> list[str]:
    return [value[8:].decode() for value in values]


def entry_events(client: Client) -> list[tuple[int, str | None, str | None, str | None, int]]:
    """(flag, key, value, old value, number of entries) of the events since the last call."""
    found = []
    for _, _, fields in client.taken_events():
        shown = [fields[name] for name in ("key", "value", "old_value")]
        key, new, old = (None if one is None else one[8:].decode() for one in shown)
        found.append((fields["event_type"], key, new, old, fields["affected_entries"]))
    return found


# -- single keys ------------------------------------------------------------------------------


@TYPES
def test_requests_to_one_key(name: str) -> None:
    """put, get, containsKey, containsEntry, valueCount, removeEntry, remove, delete, putAll."""
    grid, is_list = Grid(2), name == "list"
    assert grid.add(name, "k", "x", "y", "x") == [True, True, is_list]
    values = ["x", "y", "x"] if is_list else ["x", "y"]
    assert grid.find(name, "k") == values and grid.find(name, "other") == []
    assert grid.call("valueCount", name, key="k") == len(values)
    assert grid.call("containsKey", name, key="k") and not grid.call("containsKey", name, key="o")
    assert grid.call("containsEntry", name, key="k", value="y")
    assert not grid.call("containsEntry", name, key="k", value="z")
    assert not grid.call("removeEntry", name, key="k", value="z")
    assert not grid.call("removeEntry", name, key="other", value="x")
    assert grid.call("removeEntry", name, key="k", value="x")
    assert grid.find(name, "k") == values[1:]
    assert texts(grid.call("remove", name, key="k")) == values[1:]
    assert grid.call("remove", name, key="k") == []
    assert not grid.call("containsKey", name, key="k")
    grid.add(name, "k", "z")
    grid.call("delete", name, key="k")
    grid.call("delete", name, key="k")
    assert grid.call("valueCount", name, key="k") == 0
    pid = grid.pid("k")
    entries = [(data("k"), [data("1"), data("2"), data("1")]), (data("l"), [data("3")])]
    grid.one.call("MultiMap.putAll", pid, name=name, entries=entries)
    grid.one.call("MultiMap.putAll", pid, name=name, entries=[])
    assert grid.find(name, "k") == (["1", "2", "1"] if is_list else ["1", "2"])
    found = grid.one.call("MultiMap.get", pid, name=name, key=data("l"), thread_id=1)
    assert texts(found) == ["3"]
    grid.run(1)
    grid.check_equal(name)


def test_values_are_equal_by_type_and_payload() -> None:
    """The partition hash of a key or of a value is no part of it, and is given back as it came."""
    grid = Grid(1)
    hashed = b"\1\2\3\4" + data("v")[4:]
    common = {"name": "set", "key": b"\5\6\7\x08" + data("k")[4:], "thread_id": 1}
    assert grid.one.call("MultiMap.put", 0, value=hashed, **common)
    assert not grid.one.call("MultiMap.put", 0, value=data("v"), **common)
    found = grid.one.call("MultiMap.get", 0, name="set", key=data("k"), thread_id=1)
    assert found == [hashed]
    assert grid.one.call("MultiMap.entrySet", name="set") == [(common["key"], hashed)]


@TYPES
def test_what_is_no_entry_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a putAll is stored when one of its entries is refused."""
    monkeypatch.setattr(services, "ENTRY_BYTES_MAX", 100)
    grid = Grid(1)
    with pytest.raises(Error, match="too large") as caught:
        grid.add(name, "k", "x" * 100)
    assert caught.value.code == 23
    entries = [(data("k"), [data("1")]), (data("l"), [data("2"), data("x" * 100)])]
    with pytest.raises(Error, match="too large"):
        grid.one.call("MultiMap.putAll", 0, name=name, entries=entries)
    assert grid.call("size", name) == 0
    service = grid.nodes[0].engine.member.service(MultiMapService)
    partition = grid.nodes[0].engine.member.dataplane.partitions[0]
    with pytest.raises(UsageError, match="no serialized object"):
        service.put(partition, namespace_of("multimap", name), b"1234567", data("x"), None)


def test_locks_are_refused_by_name() -> None:
    """What is not there yet says so."""
    grid = Grid(1)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("lock", {"ttl": 1, "reference_id": 1}),
        ("tryLock", {"lease": 1, "timeout": 1, "reference_id": 1}),
        ("unlock", {"reference_id": 1}),
    ]
    for method, fields in refused:
        with pytest.raises(Error, match=rf"MultiMap\.{method} .*no locks") as caught:
            grid.call(method, "set", key="k", **fields)
        assert caught.value.code == 61


# -- whole multimaps --------------------------------------------------------------------------


@TYPES
def test_requests_to_a_whole_multimap(name: str) -> None:
    """size, keySet, values, entrySet, containsValue, clear, over the partitions of three members;
    those of a multimap that nobody wrote to.
    """
    grid = Grid(3)
    keys = [f"key {number}" for number in range(10)]
    for key in keys:
        grid.add(name, key, "same", f"of {key}")
    assert grid.call("size", name) == 20
    assert sorted(texts(grid.call("keySet", name))) == keys
    assert Counter(texts(grid.call("values", name))) == {
        "same": 10,
        **{f"of {key}": 1 for key in keys},
    }
    entries = [(texts([key])[0], texts([value])[0]) for key, value in grid.call("entrySet", name)]
    assert sorted(entries) == sorted(
        [*((key, "same") for key in keys), *((key, f"of {key}") for key in keys)]
    )
    assert grid.call("containsValue", name, value="of key 7")
    assert not grid.call("containsValue", name, value="of key 77")
    grid.call("clear", name)
    grid.run(1)
    for node in grid.nodes:
        assert not any(content for content, _ in grid.held(node, name).values())
    for method in ("keySet", "values", "entrySet"):
        assert grid.call(method, name) == grid.call(method, "nothing") == []
    assert grid.call("size", "nothing") == 0


def test_looking_makes_nothing() -> None:
    """A multimap that nobody wrote to in a partition is empty there, whatever is asked, and goes on
    without a fragment.
    """
    grid = Grid(1)
    member = grid.nodes[0].engine.member
    service, namespace = member.service(MultiMapService), namespace_of("multimap", "nothing")
    partition = member.dataplane.partitions[0]
    key, value = data("k"), data("v")
    assert service.get(partition, namespace, key) == []
    assert service.remove(partition, namespace, key, None) == []
    assert service.count(partition, namespace, key) == service.size(partition, namespace) == 0
    assert service.clear(partition, namespace, None) == 0
    for list_of in (service.key_set, service.values, service.entries):
        assert list_of(partition, namespace) == []
    assert service.contains_key(partition, namespace, key) is False
    assert service.contains_entry(partition, namespace, key, value) is False
    assert service.contains_value(partition, namespace, value) is False
    assert service.remove_entry(partition, namespace, key, value, None) is False
    assert namespace not in partition.fragments


def test_a_multimap_and_a_map_of_one_name_are_two() -> None:
    """Kinds are told apart; documents show both, and one is destroyed without the other."""
    grid = Grid(2)
    grid.add("m", "k", "x", "y")
    grid.put(grid.one, "m", "k", "of the map")
    assert grid.one.call("Map.size", name="m") == 1 and grid.call("size", "m") == 2
    found = grid.one.call("Client.getDistributedObjects")
    assert (SERVICE, "m") in [(one.service_name, one.name) for one in found]
    grid.one.call("Client.destroyProxy", name="m", service_name=SERVICE)
    grid.run(1)
    assert grid.find("m", "k") == [] and grid.get(grid.one, "m", "k") == "of the map"


def test_protection_refuses_by_the_multimaps_settings() -> None:
    """Split-brain protection: what is a write is refused, what reads is not."""
    grid = Grid(1, structures=(MultiMapSettings("default", split_brain_minimum_size=2),))
    writes: list[tuple[str, dict[str, Any]]] = [
        ("put", {"value": "x"}),
        ("remove", {}),
        ("delete", {}),
    ]
    for method, fields in writes:
        with pytest.raises(Error, match=r"multimap\.default\.split_brain_minimum_size asks for 2"):
            grid.call(method, "m", key="k", **fields)
    assert grid.find("m", "k") == []


# -- listeners --------------------------------------------------------------------------------


@TYPES
def test_listeners_hear_each_value_once(name: str) -> None:
    """ADDED and REMOVED for each value, CLEAR_ALL once, here and at a member that has not the key;
    a listener to a key hears of it alone; values are shown to those who want them.
    """
    grid = Grid(2)
    here, there, bare, of_key = (
        grid.client(grid.nodes[at], number=number) for number, at in enumerate((0, 1, 1, 0), 5)
    )
    common = {"name": name, "local_only": False}
    here.call("MultiMap.addEntryListener", include_value=True, **common)
    registration = there.call("MultiMap.addEntryListener", include_value=True, **common)
    bare.call("MultiMap.addEntryListener", include_value=False, **common)
    of_key.call("MultiMap.addEntryListenerToKey", include_value=True, key=data("b"), **common)
    grid.add(name, "a", "1", "2")
    grid.call("removeEntry", name, key="a", value="1")
    grid.call("removeEntry", name, key="a", value="9")
    grid.add(name, "b", "3", "4")
    grid.call("remove", name, key="b")
    grid.add(name, "b", "5")
    grid.call("delete", name, key="b")
    grid.call("clear", name)
    grid.call("clear", name)
    grid.run(1)
    of_b = [
        (ADDED, "b", "3", None, 1),
        (ADDED, "b", "4", None, 1),
        (REMOVED, "b", None, "3", 1),
        (REMOVED, "b", None, "4", 1),
        (ADDED, "b", "5", None, 1),
        (REMOVED, "b", None, "5", 1),
    ]
    wanted = [
        (ADDED, "a", "1", None, 1),
        (ADDED, "a", "2", None, 1),
        (REMOVED, "a", None, "1", 1),
        *of_b,
        (CLEAR_ALL, None, None, None, 1),
    ]
    assert sorted(entry_events(here), key=repr) == sorted(wanted, key=repr)
    assert sorted(entry_events(there), key=repr) == sorted(wanted, key=repr)
    without = [(flag, key, None, None, count) for flag, key, _, _, count in wanted]
    assert sorted(entry_events(bare), key=repr) == sorted(without, key=repr)
    assert entry_events(of_key) == of_b
    assert there.call("MultiMap.removeEntryListener", name=name, registration_id=registration)
    grid.add(name, "a", "1")
    grid.run(1)
    assert entry_events(there) == [] and len(entry_events(here)) == 1


# -- replicas ---------------------------------------------------------------------------------


@TYPES
def test_values_survive_joins_and_deaths(name: str) -> None:
    """AE-35: fragments of multimaps are backed up, migrate and are promoted, in chunks smaller than
    the values of one key; removed values do not come back, a list keeps its order.
    """
    grid = Grid(2, migration_chunk_bytes_max=300)
    wanted = [f"value {number:03d}" for number in range(100)]
    grid.add(name, "many", *wanted)
    for number in range(0, 100, 3):
        wanted.remove(f"value {number:03d}")
        assert grid.call("removeEntry", name, key="many", value=f"value {number:03d}")
    for number in range(20):
        grid.add(name, f"key {number}", "a", "b")
        grid.call("removeEntry", name, key=f"key {number}", value="a")
    grid.call("delete", name, key="key 3")
    grid.run(1)
    grid.check_equal(name)
    grid.start()
    grid.run(15)
    assert grid.held(grid.nodes[2], name)
    grid.check_equal(name)
    grid.kill(grid.nodes[1])
    grid.run(30)
    grid.check_equal(name)
    found = grid.find(name, "many")
    assert found == wanted if name == "list" else sorted(found) == wanted
    assert grid.call("size", name) == len(wanted) + 19
    assert grid.add(name, "many", "last") == [True]
    grid.run(1)
    grid.check_equal(name)


def test_backups_are_as_configured() -> None:
    """The deepest multimap decides, as the deepest map does."""
    grid = Grid(2)
    grid.add("deep", "k", "x")
    grid.run(1)
    entry = grid.nodes[1].engine.member.registry.get("multimap", "deep")
    assert entry is not None and grid.nodes[1].engine.member.registry.depth() == 4


def test_a_write_of_many_waits_for_its_last_change() -> None:
    """A putAll is answered when the backup has all of it, one that adds nothing at once; a
    backup-aware client would count one acknowledgement.
    """
    grid = Grid(2)
    member = grid.nodes[0].engine.member
    partition = next(one for one in member.dataplane.partitions if one.is_primary)
    service, namespace = member.service(MultiMapService), namespace_of("multimap", "set")
    entries = [(data("k"), [data("1"), data("2"), data("1")]), (data("l"), [data("3"), data("3")])]
    for added, remaining in ((3, 1), (0, 0)):
        reply = PendingReply(None)
        assert service.put_all(partition, namespace, entries, reply) == added
        assert reply.remaining == remaining
    fragment = partition.fragments[namespace]
    assert fragment.value == 3


# -- after a split ----------------------------------------------------------------------------


def test_after_a_split_sets_are_united_and_lists_get_what_they_lack() -> None:
    """D10: of a set the union is left; of a list as many of each value as the part had that has
    more of them; every value is counted, and listeners hear of what came along.
    """
    grid = Grid(4, migration_chunk_bytes_max=300)
    for name in ("set", "list"):
        grid.add(name, "k", "both", "both")
        grid.add(name, "gone", "x")
    grid.run(5)
    backup = grid.nodes[0].engine.member.migrations.table.rows[grid.pid("k")][1]
    small = [node for node in grid.nodes if node.id == backup]
    big = [node for node in grid.nodes if node.id != backup]
    grid.separate(60, big, small)
    one, other = grid.client(big[0], number=2), grid.client(small[0], number=3)
    many = [f"value {number:03d}" for number in range(300)]
    for name in ("set", "list"):
        grid.add(name, "k", "both", "big", at=one)
        grid.add(name, "k", "small", "small", at=other)
        grid.add(name, "many", *many[:200], *many[:50], at=other)
        grid.add(name, "many", *many[100:], at=one)
        grid.call("delete", name, one, key="gone")
        grid.call("delete", name, other, key="gone")
    listener = grid.client(big[0], number=9)
    listener.call(
        "MultiMap.addEntryListenerToKey",
        name="list", key=data("k"), include_value=True, local_only=False,
    )  # fmt: skip
    grid.heal_and_wait()
    assert sorted(grid.find("set", "k", one)) == ["big", "both", "small"]
    assert grid.find("list", "k", one) == ["both", "both", "both", "big", "small", "small"]
    assert sorted(grid.find("set", "many", one)) == many
    expected = Counter(many) + Counter(many[:50])
    assert Counter(grid.find("list", "many", one)) == expected
    assert grid.find("set", "gone", one) == grid.find("list", "gone", one) == []
    assert entry_events(listener) == [(ADDED, "k", "small", None, 1)] * 2
    for name in ("set", "list"):
        grid.check_equal(name)
    added, same = merged(grid, "list")
    assert (added, same) == (2 + 150, 2 + 100)
    assert merged(grid, "set") == (1 + 100, 1 + 100)


def merged(grid: Grid, name: str) -> tuple[int, int]:
    """(added, same) of a multimap on whoever merged."""
    namespace = namespace_of("multimap", name)
    totals = [node.engine.member.merging.totals for node in grid.living()]
    (counts,) = [found[namespace] for found in totals if namespace in found]
    assert counts == MergeCounts(added=counts.added, same=counts.same)
    return counts.added, counts.same


def test_a_damaged_chunk_counts_up_to_the_damage() -> None:
    """Bytes that are no chunk end the merge, loudly; nothing else happens."""
    grid = Grid(1)
    member = grid.nodes[0].engine.member
    service = member.service(MultiMapService)
    namespace = namespace_of("multimap", "list")
    source = service.new_store(namespace)
    for value in ("1", "1", "2"):
        source.put(data("k"), data(value))
    chunk, entries = service.leftover_chunk(source, source.open_cursor(), 1_000)
    assert entries == 3
    partition = member.dataplane.partitions[PartitionId(0)]
    for cut, counts in (
        (1, MergeCounts(added=2)),
        (len(chunk) - 4, MergeCounts(same=0)),
        (0, MergeCounts(added=1, same=2)),
    ):
        part = chunk[: len(chunk) - cut]
        assert service.merge(partition, namespace, part, PendingReply(None)) == counts
    grid.nodes[0].carry_out()
    damaged = grid.notes("split_brain.damaged")
    assert [note["multimap"] for note in damaged] == ["list", "list"]
