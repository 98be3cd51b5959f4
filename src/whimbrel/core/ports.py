"""The seams between rooms of the core, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from whimbrel.core.ids import PartitionId, ReplicaIndex, Row
from whimbrel.core.messages import CopyBase, FragmentPart, Progress, TransferAnswered
from whimbrel.core.model import MemberList, MigrationInfo
from whimbrel.core.persistence.metadata import ClusterFile


class Export(Protocol):
    """A cursor over the fragments of one partition that a migration or sync must send."""

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        """The next parts, about ``bytes_max`` bytes in all, and whether they are the last."""

    def answered(self, answer: TransferAnswered) -> None:
        """What the receiver says beside that it took the last message, or has opened the copy.

        Raises:
            SerializationError: It answers what was not asked.
        """


class FragmentHost(Protocol):
    """What the migration room needs of the data: implemented by the replication room.

    Calls for one migration come in this order. Source side: ``copy_bytes``, any number of times,
    ``begin_source``, ``open_export``, then ``finalize``. Destination side: ``begin_destination``,
    ``bases``, ``ingest``..., ``finalize``. ``finalize`` is also called, without a begin, for a
    member that merely learns of a change of a row it is or was in (former backups, promotions,
    repairs).
    """

    def copy_bytes(self, migration: MigrationInfo) -> int:
        """About how many bytes the destination lacks for its new index."""

    def begin_source(self, migration: MigrationInfo) -> None:
        """Set the migrating flag: writes to the partition wait from now on (GCM-31)."""

    def end_source(self, partition_id: PartitionId) -> None:
        """Take the migrating flag off; must be safe to call twice."""

    def open_export(self, migration: MigrationInfo) -> Export:
        """What the destination lacks for its new index (GCM-33, ADL-42)."""

    def begin_destination(self, migration: MigrationInfo) -> None:
        """Get ready to ingest; namespaces being ingested ignore backup operations."""

    def bases(self, migration: MigrationInfo) -> tuple[CopyBase, ...]:
        """What we have that the copy may be compared with (docs/design/0018)."""

    def ingest(self, migration: MigrationInfo, parts: Sequence[FragmentPart]) -> Progress:
        """Take in parts, in order. Raises SerializationError when they are damaged."""

    def rollback_destination(self, migration: MigrationInfo) -> None:
        """Drop what was ingested beyond the current index's needs (ADL-43, ADL-74)."""

    def row_changed(self, partition_id: PartitionId, before: Row, after: Row, version: int) -> None:
        """Our table's row changed for good: take the new role.

        Drops data of every structure whose backup count is below our new index or all when we are
        not in the row (ADL-73); becomes primary (new lineage) or stops being it; adapts vectors
        (FN-9); releases acknowledgements expected from former backups.
        """

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call this once all that has happened so far is on our disk, at once without one."""

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand, back in our seats, without their data (GCM-09)."""


class FilesHost(Protocol):
    """What a recovery needs of the files of this member: implemented by the persistence room.

    Attributes:
        is_enabled: Whether this member keeps files at all.
        found: What its files were of when it began; None when there were none, when it had left
            with nothing behind, and once they are set aside.
        left: The member list with which it had left so; None unless it had.
        bytes_total: What the present load reads, 0 before it is known.
        bytes_loaded: How much of that is read.
        on_loaded: Called once all that was last asked for is loaded; set by the recovery room.
        on_damaged: Called with a sentence that names file and offset; set by the recovery room.
    """

    is_enabled: bool
    found: ClusterFile | None
    left: MemberList | None
    bytes_total: int
    bytes_loaded: int
    on_loaded: Callable[[], None]
    on_damaged: Callable[[str], None]

    def load(self, wanted: Mapping[PartitionId, ReplicaIndex]) -> None:
        """Bring the fragments of these partitions back, as far as our index asks for them.

        They are held and not served: there are no rows yet. Asked again it begins anew, and tells
        of the last one only.
        """

    def set_aside(self, then: Callable[[], None]) -> None:
        """Move all files out of the way; what was loaded is held no longer.

        ``then`` is called when that is done: ``found`` is None. Asked again it is not done twice,
        and both are told.
        """

    def follow(self) -> None:
        """What was loaded changes from now on, and is written when the cluster runs.

        Others may run before this member does, and send it their changes.
        """

    def began(self) -> None:
        """The cluster runs with us: write from now on."""
