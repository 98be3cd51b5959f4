"""Messages of the client protocol to plain values and back, in both directions.

Everything here follows ``protocol_table``: nothing is written per message. What is decoded is a
dict of field names to values (see ``field_codec``). Written is always the newest shape; a shorter,
older shape is accepted, extra fields are ignored (FN-21).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from whimbrel.errors import ProtocolError, UnsupportedError
from whimbrel.wire.field_codec import Fields, FixedFields, VariableFields
from whimbrel.wire.frame_io import FrameReader, FrameWriter
from whimbrel.wire.frames import EVENT, REQUEST_FIXED, RESPONSE_FIXED, RawMessage
from whimbrel.wire.protocol_table import (
    BY_TYPE,
    SHAPES,
    EventShape,
    Field,
    MessageShape,
    message_name,
)

_REQUEST_HEAD = struct.Struct("<iqi")
_RESPONSE_HEAD = struct.Struct("<iqB")


class _Body:
    """Reader and writer of all fields of one message."""

    def __init__(self, fields: Sequence[Field], offset: int, what: str) -> None:
        self._fixed = FixedFields(fields)
        self._variable = VariableFields(fields)
        self._names = frozenset(field.name for field in fields)
        self._offset = offset
        self._what = what

    def encode(self, head: bytes, flags: int, values: Fields) -> bytes:
        unknown = [name for name in values if name not in self._names]
        if unknown:
            raise ProtocolError(f"{self._what} has no field {unknown[0]!r}")
        out = FrameWriter(head + self._fixed.pack(values, self._what), flags)
        self._variable.write(out, values, self._what)
        return out.finish()

    def decode(self, message: RawMessage) -> Fields:
        buffer, frames = message[0], message[3]
        values: Fields = {}
        first = buffer[frames[0] : frames[1]]
        self._fixed.unpack(first, self._offset, values, self._what)
        self._variable.read(FrameReader(buffer, frames), values, self._what)
        return values


@cache
def _request_body(shape: MessageShape) -> _Body:
    return _Body(shape.request, REQUEST_FIXED, shape.name)


@cache
def _response_body(shape: MessageShape) -> _Body:
    return _Body(shape.response, RESPONSE_FIXED, f"response of {shape.name}")


@cache
def _event_body(event: EventShape) -> _Body:
    return _Body(event.fields, REQUEST_FIXED, f"event {event.name}")


# -- messages -----------------------------------------------------------------------------


def encode_request(
    message: str, correlation: int, partition: int = -1, flags: int = 0, /, **fields: Any
) -> bytes:
    """A request.

    Args:
        message: Name in the table, for example ``Map.put``.
        correlation: Number that the response will carry.
        partition: Partition that the request is for, -1 for none.
        flags: ``frames.BACKUP_AWARE`` or 0.
        **fields: The fields by name; nullable and late ones may be left out.

    Raises:
        ProtocolError: A field is missing, unknown or does not fit.
    """
    shape = _shape(message)
    head = _REQUEST_HEAD.pack(shape.type, correlation, partition)
    return _request_body(shape).encode(head, flags, fields)


def decode_request(message: RawMessage) -> tuple[str, Fields]:
    """Name and fields of a request.

    Raises:
        UnsupportedError: The message is one of the protocol whose shape we do not know; the
            text names it.
        ProtocolError: The type is unknown, or the fields do not follow the protocol.
    """
    shape = BY_TYPE.get(message[4])
    if shape is None:
        name = message_name(message[4])
        if name is None:
            raise ProtocolError(f"there is no request of type 0x{message[4] & 0xFFFFFFFF:06X}")
        raise UnsupportedError(f"{name} is not offered by this cluster")
    return shape.name, _request_body(shape).decode(message)


def encode_response(
    message: str, correlation: int, backup_acks: int = 0, /, **fields: Any
) -> bytes:
    """The response to a request named ``message``.

    ``backup_acks`` is the number of backup events the client will wait for.

    Raises:
        ProtocolError: A field is missing, unknown or does not fit.
    """
    shape = _shape(message)
    head = _RESPONSE_HEAD.pack(shape.response_type, correlation, backup_acks)
    return _response_body(shape).encode(head, 0, fields)


def decode_response(message: RawMessage) -> tuple[str, Fields]:
    """Name of the request and fields of a response other than an error.

    Raises:
        ProtocolError: The type is not that of a response we know, or the fields do not fit.
    """
    shape = BY_TYPE.get(message[4] - 1)
    if shape is None:
        raise ProtocolError(f"there is no response of type 0x{message[4] & 0xFFFFFFFF:06X}")
    return shape.name, _response_body(shape).decode(message)


def encode_event(
    message: str,
    event: str,
    correlation: int,
    partition: int = -1,
    flags: int = 0,
    /,
    **fields: Any,
) -> bytes:
    """An event of the registration ``message``, for example ``Map.addEntryListener``, ``entry``.

    ``correlation`` is that of the registration request.

    Raises:
        ProtocolError: There is no such event, or a field is missing, unknown or does not fit.
    """
    for shape in _shape(message).events:
        if shape.name == event:
            head = _REQUEST_HEAD.pack(shape.type, correlation, partition)
            return _event_body(shape).encode(head, flags | EVENT, fields)
    raise ProtocolError(f"{message} has no event {event!r}")


def decode_event(message: RawMessage) -> tuple[str, str, Fields]:
    """Name of the registration request, name of the event, and its fields.

    Raises:
        ProtocolError: The type is not that of an event we know, or the fields do not fit.
    """
    kind = message[4]
    shape = BY_TYPE.get(kind & ~0xFF)
    at = (kind & 0xFF) - 2
    if shape is None or not 0 <= at < len(shape.events):
        raise ProtocolError(f"there is no event of type 0x{kind & 0xFFFFFFFF:06X}")
    event = shape.events[at]
    return shape.name, event.name, _event_body(event).decode(message)


def _shape(message: str) -> MessageShape:
    shape = SHAPES.get(message)
    if shape is None:
        raise ProtocolError(f"the table has no message {message!r}")
    return shape
