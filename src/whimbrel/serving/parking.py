"""Requests that cannot run now: their partition migrates, or nobody is known to own it.

Parking spares the client the whole second that it pauses after a retryable error
(docs/design/0001, decision 1). The lot is bounded by count, bytes and time; what does not fit or
stays too long is the caller's to refuse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from whimbrel.core.ids import PartitionId
from whimbrel.serving.session import Request

PARKED_MAX = 20_000
"""Most requests parked at once in one member."""
PARKED_BYTES_MAX = 128 * 1024 * 1024
"""Most bytes of parked requests; the first one may always park."""


class ParkingLot:
    """Parked requests by partition, in order of arrival."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._by_partition: dict[PartitionId, deque[Request]] = {}
        self.count = 0
        self.bytes = 0
        self.parked_total = 0

    def park(self, request: Request, now_us: int) -> bool:
        """Keep a request; False when the lot is full. The first parking sets its deadline."""
        if self.count and (
            self.count >= PARKED_MAX or self.bytes + len(request.data) > PARKED_BYTES_MAX
        ):
            return False
        if not request.deadline_us:
            request.deadline_us = now_us + self._timeout_us
            if request.wait is not None:
                request.deadline_us = min(request.deadline_us, request.wait.deadline_us)
        self._by_partition.setdefault(request.partition, deque()).append(request)
        self.count += 1
        self.bytes += len(request.data)
        self.parked_total += 1
        return True

    def take(self, partitions: Iterable[PartitionId]) -> list[Request]:
        """Take out all requests of these partitions, in order."""
        taken: list[Request] = []
        if not self.count:
            return taken
        for partition in partitions:
            queue = self._by_partition.pop(partition, None)
            if queue is not None:
                taken.extend(queue)
        self._forget(taken)
        return taken

    def partitions(self, wanted: Callable[[PartitionId], bool]) -> list[PartitionId]:
        """Those partitions with parked requests that ``wanted`` says yes to."""
        return [partition for partition in self._by_partition if wanted(partition)]

    def take_expired(self, now_us: int) -> list[Request]:
        """Take out the requests whose deadline has passed."""
        return self.take_where(lambda request: request.deadline_us <= now_us)

    def take_where(self, wanted: Callable[[Request], bool]) -> list[Request]:
        """Take out the requests that ``wanted`` says yes to."""
        if not self.count:
            return []
        taken: list[Request] = []
        for partition, queue in list(self._by_partition.items()):
            found = {request: None for request in queue if wanted(request)}
            if not found:
                continue
            taken.extend(found)
            rest = deque(request for request in queue if request not in found)
            if rest:
                self._by_partition[partition] = rest
            else:
                del self._by_partition[partition]
        self._forget(taken)
        return taken

    def _forget(self, requests: list[Request]) -> None:
        self.count -= len(requests)
        for request in requests:
            self.bytes -= len(request.data)
