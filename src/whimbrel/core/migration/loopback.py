"""Posting control messages: to others through the shell, to ourselves through a short queue.

So the master takes the same path when it is itself source, destination or promoted member, and
there is one implementation of every step.
"""

from __future__ import annotations

from collections import deque

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import Message


class Loopback:
    """Outgoing messages of the migration room; those to ourselves go to ``inbox``, which is drained
    at the end of each step.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.inbox: deque[tuple[str, Message]] = deque()
        """(cause, message) for ourselves; at most the migrations one member may run plus a few."""

    def post(self, to: MemberId, message: Message) -> None:
        """Send to a member, ourselves included; one that has left the list gets nothing."""
        if to == self._ctx.id:
            self.inbox.append((self._ctx.cause, message))
        elif self._ctx.is_member(to):
            self._ctx.send(to, message)
