"""Messages of backups: the master has every member do its part of a job, round by round (0020).

``place`` is the folder that backups lie in, from the data directory on where it does not begin with
``/``. What is asked is repeated until it is answered, and answered again with how far it is.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages.base import BackupMessage


class Order(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what a member is asked for in a round."""


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what a member answers."""


class PartFile(msgspec.Struct, frozen=True, array_like=True):
    """A closed segment of a member's log, as a backup has it.

    Attributes:
        stream, number, first_block, end: As in ``cluster.meta``.
        home: The backup in whose folder of that member the bytes lie.
        key_id, salt: As in ``cluster.meta``; empty where the segment is not encrypted.
    """

    stream: int
    number: int
    first_block: int
    end: int
    home: str
    key_id: bytes = b""
    salt: bytes = b""


class Part(msgspec.Struct, frozen=True):
    """What a backup has of one member.

    Attributes:
        log_id: Of its log, as hexadecimal digits.
        bytes: That this backup has added to the place.
        since: If it has all that went of the log since an earlier backup, the id of that one.
        history: What went since then; only moments between the two need it.
    """

    member: MemberId
    log_id: str
    files: tuple[PartFile, ...]
    bytes: int
    since: str = ""
    history: tuple[PartFile, ...] = ()


# -- orders ---------------------------------------------------------------------------------


class LookAt(Order, frozen=True):
    """Say what backups there are; answered by ``Seen``."""

    place: str


class Begin(Order, frozen=True):
    """Get ready and stand still, as for a change of the cluster state; answered by ``Done``."""

    place: str
    id: str
    list_version: int
    mark: int
    lease_us: int


class Cut(Order, frozen=True):
    """Close the log at one moment; answered by ``WasCut`` once that is durable."""


class Gather(Order, frozen=True):
    """Move again, and put the part into the place; answered by ``Gathered``.

    ``base`` is what the backup that this one builds on, with the id ``base_id``, has of the member:
    it is not put there again. None for a full backup, and where it has nothing of the member.
    """

    base: Part | None
    base_id: str = ""


class Conclude(Order, frozen=True):
    """The backup is whole: write its manifest beside the part; answered by ``Done``."""

    manifest: bytes


class Revoke(Order, frozen=True):
    """Backups with these ids are not whole any more: no manifest says so; answered by ``Done``."""

    place: str
    ids: tuple[str, ...]


class Delete(Order, frozen=True):
    """Delete the backups with these ids, as far as they are here; answered by ``Done``."""

    place: str
    ids: tuple[str, ...]


class PartToRead(msgspec.Struct, frozen=True, array_like=True):
    """A part that a member is to read.

    Attributes:
        source: The member whose part it is.
        log_id, files: As in ``Part``.
        primary_of: Partitions of which its fragments count.
    """

    source: MemberId
    log_id: str
    files: tuple[PartFile, ...]
    primary_of: tuple[PartitionId, ...] = ()


class Check(Order, frozen=True):
    """Read these parts to the end; answered by ``Done``, or refused with what is damaged."""

    place: str
    id: str
    parts: tuple[PartToRead, ...]


class Load(Order, frozen=True):
    """Read these parts, and keep what is to be restored; answered by ``Loaded``.

    Attributes:
        pattern: Of names of maps; empty for all structures of every kind.
        until_ms: The moment that is wanted; None for the end of the parts.
    """

    place: str
    id: str
    parts: tuple[PartToRead, ...]
    pattern: str
    until_ms: int | None


class Choose(Order, frozen=True):
    """Of what was loaded keep only this: fragments by part and structure; answered by ``Done``."""

    kept: tuple[tuple[MemberId, PartitionId, Namespace], ...]


class Offer(Order, frozen=True):
    """Offer all that was loaded to the primaries of today; answered by ``Offered``."""


# -- answers --------------------------------------------------------------------------------


class Done(Answer, frozen=True):
    """That is done."""


class SeenBackup(msgspec.Struct, frozen=True, array_like=True):
    """What a member sees of one backup.

    Attributes:
        parts: The members of which it sees a part.
        manifest: Empty where there is none, or none that can be read.
        size: Bytes of all its files.
        problem: Why it cannot be read.
    """

    id: str
    parts: tuple[MemberId, ...]
    manifest: bytes
    size: int
    problem: str = ""


class Seen(Answer, frozen=True):
    """What backups a member sees."""

    backups: tuple[SeenBackup, ...]


class WasCut(Answer, frozen=True):
    """The log is closed; so many entries were in the partitions of which it is the primary."""

    entries: dict[Namespace, int]
    at_ms: int


class Gathered(Answer, frozen=True):
    """The part is in the place, durable."""

    part: Part


class Loaded(Answer, frozen=True):
    """What is loaded, and what the structures have now.

    Attributes:
        found: Member, partition, structure and entries of each fragment that was loaded.
        present: Entries of structures that fit the pattern, in partitions of which the member is
            the primary.
    """

    found: tuple[tuple[MemberId, PartitionId, Namespace, int], ...]
    present: dict[Namespace, int]


class Offered(Answer, frozen=True):
    """So many entries were taken."""

    entries: int


class BackupAsked(BackupMessage, frozen=True):
    """The master asks a member for its part of a round of a job."""

    job: str
    round: int
    order: (
        LookAt | Begin | Cut | Gather | Conclude | Revoke | Delete | Check | Load | Choose | Offer
    )


class BackupAnswered(BackupMessage, frozen=True):
    """How far a member is with it: ``answer``, or ``refusal`` as a sentence, or neither yet.

    ``is_passing`` says that what is refused may be granted in a moment.
    """

    job: str
    round: int
    answer: Done | Seen | WasCut | Gathered | Loaded | Offered | None = None
    refusal: str = ""
    is_passing: bool = False
    done: int = 0
    total: int = 0


class BackupGivenUp(BackupMessage, frozen=True):
    """The job is over, whatever of it is still under way."""

    job: str
