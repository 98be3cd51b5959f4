"""Audits of queues, ring buffers and multimaps: entry by entry, as of maps (docs/design/0018)."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tests.unit.split_pump import SplitPump, data
from tests.unit.test_audit import a_cluster, audit, is_backups

from whimbrel.core.ids import namespace_of
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.replication.comparison import BITS_MAX, Leaves
from whimbrel.core.replication.content import NOTHING, content_of
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.settings import ComparisonBounds
from whimbrel.structures.map.store import MapStore
from whimbrel.structures.multimap.settings import MultiMapSettings
from whimbrel.structures.multimap.store import MultiMapStore
from whimbrel.structures.multimap.typed_stores import ListStore, SetStore
from whimbrel.structures.queue.store import QueueStore
from whimbrel.structures.ringbuffer.settings import RingbufferSettings
from whimbrel.structures.ringbuffer.store import RingbufferStore

NAME = "it"


def pid_of(pump: SplitPump, kind: str) -> int:
    if kind == "multimap":
        return pump.pid("k1")
    return partition_of(partition_hash(data(NAME)), pump.settings.partition_count)


def fragments(pump: SplitPump, kind: str) -> list[Fragment]:
    """The primary's and the backup's."""
    found: dict[int, Fragment] = {}
    for node in pump.living():
        for partition in node.engine.member.dataplane.partitions:
            fragment = partition.fragments.get(namespace_of(kind, NAME))
            if fragment is not None and len(fragment.store):
                found[partition.index] = fragment
    return [found[index] for index in sorted(found)]


class Users:
    """Calls of one kind, that change its structure."""

    def __init__(self, pump: SplitPump, kind: str) -> None:
        self.pump, self.kind = pump, kind
        self.client = pump.client(pump.living()[0])
        self.random = random.Random(2)
        self.numbers = count()
        self.goes_on = True

    def _pid(self) -> int:
        return pid_of(self.pump, self.kind)

    def add(self) -> None:
        value = data(f"v{next(self.numbers)}" + "x" * self.random.randrange(90))
        if self.kind == "queue":
            named = {"name": NAME, "value": value, "timeout_millis": 0}
            self.client.ask("Queue.offer", self._pid(), **named)
        elif self.kind == "ringbuffer":
            named = {"name": NAME, "value": value, "overflow_policy": 0}
            self.client.ask("Ringbuffer.add", self._pid(), **named)
        else:
            key = self.random.choice(("k1", "k4", "k7"))
            named = {"name": NAME, "key": data(key), "value": value, "thread_id": 1}
            self.client.ask("MultiMap.put", self.pump.pid(key), **named)

    def change(self) -> None:
        if not self.goes_on:
            return
        if self.kind == "queue" and self.random.random() < 0.5:
            self.client.ask("Queue.poll", self._pid(), name=NAME, timeout_millis=0)
        elif self.kind == "multimap" and self.random.random() < 0.1:
            named = {"name": NAME, "key": data("k4"), "thread_id": 1}
            self.client.ask("MultiMap.remove", self.pump.pid("k4"), **named)
        else:
            self.add()
        self.pump.at(1_000, self.change)


def lose_one(store: object) -> None:
    """Something in the middle of a store is not there any more, without a word."""
    match store:
        case QueueStore():
            store._remove_ids([store.items[len(store) // 2][:8]])
        case RingbufferStore():
            store._clear(store.next - 2, store.next - 1)
        case MultiMapStore():
            key, item = list(store.items())[len(store) // 2]
            store._remove(key[4:], store.mark_in(item))


@pytest.mark.parametrize(
    ("kind", "collection"),
    [("queue", "SET"), ("ringbuffer", "SET"), ("multimap", "SET"), ("multimap", "LIST")],
)
def test_each_kind_is_compared_beside_writes(kind: str, collection: Any) -> None:
    """Goal: no kind is called equal unseen: nothing is reported while items come and go, a lost
    item is, and is made good. Method: calls all the time, operations that arrive late.
    """
    multimaps = MultiMapSettings("default", value_collection_type=collection)
    structures = (multimaps, RingbufferSettings("default", capacity=100))
    pump = a_cluster(structures=structures, comparison=ComparisonBounds(audit_max=20))
    users = Users(pump, kind)
    for _ in range(60):
        users.add()
    pump.run(1)
    assert audit(pump)["equal"]
    vars(pump)["delay_of"] = lambda frame: (
        users.random.randint(600, 1_500) if is_backups(frame) else 300
    )
    vars(pump)["channel_of"] = lambda frame: is_backups(frame)
    users.change()
    for _ in range(3):
        found = audit(pump)
        assert found["equal"], found
    users.goes_on = False
    pump.run(1)
    lose_one(fragments(pump, kind)[1].store)
    found = audit(pump, f"{kind}/*")
    (one,) = found["differences"]
    assert (one["missing"], one["different"], one["extra"]) == (1, 0, 0)
    assert one["structure"] == f"{kind}/{NAME}" and len(one["keys"]) == 1
    (row,) = found["structures"]
    assert (row["kind"], row["name"], row["missing"]) == (kind, NAME, 1)
    assert audit(pump, may_repair=True)["repaired"] == 1
    assert audit(pump)["equal"]


def filled(kind: str, numbers: range) -> Any:
    """A store with entries."""
    stores: dict[str, Callable[[], Any]] = {
        "map": MapStore, "queue": QueueStore, "ringbuffer": RingbufferStore, "sets": SetStore,
        "lists": ListStore,
    }  # fmt: skip
    store = stores[kind]()
    for number in numbers:
        value = data(f"v{number}")
        match store:
            case MapStore():
                store.put(b"\xff\xff\xf5" + value, value, number)
            case QueueStore():
                store.offer([value])
            case RingbufferStore():
                store.add([value], 1 << 60, 0, 10_000)
            case _:
                store.put(data(f"k{number % 3}"), value)
    return store


@pytest.mark.parametrize("kind", ["map", "queue", "ringbuffer", "sets", "lists"])
def test_contents(kind: str) -> None:
    """Goal: whatever the kind, a walk meets each entry once, finds by its key what it met, and the
    sums of equal stores are equal. Method: 500 entries, in steps of seven, beside a store with one
    less; each key alone.
    """
    store, other = filled(kind, range(500)), filled(kind, range(499))
    content = content_of(store)
    assert content is not None
    every = Leaves(5, range(32))
    walk, keys = content.keys_in(every), []
    while not walk.is_over:
        keys += walk.step(7)
        assert len(keys) <= 500
    assert len(set(keys)) == len(keys) == len(store) == 500
    sums = content.sums_of(keys, 10_000)
    assert len(sums) == 500 and all(sums) and 1 <= len(content.sums_of(keys, 1)) < 500
    there = content_of(other)
    assert there is not None
    differing = [key for key, one in zip(keys, there.sums_of(keys, 10_000), strict=True) if not one]
    assert len(differing) == 1 and content.name_of(differing[0])
    trees = []
    for one in (content, there, content_of(filled(kind, range(500)))):
        assert one is not None
        summing = one.sum_up(5)
        while not summing.is_over:
            summing.step(7)
        trees.append(summing.sums)
    assert trees[0] == trees[2] != trees[1]
    assert list(NOTHING.sums_of(keys[:3], 1)) == [0, 0, 0] and NOTHING.keys_in(every).is_over
    assert len(NOTHING.sum_up(BITS_MAX).sums) == 1 << BITS_MAX
