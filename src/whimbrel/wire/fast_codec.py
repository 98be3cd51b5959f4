"""Short cuts for the messages that make up nearly all traffic: single-key calls of maps.

Each function does what ``codec`` does for the same message, by fixed offsets and one ``struct``
call; a test holds the two together. Requests are given as the buffer and frames of a
``RawMessage``. Names stay bytes so that a caller can look them up without decoding.
"""

from __future__ import annotations

import struct
from typing import Final

from whimbrel.errors import ProtocolError
from whimbrel.serialization.data import DATA_HEADER_BYTES
from whimbrel.wire.frames import (
    BACKUP_EVENT,
    BEGIN,
    END,
    EVENT,
    FINAL,
    NULL,
    REQUEST_FIXED,
    UNFRAGMENTED,
)
from whimbrel.wire.protocol_table import message_type

BACKUP_EVENT_TYPE: Final = message_type("Client.localBackupListener") + 2

BACKUP_ACKS_AT: Final = 18
"""Offset, in a response's bytes, of the count of backup events that the client waits for."""

_NOT_PLAIN = (BEGIN | END | NULL) >> 8
_KEY_FIXED_BYTES = REQUEST_FIXED + 8
_PUT_FIXED_BYTES = REQUEST_FIXED + 16
_ONLY = UNFRAGMENTED | FINAL

_ttl_at = struct.Struct("<q").unpack_from
_pack_empty = struct.Struct("<iHiqB").pack
_pack_bool = struct.Struct("<iHiqB?").pack
_pack_data = struct.Struct("<iHiqBiH").pack
_pack_backup = struct.Struct("<iHiqiq").pack


def decode_key_request(buffer: bytes, frames: list[int]) -> tuple[bytes, bytes]:
    """(map name, key) of Map.get, remove, containsKey and delete.

    Raises:
        ProtocolError: A field is missing, null or too short.
    """
    try:
        first, first_end, name, name_end, key, key_end = frames[:6]
    except ValueError:
        raise ProtocolError("a request for one key lacks its name or its key") from None
    if (
        (buffer[name - 1] | buffer[key - 1]) & _NOT_PLAIN
        or key_end - key < DATA_HEADER_BYTES
        or first_end - first < _KEY_FIXED_BYTES
    ):
        raise ProtocolError("a request for one key has a null or too short field")
    return buffer[name:name_end], buffer[key:key_end]


def decode_put_request(buffer: bytes, frames: list[int]) -> tuple[bytes, bytes, bytes, int]:
    """(map name, key, value, time to live in ms) of Map.put, set, putIfAbsent and putTransient.

    Raises:
        ProtocolError: A field is missing, null or too short.
    """
    try:
        first, first_end, name, name_end, key, key_end, value, value_end = frames[:8]
    except ValueError:
        raise ProtocolError("a request to put lacks its name, key or value") from None
    if (
        (buffer[name - 1] | buffer[key - 1] | buffer[value - 1]) & _NOT_PLAIN
        or key_end - key < DATA_HEADER_BYTES
        or value_end - value < DATA_HEADER_BYTES
        or first_end - first < _PUT_FIXED_BYTES
    ):
        raise ProtocolError("a request to put has a null or too short field")
    ttl: int = _ttl_at(buffer, first + REQUEST_FIXED + 8)[0]
    return buffer[name:name_end], buffer[key:key_end], buffer[value:value_end], ttl


def data_response(kind: int, correlation: int, backup_acks: int, value: bytes | None) -> bytes:
    """Response with one Data or null; ``kind`` is the request's type."""
    if value is None:
        return _pack_data(19, UNFRAGMENTED, kind + 1, correlation, backup_acks, 6, NULL | FINAL)
    return (
        _pack_data(19, UNFRAGMENTED, kind + 1, correlation, backup_acks, 6 + len(value), FINAL)
        + value
    )


def bool_response(kind: int, correlation: int, backup_acks: int, value: bool) -> bytes:
    """Response with one boolean; ``kind`` is the request's type."""
    return _pack_bool(20, _ONLY, kind + 1, correlation, backup_acks, value)


def empty_response(kind: int, correlation: int, backup_acks: int) -> bytes:
    """Response without fields; ``kind`` is the request's type."""
    return _pack_empty(19, _ONLY, kind + 1, correlation, backup_acks)


def backup_event(listener_correlation: int, source_correlation: int) -> bytes:
    """Tells a client that one backup of its call ``source_correlation`` is done.

    ``listener_correlation`` is that of the localBackupListener request on the connection.
    """
    return _pack_backup(
        30,
        _ONLY | EVENT | BACKUP_EVENT,
        BACKUP_EVENT_TYPE,
        listener_correlation,
        -1,
        source_correlation,
    )


def with_backup_acks(response: bytes, backup_acks: int) -> bytes:
    """The same response with another count of backup events to wait for."""
    return response[:BACKUP_ACKS_AT] + bytes((backup_acks,)) + response[BACKUP_ACKS_AT + 1 :]
