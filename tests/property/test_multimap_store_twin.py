"""Goal: a multimap's store behaves like the simplest thing that could be one, for any history.

The twin is a dictionary of lists. Every operation that the store returns is applied to a second
store as a backup would, sometimes twice or with all that came before it; a third store gets a copy
chunk by chunk while the first changes, then the operations since the copy began.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from whimbrel.core.replication import walk
from whimbrel.structures.multimap import store as stores
from whimbrel.structures.multimap.cursor import Cursor, GivenUp
from whimbrel.structures.multimap.store import MultiMapStore
from whimbrel.structures.multimap.typed_stores import ListStore, SetStore

HASHES = st.sampled_from([bytes(4), bytes(4), b"\1\2\3\4"])
BODIES = st.integers(0, 7).map(lambda n: b"\xff\xff\xff\xf5" + bytes([0, 0, 0, n]) * (n % 3))
KEYS = st.builds(lambda head, body: head + body, HASHES, BODIES)
VALUES = st.builds(
    lambda head, n: head + b"\xff\xff\xff\xf5" + bytes([n]) * (n % 7), HASHES, st.integers(0, 30)
)
SMALL = {"PACKED_BYTES_MAX": 60, "CHUNK_VALUES_MAX": 5, "FREED_AT_ONCE_MAX": 3}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few values be many."""
    for name, value in SMALL.items():
        monkeypatch.setattr(stores, name, value)
    monkeypatch.setattr(walk, "KEYS_TAKEN", 3)


class StoreAndTwin(RuleBasedStateMachine):
    """A store, its backup, a copy under way, and the twin."""

    store_type: ClassVar[type[MultiMapStore]]

    def __init__(self) -> None:
        super().__init__()
        self.store = self.store_type(self.given_up)
        self.backup = self.store_type()
        self.twin: dict[bytes, list[bytes]] = {}
        self.heads: dict[bytes, bytes] = {}
        self.operations: list[bytes] = []
        self.copy: tuple[MultiMapStore, Cursor, int] | None = None

    @staticmethod
    def given_up(given: GivenUp) -> None:
        left = len(given)
        assert left > 0
        while left:
            given.free_some(2, 1_000)
            assert left - 2 <= len(given) < left
            left = len(given)

    def repeat(self, operation: bytes) -> None:
        """The backup applies what the store did."""
        self.operations.append(operation)
        framed = b"xx" + operation + b"yyy"
        self.backup.apply(framed, 2, 2 + len(operation))

    def leave(self, body: bytes) -> None:
        if not self.twin.get(body):
            self.twin.pop(body, None)
            self.heads.pop(body, None)

    @staticmethod
    def place(values: list[bytes], value: bytes) -> int:
        return next((at for at, one in enumerate(values) if one[4:] == value[4:]), -1)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        values = self.twin.setdefault(key[4:], [])
        is_new = self.store_type is ListStore or self.place(values, value) < 0
        operation = self.store.put(key, value)
        assert (operation is not None) == is_new
        if operation is not None:
            values.append(value)
            self.repeat(operation)
            if key[:4] != bytes(4):
                self.heads[key[4:]] = key[:4]

    @rule(key=KEYS, values=st.lists(VALUES, min_size=5, max_size=20))
    def put_many(self, key: bytes, values: list[bytes]) -> None:
        for value in values:
            self.put(key, value)

    @rule(key=KEYS, value=VALUES)
    def remove_entry(self, key: bytes, value: bytes) -> None:
        values = self.twin.get(key[4:], [])
        place = self.place(values, value)
        removed = self.store.remove_entry(key, value)
        assert (removed is not None) == (place >= 0)
        if removed is not None:
            assert removed[0] == values.pop(place)
            self.repeat(removed[1])
            self.leave(key[4:])

    @rule(key=KEYS)
    def remove_some(self, key: bytes) -> None:
        """All but one: a key with many values has few again."""
        for value in self.twin.get(key[4:], [])[1:]:
            self.remove_entry(key, value)

    @rule(key=KEYS)
    def remove_key(self, key: bytes) -> None:
        operation = self.store.remove_key(key)
        assert (operation is not None) == (key[4:] in self.twin)
        if operation is not None:
            del self.twin[key[4:]]
            self.repeat(operation)
            self.leave(key[4:])

    @rule()
    def clear(self) -> None:
        self.repeat(self.store.clear())
        self.twin.clear()
        self.heads.clear()

    @rule(back=st.integers(1, 6))
    def again(self, back: int) -> None:
        """The backup gets the last operations once more."""
        for operation in self.operations[-back:]:
            self.backup.apply(operation, 0, len(operation))

    @rule()
    @precondition(lambda self: self.copy is None)
    def begin_copy(self) -> None:
        self.copy = (self.store_type(), self.store.open_cursor(), len(self.operations))

    @rule(bytes_max=st.integers(1, 100))
    @precondition(lambda self: self.copy is not None)
    def go_on(self, bytes_max: int) -> None:
        assert self.copy is not None
        copy, cursor, since = self.copy
        chunk, count, last = self.store.export(cursor, bytes_max)
        assert copy.ingest(chunk) == count
        if last:
            for operation in self.operations[since:]:
                copy.apply(operation, 0, len(operation))
            self.store, self.copy = copy, None

    @invariant()
    def equal(self) -> None:
        store, twin = self.store, self.twin
        data = {key: self.heads.get(key, bytes(4)) + key for key in twin}
        pairs = [(data[key], value) for key, values in twin.items() for value in values]
        entries = store.entries()
        assert sorted(zip(entries[::2], entries[1::2], strict=True)) == sorted(pairs)
        assert sorted(store.values()) == sorted(value for _, value in pairs)
        assert sorted(store.keys()) == sorted(data.values())
        for key, values in twin.items():
            found = store.get(bytes(4) + key)
            ordered = self.store_type is ListStore
            assert found == values if ordered else sorted(found) == sorted(values)
            assert store.count(bytes(4) + key) == len(values)
            assert store.contains_key(bytes(4) + key)
            assert store.contains_entry(key=bytes(4) + key, value=values[-1])
            assert store.contains_value(b"abcd" + values[-1][4:])
        assert not store.contains_entry(bytes(12), bytes(12))
        assert not store.contains_value(bytes(12))
        assert store.get(bytes(12)) == []
        assert store.count(bytes(12)) == 0
        assert len(store) == len(self.backup) == len(pairs)
        wanted = sum(map(len, twin)) + sum(len(value) for _, value in pairs)
        assert store.bytes_used == self.backup.bytes_used == wanted
        assert sorted(store.items()) == sorted(self.backup.items())

    def teardown(self) -> None:
        given = self.store.release()
        assert (given is None) == (sum(map(len, self.twin.values())) <= SMALL["FREED_AT_ONCE_MAX"])
        if given is not None:
            self.given_up(given)
            assert len(self.store) == self.store.bytes_used == 0


class SetAndTwin(StoreAndTwin):
    """A multimap of sets."""

    store_type = SetStore


class ListAndTwin(StoreAndTwin):
    """A multimap of lists."""

    store_type = ListStore


for machine in (SetAndTwin, ListAndTwin):
    machine.TestCase.settings = settings(
        max_examples=80, stateful_step_count=30, deadline=None, derandomize=True
    )
TestSetAndTwin = SetAndTwin.TestCase
TestListAndTwin = ListAndTwin.TestCase
