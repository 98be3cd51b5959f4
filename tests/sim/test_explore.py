"""The exhaustive explorer: tiny worlds walked whole, planted bugs found, equal digests honest."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from whimbrel.cli.main import run
from whimbrel.core.model import MigrationKind
from whimbrel.errors import UsageError
from whimbrel.sim.explore.image import clone, digest
from whimbrel.sim.explore.paths import parse_path, path_of, plant_named
from whimbrel.sim.explore.search import Exploration, Search
from whimbrel.sim.explore.state import State, Transition
from whimbrel.sim.explore.universe import Universe
from whimbrel.sim.explore.worlds import WORLDS, worlds_named


def explored(name: str, bug: str = "", states_max: int = 20_000) -> Exploration:
    return Search(WORLDS[name], plant_named(bug), states_max).run()


KINDS = [kind.value.lower().replace("_", "-") for kind in MigrationKind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_interleaving_of_one_migration_settles(kind: str) -> None:
    """ADL-16, ADL-17, ADL-18, ADL-19, ADL-22: a migration of each kind, in every order of its
    messages, breaks no rule and comes to rest with one table.
    """
    found = explored(kind)
    assert found.is_complete
    assert found.violations == ()
    assert found.unsettled == 0
    assert found.settled >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_doubled_message_or_a_broken_connection_anywhere_changes_nothing(kind: str) -> None:
    """PIM-10, ADL-28, ADL-31: any message twice, any connection broken with what it carried."""
    found = explored(f"{kind}-mishap")
    assert found.is_complete
    assert found.violations == ()
    assert found.unsettled == 0


@pytest.mark.parametrize("kind", ["move", "clear", "promotion"])
def test_a_crash_of_anybody_anywhere_keeps_what_was_acknowledged(kind: str) -> None:
    """ADL-20, ADL-21, ADL-24, ADL-27, ADL-29, ADL-30, ADL-48, PIM-14: source, destination,
    master or bystander dies between any two messages, and all orders of what follows.
    """
    found = explored(f"{kind}-crash")
    assert found.is_complete
    assert found.violations == ()
    assert found.unsettled == 0


@pytest.mark.parametrize(
    ("bug", "world", "rules"),
    [
        ("committed_too_early", "move", {"P6"}),
        ("cleared_before_commit", "move-crash", {"P5", "D6"}),
        ("not_cleared", "move", {"D8", "X2"}),
        ("local_promotion", "promotion", {"P4"}),
        ("impatient_master", "move-crash", {"P7", "P2", "X2"}),
        ("writes_while_migrating", "move-write", {"P5", "D6", "D1"}),
    ],
)
def test_planted_bugs_are_found_and_their_paths_replay(
    bug: str, world: str, rules: set[str]
) -> None:
    """A planted mistake breaks a rule in some interleaving, and the written path shows it again."""
    found = explored(world, bug)
    assert found.violations
    first = found.violations[0]
    assert first.rule in rules
    path = parse_path(path_of(first, bug).text)
    broken, lines = path.play()
    assert path.is_as_expected(broken)
    assert lines == list(first.lines)
    without = parse_path(path_of(first).text)
    try:
        harmless, _ = without.play()
    except UsageError:
        return  # without the bug a message of the path is never sent
    assert not harmless


def test_planted_version_that_is_not_raised_is_found() -> None:
    """PIM-14: a failed migration that leaves the version one short lets two rows meet."""
    found = explored("copy-crash", "failed_version_not_raised")
    assert {finding.rule for finding in found.violations} & {"P2", "P7", "X2", "P6"}


def walk(universe: Universe, seed: int, length: int) -> tuple[list[Transition], list[State]]:
    """A random way through a universe."""
    generator = random.Random(seed)
    state = universe.begin()
    path: list[Transition] = []
    states = [state]
    for _ in range(length):
        choices = universe.transitions(state)
        if universe.is_silent(state):
            choices += universe.passing(state)
        if not choices:
            break
        path.append(generator.choice(choices))
        state = universe.take(state, path[-1]).state
        states.append(state)
    return path, states


class Pair(NamedTuple):
    """As settings and records are kept: a tuple whose parts have names."""

    number: int
    rows: list[int]


def test_tuples_with_names_are_copied_and_told_apart() -> None:
    """Goal: what a copy does to a part of one does not reach the original, one of parts that never
    change is itself still, and two that differ have two digests.
    """
    pair, fixed = Pair(1, [2]), Pair(1, ())  # type: ignore[arg-type]
    copy = clone({"pair": pair, "fixed": fixed})
    assert copy["pair"] == pair and type(copy["pair"]) is Pair and copy["fixed"] is fixed
    assert digest(copy["pair"]) == digest(pair)
    copy["pair"].rows.append(3)
    assert pair.rows == [2] and digest(copy["pair"]) != digest(pair)


@pytest.mark.parametrize("seed", range(4))
def test_equal_digests_behave_alike(seed: int) -> None:
    """Two members with one digest do the same with everything: a copy, and one made again."""
    world = WORLDS["move-both"]
    one = Universe(world)
    path, states = walk(one, seed, 60)
    again = Universe(world)
    state = again.begin()
    for transition, expected in zip(path, states[1:], strict=True):
        state = again.take(state, transition).state
        mine = [digest(again.lab.seat(member)) for member in state.members if member >= 0]
        others = [digest(one.lab.seat(member)) for member in expected.members if member >= 0]
        assert mine == others


@pytest.mark.parametrize("seed", range(3))
def test_states_reached_on_two_ways_have_the_same_futures(seed: int) -> None:
    """Where two orders of messages lead to one digest, every next step leads to equal ones, run
    anew on the members of either way.
    """
    world = WORLDS["move-crash"]
    universe, other = Universe(world), Universe(world)
    generator = random.Random(seed)
    state, met = universe.begin(), 0
    for _ in range(30):
        choices = universe.transitions(state)
        for first in choices:
            for second in choices:
                if first >= second or "crash" in (first[0], second[0]):
                    continue
                one = universe.take(state, first).state
                two = other_way(other, state, universe, second)
                if second not in universe.transitions(one) or first not in other.transitions(two):
                    continue
                one = universe.take(one, second).state
                two = other.take(two, first).state
                if whole(universe, one) == whole(other, two):
                    met += 1
                    assert futures(universe, one) == futures(other, two)
        if not choices:
            break
        state = universe.take(state, generator.choice(choices)).state
    assert met


def other_way(other: Universe, state: State, universe: Universe, step: Transition) -> State:
    """The same state in another lab, with copies of its members, one step on."""
    lab = other.lab
    members = tuple(
        member if member < 0 else lab.add(clone(universe.lab.seat(member)))
        for member in state.members
    )
    links = tuple(
        (key, tuple(lab.item(universe.lab.items[item]) for item in queue))
        for key, queue in state.links
    )
    same = msgspec.structs.replace(state, members=members, links=links)
    return other.take(same, step).state


def seats(universe: Universe, state: State) -> list[bytes]:
    return [digest(universe.lab.seat(member)) for member in state.members if member >= 0]


def whole(universe: Universe, state: State) -> tuple[list[bytes], str]:
    """All that tells two states apart, without numbers of a lab."""
    links = [(key, [universe.lab.items[item] for item in queue]) for key, queue in state.links]
    return seats(universe, state), repr((links, state.down, state.acked))


def futures(universe: Universe, state: State) -> dict[Transition, list[bytes]]:
    return {
        transition: seats(universe, universe.take(state, transition).state)
        for transition in universe.transitions(state)
    }


def test_a_snapshot_that_was_dropped_is_made_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members beyond the cache come back from their recipes with the same digest."""
    monkeypatch.setattr("whimbrel.sim.explore.lab.SNAPSHOTS_MAX", 5)
    universe = Universe(WORLDS["move"])
    _, states = walk(universe, 3, 40)
    lab = universe.lab
    for state in states:
        for member in state.members:
            assert digest(lab.seat(member), lab.names[member]) == next(
                key for key, number in lab._numbers.items() if number == member
            )


def test_the_command_tells_states_and_writes_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``--explore --json``: states, no violations, nothing unsettled."""
    assert run(["sim", "--explore", "--world", "move", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["violations"] == []
    assert document["unsettled"] == 0
    assert document["states"] == document["worlds"][0]["states"] > 30


def test_a_path_file_plays_and_a_wrong_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--replay``: a path as expected ends with 0; what is none is named by line or step."""
    file = tmp_path / "path.txt"
    file.write_text("world move\nbug committed_too_early\n" + PLANTED_PATH, encoding="utf-8")
    assert run(["sim", "--explore", "--replay", str(file)]) == 0
    assert "P6" in capsys.readouterr().out
    file.write_text("world move\nstep deliver c a control\n", encoding="utf-8")
    with pytest.raises(UsageError, match="step 1"):
        parse_path(file.read_text(encoding="utf-8")).play()
    with pytest.raises(UsageError, match="line 1"):
        parse_path("wrld move")
    with pytest.raises(UsageError, match="no world is called 'x'"):
        worlds_named("x")


PLANTED_PATH = """\
step deliver a b control
step deliver b c data
step deliver c b control
step deliver b c data
step deliver c b control
step deliver b a control
expect broken P6
"""
