"""What a kind of structure is to the core, which knows none of them by name.

Which kinds there are is the affair of ``whimbrel.structures``; a member is given them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from whimbrel.core.context import Context
from whimbrel.core.ids import Namespace, PartitionId, split_namespace
from whimbrel.core.messages import MergeCounts
from whimbrel.core.partition.hashing import partition_of_name
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import PartitionReplica, Store
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.settings import CoreSettings, PartitionedSettings, StructureSettings


class StructureService(ABC):
    """All structures of one kind of one member, as far as they lie in partitions.

    Calls of clients are methods of the subclass; here is what the core asks of every kind.
    """

    kind_name: ClassVar[str]
    """The first part of the namespaces of its structures."""

    def __init__(self, plane: DataPlane) -> None:
        """Keep fragments in the member's partitions from now on."""
        self._ctx = plane.ctx
        self._holdings = plane.holdings
        self._outgoing = plane.outgoing
        self._events = plane.events
        self._holdings.register(self.kind_name, self.new_store)

    @abstractmethod
    def new_store(self, namespace: Namespace) -> Store:
        """An empty store for a structure."""

    @abstractmethod
    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """Merge a chunk of ``leftover_chunk`` that a part of a split cluster held.

        Args:
            partition: Ours and writable; however few backups it has, nothing is refused.
            namespace: The structure, which exists.
            chunk: Damaged bytes end it; what comes before the damage counts.
            reply: Waits for the backups of all changes.

        Returns:
            What became of the entries that could be read.
        """

    def leftover_chunk(self, store: Store, cursor: Any, bytes_max: int) -> tuple[bytes, int]:
        """The next entries of a store that nobody writes to any more, and how many they are.

        Together with ``merge`` the form is the kind's own; it may have more than copies need.
        """
        chunk, entries, _ = store.export(cursor, bytes_max)
        return chunk, entries

    def restore(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        """As ``merge``, of a chunk from a backup: what is there stays, the rest is added."""
        return self.merge(partition, namespace, chunk, reply)

    def split(
        self, namespace: Namespace, chunk: bytes, entries: int, partition_count: int
    ) -> list[tuple[PartitionId, bytes, int]]:
        """A chunk of ``leftover_chunk`` by the partitions of a cluster with so many of them.

        Here for kinds whose structures lie in one partition each.

        Returns:
            Partition, chunk and entries of each piece.
        """
        return [(partition_of_name(split_namespace(namespace)[1], partition_count), chunk, entries)]

    def size(self, partition: PartitionReplica, namespace: Namespace) -> int:
        """Entries of a structure in a partition, as its clients count them."""
        fragment = partition.fragments.get(namespace)
        return 0 if fragment is None else len(fragment.store)

    def sweep(self, wall_ms: int, budget: int) -> int:
        """Time has passed: remove at most ``budget`` entries whose time is over; how many."""
        return 0

    def destroyed(self, namespace: Namespace) -> None:
        """A structure was destroyed: forget what is remembered of it beside its fragments."""
        return


def note_damaged(ctx: Context, namespace: Namespace, problem: Exception) -> None:
    """Say that a chunk of a leftover ends in damage; what stands before it has been merged."""
    kind, name = split_namespace(namespace)
    ctx.note("split_brain.damaged", "error", **{kind: name}, problem=str(problem))


@dataclass(frozen=True, kw_only=True)
class StructureKind:
    """One kind of structure.

    Attributes:
        name: As in namespaces, in the registry and in the configuration: ``map``.
        service_name: As clients name it: ``hz:impl:mapService``.
        settings_type: Settings of its structures; ``PartitionedSettings`` if they have backups.
        make_service: None for a kind that holds nothing in partitions.
    """

    name: str
    service_name: str
    settings_type: type[StructureSettings]
    make_service: Callable[[DataPlane], StructureService] | None

    def backup_counts(self, settings: CoreSettings, name: str) -> tuple[int, int]:
        """(sync, async) backups of a structure of this kind."""
        found = settings.structure(self.settings_type, name)
        if isinstance(found, PartitionedSettings):
            return found.backup_count, found.async_backup_count
        return 0, 0
