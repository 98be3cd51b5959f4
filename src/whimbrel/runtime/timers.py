"""The engine's timers on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from whimbrel.core.effects import ArmTimer
from whimbrel.runtime.clock import now_us

LATE_US = 200_000
"""A timer that is later than this tells that the whole process stood still (SIGSTOP, swapping)."""
CATCH_UP_S = 0.02
"""Then it waits this much longer, once: what the peers said meanwhile is read before anybody
concludes that they were silent."""


class Timers:
    """At most one pending call per key; arming again replaces it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[str, int], None]) -> None:
        """``fire(key, generation)`` is called in the loop, never before the timer's time."""
        self._loop = loop
        self._fire = fire
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, timer: ArmTimer) -> None:
        """Arm or re-arm; a moment in the past means the next turn of the loop."""
        previous = self._handles.pop(timer.key, None)
        if previous is not None:
            previous.cancel()
        delay_s = max(0, timer.at_us - now_us()) / 1_000_000
        self._handles[timer.key] = self._loop.call_later(delay_s, self._due, timer, False)

    def clear(self) -> None:
        """Forget all of them."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _due(self, timer: ArmTimer, was_late: bool) -> None:
        late_us = now_us() - timer.at_us
        if late_us < 0:  # loops round to milliseconds, and may be early
            self._again(timer, -late_us / 1_000_000 + 0.0005, was_late)
        elif late_us > LATE_US and not was_late:
            self._again(timer, CATCH_UP_S, True)
        else:
            del self._handles[timer.key]
            self._fire(timer.key, timer.generation)

    def _again(self, timer: ArmTimer, delay_s: float, was_late: bool) -> None:
        self._handles[timer.key] = self._loop.call_later(delay_s, self._due, timer, was_late)
