"""Goal: nothing but a kind's own folder knows the kind. Method: a second, made-up kind
(``bag_kind``) beside the map: everything that members do for maps they do for bags, and the two
never mix, not even where their structures share a name.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.admin_fakes import as_node, fakes
from tests.unit.bag_kind import ADD, BAG, BAGS, HAS, ITEMS, LISTEN, SERVICE, BagSettings, BagStore
from tests.unit.engine_pump import Client, Error, Node, quick_settings
from tests.unit.replication_net import M
from tests.unit.split_pump import SplitPump, data

from whimbrel.admin.documents import ClusterDocuments
from whimbrel.core.ids import MemberId, PartitionId, namespace_of
from whimbrel.core.kinds import StructureKind
from whimbrel.core.messages import MergeAnswered, MergeCounts, MergeRequested
from whimbrel.core.registry import backups_of
from whimbrel.core.settings import StructureSettings
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.settings import MapSettings

BAG_M = namespace_of(BAG, "m")
MAP_SERVICE = "hz:impl:mapService"
COUNT = 20


def make_pump(**changes: Any) -> SplitPump:
    structures = (MapSettings("default"), BagSettings("default", 1), BagSettings("deep", 2, 1))
    pump = SplitPump(quick_settings(**{"structures": structures, **changes}))
    pump.kinds = (*KINDS, BAGS)
    return pump


def item(number: int) -> bytes:
    return data(f"item {number}")


def add(client: Client, number: int, name: str = "m") -> None:
    pid = number % client.pump.settings.partition_count
    client.call(ADD, pid, name=name, key=item(number), reference_id=0)


def has(client: Client, number: int, name: str = "m") -> bool:
    pid = number % client.pump.settings.partition_count
    found: bool = client.call(HAS, pid, name=name, key=item(number))
    return found


def items(client: Client, name: str = "m") -> list[bytes]:
    return sorted(client.call(ITEMS, name=name, projection=data("-")))


def held(node: Node) -> dict[int, tuple[list[bytes], tuple[int, ...]]]:
    """Items and counters of the bag m in each partition of a member."""
    found: dict[int, tuple[list[bytes], tuple[int, ...]]] = {}
    for partition in node.engine.member.dataplane.partitions:
        fragment = partition.fragments.get(BAG_M)
        if fragment is not None:
            assert isinstance(fragment.store, BagStore)
            found[partition.pid] = sorted(fragment.store.items), fragment.counters()
    return found


def filled(pump: SplitPump, members: int) -> Client:
    """A cluster with a bag and a map of the same name, and a client of its first member."""
    pump.form(members)
    client = pump.client(pump.nodes[0])
    client.call("Client.createProxy", name="m", service_name=SERVICE)
    for number in range(COUNT):
        add(client, number)
    pump.put(client, "m", "k", "x")
    pump.run(1)
    return client


WANTED = sorted(item(number) for number in range(COUNT))


def test_a_kind_is_registered_written_and_read() -> None:
    """Requests of clients find the kind by its service; calls on a whole structure, whose shares
    go by the same name for both kinds, are told apart.
    """
    pump = make_pump()
    client = filled(pump, 2)
    found = client.call("Client.getDistributedObjects")
    assert [(one.service_name, one.name) for one in found] == [(SERVICE, "m"), (MAP_SERVICE, "m")]
    assert has(client, 3) and not has(client, 3, "other") and not has(client, COUNT)
    assert items(client) == WANTED
    assert client.call("Map.keySet", name="m") == [data("k")]
    assert client.call("Map.size", name="m") == 1
    with pytest.raises(Error):
        client.call("Client.createProxy", name="m", service_name="test:nothing")


def test_a_kind_is_backed_up_and_migrates() -> None:
    """Backups are as its settings say; a newcomer gets its part, and nothing is lost when others
    leave or die.
    """
    pump = make_pump()
    client = filled(pump, 2)
    add(client, 0, "deep")
    for node in pump.nodes:
        entry = node.engine.member.registry.get(BAG, "deep")
        assert entry is not None and backups_of(entry) == (2, 1)
        assert node.engine.member.registry.depth() == 4
    first, second = map(held, pump.nodes)
    assert {pid: found for pid, (found, _) in first.items()} == {
        pid: found for pid, (found, _) in second.items()
    }
    pump.start()
    pump.run(10)
    assert held(pump.nodes[2])
    pump.kill(pump.nodes[1])
    pump.run(30)
    assert items(client) == WANTED
    pump.leave(pump.nodes[0])
    assert items(pump.client(pump.nodes[2])) == WANTED


def test_listeners_hear_of_their_kind_only() -> None:
    """Events go by the namespace, here and from another member."""
    pump = make_pump()
    client = filled(pump, 2)
    listeners = [pump.client(node, number=number) for number, node in enumerate(pump.nodes, 5)]
    for one in listeners:
        one.call(LISTEN, name="m", listener_flags=1, local_only=False)
        one.call(
            "Map.addEntryListener", name="m", include_value=True, listener_flags=1, local_only=False
        )
    add(client, 100)
    add(client, 100)
    pump.put(client, "m", "new", "x")
    pump.run(1)
    for one in listeners:
        told = [(name, kind, fields["key"]) for name, kind, fields in one.taken_events()]
        assert sorted(told) == [
            ("Map.addEntryListener", "entry", data("new")),
            (LISTEN, "invalidation", item(100)),
        ]


def test_two_structures_of_one_name_are_both_shown_and_one_is_destroyed() -> None:
    """Documents tell kinds apart; a destruction reaches one of them, on every member."""
    pump = make_pump()
    client = filled(pump, 2)

    def shown() -> dict[tuple[str, str], int]:
        documents = ClusterDocuments(as_node(fakes(pump)[0]))
        rows = asyncio.run(documents.structures())
        return {(row["kind"], row["name"]): row["entries"] for row in rows}

    assert shown() == {(BAG, "m"): COUNT, ("map", "m"): 1}
    objects = pump.client(pump.nodes[1], number=7)
    objects.call("Client.addDistributedObjectListener", local_only=False)
    client.call("Client.destroyProxy", name="m", service_name=SERVICE)
    pump.run(1)
    assert shown() == {("map", "m"): 1}
    assert [held(node) for node in pump.nodes] == [{}, {}]
    (told,) = objects.taken_events()
    assert (told[2]["name"], told[2]["service_name"]) == ("m", SERVICE)
    assert items(client) == [] and pump.get(client, "m", "k") == "x"
    add(client, 1)
    pump.run(1)
    assert shown() == {(BAG, "m"): 1, ("map", "m"): 1}


def test_no_kind_is_forgotten_after_a_split() -> None:
    """M6: leftovers are those of every kind, each merged as it says and counted under its name."""
    pump = make_pump()
    filled(pump, 4)
    pump.run(5)
    big, small = pump.nodes[:3], pump.nodes[3:]
    pump.separate(60, big, small)
    one, other = pump.client(big[0], number=2), pump.client(small[0], number=3)
    add(one, 100)
    add(other, 200)
    pump.put(other, "m", "small", "y")
    pump.heal_and_wait()
    assert items(one) == sorted([*WANTED, item(100), item(200)])
    assert pump.get(one, "m", "small") == "y"
    totals = [node.engine.member.merging.totals for node in pump.living()]
    (of_bag,) = [found[BAG_M] for found in totals if BAG_M in found]
    (of_map,) = [found[M] for found in totals if M in found]
    assert of_bag.added >= 1 and of_map.added >= 1
    told = {name: note for note in pump.notes("split_brain.merged") for name in note}
    assert (told[BAG][BAG], told["map"]["map"]) == ("m", "m")
    handed_over = sum(note["entries"] for note in pump.notes("split_brain.merging"))
    sums = [getattr(of_bag, name) + getattr(of_map, name) for name in MergeCounts.__struct_fields__]
    assert sum(sums) == handed_over


def test_what_a_member_has_no_kind_for_waits() -> None:
    """A chunk of an unknown kind is refused, so it is offered again; operators hear of it once."""
    pump = make_pump()
    pump.kinds = KINDS
    pump.form(1)
    target = pump.nodes[0].engine.member.merging.target
    answers: list[MergeAnswered] = []
    target._answer = lambda _, answered: answers.append(answered)
    for call in (1, 2):
        target.on_requested(MemberId("x"), MergeRequested(call, PartitionId(0), BAG_M, b"B", 1))
    pump.nodes[0].carry_out()
    assert [(one.accepted, "bag" in one.reason) for one in answers] == [(False, True)] * 2
    assert len(pump.notes("split_brain.kind_unknown")) == 1


def test_protection_is_per_kind() -> None:
    """M6: a kind's structures are refused by the kind's own settings."""
    pump = make_pump(
        structures=(MapSettings("default"), BagSettings("default", split_brain_minimum_size=2))
    )
    pump.form(1)
    client = pump.client(pump.nodes[0])
    pump.put(client, "m", "k", "x")
    with pytest.raises(Error, match=r"bag\.default\.split_brain_minimum_size asks for 2"):
        add(client, 1)
    with pytest.raises(Error, match=r"bag\.default"):
        client.call("Client.destroyProxy", name="m", service_name=SERVICE)
    assert not has(client, 1)
    document = pump.nodes[0].engine.server.admission.protection.document()
    assert document is not None and json.loads(json.dumps(document))["bags"] == {
        "default": {"minimum_size": 2, "protects": "write", "refusing": True}
    }


def test_a_kind_without_partitions_has_no_backups() -> None:
    """Its structures exist; rows are not deeper for them."""

    class LoneSettings(StructureSettings, frozen=True):
        kind = "lone"

    lone = StructureKind(
        name="lone", service_name="test:lone", settings_type=LoneSettings, make_service=None
    )
    pump = make_pump()
    pump.form(1)
    registry = pump.nodes[0].engine.member.registry
    registry.ensure(lone, "x")
    entry = registry.get("lone", "x")
    assert entry is not None and backups_of(entry) == (0, 0)
    assert registry.structures() == [entry]
    assert not registry.is_empty() and registry.depth() == 2
