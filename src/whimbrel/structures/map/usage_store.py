"""A map store that notes reads, for maps that ask which of their entries are used.

Ordinary maps note nothing: it would cost a dictionary write for each read. How often an entry was
read is for the merge policy that compares it, and for LFU; when it was read last is for LRU, to the
millisecond of the wall clock. Both are those of one primary: they travel neither to backups nor
with a migration. A new primary counts from 0, and knows of last uses what the records say: the last
writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from whimbrel.structures.map.record import NEVER_MS, UPDATED, EntryView
from whimbrel.structures.map.store import FREED_AT_ONCE_MAX, GivenUp, MapStore


class UsageMapStore(MapStore):
    """A map store with the use of its entries; keys never read are in neither dictionary.

    Attributes:
        hits: Stored key to the number of reads, None where they are not counted.
        reads_ms: Stored key to the time of the last read, None where it is not noted.
    """

    __slots__ = ("hits", "reads_ms")

    def __init__(
        self,
        free: Callable[[GivenUp], None] | None = None,
        *,
        compares: bool = True,
        counts_reads: bool = False,
        dates_reads: bool = False,
    ) -> None:
        """An empty store that counts reads, or notes when they were, or both."""
        super().__init__(free, compares=compares)
        self.hits: dict[bytes, int] | None = {} if counts_reads else None
        self.reads_ms: dict[bytes, int] | None = {} if dates_reads else None

    # -- what use is ----------------------------------------------------------------------

    def least_recently_used(self, sample: list[bytes]) -> bytes:
        """Which of some keys that are there was neither read nor written for longest."""
        records, reads_ms = self.records, self.reads_ms or {}
        chosen, earliest_ms = b"", NEVER_MS
        for key in sample:
            used_ms = int.from_bytes(records[key][UPDATED], "little")
            read_ms = reads_ms.get(key, 0)
            if read_ms > used_ms:
                used_ms = read_ms
            if used_ms < earliest_ms:
                chosen, earliest_ms = key, used_ms
        return chosen

    def least_often_read(self, sample: list[bytes]) -> bytes:
        """Which of some keys that are there was read least often; of equal ones that which was
        written first.
        """
        records, hits = self.records, self.hits or {}
        reads = [
            (hits.get(key, 0), int.from_bytes(records[key][UPDATED], "little"), key)
            for key in sample
        ]
        return min(reads)[2]

    def _note(self, key: bytes, now_ms: int) -> None:
        if self.hits is not None:
            self.hits[key] = self.hits.get(key, 0) + 1
        if self.reads_ms is not None:
            self.reads_ms[key] = now_ms

    # -- the store ------------------------------------------------------------------------

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        """See ``MapStore.get``; noted."""
        value = super().get(key, now_ms)
        if value is not None:
            self._note(key, now_ms)
        return value

    def contains(self, key: bytes, now_ms: int) -> bool:
        """See ``MapStore.contains``; noted."""
        found = super().contains(key, now_ms)
        if found:
            self._note(key, now_ms)
        return found

    def entry_view(self, key: bytes, now_ms: int) -> EntryView | None:
        """See ``MapStore.entry_view``; with what is known of the entry's use."""
        view = super().entry_view(key, now_ms)
        if view is None:
            return None
        hits = view.hits if self.hits is None else self.hits.get(key, 0)
        read_ms = view.last_access_ms
        if self.reads_ms is not None:
            read_ms = self.reads_ms.get(key, read_ms)
        return msgspec.structs.replace(view, hits=hits, last_access_ms=read_ms)

    def remove(self, key: bytes) -> tuple[bytes | None, bytes]:
        """See ``MapStore.remove``; nothing is known of a later entry of that key."""
        for table in self._notes():
            table.pop(key, None)
        return super().remove(key)

    def stop_sweeping(self) -> None:
        """See ``MapStore.stop_sweeping``; when entries were read is of no use any more."""
        super().stop_sweeping()
        if self.reads_ms:
            if self._free is not None and len(self.reads_ms) > FREED_AT_ONCE_MAX:
                self._free(GivenUp(self.reads_ms))
            self.reads_ms = {}

    def release(self) -> GivenUp | None:
        """See ``MapStore.release``."""
        given = super().release()
        if given is not None:
            self.hits = None if self.hits is None else {}
            self.reads_ms = None if self.reads_ms is None else {}
        return given

    def _tables(self) -> tuple[dict[bytes, Any], ...]:
        return *super()._tables(), *self._notes()

    def _notes(self) -> list[dict[bytes, int]]:
        return [table for table in (self.hits, self.reads_ms) if table is not None]
