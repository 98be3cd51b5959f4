"""Parked requests: in order, bounded by count, bytes and time."""

from __future__ import annotations

import pytest

from whimbrel.core.ids import PartitionId
from whimbrel.serving import parking as parking_module
from whimbrel.serving.parking import ParkingLot
from whimbrel.serving.session import Origin, Request
from whimbrel.wire.codec import encode_request
from whimbrel.wire.frames import parse_message


def request(partition: int, correlation: int = 1) -> Request:
    data = encode_request("Map.size", correlation, partition, name="m")
    return Request.of(Origin(), parse_message(data))


def test_requests_come_out_in_order_by_partition() -> None:
    """Goal: what waits for a partition runs in the order it came."""
    lot = ParkingLot(1_000)
    for correlation, partition in enumerate([3, 4, 3, 5, 3]):
        assert lot.park(request(partition, correlation), now_us=0)
    assert lot.partitions(lambda pid: pid > 3) == [4, 5]
    taken = lot.take([PartitionId(3)])
    assert [entry.correlation for entry in taken] == [0, 2, 4]
    assert lot.count == 2
    assert lot.take([PartitionId(3)]) == []


def test_time_is_counted_from_the_first_parking() -> None:
    """Goal: a request that is parked again does not wait anew."""
    lot = ParkingLot(1_000)
    first = request(3)
    lot.park(first, now_us=0)
    lot.take([PartitionId(3)])
    lot.park(first, now_us=900)
    lot.park(request(3, 2), now_us=900)
    assert lot.take_expired(999) == []
    assert lot.take_expired(1_000) == [first]
    assert lot.count == 1


def test_the_lot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: beyond its limits the lot refuses; one request always fits."""
    lot = ParkingLot(1_000)
    monkeypatch.setattr(parking_module, "PARKED_MAX", 2)
    assert lot.park(request(1), 0)
    assert lot.park(request(2), 0)
    assert not lot.park(request(3), 0)
    lot.take([PartitionId(1), PartitionId(2)])
    assert (lot.count, lot.bytes) == (0, 0)
    monkeypatch.setattr(parking_module, "PARKED_BYTES_MAX", 10)
    assert lot.park(request(1), 0)
    assert not lot.park(request(1), 0)
