"""Bugs of queues: of what backups have, of order, of merges, of those who wait."""

from __future__ import annotations

from typing import Any

from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.structures.queue.record import ID_BYTES, read_head, read_items
from whimbrel.structures.queue.service import QueueService
from whimbrel.structures.queue.store import QueueStore


def taken_at_the_primary_alone(engine: Engine) -> None:
    """Backups do not hear of what is taken."""
    replace(engine.member.service(QueueService), "_removed", nothing)


class StoreFromTheHead(QueueStore):
    """Puts what its primary says was offered before what is there."""

    def _insert(self, incoming: list[bytes]) -> None:
        self._remove_ids([item[:ID_BYTES] for item in incoming])
        for item in incoming:
            self.items.appendleft(item)
            self.bytes_used += len(item) - ID_BYTES
            self._count_to(item[:ID_BYTES])


def order_turned_round(engine: Engine) -> None:
    """Backups and copies have the newest items first."""
    service = engine.member.service(QueueService)
    holdings = engine.member.dataplane.holdings
    holdings.register(service.kind_name, lambda _: StoreFromTheHead(holdings.deferred.take))


def smaller_part_forgotten(engine: Engine) -> None:
    """After a split all that the smaller part had counts as known."""

    def merge(_: PartitionReplica, name: str, chunk: bytes, *given: Any) -> MergeCounts:
        return MergeCounts(same=sum(1 for _ in read_items(chunk, read_head(chunk)[2], len(chunk))))

    replace(engine.member.service(QueueService), "merge", merge)


def nobody_is_woken(engine: Engine) -> None:
    """Those who wait are tried again after a while only."""
    replace(engine.member.service(QueueService), "_wake", nothing)


QUEUES = ("queue",)
BUGS: tuple[Bug, ...] = (
    Bug(taken_at_the_primary_alone, "kill", ("D5", "D3", "D9"), kinds=QUEUES),
    Bug(order_turned_round, "kill", ("D5", "D3", "D9", "D13", "R4"), kinds=QUEUES),
    Bug(smaller_part_forgotten, "split", ("D10",), kinds=QUEUES),
    Bug(nobody_is_woken, "kill", ("D5",), kinds=QUEUES),
)
