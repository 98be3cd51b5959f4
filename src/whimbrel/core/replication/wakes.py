"""What has changed in this turn that somebody may be waiting for (docs/design/0015).

Services say it, whoever keeps those who wait takes it once per turn. Said twice in a turn it counts
once, so whoever is served and leaves something for the next one says it again.
"""

from __future__ import annotations

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.replication.fragments import PartitionReplica

Awaited = tuple[PartitionId, Namespace, bytes]
"""What may be waited for: something that a structure calls by a key, in one partition."""


class Wakes:
    """The changes of one member, in order."""

    def __init__(self) -> None:
        self.pending: dict[Awaited, None] = {}
        """Empty in nearly every turn."""

    def wake(self, partition: PartitionReplica, namespace: Namespace, key: bytes) -> None:
        """Whoever has waited longest for this may find it now."""
        self.pending[partition.pid, namespace, key] = None

    def take(self) -> list[Awaited]:
        """What was said since the last take."""
        taken = list(self.pending)
        self.pending.clear()
        return taken
