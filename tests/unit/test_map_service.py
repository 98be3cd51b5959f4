"""Goal: the map's operations mean what Hazelcast's mean, change backups, and are told once."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Host, M, Net, key, map_of, value

from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import RetryableError, UsageError
from whimbrel.structures.map.merging import make_chunk
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.service import (
    ADDED,
    ENTRY_BYTES_MAX,
    EVICTED,
    EXPIRED,
    MERGED,
    REMOVED,
    UPDATED,
    MapService,
)
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.map.store import MapStore

X, Y, Z = value("x"), value("y"), value("z")


class Stage:
    """A primary with one backup, and shorthand for its partition 0."""

    def __init__(self) -> None:
        maps = (*SETTINGS.structures, MapSettings("short", time_to_live_s=5, max_idle_s=3))
        self.net = Net("ab", msgspec.structs.replace(SETTINGS, structures=maps))
        self.net.set_row(0, "ab", 2)
        self.net.set_row(1, "ab", 2)
        self.net.pump()
        self.host: Host = self.net["a"]
        self.maps: MapService = self.host.maps
        self.p: PartitionReplica = self.host.plane.partitions[0]
        self.host.plane.events.listened[M] = 1

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass for everybody."""
        self.net.now_us += span_ms * 1_000
        for host in self.net.hosts.values():
            host.ctx.now_us = self.net.now_us
            host.ctx.wall_ms = self.net.now_us // 1_000

    def events(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """(flag, value, old value) since the last call."""
        taken = self.host.plane.events.take()
        return [(flag, new, old) for _, flag, _, new, old in taken]

    def check_backup(self, name: str = "m") -> None:
        """The backup holds what we hold."""
        self.net.pump()
        self.net.check_equal(0, "ab", name)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_writes_and_their_answers(stage: Stage) -> None:
    """put, set, remove, delete, replace, conditional forms; the backup follows each."""
    maps, p, k = stage.maps, stage.p, key(1)
    assert maps.put(p, M, k, X, None) is None and maps.put(p, M, k, Y, None) == X
    maps.set(p, M, k, X, None)
    maps.set(p, M, k, Y, None)
    assert maps.get(p, M, k) == Y and maps.contains_key(p, M, k)
    assert (
        maps.put_if_absent(p, M, k, Z, None) == Y
        and maps.put_if_absent(p, M, key(2), Z, None) is None
    )
    assert maps.replace(p, M, k, Z, None) == Y and maps.replace(p, M, key(9), Z, None) is None
    assert not maps.replace_if_same(p, M, k, Y, X, None) and maps.replace_if_same(
        p, M, k, Z, X, None
    )
    assert not maps.replace_if_same(p, M, key(9), X, Y, None)
    assert not maps.remove_if_same(p, M, k, Y, None) and maps.remove_if_same(p, M, k, X, None)
    assert maps.put(p, M, k, X, None) is None and maps.remove(p, M, k, None) == X
    assert maps.remove(p, M, k, None) is None
    stage.check_backup()
    assert maps.remove(p, M, key(2), None) == Z and maps.remove(p, M, key(2), None) is None
    maps.set(p, M, k, X, None)
    assert maps.remove(p, M, k, None) == X
    stage.check_backup()
    assert (
        maps.get(p, map_of("never"), k) is None and maps.remove(p, map_of("never"), k, None) is None
    )


def test_equality_does_not_look_at_the_partition_hash(stage: Stage) -> None:
    """FN-1: neither for keys nor for values."""
    maps, p = stage.maps, stage.p
    hashed = b"\0\0\0\5" + key(1)[4:]
    maps.set(p, M, key(1), X, None)
    assert maps.put(p, M, hashed, Y, None) == X
    assert maps.key_set(p, M) == [hashed]
    assert maps.remove_if_same(p, M, key(1), b"\0\0\0\7" + Y[4:], None)
    stage.check_backup()


def test_each_change_is_told_once(stage: Stage) -> None:
    """Events carry flag, value and old value; maps nobody listens to have none."""
    maps, p, k = stage.maps, stage.p, key(1)
    maps.put(p, map_of("other"), k, X, None)
    maps.put(p, M, k, X, None)
    maps.put(p, M, k, Y, None)
    maps.put_if_absent(p, M, k, Z, None)
    maps.remove(p, M, k, None)
    maps.remove(p, M, k, None)
    maps.set(p, M, k, X, None)
    maps.remove(p, M, k, None, EVICTED)
    assert maps.remove(p, M, k, None, EVICTED) is None
    assert stage.events() == [
        (ADDED, X, None),
        (UPDATED, Y, X),
        (REMOVED, None, Y),
        (ADDED, X, None),
        (EVICTED, None, X),
    ]


def test_time_to_live_and_defaults(stage: Stage) -> None:
    """-1 is the map's default, 0 for ever; a put without one resets to the map's."""
    maps, p, k = stage.maps, stage.p, key(1)
    maps.put(p, map_of("short"), k, X, None)
    maps.put(p, map_of("short"), key(2), X, None, 0, 0)
    maps.put(p, map_of("short"), key(3), X, None, 60_000, 0)
    view = maps.entry_view(p, map_of("short"), k)
    assert view is not None and (view.ttl_ms, view.max_idle_ms) == (5_000, 3_000)
    maps.put(p, M, k, X, None, 1_000)
    maps.put(p, M, k, Y, None)
    stage.pass_ms(3_000)
    assert maps.get(p, map_of("short"), k) is None and maps.get(p, M, k) == Y
    assert maps.size(p, map_of("short")) == 2
    stage.pass_ms(57_000)
    assert maps.key_set(p, map_of("short")) == [key(2)]


def test_set_ttl_keeps_value_and_idle_limit(stage: Stage) -> None:
    """set_ttl counts from now, 0 lifts, -1 is the map's default; unknown keys answer False."""
    maps, p, k = stage.maps, stage.p, key(1)
    maps.put(p, M, k, X, None, 1_000, 50_000)
    assert maps.set_ttl(p, M, k, 10_000, None) and not maps.set_ttl(p, M, key(9), 1, None)
    assert not maps.set_ttl(p, map_of("never"), k, 1, None)
    view = maps.entry_view(p, M, k)
    assert view is not None and (view.ttl_ms, view.max_idle_ms) == (10_000, 50_000)
    stage.check_backup()
    backup = stage.net["b"].fragment(0, "m").store
    assert backup.timings == stage.host.fragment(0, "m").store.timings  # type: ignore[attr-defined]
    stage.pass_ms(5_000)
    assert maps.set_ttl(p, M, k, 0, None)
    stage.pass_ms(40_000)
    assert maps.get(p, M, k) == X
    assert maps.set_ttl(p, M, k, -1, None)


def test_configured_limits_hold_where_a_map_arrived_by_migration(stage: Stage) -> None:
    """A member that never began a fragment of the map knows its time to live all the same."""
    stage.maps.put(stage.p, map_of("short"), key(1), X, None)
    stage.net.pump()
    stage.net.set_row(0, "ba", 5)
    backup = stage.net["b"]
    backup.maps.put(backup.plane.partitions[0], map_of("short"), key(2), X, None)
    view = backup.maps.entry_view(backup.plane.partitions[0], map_of("short"), key(2))
    assert view is not None and view.ttl_ms == 5_000


def test_asking_for_the_size_sweeps_first(stage: Stage) -> None:
    """Expired entries are not counted, and removed for good where we may."""
    for number in range(5):
        stage.maps.put(stage.p, M, key(number), X, None, 10 if number else 0)
    stage.pass_ms(20)
    stage.p.set_migrating(True)
    assert stage.maps.size(stage.p, M) == 1 and stage.maps.expired == 0
    stage.p.set_migrating(False)
    assert stage.maps.size(stage.p, M) == 1
    stage.check_backup()
    assert len(stage.net["b"].content(0, "m")) == 1 and stage.maps.expired == 4


def test_expiry_is_told_once_and_removed_on_backups(stage: Stage) -> None:
    """The sweep runs on the primary only; a write over an expired entry counts as added."""
    maps, p = stage.maps, stage.p
    for number in range(10):
        maps.put(p, M, key(number), X, None, 1_000)
    stage.events()
    stage.pass_ms(1_000)
    assert maps.get(p, M, key(0)) is None
    assert maps.put(p, M, key(0), Y, None) is None
    assert stage.events() == [(EXPIRED, None, X), (ADDED, Y, None)]
    assert stage.net["b"].maps.sweep(stage.host.ctx.wall_ms, 100) == 0
    assert maps.sweep(stage.host.ctx.wall_ms, 4) == 4
    assert maps.sweep(stage.host.ctx.wall_ms, 100) == 5
    assert maps.sweep(stage.host.ctx.wall_ms, 100) == 0
    assert stage.events() == [(EXPIRED, None, X)] * 9
    stage.check_backup()
    assert maps.expired == 10


def test_nothing_expires_for_good_while_a_partition_migrates(stage: Stage) -> None:
    """A sweep is a write: it waits (GCM-31). Expired entries are invisible all the same."""
    stage.maps.put(stage.p, M, key(1), X, None, 10)
    stage.pass_ms(50)
    stage.p.set_migrating(True)
    assert stage.maps.sweep(stage.host.ctx.wall_ms, 10) == 0
    assert stage.maps.get(stage.p, M, key(1)) is None
    with pytest.raises(RetryableError):
        stage.maps.remove(stage.p, M, key(1), None)
    stage.p.set_migrating(False)
    assert stage.maps.sweep(stage.host.ctx.wall_ms, 10) == 1


def test_a_sweep_looks_at_a_share_of_the_partitions() -> None:
    """Goal: one sweep is short however many partitions there are, and the next one goes on. Method:
    an entry that expires in the first and one in the last of twenty.
    """
    net = Net("a", msgspec.structs.replace(SETTINGS, partition_count=20))
    host = net["a"]
    for pid in range(20):
        net.set_row(pid, "a", 2)
    first, *_, last = host.plane.partitions
    for partition in (first, last):
        host.maps.put(partition, M, key(1), X, None, 10)
    later_ms = host.ctx.wall_ms + 10
    assert [host.maps.sweep(later_ms, 100) for _ in range(3)] == [1, 1, 0]


def test_whole_map_calls(stage: Stage) -> None:
    """Over the partitions asked for; clear and evict_all answer how many entries went."""
    maps = stage.maps
    other = stage.host.plane.partitions[1]
    assert maps.size(stage.p, M) == maps.size(other, M) == 0
    maps.put_all(stage.p, M, [(key(1), X), (key(2), Y)], None)
    maps.put(other, M, key(3), Z, None)
    partitions = [stage.p, other]
    assert maps.size(stage.p, M) == 2 and maps.size(other, M) == 1
    assert [sorted(maps.key_set(p, M)) for p in partitions] == [[key(1), key(2)], [key(3)]]
    assert [sorted(maps.values(p, M)) for p in partitions] == [[X, Y], [Z]]
    assert dict(maps.entries(stage.p, M))[key(2)] == Y
    assert [maps.contains_value(p, M, Z) for p in partitions] == [False, True]
    assert not any(maps.contains_value(p, M, value("none")) for p in partitions)
    assert dict(maps.get_all(stage.p, M, [key(1), key(9)])) == {key(1): X}
    assert maps.get_all(stage.p, map_of("never"), [key(1)]) == []
    held = sum(one.fragments[M].store.bytes_used for one in partitions)
    assert held == sum(11 + len(v) for v in (X, Y, Z))
    cursor, found = maps.fetch_entries(stage.p, M, 0, 10)
    assert cursor == -1 and sorted(found) == [(key(1), X), (key(2), Y)]
    assert maps.fetch_entries(stage.p, map_of("never"), 0, 10) == (-1, [])
    stage.check_backup()
    assert maps.clear(stage.p, M, None) == 2 and maps.clear(stage.p, M, None) == 0
    assert maps.clear(other, M, None) == 1
    stage.check_backup()
    assert maps.size(stage.p, M) == maps.size(other, M) == 0


def test_a_bulk_write_waits_once(stage: Stage) -> None:
    """put_all: one acknowledgement for all entries, because backups are acknowledged in order."""
    plane = stage.host.plane
    reply = PendingReply(ack_to=bytes(24))
    stage.maps.put_all(stage.p, M, [(key(number), X) for number in range(50)], reply)
    assert reply.remaining == 1
    stage.net.pump()
    assert plane.outgoing.completed == [reply]
    assert len(stage.net["b"].plane.incoming.take_notifications()) == 1
    stage.maps.put_all(stage.p, M, [], None)


def test_writes_that_must_not_happen_here(stage: Stage) -> None:
    """Not the primary: retryable, and nothing has happened. Too large, or no key at all: usage."""
    backup = stage.net["b"]
    replica = backup.plane.partitions[0]
    for call in (
        lambda: backup.maps.put(replica, M, key(1), X, None),
        lambda: backup.maps.set_ttl(replica, M, key(1), 5, None),
        lambda: backup.maps.put_all(replica, M, [(key(1), X)], None),
        lambda: backup.maps.put_if_absent(replica, M, key(1), X, None),
    ):
        with pytest.raises(RetryableError):
            call()
    assert not replica.fragments
    with pytest.raises(UsageError):
        stage.maps.put(stage.p, M, b"bad", X, None)
    with pytest.raises(UsageError):
        stage.maps.put(stage.p, M, key(1), bytes(ENTRY_BYTES_MAX), None)
    assert stage.maps.size(stage.p, M) == 0


def test_what_expired_before_a_merge_is_told_as_expired(stage: Stage) -> None:
    """Goal: a merging entry does not replace one whose time was over, it comes after its end.
    Method: an entry expires unswept, then one of the other part of a split arrives.
    """
    stage.maps.put(stage.p, M, key(1), X, None, 10)
    stage.pass_ms(20)
    stage.events()
    incoming = MapStore()
    stored = stored_key(key(1))
    incoming.put(stored, Y, stage.host.ctx.wall_ms)
    reply = PendingReply(None)
    chunk, _ = make_chunk(incoming, incoming.open_cursor(), 1_000)
    assert stage.maps.merge(stage.p, M, chunk, reply) == MergeCounts(added=1)
    assert stage.maps.expired == 1
    assert stage.events() == [(EXPIRED, None, X), (MERGED, Y, None)]
    stage.check_backup()


def test_damage_ends_a_merge_and_is_said(stage: Stage) -> None:
    """Goal: what comes before the damage counts, and that the rest is lost is told. Method: chunks
    that are cut off within their last entry and within their head.
    """
    incoming = MapStore()
    for number in range(2):
        incoming.put(stored_key(key(number)), X, stage.host.ctx.wall_ms)
    chunk, _ = make_chunk(incoming, incoming.open_cursor(), 1_000)
    for part, added in ((chunk[:-1], 1), (b"?", 0)):
        counts = stage.maps.merge(stage.p, M, part, PendingReply(None))
        assert counts == MergeCounts(added=added)
    stage.check_backup()
    damaged = [note for note in stage.host.notes if note.kind == "split_brain.damaged"]
    assert [note.fields["map"] for note in damaged] == ["m", "m"]


@pytest.mark.parametrize(("ttl_ms", "max_idle_ms"), [(1, 0), (0, 1)])
def test_the_shortest_limits_hold(stage: Stage, ttl_ms: int, max_idle_ms: int) -> None:
    """A millisecond is a limit like any other: the entry is there now and gone then."""
    maps, p = stage.maps, stage.p
    maps.set(p, M, key(1), X, None, ttl_ms, max_idle_ms)
    view = maps.entry_view(p, M, key(1))
    assert view is not None and (view.ttl_ms or 0, view.max_idle_ms or 0) == (ttl_ms, max_idle_ms)
    stage.pass_ms(2)
    assert maps.get(p, M, key(1)) is None
