"""The short cuts for single-key calls equal the table-driven codec."""

from __future__ import annotations

import struct

import pytest
from tests.unit.wire_samples import frame

from whimbrel.errors import ProtocolError
from whimbrel.wire import fast_codec
from whimbrel.wire.codec import decode_request, encode_event, encode_request, encode_response
from whimbrel.wire.frames import BACKUP_EVENT, FINAL, NULL, UNFRAGMENTED, parse_message
from whimbrel.wire.protocol_table import SHAPES

TYPES = {name: shape.type for name, shape in SHAPES.items()}
KEY, VALUE = bytes(8) + b"key", bytes(7) + b"\x01value"


@pytest.mark.parametrize("name", ["Map.get", "Map.remove", "Map.containsKey", "Map.delete"])
def test_key_requests_equal_the_table(name: str) -> None:
    """Goal: name and key as the table-driven decoder finds them."""
    for kept in ("", "flights", "größe"):
        raw = parse_message(encode_request(name, 1, 2, name=kept, key=KEY, thread_id=3))
        fields = decode_request(raw)[1]
        assert fast_codec.decode_key_request(raw[0], raw[3]) == (
            fields["name"].encode(),
            fields["key"],
        )


@pytest.mark.parametrize("name", ["Map.put", "Map.set", "Map.putIfAbsent", "Map.putTransient"])
def test_put_requests_equal_the_table(name: str) -> None:
    """Goal: name, key, value and time to live as the table-driven decoder finds them."""
    for ttl in (-1, 0, 1 << 40):
        request = encode_request(name, 1, 2, name="m", key=KEY, value=VALUE, thread_id=3, ttl=ttl)
        raw = parse_message(request)
        fields = decode_request(raw)[1]
        assert fast_codec.decode_put_request(raw[0], raw[3]) == (
            fields["name"].encode(),
            fields["key"],
            fields["value"],
            fields["ttl"],
        )


def test_bad_requests_are_refused() -> None:
    """Goal: bad input 9: missing, null and short fields, in every place."""
    fixed = bytes.fromhex("00010100") + bytes(12) + struct.pack("<qq", 1, -1)
    good = [frame(b"m"), frame(KEY), frame(VALUE)]
    for at in range(3):
        for bad in (frame(b"", NULL), frame(bytes(7))) if at else (frame(b"", NULL),):
            parts = [*good[:at], bad, *good[at + 1 :]]
            raw = parse_message(frame(fixed, UNFRAGMENTED) + b"".join(parts) + frame(b"", FINAL))
            with pytest.raises(ProtocolError):
                fast_codec.decode_put_request(raw[0], raw[3])
            if at < 2:
                with pytest.raises(ProtocolError):
                    fast_codec.decode_key_request(raw[0], raw[3])
    for first, count in ((fixed[:-9], 3), (fixed, 0), (fixed, 1)):
        body = b"".join(good[:count])
        raw = parse_message(frame(first, UNFRAGMENTED) + body + frame(b"", FINAL | NULL))
        with pytest.raises(ProtocolError):
            fast_codec.decode_put_request(raw[0], raw[3])
        with pytest.raises(ProtocolError):
            fast_codec.decode_key_request(raw[0], raw[3])


def test_responses_equal_the_table() -> None:
    """Goal: byte for byte the table-driven responses, with and without acknowledgements."""
    for acks in (0, 1, 6):
        for value in (None, VALUE):
            assert fast_codec.data_response(TYPES["Map.get"], -7, acks, value) == encode_response(
                "Map.get", -7, acks, response=value
            )
        for flag in (True, False):
            assert fast_codec.bool_response(
                TYPES["Map.containsKey"], 7, acks, flag
            ) == encode_response("Map.containsKey", 7, acks, response=flag)
        assert fast_codec.empty_response(TYPES["Map.set"], 7, acks) == encode_response(
            "Map.set", 7, acks
        )
        plain = fast_codec.data_response(TYPES["Map.put"], 1, 0, VALUE)
        assert fast_codec.with_backup_acks(plain, acks) == fast_codec.data_response(
            TYPES["Map.put"], 1, acks, VALUE
        )


def test_backup_events_equal_the_table() -> None:
    """Goal: the acknowledgement event, marked both as an event and as a backup event."""
    assert fast_codec.backup_event(5, 6) == encode_event(
        "Client.localBackupListener", "backup", 5, -1, BACKUP_EVENT, source_correlation_id=6
    )
