"""Goal: rows and migrations move data, vectors and roles as the papers say, without any sync."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SECOND, SETTINGS, M, Net, key, make_row, migration, value

from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import SyncRequested
from whimbrel.core.model import MigrationKind
from whimbrel.core.replication.vectors import lineage_version, make_lineage
from whimbrel.errors import RetryableError, SerializationError
from whimbrel.structures.map.store import MapStore


def filled(members: str = "abc", row: str = "ab", entries: int = 30) -> Net:
    """Partition 0 with data in maps of 0, 1, 2 and 3 backups."""
    net = Net(members)
    net.set_row(0, row, 5)
    for name in ("b0", "m", "b2", "b3"):
        for number in range(entries):
            net.put(name, number, f"{name} {number}", at=row[0])
    net.pump()
    net.advance(SECOND)
    return net


def syncs(net: Net) -> int:
    """Sync requests so far."""
    return sum(isinstance(m, SyncRequested) and bool(m.namespaces) for _, _, m in net.log)


def check_all(net: Net, row: str) -> None:
    """Every map is equal on all replicas that should hold it, and nobody holds more (D8)."""
    for name in ("b0", "m", "b2", "b3"):
        net.check_equal(0, row, name)
    for host in net.hosts.values():
        partition = host.plane.partitions[0]
        for fragment in partition.fragments.values():
            assert 0 <= partition.index <= fragment.backup_count
        assert host.plane.unsettled() == 0
    assert syncs(net) == 0


def test_writes_wait_while_a_partition_migrates() -> None:
    """GCM-31, GCM-32: writes are refused retryably, reads go on; the flag comes off, also twice."""
    net = filled()
    plane = net["a"].plane
    partition = plane.partitions[0]
    plane.roles.begin_source(migration(MigrationKind.COPY, "c", 5, new=2))
    with pytest.raises(RetryableError):
        net.put("m", 1, "x")
    assert net["a"].maps.get(partition, M, key(1)) == value("m 1")
    plane.roles.end_source(PartitionId(0))
    plane.roles.end_source(PartitionId(0))
    net.put("m", 1, "x")


def test_a_copy_brings_what_the_index_needs() -> None:
    """ADL-42, GCM-33: only maps whose backup count reaches the index travel; no sync follows."""
    net = filled()
    info = migration(MigrationKind.COPY, "c", 5, new=2)
    assert net.migrate(info, "a") > 0
    assert not net["c"].plane.partitions[0].fragments, "staged only, until the commit"
    net.set_row(0, "abc", 6, only="c")
    net.set_row(0, "abc", 6, only="ab")
    net["a"].plane.roles.end_source(PartitionId(0))
    assert sorted(net["c"].plane.partitions[0].fragments) == ["map/b2", "map/b3"]
    assert net.put("b2", 99, "x").remaining == 2
    net.pump()
    net.advance(2 * SECOND)
    check_all(net, "abc")


@pytest.mark.parametrize("fragments", [True, False])
def test_moving_the_primary(fragments: bool) -> None:
    """ADL-36, AE-11: the new primary counts on, its backups follow it without a single sync.

    GCM-28, GCM-29: with fragments switched off the partition travels in one piece.
    """
    settings = msgspec.structs.replace(SETTINGS, migration_fragments_enabled=fragments)
    net = Net("abc", settings)
    net.set_row(0, "ab", 5)
    for number in range(50):
        net.put("m", number, "x" * 50)
        net.put("b0", number, "y" * 50)
    net.pump()
    info = migration(MigrationKind.MOVE, "c", 5, new=0, source="a", source_slots=(0, -1))
    net.migrate(info, "a")
    net.set_row(0, "cb", 6, only="c")
    net.put("m", 1, "written at the new primary", at="c")
    net.pump()
    net.set_row(0, "cb", 6, only="ab")
    net["a"].plane.roles.end_source(PartitionId(0))
    net.put("m", 2, "and one more", at="c")
    net.pump()
    net.advance(3 * SECOND)
    net.check_equal(0, "cb", "m")
    assert syncs(net) == 0 and net["b"].plane.unsettled() == 0
    assert not net["a"].plane.partitions[0].fragments
    assert lineage_version(net["b"].fragment(0, "m").lineage) == 6
    assert len(net["c"].content(0, "b0")) == 50


def test_a_primary_that_steps_down_becomes_a_backup_in_step() -> None:
    """SHIFT DOWN: slots below its new index become zero, the lineage of the new primary is met."""
    net = filled(row="a")
    info = migration(MigrationKind.SHIFT_DOWN, "c", 5, new=0, source="a", source_slots=(0, 2))
    net.migrate(info, "a")
    net.set_row(0, "c-a", 7, only="c")
    net.put("b2", 1, "new", at="c")
    net.pump()
    net.set_row(0, "c-a", 7, only="ab")
    net["a"].plane.roles.end_source(PartitionId(0))
    assert sorted(net["a"].plane.partitions[0].fragments) == ["map/b2", "map/b3"]
    net.advance(2 * SECOND)
    for name in ("b2", "b3"):
        net.check_equal(0, "c-a", name)
    assert syncs(net) == 0 and net["a"].plane.unsettled() == 0


def test_a_backup_and_its_primary_change_places() -> None:
    """SHIFT UP + SHIFT DOWN at once: maps it holds are compared, others copied; no sync."""
    net = filled(row="a-c")
    info = migration(
        MigrationKind.SHIFT_UP_SHIFT_DOWN, "c", 5, new=0, current=2, source="a",
        source_slots=(0, 2),
    )  # fmt: skip
    moved = net.migrate(info, "a")
    held = sum(len(v) for n in ("b0", "m") for v in net["a"].content(0, n).values())
    assert held < moved < 6 * held
    net.set_row(0, "c-a", 8, only="c")
    net.put("b2", 1, "written before the others know", at="c")
    net.pump()
    net.set_row(0, "c-a", 8, only="ab")
    net["a"].plane.roles.end_source(PartitionId(0))
    net.put("b3", 1, "and after", at="c")
    net.pump()
    net.advance(3 * SECOND)
    check_all(net, "c-a")
    assert len(net["c"].content(0, "b0")) == len(net["c"].content(0, "m")) == 30


def test_a_backup_shifts_up_and_gets_only_what_it_lacks() -> None:
    """ADL-42: the map with one backup is copied, those it holds are compared without data."""
    net = filled(row="a-c")
    info = migration(MigrationKind.SHIFT_UP, "c", 5, new=1, current=2)
    moved = net.migrate(info, "a")
    one_map = sum(len(k) + len(v) + 30 for k, v in net["a"].content(0, "m").items())
    assert 0 < moved < 2 * one_map
    net.set_row(0, "ac", 7)
    net["a"].plane.roles.end_source(PartitionId(0))
    net.put("m", 1, "new")
    net.put("b3", 1, "new")
    net.pump()
    net.advance(2 * SECOND)
    check_all(net, "ac")


def test_a_rolled_back_shift_up_keeps_what_the_old_index_holds() -> None:
    """ADL-43, ADL-74: the copied map is gone, the held ones are as before."""
    net = filled(row="a-c")
    info = migration(MigrationKind.SHIFT_UP, "c", 5, new=1, current=2)
    net.migrate(info, "a")
    net["c"].plane.roles.rollback_destination(info)
    net.set_row(0, "a-c", 8)
    net["a"].plane.roles.end_source(PartitionId(0))
    assert sorted(net["c"].plane.partitions[0].fragments) == ["map/b2", "map/b3"]
    assert net["c"].fragment(0, "b2").counters()[0] == 0
    net.advance(2 * SECOND)
    check_all(net, "a-c")


def test_a_rolled_back_copy_leaves_nothing() -> None:
    """ADL-74, inv D8: nothing of the migration lives on, and a later one starts clean."""
    net = filled()
    info = migration(MigrationKind.COPY, "c", 5, new=2)
    net.migrate(info, "a")
    net["c"].plane.roles.rollback_destination(info)
    net["c"].plane.roles.rollback_destination(info)
    net.set_row(0, "ab", 7)
    assert not net["c"].plane.partitions[0].fragments
    with pytest.raises(SerializationError):
        net["c"].plane.roles.ingest(info, ())


def test_a_stale_backup_does_not_become_primary_by_plan() -> None:
    """No acknowledged write is lost by a plan: a replica that is not in step refuses the role."""
    net = filled(row="abc", members="abcd")
    held = net["b"].fragment(0, "m")
    held.store.apply(b"\x03\0\0\0\0", 0, 5)  # the data are gone, the versions say so
    held.value -= 1
    info = migration(
        MigrationKind.SHIFT_UP_SHIFT_DOWN, "b", 5, new=0, current=1, source="a",
        source_slots=(0, 1),
    )  # fmt: skip
    with pytest.raises(SerializationError):
        net.migrate(info, "a")


def test_a_migration_waits_for_backups_under_way() -> None:
    """ADL-36: the last part goes out when all backups before it are acknowledged, or never mind."""
    net = filled()
    net.cut("a", "b")
    net.put("m", 1, "under way")
    plane = net["a"].plane
    info = migration(MigrationKind.MOVE, "c", 5, new=0, source="a", source_slots=(0, -1))
    plane.roles.begin_source(info)
    net.pump()
    export = plane.roles.open_export(info)
    polls = 0
    last = False
    while not last:
        parts, last = export.next_parts(100_000)
        polls += 1
        if polls == 20:
            assert not last and not parts
            net.mend("a", "b")
            net.pump()
    assert polls == 21


def test_a_promoted_backup_is_followed_by_those_in_step() -> None:
    """AE-11: the primary dies, the base equals what the other backup has: no sync."""
    net = filled(members="abc", row="abc")
    net.crash("a")
    net.set_members("bc")
    net.set_row(0, "b-c", 8, only="b")
    net.put("b2", 1, "new", at="b")
    net.pump()
    net.set_row(0, "b-c", 8, only="c")
    net.advance(2 * SECOND)
    for name in ("b2", "b3"):
        net.check_equal(0, "b-c", name)
    assert syncs(net) == 0 and net["c"].plane.unsettled() == 0


def test_equal_numbers_of_different_primaries_do_not_deceive() -> None:
    """AE-11: old primary reaches only backup 2 with v+1 and dies; backup 1 writes its own v+1."""
    net = filled(members="abc", row="abc")
    net.cut("a", "b")
    net.put("b2", 1, "seen by c only")
    net.pump()
    net.crash("a")
    net.set_members("bc")
    net.set_row(0, "b-c", 8)
    net.put("b2", 2, "the new primary's own", at="b")
    net.pump()
    net.advance(3 * SECOND)
    for name in ("b2", "b3"):
        net.check_equal(0, "b-c", name)
    assert net["c"].content(0, "b2")[key(1)] == value("b2 1")
    assert syncs(net) == 1 and net["c"].plane.unsettled() == 0


def test_a_dirty_backup_that_is_promoted_is_not_believed() -> None:
    """A fragment that may lack something gives a base that no backup has: all ask for a sync."""
    net = filled(members="abc", row="abc")
    net["b"].fragment(0, "b2").is_dirty = True
    net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "b2"))
    net.crash("a")
    net.set_members("bc")
    net.set_row(0, "b-c", 8)
    net.advance(2 * SECOND)
    assert syncs(net) == 1
    net.check_equal(0, "b-c", "b2")


def test_what_has_counted_under_a_row_that_no_file_had_is_doubted() -> None:
    """AE-11, PIM-40: after a recovery the row's version may be lower than that under which a backup
    has counted last; its primary is believed all the same (found by seed 19 of disks: the cluster
    called itself safe, and a backup held what had never been acknowledged). Method: a backup with a
    lineage of a later version and another content.
    """
    net = filled(members="ab", row="ab")
    ahead = net["b"].fragment(0, "m")
    ahead.lineage = make_lineage(9, "of a row that is forgotten")
    assert isinstance(ahead.store, MapStore)
    ahead.store.clear()
    net.set_row(0, "ab", 6)
    assert ahead.is_dirty
    net.put("m", 2, "new")
    net.pump()
    net.advance(3 * SECOND)
    net.check_equal(0, "ab", "m")
    assert net["b"].plane.unsettled() == 0


def test_only_a_migration_that_succeeded_is_installed() -> None:
    """Another change of the row while a migration runs does not bring its data to life."""
    net = filled()
    net.migrate(migration(MigrationKind.COPY, "c", 5, new=2), "a")
    net.set_row(0, "a-c", 5)
    assert not net["c"].plane.partitions[0].fragments, "a row of before the migration"
    net.set_row(0, "a", 6)
    assert not net["c"].plane.partitions[0].fragments
    net["c"].plane.roles.row_changed(PartitionId(0), make_row("a"), make_row("a"), 7)
    assert not net["c"].plane.partitions[0].fragments


def test_an_export_is_cut_into_chunks_and_keeps_its_order() -> None:
    """GCM-34, GCM-43: every namespace once, begun and ended, each part near the asked size."""
    net = filled(entries=200)
    plane = net["a"].plane
    export = plane.roles.open_export(migration(MigrationKind.COPY, "c", 5, new=2))
    seen: list[tuple[str, bool, bool]] = []
    last = False
    while not last:
        parts, last = export.next_parts(1_000)
        assert sum(len(part.data) for part in parts) < 1_300
        seen.extend((part.namespace, part.first, part.last) for part in parts)
    for name in ("map/b2", "map/b3"):
        own = [entry for entry in seen if entry[0] == name]
        assert own[0][1] and own[-1][2] and len(own) > 5
        assert sum(first for _, first, _ in own) == sum(end for _, _, end in own) == 1


def test_idle_entries_get_a_new_span_at_promotion() -> None:
    """A backup has not seen the reads: an entry may live longer than its limit, not shorter."""
    net = Net("ab")
    net.set_row(0, "ab", 2)
    net.pump()
    host = net["a"]
    host.maps.put(host.plane.partitions[0], M, key(1), value("x"), None, 0, 3_000)
    net.pump()
    for _ in range(4):
        net.advance(SECOND)
        assert host.maps.get(host.plane.partitions[0], M, key(1)) is not None
    net.crash("a")
    net.set_members("b")
    net.set_row(0, "b", 4)
    new = net["b"]
    assert new.maps.get(new.plane.partitions[0], M, key(1)) == value("x")
    net.advance(4 * SECOND)
    assert new.maps.get(new.plane.partitions[0], M, key(1)) is None
