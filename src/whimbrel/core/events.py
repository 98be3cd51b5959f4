"""What listeners are told: plain values that also travel between members.

Migration processes and lost partitions are told by the master that decides them (PIM-58, FN-16),
membership and state by each member from its own list. ``PartitionMigrationEvent`` is for services
and tests on the member concerned (ADL-71).
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, ReplicaIndex
from whimbrel.core.model import ClusterState, MemberInfo, MigrationInfo


class GridEvent(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything that listeners are told."""


class MigrationState(msgspec.Struct, frozen=True, array_like=True):
    """How far a process is: migrations planned together, promotions, or new empty primaries."""

    started_ms: int
    """Wall clock of the master when it began."""
    planned: int
    completed: int
    failed: int
    elapsed_ms: int

    @property
    def remaining(self) -> int:
        """Planned and neither completed nor failed (PIM-21)."""
        return self.planned - self.completed - self.failed


class MigrationStarted(GridEvent, frozen=True):
    """A process begins. The end may never be told when the master dies."""

    state: MigrationState


class MigrationFinished(GridEvent, frozen=True):
    """Nothing of a process runs any more; it may have completed fewer than planned."""

    state: MigrationState


class ReplicaMigrated(GridEvent, frozen=True):
    """One replica of a process is decided; all replica indexes are told, not the primary's alone.

    ``source`` is the member that is displaced, None when there is none.
    """

    state: MigrationState
    partition_id: PartitionId
    replica_index: ReplicaIndex
    source: MemberId | None
    destination: MemberId | None
    success: bool
    elapsed_ms: int


class PartitionLost(GridEvent, frozen=True):
    """A primary is lost, and so many of its backups with it: 0 when only the primary died.

    6 means that no replica is left (ADL-05). ``source`` is the member that tells it.
    """

    partition_id: PartitionId
    lost_backup_count: int
    source: MemberId
    version: int = 0
    """Of the partition's loss, which another master may tell again; 0 when no data are lost."""


class MemberAdded(GridEvent, frozen=True):
    """A member is on the list."""

    member: MemberInfo


class MemberRemoved(GridEvent, frozen=True):
    """A member is off the list."""

    member: MemberInfo


class MemberChanged(GridEvent, frozen=True):
    """A member stays and is another: promoted or demoted."""

    member: MemberInfo


class StateChanged(GridEvent, frozen=True):
    """The cluster state is another one."""

    before: ClusterState
    state: ClusterState


MigrationEvent = MigrationStarted | MigrationFinished | ReplicaMigrated
MembershipEvent = MemberAdded | MemberRemoved | MemberChanged
TRAVELLING = MigrationStarted | MigrationFinished | ReplicaMigrated | PartitionLost
"""What the master tells the other members."""


class Endpoint(enum.StrEnum):
    """On which side of a migration something happens."""

    MASTER = "MASTER"
    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"


class Moment(enum.StrEnum):
    """What happens to a migration or promotion at an endpoint.

    START and COMPLETE are the master's; each BEFORE of a participant is followed by exactly one
    COMMIT or ROLLBACK (ADL-72).
    """

    START = "START"
    COMPLETE = "COMPLETE"
    BEFORE = "BEFORE"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class PartitionMigrationEvent(msgspec.Struct, frozen=True):
    """One partition changes hands as one endpoint sees it (ADL-71).

    The indexes are the endpoint's own, 0 to 6; -1 when it holds no replica before or after. The
    master's are those of the destination.
    """

    endpoint: Endpoint
    partition_id: PartitionId
    current_replica_index: ReplicaIndex
    new_replica_index: ReplicaIndex


Hook = Callable[[Moment, PartitionMigrationEvent], None]
"""Called at every moment of every migration a member has to do with; for services and tests."""


def event_of(migration: MigrationInfo, endpoint: Endpoint, me: MemberId) -> PartitionMigrationEvent:
    """What an endpoint sees of a migration (ADL-71).

    A primary that is only the source of the data of a backup keeps its index 0.
    """
    step = migration.step
    current, new = step.destination_current, step.destination_new
    if endpoint is Endpoint.SOURCE:
        is_displaced = step.source == me
        current = step.source_current if is_displaced else ReplicaIndex(0)
        new = step.source_new if is_displaced else ReplicaIndex(0)
    return PartitionMigrationEvent(endpoint, migration.partition_id, current, new)


def event_of_row(
    partition_id: PartitionId, before: ReplicaIndex, after: ReplicaIndex
) -> PartitionMigrationEvent | None:
    """What a member sees that takes no part: a promoted or a former backup; None: no change."""
    if before == after:
        return None
    gains = before == NO_INDEX or NO_INDEX < after < before
    endpoint = Endpoint.DESTINATION if gains else Endpoint.SOURCE
    return PartitionMigrationEvent(endpoint, partition_id, before, after)
