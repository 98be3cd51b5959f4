"""Tiny worlds of four members, of two partitions, and with a restart; what the rules exempt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from whimbrel.core.ids import Address, PartitionId, ReplicaIndex
from whimbrel.core.messages import MigrationCommitRequested
from whimbrel.core.model import MigrationInfo, MigrationKind, Step
from whimbrel.core.stimuli import Received
from whimbrel.sim.explore.image import clone
from whimbrel.sim.explore.lab import Plant
from whimbrel.sim.explore.search import Exploration, Search
from whimbrel.sim.explore.step_rules import StepRules
from whimbrel.sim.explore.universe import Universe
from whimbrel.sim.explore.worlds import (
    REBORN,
    WORLDS,
    identity_of,
    name_of,
    row_of,
    worlds_named,
)
from whimbrel.sim.migration.rules import CommitOrder

STATES_MAX = 100_000


def explored(name: str, plant: Plant | None = None) -> Exploration:
    return Search(WORLDS[name], plant, STATES_MAX).run()


def assert_holds(found: Exploration) -> None:
    assert found.is_complete
    assert found.violations == ()
    assert found.unsettled == 0
    assert found.settled >= 1


@pytest.mark.parametrize("name", [name for name in WORLDS if name.endswith("-four")])
def test_four_members_in_every_order(name: str) -> None:
    """ADL-16, ADL-17, ADL-19: master, source and destination are three members, a fourth looks on;
    every order of the messages of a migration of each kind.
    """
    assert_holds(explored(name))


@pytest.mark.parametrize("name", ["copy-four-mishap", "step-down-four-mishap"])
def test_four_members_and_a_mishap(name: str) -> None:
    """PIM-10, ADL-28: any message twice, any connection broken, with a bystander."""
    assert_holds(explored(name))


def test_source_destination_or_bystander_dies_and_the_master_goes_on() -> None:
    """ADL-20, ADL-21, ADL-24, ADL-48, PIM-14: whoever but the master dies, at any moment; the
    former backup that a migration displaces is told late.
    """
    assert_holds(explored("move-four-crash"))


@pytest.mark.parametrize("name", ["moves", "move-copy", "moves-capped-mishap"])
def test_two_migrations_that_share_their_members(name: str) -> None:
    """PIM-22, PIM-24, PIM-25: side by side, or one after the other where the cap is one."""
    assert_holds(explored(name))


def test_planted_cap_that_is_not_kept_is_found() -> None:
    """PIM-24: the members' own check (P8) counts where each is source or destination."""

    def plant(engine: Any) -> None:
        queue = engine.member.migrations.loop.execution.queue
        vars(queue)["_is_full"] = lambda _member: False

    first = explored("moves-capped", plant).violations[0]
    assert first.rule == "X2"
    assert "no member takes part in more migrations" in first.sentence
    assert_holds(explored("moves-capped"))


def test_a_restart_on_the_same_address_while_the_migration_is_open() -> None:
    """ADL-21, M4: the source dies and a new process comes up in its place, heard of before or after
    the death; it is another member, and everything settles with it on the list.
    """
    assert_holds(explored("move-restart-source"))


def test_a_new_process_has_the_address_and_another_identity() -> None:
    """What is sent to the address reaches it; what is sent to the dead identity reaches nobody."""
    universe = Universe(WORLDS["move-restart-destination"])
    state = universe.begin()
    assert ("restart", "c") not in universe.transitions(state)
    state = universe.take(state, ("crash", "c")).state
    assert ("restart", "c") in universe.transitions(state)
    state = universe.take(state, ("restart", "c")).state
    assert ("restart", "c") not in universe.transitions(state)
    born = universe.lab.seat(state.members[universe.names.index(REBORN)]).member
    assert (name_of(born.ctx.id), born.ctx.me.address.host) == (REBORN, "c")
    while any(key[0] == REBORN or key[1] == REBORN for key, _ in state.links):
        key = next(key for key, _ in state.links if REBORN in key[:2])
        assert "c" not in key[:2]
        state = universe.take(state, ("deliver", *key)).state


def test_default_worlds_leave_out_what_takes_long() -> None:
    """Two kinds of harm at once and dying masters of four are for ``--world all``."""
    names = [world.name for world in worlds_named("default")]
    assert "move-four-crash" in names
    assert "move-restart-source" in names
    assert not {"move-both", "move-four-master", "moves-crash", "move-restart-master"} & {*names}
    assert {world.name for world in worlds_named("all")} == {*WORLDS}


@pytest.mark.parametrize(
    ("after", "is_broken"), [("BA", False), ("B-C", False), ("B", True), ("CB", False)]
)
def test_a_new_master_drops_no_replica_without_a_cause(after: str, is_broken: bool) -> None:
    """P5 for rows that a new master takes over: a plan of the former one may have dropped what is
    not needed, and who died since was there then; a live replica that is needed is never dropped.
    """
    world = WORLDS["clear-crash"]
    universe = Universe(world)
    state = universe.begin()
    member = clone(universe.lab.seat(state.members[1])).member
    member.migrations.loop.recovery.running = True
    member.ctx.members = msgspec.structs.replace(
        member.ctx.members,
        members=tuple(one for one in member.ctx.members.members if name_of(one.id) != "a"),
    )
    rules = StepRules(world)
    pid, before = PartitionId(0), row_of("BAC")
    broken = rules.row(rules.host(member, None), pid, before, row_of(after), 1, 2)
    assert ("P5" in [rule for rule, _ in broken]) is is_broken


@pytest.mark.parametrize(
    ("kind", "index", "index_after", "is_exempt"),
    [
        (MigrationKind.STEP_DOWN, 1, 2, True),
        (MigrationKind.STEP_DOWN, 0, 2, False),
        (MigrationKind.STEP_DOWN, 1, -1, False),
        (MigrationKind.SHIFT_UP, 1, 2, False),
    ],
)
def test_only_the_destination_of_a_step_down_goes_colder_first(
    kind: MigrationKind, index: int, index_after: int, is_exempt: bool
) -> None:
    """P6: before the master has committed nobody gives up an index, but for that of its own
    STEP DOWN.
    """
    universe = Universe(WORLDS["step-down"])
    member = universe.lab.seat(universe.begin().members[2]).member
    step = Step(
        kind,
        source=None,
        destination=identity_of("c"),
        destination_current=ReplicaIndex(1),
        destination_new=ReplicaIndex(2),
    )
    migration = MigrationInfo("m", PartitionId(0), step, identity_of("a"), 1)
    commit = MigrationCommitRequested(migration, ())
    host: Any = StepRules.host(member, Received(identity_of("a"), Address("a", 5701), commit))
    assert CommitOrder._steps_down(host, PartitionId(0), index, index_after) is is_exempt
    assert not CommitOrder._steps_down(host, PartitionId(1), index, index_after)
