"""How the values of a multimap are laid out in bytes, alone, in backup operations and in chunks.

An *item* is one value under one key, in the form of its type of collection: it has a *mark*, by
which it is told from the others of its key, and the *rest*. In a set an item is the value's Data,
its mark is all by which values are equal (type and payload) and its rest the partition hash. In a
list an item is an id that comes once in the life of the store (64 bits, big-endian), which is its
mark, and the value's Data. So the Data ends the item in both, and naming a mark twice is harmless.

The values of a key stand as *packed* bytes, one (length, item) behind the other.

Backup operation: kind with the type of collection, length of the key, the key's Data; a PUT goes on
with the item, a REMOVE with the mark. Chunk: type of collection, the last id given (64 bits), then
groups of (length of the key, length of the packed items, key's Data, packed items); a key with many
values may have several groups, in several chunks. A store of the other type refuses both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from whimbrel.errors import SerializationError
from whimbrel.serialization.data import DATA_HEADER_BYTES

ID_BYTES: Final = 8

LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = LENGTH.size

OPERATION: Final = struct.Struct("<BI")
OPERATION_BYTES: Final = OPERATION.size
PUT: Final = 1
REMOVE: Final = 2
REMOVE_KEY: Final = 3
CLEAR: Final = 4
KIND_MASK: Final = 0x0F
OF_SETS: Final = 0x00
OF_LISTS: Final = 0x10

CHUNK_HEAD: Final = struct.Struct("<BQ")
GROUP: Final = struct.Struct("<II")

_length_at = LENGTH.unpack_from


def pack(items: Iterable[bytes]) -> bytes:
    """Items one behind the other."""
    return b"".join(part for item in items for part in (LENGTH.pack(len(item)), item))


def unpack(packed: bytes) -> Iterator[bytes]:
    """The items of packed bytes that are whole."""
    at, end = 0, len(packed)
    while at < end:
        at += LENGTH_BYTES
        stop = at + _length_at(packed, at - LENGTH_BYTES)[0]
        yield packed[at:stop]
        at = stop


def last_id(chunk: bytes, collection: int) -> int:
    """The last id given, as a chunk says.

    Raises:
        SerializationError: It is too short, or of another type of collection.
    """
    if len(chunk) < CHUNK_HEAD.size:
        raise SerializationError("a multimap chunk ends within its head")
    found, last = CHUNK_HEAD.unpack_from(chunk)
    if found != collection:
        raise SerializationError(
            "a multimap chunk is of another value_collection_type than is configured here"
        )
    return int(last)


def read_chunk(chunk: bytes, value_at: int) -> Iterator[tuple[bytes, bytes]]:
    """The items of a chunk, each with its key's Data.

    Args:
        chunk: Of a store's export.
        value_at: Where in an item the value's Data begins.

    Raises:
        SerializationError: It is damaged; what stands before the damage is yielded before.
    """
    position, end = CHUNK_HEAD.size, len(chunk)
    try:
        while position < end:
            key_length, items_length = GROUP.unpack_from(chunk, position)
            position += GROUP.size
            at = position + key_length
            stop = at + items_length
            if key_length < DATA_HEADER_BYTES or stop > end:
                raise SerializationError("a multimap chunk ends within a key's values")
            key = chunk[position:at]
            while at < stop:
                begin = at + LENGTH_BYTES
                at = begin + _length_at(chunk, at)[0]
                if at > stop or at - begin < value_at + DATA_HEADER_BYTES:
                    raise SerializationError("a multimap chunk ends within a value")
                yield key, chunk[begin:at]
            position = stop
    except struct.error as error:
        raise SerializationError("a multimap chunk ends within its lengths") from error
