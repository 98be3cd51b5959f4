"""One member's shares of whole-structure calls, carried out in pieces counted in entries.

A share goes on in the next turn of the loop after so many entries (docs/design/0012). Shares run
one after another, so that the results of one are held at a time. A partition is done as a whole
while we are its primary; one that is not ours any more when its turn comes is not covered, and
whoever asked looks for it elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from whimbrel.core.ids import MemberId, Namespace, split_namespace
from whimbrel.core.jobs import Job
from whimbrel.errors import GridError
from whimbrel.serving.admission import Admission
from whimbrel.serving.hub import Hub
from whimbrel.serving.operations import Operation, Operations, RunShare, Share
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire import errors as codes

TIMER: Final = "serving.shares"
PIECE_ENTRIES: Final = 4_000
"""Entries after which a share goes on in the next turn; a partition counts for one more."""
_OVER: Final = object()

Done = Callable[[Share], None]


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """One member's share of a whole-structure call."""

    operation: str
    namespace: Namespace
    argument: bytes
    partitions: list[int]


class Shares:
    """The shares that this member owes."""

    def __init__(self, hub: Hub, operations: Operations, admission: Admission) -> None:
        self._hub = hub
        self._operations = operations.shares
        self._admission = admission
        self._waiting: deque[tuple[MemberId | None, Job[None]]] = deque()
        """Who asked (None: we), and the work."""

    def execute(self, asker: MemberId | None, asked: Asked, done: Done) -> None:
        """Carry out an operation on own partitions; what is small is done at once."""
        row = self._operations.get((split_namespace(asked.namespace)[0], asked.operation))
        if row is None:
            unknown = f"this member does not know the whole-structure call {asked.operation!r}"
            done(Share([], error=unknown, has_acted=False))
            return
        self._waiting.append((asker, self._work(row, asked, done)))
        self.begin()

    def begin(self) -> None:
        """Do the first piece now, unless the turn of the next one comes anyway."""
        if self._waiting and not self._hub.ctx.is_armed(TIMER):
            self.go_on()

    def go_on(self) -> None:
        """Do the next piece, and those after it in the turns that follow.

        Whoever has not confirmed large answers gets no more before that (see ``Calls.hold``).
        """
        waiting = self._waiting
        for _ in range(len(waiting)):
            asker, job = waiting[0]
            if asker is None or not self._hub.calls.owes_much(asker):
                if next(job, _OVER) is _OVER:
                    waiting.popleft()
                if waiting:
                    self._hub.ctx.arm(TIMER, 0)
                return
            waiting.rotate(-1)

    def _work(self, row: Operation[RunShare], asked: Asked, done: Done) -> Job[None]:
        share = Share([], has_acted=False)

        def finished(failed: dict[int, str]) -> None:
            share.partitions = [pid for pid in share.partitions if pid not in failed]
            done(share)

        group = WriteGroup(finished)
        namespace, argument = asked.namespace, asked.argument
        name = split_namespace(namespace)[1].encode()
        left = 0
        try:
            for at, pid in enumerate(asked.partitions):
                if left <= 0:
                    if at:
                        yield
                    left = PIECE_ENTRIES
                    if row.is_guarded:
                        self._admission.admit_named(row, name)
                partition = self._hub.dataplane.partitions[pid]
                is_ours = partition.writable if row.is_write else partition.readable
                seen = row.run(share, partition, namespace, argument, group) if is_ours else None
                if seen is not None:
                    share.partitions.append(pid)
                left -= 1 + (seen or 0)
        except GridError as error:
            share.error, share.code = str(error), codes.code_of(error)
        share.has_acted = share.count > 0
        group.close()
