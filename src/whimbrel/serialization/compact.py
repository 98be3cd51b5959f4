"""Compact records: schemas with their fingerprints, and one record to values and back.

A Compact value is a Data of type -55 whose payload is the schema's id and the record; whoever
has the schema can read any field. The layout, the same in every official client, from the
record's data start: fixed-size fields ordered by size descending, then name; booleans packed
into bits; variable-size values; after them one offset per variable-size field in name order.
``compact_columns`` does the same for whole columns.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from whimbrel.errors import SerializationError
from whimbrel.serialization import temporal
from whimbrel.serialization.data import (
    COMPACT,
    DATA_HEADER_BYTES,
    Input,
    header,
    pack_decimal,
    pack_string,
    type_of,
)

RECORD_AT: Final = DATA_HEADER_BYTES + 8
"""Offset of the record in a Data: behind header and schema id."""
FIELDS_MAX: Final = 4_096
"""Most fields of a schema."""
NAME_BYTES_MAX: Final = 65_536
"""Longest type name or field name of a schema, in UTF-8."""


class Kind(enum.IntEnum):
    """Kinds of fields that we read and write, with their numbers in the protocol."""

    BOOLEAN = 1
    INT8 = 3
    ARRAY_OF_INT8 = 4
    INT16 = 7
    INT32 = 9
    INT64 = 11
    FLOAT32 = 13
    FLOAT64 = 15
    STRING = 17
    DECIMAL = 19
    TIME = 21
    DATE = 23
    TIMESTAMP = 25
    TIMESTAMP_WITH_TIMEZONE = 27
    NULLABLE_BOOLEAN = 33
    NULLABLE_INT8 = 35
    NULLABLE_INT16 = 37
    NULLABLE_INT32 = 39
    NULLABLE_INT64 = 41
    NULLABLE_FLOAT32 = 43
    NULLABLE_FLOAT64 = 45


NUMBERS: dict[int, struct.Struct] = {
    Kind.INT8: struct.Struct(">b"),
    Kind.INT16: struct.Struct(">h"),
    Kind.INT32: struct.Struct(">i"),
    Kind.INT64: struct.Struct(">q"),
    Kind.FLOAT32: struct.Struct(">f"),
    Kind.FLOAT64: struct.Struct(">d"),
}
"""Fixed-size kinds other than booleans."""

NULLABLE_OF: dict[int, Kind] = {
    Kind[kind.name.removeprefix("NULLABLE_")]: kind
    for kind in Kind
    if kind.name.startswith("NULLABLE_")
}
"""Plain kind to the kind that may also be null."""

NULLABLE_NUMBERS: dict[int, struct.Struct] = {
    NULLABLE_OF[kind]: packing for kind, packing in NUMBERS.items()
}

_KNOWN_IN_SCHEMAS = frozenset([*range(1, 5), *range(7, 31), *range(33, 47)])
"""Kinds a schema may have; those that ``Kind`` lacks are variable-size and are passed over."""

# -- fingerprint --------------------------------------------------------------------------

_EMPTY = -4513414715797952619 & (1 << 64) - 1


def _fingerprint_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_EMPTY if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _fingerprint_table()


def fingerprint(data: bytes, start: int = _EMPTY) -> int:
    """The 64-bit Rabin fingerprint of some bytes, as an unsigned number."""
    value = start
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value


def _schema_id(type_name: str, fields: Iterable[CompactField]) -> int:
    """Fingerprint over type name, field count, and each field's name and kind (signed)."""
    parts = [_counted(type_name), b""]
    count = 0
    for field in fields:
        parts += (_counted(field.name), field.kind.to_bytes(4, "little"))
        count += 1
    parts[1] = count.to_bytes(4, "little")
    value = fingerprint(b"".join(parts))
    return value - (1 << 64) if value >> 63 else value


def _counted(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(4, "little") + raw


# -- schemas ------------------------------------------------------------------------------


class CompactField:
    """A field of a schema with its place in a record."""

    __slots__ = ("bit", "index", "kind", "name", "position")

    def __init__(self, name: str, kind: int) -> None:
        self.name = name
        self.kind = kind
        self.position = -1
        """Offset of a fixed-size field from the data start; -1 for variable-size ones."""
        self.bit = 0
        """Bit of a boolean in the byte at ``position``."""
        self.index = -1
        """Number of a variable-size field in the offset table; -1 for fixed-size ones."""


class CompactSchema:
    """A schema and the layout that follows from it. Compare schemas by ``id``."""

    __slots__ = ("_by_name", "fields", "fixed_bytes", "id", "type_name", "variable")

    def __init__(self, type_name: str, fields: Iterable[tuple[str, int]]) -> None:
        """A schema of fields given as (name, kind), in any order.

        Raises:
            SerializationError: A name is doubled or too long, a kind does not exist, or there
                are too many fields.
        """
        self.type_name = type_name
        made = sorted((CompactField(name, int(kind)) for name, kind in fields), key=_name)
        _check_fields(type_name, made)
        self.fields: tuple[CompactField, ...] = tuple(made)
        """In the order of their names."""
        self._by_name = {field.name: field for field in made}
        self.variable: tuple[CompactField, ...] = tuple(
            field for field in made if field.kind != Kind.BOOLEAN and field.kind not in NUMBERS
        )
        """Variable-size fields in the order of the offset table."""
        for index, field in enumerate(self.variable):
            field.index = index
        self.fixed_bytes = self._place_fixed()
        """Size of the fixed-size section."""
        self.id = _schema_id(type_name, made)
        """The fingerprint, a signed 64-bit number."""

    def field(self, name: str) -> CompactField:
        """The field called ``name``.

        Raises:
            SerializationError: There is none.
        """
        field = self._by_name.get(name)
        if field is None:
            raise SerializationError(f"the type {self.type_name!r} has no field {name!r}")
        return field

    @property
    def data_at(self) -> int:
        """Offset of the data start in a Data: behind the data length, if there is one."""
        return RECORD_AT + (4 if self.variable else 0)

    def _place_fixed(self) -> int:
        numbers = [field for field in self.fields if field.kind in NUMBERS]
        position = 0
        for field in sorted(numbers, key=lambda field: -NUMBERS[field.kind].size):
            field.position = position
            position += NUMBERS[field.kind].size
        booleans = [field for field in self.fields if field.kind == Kind.BOOLEAN]
        for number, field in enumerate(booleans):
            field.position, field.bit = position + number // 8, number % 8
        return position + (len(booleans) + 7) // 8


def _name(field: CompactField) -> str:
    return field.name


def _check_fields(type_name: str, fields: list[CompactField]) -> None:
    if len(fields) > FIELDS_MAX:
        raise SerializationError(f"a schema has at most {FIELDS_MAX} fields, not {len(fields)}")
    for name in (type_name, *(field.name for field in fields)):
        if len(name.encode()) > NAME_BYTES_MAX:
            raise SerializationError(f"a name in a schema has at most {NAME_BYTES_MAX} bytes")
    for before, after in itertools.pairwise(fields):
        if before.name == after.name:
            raise SerializationError(f"the type {type_name!r} has two fields {after.name!r}")
    for field in fields:
        if field.kind not in _KNOWN_IN_SCHEMAS:
            raise SerializationError(
                f"the field {field.name!r} is of the unknown kind {field.kind}"
            )


# -- one record ---------------------------------------------------------------------------

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


def schema_id_of(data: bytes) -> int:
    """The id of the schema that a Compact Data follows.

    Raises:
        SerializationError: The Data is not Compact, or too short.
    """
    if type_of(data) != COMPACT or len(data) < RECORD_AT:
        raise SerializationError("the value is no Compact record")
    return int.from_bytes(data[DATA_HEADER_BYTES:RECORD_AT], "big", signed=True)


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
