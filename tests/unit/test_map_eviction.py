"""Goal: a map with a bound keeps it, lets the right entries go, and does it as any other change.

Method: a primary of one partition with one backup; the grid has 4 partitions and 2 members, so a
bound of 2 n is a quota of n entries.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Host, Net, key, map_of, value

from whimbrel.core.ids import Namespace
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.structures.map import eviction
from whimbrel.structures.map.eviction import SAMPLE, choose, quota_of
from whimbrel.structures.map.locks import CLIENT_BYTES, owner_of
from whimbrel.structures.map.merging import make_chunk
from whimbrel.structures.map.policies import HIGHER_HITS, PASS_THROUGH
from whimbrel.structures.map.record import UNSET, stored_key
from whimbrel.structures.map.sampling import Sampling
from whimbrel.structures.map.service import (
    ADDED,
    EVICTED,
    EVICTED_COUNTER,
    EXPIRED,
    MERGED,
    UPDATED,
    MapService,
)
from whimbrel.structures.map.settings import LFU, LRU, RANDOM, EvictionPolicy, MapSettings
from whimbrel.structures.map.store import MapStore
from whimbrel.structures.map.usage_store import UsageMapStore

QUOTA = 8
SIZE = 2 * QUOTA
POLICIES: tuple[EvictionPolicy, ...] = (LRU, LFU, RANDOM)
STRUCTURES = (
    *(MapSettings(policy, max_size=SIZE, eviction_policy=policy) for policy in POLICIES),
    MapSettings("tiny", max_size=1, eviction_policy=LRU),
    MapSettings("large", max_size=2_000, eviction_policy=LRU),
    MapSettings("short", time_to_live_s=5, max_size=SIZE, eviction_policy=LRU),
    MapSettings("hits", merge_policy=HIGHER_HITS, max_size=SIZE, eviction_policy=LRU),
    MapSettings("merged", merge_policy=PASS_THROUGH, max_size=SIZE, eviction_policy=LRU),
)


class Scene:
    """A primary and its backup, and shorthand for partition 0."""

    def __init__(self) -> None:
        structures = (*SETTINGS.structures, *STRUCTURES)
        self.net = Net("ab", msgspec.structs.replace(SETTINGS, structures=structures))
        self.net.set_row(0, "ab", 2)
        self.net.pump()
        self.host: Host = self.net["a"]
        self.maps: MapService = self.host.maps
        self.p: PartitionReplica = self.host.plane.partitions[0]

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass for everybody."""
        self.net.now_us += span_ms * 1_000
        for host in self.net.hosts.values():
            host.ctx.now_us = self.net.now_us
            host.ctx.wall_ms = self.net.now_us // 1_000

    def put(self, name: str, *numbers: int) -> None:
        """Put entries, one each millisecond."""
        for number in numbers:
            self.pass_ms(1)
            self.maps.set(self.p, map_of(name), key(number), value(str(number)), None)

    def read(self, name: str, *numbers: int) -> None:
        """Read entries that are there."""
        for number in numbers:
            self.pass_ms(1)
            assert self.maps.get(self.p, map_of(name), key(number)) == value(str(number))

    def size(self, name: str) -> int:
        """Entries at the primary."""
        return self.maps.size(self.p, map_of(name))

    def there(self, name: str) -> set[int]:
        """The numbers of the entries that are there, the same at the backup."""
        self.net.pump()
        self.net.check_equal(0, "ab", name)
        return {int.from_bytes(one[8:], "big") for one in self.maps.key_set(self.p, map_of(name))}

    def halve(self, name: str) -> None:
        """As far as the primary knows only one data member is left."""
        ctx = self.host.ctx
        lite = tuple(
            msgspec.structs.replace(one, lite=one.id != ctx.id) for one in ctx.members.members
        )
        ctx.members = msgspec.structs.replace(ctx.members, members=lite)

    def listen(self, name: str) -> Namespace:
        """Have events of a map kept."""
        self.host.plane.events.listened[map_of(name)] = 1
        return map_of(name)

    def told(self) -> list[tuple[int, int]]:
        """(flag, number of the key) since the last call."""
        taken = self.host.plane.events.take()
        return [(flag, int.from_bytes((data or b"")[8:], "big")) for _, flag, data, _, _ in taken]

    @property
    def evicted(self) -> int:
        """As in the primary's metrics."""
        return self.host.plane.counters[EVICTED_COUNTER]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_quotas_are_those_of_the_field() -> None:
    """PER_NODE: bound times data members over partitions, one at least; together they are never
    above the bound of all members, but for quotas of one.
    """
    assert quota_of(2_000, 3, 271) == 22 and quota_of(2_000, 1, 271) == 7
    assert quota_of(1, 3, 271) == quota_of(90, 3, 271) == 1
    for max_size in (100, 1_234, 10**6):
        for members in (1, 2, 3, 9):
            assert quota_of(max_size, members, 271) * 271 <= max(271, max_size * members)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_bound_holds_whatever_goes(scene: Scene, policy: EvictionPolicy) -> None:
    """Goal: never more than a quota, and the entry that came last is always there. Method: 200 new
    entries; each that makes one too many makes one go, at the backup too, and is counted.
    """
    for number in range(200):
        scene.put(policy, number)
        assert scene.maps.contains_key(scene.p, map_of(policy), key(number))
        assert scene.size(policy) == min(number + 1, QUOTA)
    assert len(scene.there(policy)) == QUOTA
    assert scene.evicted == 200 - QUOTA
    assert scene.net["b"].plane.counters[EVICTED_COUNTER] == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_locked_stays(scene: Scene, policy: EvictionPolicy) -> None:
    """Goal: an entry whose key somebody holds is not evicted, and a map that is locked whole takes
    new ones all the same. Method: lock one of a full map and put many; then lock all.
    """
    owner = owner_of(bytes(CLIENT_BYTES), 1)

    def lock(*numbers: int) -> None:
        for number in numbers:
            held = key(number)
            scene.maps.locks.lock(scene.p, map_of(policy), held, owner, -1, number + 1, None)

    scene.put(policy, *range(QUOTA))
    lock(0)
    scene.put(policy, *range(100, 200))
    assert 0 in scene.there(policy) and len(scene.there(policy)) == QUOTA
    lock(*scene.there(policy) - {0})
    scene.put(policy, 300)
    assert 300 in scene.there(policy) and len(scene.there(policy)) == QUOTA + 1


def test_a_quota_of_one_keeps_the_newest(scene: Scene) -> None:
    """A bound below the number of a member's partitions is one entry for each."""
    scene.put("tiny", 1, 2, 3)
    assert scene.there("tiny") == {3}


def test_maps_without_a_bound_keep_everything(scene: Scene) -> None:
    """0, the default: no limit, and a store that notes nothing."""
    scene.put("m", *range(100))
    assert len(scene.there("m")) == 100 and scene.evicted == 0
    assert type(scene.host.fragment(0, "m").store) is MapStore


def test_the_least_recently_used_goes(scene: Scene) -> None:
    """LRU: a write, a read and a look are uses, whichever came last."""
    scene.put(LRU, *range(QUOTA))
    scene.read(LRU, 0)
    scene.pass_ms(1)
    assert scene.maps.contains_key(scene.p, map_of(LRU), key(1))
    scene.put(LRU, 2)
    scene.put(LRU, 10, 11)
    assert scene.there(LRU) == {0, 1, 2, 5, 6, 7, 10, 11}
    view = scene.maps.entry_view(scene.p, map_of(LRU), key(0))
    assert view is not None and view.hits == UNSET and view.last_access_ms > view.updated_ms


def test_the_least_often_read_goes(scene: Scene) -> None:
    """LFU: of entries read equally often the one that was written first."""
    scene.put(LFU, *range(QUOTA))
    scene.read(LFU, *(0, 0, 0), *(2, 3, 4, 5, 6, 7))
    scene.put(LFU, 10, 11)
    assert scene.there(LFU) == {0, 2, 3, 4, 5, 6, 7, 11}
    view = scene.maps.entry_view(scene.p, map_of(LFU), key(0))
    assert view is not None and (view.hits, view.last_access_ms) == (3, UNSET)


def test_what_counts_hits_for_merges_may_be_bounded_too(scene: Scene) -> None:
    """Reads are counted for the merge policy and dated for LRU, and what goes takes both along."""
    scene.put("hits", *range(QUOTA))
    scene.read("hits", 0, 1, 0)
    view = scene.maps.entry_view(scene.p, map_of("hits"), key(0))
    assert view is not None and view.hits == 2
    scene.put("hits", *range(10, 10 + QUOTA))
    store = scene.host.fragment(0, "hits").store
    assert isinstance(store, UsageMapStore) and store.hits == store.reads_ms == {}


def test_a_write_of_what_is_there_evicts_nothing(scene: Scene) -> None:
    """Only a new entry is looked at: a partition that has too many keeps them until one comes."""
    scene.put(LRU, *range(QUOTA))
    scene.halve(LRU)
    scene.put(LRU, 0)
    assert scene.size(LRU) == QUOTA
    scene.put(LRU, 9)
    assert scene.there(LRU) == {6, 7, 0, 9}


def test_a_quota_that_became_smaller_is_reached_step_by_step(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no put evicts more than so many, and the next ones go on."""
    monkeypatch.setattr(eviction, "EVICTED_AT_ONCE_MAX", 300)
    scene.put("large", *range(1_000))
    scene.halve("large")
    scene.put("large", 1_000)
    assert scene.size("large") == 1_001 - 300
    scene.put("large", 1_001, 1_002)
    assert len(scene.there("large")) == scene.size("large") == 500


def test_an_eviction_is_told_after_what_made_it_needed(scene: Scene) -> None:
    """Listeners hear EVICTED with the key and the value that is gone."""
    namespace = scene.listen(LRU)
    scene.put(LRU, *range(QUOTA + 1))
    scene.put(LRU, QUOTA)
    added = [(ADDED, number) for number in range(QUOTA + 1)]
    assert scene.told() == [*added, (EVICTED, 0), (UPDATED, QUOTA)]
    scene.maps.put_all(scene.p, namespace, [(key(20), value("x")), (key(21), value("y"))], None)
    taken = scene.host.plane.events.take()
    assert [(flag, new, old) for _, flag, _, new, old in taken] == [
        (ADDED, value("x"), None),
        (EVICTED, None, value("1")),
        (ADDED, value("y"), None),
        (EVICTED, None, value("2")),
    ]


def test_expired_entries_make_room_first(scene: Scene) -> None:
    """What is over goes as expired before anything is evicted."""
    scene.listen("short")
    scene.put("short", *range(3))
    scene.pass_ms(4_000)
    scene.put("short", *range(10, 10 + QUOTA - 3))
    scene.pass_ms(2_000)
    scene.told()
    scene.put("short", 20)
    assert scene.told() == [(ADDED, 20), (EXPIRED, 0)] and scene.evicted == 0
    scene.put("short", 21, 22, 23)
    assert scene.told()[-2:] == [(ADDED, 23), (EVICTED, 10)] and scene.evicted == 1
    assert scene.there("short") == {11, 12, 13, 14, 20, 21, 22, 23}


def test_the_callers_reply_waits_for_its_own_change(scene: Scene) -> None:
    """Backups are told of evictions behind the write, and nobody waits for them."""
    scene.put(LRU, *range(QUOTA))
    scene.net.pump()
    reply = PendingReply(None)
    scene.maps.set(scene.p, map_of(LRU), key(50), value("x"), reply)
    assert reply.remaining == 1
    scene.maps.put_if_absent(scene.p, map_of(LRU), key(51), value("y"), None)
    assert {50, 51} <= scene.there(LRU)


def test_what_is_merged_obeys_the_bound(scene: Scene) -> None:
    """After a split the smaller part's entries come under the same limit; backups follow."""
    namespace = scene.listen("merged")
    scene.put("merged", *range(QUOTA))
    scene.told()
    scene.pass_ms(1_000)
    incoming = MapStore()
    for number in (20, 21, 22):
        incoming.put(stored_key(key(number)), value(str(number)), scene.host.ctx.wall_ms)
    chunk, _ = make_chunk(incoming, incoming.open_cursor(), 1_000)
    counts = scene.maps.merge(scene.p, namespace, chunk, PendingReply(None))
    assert counts == MergeCounts(added=3)
    pairs = [((MERGED, 20 + number), (EVICTED, number)) for number in range(3)]
    assert scene.told() == [event for pair in pairs for event in pair]
    assert scene.there("merged") == {3, 4, 5, 6, 7, 20, 21, 22}


def test_a_new_primary_begins_with_the_last_writes(scene: Scene) -> None:
    """Goal: what a promoted backup knows of use is in the records. Method: an entry is read at the
    old primary, the backup takes over and evicts by the times of writing; the old one forgets.
    """
    scene.put(LRU, *range(QUOTA))
    scene.read(LRU, 0)
    scene.net.pump()
    store = scene.host.fragment(0, LRU).store
    scene.net.set_row(0, "ba", 3)
    assert isinstance(store, UsageMapStore) and store.reads_ms == {}
    heir = scene.net["b"]
    scene.pass_ms(1)
    heir.maps.set(heir.plane.partitions[0], map_of(LRU), key(30), value("30"), None)
    scene.net.pump()
    scene.net.check_equal(0, "ba", LRU)
    assert set(heir.content(0, LRU)) == {key(number) for number in (*range(1, QUOTA), 30)}


def test_a_cleared_map_begins_anew(scene: Scene) -> None:
    """Nothing is known of entries that were there before a clear or a destruction."""
    scene.put(LRU, *range(20))
    scene.read(LRU, 19)
    store = scene.host.fragment(0, LRU).store
    scene.maps.clear(scene.p, map_of(LRU), None)
    assert isinstance(store, UsageMapStore) and store.reads_ms == {}
    scene.put(LRU, *range(20))
    assert len(scene.there(LRU)) == QUOTA
    scene.host.destroy(LRU, 1)
    scene.put(LRU, *range(20))
    assert scene.size(LRU) == QUOTA


# -- which of many ------------------------------------------------------------------------


def names(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("count", [17, 23, 100, 1_000])
def test_samples_go_around_all_keys(count: int) -> None:
    """Goal: each key comes once before any comes twice. Method: samples that fill one round, and
    what of the last one belongs to the next.
    """
    present, sampling = dict.fromkeys(names(count)), Sampling()
    seen: list[bytes] = []
    while len(seen) < count:
        seen += sampling.take(present, SAMPLE, b"")
    assert set(seen[:count]) == set(present)


def test_a_list_that_is_out_of_date_is_made_anew() -> None:
    """Goal: where most keys have gone nothing is chosen among the few of the old list that are
    left. Method: all but some of the last ones go, and others come.
    """
    present, sampling = dict.fromkeys(names(1_000)), Sampling()
    sampling.take(present, SAMPLE, b"")
    for name in names(990):
        del present[name]
    present.update(dict.fromkeys(b"n" + name for name in names(100)))
    for _ in range(20):
        assert len(sampling.take(present, SAMPLE, b"")) >= SAMPLE


def test_samples_know_who_came_and_went() -> None:
    """What is gone is in no sample, what came is in one of the next round; few are all."""
    present, sampling = dict.fromkeys(names(40)), Sampling()
    sampling.take(present, SAMPLE, b"")
    for name in names(40)[:20]:
        del present[name]
    present[b"new"] = None
    seen = [one for _ in range(6) for one in sampling.take(present, SAMPLE, b"0030")]
    assert b"new" in seen and b"0030" not in seen and set(seen) <= set(present)
    few = dict.fromkeys(names(SAMPLE + 1))
    assert sampling.take(few, SAMPLE, b"0000") == names(SAMPLE + 1)[1:]
    assert Sampling().take(dict.fromkeys(names(2)), SAMPLE, b"0000") == [b"0001"]


def test_neighbours_are_not_in_one_sample() -> None:
    """Goal: a sample is of the whole map. Method: the places of 1,500 keys in the order in which
    they came.
    """
    present, sampling = dict.fromkeys(names(1_500)), Sampling()
    for _ in range(250):
        places = [int(name) for name in sampling.take(present, SAMPLE, b"")]
        assert len(places) == SAMPLE
        assert {b - a for a, b in pairwise(places)} == {1_500 // SAMPLE}


@pytest.mark.parametrize("policy", POLICIES)
def test_entries_in_use_stay_in_a_large_map(policy: EvictionPolicy) -> None:
    """Goal: by samples, too, what is used stays. Method: 1,000 entries, 100 of them read again and
    again while 5,000 come and go.
    """
    store = UsageMapStore(counts_reads=policy == LFU, dates_reads=policy == LRU)
    hot = [stored_key(key(number)) for number in range(100)]
    for now_ms in range(6_000):
        stored = stored_key(key(now_ms))
        store.put(stored, value("x"), now_ms)
        store.get(hot[now_ms % len(hot)], now_ms)
        if len(store) > 1_000:
            store.remove(choose(store, policy, stored) or b"")
    assert len(store) == 1_000
    if policy == RANDOM:
        ages = [int.from_bytes(one[-8:], "big") for one in store.records]
        assert sum(age < 4_000 for age in ages) > 50, "any of them may go, and the oldest need not"
    else:
        assert all(store.contains(one, 6_000) for one in hot)
