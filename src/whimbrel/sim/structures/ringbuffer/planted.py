"""Bugs of ring buffers: of sequences, of what gives way, of merges, of those who wait."""

from __future__ import annotations

from typing import Any

from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.structures.ringbuffer.record import read_items
from whimbrel.structures.ringbuffer.service import RingbufferService
from whimbrel.structures.ringbuffer.store import RingbufferStore, read_head


class StoreThatForgetsItsHead(RingbufferStore):
    """A copy of what is there begins with sequence 0."""

    def ingest(self, data: bytes) -> int:
        """Take in a chunk without what it says of the head."""
        _, head, first, start = read_head(data)
        items = list(read_items(data, start, len(data)))
        self._add(0, first - head, items)
        return len(items)


def sequences_begin_anew(engine: Engine) -> None:
    """Whoever gets a copy numbers from 0 on."""
    service = engine.member.service(RingbufferService)
    holdings = engine.member.dataplane.holdings
    holdings.register(service.kind_name, lambda _: StoreThatForgetsItsHead())


def smaller_ring_forgotten(engine: Engine) -> None:
    """After a split all that the smaller part had counts as known."""

    def merge(_: PartitionReplica, name: str, chunk: bytes, *given: Any) -> MergeCounts:
        return MergeCounts(same=sum(map(bool, read_items(chunk, read_head(chunk)[3], len(chunk)))))

    replace(engine.member.service(RingbufferService), "merge", merge)


def no_reader_is_woken(engine: Engine) -> None:
    """Those who wait are tried again after a while only."""
    replace(engine.member.service(RingbufferService), "_wake", nothing)


RINGBUFFERS = ("ringbuffer",)
BUGS: tuple[Bug, ...] = (
    Bug(sequences_begin_anew, "kill", ("D13", "D5", "D9", "R4"), kinds=RINGBUFFERS),
    Bug(smaller_ring_forgotten, "split", ("D10",), kinds=RINGBUFFERS),
    Bug(no_reader_is_woken, "kill", ("D5",), kinds=RINGBUFFERS),
)
