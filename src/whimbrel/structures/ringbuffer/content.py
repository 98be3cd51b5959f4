"""What equal replicas of a ring buffer have in common: which item has which sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whimbrel.core.replication.content import ItemContent
from whimbrel.structures.ringbuffer.record import SEQUENCE

if TYPE_CHECKING:
    from whimbrel.structures.ringbuffer.store import RingbufferStore


class SequenceWalk:
    """A walk from the head to where the tail is when it begins; see ``content.ItemWalk``.

    It runs after no tail that runs away from it: what is added later is younger than the audit.
    """

    begun = 1

    def __init__(self, store: RingbufferStore) -> None:
        self._store = store
        self._next, self._end = store.head, store.next

    @property
    def is_over(self) -> bool:
        """Whether it is behind that."""
        return self._next >= self._end

    def step(self, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """The next items."""
        store = self._store
        first = max(self._next, store.head)
        self._next = min(self._end, first + count_max)
        found = store.items(first, self._next)
        return [(SEQUENCE.pack(first + at), item) for at, item in enumerate(found) if item]


class RingbufferContent(ItemContent):
    """The content of a ring buffer's store; see ``content.Content``."""

    def __init__(self, store: RingbufferStore) -> None:
        self._store = store

    def open_walk(self) -> SequenceWalk:
        """A walk over all items."""
        return SequenceWalk(self._store)

    def item(self, key: bytes) -> bytes:
        """The item of a sequence; empty when there is none."""
        (sequence,) = SEQUENCE.unpack(key)
        return self._store.item(sequence) if sequence >= self._store.head else b""

    def name_of(self, key: bytes) -> str:
        """The sequence."""
        return f"sequence {SEQUENCE.unpack(key)[0]}"
