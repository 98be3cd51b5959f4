"""One file of a simulated disk: what is read, what of it is on the platter, what a crash leaves.

Files are only appended to, so what is not on the platter is a list of spans. A loss of power keeps
some of them, in any order: what was lost before something that was kept is a hole, in which there
are zeros or whatever lay there before.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from whimbrel.sim.entropy import coin, pick

SECTOR_BYTES = 512
LENGTH_KEPT_SHARE = 0.25
"""How often a file is as long as it was, though its end did not get to the platter."""
PUNCHED_SHARE = 0.25
"""How often some sectors of a span are lost though its end is there."""

Filler = Callable[[int], bytes]
"""So many bytes of what lay on the platter before."""


class Span:
    """Appended bytes that are not on the platter yet."""

    __slots__ = ("end", "is_forgotten", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.is_forgotten = False
        """A sync of them failed: they count as written, and no later sync writes them."""


class SimFile:
    """A file, under whatever name."""

    __slots__ = ("data", "pending")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        """What a process reads, until the power is lost."""
        self.pending: list[Span] = []
        """What is not on the platter, by offset."""

    def append(self, data: bytes) -> Span:
        """Add bytes at the end, in memory only."""
        start = len(self.data)
        self.data += data
        span = Span(start, len(self.data))
        if data:
            self.pending.append(span)
        return span

    def sync(self) -> None:
        """Everything is on the platter but what an earlier sync has lost."""
        self.pending = [span for span in self.pending if span.is_forgotten]

    def sync_failed(self, generator: random.Random) -> None:
        """Some of it is on the platter; the rest counts as written, too."""
        kept = [span for span in self.pending if span.is_forgotten or coin(generator, 0.5)]
        for span in kept:
            span.is_forgotten = True
        self.pending = kept

    def durable_bytes(self) -> int:
        """Length up to the last byte that is on the platter."""
        end = len(self.data)
        for span in reversed(self.pending):
            if span.end < end:
                break
            end = span.start
        return end

    def is_durable_at(self, offset: int) -> bool:
        """Whether a byte is on the platter."""
        return not any(span.start <= offset < span.end for span in self.pending)

    def drop_pending(self) -> None:
        """What is left is what was on the platter; zeros where something behind it was, too."""
        length = self.durable_bytes()
        for span in self.pending:
            if span.end <= length:
                self.data[span.start : span.end] = bytes(span.end - span.start)
        del self.data[length:]
        self.pending = []

    def lose_power(self, generator: random.Random, filler: Filler) -> None:
        """What is left is what was on the platter, and some of the rest."""
        if not self.pending:
            return
        ends = _kept(self.pending, generator)
        length = self.durable_bytes()
        for span, end in zip(self.pending, ends, strict=True):
            if end > span.start:
                length = max(length, end)
            if end < span.end:
                self.data[end : span.end] = filler(span.end - end)
            elif coin(generator, PUNCHED_SHARE):
                self._punch(span, generator, filler)
        if not coin(generator, LENGTH_KEPT_SHARE):
            del self.data[length:]
        self.pending = []

    def _punch(self, span: Span, generator: random.Random, filler: Filler) -> None:
        """Some whole sectors in the middle of a span are not there."""
        first = -(-span.start // SECTOR_BYTES)
        count = span.end // SECTOR_BYTES - first
        if count < 1:
            return
        begin = first + generator.randrange(count)
        end = begin + 1 + generator.randrange(first + count - begin)
        hole = slice(begin * SECTOR_BYTES, end * SECTOR_BYTES)
        self.data[hole] = filler(hole.stop - hole.start)

    def flip(self, offset: int, bit: int) -> None:
        """One bit has become another one."""
        self.data[offset] ^= 1 << bit

    def overwrite(self, offset: int, data: bytes) -> None:
        """Bytes lie where they do not belong; the file becomes no longer by it."""
        end = min(len(self.data), offset + len(data))
        self.data[offset:end] = data[: end - offset]


def _kept(spans: list[Span], generator: random.Random) -> list[int]:
    """Up to where each span gets to the platter: nothing, all, a prefix, or just any of them."""
    count = len(spans)
    how = pick(generator, ("nothing", "all", "prefix", "any"))
    if how == "prefix":
        whole = generator.randrange(count + 1)
        kept = [index < whole for index in range(count)]
        torn = whole
    else:
        kept = [how == "all" or (how == "any" and coin(generator, 0.5)) for _ in spans]
        last = max((index for index in range(count) if kept[index]), default=count)
        torn = last if how == "any" and coin(generator, 0.5) else count
    ends = [span.end if keep else span.start for span, keep in zip(spans, kept, strict=True)]
    if torn < count:
        ends[torn] = _tear(spans[torn], generator)
    return [span.start if span.is_forgotten else end for span, end in zip(spans, ends, strict=True)]


def _tear(span: Span, generator: random.Random) -> int:
    """Where the last write of all ends: at any byte, or at a sector."""
    end = generator.randint(span.start, span.end)
    if coin(generator, 0.5):
        end = max(span.start, end - end % SECTOR_BYTES)
    return end
