"""Calls on ring buffers: additions, looks, and reads that wait for the next item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whimbrel.sim.history import Operation
from whimbrel.structures.ringbuffer.service import FAILED, OVERWRITE
from whimbrel.wire import codec
from whimbrel.wire.frames import RawMessage

if TYPE_CHECKING:
    from whimbrel.sim.structures.ringbuffer.ledger import RingLedger

Shown = list[tuple[int, bytes]]
"""Sequences with their Data."""


class RingAdd(Operation):
    """Items are added; the answer is the sequence of the last one."""

    ledger: RingLedger

    def __init__(self, client: str, ledger: RingLedger, invoked_us: int) -> None:
        super().__init__(client, "add", ledger, len(ledger.changes) + 1, invoked_us)
        self.codes: list[int] = []
        """Of the items."""
        self.items: list[bytes] = []
        self.last = FAILED
        """The sequence of the last one; FAILED until it is known."""
        self.clash: int | None = None
        """A sequence of these that somebody else was given before."""

    @property
    def message(self) -> str:  # type: ignore[override]  # it depends on how many there are
        """Name of the client message."""
        return "Ringbuffer.add" if len(self.items) == 1 else "Ringbuffer.addAll"

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        is_one = len(self.items) == 1
        items: dict[str, Any] = {"value": self.items[0]} if is_one else {"value_list": self.items}
        return codec.encode_request(
            self.message,
            correlation,
            self.ledger.partition_id,
            flags,
            name=self.ledger.name,
            overflow_policy=OVERWRITE,
            **items,
        )

    def decode(self, message: RawMessage) -> int:
        """The sequence of the last item."""
        last: int = codec.decode_response(message)[1]["response"]
        return last

    def given(self) -> dict[int, int]:
        """Sequence to code, once it is acknowledged."""
        return dict(enumerate(self.codes, self.last - len(self.codes) + 1))


class RingRead(Operation):
    """A look at so many items from a sequence on, as far as they are there."""

    ledger: RingLedger
    is_read = True
    message = "Ringbuffer.readMany"

    def __init__(
        self, client: str, ledger: RingLedger, invoked_us: int, start: int, count: int
    ) -> None:
        super().__init__(client, self.message, ledger, len(ledger.changes), invoked_us)
        self.start = start
        self.count = count
        self.tail = ledger.tail
        """The highest sequence that was given for certain when it began."""
        self.pairs: list[tuple[int, int]] = []
        """Sequences and codes that it was shown."""

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        ledger = self.ledger
        return codec.encode_request(
            "Ringbuffer.readMany",
            correlation,
            ledger.partition_id,
            flags,
            name=ledger.name,
            start_sequence=self.start,
            min_count=0,
            max_count=self.count,
            filter=None,
        )

    def decode(self, message: RawMessage) -> Shown:
        """The items with their sequences."""
        _, fields = codec.decode_response(message)
        return list(zip(fields["item_seqs"], fields["items"], strict=True))


class RingFollow(RingRead):
    """A read of one sequence, which is often the next one and waits for its item.

    Such a call has no end of its own. Its client loses patience some time, ends its connections as
    a program that stops would, and looks what is there.
    """

    message = "Ringbuffer.readOne"
    is_impatient = False
    """Whether it looks and does not wait."""
    tired_us = -1
    """When its client lost patience, -1 when it did not."""

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        if self.is_impatient:
            return super().request(correlation, flags)
        ledger = self.ledger
        return codec.encode_request(
            self.message,
            correlation,
            ledger.partition_id,
            flags,
            name=ledger.name,
            sequence=self.start,
        )

    def decode(self, message: RawMessage) -> Shown:
        """The item with its sequence."""
        name, fields = codec.decode_response(message)
        return (
            super().decode(message) if name != self.message else [(self.start, fields["response"])]
        )
