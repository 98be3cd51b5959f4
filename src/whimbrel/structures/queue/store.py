"""The items of one queue in its partition, and what its last calls were answered.

Knows items, operations, chunks (``record``) and calls (``answered``). Knows nothing of replicas,
members, clients or who waits. Every change returns the backup operation that repeats it. What is at
the head or the tail costs the same however long the queue is; to look at or remove from the middle
is a walk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from whimbrel.core.ids import Attempt
from whimbrel.core.merging.past import PAIR, Past
from whimbrel.core.replication.content import Auditable
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.serialization.data import HASH_BYTES
from whimbrel.structures.queue import answered
from whimbrel.structures.queue.answered import Answered
from whimbrel.structures.queue.content import QueueContent
from whimbrel.structures.queue.record import (
    BEGUN,
    BODY_AT,
    CALL,
    CALL_HEAD,
    FENCE,
    GONE,
    GONE_TO,
    ID,
    ID_BYTES,
    LENGTH,
    OFFERED,
    encode_head,
    item_id,
    read_head,
    read_items,
)

CHUNK_ITEMS_MAX: Final = 2_000
"""Items in one chunk: small ones cost their receiver a microsecond each, whatever their bytes."""
FREED_AT_ONCE_MAX: Final = 4_000
"""More items than this are not freed in one step."""

_OFFERED: Final = bytes((OFFERED,))
_GONE_TO: Final = bytes((GONE_TO,))
_GONE: Final = bytes((GONE,))
_BEGUN: Final = bytes((BEGUN,))
FENCE_OPERATION: Final = bytes((FENCE,))
"""Changes nothing; see ``record``."""

_CALLS: Final = (OFFERED | CALL, GONE_TO | CALL)

_pack_id = ID.pack
_pack_length = LENGTH.pack


class ItemCursor:
    """A walk over the items of a store, and then over the answers of its calls.

    ``next_id`` is the first item that was not exported, ``next_place`` the first answer.
    """

    __slots__ = ("_items", "_walk", "next_id", "next_place")

    def __init__(self, items: deque[bytes]) -> None:
        self.next_id = 0
        self.next_place = 1
        self._items = items
        self._walk: Iterator[bytes] = iter(items)

    def go_on(self, items: deque[bytes]) -> Iterator[bytes]:
        """What is left, as it is now: to find the place costs time only when items came or went."""
        if items is self._items:
            try:
                first = next(self._walk, None)
            except RuntimeError:
                pass  # they did
            else:
                return self._walk if first is None else chain((first,), self._walk)
        self._items = items
        self._walk = islice(items, bisect_left(items, _pack_id(self.next_id)), None)
        return self._walk


class GivenUp:
    """The items of a store that was dropped or cleared, until they are freed."""

    __slots__ = ("_items",)

    def __init__(self, items: deque[bytes]) -> None:
        self._items = items

    def __len__(self) -> int:
        """Items that are still to be freed."""
        return len(self._items)

    def free_some(self, entries_max: int, bytes_max: int) -> int:
        """See ``deferred_free.Freeable``."""
        size = 0
        while self._items and entries_max > 0 and size < bytes_max:
            size += len(self._items.popleft())
            entries_max -= 1
        return size


class QueueStore(Auditable):
    """Items from the head to the tail, and who has counted them.

    Attributes:
        items: Id and Data of each. Read-only for everybody else.
        bytes_used: Bytes of the Data.
        next_id: Of the next item that is offered.
        lineages: Who has counted, see ``Past``.
        answered: Calls that may be asked again; their bytes are not among ``bytes_used``.
    """

    __slots__ = ("_free", "answered", "bytes_used", "items", "lineages", "next_id")

    def __init__(self, free: Callable[[GivenUp], None] | None = None) -> None:
        """An empty store.

        Args:
            free: Takes what ``clear`` leaves of many items; without it they are freed at once.
        """
        self._free = free
        self.items: deque[bytes] = deque()
        self.bytes_used = 0
        self.next_id = 1
        self.lineages: tuple[tuple[int, int], ...] = ()
        self.answered = Answered()

    def __len__(self) -> int:
        """Items held."""
        return len(self.items)

    # -- reading --------------------------------------------------------------------------

    @property
    def content(self) -> QueueContent:
        """What equal replicas have in common."""
        return QueueContent(self)

    @property
    def past(self) -> Past:
        """Who has counted, up to now."""
        return Past(self.next_id, self.lineages)

    def values(self, count_max: int = -1) -> list[bytes]:
        """The first values, from the head on; all of them when ``count_max`` is negative."""
        return [
            item[ID_BYTES:] for item in islice(self.items, count_max if count_max >= 0 else None)
        ]

    def contains_all(self, values: Sequence[bytes]) -> bool:
        """Whether each of these values is equal to one that is there."""
        wanted = {value[HASH_BYTES:] for value in values}
        lengths = {BODY_AT + len(body) for body in wanted}
        for item in self.items:
            if not wanted:
                break
            if len(item) in lengths:
                wanted.discard(item[BODY_AT:])
        return not wanted

    # -- changing: each returns the backup operation ---------------------------------------

    def begin(self, lineage: int) -> bytes:
        """Items are offered under this lineage from now on."""
        first = self.next_id
        self._begin(first, lineage)
        return _BEGUN + PAIR.pack(first, lineage)

    def is_begun(self, lineage: int) -> bool:
        """Whether the last items were offered under this lineage."""
        return self.past.is_under(lineage)

    def offer(self, values: Sequence[bytes]) -> bytes:
        """Put values at the tail."""
        pieces = [_OFFERED]
        for value in values:
            item = _pack_id(self.next_id) + value
            self.next_id += 1
            self.items.append(item)
            self.bytes_used += len(value)
            pieces += (_pack_length(len(item)), item)
        return b"".join(pieces)

    def take(self, count_max: int, bytes_max: int) -> tuple[list[bytes], bytes]:
        """Take values from the head while there are some.

        Args:
            count_max: How many, 1 at least.
            bytes_max: How many bytes together, with those of their ids, unless the first alone
                has more.

        Returns:
            The values and the operation, which is empty when there were none.
        """
        items = self.items
        taken: list[bytes] = []
        size, last = 0, b""
        while items and len(taken) < count_max:
            if taken and size + len(items[0]) > bytes_max:
                break
            item = items.popleft()
            size += len(item)
            taken.append(item[ID_BYTES:])
            last = item[:ID_BYTES]
        self.bytes_used -= size - ID_BYTES * len(taken)
        return taken, _GONE_TO + last if taken else b""

    def remember(self, attempt: Attempt, answer: bytes, operation: bytes) -> bytes:
        """An offer, or the taking of one item, was this call; the operation that says so, too."""
        place, known = self.answered.next_place, (attempt.caller, attempt.number)
        self.answered.add(place, known, answer)
        kind = bytes((operation[0] | CALL,))
        return b"".join((kind, CALL_HEAD.pack(place, *known), operation[1:]))

    def remove(self, value: bytes) -> bytes:
        """Remove the first value that is equal; the operation is empty when there is none."""
        body = value[HASH_BYTES:]
        size = BODY_AT + len(body)
        for place, item in enumerate(self.items):
            if len(item) == size and item.endswith(body):
                del self.items[place]
                self.bytes_used -= size - ID_BYTES
                return _GONE + item[:ID_BYTES]
        return b""

    def remove_all(self, values: Sequence[bytes], *, but: bool) -> tuple[list[bytes], bytes]:
        """Remove all that is equal to one of these values, or all ``but`` that.

        Returns:
            What was removed and the operation, which is empty when nothing was.
        """
        bodies = {value[HASH_BYTES:] for value in values}
        lengths = {BODY_AT + len(body) for body in bodies}
        gone = [
            item
            for item in self.items
            if (len(item) in lengths and item[BODY_AT:] in bodies) is not but
        ]
        if not gone:
            return [], b""
        ids = [item[:ID_BYTES] for item in gone]
        self._remove_ids(ids)
        return [item[ID_BYTES:] for item in gone], _GONE + b"".join(ids)

    def clear(self) -> bytes:
        """Remove everything; the operation is empty when there was nothing."""
        if not self.items:
            return b""
        last = self.items[-1][:ID_BYTES]
        self._clear()
        return _GONE_TO + last

    def _clear(self) -> None:
        given = self.release()
        if given is not None and self._free is not None:
            self._free(given)
        self.items.clear()
        self.bytes_used = 0

    def release(self) -> GivenUp | None:
        """The items of a large store, which is empty then; a small one keeps them."""
        if len(self.items) <= FREED_AT_ONCE_MAX:
            return None
        given = GivenUp(self.items)
        self.items = deque()
        self.bytes_used = 0
        return given

    def _remove_ids(self, ids: Sequence[bytes]) -> None:
        """Remove items from anywhere; ids that are not there are gone already."""
        items = self.items
        if len(ids) == 1:
            place = bisect_left(items, ids[0])
            if place < len(items) and items[place].startswith(ids[0]):
                self.bytes_used -= len(items[place]) - ID_BYTES
                del items[place]
            return
        gone = frozenset(ids)
        kept = [item for item in items if item[:ID_BYTES] not in gone]
        self.bytes_used = sum(map(len, kept)) - ID_BYTES * len(kept)
        items.clear()
        items.extend(kept)

    # -- repeating a change ----------------------------------------------------------------

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        """Apply the backup operation in ``buffer[start:end]``; applying it twice is harmless.

        Raises:
            ProtocolError: The bytes are no such operation; nothing is changed.
        """
        kind, call = buffer[start], None
        start += 1
        if kind in _CALLS and end - start >= CALL_HEAD.size:
            call = CALL_HEAD.unpack_from(buffer, start)
            kind, start = kind & ~CALL, start + CALL_HEAD.size
        size, answer = end - start, None
        if kind == OFFERED:
            try:
                self._insert(list(read_items(buffer, start, end)))
            except SerializationError as error:
                raise ProtocolError(f"a backup operation is damaged: {error}") from error
            answer = b""
        elif kind == GONE_TO and size == ID_BYTES:
            answer = self.find(buffer[start:end]) if call else None
            self._drop_to(buffer[start:end])
        elif kind == GONE and size and size % ID_BYTES == 0:
            self._remove_ids([buffer[at : at + ID_BYTES] for at in range(start, end, ID_BYTES)])
        elif kind == BEGUN and size == PAIR.size:
            self._begin(*PAIR.unpack_from(buffer, start))
        elif kind != FENCE or size:
            raise ProtocolError(f"a queue has no backup operation of kind {kind} with {size} bytes")
        if call and answer is not None:
            place, caller, number = call
            self.answered.add(place, (caller, number), answer)

    def find(self, number: bytes) -> bytes | None:
        """The value with this id. One that is not here any more was seen before, and so was its
        call; one that is not here yet comes with a copy, which then brings the call as well.
        """
        items = self.items
        place = 0 if items and items[0].startswith(number) else bisect_left(items, number)
        if place < len(items) and items[place].startswith(number):
            return items[place][ID_BYTES:]
        return None

    def _insert(self, incoming: list[bytes]) -> None:
        """Put items where their ids belong: at the tail, unless they come again or late.

        A copy that is made while items are offered brings older ones after newer ones.
        """
        if not incoming:
            return
        items, first = self.items, incoming[0][:ID_BYTES]
        size = -ID_BYTES * len(incoming)
        if items and items[-1] > first:
            newest: dict[bytes, bytes] = {}
            while items and items[-1] > first:
                item = items.pop()
                self.bytes_used -= len(item) - ID_BYTES
                newest[item[:ID_BYTES]] = item
            newest.update((item[:ID_BYTES], item) for item in incoming)
            incoming = [newest[number] for number in sorted(newest)]
            size = -ID_BYTES * len(incoming)
        items.extend(incoming)
        self.bytes_used += size + sum(map(len, incoming))
        self._count_to(incoming[-1][:ID_BYTES])

    def _drop_to(self, last: bytes) -> None:
        """The items up to this id were taken."""
        items = self.items
        if items and items[-1][:ID_BYTES] <= last:
            self._clear()
        else:
            while items and items[0][:ID_BYTES] <= last:
                self.bytes_used -= len(items.popleft()) - ID_BYTES
        self._count_to(last)

    def _count_to(self, number: bytes) -> None:
        """This id was given."""
        self.next_id = max(self.next_id, item_id(number) + 1)

    def _begin(self, first: int, lineage: int) -> None:
        """A lineage begins with an id: what we have from there on was never part of its past."""
        if self.past.knows(lineage):
            return
        items, number = self.items, _pack_id(first)
        while items and items[-1] > number:
            self.bytes_used -= len(items.pop()) - ID_BYTES
        self.next_id, self.lineages = self.past.begun(first, lineage)

    def stop_sweeping(self) -> None:
        """Nothing here ends by itself."""

    def restart_idleness(self, now_ms: int) -> None:
        """Nothing here ends by itself."""

    # -- chunks ------------------------------------------------------------------------------

    def open_cursor(self) -> ItemCursor:
        """A walk over everything, for ``export``."""
        return ItemCursor(self.items)

    def export(self, cursor: ItemCursor, bytes_max: int) -> tuple[bytes, int, bool]:
        """The next items as they are now, their number and whether everything is exported.

        The chunk ends with the item that reaches ``bytes_max``, so a large one is a chunk of its
        own, or after CHUNK_ITEMS_MAX items. Answers follow the items: a copy has then been given
        whatever is taken while they are on their way. They begin in a chunk that has room for what
        each chunk of them begins with, or nothing else in it.
        """
        calls = self.answered
        room = bytes_max - len(encode_head(self.past))
        items, count, size, is_last = self._next_items(cursor, room)
        answers = b""
        if is_last and (not count or size + calls.head_bytes < room):
            answers, cursor.next_place = calls.export(cursor.next_place, room - size)
        is_last = is_last and cursor.next_place == calls.next_place
        return encode_head(self.past, answers) + items, count, is_last

    def export_items(self, cursor: ItemCursor, bytes_max: int) -> tuple[bytes, int]:
        """A chunk without answers, for who only wants the items, and their number."""
        items, count, _, _ = self._next_items(cursor, bytes_max)
        return encode_head(self.past) + items, count

    def _next_items(self, cursor: ItemCursor, bytes_max: int) -> tuple[bytes, int, int, bool]:
        """The next items, their number, their bytes, and whether they are the last."""
        pieces: list[bytes] = []
        size = count = 0
        for item in cursor.go_on(self.items):
            pieces += (_pack_length(len(item)), item)
            size += LENGTH.size + len(item)
            count += 1
            if size >= bytes_max or count >= CHUNK_ITEMS_MAX:
                break
        if count:
            cursor.next_id = item_id(pieces[-1]) + 1
        is_last = not self.items or self.items[-1] < _pack_id(cursor.next_id)
        return b"".join(pieces), count, size, is_last

    def ingest(self, data: bytes) -> int:
        """Take in a chunk; returns the number of items.

        Raises:
            SerializationError: The chunk is damaged; nothing of it is taken in.
        """
        past, section, start = read_head(data)
        copied = answered.read(section)
        incoming = list(read_items(data, start, len(data)))
        self._insert(incoming)
        self.answered.ingest(copied)
        self.next_id = max(self.next_id, past.next_number)
        self.lineages = past.lineages
        return len(incoming)
