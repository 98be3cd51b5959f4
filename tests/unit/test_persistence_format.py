"""The bytes of a log: golden ones, what a reader gives, and what it takes for damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit import keys
from tests.unit.keys import CLUSTER_ID, FIRST, encryption_now, header_bytes

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.persistence.encryption import cluster_hash
from whimbrel.core.persistence.format import (
    BLOCK_BODY_MAX,
    BLOCK_MAGIC,
    LENGTH_MAX,
    UNSYNCED_MAX,
    WITH_CONTROL,
    Block,
    DamageError,
    Header,
    KeyUse,
    Record,
    RecordKind,
    SegmentReader,
    Stream,
    checksum_of,
    decode_header,
    decode_number,
    encode_block,
    encode_header,
    encode_number,
    encode_record,
    encrypt_body,
    name_record,
    prefix_of,
    records_of,
    segment_file,
    segment_of,
    split_prefix,
)

LOG_ID = b"0123456789abcdef"
either = pytest.mark.usefixtures("either")
FILE = "log/changes-00000002.seg"
BODY = encode_record(RecordKind.OPERATION, prefix_of(1, PartitionId(2)), 3, b"put")


def header_of(
    stream: int = Stream.CHANGES, number: int = 2, first_block: int = 7, log_id: bytes = LOG_ID
) -> Header:
    """Of a segment, which is encrypted if this test's are."""
    use = KeyUse(FIRST.id, cluster_hash(CLUSTER_ID), b"salt" * 8) if keys.usual else None
    return Header(stream, number, first_block, log_id, use)


def header() -> bytes:
    """How the segment of this test begins."""
    return encode_header(*header_of())


def block(number: int, body: bytes = BODY, *, unsynced: int = 0) -> bytes:
    """A whole block of it."""
    cipher = encryption_now().cipher_of(header_of())
    wall_ms = 1_700_000_000_000
    if cipher is not None:
        body = encrypt_body(cipher, number, wall_ms, WITH_CONTROL, body, unsynced=unsynced)
    checksum = checksum_of(header())
    return encode_block(checksum, number, wall_ms, WITH_CONTROL, body, unsynced=unsynced) + body


def reader() -> SegmentReader:
    """Of that segment."""
    return SegmentReader(FILE, *header_of(), cipher=encryption_now().cipher_of(header_of()))


# -- the bytes ----------------------------------------------------------------------------


def test_golden_bytes() -> None:
    """APR-01: the bytes that docs/files.md describes; those of encrypted ones are in
    test_persistence_encryption.
    """
    assert bytes.fromhex(
        "5748494d42534547" "0100" "01" "00" "02000000" "0700000000000000"
        "30313233343536373839616263646566" "07294d5d"
    ) == header()  # fmt: skip
    assert bytes.fromhex(
        "0200000001000000" "0300000000000000" "03000020" "707574"
    ) == BODY  # fmt: skip
    assert block(7, unsynced=2) == bytes.fromhex(
        "57424c4b" "264522f5" "17000000" "01020000" "0700000000000000" "0068e5cf8b010000"
    ) + BODY  # fmt: skip
    assert name_record(1, Namespace("map/m")) == bytes.fromhex(
        "0000000001000000" "0000000000000000" "05000010" "6d61702f6d"
    )  # fmt: skip
    assert encode_number(258) == bytes.fromhex("0201000000000000")


@pytest.mark.parametrize("structure", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("pid", [0, 270, 2**32 - 1])
def test_a_prefix_is_arithmetic(structure: int, pid: int) -> None:
    """APR-11: structure and partition to 64 bits and back, for the extremes."""
    prefix = prefix_of(structure, PartitionId(pid))
    assert prefix < 1 << 64
    assert split_prefix(prefix) == (structure, pid)


def test_names_of_segments() -> None:
    """A file has the name of one segment, a segment that of one file."""
    for stream in Stream:
        for number in (1, 99_999_999, 100_000_000):
            assert segment_of(segment_file(stream, number)) == (stream, number)
    for other in (
        "changes-00000001.seg",
        "log/changes-1.seg",
        "log/changes-000000001.seg",
        "log/x",
    ):
        assert segment_of(other) is None


@either
def test_numbers_and_headers_are_read_back() -> None:
    """What is no number, and no header of ours, is not taken for one."""
    assert decode_number(encode_number(2**64 - 1)) == 2**64 - 1
    with pytest.raises(ValueError, match="wrong length"):
        decode_number(b"1234567")
    assert decode_header(header() + b"more") == header_of()
    assert decode_header(header()[:-1]) is None
    assert decode_header(bytes(header_bytes())) is None
    assert decode_header(header()[:-1] + b"?") is None


def test_records_are_read_back() -> None:
    """APR-01: in their order; a block that ends within one was not written so."""
    body = BODY + encode_record(RecordKind.DROPPED, 9, 0) + BODY
    assert [record.kind for record in records_of(body)] == [2, 5, 2]
    assert next(records_of(body)) == Record(prefix_of(1, PartitionId(2)), 3, 2, b"put")
    for cut in (len(body) - 1, len(body) - 4):
        with pytest.raises(ValueError, match="block"):
            list(records_of(body[:cut]))
    assert (LENGTH_MAX + len(encode_record(RecordKind.CHUNK, 0, 0))) == BLOCK_BODY_MAX


# -- reading ------------------------------------------------------------------------------


@either
@pytest.mark.parametrize("piece", [1, 7, 64, 10_000])
def test_blocks_come_in_pieces_of_any_size(piece: int) -> None:
    """APR-01: what is given does not depend on where reads end."""
    data = header() + b"".join(block(number, BODY * number) for number in range(7, 12))
    found: list[Block] = []
    taking = reader()
    for at in range(0, len(data), piece):
        found += taking.feed(data[at : at + piece])
    assert [one.number for one in found] == [7, 8, 9, 10, 11]
    assert [one.body for one in found] == [BODY * number for number in range(7, 12)]
    assert found[0].offset == header_bytes()
    assert found[1].offset == header_bytes() + len(block(7, BODY * 7))
    assert found[0].wall_ms == 1_700_000_000_000
    assert taking.finish(may_be_torn=False) == 0
    assert (taking.sound_bytes, taking.next_block) == (len(data), 12)


@either
def test_a_block_says_what_was_durable() -> None:
    """S2: as a number of blocks before it, and no less than all of them beyond what fits."""
    for unsynced, below in ((0, 7), (3, 4), (UNSYNCED_MAX + 9, 7 - UNSYNCED_MAX)):
        (found,) = reader().feed(header() + block(7, unsynced=unsynced))
        assert found.durable_below == below
        assert found.flags & WITH_CONTROL


@either
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (lambda: encode_header(*header_of(log_id=b"another log's id")), "another log"),
        (lambda: encode_header(*header_of(Stream.IMAGES)), "it is segment 2 of stream 2"),
        (lambda: encode_header(*header_of(number=3)), "it is segment 3 of stream 1"),
        (lambda: encode_header(*header_of(first_block=8)), "from block 8 on"),
        (lambda: header()[:-1] + b"?", "checksum"),
        (lambda: bytes(header_bytes()), "checksum"),
    ],
)
def test_another_segment_than_expected_is_refused(found: Callable[[], bytes], words: str) -> None:
    """S4: at once, by name."""
    data = found()
    with pytest.raises(DamageError, match=words) as problem:
        reader().feed(data)
    assert (problem.value.file, problem.value.offset) == (FILE, 0)


def test_a_later_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a later version wrote is refused and said to be of its format."""
    monkeypatch.setattr("whimbrel.core.persistence.format.FORMAT", 3)
    later = header()
    monkeypatch.undo()
    with pytest.raises(DamageError, match="it has format 3; this version reads 1 and 2"):
        reader().feed(later)


@either
def test_what_ends_early_is_torn_or_damaged() -> None:
    """S2, S4: the same bytes are the end of what is written to, and damage in what was closed."""
    first, data = len(header() + block(7)), header() + block(7) + block(8)
    for length in range(len(data)):
        taking = reader()
        taking.feed(data[:length])
        sound = 0 if length < header_bytes() else header_bytes() if length < first else first
        assert taking.sound_bytes == sound
        assert taking.finish(may_be_torn=True) == length - sound
        if length in (header_bytes(), first):
            assert taking.finish(may_be_torn=False) == 0
        else:
            with pytest.raises(DamageError) as found:
                taking.finish(may_be_torn=False)
            assert found.value.offset == sound


@either
@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (bytes(200), "no block begins here"),
        (BLOCK_MAGIC + b"\xff" * 60, "its length is impossible"),
        (b"block 8, another last byte", "its checksum is another one"),
        (b"block 8, its beginning", "it ends within a block"),
    ],
)
def test_what_is_wrong_with_a_block_is_told(tail: bytes, words: str) -> None:
    """S4: in words, at its offset."""
    if tail.startswith(b"block 8"):
        tail = block(8)[:40] if tail.endswith(b"beginning") else block(8)[:-1] + b"?"
    taking = reader()
    taking.feed(header() + block(7) + tail)
    assert taking.is_broken is (words != "it ends within a block")
    assert taking.feed(b"and more") == []
    with pytest.raises(DamageError, match=words) as found:
        taking.finish(may_be_torn=False)
    assert found.value.offset == len(header() + block(7))
    assert taking.finish(may_be_torn=True) == len(tail) + 8


@either
def test_a_block_out_of_its_place_is_damage() -> None:
    """S4: it is sound, so it was not torn."""
    taking = reader()
    taking.feed(header() + block(9, unsynced=9))
    with pytest.raises(DamageError, match="block 9 stands where block 7 belongs"):
        taking.finish(may_be_torn=True)


@either
@pytest.mark.parametrize(("unsynced", "is_torn"), [(0, False), (1, False), (2, True), (9, True)])
def test_a_hole_is_torn_unless_it_was_durable(unsynced: int, is_torn: bool) -> None:
    """S2, S4: block 8 is lost; block 10 stands behind it and says what was durable before it."""
    taking = reader()
    hole = bytes(len(block(8)))
    taking.feed(header() + block(7) + hole + block(9, unsynced=1) + block(10, unsynced=unsynced))
    if is_torn:
        assert taking.finish(may_be_torn=True) == 3 * len(hole)
    else:
        with pytest.raises(DamageError, match="no block begins here"):
            taking.finish(may_be_torn=True)


@either
def test_a_block_of_another_segment_is_no_sign_of_what_was_durable() -> None:
    """S2: behind a tear there may be whatever lay on the disk before, blocks of another log too."""
    other = checksum_of(encode_header(*header_of(log_id=b"fedcba9876543210")))
    stale = encode_block(other, 12, 0, WITH_CONTROL, BODY) + BODY
    torn = reader()
    torn.feed(header() + block(7) + bytes(30) + stale)
    assert torn.finish(may_be_torn=True) == 30 + len(stale)
    damaged = reader()
    damaged.feed(header() + block(7) + bytes(30) + block(12))
    with pytest.raises(DamageError):
        damaged.finish(may_be_torn=True)
