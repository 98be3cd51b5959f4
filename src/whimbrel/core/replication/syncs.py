"""Syncs: a backup asks its primary for namespaces that may lack something, and gets them anew.

What it holds is the base of the copy: where that pays only the difference is sent (APR-53).

Permits are counted from the syncs that exist, never in a number of their own: an entry that is
removed on any path gives its permits back (AE-16). Requests may use half of the limit at most, so
that members which ask one another have some left to answer with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import (
    FragmentPart,
    Progress,
    Purpose,
    SyncRefused,
    SyncRequested,
    TransferSent,
)
from whimbrel.core.replication.comparison import base_of
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.primary_recovery import PrimaryRecovery
from whimbrel.core.replication.transfer import (
    Asked,
    Exchange,
    FragmentExport,
    Shadows,
    refuse_older,
)

PAUSE_US: Final = 1_000_000
"""What was refused is not asked for again for half of this and up to as much more."""
ASKS_MAX: Final = 64
"""Partitions with dirty namespaces looked at in one round."""
LOG_MAX: Final = 1_000
"""Operations remembered for one namespace between a request and its first answer; more end it."""


class Syncs:
    """Both sides of all syncs of a member."""

    def __init__(self, ctx: Context, holdings: Holdings, recovery: PrimaryRecovery) -> None:
        self._ctx = ctx
        self._holdings = holdings
        self._doubts = holdings.doubts
        self._recovery = recovery
        self.exchange = Exchange(ctx, Purpose.SYNC)
        self._down: dict[MemberId, list[SyncRefused]] = {}
        """Members without a link, and what is to be said to them when there is one."""
        self._not_before_us: dict[PartitionId, int] = {}
        names = ("syncs_requested", "syncs_completed", "syncs_refused", "syncs_timed_out")
        self.counters = dict.fromkeys(names, 0)

    @property
    def permits_requested(self) -> int:
        """Permits that our own requests hold."""
        return sum(len(sync.doubted) for sync in self.exchange.asked.values())

    @property
    def permits_served(self) -> int:
        """Permits that our answers hold."""
        return sum(sending.weight for sending in self.exchange.given.values())

    def is_up(self, member: MemberId) -> bool:
        """Whether a member can be asked."""
        return member not in self._down and self._ctx.is_member(member)

    # -- ends -----------------------------------------------------------------------------

    def row_changed(self, pid: PartitionId) -> None:
        """A row changed: syncs of the partition end, on both sides (FN-9)."""
        self.exchange.end_asked(pid)
        for ended in self.exchange.end_given(lambda sending: sending.partition_id == pid):
            self.refuse(*ended, "the row changed")

    def link_lost(self, member: MemberId) -> None:
        """Parts of syncs with this member may be lost: they are begun anew later."""
        refused = self._down.setdefault(member, [])
        for _, number, pid in self.exchange.link_lost(member):
            refused.append(SyncRefused(number, pid, "the link was lost"))

    def link_restored(self, member: MemberId) -> None:
        """Say what could not be said."""
        for refused in self._down.pop(member, ()):
            self._ctx.send(member, refused)

    def member_left(self, member: MemberId) -> None:
        """Syncs with a member that left are over; permits come back with them."""
        self.link_lost(member)
        del self._down[member]

    def look_after(self) -> None:
        """Give up what makes no progress, and ask for what is dirty; once in a while."""
        self.counters["syncs_timed_out"] += self.exchange.give_up_silent()
        dirty = dict.fromkeys(fragment.partition_id for fragment in self._doubts.dirty)
        for pid in list(dirty)[:ASKS_MAX]:
            self.ask(self._holdings.partitions[pid])

    # -- the backup's side ----------------------------------------------------------------

    def ask(self, partition: PartitionReplica) -> None:
        """Ask for all dirty namespaces of a partition in one request, if the guards allow it.

        One request in flight per partition (AE-13), half of the permits for requests (AE-14).
        """
        ctx, pid = self._ctx, partition.pid
        primary = partition.primary
        if pid in self.exchange.asked or partition.index < 1 or primary is None:
            return
        if ctx.now_us < self._not_before_us.get(pid, 0) or not self.is_up(primary):
            return
        half = -(-ctx.settings.replication_max_parallel // 2)
        free = min(half - self.permits_requested, self._free_permits())
        namespaces = [ns for ns, fragment in partition.fragments.items() if fragment.is_dirty]
        if free <= 0 or not namespaces:
            return
        wanted = tuple(namespaces[:free])
        doubted = {namespace: partition.fragments[namespace] for namespace in wanted}

        def find_base(namespace: Namespace) -> Fragment | None:
            held = partition.fragments.get(namespace)
            return held if held is doubted.get(namespace) else None

        shadows = Shadows(self._holdings, pid, partition.index, find_base)
        sync = self.exchange.asked[pid] = Asked(ctx, primary, shadows, doubted)
        self._not_before_us.pop(pid, None)
        self.counters["syncs_requested"] += 1
        named = (sync.number, pid, partition.version, partition.index, wanted)
        found = [base_of(fragment, is_trusted=False) for fragment in doubted.values()]
        bases = tuple(base for base in found if base is not None)
        ctx.send(primary, SyncRequested(*named, bases))

    def passed_by(self, fragment: Fragment, counter: int, operation: bytes) -> None:
        """A backup operation came for a dirty namespace: attempt a sync (AE-08).

        While one is under way the operation is kept for, or applied to, the fragment to come. It
        must not be without one: what we hold has it, and what has been acknowledged stays.
        """
        pid, namespace = fragment.partition_id, fragment.namespace
        sync = self.exchange.asked.get(pid)
        if sync is None:
            self.ask(self._holdings.partitions[pid])
        elif sync.doubted.get(namespace) is not fragment:
            return
        elif namespace in sync.shadows.arriving:
            shadow = sync.shadows.arriving[namespace]
            if counter <= shadow.value and namespace in sync.shadows.filled:
                # Too late, so it was held up: what the shadow has from its base may be older.
                shadow.is_dirty = True
            _apply_to_shadow(shadow, fragment.lineage, counter, operation)
        else:
            passed = sync.passed.setdefault(namespace, [])
            passed.append((fragment.lineage, counter, operation))
            if len(passed) > LOG_MAX:
                self.exchange.end_asked(pid)
                self._postpone(pid)

    def sent(self, sender: MemberId, message: TransferSent) -> None:
        """Parts of an answer to us."""
        pid = message.partition_id
        sync = self.exchange.find(sender, pid, message.transfer)
        if sync is None or self._holdings.partitions[pid].primary != sender:
            self.exchange.answer(sender, message, "it was not asked for")
            return
        partition = self._holdings.partitions[pid]
        problem = sync.take(message, lambda parts: self._take(sync, partition, parts))
        self.exchange.answer(sender, message, problem, sync.progress)
        if problem:
            self.exchange.end_asked(pid)
            self._postpone(pid)
            self._ctx.note("sync_damaged", "warning", partition=pid, problem=problem)
        elif sync.complete:
            self.exchange.end_asked(pid)
            self.counters["syncs_completed"] += 1
            if any(fragment.is_dirty for fragment in partition.fragments.values()):
                self._postpone(pid)
            self._recovery.look(partition)

    def _take(
        self, sync: Asked, partition: PartitionReplica, parts: Sequence[FragmentPart]
    ) -> Progress:
        """Fill the fragments to come; each that is complete replaces the one in doubt (AE-24).

        What was begun since, because the structure was destroyed, stays: it got all operations,
        and the copy did not.

        Raises:
            SerializationError: A part is malformed, or its copy lacks what we had when we asked.
        """
        for part, shadow in sync.shadows.take(parts):
            if shadow is None:
                continue
            if part.first:
                for entry in sync.passed.pop(part.namespace, ()):
                    _apply_to_shadow(shadow, *entry)
            if part.last:
                doubted = sync.doubted.get(part.namespace)
                if doubted is None or partition.fragments.get(part.namespace) is not doubted:
                    continue
                refuse_older(shadow, doubted)
                self._swap_in(partition, sync.shadows.whole.pop(part.namespace))
        return sync.shadows.progress()

    def _swap_in(self, partition: PartitionReplica, shadow: Fragment) -> None:
        self._recovery.end_giving(partition.pid)
        if self._holdings.hold(partition, shadow) and shadow.is_dirty:
            self._doubts.mark_dirty(shadow)

    def refused(self, sender: MemberId, message: SyncRefused) -> None:
        """Not now: the permits are free at once, the request is made again later (AE-15)."""
        if self.exchange.find(sender, message.partition_id, message.sync_id) is not None:
            self.exchange.end_asked(message.partition_id)
            self.counters["syncs_refused"] += 1
            self._postpone(message.partition_id)

    def _postpone(self, pid: PartitionId) -> None:
        """Do not ask again at once; how long differs from member to member and from try to try.

        Two members that refuse one another for want of permits must not try in step for ever.
        """
        salt = f"{self._ctx.id}/{pid}/{self._ctx.now_us}".encode()
        self._not_before_us[pid] = self._ctx.now_us + PAUSE_US // 2 + crc32(salt) % PAUSE_US

    # -- the primary's side ---------------------------------------------------------------

    def give(self, partition: PartitionReplica, sender: MemberId, request: SyncRequested) -> None:
        """Answer a backup of a partition of ours, or refuse and keep no trace (AE-15)."""
        if (sender, request.sync_id) in self.exchange.given:
            return
        fragments = [
            partition.fragments[namespace]
            for namespace in request.namespaces
            if namespace in partition.fragments
            and partition.fragments[namespace].backup_count >= request.index
        ]
        if self._ctx.id > sender:
            self._yield_permits(len(fragments))
        if partition.migrating:
            self.refuse(sender, request.sync_id, partition.pid, "migrating")
        elif len(fragments) > self._free_permits():
            self.refuse(sender, request.sync_id, partition.pid, "no permit")
        else:
            export = FragmentExport(
                fragments,
                index=request.index,
                bases=request.bases,
                figures=self._holdings.copies,
                bounds=self._holdings.bounds,
            )
            self.exchange.give(sender, request.sync_id, partition.pid, export, len(fragments))

    def _free_permits(self) -> int:
        limit = self._ctx.settings.replication_max_parallel
        return limit - self.permits_requested - self.permits_served

    def _yield_permits(self, wanted: int) -> None:
        """Give up requests of ours that were not answered yet, to answer a member before us.

        Members that spend all permits on asking one another would refuse each other for ever; in
        every such circle somebody is asked by a member with a smaller id.
        """
        for pid, sync in list(self.exchange.asked.items()):
            if self._free_permits() >= wanted:
                return
            if sync.sequence == 0:
                self.exchange.end_asked(pid)
                self._postpone(pid)

    def refuse(self, member: MemberId, number: int, pid: PartitionId, reason: str) -> None:
        """Say no to a request; a mere question for versions has no number and gets no answer."""
        if number:
            self._ctx.send(member, SyncRefused(number, pid, reason))


def _apply_to_shadow(shadow: Fragment, lineage: int, counter: int, operation: bytes) -> None:
    """Apply what a primary did since the shadow was begun; a gap makes it dirty."""
    if lineage != shadow.lineage:
        shadow.is_dirty = True
    elif counter > shadow.value:
        shadow.store.apply(operation, 0, len(operation))
        if counter != shadow.value + 1:
            shadow.is_dirty = True
        shadow.value = counter
