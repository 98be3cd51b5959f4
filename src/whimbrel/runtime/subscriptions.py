"""Who in this process hears of the cluster's events: callbacks, all called on the loop's thread.

A callback that raises is logged and harms nobody. Registering one twice makes it hear twice;
ending a registration twice is ending it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from whimbrel.core.events import GridEvent
from whimbrel.errors import OverloadedError

SUBSCRIPTIONS_MAX = 1_000
"""Registrations of one process; more are refused."""


class Subscriptions:
    """The registrations of one process; they outlive an expulsion."""

    def __init__(
        self, on_first: Callable[[bool], None], on_problem: Callable[[BaseException], None]
    ) -> None:
        """Begin with none.

        Args:
            on_first: Told when the first comes (True) and the last has gone (False).
            on_problem: Told what a callback raised.
        """
        self._on_first = on_first
        self._on_problem = on_problem
        self._next = 0
        self._found: dict[int, tuple[tuple[type[GridEvent], ...], Callable[[Any], None]]] = {}

    @property
    def any(self) -> bool:
        """Whether somebody listens."""
        return bool(self._found)

    def add(self, kinds: tuple[type[GridEvent], ...], callback: Callable[[Any], None]) -> int:
        """Register a callback for kinds of events.

        Returns:
            The number to end the registration with.

        Raises:
            OverloadedError: There are too many.
        """
        if len(self._found) >= SUBSCRIPTIONS_MAX:
            raise OverloadedError(f"a process has at most {SUBSCRIPTIONS_MAX} event listeners")
        self._next += 1
        self._found[self._next] = (kinds, callback)
        if len(self._found) == 1:
            self._on_first(True)
        return self._next

    def remove(self, number: int) -> bool:
        """End a registration; False when there is none of that number."""
        if self._found.pop(number, None) is None:
            return False
        if not self._found:
            self._on_first(False)
        return True

    def tell(self, events: Iterable[GridEvent]) -> None:
        """Call whoever wants each event, in order of registration."""
        for event in events:
            for kinds, callback in list(self._found.values()):
                if isinstance(event, kinds):
                    try:
                        callback(event)
                    except Exception as problem:
                        self._on_problem(problem)
