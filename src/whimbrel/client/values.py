"""Python's own calendar and uuid types to the values that are serialised, and back.

``serialization`` imports neither ``datetime`` nor ``uuid``; programs on the outside want both.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from whimbrel.errors import SerializationError
from whimbrel.serialization.data import Char, Json, Uuid, to_data, to_object
from whimbrel.serialization.temporal import Date, Time, Timestamp, ZonedTimestamp

_NANOS_PER_MICRO = 1_000


def to_wire(value: Any) -> Any:
    """The wire's form of a value; what has none of its own is returned as it is."""
    if isinstance(value, dt.datetime):
        stamp = Timestamp(_date(value), _time(value.time()))
        offset = value.utcoffset()
        if offset is None:
            return stamp
        return ZonedTimestamp(stamp, int(offset.total_seconds()))
    if isinstance(value, dt.date):
        return _date(value)
    if isinstance(value, dt.time):
        return _time(value)
    if isinstance(value, uuid.UUID):
        return Uuid(value.bytes)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [to_wire(item) for item in value]
    return value


def from_wire(value: Any) -> Any:
    """Python's form of a value of the wire; nanoseconds are cut to microseconds.

    Raises:
        SerializationError: The value is outside of what Python's types hold.
    """
    try:
        if isinstance(value, ZonedTimestamp):
            zone = dt.timezone(dt.timedelta(seconds=value.offset_s))
            return _datetime(value.timestamp).replace(tzinfo=zone)
        if isinstance(value, Timestamp):
            return _datetime(value)
        if isinstance(value, Date):
            return dt.date(value.year, value.month, value.day)
        if isinstance(value, Time):
            return _clock(value)
    except ValueError as error:
        raise SerializationError(f"Python cannot hold this value: {error}") from error
    if isinstance(value, Uuid):
        return uuid.UUID(bytes=value.raw)
    if isinstance(value, Json | Char):
        return str(value)
    if isinstance(value, list):
        return [from_wire(item) for item in value]
    return value


def dumps(value: Any) -> bytes:
    """A Python value as Data; see ``serialization.data.to_data``."""
    return to_data(to_wire(value))


def loads(data: bytes) -> Any:
    """A Data as Python value; see ``serialization.data.to_object``."""
    return from_wire(to_object(data))


def _date(value: dt.date) -> Date:
    return Date(value.year, value.month, value.day)


def _time(value: dt.time) -> Time:
    nanosecond = value.microsecond * _NANOS_PER_MICRO
    return Time(value.hour, value.minute, value.second, nanosecond)


def _clock(value: Time) -> dt.time:
    microsecond = value.nanosecond // _NANOS_PER_MICRO
    return dt.time(value.hour, value.minute, value.second, microsecond)


def _datetime(value: Timestamp) -> dt.datetime:
    day = dt.date(value.date.year, value.date.month, value.date.day)
    return dt.datetime.combine(day, _clock(value.time))
