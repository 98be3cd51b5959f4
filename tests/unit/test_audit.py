"""Audits: replicas are compared by what is in them, while clients write (docs/design/0018)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.engine_pump import Frame, Node, quick_settings
from tests.unit.replication_net import map_of
from tests.unit.split_pump import SplitPump, data

from whimbrel.core.audit.job import PATIENCE_US, Wish
from whimbrel.core.audit.service import LEASE_US
from whimbrel.core.messages import ReplicaAsked
from whimbrel.core.messages.audit import Compare
from whimbrel.core.replication.content import shown
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.settings import ComparisonBounds
from whimbrel.errors import IllegalStateError
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.map.store import MapStore
from whimbrel.wire.links import BACKUPS

Json = dict[str, Any]
SMALL = ComparisonBounds(audit_max=3)
"""So that an audit of few entries takes many steps."""
STRUCTURES = (
    MapSettings("default"),
    MapSettings("b0*", 0),
    MapSettings("b2*", 2),
    MapSettings("never*", 1, comparison=False),
)


def a_cluster(count: int = 3, **changes: Any) -> SplitPump:
    """Some members, as many copies as there may be, and small steps."""
    settings = quick_settings(
        **{"comparison": SMALL, "structures": STRUCTURES, "partition_count": 3, **changes}
    )
    pump = SplitPump(settings)
    pump.form(count, 3)
    return pump


def fill(pump: SplitPump, name: str, count: int = 60) -> None:
    client = pump.client(pump.living()[0])
    for number in range(count):
        pump.put(client, name, f"k{number}", f"v{number}")
    pump.run(2)


def begin(node: Node, pattern: str = "", *, may_repair: bool = False) -> str:
    member = node.engine.member
    member.begin(node.pump.now_us, node.pump.wall_ms)
    name = member.audits.start(Wish(pattern, may_repair))
    node.carry_out()
    return name


def told(node: Node, name: str) -> Json:
    """How an audit stands; to ask keeps it going."""
    member = node.engine.member
    member.begin(node.pump.now_us, node.pump.wall_ms)
    found = member.audits.job(name)
    assert found is not None
    return found


def audit(pump: SplitPump, pattern: str = "", node: Node | None = None, **wish: Any) -> Json:
    """Audit, to its end: its document."""
    node = node or pump.living()[-1]
    name = begin(node, pattern, **wish)
    pump.run_until(lambda: told(node, name)["over"], 200)
    found = told(node, name)
    assert not found["problem"]
    document: Json = found["document"]
    return document


def replicas(pump: SplitPump, name: str, pid: int = 0) -> list[tuple[Node, Fragment]]:
    """The primary's fragment of a map and those of the backups, by index."""
    found = {}
    for node in pump.living():
        partition = node.engine.member.dataplane.partitions[pid]
        fragment = partition.fragments.get(map_of(name))
        if fragment is not None:
            found[partition.index] = (node, fragment)
    return [found[index] for index in sorted(found)]


def store_of(fragment: Fragment) -> MapStore:
    assert isinstance(fragment.store, MapStore)
    return fragment.store


def damage(pump: SplitPump, name: str, index: int = 1, pid: int = 0) -> tuple[Node, list[str]]:
    """At a backup one entry is gone, one is another, and one is there that should not be: without
    a word, versions stay what they are. The member, and the keys.
    """
    node, fragment = replicas(pump, name, pid)[index]
    store = store_of(fragment)
    gone, other, *_ = sorted(store.records)
    store.remove(gone)
    store.records[other] = store.records[other][:-1] + b"!"
    extra = stored_key(data("extra"))
    store.put(extra, data("?"), 5)
    return node, [store.key_data(key)[8:].decode() for key in (gone, other, extra)]


def test_equal_replicas_cost_sums_alone() -> None:
    """Goal: all is equal, every map is told with all its rows, those without backups too, and no
    key travels. Method: three maps with none, one and two backups; no Compare is sent.
    """
    pump = a_cluster()
    for name in ("b0", "one", "b2"):
        fill(pump, name)
    sent: list[object] = []
    watch(pump, sent.append)
    found = audit(pump)
    assert found["equal"] and found["complete"] and not found["differences"]
    rows = {one["name"]: (one["rows"], one["replicas"]) for one in found["structures"]}
    assert rows == {"b0": (60, 0), "one": (60, 3), "b2": (60, 6)}
    assert not any(isinstance(one.question, Compare) for one in asked(sent))
    assert len(asked(sent)) > 9


def watch(pump: SplitPump, see: Callable[[object], None]) -> None:
    """See every message that is sent."""
    send = pump.send

    def seen(source: Node, to: Any, message: Any) -> None:
        see(message.payload[1] if isinstance(message.payload, tuple) else message.payload)
        send(source, to, message)

    vars(pump)["send"] = seen


def asked(sent: list[object]) -> list[ReplicaAsked]:
    return [one for one in sent if isinstance(one, ReplicaAsked)]


@pytest.mark.parametrize("name", ["one", "b2", "never"])
@pytest.mark.parametrize("encoded", [False, True])
def test_silent_differences_are_found_and_made_good(name: str, encoded: bool) -> None:
    """APR-53: what differs while versions are equal is told by member, structure, number and key; a
    repair makes it equal, also where copies are never compared, and says so. Method: three kinds of
    damage at one backup; audit, audit with repair, audit.
    """
    pump = a_cluster()
    pump.encoded = encoded
    fill(pump, name)
    fill(pump, "beside", 5)
    index = 2 if name == "b2" else 1
    node, keys = damage(pump, name, index)
    found = audit(pump)
    assert not found["equal"] and found["complete"]
    (one,) = found["differences"]
    assert (one["partition"], one["member"], one["structure"]) == (0, node.id, f"map/{name}")
    assert (one["missing"], one["different"], one["extra"], one["repaired"]) == (1, 1, 1, 0)
    assert sorted(one["keys"]) == sorted(shown(data(key)) for key in keys)
    repaired = audit(pump, f"map/{name}", may_repair=True)
    (row,) = repaired["structures"]
    assert (row["name"], row["missing"], row["different"], row["extra"]) == (name, 1, 1, 1)
    assert row["repaired"] == repaired["repaired"] == 3
    stores = [store_of(fragment).records for _, fragment in replicas(pump, name)]
    assert all(one == stores[0] for one in stores)
    assert audit(pump)["equal"]


def is_backups(frame: object) -> bool:
    return isinstance(frame, Frame) and frame.kind == BACKUPS


class Writing:
    """Clients that write all the time, to few keys; operations of a turn that are on their way
    when a message of that turn is there.
    """

    def __init__(self, pump: SplitPump, name: str, keys: int, *, pause_us: int = 400) -> None:
        self._pump, self._name, self._keys, self._pause_us = pump, name, keys, pause_us
        self._random = random.Random(1)
        vars(pump)["delay_of"] = self._delay_of
        vars(pump)["channel_of"] = lambda frame: is_backups(frame)
        self._client = pump.client(pump.living()[0])
        self.count = 0
        self.goes_on = True
        self.write()

    def _delay_of(self, frame: object) -> int:
        return self._random.randint(600, 1_500) if is_backups(frame) else 300

    def write(self) -> None:
        pump, key = self._pump, f"k{self._random.randrange(self._keys)}"
        if not self.goes_on:
            return
        self.count += 1
        named = {"name": self._name, "key": data(key), "thread_id": 1}
        if self._random.random() < 0.3:
            self._client.ask("Map.delete", pump.pid(key), **named)
        else:
            value = data(f"w{self.count}")
            self._client.ask("Map.put", pump.pid(key), **named, value=value, ttl=-1)
        pump.at(self._pause_us, self.write)


@pytest.mark.parametrize("name", ["one", "b2"])
def test_writes_in_flight_are_no_differences(name: str) -> None:
    """APR-53: an audit beside writes reports nothing where nothing is damaged, though every tree
    differs; and damage that no write has healed all the same. Method: writes to thirty keys, one
    in 400 us, beside forty that nobody writes; then one of those is damaged.
    """
    pump = a_cluster()
    fill(pump, name, 70)
    sent: list[object] = []
    watch(pump, sent.append)
    writing = Writing(pump, name, 30)
    for _ in range(3):
        assert audit(pump)["equal"]
    compared = [one.question for one in asked(sent) if isinstance(one.question, Compare)]
    assert len(compared) > 10 and writing.count > 50
    node, fragment = replicas(pump, name, pump.pid("k55"))[1]
    store_of(fragment).remove(stored_key(data("k55")))
    found = audit(pump)
    (one,) = found["differences"]
    assert (one["member"], one["missing"], one["different"], one["extra"]) == (node.id, 1, 0, 0)
    assert audit(pump, may_repair=True)["repaired"] == 1
    assert audit(pump)["equal"]


def test_a_dead_primary_is_followed_by_the_next() -> None:
    """Goal: a member that dies, and partitions that move, are asked for again. Method: the primary
    of a partition is killed in the middle of its audit.
    """
    pump = a_cluster(4, partition_count=7)
    fill(pump, "b2", 200)
    driver = pump.living()[-1]
    name = begin(driver)
    pump.run(0.02)
    victim = next(node for node in pump.living() if node is not driver)
    pump.kill(victim)
    pump.run_until(lambda: told(driver, name)["over"], 200)
    found = told(driver, name)["document"]
    assert found["equal"] and found["complete"]
    assert [one["rows"] for one in found["structures"]] == [200]


def test_what_cannot_be_compared_is_not_called_equal() -> None:
    """Goal: a partition without a primary that answers, a backup that stays in doubt. Method: the
    backup does not get what it asks for, for as long as an audit has patience.
    """
    pump = a_cluster(replication_max_parallel=0)
    fill(pump, "one")
    node, fragment = replicas(pump, "one")[1]
    damage(pump, "one")
    node.engine.member.begin(pump.now_us, pump.wall_ms)
    node.engine.member.dataplane.doubts.mark_dirty(fragment)
    found = audit(pump)
    assert not found["equal"] and not found["complete"] and not found["differences"]
    (one,) = found["not_compared"]
    assert (one["member"], one["structure"]) == (node.id, "map/one") and "made good" in one[
        "reason"
    ]


def test_a_repair_that_does_not_come_about_is_told() -> None:
    """Goal: repaired counts what is equal now, nothing else. Method: syncs are switched off."""
    pump = a_cluster(replication_max_parallel=0)
    fill(pump, "one")
    damage(pump, "one")
    found = audit(pump, may_repair=True)
    (one,) = found["differences"]
    assert one["repaired"] == found["repaired"] == 0 and "not repaired" in one["reason"]


def test_an_audit_ends_with_who_wants_it() -> None:
    """Goal: one audit at a member at once; it ends when it is cancelled, and when nobody asks how
    it stands; members forget all about it. Method: both, and the next one begins.
    """
    pump = a_cluster()
    fill(pump, "one", 300)
    node = pump.living()[0]
    name = begin(node)
    with pytest.raises(IllegalStateError, match="another audit"):
        begin(node)
    pump.run(0.02)
    member = node.engine.member
    member.begin(pump.now_us, pump.wall_ms)
    assert member.audits.cancel(name) and not member.audits.cancel(name)
    node.carry_out()
    assert told(node, name)["problem"] == "it was cancelled"
    pump.put(pump.client(node), "one", "k1", "v1")
    vars(pump)["delay_of"] = lambda _: 20_000
    forgotten = begin(node)
    member.audits._jobs[forgotten].asked_us -= LEASE_US
    pump.run(1)
    del vars(pump)["delay_of"]
    assert "nobody has asked" in told(node, forgotten)["problem"]
    assert audit(pump, node=node)["equal"]


def test_only_what_is_asked_for_is_compared() -> None:
    """Goal: a pattern chooses structures. Method: one of two maps is damaged, the other asked."""
    pump = a_cluster()
    for name in ("flights", "other"):
        fill(pump, name)
    damage(pump, "other")
    found = audit(pump, "map/fl*")
    assert found["equal"] and [one["name"] for one in found["structures"]] == ["flights"]
    assert not audit(pump, "map/o*")["equal"]


def test_partitions_without_primary_are_waited_for_and_told() -> None:
    """Goal: nobody waits for ever. Method: the rows of the driver's table name nobody."""
    pump = a_cluster()
    fill(pump, "one", 5)
    node = pump.living()[0]
    member = node.engine.member
    name = begin(node)
    job = member.audits._jobs[name]
    job._table = type("NoRows", (), {"rows": [(None,)] * 3, "partition_count": 3})()
    pump.run_until(lambda: told(node, name)["over"], PATIENCE_US / 1e6 + 5)
    found = told(node, name)["document"]
    assert not found["equal"] and found["partitions_not_compared"] >= 2
    assert "no primary" in found["not_compared"][0]["reason"]
