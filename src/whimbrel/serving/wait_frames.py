"""What members tell each other of calls that wait, as bytes (docs/design/0015).

Three things: that an attempt found nothing, and what it waits for (in a FORWARD_REPLY); whose
request, and whose attempt, a FORWARD is; and numbers of attempts (in notices). Times are relative,
clocks never meet.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from whimbrel.core.ids import ClientId, Namespace
from whimbrel.errors import ProtocolError
from whimbrel.serving.bodies import read_body
from whimbrel.wire.errors import decode_errors
from whimbrel.wire.frames import ANSWERS, parse_message
from whimbrel.wire.protocol_table import ERROR_TYPE

WOULD_WAIT: Final = bytes(4)
"""Begins the answer of an attempt that found nothing; no message of a client has length 0."""
WAITED: Final = 0x80
"""Flag beside the hops of a FORWARD: an attempt of a call that waits, which ATTEMPT is of."""
NAMED: Final = 0x40
"""Flag beside the hops of a FORWARD: the client's uuid follows them."""
HOPS: Final = NAMED - 1
_CLIENT_BYTES: Final = 16
_ATTEMPT = struct.Struct("<QQ")
"""Of an attempt: the number under which the primary may remember the call, and its age (us)."""


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


class ForwardHead(NamedTuple):
    """What stands before the request in a FORWARD."""

    hops: int
    """Members that the request was sent on to, this one included."""
    client_id: ClientId | None
    """Whose request it is; None when the client has not said."""
    attempt: tuple[int, int] | None
    """Of a call that waits: (number of the attempt that is remembered, 0 for none; age in us)."""


def encode_head(head: ForwardHead) -> bytes:
    """The bytes of a head; nearly all requests are no attempts of a call that waits."""
    hops, client_id, attempt = head
    if client_id is None:
        flags, named = hops, b""
    else:
        flags, named = hops | NAMED, client_id
    if attempt is None:
        return bytes((flags,)) + named
    return bytes((flags | WAITED,)) + named + _ATTEMPT.pack(*attempt)


def read_head(body: bytes) -> tuple[ForwardHead, int]:
    """The head of a FORWARD, and where its request begins.

    Raises:
        ProtocolError: It is shorter than its head.
    """
    flags, start = body[0], 1
    client_id = attempt = None
    if flags & NAMED:
        client_id = ClientId(body[start : start + _CLIENT_BYTES])
        start += _CLIENT_BYTES
    if flags & WAITED:
        if len(body) < start + _ATTEMPT.size:
            raise ProtocolError("a forwarded attempt without its head")
        attempt = _ATTEMPT.unpack_from(body, start)
        start += _ATTEMPT.size
    if len(body) < start:
        raise ProtocolError("a forwarded request without its client")
    return ForwardHead(flags & HOPS, client_id, attempt), start


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
