"""The options of ``format("whimbrel")``: names, values, what fits together.

Spark hands options over as a mapping of strings whose keys are lower-case or matched without regard
to case (FN-24), so the names here are lower-case.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec

from whimbrel.client.bulk import parse_address
from whimbrel.errors import UsageError
from whimbrel.spark.errors import OptionError, listed

PLAIN_TYPES: Final = ("string", "int", "long", "double", "boolean")
"""What ``keytype`` and ``valuetype`` may say, besides ``json`` for values."""
JSON: Final = "json"
COMPACT: Final = "compact"
TASKS_PER_MEMBER_DEFAULT: Final = 2
"""Spark tasks that read from one member, unless the option says otherwise."""
TASKS_PER_MEMBER_MAX: Final = 1_000
TIMEOUT_DEFAULT_S: Final = 60.0
"""Longest time that one call to the cluster may take over all its repetitions."""
TIMEOUT_MAX_S: Final = 86_400.0

_MEANINGS: Final = {
    "address": "host:port,... of members",
    "cluster": "name of the cluster",
    "map": "name of the map",
    "key": "column that is the key",
    "keytype": "type of the keys that other clients wrote",
    "valuetype": "type of the values that other clients wrote",
    "raw": "true to read keys and values in serialized form",
    "pushdown": "true to let the cluster look up single keys",
    "taskspermember": "Spark tasks that read from one member",
    "timeout": "seconds that a call may take",
    "typename": "type name of compact records that are written",
    "valueformat": "form of the values that are written, json or compact",
}


class Options(msgspec.Struct, frozen=True):
    """The options of one read or write, checked as far as one side does not matter."""

    addresses: tuple[str, ...]
    map: str
    cluster: str = "dev"
    key: str | None = None
    key_type: str | None = None
    value_type: str | None = None
    raw: bool = False
    pushdown: bool = False
    tasks_per_member: int = TASKS_PER_MEMBER_DEFAULT
    timeout_s: float = TIMEOUT_DEFAULT_S
    type_name: str | None = None
    value_format: str = JSON

    @property
    def is_plain(self) -> bool:
        """Whether keys and values are of the plain types that the options name."""
        return self.key_type is not None

    def check_reading(self) -> None:
        """Raise OptionError unless it is clear what a read means."""
        ways = {"key": self.key, "keytype": self.key_type, "raw": self.raw or None}
        given = [name for name, value in ways.items() if value is not None]
        if not given:
            _missing("key", "to read frames back, or keytype and valuetype, or raw")
        if len(given) > 1:
            raise OptionError(given[1], f"does not go together with {listed(given[:1])}")
        if self.is_plain and self.value_type is None:
            _missing("valuetype", f"one of {listed((*PLAIN_TYPES, JSON))}")
        if self.value_type is not None and not self.is_plain:
            _missing("keytype", f"one of {listed(PLAIN_TYPES)}")
        if self.pushdown and self.raw:
            raise OptionError("pushdown", "does not go together with 'raw'")

    def check_writing(self) -> str:
        """The key column; raises OptionError unless it is clear what a write means."""
        for name, value in (("keytype", self.key_type), ("valuetype", self.value_type)):
            if value is not None:
                raise OptionError(name, "is for reading; the key column has a type of its own")
        if self.raw:
            raise OptionError("raw", "is for reading only")
        if self.key is None:
            _missing("key", _MEANINGS["key"])
        return self.key


def parse_options(given: Mapping[str, str]) -> Options:
    """Options from what Spark hands over.

    Raises:
        OptionError: An option is missing, unknown, or has a value that makes no sense.
    """
    words = {name.lower(): value for name, value in given.items()}
    for name in words:
        if name not in _MEANINGS:
            near = difflib.get_close_matches(name, _MEANINGS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {listed(_MEANINGS)}"
            raise OptionError(name, f"is not known; {hint}")
    for name in ("address", "map"):
        if not words.get(name, "").strip():
            _missing(name, _MEANINGS[name])
    for name, value in words.items():
        if not value.strip():
            raise OptionError(name, "is empty")
    return Options(
        addresses=_addresses(words["address"]),
        map=words["map"],
        cluster=words.get("cluster", "dev"),
        key=words.get("key"),
        key_type=_choice(words, "keytype", PLAIN_TYPES),
        value_type=_choice(words, "valuetype", (*PLAIN_TYPES, JSON)),
        raw=_choice(words, "raw", ("true", "false")) == "true",
        pushdown=_choice(words, "pushdown", ("true", "false")) == "true",
        tasks_per_member=_tasks(words),
        timeout_s=_seconds(words),
        type_name=words.get("typename"),
        value_format=_choice(words, "valueformat", (JSON, COMPACT)) or JSON,
    )


def _missing(name: str, what: str) -> NoReturn:
    raise OptionError(name, f"is missing: {what}")


def _addresses(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        _missing("address", _MEANINGS["address"])
    for word in found:
        try:
            parse_address(word)
        except UsageError as error:
            raise OptionError("address", str(error)) from error
    return found


def _choice(words: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    value = words.get(name)
    if value is None:
        return None
    if value.strip().lower() not in choices:
        raise OptionError(name, f"is one of {listed(choices)}, not {value!r}")
    return value.strip().lower()


def _tasks(words: Mapping[str, str]) -> int:
    text = words.get("taskspermember", str(TASKS_PER_MEMBER_DEFAULT)).strip()
    if not text.isdecimal() or not 1 <= int(text) <= TASKS_PER_MEMBER_MAX:
        raise OptionError(
            "taskspermember", f"is a number from 1 to {TASKS_PER_MEMBER_MAX}, not {text!r}"
        )
    return int(text)


def _seconds(words: Mapping[str, str]) -> float:
    text = words.get("timeout", str(TIMEOUT_DEFAULT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= TIMEOUT_MAX_S:
        raise OptionError("timeout", f"is a number of seconds above 0, not {text!r}")
    return seconds
