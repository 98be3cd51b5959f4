"""The calendar, by arithmetic alone, and when a schedule of five fields is due. All in UTC."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from whimbrel.errors import UsageError

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
DAYS_IN_400_YEARS: Final = 146_097
DAYS_BEFORE_1970: Final = 719_468
"""From the first of March of the year 0, with which a cycle of 400 years begins."""


class Moment(NamedTuple):
    """A second of the calendar."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    weekday: int
    """0 is Sunday."""


def moment_of(wall_ms: int) -> Moment:
    """The second of the calendar in which this moment is.

    The rule of leap years turned round, with years that begin in March (H. Hinnant, "chrono-
    Compatible Low-Level Date Algorithms").
    """
    days, rest_ms = divmod(wall_ms, DAY_MS)
    era, day_of_era = divmod(days + DAYS_BEFORE_1970, DAYS_IN_400_YEARS)
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day = day_of_era - (365 * year + year // 4 - year // 100)
    month_from_march = (5 * day + 2) // 153
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    seconds = rest_ms // 1000
    return Moment(
        year + 400 * era + (month <= 2),
        month,
        day - (153 * month_from_march + 2) // 5 + 1,
        seconds // 3600,
        seconds // 60 % 60,
        seconds % 60,
        (days + 4) % 7,
    )


def iso_of(wall_ms: int) -> str:
    """``2026-01-02T03:04:05.678+00:00``."""
    one = moment_of(wall_ms)
    return (
        f"{one.year:04}-{one.month:02}-{one.day:02}T{one.hour:02}:{one.minute:02}:{one.second:02}"
        f".{wall_ms % 1000:03}+00:00"
    )


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """Of values from ``low`` on, by their first three letters."""


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Cron:
    """Minutes, hours, days of the month, months and days of the week, as in ``crontab(5)``.

    Each field is ``*`` or a list of numbers, ranges and steps: ``*/15``, ``1-5``, ``0,30``; months
    and days of the week have names of three letters, and Sunday is 0 or 7. Where both fields of
    days are restricted one of them is enough.
    """

    def __init__(self, text: str) -> None:
        """Understand it.

        Raises:
            UsageError: It is none, or names no day that there is; the field at fault is named.
        """
        parts = _SHORT.get(text.strip().lower(), text).split()
        if len(parts) != len(_FIELDS):
            raise UsageError(
                f"{text!r} is no schedule: five fields (minute, hour, day of the month, month, day "
                f"of the week) such as '0 3 * * *', not {len(parts)}"
            )
        values = [_values(field, part, text) for field, part in zip(_FIELDS, parts, strict=True)]
        self._minutes, self._hours, self._days, self._months, weekdays = values
        self._weekdays = frozenset(day % 7 for day in weekdays)
        self._is_any_day = parts[2].startswith("*"), parts[4].startswith("*")
        longest = max(LONGEST_MONTHS[month - 1] for month in self._months)
        if self._is_any_day == (False, True) and min(self._days) > longest:
            raise UsageError(f"{text!r} is no schedule: it names no day that there is")

    def is_due(self, moment: Moment) -> bool:
        """Whether it names the minute of this moment."""
        in_month, in_week = moment.day in self._days, moment.weekday in self._weekdays
        either = not any(self._is_any_day)
        return (
            moment.minute in self._minutes
            and moment.hour in self._hours
            and moment.month in self._months
            and ((in_month or in_week) if either else (in_month and in_week))
        )


def _values(field: _Field, part: str, text: str) -> frozenset[int]:
    """The values that a field names."""
    found: set[int] = set()
    for item in part.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise UsageError(f"{text!r} is no schedule: {item!r} is no {field.name}")
        low, high, step = match[1], match[2], int(match[3] or 1)
        first = field.low if low is None else _value(field, low, text)
        last = field.high if low is None or (match[3] and not high) else first
        last = last if high is None else _value(field, high, text)
        if first > last or not step:
            raise UsageError(f"{text!r} is no schedule: {item!r} names no {field.name}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _value(field: _Field, word: str, text: str) -> int:
    if word.lower() in field.names:
        return field.low + field.names.index(word.lower())
    if not word.isascii() or not word.isdigit() or not field.low <= int(word) <= field.high:
        limits = f"{field.low} to {field.high}"
        raise UsageError(f"{text!r} is no schedule: {word!r} is no {field.name} ({limits})")
    return int(word)
