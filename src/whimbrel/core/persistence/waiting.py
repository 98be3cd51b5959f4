"""Who waits for the disk: replies, acknowledgements, and whoever must not go on before.

What is gathered is a *lot* until it leaves as a work; whoever waits, waits for a lot. One lot is
under way at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whimbrel.core.replication.outbox import FAILED_TIMEOUT, PendingReply


class Waiting:
    """Everybody who waits for the disk of one member.

    Attributes:
        replies: Of the lot that is gathered; the hot path appends to it.
        is_waited_for: Whether anybody waits for it, replies or not.
        under_way: The lot that is under way, 0 for none.
    """

    def __init__(self, completed: Callable[[], list[PendingReply]]) -> None:
        """``completed`` gives where replies go that are decided."""
        self._completed = completed
        self.replies: list[PendingReply] = []
        self.is_waited_for = False
        self.under_way = 0
        self._lot = 1
        """The one that is gathered."""
        self._since_us = 0
        """When the one under way left."""
        self._sent: list[PendingReply] = []
        """Replies that wait for it."""
        self._is_sent_waited_for = False
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._held: deque[tuple[int, Callable[[bool], None]]] = deque()
        """Acknowledgements, which are told whether all was kept."""

    def when_durable(self, then: Callable[[], None], *, is_gathered: bool) -> None:
        """Call this once the lot under way is durable, or the next one if something is gathered."""
        if is_gathered:
            self._waiters.append((self._lot, then))
        elif self.under_way:
            self._waiters.append((self.under_way, then))
        else:
            then()

    def hold_back(self, then: Callable[[bool], None], *, must_wait: bool) -> bool:
        """Keep an acknowledgement until all that it covers is durable; False: it may go.

        They are cumulative, so one that covers nothing of the kind waits for those before it.
        """
        if self.is_waited_for or must_wait:
            self._held.append((self._lot, then))
        elif self._held:
            self._held.append((self._held[-1][0], then))
        elif self._is_sent_waited_for:
            self._held.append((self.under_way, then))
        else:
            return False
        return True

    def leave(self, now_us: int) -> None:
        """What is gathered leaves."""
        self._sent, self.replies = self.replies, []
        self._is_sent_waited_for, self.is_waited_for = self.is_waited_for, False
        self.under_way, self._lot = self._lot, self._lot + 1
        self._since_us = now_us

    def done(self) -> None:
        """The lot under way is carried out, and durable if anybody waits for that."""
        lot, replies = self.under_way, self._sent
        self.under_way, self._sent, self._is_sent_waited_for = 0, [], False
        completed = self._completed()
        for reply in replies:
            reply.release(completed)
        while self._held and self._held[0][0] <= lot:
            self._held.popleft()[1](True)
        while self._waiters and self._waiters[0][0] <= lot:
            self._waiters.popleft()[1]()

    def refuse(self, reason: str) -> None:
        """The disk takes nothing: replies fail, acknowledgements say so; others wait on."""
        self._sent += self.replies
        self.replies = []
        self._fail(reason)
        while self._held:
            self._held.popleft()[1](False)

    def expire(self, before_us: int) -> int:
        """Fail replies whose lot left before that moment; returns how many."""
        if not self.under_way or self._since_us > before_us:
            return 0
        return self._fail(FAILED_TIMEOUT)

    def _fail(self, reason: str) -> int:
        failed = [reply for reply in self._sent if reply.fail(reason)]
        self._sent = []
        self._completed().extend(failed)
        return len(failed)
