"""How one map entry is laid out in bytes, alone and inside backup operations and chunks.

Knows layouts and the clockless arithmetic of expiry; knows nothing of dictionaries, partitions
or clients. An entry is one ``bytes`` object, never an object of ours: a collector that has to walk
an object per entry pauses a full member for most of a second.

Stored key: a Data without its partition hash and, as nearly every type id begins with two bytes
0xFF, without the first of those; any other type id is kept whole behind a zero byte. Record:
created (ms, 48 bits), updated (ms, 48 bits), version (24 bits, wraps), then the value's Data. The
allocator works in steps of 16 bytes, and these few bytes are a step for each of the two.

Timing, only for entries that can expire: time to live (ms), its end (wall ms), longest idle span
(ms), last access (wall ms); a span of 0 and an end of NEVER_MS mean that this limit is off.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from whimbrel.errors import UsageError
from whimbrel.serialization.data import DATA_HEADER_BYTES, HASH_BYTES, NO_HASH

RECORD: Final = struct.Struct("<6sIHHB")
"""Created (bytes, they are only copied), updated (low 32 and high 16 bits), version (16 and 8)."""
RECORD_BYTES: Final = RECORD.size
MOMENT_BYTES: Final = 6
MOMENT_MASK: Final = (1 << 8 * MOMENT_BYTES) - 1
UPDATED: Final = slice(MOMENT_BYTES, 2 * MOMENT_BYTES)
"""Where the time of the last write is in a record, alone (little-endian)."""
TIMING: Final = struct.Struct("<qqqq")
TIMING_BYTES: Final = TIMING.size

ORDINARY_KEY: Final = NO_HASH + b"\xff\xff"
"""How nearly every key's Data begins: no partition hash, and the type id of a common type."""
SHORT_AT: Final = HASH_BYTES + 1
"""Where the stored form of an ordinary key begins in its Data."""
_COMMON: Final = b"\xff\xff"
_WHOLE: Final = b"\0"

NEVER_MS: Final = (1 << 63) - 1
"""The moment of expiry of an entry that does not expire."""
SPAN_MS_MAX: Final = 1 << 53
"""Longer spans count as no limit; keeps sums within 64 bits."""

UNSET: Final = -1
"""A figure of an entry view that is not kept; clients show it as it is."""

OPERATION: Final = struct.Struct("<BI")
"""Start of a map's backup operation: kind with flags, length of the key."""
OPERATION_BYTES: Final = OPERATION.size
PUT: Final = 1
REMOVE: Final = 2
CLEAR: Final = 3
LOCK_STATE: Final = 4
"""What is true of a key's lock from now on, as ``locks.Locks.set`` takes it."""
WITH_TIMING: Final = 0x10
WITH_HASH: Final = 0x20
KIND_MASK: Final = 0x0F

CHUNK_ENTRY: Final = struct.Struct("<II")
"""Start of an entry in a chunk: length of the key with flags, length of the record."""
CHUNK_TIMING: Final = 1 << 31
CHUNK_HASH: Final = 1 << 30
CHUNK_LOCK: Final = 1 << 29
"""Not an entry, but what is true of the key's lock, in the place of the record."""
CHUNK_LENGTH_MASK: Final = CHUNK_LOCK - 1


class EntryView(msgspec.Struct, frozen=True):
    """What ``Map.getEntryView`` tells about an entry; times are wall clock milliseconds.

    Reads of single entries are not counted: that would cost a write, and a second dictionary
    entry, for each of them. So ``hits`` is ``UNSET``, and ``last_access_ms`` is ``UNSET`` except
    for entries with a limit on idleness, which need it, and where a map's merge or eviction policy
    asks for one of them (``usage_store``).
    """

    key: bytes
    value: bytes
    cost: int
    created_ms: int
    updated_ms: int
    expires_ms: int
    last_access_ms: int
    hits: int
    version: int
    ttl_ms: int
    max_idle_ms: int


def stored_key(data: bytes) -> bytes:
    """How a store keeps the key with this Data: all by which keys are equal, as short as can be."""
    if data.startswith(_COMMON, HASH_BYTES):
        return data[SHORT_AT:]
    return _WHOLE + data[HASH_BYTES:]


def key_body(stored: bytes) -> bytes:
    """The Data of a stored key, without its partition hash."""
    return b"\xff" + stored if stored[:1] == b"\xff" else stored[1:]


def split_key(data: bytes) -> tuple[bytes, bytes]:
    """Part a key's Data into (partition hash or empty, stored key).

    Raises:
        UsageError: It is shorter than a Data can be.
    """
    if len(data) < DATA_HEADER_BYTES:
        raise UsageError(f"a key of {len(data)} bytes is no serialized object")
    head = data[:HASH_BYTES]
    return (b"" if head == NO_HASH else head), stored_key(data)


def record_head(record: bytes) -> tuple[int, int, int]:
    """(created ms, updated ms, version) of a record."""
    created, updated_low, updated_high, version_low, version_high = RECORD.unpack_from(record)
    return (
        int.from_bytes(created, "little"),
        updated_high << 32 | updated_low,
        version_high << 16 | version_low,
    )


def make_timing(ttl_ms: int, max_idle_ms: int, now_ms: int) -> bytes:
    """The timing of an entry written now; empty when neither limit is set.

    Args:
        ttl_ms: Time to live, 0 or less for none.
        max_idle_ms: Longest span without access, 0 or less for none.
        now_ms: Wall clock.
    """
    ttl = ttl_ms if 0 < ttl_ms < SPAN_MS_MAX else 0
    idle = max_idle_ms if 0 < max_idle_ms < SPAN_MS_MAX else 0
    if not ttl and not idle:
        return b""
    return TIMING.pack(ttl, now_ms + ttl if ttl else NEVER_MS, idle, now_ms)


def deadline_of(timing: bytes) -> int:
    """The wall clock millisecond at which an entry with this timing is gone."""
    _, end_ms, idle_ms, access_ms = TIMING.unpack(timing)
    if idle_ms:
        return int(min(end_ms, access_ms + idle_ms))
    return int(end_ms)


def same_value(one: bytes, other: bytes) -> bool:
    """Whether two values are equal: their type and payload are; the partition hash is not asked."""
    return one[HASH_BYTES:] == other[HASH_BYTES:]
