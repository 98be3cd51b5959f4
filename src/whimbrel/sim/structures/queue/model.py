"""The queue in a run: what is called, and what the answers mean.

Clients offer, poll, drain and look at two queues, one of which takes a few items only, so that both
kinds of waiting occur; a third one is written in floods and destroyed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from whimbrel.core.merging.past import Past
from whimbrel.core.replication.fragments import Store
from whimbrel.sim.entropy import pick
from whimbrel.sim.history import Ledger, Operation, Outcome, Reply
from whimbrel.sim.items import PRODUCER, code_of, item_data
from whimbrel.sim.model import StructureModel
from whimbrel.sim.structures.configured import BOUNDED_QUEUE
from whimbrel.sim.structures.queue.ledger import (
    QueueLedger,
    QueueOperation,
    QueueRead,
    store_of,
)
from whimbrel.sim.world import ClientProcess, World
from whimbrel.structures.queue.answered import Record
from whimbrel.structures.queue.record import ID_BYTES, item_id, read_head, read_items

QUEUE = "sim.queue"
SCRATCH_QUEUE = "sim.scratch-queue"
SCRATCH_OFFERS = 6
"""Offers to the scratch queue before it is destroyed."""
WEIGHTS = {"offer": 45, "poll": 40, "drain": 5, "iterate": 10}
WAITS_MS = (0, 0, 300, 3_000)
"""Time-outs of offers and polls."""
DRAINED_MAX = 4
WAITED = "a call waits for a queue and is served"


@dataclass(frozen=True, slots=True)
class Content:
    """What equal replicas of a queue have in common."""

    items: tuple[bytes, ...]
    past: Past
    calls: tuple[tuple[int, Record], ...] = ()
    """Those that are remembered, with their places."""

    def __len__(self) -> int:
        return len(self.items)

    def values(self) -> list[bytes]:
        """The items without their ids."""
        return [item[ID_BYTES:] for item in self.items]


NOTHING = Content((), Past(1, ()))


class QueueModel(StructureModel):
    """Draws calls on queues and books their answers."""

    kind = "queue"
    service_name = "hz:impl:queueService"
    names = (QUEUE, BOUNDED_QUEUE)
    doomed_name = SCRATCH_QUEUE

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._random: random.Random = world.entropy.of("workload-queue")
        self._queues = [self._begin(name, is_judged=True) for name in self.names]
        self._scratch = self._begin(SCRATCH_QUEUE, is_judged=False)
        self._sent: dict[int, int] = {}
        """Producer to the number of its items so far."""

    def _begin(self, name: str, *, is_judged: bool) -> QueueLedger:
        plan = self.world.plan
        count = plan.settings.partition_count
        ledger = QueueLedger(name, plan.seed, count, is_judged=is_judged)
        self.world.history.add(ledger)
        return ledger

    # -- calls ----------------------------------------------------------------------------

    def draw(self, client: ClientProcess) -> Operation:
        """Any call on one of the two queues."""
        ledger = pick(self._random, self._queues)
        (kind,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind == "iterate":
            return self.read(client, ledger)
        if kind == "offer":
            return self._offer(client, ledger, client.index + 1, pick(self._random, WAITS_MS))
        operation = QueueOperation(client.name, kind, ledger, self.world.now_us)
        if kind == "poll":
            operation.timeout_ms = pick(self._random, WAITS_MS)
        else:
            operation.count_max = self._random.randint(1, DRAINED_MAX)
        ledger.begin(operation)
        return operation

    def read(self, client: ClientProcess, ledger: Ledger) -> QueueRead:
        """A look at all items."""
        return QueueRead(client.name, _queue(ledger), self.world.now_us)

    def write(self, client: ClientProcess, ledger: Ledger) -> QueueOperation:
        """An offer that has no order with others of its client."""
        return self._offer(client, _queue(ledger), 0, 0)

    def _offer(
        self, client: ClientProcess, ledger: QueueLedger, producer: int, timeout_ms: int
    ) -> QueueOperation:
        plan = self.world.plan
        operation = QueueOperation(client.name, "offer", ledger, self.world.now_us)
        number = self._sent[producer] = self._sent.get(producer, 0) + 1
        operation.code = producer * PRODUCER + number
        padding = self._random.randrange(plan.value_bytes_max)
        operation.item = item_data(plan.seed, operation.code, padding)
        operation.timeout_ms = timeout_ms
        ledger.begin(operation)
        return operation

    def draw_target(self) -> Ledger:
        """The queue without a limit."""
        return self._queues[0]

    def draw_doomed(self) -> list[Ledger]:
        """The scratch queue."""
        return [self._scratch] * SCRATCH_OFFERS

    def doom(self) -> Callable[[], None]:
        """What the scratch queue holds now must be gone then; what comes later is another one."""
        doomed = self._scratch
        doomed.doomed = tuple(doomed.owed)
        self._scratch = self._begin(SCRATCH_QUEUE, is_judged=False)

        def gone() -> None:
            self.world.history.destroyed[doomed] = None

        return gone

    def final_reads(self) -> list[Ledger]:
        """The two queues."""
        return list(self._queues)

    # -- answers --------------------------------------------------------------------------

    def ended(self, operation: Operation, reply: Reply) -> None:
        """Book what was taken in, or returned."""
        if not isinstance(operation, QueueOperation):
            raise TypeError(f"{operation!r} is no call on a queue")
        seed = self.world.plan.seed
        if isinstance(reply.answer, list):
            operation.codes = [code_of(seed, item) for item in reply.answer]
        operation.is_accepted = reply.answer is True
        ledger = operation.ledger
        if operation.codes:
            operation.seen = ledger.number_of(operation.codes[-1])
        if operation.is_read:
            return
        if ledger is not self._scratch or reply.attempts == 1:
            ledger.ended(operation)
        self.world.history.book(operation)
        if operation.outcome is Outcome.OK:
            waited_us = operation.completed_us - operation.invoked_us
            if operation.timeout_ms and waited_us > WAITED_US:
                self.world.sometimes(WAITED)

    # -- what members hold ----------------------------------------------------------------

    @staticmethod
    def content(store: Store) -> Content:
        """The items, who has counted them, and the calls that may come again."""
        queue = store_of(store)
        return Content(tuple(queue.items), queue.past, queue.answered.records)

    @staticmethod
    def merge_problem(
        policy: str, is_merged: bool, before: Any, store: Store | None, chunk: bytes
    ) -> str:
        """What the smaller part offered since the split comes to the tail, in its order.

        Somebody who waited may have taken items from the head by now.
        """
        past, _, start = read_head(chunk)
        known = NOTHING if before is None else before
        parting = known.past.parting(past)
        now = NOTHING if store is None else QueueModel.content(store)
        own = [
            item[ID_BYTES:]
            for item in read_items(chunk, start, len(chunk))
            if item_id(item) >= parting
        ]
        wanted = known.values() + (own if is_merged else [])
        found = now.values()
        is_right = len(found) <= len(wanted) and wanted[len(wanted) - len(found) :] == found
        return "" if is_right else f"{len(own)} items came, {len(known)} became {len(now)}"


WAITED_US = 200_000
"""A call that is served after so long has waited for more than messages."""


def _queue(ledger: Ledger) -> QueueLedger:
    if not isinstance(ledger, QueueLedger):
        raise TypeError(f"{ledger.label} is no queue")
    return ledger
