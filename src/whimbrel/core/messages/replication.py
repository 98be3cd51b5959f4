"""Messages between a primary and its backups."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages.base import ReplicationMessage
from whimbrel.core.messages.transfer import CopyBase, Vector
from whimbrel.core.model import Standing


class ReplicaVersions(msgspec.Struct, frozen=True, array_like=True):
    """What the replica at ``index`` of a partition should hold, namespace by namespace."""

    partition_id: PartitionId
    partition_version: int
    index: ReplicaIndex
    vectors: dict[Namespace, Vector]


class VersionsTold(ReplicationMessage, frozen=True):
    """Primary to backup (AE-12): compare, prune what is not listed, ask for a sync if different."""

    replicas: tuple[ReplicaVersions, ...]


class DiskTold(ReplicationMessage, frozen=True):
    """The sender's disk takes nothing any more (``is_full``), or does again."""

    is_full: bool


class SyncRequested(ReplicationMessage, frozen=True):
    """Backup to primary: send these namespaces of a partition again.

    ``bases`` are those of them that the copy may be compared with.
    """

    sync_id: int
    partition_id: PartitionId
    partition_version: int
    index: ReplicaIndex
    namespaces: tuple[Namespace, ...]
    bases: tuple[CopyBase, ...] = ()


class SyncRefused(ReplicationMessage, frozen=True):
    """Primary to backup: not now (no permit, migrating) or not at all (not the primary) (AE-15)."""

    sync_id: int
    partition_id: PartitionId
    reason: str


class RefillRequested(ReplicationMessage, frozen=True):
    """A primary that has come back without data asks a backup for all it has of a partition.

    A part whose vector has no lineage is of a namespace that may lack something.
    """

    refill_id: int
    partition_id: PartitionId
    partition_version: int


class RefillRefused(ReplicationMessage, frozen=True):
    """Backup to returned primary: ``has_none`` when it has no data either, else not now."""

    refill_id: int
    partition_id: PartitionId
    has_none: bool


class StandingRequested(ReplicationMessage, frozen=True):
    """Former primary to a backup that has refused its write: are you in step with the new one?

    ``primary_since`` is the version of the row that made that one the primary.
    """

    partition_id: PartitionId
    primary_since: int


class StandingAnswered(ReplicationMessage, frozen=True):
    """The answer to one ``StandingRequested``."""

    partition_id: PartitionId
    primary_since: int
    standing: Standing
