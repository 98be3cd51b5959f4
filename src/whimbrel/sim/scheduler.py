"""Virtual time: a heap of events, integer microseconds, ties broken by a seeded number.

Two events of the same microsecond run in an order the seed chose, and if even that number is
equal in the order in which they were made.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from whimbrel.core.check import check

PENDING_MAX = 2_000_000
"""Events that may wait at once; more means that something in a run feeds itself."""

Action = Callable[..., object]


class Scheduler:
    """The only owner of time in a run."""

    def __init__(self, generator: random.Random) -> None:
        self.now_us = 0
        self.events = 0
        """Events run so far."""
        self._heap: list[tuple[int, int, int, Action, tuple[Any, ...]]] = []
        self._number = 0
        self._tie = generator.getrandbits

    def at(self, time_us: int, action: Action, *arguments: Any) -> None:
        """Run an action at a moment; a moment in the past means now."""
        self._number += 1
        if time_us < self.now_us:
            time_us = self.now_us
        heapq.heappush(self._heap, (time_us, self._tie(16), self._number, action, arguments))

    def after(self, delay_us: int, action: Action, *arguments: Any) -> None:
        """Run an action after a span."""
        self.at(self.now_us + delay_us, action, *arguments)

    def run_one(self) -> None:
        """Run the next event; nothing when there is none."""
        if self._heap:
            time_us, _, _, action, arguments = heapq.heappop(self._heap)
            self.now_us = time_us
            self.events += 1
            action(*arguments)

    def run_until(self, deadline_us: int) -> None:
        """Run every event due up to a moment; time then stands at that moment."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= deadline_us:
            time_us, _, _, action, arguments = pop(heap)
            self.now_us = time_us
            self.events += 1
            action(*arguments)
        check(len(heap) <= PENDING_MAX, "the events of a simulated run stay bounded")
        self.now_us = max(self.now_us, deadline_us)
