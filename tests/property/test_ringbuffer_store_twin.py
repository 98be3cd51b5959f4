"""Goal: a ring buffer's store behaves like a list of numbered items with a head, for any history,
and so do its backups and copies.

Every operation the store returns is applied to a backup, some of them twice, and to a copy that is
made meanwhile, chunk by chunk; all are compared with the twin.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.property.parting import histories, parted

from whimbrel.core.merging.past import LINEAGES_MAX, Past, read_past
from whimbrel.structures.ringbuffer.record import FOR_EVER, TIME_BYTES, read_items
from whimbrel.structures.ringbuffer.slots import BLOCK, Slots
from whimbrel.structures.ringbuffer.store import RingbufferStore, SequenceCursor, read_head

VALUES = st.binary(min_size=0, max_size=4).map(lambda tail: b"\0\0\0\0\xff\xff\xff\xf4" + tail)
CAPACITY = BLOCK + 6
LOG_MAX = 12
NO_LIMIT = 1 << 30


def state(store: RingbufferStore) -> tuple[int, list[bytes], Past, int, int]:
    """All that replicas have in common."""
    items = store.items(store.head, store.next)
    return store.head, items, store.past, store.bytes_used, len(store)


class StoreAndTwin(RuleBasedStateMachine):
    """A store, its backup, a copy under way, and the twin: all values ever, and when they end."""

    def __init__(self) -> None:
        super().__init__()
        self.store = RingbufferStore()
        self.backup = RingbufferStore()
        self.twin: list[tuple[int, bytes]] = []
        self.head = 0
        self.now_ms = 0
        self.log: list[bytes] = []
        self.lineage = 0
        self.copy: tuple[RingbufferStore, SequenceCursor] | None = None

    def repeat(self, operation: bytes) -> None:
        """Whoever follows applies what the store did; an operation stands among other bytes."""
        self.log = [*self.log, operation][-LOG_MAX:]
        for follower in (self.backup, self.copy[0] if self.copy else None):
            if follower is not None:
                follower.apply(b"??" + operation + b"?", 2, 2 + len(operation))

    def live(self) -> int:
        """The head of what is not over."""
        live = self.head
        while live < len(self.twin) and self.twin[live][0] <= self.now_ms:
            live += 1
        return live

    @rule()
    def begin(self) -> None:
        self.lineage += 1
        assert not self.store.past.is_under(self.lineage)
        self.repeat(self.store.begin(self.lineage))
        assert self.store.past.is_under(self.lineage)

    @rule(
        values=st.lists(VALUES, min_size=1, max_size=6),
        times=st.sampled_from([1, 1, 8, 20]),
        life_ms=st.sampled_from([0, 3, 9]),
        capacity=st.sampled_from([3, CAPACITY, CAPACITY]),
    )
    def add(self, values: list[bytes], times: int, life_ms: int, capacity: int) -> None:
        until_ms = self.now_ms + life_ms if life_ms else FOR_EVER
        head = self.store.live_from(self.now_ms)
        self.repeat(self.store.add(values * times, until_ms, head, capacity))
        self.head = self.live()
        self.twin += [(until_ms, value) for value in values * times]
        self.head = max(self.head, len(self.twin) - capacity)

    @rule(span_ms=st.integers(1, 5))
    def wait(self, span_ms: int) -> None:
        self.now_ms += span_ms
        assert self.store.live_from(self.now_ms) == self.live()

    @rule(count=st.integers(1, BLOCK))
    def sweep(self, count: int) -> None:
        head = min(self.store.live_from(self.now_ms), self.head + count)
        if head > self.head:
            self.repeat(self.store.drop_to(head))
            self.head = head

    @rule(count=st.integers(1, LOG_MAX))
    def repeat_late(self, count: int) -> None:
        """The link came back: the last operations come once more, in their order."""
        for operation in self.log[-count:]:
            self.backup.apply(operation, 0, len(operation))

    @rule()
    def begin_copy(self) -> None:
        self.copy = (RingbufferStore(), self.store.open_cursor())

    @rule(bytes_max=st.integers(1, 300))
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
        store = self.store
        assert (store.head, store.next) == (self.head, len(self.twin))
        found = [store.item(sequence) for sequence in range(len(self.twin))]
        assert not any(found[: self.head])
        wanted = [value for _, value in self.twin[self.head :]]
        assert [item[TIME_BYTES:] for item in found[self.head :]] == wanted
        assert len(store) == len(wanted) and store.bytes_used == sum(map(len, wanted))
        assert state(self.backup) == state(store)
        assert len(store.lineages) <= LINEAGES_MAX


StoreAndTwin.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True
)
TestStoreAndTwin = StoreAndTwin.TestCase


def copied(store: RingbufferStore) -> RingbufferStore:
    """Another store with the same content."""
    copy = RingbufferStore()
    chunk, _, is_last = store.export(store.open_cursor(), NO_LIMIT)
    assert is_last
    copy.ingest(chunk)
    return copy


HISTORY = st.lists(st.integers(1, 3), max_size=6)
"""Additions of so many items."""


def live(store: RingbufferStore, history: list[int], name: str, lineage: int) -> list[bytes]:
    """Let clients use a store whose primary numbers under this lineage; what they added."""
    added: list[bytes] = []
    for count in history:
        if not store.past.is_under(lineage):
            store.begin(lineage)
        fresh = [f"        {name}{len(added) + n}".encode() for n in range(count)]
        store.add(fresh, FOR_EVER, store.head, 8)
        added += fresh
    return added


@histories(HISTORY)
def test_after_a_split_each_part_knows_its_own_items(
    before: list[int], here: list[int], there: list[int], lineages: tuple[int, int]
) -> None:
    """The part that has the old primary goes on under its lineage. What the smaller part added
    after the split is from the parting on, and nothing else is.
    """
    big = RingbufferStore()
    small, own = parted(big, copied, live, (before, here, there), lineages)
    chunk, _, _ = small.export(small.open_cursor(), NO_LIMIT)
    past, _, first, start = read_head(chunk)
    assert past == read_past(chunk)[0]
    parting = big.past.parting(past)
    items = enumerate(read_items(chunk, start, len(chunk)), first)
    taken = [item[TIME_BYTES:] for sequence, item in items if sequence >= parting]
    assert taken == own[len(own) - len(taken) :] and len(taken) == min(len(own), 8)


def test_a_backup_that_missed_an_operation_has_the_next_one() -> None:
    """Goal: acknowledged items are not given up for one that is missing; a copy fills the gap."""
    store, backup = RingbufferStore(), RingbufferStore()
    operations = [store.add([bytes(8) + name], FOR_EVER, 0, 10) for name in (b"a", b"b", b"c")]
    for operation in operations[::2]:
        backup.apply(operation, 0, len(operation))
    assert [item[-1:] for item in backup.items(0, 3)] == [b"a", b"", b"c"] and len(backup) == 2
    assert state(copied(backup)) == state(backup)
    chunk, _, _ = store.export(store.open_cursor(), NO_LIMIT)
    assert backup.ingest(chunk) == 3 and state(backup) == state(store)


def test_a_new_primary_numbers_what_only_the_old_one_had() -> None:
    """Goal: a backup that has more than the one that is promoted gives it up, with its sequences;
    nobody was answered. Repeats change nothing.
    """
    ahead = RingbufferStore()
    ahead.add([bytes(8) + b"a"], FOR_EVER, 0, 10)
    behind = copied(ahead)
    ahead.add([bytes(8) + b"b", bytes(8) + b"c"], FOR_EVER, 0, 10)
    operations = [behind.begin(7), behind.add([bytes(8) + b"d"], FOR_EVER, 0, 10)]
    for operation in operations * 2:
        ahead.apply(operation, 0, len(operation))
    assert state(ahead) == state(behind) and ahead.next == len(ahead) == 2


def test_what_is_freed_at_once_has_an_end() -> None:
    """Goal: so many items, and so many bytes save for the last item, in one step; empty places cost
    nothing.
    """
    slots = Slots()
    slots.put(BLOCK - 2, [bytes(20)] * 5)
    slots.clear(BLOCK, BLOCK + 1)
    assert len(slots) == 4 and slots.bytes_used == 4 * (20 - TIME_BYTES)
    assert slots.run(BLOCK - 3, BLOCK + 2) == [b"", bytes(20), bytes(20), b"", bytes(20)]
    freed = [slots.free_some(3, 21), slots.free_some(1, 1_000), slots.free_some(9, 1_000)]
    assert freed == [40, 20, 20] and len(slots) == 0


def test_chunks_of_small_items_keep_to_their_bytes() -> None:
    """GCM-43: what frames items counts, too; a chunk ends with the item that reaches its limit."""
    store, limit = RingbufferStore(), 20_000
    store.add([b"%020d" % number for number in range(3_000)], FOR_EVER, 0, 3_000)
    cursor, copy, is_last = store.open_cursor(), RingbufferStore(), False
    while not is_last:
        chunk, _, is_last = store.export(cursor, limit)
        assert len(chunk) < limit + 100
        copy.ingest(chunk)
    assert state(copy) == state(store)
