"""Scenario files: a run written down as verbs, so that a fixed bug stays fixed.

A seed is valid for one state of the code only; its plan and fault events are not. A file has one
statement a line, ``#`` begins a comment::

    seed 4711
    profile kill
    set members 3
    set partitions 7
    at 12.500000 crash m2
    expect safe

``set`` overrides a drawn parameter, ``at`` is a fault at a simulated second, ``expect`` is
``safe`` (no rule is broken) or ``broken RULE`` (only with a planted bug, ``bug NAME``).
"""

from __future__ import annotations

import msgspec

from whimbrel.errors import UsageError
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.nemesis import FaultEvent
from whimbrel.sim.planted import BUGS
from whimbrel.sim.profile import Plan, draw_plan, profile_named
from whimbrel.sim.run import Report, simulate

SAFE = "safe"
_PLAN_FIELDS = ("members", "hosts", "smart_clients", "single_clients", "operations_per_s", "rounds")
_SETTING_FIELDS = {"partitions": "partition_count"}


class Scenario(msgspec.Struct, frozen=True):
    """A run written down."""

    seed: int
    profile: str
    overrides: dict[str, int]
    events: tuple[FaultEvent, ...]
    expectation: str = SAFE
    """``safe``, or the rule that must be broken."""
    bug: str = ""

    @property
    def text(self) -> str:
        """As a file."""
        lines = [f"seed {self.seed}", f"profile {self.profile}"]
        if self.bug:
            lines.append(f"bug {self.bug}")
        lines += [f"set {name} {value}" for name, value in self.overrides.items()]
        lines += [event.text() for event in self.events]
        lines.append(
            f"expect {self.expectation}"
            if self.expectation == SAFE
            else f"expect broken {self.expectation}"
        )
        return "\n".join(lines) + "\n"

    def plan(self) -> Plan:
        """The drawn plan with the overrides.

        Raises:
            UsageError: There is no such profile.
        """
        plan = draw_plan(Entropy(self.seed), profile_named(self.profile))
        fields = {name: value for name, value in self.overrides.items() if name in _PLAN_FIELDS}
        settings = {
            _SETTING_FIELDS[name]: value
            for name, value in self.overrides.items()
            if name in _SETTING_FIELDS
        }
        return msgspec.structs.replace(
            plan, settings=msgspec.structs.replace(plan.settings, **settings), **fields
        )

    def play(self) -> Report:
        """Run it."""
        bug = BUGS[self.bug] if self.bug else None
        return simulate(
            self.seed, self.profile, bug=bug, script=list(self.events), plan=self.plan()
        )

    def is_as_expected(self, report: Report) -> bool:
        """Whether a report is what the file says."""
        broken = [violation.rule for violation in report.violations]
        return not broken if self.expectation == SAFE else self.expectation in broken


def parse_scenario(text: str) -> Scenario:
    """A scenario from its file.

    Raises:
        UsageError: A line is none of the statements; names the line.
    """
    seed, profile, expectation, bug = 0, "swarm", SAFE, ""
    overrides: dict[str, int] = {}
    events: list[FaultEvent] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            match words:
                case []:
                    pass
                case ["seed", value]:
                    seed = int(value)
                case ["profile", value]:
                    profile = value
                case ["bug", value] if value in BUGS:
                    bug = value
                case ["set", name, value] if name in (*_PLAN_FIELDS, *_SETTING_FIELDS):
                    overrides[name] = int(value)
                case ["at", second, verb, *rest]:
                    events.append(_event(second, verb, rest))
                case ["expect", "safe"]:
                    expectation = SAFE
                case ["expect", "broken", rule]:
                    expectation = rule
                case _:
                    raise ValueError("no statement")
        except ValueError as error:
            raise UsageError(
                f"line {number}: {line.strip()!r} is no statement ({error})"
            ) from error
    return Scenario(seed, profile, overrides, tuple(events), expectation, bug)


def _event(second: str, verb: str, rest: list[str]) -> FaultEvent:
    value = int(rest.pop()) if rest and rest[-1].isdigit() else 0
    return FaultEvent(round(float(second) * 1_000_000), verb, tuple(rest), value)
