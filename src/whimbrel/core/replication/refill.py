"""Getting back the data of a seat: a member that was missing returns to its rows with empty hands.

While joining is forbidden the rows stay as they are (GCM-09), so a process that comes back under
its identity is primary where it was primary, and has nothing. It serves nothing then: it asks the
hottest live backup for all it has, counts on from there as a promoted backup would (AE-11), and
only then is the primary. Where no live replica has anything the partition is lost, and reported. A
returned *backup* is filled by anti-entropy; until it is in step it is a replica without data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from whimbrel.core.effects import PartitionReleased
from whimbrel.core.ids import NO_INDEX, MemberId, Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    RefillAnswered,
    RefillRefused,
    RefillRequested,
    RefillSent,
    Vector,
)
from whimbrel.core.model import ClusterState
from whimbrel.core.replication.fragments import (
    Fragment,
    FragmentExport,
    PartitionReplica,
    check_parts,
)
from whimbrel.core.replication.vectors import NO_LINEAGE, make_lineage
from whimbrel.errors import SerializationError

if TYPE_CHECKING:
    from whimbrel.core.replication.dataplane import DataPlane

REFILL: Final = "replication.refill"
LOOK_US: Final = 250_000
"""While seats lack data, what can be asked for is looked at once in this time."""
SILENT_CALLS_MAX: Final = 5
"""A refill without progress for this many call time-outs is given up and begun anew."""
LOST_ALL: Final = 6
"""The lost backup count that means: no replica of the partition has data (facts section 7)."""


class Refill:
    """What we have asked a backup for and not got to the end."""

    def __init__(self, number: int, member: MemberId, index: ReplicaIndex, now_us: int) -> None:
        self.number = number
        self.member = member
        self.index = index
        """Of the backup that is asked."""
        self.sequence = 0
        self.progress_us = now_us
        self.arriving: dict[Namespace, Fragment] = {}


class Serve:
    """A returned primary that we are giving our data."""

    def __init__(self, export: FragmentExport, pid: PartitionId, now_us: int) -> None:
        self.export = export
        self.partition_id = pid
        self.sequence = 0
        self.progress_us = now_us


class Refills:
    """Both sides of getting data back, for all partitions of a member."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._ctx = plane.ctx
        self._lacking: dict[PartitionId, dict[MemberId, None]] = {}
        """Our rows' partitions without data, each with the members that have none either."""
        self._refills: dict[PartitionId, Refill] = {}
        self._serves: dict[tuple[MemberId, int], Serve] = {}
        self._cause = ""
        """Of the newest row that we stand in without its data."""

    @property
    def lacking(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand without having their data, ascending."""
        return tuple(sorted(self._lacking))

    def is_serving(self, pid: PartitionId) -> bool:
        """Whether somebody is being given what we hold of a partition."""
        return any(serve.partition_id == pid for serve in self._serves.values())

    # -- rows -----------------------------------------------------------------------------

    def row_coming(self, partition: PartitionReplica, index: ReplicaIndex) -> None:
        """Our row of a partition is about to change: do we have what it says we have?"""
        pid = partition.pid
        self._drop(pid)
        if index == NO_INDEX:
            partition.has_data = True
            self._lacking.pop(pid, None)
        elif not partition.version and self._ctx.members.is_missing(self._ctx.id):
            partition.has_data = False
        if not partition.has_data:
            self._lacking[pid] = {}
            self._cause = self._ctx.cause
            self._ctx.arm(REFILL, 0)

    def _drop(self, pid: PartitionId) -> None:
        """What is under way for a partition ends, on both sides."""
        self._refills.pop(pid, None)
        for key, serve in list(self._serves.items()):
            if serve.partition_id == pid:
                del self._serves[key]

    def look(self, partition: PartitionReplica) -> None:
        """A returned backup is a replica like any other once it is known to be in step.

        Not while the state changes, which counts on what we said we lack: the seats named then
        are emptied, and a replica that calls itself complete would go with them (P5).
        """
        if partition.has_data or partition.index < 1 or not partition.is_confirmed:
            return
        if self._ctx.state is ClusterState.IN_TRANSITION:
            return
        if not self._plane.anti_entropy.is_doubted(partition):
            partition.gain_data()
            self._lacking.pop(partition.pid, None)

    # -- the returned primary -------------------------------------------------------------

    def on_timer(self) -> None:
        """Ask for what is lacking, as much at once as syncs are allowed (AE-14)."""
        if self._lacking:
            self._ctx.resume(self._cause)
        self._give_up_silent()
        if self._ctx.state is not ClusterState.IN_TRANSITION:
            limit = max(1, self._ctx.settings.replication_max_parallel)
            for pid in list(self._lacking):
                if len(self._refills) >= limit:
                    break
                if pid not in self._refills and self._plane.partitions[pid].index == 0:
                    self._begin(self._plane.partitions[pid])
        if self._lacking or self._serves:
            self._ctx.arm(REFILL, LOOK_US)

    def _begin(self, partition: PartitionReplica) -> None:
        """Ask the hottest live backup that may have data; without one the partition is lost."""
        ctx, pid = self._ctx, partition.pid
        without = self._lacking[pid]
        for index, member in enumerate(partition.row):
            if not index or member is None or member in without or not ctx.is_member(member):
                continue
            refill = Refill(ctx.next_number(), member, ReplicaIndex(index), ctx.now_us)
            self._refills[pid] = refill
            ctx.send(member, RefillRequested(refill.number, pid, partition.version))
            return
        self._finish(partition, {}, LOST_ALL)

    def _give_up_silent(self) -> None:
        before_us = self._ctx.now_us - SILENT_CALLS_MAX * self._ctx.settings.call_timeout_us
        for pid, refill in list(self._refills.items()):
            if refill.progress_us < before_us:
                del self._refills[pid]
        for key, serve in list(self._serves.items()):
            if serve.progress_us < before_us:
                del self._serves[key]

    def _sent(self, sender: MemberId, message: RefillSent) -> None:
        """Parts of what we asked for."""
        refill = self._refills.get(message.partition_id)
        if refill is None or refill.number != message.refill_id or refill.member != sender:
            self._ctx.send(sender, RefillAnswered(message.refill_id, message.sequence, False))
            return
        if message.sequence == refill.sequence + 1:
            refill.sequence = message.sequence
            refill.progress_us = self._ctx.now_us
            if not self._take(refill, message):
                del self._refills[message.partition_id]
                self._ctx.send(sender, RefillAnswered(message.refill_id, message.sequence, False))
                return
            if message.last:
                del self._refills[message.partition_id]
                partition = self._plane.partitions[message.partition_id]
                # A change of state counts on what we said we lack: it is asked for again then.
                if self._ctx.state is not ClusterState.IN_TRANSITION:
                    self._finish(partition, refill.arriving, refill.index - 1)
        self._ctx.send(sender, RefillAnswered(message.refill_id, message.sequence, True))

    def _take(self, refill: Refill, message: RefillSent) -> bool:
        """Fill the fragments to come; False when they cannot be read."""
        try:
            check_parts(message.parts)
            for part in message.parts:
                self._take_part(refill, message.partition_id, part)
        except SerializationError as error:
            self._ctx.note(
                "refill_damaged", "warning", partition=message.partition_id, problem=str(error)
            )
            return False
        return True

    def _take_part(self, refill: Refill, pid: PartitionId, part: FragmentPart) -> None:
        namespace = part.namespace
        if part.first:
            fresh = self._plane.new_fragment(pid, namespace, part)
            refill.arriving[namespace] = fresh
        found = refill.arriving.get(namespace)
        if found is None:
            raise SerializationError(f"a piece of {namespace} came before its first piece")
        found.store.ingest_chunk(part.data)
        if part.last:
            found.install(part.vector, refill.index)
            found.is_dirty = part.vector.lineage == NO_LINEAGE and any(part.vector.counters)

    def _finish(
        self, partition: PartitionReplica, fragments: dict[Namespace, Fragment], lost: int
    ) -> None:
        """Be the primary from now on, with what there is.

        The lineage names this process: its predecessor may have counted under the same version of
        the row, and not all it counted need have reached a backup.
        """
        plane, ctx, pid = self._plane, self._ctx, partition.pid
        del self._lacking[pid]
        for namespace in list(partition.fragments):
            partition.drop(namespace)
            plane.anti_entropy.forget(pid, namespace)
        partition.lineage = make_lineage(partition.version, f"{ctx.id}@{ctx.started_us}")
        for fragment in fragments.values():
            if plane.hold(partition, fragment):
                fragment.become_primary(partition.lineage)
                fragment.store.restart_idleness(ctx.wall_ms)
        partition.gain_data()
        plane.forget_heads()
        plane.refresh_targets(partition)
        plane.anti_entropy.role_taken(partition)
        ctx.emit(PartitionReleased(pid))
        if plane.on_seat_lost is not None:
            plane.on_seat_lost(pid, lost)

    def _refused(self, sender: MemberId, message: RefillRefused) -> None:
        """Not now, or never: then the next colder backup is asked."""
        refill = self._refills.get(message.partition_id)
        if refill is None or refill.number != message.refill_id or refill.member != sender:
            return
        del self._refills[message.partition_id]
        if message.has_none:
            self._lacking[message.partition_id][sender] = None
            self._ctx.arm(REFILL, 0)

    # -- the backup -----------------------------------------------------------------------

    def on_message(self, sender: MemberId, message: Message) -> None:
        """A message of this room; others are not for it."""
        if isinstance(message, RefillRequested):
            self._requested(sender, message)
        elif isinstance(message, RefillSent):
            self._sent(sender, message)
        elif isinstance(message, RefillAnswered):
            self._answered(sender, message)
        elif isinstance(message, RefillRefused):
            self._refused(sender, message)

    def _requested(self, sender: MemberId, request: RefillRequested) -> None:
        """Give a returned primary what we have, if the row is the same for both of us."""
        pid = request.partition_id
        if not 0 <= pid < len(self._plane.partitions):
            return
        if (sender, request.refill_id) in self._serves:
            return
        partition = self._plane.partitions[pid]
        is_ours = partition.primary == sender and partition.version == request.partition_version
        if not is_ours or not partition.has_data:
            self._ctx.send(sender, RefillRefused(request.refill_id, pid, is_ours))
            return
        export = FragmentExport(list(partition.fragments.values()))
        serve = Serve(export, pid, self._ctx.now_us)
        self._serves[sender, request.refill_id] = serve
        if not self._ctx.is_armed(REFILL):
            self._ctx.arm(REFILL, LOOK_US)
        self._send_next(sender, request.refill_id, serve)

    def _send_next(self, member: MemberId, number: int, serve: Serve) -> None:
        """Send the next chunk: one is in flight, so memory stays bounded."""
        parts, last = serve.export.next_parts(self._ctx.settings.migration_chunk_bytes_max)
        fragments = self._plane.partitions[serve.partition_id].fragments
        marked = tuple(_marked(part, fragments.get(part.namespace)) for part in parts)
        serve.sequence += 1
        serve.progress_us = self._ctx.now_us
        message = RefillSent(number, serve.partition_id, serve.sequence, marked, last)
        self._ctx.send(member, message)

    def _answered(self, sender: MemberId, answer: RefillAnswered) -> None:
        serve = self._serves.get((sender, answer.refill_id))
        if serve is None or (answer.success and answer.sequence != serve.sequence):
            return
        if not answer.success or serve.export.done:
            del self._serves[sender, answer.refill_id]
        else:
            self._send_next(sender, answer.refill_id, serve)

    # -- links and members ----------------------------------------------------------------

    def link_lost(self, member: MemberId) -> None:
        """What was under way to or from a member may be lost: it is begun anew."""
        for pid, refill in list(self._refills.items()):
            if refill.member == member:
                del self._refills[pid]
        for key in list(self._serves):
            if key[0] == member:
                del self._serves[key]

    def members_changed(self) -> None:
        """Who has left is not asked; who came back is asked anew."""
        for without in self._lacking.values():
            for member in [item for item in without if not self._ctx.is_member(item)]:
                del without[member]


def _marked(part: FragmentPart, fragment: Fragment | None) -> FragmentPart:
    """The part, its vector without lineage when the namespace may lack something (AE-07)."""
    if fragment is not None and not fragment.is_dirty:
        return part
    vector = Vector(NO_LINEAGE, part.vector.counters)
    return msgspec.structs.replace(part, vector=vector)
