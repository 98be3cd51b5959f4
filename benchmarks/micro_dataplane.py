"""What a put costs on the primary and on its backup, and a get, without sockets or protocol.

Also bytes per entry, a sweep, a scan and a fragment's way through a chunked copy. Prints one JSON
document: nanoseconds of CPU per operation (the best of several rounds: other work on the machine
only ever adds), bytes per entry, megabytes per second.

    python benchmarks/micro_dataplane.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId, PartitionId, Row, namespace_of
from whimbrel.core.model import MemberInfo, MemberList
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.settings import CoreSettings
from whimbrel.structures.map.record import make_timing, stored_key
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.store import MapStore

PARTITIONS = 271
ENTRIES = 20_000
BATCH = 64
ROUNDS = 9
FLIGHTS = namespace_of("map", "flights")
VALUE = bytes(8) + b"v" * 92


def member(name: str, members: MemberList) -> tuple[DataPlane, MapService]:
    """A data plane that is primary (a) or backup (b) of every partition."""
    ctx = Context(members.members["ab".index(name)], CoreSettings(partition_count=PARTITIONS))
    ctx.members = members
    ctx.wall_ms = 1_700_000_000_000
    plane = DataPlane(ctx)
    maps = MapService(plane)
    row: Row = (MemberId("a"), MemberId("b"), None, None, None, None, None)
    empty: Row = (None,) * 7
    for pid in range(PARTITIONS):
        plane.roles.row_changed(PartitionId(pid), empty, row, 2)
    ctx.effects.clear()
    return plane, maps


def keys_of(count: int) -> list[bytes]:
    """Keys of 24 bytes as a client sends strings of 12."""
    return [bytes(4) + b"\xff\xff\xff\xf5" + b"%016d" % number for number in range(count)]


def best(run: Callable[[], int]) -> int:
    """Nanoseconds of CPU per operation; ``run`` answers how many it made."""
    results = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        count = run()
        results.append((time.process_time_ns() - started) // count)
    return min(results)


def rss_bytes() -> int:
    """Resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def replication(report: dict[str, float]) -> None:
    """Put on both sides, acknowledgements, get."""
    infos = tuple(MemberInfo(MemberId(n), Address("127.0.0.1", i)) for i, n in enumerate("ab"))
    members = MemberList(1, infos)
    primary, maps = member("a", members)
    backup, _ = member("b", members)
    keys = keys_of(ENTRIES)
    places = [primary.partitions[number % PARTITIONS] for number in range(ENTRIES)]
    frames: list[bytes] = []

    def put() -> int:
        frames.clear()
        for start in range(0, ENTRIES, BATCH):
            for number in range(start, min(start + BATCH, ENTRIES)):
                maps.set(places[number], FLIGHTS, keys[number], VALUE, PendingReply())
            frames.extend(payload for _, payload in primary.outgoing.take_backups())
        return ENTRIES

    def apply() -> int:
        for payload in frames:
            backup.incoming.apply_backups(MemberId("a"), payload)
            backup.incoming.take_acks()
        return ENTRIES

    puts, applies = [], []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        put()
        middle = time.process_time_ns()
        apply()
        puts.append((middle - started) // ENTRIES)
        applies.append((time.process_time_ns() - middle) // ENTRIES)
        ack = backup.incoming.inboxes[MemberId("a")]
        ack.applied_frame(ack.applied)
        started = time.process_time_ns()
        for _, payload in backup.incoming.take_acks():
            primary.apply_acks(MemberId("b"), payload)
        report["acknowledge_ns"] = (time.process_time_ns() - started) // ENTRIES
        primary.outgoing.completed.clear()
    report["put_primary_ns"], report["put_backup_ns"] = min(puts), min(applies)

    def get() -> int:
        for number in range(ENTRIES):
            maps.get(places[number], FLIGHTS, keys[number])
        return ENTRIES

    report["get_ns"] = best(get)


def store(report: dict[str, float]) -> None:
    """Memory, copying, scanning and sweeping of one large store."""
    keys = [stored_key(key) for key in keys_of(200_000)]
    before = rss_bytes()
    filled = MapStore()
    for key in keys:
        filled.put(bytes(memoryview(key)), bytes(memoryview(VALUE)), 1)
    used = rss_bytes() - before
    report["overhead_bytes_per_entry"] = used / len(keys) - len(keys[0]) - len(VALUE)
    chunks: list[bytes] = []
    started = time.process_time_ns()
    cursor, last = filled.open_cursor(), False
    while not last:
        chunk, _, last = filled.export(cursor, 262_144)
        chunks.append(chunk)
    middle = time.process_time_ns()
    copy = MapStore()
    for chunk in chunks:
        copy.ingest(chunk)
    ended = time.process_time_ns()
    report["export_ns_per_entry"] = (middle - started) // len(keys)
    report["ingest_ns_per_entry"] = (ended - middle) // len(keys)
    started = time.process_time_ns()
    cursor = 0
    while cursor >= 0:
        cursor, _ = filled.scan(cursor, 1_000, 1)
    report["scan_ns_per_entry"] = (time.process_time_ns() - started) // len(keys)
    timed = MapStore()
    timing = make_timing(1_000, 0, 0)
    for key in keys[:50_000]:
        timed.put(key, VALUE, 0, timing)
    started = time.process_time_ns()
    gone = len(timed.sweep_expired(2_000, 100_000))
    report["sweep_ns_per_entry"] = (time.process_time_ns() - started) // gone


def main() -> None:
    """Measure and print."""
    report: dict[str, float] = {}
    replication(report)
    store(report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
