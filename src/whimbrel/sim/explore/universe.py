"""States of a tiny world and what may happen in each: the transitions that are explored.

What a connection carries keeps its order; the control and the data connection of two members are
two. A connection that breaks loses what it carries, on both, and its sender hears of the break and
later that it stands again. Time stands still while anything is on its way: a timer fires when it
is due already, or, when nothing else is left and the world is not settled, the earliest one does.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from whimbrel.core.ids import EMPTY_ROW, Address, MemberId
from whimbrel.core.member import Member
from whimbrel.core.model import MemberInfo
from whimbrel.core.stimuli import AddressUnreachable, LinkFailed, LinkLost, LinkRestored, Started
from whimbrel.errors import UsageError
from whimbrel.sim.explore.image import DIGEST_BYTES, clone
from whimbrel.sim.explore.lab import (
    CONTROL,
    DATA,
    GONE,
    MAP_NAME,
    NEWS,
    Item,
    Lab,
    Plan,
    Plant,
    Seat,
    StepResult,
    Timer,
    Write,
    describe,
    fake_engine,
)
from whimbrel.sim.explore.worlds import MEMBERS, REBORN, TinyWorld
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.kind import MAP

START_US = 1_000_000_000_000
SETUP_STEPS_MAX = 5_000
FIRINGS_MAX = 300
"""Timers that may fire on one path; a world that needs more does not settle."""
QUEUE_MAX = 60
"""Items a connection may carry; more means that members feed one another."""

Key = tuple[str, str, str]
"""(sender, receiver, channel); news have no sender"""
Queue = tuple[int, ...]
Transition = tuple[str, ...]


class State(msgspec.Struct, frozen=True, array_like=True):
    """A whole world at one moment, in numbers of its lab."""

    now_us: int
    members: tuple[int, ...]
    """Snapshot of each member, GONE when it has ended."""
    links: tuple[tuple[Key, Queue], ...]
    """What is on its way, by connection, in order of the keys; never empty ones."""
    down: tuple[tuple[str, str], ...] = ()
    """Connections that broke and do not stand again yet."""
    crashes: int = 0
    mishaps: int = 0
    writes: int = 0
    killed: int = 0
    """Members killed so far."""
    acked: tuple[int, ...] = ()
    """Entries whose writers were told that they are kept."""
    firings: int = 0
    restarts: int = 0
    """New processes that may come up on the address of a dead member."""
    reborn: str = ""
    """On whose address the member ``REBORN`` runs; empty when it has not come up."""

    def digest(self) -> bytes:
        """What tells two states apart. How often time has passed does not."""
        written = msgspec.msgpack.encode(
            (self.now_us, self.members, self.links, self.down, self.crashes, self.mishaps,
             self.writes, self.killed, self.acked, self.restarts, self.reborn)
        )  # fmt: skip
        return blake2b(written, digest_size=DIGEST_BYTES).digest()


class Move(msgspec.Struct, frozen=True):
    """A transition that was taken."""

    transition: Transition
    state: State
    who: str = ""
    """Whose step it was, if any."""
    item: int = -1
    """What it handled."""
    outcome: StepResult | None = None


class _Draft:
    """The next state while it is made."""

    def __init__(self, state: State) -> None:
        self.members = list(state.members)
        self.links: dict[Key, Queue] = dict(state.links)
        self.down = list(state.down)
        self.acked = state.acked

    def push(self, key: Key, item: int) -> None:
        self.links[key] = (*self.links.get(key, ()), item)

    def pop(self, key: Key) -> int:
        first, *rest = self.links[key]
        if rest:
            self.links[key] = tuple(rest)
        else:
            del self.links[key]
        return first

    def finish(self, state: State, **changes: int) -> State:
        return msgspec.structs.replace(
            state,
            members=tuple(self.members),
            links=tuple(sorted(self.links.items())),
            down=tuple(sorted(self.down)),
            acked=self.acked,
            **changes,
        )


class Universe:
    """All states of one tiny world."""

    def __init__(self, world: TinyWorld, plant: Plant | None = None) -> None:
        self.world = world
        self.lab = Lab(world, plant)
        self.first = MEMBERS[: world.members]
        self.victims = world.victims or self.first
        self.names = self.first + REBORN * world.restarts
        """A name is an identity, and the address it is first seen on."""
        self.rows_before, self.rows_after = world.rows_before, world.rows_after

    # -- what may happen ------------------------------------------------------------------

    def transitions(self, state: State) -> list[Transition]:
        """Everything that may happen now, time that passes excluded."""
        found = self._arrivals(state)
        for name in self.names:
            snapshot = self._snapshot(state, name)
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
            found += [("restart", one) for one in self.first if self._snapshot(state, one) == GONE]
        return list(dict.fromkeys(found))

    def _arrivals(self, state: State) -> list[Transition]:
        """What may become of the head of each connection."""
        found: list[Transition] = []
        for (sender, receiver, channel), _ in state.links:
            found.append(("deliver", sender, receiver, channel))
            if sender and channel != NEWS:
                is_dead = self._snapshot(state, sender) == GONE
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
            if (snapshot := self._snapshot(state, name)) != GONE
            for at_us, key in self.lab.facts[snapshot].timers
        ]
        if not dues or state.firings >= FIRINGS_MAX:
            return []
        first_us = min(dues)[0]
        return [
            ("wait", name, key, str(first_us)) for at_us, name, key in dues if at_us == first_us
        ]

    def is_silent(self, state: State) -> bool:
        """Whether nothing is on its way and no timer is due."""
        if state.links:
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
        return self.lab.facts[snapshot].rows[self.world.partition_of(number)][0] == name

    def _snapshot(self, state: State, name: str) -> int:
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
            return Move(transition, self._crash(state, names[0]))
        if verb == "restart":
            return self._restart(state, transition, names[0])
        draft = _Draft(state)
        if verb == "vanish":
            self._clear(draft, names[0], names[1])
            return Move(transition, draft.finish(state))
        if verb == "reset":
            return self._reset(state, transition, names[0], names[1])
        if verb == "write":
            item = self.lab.item(Write(self._next_write(state)))
            return self._step(state, draft, transition, names[0], item, writes=state.writes - 1)
        if verb in ("timer", "wait"):
            changes = {"firings": state.firings + 1}
            if verb == "wait":
                changes["now_us"] = int(names[2])
            item = self.lab.item(Timer(names[1]))
            return self._step(state, draft, transition, names[0], item, **changes)
        raise UsageError(f"no transition is called {verb!r}")

    def _deliver(self, state: State, transition: Transition, key: Key, keep: bool) -> Move:
        draft = _Draft(state)
        item = draft.links[key][0] if keep else draft.pop(key)
        changes = {"mishaps": state.mishaps - 1} if keep else {}
        stimulus = self.lab.items[item]
        if isinstance(stimulus, LinkRestored):
            link = (key[1], str(stimulus.member))
            if link in draft.down:
                draft.down.remove(link)
        return self._step(state, draft, transition, key[1], item, **changes)

    def _reset(self, state: State, transition: Transition, sender: str, receiver: str) -> Move:
        draft = _Draft(state)
        self._clear(draft, sender, receiver)
        draft.down.append((sender, receiver))
        lost = self.lab.item(LinkLost(MemberId(receiver)))
        draft.push(("", sender, NEWS), self.lab.item(LinkRestored(MemberId(receiver))))
        return self._step(state, draft, transition, sender, lost, mishaps=state.mishaps - 1)

    def _crash(self, state: State, name: str) -> State:
        draft = _Draft(state)
        self._end(draft, name)
        return draft.finish(state, crashes=state.crashes - 1, killed=state.killed + 1)

    def _restart(self, state: State, transition: Transition, name: str) -> Move:
        """A new process, with a new identity, on the address of a dead one."""
        info = MemberInfo(MemberId(REBORN), address_of(name), host=name)
        draft = _Draft(state)
        seat = Seat(Member(info, self.world.settings, KINDS, state.now_us))
        if self.lab.plant is not None:
            self.lab.plant(fake_engine(seat.member))
        draft.members[self.names.index(REBORN)] = self.lab.add(seat)
        begun = draft.finish(state, restarts=state.restarts - 1)
        begun = msgspec.structs.replace(begun, reborn=name)
        addresses = tuple(address_of(one) for one in self.first)
        item = self.lab.item(Started(addresses))
        return self._step(begun, _Draft(begun), transition, REBORN, item)

    def _end(self, draft: _Draft, name: str) -> None:
        draft.members[self.names.index(name)] = GONE
        for key in [key for key in draft.links if key[1] == name]:
            del draft.links[key]
        draft.down = [link for link in draft.down if name not in link]
        failed = self.lab.item(LinkFailed(MemberId(name)))
        for other, snapshot in zip(self.names, draft.members, strict=True):
            if snapshot != GONE:
                draft.push(("", other, NEWS), failed)

    @staticmethod
    def _clear(draft: _Draft, sender: str, receiver: str) -> None:
        for channel in (CONTROL, DATA):
            draft.links.pop((sender, receiver, channel), None)

    def _step(
        self,
        state: State,
        draft: _Draft,
        transition: Transition,
        who: str,
        item: int,
        **changes: int,
    ) -> Move:
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
        if outcome.member == GONE:
            self._end(draft, who)
        return Move(transition, draft.finish(state, **changes), who, item, outcome)

    def _listens(self, draft: _Draft, name: str) -> bool:
        return name in self.names and draft.members[self.names.index(name)] != GONE

    def _refused(self, draft: _Draft, who: str, receiver: str, sent: int) -> None:
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

    # -- the beginning --------------------------------------------------------------------

    def begin(self) -> State:
        """The state that is explored from: settled, with the plan just asked for.

        Raises:
            UsageError: The world does not get there; it is none that can be explored.
        """
        world, lab = self.world, self.lab
        addresses = tuple(address_of(name) for name in self.first)
        members = []
        for name in self.first:
            info = MemberInfo(MemberId(name), address_of(name), host=name)
            members.append(lab.add(Seat(Member(info, world.settings, KINDS, START_US))))
        state = State(START_US, (GONE,) * len(self.names), ())
        for at, number in enumerate(members):
            draft = _Draft(state)
            draft.members[at] = number
            item = lab.item(Started(addresses[: at + 1]))
            state = self._step(state, draft, ("start",), self.names[at], item).state
            state = self._run(state, joined=at + 1)
        state = self._arrange(state)
        state = self._prepare(state)
        target = Plan(self.rows_after)
        move = self._step(state, _Draft(state), ("plan",), "a", lab.item(target))
        for name in self.first[1:]:
            draft = _Draft(move.state)
            # Whoever becomes master wishes the same.
            move = self._step(move.state, draft, ("plan",), name, lab.item(target))
        begun = msgspec.structs.replace(
            move.state,
            crashes=world.crashes + bool(world.dead),
            mishaps=world.mishaps,
            writes=world.writes,
            restarts=world.restarts,
            acked=tuple(range(world.partitions)),
            firings=0,
        )
        return self._crash(begun, world.dead) if world.dead else begun

    def _arrange(self, state: State) -> State:
        """A map whose entries need the world's backups, and the rows the world begins with."""
        lab = self.lab
        at = self.names.index("a")
        seat = clone(lab.seat(state.members[at]))
        seat.member.begin(state.now_us, 0)
        seat.member.registry.ensure(MAP, MAP_NAME)
        draft = _Draft(state)
        draft.members[at] = lab.add(seat)
        # First the primaries alone: no plan turns a full row round in itself.
        primaries = tuple((row[0], *EMPTY_ROW[1:]) for row in self.rows_before)
        for wanted in (primaries, self.rows_before):
            item = lab.item(Plan(wanted))
            state = self._run(self._step(state, draft, ("plan",), "a", item).state)
            draft = _Draft(state)
        return state

    def _prepare(self, state: State) -> State:
        """One entry a partition that everybody who should have it has; planted bugs are put in."""
        for number, row in enumerate(self.rows_before):
            item, primary = self.lab.item(Write(number)), str(row[0])
            state = self._run(self._step(state, _Draft(state), ("write",), primary, item).state)
        facts = self.lab.facts[self._snapshot(state, "a")]
        if facts.rows != self.rows_before:
            raise UsageError(
                f"world {self.world.name} begins with {facts.rows}, not {self.rows_before}"
            )
        if self.lab.plant is None:
            return state
        draft = _Draft(state)
        for at, number in enumerate(state.members):
            if number == GONE:
                continue
            seat = clone(self.lab.seat(number))
            self.lab.plant(fake_engine(seat.member))
            draft.members[at] = self.lab.add(seat)
        return draft.finish(state)

    def _run(self, state: State, joined: int = 0) -> State:
        """Let everything happen in one order until the world is settled."""
        for _ in range(SETUP_STEPS_MAX):
            choices = self.transitions(state)
            if not choices:
                members = self.living(state)
                is_whole = all(len(one.ctx.members.members) == len(members) for one in members)
                master = members[0].migrations
                if is_whole and master.is_settled()[0] and not _unsettled(members):
                    return state
                choices = self.passing(state)
            if not choices:
                break
            state = self.take(state, choices[0]).state
        raise UsageError(f"world {self.world.name} does not settle before it begins ({joined})")


def _unsettled(members: list[Member]) -> int:
    return sum(member.dataplane.unsettled() for member in members)


def address_of(name: str) -> Address:
    """Where a member listens."""
    return Address(name, 5701)
