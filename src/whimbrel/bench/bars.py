"""Bars of text, for charts in tables."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 24
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def bar(value: float, most: float, width: int = WIDTH) -> str:
    """A bar as long as ``value`` is of ``most``, which fills ``width`` columns; never longer."""
    eighths = round(8 * width * min(1.0, max(0.0, value / most))) if most > 0 else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
