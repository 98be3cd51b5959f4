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
    FENCE     nothing: once it is acknowledged, so is all that was sent before it

A chunk is the past of the queue (``core.merging.past``), the bytes of answers (u32), answers as
``answered`` has them, and items as in OFFERED.

The past is for the time after a split: the items that two replicas have in common are those before
the id at which their histories part. A primary that offers the first item under a lineage of its
own says where it begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from whimbrel.core.ids import CALLER_BYTES
from whimbrel.core.merging.past import Past, read_past
from whimbrel.errors import SerializationError
from whimbrel.serialization.data import DATA_HEADER_BYTES

OFFERED: Final = 1
GONE_TO: Final = 2
GONE: Final = 3
BEGUN: Final = 4
FENCE: Final = 5
CALL: Final = 0x80
"""Flag beside OFFERED or GONE_TO: whose call it was stands before the rest."""

ID_BYTES: Final = 8
BODY_AT: Final = ID_BYTES + 4
"""Where type and payload begin in an item; its partition hash is no part of equality."""

ID: Final = struct.Struct(">Q")
LENGTH: Final = struct.Struct(">I")
CALL_HEAD: Final = struct.Struct(f">Q{CALLER_BYTES}sQ")
"""Place of the record, caller and number."""


def item_id(item: bytes) -> int:
    """The id of an item."""
    number: int = ID.unpack_from(item)[0]
    return number


def encode_head(past: Past, answers: bytes = b"") -> bytes:
    """The beginning of a chunk, with these answers."""
    return b"".join((past.encode(), LENGTH.pack(len(answers)), answers))


def read_head(chunk: bytes) -> tuple[Past, bytes, int]:
    """The past in a chunk, the answers, and where the items begin.

    Raises:
        SerializationError: The chunk is damaged.
    """
    past, place = read_past(chunk)
    begin = place + LENGTH.size
    if begin > len(chunk):
        raise SerializationError("a chunk of a queue ends before its items")
    start = begin + LENGTH.unpack_from(chunk, place)[0]
    if start > len(chunk):
        raise SerializationError("a chunk of a queue ends within its answers")
    return past, chunk[begin:start], start


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
