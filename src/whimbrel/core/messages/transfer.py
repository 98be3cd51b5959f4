"""Messages of a copy of fragments, whoever wants it."""

from __future__ import annotations

import enum

import msgspec

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.messages.base import TransferMessage


class Vector(msgspec.Struct, frozen=True, array_like=True):
    """Replica versions of one namespace (AE-01), with their lineage (AE-11).

    ``counters`` has BACKUP_COUNT_MAX numbers, slot r-1 for replica r. ``lineage`` names the
    primary that counts. ``base_lineage`` and ``base`` say where that primary started from.
    """

    lineage: int
    counters: tuple[int, ...]
    base_lineage: int = 0
    base: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of counting of a log of changed keys: states that a base may be in, by vectors.

    It begins with ``counters``, of which those from ``slot`` on mean something, under ``lineage``;
    it has ``steps`` operations, each of which raises ``backup_count`` counters.
    """

    lineage: int
    counters: tuple[int, ...]
    slot: int
    backup_count: int
    steps: int = 0


class LogPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some of a log of changed keys that goes along with a copy: all stretches, and some keys.

    ``changed`` has, for each key, the place of the stretch in which it changed last.
    """

    stretches: tuple[Stretch, ...]
    keys: tuple[bytes, ...]
    changed: tuple[int, ...]


class FragmentPart(msgspec.Struct, frozen=True, array_like=True):
    """A piece of one namespace in one partition.

    ``first`` makes the receiver start from an empty fragment (replication replaces, bug 37);
    ``last`` makes it whole, with ``vector``. ``settings`` is (sync, async) backup counts.
    ``generation`` is the registry's number of the destruction that the fragment was begun after.

    The receiver may have a base of which it takes what is the same there (docs/design/0018). A
    ``first`` part with ``bits`` begins a comparison by a tree of 2^bits leaves; ``sums``, 8 bytes
    each, are of the nodes whose turn it is. With ``is_same`` there is nothing to be compared: all
    that is no entry comes along, and the entries are those of the base. ``data`` has ``entries``.

    Or it is known which keys have changed since the base was whole: then ``removed`` is not None,
    and has some of the stored keys that are there no more. Entries of the others are sent; with
    ``is_told`` all of both are, and whatever else the base has is taken.

    ``log`` is of a log that the receiver goes on with, for others that are away.
    """

    namespace: Namespace
    data: bytes
    vector: Vector
    settings: tuple[int, int]
    first: bool
    last: bool
    generation: int = 0
    entries: int = 0
    bits: int = 0
    sums: bytes = b""
    is_same: bool = False
    removed: tuple[bytes, ...] | None = None
    is_told: bool = False
    log: LogPiece | None = None


class CopyBase(msgspec.Struct, frozen=True, array_like=True):
    """An older copy that a receiver has of what it is to be sent.

    ``vector`` has no lineage where it may lack something; ``slot`` is the first that was kept.
    ``sound`` is its vector where it lacked nothing, None if nobody can tell; if it has got anything
    since then, all of it is of the lineage ``met``, else that is 0.
    """

    namespace: Namespace
    entries: int
    generation: int
    vector: Vector
    slot: int
    sound: Vector | None = None
    met: int = 0


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a receiver is with its bases, besides having taken a message.

    ``differing`` has one bit for each of the sums that were sent last of a namespace, the lowest of
    a byte first: 1 where they differ. ``is_ready`` says that the last part may come.
    """

    differing: dict[Namespace, bytes]
    is_ready: bool


NOTHING_COMPARED = Progress({}, True)


class Purpose(enum.StrEnum):
    """What a copy of fragments is for."""

    MIGRATION = "MIGRATION"
    """From a partition's primary to the destination; the transfer is the migration's id."""
    SYNC = "SYNC"
    """From a primary to a backup that has asked (``SyncRequested``); the number of the request."""
    RECOVERY = "RECOVERY"
    """From a backup to a primary that has come back (``RefillRequested``); its number."""


class TransferSent(TransferMessage, frozen=True):
    """Parts of a copy; DATA channel; one in flight for each copy (GCM-36), numbered from 1."""

    purpose: Purpose
    transfer: str
    partition_id: PartitionId
    sequence: int
    parts: tuple[FragmentPart, ...]
    last: bool


class TransferAnswered(TransferMessage, frozen=True):
    """Receiver to sender: go on, or (``success`` False) stop, and why.

    The answer to message 0 of a migration's copy names the bases that there are.
    """

    purpose: Purpose
    transfer: str
    sequence: int
    success: bool
    reason: str
    progress: Progress = NOTHING_COMPARED
    bases: tuple[CopyBase, ...] = ()
