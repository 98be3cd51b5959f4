"""Whatever is cut, changed or put in the wrong place of a segment: a prefix, or damage."""

from __future__ import annotations

import contextlib
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import keys
from tests.unit.keys import encryption_with

from whimbrel.core.ids import PartitionId
from whimbrel.core.persistence.format import (
    Block,
    DamageError,
    Header,
    KeyUse,
    RecordKind,
    SegmentReader,
    Stream,
    checksum_of,
    encode_block,
    encode_header,
    encode_record,
    encrypt_body,
    prefix_of,
    records_of,
)

LOG_ID = b"0123456789abcdef"
FIRST = 5
KEYS = encryption_with(keys.FIRST)
PLAIN_HEADER = Header(Stream.CHANGES, 1, FIRST, LOG_ID)
HEADERS = st.sampled_from(
    (PLAIN_HEADER, PLAIN_HEADER._replace(use=KeyUse(keys.FIRST.id, b"c" * 16, b"s" * 32)))
)
BODIES = st.lists(st.binary(max_size=60), max_size=6)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1),
        st.sampled_from(RecordKind), st.binary(max_size=40),
    ),
    max_size=8,
)  # fmt: skip


def segment(header: Header, bodies: list[bytes]) -> tuple[bytes, list[int]]:
    """A segment of these blocks, none of them synced before the next; and where blocks end."""
    data, cipher = encode_header(*header), KEYS.cipher_of(header)
    ends = [len(data)]
    for number, body in enumerate(bodies, FIRST):
        unsynced = number - FIRST
        if cipher is not None:
            body = encrypt_body(cipher, number, 0, 0, body, unsynced=unsynced)
        data += encode_block(checksum_of(data), number, 0, 0, body, unsynced=unsynced) + body
        ends.append(len(data))
    return data, ends


def read(header: Header, data: bytes, cuts: list[int], *, may_be_torn: bool) -> list[Block]:
    """What a reader gives that is fed in pieces; raises DamageError."""
    reader = SegmentReader("log/x", *header, cipher=KEYS.cipher_of(header))
    found: list[Block] = []
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        found += reader.feed(data[start:end])
    reader.finish(may_be_torn=may_be_torn)
    return found


@given(RECORDS)
def test_records_come_back(records: list[tuple[int, int, int, RecordKind, bytes]]) -> None:
    """APR-11: any record of any kind, the extremes of its numbers included."""
    body = b"".join(
        encode_record(kind, prefix_of(structure, PartitionId(pid)), number, content)
        for structure, pid, number, kind, content in records
    )
    assert [(one.prefix, one.number, one.kind, one.body) for one in records_of(body)] == [
        (prefix_of(structure, PartitionId(pid)), number, kind, content)
        for structure, pid, number, kind, content in records
    ]


@given(HEADERS, BODIES, st.lists(st.integers(0, 1_000), max_size=5))
def test_pieces_do_not_matter(header: Header, bodies: list[bytes], cuts: list[int]) -> None:
    """APR-01: wherever reads end."""
    data, _ = segment(header, bodies)
    found = read(header, data, cuts, may_be_torn=False)
    assert [one.body for one in found] == bodies
    assert [one.number for one in found] == list(range(FIRST, FIRST + len(bodies)))


@settings(max_examples=300)
@given(HEADERS, BODIES, st.data())
def test_any_damage_is_a_prefix_or_told(
    header: Header, bodies: list[bytes], data: st.DataObject
) -> None:
    """S2, S4: bytes replaced and cut anywhere: nothing that was not written is ever given."""
    whole, ends = segment(header, bodies)
    place = data.draw(st.integers(0, len(whole)))
    garbage = data.draw(st.binary(max_size=80))
    rest = data.draw(st.sampled_from((whole[place + len(garbage) :], b"")))
    damaged = whole[:place] + garbage + rest
    for may_be_torn in (True, False):
        with contextlib.suppress(DamageError):
            found = [one.body for one in read(header, damaged, [], may_be_torn=may_be_torn)]
            assert found == bodies[: len(found)]
            assert len(found) >= sum(end <= place for end in ends[1:])
            assert may_be_torn or damaged == whole or len(damaged) in ends
