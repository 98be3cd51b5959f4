"""Getting back the data of a seat: a member that was missing returns to its rows with empty hands.

While joining is forbidden the rows stay as they are (GCM-09), so a process that comes back under
its identity is primary where it was primary, and has nothing. It serves nothing then: it asks the
hottest live backup for all it has, counts on from there as a promoted backup would (AE-11), and
only then is the primary. Where no live replica has anything the partition is lost, and reported. A
returned *backup* is filled by anti-entropy; until it is in step it is a replica without data.

One that has brought its files back holds what they had. As primary it still asks: a backup may have
counted further than what reached its disk. But what no backup has, its files have (APR-16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from whimbrel.core.context import Context
from whimbrel.core.effects import PartitionReleased
from whimbrel.core.ids import LOST_ALL, NO_INDEX, MemberId, PartitionId, ReplicaIndex
from whimbrel.core.messages import (
    FragmentPart,
    Progress,
    Purpose,
    RefillRefused,
    RefillRequested,
    TransferSent,
)
from whimbrel.core.model import ClusterState
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.transfer import Asked, Exchange, FragmentExport, Shadows
from whimbrel.core.replication.vectors import NO_LINEAGE, make_lineage

REFILL: Final = "replication.refill"
LOOK_US: Final = 250_000
"""While seats lack data, what can be asked for is looked at once in this time."""


class PrimaryRecovery:
    """Both sides of getting data back, for all partitions of a member.

    Attributes:
        on_seat_lost: Told of each partition that a returned primary serves again without its
            files, and how many backups were lost: 0 when the hottest backup had the data, 6 when
            nobody had any (GCM-09).
    """

    def __init__(self, ctx: Context, holdings: Holdings) -> None:
        self._ctx = ctx
        self._holdings = holdings
        self._outgoing = holdings.outgoing
        self._doubts = holdings.doubts
        self._lacking: dict[PartitionId, dict[MemberId, None]] = {}
        """Our rows' partitions without data, each with the members that have none either."""
        self.files: dict[PartitionId, int] = {}
        """Of partitions of which we hold what our files had: the version of the row in them."""
        self._cause = ""
        """Of the newest row that we stand in without its data."""
        self.exchange = Exchange(ctx, Purpose.RECOVERY)
        self.on_seat_lost: Callable[[PartitionId, int], None] = lambda _pid, _lost: None

    @property
    def lacking(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand without having their data, ascending."""
        return tuple(sorted(self._lacking))

    # -- rows -----------------------------------------------------------------------------

    def row_coming(self, partition: PartitionReplica, index: ReplicaIndex) -> None:
        """Our row of a partition is about to change: do we have what it says we have?"""
        pid = partition.pid
        self.exchange.end_asked(pid)
        self.end_giving(pid)
        if index == NO_INDEX:
            partition.has_data = True
            self._lacking.pop(pid, None)
            self.files.pop(pid, None)
        elif not partition.version and self._ctx.members.is_missing(self._ctx.id):
            partition.has_data = False
        if not partition.has_data:
            self._lacking[pid] = {}
            self._cause = self._ctx.cause
            self._ctx.arm(REFILL, 0)

    def end_giving(self, pid: PartitionId) -> None:
        """What we give of a partition changes: whoever is given it asks anew."""
        ended = self.exchange.end_given(lambda sending: sending.partition_id == pid)
        for member, number, _ in ended:
            self._ctx.send(member, RefillRefused(number, pid, False))

    def look(self, partition: PartitionReplica) -> None:
        """A returned backup is a replica like any other once it is known to be in step.

        Not while the state changes, which counts on what we said we lack: the seats named then
        are emptied, and a replica that calls itself complete would go with them (P5).
        """
        if partition.has_data or partition.index < 1 or not partition.is_confirmed:
            return
        if self._ctx.state is ClusterState.IN_TRANSITION:
            return
        if not self._doubts.is_doubted(partition):
            partition.gain_data()
            self._lacking.pop(partition.pid, None)
            self.files.pop(partition.pid, None)

    # -- the returned primary -------------------------------------------------------------

    def on_timer(self) -> None:
        """Ask for what is lacking, as much at once as syncs are allowed (AE-14)."""
        if self._lacking:
            self._ctx.resume(self._cause)
        self.exchange.give_up_silent()
        asked = self.exchange.asked
        if self._ctx.state is not ClusterState.IN_TRANSITION:
            limit = max(1, self._ctx.settings.replication_max_parallel)
            for pid in list(self._lacking):
                if len(asked) >= limit:
                    break
                if pid not in asked and self._holdings.partitions[pid].index == 0:
                    self._begin(self._holdings.partitions[pid])
        if self._lacking or self.exchange.given:
            self._ctx.arm(REFILL, LOOK_US)

    def _begin(self, partition: PartitionReplica) -> None:
        """Ask the hottest live backup that may have data; without one the partition is lost."""
        ctx, pid = self._ctx, partition.pid
        without = self._lacking[pid]
        for index, member in enumerate(partition.row):
            if not index or member is None or member in without or not ctx.is_member(member):
                continue
            shadows = Shadows(self._holdings, pid, index)
            asked = self.exchange.asked[pid] = Asked(ctx, member, shadows)
            ctx.send(member, RefillRequested(asked.number, pid, partition.version))
            return
        self._finish(partition, (), LOST_ALL)

    def sent(self, sender: MemberId, message: TransferSent) -> None:
        """Parts of what we asked for."""
        pid = message.partition_id
        asked = self.exchange.find(sender, pid, message.transfer)
        if asked is None:
            self.exchange.answer(sender, message, "it was not asked for")
            return
        shadows = asked.shadows
        problem = asked.take(message, lambda parts: _take(shadows, parts))
        if problem:
            self.exchange.end_asked(pid)
            self._ctx.note("refill_damaged", "warning", partition=pid, problem=problem)
        elif asked.complete:
            # A change of state counts on what we said we lack: it is asked for again then.
            if self._ctx.state is not ClusterState.IN_TRANSITION:
                arrived = list(shadows.whole.values())
                shadows.whole.clear()
                self._finish(self._holdings.partitions[pid], arrived, shadows.index - 1)
            self.exchange.end_asked(pid)
        self.exchange.answer(sender, message, problem)

    def _finish(
        self, partition: PartitionReplica, fragments: Sequence[Fragment], lost: int
    ) -> None:
        """Be the primary from now on, with what there is.

        What our files had counts where the giver has less of the same history, and where it need
        not have anything, as its index is beyond the structure's backups; but only if they were of
        this very row, since under another one others have served.

        The lineage names this process: its predecessor may have counted under the same version of
        the row, and not all it counted need have reached a backup.
        """
        ctx, pid = self._ctx, partition.pid
        del self._lacking[pid]
        given = {fragment.namespace: fragment for fragment in fragments}
        is_from_files = self.files.pop(pid, None) == partition.version
        for namespace, mine in list(partition.fragments.items()):
            theirs = given.get(namespace)
            if is_from_files and _counts(mine, theirs, lost):
                if theirs is not None:
                    self._holdings.free(given.pop(namespace))
            else:
                self._holdings.discard(partition, namespace)
        partition.lineage = make_lineage(partition.version, f"{ctx.id}@{ctx.started_us}")
        for fragment in given.values():
            self._holdings.hold(partition, fragment)
        for fragment in partition.fragments.values():
            fragment.become_primary(partition.lineage)
            fragment.store.restart_idleness(ctx.wall_ms)
        partition.gain_data()
        self._holdings.forget_heads()
        self._outgoing.refresh_targets(partition)
        self._doubts.confirm(partition)
        self._doubts.announce(partition)
        ctx.emit(PartitionReleased(pid))
        if not is_from_files:
            self.on_seat_lost(pid, lost)

    def refused(self, sender: MemberId, message: RefillRefused) -> None:
        """Not now, or never: then the next colder backup is asked."""
        pid = message.partition_id
        if self.exchange.find(sender, pid, message.refill_id) is None:
            return
        self.exchange.end_asked(pid)
        if message.has_none:
            self._lacking[pid][sender] = None
            self._ctx.arm(REFILL, 0)

    # -- the backup -----------------------------------------------------------------------

    def requested(self, sender: MemberId, request: RefillRequested) -> None:
        """Give a returned primary what we have, if the row is the same for both of us."""
        pid = request.partition_id
        if not 0 <= pid < len(self._holdings.partitions):
            return
        if (sender, request.refill_id) in self.exchange.given:
            return
        partition = self._holdings.partitions[pid]
        is_ours = partition.primary == sender and partition.version == request.partition_version
        if not is_ours or not partition.has_data:
            self._ctx.send(sender, RefillRefused(request.refill_id, pid, is_ours))
            return
        fragments, figures = list(partition.fragments.values()), self._holdings.copies
        export = FragmentExport(fragments, marks_doubts=True, figures=figures)
        if not self._ctx.is_armed(REFILL):
            self._ctx.arm(REFILL, LOOK_US)
        self.exchange.give(sender, request.refill_id, pid, export, 0)

    # -- members --------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Who has left is not asked; who came back is asked anew."""
        for without in self._lacking.values():
            for member in [item for item in without if not self._ctx.is_member(item)]:
                del without[member]


def _counts(mine: Fragment, theirs: Fragment | None, lost: int) -> bool:
    """Whether what our files had is to be served, and not what the giver has; without a giver
    ``lost`` is LOST_ALL, which no structure's backups reach.
    """
    if theirs is None:
        return mine.backup_count <= lost
    return not mine.is_dirty and theirs.is_behind(mine)


def _take(shadows: Shadows, parts: Sequence[FragmentPart]) -> Progress:
    """Fill the fragments to come; what its giver doubts is dirty."""
    for part, fragment in shadows.take(parts):
        if fragment is not None:
            fragment.is_dirty = part.vector.lineage == NO_LINEAGE and any(part.vector.counters)
    return shadows.progress()
