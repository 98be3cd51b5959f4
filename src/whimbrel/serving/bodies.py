"""What serving layers of members tell each other, read or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from whimbrel.errors import ProtocolError

T = TypeVar("T")


def read_body(decode: Callable[[bytes], T], body: bytes, what: str) -> T:
    """What another member has said.

    Args:
        decode: Of msgspec.
        body: What came.
        what: What it should be, for the error.

    Raises:
        ProtocolError: It is not that.
    """
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"not {what}: {error}") from error
