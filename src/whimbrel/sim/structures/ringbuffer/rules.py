"""Rules of ring buffers alone: D5."""

from __future__ import annotations

from itertools import pairwise

from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.ringbuffer.model import SCRATCH_RING, WAITED
from whimbrel.sim.structures.ringbuffer.operations import RingAdd, RingFollow, RingRead

SERVED_US = 2_000_000
"""In a window without faults, who waits for an item has it so long after it was acknowledged, even
if packets are lost."""


class SequencesHold(Rule):
    """D5 (promise table; H): no item is made up, a sequence is given once and holds its item, and
    what is read has no gap, loses nothing and leaves nothing out at its end.

    An item of a call under way may be seen and then be lost with its primary, so a read is held
    against what was acknowledged before it began.
    """

    rule = "D5"
    sentence = "a sequence is given once and holds its item until that is overwritten"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if isinstance(operation, RingAdd):
            self._added(operation)
        elif isinstance(operation, RingRead) and operation.outcome is Outcome.OK:
            self._read(operation)

    def _added(self, operation: RingAdd) -> None:
        """The sequences of one that is destroyed now and then begin anew."""
        ledger = operation.ledger
        is_kept = ledger.name != SCRATCH_RING and self.world.data_is_promised()
        if operation.clash is not None and is_kept:
            code = ledger.given[operation.clash]
            self.fail(f"{operation!r} was given {operation.clash}, which is of item {code}")

    def _read(self, operation: RingRead) -> None:
        world, ledger = self.world, operation.ledger
        for _, code in operation.pairs:
            add = ledger.added.get(code)
            if add is None or add.outcome is Outcome.FAILED:
                self.fail(f"{operation!r} saw item {code}, which was never added")
                return
        is_calm = world.is_calm_since(operation.invoked_us)
        if not world.data_is_promised() or not (is_calm or world.reads_are_fresh()):
            return
        for sequence, code in operation.pairs:
            known = ledger.given.get(sequence, code)
            if known != code and ledger.added[known].completed_us <= operation.invoked_us:
                self.fail(f"{operation!r} saw {code} at {sequence}, which is of item {known}")
        if ledger.is_judged:
            self._at_its_ends(operation)

    def _at_its_ends(self, operation: RingRead) -> None:
        """Nothing is left out before what is shown, within, or behind."""
        ledger = operation.ledger
        numbers = [sequence for sequence, _ in operation.pairs]
        if any(after != before + 1 for before, after in pairwise(numbers)):
            self.fail(f"{operation!r} saw {numbers}")
        first, end = (numbers[0], numbers[-1] + 1) if numbers else (operation.start,) * 2
        if first > operation.start and first + ledger.capacity > len(ledger.added):
            self.fail(f"{operation!r} begins with {first}, and that is not overwritten")
        if len(numbers) < operation.count and end <= operation.tail:
            self.fail(f"{operation!r} ends before {end}, and {operation.tail} was given")


class ReadersServed(Rule):
    """D5 (design 0015; H): in calm windows nobody waits for an item that is there."""

    rule = "D5"
    sentence = "who waits for the next item of a ring buffer is given it"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: a read has ended; was its client tired of waiting for what was there?"""
        world = self.world
        if not isinstance(operation, RingFollow) or not world.is_calm_since(operation.invoked_us):
            return
        code = operation.ledger.given.get(operation.start)
        if code is None or not world.data_is_promised():
            return
        there_us = operation.ledger.added[code].completed_us
        if operation.tired_us > there_us + SERVED_US + world.plan.round_trip_us:
            self.fail(f"{operation!r} waited beside item {code}")


class RingSightings(Sightings):
    """What clients did; counted by the model."""

    situations = (WAITED,)


RULES: tuple[type[Rule], ...] = (SequencesHold, ReadersServed, RingSightings)
