"""What members tell each other of calls that wait or are repeated, as bytes (docs/design/0015).

What an attempt came to that is no answer: it found nothing, and what it waits for, or nobody can
tell (in a FORWARD_REPLY). Whose request, and whose attempt, a FORWARD is. And numbers of attempts
(in notices). Times are relative, clocks never meet.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from whimbrel.core.ids import CALLER_BYTES, Attempt, ClientId, Namespace
from whimbrel.errors import ProtocolError
from whimbrel.serialization.uuids import UUID_BYTES
from whimbrel.serving.bodies import read_body
from whimbrel.wire.custom_types import ErrorHolder
from whimbrel.wire.errors import decode_errors
from whimbrel.wire.frames import ANSWERS, parse_message
from whimbrel.wire.protocol_table import ERROR_TYPE

WOULD_WAIT: Final = bytes(4)
"""Begins the answer of an attempt that found nothing; no message of a client has length 0."""
LOST: Final = bytes((1, 0, 0, 0))
"""The answer of whoever sent an attempt on and lost it: it may have been carried out."""
WAITED: Final = 0x80
"""Flag beside the hops of a FORWARD: an attempt of a call that waits, see ``_WAITED``."""
OWNED: Final = 0x40
"""Another one: the client's uuid is there."""
NAMED: Final = 0x20
"""Another one: an attempt that has a name, see ``_NAMED``, ..."""
REPEATED: Final = 0x10
"""... and that may have been carried out before."""
HOPS: Final = 0x0F
"""What is left of that byte."""
_WAITED = struct.Struct("<QQ")
"""The number under which the primary may remember the call, its age (us)."""
_NAMED = struct.Struct(f"<{CALLER_BYTES}sQ")
"""Caller and number."""


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


class Head(NamedTuple):
    """What stands before the request in a FORWARD."""

    hops: int
    """Members that the request was sent on to, this one included."""
    client_id: ClientId | None = None
    """Whose request it is; None when the client has not said."""
    waited: tuple[int, int] | None = None
    """Of a call that waits: the number of the attempt that the primary may remember, 0 for none,
    and its age in us."""
    attempt: Attempt | None = None

    def encode(self) -> bytes:
        """The head's bytes: hops and flags, and what the flags announce."""
        flags, owner, waited, named = self.hops, b"", b"", b""
        if self.client_id is not None:
            flags |= OWNED
            owner = self.client_id
        if self.waited is not None:
            flags |= WAITED
            waited = _WAITED.pack(*self.waited)
        if self.attempt is not None:
            flags |= NAMED | (REPEATED if self.attempt.is_repetition else 0)
            named = _NAMED.pack(self.attempt.caller, self.attempt.number)
        return b"".join((bytes((flags,)), owner, waited, named))


def read_head(body: bytes) -> tuple[Head, int]:
    """The head of a FORWARD, and where the request begins.

    Raises:
        ProtocolError: It is shorter than its head.
    """
    flags, start = body[0], 1
    client_id = waited = attempt = None
    try:
        if flags & OWNED:
            client_id = ClientId(body[start : start + UUID_BYTES])
            start += UUID_BYTES
        if flags & WAITED:
            waited = _WAITED.unpack_from(body, start)
            start += _WAITED.size
        if flags & NAMED:
            caller, number = _NAMED.unpack_from(body, start)
            attempt = Attempt(caller, number, bool(flags & REPEATED))
            start += _NAMED.size
    except struct.error as error:
        raise ProtocolError("a forwarded attempt without its head") from error
    if len(body) < start:
        raise ProtocolError("a forwarded request without its client")
    return Head(flags & HOPS, client_id, waited, attempt), start


def encode_numbers(numbers: list[int]) -> bytes:
    """Numbers of attempts."""
    return _encode(numbers)


def decode_numbers(body: bytes) -> list[int]:
    """Numbers of attempts.

    Raises:
        ProtocolError: The body is no list of numbers.
    """
    return read_body(_decode_numbers, body, "numbers of calls")


def error_in(answer: bytes) -> ErrorHolder | None:
    """The error that an encoded answer is; None for any other answer.

    Raises:
        ProtocolError: It is no message.
    """
    message = parse_message(answer, ANSWERS)
    return decode_errors(message)[0] if message[4] == ERROR_TYPE else None


def code_in(answer: bytes) -> int | None:
    """The code of the error that an encoded answer is; see ``error_in``."""
    error = error_in(answer)
    return None if error is None else error.error_code
