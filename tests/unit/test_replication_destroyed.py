"""A destroyed map does not come back with what was under way (AE-17, ADL-43; rule D11).

Found by a test of the official client: a map destroyed while a member joined had entries again,
because chunks copied before its end were installed after it.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.replication_net import SECOND, Net, key, migration, value
from tests.unit.test_replication_anti_entropy import settled

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import TransferSent
from whimbrel.core.model import MigrationKind
from whimbrel.errors import SerializationError
from whimbrel.structures.map.store import FREED_AT_ONCE_MAX

MAP = Namespace("map/m")


def destroy(net: Net, names: str, generation: int = 5) -> None:
    """These members hear that the map is destroyed."""
    for name in names:
        net[name].destroy("m", generation)


def two() -> Net:
    """A primary and a backup with three entries, and a third member without any."""
    net = Net("abc")
    net.set_row(0, "ab", 2)
    for number in range(3):
        net.put("m", number, "old")
    net.pump()
    return net


def test_a_chunk_that_was_copied_before_the_end_is_not_installed() -> None:
    """Goal: a migration that spans the destruction brings no data. Method: everything is staged at
    the destination, the map is destroyed everywhere, the migration is committed.
    """
    net = two()
    moving = migration(MigrationKind.MOVE, "c", 2, new=0, source="a", source_slots=(0, -1))
    net.migrate(moving, "a")
    destroy(net, "abc")
    net.set_row(0, "cb", 4)
    net.pump()
    assert net["c"].content(0, "m") == {}
    assert MAP not in net["c"].plane.partitions[0].fragments


def test_a_map_begun_again_meanwhile_is_installed() -> None:
    """Goal: only what was destroyed stays away. Method: the map is destroyed and written again at
    the source before it is copied, and the destination hears of the destruction from the copy.
    """
    net = two()
    destroy(net, "ab")
    net.put("m", 7, "new")
    net.pump()
    moving = migration(MigrationKind.MOVE, "c", 2, new=0, source="a", source_slots=(0, -1))
    net.migrate(moving, "a")
    net.set_row(0, "cb", 4)
    destroy(net, "c")
    net.pump()
    assert net["c"].content(0, "m") == {key(7): value("new")}
    assert net["c"].plane.holdings.is_destroyed(MAP, 4)


def test_what_a_destination_is_to_compare_may_be_destroyed() -> None:
    """Goal: a backup that is to become primary and has heard of the end does not fail the migration
    for want of the map. Method: the source compares a namespace that the destination gave up.
    """
    net = two()
    up = migration(MigrationKind.SHIFT_UP, "b", 2, new=0, current=1, source="a")
    destroy(net, "b")
    net.migrate(up, "a")
    net.set_row(0, "b", 4)
    assert MAP not in net["b"].plane.partitions[0].fragments


def test_a_backup_operation_of_before_is_answered_and_not_applied() -> None:
    """Goal: the writer is not left waiting, and its write ends with the map. Method: the operation
    is under way when the backup hears of the destruction.
    """
    net = two()
    reply = net.put("m", 9, "late")
    destroy(net, "b")
    net.pump()
    assert reply.remaining == 0 and not reply.failed
    assert net["b"].content(0, "m") == {}
    destroy(net, "a")
    net.put("m", 1, "new")
    net.pump()
    net.check_equal(0, "ab", "m")


def test_an_operation_tells_of_a_destruction_that_was_not_heard_of() -> None:
    """Goal: old entries do not mix with new ones. Method: only the primary has heard of the end and
    sends operations of the map's next life; the announcement comes after them.
    """
    net = two()
    destroy(net, "a")
    net.put("m", 7, "new")
    net.pump()
    assert net["b"].content(0, "m") == {key(7): value("new")}
    destroy(net, "b")
    net.check_equal(0, "ab", "m")


def test_a_sync_and_a_refill_of_before_bring_nothing() -> None:
    """Goal: as for a migration. Method: every answer with data is held back until its receiver has
    heard of the destruction.
    """
    net = settled()
    late: list[tuple[MemberId, MemberId, object]] = []

    def hold(sender: MemberId, target: MemberId, what: object) -> bool:
        if isinstance(what, TransferSent):
            late.append((sender, target, what))
            return True
        return False

    fragment = net["b"].fragment(0, "m")
    net["b"].plane.doubts.mark_dirty(fragment)
    net.drop = hold
    net.advance(2 * SECOND)
    assert late
    destroy(net, "ab")
    net.drop = None
    for sender, target, what in late:
        assert isinstance(what, TransferSent)
        net.hosts[target].plane.on_message(sender, what)
    net.pump()
    assert MAP not in net["b"].plane.partitions[0].fragments


def test_a_generation_below_zero_is_refused() -> None:
    """Goal: no member's nonsense is taken. Method: a part that no primary makes."""
    net = two()
    moving = migration(MigrationKind.COPY, "c", 2, new=1)
    net["c"].plane.roles.begin_destination(moving)
    parts, _ = net["a"].plane.roles.open_export(moving).next_parts(1_000)
    bad = msgspec.structs.replace(parts[0], generation=-1)
    with pytest.raises(SerializationError, match="generation"):
        net["c"].plane.roles.ingest(moving, (bad,))


def test_hearing_of_a_destruction_twice_changes_nothing() -> None:
    """Goal: late and repeated news are harmless. Method: older and equal numbers after a write."""
    net = two()
    destroy(net, "abc", 5)
    net.put("m", 1, "new")
    net.pump()
    destroy(net, "abc", 5)
    destroy(net, "abc", 3)
    net.check_equal(0, "ab", "m")
    assert net["b"].content(0, "m") == {key(1): value("new")}


def test_a_large_copy_of_before_is_freed_in_steps() -> None:
    """GCM-42: what is not held after all is given back bit by bit. Method: a migration brings more
    entries than are freed at once, of a map that is destroyed before the commit.
    """
    net = Net("abc")
    net.set_row(0, "a", 2)
    for number in range(FREED_AT_ONCE_MAX + 1):
        net.put("m", number, "old")
    net.pump()
    copy = migration(MigrationKind.COPY, "c", 2, new=1)
    net.migrate(copy, "a", chunk=1_000_000)
    destroy(net, "c")
    net.set_row(0, "ac", 3)
    assert net["c"].plane.holdings.deferred.entries == FREED_AT_ONCE_MAX + 1


def test_what_is_compared_is_begun_anew_where_the_destruction_was_not_heard_of() -> None:
    """Goal: entries of before do not live on in a backup that moves up. Method: the source, which
    knows of the end, compares the map's next life with what the destination still holds.
    """
    net = Net("abc")
    net.set_row(0, "a-c", 2)
    for number in range(3):
        net.put("b2", number, "old")
    net.pump()
    net["a"].destroy("b2", 5)
    net["a"].plane.holdings.begin(net["a"].plane.partitions[0], Namespace("map/b2"))
    up = migration(MigrationKind.SHIFT_UP, "c", 2, new=1, current=2)
    net.migrate(up, "a")
    net.set_row(0, "ac", 4)
    assert net["c"].content(0, "b2") == {}
    assert net["c"].plane.holdings.is_destroyed(Namespace("map/b2"), 4)
