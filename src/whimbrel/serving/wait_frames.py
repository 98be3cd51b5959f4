"""What members tell each other of calls that wait, as bytes (docs/design/0015).

Three things: that an attempt found nothing, and what it waits for (in a FORWARD_REPLY); whose
attempt a FORWARD is; and numbers of attempts (in notices). Times are relative, clocks never meet.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from whimbrel.core.ids import Namespace
from whimbrel.errors import ProtocolError
from whimbrel.serving.bodies import read_body
from whimbrel.wire.errors import decode_errors
from whimbrel.wire.frames import ANSWERS, parse_message
from whimbrel.wire.protocol_table import ERROR_TYPE

WOULD_WAIT: Final = bytes(4)
"""Begins the answer of an attempt that found nothing; no message of a client has length 0."""
WAITED: Final = 0x80
"""Flag beside the hops of a FORWARD: an attempt of a call that waits, with the head below."""
_HEAD = struct.Struct("<BQQ")
"""Hops and flag, the number under which the primary may remember the call, its age (us)."""


class WouldWait(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt has not found."""

    namespace: Namespace
    key: bytes
    timeout_ms: int
    """How long to wait from the first attempt on; negative for ever."""
    expired: bytes
    """The response at the end of that time."""
    is_remembered: bool
    """Whether who answers will wake the call."""


_encode = msgspec.msgpack.Encoder().encode
_decode_would_wait = msgspec.msgpack.Decoder(WouldWait).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


def encode_would_wait(found: WouldWait) -> bytes:
    """The answer of an attempt that found nothing."""
    return WOULD_WAIT + _encode(found)


def decode_would_wait(answer: bytes) -> WouldWait:
    """What an answer that begins with ``WOULD_WAIT`` says.

    Raises:
        ProtocolError: It does not say what for.
    """
    return read_body(_decode_would_wait, answer[len(WOULD_WAIT) :], "what a call waits for")


def attempt_head(hops: int, number: int, age_us: int) -> bytes:
    """What stands before the request in the FORWARD of a call that waits; number 0 for none."""
    return _HEAD.pack(hops | WAITED, number, age_us)


def read_attempt_head(body: bytes) -> tuple[int, int, int]:
    """(number, age in us, where the request begins) of such a FORWARD.

    Raises:
        ProtocolError: It is shorter than its head.
    """
    if len(body) < _HEAD.size:
        raise ProtocolError("a forwarded attempt without its head")
    _, number, age_us = _HEAD.unpack_from(body)
    return number, age_us, _HEAD.size


def encode_numbers(numbers: list[int]) -> bytes:
    """Numbers of attempts."""
    return _encode(numbers)


def decode_numbers(body: bytes) -> list[int]:
    """Numbers of attempts.

    Raises:
        ProtocolError: The body is no list of numbers.
    """
    return read_body(_decode_numbers, body, "numbers of calls")


def error_in(answer: bytes) -> int | None:
    """The code of the error that an encoded answer is; None for any other answer.

    Raises:
        ProtocolError: It is no message.
    """
    message = parse_message(answer, ANSWERS)
    return decode_errors(message)[0].error_code if message[4] == ERROR_TYPE else None
