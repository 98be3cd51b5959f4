"""Joins, leaves and crashes with real members on this machine, beside Hazelcast (PIM-46, PIM-54).

One driver and one client measure each side, one after the other: ours with one migration at a time
for each member, ours with the default limit, and Hazelcast when the peer harness is given. Members,
client and whatever else runs share the processors: only ratios within one run mean something.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hazelcast
from hazelcast.errors import HazelcastError

from whimbrel.bench.live_sides import (
    Ours,
    Peer,
    Rows,
    Side,
    check_harness,
    cpu_seconds,
    loopback_bytes,
)
from whimbrel.core.ids import REPLICA_SLOTS, MemberId, Row
from whimbrel.core.partition.bounds import lower_bound_copies
from whimbrel.errors import OperationError
from whimbrel.testing.waiting import wait_until

PARTITIONS = (271, 20_011)
MIB = 256
VALUE_BYTES = 10_240
KEYS_EMPTY = 200
"""Keys where only the number of partitions counts."""
PROBE_PER_S = 200
IDLE_S = 2.0
RETRY_PAUSE_S = 0.05
"""Of the client, instead of its 1 s: a read that was under way to a killed member waits for it, and
what is to be measured is how soon the servers serve."""
SAFE_TIMEOUT_S = 600.0
SETTLE_TIMEOUT_S = 130.0
"""Longer than the client itself goes on trying."""
BATCH = 200
MAP = "b1data"
"""A map with one backup on each side."""
DEPTH = 2
HEAP_MIB = 1024
"""Of a Hazelcast member that has little to hold."""
HEAP_PER_VALUE_BYTE = 1.5
"""Three members hold two thirds of a byte each for a byte of values; a heap wants twice of that."""

Figures = dict[str, Any]


class Probe:
    """A client that puts and gets in turn, one operation at a time at a fixed rate."""

    def __init__(self, side: Side, keys: int, value_bytes: int) -> None:
        self._client = hazelcast.HazelcastClient(
            cluster_name=side.cluster_name(),
            cluster_members=side.addresses(),
            invocation_retry_pause=RETRY_PAUSE_S,
        )
        self._map = self._client.get_map(MAP).blocking()
        self._keys = keys
        self._value = bytearray(value_bytes)
        self._end = threading.Event()
        self.samples: list[tuple[float, float, bool]] = []
        """Begin and end in monotonic seconds, and whether it succeeded."""
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def fill(self) -> None:
        """Put all keys."""
        for start in range(0, self._keys, BATCH):
            stop = min(start + BATCH, self._keys)
            self._map.put_all({_key(number): self._value for number in range(start, stop)})

    def start(self) -> None:
        """Begin the loop."""
        self._thread.start()

    def close(self) -> None:
        """End the loop and the client."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(60.0)
        self._client.shutdown()

    def size(self) -> int:
        """Entries of the map."""
        return int(self._map.size())

    def _run(self) -> None:
        draw = random.Random(1)
        due_s = time.monotonic()
        while not self._end.is_set():
            key, begin_s, is_good = _key(draw.randrange(self._keys)), time.monotonic(), True
            try:
                if len(self.samples) % 2:
                    self._map.put(key, self._value)
                else:
                    is_good = self._map.get(key) is not None
            except Exception:  # whatever a user would see counts as a failure
                is_good = False
            self.samples.append((begin_s, time.monotonic(), is_good))
            due_s = max(due_s + 1 / PROBE_PER_S, time.monotonic() - 1 / PROBE_PER_S)
            self._end.wait(max(0.0, due_s - time.monotonic()))

    def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until an operation that began after now has ended: a stall is not left out."""
        now_s = time.monotonic()

        def look() -> tuple[bool, str]:
            is_past = bool(self.samples) and self.samples[-1][0] >= now_s
            return is_past, f"{len(self.samples)} operations"

        wait_until(look, timeout_s, "served")

    def summary(self, begin_s: float, end_s: float) -> Figures:
        """Milliseconds of the operations that overlap a span, and how many failed."""
        chosen = [entry for entry in self.samples if entry[0] <= end_s and entry[1] >= begin_s]
        spans = sorted(1e3 * (end - begin) for begin, end, _ in chosen)
        if not spans:
            return {"operations": 0, "failed": 0, "p99_ms": None, "longest_ms": None}
        return {
            "operations": len(spans),
            "failed": sum(not is_good for _, _, is_good in chosen),
            "p99_ms": round(spans[int(0.99 * (len(spans) - 1))], 1),
            "longest_ms": round(spans[-1], 1),
        }


def _heap_mib(mib: int) -> int:
    return max(HEAP_MIB, int(HEAP_PER_VALUE_BYTE * mib))


def _key(number: int) -> str:
    return f"key:{number:020d}"


def run(
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    mib: int = MIB,
    peers: Path | None = None,
    partitions: Sequence[int] = PARTITIONS,
    members: int = 4,
) -> Figures:
    """Measure all sides.

    Args:
        progress: Told how many of all clusters are done.
        mib: Values of the map at the first number of partitions, in all.
        peers: Folder of the peer harness; without it only our own members are measured.
        partitions: Numbers of partitions; data are loaded at the first, the others are empty.
        members: Members before the join.
    """
    sides: list[tuple[str, Callable[[int], Side]]] = [
        ("serial", lambda count: Ours({"partition.count": count, "cluster.version": "4.0"})),
        ("parallel", lambda count: Ours({"partition.count": count})),
    ]
    if peers is not None:
        folder = peers.resolve()
        check_harness(folder)
        sides.append(
            (
                "hazelcast",
                lambda count: Peer(
                    folder,
                    {"hazelcast.partition.count": str(count)},
                    _heap_mib(mib) if count == partitions[0] else HEAP_MIB,
                ),
            )
        )
    rows: list[Figures] = []
    work = [(number, name, make) for number in partitions for name, make in sides]
    for done, (number, name, make) in enumerate(work):
        progress(done, len(work))
        keys = mib * (1 << 20) // VALUE_BYTES if number == partitions[0] else KEYS_EMPTY
        side = make(number)
        try:
            found = _flow(side, members, keys, number)
            rows += [{"server": name, "partitions": number, **row} for row in found]
        except (TimeoutError, RuntimeError, OperationError, HazelcastError) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            rows.append({"server": name, "partitions": number, "event": "failed", "reason": reason})
        finally:
            side.close()
    progress(len(work), len(work))
    note = "" if peers else "Hazelcast was not measured: --peers names no harness"
    return {"mib": mib, "value_bytes": VALUE_BYTES, "note": note, "rows": rows}


def _flow(side: Side, members: int, keys: int, partitions: int) -> list[Figures]:
    """Join, leave, join again, crash, and two leaves at once, under the probe."""
    side.start(members)
    if not side.await_safe(SAFE_TIMEOUT_S):
        raise TimeoutError(f"{members} members were not safe within {SAFE_TIMEOUT_S:g} s")
    probe = Probe(side, keys, VALUE_BYTES)
    found: list[Figures] = []
    try:
        probe.fill()
        side.await_safe(SAFE_TIMEOUT_S)
        probe.start()
        partition_bytes = keys * VALUE_BYTES / partitions
        events: list[tuple[str, Callable[[], object], Callable[[], list[str]]]] = [
            ("join", side.add, list),
            ("leave", lambda: side.leave(side.names()[-1:]), lambda: side.names()[-1:]),
            ("join again", side.add, list),
            ("crash", lambda: side.kill(side.names()[-1]), lambda: side.names()[-1:]),
            ("two leave", lambda: side.leave(side.names()[-2:]), lambda: side.names()[-2:]),
        ]
        for event, action, leavers in events:
            row = _change(side, probe, action, leavers(), event == "crash", partition_bytes)
            found.append({"event": event, **row})
            if not row["safe"]:
                break
        found[-1]["entries_lost"] = keys - probe.size()
    finally:
        probe.close()
    return found


def _change(
    side: Side,
    probe: Probe,
    action: Callable[[], object],
    gone: Sequence[str],
    is_crash: bool,
    partition_bytes: float,
) -> Figures:
    """One change, from its cause until the cluster is safe."""
    idle_bytes, idle_s = loopback_bytes(), time.monotonic()
    time.sleep(IDLE_S)  # the rate of client and heartbeats, taken off the traffic
    rate = (loopback_bytes() - idle_bytes) / (time.monotonic() - idle_s)
    before, old = side.rows(), side.names()
    cpu = {pid: cpu_seconds(pid) for pid in side.pids().values()}
    sent, begin_s = loopback_bytes(), time.monotonic()
    action()
    acted_s = time.monotonic() - begin_s
    is_safe = side.await_safe(SAFE_TIMEOUT_S)
    end_s = time.monotonic()
    moved = loopback_bytes() - sent - rate * (end_s - begin_s)
    stay = [pid for pid in side.pids().values() if pid in cpu]
    cpu_s = sum(cpu_seconds(pid) - cpu[pid] for pid in stay)
    after, new = side.rows(), side.names()
    copies = _copies(before, after)
    probe.settle()
    data_gib = copies * partition_bytes / (1 << 30)
    return {
        "safe": is_safe,
        "seconds": round(end_s - begin_s, 2),
        "action_s": round(acted_s, 2),
        "copies": copies,
        "copies_min": _least_copies(before, new, () if is_crash else gone, old if gone else new),
        "traffic_mb": round(moved / 1e6, 1),
        "data_mb": round(copies * partition_bytes / 1e6, 1),
        "cpu_s": round(cpu_s, 2),
        "cpu_s_per_gib": round(cpu_s / data_gib, 1) if data_gib > 0.01 else None,
        "cpu_ms_per_copy": round(1e3 * cpu_s / copies, 3) if copies else None,
        **probe.summary(begin_s, end_s),
    }


def _copies(before: Rows, after: Rows) -> int:
    """How often a member has a partition that it did not have before."""
    pairs = zip(before, after, strict=True)
    return sum(len(set(new[:DEPTH]) - set(old[:DEPTH])) for old, new in pairs)


def _least_copies(
    before: Rows, stay: Sequence[str], leaving: Sequence[str], known: Sequence[str]
) -> int:
    """The fewest copies that any plan could have done with."""
    names = {*stay, *leaving} & {*known, *stay}
    rows: list[Row] = []
    for row in before:
        kept = [MemberId(name) for name in row[:DEPTH] if name in names]
        rows.append((*kept, *([None] * (REPLICA_SLOTS - len(kept)))))
    groups = [(MemberId(name),) for name in stay]
    return lower_bound_copies(rows, groups, DEPTH, [MemberId(name) for name in leaving])


def tables(figures: Figures) -> list[tuple[str, list[str], list[list[str]]]]:
    """For people: title, columns, rows."""
    columns = ["server", ">partitions", "event", ">to safe s", ">copies", ">least", ">traffic MB",
               ">data MB", ">CPU s/GiB", ">CPU ms/copy", ">p99 ms", ">longest ms", ">failed",
               ">lost"]  # fmt: skip
    names = ("copies", "copies_min", "traffic_mb", "data_mb", "cpu_s_per_gib", "cpu_ms_per_copy",
             "p99_ms", "longest_ms", "failed", "entries_lost")  # fmt: skip
    rows: list[list[str]] = []
    for row in figures["rows"]:
        if row["event"] == "failed":
            shown = [row["reason"]]
        else:
            seconds = f"{row['seconds']}" if row["safe"] else f"not within {row['seconds']:.0f}"
            shown = [seconds, *(_text(row.get(name)) for name in names)]
        shown += [""] * (len(columns) - 3 - len(shown))
        rows.append([row["server"], str(row["partitions"]), row["event"], *shown])
    title = f"Real members, {figures['mib']} MiB at the first number of partitions"
    return [(title + (f". {figures['note']}" if figures["note"] else ""), columns, rows)]


def _text(value: object) -> str:
    return "" if value is None else str(value)
