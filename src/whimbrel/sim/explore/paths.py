"""Paths through a tiny world as files, so that what was found once is seen again at once.

One statement a line, ``#`` begins a comment::

    world move-crash
    bug committed_too_early
    step deliver a b control
    step crash a
    expect broken P6

Words of a step stand as the universe knows them, ``-`` for the sender of news. ``expect`` is
``safe``, or ``broken`` with the rule.
"""

from __future__ import annotations

import msgspec

from whimbrel.errors import UsageError
from whimbrel.sim.explore.judge import Judge
from whimbrel.sim.explore.lab import Plant
from whimbrel.sim.explore.search import Finding, lines_of
from whimbrel.sim.explore.state import Transition
from whimbrel.sim.explore.universe import Universe
from whimbrel.sim.explore.worlds import worlds_named
from whimbrel.sim.registry import BUGS

SAFE = "safe"


class PathFile(msgspec.Struct, frozen=True):
    """A path written down."""

    world: str
    steps: tuple[Transition, ...]
    expectation: str = SAFE
    """``safe`` or the rule that must be broken."""
    bug: str = ""

    @property
    def text(self) -> str:
        """As a file."""
        lines = [f"world {self.world}"]
        if self.bug:
            lines.append(f"bug {self.bug}")
        lines += ["step " + " ".join(word or "-" for word in step) for step in self.steps]
        is_safe = self.expectation == SAFE
        lines.append(f"expect {SAFE}" if is_safe else f"expect broken {self.expectation}")
        return "\n".join(lines) + "\n"

    def play(self) -> tuple[list[tuple[str, str]], list[str]]:
        """What the path breaks, as (rule, sentence), and the path for people.

        Raises:
            UsageError: A step is not possible where the path takes it.
        """
        universe = Universe(worlds_named(self.world)[0], plant_named(self.bug))
        judge = Judge(universe)
        root = state = universe.begin()
        broken: list[tuple[str, str]] = []
        for number, step in enumerate(self.steps, 1):
            possible = universe.transitions(state)
            if universe.is_silent(state):
                possible += [*universe.after_rest(state), *universe.passing(state)]
            if step not in possible:
                raise UsageError(f"step {number}, {' '.join(step)!r}, is not possible there")
            move = universe.take(state, step)
            broken += judge.of_move(move)
            state = move.state
        if universe.is_silent(state) and not judge.unsettled_because(state):
            broken += judge.of_rest(state)
        return broken, lines_of(universe, root, self.steps)

    def is_as_expected(self, broken: list[tuple[str, str]]) -> bool:
        """Whether what was broken is what the file says."""
        rules = [rule for rule, _ in broken]
        return not rules if self.expectation == SAFE else self.expectation in rules


def path_of(finding: Finding, bug: str = "") -> PathFile:
    """The file that shows a finding again."""
    return PathFile(finding.world, finding.path, finding.rule, bug)


def plant_named(name: str) -> Plant | None:
    """How a planted bug is put into a member; None for no name.

    Raises:
        UsageError: There is no such bug.
    """
    if not name:
        return None
    bug = BUGS.get(name)
    if bug is None:
        raise UsageError(f"no bug is called {name!r}; there are: {', '.join(BUGS)}")
    return bug.plant


def parse_path(text: str) -> PathFile:
    """A path from its file.

    Raises:
        UsageError: A line is none of the statements; names the line.
    """
    world, bug, expectation = "", "", SAFE
    steps: list[Transition] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        match words:
            case []:
                continue
            case ["world", name]:
                world = name
            case ["bug", name]:
                bug = name
            case ["step", *rest] if rest:
                steps.append(tuple("" if word == "-" else word for word in rest))
            case ["expect", "safe"]:
                expectation = SAFE
            case ["expect", "broken", rule]:
                expectation = rule
            case _:
                raise UsageError(
                    f"line {number}, {line.strip()!r}, is no world, bug, step or expect"
                )
    if not world:
        raise UsageError("the file names no world")
    worlds_named(world)
    return PathFile(world, tuple(steps), expectation, bug)
