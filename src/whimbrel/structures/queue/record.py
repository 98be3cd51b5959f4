"""How the items of a queue are laid out in bytes, alone and in backup operations and chunks.

An item has an id, one higher than that of the item offered before it, and is one ``bytes``: the id,
then the value's Data. Ids rise from the head to the tail, so what was taken from the head is said
by the last id that is gone.

Formats are big-endian, so that items in bytes are in the order of their ids. An operation is its
kind (u8) and

    OFFERED   items, each with its length before it (u32)
    GONE_TO   the last id that was taken from the head (u64)
    GONE      ids that were taken from anywhere (u64 each)
    BEGUN     the id with which a lineage begins, the lineage (u64 each)

A chunk is the next id (u64), the number of lineages (u8), each lineage with the id with which it
begins (u64 each), and items as in OFFERED.

The lineages are for the time after a split: the items that two replicas have in common are those
before the id at which their histories part (``Past.parting``). A primary that offers the first item
under a lineage of its own says where it begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from whimbrel.errors import SerializationError
from whimbrel.serialization.data import DATA_HEADER_BYTES

OFFERED: Final = 1
GONE_TO: Final = 2
GONE: Final = 3
BEGUN: Final = 4

ID_BYTES: Final = 8
BODY_AT: Final = ID_BYTES + 4
"""Where type and payload begin in an item; its partition hash is no part of equality."""
LINEAGES_MAX: Final = 32
"""Lineages that a store remembers; a primary's move or death adds one to a queue in use."""

ID: Final = struct.Struct(">Q")
LENGTH: Final = struct.Struct(">I")
PAIR: Final = struct.Struct(">QQ")
_CHUNK: Final = struct.Struct(">QB")


def item_id(item: bytes) -> int:
    """The id of an item."""
    number: int = ID.unpack_from(item)[0]
    return number


class Past(NamedTuple):
    """Who has counted the ids of a queue."""

    next_id: int
    lineages: tuple[tuple[int, int], ...]
    """(lineage, the first id that was given under it), the oldest first."""

    def parting(self, other: Past) -> int:
        """The first id that two replicas of one queue need not have in common; 0 without any past.

        Their histories part where the first of the two has left the latest lineage that both know.
        """
        known = {lineage for lineage, _ in self.lineages}
        common = [lineage for lineage, _ in other.lineages if lineage in known]
        return min(self._end(common[-1]), other._end(common[-1])) if common else 0

    def _end(self, lineage: int) -> int:
        """The first id that was not given under a lineage."""
        place = [known for known, _ in self.lineages].index(lineage)
        later = self.lineages[place + 1 :]
        return later[0][1] if later else self.next_id

    def encode(self) -> bytes:
        """As at the beginning of a chunk."""
        pairs = [PAIR.pack(*pair) for pair in self.lineages]
        return _CHUNK.pack(self.next_id, len(pairs)) + b"".join(pairs)


def read_past(chunk: bytes) -> tuple[Past, int]:
    """The past in a chunk, and where the items begin.

    Raises:
        SerializationError: The chunk is damaged.
    """
    try:
        next_id, count = _CHUNK.unpack_from(chunk)
        end = _CHUNK.size + count * PAIR.size
        pairs = tuple(
            PAIR.unpack_from(chunk, place) for place in range(_CHUNK.size, end, PAIR.size)
        )
    except struct.error as error:
        raise SerializationError("a chunk of a queue ends before its items") from error
    return Past(next_id, pairs), end


def read_items(buffer: bytes, start: int, end: int) -> Iterator[bytes]:
    """The items in ``buffer[start:end]``, one after the other.

    Raises:
        SerializationError: The bytes end within an item, or ids do not rise.
    """
    last = b""
    while start < end:
        if start + LENGTH.size > end:
            raise SerializationError("items of a queue end within a length")
        (length,) = LENGTH.unpack_from(buffer, start)
        start += LENGTH.size
        item = buffer[start : start + length]
        start += length
        if start > end or length < ID_BYTES + DATA_HEADER_BYTES:
            raise SerializationError("items of a queue end within an item")
        if item[:ID_BYTES] <= last:
            raise SerializationError("the ids of a queue's items do not rise")
        last = item[:ID_BYTES]
        yield item
