"""Messages of the migration room: the table, and what a master asks of participants."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.messages.base import MigrationMessage
from whimbrel.core.model import Loss, MigrationInfo, PackedRows, StableMark


class TableImage(msgspec.Struct, frozen=True, array_like=True):
    """Some or all rows, compactly.

    ``slots`` holds REPLICA_SLOTS big-endian unsigned 16-bit numbers per listed partition:
    positions in ``members``, 0xFFFF for a hole.
    """

    members: tuple[MemberId, ...]
    partitions: tuple[int, ...]
    versions: tuple[int, ...]
    slots: bytes
    losses: tuple[Loss, ...] = ()
    """What these partitions have lost, and which of it has been seen."""


class TablePublished(MigrationMessage, frozen=True):
    """Rows and finished migrations from the master (ADL-10, ADL-23).

    ``whole`` tells that ``image`` lists every partition. ``publication`` rises with each message
    of this master; the receiver answers with it. ``after`` is the publication that the receiver
    was sent before this one, so that it notices a lost one; finished migrations of
    publications up to ``floor`` need not be kept: everybody has them, or gets whole rows (ADL-25).

    A large table comes in parts, one publication each: the first is ``whole``, each further one is
    ``after`` the one before, and all but the last have ``more`` and are not answered.
    """

    publication: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]
    whole: bool
    after: int = 0
    floor: int = 0
    more: bool = False


class PublicationAnswered(MigrationMessage, frozen=True):
    """``in_step`` is False when the receiver could not apply it and needs the whole table."""

    publication: int
    in_step: bool
    stamp: int


class StampPublished(MigrationMessage, frozen=True):
    """The master's table stamp; a receiver with another one asks for the table (FN-6)."""

    stamp: int


class TableRequested(MigrationMessage, frozen=True):
    """Send me the whole table."""

    stamp: int


class StateRequested(MigrationMessage, frozen=True):
    """A new master asks for table and migrations (ADL-11); repeated until answered (ADL-13)."""

    round: int


class StateAnswered(MigrationMessage, frozen=True):
    """Everything the new master needs from one member.

    A large table comes in parts, numbered from 0; all but the last have ``more``, and the last one
    brings the migrations.
    """

    round: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]
    active: tuple[MigrationInfo, ...]
    part: int = 0
    more: bool = False


class StableTableRequested(MigrationMessage, frozen=True):
    """Send me the rows of this stable table, from partition ``start`` on (APR-34).

    Asked by whoever did not hold them when the state was entered: members ask their master, a
    master all others. Repeated until it is answered.
    """

    stable: StableMark
    start: int


class StableTableTold(MigrationMessage, frozen=True):
    """Some rows of a stable table, as many as one message may have; None when they are not here."""

    stable: StableMark
    start: int
    rows: PackedRows | None


class LossesTold(MigrationMessage, frozen=True):
    """A member that came back to its seats tells the master what it found lost there (GCM-09).

    Repeated until it is answered.
    """

    losses: tuple[Loss, ...]


class LossesNoted(MigrationMessage, frozen=True):
    """The master has these marks, or later ones of the same partitions."""

    losses: tuple[Loss, ...]


class LegacyTablePublished(MigrationMessage, frozen=True):
    """The whole table under its one version, from the master, with the finished migrations that
    not every member has acknowledged (PIM-07).
    """

    version: int
    image: TableImage
    completed: tuple[MigrationInfo, ...]


class LegacyTableAnswered(MigrationMessage, frozen=True):
    """The version at which the receiver's table stands now."""

    version: int


class LegacyVersionPublished(MigrationMessage, frozen=True):
    """The version of the master's table; a receiver below it asks for the table."""

    version: int


class LegacyTableRequested(MigrationMessage, frozen=True):
    """My table stands at this version: send me yours."""

    version: int


class MigrationRequested(MigrationMessage, frozen=True):
    """Master to the partition's primary: copy the data to the destination (ADL-28, PIM-08)."""

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]


class MigrationDataAnswered(MigrationMessage, frozen=True):
    """Primary to master: the destination has everything, or why not."""

    migration_id: str
    success: bool
    reason: str
    bytes_moved: int
    entries_moved: int = 0


class MigrationCommitRequested(MigrationMessage, frozen=True):
    """Master to destination: commit (ADL-18). Carries the migration with verdict SUCCESS."""

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]


class MigrationCommitAnswered(MigrationMessage, frozen=True):
    """Destination to master (PIM-10)."""

    migration_id: str
    committed: bool
    reason: str


class PromotionRequested(MigrationMessage, frozen=True):
    """Master to the promoted member: all its promotions of one repair round (FN-7)."""

    batch: int
    migrations: tuple[MigrationInfo, ...]
    image: TableImage


class PromotionAnswered(MigrationMessage, frozen=True):
    """``accepted`` means that the batch is applied, now or earlier (PIM-11)."""

    batch: int
    accepted: bool
    reason: str


class MigrationOpened(MigrationMessage, frozen=True):
    """Primary to destination: a migration begins (GCM-39); answered as message 0 of its copy.

    Carries the finished migrations of the partition (PIM-08).
    """

    migration: MigrationInfo
    completed: tuple[MigrationInfo, ...]
