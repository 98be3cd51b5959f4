"""Waiting for a job that members carry out, and showing how far it is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from whimbrel.cli.http import Admin
from whimbrel.errors import OperationError

POLL_S = 0.05
POLL_MAX_S = 0.5

Json = dict[str, Any]
Describe = Callable[[Json], str]
"""Says in a few words how a job stands."""


def await_job(
    port: Admin,
    path: str,
    name: str,
    describe: Describe,
    *,
    patience_s: float,
    words: str,
    is_watched: bool,
) -> Json:
    """Ask how a job stands until it is over; what is told of it then.

    Args:
        port: Who knows.
        path: Where it is asked for, by its name.
        name: Of the job.
        describe: For the bar, which is shown at a terminal.
        patience_s: How long it is asked for while nobody answers for it.
        words: What the bar says before anything is told.
        is_watched: Whether somebody looks.

    Raises:
        OperationError: Nobody knows of it any more.
    """
    pause_s, silent_s = POLL_S, 0.0
    with _bar(words, describe, is_shown=is_watched and sys.stdout.isatty()) as show:
        while True:
            try:
                found: Json = port.get(path, name=name)
            except OperationError:
                if silent_s >= patience_s:
                    raise
                silent_s += pause_s
            else:
                silent_s = 0.0
                show(found)
                if found["over"]:
                    return found
            time.sleep(pause_s)
            pause_s = min(POLL_MAX_S, pause_s * 1.5)


@contextlib.contextmanager
def _bar(words: str, describe: Describe, *, is_shown: bool) -> Iterator[Callable[[Json], None]]:
    if not is_shown:
        yield lambda _found: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task(words, total=None)

        def show(found: Json) -> None:
            progress.update(
                task,
                description=describe(found),
                total=found["total"] or None,
                completed=found["done"],
            )

        yield show
