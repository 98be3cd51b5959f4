"""Keys for tests, and whether what a test writes is encrypted: see the fixture ``either``."""

from __future__ import annotations

from itertools import count

from whimbrel.core.persistence.encryption import KEY_BYTES, PLAIN, Encryption, PlainFiles
from whimbrel.storage.encryption import AesKey

CLUSTER_ID = "home"
FIRST, SECOND, THIRD = (AesKey(bytes([number]) * KEY_BYTES) for number in (1, 2, 3))

usual: tuple[AesKey, ...] = ()
"""What ``encryption_now`` has."""
plain_files: PlainFiles = "refuse"
"""What it makes of files that are not encrypted."""
_processes = count(1)


def encryption_with(*keys: AesKey, plain: PlainFiles = "refuse") -> Encryption:
    """Of a process that has these keys."""
    chance = next(_processes).to_bytes(32, "big")
    return Encryption(keys, chance, plain=plain)


def header_bytes() -> int:
    """Of a segment that begins now."""
    return encryption_now().header_bytes


def encryption_now() -> Encryption:
    """Of a process that begins now."""
    return encryption_with(*usual, plain=plain_files) if usual else PLAIN
