"""A map store that counts reads per entry, for maps whose merge policy compares hits.

Ordinary maps do not count: it would cost a dictionary write for each read. Counts are those of one
primary; they travel neither to backups nor with a migration, so they begin at 0 where a partition
gets a new primary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from whimbrel.structures.map.record import EntryView
from whimbrel.structures.map.store import GivenUp, MapStore


class CountingMapStore(MapStore):
    """A map store with hits.

    Attributes:
        hits: Stored key to the number of reads; keys never read are missing.
    """

    __slots__ = ("hits",)

    def __init__(self, free: Callable[[GivenUp], None] | None = None) -> None:
        super().__init__(free)
        self.hits: dict[bytes, int] = {}

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        """See ``MapStore.get``; counts."""
        value = super().get(key, now_ms)
        if value is not None:
            self.hits[key] = self.hits.get(key, 0) + 1
        return value

    def contains(self, key: bytes, now_ms: int) -> bool:
        """See ``MapStore.contains``; counts."""
        found = super().contains(key, now_ms)
        if found:
            self.hits[key] = self.hits.get(key, 0) + 1
        return found

    def entry_view(self, key: bytes, now_ms: int) -> EntryView | None:
        """See ``MapStore.entry_view``; with the number of reads."""
        view = super().entry_view(key, now_ms)
        return None if view is None else msgspec.structs.replace(view, hits=self.hits.get(key, 0))

    def remove(self, key: bytes) -> tuple[bytes | None, bytes]:
        """See ``MapStore.remove``; a later entry of that key counts anew."""
        self.hits.pop(key, None)
        return super().remove(key)

    def release(self) -> GivenUp | None:
        """See ``MapStore.release``."""
        given = super().release()
        if given is not None:
            self.hits = {}
        return given

    def _tables(self) -> tuple[dict[bytes, Any], ...]:
        return *super()._tables(), self.hits
