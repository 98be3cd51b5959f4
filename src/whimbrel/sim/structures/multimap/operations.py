"""Calls on multimaps, and what their answers say."""

from __future__ import annotations

from typing import Any

from whimbrel.sim.history import ABSENT, Ledger, Operation
from whimbrel.sim.structures.multimap.ledger import PairLedger
from whimbrel.wire import codec
from whimbrel.wire.frames import RawMessage

PUT = "put"
REMOVE_ENTRY = "removeEntry"
OF_KEY = ("remove", "delete")
"""Remove a key with all its values."""


class PairChange(Operation):
    """A value is put under a key, or removed."""

    ledger: PairLedger

    def __init__(
        self, client: str, kind: str, ledger: PairLedger, number: int, invoked_us: int
    ) -> None:
        super().__init__(client, kind, ledger, number, invoked_us)
        self.message = f"MultiMap.{kind}"
        self.is_done = True
        """Whether the answer says that something changed."""
        if kind != PUT:
            self.effect = ABSENT

    def request(self, correlation: int, flags: int) -> bytes:
        """The request of the client protocol."""
        ledger = self.ledger
        fields: dict[str, Any] = {"name": ledger.name, "key": ledger.data, "thread_id": 1}
        if self.kind not in OF_KEY:
            fields["value"] = ledger.value
        return codec.encode_request(self.message, correlation, ledger.partition_id, flags, **fields)

    def decode(self, message: RawMessage) -> Any:
        """Whether something changed, or the values that were removed; None for no answer."""
        return codec.decode_response(message)[1].get("response")

    @property
    def had_effect(self) -> bool:
        """See ``Operation.had_effect``."""
        return self.is_done


class ValuesRead(Operation):
    """A call that shows values: of one key, or of a whole multimap."""

    is_read = True

    def __init__(
        self, client: str, kind: str, ledger: Ledger, invoked_us: int, pairs: tuple[PairLedger, ...]
    ) -> None:
        super().__init__(client, kind, ledger, 0, invoked_us)
        self.message = f"MultiMap.{kind}"
        self.due = [one for one in pairs if one.owes and one.is_settled]
        """Values that must be shown, unless somebody begins to remove them meanwhile."""
        self.gone = [one for one in pairs if one.is_settled and not one.owes and not one.unknown]
        """Values that must not be shown: they were removed for certain."""
        self.shown: list[tuple[bytes, bytes]] = []
        """(key, value) of those that are shown."""

    def request(self, correlation: int, flags: int) -> bytes:
        """The request; one for a whole multimap goes to any member."""
        ledger = self.ledger
        if self.kind == "entrySet":
            return codec.encode_request(self.message, correlation, -1, 0, name=ledger.name)
        fields = {"name": ledger.name, "key": _pair(ledger).data, "thread_id": 1}
        return codec.encode_request(self.message, correlation, ledger.partition_id, flags, **fields)

    def decode(self, message: RawMessage) -> list[tuple[bytes, bytes]]:
        """(key, value) of each value that is shown."""
        found: list[Any] = codec.decode_response(message)[1]["response"]
        if self.kind == "entrySet":
            return [(bytes(key), bytes(value)) for key, value in found]
        return [(_pair(self.ledger).data, bytes(value)) for value in found]


class ValuesCounted(ValuesRead):
    """A call that says how many values a key has."""

    def decode(self, message: RawMessage) -> int:  # type: ignore[override]
        """The number."""
        found: int = codec.decode_response(message)[1]["response"]
        return found


def _pair(ledger: Ledger) -> PairLedger:
    if not isinstance(ledger, PairLedger):
        raise TypeError(f"{ledger.label} is no key of a multimap")
    return ledger
