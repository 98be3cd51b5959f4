"""How fast a member loads its own files: the core's own loading, on a log that is made here.

One map whose keys rotate over the partitions, as puts of many clients arrive. The log has them as
changes, which are read twice (``core/persistence/loading.py``), or as images, as compaction and
copies leave them. The reader is this thread, and the files have just been written: the figure is
processor time, the least of some rounds, since other work on the machine only ever adds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from sys import getsizeof
from typing import Any, Final, NamedTuple

import msgspec

from whimbrel.bench.goals import Goal, documents
from whimbrel.bench.goals import table as goals_table
from whimbrel.core.ids import Namespace, PartitionId, namespace_of
from whimbrel.core.persistence.commands import Append, FileSize, List, Sync
from whimbrel.core.persistence.format import (
    BLOCK_BYTES_TARGET,
    LOG_FOLDER,
    LOG_ID_BYTES,
    WITH_CONTROL,
    FragmentState,
    RecordKind,
    Stream,
    checksum_of,
    encode_block,
    encode_header,
    encode_number,
    encode_record,
    name_record,
    prefix_of,
    segment_file,
)
from whimbrel.core.persistence.images import BYTES_PER_WORK
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.metadata import OPEN, LogFiles, Segment
from whimbrel.core.replication.fragments import Fragment, Store
from whimbrel.core.replication.vectors import ZERO
from whimbrel.core.settings import PersistenceSettings
from whimbrel.storage.disk import Disk
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.store import MapStore

MIB = 64
ROUNDS: Final = 3
PARTITIONS: Final = 271
VALUE_BYTES: Final = (100, 10_240)
GOALS_MB_PER_S: Final = {100: 60.0, 10_240: 400.0}
"""Of values, for each core, by their size."""
KEY_BYTES: Final = 24
LOG_ID: Final = bytes(LOG_ID_BYTES)
STRUCTURE: Final = 1
MAP: Final = namespace_of("map", "bench")
WALL_MS: Final = 1_700_000_000_000
LINEAGE: Final = 9
ALLOCATED: Final = 16
"""Bytes in steps of which objects get memory."""
MB: Final = 1e6

Figures = dict[str, Any]


class _Round(NamedTuple):
    """What loading a log once took."""

    entries: int
    seconds: float
    cpu_s: float
    longest_step_ms: float
    """Of processor, in which a member's loop does nothing else."""
    held_bytes: int


class _Writer:
    """Writes one stream to a disk, in segments of the default size."""

    def __init__(self, disk: Disk, stream: Stream) -> None:
        self._disk, self._stream = disk, stream
        self._segment_bytes = PersistenceSettings().segment_bytes
        self._records: list[bytes] = []
        self._size = self._flags = self._written = 0
        self._parts: list[bytes] = []
        self.segments: list[Segment] = []
        self.next_block = 1
        self._roll()

    def add(self, kind: RecordKind, prefix: int, number: int = 0, body: bytes = b"") -> None:
        """Add a record; a control record gets a block of its own."""
        is_control = kind not in (RecordKind.OPERATION, RecordKind.CHUNK)
        self._put(encode_record(kind, prefix, number, body), is_control=is_control)

    def _put(self, record: bytes, *, is_control: bool) -> None:
        if self._records and (is_control or self._size + len(record) > BLOCK_BYTES_TARGET):
            self.cut()
        self._records.append(record)
        self._size += len(record)
        if is_control:
            self._flags = WITH_CONTROL
            self.cut()

    def cut(self) -> None:
        """Close the open block, and the segment with it when that is full."""
        body = b"".join(self._records)
        if not body:
            return
        head = encode_block(self._checksum, self.next_block, WALL_MS, self._flags, body)
        self._parts += (head, body)
        self._written += len(head) + len(body)
        self.next_block += 1
        self._records, self._size, self._flags = [], 0, 0
        if self._written >= self._segment_bytes:
            self._write()
            self._end()
            self._roll()

    def _roll(self) -> None:
        number = len(self.segments) + 1
        self.segments.append(Segment(self._stream, number, self.next_block, OPEN))
        header = encode_header(self._stream, number, self.next_block, LOG_ID)
        self._checksum, self._parts, self._written = checksum_of(header), [header], len(header)
        self._put(name_record(STRUCTURE, MAP), is_control=True)

    def _write(self) -> None:
        file = segment_file(self._stream, self.segments[-1].number)
        self._disk.execute([Append(file, tuple(self._parts)), Sync(file)])
        self._parts = []

    def _end(self) -> None:
        self.segments[-1] = msgspec.structs.replace(self.segments[-1], end=self._written)

    def finish(self) -> tuple[Segment, ...]:
        """Write what is left; all segments."""
        self.cut()
        if self._parts:
            self._write()
        return tuple(self.segments)


def run(
    progress: Callable[[int, int], None] = lambda _done, _total: None, mib: int = MIB
) -> Figures:
    """Load each size of value from changes and from images.

    Args:
        progress: Told how many of all cases are done.
        mib: Values of each case, in MiB.
    """
    work = [(size, stream) for size in VALUE_BYTES for stream in Stream]
    rows: list[Figures] = []
    for done, (value_bytes, stream) in enumerate(work):
        progress(done, len(work))
        with tempfile.TemporaryDirectory(prefix="whimbrel-loading-") as folder:
            entries = max(1, mib * (1 << 20) // value_bytes)
            rows.append(measure(Path(folder), entries, value_bytes, stream))
    progress(len(work), len(work))
    goals = [_goal(rows, value_bytes, least) for value_bytes, least in GOALS_MB_PER_S.items()]
    return {"mib": mib, "partitions": PARTITIONS, "rows": rows, "goals": documents(goals)}


def _goal(rows: Sequence[Figures], value_bytes: int, least: float) -> Goal:
    """Judged by the values alone, from the slower stream."""
    slower = min(
        (row for row in rows if row["value_bytes"] == value_bytes),
        key=lambda row: float(row["values_mb_per_s"]),
    )
    rate, of_log = slower["values_mb_per_s"], slower["log_mb_per_s"]
    text = f"{value_bytes}-byte values: at least {least:g} MB/s of values per core"
    found = f"{rate} MB/s from {slower['stream']} ({of_log} MB/s of log)"
    return Goal(text, found, rate >= least)


def measure(folder: Path, entries: int, value_bytes: int, stream: Stream) -> Figures:
    """Make the files of one case, load them some times, and see that everything is there."""
    disk = Disk(folder)
    try:
        log = write(disk, entries, value_bytes, stream)
        found = disk.execute([List(LOG_FOLDER)])[0]
        files = found if isinstance(found, tuple) else ()
        rounds = [_load(disk, log, files) for _ in range(ROUNDS)]
    finally:
        disk.close()
    if any(one.entries != entries for one in rounds):
        raise RuntimeError(f"{rounds[0].entries} of {entries} entries were loaded")
    best = min(rounds, key=lambda one: one.cpu_s)
    log_bytes = sum(one.size for one in files)
    return {
        "value_bytes": value_bytes,
        "stream": stream.name.lower(),
        "entries": entries,
        "log_bytes": log_bytes,
        "seconds": round(best.seconds, 3),
        "cpu_s": round(best.cpu_s, 3),
        "values_mb_per_s": round(entries * value_bytes / MB / best.cpu_s, 1),
        "log_mb_per_s": round(log_bytes / MB / best.cpu_s, 1),
        "cpu_us_per_entry": round(1e6 * best.cpu_s / entries, 2),
        "longest_step_ms": round(best.longest_step_ms, 1),
        "memory_bytes_per_entry": round(best.held_bytes / entries, 1),
        "overhead_bytes_per_entry": round(best.held_bytes / entries - KEY_BYTES - value_bytes, 1),
    }


def _load(disk: Disk, log: LogFiles, files: Sequence[FileSize]) -> _Round:
    """Load all of a log once."""
    loading = Loading(log, files, _everything, _make)
    longest_s = 0.0
    begin_s, cpu_s = time.monotonic(), time.process_time()
    while commands := loading.next_commands():
        answers = disk.execute(commands)
        step_s = time.thread_time()
        loading.take(answers)
        longest_s = max(longest_s, time.thread_time() - step_s)
    cpu_s, seconds = time.process_time() - cpu_s, time.monotonic() - begin_s
    stores = [one.store for one in loading.fragments]
    held_bytes = sum(map(_held_bytes, stores))
    return _Round(sum(map(len, stores)), seconds, cpu_s, 1e3 * longest_s, held_bytes)


def write(disk: Disk, entries: int, value_bytes: int, stream: Stream) -> LogFiles:
    """Write a log of that many entries, whose content is all in one stream."""
    changes, images = _Writer(disk, Stream.CHANGES), _Writer(disk, Stream.IMAGES)
    prefixes = [prefix_of(STRUCTURE, PartitionId(pid)) for pid in range(PARTITIONS)]
    state = msgspec.msgpack.encode(_state())
    for prefix in prefixes:
        changes.add(RecordKind.HELD, prefix, 0, state)
    value = bytes(4) + b"\xff\xff\xff\xf4" + value_bytes.to_bytes(4, "big") + bytes(value_bytes)
    if stream is Stream.CHANGES:
        counters = [0] * PARTITIONS
        for number, operation in enumerate(_operations(entries, value)):
            pid = number % PARTITIONS
            counters[pid] += 1
            changes.add(RecordKind.OPERATION, prefixes[pid], counters[pid], operation)
    else:
        _write_images(changes, images, prefixes, entries, value)
    return LogFiles(LOG_ID, (*changes.finish(), *images.finish()))


def _operations(entries: int, value: bytes) -> Iterator[bytes]:
    """The backup operations of puts of one key after the other."""
    for number in range(entries):
        yield MapStore().put(_key(number), value, WALL_MS)[1]


def _write_images(
    changes: _Writer, images: _Writer, prefixes: list[int], entries: int, value: bytes
) -> None:
    """A whole image of each fragment, in chunks as they are when a member makes them."""
    state = msgspec.msgpack.encode(_state())
    for pid, prefix in enumerate(prefixes):
        store, image = MapStore(), pid + 1
        for number in range(pid, entries, PARTITIONS):
            store.put(_key(number), value, WALL_MS)
        cursor, is_last = store.open_cursor(), False
        while not is_last:
            chunk, _, is_last = store.export(cursor, BYTES_PER_WORK)
            images.add(RecordKind.CHUNK, prefix, image, chunk)
        images.add(RecordKind.IMAGE, prefix, image, encode_number(len(store)))
        floor = changes.next_block
        changes.add(RecordKind.IMAGED, prefix, image, encode_number(floor))
        changes.add(RecordKind.STATE, prefix, 0, state)


def _key(number: int) -> bytes:
    """As the store keeps a string of KEY_BYTES characters."""
    text = b"key:%020d" % number
    return bytes(stored_key(bytes(4) + b"\xff\xff\xff\xf5" + KEY_BYTES.to_bytes(4, "big") + text))


def _state() -> FragmentState:
    """Of a primary with one backup."""
    return FragmentState(LINEAGE, LINEAGE, ZERO, ZERO, 0, False, 1, 0, 0)


def _everything(_pid: PartitionId, _namespace: Namespace) -> bool:
    return True


def _make(pid: PartitionId, namespace: Namespace, at: FragmentState) -> Fragment:
    return Fragment(pid, namespace, MapStore(), at.sync_count, at.async_count, at.generation)


def _held_bytes(store: Store) -> int:
    """What the keys, records and dictionary of a store take, as the allocator rounds it."""
    if not isinstance(store, MapStore):
        raise TypeError("the log that was made has one map")
    records = store.records
    sizes = chain(map(getsizeof, records), map(getsizeof, records.values()))
    return getsizeof(records) + sum(size + ALLOCATED - 1 & -ALLOCATED for size in sizes)


def tables(figures: Figures) -> list[tuple[str, list[str], list[list[str]]]]:
    """For people: title, columns, rows."""
    columns = [">value B", "from", ">entries", ">log MB", ">MB/s of values", ">MB/s of log",
               ">us/entry", ">longest step ms", ">B beside key and value"]  # fmt: skip
    rows = [
        [
            str(row["value_bytes"]),
            row["stream"],
            str(row["entries"]),
            f"{row['log_bytes'] / MB:.1f}",
            str(row["values_mb_per_s"]),
            str(row["log_mb_per_s"]),
            str(row["cpu_us_per_entry"]),
            str(row["longest_step_ms"]),
            str(row["overhead_bytes_per_entry"]),
        ]
        for row in figures["rows"]
    ]
    title = f"A member loads its files, {figures['mib']} MiB of values, per core (CPU time)"
    return [(title, columns, rows), goals_table(figures["goals"])]
