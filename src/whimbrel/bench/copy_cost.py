"""What copying costs a member's loop on this machine: processor time per MiB and per message.

A store of 16 KiB values is exported, encoded, sent through a pair of local sockets, decoded and
taken in, in messages as large as the modelled ones, everything with the code and the formats of a
real member. What the event loop adds around a chunk is in the cost of an empty message.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import closing

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.messages import FragmentPart, Purpose, TransferSent, Vector
from whimbrel.errors import OperationError
from whimbrel.structures.map.store import MapStore
from whimbrel.wire.links import MESSAGE, FrameSplitter, decode_message, encode_frame, encode_message

ENTRIES = 2_048
VALUE_BYTES = 16_384
CHUNK_BYTES = 1_048_576
READ_BYTES = 262_144
EMPTY_MESSAGES = 2_000
ROUNDS = 5
CAUSE = "00000000-1000000001234"
_MIB = 1 << 20


def measure() -> dict[str, float]:
    """The least of a few rounds: microseconds of processor time, sender and receiver apart."""
    store = MapStore()
    for number in range(ENTRIES):
        store.put(b"key:%020d" % number, bytes(VALUE_BYTES), 1_000)
    size_mib = ENTRIES * VALUE_BYTES / _MIB
    rounds = [_copy(store) for _ in range(ROUNDS)]
    message_us = min(_empty_messages() for _ in range(ROUNDS))
    return {
        "message_us": round(message_us, 2),
        "export_us_per_mib": round(min(sent for sent, _ in rounds) / size_mib, 1),
        "ingest_us_per_mib": round(min(taken for _, taken in rounds) / size_mib, 1),
    }


def _message(data: bytes) -> TransferSent:
    migration = "migration:00000001-0000-4000-8000-000000000001:1:1"
    vector = Vector(1, (0,) * 6)
    part = FragmentPart(Namespace("map/bench"), data, vector, (1, 0), first=False, last=False)
    return TransferSent(Purpose.MIGRATION, migration, PartitionId(1), 1, (part,), last=False)


class _Clock:
    """Adds up the processor time inside its ``with`` blocks."""

    def __init__(self) -> None:
        self.us = 0.0
        self._begin_ns = 0

    def __enter__(self) -> None:
        self._begin_ns = time.process_time_ns()

    def __exit__(self, *_: object) -> None:
        self.us += (time.process_time_ns() - self._begin_ns) / 1e3


def _copy(store: MapStore) -> tuple[float, float]:
    """One copy of the store: microseconds of its sender and of its receiver."""
    sending, taking = _Clock(), _Clock()
    target, splitter = MapStore(), FrameSplitter()
    one, other = socket.socketpair()
    with closing(one), closing(other):
        one.setblocking(False)
        cursor, last = store.open_cursor(), False
        while not last:
            with sending:
                data, _, last = store.export(cursor, CHUNK_BYTES)
                left = memoryview(encode_frame(MESSAGE, encode_message(_message(data), CAUSE)))
            while left:
                with sending:
                    left = left[one.send(left) :]
                with taking:
                    _take(splitter.feed(other.recv(READ_BYTES)), target)
            while splitter.pending_bytes:
                with taking:
                    _take(splitter.feed(other.recv(READ_BYTES)), target)
    if len(target) != len(store):
        raise OperationError(f"{len(target)} of {len(store)} entries arrived")
    return sending.us, taking.us


def _take(frames: Sequence[tuple[int, bytes]], target: MapStore) -> None:
    for _, payload in frames:
        _, message = decode_message(payload)
        if isinstance(message, TransferSent):
            for part in message.parts:
                target.ingest(part.data)


def _empty_messages() -> float:
    """Microseconds to send or to take one small message: half of a pass."""
    splitter = FrameSplitter()
    one, other = socket.socketpair()
    message = _message(b"")
    with closing(one), closing(other):
        begin_ns = time.process_time_ns()
        for _ in range(EMPTY_MESSAGES):
            one.send(encode_frame(MESSAGE, encode_message(message, CAUSE)))
            for _, payload in splitter.feed(other.recv(READ_BYTES)):
                decode_message(payload)
        return (time.process_time_ns() - begin_ns) / 1e3 / EMPTY_MESSAGES / 2
