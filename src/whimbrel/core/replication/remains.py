"""Freeing what nobody sees any more, a little in each turn of the loop.

To free a dictionary of 100,000 entries takes some 12 ms, of a million ten times as long, and
nothing else is done meanwhile. So a large store that is dropped or cleared gives its dictionaries
up: it is empty at once, and they are emptied here. Memory is bounded by what was held before,
because this is quicker than filling a store anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from whimbrel.core.context import Context

FREE: Final = "replication.free"
FREED_MAX: Final = 4_000
"""Entries freed in one step."""
FREED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of values after which a step ends: large values go back to the system one by one."""

Table = dict[bytes, bytes]


class Remains:
    """The dictionaries that wait to be freed."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._tables: deque[Table] = deque()

    @property
    def entries(self) -> int:
        """Entries that are still to be freed."""
        return sum(map(len, self._tables))

    def bury(self, tables: Iterable[Table]) -> None:
        """Free these in time; nobody else refers to them."""
        self._tables.extend(table for table in tables if table)
        if self._tables and not self._ctx.is_armed(FREE):
            self._ctx.arm(FREE, 0)

    def on_timer(self) -> None:
        """Free some, and more in the next turn."""
        entries, size = FREED_MAX, FREED_BYTES_MAX
        while self._tables and entries > 0 and size > 0:
            table = self._tables[0]
            while table and entries > 0 and size > 0:
                size -= len(table.popitem()[1])
                entries -= 1
            if not table:
                self._tables.popleft()
        if self._tables:
            self._ctx.arm(FREE, 0)
