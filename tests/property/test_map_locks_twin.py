"""Goal: locks behave like the simplest thing that could be a lock, for any history (AE-36).

The twin knows of each key who holds it, how often, until when, and the references that its owners
used. Every change goes to a backup as an operation, and a copy made at any moment, chunk by chunk,
holds the same locks and entries; clearing leaves what is locked.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from whimbrel.structures.map.locks import FREE, LOCK, Locks, owner_of
from whimbrel.structures.map.record import NEVER_MS, stored_key
from whimbrel.structures.map.store import MapStore

KEYS = st.integers(0, 4).map(lambda n: stored_key(bytes(4) + b"\xff\xff\xff\xf5" + bytes([n])))
CLIENTS = [bytes([n]) * 16 for n in (1, 2)]
OWNERS = st.sampled_from([owner_of(client, thread) for client in CLIENTS for thread in (1, 2)])
LEASES = st.sampled_from([None, None, 1, 30])


@dataclass
class Held:
    """What the twin knows of a lock."""

    owner: bytes
    count: int
    end_ms: int


class LocksAndTwin(RuleBasedStateMachine):
    """A store with locks, its backup, and the twin."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.store = MapStore()
        self.backup = MapStore()
        self.held: dict[bytes, Held] = {}
        self.entries: dict[bytes, None] = {}
        self.reference = 0
        self.last: tuple[str, bytes, bytes, int] | None = None
        """The last call that a client may repeat: what, key, owner, reference."""

    def locks(self) -> Locks:
        return self.store.locks or Locks()

    def set(self, key: bytes, lock: bytes) -> None:
        self.repeat(self.store.set_lock(key, lock))

    def repeat(self, operation: bytes) -> None:
        """The backup applies it, twice: that is harmless."""
        for _ in range(2):
            self.backup.apply(operation, 0, len(operation))

    def end_lease(self, key: bytes) -> None:
        """As the primary does before it looks at a key."""
        if self.locks().is_over(key, self.now_ms):
            self.set(key, FREE)
        held = self.held.get(key)
        if held is not None and held.end_ms <= self.now_ms:
            del self.held[key]
            self.last = None

    @rule(key=KEYS, owner=OWNERS, lease_ms=LEASES)
    def lock(self, key: bytes, owner: bytes, lease_ms: int | None) -> None:
        self.reference += 1
        self.end_lease(key)
        end_ms = NEVER_MS if lease_ms is None else self.now_ms + lease_ms
        lock = self.locks().locked(key, owner, self.reference, end_ms)
        held = self.held.get(key)
        if held is not None and held.owner != owner:
            assert lock is None
            return
        assert lock is not None
        self.set(key, lock)
        self.held[key] = Held(owner, held.count + 1 if held else 1, end_ms)
        self.last = ("lock", key, owner, self.reference)

    @rule(key=KEYS, owner=OWNERS)
    def unlock(self, key: bytes, owner: bytes) -> None:
        self.reference += 1
        self.end_lease(key)
        lock = self.locks().given_back(key, owner, self.reference)
        held = self.held.get(key)
        if held is None or held.owner != owner:
            assert lock is None
            return
        assert lock is not None
        self.set(key, lock)
        held.count -= 1
        if not held.count:
            del self.held[key]
        self.last = ("unlock", key, owner, self.reference)

    @rule()
    def repeat_the_last_call(self) -> None:
        """Its answer was lost: nothing counts twice, and nobody is refused."""
        if self.last is None:
            return
        what, key, owner, reference = self.last
        if self.locks().is_over(key, self.now_ms):
            return
        if what == "lock":
            lock = self.locks().locked(key, owner, reference, NEVER_MS)
        else:
            lock = self.locks().given_back(key, owner, reference)
        assert lock is not None
        self.set(key, lock)

    @rule(key=KEYS)
    def force(self, key: bytes) -> None:
        self.set(key, FREE)
        if self.held.pop(key, None) is not None:
            self.last = None

    @rule(client=st.sampled_from(CLIENTS))
    def client_gone(self, client: bytes) -> None:
        keys = self.locks().of_client(client)
        assert sorted(keys) == sorted(k for k, one in self.held.items() if one.owner[:16] == client)
        for key in keys:
            self.set(key, FREE)
            del self.held[key]
            self.last = None

    @rule(key=KEYS)
    def put(self, key: bytes) -> None:
        self.repeat(self.store.put(key, bytes(8), self.now_ms)[1])
        self.entries[key] = None

    @rule()
    def clear(self) -> None:
        self.repeat(self.store.clear())
        locked = self.locks().held
        self.entries = {key: None for key in self.entries if key in locked}

    @rule(span_ms=st.sampled_from([1, 10, 40]))
    def pass_time(self, span_ms: int) -> None:
        self.now_ms += span_ms

    @rule(bytes_max=st.sampled_from([1, 200, 10_000]))
    def move(self, bytes_max: int) -> None:
        """The partition has a new home, which goes on from a copy."""
        copy, cursor, is_last = MapStore(), self.store.open_cursor(), False
        while not is_last:
            chunk, entries, is_last = self.store.export(cursor, bytes_max)
            assert copy.ingest(chunk) <= entries
        self.store = copy

    @invariant()
    def all_hold_the_same(self) -> None:
        locks = self.locks()
        for key, lock in locks.held.items():
            held = self.held[key]
            client, thread, _, end_ms, count = LOCK.unpack(lock)
            assert owner_of(client, thread) == held.owner
            assert (end_ms, count) == (held.end_ms, held.count)
        assert locks.held.keys() == self.held.keys()
        assert self.store.records.keys() == self.entries.keys() == self.backup.records.keys()
        backup = self.backup.locks or Locks()
        assert dict(backup.held) == dict(locks.held) and backup.unlocked == locks.unlocked
        assert self.store.bytes_used == self.backup.bytes_used
        size = sum(len(key) + LOCK.size for key in (*locks.held, *locks.unlocked))
        assert locks.bytes_used == size
        assert self.store.bytes_used == size + sum(len(key) + 8 for key in self.entries)


LocksAndTwin.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestLocksAndTwin = LocksAndTwin.TestCase
