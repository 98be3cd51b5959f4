"""Goal: a lock has one owner, lies in its map's fragment, and goes wherever that goes."""

from __future__ import annotations

import pytest
from tests.unit.replication_net import M, key, make_row, map_of, value
from tests.unit.test_map_service import Stage

from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import IllegalMonitorStateError, ProtocolError, SerializationError, UsageError
from whimbrel.structures.map.locking import KeyLockedError
from whimbrel.structures.map.locks import (
    EVERYBODY,
    FREE,
    LOCK_BYTES,
    UNLOCKED_KEPT_MAX,
    Locks,
    owner_of,
)
from whimbrel.structures.map.record import CHUNK_ENTRY, CHUNK_LOCK, LOCK_STATE, OPERATION
from whimbrel.structures.map.service import EVICTED, MapService
from whimbrel.structures.map.store import MapStore

X, Y = value("x"), value("y")
CLIENT = b"c" * 16
MINE, OTHER_THREAD = owner_of(CLIENT, 1), owner_of(CLIENT, 2)
THEIRS = owner_of(b"d" * 16, 1)
K = key(1)


class LockStage(Stage):
    """With shorthand for locks of one key; every call has a reference of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = 0

    def lock(self, owner: bytes = MINE, lease_ms: int = -1, k: bytes = K) -> bool:
        self.reference += 1
        return self.lock_again(owner, lease_ms, k)

    def lock_again(self, owner: bytes = MINE, lease_ms: int = -1, k: bytes = K) -> bool:
        """The same call once more."""
        try:
            self.maps.locks.lock(self.p, M, k, owner, lease_ms, self.reference, None)
        except KeyLockedError:
            return False
        return True

    def unlock(self, owner: bytes = MINE, k: bytes = K) -> bool:
        self.reference += 1
        return self.unlock_again(owner, k, self.reference)

    def unlock_again(self, owner: bytes, k: bytes, reference: int) -> bool:
        try:
            self.maps.locks.unlock(self.p, M, k, owner, reference, None)
        except IllegalMonitorStateError:
            return False
        return True

    def is_locked(self, k: bytes = K) -> bool:
        return self.maps.locks.is_locked(self.p, M, k)

    def woken(self) -> int:
        """Keys that somebody was woken for since the last call."""
        return len(self.host.plane.wakes.take())

    def sweep(self) -> None:
        """Two rounds, so that what is told of the last one is of now."""
        for _ in range(4):
            self.maps.sweep(self.host.ctx.wall_ms, 1_000)

    def locks_at(self, name: str, k: bytes = K) -> tuple[Locks, MapService, PartitionReplica]:
        host = self.net[name]
        store = host.fragment(0, "m").store
        assert isinstance(store, MapStore) and store.locks is not None
        return store.locks, host.maps, host.plane.partitions[0]


@pytest.fixture
def stage() -> LockStage:
    return LockStage()


def test_one_owner_as_often_as_it_likes(stage: LockStage) -> None:
    """Goal: a lock is one thread's of one client, and free when undone as often as done; a key that
    is not there is locked like any other, and a lock makes no entry.
    """
    assert not stage.is_locked() and not stage.unlock()
    assert stage.lock() and stage.lock() and stage.is_locked()
    assert not stage.lock(THEIRS) and not stage.lock(OTHER_THREAD)
    assert not stage.unlock(THEIRS) and not stage.unlock(OTHER_THREAD)
    assert stage.maps.size(stage.p, M) == 0 and not stage.maps.contains_key(stage.p, M, K)
    assert stage.lock(THEIRS, k=key(2)) and stage.is_locked(key(2))
    assert stage.unlock() and stage.is_locked() and not stage.lock(THEIRS)
    stage.woken()
    assert stage.unlock() and not stage.is_locked() and stage.woken() == 1
    assert stage.lock(THEIRS) and not stage.unlock()
    assert stage.events() == []


def test_a_repeated_call_counts_once(stage: LockStage) -> None:
    """Goal: a client that has lost the answer of its last call makes it again, here or at the next
    primary, and nothing counts twice. Method: each call twice, at its primary and after a death.
    """
    for _ in range(2):
        assert stage.lock() and stage.lock_again()
    first = stage.reference + 1
    assert stage.unlock() and stage.unlock_again(MINE, K, first) and stage.is_locked()
    assert stage.unlock() and not stage.is_locked()
    second = stage.reference
    assert stage.unlock_again(MINE, K, second) and not stage.unlock_again(MINE, K, first)
    assert not stage.unlock_again(THEIRS, K, second)
    assert stage.lock(THEIRS) and stage.unlock_again(MINE, K, second)
    assert not stage.lock() and stage.is_locked(), "a repeat takes nothing from the next owner"
    stage.net.pump()
    stage.net["a"].alive = False
    stage.net.set_row(0, "b", 3)
    _, maps, partition = stage.locks_at("b")
    maps.locks.unlock(partition, M, K, MINE, second, None)
    assert maps.locks.is_locked(partition, M, K)
    with pytest.raises(IllegalMonitorStateError):
        maps.locks.unlock(partition, M, K, MINE, second + 5, None)


def test_few_unlocks_are_remembered(stage: LockStage) -> None:
    """Goal: keys that were locked once cost no memory; the latest unlocks are those remembered."""
    for number in range(UNLOCKED_KEPT_MAX + 10):
        assert stage.lock(k=key(number)) and stage.unlock(k=key(number))
    locks, _, _ = stage.locks_at("a")
    assert len(locks.unlocked) == UNLOCKED_KEPT_MAX and not locks.held
    assert stage.unlock_again(MINE, key(UNLOCKED_KEPT_MAX + 9), stage.reference)
    assert not stage.unlock_again(MINE, key(0), 2)
    stage.net.pump()
    assert stage.locks_at("b")[0].unlocked == locks.unlocked


def test_a_lease_ends_by_itself(stage: LockStage) -> None:
    """Goal: a lease ends at its time, at the sweep or when somebody looks; a later lock of the
    owner makes it anew; whoever waits is woken.
    """
    assert stage.lock(lease_ms=100)
    stage.pass_ms(99)
    stage.sweep()
    assert stage.is_locked() and not stage.lock(THEIRS)
    assert stage.lock(lease_ms=100)
    stage.pass_ms(99)
    assert stage.is_locked()
    stage.woken()
    stage.pass_ms(1)
    assert not stage.is_locked() and not stage.unlock(), (
        "it counted twice, and is over all the same"
    )
    assert stage.woken() == 1 and stage.maps.locks.ended == 1
    assert stage.lock(lease_ms=100)
    stage.pass_ms(100)
    stage.sweep()
    assert stage.woken() == 1 and stage.maps.locks.ended == 2
    assert stage.lock(lease_ms=50) and stage.lock(lease_ms=-1)
    stage.pass_ms(1_000_000)
    stage.sweep()
    assert stage.is_locked()
    assert not stage.lock(THEIRS, lease_ms=1 << 62)
    stage.net.pump()
    assert stage.locks_at("b")[0].held == stage.locks_at("a")[0].held


def test_force_takes_it_from_anybody(stage: LockStage) -> None:
    """Goal: one who forces frees a key however often it is locked; a key that is free stays so."""
    assert stage.lock() and stage.lock()
    stage.woken()
    stage.maps.locks.force_unlock(stage.p, M, K, None)
    assert not stage.is_locked() and stage.woken() == 1 and not stage.unlock()
    stage.maps.locks.force_unlock(stage.p, M, K, None)
    stage.maps.locks.force_unlock(stage.p, map_of("never"), K, None)
    assert stage.woken() == 0


def test_a_locked_key_stops_the_writes_of_others(stage: LockStage) -> None:
    """Goal: while a key is locked nobody else changes it, and everybody reads it; the owner writes
    as ever. Method: every way to write, by nobody, by another, and by the owner.
    """
    maps, p = stage.maps, stage.p
    maps.set(p, M, K, X, None)
    assert stage.lock()
    for owner in (None, THEIRS, OTHER_THREAD):
        for write in (
            lambda o: maps.put(p, M, K, Y, None, owner=o),
            lambda o: maps.set(p, M, K, Y, None, owner=o),
            lambda o: maps.put_if_absent(p, M, K, Y, None, owner=o),
            lambda o: maps.replace(p, M, K, Y, None, o),
            lambda o: maps.replace_if_same(p, M, K, Y, Y, None, o),
            lambda o: maps.remove(p, M, K, None, owner=o),
            lambda o: maps.remove(p, M, K, None, EVICTED, o),
            lambda o: maps.remove_if_same(p, M, K, Y, None, o),
            lambda o: maps.set_ttl(p, M, K, 5, None, o),
        ):
            with pytest.raises(KeyLockedError) as caught:
                write(owner)
            assert caught.value.key in stage.locks_at("a")[0].held
    assert maps.get(p, M, K) == X and maps.contains_key(p, M, K)
    maps.set(p, M, key(2), Y, None)
    for owner in (MINE, EVERYBODY):
        assert maps.put(p, M, K, X, None, owner=owner) == X
    assert maps.set_ttl(p, M, K, 0, None, CLIENT), "a client alone stands for all its threads"
    assert maps.remove(p, M, K, None, owner=MINE) == X
    maps.put_all(p, M, [(K, Y)], None)
    assert maps.get(p, M, K) == Y
    assert stage.is_locked(), "a write does not end a lock"
    stage.check_backup()


def test_a_write_that_passes_lets_the_next_one_look(stage: LockStage) -> None:
    """Goal: one wake wakes one; a write leaves the key free, so it says so again. A map that has
    never had locks says nothing.
    """
    stage.maps.set(stage.p, M, K, X, None)
    assert stage.woken() == 0
    assert stage.lock() and stage.unlock() and stage.woken() == 1
    stage.maps.set(stage.p, M, K, X, None)
    assert stage.woken() == 1
    assert stage.lock()
    stage.maps.set(stage.p, M, K, X, None, owner=MINE)
    assert stage.woken() == 0


def test_clearing_leaves_what_is_locked(stage: LockStage) -> None:
    """Goal: clear and evictAll take all but the entries of locked keys, at the backup, too; a lease
    that is over keeps nothing.
    """
    for number in range(5):
        stage.maps.put(stage.p, M, key(number), X, None, ttl_ms=50_000)
    assert stage.lock(k=key(1)) and stage.lock(k=key(2), lease_ms=10) and stage.lock(k=key(9))
    stage.pass_ms(10)
    assert stage.maps.clear(stage.p, M, None) == 4
    assert stage.maps.key_set(stage.p, M) == [key(1)] and stage.is_locked(key(1))
    stage.check_backup()
    assert stage.unlock(k=key(1)) and stage.maps.clear(stage.p, M, None) == 1
    stage.check_backup()
    assert stage.is_locked(key(9))


def test_a_lock_is_answered_when_the_backups_have_it(stage: LockStage) -> None:
    """Goal: what a client was told it holds, it holds after a death; a repeat waits as well."""
    for method in ("lock", "unlock"):
        for _ in range(2):
            reply = PendingReply(object())
            arguments = (-1, 1) if method == "lock" else (2,)
            getattr(stage.maps.locks, method)(stage.p, M, K, MINE, *arguments, reply)
            assert reply.remaining == 1
            stage.net.pump()
            assert reply.remaining == 0


def test_locks_follow_their_fragment(stage: LockStage) -> None:
    """AE-36, AE-37: the locks of a map lie in its fragments, one namespace for both: they go to its
    backups, are copied with it and destroyed with it, and those of other maps are not touched.
    Method: a promotion; a copy that a new backup asks for, of a fragment with and without entries.
    """
    stage.maps.set(stage.p, M, K, X, None)
    assert stage.lock() and stage.lock() and stage.lock(THEIRS, k=key(7))
    empty = map_of("empty")
    stage.maps.locks.lock(stage.p, empty, K, MINE, -1, 90, None)
    stage.net.pump()
    stage.net["a"].alive = False
    stage.net.set_row(0, "b", 3)
    before, maps, partition = stage.locks_at("b")
    assert maps.locks.is_locked(partition, M, K) and maps.locks.is_locked(partition, empty, K)
    for reference in (100, 101):
        maps.locks.unlock(partition, M, K, MINE, reference, None)
    assert not maps.locks.is_locked(partition, M, K)
    assert maps.locks.is_locked(partition, M, key(7))
    assert len(before.held) == 1
    stage.net["b"].destroy("m", 1)
    assert not maps.locks.is_locked(partition, M, key(7))
    assert maps.locks.is_locked(partition, empty, K)
    assert make_row("b") == partition.row


def test_a_client_that_is_gone_holds_nothing(stage: LockStage) -> None:
    """Goal: all threads of a client lose all locks at once, others keep theirs; who holds locks is
    known after a round of sweeping.
    """
    assert stage.lock() and stage.lock() and stage.lock(OTHER_THREAD, k=key(2))
    assert stage.lock(THEIRS, k=key(3))
    stage.sweep()
    assert list(stage.maps.locks.clients) == [CLIENT, THEIRS[:16]] and stage.maps.locks.held == 3
    stage.woken()
    stage.maps.locks.client_gone(CLIENT)
    assert stage.woken() == 2 and stage.maps.locks.freed == 2
    assert not stage.is_locked() and not stage.is_locked(key(2)) and stage.is_locked(key(3))
    stage.sweep()
    assert list(stage.maps.locks.clients) == [THEIRS[:16]]
    stage.maps.locks.client_gone(CLIENT)
    assert stage.maps.locks.freed == 2
    stage.net.pump()
    assert stage.locks_at("b")[0].held == stage.locks_at("a")[0].held


def test_a_part_that_gives_way_has_no_locks(stage: LockStage) -> None:
    """Goal: after a split the bigger side's locks stand; what the smaller one held is counted."""
    stage.maps.set(stage.p, M, K, X, None)
    assert stage.lock() and stage.lock(k=key(2))
    store = stage.host.fragment(0, "m").store
    cursor = store.open_cursor()
    chunk, entries = stage.maps.leftover_chunk(store, cursor, 1_000_000)
    assert entries == 1 and stage.maps.locks.dropped == 2
    target = LockStage()
    assert target.lock(THEIRS)
    counts = target.maps.merge(target.p, M, chunk, PendingReply(None))
    assert counts.added == 1 and target.is_locked() and not target.is_locked(key(2))
    stage.sweep()
    stage.net.pump()
    (note,) = [one for one in stage.host.notes if one.kind == "split_brain.locks_dropped"]
    assert note.fields == {"locks": 2}


def test_bad_bytes_are_refused(stage: LockStage) -> None:
    """Goal: what no member of ours would send changes nothing."""
    store = MapStore()
    operation = OPERATION.pack(LOCK_STATE, 1) + b"kshort"
    with pytest.raises(ProtocolError):
        store.apply(operation, 0, len(operation))
    lock = bytes(LOCK_BYTES - 1)
    with pytest.raises(SerializationError):
        store.ingest(CHUNK_ENTRY.pack(1 | CHUNK_LOCK, len(lock)) + b"k" + lock)
    assert not store.bytes_used
    with pytest.raises(UsageError):
        stage.lock(k=b"short")
    assert store.set_lock(b"k", FREE) and not len(store)
