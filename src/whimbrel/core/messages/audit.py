"""Messages of audits: replicas are compared with their primary by what is in them (0018).

Who drives an audit asks each partition's primary, which asks its backups, one structure at a time.
What is asked is repeated until it is answered; who is asked twice answers the same.
"""

from __future__ import annotations

import enum

import msgspec

from whimbrel.core.ids import MemberId, Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages.base import AuditMessage
from whimbrel.core.messages.transfer import Vector


class Mark(enum.IntEnum):
    """How a backup has a key, beside how its primary had it at the same version; one byte."""

    SAME = 0
    MISSING = 1
    DIFFERENT = 2
    EXTRA = 3


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """What came of the comparison of one backup's fragment with its primary's.

    Attributes:
        rows: Entries that the primary had.
        missing, different, extra: Entries of the backup that are not what they should be.
        keys: A few of them, for people.
        repaired: So many of them the backup has as its primary by now.
        reason: Why it could not be compared, or repaired; empty when it was.
    """

    namespace: Namespace
    member: MemberId
    rows: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    keys: tuple[str, ...] = ()
    repaired: int = 0
    reason: str = ""

    @property
    def differing(self) -> int:
        """Entries that were not what they should be."""
        return self.missing + self.different + self.extra


# -- between who drives an audit and primaries ----------------------------------------------


class PartitionAuditRequested(AuditMessage, frozen=True):
    """Driver to primary: compare the backups of a partition with what you have.

    ``pattern`` is ``KIND/NAME`` with ``*`` and ``?``, empty for all structures. With
    ``may_repair`` what differs is made good before the answer.
    """

    audit: str
    attempt: int
    partition_id: PartitionId
    pattern: str
    may_repair: bool


class PartitionAuditAnswered(AuditMessage, frozen=True):
    """Primary to driver: what came of it; a ``problem``, and nothing counts; or neither yet.

    ``rows`` are the entries of each structure that was asked for, at the primary.
    """

    audit: str
    attempt: int
    partition_id: PartitionId
    is_over: bool
    problem: str = ""
    rows: dict[Namespace, int] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


class AuditEnded(AuditMessage, frozen=True):
    """Driver to primaries: nobody waits for the answers any more."""

    audit: str


# -- between a primary and a backup ---------------------------------------------------------


class Question(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what a backup is asked about one fragment."""


class SumUp(Question, frozen=True):
    """Do a piece of a tree of 2^bits leaves; the first piece when ``is_first``."""

    bits: int
    is_first: bool


class Descend(Question, frozen=True):
    """Which of these sums differ; as those of a copy (``FragmentPart.sums``)."""

    sums: bytes


class Compare(Question, frozen=True):
    """How you have these keys at the moment at which you are at this version.

    ``sums`` are those of the primary's entries, 0 where it has none, little-endian.
    """

    vector: Vector
    keys: tuple[bytes, ...]
    sums: bytes


class GoOn(Question, frozen=True):
    """What has become of the last ``Compare``."""


class ListKeys(Question, frozen=True):
    """The next keys that you have in the leaves that differ."""


class Doubt(Question, frozen=True):
    """Ask for the fragment anew, with ``begin``; else only whether that is still under way."""

    begin: bool


class Reply(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what a backup answers."""


class Refused(Reply, frozen=True):
    """It cannot be said: the replica was replaced, or is not ours; asked anew it may be."""

    reason: str


class Summed(Reply, frozen=True):
    """Whether the tree is made."""

    is_over: bool


class Differing(Reply, frozen=True):
    """One bit for each sum, as ``Progress.differing``."""

    bits: bytes


class Compared(Reply, frozen=True):
    """One ``Mark`` for each key; None while the version has not been reached."""

    marks: bytes | None


class Listed(Reply, frozen=True):
    """Keys, some of them maybe twice, and whether there are no more."""

    keys: tuple[bytes, ...]
    is_last: bool


class Doubted(Reply, frozen=True):
    """Whether the fragment may lack something, and is asked for."""

    is_dirty: bool


class ReplicaAsked(AuditMessage, frozen=True):
    """Primary to backup; the same ``sequence`` means the same question. BULK channel, so that it
    arrives behind the operations of all turns before.
    """

    number: int
    sequence: int
    partition_id: PartitionId
    index: ReplicaIndex
    namespace: Namespace
    question: SumUp | Descend | Compare | GoOn | ListKeys | Doubt


class ReplicaAnswered(AuditMessage, frozen=True):
    """Backup to primary: the answer to one question."""

    number: int
    sequence: int
    reply: Refused | Summed | Differing | Compared | Listed | Doubted
