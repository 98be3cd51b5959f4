"""Turning what an operator wrote into a checked value of a key's kind.

Two doors, one rule: ``from_text`` for environment and flags, ``from_native`` for TOML and Python
values. Both answer in the unit of the key or raise ValueError with one sentence.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence

from whimbrel.config.keys import PORT_MAX, Key, Kind
from whimbrel.config.settings import Value
from whimbrel.core.ids import Address

SHOWN_MAX = 60
"""Characters of a wrong value that a message repeats."""
ADDRESSES_MAX = 256
"""Join addresses; discovery asks each of them in every round."""
HOST_MAX = 255
_NOT_IN_HOSTS = frozenset(" /@[],")

_SWITCHES = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


def shown(value: object) -> str:
    """A value as messages quote it: short, on one line."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def from_text(key: Key, text: str, scale: float = 1) -> Value:
    """Read a value from an environment variable, a flag or a property written as text.

    Args:
        key: What the text is for.
        text: The text; blanks around it do not count.
        scale: The key's unit per unit of the text (aliases may use another unit).

    Raises:
        ValueError: One sentence that names the text and what would be right.
    """
    text = text.strip()
    if key.kind is Kind.INTEGER:
        return _in_range(key, _whole(text))
    if key.kind is Kind.SECONDS:
        return _in_range(key, _number(text) * scale)
    if key.kind is Kind.SWITCH:
        if text.lower() not in _SWITCHES:
            raise ValueError(f"must be true or false, not {shown(text)}")
        return _SWITCHES[text.lower()]
    if key.kind is Kind.ADDRESSES:
        return _addresses([part for part in (p.strip() for p in text.split(",")) if part])
    return _words(key, text)


def from_native(key: Key, value: object, scale: float = 1) -> Value:
    """Check a value that already has a type.

    Raises:
        ValueError: One sentence that names the value and what would be right.
    """
    if key.kind in (Kind.INTEGER, Kind.SECONDS):
        wanted = "a whole number" if key.kind is Kind.INTEGER else "a number of seconds"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be {wanted}, not {_kind_word(value)} {shown(value)}")
        if key.kind is Kind.INTEGER and not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {shown(value)}")
        return _in_range(key, value * scale if scale != 1 else value)
    if key.kind is Kind.SWITCH:
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, not {_kind_word(value)} {shown(value)}")
        return value
    if key.kind is Kind.ADDRESSES:
        if isinstance(value, str):
            return from_text(key, value)
        if not isinstance(value, list | tuple) or not all(isinstance(p, str) for p in value):
            raise ValueError(f'must be a list like ["host:port"], not {shown(value)}')
        return _addresses(value)
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, not {_kind_word(value)} {shown(value)}")
    return _words(key, value)


def parse_address(text: str, port_default: int | None = None) -> Address:
    """An address ``host:port``; IPv6 hosts stand in brackets, and come out in their short form.

    Args:
        text: What was written.
        port_default: Used when no port is given; None makes the port required.

    Raises:
        ValueError: It is none, or the port is not between 1 and 65535.
    """
    host, colon, digits = text.rpartition(":")
    if not colon or digits.endswith("]"):
        host, digits = text, "" if port_default is None else str(port_default)
    if ":" in host and not host.startswith("["):
        raise ValueError(
            f"{shown(text)} is no address: an IPv6 host stands in brackets, as in [::1]:5701"
        )
    try:
        host = parse_host(host)
    except ValueError:
        host = ""
    if not host or not digits:
        raise ValueError(f"{shown(text)} is no address of the form host:port")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:9]) <= PORT_MAX:
        raise ValueError(
            f"{shown(text)} is no address of the form host:port: the port must be 1 to {PORT_MAX}"
        )
    return Address(host, int(digits))


def parse_host(text: str) -> str:
    """A host as sockets take it: a name or an address; an IPv6 address may stand in brackets.

    One IPv6 address has many spellings; the shortest is used, so that two of them are the same.

    Raises:
        ValueError: It is none, or brackets stand around something else.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not host or len(host) > HOST_MAX or not host.isprintable() or set(host) & _NOT_IN_HOSTS:
        raise ValueError(f"{shown(text)} is no host")
    if ":" not in host:
        if host is not text:
            raise ValueError(f"{shown(text)} is no host: brackets are for IPv6 addresses")
        return host
    try:
        return ipaddress.IPv6Address(host).compressed
    except ValueError:
        raise ValueError(
            f"{shown(text)} is no host: it has colons and is no IPv6 address"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own loopback, by its text alone (no name is looked up)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether a host means "every interface"."""
    return host in ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def _addresses(parts: Sequence[str]) -> tuple[str, ...]:
    if len(parts) > ADDRESSES_MAX:
        raise ValueError(f"has {len(parts)} addresses; at most {ADDRESSES_MAX} are asked")
    return tuple(dict.fromkeys(str(parse_address(part)) for part in parts))


def _whole(text: str) -> int:
    # int() would also take "1_000", blanks and foreign digits
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ValueError(f"must be a whole number, not {shown(text)}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        raise ValueError(f"must be a number of seconds, not {shown(text)}") from None


def _in_range(key: Key, value: float) -> Value:
    minimum, maximum = (int(n) if n == int(n) else n for n in (key.minimum, key.maximum))
    if not minimum <= value <= maximum:  # also refuses nan
        raise ValueError(f"must be between {minimum} and {maximum}, not {shown(value)}")
    return int(value) if value == int(value) else value


def _words(key: Key, text: str) -> str:
    if key.kind is Kind.CHOICE:
        if text not in key.choices:
            raise ValueError(f"must be one of {', '.join(key.choices)}, not {shown(text)}")
        return text
    if len(text) > key.maximum:
        raise ValueError(f"has {len(text)} characters; at most {int(key.maximum)} are allowed")
    if not text.isprintable():
        raise ValueError(f"holds characters that cannot be printed: {shown(text)}")
    if text == "" and key.default != "":
        raise ValueError("must not be empty")
    return parse_host(text) if key.kind is Kind.HOST else text


def _kind_word(value: object) -> str:
    """The TOML word for a value's type."""
    if isinstance(value, bool):
        return "the switch"
    if isinstance(value, str):
        return "the text"
    if isinstance(value, int | float):
        return "the number"
    return f"the {type(value).__name__}"
