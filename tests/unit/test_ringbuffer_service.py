"""Goal: the ring buffer's operations mean what Hazelcast's mean, change backups and wake those who
wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Net, migration, value

from whimbrel.core.ids import Namespace, namespace_of
from whimbrel.core.items import ITEM_BYTES_MAX
from whimbrel.core.messages import MergeCounts
from whimbrel.core.model import MigrationKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import RetryableError, StaleSequenceError, UsageError
from whimbrel.structures.ringbuffer import service as module
from whimbrel.structures.ringbuffer.record import TIME_BYTES
from whimbrel.structures.ringbuffer.service import (
    FAIL,
    FAILED,
    OVERWRITE,
    SWEEP_SHARE,
    Batch,
    RingbufferService,
    awaited,
)
from whimbrel.structures.ringbuffer.settings import RingbufferSettings
from whimbrel.structures.ringbuffer.store import FREED_AT_ONCE_MAX, RingbufferStore

R = namespace_of("ringbuffer", "r")
SMALL = namespace_of("ringbuffer", "small")
SHORT = namespace_of("ringbuffer", "short")
A, B, C, D, E = (value(text) for text in "abcde")
LIFE_MS = 5_000


class Stage:
    """Members with a service each; a is the primary of partition 0, b its backup."""

    def __init__(self, names: str = "ab") -> None:
        rings = (
            *SETTINGS.structures,
            RingbufferSettings("small", capacity=3),
            RingbufferSettings("short", capacity=3, time_to_live_s=LIFE_MS // 1_000),
        )
        self.net = Net(names, msgspec.structs.replace(SETTINGS, structures=rings))
        self.services = {name: RingbufferService(self.net[name].plane) for name in names}
        self.net.set_row(0, "ab", 2)
        self.net.pump()
        self.rings = self.services["a"]
        self.p = self.partition("a")
        self.plane = self.net["a"].plane

    def partition(self, name: str) -> PartitionReplica:
        """A member's replica of partition 0."""
        return self.net[name].plane.partitions[0]

    def store(self, name: str, ring: Namespace = R) -> RingbufferStore:
        """A member's store of a ring buffer."""
        found = self.partition(name).fragments[ring].store
        assert isinstance(found, RingbufferStore)
        return found

    def add(
        self, *values: bytes, ring: Namespace = R, at: str = "a", policy: int = OVERWRITE
    ) -> int:
        """Add at a primary; nobody waits for backups."""
        return self.services[at].add(self.partition(at), ring, values, policy, None)

    def read(self, start: int, ring: Namespace = R, at: str = "a") -> list[bytes]:
        """Whatever is there from a sequence on."""
        found = self.services[at].read_many(self.partition(at), ring, start, 0, 3)
        assert isinstance(found, Batch)
        return found.values

    def woken(self) -> list[bytes]:
        """Keys that were woken since the last call."""
        return [key for _, _, key in self.plane.wakes.take()]

    def wait(self, span_ms: int) -> None:
        """Time passes on the wall; nobody sweeps."""
        self.net.advance(span_ms * 1_000)
        for name in self.services:
            self.net[name].begin()

    def sweep(self, budget: int = 100) -> int:
        """Every partition is looked at."""
        wall_ms = self.plane.ctx.wall_ms
        return sum(self.rings.sweep(wall_ms, budget) for _ in range(SWEEP_SHARE))

    def check_backup(self, ring: Namespace = R) -> None:
        """The backup holds what the primary holds."""
        self.net.pump()
        assert state(self.store("a", ring)) == state(self.store("b", ring))
        assert not self.partition("b").fragments[ring].is_dirty


def state(store: RingbufferStore) -> tuple[object, ...]:
    """All that replicas have in common."""
    return store.head, store.items(store.head, store.next), store.past


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_sequences_begin_with_0_and_rise(stage: Stage) -> None:
    """add, addAll, size, head, tail, capacity, readOne, readMany; the backup follows."""
    rings, p = stage.rings, stage.p
    assert rings.bounds(p, R) == (0, 0) and rings.size(p, R) == 0 and rings.capacity(R) == 10_000
    assert stage.read(0) == []
    assert not p.fragments, "looking makes no fragment"
    assert stage.add(A) == 0 and stage.add(B, C) == 2
    stage.check_backup()
    assert rings.bounds(p, R) == (0, 3) and rings.size(p, R) == 3
    assert [rings.read_one(p, R, sequence) for sequence in range(4)] == [A, B, C, None]
    assert rings.read_many(p, R, 1, 1, 5) == Batch([1, 2], [B, C], 1, 3)
    assert rings.read_many(p, R, 0, 1, 2) == Batch([0, 1], [A, B], 0, 2)
    assert rings.read_many(p, R, 3, 0, 2) == Batch([], [], 3, 3)


def test_the_oldest_give_way(stage: Stage) -> None:
    """A full ring buffer overwrites; more than it takes leaves the last ones and counts all."""
    rings, p = stage.rings, stage.p
    assert stage.add(A, B, C, ring=SMALL) == 2 and stage.add(D, ring=SMALL) == 3
    assert rings.bounds(p, SMALL) == (1, 4) and stage.read(1, SMALL) == [B, C, D]
    stage.check_backup(SMALL)
    assert stage.add(A, B, C, D, E, ring=SMALL) == 8
    assert rings.bounds(p, SMALL) == (6, 9) and stage.read(0, SMALL) == [C, D, E]
    stage.check_backup(SMALL)
    with pytest.raises(StaleSequenceError, match="the head is 6, the tail 8"):
        rings.read_one(p, SMALL, 5)
    assert rings.read_many(p, SMALL, 2, 1, 2) == Batch([6, 7], [C, D], 6, 8)


def test_what_to_wait_for(stage: Stage) -> None:
    """A read of the next sequence waits for it, a batch for the last one that must be there; from
    the head on when the first is gone.
    """
    rings, p = stage.rings, stage.p
    assert rings.read_many(p, R, 0, 1, 1) == awaited(0)
    stage.add(A, B)
    assert rings.read_one(p, R, 2) is None
    assert rings.read_many(p, R, 1, 2, 3) == awaited(2)
    for name in (A, B, C, D):
        stage.add(name, ring=SMALL)
    assert rings.read_many(p, SMALL, 0, 3, 3) == Batch([1, 2, 3], [B, C, D], 1, 4)
    assert rings.read_many(p, SMALL, 2, 3, 3) == awaited(4)


def test_who_asks_for_what_never_was_is_given_the_newest(stage: Stage) -> None:
    """A sequence beyond the next one: readOne says so; readMany waits for the next items, and has
    them when it asks again, however many others there are by then.
    """
    rings, p = stage.rings, stage.p
    stage.add(A, B)
    for sequence in (3, -1):
        with pytest.raises(UsageError, match="the tail is 1"):
            rings.read_one(p, R, sequence)
    assert rings.read_many(p, R, 900, 2, 9) == awaited(3)
    assert rings.read_many(p, R, 900, 0, 9) == Batch([], [], 2, 2)
    stage.add(C, D, E)
    assert rings.read_many(p, R, 900, 2, 9, is_again=True) == Batch([3, 4], [D, E], 3, 5)
    assert rings.read_many(p, R, 900, 6, 9, is_again=True) == awaited(5)


def test_all_who_wait_for_a_sequence_are_woken(stage: Stage) -> None:
    """Every sequence that is given is said, those that are overwritten at once, too; whoever is
    served says it again, because one wake wakes one.
    """
    rings, p = stage.rings, stage.p
    stage.add(A, B, C, D, ring=SMALL)
    assert stage.woken() == [awaited(sequence) for sequence in range(4)]
    rings.read_one(p, SMALL, 2)
    assert stage.woken() == [awaited(2)]
    rings.read_many(p, SMALL, 1, 2, 3)
    assert stage.woken() == [awaited(2)]
    rings.read_many(p, SMALL, 1, 0, 3)
    assert rings.read_one(p, SMALL, 4) is None and stage.woken() == []
    with pytest.raises(StaleSequenceError):
        rings.read_one(p, SMALL, 0)
    assert stage.woken() == [awaited(0)], "whoever waits for it, too, is to hear that it is gone"


def test_items_end(stage: Stage) -> None:
    """What is over is not shown, whether it was swept or not; its sequence is not given again."""
    rings, p = stage.rings, stage.p
    stage.add(A, ring=SHORT)
    stage.wait(LIFE_MS - 1)
    stage.add(B, ring=SHORT)
    assert rings.bounds(p, SHORT) == (0, 2) and rings.remaining_capacity(p, SHORT) == 1
    stage.wait(1)
    assert rings.bounds(p, SHORT) == (1, 2) and stage.read(0, SHORT) == [B]
    assert rings.size(p, SHORT) == 1 and rings.remaining_capacity(p, SHORT) == 2
    with pytest.raises(StaleSequenceError):
        rings.read_one(p, SHORT, 0)
    assert stage.store("a", SHORT).head == 0 and stage.sweep() == 1 and stage.sweep() == 0
    assert stage.store("a", SHORT).head == 1
    stage.check_backup(SHORT)
    stage.plane.ctx.wall_ms -= LIFE_MS
    assert rings.bounds(p, SHORT) == (1, 2), "a clock that is set back brings nothing back"
    stage.wait(LIFE_MS)
    assert rings.bounds(p, SHORT) == (2, 2) and rings.read_one(p, SHORT, 2) is None
    assert stage.add(C, ring=SHORT) == 2
    stage.check_backup(SHORT)
    assert len(stage.store("b", SHORT)) == 1, "an item that is over goes with the next one at last"


def test_a_sweep_has_an_end(stage: Stage) -> None:
    """No more than the budget in one sweep, and nothing at a backup."""
    stage.add(A, B, C, ring=SHORT)
    stage.wait(LIFE_MS)
    stage.net.pump()
    assert stage.services["b"].sweep(stage.plane.ctx.wall_ms, 100) == 0
    assert [stage.sweep(0), stage.sweep(2), stage.sweep(2)] == [0, 3, 0]
    stage.check_backup(SHORT)
    assert len(stage.store("b", SHORT)) == 0 and stage.store("b", SHORT).next == 3


def test_refused_for_want_of_room(stage: Stage) -> None:
    """FAIL keeps items whose time is not over, and adds all or nothing; where items do not end it
    refuses only what can never have room.
    """
    rings, p = stage.rings, stage.p
    assert stage.add(A, B, ring=SHORT, policy=FAIL) == 1
    assert stage.add(C, D, ring=SHORT, policy=FAIL) == FAILED and stage.read(0, SHORT) == [A, B]
    assert stage.add(C, ring=SHORT, policy=FAIL) == 2
    assert stage.add(D, ring=SHORT, policy=FAIL) == FAILED
    assert stage.add(D, ring=SHORT) == 3 and stage.read(0, SHORT) == [B, C, D]
    stage.wait(LIFE_MS)
    assert stage.add(E, ring=SHORT, policy=FAIL) == 4 and stage.read(0, SHORT) == [E]
    assert stage.add(A, B, C, D, ring=SMALL, policy=FAIL) == FAILED and SMALL not in p.fragments
    assert stage.add(A, B, C, ring=SMALL, policy=FAIL) == 2
    assert stage.add(D, ring=SMALL, policy=FAIL) == 3 and rings.remaining_capacity(p, SMALL) == 3
    rings.destroyed(SMALL)
    assert rings.remaining_capacity(p, SMALL) == 3


def test_a_client_is_answered_when_the_backups_have_it(stage: Stage) -> None:
    """One acknowledgement for all items of a call."""
    outgoing = stage.plane.outgoing
    reply = PendingReply()
    stage.rings.add(stage.p, R, [A, B], OVERWRITE, reply)
    assert reply.remaining == 1 and not outgoing.completed
    stage.net.pump()
    assert outgoing.completed == [reply]


def test_what_must_not_happen_here(stage: Stage) -> None:
    """Not the primary: retryable, and nothing has happened. What makes no sense: usage."""
    with pytest.raises(RetryableError):
        stage.services["b"].add(stage.partition("b"), R, [A], OVERWRITE, None)
    for values in ((), (A, b"bad"), (A, bytes(ITEM_BYTES_MAX + 1))):
        with pytest.raises(UsageError):
            stage.add(*values)
    with pytest.raises(UsageError, match="policy 7"):
        stage.add(A, policy=7)
    assert not stage.p.fragments and not stage.partition("b").fragments
    for numbers in ((-1, 0, 1), (0, -1, 1), (0, 2, 1), (0, 4, 4)):
        with pytest.raises(UsageError, match="cannot be read"):
            stage.rings.read_many(stage.p, SMALL, *numbers)


def test_an_answer_has_an_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has no more than an answer may have, in number and in bytes, but one item always."""
    rings, p = stage.rings, stage.p
    stage.add(A, B, C, D)
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 2 * (TIME_BYTES + len(A)))
    assert rings.read_many(p, R, 1, 3, 3) == Batch([1, 2], [B, C], 1, 3)
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1)
    assert rings.read_many(p, R, 1, 3, 3) == Batch([1], [B], 1, 2)
    monkeypatch.setattr(module, "BATCH_MAX", 1)
    assert rings.read_many(p, R, 1, 1, 3) == Batch([1], [B], 1, 2)
    with pytest.raises(UsageError):
        rings.read_many(p, R, 1, 2, 3)


def test_a_copy_has_everything() -> None:
    """A ring buffer moves to a new primary in small chunks, and goes on numbering there."""
    stage = Stage("abc")
    items = [value(f"item {number}") for number in range(50)]
    stage.add(*items)
    stage.add(*items[:5], ring=SMALL)
    stage.add(A, ring=SHORT)
    stage.wait(LIFE_MS)
    stage.sweep()
    move = migration(MigrationKind.MOVE, "c", 2, 0, source="a", source_slots=(0, -1))
    stage.net.migrate(move, "a", chunk=100)
    stage.net.set_row(0, "cb", move.final_version)
    there, p = stage.services["c"], stage.partition("c")
    assert [there.read_one(p, R, sequence) for sequence in range(50)] == items
    assert there.bounds(p, SMALL) == (2, 5) and stage.read(0, SMALL, at="c") == items[2:5]
    assert there.bounds(p, SHORT) == (1, 1), "an empty one keeps its sequences"
    assert stage.add(A, at="c") == 50 and stage.add(B, ring=SHORT, at="c") == 1
    stage.net.pump()
    for ring in (R, SHORT):
        assert state(stage.store("b", ring)) == state(stage.store("c", ring))
    assert [first for _, first in stage.store("b").lineages] == [0, 50]


def test_large_ring_buffers_are_freed_in_pieces(stage: Stage) -> None:
    """Dropping many items frees them later."""
    many = [A] * (FREED_AT_ONCE_MAX + 1)
    stage.add(*many)
    holdings = stage.plane.holdings
    holdings.discard(stage.p, R)
    assert holdings.deferred.entries == len(many)
    for left in (1, 0):
        holdings.deferred.on_timer()
        assert holdings.deferred.entries == left
    stage.add(A)
    holdings.discard(stage.p, R)
    assert holdings.deferred.entries == 0


# -- after a split ------------------------------------------------------------------------


def chunks(store: RingbufferStore, service: RingbufferService, bytes_max: int) -> list[bytes]:
    """What the smaller part hands over, chunk by chunk."""
    cursor, found, left = store.open_cursor(), [], len(store)
    while left:
        chunk, entries = service.leftover_chunk(store, cursor, bytes_max)
        found.append(chunk)
        left -= entries
    return found


def merged(stage: Stage, parts: Sequence[bytes], ring: Namespace = R) -> MergeCounts:
    """Merge chunks at the primary a; what became of the items."""
    found = [stage.rings.merge(stage.p, ring, chunk, PendingReply()) for chunk in parts]
    totals = (sum(numbers) for numbers in zip(*map(msgspec.structs.astuple, found), strict=True))
    return MergeCounts(*totals)


def split(stage: Stage) -> None:
    """B has become the primary of the smaller part, where nothing has happened yet."""
    stage.net.pump()
    stage.net.cut("a", "b")
    stage.net.cut("b", "a")
    stage.net.set_row(0, "b", 3, only="b")


CHUNKS = pytest.mark.parametrize("bytes_max", [1, 1 << 20])


@CHUNKS
def test_what_the_smaller_part_added_comes_to_the_tail(stage: Stage, bytes_max: int) -> None:
    """Goal: after a split everything that was added in either part is there once, in the order of
    each part; the bigger part's sequences stay.
    """
    stage.add(A, B)
    split(stage)
    stage.add(C, D, at="b")
    stage.add(E)
    stage.woken()
    found = chunks(stage.store("b"), stage.services["b"], bytes_max)
    assert merged(stage, found) == MergeCounts(added=2, same=2)
    assert [stage.rings.read_one(stage.p, R, n) for n in range(5)] == [A, B, E, C, D]
    assert awaited(3) in stage.woken()


@CHUNKS
def test_sequences_stay_where_only_one_part_has_added(stage: Stage, bytes_max: int) -> None:
    """Goal: nobody else was given these sequences, so they stay, also of a ring buffer that the
    bigger part does not have.
    """
    stage.add(A, B)
    split(stage)
    stage.add(C, D, at="b")
    stage.add(A, B, C, D, E, ring=SMALL, at="b")
    theirs = stage.services["b"]
    assert merged(stage, chunks(stage.store("b"), theirs, bytes_max)) == MergeCounts(2, same=2)
    assert state(stage.store("a"))[:2] == state(stage.store("b"))[:2]
    found = chunks(stage.store("b", SMALL), theirs, bytes_max)
    assert merged(stage, found, SMALL) == MergeCounts(added=3)
    assert state(stage.store("a", SMALL))[:2] == state(stage.store("b", SMALL))[:2]
    assert stage.rings.bounds(stage.p, SMALL) == (2, 5)


def test_merged_items_live_as_long_as_new_ones(stage: Stage) -> None:
    """Goal: what comes later is over later, as within one part; what was over does not come."""
    stage.add(A, ring=SHORT)
    split(stage)
    stage.add(B, ring=SHORT, at="b")
    stage.wait(LIFE_MS - 1)
    stage.add(C, ring=SHORT)
    found = chunks(stage.store("b", SHORT), stage.services["b"], 1 << 20)
    assert merged(stage, found, SHORT) == MergeCounts(added=1, same=1)
    stage.wait(LIFE_MS - 1)
    assert stage.rings.bounds(stage.p, SHORT) == (1, 3) and stage.read(0, SHORT) == [C, B]
    stage.wait(1)
    assert stage.rings.bounds(stage.p, SHORT) == (3, 3)
    assert merged(stage, found, SHORT) == MergeCounts(same=1, expired=1)


def test_damage_ends_a_merge_and_is_said(stage: Stage) -> None:
    """What comes before the damage counts."""
    source = Stage()
    source.add(A, B)
    chunk, _ = source.store("a").export(source.store("a").open_cursor(), 1 << 20)[:2]
    stage.plane.ctx.effects.clear()
    assert merged(stage, [chunk[:-1]]) == MergeCounts(added=1)
    assert merged(stage, [b"?"]) == MergeCounts() == merged(stage, [chunk[:30]])
    assert stage.read(0) == [A]
    notes = [
        one for one in stage.plane.ctx.effects if getattr(one, "kind", "") == "split_brain.damaged"
    ]
    assert len(notes) == 3
