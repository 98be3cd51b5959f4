"""The room that brings what an earlier incarnation held into the cluster (FN-15).

    next incarnation                              primary of the partition
      | joins, tells structures and schemas           |
      | MergeRequested(call, structure, chunk) ------>|  the kind's merge, backups
      |<------------- MergeAnswered(call, counts) ----|
      | ... at most IN_FLIGHT_MAX chunks, one per fragment, each repeated until it is answered

Knows leftovers, chunks and counts. What is in a chunk, and what becomes of it at the primary
(``target``), is the affair of the structure's kind. What cannot be merged any more is reported with
its number of entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import astuple

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, split_namespace
from whimbrel.core.kinds import StructureService
from whimbrel.core.merging.leftovers import Leftover, Offer, SplitData
from whimbrel.core.merging.target import MergeTarget
from whimbrel.core.messages import MergeAnswered, MergeCounts, MergeRequested, Message
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.registry import Registry
from whimbrel.core.replication.dataplane import DataPlane

STEP_TIMER = "merging.step"
STEP_US = 200_000
"""Pause before a refused chunk is offered again."""
IN_FLIGHT_MAX = 4
"""Chunks under way at once."""
CHUNK_BYTES_MAX = 65_536
"""A chunk ends with the entry that reaches this size."""
DRAIN_TIMEOUT_US = 60_000_000
"""A leave waits for the merge while it makes progress within this time."""


@dataclass(slots=True, eq=False)
class _Piece:
    """A chunk under way."""

    leftover: Leftover
    offer: Offer
    is_refused: bool = False
    sent_us: int = 0


class Merging:
    """Merges leftovers, and answers for the totals of this incarnation.

    Attributes:
        totals: What became of the entries, by structure.
        lost: Entries that could not be merged and are gone.
        on_others_answered: Told of answers to chunks that are not offered here.
        on_done: Called once when the last entry is merged, if somebody waits for that.
    """

    def __init__(
        self,
        ctx: Context,
        plane: DataPlane,
        services: Mapping[str, StructureService],
        registry: Registry,
        table: PartitionTable,
    ) -> None:
        self._ctx = ctx
        self._deferred = plane.holdings.deferred
        self._registry = registry
        self._table = table
        self._services = services
        self.target = MergeTarget(ctx, plane, services, registry, self._answer)
        self.totals: dict[Namespace, MergeCounts] = {}
        self.lost = 0
        self.on_done: Callable[[], None] | None = None
        self.on_others_answered: Callable[[MergeAnswered], None] = lambda _answered: None
        self._waiting: deque[Leftover] = deque()
        self._active: dict[int, _Piece] = {}
        self._adopted = True
        self._entries: SplitData | None = None
        self._progress_us = 0
        self._cause = ""

    # -- looking --------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether entries wait to be merged."""
        return bool(self._waiting or self._active)

    @property
    def remaining(self) -> int:
        """Entries that are not merged yet."""
        active = sum(piece.leftover.remaining for piece in self._active.values())
        return active + sum(leftover.remaining for leftover in self._waiting)

    # -- life -----------------------------------------------------------------------------

    def take_over(self, data: SplitData) -> None:
        """Keep what the incarnation before left, until we are in a cluster."""
        self._entries = data
        self._waiting.extend(data.leftovers)

    def joined(self) -> None:
        """We are in a cluster: tell what structures and schemas there were, then merge."""
        data, self._entries = self._entries, None
        self._cause = self._ctx.cause
        if data is None or not (data.leftovers or data.entries):
            return
        self._ctx.note(
            "split_brain.merging", entries=data.entry_count, fragments=len(data.leftovers)
        )
        self._adopted = not self._registry.adopt(data.entries)
        self._progress_us = self._ctx.now_us
        self._ctx.arm(STEP_TIMER, 0)

    def hand_over(self) -> list[Leftover]:
        """What is left, for the incarnation after this one.

        A chunk under way is offered again as the same, so that whoever has decided it knows it.
        """
        left = list(self._waiting)
        for call, piece in self._active.items():
            message = piece.offer.message
            if message.origin is None:
                message = msgspec.structs.replace(message, origin=self._ctx.id, number=call)
            piece.leftover.offer = Offer(message, piece.offer.asked)
            left.append(piece.leftover)
        self._waiting.clear()
        self._active.clear()
        return [leftover for leftover in left if leftover.remaining]

    def abandon(self, reason: str) -> None:
        """The member ends: what is not merged is lost, and that is said."""
        left = self.remaining
        if left:
            self.lost += left
            self._waiting.clear()
            self._active.clear()
            self._ctx.note("split_brain.lost", "error", entries=left, reason=reason)

    # -- steps ----------------------------------------------------------------------------

    def on_timer(self, key: str) -> None:
        """Go on; offer again what was refused or not answered."""
        if not self.is_active:
            self._finish()
            return
        ctx = self._ctx
        ctx.resume(self._cause)
        if not self._adopted:
            # entries of a structure that the primary has not heard of would count as destroyed
            self._adopted = not self._registry.announcing_count()
        if self._adopted:
            for piece in list(self._active.values()):
                age_us = ctx.now_us - piece.sent_us
                if piece.is_refused or age_us >= ctx.settings.call_timeout_us:
                    self._send(piece)
            self._fill()
        if self.on_done is not None and ctx.now_us - self._progress_us > DRAIN_TIMEOUT_US:
            self.abandon("the member was told to leave and the merge made no progress")
            self._finish()
        elif self.is_active:
            ctx.arm(STEP_TIMER, STEP_US)

    def _fill(self) -> None:
        while self._waiting and len(self._active) < IN_FLIGHT_MAX:
            leftover = self._waiting.popleft()
            call = self._ctx.next_number()
            if leftover.offer is not None:
                offer, leftover.offer = leftover.offer.again(call), None
            else:
                offer = Offer(self._next_request(call, leftover))
            piece = self._active[call] = _Piece(leftover, offer)
            self._send(piece)

    def _next_request(self, call: int, leftover: Leftover) -> MergeRequested:
        service = self._services[split_namespace(leftover.namespace)[0]]
        chunk, entries = service.leftover_chunk(leftover.store, leftover.cursor, CHUNK_BYTES_MAX)
        return MergeRequested(
            call, leftover.partition_id, leftover.namespace, chunk, entries, leftover.generation
        )

    def _send(self, piece: _Piece) -> None:
        """Offer a chunk to the present primary; without one it waits for the next step.

        Whoever was asked and has not answered is asked again first, primary or not: it may have
        decided, and another one would decide once more.
        """
        ctx, offer = self._ctx, piece.offer
        if offer.asked is None or not ctx.is_member(offer.asked):
            offer.asked = self._table.row(piece.leftover.partition_id)[0]
        if offer.asked is None or not ctx.is_member(offer.asked):
            piece.is_refused = True
            return
        piece.is_refused = False
        piece.sent_us = ctx.now_us
        if offer.asked == ctx.id:
            self.target.on_requested(ctx.id, offer.message)
        else:
            ctx.send(offer.asked, offer.message)

    def on_message(self, sender: MemberId, message: Message) -> None:
        """Take MergeRequested or MergeAnswered."""
        if isinstance(message, MergeRequested):
            self.target.on_requested(sender, message)
        elif isinstance(message, MergeAnswered):
            self._answered(message)

    def _answer(self, sender: MemberId, answered: MergeAnswered) -> None:
        if sender == self._ctx.id:
            self._answered(answered)
        else:
            self._ctx.send(sender, answered)

    def _answered(self, answered: MergeAnswered) -> None:
        piece = self._active.get(answered.call)
        if piece is None:
            self.on_others_answered(answered)
            return
        if not answered.accepted:
            piece.is_refused = True
            piece.offer.asked = None
            return
        del self._active[answered.call]
        leftover = piece.leftover
        leftover.remaining -= piece.offer.message.entries
        self._progress_us = self._ctx.now_us
        before = self.totals.get(leftover.namespace, MergeCounts())
        pairs = zip(astuple(before), astuple(answered.counts), strict=True)
        self.totals[leftover.namespace] = MergeCounts(*map(sum, pairs))
        if leftover.remaining:
            self._waiting.append(leftover)
        else:
            self._deferred.take(leftover.store.release())
        if self.is_active:
            self._ctx.arm(STEP_TIMER, 0)
        else:
            self._finish()

    def _finish(self) -> None:
        """Say what became of every structure's entries, which is named under its kind."""
        self._ctx.disarm(STEP_TIMER)
        for namespace in sorted(self.totals):
            counts = self.totals[namespace]
            level = "warning" if counts.discarded or counts.replaced else "info"
            kind, name = split_namespace(namespace)
            fields = {kind: name, **msgspec.structs.asdict(counts)}
            self._ctx.note("split_brain.merged", level, **fields)
        done, self.on_done = self.on_done, None
        if done is not None:
            done()
