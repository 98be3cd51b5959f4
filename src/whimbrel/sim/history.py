"""What clients did in a run, and what members must therefore hold.

An *operation* is one call of a client. A *ledger* is what is known of one thing that changes as a
whole, a key of a map for example: its changes in the order of invocation, those that were
acknowledged and those whose outcome nobody knows. Rules about data ask ledgers and know no kind of
structure.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.replication.fragments import Store
from whimbrel.wire.frames import RawMessage

ABSENT = 0
"""Operation number that stands for "nothing is there"."""


class Outcome(enum.StrEnum):
    """How an operation ended, as its client knows it."""

    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    """Certainly without effect."""
    UNKNOWN = "unknown"


class Reply(msgspec.Struct, frozen=True):
    """What a client knows about an operation in the end."""

    outcome: Outcome
    answer: Any = None
    """What ``Operation.decode`` made of the response; None for any other outcome than OK."""
    error: str = ""
    attempts: int = 1
    """How often it was sent; more than once, and it may be carried out late."""


class Operation(ABC):
    """One operation in the history."""

    message: str
    """Name of the client message."""
    is_read: ClassVar[bool] = False
    """Whether it changes nothing."""

    def __init__(
        self, client: str, kind: str, ledger: Ledger, number: int, invoked_us: int
    ) -> None:
        self.client = client
        self.kind = kind
        self.ledger = ledger
        self.number = number
        """Of the change, per ledger, from 1; for a read the changes invoked when it began."""
        self.effect = number
        """What is there afterwards if the change takes effect: its number, or ABSENT."""
        self.invoked_us = invoked_us
        self.completed_us = -1
        self.is_extra = False
        """Not one of its client's sequence: nothing follows from its end."""
        self.outcome = Outcome.PENDING
        self.seen: int | None = None
        """Number of the operation whose effect was returned; None when nothing was."""

    @abstractmethod
    def request(self, correlation: int, flags: int) -> bytes:
        """As its client sends it."""

    @abstractmethod
    def decode(self, message: RawMessage) -> Any:
        """What a response without an error says; goes to the model in a ``Reply``."""

    @property
    def had_effect(self) -> bool:
        """Whether the change, which was answered, took place (conditional ones may not)."""
        return True

    def __repr__(self) -> str:
        return (
            f"{self.client} {self.kind} {self.ledger.label} #{self.number} "
            f"{self.invoked_us / 1e6:.3f}..{self.completed_us / 1e6:.3f} "
            f"{self.outcome.value} saw {self.seen}"
        )


class Ledger(ABC):
    """What is known of one thing that is kept in one partition."""

    def __init__(
        self, label: str, namespace: Namespace, partition_id: PartitionId, is_judged: bool
    ) -> None:
        self.label = label
        """For people and for the trace."""
        self.namespace = namespace
        self.kind, _, self.name = namespace.partition("/")
        self.partition_id = partition_id
        self.is_judged = is_judged
        """Whether it must show what was acknowledged, as long as nothing else is written."""
        self.is_written_once = False
        """Whether nothing follows its first change."""
        self.changes: list[Operation] = []
        self.unknown: list[Operation] = []
        """Those of ``changes`` whose outcome nobody knows; they may take effect at any time."""
        self.acked: Operation | None = None
        """The newest acknowledged change."""

    @property
    def is_open(self) -> bool:
        """Whether the newest change has not ended yet."""
        return bool(self.changes) and self.changes[-1].outcome is Outcome.PENDING

    @property
    def is_settled(self) -> bool:
        """Whether the newest change is acknowledged."""
        return self.acked is not None and self.acked is self.changes[-1]

    @property
    def owes(self) -> bool:
        """Whether members must hold something of it."""
        return self.acked is not None and self.acked.effect != ABSENT

    @abstractmethod
    def lacks(self, store: Store | None) -> bool:
        """Whether a replica misses something acknowledged that no other call can have taken."""

    def keeps(self, store: Store | None, operation: Operation) -> bool:
        """Whether a replica has this acknowledged change, unless another call has taken it since.

        What was lost before it, where loss is allowed, does not count.
        """
        return not self.lacks(store)

    @abstractmethod
    def is_right(self, store: Store | None) -> bool:
        """Whether a replica at rest shows what the calls so far allow."""

    @abstractmethod
    def shows(self, store: Store | None, operation: Operation) -> bool:
        """Whether a replica shows the effect of this very change."""

    @abstractmethod
    def is_absent(self, store: Store | None) -> bool:
        """Whether a replica shows nothing of it."""

    @abstractmethod
    def shown(self, store: Store | None) -> str:
        """What a replica shows, for people."""


class History:
    """All operations of a run, by ledger."""

    def __init__(self, partition_count: int) -> None:
        self.ledgers: list[Ledger] = []
        """Those that are judged, in the order of their first use."""
        self._all: list[Ledger] = []
        self.by_partition: list[list[Ledger]] = [[] for _ in range(partition_count)]
        self.destroyed: dict[Ledger, None] = {}
        """Those of which nothing must ever be seen again."""
        self.operations = 0
        self.acked_writes = 0
        self.unknown_writes = 0

    def add(self, ledger: Ledger) -> None:
        """A ledger is begun."""
        self._all.append(ledger)
        if ledger.is_judged:
            self.ledgers.append(ledger)
            self.by_partition[ledger.partition_id].append(ledger)

    def doubt(self, since_us: int) -> None:
        """What was acknowledged from then on may be lost with everybody, where that is promised to
        be all: from now on it is as if its clients had never heard.
        """
        for ledger in self._all:
            late = [
                change
                for change in ledger.changes
                if change.outcome is Outcome.OK and change.completed_us >= since_us
            ]
            if not late:
                continue
            for change in late:
                change.outcome = Outcome.UNKNOWN
            ledger.unknown += late
            known = [change for change in ledger.changes if change.outcome is Outcome.OK]
            ledger.acked = max(known, key=lambda change: change.number, default=None)

    def book(self, change: Operation) -> None:
        """A change has ended."""
        ledger = change.ledger
        if change.outcome is Outcome.UNKNOWN:
            self.unknown_writes += 1
            ledger.unknown.append(change)
        elif change.outcome is Outcome.OK and not change.had_effect:
            change.outcome = Outcome.FAILED
        elif change.outcome is Outcome.OK:
            self.acked_writes += 1
            if ledger.acked is None or change.number > ledger.acked.number:
                ledger.acked = change
