"""Protections of queues: what makes it safe to repeat a call."""

from __future__ import annotations

from whimbrel.core.ids import Attempt
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug
from whimbrel.structures.queue.service import QueueService
from whimbrel.structures.queue.store import QueueStore


class StoreThatKeepsCalls(QueueStore):
    """Remembers calls and tells nobody."""

    def remember(self, attempt: Attempt, answer: bytes, operation: bytes) -> bytes:
        """See ``QueueStore.remember``."""
        super().remember(attempt, answer, operation)
        return operation


def calls_remembered_by_all(engine: Engine) -> None:
    """A primary that takes over does not know which calls the one before it has carried out, so a
    call that is repeated offers its item twice, or takes a second one.
    """
    service = engine.member.service(QueueService)
    holdings = engine.member.dataplane.holdings
    holdings.register(service.kind_name, lambda _: StoreThatKeepsCalls(holdings.deferred.take))


GUARDS: tuple[Bug, ...] = (
    Bug(calls_remembered_by_all, "kill", ("D5", "D3", "D9"), kinds=("queue",)),
)
