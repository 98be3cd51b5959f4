"""Long work in pieces, so that a member can do other things in between.

A *job* is a generator that yields after each piece and returns its result. Pieces are counted in
rows or entries, never in time, so the same job has the same pieces everywhere. Whoever runs a job
takes care that what it reads does not change before it has ended, or drops it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")

Job = Generator[None, None, Result]
"""Work in pieces that ends with a result."""


def finish(job: Job[Result]) -> Result:
    """Do all that is left of a job, and return its result."""
    while True:
        try:
            next(job)
        except StopIteration as end:
            result: Result = end.value
            return result
