"""Goal: a map store behaves like the simplest thing that could be one, for any history.

The twin is a dictionary of plain tuples. Every operation the store returns is applied to a second
store as a backup would, so the three are compared after every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from whimbrel.structures.map.record import RECORD_BYTES, key_body, make_timing, stored_key
from whimbrel.structures.map.store import SCAN_END, MapStore

TYPE_IDS = (b"\0\0\0\x01", b"\xff\xff\xff\xf5")
BODIES = st.integers(0, 12).map(lambda n: TYPE_IDS[n % 2] + bytes([n]) * (n % 5 + 1))
KEYS = BODIES.map(lambda body: stored_key(bytes(4) + body))
VALUES = st.binary(min_size=8, max_size=20)
SPANS = st.sampled_from([0, 0, 1, 5, 50])
HASHES = st.sampled_from([b"", b"", b"\1\2\3\4"])


@dataclass
class Entry:
    """What the twin knows of an entry."""

    value: bytes
    end_ms: int | None
    idle_ms: int
    access_ms: int
    key_hash: bytes

    def is_gone(self, now_ms: int) -> bool:
        ended = self.end_ms is not None and self.end_ms <= now_ms
        return ended or bool(self.idle_ms and self.access_ms + self.idle_ms <= now_ms)


class StoreAndTwin(RuleBasedStateMachine):
    """A store, its backup, and the twin."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.store = MapStore()
        self.backup = MapStore()
        self.twin: dict[bytes, Entry] = {}
        self.hashes: dict[bytes, bytes] = {}
        self.scan: tuple[int, list[bytes], set[bytes]] | None = None

    def repeat(self, operation: bytes) -> None:
        """The backup applies what the store did."""
        self.backup.apply(operation, 0, len(operation))

    def alive(self) -> dict[bytes, bytes]:
        """The twin's visible entries."""
        return {k: e.value for k, e in self.twin.items() if not e.is_gone(self.now_ms)}

    def leave(self, key: bytes) -> None:
        """A key went: a scan need not return it any more."""
        if self.scan is not None:
            self.scan[2].discard(key)

    @rule(key=KEYS, value=VALUES, ttl=SPANS, idle=SPANS, key_hash=HASHES)
    def put(self, key: bytes, value: bytes, ttl: int, idle: int, key_hash: bytes) -> None:
        if self.store.is_expired(key, self.now_ms):
            self.repeat(self.store.remove(key)[1])
            self.twin.pop(key)
            self.hashes.pop(key, None)
            self.leave(key)
        timing = make_timing(ttl, idle, self.now_ms)
        old, operation = self.store.put(key, value, self.now_ms, timing, key_hash)
        self.repeat(operation)
        known = self.twin.get(key)
        assert (None if old is None else old[RECORD_BYTES:]) == (known.value if known else None)
        end = self.now_ms + ttl if ttl else None
        if key_hash:
            self.hashes[key] = key_hash
        self.twin[key] = Entry(value, end, idle, self.now_ms, self.hashes.get(key, b""))

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.store.get(key, self.now_ms) == self.alive().get(key)
        if key in self.alive():
            self.twin[key].access_ms = self.now_ms

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        old, operation = self.store.remove(key)
        self.repeat(operation)
        known = self.twin.pop(key, None)
        self.hashes.pop(key, None)
        assert (old is None) == (known is None)
        self.leave(key)

    @rule(key=KEYS, ttl=SPANS, idle=SPANS)
    def set_timing(self, key: bytes, ttl: int, idle: int) -> None:
        operation = self.store.set_timing(key, ttl, idle, self.now_ms)
        assert (operation is not None) == (key in self.alive())
        if operation is not None:
            self.repeat(operation)
            entry = self.twin[key]
            entry.end_ms = self.now_ms + ttl if ttl else None
            entry.idle_ms, entry.access_ms = idle, self.now_ms

    @rule()
    def clear(self) -> None:
        self.repeat(self.store.clear())
        self.twin.clear()
        self.hashes.clear()
        if self.scan is not None:
            self.scan[2].clear()

    @rule(span=st.integers(0, 40))
    def pass_time(self, span: int) -> None:
        self.now_ms += span
        if self.scan is not None:
            self.scan[2].intersection_update(self.alive())

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        gone = self.store.sweep_expired(self.now_ms, limit)
        expired = {k for k, e in self.twin.items() if e.is_gone(self.now_ms)}
        assert len(gone) == min(limit, len(expired))
        for data, value, operation in gone:
            key = stored_key(data)
            assert key in expired and self.twin.pop(key).value == value
            self.hashes.pop(key, None)
            self.repeat(operation)

    @rule(bytes_max=st.integers(1, 100))
    def move(self, bytes_max: int) -> None:
        """The store is copied chunk by chunk; the copy goes on."""
        copy, cursor, last = MapStore(), self.store.open_cursor(), False
        while not last:
            chunk, _, last = self.store.export(cursor, bytes_max)
            copy.ingest(chunk)
        self.store = copy

    @rule(count=st.integers(1, 4))
    @precondition(lambda self: self.scan is None)
    def begin_scan(self, count: int) -> None:
        self.scan = (0, [], set(self.alive()))
        self.go_on(count)

    @rule(count=st.integers(1, 4))
    @precondition(lambda self: self.scan is not None)
    def go_on(self, count: int) -> None:
        assert self.scan is not None
        cursor, seen, wanted = self.scan
        cursor, found = self.store.scan(cursor, count, self.now_ms)
        seen.extend(stored_key(data) for data, _ in found)
        self.scan = (cursor, seen, wanted)
        if cursor == SCAN_END:
            assert len(seen) == len(set(seen)), "an entry came twice"
            assert wanted <= set(seen), "an entry that was there all the time did not come"
            self.scan = None

    @invariant()
    def equal(self) -> None:
        alive = self.alive()
        assert dict(self.store.entries(self.now_ms)) == {
            (self.twin[k].key_hash or bytes(4)) + key_body(k): v for k, v in alive.items()
        }
        assert self.store.size(self.now_ms) == len(alive)
        assert len(self.store) == len(self.twin)
        wanted = sum(len(k) + len(e.value) for k, e in self.twin.items())
        assert self.store.bytes_used == self.backup.bytes_used == wanted
        assert self.backup.records == self.store.records


StoreAndTwin.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestStoreAndTwin = StoreAndTwin.TestCase
