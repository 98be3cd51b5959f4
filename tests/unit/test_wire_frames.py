"""Cutting a client's byte stream into messages."""

from __future__ import annotations

import struct

import pytest
from tests.unit.wire_samples import frame

from whimbrel.errors import ProtocolError
from whimbrel.wire.codec import encode_event, encode_request, encode_response
from whimbrel.wire.frames import (
    ANSWERS,
    AUTHENTICATED,
    BEGIN_FRAGMENT,
    END_FRAGMENT,
    FINAL,
    JOINS_MAX,
    UNAUTHENTICATED,
    UNFRAGMENTED,
    FrameLimits,
    MessageSplitter,
    RawMessage,
    message_bytes,
    parse_message,
)

PING = encode_request("Client.ping", 5)
KEY = bytes(8) + b"k"


def put(size: int, correlation: int = 9) -> bytes:
    return encode_request(
        "Map.put", correlation, 3, name="m", key=KEY, value=bytes(size + 8), thread_id=1, ttl=-1
    )


def contents(message: RawMessage) -> list[bytes]:
    buffer, frames = message[0], message[3]
    return [buffer[s:e] for s, e in zip(frames[::2], frames[1::2], strict=True)]


def feed_in(splitter: MessageSplitter, stream: bytes, cut: int) -> list[RawMessage]:
    return [m for at in range(0, len(stream), cut) for m in splitter.feed(stream[at : at + cut])]


@pytest.mark.parametrize("cut", [1, 2, 5, 6, 7, 22, 23, 64, 1000, 10**6])
def test_messages_survive_any_cut(cut: int) -> None:
    """Goal: bad input 3: whole messages with their offsets, however the stream is cut."""
    wanted = [PING, put(0), put(300), PING, put(7)] * 3
    splitter = MessageSplitter(AUTHENTICATED)
    got = feed_in(splitter, b"".join(wanted), cut)
    assert [message_bytes(m) for m in got] == wanted
    assert [m[4:8] for m in got] == [parse_message(w)[4:8] for w in wanted]
    assert [contents(m) for m in got] == [contents(parse_message(w)) for w in wanted]
    assert splitter.pending_bytes == 0


@pytest.mark.parametrize("cut", [1, 19, 1000])
def test_answers_are_split_with_their_own_head(cut: int) -> None:
    """Goal: the client side reads responses (shorter first frame) and events."""
    wanted = [
        encode_response("Map.size", 1, 1, response=7),
        encode_response("Client.ping", 2),
        encode_event("Client.localBackupListener", "backup", 3, source_correlation_id=9),
    ]
    got = feed_in(MessageSplitter(AUTHENTICATED, ANSWERS), b"".join(wanted), cut)
    assert [message_bytes(m) for m in got] == wanted
    assert [(m[5], m[6]) for m in got][:2] == [(1, 1), (2, 0)]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 5, 6, 21])
def test_lengths_below_the_header_end_the_connection(length: int) -> None:
    """Goal: bad input 1. Method: as first frame, alone and behind a good message."""
    bad = struct.pack("<iH", length, UNFRAGMENTED | FINAL) + bytes(40)
    for stream in (bad, PING + bad):
        splitter = MessageSplitter(AUTHENTICATED)
        got: list[RawMessage] = []
        with pytest.raises(ProtocolError, match="bytes where at least"):
            splitter.feed_into(stream, got)
        assert len(got) == stream.startswith(PING)
        with pytest.raises(ProtocolError):
            splitter.feed(PING)


@pytest.mark.parametrize("length", [-5, 0, 5])
def test_later_frames_have_a_header_too(length: int) -> None:
    """Goal: bad input 1 for the second frame."""
    stream = frame(bytes(16), UNFRAGMENTED) + struct.pack("<iH", length, FINAL) + bytes(40)
    for cut in (1, 1000):
        with pytest.raises(ProtocolError, match="at least 6"):
            feed_in(MessageSplitter(AUTHENTICATED), stream, cut)


def test_announced_length_takes_no_memory() -> None:
    """Goal: bad input 2: 2 GiB announced is refused at once, before and after others."""
    for start in (b"", frame(bytes(16), UNFRAGMENTED)):
        splitter = MessageSplitter(AUTHENTICATED)
        with pytest.raises(ProtocolError, match="this one has more"):
            splitter.feed(start + struct.pack("<iH", 2**31 - 1, 0xC000 if not start else 0))
        assert splitter.pending_bytes == 0


def test_limits_depend_on_authentication() -> None:
    """Goal: a stranger may send 64 KiB, a known client more; frame counts are limited."""
    stream = put(70_000)
    with pytest.raises(ProtocolError):
        MessageSplitter(UNAUTHENTICATED).feed(stream)
    splitter = MessageSplitter(UNAUTHENTICATED)
    splitter.feed(PING)
    splitter.limits = AUTHENTICATED
    assert len(splitter.feed(stream)) == 1
    many = frame(bytes(16), UNFRAGMENTED) + frame(b"") * 2000 + frame(b"", FINAL)
    for cut in (500, 10**6):
        with pytest.raises(ProtocolError):
            feed_in(MessageSplitter(UNAUTHENTICATED), many, cut)


def test_a_half_message_of_type_zero_is_harmless() -> None:
    """Goal: FN-21: the half of type 0 is silent and what follows is served; any other
    half before a beginning message ends the connection.
    """
    half = frame(bytes(16), UNFRAGMENTED)
    splitter = MessageSplitter(AUTHENTICATED)
    assert splitter.feed(half) == []
    assert [message_bytes(m) for m in splitter.feed(PING + half + PING)] == [PING, PING]
    with pytest.raises(ProtocolError, match="before the one ahead"):
        MessageSplitter(AUTHENTICATED).feed(put(5)[: 22 + 16] + PING)


def test_many_tiny_messages_in_one_chunk() -> None:
    """Goal: bad input 4: 100,000 small messages in one piece are all read."""
    assert len(MessageSplitter(AUTHENTICATED).feed(PING * 100_000)) == 100_000


def test_a_long_message_in_small_pieces_is_scanned_once() -> None:
    """Goal: cost grows with length, not with its square. Method: 60,000 frames in pieces of 200
    bytes; a scan that starts over would need minutes.
    """
    body = frame(bytes(8) + b"key") * 60_000
    stream = frame(bytes(16), UNFRAGMENTED) + body + frame(b"", FINAL)
    (message,) = feed_in(MessageSplitter(AUTHENTICATED), stream, 200)
    assert len(message[3]) == 2 * 60_002


def fragments(message: bytes, identity: int, counts: tuple[int, ...]) -> list[bytes]:
    """The message in fragments of so many frames each."""
    parts = []
    position, frames = 0, []
    while position < len(message):
        length = int.from_bytes(message[position : position + 4], "little")
        frames.append(bytearray(message[position : position + length]))
        position += length
    frames[0][5] &= 0x3F
    at = 0
    for number, count in enumerate(counts):
        flags = BEGIN_FRAGMENT if number == 0 else 0
        flags |= END_FRAGMENT if number == len(counts) - 1 else 0
        chosen = [bytearray(f) for f in frames[at : at + count]]
        chosen[-1][5] |= FINAL >> 8
        parts.append(frame(struct.pack("<q", identity), flags) + b"".join(chosen))
        at += count
    assert at == len(frames)
    return parts


@pytest.mark.parametrize("cut", [1, 7, 1000])
@pytest.mark.parametrize("counts", [(1, 3), (2, 2), (1, 1, 1, 1), (3, 1)])
def test_fragments_are_joined(cut: int, counts: tuple[int, ...]) -> None:
    """Goal: bad input 6: a fragmented message equals the plain one; others may come between."""
    whole = put(40)
    first, second = fragments(whole, 7, counts), fragments(put(50), -8, counts)
    stream = first[0] + PING + second[0]
    stream += b"".join(first[1:]) + PING + b"".join(second[1:])
    splitter = MessageSplitter(AUTHENTICATED)
    got = feed_in(splitter, stream, cut)
    assert [message_bytes(m) for m in got] == [PING, whole, PING, put(50)]
    assert splitter.pending_bytes == 0


def test_bad_fragments_end_the_connection() -> None:
    """Goal: bad input 6: missing begin, begun twice, empty, endless, too many open."""
    first, middle, _last = fragments(put(40), 7, (1, 2, 1))
    small = FrameLimits(message_bytes_max=5000, frames_max=100)
    bad = {
        "missing begin": middle,
        "begun twice": first + first,
        "empty": frame(bytes(8), BEGIN_FRAGMENT | FINAL),
        "endless": first + middle * 60,
        "endless small": first + (frame(struct.pack("<q", 7)) + frame(b"", FINAL)) * 200,
        "no room for an id": frame(bytes(3), BEGIN_FRAGMENT) + frame(b"", FINAL),
        "too short joined": frame(bytes(8), BEGIN_FRAGMENT)
        + frame(b"x", FINAL)
        + frame(bytes(8), END_FRAGMENT)
        + frame(b"x", FINAL),
    }
    for name, stream in bad.items():
        splitter = MessageSplitter(small)
        with pytest.raises(ProtocolError):
            raise AssertionError((name, splitter.feed(stream)))
        assert splitter.pending_bytes == 0
    splitter = MessageSplitter(AUTHENTICATED)
    for identity in range(JOINS_MAX):
        splitter.feed(fragments(put(9), identity, (1, 3))[0])
    with pytest.raises(ProtocolError, match="too many"):
        splitter.feed(fragments(put(9), 99, (1, 3))[0])


@pytest.mark.parametrize(
    "buffer",
    [b"", PING[:-1], PING + b"x", PING + PING, put(3)[:-1], frame(bytes(16), FINAL), put(3)[:22]],
)
def test_parse_takes_exactly_one_message(buffer: bytes) -> None:
    """Goal: a forwarded request is one whole message or an error."""
    with pytest.raises(ProtocolError):
        parse_message(buffer)
