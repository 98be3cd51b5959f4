"""What equal replicas of a queue have in common: its items. What calls were answered is no part of
it: it is remembered for who asks again, and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from whimbrel.core.replication.content import ItemContent
from whimbrel.structures.queue.record import ID_BYTES, item_id

if TYPE_CHECKING:
    from whimbrel.structures.queue.store import QueueStore

FOUND_AT_ONCE: Final = 4_096
"""To find an item among so many more takes as long as to hash one more."""


class IdWalk:
    """A walk from the head to where the tail is when it begins; see ``content.ItemWalk``.

    It runs after no tail that runs away from it: what is offered later is younger than the audit.
    """

    begun = 1

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._cursor = store.open_cursor()
        self._end = store.next_id
        self.is_over = not store.items

    def step(self, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """The next items."""
        found = list(islice(self._cursor.go_on(self._store.items), count_max))
        if found:
            self._cursor.next_id = item_id(found[-1]) + 1
        self.is_over = len(found) < count_max or self._cursor.next_id >= self._end
        return [(item[:ID_BYTES], item) for item in found]


class QueueContent(ItemContent):
    """The content of a queue's store; see ``content.Content``."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def open_walk(self) -> IdWalk:
        """A walk over all items."""
        return IdWalk(self._store)

    def item(self, key: bytes) -> bytes:
        """The item with this id; empty when there is none."""
        value = self._store.find(key)
        return b"" if value is None else key + value

    def find_work(self) -> int:
        """To look into the middle is a walk."""
        return 1 + len(self._store) // FOUND_AT_ONCE

    def name_of(self, key: bytes) -> str:
        """The id."""
        return f"item {item_id(key)}"
