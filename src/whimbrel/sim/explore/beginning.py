"""How a tiny world comes to where it is explored from: in one order, without harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from whimbrel.core.ids import EMPTY_ROW, MemberId
from whimbrel.core.member import Member
from whimbrel.core.model import ClusterState
from whimbrel.core.stimuli import Started
from whimbrel.errors import UsageError
from whimbrel.sim.explore.disks import LOST
from whimbrel.sim.explore.image import clone
from whimbrel.sim.explore.lab import GONE, MAP_NAME, Order, Plan, Write, address_of
from whimbrel.sim.explore.state import Draft, State
from whimbrel.sim.explore.worlds import DEEPER, name_of
from whimbrel.structures.map.kind import MAP

if TYPE_CHECKING:
    from whimbrel.sim.explore.universe import Universe

START_US = 1_000_000_000_000
SETUP_STEPS_MAX = 5_000


class Beginning:
    """The beginning of one world."""

    def __init__(self, universe: Universe) -> None:
        """Nothing has happened yet."""
        self.universe, self.world, self.lab = universe, universe.world, universe.lab
        self.broken: list[tuple[str, str]] = []
        """Rules that members break when they are told the plan; each with a sentence."""

    def state(self) -> State:
        """The state that is explored from: settled, with the plan just asked for.

        Raises:
            UsageError: The world does not get there; it is none that can be explored.
        """
        world, lab = self.world, self.lab
        addresses = tuple(address_of(name) for name in self.universe.first)
        members = [lab.add(self.universe.new_seat(name, START_US)) for name in self.universe.first]
        state = State(START_US, (GONE,) * len(self.universe.names), ())
        if self.universe.power is not None:
            count = len(self.universe.names)
            disks, works = (self.universe.disks.empty,) * count, ((),) * count
            state = msgspec.structs.replace(state, disks=disks, works=works)
        for at, number in enumerate(members):
            draft = Draft(state)
            draft.members[at] = number
            item = lab.item(Started(addresses[: at + 1]))
            state = self.universe.step(
                state, draft, ("start",), self.universe.names[at], item
            ).state
            state = self._run(state, joined=at + 1)
        state = self._arrange(state)
        state = self._prepare(state)
        if world.stable_without:
            return self._stabilise(state)
        target = Plan(self.universe.rows_after)
        for name in self.universe.first:  # whoever becomes master wishes the same
            move = self.universe.step(state, Draft(state), ("plan",), name, lab.item(target))
            state = move.state
            self.broken += () if move.outcome is None else move.outcome.broken
        begun = self._begun(state)
        return self.universe.crash(begun, world.dead) if world.dead else begun

    def _begun(self, state: State) -> State:
        """The harm that may come from here on."""
        world = self.world
        return msgspec.structs.replace(
            state,
            crashes=world.crashes + bool(world.dead),
            mishaps=world.mishaps,
            writes=world.writes,
            restarts=world.restarts,
            powers=world.powers,
            acked=tuple(dict.fromkeys((*range(world.partitions), *state.acked))),
            firings=0,
        )

    def _stabilise(self, state: State) -> State:
        """The cluster is stable, then members have died and an entry is written without them; they
        are about to come back with their files.
        """
        world, lab = self.world, self.lab
        order = lab.item(Order(ClusterState.STABLE_CLUSTER))
        state = self._run(self.universe.step(state, Draft(state), ("order",), "a", order).state)
        wishless = lab.item(Plan(()))
        state = self._run(self.universe.step(state, Draft(state), ("plan",), "a", wishless).state)
        for gone in world.stable_without:
            draft = Draft(state)
            self.universe.keeping.darken(state, draft, gone, LOST)
            self.universe.end(draft, gone)
            state = self._run(draft.finish(state))
        primary = lab.facts[self.universe.snapshot(state, "a")].rows[0][0]
        state = self._write_at(primary, world.partitions, state)
        begun = self._begun(msgspec.structs.replace(state, now_us=state.now_us + 1))
        return msgspec.structs.replace(begun, away=tuple(world.stable_without))

    def _arrange(self, state: State) -> State:
        """A map whose entries need the world's backups, and the rows the world begins with."""
        lab = self.lab
        at = self.universe.names.index("a")
        seat = clone(lab.seat(state.members[at]))
        seat.member.begin(state.now_us, 0)
        seat.member.registry.ensure(MAP, MAP_NAME)
        if self.world.is_deeper:
            seat.member.registry.ensure(MAP, DEEPER)
        draft = Draft(state)
        draft.members[at] = lab.add(seat)
        # First the primaries alone: no plan turns a full row round in itself.
        primaries = tuple((row[0], *EMPTY_ROW[1:]) for row in self.universe.rows_before)
        for wanted in (primaries, self.universe.rows_before):
            item = lab.item(Plan(wanted))
            state = self._run(self.universe.step(state, draft, ("plan",), "a", item).state)
            draft = Draft(state)
        return state

    def _prepare(self, state: State) -> State:
        """One entry a partition that everybody who should have it has; planted bugs are put in."""
        for number, row in enumerate(self.universe.rows_before):
            state = self._write_at(row[0], number, state)
        facts = self.lab.facts[self.universe.snapshot(state, "a")]
        before = self.universe.rows_before
        if facts.rows != before:
            raise UsageError(f"world {self.world.name} begins with {facts.rows}, not {before}")
        if self.lab.plant is None:
            return state
        draft = Draft(state)
        for at, number in enumerate(state.members):
            if number == GONE:
                continue
            draft.members[at] = self.lab.add(self.universe.planted(clone(self.lab.seat(number))))
        return draft.finish(state)

    def _write_at(self, primary: MemberId | None, number: int, state: State) -> State:
        """A client has written an entry, and all is quiet again."""
        if primary is None:
            raise UsageError(f"world {self.world.name} has a row without a primary")
        who, item = name_of(primary), self.lab.item(Write(number))
        return self._run(self.universe.step(state, Draft(state), ("write",), who, item).state)

    def _run(self, state: State, joined: int = 0) -> State:
        """Let everything happen in one order until the world is settled."""
        for _ in range(SETUP_STEPS_MAX):
            choices = self.universe.transitions(state)
            if not choices:
                members = self.universe.living(state)
                is_whole = all(len(one.ctx.members.members) == len(members) for one in members)
                master = members[0].migrations
                if is_whole and master.is_settled()[0] and not _unsettled(members):
                    return state
                choices = self.universe.passing(state)
            if not choices:
                break
            state = self.universe.take(state, choices[0]).state
        raise UsageError(f"world {self.world.name} does not settle before it begins ({joined})")


def _unsettled(members: list[Member]) -> int:
    return sum(member.dataplane.unsettled() for member in members)
