"""The data plane: puts the parts of replication together and routes to them.

The path of every write: a structure's service asks ``outgoing.admit``, changes a fragment of
``holdings`` and has it counted and sent by ``holdings.change``; ``incoming`` applies it at the
backup. What follows from a changed row is in ``roles``, healing in ``anti_entropy``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from whimbrel.core import messages as m
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberList, members_came, members_left
from whimbrel.core.replication.anti_entropy import ROUND, AntiEntropy
from whimbrel.core.replication.backups_in import BackupsIn
from whimbrel.core.replication.backups_out import BackupsOut
from whimbrel.core.replication.deferred_free import FREE
from whimbrel.core.replication.doubts import Doubts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.handover import HANDOVER, Handovers
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.replication.primary_recovery import REFILL, PrimaryRecovery
from whimbrel.core.replication.roles import Roles
from whimbrel.core.replication.shortage import Shortage
from whimbrel.core.replication.syncs import Syncs
from whimbrel.core.replication.wakes import Wakes
from whimbrel.core.structure_events import StructureEvents

STALLED_US: Final = 1_000_000
"""Backups that are not acknowledged for this long count as not in step."""


class DataPlane:
    """All partitions of this member and the traffic between replicas.

    Calls may add to ``ctx.effects`` (syncs are asked for while backups are applied), so whoever
    calls from outside ``Member.handle`` sets ``ctx.now_us`` and ``ctx.wall_ms`` before and takes
    the effects after.

    Attributes:
        partitions: By partition id.
        counters: Numbers for metrics, by name.
        events: What services of structures tell listeners.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        settings = ctx.settings
        self.partitions = [
            PartitionReplica(PartitionId(pid), stale_read_disabled=settings.stale_read_disabled)
            for pid in range(settings.partition_count)
        ]
        names = ("backups_applied", "backups_ignored", "backups_refused", "backup_timeouts")
        self.counters = dict.fromkeys(names, 0)
        self.events = StructureEvents()
        self.shortage = Shortage(ctx)
        self.doubts = Doubts(ctx)
        self.wakes = Wakes()
        self.outgoing = BackupsOut(
            ctx, self.partitions, self.shortage, self.counters, self._refused
        )
        self.holdings = Holdings(ctx, self.partitions, self.outgoing, self.shortage, self.doubts)
        self.recovery = PrimaryRecovery(ctx, self.holdings)
        self.syncs = Syncs(ctx, self.holdings, self.recovery)
        self.anti_entropy = AntiEntropy(ctx, self.holdings, self.syncs, self.recovery)
        self.incoming = BackupsIn(self.holdings, self.counters, self.syncs.passed_by)
        self.handovers = Handovers(ctx, self.holdings)
        self.roles = Roles(
            ctx, self.holdings, self.anti_entropy, self.syncs, self.recovery, self.handovers
        )
        self._handlers: dict[object, Callable[[MemberId, Any], None]] = {
            m.VersionsTold: self.anti_entropy.versions_told,
            m.SyncRequested: self.anti_entropy.sync_requested,
            m.SyncRefused: self.syncs.refused,
            m.DiskTold: self.disk_told,
            m.RefillRequested: self.recovery.requested,
            m.RefillRefused: self.recovery.refused,
            m.StandingRequested: self.handovers.standing_requested,
            m.StandingAnswered: self.handovers.standing_told,
            (m.TransferSent, m.Purpose.SYNC): self.syncs.sent,
            (m.TransferAnswered, m.Purpose.SYNC): self.syncs.exchange.answered,
            (m.TransferSent, m.Purpose.RECOVERY): self.recovery.sent,
            (m.TransferAnswered, m.Purpose.RECOVERY): self.recovery.exchange.answered,
        }
        """Who takes which message, copies by their purpose; each takes its own type."""

    def _refused(self, sender: MemberId, reply: PendingReply) -> None:
        """A backup has refused a write of ours: settled with the new primary (decision 5)."""
        self.handovers.refused(sender, reply)

    def disk_told(self, sender: MemberId, told: m.DiskTold) -> None:
        """Another member's disk: what its backups cannot keep is refused; ours may be the same."""
        self.outgoing.backup_disk_told(sender, is_full=told.is_full)
        if self.holdings.disk is not None and not told.is_full:
            self.holdings.disk.try_again()

    # -- links and members ----------------------------------------------------------------

    def link_lost(self, member: MemberId) -> None:
        """The connection to a member broke: keep what goes there, end syncs with it."""
        self.outgoing.link_lost(member)
        self.syncs.link_lost(member)
        self.recovery.exchange.link_lost(member)

    def link_restored(self, member: MemberId) -> None:
        """Send again what was not acknowledged, and our own acknowledgements (decision 4)."""
        self.outgoing.link_restored(member)
        self.incoming.answer_again(member)
        self.syncs.link_restored(member)
        self.anti_entropy.link_restored(member)

    def member_left(self, member: MemberId) -> None:
        """The member is off the list: whatever waits for it counts as done."""
        self.outgoing.member_left(member)
        self.incoming.member_left(member)
        self.syncs.member_left(member)
        self.anti_entropy.member_left(member)
        self.recovery.exchange.link_lost(member)

    def _last_frames(self, member: MemberId) -> list[bytes]:
        """Bodies of the last frames from a member to us, and behind them of those to it."""
        inbox, outbox = self.incoming.inboxes.get(member), self.outgoing.outboxes.get(member)
        return [
            *([] if inbox is None else inbox.last()), *([] if outbox is None else outbox.last())
        ]  # fmt: skip

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """A member list was installed: ``ctx.members`` is the new one.

        Backups go to listed members only; rows may be ahead of the list or behind it.
        """
        if self.shortage.members_changed():
            for partition in self.partitions:
                if partition.is_primary:
                    self.outgoing.look_at_shortage(partition)
        if old.ids() == new.ids():
            return
        left, came = members_left(old, new), members_came(old, new)
        self.holdings.key_logs.members_left(left, self._last_frames)
        for member in left:
            if member != self.ctx.id:
                self.member_left(member)
        for member in came:
            self.incoming.answer_again(member)
        changed = (*left, *came)
        for partition in self.partitions:
            if partition.is_primary and any(member in partition.row for member in changed):
                self.outgoing.refresh_targets(partition)
        self.recovery.members_changed()
        self.handovers.members_changed()
        self.anti_entropy.start()

    def on_message(self, sender: MemberId, message: Message) -> None:
        """A message of the replication part of ``core.messages``; others are not for us."""
        kind: object = type(message)
        if isinstance(message, m.TransferSent | m.TransferAnswered):
            kind = (kind, message.purpose)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(sender, message)

    def on_timer(self, key: str) -> None:
        """A timer whose key starts with ``replication.`` fired."""
        if key == REFILL:
            self.recovery.on_timer()
        elif key == FREE:
            self.holdings.deferred.on_timer()
        elif key == HANDOVER:
            self.handovers.on_timer()
        else:
            if key == ROUND:
                self.expire_replies()
            self.anti_entropy.on_timer(key)

    def expire_replies(self) -> None:
        """Decide replies that have waited longer than ``backup_timeout_us``."""
        before_us = self.ctx.now_us - self.ctx.settings.backup_timeout_us
        self.outgoing.expire_replies(before_us)
        if self.holdings.disk is not None:
            self.counters["backup_timeouts"] += self.holdings.disk.expire(before_us)
        self.counters["backup_timeouts"] += self.handovers.expire(before_us)

    def unsettled(self) -> int:
        """What keeps this member's replicas from being known to be in step; 0 is safe.

        Dirty namespaces, unconfirmed partitions, syncs, backups that have not answered for long,
        seats without data, fragments that are not all on the disk.
        """
        doubts, late_us = self.doubts, self.ctx.now_us - STALLED_US
        known = len(doubts.dirty) + len(doubts.unconfirmed) + len(self.syncs.exchange.asked)
        if self.holdings.disk is not None:
            known += self.holdings.disk.unfinished
        return known + self.outgoing.stalled(late_us) + len(self.recovery.lacking)
