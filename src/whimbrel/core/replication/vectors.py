"""The arithmetic of replica version vectors (paper 03, AE-01 to AE-11). Pure functions.

A vector has six counters; slot r-1 belongs to the replica at index r. A replica keeps the slots of
its own index and of colder ones, hotter slots are zero (AE-03). Counters mean something only
within one lineage: the number of the primary that counts (AE-11, design 0001 decision 6).
"""

from __future__ import annotations

from zlib import crc32

from whimbrel.core.ids import BACKUP_COUNT_MAX
from whimbrel.core.messages import Vector

Counters = tuple[int, ...]
"""BACKUP_COUNT_MAX numbers."""

ZERO: Counters = (0,) * BACKUP_COUNT_MAX
NO_LINEAGE = 0
"""Lineage of a namespace that no primary has counted for yet; its counters are zero."""
EMPTY_VECTOR = Vector(NO_LINEAGE, ZERO, NO_LINEAGE, ZERO)


def slot_of(index: int) -> int:
    """The first slot that the replica at ``index`` keeps: 0 for the primary and replica 1."""
    return index - 1 if index > 1 else 0


def kept_by(counters: Counters, index: int) -> Counters:
    """What the replica at ``index`` keeps of a hotter replica's counters: zero below (AE-03)."""
    slot = slot_of(index)
    return ZERO[:slot] + tuple(counters[slot:])


def promoted_from(counters: Counters, index: int) -> Counters:
    """The counters with which the replica at ``index`` becomes primary (FN-7).

    Hotter slots take the value of its own: whatever it holds, nobody hotter is left to hold more.
    """
    slot = slot_of(index)
    return (counters[slot],) * slot + tuple(counters[slot:])


def make_lineage(partition_version: int, name: str) -> int:
    """A lineage: partition version at take-over << 32 | crc32 of a name of who counts.

    Args:
        partition_version: Version of the partition's row when the counting began.
        name: The member's id; for a namespace created later, with a number behind it, so that
            a structure destroyed and created again does not count on under the old lineage.
    """
    return partition_version << 32 | crc32(name.encode())


def lineage_version(lineage: int) -> int:
    """The partition version at which the counting under this lineage began."""
    return lineage >> 32
