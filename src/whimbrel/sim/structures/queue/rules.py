"""Rules of queues alone: D5."""

from __future__ import annotations

from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.items import PRODUCER
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.structures.queue.ledger import QueueOperation, QueueRead
from whimbrel.sim.structures.queue.model import WAITED
from whimbrel.sim.world import World

SERVED_US = 1_000_000
"""In a window without faults, who waits is served so long after an offer was acknowledged."""


class TakenOnce(Rule):
    """D5 (promise table; H): no item is made up, none is given twice, and those of one producer are
    given to one consumer in their order.

    Producers and consumers are sequential clients; an offer of unknown outcome may take effect
    late, so it has no order.
    """

    rule = "D5"
    sentence = "an item is taken once, and after those that its producer offered before"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[tuple[str, str, int], int] = {}

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if not isinstance(operation, QueueOperation):
            return
        ledger = operation.ledger
        for code in operation.codes:
            offer = ledger.offered.get(code)
            if offer is None or offer.outcome is Outcome.FAILED:
                self.fail(f"{operation!r} saw item {code}, which was never offered")
                return
        if not self.world.data_is_promised():
            return
        if isinstance(operation, QueueRead):
            self._look(operation)
            return
        for code in operation.codes:
            first = ledger.taken[code]
            if first is not operation:
                self.fail(f"{operation!r} took item {code}, which {first!r} had taken")
            self._in_order(operation, code)

    def _in_order(self, operation: QueueOperation, code: int) -> None:
        producer = code // PRODUCER
        if not producer or operation.ledger.offered[code].outcome is not Outcome.OK:
            return
        place = (operation.client, operation.ledger.label, producer)
        last = self._last.get(place, 0)
        if code < last:
            self.fail(f"{operation!r} took item {code} after {last}")
        self._last[place] = max(last, code)

    def _look(self, operation: QueueRead) -> None:
        """A look at a queue that nothing disturbs shows what must be there and nothing else."""
        if not self.world.is_calm_since(operation.invoked_us):
            return
        back = [code for code in operation.codes if code in operation.gone]
        if back:
            self.fail(f"{operation!r} saw items that were taken: {back}")
        if operation.outcome is not Outcome.OK:
            return
        ledger = operation.ledger
        seen = frozenset(operation.codes)
        missing = [code for code in operation.owed if code not in seen and code in ledger.owed]
        if len(missing) > ledger.spared:
            self.fail(f"{operation!r} misses {missing}")


class WaitersServed(Rule):
    """D5 (design 0015; H): in calm windows nobody waits for an item beside one."""

    rule = "D5"
    sentence = "who waits for an item is given the next one"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: a poll ended with nothing; is there something that was there for long?"""
        world = self.world
        if not isinstance(operation, QueueOperation) or operation.kind != "poll":
            return
        if reply.outcome is not Outcome.OK or operation.codes or operation.timeout_ms == 0:
            return
        if not world.is_calm_since(operation.invoked_us) or not world.data_is_promised():
            return
        ledger = operation.ledger
        late_us = world.now_us - SERVED_US - world.plan.round_trip_us
        beside = [code for code in ledger.owed if ledger.offered[code].completed_us < late_us]
        if len(beside) > ledger.spared:
            self.fail(f"{operation!r} ended beside {beside}")


class QueueSightings(Sightings):
    """What clients did; counted by the model."""

    situations = (WAITED,)


RULES: tuple[type[Rule], ...] = (TakenOnce, WaitersServed, QueueSightings)
