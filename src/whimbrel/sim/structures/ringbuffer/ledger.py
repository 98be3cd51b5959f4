"""What is known of one ring buffer in a run: what was added, and which sequences were given.

Items are those of ``sim.items``. Every item is sent once, so it is there once;
a call of unknown end may have taken sequences without anybody's knowing which.
"""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.core.replication.fragments import Store
from whimbrel.sim.history import Operation, Outcome
from whimbrel.sim.items import ItemLedger, code_of
from whimbrel.sim.model import store_as
from whimbrel.sim.structures.ringbuffer.operations import RingAdd
from whimbrel.structures.ringbuffer.record import TIME_BYTES
from whimbrel.structures.ringbuffer.settings import NAME
from whimbrel.structures.ringbuffer.store import RingbufferStore


def store_of(store: Store) -> RingbufferStore:
    """A ring buffer's store; see ``store_as``."""
    return store_as(RingbufferStore, store)


class RingLedger(ItemLedger):
    """Everything that happened to one ring buffer.

    Attributes:
        capacity: Items that it has at most.
        added: Code to the call that adds it, of all that were begun.
        given: Sequence to code, as far as it was acknowledged.
        tail: The highest sequence of these, -1 when there is none.
        doomed: Codes of what was there for certain when the order to destroy it went out.
    """

    def __init__(
        self, name: str, seed: int, partition_count: int, capacity: int, *, is_judged: bool
    ) -> None:
        super().__init__(NAME, name, seed, partition_count, is_judged=is_judged)
        self.capacity = capacity
        self.added: dict[int, RingAdd] = {}
        self.given: dict[int, int] = {}
        self.tail = -1
        self.doomed: frozenset[int] = frozenset()

    def begin(self, operation: RingAdd) -> None:
        """A change is asked for."""
        self.changes.append(operation)
        self.added.update(dict.fromkeys(operation.codes, operation))

    def ended(self, operation: RingAdd) -> None:
        """A change is acknowledged."""
        given = operation.given()
        for sequence, code in given.items():
            if self.given.setdefault(sequence, code) != code:
                operation.clash = sequence
        self.tail = max(self.tail, *given)

    def number_of(self, code: int) -> int | None:
        """The number of the call that added an item, None when there was none."""
        add = self.added.get(code)
        return None if add is None else add.number

    @property
    def owes(self) -> bool:
        """Whether members must hold items of it."""
        return bool(self.given)

    def codes_in(self, store: Store | None) -> dict[int, int]:
        """Sequence to code of what a replica holds."""
        if store is None:
            return {}
        ring = store_of(store)
        items = enumerate(ring.items(ring.head, ring.next), ring.head)
        return {number: code_of(self._seed, item[TIME_BYTES:]) for number, item in items if item}

    def problem(self, store: Store | None) -> str:
        """Why a replica at rest must not show this; empty when it may."""
        codes = self.codes_in(store)
        for sequence, code in codes.items():
            add = self.added.get(code)
            if add is None or add.outcome is Outcome.FAILED:
                return f"item {code} was never added"
            if self.given.get(sequence, code) != code:
                return f"item {code} has sequence {sequence} of {self.given[sequence]}"
        if len(frozenset(codes.values())) < len(codes):
            return "an item is there twice"
        ring = RingbufferStore() if store is None else store_of(store)
        if ring.head != max(0, ring.next - self.capacity) or len(codes) < ring.next - ring.head:
            return f"from {ring.head} to {ring.next} there are {len(codes)} items"
        return ""

    def _holds(self, store: Store | None, wanted: Mapping[int, int]) -> bool:
        """Whether a replica has these codes at their sequences, or has overwritten them."""
        codes = self.codes_in(store)
        end = 0 if store is None else store_of(store).next
        return all(
            codes.get(sequence) == code
            for sequence, code in wanted.items()
            if sequence >= end - self.capacity
        )

    def lacks(self, store: Store | None) -> bool:
        """Whether an acknowledged item is missing and was not overwritten."""
        last = range(max(0, self.tail + 1 - self.capacity), self.tail + 1)
        return not self._holds(store, {one: self.given[one] for one in last if one in self.given})

    def keeps(self, store: Store | None, operation: Operation) -> bool:
        """Whether the items of this addition are there, or were overwritten."""
        if not isinstance(operation, RingAdd):
            return super().keeps(store, operation)
        return self._holds(store, operation.given())

    def is_right(self, store: Store | None) -> bool:
        """Whether nothing is there that was never added, and nothing is missing."""
        return not self.lacks(store) and not self.problem(store)

    def shows(self, store: Store | None, operation: Operation) -> bool:
        """Whether an item of this addition is there."""
        held = frozenset(self.codes_in(store).values())
        return isinstance(operation, RingAdd) and not held.isdisjoint(operation.codes)

    def is_absent(self, store: Store | None) -> bool:
        """Whether nothing is there that was destroyed."""
        return self.doomed.isdisjoint(self.codes_in(store).values())

    def shown(self, store: Store | None) -> str:
        """Sequences and codes, and what is wrong with them."""
        codes = self.codes_in(store)
        missing = [one for one, code in self.given.items() if codes.get(one) != code]
        return f"{codes} ({self.problem(store) or 'in order'}; not there are {missing})"
