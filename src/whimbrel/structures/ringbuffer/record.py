"""How the items of a ring buffer are laid out in bytes, alone and in backup operations and chunks.

Items have sequences, which begin with 0 and rise by one; from the *head* to the *tail* they are
there. An item is one ``bytes``: the wall-clock millisecond when its time is over (u64, FOR_EVER for
none), then the value's Data. Its sequence is its place.

Formats are big-endian. An operation is its kind (u8) and

    ADDED     the head from then on, the sequence of the first item (u64 each), and the items one
              after the other, each with its length before it (u32)
    GONE      the head from then on (u64): what was before it is over
    BEGUN     the sequence with which a lineage begins, the lineage (u64 each)

A chunk is the past of the ring buffer (``core.merging.past``), and what follows the kind in ADDED.
An item of length 0 is a sequence of which nothing is known: a backup that missed an operation does
not have the items of that operation and has those of the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from whimbrel.errors import SerializationError
from whimbrel.serialization.data import DATA_HEADER_BYTES

ADDED: Final = 1
GONE: Final = 2
BEGUN: Final = 3

TIME_BYTES: Final = 8
"""Before the Data of each item."""
FOR_EVER: Final = 2**64 - 1

SEQUENCE: Final = struct.Struct(">Q")
LENGTH: Final = struct.Struct(">I")


def make_item(ends_ms: int, value: bytes) -> bytes:
    """An item of this Data, whose time is over then."""
    return SEQUENCE.pack(ends_ms) + value


def ends_ms(item: bytes) -> int:
    """When the time of an item is over."""
    moment: int = SEQUENCE.unpack_from(item)[0]
    return moment


def read_items(buffer: bytes, start: int, end: int) -> Iterator[bytes]:
    """The items in ``buffer[start:end]``, one after the other; empty ones are not known.

    Raises:
        SerializationError: The bytes end within an item.
    """
    while start < end:
        if start + LENGTH.size > end:
            raise SerializationError("items of a ring buffer end within a length")
        (length,) = LENGTH.unpack_from(buffer, start)
        start += LENGTH.size + length
        if start > end or 0 < length < TIME_BYTES + DATA_HEADER_BYTES:
            raise SerializationError("items of a ring buffer end within an item")
        yield buffer[start - length : start]
