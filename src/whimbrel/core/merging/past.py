"""Who has numbered what a replica holds, and from where on two replicas differ after a split.

For structures that number what comes in, one after the other: items of a queue, of a ring buffer.
A primary that numbers something for the first time says under which lineage and from which number
on (``begun``), to its backups as well; the next one has another lineage. So two replicas, however
they were parted, know by the numbers alone what both of them have, or have had.

On the wire: the next number (u64), how many lineages (u8), and of each the lineage and the first
number under it (u64 each), big-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from whimbrel.errors import SerializationError

LINEAGES_MAX: Final = 32
"""Lineages that a store remembers; a primary's move or death adds one to a structure in use."""

PAIR: Final = struct.Struct(">QQ")
_HEAD: Final = struct.Struct(">QB")


class Past(NamedTuple):
    """Who has numbered what a replica holds."""

    next_number: int
    lineages: tuple[tuple[int, int], ...]
    """(lineage, the first number that was given under it), the oldest first."""

    def is_under(self, lineage: int) -> bool:
        """Whether the next number is given under this lineage."""
        return bool(self.lineages) and self.lineages[-1][0] == lineage

    def knows(self, lineage: int) -> bool:
        """Whether numbers were given under this lineage, or would have been."""
        return any(known == lineage for known, _ in self.lineages)

    def begun(self, first: int, lineage: int) -> Past:
        """With numbers from ``first`` on under this lineage; given before, they do not count."""
        kept = tuple(pair for pair in self.lineages if pair[1] < first)
        return Past(first, (*kept, (lineage, first))[-LINEAGES_MAX:])

    def parting(self, other: Past) -> int:
        """The first number that two replicas need not have in common; 0 without any past.

        Their histories part where the first of the two has left the latest lineage that both know.
        """
        common = [lineage for lineage, _ in other.lineages if self.knows(lineage)]
        return min(self._end(common[-1]), other._end(common[-1])) if common else 0

    def _end(self, lineage: int) -> int:
        """The first number that was not given under a lineage."""
        place = [known for known, _ in self.lineages].index(lineage)
        later = self.lineages[place + 1 :]
        return later[0][1] if later else self.next_number

    def encode(self) -> bytes:
        """As at the beginning of a chunk."""
        pairs = [PAIR.pack(*pair) for pair in self.lineages]
        return _HEAD.pack(self.next_number, len(pairs)) + b"".join(pairs)


def read_past(chunk: bytes) -> tuple[Past, int]:
    """The past at the beginning of a chunk, and where it ends.

    Raises:
        SerializationError: The chunk is damaged.
    """
    try:
        next_number, count = _HEAD.unpack_from(chunk)
        end = _HEAD.size + count * PAIR.size
        pairs = tuple(PAIR.unpack_from(chunk, place) for place in range(_HEAD.size, end, PAIR.size))
    except struct.error as error:
        raise SerializationError("a chunk ends before its entries") from error
    return Past(next_number, pairs), end
