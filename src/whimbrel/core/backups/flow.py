"""Work that waits: a generator that yields what it waits for, and goes on with what came of it.

The work of a backup is long and mostly waiting, for a disk or for other members. Written as one
function it can be read from top to bottom; nothing of it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from whimbrel.core.context import Context
from whimbrel.core.persistence.format import DamageError
from whimbrel.errors import GridError

Result = TypeVar("Result")

Resume = Callable[[Any], None]
Fail = Callable[[GridError], None]
Wait = Callable[[Resume, Fail], None]
"""Begins something; calls one of the two once, with what came of it or why nothing did."""
Work = Generator[Wait, Any, Result]


class Flow(Generic[Result]):
    """One work on its way.

    Attributes:
        is_over: Whether it has ended, or was given up.
    """

    def __init__(
        self,
        ctx: Context,
        work: Work[Result],
        done: Callable[[Result], None],
        failed: Callable[[GridError], None],
    ) -> None:
        """Prepare it.

        Args:
            ctx: The member's.
            work: Ends with its result, or a GridError or DamageError.
            done: Told of the result.
            failed: Told of the error.
        """
        self._ctx = ctx
        self._cause = ctx.cause
        self._work = work
        self._done = done
        self._failed = failed
        self._waits = 0
        """Counts what is waited for, so that nothing is taken twice or after the end."""
        self._is_inside = False
        self._came: Callable[[], Wait] | None = None
        self.is_over = False

    def start(self) -> None:
        """Go as far as it goes."""
        self._go_on(lambda: next(self._work))

    def give_up(self) -> None:
        """Do no more of it, and tell nobody."""
        self.is_over = True
        self._waits += 1
        self._work.close()

    def _go_on(self, step: Callable[[], Wait]) -> None:
        """Take steps for as long as what is waited for comes at once."""
        self._came = step
        if self._is_inside:
            return
        self._ctx.resume(self._cause)
        self._is_inside = True
        try:
            while self._came is not None:
                step, self._came = self._came, None
                if not self._step(step):
                    return
        finally:
            self._is_inside = False

    def _step(self, step: Callable[[], Wait]) -> bool:
        """Whether there may be more to do."""
        try:
            wait = step()
        except StopIteration as end:
            self.is_over = True
            self._done(end.value)
            return False
        except DamageError as problem:
            self.is_over = True
            self._failed(GridError(str(problem)))
            return False
        except GridError as problem:
            self.is_over = True
            self._failed(problem)
            return False
        self._waits += 1
        number = self._waits

        def resume(value: Any) -> None:
            if self._waits == number:
                self._waits += 1
                self._go_on(lambda: self._work.send(value))

        def fail(problem: GridError) -> None:
            if self._waits == number:
                self._waits += 1
                self._go_on(lambda: self._work.throw(problem))

        wait(resume, fail)
        return not self.is_over
