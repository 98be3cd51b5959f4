"""Goal: a migration to a member that kept what it had of the partition sends what differs.

By versions alone where they are equal, by trees where they are not (APR-42 to APR-45).
"""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from tests.unit.replication_net import SECOND, SETTINGS, M, Net, map_of, migration, value
from tests.unit.test_comparison import (
    LEAF_ENTRIES,
    ROOT_BYTES,
    SMALL_STEPS,
    change,
    store_of,
    stored,
    two,
)

from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import (
    FragmentPart,
    Progress,
    Purpose,
    TransferAnswered,
)
from whimbrel.core.model import MigrationInfo, MigrationKind
from whimbrel.core.replication.comparison import CHILDREN, SUM_BYTES
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.holdings import FragmentDisk
from whimbrel.core.settings import PersistenceSettings
from whimbrel.errors import SerializationError
from whimbrel.structures.map.record import make_timing
from whimbrel.structures.map.store import MapStore

COPY = migration(MigrationKind.COPY, "c", 5, new=1)


def keep_at(net: Net, name: str, of: str = "m") -> Fragment:
    """A member keeps what the backup has now, as it is."""
    held = net["b"].fragment(0, of)
    plane = net[name].plane
    kept = plane.holdings.make_as(
        PartitionId(0), held.namespace, (held.sync_count, held.async_count), held.generation
    )
    store = cast("MapStore", held.store)
    kept.store.ingest(store.chunk_of(list(store.records)))
    kept.install(held.vector(), held.slot + 1)
    plane.holdings.kept.keep(kept)
    return kept


def migrate(net: Net, step: MigrationInfo = COPY, row: str = "ac") -> tuple[int, int]:
    """Copy and commit; bytes and entries that were sent."""
    before = net["a"].plane.holdings.copies["copy_entries_sent"]
    moved = net.migrate(step, "a", 100_000)
    entries = net["a"].plane.holdings.copies["copy_entries_sent"] - before
    net.set_row(0, row, step.initial_version + step.step.increment)
    net["a"].plane.roles.end_source(PartitionId(0))
    net.pump()
    return moved, entries


def test_an_equal_kept_fragment_is_not_sent() -> None:
    """APR-43, APR-44: equal versions of one lineage: not a byte of an entry, nor of a sum."""
    net = two()
    kept = keep_at(net, "c")
    assert migrate(net) == (0, 0)
    net.check_equal(0, "ac", "m")
    assert net["a"].plane.holdings.copies["copies_same"] == 1
    assert len(net["c"].plane.holdings.kept) == 0
    assert net["c"].fragment(0, "m") is not kept
    net.put("m", 1, "goes on")
    net.pump()
    net.check_equal(0, "ac", "m")


def test_one_write_makes_versions_useless_and_trees_are_next() -> None:
    """APR-43, APR-45, APR-49: one entry changed since: a leaf is sent."""
    net = two()
    keep_at(net, "c")
    net.put("m", 7, "since")
    net.pump()
    moved, entries = migrate(net)
    assert 1 <= entries <= 6 * LEAF_ENTRIES
    assert 0 < moved < 6 * LEAF_ENTRIES * 80 + 2 * CHILDREN * SUM_BYTES
    net.check_equal(0, "ac", "m")


def test_a_new_primary_that_has_changed_nothing_is_equal() -> None:
    """AE-11: it says where it started from; from the first change on that is no help."""
    for changed in (False, True):
        net = two()
        keep_at(net, "c")
        net["b"].begin()
        net.set_row(0, "b", 6)
        if changed:
            net.put("m", 7, "since", at="b")
        step = migration(MigrationKind.COPY, "c", 6, new=1)
        net.migrate(step, "b", 100_000)
        copies = net["b"].plane.holdings.copies
        assert copies["copies_same"] == (not changed)
        assert (copies["copy_entries_sent"] > 0) == changed
        net.set_row(0, "bc", 7)
        net.pump()
        net.check_equal(0, "bc", "m")


def test_versions_are_believed_only_where_they_count() -> None:
    """A dirty fragment, another lineage, another life of the map, a map without backups."""
    net = two()
    keep_at(net, "c").is_dirty = True
    assert migrate(net)[0] == ROOT_BYTES
    net = two()
    keep_at(net, "c").lineage += 1
    assert migrate(net)[0] == ROOT_BYTES
    net = Net("abc", SETTINGS)
    net.set_row(0, "a", 4)
    for number in range(400):
        net.put("b0", number, "unbacked")
    kept = net["c"].plane.holdings.make(PartitionId(0), map_of("b0"))
    net["c"].plane.holdings.kept.keep(kept)
    kept.install(net["a"].fragment(0, "b0").vector(), 0)
    step = migration(MigrationKind.MOVE, "c", 5, new=0, source="a", source_slots=(0, -1))
    assert migrate(net, step, "c")[1] == 400, "equal counters that nothing raises"
    assert len(net["c"].content(0, "b0")) == 400


def test_what_was_kept_stays_until_the_commit() -> None:
    """ADL-74: a migration that is rolled back leaves it for the next one."""
    net = two()
    kept = keep_at(net, "c")
    net.put("m", 7, "since")
    net.pump()
    net.migrate(COPY, "a", 100_000)
    net["c"].plane.roles.rollback_destination(COPY)
    assert net["c"].plane.holdings.kept.of(PartitionId(0)) == {M: kept}
    net["a"].plane.roles.end_source(PartitionId(0))
    moved, entries = migrate(net)
    assert moved and 1 <= entries <= 6 * LEAF_ENTRIES
    net.check_equal(0, "ac", "m")
    assert not net["c"].plane.holdings.kept.of(PartitionId(0))


def test_what_was_kept_is_forgotten_with_its_structure() -> None:
    """D11: in the middle of a copy, too, which brings nothing back."""
    net = two()
    keep_at(net, "c")
    net["c"].destroy("m", 3)
    assert len(net["c"].plane.holdings.kept) == 0 == net["c"].plane.holdings.kept.bytes_used
    late = net["b"].fragment(0, "m")
    net["c"].plane.holdings.kept.keep(
        net["c"].plane.holdings.make_as(PartitionId(0), M, (1, 0), late.generation)
    )
    assert len(net["c"].plane.holdings.kept) == 0, "it was begun before"


def test_a_kept_fragment_that_goes_ends_the_copy() -> None:
    """The master tries again, and everything is sent."""
    net = two()
    keep_at(net, "c")
    net.put("m", 7, "since")
    net.pump()
    roles, target = net["a"].plane.roles, net["c"].plane
    roles.begin_source(COPY)
    target.roles.begin_destination(COPY)
    export = roles.open_export(COPY)
    name = (Purpose.MIGRATION, COPY.id, 0)
    bases = target.roles.bases(COPY)
    assert [base.entries for base in bases] == [400]
    export.answered(TransferAnswered(*name, True, "", bases=bases))
    parts, last = export.next_parts(100_000)
    assert not last and parts[0].bits == 10
    target.roles.ingest(COPY, parts)
    target.holdings.kept.release(PartitionId(0))
    with pytest.raises(SerializationError, match="the base of map/m is gone"):
        target.roles.ingest(COPY, ())


def test_a_primary_that_took_entries_from_its_base_counts_idleness_anew() -> None:
    """Its base has not seen the reads: an entry may live longer than its limit, never shorter."""
    net = two()
    idle = make_timing(0, 60_000, net["a"].ctx.wall_ms)
    for number in range(100):
        change(net, store_of(net, "a").put(stored(number), value("idle"), 5, idle)[1])
    net.pump()
    kept = keep_at(net, "c")
    assert len(cast("MapStore", kept.store).timings) == 100
    net.advance(50 * SECOND)
    now_ms = net["a"].ctx.wall_ms
    assert store_of(net, "a").get(stored(5), now_ms) is not None
    step = migration(MigrationKind.MOVE, "c", 5, new=0, source="a", source_slots=(0, -1))
    assert migrate(net, step, "cb")[1] == 0
    assert store_of(net, "c").get(stored(5), now_ms + 30_000) is not None


class Staging:
    """A disk that is given the copies that arrive."""

    def __init__(self) -> None:
        self.chunks: dict[Fragment, list[bytes]] = {}
        self.whole: list[Fragment] = []

    def stage(self, fragment: Fragment, chunk: bytes, *, is_last: bool) -> None:
        assert fragment not in self.whole
        self.chunks.setdefault(fragment, []).append(chunk)
        if is_last:
            self.whole.append(fragment)

    def unstage(self, fragment: Fragment) -> None:
        assert fragment not in self.whole

    def hold(self, fragment: Fragment) -> None:
        assert fragment in self.whole


@pytest.mark.parametrize("writes", [0, 1])
def test_the_disk_gets_what_comes_from_the_base(writes: int) -> None:
    """S3: the copy is staged whole, before the commit, piece by piece."""
    settings = msgspec.structs.replace(SMALL_STEPS, persistence=PersistenceSettings(enabled=True))
    net = two(settings=settings)
    keep_at(net, "c")
    for _ in range(writes):
        net.put("m", 7, "since")
    net.pump()
    staging = Staging()
    net["c"].plane.holdings.disk = cast("FragmentDisk", staging)
    migrate(net)
    ((fragment, chunks),) = staging.chunks.items()
    assert fragment is net["c"].fragment(0, "m") and staging.whole == [fragment]
    assert len(chunks) >= 400 // 50
    loaded = MapStore()
    for chunk in chunks:
        loaded.ingest(chunk)
    assert loaded.records == store_of(net, "a").records


def test_few_and_many_namespaces_are_compared_side_by_side() -> None:
    """GCM-37, GCM-38: their pieces share messages."""
    net = two(40)
    names = [f"map{number}" for number in range(6)]
    for name in names:
        for number in range(60):
            net.put(name, number, name)
    net.pump()
    for name in names:
        keep_at(net, "c", name)
        net.put(name, 7, "since")
    net.pump()
    plane, target = net["a"].plane, net["c"].plane
    messages = 0
    ingest = target.roles.ingest

    def counted(info: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Progress:
        nonlocal messages
        messages += 1
        return ingest(info, parts)

    vars(target.roles)["ingest"] = counted
    migrate(net)
    assert messages <= 4
    assert plane.holdings.copies["copies_by_difference"] == 6
    assert plane.holdings.copies["copies_whole"] == 1
    for name in names:
        net.check_equal(0, "ac", name)


def test_everything_in_one_message_is_not_compared() -> None:
    """GCM-28: without fragments a partition travels in one message."""
    net = two(settings=msgspec.structs.replace(SETTINGS, migration_fragments_enabled=False))
    keep_at(net, "c")
    assert migrate(net)[1] == 400
    net.check_equal(0, "ac", "m")
