"""Writes that have fewer copies than they should: counted, or refused where that is asked for.

A fragment is *short* while fewer of its synchronous backups are there than ``min(b, data members
- 1)``: its partition's copies are due, or its places do not allow them. What is written meanwhile
is counted by the fragment's own version, which every change raises, so that no write pays for it.
``KIND.PATTERN.min_in_sync`` refuses writes with fewer backups than that. There is whoever stands in
the row and on the member list: a backup that is dirty lacks something older, applies this write
all the same and acknowledges it.
"""

from __future__ import annotations

from collections import Counter

from whimbrel.core.context import Context
from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.replication.fragments import NOT_SHORT, Fragment, PartitionReplica
from whimbrel.core.replication.outbox import Outbox
from whimbrel.errors import RetryableError


class Shortage:
    """Which of our partitions have too few backups, and what was written to them.

    Attributes:
        lacking: Our partitions with fewer backups than some ``min_in_sync``: writes to them must
            ask ``admit``.
        backups_possible: Backups that each row could have with the data members there are and
            those whose seats are kept.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._least = max((entry.min_in_sync for entry in ctx.settings.partitioned()), default=0)
        self._by_namespace: dict[Namespace, int] = {}
        self._total = 0
        self._short: dict[Fragment, None] = {}
        """Fragments of ours that are short now."""
        self.lacking: dict[PartitionId, None] = {}
        self.backups_possible = 0

    # -- counting -------------------------------------------------------------------------

    def members_changed(self) -> bool:
        """A member list was installed; returns whether each of our partitions is to be looked at.

        A member that is away and keeps its seat counts: its copy is due.
        """
        members = self._ctx.members
        seats = members.seats_kept
        away = [info for info in seats if members.get(info.id) is None and not info.lite]
        before = self.backups_possible
        self.backups_possible = max(0, len(self._ctx.data_members()) + len(away) - 1)
        return self.backups_possible != before

    def look(self, partition: PartitionReplica) -> None:
        """The backups of a partition of ours, or how many there could be, have changed."""
        for fragment in partition.fragments.values():
            self.close_fragment(fragment)
            if len(fragment.sync_targets) < min(fragment.sync_count, self.backups_possible):
                fragment.short_from = fragment.value
                self._short[fragment] = None
        if self._least and _there(partition, self._least) < self._least:
            self.lacking[partition.pid] = None
        else:
            self.lacking.pop(partition.pid, None)

    def close(self, partition: PartitionReplica) -> None:
        """We cease to be the primary, or what we hold is about to change."""
        for fragment in partition.fragments.values():
            self.close_fragment(fragment)
        self.lacking.pop(partition.pid, None)

    def close_fragment(self, fragment: Fragment) -> None:
        """The fragment goes, or is ours no longer."""
        if fragment.short_from != NOT_SHORT:
            self._book(fragment)
            fragment.short_from = NOT_SHORT
            del self._short[fragment]

    def forget(self, namespace: Namespace) -> None:
        """The structure is destroyed: another one of its name begins at zero."""
        self._by_namespace.pop(namespace, None)

    def lost_on_the_way(self, outbox: Outbox, heads: Counter[Fragment]) -> None:
        """A backup is off the list: what it has not acknowledged counts as backed up without it."""
        for fragment, count in heads.items():
            needed = min(fragment.sync_count, self.backups_possible)
            if fragment.short_from == NOT_SHORT and outbox in fragment.sync_targets:
                is_short = len(fragment.sync_targets) - 1 < needed
                self._add(fragment.namespace, count if is_short else 0)

    def _book(self, fragment: Fragment) -> None:
        self._add(fragment.namespace, fragment.value - fragment.short_from)
        fragment.short_from = fragment.value

    def _add(self, namespace: Namespace, count: int) -> None:
        if count > 0:
            self._by_namespace[namespace] = self._by_namespace.get(namespace, 0) + count
            self._total += count

    def counts(self) -> dict[Namespace, int]:
        """Changes that were made here with too few backups, by live namespace."""
        self._book_all()
        return self._by_namespace

    @property
    def total(self) -> int:
        """The same of all structures since the start, destroyed ones included."""
        self._book_all()
        return self._total

    def _book_all(self) -> None:
        for fragment in self._short:
            self._book(fragment)

    # -- refusing -------------------------------------------------------------------------

    def admits(self, partition: PartitionReplica, namespace: Namespace) -> bool:
        """Whether a structure may be written in a partition of ours."""
        return not self._refusal(partition, namespace)

    def admit(self, partition: PartitionReplica, namespace: Namespace) -> None:
        """Refuse a write to a structure, before it has any effect, while too few backups are there.

        Raises:
            RetryableError: Fewer than its ``min_in_sync``.
        """
        refusal = self._refusal(partition, namespace)
        if refusal:
            raise RetryableError(refusal, reason="min_in_sync")

    def _refusal(self, partition: PartitionReplica, namespace: Namespace) -> str:
        if partition.pid not in self.lacking:
            return ""
        settings = self._ctx.settings.structure_of(namespace)
        there = _there(partition, settings.backup_count)
        if there >= settings.min_in_sync:
            return ""
        return (
            f"the write is refused: partition {partition.pid} has {there} synchronous backups now, "
            f"{settings.kind}.{settings.pattern}.min_in_sync asks for {settings.min_in_sync}; "
            "try again when the missing copies are there"
        )


def _there(partition: PartitionReplica, index_max: int) -> int:
    """Backups of a partition of ours at an index up to this one."""
    return sum(index <= index_max for index, _ in partition.backups)
