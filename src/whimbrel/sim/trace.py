"""What happened, one line an event: a ring for people and a running hash for machines.

Equal hashes of two runs mean equal histories (X3). The ring keeps the last lines only; the
*story* of a failure is those of them that mention a member or a partition.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

RING_LINES_MAX = 20_000
"""Lines kept for the report of a failure."""
STORY_LINES_MAX = 200
TIMELINE_ROWS_MAX = 2_000
"""Rows of the readable time line; later ones are dropped, never the hash."""

Line = tuple[int, str, str, str]
"""(time in microseconds, who, what, detail)"""


class Trace:
    """The events of one run."""

    def __init__(self) -> None:
        self._ring: deque[Line] = deque(maxlen=RING_LINES_MAX)
        self._hash = hashlib.blake2b(digest_size=16)
        self._update = self._hash.update
        self._append = self._ring.append
        self.timeline: list[Line] = []
        """What a person wants to read: faults, views, phases, losses."""

    def add(self, time_us: int, who: str, what: str, detail: str = "") -> None:
        """Record an event."""
        self._append((time_us, who, what, detail))
        self._update(f"{time_us} {who} {what} {detail}\n".encode())

    def mark(self, time_us: int, who: str, what: str, detail: str = "") -> None:
        """Record an event that also belongs on the time line."""
        self.add(time_us, who, what, detail)
        if len(self.timeline) < TIMELINE_ROWS_MAX:
            self.timeline.append((time_us, who, what, detail))

    @property
    def digest(self) -> str:
        """Hash over every line so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()

    def story(self, words: Sequence[str] = ()) -> list[str]:
        """The last lines that mention one of the words (all lines when there are none)."""
        chosen: list[str] = []
        for line in reversed(self._ring):
            text = render(line)
            if not words or any(word in text for word in words):
                chosen.append(text)
                if len(chosen) == STORY_LINES_MAX:
                    break
        chosen.reverse()
        return chosen


def render(line: Line) -> str:
    """One line for people: seconds, who, what, detail."""
    time_us, who, what, detail = line
    return f"{time_us / 1_000_000:12.6f} {who:<4} {what} {detail}".rstrip()
