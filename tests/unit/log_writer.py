"""Logs as tests make them: segments in memory, from records; and a disk that is a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from tests.unit.keys import CLUSTER_ID, encryption_now

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.persistence.commands import FileSize
from whimbrel.core.persistence.encryption import Encryption
from whimbrel.core.persistence.format import (
    BLOCK_BYTES_TARGET,
    WITH_CONTROL,
    FragmentState,
    RecordKind,
    Stream,
    encode_number,
    encode_record,
    prefix_of,
    segment_file,
)
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.metadata import LogFiles, Segment
from whimbrel.core.persistence.segments import SegmentInfo
from whimbrel.core.replication.fragments import Fragment
from whimbrel.structures.map.store import MapStore

LOG_ID = b"id of a test log"
WALL_MS = 1_700_000_000_000
MAP = Namespace("map/flights")
STRUCTURE = 7
Files = dict[str, bytes]


def state(value: int = 0, lineage: int = 9, *, is_dirty: bool = False) -> FragmentState:
    """The state of a primary with one backup."""
    counters = (value, 0, 0, 0, 0, 0)
    return FragmentState(lineage, 8, (1, 0, 0, 0, 0, 0), counters, 0, is_dirty, 1, 0, 0)


class LogWriter:
    """Writes both streams; a block is closed by ``flush``, by its size, and before a HELD."""

    def __init__(self, log_id: bytes = LOG_ID, encryption: Encryption | None = None) -> None:
        self.log_id = log_id
        self.files: Files = {}
        self.next_block = {Stream.CHANGES: 1, Stream.IMAGES: 1}
        self.offsets: dict[str, list[int]] = {}
        """Where blocks begin, by file."""
        self._segments: dict[Stream, list[SegmentInfo]] = {stream: [] for stream in Stream}
        self._encryption = encryption or encryption_now()
        self._bodies: dict[Stream, bytes] = dict.fromkeys(Stream, b"")
        self._flags = dict.fromkeys(Stream, 0)
        self._named: dict[tuple[Stream, int], None] = {}
        for stream in Stream:
            self.roll(stream)

    # -- whole segments -------------------------------------------------------------------

    def roll(self, stream: Stream) -> None:
        """Begin the next segment of a stream; the one before is closed."""
        self.flush(stream)
        number = len(self._segments[stream]) + 1
        segment = SegmentInfo(stream, number, self.next_block[stream])
        self._segments[stream].append(segment)
        file = segment_file(stream, number)
        self.files[file] = segment.open(self.log_id, CLUSTER_ID, self._encryption)
        self.offsets[file] = []
        self._named = {key: None for key in self._named if key[0] is not stream}

    def log(self) -> LogFiles:
        """The list of the segments, all but the last of each stream closed."""
        for stream in Stream:
            self.flush(stream)
        listed: list[Segment] = []
        for segments in self._segments.values():
            for segment in segments[:-1]:
                end = len(self.files[segment_file(segment.stream, segment.number)])
                listed.append(msgspec.structs.replace(segment.entry(), end=end))
            listed.append(segments[-1].entry())
        return LogFiles(self.log_id, tuple(listed))

    def newest(self, stream: Stream) -> str:
        """The file that is written to."""
        return segment_file(stream, len(self._segments[stream]))

    # -- records --------------------------------------------------------------------------

    def add(
        self, stream: Stream, kind: RecordKind, prefix: int, number: int = 0, body: bytes = b""
    ) -> None:
        """Add a record to the block that is being made."""
        record = encode_record(kind, prefix, number, body)
        has_body = bool(self._bodies[stream])
        is_full = len(self._bodies[stream]) + len(record) > BLOCK_BYTES_TARGET
        if has_body and (is_full or kind is RecordKind.HELD):
            self.flush(stream)
        self._bodies[stream] += record
        if kind not in (RecordKind.OPERATION, RecordKind.CHUNK):
            self._flags[stream] = WITH_CONTROL

    def flush(self, stream: Stream) -> int:
        """Close the block that is being made; the number of the next one."""
        body = self._bodies[stream]
        if body:
            number, file = self.next_block[stream], self.newest(stream)
            self.offsets[file].append(len(self.files[file]))
            segment = self._segments[stream][-1]
            self.files[file] += b"".join(
                segment.encode(number, WALL_MS, self._flags[stream], body, 0)
            )
            self.next_block[stream] = number + 1
            self._bodies[stream], self._flags[stream] = b"", 0
        return self.next_block[stream]

    def name(self, stream: Stream, structure: int, namespace: Namespace) -> None:
        """Name a structure, once in each segment."""
        if (stream, structure) not in self._named:
            self._named[stream, structure] = None
            self.flush(stream)
            self.add(
                stream, RecordKind.NAME, prefix_of(structure, PartitionId(0)), 0, namespace.encode()
            )
            self.flush(stream)

    # -- what is said of one fragment -----------------------------------------------------

    def held(self, pid: int, image: int = 0, at: FragmentState | None = None) -> None:
        """A fragment begins, with its state."""
        self.name(Stream.CHANGES, STRUCTURE, MAP)
        body = msgspec.msgpack.encode(at or state())
        self.add(Stream.CHANGES, RecordKind.HELD, prefix(pid), image, body)

    def state(self, pid: int, at: FragmentState) -> None:
        """Its versions are these from here on."""
        self.name(Stream.CHANGES, STRUCTURE, MAP)
        body = msgspec.msgpack.encode(at)
        self.add(Stream.CHANGES, RecordKind.STATE, prefix(pid), 0, body)

    def operation(self, pid: int, value: int, operation: bytes) -> None:
        """A change, after which its counter is this."""
        self.add(Stream.CHANGES, RecordKind.OPERATION, prefix(pid), value, operation)

    def dropped(self, pid: int) -> None:
        """It is held no longer."""
        self.add(Stream.CHANGES, RecordKind.DROPPED, prefix(pid))

    def imaged(self, pid: int, image: int, floor: int) -> None:
        """An image is whole; changes from a block on go on top."""
        self.name(Stream.CHANGES, STRUCTURE, MAP)
        self.add(Stream.CHANGES, RecordKind.IMAGED, prefix(pid), image, encode_number(floor))

    def chunk(self, pid: int, image: int, chunk: bytes) -> None:
        """A chunk of an image."""
        self.name(Stream.IMAGES, STRUCTURE, MAP)
        self.add(Stream.IMAGES, RecordKind.CHUNK, prefix(pid), image, chunk)

    def image_end(self, pid: int, image: int, entries: int = 0) -> None:
        """The image is whole."""
        self.add(Stream.IMAGES, RecordKind.IMAGE, prefix(pid), image, encode_number(entries))

    def image(self, pid: int, image: int, store: MapStore) -> None:
        """A whole image of a store."""
        chunk, entries, _ = store.export(store.open_cursor(), 1 << 30)
        self.chunk(pid, image, chunk)
        self.image_end(pid, image, entries)


def prefix(pid: int) -> int:
    """Of the one structure of these logs."""
    return prefix_of(STRUCTURE, PartitionId(pid))


def put(store: MapStore, key: str, value: str) -> bytes:
    """Put into a store; the backup operation."""
    return store.put(key.encode(), value.encode(), WALL_MS)[1]


def make(pid: PartitionId, namespace: Namespace, at: FragmentState) -> Fragment:
    """An empty fragment, as the room that loads makes it."""
    return Fragment(pid, namespace, MapStore(), at.sync_count, at.async_count, at.generation)


def listed(files: Mapping[str, bytes]) -> tuple[FileSize, ...]:
    """What the folder of the log is answered to hold."""
    return tuple(FileSize(file, len(files[file])) for file in sorted(files))


def everything(_pid: PartitionId, _namespace: Namespace) -> bool:
    """Wants every fragment."""
    return True


def begun(stream: Stream, number: int, first_block: int) -> tuple[Segment, bytes]:
    """A segment of such a log without blocks: as it is listed, and its file."""
    segment = SegmentInfo(stream, number, first_block)
    header = segment.open(LOG_ID, CLUSTER_ID, encryption_now())
    return segment.entry(), header


def loading_of(
    log: LogFiles,
    there: tuple[FileSize, ...],
    wanted: Callable[[PartitionId, Namespace], bool] = everything,
    encryption: Encryption | None = None,
) -> Loading:
    """Loads such a log."""
    encryption = encryption or encryption_now()
    return Loading(log, there, wanted, make, encryption=encryption, cluster_id=CLUSTER_ID)


def load(
    files: Mapping[str, bytes],
    log: LogFiles,
    wanted: Callable[[PartitionId, Namespace], bool] = everything,
    encryption: Encryption | None = None,
) -> Loading:
    """Load to the end, and see that progress never falls."""
    loading = loading_of(log, listed(files), wanted, encryption)
    before = 0
    while commands := loading.next_commands():
        answers = [files[one.file][one.offset : one.offset + one.bytes_max] for one in commands]
        loading.take(answers)
        assert before <= loading.bytes_loaded <= loading.bytes_total
        before = loading.bytes_loaded
    assert loading.is_done and loading.bytes_loaded == loading.bytes_total
    return loading


def content(loading: Loading) -> dict[int, dict[str, str]]:
    """The entries of each loaded fragment by partition."""
    return {one.partition_id: entries(one.store) for one in loading.fragments}


def entries(store: object) -> dict[str, str]:
    """Key to value of a store of these logs."""
    assert isinstance(store, MapStore)
    return {key.decode(): (store.get(key, WALL_MS) or b"").decode() for key in store.records}
