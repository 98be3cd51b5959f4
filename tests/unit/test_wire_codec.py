"""The table-driven codec against the official client's own codecs, and against bad input."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from hazelcast.protocol.builtin import ListMultiFrameCodec
from hazelcast.protocol.codec.custom.error_holder_codec import ErrorHolderCodec
from msgspec.structs import replace
from tests.unit.wire_samples import (
    Samples,
    client_codec,
    client_value,
    frame,
    inbound,
    plain,
    schema_pair,
)

from whimbrel.core.ids import Address
from whimbrel.errors import (
    GridError,
    IndeterminateError,
    OperationError,
    OverloadedError,
    ProtocolError,
    RetryableError,
    UnsupportedError,
    UsageError,
)
from whimbrel.wire import errors
from whimbrel.wire.codec import (
    decode_event,
    decode_request,
    decode_response,
    encode_event,
    encode_request,
    encode_response,
)
from whimbrel.wire.custom_types import ClientMember, MemberVersion
from whimbrel.wire.frames import ANSWERS, BEGIN, END, FINAL, NULL, UNFRAGMENTED, parse_message
from whimbrel.wire.protocol_names import NAMES
from whimbrel.wire.protocol_table import BY_TYPE, SHAPES, MessageShape, message_name

ALL = sorted(SHAPES)
COVERED = [name for name in ALL if client_codec(SHAPES[name]) is not None]
# Their sample values are made by hand below: the client's classes differ too much from the table.
BY_HAND = {"Map.addIndex", "Client.sendSchema", "Client.fetchSchema", "Client.sendAllSchemas"}
ROUNDS = 8
NAMED_OTHERWISE = (50, 70)


def test_the_table_has_every_message_of_its_services() -> None:
    """Goal: of a service that is served each message is in the table, all others have their names.
    Method: count them, and those that the official client has as well.
    """
    counts = {
        service: (
            sum(name.startswith(f"{service}.") for name in ALL),
            sum(name.startswith(f"{service}.") for name in COVERED),
        )
        for service in dict.fromkeys(name.partition(".")[0] for name in ALL)
    }
    assert counts == {
        "Client": (23, 14),
        "FlakeIdGenerator": (1, 1),
        "Map": (73, 62),
        "MultiMap": (23, 22),
        "Queue": (20, 19),
        "Ringbuffer": (9, 9),
    }
    assert len(NAMES) == 474 - len(ALL)
    assert message_name(0x050100) == "List.size"
    assert 0xFE0600 not in NAMES and 0xFE0700 in NAMES
    assert message_name(0x7F0100) is None
    assert not set(NAMES) & set(BY_TYPE)


@pytest.mark.parametrize("name", ALL)
def test_messages_round_trip(name: str) -> None:
    """Goal: what one side writes the other reads, in all three directions. Method: seeded fields
    of every type, with and without the fields that came after 2.0.
    """
    shape = SHAPES[name]
    for seed in range(ROUNDS):
        samples = Samples(seed)
        request = samples.fields(shape.request)
        raw = parse_message(encode_request(name, seed, seed * 3, 0x100, **request))
        assert (raw[4], raw[5], raw[6], raw[7] & 0x100) == (shape.type, seed, seed * 3, 0x100)
        assert decode_request(raw) == (name, request)
        response = samples.fields(shape.response)
        raw = parse_message(encode_response(name, -seed, 2, **response), ANSWERS)
        assert (raw[4], raw[5], raw[6]) == (shape.response_type, -seed, 2)
        assert decode_response(raw) == (name, response)
        for event in shape.events:
            fields = samples.fields(event.fields)
            raw = parse_message(encode_event(name, event.name, seed, **fields))
            assert raw[4] == event.type and raw[7] & 0x200
            assert decode_event(raw) == (name, event.name, fields)


@pytest.mark.parametrize("name", [name for name in COVERED if name not in BY_HAND])
def test_requests_of_the_official_client(name: str) -> None:
    """Goal: byte for byte what the official client sends, and its values when decoded.
    Method: its encoder and ours on the same seeded values; messages with fields that this client
    does not know are compared by value.
    """
    shape, module = SHAPES[name], client_codec(SHAPES[name])
    assert module is not None
    for seed in range(ROUNDS):
        samples = Samples(seed)
        fields = samples.fields(shape.request, without_late=True)
        if name.endswith("PagingPredicate"):
            fields["predicate"] = replace(fields["predicate"], partition_keys_data=None)
        expected_names = list(inspect.signature(module.encode_request).parameters)
        arguments = [
            client_value(field.type, fields[field.name])
            for field in shape.request
            if field.name in fields
        ]
        if name == "Map.putAll":
            arguments.append(True)
            fields["trigger_map_loader"] = True
        assert len(arguments) == len(expected_names), (name, expected_names)
        message = module.encode_request(*arguments)
        message.set_correlation_id(seed)
        assert message.retryable == shape.retryable
        raw = parse_message(bytes(message.buf))
        decoded_name, decoded = decode_request(raw)
        late = {f.name: None for f in shape.request if f.late and f.name not in fields}
        assert decoded_name == name and decoded == {**fields, **late}
        if not late and not name.endswith("PagingPredicate"):
            assert encode_request(name, seed, **fields) == bytes(message.buf)


@pytest.mark.parametrize("name", [name for name in COVERED if name not in BY_HAND])
def test_responses_and_events_for_the_official_client(name: str) -> None:
    """Goal: the official client reads our newest shapes. Method: our encoder, its decoder."""
    shape, module = SHAPES[name], client_codec(SHAPES[name])
    assert module is not None
    for seed in range(ROUNDS):
        samples = Samples(seed)
        fields = samples.fields(shape.response)
        if hasattr(module, "decode_response"):
            got = module.decode_response(inbound(encode_response(name, 1, **fields)))
            assert_same_response(shape, fields, got)
        for event in shape.events[:2]:
            fields = samples.fields(event.fields)
            seen: list[Any] = []
            count = len(inspect.signature(module.handle).parameters) - 1
            message = inbound(encode_event(name, event.name, 1, **fields))
            module.handle(message, *[_collector(seen)] * count)
            wanted = [client_value(f.type, fields[f.name]) for f in event.fields]
            assert len(seen) == 1
            assert sorted(map(repr, plain(seen[0]))) == sorted(map(repr, plain(wanted)))


def _collector(seen: list[Any]) -> Callable[..., None]:
    return lambda *values: seen.append(values)


def assert_same_response(shape: MessageShape, fields: dict[str, Any], got: Any) -> None:
    known = [f for f in shape.response if f.name in fields]
    wanted = {f.name: client_value(f.type, fields[f.name]) for f in known}
    if isinstance(got, dict):
        renamed = {"server_hazelcast_version": "server_version"}
        for key, value in got.items():
            ours = renamed.get(key, key)
            if ours in wanted:
                assert plain(value) == plain(wanted[ours]), key
            else:
                assert repr(plain(value)) in {repr(plain(v)) for v in wanted.values()}, key
    elif known:
        assert plain(got) == plain(wanted[known[0].name])


def test_schemas_for_the_official_client() -> None:
    """Goal: Compact schemas travel both ways. Method: its codecs and ours on equal schemas."""
    for count in (0, 1, 12):
        ours, theirs = schema_pair(count)
        send = client_codec(SHAPES["Client.sendSchema"])
        send_all = client_codec(SHAPES["Client.sendAllSchemas"])
        fetch = client_codec(SHAPES["Client.fetchSchema"])
        assert send and send_all and fetch
        assert bytes(send.encode_request(theirs).buf) == encode_request(
            "Client.sendSchema", 0, schema=ours
        )
        assert bytes(send_all.encode_request([theirs]).buf) == encode_request(
            "Client.sendAllSchemas", 0, schemas=[ours]
        )
        answer = encode_response("Client.fetchSchema", 1, schema=ours)
        got = fetch.decode_response(inbound(answer))
        assert (got.type_name, got.schema_id) == (theirs.type_name, theirs.schema_id)
        nothing = encode_response("Client.fetchSchema", 1, schema=None)
        assert fetch.decode_response(inbound(nothing)) is None


def test_index_requests_of_the_official_client() -> None:
    """Goal: its index configuration is read, the unknown B-tree part of newer clients skipped."""
    from hazelcast.config import IndexConfig, IndexType

    module = client_codec(SHAPES["Map.addIndex"])
    assert module is not None
    config = IndexConfig("by-age", IndexType.BITMAP, ["age", "name"])
    request = bytes(module.encode_request("m", config).buf)
    _, fields = decode_request(parse_message(request))
    index = fields["index_config"]
    assert (index.name, index.type, index.attributes) == ("by-age", 2, ["age", "name"])
    assert index.bitmap_index_options.unique_key == "__key"
    nested = frame(b"", BEGIN) + frame(b"1" * 12) + frame(b"", BEGIN) + frame(b"", END)
    newer = request[:-6] + nested + frame(b"", END) + request[-6:]
    assert decode_request(parse_message(newer))[1] == fields


def test_a_member_with_client_address() -> None:
    """Goal: uuids may be given as text; an absent address map is written as an empty one."""
    text = "01234567-89ab-cdef-0123-456789abcdef"
    member = ClientMember(Address("h", 1), text, {}, False, MemberVersion(5, 7, 0))  # type: ignore[arg-type]
    event = encode_event(
        "Client.addClusterViewListener", "members_view", 1, version=1, member_infos=[member]
    )
    got = decode_event(parse_message(event))[2]["member_infos"][0]
    assert got.uuid.hex() == text.replace("-", "") and got.address_map == {}


# -- refusals -----------------------------------------------------------------------------


def test_unsupported_and_unknown_requests_are_named() -> None:
    """Goal: other services are refused by name, unknown numbers as unknown."""
    raw = parse_message(frame(bytes.fromhex("00010500") + bytes(12), UNFRAGMENTED | FINAL))
    with pytest.raises(UnsupportedError, match=r"List\.size"):
        decode_request(raw)
    raw = parse_message(frame(bytes.fromhex("0001 7f00") + bytes(12), UNFRAGMENTED | FINAL))
    with pytest.raises(ProtocolError, match="0x7F0100"):
        decode_request(raw)


def _get(*frames: bytes, fixed: bytes = bytes(8)) -> bytes:
    head = bytes.fromhex("00020100") + bytes(12) + fixed
    return frame(head, UNFRAGMENTED) + b"".join(frames)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (_get(frame(b"m"), frame(bytes(8), FINAL), fixed=bytes(3)), "too short for .*thread_id"),
        (_get(frame(b"m", FINAL)), "key: the message ends"),
        (_get(frame(b"m"), frame(b"", NULL | FINAL)), "key: a marker or null"),
        (_get(frame(b"m"), frame(bytes(7), FINAL)), "at least 8 bytes"),
        (_get(frame(b"\xff\xfe"), frame(bytes(8), FINAL)), "name: .*UTF-8"),
    ],
)
def test_bad_fields_are_refused_by_name(message: bytes, text: str) -> None:
    """Goal: bad input 5, 9, 10: a bad field is refused with a sentence that names it."""
    with pytest.raises(ProtocolError, match=text):
        decode_request(parse_message(message))


@pytest.mark.parametrize(
    "frames",
    [
        [frame(b"", BEGIN | FINAL)],
        [frame(b"", BEGIN), frame(bytes(8)), frame(b"", NULL | FINAL)],
        [frame(b"", BEGIN), frame(bytes(8)), frame(b"", BEGIN | FINAL)],
        [frame(b"", BEGIN), frame(bytes(2)), frame(b"", END | FINAL)],
        [frame(bytes(8), FINAL)],
    ],
)
def test_bad_lists_are_refused(frames: list[bytes]) -> None:
    """Goal: unfinished, nulled or nested lists of Data are refused (bad input 9)."""
    head = frame(bytes.fromhex("00230100") + bytes(12), UNFRAGMENTED)
    with pytest.raises(ProtocolError, match=r"keys"):
        decode_request(parse_message(head + frame(b"m") + b"".join(frames)))


def test_packed_lists_must_fit() -> None:
    """Goal: a packed list whose length is no multiple of its items is refused."""
    head = frame(bytes.fromhex("00370100") + bytes(12) + bytes(4), UNFRAGMENTED)
    with pytest.raises(ProtocolError, match="items of 8 bytes"):
        decode_request(parse_message(head + frame(b"m") + frame(bytes(9), FINAL)))


def test_writing_refuses_what_does_not_fit() -> None:
    """Goal: missing, unknown and too large fields are told, not sent."""
    with pytest.raises(ProtocolError, match="'key' is missing"):
        encode_request("Map.get", 1, name="m", thread_id=1)
    with pytest.raises(ProtocolError, match="no field 'colour'"):
        encode_request("Map.size", 1, name="m", colour=1)
    with pytest.raises(ProtocolError, match="does not fit"):
        encode_request("Map.get", 1, name="m", key=bytes(8), thread_id=1 << 64)
    with pytest.raises(ProtocolError, match="does not fit"):
        encode_request("Map.fetchKeys", 1, name="m", iteration_pointers=[(1 << 31, 0)], batch=1)
    with pytest.raises(ProtocolError, match="no message"):
        encode_request("Map.fly", 1)
    with pytest.raises(ProtocolError, match="no event"):
        encode_event("Map.addEntryListener", "fly", 1)
    with pytest.raises(ProtocolError, match="uuid"):
        encode_response("Map.addEntryListener", 1, response=b"short")


# -- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "back"),
    [
        (RetryableError("x"), 46, RetryableError),
        (IndeterminateError("x"), 80, IndeterminateError),
        (OverloadedError("x"), 20, OverloadedError),
        (UnsupportedError("x"), 61, UnsupportedError),
        (UsageError("x"), 23, UsageError),
        (ProtocolError("x"), 23, UsageError),
        (OperationError("x"), 18, OperationError),
    ],
)
def test_errors_map_both_ways(error: GridError, code: int, back: type[GridError]) -> None:
    """Goal: our exceptions become the right codes and come back as what a caller can act on; the
    official client reads them.
    """
    raw = parse_message(errors.encode_exception(7, error), ANSWERS)
    assert (raw[4], raw[5]) == (0, 7)
    holders = errors.decode_errors(raw)
    assert holders[0].error_code == code
    made = errors.exception_of(holders)
    assert type(made) is back and "x" in str(made) and str(code) in str(made)
    message = inbound(errors.encode_exception(7, error))
    message.next_frame()
    theirs = ListMultiFrameCodec.decode(message, ErrorHolderCodec.decode)
    assert (theirs[0].error_code, theirs[0].message) == (code, "x")
    assert theirs[0].class_name == errors.CLASS_NAMES[code]


def test_every_code_has_a_class_the_client_knows() -> None:
    """Goal: the table of codes is complete (1 to 99). Method: the client's own table of classes
    agrees in the last part of the name, as far as it has the code.
    """
    from hazelcast.errors import _ERROR_CODE_TO_ERROR

    assert sorted(errors.CLASS_NAMES) == list(range(1, 100))
    different = {
        code: (kind.__name__, errors.CLASS_NAMES[code])
        for code, kind in _ERROR_CODE_TO_ERROR.items()
        if stem(kind.__name__) != stem(re.split(r"[.$]", errors.CLASS_NAMES[code])[-1])
        and code not in NAMED_OTHERWISE
    }
    assert different == {}


def stem(name: str) -> str:
    name = name.removesuffix("Exception").removesuffix("Error")
    return name.removeprefix("Hazelcast").lower()
