"""Work in threads that do not keep the program alive, with outcomes that can be waited for.

Spark's Python side ties a session to the thread that made it (a format that was found by name is
looked for in the active session of the thread), so everything about Spark goes through one
``Worker``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, Generic, TypeVar

from whimbrel.errors import OperationError

LOOK_S: Final = 0.25
"""Waits are cut into pieces of this length, so that Ctrl-C is heard."""

T = TypeVar("T")


class Later(Generic[T]):
    """A piece of work and, later, its outcome. Times are monotonic seconds."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: list[T] = []
        self._problem: BaseException | None = None
        self._ended = Event()
        self.ended_s = 0.0
        """When it ended."""

    def run(self) -> None:
        """Do it; called once, by the thread whose work it is."""
        try:
            self._outcome.append(self._work())
        except BaseException as problem:  # handed to whoever asks for the outcome
            self._problem = problem
        self.ended_s = time.monotonic()
        self._ended.set()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def outcome(self, timeout_s: float | None = None) -> T:
        """Wait for the end; what the work returned.

        Raises:
            OperationError: It did not end in time.
            BaseException: What the work raised.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.wait(LOOK_S):
            if end_s is not None and time.monotonic() >= end_s:
                raise OperationError(f"a step did not end within {timeout_s:g} s")
        if self._problem is not None:
            raise self._problem
        return self._outcome[0]


class Worker:
    """A thread that does one piece of work after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Later[Any]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._queue.get().run()

    def begin(self, work: Callable[[], T]) -> Later[T]:
        """Queue a piece of work."""
        later = Later(work)
        self._queue.put(later)
        return later

    def do(self, work: Callable[[], T]) -> T:
        """Queue a piece of work and wait for its outcome; raises what it raises."""
        return self.begin(work).outcome()


def begin(work: Callable[[], T]) -> Later[T]:
    """Do something in a thread of its own."""
    later = Later(work)
    Thread(target=later.run, daemon=True).start()
    return later
