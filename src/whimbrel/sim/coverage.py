"""The "sometimes" list: rare situations that a good set of runs must have met.

A run that meets none of them is too tame to prove anything. Each subject writes down its own
(``Sightings``), from the true state of the members or from the messages and notes that pass; the
core has no probe in it. What no run can meet yet is named with the reason, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.sim.registry import RULES
from whimbrel.sim.rule import Sightings

SITUATIONS: tuple[str, ...] = tuple(
    name for kind in RULES if issubclass(kind, Sightings) for name in kind.situations
)
"""Everything that a soak must have met."""
OUT_OF_REACH: dict[str, str] = {
    "migration STEP_DOWN": "no target of the assignment needs one (a property test shows it)",
    "a cycle is dropped": "the assignment makes none (P10 checks it); a property test drops them",
}
"""Of the list, what no run can meet, and why."""


def report_lines(seen: Mapping[str, int]) -> list[str]:
    """The whole list with how often each situation was met, for people."""
    met = sum(1 for name in SITUATIONS if seen.get(name))
    lines = [f"{met} of {len(SITUATIONS)} situations were met"]
    lines += [f"{seen.get(name, 0):>9}  {name}" for name in SITUATIONS]
    lines += [f"        -  {name} (out of reach: {why})" for name, why in OUT_OF_REACH.items()]
    return lines
