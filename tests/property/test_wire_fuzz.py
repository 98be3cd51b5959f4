"""Whatever bytes come in, the wire answers with values or with one of its own errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire_samples import Samples

from whimbrel.core import messages
from whimbrel.errors import GridError, ProtocolError, SerializationError
from whimbrel.serialization.data import Json, Opaque, Uuid, to_data, to_object
from whimbrel.serialization.temporal import Date, Time, Timestamp, ZonedTimestamp
from whimbrel.wire import fast_codec, links
from whimbrel.wire.codec import decode_event, decode_request, decode_response, encode_request
from whimbrel.wire.errors import decode_errors
from whimbrel.wire.frames import (
    ANSWERS,
    AUTHENTICATED,
    FrameLimits,
    MessageSplitter,
    RawMessage,
    message_bytes,
    parse_message,
)
from whimbrel.wire.protocol_table import SHAPES

NAMES = sorted(SHAPES)
EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)


def request(name: str, seed: int) -> bytes:
    return encode_request(name, seed, seed % 271, **Samples(seed).fields(SHAPES[name].request))


requests = st.builds(request, st.sampled_from(NAMES), st.integers(0, 10_000))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """One or more requests with some bytes changed, cut out or put in."""
    data = bytearray(b"".join(draw(st.lists(requests, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.sampled_from(["set", "cut", "put"]))
        if change == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


@EXAMPLES
@given(st.lists(requests, min_size=1, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_any_cut_gives_the_same_messages(wanted: list[bytes], cuts: list[int]) -> None:
    """Goal: bad input 3: messages do not depend on how the stream arrived."""
    splitter = MessageSplitter(AUTHENTICATED)
    got = [m for piece in pieces(b"".join(wanted), cuts) for m in splitter.feed(piece)]
    assert [message_bytes(message) for message in got] == wanted
    assert [m[4:8] for m in got] == [parse_message(w)[4:8] for w in wanted]
    assert [decode_request(m) for m in got] == [decode_request(parse_message(w)) for w in wanted]


@EXAMPLES
@given(damaged() | st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=6))
def test_damaged_streams_end_in_an_error_of_ours(data: bytes, cuts: list[int]) -> None:
    """Goal: bad input 1-10: splitting and decoding raise only errors of ours, and how the
    stream is cut does not change what is read before the first error.
    """
    limits = FrameLimits(message_bytes_max=10_000, frames_max=100)
    results = []
    for parts in ([data], pieces(data, cuts)):
        splitter = MessageSplitter(limits)
        got: list[RawMessage] = []
        failed = False
        for part in parts:
            try:
                splitter.feed_into(part, got)
            except ProtocolError:
                failed = True
                break
        assert splitter.pending_bytes <= 10_000 + len(data)
        results.append(([message_bytes(message) for message in got], failed))
        for message in got:
            decode_everything(message)
    assert results[0] == results[1]


def decode_everything(message: RawMessage) -> None:
    for decode in (decode_request, decode_response, decode_event, decode_errors):
        try:
            decode(message)
        except GridError:
            continue
    short_cuts: list[Any] = [fast_codec.decode_key_request, fast_codec.decode_put_request]
    for short_cut in short_cuts:
        try:
            short_cut(message[0], message[3])
        except ProtocolError:
            continue


@EXAMPLES
@given(st.sampled_from(["Map.get", "Map.put", "Map.set"]), damaged(), st.integers(0, 99))
def test_short_cuts_accept_only_what_the_table_accepts(name: str, noise: bytes, seed: int) -> None:
    """Goal: a hand-made decoder never reads a request otherwise than the table-driven one."""
    data = bytearray(request(name, seed))
    for at, byte in enumerate(noise[:4]):
        data[(byte * 7 + at * 31) % len(data)] ^= noise[-1 - at]
    try:
        raw = parse_message(bytes(data))
    except ProtocolError:
        return
    if raw[4] != SHAPES[name].type:
        return
    decode: Any = (
        fast_codec.decode_key_request if name == "Map.get" else fast_codec.decode_put_request
    )
    try:
        short = decode(raw[0], raw[3])
    except ProtocolError:
        short = None
    try:
        fields = decode_request(raw)[1]
    except ProtocolError:
        return
    assert short is not None
    assert short[:2] == (fields["name"].encode(), fields["key"])


@EXAMPLES
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
def test_link_frames_and_messages_survive_noise(noise: bytes, at: int, byte: int) -> None:
    """Goal: bad input 1-5 for member links: errors of ours only, bounded memory."""
    good = links.encode_message(messages.RegistryTold(3, ()), "m-1")
    changed = bytearray(good)
    changed[at % len(changed)] = byte
    for payload in (noise, bytes(changed)):
        try:
            links.decode_message(payload)
        except ProtocolError:
            continue
    splitter = links.FrameSplitter(1_000)
    stream = bytearray(links.encode_frame(links.MESSAGE, good) * 3 + noise)
    stream[at % len(stream)] = byte
    try:
        for piece in pieces(bytes(stream), [at, byte]):
            splitter.feed(piece)
    except ProtocolError:
        assert splitter.pending_bytes == 0
    assert splitter.pending_bytes <= 1_004


dates = st.builds(Date, st.integers(-9999, 99_999), st.integers(1, 12), st.integers(1, 28))
times = st.builds(
    Time,
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999_999_999),
)
stamps = st.builds(Timestamp, dates, times)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, places=5)
    | st.builds(Uuid, st.binary(min_size=16, max_size=16))
    | dates
    | times
    | stamps
    | st.builds(ZonedTimestamp, stamps, st.integers(-64_800, 64_800))
    | st.builds(Json, st.text())
)


@EXAMPLES
@given(st.recursive(plain, lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_values_come_back(value: object) -> None:
    """Goal: every plain value survives the way to Data and back, in value and type."""
    back = to_object(to_data(value))
    assert back == value and type(back) is type(value)


@EXAMPLES
@given(plain, st.integers(0, 10**4), st.integers(0, 255), st.integers(0, 8))
def test_damaged_values_raise_or_read(value: object, at: int, byte: int, cut: int) -> None:
    """Goal: bad input 12: damaged Data gives a value or a SerializationError."""
    data = bytearray(to_data(value))
    data[at % len(data)] = byte
    data = data[: len(data) - cut]
    try:
        back = to_object(bytes(data))
    except SerializationError:
        return
    if isinstance(back, Opaque):
        assert to_data(back)[4:] == bytes(data[4:])


@pytest.mark.parametrize("type_id", range(-60, 5))
def test_noise_of_every_type(type_id: int) -> None:
    """Goal: bad input 12: no type's reader trusts the bytes. Method: seeded noise."""
    import random

    rng = random.Random(type_id)
    for _ in range(60):
        payload = bytes(rng.choice([0, 0, 1, 5, 255]) for _ in range(rng.randrange(30)))
        data = bytes(4) + type_id.to_bytes(4, "big", signed=True) + payload
        try:
            found = to_object(data)
        except SerializationError:
            continue
        if isinstance(found, Opaque):
            assert to_data(found)[4:] == data[4:]


MESSAGE_BYTES_MIN = 19
"""Header of a frame, and type, correlation id and count of an answer."""


@EXAMPLES
@given(damaged())
def test_answers_are_split_safely_too(data: bytes) -> None:
    """Goal: a member that talks nonsense ends the connection of our client, nothing else."""
    splitter = MessageSplitter(AUTHENTICATED, ANSWERS)
    try:
        found = splitter.feed(data)
    except ProtocolError:
        return
    for message in found:
        decode_everything(message)
    assert len(found) * MESSAGE_BYTES_MIN <= len(data), "each message has bytes of its own"
