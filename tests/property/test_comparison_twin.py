"""Goal: a copy by difference ends as a whole copy would, whatever differed and whatever is written.

A primary and a backup whose fragments differ at will; a sync; writes of every kind at the primary
before and after each of its messages, their operations behind the messages in order. Pieces are so
small that trees, fillings and walks are interrupted everywhere (APR-49, APR-53, AE-24).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.replication_net import SECOND, SETTINGS, M, Net

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import SyncRequested, TransferAnswered, TransferSent
from whimbrel.core.replication import walk
from whimbrel.core.settings import ComparisonBounds
from whimbrel.structures.map import comparing
from whimbrel.structures.map.locks import LOCK
from whimbrel.structures.map.record import make_timing, stored_key
from whimbrel.structures.map.store import MapStore

KEYS = [
    stored_key(bytes(4) + b"\xff\xff\xff\xf8" + number.to_bytes(8, "big")) for number in range(24)
]


class Write(NamedTuple):
    """A change of the primary's store."""

    kind: str
    key: bytes
    value: int

    def operation(self, store: MapStore, now_ms: int) -> bytes:
        """Carry it out; the backup operation."""
        value = bytes(8) + bytes([self.value])
        match self.kind:
            case "put":
                return store.put(self.key, value, now_ms)[1]
            case "timed":
                timing = make_timing(60_000 + self.value, 90_000, now_ms)
                return store.put(self.key, value, now_ms, timing)[1]
            case "hashed":
                return store.put(self.key, value, now_ms, b"", bytes([1, 2, 3, self.value]))[1]
            case "remove":
                return store.remove(self.key)[1]
            case "lock":
                return store.set_lock(self.key, LOCK.pack(bytes(16), 1, self.value, 1 << 60, 1))
            case "unlock":
                return store.set_lock(self.key, b"")
            case _:
                return store.clear()


KINDS = ("put", "put", "put", "timed", "hashed", "remove", "remove", "lock", "unlock", "clear")
WRITES = st.builds(Write, st.sampled_from(KINDS), st.sampled_from(KEYS), st.integers(0, 3))
DIFFERENCES = st.builds(
    Write, st.sampled_from([kind for kind in KINDS if kind != "clear"]), st.sampled_from(KEYS),
    st.integers(0, 3),
)  # fmt: skip
SCRIPTS = st.dictionaries(st.integers(1, 12), st.lists(WRITES, max_size=4), max_size=6)


def content(store: MapStore) -> tuple[object, ...]:
    """All that a replica has, but for the moments of last reads, which are the primary's."""
    timings = {key: timing[:-8] for key, timing in store.timings.items()}
    held = {} if store.locks is None else store.locks.held
    return store.records, timings, store.hashes, held


def store_of(net: Net, name: str) -> MapStore:
    return cast("MapStore", net[name].fragment(0, "m").store)


def write(net: Net, one: Write, *, is_lost: bool = False) -> None:
    """Change the primary's store; the operation may get lost."""
    host = net["a"]
    host.begin()
    fragment = host.fragment(0, "m")
    operation = one.operation(cast("MapStore", fragment.store), host.ctx.wall_ms)
    targets = fragment.sync_targets
    if is_lost:
        fragment.sync_targets = ()
    host.plane.holdings.change(host.plane.partitions[0], fragment, operation, None)
    fragment.sync_targets = targets


def interleave(
    net: Net, before: dict[int, list[Write]], after: dict[int, list[Write]]
) -> Callable[[MemberId, MemberId, object], bool]:
    """Write before the n-th message is made, or in the same turn behind it."""

    def meanwhile(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, TransferAnswered):
            for one in before.pop(what.sequence + 1, ()):
                write(net, one)
        if isinstance(what, TransferSent):
            for one in after.pop(what.sequence, ()):
                write(net, one)
        return False

    return meanwhile


@given(
    st.lists(WRITES, max_size=40),
    st.lists(DIFFERENCES, max_size=8),
    st.lists(DIFFERENCES, max_size=8),
    SCRIPTS,
    SCRIPTS,
    st.integers(1, 9),
    st.integers(2, 30),
    st.sampled_from([0, 1]),
)
@settings(max_examples=60, deadline=None)
def test_copies_by_difference_end_like_whole_ones(
    common: list[Write],
    lost: list[Write],
    spoiled: list[Write],
    before: dict[int, list[Write]],
    after: dict[int, list[Write]],
    work: int,
    taken: int,
    leaf_entries: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "KEYS_TAKEN", taken)
        patch.setattr(comparing, "KEYS_TAKEN", taken)
        patch.setattr(comparing, "KEYS_LOOKED_AT", 3)
        sizes = msgspec.structs.replace(
            SETTINGS,
            migration_chunk_bytes_max=120,
            comparison=ComparisonBounds(few_entries=0, leaf_entries=leaf_entries, work_max=work),
        )
        net = Net("ab", sizes)
        net.set_row(0, "ab", 5)
        net.put("m", 1, "x")
        for one in common:
            write(net, one)
        net.pump()
        for one in lost:
            write(net, one, is_lost=True)
        for one in spoiled:
            one.operation(store_of(net, "b"), 77)
        net["b"].plane.doubts.mark_dirty(net["b"].fragment(0, "m"))
        net.drop = interleave(net, before, after)
        net.advance(8 * SECOND)
        net.drop = None
        net.advance(3 * SECOND)
        net.check_equal(0, "ab", "m")
        assert content(store_of(net, "b")) == content(store_of(net, "a"))
        held_bytes = (store_of(net, "a").bytes_used, store_of(net, "b").bytes_used)
        assert held_bytes[0] == held_bytes[1] or store_of(net, "a").locks is not None
        asked = [m for _, _, m in net.log if isinstance(m, SyncRequested) and m.namespaces]
        assert len(asked) == 1, "the copy has all that passed meanwhile"
        assert asked[0].namespaces == (M,)
