"""Compact schemas with their fingerprints, and the layout of records that follows from them.

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
from collections.abc import Iterable
from typing import Final

from whimbrel.errors import SerializationError
from whimbrel.serialization.data import (
    COMPACT,
    DATA_HEADER_BYTES,
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


def schema_id_of(data: bytes) -> int:
    """The id of the schema that a Compact Data follows.

    Raises:
        SerializationError: The Data is not Compact, or too short.
    """
    if type_of(data) != COMPACT or len(data) < RECORD_AT:
        raise SerializationError("the value is no Compact record")
    return int.from_bytes(data[DATA_HEADER_BYTES:RECORD_AT], "big", signed=True)
