"""Frames of the client protocol: how a client's bytes become messages, and back.

Everything is little-endian. A frame is an int32 length that includes its six header bytes, uint16
flags, and content; a message is a run of frames that ends with FINAL (FN-21). This module knows
lengths and flags only; ``codec`` knows what frames mean.

The scanner makes one plain tuple per message and no object per frame: frames are offsets into
the buffer in which the message arrived. That is what keeps the request path cheap.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from whimbrel.errors import ProtocolError

PRELUDE: Final = b"CP2"
"""First bytes of a client's connection."""

BEGIN_FRAGMENT: Final = 0x8000
END_FRAGMENT: Final = 0x4000
UNFRAGMENTED: Final = BEGIN_FRAGMENT | END_FRAGMENT
FINAL: Final = 0x2000
BEGIN: Final = 0x1000
END: Final = 0x0800
NULL: Final = 0x0400
EVENT: Final = 0x0200
BACKUP_AWARE: Final = 0x0100
BACKUP_EVENT: Final = 0x0080

FRAME_HEADER_BYTES: Final = 6
REQUEST_FIXED: Final = 16
"""Offset of the first fixed-size field of a request or event in its first frame's content."""
RESPONSE_FIXED: Final = 13
"""The same for a response."""

JOINS_MAX: Final = 16
"""Most fragmented messages of one connection that may be incomplete at once."""

RawMessage = tuple[bytes, int, int, list[int], int, int, int, int]
"""(buffer, start, end, frames, type, correlation, partition, flags).

``buffer[start:end]`` is the whole message. ``frames`` is flat: content start and content end of
the first frame, then of the second, and so on; the flags of the frame whose content starts at
``s`` are the two bytes before ``s``. ``flags`` are those of the first frame. In messages split
with ``ANSWERS`` the slot of the partition holds the count of backup acknowledgements to wait for
(meaningless in events).
"""

REQUESTS: Final = struct.Struct("<iHiqi")
"""Header shape of what a member receives: length, flags, type, correlation, partition."""
ANSWERS: Final = struct.Struct("<iHiqB")
"""Header shape of what a client receives: length, flags, type, correlation, acknowledgements."""

_FRAME = struct.Struct("<iH")
_frame_head = _FRAME.unpack_from


class FrameLimits(msgspec.Struct, frozen=True):
    """What one connection may send. Reaching a limit ends the connection."""

    message_bytes_max: int = 100 * 1024 * 1024
    """Longest message, all frames and headers together, also when it comes in fragments."""
    frames_max: int = 2_000_000
    """Most frames of one message."""


UNAUTHENTICATED = FrameLimits(message_bytes_max=64 * 1024, frames_max=1_000)
"""For a connection that has not proved anything yet."""
AUTHENTICATED = FrameLimits()


class MessageSplitter:
    """Cuts the byte stream of one client connection (after the prelude) into messages.

    Incomplete messages are kept, their scan is never repeated, and memory grows only with bytes
    that have arrived. Fragments are joined into one ordinary message. A half message of type 0 that
    is followed by the start of another message is dropped: the official client's test suite sends
    such a thing and expects silence (FN-21).
    """

    def __init__(
        self, limits: FrameLimits = UNAUTHENTICATED, head: struct.Struct = REQUESTS
    ) -> None:
        self.limits = limits
        """May be replaced between two calls of ``feed``."""
        self._head = head
        self._partial = bytearray()
        self._frames: list[int] = []
        self._position = 0
        self._joins: dict[int, _Join] = {}
        self._joins_bytes = 0
        self._broken: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the message that is not complete yet; 0 between messages."""
        return len(self._partial) + self._joins_bytes

    def feed(self, data: bytes) -> list[RawMessage]:
        """The messages completed by ``data``, in order.

        Raises:
            ProtocolError: A length, a limit or the order of fragments is violated. The splitter
                then refuses everything; the connection must be closed.
        """
        messages: list[RawMessage] = []
        self.feed_into(data, messages)
        return messages

    def feed_into(self, data: bytes, messages: list[RawMessage]) -> None:
        """Like ``feed``, appending to ``messages``: those before a bad one are not lost."""
        if self._broken is not None:
            raise ProtocolError(self._broken, reason="broken_before")
        try:
            if self._partial:
                data = self._go_on(data, messages)
            while data:
                data = self._scan(data, messages)
        except ProtocolError as error:
            self._broken = str(error)
            self._partial = bytearray()
            self._joins = {}
            self._joins_bytes = 0
            self._frames = []
            raise

    def _scan(self, data: bytes, messages: list[RawMessage]) -> bytes:
        """Append the whole messages of ``data``; keep the rest. Returns what is to scan again."""
        limits = self.limits
        bytes_max, frames_max2 = limits.message_bytes_max, 2 * limits.frames_max
        unpack_head, head_bytes = self._head.unpack_from, self._head.size
        unpack = _frame_head
        position, total = 0, len(data)
        while total - position >= head_bytes:
            start = position
            length, flags, kind, correlation, partition = unpack_head(data, start)
            if length < head_bytes or length > bytes_max or flags & UNFRAGMENTED != UNFRAGMENTED:
                break
            position = start + length
            if position > total:
                position = start
                break
            frames = [start + 6, position]
            last = flags
            try:
                while not last & FINAL:
                    length, last = unpack(data, position)
                    frames.append(position + 6)
                    position += length
                    if length < 6 or position > total or last & UNFRAGMENTED:
                        position = start
                        break
                    frames.append(position)
                else:
                    if position - start > bytes_max or len(frames) > frames_max2:
                        raise _too_big(limits)
                    messages.append(
                        (data, start, position, frames, kind, correlation, partition, flags)
                    )
                    continue
            except struct.error:  # not even the header of its next frame is there
                position = start
            break
        if position == total:
            return b""
        # Everything that is not a whole ordinary message: one careful, resumable scan.
        self._partial = bytearray()
        self._frames = []
        self._position = 0
        return self._go_on(data[position:], messages)

    def _go_on(self, data: bytes, messages: list[RawMessage]) -> bytes:
        """Go on with the incomplete message; returns the bytes after it once it is complete."""
        partial, frames = self._partial, self._frames
        partial += data
        while True:
            position = self._position
            if len(partial) - position < FRAME_HEADER_BYTES:
                return b""
            length, flags = _frame_head(partial, position)
            self._check_frame(position, length, flags)
            if frames and flags & UNFRAGMENTED:
                return self._begun_twice()
            end = position + length
            if end > len(partial):
                return b""
            frames += (position + FRAME_HEADER_BYTES, end)
            self._position = end
            if flags & FINAL:
                break
        whole = bytes(memoryview(partial)[:end])
        rest = bytes(memoryview(partial)[end:])
        self._partial, self._frames, self._position = bytearray(), [], 0
        first_flags = _frame_head(whole)[1]
        if first_flags & UNFRAGMENTED == UNFRAGMENTED:
            messages.append(self._message(whole, frames))
        else:
            self._take_fragment(whole, frames, first_flags, messages)
        return rest

    def _check_frame(self, position: int, length: int, flags: int) -> None:
        first = position == 0
        least = FRAME_HEADER_BYTES
        if first:
            whole = flags & UNFRAGMENTED == UNFRAGMENTED
            least = self._head.size if whole else FRAME_HEADER_BYTES + 8
        if length < least:
            raise ProtocolError(
                f"a frame of {length} bytes where at least {least} are needed",
                reason="frame_length",
            )
        total = position + length + self._joins_bytes
        count = len(self._frames) // 2 + 1
        if total > self.limits.message_bytes_max or count > self.limits.frames_max:
            raise _too_big(self.limits)

    def _begun_twice(self) -> bytes:
        """A message starts inside an unfinished one; of type 0 the half is dropped."""
        partial = self._partial
        kind = int.from_bytes(partial[6:10], "little")
        if _frame_head(partial)[1] & UNFRAGMENTED != UNFRAGMENTED or kind != 0:
            raise ProtocolError(
                "a message begins before the one ahead of it has ended", reason="frame_order"
            )
        rest = bytes(memoryview(partial)[self._position :])
        self._partial, self._frames, self._position = bytearray(), [], 0
        return rest

    def _message(self, whole: bytes, frames: list[int]) -> RawMessage:
        _, flags, kind, correlation, partition = self._head.unpack_from(whole)
        return (whole, 0, len(whole), frames, kind, correlation, partition, flags)

    def _take_fragment(
        self, whole: bytes, frames: list[int], flags: int, messages: list[RawMessage]
    ) -> None:
        """Append the frames of one fragment; the last fragment completes the message."""
        identity = int.from_bytes(whole[6:14], "little", signed=True)
        join = self._joins.get(identity)
        if flags & BEGIN_FRAGMENT:
            if join is not None or len(self._joins) >= JOINS_MAX:
                raise ProtocolError(
                    "a fragmented message begins twice, or too many are open", reason="fragments"
                )
            join = self._joins[identity] = _Join()
        elif join is None:
            raise ProtocolError(
                "a fragment that belongs to no fragmented message", reason="fragments"
            )
        if len(frames) < 4:
            raise ProtocolError("a fragment without frames", reason="fragments")
        content = bytearray(memoryview(whole)[frames[1] :])
        if not flags & END_FRAGMENT:
            last_head = frames[-2] - FRAME_HEADER_BYTES - frames[1]
            last_flags = _frame_head(content, last_head)[1]
            struct.pack_into("<H", content, last_head + 4, last_flags & ~FINAL)
        join.content += content
        join.frames += len(frames) // 2 - 1
        self._joins_bytes += len(content)
        if join.frames > self.limits.frames_max:
            raise _too_big(self.limits)
        if flags & END_FRAGMENT:
            del self._joins[identity]
            self._joins_bytes -= len(join.content)
            messages.append(self._joined(join))

    def _joined(self, join: _Join) -> RawMessage:
        first_length, first_flags = _frame_head(join.content)
        if first_length < self._head.size:
            raise ProtocolError(
                f"a first frame of {first_length} bytes in a fragmented message",
                reason="fragments",
            )
        struct.pack_into("<H", join.content, 4, first_flags | UNFRAGMENTED)
        return parse_message(bytes(join.content), self._head)


class _Join:
    """A fragmented message while its fragments come in."""

    __slots__ = ("content", "frames")

    def __init__(self) -> None:
        self.content = bytearray()
        self.frames = 0


def parse_message(buffer: bytes, head: struct.Struct = REQUESTS) -> RawMessage:
    """The one message that a buffer holds exactly (a forwarded request, a stored answer).

    Raises:
        ProtocolError: The buffer is not exactly one unfragmented message.
    """
    total = len(buffer)
    if total < head.size:
        raise ProtocolError(f"{total} bytes are too few for a message")
    length, flags, kind, correlation, partition = head.unpack_from(buffer)
    if length < head.size or flags & UNFRAGMENTED != UNFRAGMENTED:
        raise ProtocolError("the first frame is not that of a message")
    frames: list[int] = [FRAME_HEADER_BYTES, length]
    position, last = length, flags
    while not last & FINAL and total - position >= FRAME_HEADER_BYTES:
        length, last = _frame_head(buffer, position)
        if length < FRAME_HEADER_BYTES:
            raise ProtocolError(f"a frame of {length} bytes")
        frames += (position + FRAME_HEADER_BYTES, position + length)
        position += length
    if position != total or not last & FINAL:
        raise ProtocolError("the bytes are not exactly one message")
    return (buffer, 0, total, frames, kind, correlation, partition, flags)


def message_bytes(message: RawMessage) -> bytes:
    """The bytes of a message alone, for forwarding it."""
    buffer, start, end = message[0], message[1], message[2]
    return buffer if start == 0 and end == len(buffer) else buffer[start:end]


def _too_big(limits: FrameLimits) -> ProtocolError:
    return ProtocolError(
        f"a message may have {limits.message_bytes_max} bytes and {limits.frames_max} frames, "
        "this one has more",
        reason="message_limit",
    )
