"""What equal replicas of a multimap have in common: each key's values, with what tells them apart.

The key of an entry is the length of the stored key (u32), it, and the mark of the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from whimbrel.core.replication.content import ItemContent, shown
from whimbrel.serialization.data import HASH_BYTES, NO_HASH
from whimbrel.structures.multimap.layout import LENGTH, LENGTH_BYTES, read_chunk

if TYPE_CHECKING:
    from whimbrel.structures.multimap.store import MultiMapStore

STEP_BYTES_MAX: Final = 512 * 1024
"""Of keys and values that one step of a walk looks at."""
BESIDE_BYTES: Final = 16
"""Of a value in a chunk, about, beside its Data."""


class ValueWalk:
    """A walk over all values; see ``content.ItemWalk``."""

    def __init__(self, store: MultiMapStore) -> None:
        self._store = store
        self._cursor = store.open_cursor()
        self.is_over = not len(store)

    @property
    def begun(self) -> int:
        """How often it has begun."""
        return self._cursor.keys.begun

    def step(self, count_max: int) -> Sequence[tuple[bytes, bytes]]:
        """The next values, those of a key with few of them together."""
        store = self._store
        size = count_max * (BESIDE_BYTES + store.bytes_used // (1 + len(store)))
        chunk, _, self.is_over = store.export(self._cursor, min(size, STEP_BYTES_MAX))
        found = []
        for key, item in read_chunk(chunk, store.value_at):
            stored = key[HASH_BYTES:]
            name = b"".join((LENGTH.pack(len(stored)), stored, store.mark_in(item)))
            found.append((name, key + item))
        return found


class MultiMapContent(ItemContent):
    """The content of a multimap's store; see ``content.Content``."""

    def __init__(self, store: MultiMapStore) -> None:
        self._store = store

    def open_walk(self) -> ValueWalk:
        """A walk over all values."""
        return ValueWalk(self._store)

    def item(self, key: bytes) -> bytes:
        """The Data of a key and the item of the value; empty when there is none."""
        stored, mark = _parts(key)
        return self._store.item(stored, mark)

    def name_of(self, key: bytes) -> str:
        """The key of the multimap."""
        return shown(NO_HASH + _parts(key)[0])


def _parts(key: bytes) -> tuple[bytes, bytes]:
    """The stored key and the mark."""
    end = LENGTH_BYTES + LENGTH.unpack_from(key)[0]
    return key[LENGTH_BYTES:end], key[end:]
