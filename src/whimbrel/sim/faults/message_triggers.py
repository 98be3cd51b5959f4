"""Triggers: something happens exactly when a member handles the N-th message of one kind.

Some upstream situations last for microseconds: the answer of a commit is on its way, a batch of
promotions is applied at one member and not at another. A scenario file names the message
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
from typing import Any

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MigrationInfo
from whimbrel.sim.host import GETS, HAS, Again, Delivery, Host
from whimbrel.sim.world import World

ANYBODY = "any"
AT_ONCE = ("crash", "silent", "pause")
"""Verbs that may befall the member in the middle of its own step; others come right after it."""
CUT_BYTES = 3
"""What a spoilt frame lacks: a part of its last operation."""
HELD_MAX = 10_000
"""Messages held back of one sender; a scenario that holds more is wrong."""


class MessageTrigger(msgspec.Struct, frozen=True):
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


def parse_trigger(words: Sequence[str]) -> MessageTrigger:
    """A trigger from the words of its line.

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
            return MessageTrigger(who, side, int(count), kind, since_us, verb, tuple(names), value)
    raise ValueError("no trigger")


class MessageTriggers:
    """The triggers of a run that have not gone off yet."""

    def __init__(self, world: World, do: Callable[..., None]) -> None:
        self._world = world
        self._do = do
        """Carries out a verb with its names and its ``value``."""
        self._left: list[list[Any]] = []
        """MessageTrigger and how many of its messages are still to come."""
        self._held: dict[tuple[str, MemberId], list[Again]] = {}
        self._is_let_through = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waited for and nothing is held back."""
        return not self._left and not self._held

    def expect(self, triggers: Sequence[MessageTrigger]) -> None:
        """Wait for these."""
        self._left = [[trigger, trigger.count] for trigger in triggers]

    def stops(self, delivery: Delivery, side: str) -> bool:
        """Let what is to happen at this trigger happen.

        Returns:
            Whether the member does not go on with the message: it is gone, or the message is.
        """
        if self._is_let_through:
            return False
        is_stopped = False
        if side == GETS and not delivery.frame:
            held = self._held.get((delivery.here.name, delivery.sender))
            if held is not None and len(held) < HELD_MAX:
                held.append(delivery.again)
                return True
        for entry in list(self._left):
            trigger: MessageTrigger = entry[0]
            if trigger.side != side or not self._is_meant(trigger, delivery):
                continue
            entry[1] -= 1
            if entry[1] <= 0:
                self._left.remove(entry)
                is_stopped = self._act(trigger, delivery) or is_stopped
        return is_stopped

    def _is_meant(self, trigger: MessageTrigger, delivery: Delivery) -> bool:
        if trigger.who != ANYBODY and self._world.place_of(trigger.who) is not delivery.here:
            return False
        if self._world.now_us < trigger.since_us:
            return False
        kind, _, step = trigger.kind.partition("/")
        if kind != delivery.kind:
            return False
        migration = getattr(delivery.message, "migration", None)
        return not step or (isinstance(migration, MigrationInfo) and migration.step.kind == step)

    def _act(self, trigger: MessageTrigger, delivery: Delivery) -> bool:
        world, here = self._world, delivery.here
        names = tuple(self._name(word, delivery) for word in trigger.names)
        world.trace.mark(world.now_us, here.name, f"moment {trigger.side}", trigger.kind)
        treatment = TREATMENTS.get(trigger.verb)
        if treatment is not None:
            world.harmed()
            world.fault_counts[trigger.verb] = world.fault_counts.get(trigger.verb, 0) + 1
            return treatment(self, delivery, trigger.value)
        incarnation = here.incarnation
        do = partial(self._do, trigger.verb, *names, value=trigger.value)
        if here.name in names and trigger.verb not in AT_ONCE:
            world.scheduler.after(1, do)
        else:
            do()
        if here.is_paused and trigger.side == GETS:
            self._later(delivery, 0)
            return True
        return here.incarnation != incarnation

    def _name(self, word: str, delivery: Delivery) -> str:
        """Whom a word means at this trigger."""
        if word == "here":
            return delivery.here.name
        if word == "there":
            return self._world.name_of(delivery.sender)
        migration = getattr(delivery.message, "migration", None)
        if isinstance(migration, MigrationInfo):
            if word == "destination":
                return self._world.name_of(migration.step.destination or MemberId(""))
            if word == "source":
                table = delivery.here.member.migrations.table
                return self._world.name_of(table.rows[migration.partition_id][0] or MemberId(""))
        return word

    # -- treatments of the message itself -------------------------------------------------

    def _later(self, delivery: Delivery, delay_us: int) -> None:
        self._world.scheduler.after(
            max(1, delay_us),
            self._let_through,
            delivery.here,
            delivery.here.incarnation,
            delivery.again,
        )

    def _let_through(self, here: Host, incarnation: int, again: Again) -> None:
        """Handle what was held back; it is not counted a second time."""
        if here.incarnation == incarnation:
            self._is_let_through = True
            try:
                again()
            finally:
                self._is_let_through = False

    def late(self, delivery: Delivery, delay_us: int) -> bool:
        """The message alone comes later: others overtake it, as on another connection."""
        self._later(delivery, delay_us)
        return True

    def again(self, delivery: Delivery, delay_us: int) -> bool:
        """The message comes a second time later, like the word of an old connection."""
        self._later(delivery, delay_us)
        return False

    def hold(self, delivery: Delivery, delay_us: int) -> bool:
        """Everything of its sender waits for a while, in order."""
        key = (delivery.here.name, delivery.sender)
        self._held[key] = [delivery.again]
        self._world.scheduler.after(
            max(1, delay_us), self._release, delivery.here, delivery.here.incarnation, key
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

    def lose(self, delivery: Delivery, _value: int) -> bool:
        """The message is lost with its connection, which both sides notice."""
        sender = self._world.host_of(delivery.sender)
        if sender is not None:
            self._do("reset", sender.name, delivery.here.name)
        return True

    def spoil(self, delivery: Delivery, _value: int) -> bool:
        """The end of a frame is missing; who refuses it ends the connection."""
        here, sender = delivery.here, self._world.host_of(delivery.sender)
        is_refused = here.damaged_frame(
            delivery.sender, delivery.frame, delivery.message[:-CUT_BYTES]
        )
        if is_refused and sender is not None:
            self._do("reset", sender.name, here.name)
        return True


TREATMENTS: dict[str, Callable[[MessageTriggers, Delivery, int], bool]] = {
    "late": MessageTriggers.late,
    "again": MessageTriggers.again,
    "hold": MessageTriggers.hold,
    "lose": MessageTriggers.lose,
    "spoil": MessageTriggers.spoil,
}
"""Verbs that treat the message itself; the number is a span in microseconds."""
