"""Every kind of structure that lies in partitions comes back from a disk, whatever it is.

A kind that only tests have is among them: nobody wrote a line about disks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.bag_kind import BAG, BagService, BagSettings
from tests.unit.persistence_rig import PARTITIONS, Rig

from whimbrel.core.ids import Namespace, namespace_of
from whimbrel.core.kinds import StructureService
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import MapSettings
from whimbrel.structures.multimap.service import MultiMapService
from whimbrel.structures.multimap.settings import MultiMapSettings
from whimbrel.structures.queue.service import QueueService
from whimbrel.structures.queue.settings import QueueSettings
from whimbrel.structures.ringbuffer.service import OVERWRITE, RingbufferService
from whimbrel.structures.ringbuffer.settings import RingbufferSettings

SETTINGS = (
    MapSettings("default"),
    MultiMapSettings("default", value_collection_type="LIST"),
    QueueSettings("default"),
    RingbufferSettings("default", capacity=20),
    BagSettings("default"),
)
WRITES = 90
Write = Callable[[Any, PartitionReplica, Namespace, int, PendingReply], object]


def item(number: int) -> bytes:
    """A serialized object."""
    return b"\x00\x00\x00\x00\x00\x00\x00\x01" + b"%d " % number * 20


def _map(maps: MapService, at: PartitionReplica, name: Namespace, n: int, r: PendingReply) -> None:
    if n % 5 == 4:
        maps.remove(at, name, item(n - 1), r)
    else:
        maps.set(at, name, item(n % 30), item(n), r)


def _multimap(
    maps: MultiMapService, at: PartitionReplica, name: Namespace, n: int, r: PendingReply
) -> None:
    if n % 5 == 4:
        maps.remove_entry(at, name, item((n - PARTITIONS) % 6), item(n - PARTITIONS), r)
    else:
        maps.put(at, name, item(n % 6), item(n), r)


def _queue(
    queues: QueueService, at: PartitionReplica, name: Namespace, n: int, r: PendingReply
) -> None:
    if n % 5 == 4:
        queues.poll(at, name, r)
    else:
        queues.offer(at, name, [item(n), item(n + 1)], r)


def _ringbuffer(
    rings: RingbufferService, at: PartitionReplica, name: Namespace, n: int, r: PendingReply
) -> None:
    rings.add(at, name, [item(n), item(n + 1)], OVERWRITE, r)


def _bag(bags: BagService, at: PartitionReplica, name: Namespace, n: int, r: PendingReply) -> None:
    bags.add(at, name, item(n), r)


WRITERS: dict[str, tuple[type[StructureService], Write]] = {
    MapService.kind_name: (MapService, _map),
    MultiMapService.kind_name: (MultiMapService, _multimap),
    QueueService.kind_name: (QueueService, _queue),
    RingbufferService.kind_name: (RingbufferService, _ringbuffer),
    BAG: (BagService, _bag),
}


class KindRig(Rig):
    """A member with structures of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = namespace_of(kind, "kept")
        super().__init__()

    def _start(self) -> None:
        self.settings = msgspec.structs.replace(self.settings, structures=SETTINGS)
        super()._start()
        service = WRITERS[self.kind][0]
        self.service = self.maps if service is MapService else service(self.plane)

    def write(self, first: int, end: int) -> None:
        """Changes of each partition in turn, some of them carried out one by one."""
        write = WRITERS[self.kind][1]
        for number in range(first, end):
            partition = self.plane.partitions[number % PARTITIONS]
            write(self.service, partition, self.name, number, PendingReply(owner=(b"", b"")))
            if number % 7 == 0:
                self.settle()
        self.settle()

    def stored(self) -> list[tuple[tuple[int, ...], bytes]]:
        """Of each partition the versions, and all that its store exports."""
        found = []
        for partition in self.plane.partitions:
            fragment = partition.fragments[self.name]
            cursor, chunks, is_last = fragment.store.open_cursor(), b"", False
            while not is_last:
                chunk, _, is_last = fragment.store.export(cursor, 1 << 20)
                chunks += chunk
            found.append((fragment.counters(), chunks))
        return found

    def live_again(self) -> list[tuple[tuple[int, ...], bytes]]:
        """What the next process finds after a power failure."""
        self.die(power=True)
        self.begin()
        assert not self.problems and not self.stopped
        return self.stored()


def test_no_kind_is_left_out() -> None:
    """Goal: who adds a kind whose structures lie in partitions adds it here."""
    partitioned = {kind.name for kind in KINDS if kind.make_service is not None}
    assert partitioned | {BAG} == set(WRITERS)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_comes_back(kind: str) -> None:
    """APR-20 to APR-22, APR-24, S3, S7: all that was acknowledged, in its order and with its
    versions; loaded twice it is the same, and what is written later goes on top.
    """
    rig = KindRig(kind)
    rig.begin()
    rig.write(0, WRITES)
    before = rig.stored()
    assert all(counters[0] and len(chunks) > 1_000 for counters, chunks in before)
    assert rig.live_again() == before
    assert rig.live_again() == before
    rig.write(WRITES, WRITES + 30)
    later = rig.stored()
    assert later != before
    assert rig.live_again() == later


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_comes_back_from_an_image(kind: str) -> None:
    """APR-22, APR-24: whatever a kind's chunks are, with changes on top of them."""
    rig = KindRig(kind)
    rig.begin()
    rig.write(0, WRITES)
    log = rig.files.log
    assert log is not None
    for partition in rig.plane.partitions:
        fragment = partition.fragments[rig.name]
        log.images.want(fragment, log._logs[fragment])
    rig.write(WRITES, WRITES + 10)
    rig.carry_on()
    assert log.counters["disk_images"] >= PARTITIONS
    rig.write(WRITES + 10, WRITES + 20)
    before = rig.stored()
    assert sorted(rig.live_again()) == sorted(before)
