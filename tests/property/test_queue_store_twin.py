"""Goal: a queue's store behaves like a deque, for any history, and so do its backups and copies.

Every operation the store returns is applied to a backup, some of them twice, and to a copy that is
made meanwhile, chunk by chunk; all are compared with the twin. So are the calls that it remembers,
of which there are few, and the notes of forgotten ones.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.property.parting import histories, parted

from whimbrel.core.ids import CALLER_BYTES, Attempt
from whimbrel.core.merging.past import LINEAGES_MAX, Past
from whimbrel.structures.queue import answered
from whimbrel.structures.queue.record import ID_BYTES, read_head, read_items
from whimbrel.structures.queue.store import ItemCursor, QueueStore

HEADS = st.sampled_from([b"\0\0\0\0", b"\1\2\3\4"])
BODIES = st.sampled_from([b"\xff\xff\xff\xf5" + bytes([n]) * (n % 4) for n in range(6)])
VALUES = st.builds(bytes.__add__, HEADS, BODIES)
MANY = st.lists(VALUES, min_size=1, max_size=6)
LOG_MAX = 12
NO_LIMIT = 1 << 30


CALLERS = st.sampled_from([bytes([n]) * CALLER_BYTES for n in range(4)])
RECORDS_MAX, BYTES_MAX, CALLERS_MAX = 5, 24, 2


def state(store: QueueStore) -> tuple[list[bytes], Past, int, Any]:
    """All that replicas have in common."""
    calls = store.answered
    notes = (sorted(calls.forgotten.items()), calls.has_lost_callers)
    known = (calls.next_place, calls.first_place, calls.records, notes)
    return list(store.items), store.past, store.bytes_used, known


class StoreAndTwin(RuleBasedStateMachine):
    """A store, its backup, a copy under way, and the twin."""

    def __init__(self) -> None:
        super().__init__()
        self.store = QueueStore()
        self.backup = QueueStore()
        self.twin: deque[bytes] = deque()
        self.log: list[bytes] = []
        self.lineage = 0
        self.copy: tuple[QueueStore, ItemCursor] | None = None
        self.calls: list[tuple[Attempt, bytes]] = []
        """Every call that came to something, with its answer."""
        self.remembered: deque[int] = deque()
        """Places in ``calls`` of those that are remembered."""
        self.patch = pytest.MonkeyPatch()
        for name in ("RECORDS_MAX", "BYTES_MAX", "CALLERS_MAX"):
            self.patch.setattr(answered, name, globals()[name])

    def teardown(self) -> None:
        self.patch.undo()

    def remember(self, caller: bytes, answer: bytes, operation: bytes) -> None:
        """A change was a call; the oldest that are too many are remembered no more."""
        attempt = Attempt(caller, len(self.calls))
        self.repeat(self.store.remember(attempt, answer, operation))
        self.calls.append((attempt, answer))
        self.remembered.append(len(self.calls) - 1)
        while len(self.remembered) > 1 and (
            len(self.remembered) > RECORDS_MAX
            or sum(len(self.calls[place][1]) for place in self.remembered) > BYTES_MAX
        ):
            self.remembered.popleft()

    def repeat(self, operation: bytes) -> None:
        """Whoever follows applies what the store did; an operation stands among other bytes."""
        self.log = [*self.log, operation][-LOG_MAX:]
        for follower in (self.backup, self.copy[0] if self.copy else None):
            if follower is not None:
                follower.apply(b"??" + operation + b"?", 2, 2 + len(operation))

    @rule()
    def begin(self) -> None:
        self.lineage += 1
        assert not self.store.is_begun(self.lineage)
        self.repeat(self.store.begin(self.lineage))
        assert self.store.is_begun(self.lineage)

    @rule(values=MANY)
    def offer(self, values: list[bytes]) -> None:
        self.repeat(self.store.offer(values))
        self.twin.extend(values)

    @rule(count=st.integers(1, 5), bytes_max=st.sampled_from([1, 40, NO_LIMIT]))
    def take(self, count: int, bytes_max: int) -> None:
        taken, operation = self.store.take(count, bytes_max)
        assert bool(operation) == bool(taken) == bool(self.twin)
        assert taken == [self.twin.popleft() for _ in taken]
        size = sum(ID_BYTES + len(value) for value in taken)
        assert len(taken) <= 1 or size <= bytes_max
        is_full = bool(self.twin) and size + ID_BYTES + len(self.twin[0]) > bytes_max
        assert len(taken) == count or not self.twin or is_full
        if operation:
            self.repeat(operation)

    @rule(values=MANY, caller=CALLERS)
    def offer_for(self, values: list[bytes], caller: bytes) -> None:
        for value in values:
            self.remember(caller, b"", self.store.offer([value]))
            self.twin.append(value)

    @rule(callers=st.lists(CALLERS, min_size=1, max_size=4))
    def take_for(self, callers: list[bytes]) -> None:
        for caller in callers[: len(self.twin)]:
            taken, operation = self.store.take(1, NO_LIMIT)
            assert taken == [self.twin.popleft()]
            self.remember(caller, taken[0], operation)

    @rule(value=VALUES)
    def remove(self, value: bytes) -> None:
        places = [n for n, known in enumerate(self.twin) if known[4:] == value[4:]]
        operation = self.store.remove(value)
        assert bool(operation) == bool(places)
        if places:
            del self.twin[places[0]]
            self.repeat(operation)

    @rule(values=st.lists(VALUES, max_size=3), but=st.booleans())
    def remove_all(self, values: list[bytes], but: bool) -> None:
        bodies = {value[4:] for value in values}
        gone = [known for known in self.twin if (known[4:] in bodies) is not but]
        removed, operation = self.store.remove_all(values, but=but)
        assert removed == gone and bool(operation) == bool(gone)
        self.twin = deque(known for known in self.twin if (known[4:] in bodies) is but)
        if operation:
            self.repeat(operation)

    @rule()
    def clear(self) -> None:
        operation = self.store.clear()
        assert bool(operation) == bool(self.twin)
        self.twin.clear()
        if operation:
            self.repeat(operation)

    @rule(values=st.lists(VALUES, max_size=3), count=st.integers(-1, 3))
    def look(self, values: list[bytes], count: int) -> None:
        known = {value[4:] for value in self.twin}
        assert self.store.contains_all(values) == all(value[4:] in known for value in values)
        assert self.store.values(count) == list(self.twin)[: count if count >= 0 else None]

    @rule(count=st.integers(1, LOG_MAX))
    def repeat_late(self, count: int) -> None:
        """The link came back: the last operations come once more, in their order."""
        for operation in self.log[-count:]:
            self.backup.apply(operation, 0, len(operation))

    @rule()
    @precondition(lambda self: self.copy is None)
    def begin_copy(self) -> None:
        self.copy = (QueueStore(), self.store.open_cursor())

    @rule(bytes_max=st.sampled_from([1, 20, 100, 1_000]))
    @precondition(lambda self: self.copy is not None)
    def go_on_copying(self, bytes_max: int) -> None:
        assert self.copy is not None
        copy, cursor = self.copy
        chunk, count, is_last = self.store.export(cursor, bytes_max)
        assert copy.ingest(chunk) == count
        if is_last:
            assert state(copy) == state(self.store)
            self.store, self.copy = copy, None

    @invariant()
    def equal(self) -> None:
        assert self.store.values() == list(self.twin)
        assert len(self.store) == len(self.twin)
        assert self.store.bytes_used == sum(map(len, self.twin))
        assert state(self.backup) == state(self.store)
        assert len(self.store.lineages) <= LINEAGES_MAX
        calls = self.store.answered
        for place in range(len(self.calls))[-LOG_MAX:]:
            attempt, answer = self.calls[place]
            is_remembered = place in self.remembered
            assert calls.find(attempt) == (answer if is_remembered else None)
            assert is_remembered or calls.may_have_forgotten(attempt._replace(is_repetition=True))
        assert not calls.may_have_forgotten(Attempt(bytes(CALLER_BYTES), len(self.calls)))


StoreAndTwin.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True
)
TestStoreAndTwin = StoreAndTwin.TestCase


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_made_meanwhile_has_everything(seed: int) -> None:
    """Many copies in a long life, in which calls come and go: what hypothesis rarely gets to."""
    rng = random.Random(seed)
    bodies = [bytes(4) + b"\xff\xff\xff\xf5" + bytes([n]) * n for n in range(6)]
    callers = [bytes([n]) * CALLER_BYTES for n in range(4)]
    machine = StoreAndTwin()
    steps: list[tuple[int, Callable[[], None]]] = [
        (
            6,
            lambda: machine.offer_for(
                rng.choices(bodies, k=rng.randint(1, 4)), rng.choice(callers)
            ),
        ),
        (6, lambda: machine.take_for(rng.choices(callers, k=rng.randint(1, 4)))),
        (2, lambda: machine.offer(rng.choices(bodies, k=rng.randint(1, 6)))),
        (1, lambda: machine.take(rng.randint(1, 3), NO_LIMIT)),
        (1, lambda: machine.remove(rng.choice(bodies))),
        (1, machine.clear),
        (1, machine.begin),
        (2, lambda: machine.repeat_late(rng.randint(1, LOG_MAX))),
    ]
    copies = 0
    for _ in range(300):
        rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
        if machine.copy is None:
            machine.begin_copy()
        elif rng.random() < 0.6:
            machine.go_on_copying(rng.choice([1, 20, 100, 1_000]))
            copies += machine.copy is None
        machine.equal()
    machine.teardown()
    assert copies > 10


def copied(store: QueueStore) -> QueueStore:
    """Another store with the same content."""
    copy = QueueStore()
    chunk, _, is_last = store.export(store.open_cursor(), NO_LIMIT)
    assert is_last
    copy.ingest(chunk)
    return copy


HISTORY = st.lists(st.integers(-3, 3), max_size=6)
"""Offers of so many items, takes of so many where negative."""


def live(store: QueueStore, history: list[int], name: str, lineage: int) -> list[bytes]:
    """Let clients use a store whose primary counts under this lineage; what they offered."""
    offered: list[bytes] = []
    for count in history:
        if count < 0:
            store.take(-count, NO_LIMIT)
        elif count > 0:
            if not store.is_begun(lineage):
                store.begin(lineage)
            fresh = [f"        {name}{len(offered) + n}".encode() for n in range(count)]
            store.offer(fresh)
            offered += fresh
    return offered


@histories(HISTORY)
def test_after_a_split_each_part_knows_its_own_items(
    before: list[int], here: list[int], there: list[int], lineages: tuple[int, int]
) -> None:
    """The part that has the old primary goes on under its lineage. What the smaller part offered
    after the split is from the parting on, and nothing else is.
    """
    big = QueueStore()
    small, own = parted(big, copied, live, (before, here, there), lineages)
    chunk, _, _ = small.export(small.open_cursor(), NO_LIMIT)
    past, _, start = read_head(chunk)
    parting = big.past.parting(past)
    items = list(read_items(chunk, start, len(chunk)))
    taken = [item[8:] for item in items if int.from_bytes(item[:8], "big") >= parting]
    assert taken == [value for value in own if value in small.values()]


def test_chunks_of_small_items_keep_to_their_bytes() -> None:
    """GCM-43: what frames items counts, too; a chunk ends with the item that reaches its limit."""
    store, limit = QueueStore(), 20_000
    for number in range(3_000):
        store.remember(Attempt(bytes(CALLER_BYTES), number), b"", store.offer([b"%020d" % number]))
    cursor, copy, is_last = store.open_cursor(), QueueStore(), False
    while not is_last:
        chunk, _, is_last = store.export(cursor, limit)
        assert len(chunk) < limit + 100
        copy.ingest(chunk)
    assert state(copy) == state(store)
