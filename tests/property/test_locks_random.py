"""Goal: whatever breaks, a lock has one owner, and who was told that it holds one holds it.

The histories of ``test_replication_random``, with calls to lock and unlock among the writes. What a
key's lock may be after each call follows from what its callers were told: a call whose answer never
came may have happened or not (D1, AE-36, AE-37).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.property.test_replication_random import PARTITIONS, Story
from tests.unit.replication_net import Host, M, key

from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import IllegalMonitorStateError
from whimbrel.structures.map.locking import KeyLockedError
from whimbrel.structures.map.locks import LOCK, Locks, owner_of
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.store import MapStore

KEYS = range(1_000_000, 1_000_003)
"""Those that are locked; the writes of the story have others."""
OWNERS = [owner_of(bytes([number]) * 16, 1) for number in (1, 2, 3)]
FREE = (b"", 0)
Held = tuple[bytes, int]
"""Owner and how often it has locked; FREE."""


@dataclass
class Call:
    """One call that the primary did not refuse."""

    is_lock: bool
    owner: bytes
    reply: PendingReply

    def after(self, held: Held) -> Held | None:
        """What the lock is when this has happened; None where it cannot happen."""
        owner, count = held
        if self.is_lock:
            return (self.owner, count + 1) if owner in (b"", self.owner) else None
        if owner != self.owner:
            return None
        return (owner, count - 1) if count > 1 else FREE


class LockStory(Story):
    """A history with locks of keys that have no entry."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calls: dict[tuple[int, int], list[Call]] = {}
        self.reference = 0

    def host_of(self, pid: int) -> Host | None:
        """The primary of a partition, if it may be written now."""
        primary = self.rows[pid][0]
        if primary not in self.alive or not self.net[primary].plane.partitions[pid].writable:
            return None
        return self.net[primary]

    def call(self) -> None:
        """Somebody locks or unlocks a key."""
        pid, number = self.rng.randrange(PARTITIONS), self.rng.choice(KEYS)
        host = self.host_of(pid)
        if host is None:
            return
        host.begin()
        owner, is_lock = self.rng.choice(OWNERS), self.rng.random() < 0.6
        self.reference += 1
        call = Call(is_lock, owner, PendingReply(self.reference))
        partition, locks = host.plane.partitions[pid], host.maps.locks
        for _ in range(self.rng.choice((1, 1, 2))):  # the second time it is a repeat
            call.reply = PendingReply(self.reference)
            try:
                if is_lock:
                    locks.lock(partition, M, key(number), owner, -1, self.reference, call.reply)
                else:
                    locks.unlock(partition, M, key(number), owner, self.reference, call.reply)
            except (KeyLockedError, IllegalMonitorStateError):
                return
        self.calls.setdefault((pid, number), []).append(call)
        if self.rng.random() < 0.5:
            self.net.pump()

    def settle(self) -> None:
        """All faults end; locks are equal at all replicas, and what their callers were told."""
        super().settle()
        for pid, row in enumerate(self.rows):
            locks = [locks_of(self.net[name], pid) for name in row if name != "-"]
            for one in locks[1:]:
                assert one.held == locks[0].held and one.unlocked == locks[0].unlocked, pid
            for number in KEYS:
                self.check(pid, number, locks[0])

    def check(self, pid: int, number: int, locks: Locks) -> None:
        """The lock of a key is one that its calls may have left."""
        possible: dict[Held, None] = {FREE: None}
        for call in self.calls.get((pid, number), []):
            afterwards = {one: None for held in possible if (one := call.after(held)) is not None}
            is_acknowledged = call.reply.remaining == 0 and not call.reply.failed
            possible = afterwards if is_acknowledged else {**possible, **afterwards}
            assert possible, f"p{pid}/{number}: two owners"
        lock = locks.held.get(stored_key(key(number)))
        now = FREE
        if lock is not None:
            client, thread, _, _, count = LOCK.unpack(lock)
            now = (owner_of(client, thread), count)
        assert now in possible, f"p{pid}/{number}: {now} is none of {list(possible)}"


def locks_of(host: Host, pid: int) -> Locks:
    """The locks of the map at a member; none where it has no fragment."""
    fragment = host.plane.partitions[pid].fragments.get(M)
    store = None if fragment is None else fragment.store
    assert store is None or isinstance(store, MapStore)
    return (None if store is None else store.locks) or Locks()


@pytest.mark.parametrize("block", range(3))
def test_a_lock_has_one_owner_whatever_breaks(block: int) -> None:
    """AE-36, AE-37: for many seeds of writes, locks, broken links, crashes, copies and moves."""
    locked = 0
    for seed in range(block * 5, block * 5 + 5):
        story = LockStory(seed)
        steps = (
            [story.write] * 2 + [story.call] * 14 + [story.wait] * 2
            + [story.cut, story.mend, story.mend]
            + [story.crash, story.refill, story.refill, story.move, story.swap]
        )  # fmt: skip
        for phase in range(3):
            for _ in range(60):
                story.rng.choice(steps)()
            try:
                story.settle()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, phase {phase}: {error}") from error
        locked += sum(map(len, story.calls.values()))
    assert locked > 150
