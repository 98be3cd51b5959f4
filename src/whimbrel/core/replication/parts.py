"""Parts of copies: how they are made, what they carry, which are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from whimbrel.core.ids import BACKUP_COUNT_MAX
from whimbrel.core.messages import FragmentPart, LogPiece, Vector
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.vectors import ZERO
from whimbrel.errors import SerializationError

T = TypeVar("T")


def make_part(
    fragment: Fragment,
    vector: Vector,
    data: bytes = b"",
    *,
    first: bool = False,
    last: bool = False,
    entries: int = 0,
    bits: int = 0,
    sums: bytes = b"",
    is_same: bool = False,
    removed: tuple[bytes, ...] | None = None,
    is_told: bool = False,
    log: LogPiece | None = None,
) -> FragmentPart:
    """A part of a copy of a fragment."""
    settings = (fragment.sync_count, fragment.async_count)
    kinds = (fragment.generation, entries, bits, sums, is_same, removed, is_told, log)
    return FragmentPart(fragment.namespace, data, vector, settings, first, last, *kinds)


def take_some(items: list[T], bytes_max: int, size_of: Callable[[T], int]) -> list[T]:
    """Take items from the end of a list, until they have so many bytes."""
    taken: list[T] = []
    while items and bytes_max > 0:
        taken.append(items.pop())
        bytes_max -= size_of(taken[-1])
    return taken


def bytes_in(part: FragmentPart) -> int:
    """What a part carries, without its frame."""
    logged = () if part.log is None else part.log.keys
    return len(part.data) + len(part.sums) + sum(map(len, (*(part.removed or ()), *logged)))


def _is_sound(log: LogPiece) -> bool:
    is_whole = len(log.keys) == len(log.changed)
    are_stretches = all(len(one.counters) == len(ZERO) and one.slot >= 0 for one in log.stretches)
    return is_whole and are_stretches and all(0 <= at < len(log.stretches) for at in log.changed)


def check_parts(parts: Sequence[FragmentPart]) -> None:
    """Refuse parts that no primary makes: settings out of range, vectors of a wrong length.

    Raises:
        SerializationError: A part is malformed.
    """
    for part in parts:
        sync, asynchronous = part.settings
        if min(sync, asynchronous) < 0 or sync + asynchronous > BACKUP_COUNT_MAX:
            raise SerializationError(f"{part.namespace} has impossible backup counts")
        if len(part.vector.counters) != len(ZERO) or len(part.vector.base) != len(ZERO):
            raise SerializationError(f"{part.namespace} has a vector of a wrong length")
        if part.generation < 0:
            raise SerializationError(f"{part.namespace} has an impossible generation")
        if part.bits and (part.is_same or not part.first):
            raise SerializationError(f"{part.namespace} has a comparison that begins nowhere")
        if (part.bits or part.sums or part.is_same) and part.removed is not None:
            raise SerializationError(f"{part.namespace} is compared in two ways")
        if part.log is not None and not _is_sound(part.log):
            raise SerializationError(f"{part.namespace} has an impossible log")
