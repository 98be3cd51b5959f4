"""What a pipelined get or put costs in Python code alone, summed over the members it touches.

A client of every member keeps ``DEPTH`` requests in flight, each sent to the primary. Everything
but sockets is there: splitting, routing, the store, backups to another member, acknowledgements,
replies. The figure is CPU time for one operation, the least of several rounds: other work on the
machine only ever adds.

In a real cluster of that depth requests arrive a few at a time, and what each such chunk costs by
itself weighs as much as its operations. So put and get are measured in chunks of other sizes too.
"""

from __future__ import annotations

import time

from whimbrel.bench.engines import BenchCluster, BenchMember
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import OperationError
from whimbrel.structures.map.settings import MapSettings
from whimbrel.wire.codec import encode_request

DEPTH = 16
CHUNKS = (1, 4, 128)
"""Further numbers of requests that arrive at once."""
PARTITIONS = 271
KEYS = 6_000
VALUE_BYTES = 100
ROUNDS = 7
BYTE_ARRAY_HEAD = bytes(4) + b"\xff\xff\xff\xf4" + VALUE_BYTES.to_bytes(4, "big")
"""Partition hash, type id of a byte array and its length: what clients put before the bytes."""

Chunks = list[tuple[BenchMember, bytes]]
"""Members and the bytes their client sends at once."""


def run() -> dict[str, float]:
    """Microseconds of CPU for one operation, by name of the case."""
    maps = (MapSettings("default"), MapSettings("b0*", 0), MapSettings("b2*", 2))
    cluster = BenchCluster(3, CoreSettings(partition_count=PARTITIONS, structures=maps))
    figures: dict[str, float] = {}
    for name, backups in (("none", 0), ("one", 1), ("two", 2)):
        for method in ("put", "set", "get"):
            if method != "get" or backups == 0:
                case = method if backups == 0 else f"{method}_{name}_backup"
                figures[f"{case}_us"] = _measure(cluster, method, f"b{backups}bench", DEPTH)
    for size in CHUNKS:
        for case, method, map_name in (
            ("get", "get", "b0bench"),
            ("put_one_backup", "put", "b1bench"),
        ):
            figures[f"{case}_chunk_{size}_us"] = _measure(cluster, method, map_name, size)
    return figures


def _measure(cluster: BenchCluster, method: str, map_name: str, size: int) -> float:
    """Microseconds of an operation when ``size`` requests arrive at each member at once."""
    chunks = _chunks(cluster, method, map_name, size)
    count = size * len(chunks)
    _serve(cluster, chunks)
    best_ns = min(_timed(cluster, chunks) for _ in range(ROUNDS))
    return round(best_ns / count / 1000, 2)


def _timed(cluster: BenchCluster, chunks: Chunks) -> int:
    begin_ns = time.process_time_ns()
    _serve(cluster, chunks)
    return time.process_time_ns() - begin_ns


def _serve(cluster: BenchCluster, chunks: Chunks) -> None:
    """Send one chunk to each member in turn, and the next when all of them are answered."""
    step = len(cluster.members)
    for start in range(0, len(chunks), step):
        for member, data in chunks[start : start + step]:
            cluster.request(member, data)
        cluster.settle()
        for member, _ in chunks[start : start + step]:
            if not member.replies:
                raise OperationError("a member of the benchmark does not answer")
            member.replies.clear()


def _chunks(cluster: BenchCluster, method: str, map_name: str, size: int) -> Chunks:
    """All requests, cut into chunks of ``size``, the members alternating."""
    queues: list[list[bytes]] = [[] for _ in cluster.members]
    for number in range(KEYS):
        key = bytes(4) + b"\xff\xff\xff\xf5" + b"\x00\x00\x00\x18" + b"key:%020d" % number
        pid = partition_of(partition_hash(key), PARTITIONS)
        place = cluster.members.index(cluster.primary(pid))
        queues[place].append(_request(method, number + 1, pid, map_name, key))
    length = min(map(len, queues)) // size * size
    return [
        (member, b"".join(queue[start : start + size]))
        for start in range(0, length, size)
        for member, queue in zip(cluster.members, queues, strict=True)
    ]


def _request(method: str, correlation: int, pid: int, map_name: str, key: bytes) -> bytes:
    fields: dict[str, object] = {"name": map_name, "key": key, "thread_id": 1}
    if method != "get":
        fields |= {"value": BYTE_ARRAY_HEAD + bytes(VALUE_BYTES), "ttl": -1}
    return encode_request(f"Map.{method}", correlation, pid, 0, **fields)
