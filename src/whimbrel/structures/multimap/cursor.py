"""How far a walk over a multimap's store has come, and what is left of one that was given up."""

from __future__ import annotations

from typing import Any

from whimbrel.core.replication.walk import Walk


class Cursor:
    """A walk over the values of a store, for its ``export``.

    Attributes:
        keys: The walk over the keys.
        values: The values of the key under way if they are many, as the walk over them met them.
        marks: The walk over those.
        last_key, tally: How often each value of the key exported last came so far; kept by
            ``merging``, for lists.
    """

    __slots__ = ("keys", "last_key", "marks", "tally", "values")

    def __init__(self, keys: Walk) -> None:
        self.keys = keys
        self.values: dict[bytes, bytes] | None = None
        self.marks = Walk(0)
        self.last_key = b""
        self.tally: dict[bytes, int] = {}


class GivenUp:
    """What a store has given up when it was dropped or cleared, until it is freed."""

    __slots__ = ("_left", "_tables")

    def __init__(self, large: dict[bytes, dict[bytes, bytes]], *tables: dict[bytes, bytes]) -> None:
        """Take over the values of keys with many, and tables with one object for each key."""
        known: tuple[dict[bytes, Any], ...] = (large, *tables, *large.values())
        self._tables = [table for table in known if table]
        """Freed from the last on, so that what a key had goes before the key."""
        self._left = sum(map(len, self._tables))

    def __len__(self) -> int:
        """Objects that are still to be freed."""
        return self._left

    def free_some(self, entries_max: int, bytes_max: int) -> int:
        """See ``deferred_free.Freeable``."""
        size = 0
        while self._tables and entries_max > 0 and size < bytes_max:
            name, what = self._tables[-1].popitem()
            size += len(name) + len(what)
            self._left -= 1
            entries_max -= 1
            if not self._tables[-1]:
                self._tables.pop()
        return size
