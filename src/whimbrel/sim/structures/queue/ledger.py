"""What is known of one queue in a run: which items were offered, taken and must be there.

Items are those of ``sim.items``. Those of one producer are offered one after the other and so have
an order; those of floods have none.
"""

from __future__ import annotations

from typing import Any

from whimbrel.core.replication.fragments import Store
from whimbrel.sim.history import ABSENT, Operation, Outcome
from whimbrel.sim.items import PRODUCER, ItemLedger, code_of
from whimbrel.sim.model import store_as
from whimbrel.structures.queue.record import ID_BYTES
from whimbrel.structures.queue.settings import NAME
from whimbrel.structures.queue.store import QueueStore
from whimbrel.wire import codec
from whimbrel.wire.frames import RawMessage

CALLS = {
    "offer": "Queue.offer",
    "poll": "Queue.poll",
    "drain": "Queue.drainToMaxSize",
    "iterate": "Queue.iterator",
}


def store_of(store: Store) -> QueueStore:
    """A queue's store; see ``store_as``."""
    return store_as(QueueStore, store)


class QueueOperation(Operation):
    """A call on a queue: an offer, or one that takes or looks at items."""

    ledger: QueueLedger

    def __init__(self, client: str, kind: str, ledger: QueueLedger, invoked_us: int) -> None:
        super().__init__(client, kind, ledger, len(ledger.changes) + 1, invoked_us)
        self.message = CALLS[kind]
        self.code = ABSENT
        """Of the item that is offered."""
        self.item = b""
        self.timeout_ms = 0
        self.count_max = 0 if kind == "offer" else 1
        """Items that it takes at most."""
        self.codes: list[int] = []
        """Of the items that were returned."""
        self.is_accepted = False
        """Whether an offer was taken in."""
        if kind != "offer":
            self.effect = ABSENT

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        fields: dict[str, Any] = {"name": self.ledger.name}
        if self.kind == "drain":
            fields["max_size"] = self.count_max
        elif not self.is_read:
            fields["timeout_millis"] = self.timeout_ms
        if self.kind == "offer":
            fields["value"] = self.item
        return codec.encode_request(
            self.message, correlation, self.ledger.partition_id, flags, **fields
        )

    def decode(self, message: RawMessage) -> Any:
        """Whether an item was taken in, or the items that were returned."""
        found = codec.decode_response(message)[1]["response"]
        if self.kind == "poll":
            return [] if found is None else [found]
        return found

    @property
    def had_effect(self) -> bool:
        """Whether there was room, or something to take."""
        return self.is_accepted or bool(self.codes)


class QueueRead(QueueOperation):
    """A look at all items."""

    is_read = True

    def __init__(self, client: str, ledger: QueueLedger, invoked_us: int) -> None:
        super().__init__(client, "iterate", ledger, invoked_us)
        self.number -= 1
        self.gone = frozenset(ledger.taken)
        """What was taken for certain when it began."""
        self.owed = tuple(ledger.owed)
        """What had to be there."""


class QueueLedger(ItemLedger):
    """Everything that happened to one queue.

    Attributes:
        offered: Code to offer, of all that were begun.
        owed: Codes of acknowledged offers of which no answer has said that they were taken.
        taken: Code to the call that has returned it.
        taking: Calls under way that may take something.
        doomed: What was there for certain when the order to destroy it went out.
    """

    def __init__(self, name: str, seed: int, partition_count: int, *, is_judged: bool) -> None:
        super().__init__(NAME, name, seed, partition_count, is_judged=is_judged)
        self.offered: dict[int, QueueOperation] = {}
        self.owed: dict[int, None] = {}
        self.taken: dict[int, QueueOperation] = {}
        self.taking: dict[QueueOperation, None] = {}
        self.doomed: tuple[int, ...] = ()

    def begin(self, operation: QueueOperation) -> None:
        """A change is asked for."""
        self.changes.append(operation)
        if operation.kind == "offer":
            self.offered[operation.code] = operation
        else:
            self.taking[operation] = None

    def ended(self, operation: QueueOperation) -> None:
        """The outcome of a change is known, and what it returned."""
        self.taking.pop(operation, None)
        for code in operation.codes:
            self.owed.pop(code, None)
            self.taken.setdefault(code, operation)
        if operation.is_accepted and operation.code not in self.taken:
            self.owed[operation.code] = None

    def number_of(self, code: int) -> int | None:
        """The number of the offer of an item, None when there was none."""
        offer = self.offered.get(code)
        return None if offer is None else offer.number

    @property
    def owes(self) -> bool:
        """Whether members must hold items of it."""
        return bool(self.owed)

    @property
    def spared(self) -> int:
        """How many items may have been taken without anybody's having been told."""
        unknown = sum(one.count_max for one in self.unknown if isinstance(one, QueueOperation))
        return unknown + sum(one.count_max for one in self.taking)

    def codes_in(self, store: Store | None) -> list[int]:
        """The codes of what a replica holds, from the head on."""
        items = () if store is None else store_of(store).items
        return [code_of(self._seed, item[ID_BYTES:]) for item in items]

    def problem(self, codes: list[int]) -> str:
        """Why a queue at rest must not show this; empty when it may."""
        last: dict[int, int] = {}
        seen: set[int] = set()
        for code in codes:
            offer = self.offered.get(code)
            if offer is None or offer.outcome is Outcome.FAILED:
                return f"item {code} was never offered"
            if code in self.taken:
                return f"item {code} was taken by {self.taken[code]!r}"
            if code in seen:
                return f"item {code} is there twice"
            seen.add(code)
            producer = code // PRODUCER
            if producer and offer.outcome is Outcome.OK:
                if code < last.get(producer, 0):
                    return f"item {code} comes after {last[producer]}"
                last[producer] = code
        return ""

    def lacks(self, store: Store | None) -> bool:
        """Whether more items are missing than calls of unknown end can have taken."""
        held = frozenset(self.codes_in(store))
        return sum(code not in held for code in self.owed) > self.spared

    def keeps(self, store: Store | None, operation: Operation) -> bool:
        """Whether the item of an offer is there, or may have been taken since."""
        if not isinstance(operation, QueueOperation) or operation.kind != "offer":
            return super().keeps(store, operation)
        is_taken = operation.code in self.taken or self.spared > 0
        return is_taken or self.shows(store, operation)

    def is_right(self, store: Store | None) -> bool:
        """Whether nothing is there that was taken or never offered, and nothing is missing."""
        return not self.lacks(store) and not self.problem(self.codes_in(store))

    def shows(self, store: Store | None, operation: Operation) -> bool:
        """Whether the item of this offer is there."""
        is_offer = isinstance(operation, QueueOperation) and operation.kind == "offer"
        return is_offer and operation.code in self.codes_in(store)  # type: ignore[attr-defined]

    def is_absent(self, store: Store | None) -> bool:
        """Whether nothing is there that was destroyed."""
        held = frozenset(self.codes_in(store))
        return not any(code in held for code in self.doomed)

    def shown(self, store: Store | None) -> str:
        """The codes, and what is wrong with them."""
        codes = self.codes_in(store)
        held = frozenset(codes)
        missing = [code for code in self.owed if code not in held]
        return f"{codes} ({self.problem(codes) or 'in order'}; missing are {missing})"
