"""A backup's side of audits: says how it has what its primary asks about.

It keeps one fragment under examination for each primary that asks, and does a bounded piece for
each question.
"""

from __future__ import annotations

from array import array
from typing import Final

from whimbrel.core.audit.meeting import Meeting, NotComparableError
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import ReplicaAnswered, ReplicaAsked
from whimbrel.core.messages.audit import (
    Compare,
    Compared,
    Descend,
    Differing,
    Doubt,
    Doubted,
    GoOn,
    Listed,
    ListKeys,
    Refused,
    Reply,
    Summed,
    SumUp,
)
from whimbrel.core.replication.comparison import (
    BITS_MAX,
    LEVEL_BITS,
    Descent,
    Leaves,
    Summing,
    child_sums,
    decode_sums,
    differing_bits,
)
from whimbrel.core.replication.content import NOTHING, KeyWalk, content_of
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.errors import GridError

KEYS_MAX: Final = 200
"""Keys in one answer."""
KEY_BYTES_MAX: Final = 256 * 1024
"""Bytes of keys after which an answer ends."""
IDLE_US: Final = 60_000_000
"""An examination about which nothing was asked for so long is forgotten."""


class Examination:
    """One fragment of ours, or the place where it should be, on its way through an audit."""

    def __init__(self, asked: ReplicaAsked, fragment: Fragment | None, bits: int) -> None:
        content = NOTHING if fragment is None else content_of(fragment.store)
        if content is None or bits % LEVEL_BITS or not 0 < bits <= BITS_MAX:
            raise NotComparableError("structures of this kind are not compared here")
        self.number = asked.number
        self.index = asked.index
        self.namespace = asked.namespace
        self.fragment = fragment
        self.content = content
        self.summing: Summing = content.sum_up(bits)
        self.descent = Descent(bits)
        self.meeting: Meeting | None = None
        self._leaves: Leaves | None = None
        self._walk: KeyWalk | None = None
        self._rest: list[bytes] = []

    def descend(self, sums: bytes) -> bytes:
        """Which of the sums of the nodes whose turn it is differ."""
        descent = self.descent
        if not self.summing.is_over or self._leaves is not None:
            raise NotComparableError("nothing is to be compared now")
        told = decode_sums(sums, len(descent.nodes))
        own = child_sums(self.summing.sums, descent.bits, descent.depth, descent.nodes)
        differing = differing_bits(own, told)
        self._leaves = descent.go_down(differing)
        if self._leaves is not None:
            self.summing.sums = array("Q")
        return differing

    def list_keys(self, work_max: int) -> Listed:
        """The next keys of ours in leaves that differ."""
        if self._leaves is None:
            raise NotComparableError("it is not known yet what differs")
        walk = self._walk
        if walk is None:
            walk = self._walk = self.content.keys_in(self._leaves)
        if not self._rest and not walk.is_over:
            self._rest = walk.step(work_max)
        size = count = 0
        for key in self._rest[:KEYS_MAX]:
            count, size = count + 1, size + len(key)
            if size >= KEY_BYTES_MAX:
                break
        keys, self._rest = tuple(self._rest[:count]), self._rest[count:]
        return Listed(keys, walk.is_over and not self._rest)

    def compare(self, question: Compare) -> None:
        """Begin to wait for a version."""
        self.end()
        self.meeting = Meeting(self.fragment, self.index, question)

    def end(self) -> None:
        """Wait for nothing any more."""
        if self.meeting is not None:
            self.meeting.leave()
            self.meeting = None


class ReplicaSide:
    """All examinations of a member as backup."""

    def __init__(self, ctx: Context, plane: DataPlane) -> None:
        self._ctx = ctx
        self._plane = plane
        self._piece = plane.holdings.bounds.audit_max
        self._examined: dict[MemberId, Examination] = {}
        self._last: dict[MemberId, tuple[int, ReplicaAnswered]] = {}
        """When each primary was answered last, and what."""

    def on_asked(self, sender: MemberId, asked: ReplicaAsked) -> None:
        """A primary asks; what it asked before is answered as before."""
        _, last = self._last.get(sender, (0, None))
        if last is None or (last.number, last.sequence) != (asked.number, asked.sequence):
            try:
                reply = self._reply(sender, asked)
            except GridError as problem:
                self.forget(sender)
                reply = Refused(str(problem))
            last = ReplicaAnswered(asked.number, asked.sequence, reply)  # type: ignore[arg-type]
        self._last[sender] = self._ctx.now_us, last
        self._ctx.send(sender, last)

    def _reply(self, sender: MemberId, asked: ReplicaAsked) -> Reply:
        partition = self._partition(sender, asked)
        fragment = partition.fragments.get(asked.namespace)
        question = asked.question
        if isinstance(question, Doubt):
            return self._doubt(partition, fragment, begin=question.begin)
        if isinstance(question, SumUp) and question.is_first:
            self.forget(sender)
            self._examined[sender] = Examination(asked, fragment, question.bits)
        found = self._examined.get(sender)
        if found is None or (found.number, found.namespace) != (asked.number, asked.namespace):
            raise NotComparableError("this replica is not being examined")
        if found.fragment is not fragment:
            raise NotComparableError("the replica was replaced meanwhile")
        return self._examine(found, question)

    def _examine(self, found: Examination, question: object) -> Reply:
        match question:
            case SumUp():
                if not found.summing.is_over:
                    found.summing.step(self._piece)
                return Summed(found.summing.is_over)
            case Descend():
                return Differing(found.descend(question.sums))
            case ListKeys():
                return found.list_keys(self._piece)
            case Compare():
                found.compare(question)
            case GoOn() if found.meeting is not None:
                found.meeting.look()
            case _:
                raise NotComparableError("nothing was asked before")
        return Compared(None if found.meeting is None else found.meeting.marks)

    def _partition(self, sender: MemberId, asked: ReplicaAsked) -> PartitionReplica:
        """The partition, of which the sender is primary and we are that backup."""
        partitions = self._plane.partitions
        if 0 <= asked.partition_id < len(partitions):
            partition = partitions[asked.partition_id]
            if partition.primary == sender and partition.index == asked.index > 0:
                return partition
        raise NotComparableError("the member is not that replica of the partition, or not yet")

    def _doubt(
        self, partition: PartitionReplica, fragment: Fragment | None, *, begin: bool
    ) -> Doubted:
        """Have the fragment synchronised, or say whether it still is to be."""
        if fragment is None:
            return Doubted(False)
        if begin and not fragment.is_dirty:
            self._plane.doubts.mark_dirty(fragment)
            self._plane.syncs.ask(partition)
        return Doubted(fragment.is_dirty)

    def forget(self, primary: MemberId) -> None:
        """Look no more at what a primary has asked about."""
        found = self._examined.pop(primary, None)
        if found is not None:
            found.end()

    def tick(self) -> None:
        """Forget what nobody asks about, and who has left."""
        before_us = self._ctx.now_us - IDLE_US
        for primary, (at_us, _) in list(self._last.items()):
            if at_us < before_us or not self._ctx.is_member(primary):
                self.forget(primary)
                del self._last[primary]

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to forget."""
        return bool(self._last)
