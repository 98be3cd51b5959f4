"""From the segments of a log to fragments, in pieces; nothing here touches a file.

First all changes are read for their checksums and their control records, so that it is known what
was held at the end and where each fragment begins; then the images; then the changes once more,
from the first one that anybody needs. Nothing is ever in memory but a piece and what was loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.persistence.commands import Answer, FileSize, Read
from whimbrel.core.persistence.encryption import PLAIN, Encryption, cluster_hash
from whimbrel.core.persistence.format import (
    HEADER_BYTES,
    LENGTH_BITS,
    LENGTH_MAX,
    RECORD,
    RECORD_BYTES,
    WITH_CONTROL,
    Block,
    DamageError,
    FragmentState,
    RecordKind,
    SegmentReader,
    Stream,
    decode_header,
    decode_number,
    records_of,
    segment_file,
    segment_of,
    split_prefix,
)
from whimbrel.core.persistence.metadata import CLUSTER_FILE, OPEN, LogFiles, Segment
from whimbrel.core.replication.fragments import Fragment
from whimbrel.errors import GridError

READ_BYTES_MAX: Final = 512 * 1024
"""In one read: some 10 ms of small records, in which the event loop does nothing else. Of twice as
much the allocator gives what a piece took back to the system, and gets it again for the next one,
page by page: that costs more than checksums and copies of large records together."""
FIRST_BLOCK: Final = 1
"""Number of the first block of a stream that has none yet."""

_OPERATION = int(RecordKind.OPERATION)
_STATE = int(RecordKind.STATE)
_UNREADABLE = (GridError, ValueError, struct.error, msgspec.MsgspecError)
"""What is raised for bytes that are whole, but not what was meant to be written."""

Wanted = Callable[[PartitionId, Namespace], bool]
Make = Callable[[PartitionId, Namespace, FragmentState], Fragment]
_Reads = Generator[Read, bytes, None]
"""Asks for pieces of files, and is sent them."""
_Use = Callable[[str, list[Block]], None]

_decode_state = msgspec.msgpack.Decoder(FragmentState).decode


@dataclass(slots=True)
class Held:
    """What a log says of a fragment that is held.

    Attributes:
        image: Number of the image with its content, 0 for none.
        floor: Its changes count from this block on.
    """

    image: int
    floor: int


class Account:
    """What the control records of a log say, up to where they were taken.

    Attributes:
        names: The structure of each number.
        held: By prefix, in the order in which they were begun.
        states: By prefix, the latest state and the block that it stands in.
        begun: By prefix, where its life began, or the one before ended, for the last time: block
            and offset in its body. What stands before it is of an earlier life.
    """

    def __init__(self) -> None:
        self.names: dict[int, Namespace] = {}
        self.held: dict[int, Held] = {}
        self.states: dict[int, tuple[FragmentState, int]] = {}
        self.begun: dict[int, tuple[int, int]] = {}

    def take(self, block: Block) -> None:
        """Take the next block of the changes.

        Raises:
            ValueError, msgspec.MsgspecError: It is not what we write.
        """
        end = 0
        for prefix, number, kind, body in records_of(block.body):
            end += RECORD_BYTES + len(body)
            if kind == RecordKind.NAME:
                self.name(prefix, body)
            elif kind == RecordKind.STATE:
                self.states[prefix] = _decode_state(body), block.number
            elif kind == RecordKind.HELD:
                self._forget(prefix)
                self.held[prefix] = Held(number, block.number)
                self.states[prefix] = _decode_state(body), block.number
                self.begun[prefix] = block.number, end
            elif kind == RecordKind.DROPPED:
                self._forget(prefix)
                self.begun[prefix] = block.number, end
            elif kind == RecordKind.IMAGED:
                self._imaged(prefix, number, decode_number(body))
            elif kind != RecordKind.OPERATION:
                raise ValueError(f"a record of kind {kind} stands among changes")

    def name(self, prefix: int, body: bytes) -> None:
        """Take a NAME, of either stream; a number means one structure in all of a log.

        Raises:
            ValueError: It means another one already.
        """
        structure, namespace = split_prefix(prefix)[0], Namespace(body.decode())
        known = self.names.setdefault(structure, namespace)
        if known != namespace:
            raise ValueError(f"structure {structure} is {known} and {namespace}")

    def where(self, prefix: int) -> tuple[PartitionId, Namespace]:
        """Partition and structure of a prefix.

        Raises:
            ValueError: The structure was not named before.
        """
        structure, pid = split_prefix(prefix)
        namespace = self.names.get(structure)
        if namespace is None:
            raise ValueError(f"structure {structure} has no name")
        return pid, namespace

    def start(self, prefix: int) -> int:
        """The block from which on the changes of a held fragment are to be read.

        Its latest state may stand before its floor, and operations that were counted since.

        Raises:
            ValueError: There is no state.
        """
        if prefix not in self.states:
            raise ValueError("a fragment is held without a state")
        return min(self.held[prefix].floor, self.states[prefix][1])

    def _forget(self, prefix: int) -> None:
        self.held.pop(prefix, None)
        self.states.pop(prefix, None)

    def _imaged(self, prefix: int, image: int, floor: int) -> None:
        """The image takes the place of what came before it, unless that is of an earlier life."""
        if floor >= self.begun.get(prefix, (0, 0))[0]:
            self.held[prefix] = Held(image, floor)


class Loading:
    """Loads what a log holds of fragments that are wanted.

    ``wanted`` is asked once the changes have been checked; when it says no to everything nothing is
    loaded, and all of the log is checked.

    Attributes:
        bytes_total: To be read; the changes count twice.
        bytes_loaded: Of these, read or found to be of no use; never falls.
        fragments: With content, versions and doubt, when it is done. Nobody holds them yet.
        images: By number of a segment of images, the images in it that count and their bytes.
        last_image: The highest number that an image has.
        torn: The segments that were OPEN, with the end that counts from now on.
        next_block: By stream, the number of the block behind its last one.
    """

    def __init__(
        self,
        log: LogFiles,
        files: Sequence[FileSize],
        wanted: Wanted,
        make: Make,
        until_ms: int | None = None,
        encryption: Encryption = PLAIN,
        cluster_id: str = "",
    ) -> None:
        """Load from a log.

        Args:
            log: As ``cluster.meta`` lists it.
            files: What is in the folder ``log``.
            wanted: Whether a fragment is to be loaded.
            make: An empty fragment for a partition, a structure and its state.
            until_ms: Load what was there at that moment by the member's wall clock: the first block
                that is of a later one, and all behind it, are checked and do not count.
            encryption: Has the keys.
            cluster_id: Of the cluster that the log is of.

        Raises:
            DamageError: A segment is gone, or the list makes no sense.
            KeyProblemError: A segment cannot be read with these keys.
        """
        self._log = log
        self._encryption = encryption
        self._cluster = cluster_hash(cluster_id)
        self._sizes = {one.file: one.size for one in files}
        self._wanted = wanted
        self._make = make
        self._until_ms = until_ms
        self._until_block: int | None = None
        """The first one that does not count, once it is known."""
        self._account = Account()
        self._made: dict[int, Fragment] = {}
        """By prefix, what is being loaded."""
        self._whole: dict[int, None] = {}
        """Prefixes whose image was seen to its end."""
        self._chunk_at: dict[int, tuple[str, int]] = {}
        """By prefix, file and block of the last chunk of its image."""
        self._apply: dict[int, Callable[[bytes, int, int], None]] = {}
        self._values: dict[int, int] = {}
        """By prefix, our own counter after the last operation since the last state."""
        self._starts: list[tuple[int, int]] = []
        """Block and prefix of fragments whose changes do not count yet, the next one last."""
        self.torn: tuple[Segment, ...] = ()
        self.next_block = dict.fromkeys(Stream, FIRST_BLOCK)
        self.fragments: list[Fragment] = []
        self.images: dict[int, dict[int, int]] = {}
        self.last_image = 0
        self._changes = self._listed(Stream.CHANGES)
        self._images = self._listed(Stream.IMAGES)
        changes = sum(map(self._size, self._changes))
        self.bytes_total = 2 * changes + sum(map(self._size, self._images))
        self.bytes_loaded = 0
        self._reads = self._run()
        self._read: Read | None = next(self._reads, None)

    @property
    def names(self) -> dict[int, Namespace]:
        """The structure of each number that the log uses."""
        return self._account.names

    @property
    def held(self) -> dict[int, Held]:
        """By prefix, all that the log holds, wanted or not."""
        return self._account.held

    @property
    def is_done(self) -> bool:
        """Whether everything is loaded."""
        return self._read is None

    def next_commands(self) -> tuple[Read, ...]:
        """What is to be read next, the same until it is answered; empty when it is done."""
        return () if self._read is None else (self._read,)

    def take(self, answers: Sequence[Answer]) -> None:
        """The answers to ``next_commands``.

        Raises:
            DamageError: The log is not what was written. Nothing can be gone on with.
        """
        (data,) = answers
        if not isinstance(data, bytes):
            raise TypeError("a read is answered by bytes")
        try:
            self._read = self._reads.send(data)
        except StopIteration:
            self._read = None

    # -- the way through the files --------------------------------------------------------

    def _run(self) -> _Reads:
        yield from self._look_for_newer()
        yield from self._pass(Stream.CHANGES, self._changes, self._check)
        self._begin()
        yield from self._pass(Stream.IMAGES, self._images, self._fill)
        self._check_images()
        yield from self._pass_again()
        self._end()

    def _listed(self, stream: Stream) -> list[Segment]:
        """The segments of a stream; each is there, and only the last one may be open."""
        found = self._log.of(stream)
        for segment in found:
            file = segment_file(stream, segment.number)
            if segment.end and file not in self._sizes:
                raise DamageError(file, 0, "it is gone")
            if segment.end == OPEN and segment is not found[-1]:
                raise DamageError(CLUSTER_FILE, 0, f"it lists {file} as open, and a later one")
            self._encryption.check_readable(file, segment.key_id)
        return found

    def _size(self, segment: Segment) -> int:
        """Bytes to be read of a segment."""
        size = self._sizes.get(segment_file(segment.stream, segment.number), 0)
        return size if segment.end == OPEN else min(size, segment.end)

    def _look_for_newer(self) -> _Reads:
        """See that no segment with blocks is newer than what is listed.

        One that is made is listed before it gets its first block. Older ones are what is left of
        compaction, and those of another log of one that was given up: they were taken off the list
        before they were removed.
        """
        last = {Stream.CHANGES: 0, Stream.IMAGES: 0}
        last.update((one.stream, one.number) for one in (*self._changes, *self._images))
        for file, size in self._sizes.items():
            found = segment_of(file)
            if found is None or found[1] <= last[found[0]] or size <= HEADER_BYTES:
                continue
            reader: SegmentReader | None = None
            for offset in range(0, size, READ_BYTES_MAX):
                data = yield Read(file, offset, READ_BYTES_MAX)
                if reader is None:
                    header = decode_header(data)
                    if header is None or header.log_id != self._log.log_id:
                        break  # of a log before this one, from which a death has left it
                    reader = SegmentReader(file, *header)
                if reader.feed(data):
                    raise DamageError(CLUSTER_FILE, 0, f"it is older than {file}")
                if reader.is_broken:
                    break

    def _pass(self, stream: Stream, segments: list[Segment], use: _Use) -> _Reads:
        """Read a stream, and find where it ends."""
        expected = 0, FIRST_BLOCK
        """Number and first block of the segment behind the last one. Of images, whole segments go
        when nobody needs them; changes that count stand without a gap."""
        for segment in segments:
            file = segment_file(stream, segment.number)
            number, block = expected
            must_follow = number and (stream is Stream.CHANGES or segment.number == number)
            if must_follow and segment.first_block != block:
                problem = f"it begins with block {segment.first_block}, not {block}"
                raise DamageError(file, 0, problem)
            reader = self._reader(segment)
            yield from self._segment(segment, reader, use)
            if segment.end == OPEN:
                sound = msgspec.structs.replace(segment, end=reader.sound_bytes)
                self.torn = (*self.torn, sound)
            expected = segment.number + 1, reader.next_block
            self.next_block[stream] = reader.next_block

    def _reader(self, segment: Segment) -> SegmentReader:
        """Reads that segment and no other."""
        file = segment_file(segment.stream, segment.number)
        header = segment.header(self._log.log_id, self._cluster)
        return SegmentReader(file, *header, cipher=self._encryption.cipher_of(header))

    def _segment(self, segment: Segment, reader: SegmentReader, use: _Use) -> _Reads:
        """Read one segment."""
        file, end = reader.file, self._size(segment)
        may_be_torn = segment.end == OPEN
        offset = 0
        while offset < end:
            data = yield Read(file, offset, min(READ_BYTES_MAX, end - offset))
            use(file, reader.feed(data))
            if not data or (reader.is_broken and not may_be_torn):
                break
            offset += len(data)
            self.bytes_loaded += len(data)
        if segment.end == 0:
            return
        reader.finish(may_be_torn=may_be_torn)
        if not may_be_torn and reader.sound_bytes < segment.end:
            missing = segment.end - reader.sound_bytes
            raise DamageError(file, reader.sound_bytes, f"{missing} bytes are missing at its end")

    def _pass_again(self) -> _Reads:
        """Read the changes from the first one on that a fragment needs."""
        ends = {one.number: one for one in self.torn if one.stream is Stream.CHANGES}
        segments = [ends.get(segment.number, segment) for segment in self._changes]
        behind = [segment.first_block for segment in segments[1:]]
        behind.append(self.next_block[Stream.CHANGES])
        first = self._starts[-1][0] if self._starts else behind[-1]
        for segment, block in zip(segments, behind, strict=False):
            if block > first:
                reader = self._reader(segment)
                yield from self._segment(segment, reader, self._carry_out)
            else:
                self.bytes_loaded += self._size(segment)
        self.bytes_loaded = self.bytes_total

    # -- what is done with blocks ---------------------------------------------------------

    def _check(self, file: str, blocks: list[Block]) -> None:
        """First pass: what control records say."""
        for block in self._in_time(blocks):
            if block.flags & WITH_CONTROL:
                try:
                    self._account.take(block)
                except _UNREADABLE as problem:
                    raise DamageError(file, block.offset, str(problem)) from None

    def _in_time(self, blocks: list[Block]) -> list[Block]:
        """Those of the changes that count."""
        if self._until_ms is None:
            return blocks
        for position, block in enumerate(blocks):
            is_late = block.wall_ms > self._until_ms and self._until_block is None
            if is_late or block.number == self._until_block:
                self._until_block = block.number
            if self._until_block is not None and block.number >= self._until_block:
                return blocks[:position]
        return blocks

    def _begin(self) -> None:
        """Make what is wanted. The state of what is held stands in the block that says so."""
        first = self._changes[0].first_block if self._changes else FIRST_BLOCK
        account = self._account
        for prefix, held in account.held.items():
            try:
                pid, namespace = account.where(prefix)
                start = account.start(prefix)
            except ValueError as problem:
                raise DamageError(CLUSTER_FILE, 0, f"in its log, {problem}") from None
            if start < first:
                why = f"in its log, the beginning of {namespace} in partition {pid} is missing"
                raise DamageError(CLUSTER_FILE, 0, why)
            held.floor = start
            if not self._wanted(pid, namespace):
                continue
            state, _ = account.states[prefix]
            fragment = self._make(pid, namespace, state)
            _set_state(fragment, state)
            self._made[prefix] = fragment
            self._starts.append((start, prefix))
        self._starts.sort(reverse=True)

    def _fill(self, file: str, blocks: list[Block]) -> None:
        """The images: what is held and wanted goes in."""
        held, found = self._account.held, segment_of(file)
        here = self.images.setdefault(found[1] if found else 0, {})
        for block in blocks:
            try:
                for prefix, number, kind, body in records_of(block.body):
                    if kind == RecordKind.NAME:
                        self._account.name(prefix, body)
                        continue
                    self.last_image = max(self.last_image, number)
                    if prefix not in held or held[prefix].image != number:
                        continue
                    here[number] = here.get(number, 0) + RECORD_BYTES + len(body)
                    if kind == RecordKind.CHUNK:
                        self._chunk_at[prefix] = file, block.offset
                        if prefix in self._made:
                            self._made[prefix].store.ingest(body)
                    elif kind == RecordKind.IMAGE:
                        self._whole[prefix] = None
                    else:
                        raise ValueError(f"a record of kind {kind} stands among images")
            except _UNREADABLE as problem:
                raise DamageError(file, block.offset, str(problem)) from None

    def _check_images(self) -> None:
        """Every image that is held was seen to its end, wanted or not."""
        for prefix, held in self._account.held.items():
            if held.image and prefix not in self._whole:
                newest = (
                    segment_file(Stream.IMAGES, self._images[-1].number) if self._images else ""
                )
                place = newest or CLUSTER_FILE, 0
                file, offset = self._chunk_at.get(prefix, place)
                pid, namespace = self._account.where(prefix)
                problem = f"image {held.image} of {namespace} in partition {pid} does not end"
                raise DamageError(file, offset, problem)

    def _carry_out(self, file: str, blocks: list[Block]) -> None:
        """Second pass over the changes."""
        starts, begun = self._starts, self._account.begun
        for block in self._in_time(blocks):
            at, later = 0, []
            while starts and starts[-1][0] <= block.number:
                prefix = starts.pop()[1]
                place = begun.get(prefix)
                if place is not None and place[0] == block.number:
                    later.append((place[1], prefix))
                else:
                    self._apply[prefix] = self._made[prefix].store.apply
            try:
                for offset, prefix in sorted(later):
                    at = self._repeat(block.body, at, offset)
                    self._apply[prefix] = self._made[prefix].store.apply
                self._repeat(block.body, at, len(block.body))
            except _UNREADABLE as problem:
                raise DamageError(file, block.offset, str(problem)) from None

    def _repeat(self, body: bytes, at: int, end: int) -> int:
        """Carry out the records from one offset to another; the innermost loop of loading."""
        unpack, apply_of, values = RECORD.unpack_from, self._apply.get, self._values
        while at < end:
            prefix, number, what = unpack(body, at)
            start = at + RECORD_BYTES
            at = start + (what & LENGTH_MAX)
            apply = apply_of(prefix)
            if apply is None:
                continue
            kind = what >> LENGTH_BITS
            if kind == _OPERATION:
                apply(body, start, at)
                values[prefix] = number
            elif kind == _STATE:
                values.pop(prefix, None)
                _set_state(self._made[prefix], _decode_state(body[start:at]))
        if at != end:
            raise ValueError("a record is longer than its block")
        return at

    def _end(self) -> None:
        for prefix, fragment in self._made.items():
            fragment.value = self._values.get(prefix, fragment.value)
            self.fragments.append(fragment)


def _set_state(fragment: Fragment, state: FragmentState) -> None:
    """Let a fragment stand where a state says."""
    fragment.lineage = state.lineage
    fragment.base_lineage = state.base_lineage
    fragment.base = state.base
    fragment.is_dirty = state.is_dirty
    fragment.set_counters(state.counters, state.slot)
