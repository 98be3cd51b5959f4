"""Walking over the frames of a message and writing them, one value at a time.

Knows markers (BEGIN, END, NULL, FINAL) but no types; ``field_codec`` builds on it.
"""

from __future__ import annotations

import struct

from whimbrel.errors import ProtocolError
from whimbrel.wire.frames import BEGIN, END, FINAL, NULL, UNFRAGMENTED

frame_head = struct.Struct("<iH")
"""Length (these six bytes included) and flags of a frame."""
NOT_PLAIN = (BEGIN | END | NULL) >> 8
"""Bits in the high byte of a frame's flags that make it a marker."""

_flags_at = struct.Struct("<H").unpack_from


class FrameReader:
    """Walks over the frames of one message, first frame excluded."""

    __slots__ = ("at", "buffer", "frames")

    def __init__(self, buffer: bytes, frames: list[int]) -> None:
        self.buffer = buffer
        self.frames = frames
        self.at = 2

    def flags(self) -> int:
        """Flags of the next frame; END when there is none."""
        if self.at >= len(self.frames):
            return END
        return int(_flags_at(self.buffer, self.frames[self.at] - 2)[0])

    def take(self) -> bytes:
        """The content of the next frame, which must be a plain one."""
        at = self.at
        if at >= len(self.frames):
            raise ProtocolError("the message ends where a value is needed")
        start = self.frames[at]
        if self.buffer[start - 1] & NOT_PLAIN:
            raise ProtocolError("a marker or null stands where a value is needed")
        self.at = at + 2
        return self.buffer[start : self.frames[at + 1]]

    def take_null(self) -> bool:
        """Whether the next frame is a null, which is then passed."""
        if self.flags() & NULL:
            self.at += 2
            return True
        return False

    def begin(self) -> None:
        """Pass the BEGIN frame of a structure."""
        if not self.flags() & BEGIN:
            raise ProtocolError("a structure does not begin where one is needed")
        self.at += 2

    def at_end(self) -> bool:
        """Whether the structure (or the message) ends here."""
        return bool(self.flags() & END)

    def end(self) -> None:
        """Pass everything up to and with the END frame of the current structure."""
        depth = 1
        while depth:
            if self.at >= len(self.frames):
                raise ProtocolError("the message ends inside a structure")
            flags = self.flags()
            depth += bool(flags & BEGIN) - bool(flags & END)
            self.at += 2


class FrameWriter:
    """Collects the frames of one message."""

    __slots__ = ("_last", "parts")

    def __init__(self, first: bytes, flags: int) -> None:
        self.parts: list[bytes] = []
        self._last = 0
        self.put(first, flags | UNFRAGMENTED)

    def put(self, content: bytes, flags: int = 0) -> None:
        """Add a frame."""
        self._last = len(self.parts)
        self.parts += (frame_head.pack(6 + len(content), flags), content)

    def mark(self, flags: int) -> None:
        """Add an empty frame: BEGIN, END or NULL."""
        self._last = len(self.parts)
        self.parts += (frame_head.pack(6, flags), b"")

    def finish(self) -> bytes:
        """The message, its last frame marked FINAL."""
        length, flags = frame_head.unpack(self.parts[self._last])
        self.parts[self._last] = frame_head.pack(length, flags | FINAL)
        return b"".join(self.parts)
