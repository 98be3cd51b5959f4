"""What happened, one line an event: a ring for people and a running hash for machines.

Equal hashes of two runs mean equal histories (X3). The ring keeps the last lines only; the
*story* of a failure is those of them that mention a member or a partition. Lines of a member have
the cause of what happens there (docs/design/0016); those of the world around it have none.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

RING_LINES_MAX = 20_000
"""Lines kept for the report of a failure."""
STORY_LINES_MAX = 200
STORY_CAUSES_MAX = 3
TIMELINE_ROWS_MAX = 2_000
"""Rows of the readable time line; later ones are dropped, never the hash."""

Mark = tuple[int, str, str, str]
"""(time in microseconds, who, what, detail)"""
Line = tuple[int, str, str, str, str]
"""The same and its cause"""


class Trace:
    """The events of one run."""

    def __init__(self) -> None:
        self._ring: deque[Line] = deque(maxlen=RING_LINES_MAX)
        self._hash = hashlib.blake2b(digest_size=16)
        self._update = self._hash.update
        self._append = self._ring.append
        self._step: list[Line] | None = None
        """Lines of a member's step whose cause may still come to be."""
        self.lines_count = 0
        """All lines there were, also those that the ring has lost."""
        self.timeline: list[Mark] = []
        """What a person wants to read: faults, views, phases, losses."""

    def add(self, time_us: int, who: str, what: str, detail: str = "", cause: str = "") -> None:
        """Record an event; within a step without a cause it gets that of the step."""
        if self._step is not None:
            self._step.append((time_us, who, what, detail, cause))
            return
        self._append((time_us, who, what, detail, cause))
        self._update(f"{time_us} {who} {what} {detail} {cause}\n".encode())
        self.lines_count += 1

    def mark(self, time_us: int, who: str, what: str, detail: str = "", cause: str = "") -> None:
        """Record an event that also belongs on the time line."""
        self.add(time_us, who, what, detail, cause)
        if len(self.timeline) < TIMELINE_ROWS_MAX:
            self.timeline.append((time_us, who, what, detail))

    def begin_step(self) -> list[Line] | None:
        """A member begins to handle something; what it follows from may come to be on the way.

        Returns:
            For ``end_step``: the lines of the step in which this one happens, if it does.
        """
        outer, self._step = self._step, []
        return outer

    def end_step(self, cause: str, outer: list[Line] | None) -> None:
        """It is done, and this is what it followed from; empty when nothing came of it."""
        lines, self._step = self._step or [], outer
        for time_us, who, what, detail, known in lines:
            self.add(time_us, who, what, detail, known or cause)

    def keep(self, lines_max: int) -> None:
        """Keep so many lines instead of those that a failure needs; before the first line."""
        self._ring = deque(maxlen=lines_max)
        self._append = self._ring.append

    @property
    def lines(self) -> Sequence[Line]:
        """The last lines, oldest first."""
        return self._ring

    @property
    def digest(self) -> str:
        """Hash over every line so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()

    def story(self, words: Sequence[str] = ()) -> list[str]:
        """The last lines that mention one of the words (all lines when there are none).

        With them come those of the causes of the last few that mention all of them.
        """
        chosen: list[str] = []
        causes: dict[str, None] = {}
        for line in reversed(self._ring):
            text = render(line)
            is_of_all = words and all(word in text for word in words)
            if is_of_all and line[4] and len(causes) < STORY_CAUSES_MAX:
                causes[line[4]] = None
            if not words or line[4] in causes or any(word in text for word in words):
                chosen.append(text)
                if len(chosen) == STORY_LINES_MAX:
                    break
        chosen.reverse()
        return chosen


def render(line: Mark | Line) -> str:
    """One line for people: seconds, who, what, detail."""
    time_us, who, what, detail = line[:4]
    return f"{time_us / 1_000_000:12.6f} {who:<4} {what} {detail}".rstrip()
