"""The items of one ring buffer in its partition, and nothing else.

Knows items, operations and chunks (``record``). Knows nothing of replicas, members, clients, who
waits, or how many items there may be: what gives way is said in the operations, so that a backup
holds what its primary holds, whatever its own settings. Every change returns the backup operation
that repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from whimbrel.core.merging.past import PAIR, Past, read_past
from whimbrel.core.replication.content import Auditable
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.structures.ringbuffer.content import RingbufferContent
from whimbrel.structures.ringbuffer.record import (
    ADDED,
    BEGUN,
    GONE,
    LENGTH,
    SEQUENCE,
    ends_ms,
    make_item,
    read_items,
)
from whimbrel.structures.ringbuffer.slots import Slots

CHUNK_ITEMS_MAX: Final = 2_000
"""Items in one chunk: small ones cost their receiver a microsecond each, whatever their bytes."""
FREED_AT_ONCE_MAX: Final = 4_000
"""More items than this are not freed in one step."""

_ADDED: Final = bytes((ADDED,))
_GONE: Final = bytes((GONE,))
_BEGUN: Final = bytes((BEGUN,))

_pack_pair = PAIR.pack
_pack_length = LENGTH.pack


class SequenceCursor:
    """A walk over the items of a store; ``next`` is the first sequence that was not exported."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0


class RingbufferStore(Auditable):
    """Items from the head to the tail, and who has numbered them.

    Attributes:
        bytes_used: Bytes of the Data.
        head: The lowest sequence that is there; ``next`` when nothing is.
        next: The sequence of the next item; the tail is the one before.
        lineages: Who has numbered, see ``Past``.
    """

    __slots__ = ("_live", "_slots", "bytes_used", "head", "lineages", "next")

    def __init__(self) -> None:
        self._slots = Slots()
        self.bytes_used = 0
        self.head = self.next = 0
        self.lineages: tuple[tuple[int, int], ...] = ()
        self._live = 0
        """What comes before it is known to be over."""

    def __len__(self) -> int:
        """Items held."""
        return len(self._slots)

    # -- reading --------------------------------------------------------------------------

    @property
    def content(self) -> RingbufferContent:
        """What equal replicas have in common."""
        return RingbufferContent(self)

    @property
    def past(self) -> Past:
        """Who has numbered, up to now."""
        return Past(self.next, self.lineages)

    def item(self, sequence: int) -> bytes:
        """The item of a sequence; empty when it is not there."""
        return self._slots[sequence]

    def items(self, first: int, end: int) -> list[bytes]:
        """Those of the sequences from ``first`` to before ``end``; empty where there is none."""
        return self._slots.run(first, end)

    def live_from(self, wall_ms: int) -> int:
        """The head, if all were gone whose time is over.

        Items go in their order: one whose time is over stays as long as one before it does. What
        was over once does not come back with a clock that is set back. Each item is passed once.
        """
        at = max(self._live, self.head)
        while at < self.next:
            item = self._slots[at]
            if item and ends_ms(item) > wall_ms:
                break
            at += 1
        self._live = at
        return at

    # -- changing: each returns the backup operation ---------------------------------------

    def begin(self, lineage: int) -> bytes:
        """Items are numbered under this lineage from now on."""
        first = self.next
        self._begin(first, lineage)
        return _BEGUN + _pack_pair(first, lineage)

    def add(self, values: Sequence[bytes], until_ms: int, head: int, capacity: int) -> bytes:
        """Put values at the tail; the oldest give way, values among them when they are too many.

        Args:
            values: Data.
            until_ms: When their time is over.
            head: What comes before it is over.
            capacity: Items that are left at most.
        """
        end = self.next + len(values)
        head = max(head, end - capacity)
        first = max(self.next, head)
        items = [make_item(until_ms, value) for value in values[first - self.next :]]
        self._add(head, first, items)
        return _ADDED + _pack_pair(head, first) + _framed(items)

    def drop_to(self, head: int) -> bytes:
        """What comes before this sequence is over, or will never be."""
        self._drop_to(head)
        return _GONE + SEQUENCE.pack(head)

    def release(self) -> Slots | None:
        """The items of a large store, which is empty then; a small one keeps them."""
        if len(self._slots) <= FREED_AT_ONCE_MAX:
            return None
        given, self._slots = self._slots, Slots()
        self.bytes_used = 0
        return given

    def _add(self, head: int, first: int, items: Sequence[bytes]) -> None:
        """Have items in their places, unless they are behind the head; twice is as once.

        A copy that is made while items are added brings older ones after newer ones.
        """
        self._drop_to(head)
        end = first + len(items)
        start = max(first, self.head)
        if start < end:
            self._slots.put(start, items[start - first :])
            self.bytes_used = self._slots.bytes_used
            self.next = max(self.next, end)

    def _drop_to(self, head: int) -> None:
        if head > self.head:
            self._clear(self.head, min(head, self.next))
            self.head = head
            self.next = max(self.next, head)

    def _clear(self, first: int, end: int) -> None:
        self._slots.clear(first, end)
        self.bytes_used = self._slots.bytes_used

    def _begin(self, first: int, lineage: int) -> None:
        """A lineage begins with a sequence: what we have from there on is no part of its past."""
        if self.past.knows(lineage):
            return
        self._clear(max(first, self.head), self.next)
        self.next, self.lineages = self.past.begun(first, lineage)
        self.head = min(self.head, first)
        self._live = 0

    # -- repeating a change ----------------------------------------------------------------

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        """Apply the backup operation in ``buffer[start:end]``; applying it twice is harmless.

        Raises:
            ProtocolError: The bytes are no such operation; nothing is changed.
        """
        kind, size = buffer[start], end - start - 1
        start += 1
        if kind == ADDED and size >= PAIR.size:
            head, first = PAIR.unpack_from(buffer, start)
            try:
                items = list(read_items(buffer, start + PAIR.size, end))
            except SerializationError as error:
                raise ProtocolError(f"a backup operation is damaged: {error}") from error
            self._add(head, first, items)
        elif kind == GONE and size == SEQUENCE.size:
            self._drop_to(*SEQUENCE.unpack_from(buffer, start))
        elif kind == BEGUN and size == PAIR.size:
            self._begin(*PAIR.unpack_from(buffer, start))
        else:
            raise ProtocolError(
                f"a ring buffer has no backup operation of kind {kind} with {size} bytes"
            )

    def stop_sweeping(self) -> None:
        """Whoever reads looks at the time itself."""

    def restart_idleness(self, now_ms: int) -> None:
        """To be read keeps no item."""

    # -- chunks ------------------------------------------------------------------------------

    def open_cursor(self) -> SequenceCursor:
        """A walk over all items, for ``export``."""
        return SequenceCursor()

    def export(self, cursor: SequenceCursor, bytes_max: int) -> tuple[bytes, int, bool]:
        """The next items as they are now, their number and whether they are the last.

        The chunk ends with the item that reaches ``bytes_max``, so a large one is a chunk of its
        own, or after CHUNK_ITEMS_MAX items. Without items it says where they will begin.
        """
        first = max(cursor.next, self.head)
        found = self._slots.run(first, min(self.next, first + CHUNK_ITEMS_MAX))
        begin = self.past.encode() + _pack_pair(self.head, first)
        items: list[bytes] = []
        size = len(begin)
        for item in found:
            items.append(item)
            size += LENGTH.size + len(item)
            if size >= bytes_max:
                break
        cursor.next = first + len(items)
        return begin + _framed(items), len(items) - items.count(b""), cursor.next >= self.next

    def ingest(self, data: bytes) -> int:
        """Take in a chunk; returns the number of items.

        Raises:
            SerializationError: The chunk is damaged; nothing of it is taken in.
        """
        past, head, first, start = read_head(data)
        items = list(read_items(data, start, len(data)))
        self._add(head, first, items)
        self.next = max(self.next, past.next_number)
        self.lineages = past.lineages
        return len(items) - items.count(b"")


def read_head(chunk: bytes) -> tuple[Past, int, int, int]:
    """What a chunk says before its items: past, head, first sequence, and where they begin.

    Raises:
        SerializationError: The chunk is damaged.
    """
    past, place = read_past(chunk)
    start = place + PAIR.size
    if start > len(chunk):
        raise SerializationError("a chunk of a ring buffer ends before its items")
    return past, *PAIR.unpack_from(chunk, place), start


def _framed(items: Sequence[bytes]) -> bytes:
    """Items with their lengths before them."""
    return b"".join(chain.from_iterable((_pack_length(len(item)), item) for item in items))
