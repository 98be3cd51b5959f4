"""Freeing what nobody sees any more, a little in each turn of the loop.

To free a dictionary of 100,000 entries takes some 12 ms, of a million ten times as long, and
nothing else is done meanwhile. So a large store that is dropped or cleared gives its entries up: it
is empty at once, and they are freed here. Memory is bounded by what was held before, because this
is quicker than filling a store anew.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from whimbrel.core.context import Context

FREE: Final = "replication.free"
FREED_MAX: Final = 4_000
"""Entries freed in one step."""
FREED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of values after which a step ends: large values go back to the system one by one."""


class Freeable(Protocol):
    """Entries that a store has given up; nobody else refers to them."""

    def __len__(self) -> int:
        """Entries that are still to be freed."""

    def free_some(self, entries_max: int, bytes_max: int) -> int:
        """Free one entry at least and these numbers at most, save for the last; returns bytes."""


class DeferredFree:
    """What waits to be freed."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._waiting: deque[Freeable] = deque()

    @property
    def entries(self) -> int:
        """Entries that are still to be freed."""
        return sum(map(len, self._waiting))

    def take(self, freeable: Freeable | None) -> None:
        """Free this in time; None needs no time."""
        if freeable is not None:
            self._waiting.append(freeable)
            if not self._ctx.is_armed(FREE):
                self._ctx.arm(FREE, 0)

    def on_timer(self) -> None:
        """Free some, and more in the next turn."""
        entries, size = FREED_MAX, FREED_BYTES_MAX
        while self._waiting and entries > 0 and size > 0:
            first = self._waiting[0]
            before = len(first)
            size -= first.free_some(entries, size)
            entries -= before - len(first)
            if not len(first):
                self._waiting.popleft()
        if self._waiting:
            self._ctx.arm(FREE, 0)
