"""Images of fragments: chunk by chunk into segments of their own.

An image is wanted of a fragment that is held, because the disk has none or much of its log is not
needed; or it is *staged*: made of the chunks of a copy as they arrive, for a fragment that may be
held later. Chunks are those that ``Store.export`` gives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from whimbrel.core.persistence.format import (
    WITH_CONTROL,
    RecordKind,
    encode_number,
    encode_record,
    name_record,
    prefix_of,
)
from whimbrel.core.persistence.segments import SegmentInfo
from whimbrel.core.replication.fragments import Fragment

if TYPE_CHECKING:
    from whimbrel.core.persistence.fragment_log import FragmentLog

BYTES_PER_WORK: Final = 256 * 1024
"""Of images that are wanted, so that whoever waits for a change does not wait for many chunks."""


class Piece(NamedTuple):
    """What goes into the segment of images next: a chunk, or the end of an image."""

    fragment: Fragment
    structure: int
    image: int
    chunk: bytes
    is_first: bool
    entries: int | None
    """Of the whole image, with its last piece."""


class ImageDone(NamedTuple):
    """An image of a fragment that is held has its last piece in the segment."""

    log: FragmentLog
    image: int
    since: int
    """The block of changes that was open when its first chunk was made."""


@dataclass(slots=True, eq=False)
class _Making:
    """An image that is wanted."""

    fragment: Fragment
    log: FragmentLog
    image: int = 0
    cursor: Any = None
    since: int = 0
    entries: int = 0


class Images:
    """What is to go into segments of images.

    Attributes:
        next_block: The number of the next block.
        staged_bytes: Bytes of chunks that arrived and have not been taken.
        last_image: The highest number that an image has.
    """

    def __init__(self) -> None:
        self.next_block = 1
        self.staged_bytes = 0
        self.last_image = 0
        self._named: dict[int, None] = {}
        """Structures whose names stand in the current segment."""
        self._wanted: dict[Fragment, _Making] = {}
        self._pieces: deque[Piece] = deque()
        self._staged: dict[Fragment, int] = {}
        self._done: list[ImageDone] = []
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to be written."""
        return bool(self._wanted or self._pieces)

    # -- what is wanted -------------------------------------------------------------------

    def want(self, fragment: Fragment, log: FragmentLog) -> None:
        """Make an image of a fragment that is held."""
        self._wanted.setdefault(fragment, _Making(fragment, log))

    def stage(self, fragment: Fragment, structure: int, chunk: bytes, *, is_last: bool) -> None:
        """Take a chunk of a copy that is arriving."""
        image = self._staged.get(fragment, 0)
        is_first = not image
        if is_first:
            image = self._staged[fragment] = self._next_image()
        entries = len(fragment.store) if is_last else None
        self._pieces.append(Piece(fragment, structure, image, chunk, is_first, entries))
        self.staged_bytes += len(chunk)

    def adopt(self, fragment: Fragment) -> int:
        """The staged image of a fragment that is held now, 0 when there is none."""
        return self._staged.pop(fragment, 0)

    def give_up(self, fragment: Fragment) -> int:
        """Make no more of any image of a fragment; the number of the one that was begun, or 0."""
        image = self._staged.pop(fragment, 0)
        if image:
            kept = [piece for piece in self._pieces if piece.image != image]
            self._pieces = deque(kept)
            self.staged_bytes = sum(len(piece.chunk) for piece in kept)
        making = self._wanted.pop(fragment, None)
        return image if making is None else making.image

    def _next_image(self) -> int:
        self.last_image += 1
        return self.last_image

    # -- what is written ------------------------------------------------------------------

    def next_piece(self, block: int, bytes_left: int) -> Piece | None:
        """The next piece; of images that are wanted only while bytes are left.

        Args:
            block: The number of the block of changes that is open now.
            bytes_left: Of this work.
        """
        if self._pieces:
            piece = self._pieces.popleft()
            self.staged_bytes -= len(piece.chunk)
            self._is_closed = self._is_closed or piece.entries is not None
            return piece
        if bytes_left <= 0 or not self._wanted:
            return None
        making = next(iter(self._wanted.values()))
        is_first = not making.image
        if is_first:
            making.image, making.since = self._next_image(), block
            making.cursor = making.fragment.store.open_cursor()
        chunk, entries, is_last = making.fragment.store.export(making.cursor, BYTES_PER_WORK)
        making.entries += entries
        if is_last:
            del self._wanted[making.fragment]
            self._done.append(ImageDone(making.log, making.image, making.since))
            self._is_closed = True
        total = making.entries if is_last else None
        return Piece(making.fragment, making.log.structure, making.image, chunk, is_first, total)

    def encode(
        self, piece: Piece, segment: SegmentInfo, wall_ms: int, unsynced: int
    ) -> tuple[bytes, bytes]:
        """The block of a piece, in this segment; so many before it are not known to be durable."""
        prefix = prefix_of(piece.structure, piece.fragment.partition_id)
        records: list[bytes] = []
        if piece.structure not in self._named:
            self._named[piece.structure] = None
            records.append(name_record(piece.structure, piece.fragment.namespace))
        if piece.chunk:
            records.append(encode_record(RecordKind.CHUNK, prefix, piece.image, piece.chunk))
        if piece.entries is not None:
            end = encode_number(piece.entries)
            records.append(encode_record(RecordKind.IMAGE, prefix, piece.image, end))
        body = b"".join(records)
        block = segment.encode(self.next_block, wall_ms, WITH_CONTROL, body, unsynced)
        self.next_block += 1
        return block

    def begin_segment(self) -> None:
        """A new segment is written to from now on."""
        self._named.clear()

    def take_done(self) -> tuple[list[ImageDone], bool]:
        """The images that are whole since the last call, and whether a staged one is as well."""
        done, self._done = self._done, []
        is_closed, self._is_closed = self._is_closed, False
        return done, is_closed
