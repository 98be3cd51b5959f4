"""Goal: replicas that differ are found and made equal, piece by piece, within limits."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.unit.replication_net import (
    COPIED_WHOLE,
    SECOND,
    SETTINGS,
    M,
    Net,
    key,
    map_of,
    value,
)

from whimbrel.core.ids import MemberId, Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages import (
    Message,
    Purpose,
    RefillRequested,
    ReplicaVersions,
    StandingRequested,
    SyncRefused,
    SyncRequested,
    TransferAnswered,
    TransferSent,
    Vector,
    VersionsTold,
)
from whimbrel.core.replication import syncs
from whimbrel.core.replication.anti_entropy import ABSENT_US, ANNOUNCED_MAX
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.errors import SerializationError
from whimbrel.structures.map.record import RECORD_BYTES, stored_key
from whimbrel.structures.map.settings import MapSettings


def settled(
    row: str = "ab",
    partitions: int = 4,
    entries: int = 20,
    limit: int = 10,
    names: str = "",
    whole: bool = False,
) -> Net:
    """Data in maps m, n and b2 of every partition, told and confirmed."""
    settings = msgspec.structs.replace(
        COPIED_WHOLE if whole else SETTINGS,
        partition_count=partitions,
        replication_max_parallel=limit,
        backup_sync_interval_us=4 * SECOND,
        migration_chunk_bytes_max=250,
    )
    net = Net(names or row, settings)
    for pid in range(partitions):
        net.set_row(pid, row, 5)
        for number in range(entries):
            for name in ("m", "n", "b2"):
                net.put(name, number, f"{name} {number}", pid)
    net.pump()
    net.advance(2 * SECOND)
    net.log.clear()
    return net


def lose(net: Net, name: str, pid: int = 0, number: int = 7) -> None:
    """A backup operation disappears without a trace: the primary counts it, nobody gets it."""
    host = net["a"]
    fragment = host.fragment(pid, name)
    targets = fragment.sync_targets
    fragment.sync_targets = ()
    net.put(name, number, "lost by the backup", pid)
    fragment.sync_targets = targets


def said(net: Net, kind: type) -> list[object]:
    """All messages of a kind so far; version requests do not count as sync requests."""
    return [
        m
        for _, _, m in net.log
        if isinstance(m, kind) and not (isinstance(m, SyncRequested) and not m.namespaces)
    ]


def permits(plane: DataPlane) -> int:
    """Permits in use."""
    return plane.syncs.permits_requested + plane.syncs.permits_served


def test_the_last_backup_of_an_idle_map_is_found_missing() -> None:
    """AE-12, AE-20, AE-24: equal again within two intervals; the neighbours are not touched."""
    net = settled()
    lose(net, "m")
    before = net["b"].fragment(0, "n")
    net.advance(8 * SECOND)
    net.check_equal(0, "ab", "m")
    assert net["b"].fragment(0, "n") is before
    (request,) = said(net, SyncRequested)
    assert isinstance(request, SyncRequested) and request.namespaces == ("map/m",)
    parts = [part for m in said(net, TransferSent) for part in m.parts]  # type: ignore[attr-defined]
    sent = sum(len(part.data) for part in parts)
    assert 0 < sent < 2 * net["a"].fragment(0, "m").store.bytes_used + 20 * 60
    assert net["b"].plane.unsettled() == 0


def test_the_periodic_check_tells_all_namespaces_of_a_partition_at_once() -> None:
    """AE-21: one message per backup with every namespace that concerns it; all once an interval."""
    net = settled(row="abc")
    net.log.clear()
    net.advance(4 * SECOND)
    told: dict[tuple[str, int], list[ReplicaVersions]] = {}
    for _, to, message in net.log:
        if isinstance(message, VersionsTold):
            for replica in message.replicas:
                told.setdefault((to, replica.partition_id), []).append(replica)
    assert sorted(told) == [(name, pid) for name in "bc" for pid in range(4)]
    assert all(len(replicas) == 1 for replicas in told.values())
    assert sorted(told["b", 0][0].vectors) == ["map/b2", "map/m", "map/n"]
    assert sorted(told["c", 0][0].vectors) == ["map/b2"]
    assert not said(net, SyncRequested)


def test_all_inconsistent_namespaces_are_asked_for_in_one_request() -> None:
    """AE-22: two of three stale: one request that names both."""
    net = settled()
    lose(net, "m")
    lose(net, "b2")
    net.advance(8 * SECOND)
    (request,) = said(net, SyncRequested)
    assert isinstance(request, SyncRequested)
    assert sorted(request.namespaces) == ["map/b2", "map/m"]
    net.check_equal(0, "ab", "m")
    net.check_equal(0, "ab", "b2")


def test_a_sync_removes_what_the_primary_does_not_have() -> None:
    """AE-24, bug 37: replication replaces; and it goes in small answered pieces."""
    net = settled()
    backup = net["b"].fragment(0, "m")
    extra = stored_key(key(999))
    record = bytes(RECORD_BYTES) + value("ghost")
    operation = b"\x01" + len(extra).to_bytes(4, "little") + extra + record
    backup.store.apply(operation, 0, len(operation))
    lose(net, "m")
    net.advance(8 * SECOND)
    net.check_equal(0, "ab", "m")
    sent = said(net, TransferSent)
    assert len(sent) > 3
    assert all(sum(len(p.data) for p in m.parts) < 420 for m in sent if isinstance(m, TransferSent))


def test_one_piece_is_in_flight_at_a_time() -> None:
    """Memory is bounded: no piece is sent before the one before is answered (AE-14)."""
    net = settled()
    lose(net, "m")
    net.advance(8 * SECOND)
    sequence = [type(m) for _, _, m in net.log if isinstance(m, TransferSent | TransferAnswered)]
    assert sequence[::2] == [TransferSent] * (len(sequence) // 2)
    assert sequence[1::2] == [TransferAnswered] * (len(sequence) // 2)


@pytest.mark.parametrize("whole", [True, False])
def test_writes_during_a_sync_are_not_lost(whole: bool) -> None:
    """Operations that pass while a fragment is filled are in it afterwards, removals as well."""
    net = settled(entries=60, whole=whole)
    lose(net, "m")
    host = net["a"]
    partition = host.plane.partitions[0]
    chunks = [0]

    def write_meanwhile(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent):
            chunks[0] += 1
            for step in range(3):
                net.put("m", (17 * chunks[0] + step) % 90, f"meanwhile {chunks[0]}")
            host.maps.remove(partition, M, key((29 * chunks[0]) % 60), None)
        return False

    net.drop = write_meanwhile
    net.advance(8 * SECOND)
    net.drop = None
    assert chunks[0] > (5 if whole else 1)
    net.advance(SECOND)
    net.check_equal(0, "ab", "m")
    assert len(said(net, SyncRequested)) == 1


@pytest.mark.parametrize(("whole", "number"), [(True, 3), (False, 1), (False, 2)])
def test_clearing_during_a_sync(whole: bool, number: int) -> None:
    """A clear that passes empties the fragment to come too; what follows it stays."""
    net = settled(entries=60, whole=whole)
    lose(net, "m")
    host = net["a"]
    cleared = [False]

    def clear_meanwhile(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.sequence == number and not cleared[0]:
            cleared[0] = True
            host.maps.clear(host.plane.partitions[0], M, None)
            net.put("m", 5, "after the clear")
        return False

    net.drop = clear_meanwhile
    net.advance(8 * SECOND)
    assert cleared[0]
    net.check_equal(0, "ab", "m")
    assert net["b"].content(0, "m") == {key(5): value("after the clear")}


def test_operations_between_request_and_answer_are_kept() -> None:
    """What comes after the vector was taken but before the first piece is in the end result."""
    net = settled()
    lose(net, "m")
    stopped = net.drop_first(TransferSent)
    net.advance(6 * SECOND)
    assert stopped
    net.put("m", 77, "overtakes the first piece")
    net.pump()
    net["b"].plane.on_message(MemberId("a"), stopped[0])
    net.pump()
    net.check_equal(0, "ab", "m")
    assert len(said(net, SyncRequested)) == 1


def test_permits_bound_what_runs_at_once() -> None:
    """AE-14, AE-15, AE-16, R3: many dirty partitions; permits stay within the limit throughout."""
    net = settled(partitions=30, entries=3, limit=4)
    for pid in range(30):
        for name in ("m", "n", "b2"):
            lose(net, name, pid, number=1)
    highest = [0]

    def watch(sender: MemberId, target: MemberId, what: object) -> bool:
        for host in net.hosts.values():
            highest[0] = max(highest[0], permits(host.plane))
            assert permits(host.plane) <= 4
        return False

    net.drop = watch
    net.advance(60 * SECOND)
    for pid in range(30):
        for name in ("m", "n", "b2"):
            net.check_equal(pid, "ab", name)
    assert highest[0] >= 2
    assert all(permits(host.plane) == 0 for host in net.hosts.values())


def test_without_permits_nothing_is_synced() -> None:
    """AE-14: a limit of 0 switches anti-entropy off."""
    net = settled(limit=0)
    lose(net, "m")
    net.advance(10 * SECOND)
    assert not said(net, SyncRequested) and net["b"].plane.unsettled() > 0


@pytest.mark.parametrize("limit", [1, 2])
def test_members_that_ask_one_another_get_through(limit: int) -> None:
    """AE-15: with few permits on both sides requests are refused, tried again, and served."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=20, replication_max_parallel=limit)
    net = Net("ab", settings)
    for pid in range(20):
        net.set_row(pid, "ab" if pid % 2 else "ba", 5)
    for pid in range(20):
        net.put("m", 1, "x", pid, at="a" if pid % 2 else "b")
    net.pump()
    for host in net.hosts.values():
        for partition in host.plane.partitions:
            if not partition.is_primary:
                host.plane.doubts.mark_dirty(partition.fragments[M])
    net.advance(60 * SECOND)
    assert all(host.plane.unsettled() == 0 for host in net.hosts.values())
    assert all(permits(host.plane) == 0 for host in net.hosts.values())


def test_a_primary_without_permit_keeps_no_trace() -> None:
    """AE-15: refused at once, nothing remembered; the backup's permits are free at once."""
    net = settled()
    primary = net["a"].plane
    request = SyncRequested(5, PartitionId(0), 5, ReplicaIndex(1), (Namespace("map/m"),))
    partition = primary.partitions[0]
    partition.set_migrating(True)
    primary.on_message(MemberId("b"), request)
    (effect,) = primary.ctx.effects
    assert isinstance(effect.message, SyncRefused)  # type: ignore[attr-defined]
    assert permits(primary) == 0
    partition.set_migrating(False)
    for other in (
        msgspec.structs.replace(request, index=ReplicaIndex(2)),
        msgspec.structs.replace(request, partition_id=PartitionId(999)),
    ):
        primary.on_message(MemberId("b"), other)
    assert permits(primary) == 0


def test_a_refusal_frees_the_permits_at_once() -> None:
    """AE-15, AE-16."""
    net = settled()
    net["a"].plane.partitions[0].set_migrating(True)
    fragment = net["b"].fragment(0, "m")
    net["b"].plane.doubts.mark_dirty(fragment)
    net.advance(SECOND)
    assert permits(net["b"].plane) == 0 and len(said(net, SyncRefused)) == 1
    assert net["b"].plane.syncs.counters["syncs_refused"] == 1
    net["a"].plane.partitions[0].set_migrating(False)
    net.advance(4 * SECOND)
    assert net["b"].plane.unsettled() == 0


def test_a_lost_answer_frees_the_permit_after_the_timeout() -> None:
    """AE-13, AE-16, R3: not earlier; then the next request is made and answered."""
    net = settled()
    lose(net, "m")
    net.drop = lambda sender, target, what: isinstance(what, TransferSent)
    net.advance(7 * SECOND)
    assert permits(net["b"].plane) == 1 and permits(net["a"].plane) == 1
    net.drop = None
    net.advance(16 * SECOND)
    assert permits(net["b"].plane) == 0 and permits(net["a"].plane) == 0
    assert net["b"].plane.syncs.counters["syncs_timed_out"] == 1
    net.check_equal(0, "ab", "m")


def test_a_broken_link_ends_a_sync_on_both_sides() -> None:
    """AE-16: permits are back at once; after the link is back the sync is begun anew."""
    net = settled()
    lose(net, "m")
    net.drop = lambda sender, target, what: isinstance(what, TransferSent)
    net.advance(6 * SECOND)
    net.drop = None
    net.cut("a", "b")
    assert permits(net["a"].plane) == 0
    net.mend("a", "b")
    net.pump()
    assert permits(net["b"].plane) == 0
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", "m")


def test_who_has_asked_gives_a_sync_up_with_its_link() -> None:
    """AE-16: the rest of the answer may be lost, so the permit is free at once; see above for the
    other side.
    """
    net = settled()
    lose(net, "m")
    net.drop = lambda sender, target, what: isinstance(what, TransferSent)
    net.advance(6 * SECOND)
    assert permits(net["b"].plane) == 1
    net.cut("b", "a")
    assert permits(net["b"].plane) == 0


def test_operations_of_what_was_not_asked_for_do_not_end_a_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AE-08, AE-14: only what the answer is to bring is kept for it. Method: two dirty namespaces
    and a permit for one; more operations of the other than may be kept.
    """
    monkeypatch.setattr(syncs, "LOG_MAX", 3)
    net = settled(limit=2)
    plane = net["b"].plane
    for name in ("m", "n"):
        plane.doubts.mark_dirty(net["b"].fragment(0, name))
    net.drop = lambda sender, target, what: isinstance(what, TransferSent)
    net.advance(SECOND)
    asked = plane.syncs.exchange.asked[PartitionId(0)]
    (other,) = {map_of("m"), map_of("n")} - set(asked.doubted)
    for number in range(5):
        net.put(other.removeprefix("map/"), number, "passes by")
        net.pump()
    assert plane.syncs.exchange.asked[PartitionId(0)] is asked


def test_departures_and_new_rows_give_permits_back() -> None:
    """AE-16: a sync with a member that left, or of a row that changed, is over."""
    net = settled(row="ab", names="abc")
    lose(net, "m")
    net.drop = lambda sender, target, what: isinstance(what, TransferSent) and target == "b"
    net.advance(6 * SECOND)
    assert permits(net["b"].plane) == 1
    net.set_row(0, "abc", 6)
    assert permits(net["b"].plane) == 0 and permits(net["a"].plane) == 0
    net.advance(2 * SECOND)
    net.crash("b")
    net.set_members("ac")
    assert permits(net["a"].plane) == 0


def test_only_the_primary_is_believed() -> None:
    """R2, bug 8: versions and parts of anybody else change nothing."""
    net = settled(row="ab", names="abc")
    backup = net["b"].plane
    empty = ReplicaVersions(PartitionId(0), 5, ReplicaIndex(1), {})
    for _ in range(3):
        backup.on_message(MemberId("c"), VersionsTold((empty,)))
        net.advance(6 * SECOND)
    backup.on_message(
        MemberId("a"), VersionsTold((msgspec.structs.replace(empty, index=ReplicaIndex(2)),))
    )
    assert sorted(backup.partitions[0].fragments) == ["map/b2", "map/m", "map/n"]
    backup.on_message(MemberId("c"), TransferSent(Purpose.SYNC, "1", PartitionId(0), 1, (), True))
    net.pump()
    assert backup.unsettled() == 0


def test_namespaces_that_the_primary_does_not_have_are_pruned() -> None:
    """AE-21, bug 34: after it left them out twice, some seconds apart, with nothing in between."""
    net = settled()
    net["a"].plane.holdings.destroy(Namespace("map/n"), 1)
    net.advance(3 * SECOND)
    assert "map/n" in net["b"].plane.partitions[0].fragments
    net.advance(4 * SECOND)
    assert "map/n" not in net["b"].plane.partitions[0].fragments
    assert not said(net, SyncRequested)


def test_a_namespace_begun_a_moment_ago_is_not_pruned() -> None:
    """Versions sent before a map's first write may arrive after it: the write must stay."""
    net = settled()
    old = ReplicaVersions(
        PartitionId(0),
        5,
        ReplicaIndex(1),
        {ns: f.vector() for ns, f in net["a"].plane.partitions[0].fragments.items()},
    )
    net.put("fresh", 1, "x")
    net.pump()
    net["b"].plane.on_message(MemberId("a"), VersionsTold((old,)))
    net.put("fresh", 2, "y")
    net.advance(6 * SECOND)
    net["b"].plane.on_message(MemberId("a"), VersionsTold((old,)))
    net.check_equal(0, "ab", "fresh")
    assert len(net["b"].content(0, "fresh")) == 2


def test_versions_that_overtake_operations_cause_no_sync() -> None:
    """ADL-36: versions travel on another connection; being behind is doubted after a while only."""
    net = settled()
    net.drop = lambda sender, target, what: isinstance(what, bytes)
    for name in ("m", "begun"):
        net.put(name, 1, "slow")
        net["a"].plane.outgoing.take_backups()
    net["a"].plane.link_lost(MemberId("b"))
    net["a"].plane.link_restored(MemberId("b"))
    told = net["a"].plane.anti_entropy
    told._tell([PartitionId(0)])
    net.pump()
    net.drop = None
    net["a"].plane.link_lost(MemberId("b"))
    net["a"].plane.link_restored(MemberId("b"))
    net.advance(6 * SECOND)
    assert not said(net, SyncRequested)
    net.check_equal(0, "ab", "begun")


def test_an_unheard_new_primary_is_asked_for_its_versions() -> None:
    """A backup of a new primary is not settled until it has heard from it, and asks."""
    net = settled(row="abc")
    net.crash("a")
    net.set_members("bc")
    net.drop = lambda sender, target, what: isinstance(what, VersionsTold)
    net.set_row(0, "b-c", 9)
    net.advance(SECOND)
    assert net["c"].plane.unsettled() == 1
    net.drop = None
    net.advance(SECOND)
    assert net["c"].plane.unsettled() == 0


def test_versions_that_come_before_the_row_are_kept() -> None:
    """The new primary's word is looked at when our table has caught up."""
    net = settled(row="abc")
    net.crash("a")
    net.set_members("bc")
    net.set_row(0, "b-c", 9, only="b")
    net.advance(SECOND // 2)
    net.drop = lambda sender, target, what: True
    net.set_row(0, "b-c", 9, only="c")
    assert net["c"].plane.unsettled() == 0
    assert net["c"].fragment(0, "b2").lineage == net["b"].fragment(0, "b2").lineage


def test_damaged_answers_change_nothing() -> None:
    """Rule 10: a damaged piece ends the sync; the old fragment stays until a whole one is there."""
    net = settled()
    lose(net, "m")
    damaged = [0]

    def damage(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent) and what.parts and damaged[0] < 1:
            damaged[0] += 1
            part = msgspec.structs.replace(what.parts[0], data=what.parts[0].data[:-3])
            broken = msgspec.structs.replace(what, parts=(part,))
            net["b"].plane.on_message(sender, broken)
            return True
        return False

    net.drop = damage
    while not damaged[0]:
        net.advance(SECOND // 4)
    assert net["b"].content(0, "m")[key(7)] == value("m 7")
    net.pump()
    answers = [
        answer for answer in said(net, TransferAnswered) if isinstance(answer, TransferAnswered)
    ]
    assert answers and not answers[0].success, "its primary learns that it is over"
    net.advance(6 * SECOND)
    net.check_equal(0, "ab", "m")


def test_malformed_vectors_are_refused() -> None:
    """Rule 10: vectors of another length and impossible backup counts are damage."""
    from whimbrel.core.messages import FragmentPart
    from whimbrel.core.replication.parts import check_parts

    good = FragmentPart(Namespace("map/m"), b"", Vector(1, (0,) * 6), (1, 0), True, True)
    check_parts([good])
    for bad in (
        msgspec.structs.replace(good, settings=(4, 3)),
        msgspec.structs.replace(good, settings=(-1, 1)),
        msgspec.structs.replace(good, vector=Vector(1, (0,) * 5)),
    ):
        with pytest.raises(SerializationError):
            check_parts([bad])


@pytest.mark.parametrize(("backups", "members"), [(1, 2), (1, 7), (2, 3), (2, 7), (3, 4), (3, 7)])
def test_losing_most_backups_ends_in_equal_data_and_full_permits(
    backups: int, members: int
) -> None:
    """AE-16: 65 % of the traffic is lost, with links breaking; then all is equal and free."""
    rng = random.Random(backups * 10 + members)
    names = "abcdefg"[:members]
    settings = msgspec.structs.replace(
        SETTINGS,
        partition_count=5,
        backup_sync_interval_us=5 * SECOND,
        migration_chunk_bytes_max=500,
        structures=(MapSettings("default", backups),),
    )
    net = Net(names, settings)
    rows = {}
    for pid in range(5):
        shift = pid % members
        rows[pid] = (names[shift:] + names[:shift])[: backups + 1]
        net.set_row(pid, rows[pid], 5)
    net.drop = lambda sender, target, what: rng.random() < 0.65
    for number in range(150):
        pid = number % 5
        net.put("m", rng.randrange(20), f"v{number}", pid, at=rows[pid][0])
        if number % 10 == 0:
            net.advance(SECOND // 4)
        if number % 40 == 20:
            one, other = rng.sample(names, 2)
            net.cut(one, other)
            net.mend(one, other)
    net.drop = None
    for one in names:
        for other in names:
            if one != other:
                net.cut(one, other)
                net.mend(one, other)
    net.advance(30 * SECOND)
    for pid in range(5):
        net.check_equal(pid, rows[pid], "m")
    for host in net.hosts.values():
        assert permits(host.plane) == 0 and host.plane.unsettled() == 0
        assert all(not outbox.frames for outbox in host.plane.outgoing.outboxes.values())


def test_a_member_that_left_is_remembered_nowhere() -> None:
    """Goal: members that come and go leave nothing behind. Method: one that holds replicas, asked
    for a sync, whose link broke, leaves; no dictionary of the room has its id in a key.
    """
    net = settled("abc", names="abc")
    lose(net, "m")
    net.advance(2 * SECOND)
    for name in "ac":
        net.cut(name, "b")
        net.cut("b", name)
    net.crash("b")
    net.set_members("ac")
    plane = net["a"].plane
    parts = (plane.outgoing, plane.incoming, plane.holdings, plane.syncs, plane.recovery)
    for room in (plane, plane.anti_entropy, plane.roles, *parts):
        for table in (one for one in vars(room).values() if isinstance(one, dict)):
            for entry in table:
                assert MemberId("b") not in (entry if isinstance(entry, tuple) else (entry,))


def test_many_partitions_are_told_in_steps_that_follow_at_once() -> None:
    """Goal: after a change of many rows every backup is told of all of them now, not at their turn
    of the periodic check. Method: more partitions than one step tells, a tenth of a second.
    """
    count = 2 * ANNOUNCED_MAX + 10
    settings = msgspec.structs.replace(SETTINGS, partition_count=count)
    net = Net("ab", settings)
    for pid in range(count):
        net.set_row(pid, "ab", 5)
    net.advance(SECOND // 10)
    told = {
        replica.partition_id
        for _, _, message in net.log
        if isinstance(message, VersionsTold)
        for replica in message.replicas
    }
    assert told == set(range(count))


def test_an_absent_namespace_is_asked_for_again_before_its_turn() -> None:
    """Goal: what a primary left out is pruned some seconds later, however long the periodic check
    takes. Method: a check that comes round once in ten minutes.
    """
    settings = msgspec.structs.replace(
        SETTINGS, partition_count=64, backup_sync_interval_us=600 * SECOND
    )
    net = Net("ab", settings)
    net.set_row(0, "ab", 5)
    net.put("m", 1, "x")
    net.pump()
    net.advance(2 * SECOND)
    net["a"].plane.holdings.destroy(Namespace("map/m"), 1)
    net.advance(ABSENT_US + 3 * SECOND)
    assert "map/m" not in net["b"].plane.partitions[0].fragments


@pytest.mark.parametrize("number", [-1, 4, 1 << 30])
def test_words_about_a_partition_that_does_not_exist_are_ignored(number: int) -> None:
    """Safety rule 6: a member with other settings cannot be on the list, but its words may be
    late, or wrong; what none of our partitions is about has no effect and no answer.
    """
    net = settled()
    pid = PartitionId(number)
    words: list[Message] = [
        VersionsTold((ReplicaVersions(pid, 9, ReplicaIndex(1), {}),)),
        SyncRequested(7, pid, 5, ReplicaIndex(1), (M,)),
        SyncRequested(0, pid, 5, ReplicaIndex(1), ()),
        RefillRequested(7, pid, 5),
        StandingRequested(pid, 5),
    ]
    for name, sender in (("a", "b"), ("b", "a")):
        for word in words:
            net[name].plane.on_message(MemberId(sender), word)
    net.pump()
    assert net.log == []
    net.check_equal(0, "ab", "m")
