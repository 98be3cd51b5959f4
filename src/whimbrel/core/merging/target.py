"""At the primary: entries of the smaller part come in and are merged as their kind does it.

A merge is a write like any other: counted, backed up, told to listeners, answered when
the synchronous backups have it. A request may come twice; the first answer is kept for the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, split_namespace
from whimbrel.core.kinds import StructureService
from whimbrel.core.messages import MergeAnswered, MergeCounts, MergeRequested
from whimbrel.core.registry import Registry
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import OverloadedError, RetryableError

ANSWERS_MAX = 1_000
"""Answers kept for repeated requests; a sender has few requests under way."""

Answer = Callable[[MemberId, MergeAnswered], None]
ChunkKey = tuple[MemberId, int]
"""Who offered a chunk first, and the number that it had there."""


@dataclass(slots=True, eq=False)
class MergeWait:
    """A merged chunk whose backups have not all acknowledged; the owner of their replies."""

    target: MergeTarget
    sender: MemberId
    key: ChunkKey
    answered: MergeAnswered

    def take(self, reply: PendingReply) -> None:
        """The backups are decided; a write that failed on them is asked for again."""
        self.target.decided(self, reply.failed)


class MergeTarget:
    """Merges into the partitions of which this member is the primary."""

    def __init__(
        self,
        ctx: Context,
        plane: DataPlane,
        services: Mapping[str, StructureService],
        registry: Registry,
        answer: Answer,
    ) -> None:
        """``answer`` sends to another member, or back to this one."""
        self._ctx = ctx
        self._plane = plane
        self._services = services
        self._registry = registry
        self._answer = answer
        self._waiting: dict[ChunkKey, MergeWait] = {}
        self._answers: dict[ChunkKey, MergeAnswered] = {}
        self._unknown: dict[str, None] = {}
        """Kinds that we do not have and that somebody has asked to merge."""

    def on_requested(self, sender: MemberId, message: MergeRequested) -> None:
        """Merge a chunk, once, and answer when its backups have it."""
        key = chunk_key(sender, message)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.sender = sender  # an incarnation later it has another identity and call
            waiting.answered = msgspec.structs.replace(waiting.answered, call=message.call)
            return
        answered = self._answers.get(key)
        if answered is not None:
            answered = msgspec.structs.replace(answered, call=message.call)
        else:
            refusal = self._refusal(message)
            if refusal:
                self._answer(sender, MergeAnswered(message.call, False, MergeCounts(), refusal))
                return
            answered, reply = self._merge(message)
            if reply.remaining > 0:
                reply.owner = self._waiting[key] = MergeWait(self, sender, key, answered)
                return
            self._keep(key, answered)
        self._answer(sender, answered)

    def decided(self, wait: MergeWait, failed: str) -> None:
        """The backups of a chunk are done, or will never be."""
        if self._waiting.pop(wait.key, None) is None:
            return
        answered = wait.answered
        if failed:
            answered = MergeAnswered(answered.call, False, MergeCounts(), failed)
        else:
            self._keep(wait.key, answered)
        if wait.sender == self._ctx.id or self._ctx.is_member(wait.sender):
            self._answer(wait.sender, answered)

    def _keep(self, key: ChunkKey, answered: MergeAnswered) -> None:
        self._answers[key] = answered
        while len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]

    def _refusal(self, message: MergeRequested) -> str:
        """Why the chunk cannot be merged here and now; empty when it can."""
        kind, _ = split_namespace(message.namespace)
        if kind not in self._services:
            if kind not in self._unknown:
                self._unknown[kind] = None
                structure = message.namespace
                self._ctx.note("split_brain.kind_unknown", "error", structure=structure)
            return f"this member has no structures of the kind {kind!r}"
        if not 0 <= message.partition_id < len(self._plane.partitions):
            return "there is no such partition"
        try:
            # However few backups are there: the entries were acknowledged elsewhere.
            self._plane.outgoing.admit(self._plane.partitions[message.partition_id], None)
        except (RetryableError, OverloadedError) as error:
            return str(error)
        return ""

    def _merge(self, message: MergeRequested) -> tuple[MergeAnswered, PendingReply]:
        """Merge every entry of a chunk; a damaged chunk counts as discarded from the damage on."""
        reply = PendingReply(None)
        namespace = message.namespace
        kind, name = split_namespace(namespace)
        counts = MergeCounts()
        is_outdated = self._plane.holdings.is_destroyed(namespace, message.generation)
        # One destroyed by the bigger part meanwhile: its data do not come back.
        if not is_outdated and self._registry.get(kind, name) is not None:
            partition = self._plane.partitions[message.partition_id]
            service = self._services[kind]
            take = service.restore if message.is_restored else service.merge
            counts = take(partition, namespace, message.chunk, reply)
        rest = max(0, message.entries - sum(msgspec.structs.astuple(counts)))
        counts = msgspec.structs.replace(counts, discarded=counts.discarded + rest)
        return MergeAnswered(message.call, True, counts), reply


def chunk_key(sender: MemberId, message: MergeRequested) -> ChunkKey:
    """By what a chunk is known again, whoever of its offerers sends it."""
    if message.origin is not None:
        return message.origin, message.number
    return sender, message.call
