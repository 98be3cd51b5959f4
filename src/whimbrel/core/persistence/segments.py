"""Which segments a log has, what of them is needed, and what is worth rewriting.

A segment of changes is needed while a fragment's floor is in it or before it; a segment of images
while a chunk of an image that counts is in it. Numbers only: who writes is ``log``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from whimbrel.core.check import check
from whimbrel.core.persistence.encryption import Encryption
from whimbrel.core.persistence.format import (
    ENCRYPTED_HEADER_BYTES,
    HEADER_BYTES,
    Cipher,
    Header,
    Stream,
    checksum_of,
    encode_block,
    encode_header,
    encrypt_body,
)
from whimbrel.core.persistence.metadata import OPEN, Segment

SLACK_RATIO: Final = 3
"""The log may have so many times the bytes that live before anything is rewritten, ..."""
SLACK_SEGMENTS: Final = 4
"""... and so many segments besides: those that are written to, and what is on its way out."""
GAIN_MIN: Final = 0.5
"""What is rewritten frees at least this much for each byte that it writes."""


@dataclass(slots=True, eq=False)
class SegmentInfo:
    """One segment.

    Attributes:
        size: Bytes in its file, header included.
        end: Bytes that count, OPEN while it is written to.
        images: Of a segment of images: those that have chunks in it and count.
        key_id, salt: As in its header; empty where it is not encrypted.
    """

    stream: Stream
    number: int
    first_block: int
    size: int = 0
    end: int = OPEN
    images: dict[int, int] = field(default_factory=dict)
    """By number, their bytes in this segment."""
    key_id: bytes = b""
    salt: bytes = b""
    _checksum: int = 0
    """Of its header, while it is written to."""
    _cipher: Cipher | None = None
    _encrypted: int = -1
    """The latest block that was encrypted."""

    @property
    def has_blocks(self) -> bool:
        """Whether there is more in it than its header."""
        return self.size > (ENCRYPTED_HEADER_BYTES if self.key_id else HEADER_BYTES)

    def entry(self) -> Segment:
        """As it stands in the cluster file."""
        return Segment(self.stream, self.number, self.first_block, self.end, self.key_id, self.salt)

    def open(self, log_id: bytes, cluster_id: str, encryption: Encryption) -> bytes:
        """Make its header, behind which blocks may be put."""
        use = encryption.fresh_use(cluster_id)
        header = Header(self.stream, self.number, self.first_block, log_id, use)
        if use is not None:
            self.key_id, self.salt = use.key_id, use.salt
            self._cipher = encryption.cipher_of(header)
        encoded = encode_header(*header)
        self.size, self._checksum = len(encoded), checksum_of(encoded)
        return encoded

    def encode(
        self, number: int, wall_ms: int, flags: int, body: bytes, unsynced: int
    ) -> tuple[bytes, bytes]:
        """Head and body of its next block as they go to the disk; see ``encode_block``."""
        if self._cipher is not None:
            check(number > self._encrypted, "no two blocks are encrypted under one number")
            self._encrypted = number
            body = encrypt_body(self._cipher, number, wall_ms, flags, body, unsynced=unsynced)
        return encode_block(self._checksum, number, wall_ms, flags, body, unsynced=unsynced), body


class Owner(NamedTuple):
    """What compaction asks of a fragment."""

    floor: int
    """The first block of changes that it needs."""
    image: int
    """The image that it needs, 0 for none."""
    cost: int
    """About how many bytes an image of it has."""


class Segments:
    """The segments of both streams, oldest first."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._taken = dict.fromkeys(Stream, 0)
        """The highest number that a file beside the segments has."""
        self.of: dict[Stream, list[SegmentInfo]] = {stream: [] for stream in Stream}
        self._image_homes: dict[int, list[SegmentInfo]] = {}
        """Of each image that counts, the segments with its chunks."""

    @property
    def bytes_total(self) -> int:
        """Bytes of all segments."""
        return sum(one.size for found in self.of.values() for one in found)

    def named(self) -> list[tuple[Stream, int]]:
        """Stream and number of each segment."""
        return [(one.stream, one.number) for found in self.of.values() for one in found]

    def current(self, stream: Stream) -> SegmentInfo | None:
        """The segment that is written to."""
        found = self.of[stream]
        return found[-1] if found and found[-1].end == OPEN else None

    def is_full(self, stream: Stream) -> bool:
        """Whether the next block belongs into a segment of its own."""
        current = self.current(stream)
        return current is None or current.size >= self._segment_bytes

    def begin(self, stream: Stream, first_block: int) -> SegmentInfo:
        """Close the current segment, if there is one, and begin the next."""
        self.close(stream)
        found = self.of[stream]
        number = 1 + max(self._taken[stream], found[-1].number if found else 0)
        check(not found or first_block >= found[-1].first_block, "blocks are numbered upwards")
        fresh = SegmentInfo(stream, number, first_block)
        found.append(fresh)
        return fresh

    def close(self, stream: Stream) -> None:
        """Put nothing more into the current segment."""
        current = self.current(stream)
        if current is not None:
            current.end = current.size

    def avoid(self, stream: Stream, number: int) -> None:
        """A file of this number lies there and is none of the segments."""
        self._taken[stream] = max(self._taken[stream], number)

    def restore(self, segment: Segment, size: int, images: Mapping[int, int]) -> None:
        """A segment of before, oldest first; ``images`` are those that count, with their bytes."""
        kept = SegmentInfo(
            segment.stream,
            segment.number,
            segment.first_block,
            size,
            segment.end,
            dict(images),
            segment.key_id,
            segment.salt,
        )
        self.of[segment.stream].append(kept)
        for image in images:
            self._image_homes.setdefault(image, []).append(kept)

    def add_chunk(self, image: int, size: int) -> None:
        """A chunk of an image has been put into the current segment of images."""
        home = self.of[Stream.IMAGES][-1]
        if image not in home.images:
            self._image_homes.setdefault(image, []).append(home)
        home.images[image] = home.images.get(image, 0) + size

    def drop_image(self, image: int) -> None:
        """Nobody needs an image any more."""
        for home in self._image_homes.pop(image, ()):
            del home.images[image]

    def has_unneeded(self, floor: int) -> bool:
        """Whether there are closed segments that nobody needs.

        Args:
            floor: The lowest floor of all fragments; the next block when there are none.
        """
        changes, images = self.of[Stream.CHANGES], self.of[Stream.IMAGES]
        is_passed = len(changes) > 1 and changes[1].first_block <= floor
        return is_passed or not all(one.images for one in images[:-1])

    def take_unneeded(self, floor: int) -> list[SegmentInfo]:
        """Forget and return them."""
        changes, images = self.of[Stream.CHANGES], self.of[Stream.IMAGES]
        gone: list[SegmentInfo] = []
        while len(changes) > 1 and changes[1].first_block <= floor:
            gone.append(changes.pop(0))
        gone += [one for one in images[:-1] if not one.images]
        self.of[Stream.IMAGES] = [one for one in images if one.images or one is images[-1]]
        return gone

    def is_over(self, live: int) -> bool:
        """Whether the log is larger than what lives allows."""
        allowed = SLACK_RATIO * live + SLACK_SEGMENTS * self._segment_bytes
        return self.bytes_total > allowed

    # -- another key ------------------------------------------------------------------------

    def bytes_not_under(self, key_id: bytes) -> int:
        """Bytes of segments that are under another key than this one; empty is none."""
        return sum(one.size for found in self.of.values() for one in found if one.key_id != key_id)

    def owners_not_under(self, key_id: bytes, owners: Iterable[Owner]) -> list[int]:
        """Positions of the owners that need the oldest changes that are under another key.

        Once they have images, nobody needs these, nor the images that they had: an image is under
        the key of its floor. Segments that are written to are under this key.
        """
        listed = list(owners)
        changes = self.of[Stream.CHANGES]
        for segment, behind in pairwise(changes):
            if segment.key_id != key_id:
                return [at for at, one in enumerate(listed) if one.floor < behind.first_block]
        return []

    def choose(self, owners: Iterable[Owner]) -> list[int]:
        """Positions of the owners to be imaged next; none when nothing is worth its cost.

        The oldest segment of changes goes with all that have their floor in it, or a segment of
        images with all that have theirs in it: whichever frees more for each byte written.
        """
        listed = list(owners)
        best: tuple[float, list[int]] = (GAIN_MIN, [])
        changes = self.of[Stream.CHANGES]
        if len(changes) > 1:
            held = [at for at, one in enumerate(listed) if one.floor < changes[1].first_block]
            floors = [
                one.floor for at, one in enumerate(listed) if one.floor >= changes[1].first_block
            ]
            after = min(floors, default=changes[-1].first_block)
            freed = sum(
                one.size for one, behind in pairwise(changes) if behind.first_block <= after
            )
            best = max(best, (_gain(freed, held, listed), held), key=lambda item: item[0])
        homes = {one.image: at for at, one in enumerate(listed) if one.image}
        for segment in self.of[Stream.IMAGES][:-1]:
            held = [homes[image] for image in segment.images if image in homes]
            freed = segment.size - sum(segment.images.values())
            best = max(best, (_gain(freed, held, listed), held), key=lambda item: item[0])
        return best[1]


def _gain(freed: int, held: list[int], owners: list[Owner]) -> float:
    """Bytes freed for each byte written when these owners are imaged."""
    return freed / max(1, sum(owners[at].cost for at in held)) if held else 0.0
