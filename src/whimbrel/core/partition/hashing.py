"""Which partition a key belongs to, and the one number that summarises a table's versions.

Knows two published hash functions: the 32-bit MurmurHash3 of keys, and the *early* 64-bit
MurmurHash3 (constants that change from block to block, sign-extended tail) of the table stamp.
Both must agree with every official client bit for bit. Knows nothing of members or rows.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import mmh3

from whimbrel.core.ids import PartitionId
from whimbrel.errors import SerializationError, UsageError
from whimbrel.serialization.data import DATA_HEADER_BYTES

HASH_SEED = 0x0100_0193
VERSION_MAX = 0x7FFF_FFFF
"""A partition version travels as a signed 32-bit number in the stamp's input."""

_INT_MIN = -(1 << 31)
_MASK = (1 << 64) - 1
_BLOCK_BYTES = 16
_H1_START = 0x9368_E53C_2F6A_F274
_H2_START = 0x586D_CD20_8F7C_D3FD
_C1_START = 0x87C3_7B91_1142_53D5
_C2_START = 0x4CF5_AD43_2745_937F


def partition_hash(data: bytes | memoryview) -> int:
    """The partition hash of a serialized key.

    A hash that the client stored in the first four bytes (big-endian, not zero) wins; it comes
    from a partition-aware key. Otherwise the payload after the header is hashed.

    Args:
        data: The whole key in Data layout.

    Returns:
        A signed 32-bit number.

    Raises:
        SerializationError: The data are shorter than their header.
    """
    if len(data) < DATA_HEADER_BYTES:
        message = f"a serialized key has at least {DATA_HEADER_BYTES} bytes, this one {len(data)}"
        raise SerializationError(message)
    stored = int.from_bytes(data[:4], "big", signed=True)
    if stored:
        return stored
    return mmh3.hash(bytes(data[DATA_HEADER_BYTES:]), HASH_SEED)


def partition_of(hash_code: int, partition_count: int) -> PartitionId:
    """The partition of a 32-bit hash: its absolute value modulo the count, 0 for -2**31.

    Raises:
        UsageError: The count is not positive.
    """
    if partition_count <= 0:
        message = f"a partition count must be positive, not {partition_count}"
        raise UsageError(message)
    if hash_code == _INT_MIN:
        return PartitionId(0)
    return PartitionId(abs(hash_code) % partition_count)


def partition_of_name(name: str, partition_count: int) -> PartitionId:
    """The partition in which clients look for a structure that lies in one alone.

    They hash the text behind the first ``@`` of its name, or all of it, as a serialized string.
    """
    key = name.partition("@")[2] if "@" in name else name
    text = key.encode()
    return partition_of(mmh3.hash(struct.pack(">i", len(text)) + text, HASH_SEED), partition_count)


def calculate_stamp(versions: Sequence[int]) -> int:
    """The stamp of a table (PIM-16).

    Each partition's version is written as 4 big-endian bytes at offset 4 * partition id, and the
    buffer is hashed. The stamp tells tables apart; it says nothing about which is newer (PIM-19).
    Linear in the partitions: about 10 ms for 20,000.

    Args:
        versions: Version of partition 0, 1, 2, ...; each from 0 to VERSION_MAX.

    Returns:
        A signed 64-bit number.
    """
    return stamp_hash(struct.pack(f">{len(versions)}I", *versions))


def stamp_hash(data: bytes) -> int:
    """The 64-bit hash behind the stamp, over any bytes (FN-2)."""
    mask = _MASK
    h1 = _H1_START ^ HASH_SEED
    h2 = _H2_START ^ HASH_SEED
    block_count = len(data) // _BLOCK_BYTES
    words = struct.unpack_from(f"<{2 * block_count}Q", data)
    constants = _block_constants(block_count)
    for k1, k2, (c1, c2) in zip(words[::2], words[1::2], constants, strict=True):
        k1 = k1 * c1 & mask
        h1 = (h1 ^ ((k1 << 23 | k1 >> 41) * c2 & mask)) + h2 & mask
        k2 = k2 * c2 & mask
        h2 = ((h2 << 41 | h2 >> 23) & mask ^ ((k2 << 23 | k2 >> 41) * c1 & mask)) + h1 & mask
        h1 = h1 * 3 + 0x52DC_E729 & mask
        h2 = h2 * 3 + 0x3849_5AB5 & mask
    tail = data[block_count * _BLOCK_BYTES :]
    if tail:
        c1, c2 = _next_constants(*constants[-1]) if constants else (_C1_START, _C2_START)
        h1, h2 = _mix_tail(tail, h1, h2, c1, c2)
    h2 ^= len(data)
    h1 = h1 + h2 & mask
    h2 = h2 + h1 & mask
    total = _finish(h1) + _finish(h2) & mask
    return total - (1 << 64) if total >> 63 else total


@functools.lru_cache(maxsize=4)
def _block_constants(block_count: int) -> tuple[tuple[int, int], ...]:
    """The multipliers of each block; they depend on nothing but the block's number."""
    pairs = []
    c1, c2 = _C1_START, _C2_START
    for _ in range(block_count):
        pairs.append((c1, c2))
        c1, c2 = _next_constants(c1, c2)
    return tuple(pairs)


def _next_constants(c1: int, c2: int) -> tuple[int, int]:
    """The multipliers of the following block."""
    return (c1 * 5 + 0x7B7D_159C & _MASK, c2 * 5 + 0x6BCE_6396 & _MASK)


def _mix_tail(tail: bytes, h1: int, h2: int, c1: int, c2: int) -> tuple[int, int]:
    """Mix the last 1 to 15 bytes in; each is sign-extended before it is shifted."""
    halves = [0, 0]
    for position, byte in enumerate(tail):
        extended = byte if byte < 0x80 else byte - 0x100
        halves[position // 8] ^= extended << (8 * (position % 8)) & _MASK
    k1, k2 = halves
    k1 = k1 * c1 & _MASK
    h1 = (h1 ^ ((k1 << 23 | k1 >> 41) * c2 & _MASK)) + h2 & _MASK
    h2 = (h2 << 41 | h2 >> 23) & _MASK
    k2 = k2 * c2 & _MASK
    h2 = (h2 ^ ((k2 << 23 | k2 >> 41) * c1 & _MASK)) + h1 & _MASK
    return (h1 * 3 + 0x52DC_E729 & _MASK, h2 * 3 + 0x3849_5AB5 & _MASK)


def _finish(half: int) -> int:
    """Spread every input bit over the whole word."""
    half = (half ^ half >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    half = (half ^ half >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return half ^ half >> 33
