"""Who waits for what at this member as the primary: calls of our clients, and those of others.

Of a call that waits at another member we have a *hint*: its number there, to wake it by. A hint is
bounded, and forgotten with its member, with the partition, and when nobody has told it again for a
while. One that was woken stands until its next attempt is here; if that will not come, somebody
else is woken in its place, so that nothing lies about while somebody waits for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.wakes import Wakes
from whimbrel.errors import OverloadedError
from whimbrel.serving.session import Place, Request

HINTS_PER_KEY_MAX: Final = 10_000
"""Calls of others that wait for one thing; an insertion moves this many references at most."""
HINTS_PER_MEMBER_MAX: Final = 100_000
"""Calls that one member may have wait at us: as many as may wait there."""
HINT_US: Final = 20_000_000
"""A hint that is not told again for so long is forgotten: two of the times after which it is."""


@dataclass(slots=True, eq=False)
class Hint:
    """A call that waits at another member."""

    partition: PartitionReplica
    namespace: Namespace
    key: bytes
    place: Place
    member: MemberId
    number: int
    told_us: int
    is_woken: bool = False


_Queue = list[tuple[int, int, Request | Hint]]
"""By place; no two places are the same, so nothing behind them is ever compared."""


def _place_of(waiter: tuple[int, int, Request | Hint]) -> Place:
    return waiter[:2]


class WaitQueues:
    """Those who wait, by what they wait for, the longest waiting first."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._queues: dict[PartitionId, dict[tuple[Namespace, bytes], _Queue]] = {}
        self._hints: dict[MemberId, dict[int, Hint]] = {}
        self._told: deque[Hint] = deque()
        """In the order in which they were told; forgotten ones among them."""
        self._number = 0

    def next_number(self) -> int:
        """Greater than all before: of two that came at once the first is first."""
        self._number += 1
        return self._number

    @property
    def hint_count(self) -> int:
        """Calls of other members that are remembered."""
        return sum(map(len, self._hints.values()))

    # -- calls of our clients -------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A call of a client of ours waits for something of a partition of ours."""
        wait = request.wait
        if wait is not None:
            queue = self._queue(request.partition, wait.namespace, wait.key)
            insort(queue, (request.since_us, wait.order, request))

    def remove(self, request: Request) -> None:
        """It is tried, or over; harmless when it does not stand here."""
        wait = request.wait
        if wait is not None:
            place = (request.since_us, wait.order)
            self._take_out(request.partition, wait.namespace, wait.key, place)

    # -- calls of others ------------------------------------------------------------------

    def remember(self, hint: Hint) -> None:
        """A call waits at another member.

        Raises:
            OverloadedError: Too many wait for the same, or too many of that member.
        """
        self.come(hint.member, hint.number)  # of a process before it, under the same identity
        hints = self._hints.setdefault(hint.member, {})
        queue = self._queue(hint.partition.pid, hint.namespace, hint.key)
        if len(queue) >= HINTS_PER_KEY_MAX:
            raise OverloadedError(f"{len(queue)} calls wait for the same already")
        if len(hints) >= HINTS_PER_MEMBER_MAX:
            raise OverloadedError(f"{len(hints)} calls of one member wait here already")
        hints[hint.number] = hint
        insort(queue, (*hint.place, hint))
        self._told.append(hint)

    def come(self, member: MemberId, number: int) -> Place | None:
        """The next attempt of a call is here; its place, if we remember it."""
        hint = self._hints.get(member, {}).pop(number, None)
        if hint is None:
            return None
        self._leave_queue(hint)
        return hint.place

    def forget(self, member: MemberId, numbers: Iterable[int]) -> list[int]:
        """Calls of a member wait no more; those of them that we do not remember."""
        hints = self._hints.get(member, {})
        unknown = []
        for number in numbers:
            hint = hints.get(number)
            if hint is None:
                unknown.append(number)
            else:
                self._drop(hint)
        return unknown

    def woken_of(self, member: MemberId) -> list[Hint]:
        """Calls of a member that were woken and whose next attempt is not here."""
        return [hint for hint in self._hints.get(member, {}).values() if hint.is_woken]

    def member_left(self, member: MemberId) -> None:
        """A member is off the list."""
        for hint in list(self._hints.get(member, {}).values()):
            self._drop(hint)
        self._hints.pop(member, None)

    def forget_old(self, now_us: int) -> None:
        """Forget what was not told again in time."""
        told, before_us = self._told, now_us - HINT_US
        while told and told[0].told_us <= before_us:
            hint = told.popleft()
            if self._hints.get(hint.member, {}).get(hint.number) is hint:
                self._drop(hint)

    # -- waking ---------------------------------------------------------------------------

    def take_oldest(
        self, pid: PartitionId, namespace: Namespace, key: bytes
    ) -> Request | Hint | None:
        """Whoever waits longest for this and is not woken yet; it stands in no queue any more."""
        queue = self._queues.get(pid, {}).get((namespace, key))
        if not queue:
            return None
        waiter = queue[0][2]
        self._take_out(pid, namespace, key, queue[0][:2])
        if isinstance(waiter, Hint):
            waiter.is_woken = True
        return waiter

    def take_all(self, wanted: Namespace) -> list[Hint]:
        """The calls of others that wait for anything of a structure; all are woken now."""
        hints = [
            hint
            for hints in self._hints.values()
            for hint in hints.values()
            if hint.namespace == wanted and not hint.is_woken
        ]
        for hint in hints:
            self._leave_queue(hint)
            hint.is_woken = True
        return hints

    def wake_first(self, partition: PartitionReplica) -> None:
        """Whatever is waited for in a partition, let the first of each look."""
        for namespace, key in self._queues.get(partition.pid, {}):
            self._wakes.wake(partition, namespace, key)

    def leave(self, pid: PartitionId) -> None:
        """We are not the primary of a partition any more: whoever waits turns to its new one."""
        for queue in self._queues.pop(pid, {}).values():
            for _, _, waiter in queue:
                if isinstance(waiter, Hint):
                    self._hints[waiter.member].pop(waiter.number, None)

    # -- queues ---------------------------------------------------------------------------

    def _queue(self, pid: PartitionId, namespace: Namespace, key: bytes) -> _Queue:
        return self._queues.setdefault(pid, {}).setdefault((namespace, key), [])

    def _take_out(self, pid: PartitionId, namespace: Namespace, key: bytes, place: Place) -> None:
        queues = self._queues.get(pid, {})
        queue = queues.get((namespace, key))
        if queue is None:
            return
        at = bisect_left(queue, place, key=_place_of)
        if at < len(queue) and queue[at][:2] == place:
            del queue[at]
        if not queue:
            del queues[namespace, key]
            if not queues:
                del self._queues[pid]

    def _leave_queue(self, hint: Hint) -> None:
        if not hint.is_woken:
            self._take_out(hint.partition.pid, hint.namespace, hint.key, hint.place)

    def _drop(self, hint: Hint) -> None:
        """A call will not be tried here again; what it was woken for is somebody else's."""
        del self._hints[hint.member][hint.number]
        self._leave_queue(hint)
        if hint.is_woken:
            self._wakes.wake(hint.partition, hint.namespace, hint.key)
