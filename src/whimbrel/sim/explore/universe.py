"""States of a tiny world and what may happen in each: the transitions that are explored.

What a connection carries keeps its order; the control and the data connection of two members are
two. A connection that breaks loses what it carries, on both, and its sender hears of the break and
later that it stands again. Time stands still while anything is on its way: a timer fires when it
is due already, or, when nothing else is left and the world is not settled, the earliest one does.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.member import Member
from whimbrel.core.model import MemberInfo
from whimbrel.core.stimuli import AddressUnreachable, LinkFailed, LinkLost, LinkRestored, Started
from whimbrel.errors import UsageError
from whimbrel.sim.explore.beginning import Beginning
from whimbrel.sim.explore.disks import Disks
from whimbrel.sim.explore.lab import (
    CONTROL,
    GONE,
    NEWS,
    Item,
    Lab,
    Plant,
    Seat,
    Timer,
    Write,
    address_of,
    describe,
    fake_engine,
)
from whimbrel.sim.explore.power import ALL, Power
from whimbrel.sim.explore.state import Draft, Key, Move, State, Transition
from whimbrel.sim.explore.worlds import (
    AFTER,
    BEFORE,
    MEMBERS,
    REBORN,
    TinyWorld,
    identity_of,
    name_of,
)
from whimbrel.structures.kinds import KINDS

FIRINGS_MAX = 300
"""Timers that may fire on one path; a world that needs more does not settle."""
QUEUE_MAX = 60
"""Items a connection may carry; more means that members feed one another."""


class Universe:
    """All states of one tiny world."""

    def __init__(self, world: TinyWorld, plant: Plant | None = None) -> None:
        self.world = world
        self.lab = Lab(world, plant)
        self.first = MEMBERS[: world.members]
        self.victims = world.victims or self.first
        self.names = self.first + REBORN * world.restarts
        """A name is the beginning of an identity, and the address it is first seen on."""
        self.rows_before, self.rows_after = world.rows_before, world.rows_after
        self.power = Power(self.lab, self.names) if world.disks else None
        """Disks and power; None where members keep no files."""
        self.begun_broken: tuple[tuple[str, str], ...] = ()
        """Rules that members have broken in the beginning when they were told the plan."""

    # -- what may happen ------------------------------------------------------------------

    def transitions(self, state: State) -> list[Transition]:
        """Everything that may happen now, time that passes excluded."""
        found = self._steps(state)
        if not self._is_free(state):
            found = found[:1]
        return found + self._losses(state)

    def after_rest(self, state: State) -> list[Transition]:
        """What may begin where everything is settled: a write, or a loss of power."""
        writes = [
            ("write", name)
            for name, snapshot in zip(self.names, state.members, strict=True)
            if snapshot != GONE and state.writes
            if self._is_primary(snapshot, name, self._next_write(state))
        ]
        return [*writes, *self._losses(state)]

    def _losses(self, state: State) -> list[Transition]:
        """The ways in which power may be lost now."""
        return [] if self.power is None else self.power.losses(state, self.world.victims)

    def _is_free(self, state: State) -> bool:
        """Whether all orders are looked at here, and not one alone."""
        free = self.world.free
        return free in ("", AFTER if self.world.powers > state.powers else BEFORE)

    def _steps(self, state: State) -> list[Transition]:
        found = [] if self.power is None else self.power.transitions(state)
        found += self._arrivals(state)
        for name in self.names:
            snapshot = self.snapshot(state, name)
            if snapshot == GONE:
                continue
            for at_us, key in self.lab.facts[snapshot].timers:
                if at_us <= state.now_us:
                    found.append(("timer", name, key))
            if state.crashes and name in self.victims:
                found.append(("crash", name))
            if state.writes and self._is_primary(snapshot, name, self._next_write(state)):
                found.append(("write", name))
        if state.restarts and not state.reborn:
            found += [("restart", one) for one in self.first if self.snapshot(state, one) == GONE]
        return list(dict.fromkeys(found))

    def _arrivals(self, state: State) -> list[Transition]:
        """What may become of the head of each connection."""
        found: list[Transition] = []
        for (sender, receiver, channel), _ in state.links:
            found.append(("deliver", sender, receiver, channel))
            if sender and channel != NEWS:
                is_dead = self.snapshot(state, sender) == GONE
                if is_dead:
                    found.append(("vanish", sender, receiver))
                elif state.mishaps:
                    found.append(("double", sender, receiver, channel))
                    found.append(("reset", sender, receiver))
        return found

    def passing(self, state: State) -> list[Transition]:
        """The timers that are due next, when nothing is left but to wait."""
        dues = [
            (at_us, name, key)
            for name in self.names
            if (snapshot := self.snapshot(state, name)) != GONE
            for at_us, key in self.lab.facts[snapshot].timers
        ]
        if not dues or state.firings >= FIRINGS_MAX or state.away:
            return []
        first_us = min(dues)[0]
        found: list[Transition] = [
            ("wait", name, key, str(first_us)) for at_us, name, key in dues if at_us == first_us
        ]
        return found if self._is_free(state) else found[:1]

    def is_silent(self, state: State) -> bool:
        """Whether nothing is on its way and no timer is due."""
        if state.links or state.away or any(state.works):
            return False
        facts, now_us = self.lab.facts, state.now_us
        return not any(
            facts[one].timers and facts[one].timers[0][0] <= now_us
            for one in state.members
            if one != GONE
        )

    def _next_write(self, state: State) -> int:
        """The entry that a client writes next; the first of each partition is there already."""
        return self.world.partitions + self.world.writes - state.writes

    def _is_primary(self, snapshot: int, name: str, number: int) -> bool:
        return self.lab.facts[snapshot].rows[self.world.partition_of(number)][0] == identity_of(
            name
        )

    def snapshot(self, state: State, name: str) -> int:
        """Of a member, GONE when it has ended."""
        return state.members[self.names.index(name)]

    def living(self, state: State) -> list[Member]:
        """The members that have not ended, to be looked at only."""
        return [self.lab.seat(one).member for one in state.members if one != GONE]

    # -- what happens ---------------------------------------------------------------------

    def take(self, state: State, transition: Transition) -> Move:
        """The state after a transition.

        Raises:
            UsageError: There is no such transition.
        """
        verb, *names = transition
        if verb == "deliver":
            return self._deliver(state, transition, (names[0], names[1], names[2]), keep=False)
        if verb == "double":
            return self._deliver(state, transition, (names[0], names[1], names[2]), keep=True)
        if verb == "crash":
            return Move(transition, self.crash(state, names[0]))
        if verb == "restart":
            return self._restart(state, transition, names[0])
        if verb in ("disk", "power", "return"):
            return self._take_of_disks(state, transition)
        draft = Draft(state)
        if verb == "vanish":
            draft.clear(names[0], names[1])
            return Move(transition, draft.finish(state))
        if verb == "reset":
            return self._reset(state, transition, names[0], names[1])
        if verb == "write":
            item = self.lab.item(Write(self._next_write(state)))
            return self.step(state, draft, transition, names[0], item, writes=state.writes - 1)
        if verb in ("timer", "wait"):
            changes = {"firings": state.firings + 1}
            if verb == "wait":
                changes["now_us"] = int(names[2])
            item = self.lab.item(Timer(names[1]))
            return self.step(state, draft, transition, names[0], item, **changes)
        raise UsageError(f"no transition is called {verb!r}")

    def _deliver(self, state: State, transition: Transition, key: Key, keep: bool) -> Move:
        draft = Draft(state)
        item = draft.links[key][0] if keep else draft.pop(key)
        changes = {"mishaps": state.mishaps - 1} if keep else {}
        stimulus = self.lab.items[item]
        if isinstance(stimulus, LinkRestored):
            link = (key[1], name_of(stimulus.member))
            if link in draft.down:
                draft.down.remove(link)
        return self.step(state, draft, transition, key[1], item, **changes)

    def _reset(self, state: State, transition: Transition, sender: str, receiver: str) -> Move:
        draft = Draft(state)
        draft.clear(sender, receiver)
        draft.down.append((sender, receiver))
        lost = self.lab.item(LinkLost(identity_of(receiver)))
        draft.push(("", sender, NEWS), self.lab.item(LinkRestored(identity_of(receiver))))
        return self.step(state, draft, transition, sender, lost, mishaps=state.mishaps - 1)

    def crash(self, state: State, name: str) -> State:
        """A member is killed."""
        draft = Draft(state)
        self.end(draft, name)
        return draft.finish(state, crashes=state.crashes - 1, killed=state.killed + 1)

    def _restart(self, state: State, transition: Transition, name: str) -> Move:
        """A new process, with a new identity, on the address of a dead one."""
        info = MemberInfo(identity_of(REBORN), address_of(name), host=name)
        draft = Draft(state)
        seat = Seat(Member(info, self.world.settings, KINDS, state.now_us))
        draft.members[self.names.index(REBORN)] = self.lab.add(self.planted(seat))
        begun = draft.finish(state, restarts=state.restarts - 1)
        begun = msgspec.structs.replace(begun, reborn=name)
        addresses = tuple(address_of(one) for one in self.first)
        item = self.lab.item(Started(addresses))
        return self.step(begun, Draft(begun), transition, REBORN, item)

    def _take_of_disks(self, state: State, transition: Transition) -> Move:
        verb, name, *how = transition
        if verb == "disk":
            return self._disk(state, transition, name)
        if verb == "return":
            return self._return(state, transition, name)
        return Move(transition, self._lose_power(state, name, how[0]))

    def _disk(self, state: State, transition: Transition, name: str) -> Move:
        """A disk carries out the oldest work, and its member hears of it."""
        draft, at = Draft(state), self.names.index(name)
        first, *rest = state.works[at]
        draft.disks[at], answer = self.disks.do(state.disks[at], first)
        draft.works[at] = tuple(rest)
        return self.step(state, draft, transition, name, answer)

    @property
    def disks(self) -> Disks:
        """The disks of a world whose members keep files."""
        return self.keeping.disks

    @property
    def keeping(self) -> Power:
        """Disks and power.

        Raises:
            UsageError: Members of this world keep no files.
        """
        if self.power is None:
            raise UsageError(f"members of world {self.world.name} keep no files")
        return self.power

    def _lose_power(self, state: State, who: str, how: str) -> State:
        """Everybody is without power, or one; what is on its way to them is lost."""
        power, draft = self.keeping, Draft(state)
        names = power.living(state, who)
        for name, letter in zip(names, how, strict=True):
            power.darken(state, draft, name, letter)
            self.end(draft, name)
        if who == ALL:
            draft.links, draft.down = {}, []
        killed = state.killed + (who != ALL)
        # The next processes begin later than these have.
        after = draft.finish(state, powers=state.powers - 1, killed=killed, now_us=state.now_us + 1)
        is_dark = state.is_dark or who == ALL
        # With all others comes back who had died before.
        away = tuple(self.first) if who == ALL else tuple(names)
        return msgspec.structs.replace(after, away=away, is_dark=is_dark)

    def _return(self, state: State, transition: Transition, name: str) -> Move:
        """A new process of a member that has lost its power, with what lies on its disk."""
        draft = Draft(state)
        draft.members[self.names.index(name)] = self.lab.add(
            self.planted(self.new_seat(name, state.now_us))
        )
        self.keeping.welcome(draft, name)
        away = tuple(one for one in state.away if one != name)
        begun = msgspec.structs.replace(draft.finish(state), away=away)
        item = self.lab.item(Started(tuple(address_of(one) for one in self.first)))
        return self.step(begun, Draft(begun), transition, name, item)

    def new_seat(self, name: str, now_us: int) -> Seat:
        """A new process of a member."""
        info = MemberInfo(identity_of(name), address_of(name), host=name)
        return Seat(Member(info, self.world.settings, KINDS, now_us))

    def planted(self, seat: Seat) -> Seat:
        """The same with the bug of this exploration, if there is one."""
        if self.lab.plant is not None:
            self.lab.plant(fake_engine(seat.member))
        return seat

    def end(self, draft: Draft, name: str) -> None:
        """A member is gone, and the others are about to hear of it."""
        draft.members[self.names.index(name)] = GONE
        if draft.works:
            draft.works[self.names.index(name)] = ()
        for key in [key for key in draft.links if key[1] == name]:
            del draft.links[key]
        draft.down = [link for link in draft.down if name not in link]
        failed = self.lab.item(LinkFailed(identity_of(name)))
        for other, snapshot in zip(self.names, draft.members, strict=True):
            if snapshot != GONE:
                draft.push(("", other, NEWS), failed)

    def step(
        self,
        state: State,
        draft: Draft,
        transition: Transition,
        who: str,
        item: int,
        **changes: int,
    ) -> Move:
        """A member takes an item, and what it wants is on its way."""
        at = self.names.index(who)
        now_us = changes.get("now_us", state.now_us)
        outcome = self.lab.step(draft.members[at], now_us, item)
        draft.members[at] = outcome.member
        for named, channel, sent in outcome.sends:
            receiver = named
            if named[0] == "@":
                is_reborn = state.reborn and named[1:] == state.reborn
                receiver = REBORN if is_reborn else named[1:]
            if self._listens(draft, receiver):
                if (who, receiver) not in draft.down:
                    draft.push((who, receiver, channel), sent)
            elif channel == CONTROL and outcome.member != GONE:
                self._refused(draft, who, receiver, sent)
        if outcome.written:
            draft.acked = tuple(sorted({*draft.acked, *outcome.written}))
        if outcome.works:
            draft.works[at] = (*draft.works[at], *outcome.works)
        if outcome.member == GONE:
            self.end(draft, who)
        after = draft.finish(state, **changes)
        if after.is_dark and self._all_serve(after):
            after = msgspec.structs.replace(after, is_dark=False)
        return Move(transition, after, who, item, outcome)

    def _all_serve(self, state: State) -> bool:
        return not state.away and all(
            one != GONE and self.lab.facts[one].serves for one in state.members
        )

    def _listens(self, draft: Draft, name: str) -> bool:
        return name in self.names and draft.members[self.names.index(name)] != GONE

    def _refused(self, draft: Draft, who: str, receiver: str, sent: int) -> None:
        """Nobody listens there: whoever sent to the address is told so."""
        if type(self.lab.items[sent]).__name__ == "Received":
            unreachable = self.lab.item(AddressUnreachable(address_of(receiver)))
            if unreachable not in draft.links.get(("", who, NEWS), ()):
                draft.push(("", who, NEWS), unreachable)

    def text(self, state: State, transition: Transition) -> str:
        """A transition for people."""
        verb, *names = transition
        if verb in ("deliver", "double"):
            key = (names[0], names[1], names[2])
            item: Item = self.lab.items[dict(state.links)[key][0]]
            return f"{verb} {names[0] or '-'} > {names[1]} {names[2]}: {describe(item)}"
        return " ".join(transition)

    def begin(self) -> State:
        """The state that is explored from: settled, with the plan just asked for.

        Raises:
            UsageError: The world does not get there; it is none that can be explored.
        """
        beginning = Beginning(self)
        state = beginning.state()
        self.begun_broken = tuple(beginning.broken)
        return state
