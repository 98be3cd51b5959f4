"""Moments: something happens exactly when a member handles the N-th message of one kind.

Some upstream situations last for microseconds: the answer of a commit is on its way, a batch of
promotions is applied at one member and not at another. A scenario file names such a moment
(``when WHO gets|has N KIND since SECOND VERB ...``) instead of guessing its time. *gets* is right
before the message is handled, *has* right after, before anything is sent of what it led to.

WHO is a member or ``any``. KIND is a message type or a data frame (``backups``), with ``/KIND`` of
a migration's step where one is meant. The names of the verb may also be ``here`` and ``there`` (who
handles and who has sent the message) and, of a message about a migration, ``source`` (the primary
that copies) and ``destination``. Besides the verbs of faults there are those that treat the message
itself: see ``TREATMENTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MigrationInfo
from whimbrel.sim.watch import member_of

if TYPE_CHECKING:
    from whimbrel.sim.host import Host
    from whimbrel.sim.world import World

ANYBODY = "any"
GETS, HAS = "gets", "has"
AT_ONCE = ("crash", "silent", "pause")
"""Verbs that may befall the member in the middle of its own step; others come right after it."""
CUT_BYTES = 3
"""What a spoilt frame lacks: a part of its last operation."""
HELD_MAX = 10_000
"""Messages held back of one sender; a scenario that holds more is wrong."""

Again = Callable[[], None]
"""Handles the message as if it arrived now."""


class Moment(msgspec.Struct, frozen=True):
    """When something happens, and what."""

    who: str
    side: str
    """``gets`` or ``has``."""
    count: int
    """Which one, from 1."""
    kind: str
    since_us: int
    """Earlier messages do not count."""
    verb: str
    names: tuple[str, ...] = ()
    value: int = 0

    def text(self) -> str:
        """As a scenario file says it."""
        words = [f"when {self.who} {self.side} {self.count} {self.kind}"]
        words += [f"since {self.since_us / 1_000_000:.6f}", self.verb, *self.names]
        return " ".join(words) + (f" {self.value}" if self.value else "")


def parse_moment(words: Sequence[str]) -> Moment:
    """A moment from the words of its line.

    Raises:
        ValueError: They are none.
    """
    match words:
        case ["when", who, "gets" | "has" as side, count, kind, "since", second, verb, *rest]:
            names = list(rest)
            value = int(names.pop()) if names and names[-1].isdigit() else 0
            since_us = round(float(second) * 1_000_000)
            if verb in TREATMENTS and side == HAS:
                raise ValueError(f"{verb} treats a message that is not handled yet")
            return Moment(who, side, int(count), kind, since_us, verb, tuple(names), value)
    raise ValueError("no moment")


class Event:
    """A message or frame that a member handles."""

    __slots__ = ("again", "frame", "here", "kind", "message", "sender")

    def __init__(
        self, here: Host, kind: str, sender: MemberId, message: Any, again: Again, frame: int = 0
    ) -> None:
        self.here = here
        self.kind = kind
        self.sender = sender
        self.message = message
        self.again = again
        self.frame = frame
        """Kind of a data frame as links know it, 0 for a message."""


class Moments:
    """The moments of a run that have not come yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: list[list[Any]] = []
        """Moment and how many of its messages are still to come."""
        self._held: dict[tuple[str, MemberId], list[Again]] = {}
        self._is_let_through = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waited for and nothing is held back."""
        return not self._left and not self._held

    def expect(self, moments: Sequence[Moment]) -> None:
        """Wait for these."""
        self._left = [[moment, moment.count] for moment in moments]

    def stops(self, event: Event, side: str) -> bool:
        """Let what is to happen at this moment happen.

        Returns:
            Whether the member does not go on with the message: it is gone, or the message is.
        """
        if self._is_let_through:
            return False
        is_stopped = False
        if side == GETS and not event.frame:
            held = self._held.get((event.here.name, event.sender))
            if held is not None and len(held) < HELD_MAX:
                held.append(event.again)
                return True
        for entry in list(self._left):
            moment: Moment = entry[0]
            if moment.side != side or not self._is_meant(moment, event):
                continue
            entry[1] -= 1
            if entry[1] <= 0:
                self._left.remove(entry)
                is_stopped = self._act(moment, event) or is_stopped
        return is_stopped

    def _is_meant(self, moment: Moment, event: Event) -> bool:
        if moment.who != ANYBODY and self._world.place_of(moment.who) is not event.here:
            return False
        if self._world.now_us < moment.since_us:
            return False
        kind, _, step = moment.kind.partition("/")
        if kind != event.kind:
            return False
        migration = getattr(event.message, "migration", None)
        return not step or (isinstance(migration, MigrationInfo) and migration.step.kind == step)

    def _act(self, moment: Moment, event: Event) -> bool:
        world, here = self._world, event.here
        names = tuple(self._name(word, event) for word in moment.names)
        world.trace.mark(world.now_us, here.name, f"moment {moment.side}", moment.kind)
        treatment = TREATMENTS.get(moment.verb)
        if treatment is not None:
            world.disturbed()
            world.last_fault_us = world.now_us
            world.fault_counts[moment.verb] = world.fault_counts.get(moment.verb, 0) + 1
            return treatment(self, event, moment.value)
        incarnation = here.incarnation
        do = partial(world.nemesis.do, moment.verb, *names, value=moment.value)
        if here.name in names and moment.verb not in AT_ONCE:
            world.scheduler.after(1, do)
        else:
            do()
        if here.is_paused and moment.side == GETS:
            self._later(event, 0)
            return True
        return here.incarnation != incarnation

    def _name(self, word: str, event: Event) -> str:
        """Whom a word means at this moment."""
        if word == "here":
            return event.here.name
        if word == "there":
            return self._world.watch.name_of(event.sender)
        migration = getattr(event.message, "migration", None)
        if isinstance(migration, MigrationInfo):
            if word == "destination":
                return self._world.watch.name_of(migration.step.destination or MemberId(""))
            if word == "source":
                table = member_of(event.here).migrations.table
                return self._world.watch.name_of(
                    table.rows[migration.partition_id][0] or MemberId("")
                )
        return word

    # -- treatments of the message itself -------------------------------------------------

    def _later(self, event: Event, delay_us: int) -> None:
        self._world.scheduler.after(
            max(1, delay_us), self._let_through, event.here, event.here.incarnation, event.again
        )

    def _let_through(self, here: Host, incarnation: int, again: Again) -> None:
        """Handle what was held back; it is not counted a second time."""
        if here.incarnation == incarnation:
            self._is_let_through = True
            try:
                again()
            finally:
                self._is_let_through = False

    def late(self, event: Event, delay_us: int) -> bool:
        """The message alone comes later: others overtake it, as on another connection."""
        self._later(event, delay_us)
        return True

    def again(self, event: Event, delay_us: int) -> bool:
        """The message comes a second time later, like the word of an old connection."""
        self._later(event, delay_us)
        return False

    def hold(self, event: Event, delay_us: int) -> bool:
        """Everything of its sender waits for a while, in order."""
        key = (event.here.name, event.sender)
        self._held[key] = [event.again]
        self._world.scheduler.after(
            max(1, delay_us), self._release, event.here, event.here.incarnation, key
        )
        return True

    def _release(self, here: Host, incarnation: int, key: tuple[str, MemberId]) -> None:
        for again in self._held.pop(key, []):
            self._let_through(here, incarnation, again)

    def withhold(self, here: Host, span_us: int) -> None:
        """From now on control messages of everybody wait for a span, each sender's in order."""
        for other in self._world.up_hosts():
            key = (here.name, other.info.id)
            if other is not here and key not in self._held:
                self._held[key] = []
                self._world.scheduler.after(
                    max(1, span_us), self._release, here, here.incarnation, key
                )

    def lose(self, event: Event, _value: int) -> bool:
        """The message is lost with its connection, which both sides notice."""
        sender = self._world.watch.host_of(event.sender)
        if sender is not None:
            self._world.nemesis.do("reset", sender.name, event.here.name)
        return True

    def spoil(self, event: Event, _value: int) -> bool:
        """The end of a frame is missing; who refuses it ends the connection."""
        here, sender = event.here, self._world.watch.host_of(event.sender)
        is_refused = here.damaged_frame(event.sender, event.frame, event.message[:-CUT_BYTES])
        if is_refused and sender is not None:
            self._world.nemesis.do("reset", sender.name, here.name)
        return True


TREATMENTS: dict[str, Callable[[Moments, Event, int], bool]] = {
    "late": Moments.late,
    "again": Moments.again,
    "hold": Moments.hold,
    "lose": Moments.lose,
    "spoil": Moments.spoil,
}
"""Verbs that treat the message itself; the number is a span in microseconds."""
