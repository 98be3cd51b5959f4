"""Goal: which backup operation counts, and what becomes of data and versions with a verdict."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Host, Net, key, map_of, migration, value
from tests.unit.test_replication_roles import filled

from whimbrel.core.ids import Namespace, PartitionId, split_namespace
from whimbrel.core.messages import Vector
from whimbrel.core.model import MigrationInfo, MigrationKind
from whimbrel.core.replication.fragments import Fragment, in_step
from whimbrel.core.replication.vectors import ZERO, Counters, kept_by
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import SerializationError

P0 = PartitionId(0)


def two() -> Net:
    net = Net("abc")
    net.set_row(0, "ab", 2)
    net.pump()
    return net


# -- operations ---------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_an_operation_that_we_have_is_not_applied_again(behind: int) -> None:
    """AE-09, AE-06: a number that the backup has already, the newest one as well, in a stream that
    it does not know: acknowledged, with no effect on data, vector or cleanness.
    """
    net = two()
    for number in range(3):
        net.put("m", 1, f"value {number}")
    net.pump()
    fragment = net["b"].fragment(0, "m")
    vector = fragment.vector()
    net["a"].fragment(0, "m").value -= behind
    net["a"].plane.outgoing.outboxes.clear()
    net["a"].plane.outgoing.refresh_targets(net["a"].plane.partitions[0])
    reply = net.put("m", 1, "again")
    net.pump()
    assert reply.remaining == 0 and not reply.failed
    assert net["b"].content(0, "m") == {key(1): value("value 2")}
    assert fragment.vector() == vector and not fragment.is_dirty
    assert net["b"].plane.counters["backups_ignored"] == 1


def test_a_primary_of_the_other_side_of_a_split_is_stale() -> None:
    """Decision 5, AE-10: its row is newer than the one with which our primary came, but no newer
    than ours: it is refused, and its writes are not acknowledged.
    """
    net = two()
    net.set_row(0, "cb", 3, only="bc")
    net.set_row(0, "cba", 5, only="bc")
    for version in (4, 5):
        net.set_row(0, "ab", version, only="a")
        reply = net.put("m", 1, "from the other side")
        net.pump()
        assert reply.remaining == 1 and net["b"].content(0, "m") == {}
        assert net["b"].plane.counters["backups_refused"] == version - 3
    net.set_row(0, "ab", 6, only="a")
    reply = net.put("m", 1, "of a newer row")
    net.pump()
    assert not reply.failed and net["b"].content(0, "m") == {key(1): value("of a newer row")}


def test_a_primary_of_before_the_one_we_have_heard_is_stale() -> None:
    """Decision 5: our table is behind, but the next primary has written already: the former one,
    primary in our table still, is refused, and so is whoever came between them.
    """
    net = Net("abcd")
    net.set_row(0, "ab", 2)
    net.pump()
    net.set_row(0, "db", 3, only="d")
    net.set_row(0, "cb", 4, only="c")
    assert not net.put("m", 1, "new", at="c").failed
    net.pump()
    assert net["b"].content(0, "m") == {key(1): value("new")}
    for refused, former in enumerate("ad", 1):
        reply = net.put("m", 1, "old", at=former)
        net.pump()
        assert reply.remaining > 0 and net["b"].content(0, "m") == {key(1): value("new")}
        assert net["b"].plane.counters["backups_refused"] == refused


def fragment_with(own: Counters, lineage: int) -> Fragment:
    fragment = Net("a")["a"].plane.holdings.make(P0, Namespace("map/b2"))
    fragment.lineage = lineage
    fragment.set_counters(own, 0)
    return fragment


@pytest.mark.parametrize(
    ("own", "lineage", "base", "base_lineage", "agrees"),
    [
        ((5, 5), 7, (5, 5), 7, True),
        ((5, 5), 7, (4, 5), 7, False),
        ((5, 5), 7, (6, 5), 7, False),
        ((5, 5), 7, (5, 5), 8, False),
        ((0, 0), 7, (0, 0), 8, True),
        ((0, 0), 7, (1, 0), 7, False),
    ],
)
@pytest.mark.parametrize("is_dirty", [False, True])
def test_a_new_primary_is_compared_by_where_it_starts(
    own: Sequence[int],
    lineage: int,
    base: Sequence[int],
    base_lineage: int,
    agrees: bool,
    is_dirty: bool,
) -> None:
    """AE-11: in step only with equal numbers counted by one primary, or with nothing on both
    sides; else dirty, and what was dirty stays so. We count on from the starting point.
    """
    fragment = fragment_with((*own, *ZERO[2:]), lineage)
    fragment.is_dirty = is_dirty
    start = (*base, *ZERO[2:])
    assert fragment.meet_lineage(9, base_lineage, start, 0) is (agrees and not is_dirty)
    assert fragment.is_dirty is not (agrees and not is_dirty)
    assert (fragment.lineage, fragment.counters()) == (9, start)


@pytest.mark.parametrize("is_dirty", [False, True])
def test_a_promoted_backup_says_where_it_starts(is_dirty: bool) -> None:
    """AE-11: from its own counters under the lineage they were counted in; one that may have
    missed something names a start that nobody can have, so that every backup asks.
    """
    fragment = fragment_with((3, 5, *ZERO[2:]), 7)
    fragment.is_dirty = is_dirty
    fragment.become_primary(9)
    assert (fragment.lineage, fragment.counters()) == (9, (3, 5, *ZERO[2:]))
    assert (fragment.base_lineage, fragment.base) == (9 if is_dirty else 7, fragment.counters())
    assert not fragment.is_dirty
    follower = fragment_with((3, 5, *ZERO[2:]), 7)
    vector = fragment.vector()
    in_step = follower.meet_lineage(9, vector.base_lineage, tuple(vector.base), 0)
    assert in_step is not is_dirty


def test_who_stands_where_its_primary_began_is_in_step() -> None:
    """AE-11: under the lineage before its own a primary is met at its start and nowhere else.

    Method: a backup's counters against vectors of a primary of which one thing differs.
    """
    counters, lower = (3, 5, *ZERO[2:]), (3, 4, *ZERO[2:])
    backup = fragment_with(counters, 7)
    for vector, same in (
        (Vector(9, counters, 7, counters), True),
        (Vector(9, counters, 8, counters), False),
        (Vector(9, counters, 7, lower), False),
        (Vector(9, lower, 7, lower), False),
        (Vector(7, counters, 8, lower), True),
        (Vector(7, lower, 8, lower), False),
    ):
        assert in_step(backup, vector, 1) is same, vector


# -- verdicts -----------------------------------------------------------------------------


def held(host: Host) -> dict[Namespace, tuple[int, Counters, bool, dict[bytes, bytes]]]:
    """Lineage, counters, dirtiness and data of each map of partition 0."""
    fragments = host.plane.partitions[0].fragments
    return {
        name: (f.lineage, f.counters(), f.is_dirty, host.content(0, split_namespace(name)[1]))
        for name, f in fragments.items()
    }


KINDS = {
    "copy": ("ab", migration(MigrationKind.COPY, "c", 5, new=2), "abc", 6),
    "shift up": ("a-c", migration(MigrationKind.SHIFT_UP, "c", 5, new=1, current=2), "ac", 7),
    "move of a backup": (
        "ab",
        migration(MigrationKind.MOVE, "c", 5, new=1, source="b", source_slots=(1, -1)),
        "ac",
        6,
    ),
    "shift down": (
        "ab",
        migration(MigrationKind.SHIFT_DOWN, "c", 5, new=1, source="b", source_slots=(1, 2)),
        "acb",
        7,
    ),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("verdict", ["commit", "roll back"])
def test_versions_go_with_the_data(name: str, verdict: str) -> None:
    """GCM-41, ADL-43: committed, every map that a new index keeps has the primary's versions from
    there on and zeros below, at the destination and at a source that steps down, and whoever is in
    no row has none. Rolled back, data and versions are as before.
    """
    before, info, after, version = KINDS[name]
    net = filled(row=before)
    for host in net.hosts.values():
        for fragment in host.plane.partitions[0].fragments.values():
            assert fragment.lineage or not any(fragment.counters())
    old = {member: held(net[member]) for member in "abc"}
    net.migrate(info, "a")
    assert {member: held(net[member]) for member in "abc"} == old, "staged only"
    if verdict == "roll back":
        net["c"].plane.roles.rollback_destination(info)
        net.set_row(0, before, version + 1)
        assert {member: held(net[member]) for member in "abc"} == old
        return
    net.set_row(0, after, version)
    primary = held(net["a"])
    assert primary == old["a"]
    for member in "bc":
        index = after.find(member)
        depths = ((map_of("m"), 1), (map_of("b2"), 2), (map_of("b3"), 3))
        keeps = [n for n, count in depths if 0 <= index <= count]
        wanted = {
            n: (primary[n][0], kept_by(primary[n][1], index), False, primary[n][3]) for n in keeps
        }
        assert held(net[member]) == wanted


def test_what_was_rolled_back_does_not_come_back() -> None:
    """ADL-43, ADL-74: a shift up is rolled back; when another change leads to that index later,
    nothing of what was received for it is alive, and no further piece of it is taken.
    """
    net = filled(row="a-c")
    info = migration(MigrationKind.SHIFT_UP, "c", 5, new=1, current=2)
    net.migrate(info, "a")
    net["c"].plane.roles.rollback_destination(info)
    net.set_row(0, "a-c", 8)
    with pytest.raises(SerializationError):
        net["c"].plane.roles.ingest(info, ())
    net["a"].plane.roles.end_source(P0)
    net.put("m", 1, "written since")
    net.set_row(0, "ac", 10)
    assert net["c"].content(0, "m") == {}, "not what was copied for the failed one"


def test_a_late_roll_back_of_another_migration_takes_nothing() -> None:
    """ADL-43: only the migration that is rolled back loses what was received for it."""
    net = filled()
    first = migration(MigrationKind.COPY, "c", 5, new=2)
    second = MigrationInfo("second", P0, first.step, first.master, 5)
    net.migrate(second, "a")
    net["c"].plane.roles.rollback_destination(first)
    net.set_row(0, "abc", 6)
    assert sorted(net["c"].plane.partitions[0].fragments) == [map_of("b2"), map_of("b3")]
    assert len(net["c"].content(0, "b2")) == 30


# -- fragments ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_on", [True, False])
def test_fragments_are_on_unless_they_are_switched_off(is_on: bool) -> None:
    """GCM-28: on by default; switched off a partition is one message, whatever is in it."""
    assert CoreSettings().migration_fragments_enabled is True
    net = Net("abc", msgspec.structs.replace(SETTINGS, migration_fragments_enabled=is_on))
    net.set_row(0, "a", 5)
    for number in range(60):
        for name in ("m", "b2"):
            net.put(name, number, "x" * 20)
    export = net["a"].plane.roles.open_export(
        migration(MigrationKind.MOVE, "c", 5, new=0, source="a", source_slots=(0, -1))
    )
    messages, last = 0, False
    while not last:
        parts, last = export.next_parts(700)
        assert len(dict.fromkeys(part.namespace for part in parts)) == 2 or is_on
        messages += 1
    assert messages > 2 if is_on else messages == 1
