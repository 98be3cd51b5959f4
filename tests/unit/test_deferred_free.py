"""Large fragments are dropped and cleared at once, and freed a few thousand entries in a step."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.replication_net import SECOND, M, Net

from whimbrel.core.context import Context
from whimbrel.core.effects import ArmTimer
from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.model import MemberInfo
from whimbrel.core.replication import walk
from whimbrel.core.replication.deferred_free import FREED_BYTES_MAX, FREED_MAX, DeferredFree
from whimbrel.core.replication.transfer import FragmentExport
from whimbrel.core.settings import CoreSettings
from whimbrel.structures.map.record import CLEAR, OPERATION
from whimbrel.structures.map.store import FREED_AT_ONCE_MAX, GivenUp

LARGE = 3 * FREED_MAX + 1
CLEAR_OPERATION = OPERATION.pack(CLEAR, 0)


def filled(count: int) -> Net:
    net = Net("ab")
    net.set_row(0, "ab", 5)
    for number in range(count):
        net.put("m", number, "x")
    net.pump()
    return net


def freeing_steps(net: Net, name: str) -> list[int]:
    """What is still to be freed after each step of one member, until nothing is."""
    deferred = net[name].plane.holdings.deferred
    left = [deferred.entries]
    while left[-1]:
        deferred.on_timer()
        left.append(deferred.entries)
    return left


def test_a_large_fragment_that_is_dropped_is_freed_in_steps() -> None:
    """GCM-42, ADL-73: a member that leaves a row holds nothing of it at once; the memory comes back
    in steps of at most FREED_MAX entries, each with the next turn of the loop.
    """
    net = filled(LARGE)
    store = net["b"].plane.partitions[0].fragments["map/m"].store  # type: ignore[index]
    net.set_row(0, "a", 6)
    assert not net["b"].plane.partitions[0].fragments
    assert len(store) == store.bytes_used == 0
    assert net["b"].ctx.is_armed("replication.free")
    left = freeing_steps(net, "b")
    assert left[0] == LARGE
    assert left[-1] == 0
    assert all(0 < before - after <= FREED_MAX for before, after in itertools.pairwise(left))
    assert len(net["a"].plane.partitions[0].fragments[M].store) == LARGE


def test_a_large_fragment_that_is_cleared_is_empty_at_once_and_freed_in_steps() -> None:
    """GCM-42: clear empties primary and backup in one step each; what is written next is apart from
    what is still to be freed.
    """
    net = filled(LARGE)
    plane = net["a"].plane
    net["a"].maps.clear(plane.partitions[0], M, None)
    net.put("m", 1, "again")
    left = freeing_steps(net, "a")
    assert left[0] == LARGE
    assert len(left) == 5
    assert len(plane.partitions[0].fragments[M].store) == 1
    net.pump()
    assert len(net["b"].plane.partitions[0].fragments[M].store) == 1


@pytest.mark.parametrize("way", ["drop", "clear"])
def test_a_small_fragment_needs_no_steps(way: str) -> None:
    """Up to FREED_AT_ONCE_MAX entries are freed where they are: no timer, nothing kept."""
    net = filled(FREED_AT_ONCE_MAX)
    if way == "drop":
        net.set_row(0, "a", 6)
    else:
        store = net["b"].plane.partitions[0].fragments[M].store
        store.apply(CLEAR_OPERATION, 0, len(CLEAR_OPERATION))
    assert net["b"].plane.holdings.deferred.entries == 0
    assert not net["b"].ctx.is_armed("replication.free")


def test_large_values_end_a_step_by_their_bytes() -> None:
    """Values of a megabyte go back to the system one by one, so a step counts bytes as well."""
    me = MemberInfo(MemberId("a"), Address("127.0.0.1", 1))
    deferred = DeferredFree(Context(me, CoreSettings()))
    value = bytes(FREED_BYTES_MAX // 4)
    deferred.take(GivenUp({bytes([number]): value for number in range(10)}))
    deferred.on_timer()
    assert deferred.entries == 6


@pytest.mark.parametrize("changes", [False, True])
def test_the_keys_of_a_large_fragment_are_listed_some_at_a_time(
    changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCM-34: every entry that is there from the first chunk to the last is in the copy, also when
    keys come and go meanwhile, as they do while a backup is synchronised.
    """
    monkeypatch.setattr(walk, "KEYS_TAKEN", 7)
    net = filled(100)
    fragment = net["a"].plane.partitions[0].fragments[M]
    kept = set(list(fragment.store.records)[:50])  # type: ignore[attr-defined]
    copy = net["b"].plane.holdings.make(PartitionId(0), fragment.namespace)
    export, number, chunks, last = FragmentExport([fragment]), 1_000, 0, False
    while not last:
        parts, last = export.next_parts(100)
        chunks += 1
        for part in parts:
            copy.store.ingest(part.data)
        if changes and chunks == 3:
            net.put("m", number, "new")
    assert chunks > 10
    assert kept <= set(copy.store.records)  # type: ignore[attr-defined]
    assert len(copy.store) == 100 + changes


def test_an_empty_fragment_is_one_part() -> None:
    """A fragment whose entries are all gone still tells its vector."""
    net = filled(1)
    fragment = net["a"].plane.partitions[0].fragments[M]
    net["a"].maps.clear(net["a"].plane.partitions[0], M, None)
    parts, last = FragmentExport([fragment]).next_parts(100)
    assert last
    assert [(part.first, part.last, part.data) for part in parts] == [(True, True, b"")]


def test_what_a_sync_replaces_is_freed_in_steps() -> None:
    """GCM-42: the old replica is given back bit by bit. Method: a large one is synced."""
    net = filled(FREED_AT_ONCE_MAX + 1)
    net.advance(2 * SECOND)
    fragment = net["b"].fragment(0, "m")
    net["b"].plane.doubts.mark_dirty(fragment)
    before = fragment.store
    syncs = net["b"].plane.syncs.counters
    while syncs["syncs_completed"] == 0:
        net.advance(SECOND // 10)
    assert net["b"].fragment(0, "m").store is not before
    assert len(before) == 0


def test_what_is_given_up_is_freed_without_being_asked_for() -> None:
    """GCM-42: step after step, each with the next turn, until nothing waits and no timer runs."""
    net = filled(FREED_AT_ONCE_MAX + 1)
    deferred, ctx = net["b"].plane.holdings.deferred, net["b"].ctx
    ctx.effects.clear()
    deferred.take(GivenUp({bytes([number]): bytes(FREED_BYTES_MAX // 4) for number in range(10)}))
    steps = 0
    while ctx.is_armed("replication.free"):
        timer = ctx.effects.pop()
        assert isinstance(timer, ArmTimer) and timer.at_us == ctx.now_us
        assert ctx.take_timer(timer.key, timer.generation)
        deferred.on_timer()
        steps += 1
    assert deferred.entries == 0
    assert steps == 3
