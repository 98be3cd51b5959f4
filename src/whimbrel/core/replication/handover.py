"""Writes that a backup has refused because their partition was no longer ours (0013).

    former primary                                backup
      | BACKUPS (late) -------------------------->|  has the new row already
      |<--------------------------- ACKS (refused)|
      | StandingRequested(partition, since) ----->|  has it all that the new primary has?
      |<------------ StandingAnswered(standing) --|

A planned move takes every write along that was done before it began: the new primary has them. So a
refused write has not failed. It is acknowledged once the refusing backup is in step with the new
primary, or is no backup any more; in every other case its outcome is unknown. Knows how we lost
each partition; the rows themselves are decided elsewhere.
"""

from __future__ import annotations

from typing import Final

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import StandingAnswered, StandingRequested
from whimbrel.core.model import Standing
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.outbox import FAILED_STALE, FAILED_TIMEOUT, PendingReply

HANDOVER: Final = "replication.handover"
UNEXPLAINED: Final = -1
ASK_US: Final = 250_000
"""Pause between two questions to a backup that is not in step yet."""


class _Refused(msgspec.Struct, eq=False):
    """A reply that waits, the backup that has refused its write, and when it did."""

    reply: PendingReply
    member: MemberId
    since_us: int


class Handovers:
    """The refused writes of one member, until each is decided."""

    def __init__(self, ctx: Context, holdings: Holdings) -> None:
        self._ctx = ctx
        self._partitions = holdings.partitions
        self._outgoing = holdings.outgoing
        self._doubts = holdings.doubts
        self._losses: dict[PartitionId, int] = {}
        """Partitions that were ours once: the version of the row by which a planned move made
        another member the primary, or UNEXPLAINED."""
        self._refused: dict[PartitionId, list[_Refused]] = {}

    def is_planned(self, pid: PartitionId) -> bool:
        """Whether the present primary got all our writes of the partition by a planned move."""
        return self._losses.get(pid) == self._partitions[pid].primary_since

    # -- what happens ---------------------------------------------------------------------

    def refused(self, member: MemberId, reply: PendingReply) -> None:
        """A backup does not take us for the primary of a write's partition."""
        pid = PartitionId(reply.partition_id)
        waiting = self._refused.setdefault(pid, [])
        waiting.append(_Refused(reply, member, self._ctx.now_us))
        self._look(pid)

    def primary_lost(self, partition: PartitionReplica, *, planned: bool) -> None:
        """A row came that makes another member the primary."""
        self._losses[partition.pid] = partition.version if planned else UNEXPLAINED

    def row_changed(self, partition: PartitionReplica) -> None:
        """A row came; ``primary_lost`` was called before, if it concerns it."""
        if partition.pid in self._refused:
            self._look(partition.pid)

    def members_changed(self) -> None:
        """The member list changed: a backup that has left is not waited for."""
        for pid in list(self._refused):
            self._look(pid)

    def expire(self, before_us: int) -> int:
        """Decide what has waited since before that moment; returns how many."""
        expired = 0
        for pid, waiting in list(self._refused.items()):
            late = [one for one in waiting if one.since_us <= before_us]
            expired += sum(self._fail(one, FAILED_TIMEOUT) for one in late)
            self._keep(pid, [one for one in waiting if one.since_us > before_us])
        return expired

    # -- deciding -------------------------------------------------------------------------

    def _look(self, pid: PartitionId) -> None:
        """Decide what can be decided about a partition; ask about the rest."""
        partition = self._partitions[pid]
        waiting = self._refused[pid]
        if partition.is_primary and pid not in self._losses:
            return  # the row that explains it is on its way to us
        if not self.is_planned(pid):
            for one in waiting:
                self._fail(one, FAILED_STALE)
            self._keep(pid, [])
            return
        left: list[_Refused] = []
        for one in waiting:
            is_backup = one.member in partition.row[1:] and self._ctx.is_member(one.member)
            if is_backup:
                left.append(one)
            else:
                one.reply.release(self._outgoing.completed)
        self._keep(pid, left)
        if left and not self._ctx.is_armed(HANDOVER):
            self._ctx.arm(HANDOVER, 0)

    def _keep(self, pid: PartitionId, waiting: list[_Refused]) -> None:
        if waiting:
            self._refused[pid] = waiting
        else:
            del self._refused[pid]

    def _fail(self, one: _Refused, reason: str) -> bool:
        failed = one.reply.fail(reason)
        if failed:
            self._outgoing.completed.append(one.reply)
        return failed

    # -- asking and answering -------------------------------------------------------------

    def on_timer(self) -> None:
        """Ask the backups that have refused whether they are in step by now."""
        asked = False
        for pid, waiting in self._refused.items():
            if not self.is_planned(pid):
                continue
            since = self._partitions[pid].primary_since
            for member in dict.fromkeys(one.member for one in waiting):
                self._ctx.send(member, StandingRequested(pid, since))
                asked = True
        if asked:
            self._ctx.arm(HANDOVER, ASK_US)

    def standing_requested(self, sender: MemberId, asked: StandingRequested) -> None:
        """A former primary asks how we stand."""
        if 0 <= asked.partition_id < len(self._partitions):
            standing = self._standing(asked)
            answer = StandingAnswered(asked.partition_id, asked.primary_since, standing)
            self._ctx.send(sender, answer)

    def _standing(self, asked: StandingRequested) -> Standing:
        """Whether we have all that the primary since that row has."""
        partition = self._partitions[asked.partition_id]
        if partition.primary_since > asked.primary_since:
            return Standing.OVERTAKEN
        is_backup = partition.index > 0 and partition.primary_since == asked.primary_since
        is_known = is_backup and partition.is_confirmed and partition.has_data
        if is_known and not self._doubts.is_doubted(partition):
            return Standing.IN_STEP
        return Standing.BEHIND

    def standing_told(self, sender: MemberId, told: StandingAnswered) -> None:
        """How a backup that has refused writes of ours stands."""
        pid = told.partition_id
        waiting = self._refused.get(pid)
        if waiting is None or not self.is_planned(pid) or told.standing is Standing.BEHIND:
            return
        if self._partitions[pid].primary_since != told.primary_since:
            return
        for one in waiting:
            if one.member == sender and told.standing is Standing.IN_STEP:
                one.reply.release(self._outgoing.completed)
            elif one.member == sender:
                self._fail(one, FAILED_STALE)
        self._keep(pid, [one for one in waiting if one.member != sender])
