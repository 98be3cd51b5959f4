"""Frames between members: how bytes on a link become kinds and payloads.

A link starts with ``PRELUDE`` and a GREETING frame. Every frame is a u32 little-endian length of
what follows, a u8 kind and the payload (docs/design/0001, "Links between members"). Messages of
the control plane are msgpack of their cause and a struct of ``core.messages``; the payloads of the
other kinds belong to the rooms that make them.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from whimbrel.core.messages import ANY_MESSAGE, Message
from whimbrel.core.model import MemberInfo
from whimbrel.errors import ProtocolError

PRELUDE = b"WMB2"
"""First bytes of a connection between members."""

GREETING = 0
MESSAGE = 1
BACKUPS = 2
ACKS = 3
FORWARD = 4
FORWARD_REPLY = 5
SCATTER = 6
SCATTER_REPLY = 7
NOTIFY = 8
KIND_MAX = NOTIFY

CONTROL_CHANNEL = "control"
DATA_CHANNEL = "data"
CHANNELS = (CONTROL_CHANNEL, DATA_CHANNEL)

LINK_FRAME_BYTES_MAX = 160 * 1024 * 1024
"""Longest frame of a link; above the longest client message, which may travel in a FORWARD."""
GREETING_BYTES_MAX = 64 * 1024
"""Longest frame before the greeting is known."""

_HEAD = struct.Struct("<IB")
pack_head: Final = _HEAD.pack
"""(length of kind and payload, kind) as the head of a frame."""
_unpack_head = _HEAD.unpack_from
_LENGTH = struct.Struct("<I")


class Greeting(msgspec.Struct, frozen=True):
    """First frame of a link: who opened it, for which cluster, and what will travel on it."""

    cluster_name: str
    sender: MemberInfo
    channel: str
    """One of ``CHANNELS``."""


def encode_frame(kind: int, payload: bytes) -> bytes:
    """One frame, ready to send.

    Raises:
        ProtocolError: The payload is longer than a link frame may be.
    """
    if len(payload) >= LINK_FRAME_BYTES_MAX:
        raise ProtocolError(
            f"a link frame holds at most {LINK_FRAME_BYTES_MAX} bytes, not {len(payload) + 1}"
        )
    return pack_head(len(payload) + 1, kind) + payload


class FrameSplitter:
    """Cuts the byte stream of one link into frames; keeps what is incomplete.

    Memory grows only with bytes that have arrived, never with a length that was announced.
    """

    def __init__(self, bytes_max: int = LINK_FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Longest accepted frame (kind and payload); may be raised after the greeting."""
        self._partial = bytearray()
        self._broken: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return len(self._partial)

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, bytes]]:
        """The frames completed by ``data``, as (kind, payload), in order.

        Raises:
            ProtocolError: A length is zero or above ``bytes_max``, or a kind is unknown. Frames
                before the bad one in the same call are lost, and so is the splitter: the
                connection must be closed.
        """
        if self._broken is not None:
            raise ProtocolError(self._broken)
        if type(data) is not bytes:
            data = bytes(data)
        if self._partial:
            return self._feed_partial(data)
        size = len(data)
        if size >= 5:
            length, kind = _unpack_head(data)
            if length + 4 == size and length <= self.bytes_max and kind <= KIND_MAX:
                return [(kind, data[5:])]  # one whole frame: most of what arrives
        return self._scan(data)

    def _feed_partial(self, data: bytes) -> list[tuple[int, bytes]]:
        partial = self._partial
        taken = 0
        if len(partial) < 4:
            taken = 4 - len(partial)
            partial += data[:taken]
            if len(partial) < 4:
                return []
        end = 4 + self._checked_length(_LENGTH.unpack_from(partial)[0])
        missing = end - len(partial)
        partial += data[taken : taken + missing]
        if len(partial) < end:
            return []
        self._partial = bytearray()
        frames = [(self._checked_kind(partial[4]), bytes(memoryview(partial)[5:]))]
        rest = data[taken + missing :]
        if rest:
            frames += self._scan(rest)
        return frames

    def _scan(self, data: bytes) -> list[tuple[int, bytes]]:
        frames: list[tuple[int, bytes]] = []
        position, total = 0, len(data)
        unpack, bytes_max = _unpack_head, self.bytes_max
        while total - position >= 5:
            length, kind = unpack(data, position)
            if not 0 < length <= bytes_max:
                self._checked_length(length)
            end = position + 4 + length
            if kind > KIND_MAX:
                self._checked_kind(kind)
            if end > total:
                break
            frames.append((kind, data[position + 5 : end]))
            position = end
        if position < total:
            self._partial = bytearray(memoryview(data)[position:])
            if total - position == 4:
                self._checked_length(_LENGTH.unpack_from(self._partial)[0])
        return frames

    def _checked_length(self, length: int) -> int:
        if not 0 < length <= self.bytes_max:
            raise self._fail(
                f"a link frame of {length} bytes; 1 to {self.bytes_max} are allowed",
                "frame_length",
            )
        return length

    def _checked_kind(self, kind: int) -> int:
        if kind > KIND_MAX:
            raise self._fail(f"link frame kind {kind} is unknown", "frame_kind")
        return kind

    def _fail(self, text: str, reason: str) -> ProtocolError:
        self._broken = text
        self._partial = bytearray()
        return ProtocolError(text, reason=reason)


CAUSE_PATTERN = r"\A[!-~]{1,8}-[0-9]{1,20}\Z"
"""The form of a cause (docs/design/0016): it is printed, so it is a short word."""

_encoder = msgspec.msgpack.Encoder()
_Caused = tuple[Annotated[str, msgspec.Meta(pattern=CAUSE_PATTERN)], ANY_MESSAGE]
_message_decoder: msgspec.msgpack.Decoder[tuple[str, Message]] = msgspec.msgpack.Decoder(_Caused)
_greeting_decoder = msgspec.msgpack.Decoder(Greeting)
_DECODE_ERRORS = (msgspec.MsgspecError, RecursionError, ValueError)


def encode_message(message: Message, cause: str) -> bytes:
    """The payload of a MESSAGE frame: a message and what it follows from."""
    return _encoder.encode((cause, message))


def decode_message(payload: bytes) -> tuple[str, Message]:
    """The cause and the message in the payload of a MESSAGE frame.

    Raises:
        ProtocolError: The payload is not exactly one message of ``core.messages`` and its cause.
    """
    try:
        return _message_decoder.decode(payload)
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"not a member message: {error}", reason="message") from error


def encode_greeting(greeting: Greeting) -> bytes:
    """``PRELUDE`` and the GREETING frame: everything a link starts with."""
    return PRELUDE + encode_frame(GREETING, _encoder.encode(greeting))


def decode_greeting(payload: bytes) -> Greeting:
    """The greeting in the payload of a GREETING frame.

    Raises:
        ProtocolError: The payload is no greeting, or names an unknown channel.
    """
    try:
        greeting = _greeting_decoder.decode(payload)
    except _DECODE_ERRORS as error:
        raise ProtocolError(f"not a greeting: {error}", reason="greeting") from error
    if greeting.channel not in CHANNELS:
        raise ProtocolError("the greeting names no channel of ours", reason="greeting")
    return greeting
