"""The last calls that changed a queue, with their answers, so that one may be asked twice.

A call whose answer was lost with its primary is repeated under the same id (``core.ids.Attempt``).
Replicas remember what came of it: a record is made by the very operation that made the change, so
whoever has the change has the record. Records have places, which rise by one; the oldest go first.
Of what was forgotten the highest number of each caller is noted, so that a call that may be among
them is not carried out a second time.

As bytes, big-endian: next and first place (u64 each), whether a caller was forgotten (u8), the
number of callers (u16), each with its highest forgotten number and its last forgotten place (u64
each); then the records: place (u64), caller, number (u64), length of the answer (u32), the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from whimbrel.core.ids import CALLER_BYTES, Attempt
from whimbrel.errors import SerializationError

RECORDS_MAX: Final = 1_000
"""Calls remembered of one queue: what many clients have under way at a moment, and some more."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of their answers together; the last one is kept however large it is."""
CALLERS_MAX: Final = 1_000
"""Members, each time they run, of which forgotten calls are noted; 40 bytes each."""

_HEAD: Final = struct.Struct(">QQBH")
_CALLER: Final = struct.Struct(f">{CALLER_BYTES}sQQ")
_RECORD: Final = struct.Struct(f">Q{CALLER_BYTES}sQI")

Id = tuple[bytes, int]
"""Caller and number."""


class Record(NamedTuple):
    """A call that is over."""

    id: Id
    answer: bytes
    """The item that was taken; empty for an offer."""


class Answered:
    """The records of one replica of a queue.

    Attributes:
        next_place: Of the next record.
        first_place: What stood before it is forgotten.
        forgotten: Caller to the highest number of its forgotten calls, and the place of the last.
        has_lost_callers: Whether callers were left out there, those whose last place is the lowest.
    """

    __slots__ = (
        "_bytes",
        "_places",
        "_records",
        "first_place",
        "forgotten",
        "has_lost_callers",
        "next_place",
    )

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        """By place, rising."""
        self._places: dict[Id, int] = {}
        self._bytes = 0
        self.next_place = self.first_place = 1
        self.forgotten: dict[bytes, tuple[int, int]] = {}
        self.has_lost_callers = False

    @property
    def records(self) -> tuple[tuple[int, Record], ...]:
        """All of them with their places, the oldest first."""
        return tuple(self._records.items())

    def find(self, attempt: Attempt) -> bytes | None:
        """What this call was answered; None when nothing is known of it."""
        place = self._places.get((attempt.caller, attempt.number))
        return None if place is None else self._records[place].answer

    def may_have_forgotten(self, attempt: Attempt) -> bool:
        """Whether this call, of which nothing is known, may have been carried out."""
        noted = self.forgotten.get(attempt.caller)
        if noted is None:
            return attempt.is_repetition and self.has_lost_callers
        return attempt.number <= noted[0]

    # -- remembering ----------------------------------------------------------------------

    def add(self, place: int, known: Id, answer: bytes) -> None:
        """Remember a call; one that comes again, or late, is left or put where it belongs."""
        record = Record(known, answer)
        if place < self.next_place:
            self._merge({place: record})
        else:
            self._put(place, record)
        if len(self._records) > RECORDS_MAX or self._bytes > BYTES_MAX:
            self._forget()

    def _put(self, place: int, record: Record) -> None:
        self._records[place] = record
        self._places[record.id] = place
        self._bytes += len(record.answer)
        if place >= self.next_place:
            self.next_place = place + 1

    def _merge(self, incoming: Mapping[int, Record]) -> None:
        """Put records between those that are there. Of two in one place the later one counts: the
        primary of the other was lost with it.
        """
        records = self._records
        fresh = {
            place: record
            for place, record in incoming.items()
            if place >= self.first_place and records.get(place) != record
        }
        if fresh:
            merged = sorted({**records, **fresh}.items())
            self._records, self._places, self._bytes = {}, {}, 0
            for place, record in merged:
                self._put(place, record)

    def _forget(self) -> None:
        """Keep to the limits, the oldest first."""
        records = self._records
        while len(records) > 1 and (len(records) > RECORDS_MAX or self._bytes > BYTES_MAX):
            self._drop(next(iter(records)))

    def _drop(self, place: int) -> None:
        record = self._records.pop(place)
        self._bytes -= len(record.answer)
        self.first_place = place + 1
        if self._places.get(record.id) == place:
            del self._places[record.id]
        self._note(*record.id, place)

    def _note(self, caller: bytes, number: int, place: int) -> None:
        forgotten = self.forgotten
        known = forgotten.get(caller, (0, 0))
        forgotten[caller] = (max(number, known[0]), max(place, known[1]))
        if len(forgotten) > CALLERS_MAX:
            del forgotten[min(forgotten, key=lambda one: forgotten[one][1])]
            self.has_lost_callers = True

    # -- copies ---------------------------------------------------------------------------

    @property
    def head_bytes(self) -> int:
        """What each piece of a copy begins with: who has called and is forgotten."""
        return _HEAD.size + len(self.forgotten) * _CALLER.size

    def export(self, place: int, bytes_max: int) -> tuple[bytes, int]:
        """The records from a place on, and the place to go on with; that is ``next_place`` at last.

        They end with the one that reaches ``bytes_max``, what the piece begins with counted.
        """
        if self.next_place == 1:
            return b"", 1
        callers = [(caller, *noted) for caller, noted in self.forgotten.items()]
        head = (self.next_place, self.first_place, self.has_lost_callers, len(callers))
        pieces = [_HEAD.pack(*head), *(_CALLER.pack(*caller) for caller in callers)]
        size = self.head_bytes
        for known, ((caller, number), answer) in self._records.items():
            if known < place:
                continue
            pieces += (_RECORD.pack(known, caller, number, len(answer)), answer)
            size += _RECORD.size + len(answer)
            if size >= bytes_max:
                return b"".join(pieces), known + 1
        return b"".join(pieces), self.next_place

    def ingest(self, copied: Copied) -> None:
        """Take in what ``read`` has found."""
        for caller, number, place in copied.forgotten:
            self._note(caller, number, place)
        self.has_lost_callers |= copied.has_lost_callers
        self._merge(copied.records)
        while self._records and (oldest := next(iter(self._records))) < copied.first_place:
            self._drop(oldest)
        self.first_place = max(self.first_place, copied.first_place)
        self.next_place = max(self.next_place, copied.next_place)
        self._forget()


class Copied(NamedTuple):
    """A piece of a copy, read."""

    next_place: int = 1
    first_place: int = 1
    has_lost_callers: bool = False
    forgotten: Sequence[tuple[bytes, int, int]] = ()
    records: Mapping[int, Record] = MappingProxyType({})


def read(data: bytes) -> Copied:
    """What ``Answered.export`` has written.

    Raises:
        SerializationError: It is damaged.
    """
    if not data:
        return Copied()
    records: dict[int, Record] = {}
    try:
        next_place, first_place, has_lost, count = _HEAD.unpack_from(data)
        at = _HEAD.size + count * _CALLER.size
        if at > len(data):
            raise SerializationError("answers of a queue end within their callers")
        callers = list(_CALLER.iter_unpack(data[_HEAD.size : at]))
        while at < len(data):
            place, caller, number, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size + length
            if at > len(data):
                raise SerializationError("answers of a queue end within an answer")
            records[place] = Record((caller, number), data[at - length : at])
    except struct.error as error:
        raise SerializationError("answers of a queue are cut off") from error
    return Copied(next_place, first_place, bool(has_lost), callers, records)
