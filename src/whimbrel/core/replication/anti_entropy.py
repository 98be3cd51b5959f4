"""Finding backups that differ from their primary (AE-12 to AE-22).

Primaries tell versions, backups compare. Knows when a replica is doubted and when a namespace is
pruned; how the difference is made good is in ``syncs``, what a vector or a fragment is in
``vectors`` and ``fragments``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import (
    ReplicaVersions,
    SyncRequested,
    Vector,
    VersionsTold,
)
from whimbrel.core.replication.doubts import ANNOUNCE, CONFIRM, CONFIRM_US
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.primary_recovery import PrimaryRecovery
from whimbrel.core.replication.syncs import Syncs
from whimbrel.core.replication.vectors import lineage_version, slot_of
from whimbrel.errors import SerializationError

ROUND_US: Final = 1_000_000
"""A slice of partitions is told once in this time; everything else is looked after too."""
CONFIRMS_MAX: Final = 64
"""Partitions asked for at one firing."""
GRACE_US: Final = 2_000_000
"""A backup that is behind what it was told may have the difference on the way; it is doubted when
this long has passed without any operation."""
ABSENT_US: Final = 5_000_000
"""A namespace goes when its primary left it out twice, this far apart, and nothing changed."""
VECTORS_MAX: Final = 300
"""Vectors in one VersionsTold message."""
ANNOUNCED_MAX: Final = 400
"""Partitions whose versions are told in one step; each costs some 5 us, and its receiver too."""

ROUND: Final = "replication.round"


class AntiEntropy:
    """Both sides of the comparison, for all partitions of a member."""

    def __init__(
        self, ctx: Context, holdings: Holdings, syncs: Syncs, recovery: PrimaryRecovery
    ) -> None:
        self._ctx = ctx
        self._partitions = holdings.partitions
        self._holdings = holdings
        self._doubts = holdings.doubts
        self._syncs = syncs
        self._recovery = recovery
        self._early: dict[PartitionId, tuple[MemberId, ReplicaVersions]] = {}
        self._cursor = 0

    def start(self) -> None:
        """Begin the periodic rounds; may be called again."""
        if not self._ctx.is_armed(ROUND):
            self._ctx.arm(ROUND, ROUND_US)

    # -- roles ----------------------------------------------------------------------------

    def role_taken(self, partition: PartitionReplica) -> None:
        """Our row changed.

        A backup is not known to be in step until the primary has told its versions, even when the
        primary is the same as before: it may have been another one for a while that we missed.
        Every primary tells them when its row changes.
        """
        if partition.index < 1:
            self._doubts.confirm(partition)
        else:
            self._doubts.unconfirm(partition)
        early = self._early.pop(partition.pid, None)
        if early is not None:
            self._told(*early)
        self._doubts.announce(partition)

    def compare_now(self) -> None:
        """Do not wait for the turn: tell all our versions, have those of our backups confirmed."""
        for partition in self._partitions:
            if partition.index < 1:
                self._doubts.announce(partition)
            else:
                self._doubts.unconfirm(partition)

    def link_restored(self, member: MemberId) -> None:
        """Say where we are to a member that missed something."""
        mine = [partition.pid for partition in self._partitions if partition.is_primary]
        self._tell(mine, only=member)

    def member_left(self, member: MemberId) -> None:
        """What a member that left has told before its time is not looked at."""
        for pid, (sender, _) in list(self._early.items()):
            if sender == member:
                del self._early[pid]

    # -- timers ---------------------------------------------------------------------------

    def on_timer(self, key: str) -> None:
        """One of our timers fired."""
        if key == ROUND:
            self._round()
            self._ctx.arm(ROUND, ROUND_US)
        elif key == ANNOUNCE:
            waiting = self._doubts.announced
            announced = list(itertools.islice(waiting, ANNOUNCED_MAX))
            for pid in announced:
                del waiting[pid]
            self._tell(announced)
            if waiting:
                self._ctx.arm(ANNOUNCE, 0)
        elif key == CONFIRM:
            self._ask_for_versions()
            if self._doubts.unconfirmed:
                self._ctx.arm(CONFIRM, 2 * CONFIRM_US)

    def _round(self) -> None:
        """What is looked after once a second."""
        self._settle_behind()
        self._tell(self._next_slice())
        self._look_again_for_absent()
        self._syncs.look_after()

    def _next_slice(self) -> list[PartitionId]:
        """The partitions whose turn it is: all of them once in backup_sync_interval (AE-12)."""
        partitions = self._partitions
        rounds = max(1, self._ctx.settings.backup_sync_interval_us // ROUND_US)
        size = -(-len(partitions) // rounds)
        first = self._cursor
        self._cursor = (first + size) % len(partitions)
        numbers = [(first + step) % len(partitions) for step in range(size)]
        return [PartitionId(number) for number in numbers if partitions[number].is_primary]

    def _settle_behind(self) -> None:
        """Doubt backups that still lack what their primary had a while ago."""
        before_us = self._ctx.now_us - GRACE_US
        behind = self._doubts.behind
        for fragment, (told, had, since_us) in list(behind.items()):
            if fragment.value >= told:
                del behind[fragment]
            elif fragment.value != had:
                behind[fragment] = (told, fragment.value, self._ctx.now_us)
            elif since_us <= before_us:
                del behind[fragment]
                self._doubts.mark_dirty(fragment, fragment.last_sound())

    def _ask_for_versions(self) -> None:
        """Ask the primaries of unconfirmed partitions; a request without namespaces means that."""
        unconfirmed = self._doubts.unconfirmed
        for pid in list(unconfirmed)[:CONFIRMS_MAX]:
            partition = self._partitions[pid]
            # The next firing looks at those that did not get their turn.
            del unconfirmed[pid]
            unconfirmed[pid] = None
            self._ask_primary(partition)

    def _look_again_for_absent(self) -> None:
        """Ask once more for what a primary left out some time ago, before it is pruned."""
        before_us = self._ctx.now_us - ABSENT_US
        absent = self._doubts.absent.items()
        due = dict.fromkeys(one.partition_id for one, seen in absent if seen[0] <= before_us)
        for pid in list(due)[:CONFIRMS_MAX]:
            self._ask_primary(self._partitions[pid])

    def _ask_primary(self, partition: PartitionReplica) -> None:
        primary, index = partition.primary, partition.index
        if primary is not None and index > 0 and self._syncs.is_up(primary):
            self._ctx.send(primary, SyncRequested(0, partition.pid, partition.version, index, ()))

    # -- telling versions -------------------------------------------------------------------

    def _tell(self, pids: Iterable[PartitionId], only: MemberId | None = None) -> None:
        """Tell the backups of these partitions our versions, one message or few per member."""
        waiting: dict[MemberId, list[ReplicaVersions]] = {}
        sizes: dict[MemberId, int] = {}
        for pid in pids:
            partition = self._partitions[pid]
            if not partition.is_primary:
                continue
            for index, member in partition.backups:
                if only is not None and member != only:
                    continue
                vectors = {
                    namespace: fragment.vector()
                    for namespace, fragment in partition.fragments.items()
                    if fragment.backup_count >= index
                }
                replica = ReplicaVersions(pid, partition.version, index, vectors)
                waiting.setdefault(member, []).append(replica)
                sizes[member] = sizes.get(member, 0) + 1 + len(vectors)
                if sizes[member] >= VECTORS_MAX:
                    self._ctx.send(member, VersionsTold(tuple(waiting.pop(member))))
                    del sizes[member]
        for member, replicas in waiting.items():
            self._ctx.send(member, VersionsTold(tuple(replicas)))

    def _told(self, sender: MemberId, replica: ReplicaVersions) -> None:
        """Compare with what a primary told (AE-12, AE-20 to AE-22)."""
        pid = replica.partition_id
        if not 0 <= pid < len(self._partitions):
            return
        partition = self._partitions[pid]
        if (
            partition.primary != sender
            or partition.index != replica.index
            or replica.partition_version < partition.primary_since
        ):
            # From a member that is not our primary nothing is believed (R2, bug 8); but it may be
            # right before our table is, so it is looked at again when the row comes.
            if replica.partition_version > partition.version:
                self._early[pid] = (sender, replica)
            return
        self._doubts.confirm(partition)
        for namespace, vector in replica.vectors.items():
            try:
                self._compare(partition, namespace, vector)
            except SerializationError:
                continue  # no service of ours keeps such a namespace
        for namespace, fragment in list(partition.fragments.items()):
            if namespace not in replica.vectors:
                self._left_out(partition, fragment)
        self._syncs.ask(partition)
        self._recovery.look(partition)

    def _compare(self, partition: PartitionReplica, namespace: Namespace, vector: Vector) -> None:
        """Doubt a namespace that differs; not only one that is behind (FN-9)."""
        slot = slot_of(partition.index)
        told = tuple(vector.counters)
        fragment = partition.fragments.get(namespace)
        if fragment is None:
            if not any(told[slot:]):
                return
            fragment = self._holdings.make(partition.pid, namespace)
            fragment.set_counters((0,) * len(told), slot)
            self._holdings.hold(partition, fragment)
        self._doubts.absent.pop(fragment, None)
        if lineage_version(vector.lineage) < lineage_version(fragment.lineage):
            return
        if fragment.lineage != vector.lineage:
            self._holdings.forget_heads()
            base = tuple(vector.base)
            if not fragment.meet_lineage(vector.lineage, vector.base_lineage, base, slot):
                self._doubts.mark_dirty(fragment, fragment.sound)
        if fragment.is_dirty:
            return
        own = fragment.counters()
        if fragment.value < told[slot]:
            # The operations may be on their way: they use another connection than this message.
            now = (told[slot], fragment.value, self._ctx.now_us)
            self._doubts.behind.setdefault(fragment, now)
        elif fragment.value == told[slot] and own[slot:] != told[slot:]:
            self._doubts.mark_dirty(fragment)

    def _left_out(self, partition: PartitionReplica, fragment: Fragment) -> None:
        """The primary does not have this namespace; it may have begun it a moment ago.

        Versions and operations travel apart, so a namespace is pruned only when it was left out
        twice and no operation came in between.
        """
        now_us = self._ctx.now_us
        seen = self._doubts.absent.get(fragment)
        if seen is None or seen[1:] != (fragment.lineage, fragment.value):
            self._doubts.absent[fragment] = (now_us, fragment.lineage, fragment.value)
        elif now_us - seen[0] >= ABSENT_US:
            self._holdings.discard(partition, fragment.namespace)

    # -- messages -------------------------------------------------------------------------

    def versions_told(self, sender: MemberId, message: VersionsTold) -> None:
        """A primary tells what its backups should have."""
        for replica in message.replicas:
            self._told(sender, replica)

    def sync_requested(self, sender: MemberId, request: SyncRequested) -> None:
        """A backup wants namespaces or, with none, our versions."""
        pid, index = request.partition_id, request.index
        if not 0 <= pid < len(self._partitions):
            return
        partition = self._partitions[pid]
        if not partition.is_primary:
            self._syncs.refuse(sender, request.sync_id, pid, "not the primary")
        elif (index, sender) not in partition.backups:
            self._syncs.refuse(sender, request.sync_id, pid, "not that replica")
        elif not request.namespaces:
            self._tell([pid], only=sender)
        else:
            self._syncs.give(partition, sender, request)
