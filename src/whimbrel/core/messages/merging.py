"""Messages after a split: what the smaller part held is offered to its primaries."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages.base import MergingMessage


class MergeCounts(msgspec.Struct, frozen=True, array_like=True):
    """What became of merging entries."""

    added: int = 0
    """There was none of that key."""
    replaced: int = 0
    """The policy took another value than the one that was there, which is gone."""
    same: int = 0
    """The value was there already."""
    discarded: int = 0
    """The policy kept what was there, or nothing; the merging value is gone."""
    expired: int = 0
    """The entry's time was over."""


class MergeRequested(MergingMessage, frozen=True):
    """Entries that a part of a split cluster held; to the primary, which merges them.

    ``chunk`` is in the form of the structure's kind and has so many ``entries``; ``generation`` is
    that of ``FragmentPart``. A chunk that an incarnation before the sender offered is known by
    ``origin``, who offered it first, and the ``number`` it had there; else by the sender and the
    call.
    """

    call: int
    partition_id: PartitionId
    namespace: Namespace
    chunk: bytes
    entries: int
    generation: int = 0
    origin: MemberId | None = None
    number: int = 0
    is_restored: bool = False
    """It is of a backup: what is there stays, whatever policy there is (0020)."""


class MergeAnswered(MergingMessage, frozen=True):
    """``accepted`` False: nothing is decided, offer the same chunk again."""

    call: int
    accepted: bool
    counts: MergeCounts
    reason: str = ""
