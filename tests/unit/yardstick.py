"""How fast this machine is just now, so that limits in milliseconds mean the same on every one."""

from __future__ import annotations

import statistics
import time

CALM_MS = 0.65
"""CPU of one `stretch` on the two-core machine the goals were set on, with nothing beside it."""


def stretch() -> int:
    """A fixed piece of work of the planner's kind: dicts, tuples, a sort."""
    rows = {number: (number % 7, number % 11, number) for number in range(1_800)}
    order = sorted(rows, key=lambda number: rows[number])
    return sum(rows[number][0] for number in order if number % 3)


def slowdown() -> float:
    """How many times slower than a calm machine this one is now, at least 1."""
    taken = []
    for _ in range(9):
        begin_ns = time.thread_time_ns()
        stretch()
        taken.append((time.thread_time_ns() - begin_ns) / 1e6)
    return max(1.0, statistics.median(taken) / CALM_MS)
