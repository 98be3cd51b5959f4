"""Goal: who returns to a log of changed keys ends with what a whole copy would have given it.

Writes of every kind, also between the messages of a copy; a disk that is behind; promotions, copies
and doubts in between. Nothing that differs is ever missing in a log that is believed (APR-46 to
APR-48, AE-24).
"""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.property.test_comparison_twin import SCRIPTS, WRITES, Write, content, interleave
from tests.property.test_comparison_twin import write as write_at_a
from tests.unit.absence_net import (
    FROZEN,
    KEPT,
    MAP,
    P0,
    STABLE,
    TAILED,
    copy_of,
    list_members,
    return_to_seat,
    set_row,
)
from tests.unit.replication_net import SECOND, Net, migration

from whimbrel.core.messages import Vector
from whimbrel.core.model import MigrationKind
from whimbrel.core.replication import walk
from whimbrel.core.replication.comparison import base_of
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.settings import ComparisonBounds
from whimbrel.structures.map import comparing
from whimbrel.structures.map.store import MapStore


def store_at(net: Net, name: str, of: str) -> MapStore:
    return cast("MapStore", net[name].fragment(0, of).store)


def differing(one: MapStore, other: MapStore) -> set[bytes]:
    """Keys whose entries are not the same, last reads apart."""

    def entry(store: MapStore, key: bytes) -> tuple[object, ...]:
        timing = store.timings.get(key, b"")[:-8]
        return store.records.get(key), timing, store.hashes.get(key)

    keys = one.records.keys() | other.records.keys()
    return {key for key in keys if entry(one, key) != entry(other, key)}


@given(
    st.lists(WRITES, max_size=30),
    st.lists(WRITES, max_size=12),
    SCRIPTS,
    SCRIPTS,
    st.integers(1, 9),
    st.integers(2, 30),
)
@settings(max_examples=50, deadline=None)
def test_syncs_by_log_end_like_whole_ones(
    common: list[Write],
    missed: list[Write],
    before: dict[int, list[Write]],
    after: dict[int, list[Write]],
    work: int,
    taken: int,
) -> None:
    """A backup is away in FROZEN; when it is back, writes go on around each message of its copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "KEYS_TAKEN", taken)
        patch.setattr(comparing, "KEYS_TAKEN", taken)
        sizes = msgspec.structs.replace(
            KEPT,
            migration_chunk_bytes_max=120,
            comparison=ComparisonBounds(work_max=work, tail_bytes_max=0),
        )
        net = Net("ab", sizes)
        list_members(net, "ab", FROZEN)
        net.set_row(0, "ab", 4)
        net.put("m", 1, "x")
        for one in common:
            write_at_a(net, one)
        net.pump()
        base = net["b"].fragment(0, "m")
        net["b"].alive = False
        list_members(net, "a", FROZEN)
        for one in missed:
            write_at_a(net, one)
        net.pump()
        log = net["a"].fragment(0, "m").key_log
        told = base_of(base, is_trusted=True)
        assert log is not None and told is not None
        keys = log.lacked_by(told)
        is_cleared = any(one.kind == "clear" for one in missed)
        assert (keys is None) == is_cleared
        assert keys is None or set(keys) >= differing(
            cast("MapStore", base.store), store_at(net, "a", "m")
        )
        return_to_seat(net, base)
        net.drop = interleave(net, before, after)
        net.advance(8 * SECOND)
        net.drop = None
        net.advance(3 * SECOND)
        net.check_equal(0, "ab", "m")
        assert content(store_at(net, "b", "m")) == content(store_at(net, "a", "m"))
        event(f"by log: {net['a'].plane.holdings.copies['copies_by_log']}")


class Story:
    """Members a, b, c hold a map; c goes, things happen, and c returns with what its disk had."""

    def __init__(self, *, is_tailed: bool) -> None:
        self.net = net = Net("abcd", TAILED if is_tailed else KEPT)
        list_members(net, "abcd", STABLE)
        net.set_row(0, "abc", 4)
        net.put(MAP, 1, "x")
        net.pump()
        self.row, self.version, self.living = "abc", 4, "abcd"
        self.disks: list[tuple[Vector, MapStore]] = []
        self._note_disk()

    @property
    def primary(self) -> str:
        return self.row[0]

    def _note_disk(self) -> None:
        held = self.net["c"].fragment(0, MAP)
        self.disks.append((held.vector(), copy_of(cast("MapStore", held.store))))

    def write(self, one: Write) -> None:
        net, host = self.net, self.net[self.primary]
        host.begin()
        fragment = host.fragment(0, MAP)
        operation = one.operation(cast("MapStore", fragment.store), host.ctx.wall_ms)
        host.plane.holdings.change(host.plane.partitions[0], fragment, operation, None)
        net.pump()
        if "c" in self.row:
            self._note_disk()

    def become(self, row: str) -> None:
        self.row, self.version = row, self.version + 3
        set_row(self.net, row, self.version, self.living)

    def lose(self, name: str) -> None:
        self.net[name].alive = False
        self.living = self.living.replace(name, "")
        list_members(self.net, self.living, STABLE)
        self.become(self.row.replace(name, ""))

    def copy(self, name: str) -> None:
        """A member gets a replica behind the others."""
        index = len(self.row)
        step = migration(MigrationKind.COPY, name, self.version, new=index)
        self.net.migrate(step, self.primary, 150)
        self.become(self.row + name)
        self.net[self.primary].plane.roles.end_source(P0)
        self.net.pump()

    def happen(self, what: str) -> None:
        net = self.net
        if what == "promote" and len(self.row) > 1:
            self.lose(self.primary)
            net.advance(3 * SECOND)
        elif what == "copy" and "d" in self.living and "d" not in self.row and len(self.row) < 3:
            self.copy("d")
        elif what == "doubt" and len(self.row) > 1:
            plane = net[self.row[1]].plane
            plane.doubts.mark_dirty(net[self.row[1]].fragment(0, MAP))
            net.advance(4 * SECOND)

    def return_with(self, vector: Vector, store: MapStore, base: Fragment) -> None:
        net = self.net
        host = net.restart("c", 7_777)
        counts = (base.sync_count, base.async_count)
        kept = host.plane.holdings.make_as(P0, base.namespace, counts, base.generation)
        kept.store = copy_of(store)
        kept.install(vector, base.slot + 1)
        host.plane.holdings.kept.keep(kept)
        self.living += "c"
        list_members(net, self.living, STABLE)
        log, told = net[self.primary].fragment(0, MAP).key_log, base_of(kept, is_trusted=True)
        keys = None if log is None or told is None else log.lacked_by(told)
        assert keys is None or set(keys) >= differing(store, store_at(net, self.primary, MAP))
        if len(self.row) == 3:
            self.lose(self.row[2])
        self.copy("c")


ROUNDS = st.lists(
    st.tuples(
        st.sampled_from(["nothing", "promote", "copy", "doubt"]), st.lists(WRITES, max_size=6)
    ),
    max_size=4,
)


@given(
    st.lists(WRITES, max_size=15),
    st.integers(0, 5),
    ROUNDS,
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_whatever_happens_meanwhile(
    before: list[Write], lag: int, rounds: list[tuple[str, list[Write]]], is_tailed: bool
) -> None:
    """Promotions, losses, replacements, doubts; a disk that was behind when its member died."""
    story = Story(is_tailed=is_tailed)
    for one in before:
        story.write(one)
    base = story.net["c"].fragment(0, MAP)
    story.lose("c")
    for what, writes in rounds:
        story.happen(what)
        for one in writes:
            story.write(one)
    vector, store = story.disks[max(0, len(story.disks) - 1 - lag)]
    story.return_with(vector, store, base)
    primary = store_at(story.net, story.primary, MAP)
    assert content(store_at(story.net, "c", MAP)) == content(primary)
    copies = story.net[story.primary].plane.holdings.copies
    event(f"by log: {copies['copies_by_log']}, same: {copies['copies_same']}")
