"""The bytes of a log: segments of blocks of records, made and read (docs/files.md).

    segment   header, block, block, ...          one file
    block     header with a checksum, record, record, ...
    record    u64 prefix, u64 number, u32 kind and length, body

The checksum is a block's, and goes on from that of its segment's header: what lay on the disk
before, in another segment, is no block of this one. A block is cut at BLOCK_BYTES_TARGET, so the
place of damage is known as well as if every record had one, at a fraction of the cost. Blocks of a
stream are numbered without gaps across its segments: what is missing, out of place or of another
time does not fit. A block
says how many before it were not known to be durable when it was written: after a power failure it
tells a hole that a disk may leave, in what it was never told to keep, from damage. All numbers are
little-endian.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from whimbrel.core.ids import Namespace, PartitionId

FORMAT: Final = 1
"""Of segments; files of a later format are refused and left as they are."""
ENCRYPTED_FORMAT: Final = 2
"""Of segments that are encrypted."""
SEGMENT_MAGIC: Final = b"WHIMBSEG"
BLOCK_MAGIC: Final = b"WBLK"
LOG_ID_BYTES: Final = 16
KEY_ID_BYTES: Final = 8
CLUSTER_HASH_BYTES: Final = 16
SALT_BYTES: Final = 32
HEADER: Final = struct.Struct("<8sHBBIQ16s")
"""Magic, format, stream, cipher, segment number, number of its first block, id of the log."""
KEY_USE: Final = struct.Struct(f"<{KEY_ID_BYTES}s{CLUSTER_HASH_BYTES}s{SALT_BYTES}s")
"""Behind it in an encrypted segment: id of the key, hash of the cluster's id, salt."""
HEADER_BYTES: Final = HEADER.size + 4
"""With the checksum of all that."""
ENCRYPTED_HEADER_BYTES: Final = HEADER.size + KEY_USE.size + 4
"""No segment with a block is as short, encrypted or not."""
PLAIN_CIPHER: Final = 0
AES_256_GCM: Final = 1
"""Numbers of ciphers in a header."""
BLOCK: Final = struct.Struct("<IIQQ")
"""Behind magic and checksum: length of the body, flags with UNSYNCED above them, number, wall clock
in ms."""
BLOCK_HEAD_BYTES: Final = 8 + BLOCK.size
RECORD: Final = struct.Struct("<QQI")
RECORD_BYTES: Final = RECORD.size
LENGTH_BITS: Final = 28
LENGTH_MAX: Final = (1 << LENGTH_BITS) - 1
"""Of a record's body; above the longest operation and the longest chunk."""
BLOCK_BYTES_TARGET: Final = 4_096
"""A block is closed before it grows beyond this; a record that is longer has one to itself."""
LOG_FOLDER: Final = "log"
BLOCK_BODY_MAX: Final = LENGTH_MAX + RECORD_BYTES
WITH_CONTROL: Final = 1
"""Flag of a block that has records of other kinds than OPERATION and CHUNK."""
UNSYNCED_SHIFT: Final = 8
UNSYNCED_MAX: Final = (1 << 24) - 1
"""Blocks before a block that were not known to be durable when it was written; or more."""

_KNOWN: Final = ((FORMAT, PLAIN_CIPHER), (ENCRYPTED_FORMAT, AES_256_GCM))
_PREFIX_PARTITION_BITS: Final = 32
_CHECKSUM = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_SEGMENT_FILE = re.compile(r"log/(changes|images)-(\d{8,})\.seg")
_unpack_record = RECORD.unpack_from


class Stream(enum.IntEnum):
    """What a segment is a piece of; each stream has block numbers of its own."""

    CHANGES = 1
    """Every change, in the order in which they were made."""
    IMAGES = 2
    """Whole fragments, in chunks."""


class RecordKind(enum.IntEnum):
    """What a record says of the structure and partition of its prefix.

    ``number`` is a counter for OPERATION, the number of an image for those that speak of one.
    """

    NAME = 1
    """The structure's namespace, before the first use of its number in a segment."""
    OPERATION = 2
    """A backup operation of the store; the counter of the fragment's own slot after it."""
    STATE = 3
    """What the fragment's versions are from here on (``FragmentState``)."""
    HELD = 4
    """The fragment is held from here on with the content of that image, with nothing for 0.

    The body is its state. What was said of it before counts no more. In its block no change stands
    before it.
    """
    DROPPED = 5
    """The fragment is held no longer."""
    CHUNK = 6
    """A chunk of an image, as the store exported it."""
    IMAGE = 7
    """The image is whole: all its chunks stand before this; a u64, its entries."""
    IMAGED = 8
    """The fragment is held with the content of that image, which is whole, and what was changed
    since the block whose number is the body (u64); its state stands in that block or behind it."""


class FragmentState(msgspec.Struct, frozen=True, array_like=True):
    """What a log says of a fragment beside its content: ``Fragment`` in the same words."""

    lineage: int
    base_lineage: int
    base: tuple[int, ...]
    counters: tuple[int, ...]
    slot: int
    is_dirty: bool
    sync_count: int
    async_count: int
    generation: int


class Record(NamedTuple):
    """One record of a block."""

    prefix: int
    number: int
    kind: int
    body: bytes


class Block(NamedTuple):
    """A block that is whole; ``offset`` is where it begins in its file."""

    number: int
    wall_ms: int
    flags: int
    offset: int
    body: bytes

    @property
    def durable_below(self) -> int:
        """Blocks of lower numbers were durable when it was written, as far as it tells."""
        return self.number - (self.flags >> UNSYNCED_SHIFT)


class KeyUse(NamedTuple):
    """How a key is used in one segment, and in no other: the salt comes once.

    Attributes:
        key_id: Which key: KEY_ID_BYTES of a hash of it.
        cluster: CLUSTER_HASH_BYTES of a hash of the cluster's id.
        salt: SALT_BYTES from which the key of this segment alone is derived.
    """

    key_id: bytes
    cluster: bytes
    salt: bytes


class Cipher(Protocol):
    """Encrypts and authenticates what lies in one segment, or one file, under a key of its own."""

    def encrypt(self, number: int, facts: bytes, body: bytes) -> bytes:
        """The body as it goes to the disk; no number comes twice.

        Args:
            number: Of the block.
            facts: What is not secret and belongs to it; it has to be the same to decrypt it.
            body: Of the block.
        """
        ...

    def decrypt(self, number: int, facts: bytes, body: bytes) -> bytes | None:
        """The body as it was; None when these three are not what was encrypted together."""
        ...


class Header(NamedTuple):
    """What the header of a segment says; ``use`` is None where nothing is encrypted."""

    stream: int
    number: int
    first_block: int
    log_id: bytes
    use: KeyUse | None = None


class DamageError(Exception):
    """Bytes of a file are not what was written.

    Attributes:
        file: Its name.
        offset: Where the damaged block begins; 0 for a file as a whole.
        why: In words.
    """

    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(f"{file} is damaged at offset {offset}: {why}")
        self.file, self.offset, self.why = file, offset, why


# -- names and prefixes -------------------------------------------------------------------


def segment_file(stream: Stream, number: int) -> str:
    """The name of a segment's file in the data directory: ``log/changes-00000001.seg``."""
    return f"{LOG_FOLDER}/{stream.name.lower()}-{number:08d}.seg"


def segment_of(file: str) -> tuple[Stream, int] | None:
    """Stream and number of the segment that has this file; None for any other file."""
    found = _SEGMENT_FILE.fullmatch(file)
    if found is None:
        return None
    stream, number = Stream[found[1].upper()], int(found[2])
    return (stream, number) if segment_file(stream, number) == file else None


def prefix_of(structure: int, pid: PartitionId) -> int:
    """The prefix of records of a structure in a partition (APR-11): arithmetic, nothing else."""
    return structure << _PREFIX_PARTITION_BITS | pid


def split_prefix(prefix: int) -> tuple[int, PartitionId]:
    """The structure's number and the partition of a prefix."""
    return prefix >> _PREFIX_PARTITION_BITS, PartitionId(prefix & 0xFFFF_FFFF)


# -- making -------------------------------------------------------------------------------


def encode_header(
    stream: int, number: int, first_block: int, log_id: bytes, use: KeyUse | None = None
) -> bytes:
    """The first HEADER_BYTES of a segment; ENCRYPTED_HEADER_BYTES where a key is used."""
    version, cipher = (FORMAT, PLAIN_CIPHER) if use is None else (ENCRYPTED_FORMAT, AES_256_GCM)
    head = HEADER.pack(SEGMENT_MAGIC, version, stream, cipher, number, first_block, log_id)
    if use is not None:
        head += KEY_USE.pack(*use)
    return head + _CHECKSUM.pack(crc32(head))


def encode_record(kind: RecordKind, prefix: int, number: int, body: bytes = b"") -> bytes:
    """One record."""
    return RECORD.pack(prefix, number, kind << LENGTH_BITS | len(body)) + body


def name_record(structure: int, namespace: Namespace) -> bytes:
    """The record that says what a structure's number means."""
    return encode_record(
        RecordKind.NAME, prefix_of(structure, PartitionId(0)), 0, namespace.encode()
    )


def encode_number(number: int) -> bytes:
    """The body of a record that is one number."""
    return _NUMBER.pack(number)


def decode_number(body: bytes) -> int:
    """That number.

    Raises:
        ValueError: It is no such body.
    """
    if len(body) != _NUMBER.size:
        raise ValueError("a record has the wrong length")
    return int(_NUMBER.unpack(body)[0])


def checksum_of(header: bytes) -> int:
    """What stands at the end of a segment's header; checksums of its blocks go on from there.

    Args:
        header: It, and anything behind it.
    """
    return int(_CHECKSUM.unpack_from(header, header_bytes(header) - _CHECKSUM.size)[0])


def header_bytes(header: bytes) -> int:
    """How long a header is that begins so, with HEADER_BYTES at least."""
    is_encrypted = HEADER.unpack_from(header)[1] == ENCRYPTED_FORMAT
    return ENCRYPTED_HEADER_BYTES if is_encrypted else HEADER_BYTES


def encrypt_body(
    cipher: Cipher, number: int, wall_ms: int, flags: int, body: bytes, *, unsynced: int
) -> bytes:
    """The body of a block of an encrypted segment, for ``encode_block`` with the same arguments.

    All that its head says is authenticated with it, but for its length, which is its own.
    """
    return cipher.encrypt(number, _facts(number, wall_ms, _with_unsynced(flags, unsynced)), body)


def _facts(number: int, wall_ms: int, flags: int) -> bytes:
    """What of a head is authenticated with the body."""
    return BLOCK.pack(0, flags, number, wall_ms)


def _with_unsynced(flags: int, unsynced: int) -> int:
    return flags | min(unsynced, UNSYNCED_MAX) << UNSYNCED_SHIFT


def encode_block(
    segment: int, number: int, wall_ms: int, flags: int, body: bytes, *, unsynced: int = 0
) -> bytes:
    """The head of a block with this body, which follows it.

    Args:
        segment: The checksum of the segment's header.
        number: Of the block in its stream.
        wall_ms: Wall clock.
        flags: WITH_CONTROL, or 0.
        body: Records.
        unsynced: So many blocks of its stream directly before it are not known to be durable now.
    """
    head = BLOCK.pack(len(body), _with_unsynced(flags, unsynced), number, wall_ms)
    return BLOCK_MAGIC + _CHECKSUM.pack(crc32(body, crc32(head, segment))) + head


# -- reading ------------------------------------------------------------------------------


def decode_header(data: bytes) -> Header | None:
    """What the first bytes of a file say as the header of a segment; None when they are none."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, stream, cipher, number, first, log_id = HEADER.unpack_from(data)
    size = header_bytes(data)
    is_ours = magic == SEGMENT_MAGIC and (version, cipher) in _KNOWN
    if not is_ours or len(data) < size or not _is_sound(data[:size]):
        return None
    use = KeyUse(*KEY_USE.unpack_from(data, HEADER.size)) if version == ENCRYPTED_FORMAT else None
    return Header(stream, number, first, log_id, use)


def _is_sound(header: bytes) -> bool:
    """Whether the checksum of a header is right."""
    end = len(header) - _CHECKSUM.size
    return crc32(header[:end]) == int(_CHECKSUM.unpack_from(header, end)[0])


def records_of(body: bytes) -> Iterator[Record]:
    """The records of a block's body.

    Raises:
        ValueError: A record is longer than its block; the checksum held, so we wrote it so.
    """
    at, end = 0, len(body)
    while at < end:
        if at + RECORD_BYTES > end:
            raise ValueError("a block ends within the head of a record")
        prefix, number, what = _unpack_record(body, at)
        start = at + RECORD_BYTES
        at = start + (what & LENGTH_MAX)
        if at > end:
            raise ValueError("a record is longer than its block")
        yield Record(prefix, number, what >> LENGTH_BITS, body[start:at])


class SegmentReader:
    """Takes the bytes of one segment as they come, and gives its blocks.

    A block that is not whole ends what can be read. In a segment that was being written when its
    member died this is the end of the log, unless a sound block follows that shows it was durable:
    then, and in every other segment, it is damage.
    """

    def __init__(
        self,
        file: str,
        stream: int,
        number: int,
        first_block: int,
        log_id: bytes,
        use: KeyUse | None = None,
        *,
        cipher: Cipher | None = None,
    ) -> None:
        """Expect this segment; blocks from ``first_block`` on.

        Without a ``cipher`` the bodies of an encrypted one are given as they are.
        """
        self.file = file
        self._cipher = cipher
        self._header = encode_header(stream, number, first_block, log_id, use)
        self._checksum = checksum_of(self._header)
        self._next = first_block
        self._buffer = b""
        self._offset = 0
        """Of the buffer's first byte in the file."""
        self._has_header = False
        self._problem = ""
        """Why the block at ``_offset`` is not whole."""

    @property
    def next_block(self) -> int:
        """The number of the block behind the last whole one."""
        return self._next

    @property
    def sound_bytes(self) -> int:
        """Where the last whole block ends; 0 when the header is not whole."""
        return self._offset

    @property
    def is_broken(self) -> bool:
        """Whether no more blocks will come, whatever bytes do."""
        return bool(self._problem)

    def feed(self, data: bytes) -> list[Block]:
        """Take the next bytes; the blocks that are whole now.

        Raises:
            DamageError: This is another segment than expected, or of a later format; or a block is
                whole, and nobody with the key has written it here.
        """
        self._buffer = self._buffer + data if self._buffer else data
        if self._problem or (not self._has_header and not self._take_header()):
            return []
        found: list[Block] = []
        buffer, at = self._buffer, 0
        while True:
            block, size, problem = self._block_at(buffer, at, self._offset + at)
            if block is None or block.number != self._next:
                self._problem = (
                    problem
                    if block is None
                    else (f"block {block.number} stands where block {self._next} belongs")
                )
                break
            found.append(block if self._cipher is None else self._decrypted(block, self._cipher))
            self._next += 1
            at += size
        self._buffer = buffer[at:]
        self._offset += at
        return found

    def finish(self, *, may_be_torn: bool) -> int:
        """There are no more bytes: how many behind the last whole block count for nothing.

        Raises:
            DamageError: They do count: the segment was closed, or they were durable.
        """
        rest = len(self._buffer)
        if not self._has_header:
            if may_be_torn and self._header.startswith(self._buffer):
                return rest
            raise DamageError(self.file, 0, "it ends within its header")
        if not rest:
            return 0
        problem = self._problem or "it ends within a block"
        if not may_be_torn or self._was_durable():
            raise DamageError(self.file, self._offset, problem)
        return rest

    def _take_header(self) -> bool:
        size = len(self._header)
        has_told = len(self._buffer) >= HEADER_BYTES and not self._header.startswith(self._buffer)
        if len(self._buffer) < size and not has_told:
            return False
        head = self._buffer[:size]
        if head != self._header:
            found = self._buffer[: header_bytes(self._buffer)]
            raise DamageError(self.file, 0, _wrong_header(found, self._header))
        self._buffer = self._buffer[size:]
        self._has_header = True
        self._offset = size
        return True

    def _decrypted(self, block: Block, cipher: Cipher) -> Block:
        """A torn block has another checksum, so what cannot be decrypted was not torn."""
        facts = _facts(block.number, block.wall_ms, block.flags)
        body = cipher.decrypt(block.number, facts, block.body)
        if body is None:
            why = "it is whole, and was not written here by who has the key"
            raise DamageError(self.file, block.offset, why)
        return block._replace(body=body)

    def _was_durable(self) -> bool:
        """Whether a sound block behind the one that is not whole was written when that was durable.

        A block that stands out of its place is none that was torn.
        """
        block, _, _ = self._block_at(self._buffer, 0, 0)
        if block is not None:
            return True
        at = self._buffer.find(BLOCK_MAGIC, 1)
        while at >= 0:
            block, _, _ = self._block_at(self._buffer, at, 0)
            if block is not None and block.durable_below > self._next:
                return True
            at = self._buffer.find(BLOCK_MAGIC, at + 1)
        return False

    def _block_at(self, buffer: bytes, at: int, offset: int) -> tuple[Block | None, int, str]:
        """The whole block there and its bytes; or None and why, empty when it may still come."""
        if len(buffer) < at + BLOCK_HEAD_BYTES:
            return None, 0, ""
        if buffer[at : at + 4] != BLOCK_MAGIC:
            return None, 0, "no block begins here"
        (checksum,) = _CHECKSUM.unpack_from(buffer, at + 4)
        length, flags, number, wall_ms = BLOCK.unpack_from(buffer, at + 8)
        if length > BLOCK_BODY_MAX:
            return None, 0, "its length is impossible"
        start = at + BLOCK_HEAD_BYTES
        end = start + length
        if len(buffer) < end:
            return None, 0, ""
        body = buffer[start:end]
        if crc32(body, crc32(buffer[at + 8 : start], self._checksum)) != checksum:
            return None, 0, "its checksum is another one"
        return Block(number, wall_ms, flags, offset, body), end - at, ""


def _wrong_header(found: bytes, expected: bytes) -> str:
    """In words, in what a header differs."""
    magic, version, stream, cipher, number, first, log_id = HEADER.unpack_from(found)
    _, right_version, right_stream, _, right_number, right_first, right_log = HEADER.unpack_from(
        expected
    )
    if magic == SEGMENT_MAGIC and (version, cipher) not in _KNOWN and _is_sound(found):
        what = f"it has format {version}"
        if version == ENCRYPTED_FORMAT:
            what += f" and cipher {cipher}"
        return f"{what}; this version reads {FORMAT} and {ENCRYPTED_FORMAT}"
    header = decode_header(found)
    is_short = magic == SEGMENT_MAGIC and len(found) < header_bytes(found)
    if version != right_version and (header is not None or is_short):
        words = {FORMAT: "not encrypted", ENCRYPTED_FORMAT: "encrypted"}
        return f"it is {words[version]}, and its list says that it is {words[right_version]}"
    if header is None:
        return "it ends within its header" if is_short else _no_header(found, magic)
    if log_id != right_log:
        return "it belongs to another log"
    if (stream, number, first) != (right_stream, right_number, right_first):
        return (
            f"it is segment {number} of stream {stream}, from block {first} on, in the place of "
            f"segment {right_number} of stream {right_stream}, from block {right_first} on"
        )
    right = decode_header(expected)
    use, right_use = header.use, None if right is None else right.use
    if use is not None and right_use is not None and use.key_id != right_use.key_id:
        return f"it is encrypted with key {use.key_id.hex()}, not {right_use.key_id.hex()}"
    if use is not None and right_use is not None and use.cluster != right_use.cluster:
        return "it belongs to another cluster"
    return "it was written at another time than the one that is listed"


def _no_header(found: bytes, magic: bytes) -> str:
    """Of bytes that are no header of ours."""
    if _is_sound(found) and magic != SEGMENT_MAGIC:
        return "it is no segment"
    return "its header's checksum is another one"
