"""What is seen of the demonstration while it runs: sentences, progress bars, tables.

Knows the terminal and nothing else. Writes to stdout, or to stderr when stdout is for the report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

COLOURS: Final = {"join": "green", "kill": "red", "leave": "yellow"}


class Narrator:
    """Tells the story; a context manager that owns the live part of the terminal."""

    def __init__(self, to_stderr: bool) -> None:
        # A descriptor of our own: stderr itself is turned into a log while Java starts.
        self._file: TextIO = os.fdopen(os.dup(2 if to_stderr else 1), "w", encoding="utf-8")
        self._console = Console(file=self._file, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=False,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._file.flush()

    def close(self) -> None:
        """Give the terminal back."""
        self._file.close()

    def title(self, text: str) -> None:
        """The beginning of an act."""
        self._console.print(f"\n[bold]{text}[/]")

    def say(self, text: str, colour: str = "default") -> None:
        """A sentence."""
        self._console.print(f"  [{colour}]{text}[/]", soft_wrap=True)

    def bar(self, text: str, total: int, unit: str) -> Bar:
        """A new progress bar."""
        task = self._progress.add_task(text, total=total, unit=unit)
        return Bar(self._progress, task, total)

    def change(self, change: Mapping[str, Any]) -> None:
        """What a change of the members cost."""
        kind = str(change["kind"])
        done = "" if change["exit_status"] is None else f", exit status {change['exit_status']}"
        self.say(
            f"{kind}: safe again after {change['time_to_safe_s']:.1f} s, "
            f"{change['copies']} copies moved, {change['least_copies']} were the least possible"
            f"{done}",
            COLOURS.get(kind, "default"),
        )

    def table(self, title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table of a few rows."""
        found = Table(title=title, title_justify="left", title_style="bold")
        for name in names:
            is_number = bool(rows) and isinstance(rows[0][list(names).index(name)], int | float)
            found.add_column(name, justify="right" if is_number else "left")
        for row in rows:
            found.add_row(*(_cell(value) for value in row))
        self._console.print(found)

    def verdict(self, is_good: bool, text: str) -> None:
        """The last word."""
        colour = "bold green" if is_good else "bold red"
        self._console.print(f"\n[{colour}]{text}[/]", soft_wrap=True)


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, task: TaskID, total: int) -> None:
        self._progress = progress
        self._task = task
        self._total = total

    def to(self, done: int) -> None:
        """Show that so much is done."""
        self._progress.update(self._task, completed=min(done, self._total))

    def finish(self) -> None:
        """Show that everything is done."""
        self._progress.update(self._task, completed=self._total)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
