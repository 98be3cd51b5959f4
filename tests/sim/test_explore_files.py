"""Tiny worlds of members that keep files: power is lost, members return to a stable cluster."""

from __future__ import annotations

from typing import Any

import pytest

from whimbrel.sim.explore.disks import DONE, LOST, TORN
from whimbrel.sim.explore.image import digest
from whimbrel.sim.explore.lab import GONE, Plant
from whimbrel.sim.explore.power import ALL
from whimbrel.sim.explore.search import Exploration, Search
from whimbrel.sim.explore.state import State
from whimbrel.sim.explore.universe import Universe
from whimbrel.sim.explore.worlds import WORLDS, worlds_named
from whimbrel.sim.registry import BUGS

STATES_MAX = 100_000


def explored(name: str, plant: Plant | None = None) -> Exploration:
    return Search(WORLDS[name], plant, STATES_MAX).run()


def assert_holds(found: Exploration) -> None:
    assert found.is_complete
    assert [(one.rule, one.sentence) for one in found.violations] == []
    assert found.unsettled == 0
    assert found.settled >= 1


@pytest.mark.parametrize("name", ["put-power", "put-power-primary"])
def test_power_is_lost_at_any_event_of_a_write(name: str) -> None:
    """S1, S3, S7, APR-06: the whole cluster, or the primary, loses its power at any event, what was
    not synced is lost, kept or torn; all comes back, and what was acknowledged is there.
    """
    assert_holds(explored(name))


@pytest.mark.parametrize("name", ["stable", "stable-backup", "stable-deep", "stable-mixed"])
def test_copies_are_never_lowered_when_a_member_returns(name: str) -> None:
    """ADL-46, APR-36, APR-40, APR-41, APR-42, S6: a member returns to a stable cluster with its
    files; at every event of every order as many members hold each acknowledged entry as before and
    after, and the row is the stable one in the end.
    """
    assert_holds(explored(name))


def test_the_plan_of_the_paper_lowers_them() -> None:
    """APR-41: stepping down to an index that a structure does not keep leaves one copy of two."""

    def plant(engine: Any) -> None:
        migrations = engine.member.migrations
        vars(migrations)["fewest_backups"] = lambda _count: None
        migrations.stable.fewest_backups = 2

    first = explored("stable-mixed", plant).violations[0]
    assert first.rule == "P5"
    assert "1 members hold" in first.sentence


@pytest.mark.parametrize(
    ("bug", "world", "rules"),
    [
        ("acknowledged_before_sync", "put-power", {"S1"}),
        ("backup_acknowledges_before_sync", "put-power", {"S1"}),
        ("recovery_without_all", "put-power", {"S1"}),
    ],
)
def test_planted_bugs_of_disks_are_found(bug: str, world: str, rules: set[str]) -> None:
    """Goal: the rules of these worlds see something."""
    found = explored(world, BUGS[bug].plant)
    assert found.violations and found.violations[0].rule in rules, found.violations[:1]


def until(universe: Universe, state: State, verb: str) -> State:
    """On the first way, to where this may happen."""
    for _ in range(200):
        choices = [one for one in universe.transitions(state) if one[0] != "power"]
        if any(one[0] == verb for one in choices):
            return state
        if not choices:
            choices = universe.passing(state) or universe.after_rest(state)
        state = universe.take(state, choices[0]).state
    raise AssertionError(f"nobody comes to {verb}")


def test_a_loss_leaves_each_disk_in_one_of_a_few_ways() -> None:
    """Goal: what a disk was asked for is not done, done, or done in part."""
    universe = Universe(WORLDS["put-power"])
    assert universe.power is not None
    state = until(universe, universe.begin(), "write")
    losses = universe.after_rest(state)
    assert losses[-1] == ("power", ALL, LOST * 2), "all is on the platter: there is one way"
    state = until(universe, state, "disk")
    ways = {
        how for verb, _, *rest in universe.transitions(state) if verb == "power" for how in rest
    }
    assert len(ways) > 2 and {letter for way in ways for letter in way} == {LOST, DONE, TORN}
    for way in sorted(ways):
        after = universe.take(state, ("power", ALL, way)).state
        assert after.is_dark and after.away == ("a", "b") and set(after.members) == {GONE}
        assert not any(after.works) and after.links == ()


def test_a_member_in_the_middle_of_a_load_is_made_again_alike() -> None:
    """Goal: what cannot be copied is told apart, and its next steps are those of the first one."""
    universe = Universe(WORLDS["put-power"])
    state = until(universe, universe.begin(), "write")
    state = universe.take(state, ("power", ALL, LOST * 2)).state
    state = until(universe, state, "deliver")
    loading = 0
    for _ in range(60):
        choices = universe.transitions(state) or universe.passing(state)
        state = universe.take(state, choices[0]).state
        for name, number in zip(universe.names, state.members, strict=True):
            seat = universe.lab.seat(number)
            if seat.member.persistence._loading is not None:
                loading += 1
                assert digest(universe.lab.copy(number), name) == digest(seat, name)
    assert loading


def test_worlds_with_files_are_among_the_default_ones() -> None:
    names = {world.name for world in worlds_named("default")}
    assert {"move-power", "put-power", "promotion-power", "stable", "stable-mixed"} <= names
    assert not {"move-power-source", "put-power-return", "stable-two"} & names
