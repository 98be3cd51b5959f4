"""Cutting a failing run down: fewer faults, fewer operations, fewer members.

First the fault events are dropped by ever smaller shares, then operations, rounds and members.
What is kept breaks the same rule. The result is a scenario, not a seed, because a seed is valid
for one state of the code only.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.report import Report
from whimbrel.sim.scenario import Scenario

RUNS_MAX = 60
"""Runs a shrinking may take."""


class Shrinker:
    """Tries smaller scenarios while they still break the rule."""

    def __init__(self, start: Scenario, play: Callable[[Scenario], Report] | None = None) -> None:
        self.best = start
        self.runs = 0
        self._play = play or Scenario.play

    def fails(self, candidate: Scenario) -> bool:
        """Whether a scenario still breaks the rule; a run is spent."""
        self.runs += 1
        return candidate.is_as_expected(self._play(candidate))

    def attempt(self, candidate: Scenario) -> bool:
        """Keep a candidate that still fails."""
        if self.runs >= RUNS_MAX or not self.fails(candidate):
            return False
        self.best = candidate
        return True

    def drop_events(self) -> None:
        """Drop fault events: halves first, single ones last."""
        share = max(1, len(self.best.events) // 2)
        while share:
            position = 0
            while position < len(self.best.events) and self.runs < RUNS_MAX:
                events = self.best.events
                fewer = events[:position] + events[position + share :]
                if not self.attempt(msgspec.structs.replace(self.best, events=fewer)):
                    position += share
            share //= 2

    def lower(self, name: str, values: tuple[int, ...]) -> None:
        """Try smaller values of a parameter, smallest first."""
        for value in values:
            overrides = {**self.best.overrides, name: value}
            if self.attempt(msgspec.structs.replace(self.best, overrides=overrides)):
                return


def shrink_run(report: Report, bug: str = "") -> Scenario:
    """The smallest scenario found that breaks the first rule of a failing report.

    Args:
        report: Of a run that broke a rule.
        bug: The planted bug of that run, if any.

    Returns:
        A scenario that breaks the rule; the whole run's events when nothing smaller does.
    """
    events: tuple[FaultEvent, ...] = report.fault_events
    start = Scenario(
        report.seed,
        report.profile,
        {},
        events,
        expectation=report.violations[0].rule,
        bug=bug,
        kinds=report.kinds,
    )
    shrinker = Shrinker(start)
    if not shrinker.fails(start):
        return start
    shrinker.drop_events()
    shrinker.lower("rounds", (1, 2))
    shrinker.lower("operations_per_s", (2, 10))
    shrinker.lower("members", (1, 2, 3))
    return shrinker.best
