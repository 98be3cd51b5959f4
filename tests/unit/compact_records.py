"""One Compact record to values and back, field by field: the dumb twin of ``compact_columns``.

A test holds it to the official client's serialiser, and the columns to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from whimbrel.errors import SerializationError
from whimbrel.serialization import temporal
from whimbrel.serialization.compact import (
    NULLABLE_OF,
    NUMBERS,
    RECORD_AT,
    CompactField,
    CompactSchema,
    Kind,
    schema_id_of,
)
from whimbrel.serialization.data import COMPACT, Input, header, pack_decimal, pack_string

NULLABLE_NUMBERS = {NULLABLE_OF[kind]: packing for kind, packing in NUMBERS.items()}
_INT = struct.Struct(">i")

Pack = Callable[[Any], bytes]
Unpack = Callable[[Input], Any]


def _pack_bytes(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def _fixed(size: int, unpack: Callable[[bytes, int], Any]) -> Unpack:
    return lambda source: unpack(source.take(size), 0)


def _number(packing: struct.Struct) -> Unpack:
    return lambda source: source.unpack(packing)[0]


_VARIABLE: dict[int, tuple[Pack, Unpack]] = {
    Kind.STRING: (pack_string, Input.string),
    Kind.ARRAY_OF_INT8: (_pack_bytes, lambda source: source.take(source.count(1))),
    Kind.DECIMAL: (pack_decimal, Input.decimal),
    Kind.DATE: (temporal.pack_date, _fixed(temporal.DATE.size, temporal.unpack_date)),
    Kind.TIME: (temporal.pack_time, _fixed(temporal.TIME.size, temporal.unpack_time)),
    Kind.TIMESTAMP: (
        temporal.pack_timestamp,
        _fixed(temporal.TIMESTAMP.size, temporal.unpack_timestamp),
    ),
    Kind.TIMESTAMP_WITH_TIMEZONE: (
        temporal.pack_zoned,
        _fixed(temporal.ZONED.size, temporal.unpack_zoned),
    ),
    Kind.NULLABLE_BOOLEAN: (
        lambda value: b"\1" if value else b"\0",
        lambda source: source.take(1) != b"\0",
    ),
    **{kind: (packing.pack, _number(packing)) for kind, packing in NULLABLE_NUMBERS.items()},
}


def offset_width(data_bytes: int) -> int:
    """Bytes per entry of an offset table behind so many bytes of data."""
    if data_bytes < 0xFF:
        return 1
    return 2 if data_bytes < 0xFFFF else 4


def encode_record(schema: CompactSchema, values: Mapping[str, Any]) -> bytes:
    """A record as Data, header included.

    Args:
        schema: Its schema; all kinds must be in ``Kind``.
        values: A value per field name; a missing one counts as None. Kinds take: BOOLEAN bool,
            numbers int or float, STRING str, ARRAY_OF_INT8 bytes, DECIMAL Decimal, the calendar
            kinds the structs of ``temporal``. None is refused by the kinds that are not
            nullable: booleans and numbers of fixed size.

    Raises:
        SerializationError: A value does not fit its field, or a field is unknown.
    """
    for name in values:
        schema.field(name)
    fixed = bytearray(schema.fixed_bytes)
    for field in schema.fields:
        if field.index < 0:
            _put_fixed(fixed, field, values.get(field.name))
    start = header(COMPACT) + schema.id.to_bytes(8, "big", signed=True)
    if not schema.variable:
        return start + bytes(fixed)
    parts, offsets, position = [bytes(fixed)], [], len(fixed)
    for field in schema.variable:
        value = values.get(field.name)
        if value is None:
            offsets.append(-1)
            continue
        offsets.append(position)
        parts.append(_packed(field, value))
        position += len(parts[-1])
    width = offset_width(position)
    table = b"".join((offset & (1 << 8 * width) - 1).to_bytes(width, "big") for offset in offsets)
    return b"".join((start, _INT.pack(position), *parts, table))


def _put_fixed(fixed: bytearray, field: CompactField, value: Any) -> None:
    if value is None:
        raise SerializationError(f"the field {field.name!r} must not be null")
    if field.kind == Kind.BOOLEAN:
        fixed[field.position] |= bool(value) << field.bit
        return
    packing = NUMBERS[field.kind]
    try:
        packing.pack_into(fixed, field.position, value)
    except (struct.error, OverflowError, TypeError) as error:
        raise SerializationError(f"a value does not fit the field {field.name!r}") from error


def _packed(field: CompactField, value: Any) -> bytes:
    codec = _VARIABLE.get(field.kind)
    if codec is None:
        raise SerializationError(f"the kind {field.kind} of {field.name!r} cannot be written")
    try:
        return codec[0](value)
    except (struct.error, OverflowError, TypeError, AttributeError) as error:
        raise SerializationError(f"a value does not fit the field {field.name!r}") from error


def decode_record(schema: CompactSchema, data: bytes) -> dict[str, Any]:
    """Field name to value of a record given as Data.

    Fields of kinds that are not in ``Kind`` (arrays, nested records) are left out.

    Raises:
        SerializationError: The Data is not Compact, follows another schema or is damaged.
    """
    if schema_id_of(data) != schema.id:
        raise SerializationError(f"the record does not follow the schema of {schema.type_name!r}")
    start, offsets = schema.data_at, _offsets(schema, data)
    if start + schema.fixed_bytes > len(data):
        raise SerializationError("a Compact record ends too early")
    values: dict[str, Any] = {}
    for field in schema.fields:
        if field.kind == Kind.BOOLEAN:
            values[field.name] = bool(data[start + field.position] >> field.bit & 1)
        elif field.index < 0:
            values[field.name] = NUMBERS[field.kind].unpack_from(data, start + field.position)[0]
        elif field.kind in _VARIABLE:
            offset = offsets[field.index]
            source = Input(data, start + offset)
            values[field.name] = None if offset < 0 else _VARIABLE[field.kind][1](source)
    return values


def _offsets(schema: CompactSchema, data: bytes) -> list[int]:
    """Offset per variable-size field, -1 for null."""
    count = len(schema.variable)
    if not count:
        return []
    data_bytes = int(Input(data, RECORD_AT).unpack(_INT)[0])
    width = offset_width(data_bytes)
    end = schema.data_at + data_bytes
    if data_bytes < schema.fixed_bytes or end + count * width > len(data):
        raise SerializationError("a Compact record ends too early")
    null = (1 << 8 * width) - 1
    offsets = []
    for number in range(count):
        at = end + number * width
        offset = int.from_bytes(data[at : at + width], "big")
        if offset != null and not schema.fixed_bytes <= offset < max(data_bytes, 1):
            raise SerializationError("a Compact record points outside of itself")
        offsets.append(-1 if offset == null else offset)
    return offsets
