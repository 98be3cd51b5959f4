"""Goal: the queue's operations mean what Hazelcast's mean, change backups, are told once and wake
whoever may go on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.replication_net import SETTINGS, Net, migration, value

from whimbrel.core.ids import CALLER_BYTES, Attempt, Namespace, namespace_of
from whimbrel.core.items import ITEM_BYTES_MAX
from whimbrel.core.messages import MergeCounts
from whimbrel.core.model import MigrationKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import (
    IndeterminateError,
    OperationError,
    ProtocolError,
    RetryableError,
    SerializationError,
    UsageError,
)
from whimbrel.structures.queue import answered
from whimbrel.structures.queue import service as module
from whimbrel.structures.queue.answered import Answered
from whimbrel.structures.queue.record import CALL, FENCE, GONE, GONE_TO, ID_BYTES, OFFERED
from whimbrel.structures.queue.service import ADDED, PUT, REMOVED, TAKE, QueueService
from whimbrel.structures.queue.settings import SIZE_MAX, QueueSettings
from whimbrel.structures.queue.store import FREED_AT_ONCE_MAX, QueueStore

Q = namespace_of("queue", "q")
SMALL = namespace_of("queue", "small")
A, B, C, D = (value(text) for text in "abcd")
A_HASHED = b"\1\2\3\4" + A[4:]
"""Equal to A: the partition hash is no part of equality."""


class Stage:
    """Members with a queue service each; a is the primary of partition 0, b its backup."""

    def __init__(self, names: str = "ab") -> None:
        queues = (*SETTINGS.structures, QueueSettings("small", max_size=2))
        self.net = Net(names, msgspec.structs.replace(SETTINGS, structures=queues))
        self.services = {name: QueueService(self.net[name].plane) for name in names}
        self.net.set_row(0, "ab", 2)
        self.net.pump()
        self.queues = self.services["a"]
        self.p = self.partition("a")
        self.plane = self.net["a"].plane
        self.plane.events.listened.update({Q: 1, SMALL: 1})

    def partition(self, name: str) -> PartitionReplica:
        """A member's replica of partition 0."""
        return self.net[name].plane.partitions[0]

    def store(self, name: str, queue: Namespace = Q) -> QueueStore:
        """A member's store of a queue."""
        found = self.partition(name).fragments[queue].store
        assert isinstance(found, QueueStore)
        return found

    def offer(self, *values: bytes, queue: Namespace = Q, at: str = "a") -> bool:
        """Offer at a primary; nobody waits."""
        return self.services[at].offer(self.partition(at), queue, values, None)

    def heard(self) -> list[tuple[int, bytes | None]]:
        """(flag, item) told since the last call."""
        return [(flag, item) for _, flag, _, item, _ in self.plane.events.take()]

    def woken(self) -> list[bytes]:
        """Keys that were woken since the last call."""
        return [key for _, _, key in self.plane.wakes.take()]

    def check_backup(self, queue: Namespace = Q) -> None:
        """The backup holds what the primary holds."""
        self.net.pump()
        ours, theirs = self.store("a", queue), self.store("b", queue)
        assert list(ours.items) == list(theirs.items) and ours.past == theirs.past
        assert ours.answered.records == theirs.answered.records
        assert not self.partition("b").fragments[queue].is_dirty


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_first_in_first_out(stage: Stage) -> None:
    """offer, addAll, peek, poll, drain; the backup follows each."""
    queues, p = stage.queues, stage.p
    assert queues.peek(p, Q) is None and queues.poll(p, Q, None) is None
    assert queues.values(p, Q) == [] and queues.drain(p, Q, -1, None) == []
    assert not p.fragments, "looking makes no fragment"
    assert stage.offer(A) and stage.offer(B, A, C)
    stage.check_backup()
    assert queues.peek(p, Q) == A and queues.values(p, Q) == [A, B, A, C]
    assert queues.size(p, Q) == 4
    assert queues.poll(p, Q, None) == A
    stage.check_backup()
    assert queues.drain(p, Q, 0, None) == []
    assert queues.drain(p, Q, 2, None) == [B, A] and queues.drain(p, Q, -1, None) == [C]
    stage.check_backup()
    assert queues.size(p, Q) == 0 and stage.offer()
    assert queues.remaining_capacity(p, Q) == SIZE_MAX


def test_taken_from_anywhere(stage: Stage) -> None:
    """contains, containsAll, remove, removeAll, retainAll, clear; equality leaves the hash out."""
    queues, p = stage.queues, stage.p
    assert not queues.contains_all(p, Q, [A]) and queues.contains_all(p, Q, [])
    assert not queues.remove(p, Q, A, None) and not queues.remove_all(p, Q, [A], None)
    queues.clear(p, Q, None)
    stage.offer(A, B, A, C, D)
    assert queues.contains_all(p, Q, [C, A_HASHED]) and not queues.contains_all(
        p, Q, [C, value("")]
    )
    assert queues.remove(p, Q, A_HASHED, None) and queues.values(p, Q) == [B, A, C, D]
    stage.check_backup()
    assert queues.remove_all(p, Q, [D, A_HASHED], None) and queues.values(p, Q) == [B, C]
    assert not queues.remove_all(p, Q, [D], None)
    assert not queues.remove_all(p, Q, [B, C], None, but=True)
    stage.check_backup()
    assert queues.remove_all(p, Q, [C], None, but=True) and queues.values(p, Q) == [C]
    stage.check_backup()
    queues.clear(p, Q, None)
    stage.check_backup()
    assert queues.size(p, Q) == 0


def test_every_item_is_told(stage: Stage) -> None:
    """Each item that comes or goes is told once, in order; nothing is where nobody listens."""
    queues, p = stage.queues, stage.p
    stage.offer(A, B, C, D)
    assert stage.heard() == [(ADDED, A), (ADDED, B), (ADDED, C), (ADDED, D)]
    queues.poll(p, Q, None)
    queues.remove(p, Q, C, None)
    assert stage.heard() == [(REMOVED, A), (REMOVED, C)]
    queues.remove_all(p, Q, [B], None)
    queues.clear(p, Q, None)
    assert stage.heard() == [(REMOVED, B), (REMOVED, D)]
    queues.remove(p, Q, A, None)
    del stage.plane.events.listened[Q]
    stage.offer(A)
    queues.clear(p, Q, None)
    assert stage.heard() == []


def test_capacity_holds_and_all_or_nothing_fits(stage: Stage) -> None:
    """A full queue takes nothing, and not a part of what has no room."""
    queues, p = stage.queues, stage.p
    assert queues.remaining_capacity(p, SMALL) == 2
    assert not stage.offer(A, B, C, queue=SMALL) and SMALL not in p.fragments
    assert stage.offer(A, queue=SMALL) and not stage.offer(B, C, queue=SMALL)
    assert stage.offer(B, queue=SMALL) and queues.remaining_capacity(p, SMALL) == 0
    assert not stage.offer(C, queue=SMALL) and queues.values(p, SMALL) == [A, B]
    queues.destroyed(SMALL)
    assert queues.remaining_capacity(p, SMALL) == 0


def test_a_limit_is_looked_for_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a call does not go through the patterns of all structures. Method: after the first call
    there are no settings to be found.
    """
    assert stage.offer(A, queue=SMALL)
    bare = msgspec.structs.replace(stage.plane.ctx.settings, structures=())
    monkeypatch.setattr(stage.plane.ctx, "settings", bare)
    assert stage.offer(B, queue=SMALL) and not stage.offer(C, queue=SMALL)
    assert stage.queues.remaining_capacity(stage.p, SMALL) == 0
    assert stage.queues.poll(stage.p, SMALL, None) == A and stage.offer(C, queue=SMALL)


def test_what_changes_wakes(stage: Stage) -> None:
    """Items wake those who take, room those who put; a queue without limit has always room, and
    what changes nothing wakes nobody.
    """
    queues, p = stage.queues, stage.p
    assert queues.poll(p, Q, None) is None and not stage.offer(A, B, C, queue=SMALL)
    assert stage.woken() == []
    stage.offer(A, B)
    assert stage.woken() == [TAKE]
    queues.poll(p, Q, None)
    assert stage.woken() == [TAKE], "who is served says that there is more"
    queues.poll(p, Q, None)
    assert stage.woken() == []
    stage.offer(A, queue=SMALL)
    assert stage.woken() == [TAKE, PUT], "who has put says that there is room left"
    stage.offer(B, queue=SMALL)
    assert stage.woken() == [TAKE]
    queues.remove(p, SMALL, B, None)
    assert stage.woken() == [TAKE, PUT]
    queues.clear(p, SMALL, None)
    assert stage.woken() == [PUT]


def test_a_client_is_answered_when_the_backups_have_it(stage: Stage) -> None:
    """One acknowledgement for all items of a call, and for those that were taken."""
    p = stage.p
    outgoing = stage.plane.outgoing
    for call in (
        lambda reply: stage.queues.offer(p, Q, [A, B], reply),
        lambda reply: stage.queues.poll(p, Q, reply),
        lambda reply: stage.queues.remove(p, Q, B, reply),
    ):
        reply = PendingReply()
        assert call(reply) and reply.remaining == 1 and not outgoing.completed
        stage.net.pump()
        assert outgoing.completed == [reply]
        outgoing.completed.clear()
    reply = PendingReply()
    assert stage.queues.poll(p, Q, reply) is None and not reply.remaining


def test_what_must_not_happen_here(stage: Stage) -> None:
    """Not the primary: retryable, and nothing has happened. Too large, or no value: usage."""
    backup, replica = stage.services["b"], stage.partition("b")
    calls = (
        lambda: backup.offer(replica, Q, [A], None),
        lambda: backup.poll(replica, Q, None),
        lambda: backup.remove(replica, Q, A, None),
        lambda: backup.remove_all(replica, Q, [A], None),
        lambda: backup.clear(replica, Q, None),
    )
    for call in calls:
        with pytest.raises(RetryableError):
            call()
    for bad in (b"bad", bytes(ITEM_BYTES_MAX + 1)):
        with pytest.raises(UsageError):
            stage.offer(A, bad)
    assert not stage.p.fragments and not replica.fragments


def test_an_answer_has_an_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain takes no more than an answer may have and leaves the rest; the whole is refused."""
    queues, p = stage.queues, stage.p
    stage.offer(A, B, C)
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 2 * (ID_BYTES + len(A)))
    with pytest.raises(OperationError, match="at most"):
        queues.values(p, Q)
    assert queues.drain(p, Q, -1, None) == [A, B] and queues.values(p, Q) == [C]
    stage.check_backup()


def test_a_copy_has_everything() -> None:
    """A queue moves to a new primary in small chunks, and goes on counting there."""
    stage = Stage("abc")
    items = [value(f"item {number}") for number in range(50)]
    stage.offer(*items)
    stage.queues.remove(stage.p, Q, items[7], None)
    stage.queues.poll(stage.p, Q, None)
    move = migration(MigrationKind.MOVE, "c", 2, 0, source="a", source_slots=(0, -1))
    stage.net.migrate(move, "a", chunk=100)
    stage.net.set_row(0, "cb", move.final_version)
    there = stage.services["c"]
    left = [item for item in items[1:] if item != items[7]]
    assert there.values(stage.partition("c"), Q) == left
    next_id = stage.store("c").next_id
    assert stage.offer(A, at="c") and stage.store("c").next_id == next_id + 1
    stage.net.pump()
    assert list(stage.store("b").items) == list(stage.store("c").items)
    assert [number for _, number in stage.store("b").lineages] == [1, next_id]


def test_large_queues_are_freed_in_pieces(stage: Stage) -> None:
    """Clearing and dropping many items frees them later, on the backup, too."""
    many = [A] * (FREED_AT_ONCE_MAX + 1)
    stage.offer(*many)
    stage.net.pump()
    stage.queues.clear(stage.p, Q, None)
    stage.net.pump()
    for name in "ab":
        deferred = stage.net[name].plane.holdings.deferred
        assert deferred.entries == len(many) and stage.store(name).bytes_used == 0
        deferred.on_timer()
        assert deferred.entries == 1
        deferred.on_timer()
        assert deferred.entries == 0


# -- calls that come again ----------------------------------------------------------------


def named(number: int, caller: int = 1) -> Attempt:
    """An attempt that another member sends on."""
    return Attempt(bytes([caller]) * CALLER_BYTES, number)


def again(attempt: Attempt) -> Attempt:
    """The same, when its answer was lost."""
    return attempt._replace(is_repetition=True)


def test_a_call_that_comes_again_is_answered_as_before(stage: Stage) -> None:
    """0015: it changes nothing, tells nobody, wakes nobody; also if it is full or empty by now."""
    queues, p = stage.queues, stage.p
    assert queues.offer(p, SMALL, [A], None, named(1)) and stage.offer(B, queue=SMALL)
    assert queues.offer(p, SMALL, [A], None, again(named(1)))
    assert not queues.offer(p, SMALL, [A], None, again(named(2))), "full, and never carried out"
    assert queues.poll(p, SMALL, None, named(3)) == A and queues.poll(p, SMALL, None) == B
    stage.heard()
    stage.woken()
    assert queues.poll(p, SMALL, None, again(named(3))) == A
    assert queues.poll(p, SMALL, None, named(3)) == A, "the first one, late"
    assert queues.poll(p, SMALL, None, again(named(4))) is None
    assert queues.poll(p, SMALL, None, named(3, caller=2)) is None, "somebody else's"
    assert stage.heard() == [] and stage.woken() == []
    stage.check_backup(SMALL)


def test_an_answer_is_given_again_when_the_backups_have_it(stage: Stage) -> None:
    """A repetition is not answered before the call itself could have been."""
    queues, p, outgoing = stage.queues, stage.p, stage.plane.outgoing
    first, second = PendingReply(), PendingReply()
    queues.offer(p, Q, [A], first, named(1))
    queues.offer(p, Q, [A], second, again(named(1)))
    assert first.remaining == second.remaining == 1 and not outgoing.completed
    stage.net.pump()
    assert outgoing.completed == [first, second]
    assert queues.values(p, Q) == [A]
    outgoing.completed.clear()


def test_what_is_forgotten_is_not_done_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition that may be among the forgotten calls is unknown; a first attempt that comes so
    late is refused, because it may have been repeated.
    """
    monkeypatch.setattr(answered, "RECORDS_MAX", 2)
    queues, p = stage.queues, stage.p
    for number in (1, 3, 5, 6):
        queues.offer(p, Q, [A], None, named(number))
    stage.check_backup()
    for number in (1, 2, 3):
        with pytest.raises(IndeterminateError):
            queues.poll(p, Q, None, again(named(number)))
        with pytest.raises(RetryableError):
            queues.offer(p, Q, [A], None, named(number))
    assert queues.offer(p, Q, [A], None, again(named(5))) and queues.size(p, Q) == 4
    assert queues.poll(p, Q, None, again(named(4))) == A
    assert queues.poll(p, Q, None, again(named(1, caller=2))) == A


def test_callers_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a repetition of a caller of which nothing is noted may be forgotten; a first attempt of
    one is not refused for that.
    """
    monkeypatch.setattr(answered, "RECORDS_MAX", 1)
    monkeypatch.setattr(answered, "CALLERS_MAX", 2)
    calls = Answered()
    for place, caller in enumerate((1, 2, 1, 3, 4), 1):
        calls.add(place, named(place, caller)[:2], b"")
    assert [caller[0] for caller in calls.forgotten] == [1, 3] and calls.has_lost_callers
    assert calls.may_have_forgotten(again(named(9, caller=2)))
    assert not calls.may_have_forgotten(named(9, caller=2))
    assert not calls.may_have_forgotten(again(named(9, caller=3)))


def test_large_answers_are_forgotten_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded in bytes; the last one stays, however large it is."""
    monkeypatch.setattr(answered, "BYTES_MAX", 10)
    calls = Answered()
    for place, size in enumerate((4, 4, 4, 20), 1):
        calls.add(place, named(place)[:2], bytes(size))
        assert sum(len(one.answer) for _, one in calls.records) <= max(10, size)
    assert [place for place, _ in calls.records] == [4] and calls.first_place == 4


def test_two_primaries_may_have_used_one_place() -> None:
    """The former one was lost with its call, of which a backup had heard."""
    calls = Answered()
    calls.add(1, named(1)[:2], b"")
    calls.add(2, named(2)[:2], b"x")
    calls.add(2, named(3)[:2], b"y")
    assert calls.find(named(2)) is None and calls.find(named(3)) == b"y"
    assert [place for place, _ in calls.records] == [1, 2]


def test_a_copy_brings_the_calls_along() -> None:
    """A queue moves to a new primary in small chunks, which answers what the old one did."""
    stage = Stage("abc")
    for number in range(1, 30):
        stage.queues.offer(stage.p, Q, [value(f"item {number}")], None, named(number))
    taken = [stage.queues.poll(stage.p, Q, None, named(number)) for number in range(30, 50)]
    records = stage.store("a").answered.records
    move = migration(MigrationKind.MOVE, "c", 2, 0, source="a", source_slots=(0, -1))
    stage.net.migrate(move, "a", chunk=100)
    stage.net.set_row(0, "cb", move.final_version)
    there, partition = stage.services["c"], stage.partition("c")
    assert stage.store("c").answered.records == records
    for number in range(30, 50):
        assert there.poll(partition, Q, None, again(named(number))) == taken[number - 30]
    assert there.offer(partition, Q, [A], None, again(named(1))) and there.size(partition, Q) == 9


def test_damaged_calls_change_nothing(stage: Stage) -> None:
    """Operations and chunks that no member of ours makes."""
    queues, p = stage.queues, stage.p
    queues.offer(p, Q, [A], None, named(1))
    queues.poll(p, Q, None, named(2))
    store, copy = stage.store("a"), QueueStore()
    chunk, _, is_last = store.export(store.open_cursor(), 1 << 20)
    assert is_last
    for cut in range(len(chunk)):
        with pytest.raises(SerializationError):
            copy.ingest(chunk[:cut])
    assert not copy.answered.records and copy.next_id == 1
    head = bytes(CALLER_BYTES + 16)
    for bad in (
        bytes([FENCE, 0]),
        bytes([FENCE | CALL]) + head,
        bytes([GONE | CALL]) + head + bytes(8),
        bytes([GONE_TO | CALL]) + bytes(8),
        bytes([GONE_TO | CALL]) + head + bytes(7),
        bytes([OFFERED | CALL]) + head + b"\0",
    ):
        with pytest.raises(ProtocolError):
            store.apply(bad, 0, len(bad))
    assert [place for place, _ in store.answered.records] == [1, 2]


def test_a_full_chunk_brings_no_answers() -> None:
    """Goal: a chunk is bounded whatever calls were answered with; their answers come behind the
    items, as many as there is room for. Method: answers each larger than a chunk.
    """
    store, item, answer = QueueStore(), bytes(100), bytes(1_000)
    for number in range(3):
        store.remember(named(number), answer, store.offer([item]))
    cursor, sizes, last = store.open_cursor(), [], False
    copy = QueueStore()
    while not last:
        chunk, count, last = store.export(cursor, 100)
        copy.ingest(chunk)
        sizes.append((count, len(chunk) // 1_000))
    assert sizes == [(1, 0)] * 3 + [(0, 1)] * 3
    assert copy.answered.records == store.answered.records


# -- after a split ------------------------------------------------------------------------


def chunks(store: QueueStore, service: QueueService, bytes_max: int) -> list[tuple[bytes, int]]:
    """What the smaller part hands over, chunk by chunk."""
    cursor, found, left = store.open_cursor(), [], len(store)
    while left:
        found.append(service.leftover_chunk(store, cursor, bytes_max))
        left -= found[-1][1]
    return found


def merged(stage: Stage, parts: Sequence[tuple[bytes, int]]) -> list[MergeCounts]:
    """Merge chunks at the primary a."""
    return [stage.queues.merge(stage.p, Q, chunk, PendingReply()) for chunk, _ in parts]


def split(stage: Stage) -> None:
    """B has become the primary of the smaller part, where nothing has happened yet."""
    stage.net.pump()
    stage.net.cut("a", "b")
    stage.net.cut("b", "a")
    stage.net.set_row(0, "b", 3, only="b")


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_what_the_smaller_part_offered_comes_to_the_tail(stage: Stage, bytes_max: int) -> None:
    """Goal: after a split everything that was offered in either part is there once, in the order of
    each part; what the bigger part has taken does not come back.
    """
    stage.offer(A, B, C)
    split(stage)
    theirs = stage.services["b"]
    theirs.poll(stage.partition("b"), Q, None)
    stage.offer(value("b1"), value("b2"), at="b")
    stage.queues.drain(stage.p, Q, 2, None)
    stage.offer(value("a1"))
    stage.heard()
    counts = merged(stage, chunks(stage.store("b"), theirs, bytes_max))
    assert stage.queues.values(stage.p, Q) == [C, value("a1"), value("b1"), value("b2")]
    assert sum(one.added for one in counts) == 2 and sum(one.same for one in counts) == 2
    assert stage.heard() == [(ADDED, value("b1")), (ADDED, value("b2"))]
    assert TAKE in stage.woken()


def test_calls_of_the_smaller_part_are_not_known(stage: Stage) -> None:
    """What it answered is nobody's affair here: a merge brings items."""
    split(stage)
    theirs = stage.services["b"]
    theirs.offer(stage.partition("b"), Q, [A], None, named(1))
    merged(stage, chunks(stage.store("b"), theirs, 1 << 20))
    assert stage.queues.values(stage.p, Q) == [A]
    assert not stage.store("a").answered.records


def test_a_queue_that_only_one_part_has_comes_whole(stage: Stage) -> None:
    """Nothing in common: all items come, also beyond the room there is."""
    split(stage)
    stage.offer(A, B, queue=SMALL)
    stage.offer(C, D, queue=SMALL, at="b")
    found = chunks(stage.store("b", SMALL), stage.services["b"], 1)
    for chunk, _ in found:
        counts = stage.queues.merge(stage.p, SMALL, chunk, PendingReply())
        assert counts == MergeCounts(added=1)
    assert stage.queues.values(stage.p, SMALL) == [A, B, C, D]
    assert stage.queues.remaining_capacity(stage.p, SMALL) == 0


def test_damage_ends_a_merge_and_is_said(stage: Stage) -> None:
    """What comes before the damage counts."""
    source = Stage()
    source.offer(A, B)
    chunk, _ = source.store("a").export(source.store("a").open_cursor(), 1 << 20)[:2]
    stage.plane.ctx.effects.clear()
    assert stage.queues.merge(stage.p, Q, chunk[:-1], PendingReply()) == MergeCounts(added=1)
    assert stage.queues.merge(stage.p, Q, b"?", PendingReply()) == MergeCounts()
    assert stage.queues.values(stage.p, Q) == [A]
    notes = [
        one for one in stage.plane.ctx.effects if getattr(one, "kind", "") == "split_brain.damaged"
    ]
    assert len(notes) == 2
