"""Goals of a benchmark beside what was found, as part of its document and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Goal(NamedTuple):
    """One goal and what became of it."""

    text: str
    found: str
    """In words and figures; what is missing when it could not be judged."""
    is_met: bool | None
    """None when it could not be judged."""


def at_most(text: str, figure: float | None, limit: float, unit: str = "") -> Goal:
    """A figure that must not be above a limit; None was not measured."""
    return _goal(text, figure, None if figure is None else figure <= limit, unit)


def at_least(text: str, figure: float | None, limit: float, unit: str = "") -> Goal:
    """A figure that must not be below a limit; None was not measured."""
    return _goal(text, figure, None if figure is None else figure >= limit, unit)


def _goal(text: str, figure: float | None, is_met: bool | None, unit: str) -> Goal:
    found = "not measured" if figure is None else f"{figure:,.4g}{unit and ' '}{unit}"
    return Goal(text, found, is_met)


def documents(goals: Sequence[Goal]) -> list[dict[str, object]]:
    """As they stand in the figures of a benchmark."""
    return [{"goal": goal.text, "found": goal.found, "met": goal.is_met} for goal in goals]


def table(goals: Sequence[dict[str, object]]) -> tuple[str, list[str], list[list[str]]]:
    """For people, from those documents: title, columns, rows."""
    words = {True: "met", False: "not met", None: "not judged"}
    rows = [
        [str(goal["goal"]), str(goal["found"]), words[goal["met"]]]  # type: ignore[index]
        for goal in goals
    ]
    return "Goals", ["goal", "found", ""], rows
