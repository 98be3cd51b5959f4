"""Several writes that are answered together, when the backups of all of them have them."""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.replication.outbox import PendingReply


class WriteGroup:
    """Writes to several partitions that are done when the backups of all have them."""

    __slots__ = ("_done", "_waiting", "failed")

    def __init__(self, done: Callable[[dict[int, str]], None]) -> None:
        self._done = done
        self._waiting = 1
        self.failed: dict[int, str] = {}
        """Partitions whose write failed, with the reason."""

    def reply(self) -> PendingReply:
        """A reply to hand to a write of the group."""
        return PendingReply(self)

    def expect(self, reply: PendingReply) -> None:
        """Wait for a write if it waits for anything."""
        if reply.remaining > 0:
            self._waiting += 1

    def take(self, reply: PendingReply) -> None:
        """A write is decided."""
        if reply.failed:
            self.failed[reply.partition_id] = reply.failed
        self.close()

    def close(self) -> None:
        """One write, or the adding of writes, has ended."""
        self._waiting -= 1
        if not self._waiting:
            self._done(self.failed)
