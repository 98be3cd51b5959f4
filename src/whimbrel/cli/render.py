"""Text for people: tables and figures, with colours only at a terminal. Knows no cluster.

Imported only when text is wanted, because the library behind it takes time to load.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 200
"""Columns when the output goes to a file or pipe, so that nothing is cut off."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def console() -> Console:
    """The console of stdout; wide when nobody watches."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def table(*columns: str, title: str = "") -> Table:
    """An empty table; a column's name that starts with ``>`` is aligned to the right."""
    made = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", header_style="bold"
    )
    for name in columns:
        if name.startswith(">"):
            made.add_column(name[1:], justify="right")
        else:
            made.add_column(name, overflow="fold")
    return made


def safe(text: object) -> str:
    """A name from outside as plain text: no markup, no control characters."""
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def size(count: float) -> str:
    """Bytes for people: ``1.4 MB``."""
    number = float(count)
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return ""


def seconds(count: float | None) -> str:
    """A span for people: ``0.31 s``, ``42 s``, ``3 min 20 s``; a dash for none."""
    if count is None:
        return "-"
    if count < 10:
        return f"{count:.2f} s"
    if count < 120:
        return f"{count:.0f} s"
    minutes, rest = divmod(round(count), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(count: float) -> str:
    """A count with groups of three: ``1 234 567``."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def print_rows(made: Table, rows: Sequence[Sequence[str]], empty: str) -> None:
    """Fill and print a table, or the sentence when there are no rows."""
    out = console()
    if not rows:
        out.print(empty)
        return
    for row in rows:
        made.add_row(*row)
    out.print(made)
