"""Feeds every client with one operation after the other; what is called is up to the models."""

from __future__ import annotations

import random
from collections.abc import Sequence

from whimbrel.sim.client import SimClient
from whimbrel.sim.entropy import pick
from whimbrel.sim.history import Ledger, Operation, Reply
from whimbrel.sim.model import StructureModel
from whimbrel.sim.world import World

EXTRA_MAX = 1_000
"""Writes beyond those of sequential clients that may be under way at once."""


class Workload:
    """What clients do; each is a sequential process, floods come on top."""

    def __init__(
        self, world: World, clients: Sequence[SimClient], models: Sequence[StructureModel]
    ) -> None:
        self.world = world
        self.clients = clients
        self.models = {model.kind: model for model in models}
        self.is_running = False
        self.extra_count = 0
        """Extra writes that have not ended."""
        self._random: random.Random = world.entropy.of("workload")
        self._to_read: dict[str, list[Ledger]] = {}
        """Client to what it still reads at the end."""
        for client in clients:
            client.on_ended = self._ended

    def _pick_model(self) -> StructureModel:
        models = list(self.models.values())
        return models[0] if len(models) == 1 else pick(self._random, models)

    def start(self) -> None:
        """Let every client begin."""
        self.is_running = True
        for client in self.clients:
            if not client.is_busy:
                self._next(client)

    def stop(self) -> None:
        """No further operation begins; those in flight end as they may."""
        self.is_running = False

    @property
    def is_busy(self) -> bool:
        """Whether a client still waits for an answer."""
        return self.extra_count > 0 or any(client.is_busy for client in self.clients)

    def _next(self, client: SimClient) -> None:
        mean_us = 1_000_000 * len(self.clients) // self.world.plan.operations_per_s
        pause_us = int(self._random.expovariate(1.0) * mean_us)
        client.is_busy = True
        self.world.scheduler.after(pause_us, self._draw, client)

    def _draw(self, client: SimClient) -> None:
        if not self.is_running:
            client.is_busy = False
            return
        self.begin(client, self._pick_model().draw(client))

    def begin(self, client: SimClient, operation: Operation) -> None:
        """A client makes a call."""
        client.call(operation)
        self.world.history.operations += 1
        self.world.trace.add(self.world.now_us, operation.client, operation.kind, _about(operation))

    def flood(self, count: int) -> None:
        """Begin many writes at once, on top of what the clients do."""
        for _ in range(count if self.is_running else 0):
            client, model = pick(self._random, self.clients), self._pick_model()
            self._begin_extra(client, model, model.draw_target())

    def destroy(self) -> None:
        """Write a structure and destroy it a moment later."""
        if not self.is_running:
            return
        client, model = pick(self._random, self.clients), self._pick_model()
        for ledger in model.draw_doomed():
            self._begin_extra(client, model, ledger)
        delay_us = self._random.randrange(300_000)
        self.world.scheduler.after(delay_us, client.destroy, model)

    def _begin_extra(self, client: SimClient, model: StructureModel, ledger: Ledger) -> None:
        if self.extra_count < EXTRA_MAX:
            self.extra_count += 1
            operation = model.write(client, ledger)
            operation.is_extra = True
            self.begin(client, operation)

    def read_finally(self) -> None:
        """Let the clients look at what the models want, one after the other, each its share."""
        ledgers = [ledger for model in self.models.values() for ledger in model.final_reads()]
        for client in self.clients:
            self._to_read[client.name] = ledgers[client.index :: len(self.clients)][::-1]
            self._read_next(client)

    def _read_next(self, client: SimClient) -> None:
        left = self._to_read.get(client.name)
        client.is_busy = bool(left)
        if left:
            ledger = left.pop()
            self.begin(client, self.models[ledger.kind].read(client, ledger))

    def _ended(self, client: SimClient, operation: Operation, reply: Reply) -> None:
        """A client knows the outcome of its operation."""
        world = self.world
        operation.completed_us = world.now_us
        operation.outcome = reply.outcome
        self.models[operation.ledger.kind].ended(operation, reply)
        world.trace.add(
            world.now_us,
            operation.client,
            f"{operation.kind} {operation.outcome.value}",
            f"{_about(operation)} saw {operation.seen} {reply.error}",
        )
        world.tell("operation", operation, reply)
        if operation.is_extra:
            self.extra_count -= 1
        elif self.is_running:
            self._next(client)
        else:
            self._read_next(client)


def _about(operation: Operation) -> str:
    return f"{operation.ledger.label} #{operation.number}"
