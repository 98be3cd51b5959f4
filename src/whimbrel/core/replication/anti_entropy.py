"""Finding backups that differ from their primary and making them equal (AE-12 to AE-24).

Primaries tell versions, backups compare and ask, primaries answer in chunks. Knows when a replica
is doubted, how many syncs may run (permits) and when one is given up; what a vector or a fragment
is stands in ``vectors`` and ``fragments``.

Permits are counted from the syncs that exist, never in a number of their own: an entry that is
removed on any path gives its permits back (AE-16). Requests may use half of the limit at most, so
that members which ask one another have some left to answer with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from zlib import crc32

from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    ReplicaVersions,
    SyncAnswered,
    SyncRefused,
    SyncRequested,
    SyncSent,
    Vector,
    VersionsTold,
)
from whimbrel.core.replication.doubts import ANNOUNCE, CONFIRM, CONFIRM_US
from whimbrel.core.replication.fragments import (
    Fragment,
    FragmentExport,
    PartitionReplica,
    check_parts,
)
from whimbrel.core.replication.vectors import lineage_version, slot_of
from whimbrel.errors import SerializationError

if TYPE_CHECKING:
    from whimbrel.core.replication.dataplane import DataPlane

ROUND_US: Final = 1_000_000
"""A slice of partitions is told once in this time; everything else is looked after too."""
CONFIRMS_MAX: Final = 64
"""Partitions asked for at one firing."""
GRACE_US: Final = 2_000_000
"""A backup that is behind what it was told may have the difference on the way; it is doubted when
this long has passed without any operation."""
STALLED_US: Final = 1_000_000
"""Backups that are not acknowledged for this long count as not in step."""
ABSENT_US: Final = 5_000_000
"""A namespace goes when its primary left it out twice, this far apart, and nothing changed."""
SYNC_CALLS_MAX: Final = 5
"""A sync without progress for this many call timeouts is given up (AE-13)."""
ASKS_MAX: Final = 64
"""Partitions with dirty namespaces looked at in one round."""
VECTORS_MAX: Final = 300
"""Vectors in one VersionsTold message."""
ANNOUNCED_MAX: Final = 400
"""Partitions whose versions are told in one step; each costs some 5 us, and its receiver too."""
LOG_MAX: Final = 1_000
"""Operations remembered for one namespace between a request and its first answer."""

ROUND: Final = "replication.round"


class Sync:
    """A request of ours that is not answered to the end."""

    def __init__(
        self,
        number: int,
        partition: PartitionReplica,
        primary: MemberId,
        namespaces: tuple[Namespace, ...],
        now_us: int,
    ) -> None:
        self.number = number
        self.partition_id = partition.pid
        self.index = partition.index
        self.primary = primary
        self.namespaces = namespaces
        self.sequence = 0
        self.progress_us = now_us
        self.shadows: dict[Namespace, Fragment] = {}
        """Fragments being filled; operations are applied to them as well as to the old ones."""
        self.passed: dict[Namespace, list[tuple[int, int, bytes]]] = {}
        """(lineage, counter, operation) that came before the first answer."""


class Serve:
    """A request of another member that we are answering."""

    def __init__(
        self, member: MemberId, request: SyncRequested, export: FragmentExport, permits: int
    ) -> None:
        self.member = member
        self.number = request.sync_id
        self.partition_id = request.partition_id
        self.export = export
        self.permits = permits
        self.sequence = 0
        self.progress_us = 0


class AntiEntropy:
    """Both sides of the comparison, for all partitions of a member."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._ctx = plane.ctx
        self._doubts = plane.doubts
        self._holdings = plane.holdings
        self._down: dict[MemberId, None] = {}
        self._early: dict[PartitionId, tuple[MemberId, ReplicaVersions]] = {}
        self._syncs: dict[PartitionId, Sync] = {}
        self._serves: dict[tuple[MemberId, int], Serve] = {}
        self._tell_later: dict[MemberId, list[SyncRefused]] = {}
        self._not_before_us: dict[PartitionId, int] = {}
        self._cursor = 0
        self.counters: dict[str, int] = {
            "syncs_requested": 0,
            "syncs_completed": 0,
            "syncs_refused": 0,
            "syncs_timed_out": 0,
            "sync_bytes_sent": 0,
            "namespaces_pruned": 0,
        }

    # -- state ----------------------------------------------------------------------------

    @property
    def permits_requested(self) -> int:
        """Permits that our own requests hold."""
        return sum(len(sync.namespaces) for sync in self._syncs.values())

    @property
    def permits_served(self) -> int:
        """Permits that our answers hold."""
        return sum(serve.permits for serve in self._serves.values())

    def unsettled(self) -> int:
        """Dirty namespaces, unconfirmed partitions, syncs, and backups not answered for long."""
        stalled = self._plane.outgoing.stalled(self._ctx.now_us - STALLED_US)
        doubts = self._doubts
        return len(doubts.dirty) + len(doubts.unconfirmed) + len(self._syncs) + stalled

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
        for partition in self._plane.partitions:
            if partition.index < 1:
                self._doubts.announce(partition)
            else:
                self._doubts.unconfirm(partition)

    def cancel_partition(self, pid: PartitionId) -> None:
        """A row changed: syncs of the partition end, on both sides (facts 5.1)."""
        self._end(pid)
        for key, serve in list(self._serves.items()):
            if serve.partition_id == pid:
                del self._serves[key]
                self._refuse(serve.member, serve.number, pid, "the row changed")

    def link_lost(self, member: MemberId) -> None:
        """Parts of syncs with this member may be lost: they are begun anew later."""
        self._down[member] = None
        for pid, sync in list(self._syncs.items()):
            if sync.primary == member:
                self._end(pid)
        for key, serve in list(self._serves.items()):
            if serve.member == member:
                del self._serves[key]
                refused = SyncRefused(serve.number, serve.partition_id, "the link was lost")
                self._tell_later.setdefault(member, []).append(refused)

    def link_restored(self, member: MemberId) -> None:
        """Say what could not be said, and where we are, to a member that missed something."""
        self._down.pop(member, None)
        for refused in self._tell_later.pop(member, []):
            self._ctx.send(member, refused)
        self._tell(self._primaries_with(member), only=member)

    def member_left(self, member: MemberId) -> None:
        """Syncs with a member that left are over; permits come back with them."""
        self.link_lost(member)
        self._tell_later.pop(member, None)
        self._down.pop(member, None)
        for pid, (sender, _) in list(self._early.items()):
            if sender == member:
                del self._early[pid]

    def _primaries_with(self, member: MemberId) -> list[PartitionId]:
        return [
            partition.pid
            for partition in self._plane.partitions
            if partition.is_primary and any(other == member for _, other in partition.backups)
        ]

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
        self._give_up_syncs()
        self._settle_behind()
        self._tell(self._next_slice())
        self._look_again_for_absent()
        dirty = dict.fromkeys(fragment.partition_id for fragment in self._doubts.dirty)
        for pid in list(dirty)[:ASKS_MAX]:
            self.ask(self._plane.partitions[pid])

    def _next_slice(self) -> list[PartitionId]:
        """The partitions whose turn it is: all of them once in backup_sync_interval (AE-12)."""
        partitions = self._plane.partitions
        rounds = max(1, self._ctx.settings.backup_sync_interval_us // ROUND_US)
        size = -(-len(partitions) // rounds)
        first = self._cursor
        self._cursor = (first + size) % len(partitions)
        numbers = [(first + step) % len(partitions) for step in range(size)]
        return [PartitionId(number) for number in numbers if partitions[number].is_primary]

    def _give_up_syncs(self) -> None:
        """End syncs without progress; both sides do so by themselves (AE-13, AE-16)."""
        before_us = self._ctx.now_us - SYNC_CALLS_MAX * self._ctx.settings.call_timeout_us
        for pid, sync in list(self._syncs.items()):
            if sync.progress_us < before_us:
                self._end(pid)
                self.counters["syncs_timed_out"] += 1
        for key, serve in list(self._serves.items()):
            if serve.progress_us < before_us:
                del self._serves[key]

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
                self._doubts.mark_dirty(fragment)

    def _ask_for_versions(self) -> None:
        """Ask the primaries of unconfirmed partitions; a request without namespaces means that."""
        unconfirmed = self._doubts.unconfirmed
        for pid in list(unconfirmed)[:CONFIRMS_MAX]:
            partition = self._plane.partitions[pid]
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
            self._ask_primary(self._plane.partitions[pid])

    def _ask_primary(self, partition: PartitionReplica) -> None:
        primary, index = partition.primary, partition.index
        if primary is None or index < 1 or not self._ctx.is_member(primary):
            return
        if primary not in self._down:
            self._ctx.send(primary, SyncRequested(0, partition.pid, partition.version, index, ()))

    # -- telling versions -------------------------------------------------------------------

    def _tell(self, pids: Iterable[PartitionId], only: MemberId | None = None) -> None:
        """Tell the backups of these partitions our versions, one message or few per member."""
        waiting: dict[MemberId, list[ReplicaVersions]] = {}
        sizes: dict[MemberId, int] = {}
        for pid in pids:
            partition = self._plane.partitions[pid]
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
        if not 0 <= pid < len(self._plane.partitions):
            return
        partition = self._plane.partitions[pid]
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
        self.ask(partition)
        self._plane.refills.look(partition)

    def _compare(self, partition: PartitionReplica, namespace: Namespace, vector: Vector) -> None:
        """Doubt a namespace that differs; not only one that is behind (facts 5.1)."""
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
                self._doubts.mark_dirty(fragment)
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
            self.counters["namespaces_pruned"] += 1

    # -- the backup's side ------------------------------------------------------------------

    def ask(self, partition: PartitionReplica) -> None:
        """Ask for all dirty namespaces of a partition in one request, if the guards allow it.

        One request in flight per partition (AE-13), half of the permits for requests (AE-14).
        """
        ctx, pid = self._ctx, partition.pid
        primary = partition.primary
        if pid in self._syncs or partition.index < 1 or primary is None:
            return
        if ctx.now_us < self._not_before_us.get(pid, 0) or not ctx.is_member(primary):
            return
        if primary in self._down:
            return
        half = -(-ctx.settings.replication_max_parallel // 2)
        free = min(half - self.permits_requested, self._free_permits())
        namespaces = [ns for ns, fragment in partition.fragments.items() if fragment.is_dirty]
        if free <= 0 or not namespaces:
            return
        wanted = tuple(namespaces[:free])
        sync = Sync(ctx.next_number(), partition, primary, wanted, ctx.now_us)
        self._syncs[pid] = sync
        self._not_before_us.pop(pid, None)
        self.counters["syncs_requested"] += 1
        version, index = partition.version, partition.index
        ctx.send(primary, SyncRequested(sync.number, pid, version, index, wanted))

    def passed_by(self, fragment: Fragment, counter: int, operation: bytes) -> None:
        """A backup operation came for a dirty namespace: attempt a sync (AE-08).

        While one is under way the operation is kept for, or applied to, the fragment to come.
        """
        sync = self._syncs.get(fragment.partition_id)
        if sync is None:
            self.ask(self._plane.partitions[fragment.partition_id])
        elif fragment.namespace in sync.shadows:
            shadow = sync.shadows[fragment.namespace]
            self._apply_to_shadow(shadow, fragment.lineage, counter, operation)
        elif fragment.namespace in sync.namespaces:
            passed = sync.passed.setdefault(fragment.namespace, [])
            # When the log is full the gap is seen later and the namespace is asked for again.
            if len(passed) < LOG_MAX:
                passed.append((fragment.lineage, counter, operation))

    @staticmethod
    def _apply_to_shadow(shadow: Fragment, lineage: int, counter: int, operation: bytes) -> None:
        if lineage != shadow.lineage:
            shadow.is_dirty = True
        elif counter > shadow.value:
            shadow.store.apply(operation, 0, len(operation))
            if counter != shadow.value + 1:
                shadow.is_dirty = True
            shadow.value = counter

    def _sync_sent(self, sender: MemberId, message: SyncSent) -> None:
        """Parts of an answer to us."""
        sync = self._syncs.get(message.partition_id)
        partition = None
        if sync is not None and sync.number == message.sync_id and sync.primary == sender:
            partition = self._plane.partitions[message.partition_id]
        if sync is None or partition is None or partition.primary != sender:
            self._ctx.send(sender, SyncAnswered(message.sync_id, message.sequence, False))
            return
        if message.sequence == sync.sequence + 1:
            sync.sequence = message.sequence
            sync.progress_us = self._ctx.now_us
            try:
                check_parts(message.parts)
                for part in message.parts:
                    self._take_part(sync, partition, part)
            except SerializationError as error:
                self._end(sync.partition_id)
                self._postpone(sync.partition_id)
                self._ctx.note("sync_damaged", "warning", partition=sync.partition_id,
                               problem=str(error))  # fmt: skip
                self._ctx.send(sender, SyncAnswered(message.sync_id, message.sequence, False))
                return
            if message.last:
                self._end(sync.partition_id)
                self.counters["syncs_completed"] += 1
                if any(fragment.is_dirty for fragment in partition.fragments.values()):
                    self._postpone(sync.partition_id)
                self._plane.refills.look(partition)
        self._ctx.send(sender, SyncAnswered(message.sync_id, message.sequence, True))

    def _take_part(self, sync: Sync, partition: PartitionReplica, part: FragmentPart) -> None:
        """Fill the fragment to come; when it is complete it replaces the old one (AE-24)."""
        namespace = part.namespace
        if part.first:
            former = sync.shadows.pop(namespace, None)
            if former is not None:
                self._holdings.free(former)
            shadow = self._holdings.make(partition.pid, namespace, part)
            shadow.install(part.vector, sync.index)
            sync.shadows[namespace] = shadow
        found = sync.shadows.get(namespace)
        if found is None:
            raise SerializationError(f"a piece of {namespace} came before its first piece")
        found.store.ingest_chunk(part.data)
        if part.first:
            for lineage, counter, operation in sync.passed.pop(namespace, ()):
                self._apply_to_shadow(found, lineage, counter, operation)
        if part.last:
            del sync.shadows[namespace]
            self._plane.refills.end_serving(partition.pid)
            if self._holdings.hold(partition, found) and found.is_dirty:
                self._doubts.mark_dirty(found)

    def _sync_refused(self, sender: MemberId, message: SyncRefused) -> None:
        """Not now: the permits are free at once, the request is made again later (AE-15)."""
        sync = self._syncs.get(message.partition_id)
        if sync is not None and sync.number == message.sync_id and sync.primary == sender:
            self._end(message.partition_id)
            self.counters["syncs_refused"] += 1
            self._postpone(message.partition_id)

    def _end(self, pid: PartitionId) -> None:
        """A request of ours is over: its permits are free, what it has not finished goes."""
        sync = self._syncs.pop(pid, None)
        for shadow in () if sync is None else sync.shadows.values():
            self._holdings.free(shadow)

    def _postpone(self, pid: PartitionId) -> None:
        """Do not ask again at once; how long differs from member to member and from try to try.

        Two members that refuse one another for want of permits must not try in step for ever.
        """
        salt = f"{self._ctx.id}/{pid}/{self._ctx.now_us}".encode()
        self._not_before_us[pid] = self._ctx.now_us + ROUND_US // 2 + crc32(salt) % ROUND_US

    # -- the primary's side -----------------------------------------------------------------

    def on_message(self, sender: MemberId, message: Message) -> None:
        """A message of the replication part."""
        if isinstance(message, VersionsTold):
            for replica in message.replicas:
                self._told(sender, replica)
        elif isinstance(message, SyncSent):
            self._sync_sent(sender, message)
        elif isinstance(message, SyncAnswered):
            self._sync_answered(sender, message)
        elif isinstance(message, SyncRequested):
            self._sync_requested(sender, message)
        elif isinstance(message, SyncRefused):
            self._sync_refused(sender, message)

    def _sync_requested(self, sender: MemberId, request: SyncRequested) -> None:
        """Answer, or refuse and keep no trace (AE-15)."""
        pid, index = request.partition_id, request.index
        if not 0 <= pid < len(self._plane.partitions):
            return
        partition = self._plane.partitions[pid]
        if not partition.is_primary:
            self._refuse(sender, request.sync_id, pid, "not the primary")
        elif (index, sender) not in partition.backups:
            self._refuse(sender, request.sync_id, pid, "not that replica")
        elif not request.namespaces:
            self._tell([pid], only=sender)
        elif (sender, request.sync_id) not in self._serves:
            self._begin_serving(partition, sender, request)

    def _begin_serving(
        self, partition: PartitionReplica, sender: MemberId, request: SyncRequested
    ) -> None:
        fragments = [
            partition.fragments[namespace]
            for namespace in request.namespaces
            if namespace in partition.fragments
            and partition.fragments[namespace].backup_count >= request.index
        ]
        if self._ctx.id > sender:
            self._yield_permits(len(fragments))
        free = self._free_permits()
        if partition.migrating:
            self._refuse(sender, request.sync_id, partition.pid, "migrating")
        elif len(fragments) > free:
            self._refuse(sender, request.sync_id, partition.pid, "no permit")
        else:
            export = FragmentExport(fragments)
            serve = Serve(sender, request, export, len(fragments))
            self._serves[(sender, request.sync_id)] = serve
            self._send_next(serve)

    def _free_permits(self) -> int:
        limit = self._ctx.settings.replication_max_parallel
        return limit - self.permits_requested - self.permits_served

    def _yield_permits(self, wanted: int) -> None:
        """Give up requests of ours that were not answered yet, to answer a member before us.

        Members that spend all permits on asking one another would refuse each other for ever; in
        every such circle somebody is asked by a member with a smaller id.
        """
        for pid, sync in list(self._syncs.items()):
            if self._free_permits() >= wanted:
                return
            if sync.sequence == 0:
                self._end(pid)
                self._postpone(pid)

    def _refuse(self, member: MemberId, number: int, pid: PartitionId, reason: str) -> None:
        if number:
            self._ctx.send(member, SyncRefused(number, pid, reason))

    def _send_next(self, serve: Serve) -> None:
        """Send the next chunk: one is in flight, so memory stays bounded."""
        parts, last = serve.export.next_parts(self._ctx.settings.migration_chunk_bytes_max)
        serve.sequence += 1
        serve.progress_us = self._ctx.now_us
        self.counters["sync_bytes_sent"] += sum(len(part.data) for part in parts)
        message = SyncSent(serve.number, serve.partition_id, serve.sequence, parts, last)
        self._ctx.send(serve.member, message)

    def _sync_answered(self, sender: MemberId, answer: SyncAnswered) -> None:
        serve = self._serves.get((sender, answer.sync_id))
        if serve is None:
            return
        if not answer.success:
            del self._serves[(sender, answer.sync_id)]
        elif answer.sequence == serve.sequence:
            if serve.export.done:
                del self._serves[(sender, answer.sync_id)]
            else:
                self._send_next(serve)
