"""The waiting part of a plan: which step may start next.

One queue per partition, in plan order (PIM-22). The head of a queue waits in the heap of its
pair of endpoints (data source, destination). A member takes part in at most ``parallel_max``
migrations, as source and destination together (PIM-24, PIM-25). Among the heads that may
start, refilling comes before comfort (PIM-27), then the pair whose links carry least, then the
turn of the partition, then the lower partition id.

A permit says nothing of direction: without the links' load a member may spend all of its permits on
sending while nothing comes in, and a crash is repaired a sixth slower. Turns mix new primaries and
new backups, so that a plan which is dropped half-way leaves a newcomer with both in proportion: one
that had become primary of all it holds could be relieved of that only by further copies. Nobody
starves: a step waits only for steps of its plan, and each of those starts once. Finding the next
one looks only at pairs of members whose load has changed, never at all partitions.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence

from whimbrel.core.check import check
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.model import MigrationKind, Step

Pair = tuple[MemberId, MemberId]
"""Data source and destination."""
Rank = tuple[int, int, int, PartitionId]
"""Failed before, refilling or not, turn, partition id; the smallest starts first."""
Order = tuple[int, int, int, int, int, PartitionId]
"""A rank with the load of the pair's links before the turn."""
QUEUES_FILLED = 512
"""Partitions whose steps are taken in one piece of loading, about 3 us each."""
TURNS = 1 << 32
"""The turns of one sort of steps lie evenly between 0 and this."""


class PlanQueue:
    """Steps that have not started, and the load of every member.

    Args:
        parallel_max: Migrations a member takes part in at once; may be set while others wait.
        primary_of: The present primary of a partition, which is the data source of its next
            step; None when it has none, and its steps then wait to be dropped.
    """

    def __init__(
        self, parallel_max: int, primary_of: Callable[[PartitionId], MemberId | None]
    ) -> None:
        check(parallel_max > 0, "at least one migration may run")
        self.parallel_max = parallel_max
        self._primary_of = primary_of
        self._queues: dict[PartitionId, deque[Step]] = {}
        self._heads: dict[Pair, list[Rank]] = {}
        self._pairs_of: dict[MemberId, dict[Pair, None]] = {}
        self._sending: dict[MemberId, int] = {}
        self._taking: dict[MemberId, int] = {}
        self._touched: dict[MemberId, None] = {}
        self._turns: dict[PartitionId, int] = {}
        self._clears: deque[PartitionId] = deque()
        self._late: Collection[PartitionId | MemberId] = ()
        self.waiting_count = 0
        """Steps that have not started."""

    # -- filling and emptying -------------------------------------------------------------

    def loading(
        self,
        plan: Sequence[tuple[PartitionId, Sequence[Step]]],
        late: Collection[PartitionId | MemberId] = (),
    ) -> Job[None]:
        """Take a plan; nothing may wait any more, and nothing be taken before all is loaded.

        Args:
            plan: The steps of each partition that has some.
            late: Partitions and members with a recent failure: their steps come last, so that
                a bad endpoint does not hold up the rest.
        """
        check(self.waiting_count == 0, "the former plan has ended or was dropped")
        self._late = late
        for number, (pid, steps) in enumerate(plan, 1):
            self._queues[pid] = deque(steps)
            self.waiting_count += len(steps)
            if not number % QUEUES_FILLED:
                yield
        self._turns = self._mix(plan)
        yield
        for number, pid in enumerate(list(self._queues), 1):
            self._offer(pid)
            if not number % QUEUES_FILLED:
                yield

    def _mix(self, plan: Sequence[tuple[PartitionId, Sequence[Step]]]) -> dict[PartitionId, int]:
        """The turn of each partition: those with one pair and role are spread over the plan."""
        alike: dict[tuple[MemberId | None, MemberId | None, bool], list[PartitionId]] = {}
        for pid, steps in plan:
            step = steps[0]
            sort = (self._primary_of(pid), step.destination, step.destination_new == 0)
            alike.setdefault(sort, []).append(pid)
        return {
            pid: (2 * position + 1) * TURNS // (2 * len(pids))
            for pids in alike.values()
            for position, pid in enumerate(pids)
        }

    def drop(self) -> None:
        """Forget all that waits. The load stays."""
        self._queues.clear()
        self._heads.clear()
        self._pairs_of.clear()
        self._touched.clear()
        self._clears.clear()
        self.waiting_count = 0

    def _offer(self, pid: PartitionId) -> None:
        """Make the head of a partition's queue wait for its endpoints."""
        queue = self._queues[pid]
        if not queue:
            del self._queues[pid]
            return
        step, source = queue[0], self._primary_of(pid)
        if step.kind is MigrationKind.CLEAR:
            self._clears.append(pid)
            return
        destination = step.destination
        if source is None or destination is None:
            return
        pair = (source, destination)
        heap = self._heads.setdefault(pair, [])
        late = pid in self._late or destination in self._late or source in self._late
        heapq.heappush(heap, (int(late), 0 if step.is_refill else 1, self._turns[pid], pid))
        for member in pair:
            self._pairs_of.setdefault(member, {})[pair] = None
            self._touched[member] = None

    # -- starting and ending --------------------------------------------------------------

    def take_clear(self) -> tuple[PartitionId, Step] | None:
        """The next CLEAR that is at the head of its queue; it needs no endpoints.

        The caller applies it and then calls ``proceed``.
        """
        if not self._clears:
            return None
        pid = self._clears.popleft()
        self.waiting_count -= 1
        return pid, self._queues[pid].popleft()

    def take(self) -> tuple[PartitionId, Step] | None:
        """The next migration that may start, its endpoints' load booked; None when none may."""
        best: Order | None = None
        chosen: Pair | None = None
        for member in list(self._touched):
            found = self._best_of(member)
            if found is None:
                del self._touched[member]  # until its load or its heads change
            elif best is None or found[0] < best:
                best, chosen = found
        if best is None or chosen is None:
            return None
        pid = best[-1]
        heap = self._heads[chosen]
        heapq.heappop(heap)
        if not heap:
            del self._heads[chosen]
            for member in chosen:
                del self._pairs_of[member][chosen]
        source, destination = chosen
        self._sending[source] = self._sending.get(source, 0) + 1
        self._taking[destination] = self._taking.get(destination, 0) + 1
        self.waiting_count -= 1
        return pid, self._queues[pid].popleft()

    def _best_of(self, member: MemberId) -> tuple[Order, Pair] | None:
        """The first head of a member that may start now."""
        if self._is_full(member):
            return None
        best: tuple[Order, Pair] | None = None
        for pair in self._pairs_of.get(member, ()):
            other = pair[1] if pair[0] == member else pair[0]
            if self._is_full(other):
                continue
            late, comfort, turn, pid = self._heads[pair][0]
            sending = self._sending.get(pair[0], 0)
            taking = self._taking.get(pair[1], 0)
            order = (late, comfort, max(sending, taking), sending + taking, turn, pid)
            if best is None or order < best[0]:
                best = (order, pair)
        return best

    def _is_full(self, member: MemberId) -> bool:
        return self._sending.get(member, 0) + self._taking.get(member, 0) >= self.parallel_max

    def release(self, source: MemberId, destination: MemberId) -> None:
        """A migration between these members has ended."""
        for member, load in ((source, self._sending), (destination, self._taking)):
            left = load.get(member, 0) - 1
            check(left >= 0, "a member's load is released once per migration")
            load[member] = left
            self._touched[member] = None

    def proceed(self, pid: PartitionId) -> None:
        """A step of the partition has succeeded: its next one may start."""
        if pid in self._queues:
            self._offer(pid)
