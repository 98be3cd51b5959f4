"""Calendar values as they travel: dates, times and time stamps with nanoseconds.

The core knows no clock and no calendar arithmetic; these structs hold what the bytes say, print
in ISO 8601 and know their layouts. The Java types behind them reach further than Python's
(years beyond 9999, nanoseconds), so nothing is lost here; ``client.values`` converts.
"""

from __future__ import annotations

import struct

import msgspec

from whimbrel.errors import SerializationError

DATE = struct.Struct(">ibb")
TIME = struct.Struct(">bbbi")
TIMESTAMP = struct.Struct(">ibbbbbi")
ZONED = struct.Struct(">ibbbbbii")

_NANOS = 1_000_000_000
_DAYS_MAX = 31
_OFFSET_S_MAX = 18 * 3600


class Date(msgspec.Struct, frozen=True, order=True):
    """A day of the proleptic Gregorian calendar, without a zone."""

    year: int
    month: int
    day: int

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}-{self.day:02d}"


class Time(msgspec.Struct, frozen=True, order=True):
    """A time of day, without a zone."""

    hour: int = 0
    minute: int = 0
    second: int = 0
    nanosecond: int = 0

    def __str__(self) -> str:
        text = f"{self.hour:02d}:{self.minute:02d}:{self.second:02d}"
        return text + (f".{self.nanosecond:09d}".rstrip("0") if self.nanosecond else "")


class Timestamp(msgspec.Struct, frozen=True, order=True):
    """A day and a time of day, without a zone."""

    date: Date
    time: Time

    def __str__(self) -> str:
        return f"{self.date}T{self.time}"


class ZonedTimestamp(msgspec.Struct, frozen=True):
    """A time stamp with its distance from UTC in seconds."""

    timestamp: Timestamp
    offset_s: int

    def __str__(self) -> str:
        if not self.offset_s:
            return f"{self.timestamp}Z"
        sign, seconds = ("-", -self.offset_s) if self.offset_s < 0 else ("+", self.offset_s)
        text = f"{self.timestamp}{sign}{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"
        return text + (f":{seconds % 60:02d}" if seconds % 60 else "")


def check_date(date: Date) -> Date:
    """The same date.

    Raises:
        SerializationError: Month or day cannot be.
    """
    if not (1 <= date.month <= 12 and 1 <= date.day <= _DAYS_MAX):
        raise SerializationError("a date has an impossible month or day")
    return date


def check_time(time: Time) -> Time:
    """The same time.

    Raises:
        SerializationError: A part is out of its range.
    """
    if not (
        0 <= time.hour < 24
        and 0 <= time.minute < 60
        and 0 <= time.second < 60
        and 0 <= time.nanosecond < _NANOS
    ):
        raise SerializationError("a time of day has an impossible part")
    return time


def _parts(timestamp: Timestamp) -> tuple[int, int, int, int, int, int, int]:
    date, time = check_date(timestamp.date), check_time(timestamp.time)
    return (
        date.year,
        date.month,
        date.day,
        time.hour,
        time.minute,
        time.second,
        time.nanosecond,
    )


def pack_date(date: Date) -> bytes:
    """Year as int, month and day as bytes."""
    check_date(date)
    return DATE.pack(date.year, date.month, date.day)


def unpack_date(data: bytes, offset: int) -> Date:
    """Reads what ``pack_date`` wrote."""
    return check_date(Date(*DATE.unpack_from(data, offset)))


def pack_time(time: Time) -> bytes:
    """Hour, minute and second as bytes, nanosecond as int."""
    check_time(time)
    return TIME.pack(time.hour, time.minute, time.second, time.nanosecond)


def unpack_time(data: bytes, offset: int) -> Time:
    """Reads what ``pack_time`` wrote."""
    return check_time(Time(*TIME.unpack_from(data, offset)))


def pack_timestamp(timestamp: Timestamp) -> bytes:
    """Date, then time."""
    return TIMESTAMP.pack(*_parts(timestamp))


def unpack_timestamp(data: bytes, offset: int) -> Timestamp:
    """Reads what ``pack_timestamp`` wrote."""
    parts = TIMESTAMP.unpack_from(data, offset)
    return Timestamp(check_date(Date(*parts[:3])), check_time(Time(*parts[3:7])))


def pack_zoned(zoned: ZonedTimestamp) -> bytes:
    """Time stamp, then the offset in seconds as int."""
    if abs(zoned.offset_s) > _OFFSET_S_MAX:
        raise SerializationError("an offset from UTC is at most 18 hours")
    return ZONED.pack(*_parts(zoned.timestamp), zoned.offset_s)


def unpack_zoned(data: bytes, offset: int) -> ZonedTimestamp:
    """Reads what ``pack_zoned`` wrote."""
    parts = ZONED.unpack_from(data, offset)
    if abs(parts[7]) > _OFFSET_S_MAX:
        raise SerializationError("an offset from UTC is at most 18 hours")
    return ZonedTimestamp(
        Timestamp(check_date(Date(*parts[:3])), check_time(Time(*parts[3:7]))), parts[7]
    )
