"""How many entries went with a lost partition: what its primary told the master last.

Each heartbeat to the master counts some of the sender's partitions, all of them in turn; it costs
the data path nothing and is a little old. What no primary has told is not known: the count goes
with the master and is told to the next one anew (docs/design/0014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import Census
from whimbrel.core.replication.fragments import PartitionReplica

FRAGMENTS_MAX: Final = 1_000
"""Fragments after which a heartbeat counts no further partition, some 0.2 ms and 10 kB."""
PARTITIONS_MAX: Final = 2_000
"""Partitions that are looked at for one heartbeat."""


class EntryCounts:
    """Both sides: what we tell as primary, and what we were told as master."""

    def __init__(self, ctx: Context, partitions: Sequence[PartitionReplica]) -> None:
        self._ctx = ctx
        self._partitions = partitions
        self._next = 0
        self._told: dict[PartitionId, tuple[int, dict[Namespace, int]]] = {}
        """Wall clock of the telling, and the entries of what was not empty."""

    # -- the primary ----------------------------------------------------------------------

    def make(self) -> Census | None:
        """The next partitions of ours; None when none of those looked at is."""
        positions: dict[Namespace, int] = {}
        entries: dict[PartitionId, dict[int, int]] = {}
        fragments = 0
        for _ in range(min(PARTITIONS_MAX, len(self._partitions))):
            partition = self._partitions[self._next]
            self._next = (self._next + 1) % len(self._partitions)
            if not partition.is_primary:
                continue
            held = entries[partition.pid] = {}
            for namespace, fragment in partition.fragments.items():
                if len(fragment.store):
                    held[positions.setdefault(namespace, len(positions))] = len(fragment.store)
            fragments += len(held)
            if fragments >= FRAGMENTS_MAX:
                break
        return Census(tuple(positions), entries) if entries else None

    # -- the master -----------------------------------------------------------------------

    def take(self, sender: MemberId, census: Census) -> None:
        """What a primary tells; whoever is not the primary in our table is not believed."""
        names = census.namespaces
        for pid, held in census.entries.items():
            if 0 <= pid < len(self._partitions) and self._partitions[pid].row[0] == sender:
                counts = {names[at]: count for at, count in held.items() if 0 <= at < len(names)}
                self._told[pid] = (self._ctx.wall_ms, counts)

    def last_told(self, pid: PartitionId, namespace: Namespace) -> tuple[int | None, int | None]:
        """Entries and the wall clock of their telling; both None when nobody has told them."""
        told = self._told.get(pid)
        return (None, None) if told is None else (told[1].get(namespace, 0), told[0])

    def forget(self) -> None:
        """Another member is the master: what we were told grows old."""
        self._told.clear()
