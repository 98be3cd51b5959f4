"""The thread in which a member's disk works: works go in from the event loop, answers come back.

The loop never waits for it. Writing and syncing give the interpreter's lock away, so the loop goes
on meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

from whimbrel.core.effects import DiskWork
from whimbrel.core.stimuli import DiskDone, DiskFailed
from whimbrel.errors import OverloadedError
from whimbrel.storage.contract import CommandDisk

WORKS_MAX: Final = 64
"""Works that wait. The core has one under way, and each incarnation of a member may leave one."""
IDLE_S: Final = 1.0
"""How often a thread without work looks whether the program has ended around it."""

Answers = Callable[[DiskDone | DiskFailed], None]
"""Takes the answer to a work, in the loop."""
Post = Callable[..., object]
"""Calls a function with arguments in the event loop, from any thread: its ``call_soon_threadsafe``,
which raises RuntimeError once the loop is closed."""


class DiskThread:
    """One thread that carries out works in the order in which they come."""

    def __init__(
        self, disk: CommandDisk, post: Post, crashed: Callable[[BaseException], None]
    ) -> None:
        """Begin to wait for works.

        Args:
            disk: What carries them out; from now on it is the thread's.
            post: How answers come into the loop.
            crashed: Called in the loop when a work was none that a disk can carry out: our bug.
                Nothing is carried out after it.
        """
        self._disk = disk
        self._post = post
        self._crashed = crashed
        self._works: queue.SimpleQueue[tuple[DiskWork, Answers] | None] = queue.SimpleQueue()
        self._is_cut = False
        # No daemon: the interpreter's end must not stop it in the middle of a write. A program that
        # ends without closing it is not held up either (``_next``).
        self._thread = threading.Thread(target=self._run, name="whimbrel-disk")
        self._thread.start()

    def submit(self, work: DiskWork, answers: Answers) -> None:
        """Carry a work out after those before; returns at once.

        Args:
            work: The work.
            answers: Called once with its answer, in the loop.

        Raises:
            OverloadedError: Too many wait; nothing has happened.
        """
        if self._works.qsize() >= WORKS_MAX:
            raise OverloadedError(f"{WORKS_MAX} works wait for the disk")
        self._works.put((work, answers))

    def close(self, timeout_s: float) -> bool:
        """Carry out what waits and end the thread. Blocks; the loop calls it in another thread.

        Args:
            timeout_s: How long to wait. A thread that takes longer ends after the work it is at,
                and what waits is not carried out.

        Returns:
            Whether the thread has ended; else it may still be at a file.
        """
        self._works.put(None)
        self._thread.join(timeout_s)
        self._is_cut = self._thread.is_alive()
        return not self._is_cut

    def _run(self) -> None:
        while (item := self._next()) is not None and not self._is_cut:
            work, answers = item
            try:
                answer = self._disk.answer_to(work)
            except BaseException as problem:
                self._tell(self._crashed, problem)
                break
            self._tell(answers, answer)
        self._disk.close()

    def _next(self) -> tuple[DiskWork, Answers] | None:
        """The next work, as soon as there is one; None when there will be none."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._works.get(timeout=IDLE_S)
            if not threading.main_thread().is_alive():
                return None

    def _tell(self, callback: Callable[..., None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._post(callback, what)
