"""At the primary: entries of the smaller part come in and are merged by the map's policy.

A merge is a write like any other: counted, backed up, told to listeners (as MERGED), answered when
the synchronous backups have it. A request may come twice; the first answer is kept for the second.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, namespace_of
from whimbrel.core.merging.policies import MergePolicy, policy_of
from whimbrel.core.messages import MergeAnswered, MergeCounts, MergeRequested
from whimbrel.core.registry import MAP_KIND, Registry
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.structures.map_service import SERVICE, MapService
from whimbrel.core.structures.map_settings import MapSettings
from whimbrel.core.structures.map_store import MapStore
from whimbrel.core.structures.record import EntryView
from whimbrel.errors import OverloadedError, RetryableError, SerializationError

ANSWERS_MAX = 1_000
"""Answers kept for repeated requests; a sender has few requests under way."""

Answer = Callable[[MemberId, MergeAnswered], None]
ChunkKey = tuple[MemberId, int]
"""Who offered a chunk first, and the number that it had there."""


class MergeWait:
    """A merged chunk whose backups have not all acknowledged; the owner of their replies."""

    __slots__ = ("answered", "key", "sender", "target")

    def __init__(
        self, target: MergeTarget, sender: MemberId, key: ChunkKey, answered: MergeAnswered
    ) -> None:
        self.target = target
        self.sender = sender
        self.key = key
        self.answered = answered

    def take(self, reply: PendingReply) -> None:
        """The backups are decided; a write that failed on them is asked for again."""
        self.target.decided(self, reply.failed)


class MergeTarget:
    """Merges into the partitions of which this member is the primary."""

    def __init__(
        self, ctx: Context, plane: DataPlane, maps: MapService, registry: Registry, answer: Answer
    ) -> None:
        """``answer`` sends to another member, or back to this one."""
        self._ctx = ctx
        self._plane = plane
        self._maps = maps
        self._registry = registry
        self._answer = answer
        self._waiting: dict[ChunkKey, MergeWait] = {}
        self._answers: dict[ChunkKey, MergeAnswered] = {}
        self.failures = 0
        """Entries for which a registered policy raised an error or returned no value."""

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
        key = wait.key
        if self._waiting.pop(key, None) is None:
            return
        if failed:
            again = MergeAnswered(wait.answered.call, False, MergeCounts(), failed)
            self._send(wait.sender, again)
            return
        self._keep(key, wait.answered)
        self._send(wait.sender, wait.answered)

    def _send(self, sender: MemberId, answered: MergeAnswered) -> None:
        if sender == self._ctx.id or self._ctx.is_member(sender):
            self._answer(sender, answered)

    def _keep(self, key: ChunkKey, answered: MergeAnswered) -> None:
        self._answers[key] = answered
        while len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]

    def _refusal(self, message: MergeRequested) -> str:
        """Why the chunk cannot be merged here and now; empty when it can."""
        if not 0 <= message.partition_id < len(self._plane.partitions):
            return "there is no such partition"
        try:
            # However few backups are there: the entries were acknowledged elsewhere.
            self._plane.outgoing.admit(self._plane.partition(message.partition_id), SERVICE, None)
        except (RetryableError, OverloadedError) as error:
            return str(error)
        return ""

    def _merge(self, message: MergeRequested) -> tuple[MergeAnswered, PendingReply]:
        """Merge every entry of a chunk; a damaged chunk counts as discarded from the damage on."""
        reply = PendingReply(None)
        incoming = MapStore()
        try:
            incoming.ingest(message.chunk)
        except SerializationError as error:
            self._ctx.note("split_brain.damaged", "error", map=message.name, problem=str(error))
        keys = list(incoming.records)
        namespace = namespace_of(SERVICE, message.name)
        is_outdated = self._plane.holdings.is_destroyed(namespace, message.generation)
        if is_outdated or self._registry.get(MAP_KIND, message.name) is None:
            # destroyed by the bigger part meanwhile: its data do not come back
            counts = MergeCounts(discarded=len(keys))
            return MergeAnswered(message.call, True, counts), reply
        partition = self._plane.partition(message.partition_id)
        policy = policy_of(self._ctx.settings.structure(MapSettings, message.name).merge_policy)
        hits = dict(zip(keys, message.hits, strict=False))
        tally = dict.fromkeys(MergeCounts.__struct_fields__, 0)
        for key in keys:
            outcome = self._merge_one(partition, message.name, key, incoming, hits, policy, reply)
            tally[outcome] += 1
        return MergeAnswered(message.call, True, MergeCounts(**tally)), reply

    def _merge_one(
        self,
        partition: PartitionReplica,
        name: str,
        key: bytes,
        incoming: MapStore,
        hits: dict[bytes, int],
        policy: MergePolicy,
        reply: PendingReply,
    ) -> str:
        def decide(existing: EntryView | None, merging: EntryView) -> bytes | None:
            if hits:
                merging = msgspec.structs.replace(merging, hits=hits.get(key, 0))
            return self._ask(policy, name, existing, merging)

        return self._maps.merge(partition, name, key, incoming, decide, reply)

    def _ask(
        self, policy: MergePolicy, name: str, existing: EntryView | None, merging: EntryView
    ) -> bytes | None:
        """Ask a policy; one that fails leaves the entry that is there."""
        try:
            value = policy(existing, merging)
        except Exception as error:
            problem = repr(error)
        else:
            if value is None or (isinstance(value, bytes) and len(value) >= 8):
                return value
            problem = f"returned {type(value).__name__}, not a value's Data or None"
        self.failures += 1
        self._ctx.note("split_brain.policy_failed", "warning", map=name, problem=problem)
        return None


def chunk_key(sender: MemberId, message: MergeRequested) -> ChunkKey:
    """By what a chunk is known again, whoever of its offerers sends it."""
    if message.origin is not None:
        return message.origin, message.number
    return sender, message.call
