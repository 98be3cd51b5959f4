"""Rules of multimaps alone: D1 to D3 of the values that are read."""

from __future__ import annotations

from collections import Counter

from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.rule import Rule
from whimbrel.sim.structures.map.model import key_data, value_origin
from whimbrel.sim.structures.multimap.ledger import PairLedger
from whimbrel.sim.structures.multimap.operations import ValuesCounted, ValuesRead


class ValuesPut(Rule):
    """D2 (promise table; H): every value read was put under that key before the read ended, and is
    there once, because it was put once.
    """

    rule = "D2"
    sentence = "a value read under a key was put there, and is there once"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        if not isinstance(operation, ValuesRead) or operation.outcome is not Outcome.OK:
            return
        for key, value in operation.shown:
            origin = value_origin(value)
            if origin is None or origin[0] != self.world.plan.seed or key_data(origin[1]) != key:
                self.fail(f"{operation!r} shows a value that nobody put there: {origin}")
                return
        for one, count in Counter(operation.shown).items():
            if count > 1:
                self.fail(f"{operation!r} shows {value_origin(one[1])} {count} times")
                return


class ValuesWhole(Rule):
    """D1 (promise table; H): in a calm window a read shows every acknowledged value and none that
    was removed, and a count lies between.
    """

    rule = "D1"
    sentence = "a read of a multimap shows every acknowledged value, and none that was removed"

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        world = self.world
        if not isinstance(operation, ValuesRead) or operation.outcome is not Outcome.OK:
            return
        if not world.is_calm_since(operation.invoked_us) or not world.data_is_promised():
            return
        due = [one for one in operation.due if one.owes and one.is_settled]
        if isinstance(operation, ValuesCounted):
            if operation.seen is not None and operation.seen < len(due):
                self.fail(f"{operation!r}: {len(due)} values are there for certain")
            return
        shown = dict.fromkeys(operation.shown)
        self._judge(operation, "misses", [one for one in due if _key_value(one) not in shown])
        self._judge(operation, "shows", [one for one in operation.gone if _key_value(one) in shown])

    def _judge(self, operation: Operation, verb: str, pairs: list[PairLedger]) -> None:
        if pairs:
            self.fail(f"{operation!r} {verb} {pairs[0].acked!r} and {len(pairs) - 1} others")


def _key_value(ledger: PairLedger) -> tuple[bytes, bytes]:
    return ledger.data, ledger.value


RULES: tuple[type[Rule], ...] = (ValuesPut, ValuesWhole)
