"""Breadth first through all states of a tiny world, each once."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from whimbrel.sim.explore.judge import Judge
from whimbrel.sim.explore.lab import Plant
from whimbrel.sim.explore.state import Move, State, Transition
from whimbrel.sim.explore.universe import Universe
from whimbrel.sim.explore.worlds import TinyWorld, name_of

REPORT_EVERY = 2_000
"""States between two words of progress."""
VIOLATIONS_MAX = 5
"""A world ends after this many broken rules: what follows from the first is no news."""
STATES_MAX = 2_000_000

_MISHAPS = ("crash", "double", "power", "reset", "restart", "vanish")
"""Transitions that nobody may count on to become settled."""


class Finding(msgspec.Struct, frozen=True):
    """A rule that was broken, or a state from which no settled one is reached."""

    rule: str
    sentence: str
    world: str
    path: tuple[Transition, ...]
    """From the beginning of the world."""
    lines: tuple[str, ...]
    """The path for people."""


class Progress(msgspec.Struct, frozen=True):
    """How far a search is."""

    world: str
    states: int
    frontier: int
    depth: int
    steps_run: int


class Exploration(msgspec.Struct, frozen=True):
    """What a search found."""

    world: str
    states: int
    transitions: int
    settled: int
    """Settled final states."""
    unsettled: int
    """States from which no settled one is reached without a further mishap."""
    depth: int
    steps_run: int
    """Different steps of a member that the core ran."""
    is_complete: bool
    """Whether all states were seen; False after a limit or a violation."""
    violations: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "world": self.world,
            "states": self.states,
            "transitions": self.transitions,
            "settled": self.settled,
            "unsettled": self.unsettled,
            "depth": self.depth,
            "steps_run": self.steps_run,
            "complete": self.is_complete,
            "violations": [
                {"rule": one.rule, "sentence": one.sentence, "path": list(one.lines)}
                for one in self.violations
            ],
        }


class Search:
    """One exploration."""

    def __init__(
        self,
        world: TinyWorld,
        plant: Plant | None = None,
        states_max: int = STATES_MAX,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.world = world
        self.universe = Universe(world, plant)
        self.judge = Judge(self.universe)
        self.states_max = states_max
        self.findings: list[Finding] = []
        self._on_progress = on_progress
        self._numbers: dict[bytes, int] = {}
        self._parents = array("q")
        self._taken: list[Transition] = []
        self._interned: dict[Transition, Transition] = {}
        self._from, self._to = array("L"), array("L")
        """Edges that are no mishaps."""
        self._ends: list[int] = []
        self._transitions = 0
        self._depth = 0
        self._cut = False

    def run(self) -> Exploration:
        """Walk; ends at the first few violations or at ``states_max``."""
        root = self.universe.begin()
        self._root = root
        self._number(root, -1, ("begin",))
        for rule, sentence in self.universe.begun_broken:
            self._find(rule, sentence, 0)
        frontier: deque[tuple[int, State]] = deque([(0, root)])
        level_ends, reported = 0, 0
        while frontier and len(self.findings) < VIOLATIONS_MAX and not self._cut:
            number, state = frontier.popleft()
            if number > level_ends:
                self._depth += 1
                level_ends = len(self._taken) - 1
            self._expand(number, state, frontier)
            if self._on_progress is not None and len(self._taken) - reported >= REPORT_EVERY:
                reported = len(self._taken)
                self._tell(len(frontier))
        is_complete = not frontier and not self._cut
        stuck = self._stuck() if is_complete and not self.findings else []
        if stuck:
            self._find("L1", "no settled state is reached from here", stuck[0])
        return Exploration(
            self.world.name,
            len(self._taken),
            self._transitions,
            len(self._ends),
            len(stuck),
            self._depth,
            self.universe.lab.steps_run,
            is_complete,
            tuple(self.findings),
        )

    def _tell(self, frontier: int) -> None:
        if self._on_progress is not None:
            steps = self.universe.lab.steps_run
            self._on_progress(
                Progress(self.world.name, len(self._taken), frontier, self._depth, steps)
            )

    def _number(self, state: State, parent: int, transition: Transition) -> tuple[int, bool]:
        """The number of a state, and whether it is new."""
        key = state.digest()
        number = self._numbers.get(key)
        if number is not None:
            return number, False
        number = self._numbers[key] = len(self._taken)
        self._parents.append(parent)
        self._taken.append(self._interned.setdefault(transition, transition))
        return number, True

    def _expand(self, number: int, state: State, frontier: deque[tuple[int, State]]) -> None:
        universe = self.universe
        transitions = universe.transitions(state)
        if universe.is_silent(state):
            if not self.judge.unsettled_because(state):
                self._ends.append(number)
                for rule, sentence in self.judge.of_rest(state):
                    self._find(rule, sentence, number)
                transitions = universe.after_rest(state)
            else:
                transitions += universe.passing(state)
        for transition in transitions:
            move = universe.take(state, transition)
            self._transitions += 1
            after, is_new = self._number(move.state, number, transition)
            if transition[0] not in _MISHAPS:
                self._from.append(number)
                self._to.append(after)
            if is_new:
                frontier.append((after, move.state))
                if len(self._taken) >= self.states_max:
                    self._cut = True
                    return
            self._judge(move, number, transition, is_new)

    def _judge(self, move: Move, number: int, transition: Transition, is_new: bool) -> None:
        if not is_new and (move.outcome is None or not move.outcome.rows):
            return
        for rule, sentence in self.judge.of_move(move):
            self._find(rule, sentence, number, transition)

    def _find(self, rule: str, sentence: str, number: int, last: Transition | None = None) -> None:
        if len(self.findings) >= VIOLATIONS_MAX:
            return
        path = self.path_to(number)
        if last is not None:
            path = (*path, last)
        lines = tuple(lines_of(self.universe, self._root, path))
        self.findings.append(Finding(rule, sentence, self.world.name, path, lines))

    def path_to(self, number: int) -> tuple[Transition, ...]:
        """How a state was reached first: a shortest way."""
        path: list[Transition] = []
        while number > 0:
            path.append(self._taken[number])
            number = self._parents[number]
        return tuple(reversed(path))

    def _stuck(self) -> list[int]:
        """States from which no settled one is reached."""
        before: dict[int, list[int]] = {}
        for origin, target in zip(self._from, self._to, strict=True):
            before.setdefault(target, []).append(origin)
        good = bytearray(len(self._taken))
        waiting = list(self._ends)
        for number in waiting:
            good[number] = 1
        while waiting:
            for origin in before.get(waiting.pop(), ()):
                if not good[origin]:
                    good[origin] = 1
                    waiting.append(origin)
        return [number for number, is_good in enumerate(good) if not is_good]


def lines_of(universe: Universe, root: State, path: tuple[Transition, ...]) -> list[str]:
    """A path for people, one line a transition, with the rows that change."""
    lines: list[str] = []
    state = root
    for transition in path:
        text = universe.text(state, transition)
        move = universe.take(state, transition)
        if move.outcome is not None:
            for pid, _, after, version in move.outcome.rows:
                row = "".join("-" if slot is None else name_of(slot) for slot in after).rstrip("-")
                text += f"   [{move.who}: p{pid} v{version} {row}]"
        lines.append(text)
        state = move.state
    return lines
