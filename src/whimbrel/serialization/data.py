"""Serialised values (Data) to Python values and back, for the types that need no class.

A Data is 4 bytes of partition hash (0: not set), 4 bytes of type id, and a payload, all
big-endian: the layout that every official client writes. A member stores Data without looking
inside; operators, Spark and tests read the values. Objects of other languages' own serialisers
are never loaded: they stay opaque bytes with a name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from whimbrel.errors import SerializationError
from whimbrel.serialization import temporal
from whimbrel.serialization.temporal import Date, Time, Timestamp, ZonedTimestamp
from whimbrel.serialization.uuids import UUID_BYTES, uuid_text

HASH_BYTES: Final = 4
"""The partition hash at the head of a Data; it is no part of equality."""
NO_HASH: Final = b"\0\0\0\0"
"""That of nearly every Data: who reads it computes the hash."""
DATA_HEADER_BYTES: Final = 8
"""Partition hash and type id, in front of the payload; no Data is shorter."""

NULL: Final = 0
PORTABLE: Final = -1
DATA_SERIALIZABLE: Final = -2
BYTE: Final = -3
BOOLEAN: Final = -4
SHORT: Final = -6
INTEGER: Final = -7
LONG: Final = -8
FLOAT: Final = -9
DOUBLE: Final = -10
STRING: Final = -11
BYTE_ARRAY: Final = -12
UUID: Final = -21
BIG_INTEGER: Final = -26
BIG_DECIMAL: Final = -27
OBJECT_ARRAY: Final = -28
ARRAY_LIST: Final = -29
LINKED_LIST: Final = -30
LOCAL_DATE: Final = -51
LOCAL_TIME: Final = -52
LOCAL_DATE_TIME: Final = -53
OFFSET_DATE_TIME: Final = -54
COMPACT: Final = -55
JSON: Final = -130

NESTING_MAX = 32
"""Deepest list within a list that is read or written."""
BIG_INTEGER_BYTES_MAX = 16_384
"""Longest big integer that is read; turning longer ones into digits would take the machine."""
DECIMAL_SCALE_MAX = 100_000
"""Largest scale of a decimal, either way; beyond it, printing a value would take the machine."""

TYPE_NAMES: dict[int, str] = {
    NULL: "null",
    PORTABLE: "portable object",
    DATA_SERIALIZABLE: "Java data-serializable object",
    BYTE: "byte",
    BOOLEAN: "boolean",
    -5: "char",
    SHORT: "short",
    INTEGER: "integer",
    LONG: "long",
    FLOAT: "float",
    DOUBLE: "double",
    STRING: "string",
    BYTE_ARRAY: "byte array",
    -13: "boolean array",
    -14: "char array",
    -15: "short array",
    -16: "integer array",
    -17: "long array",
    -18: "float array",
    -19: "double array",
    -20: "string array",
    UUID: "uuid",
    -24: "Java class",
    -25: "Java date",
    BIG_INTEGER: "big integer",
    BIG_DECIMAL: "decimal",
    OBJECT_ARRAY: "object array",
    ARRAY_LIST: "list",
    LINKED_LIST: "linked list",
    LOCAL_DATE: "date",
    LOCAL_TIME: "time",
    LOCAL_DATE_TIME: "timestamp",
    OFFSET_DATE_TIME: "timestamp with time zone",
    COMPACT: "compact record",
    -100: "Java serialized object",
    -120: "Python object",
    JSON: "JSON",
}


class Uuid(msgspec.Struct, frozen=True):
    """A uuid, 16 big-endian bytes."""

    raw: bytes

    def __str__(self) -> str:
        return uuid_text(self.raw)


class Json(msgspec.Struct, frozen=True):
    """JSON text, as its writer wrote it."""

    text: str

    def __str__(self) -> str:
        return self.text


class Char(msgspec.Struct, frozen=True):
    """One UTF-16 unit of a Java char."""

    unit: int

    def __str__(self) -> str:
        return chr(self.unit)


class Opaque(msgspec.Struct, frozen=True):
    """A value that this module does not look into; it travels back unchanged."""

    type_id: int
    payload: bytes

    def __str__(self) -> str:
        return f"<{type_name(self.type_id)}, {len(self.payload)} bytes>"


def type_name(type_id: int) -> str:
    """What a type id is called, for people."""
    if type_id > 0:
        return f"custom type {type_id}"
    return TYPE_NAMES.get(type_id, f"type {type_id}")


def type_of(data: bytes) -> int:
    """The type id of a Data.

    Raises:
        SerializationError: It is shorter than its header.
    """
    if len(data) < DATA_HEADER_BYTES:
        raise SerializationError(
            f"a Data has at least {DATA_HEADER_BYTES} bytes, this one {len(data)}"
        )
    return int.from_bytes(data[4:8], "big", signed=True)


# -- writing ------------------------------------------------------------------------------

_HEADER = struct.Struct(">ii")
_INT = struct.Struct(">i")


def header(type_id: int) -> bytes:
    """The 8 bytes in front of a payload; the partition hash is left unset."""
    return _HEADER.pack(0, type_id)


def to_data(value: object) -> bytes:
    """A value as Data.

    None, bool, int (as integer, long or big integer, the first that holds it), float (as
    double), str, bytes, Decimal, Uuid, Date, Time, Timestamp, ZonedTimestamp, Json, Opaque, and
    lists of these (as ArrayList).

    Raises:
        SerializationError: The type is none of these, or the value does not fit.
    """
    return NO_HASH + _nested(value, 0)


def pack_string(text: str) -> bytes:
    """Length in bytes, then UTF-8."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise SerializationError("a string holds half a surrogate pair") from error
    return _INT.pack(len(raw)) + raw


def pack_big_integer(value: int) -> bytes:
    """Length in bytes, then the shortest two's complement."""
    size = value.bit_length() // 8 + 1 if value >= 0 else (value + 1).bit_length() // 8 + 1
    return _INT.pack(size) + value.to_bytes(size, "big", signed=True)


def pack_decimal(value: Decimal) -> bytes:
    """The unscaled value as big integer, then the scale."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > DECIMAL_SCALE_MAX:
        raise SerializationError("a decimal is no number, or its scale is out of bounds")
    unscaled = int(Decimal((0, digits, 0)))
    return pack_big_integer(-unscaled if sign else unscaled) + _INT.pack(-exponent)


def _pack_uuid(value: Uuid) -> bytes:
    if len(value.raw) != UUID_BYTES:
        raise SerializationError(f"a uuid is 16 bytes, not {len(value.raw)}")
    return value.raw


_NUMBERS = {
    BYTE: struct.Struct(">b"),
    SHORT: struct.Struct(">h"),
    INTEGER: _INT,
    LONG: struct.Struct(">q"),
    FLOAT: struct.Struct(">f"),
    DOUBLE: struct.Struct(">d"),
}

_WRITERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    type(None): (NULL, lambda _: b""),
    bool: (BOOLEAN, lambda value: b"\1" if value else b"\0"),
    float: (DOUBLE, _NUMBERS[DOUBLE].pack),
    str: (STRING, pack_string),
    bytes: (BYTE_ARRAY, lambda value: _INT.pack(len(value)) + value),
    Uuid: (UUID, _pack_uuid),
    Decimal: (BIG_DECIMAL, pack_decimal),
    Date: (LOCAL_DATE, temporal.pack_date),
    Time: (LOCAL_TIME, temporal.pack_time),
    Timestamp: (LOCAL_DATE_TIME, temporal.pack_timestamp),
    ZonedTimestamp: (OFFSET_DATE_TIME, temporal.pack_zoned),
    Json: (JSON, lambda value: pack_string(value.text)),
}


def _nested(value: Any, depth: int) -> bytes:
    """Type id and payload, as values stand inside lists."""
    writer = _WRITERS.get(type(value))
    if writer is not None:
        type_id, pack = writer
        return _INT.pack(type_id) + pack(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, Opaque):
        return _INT.pack(value.type_id) + value.payload
    if isinstance(value, list) and depth < NESTING_MAX:
        items = [_nested(item, depth + 1) for item in value]
        return _HEADER.pack(ARRAY_LIST, len(items)) + b"".join(items)
    raise SerializationError(f"there is no serialised form for a {type(value).__name__}")


def _integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return _HEADER.pack(INTEGER, value)
    if -(1 << 63) <= value < 1 << 63:
        return _INT.pack(LONG) + _NUMBERS[LONG].pack(value)
    return _INT.pack(BIG_INTEGER) + pack_big_integer(value)


# -- reading ------------------------------------------------------------------------------


class Input:
    """Reads a payload; every length is compared with what is there before it is used."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise SerializationError("a serialised value ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def unpack(self, packing: struct.Struct) -> tuple[Any, ...]:
        """Fixed-size values."""
        return packing.unpack(self.take(packing.size))

    def number(self, type_id: int) -> Any:
        """One number of a fixed-size type."""
        return self.unpack(_NUMBERS[type_id])[0]

    def count(self, item_bytes_min: int) -> int:
        """A count of items that have at least so many bytes each."""
        count = int(self.unpack(_INT)[0])
        if count < 0 or count * item_bytes_min > len(self.data) - self.at:
            raise SerializationError("a serialised value announces more items than it has")
        return count

    def string(self) -> str:
        """Length in bytes, then UTF-8."""
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError as error:
            raise SerializationError("a string is not UTF-8") from error

    def big_integer(self) -> int:
        """Length in bytes, then two's complement."""
        size = self.count(1)
        if size > BIG_INTEGER_BYTES_MAX:
            raise SerializationError(
                f"a big integer of {size} bytes; at most {BIG_INTEGER_BYTES_MAX} are read"
            )
        return int.from_bytes(self.take(size), "big", signed=True)

    def decimal(self) -> Decimal:
        """Unscaled value, then scale."""
        unscaled, scale = self.big_integer(), int(self.unpack(_INT)[0])
        if abs(scale) > DECIMAL_SCALE_MAX:
            raise SerializationError("the scale of a decimal is out of bounds")
        sign, digits, _ = Decimal(unscaled).as_tuple()
        return Decimal((sign, digits, -scale))


def to_object(data: bytes) -> Any:
    """The value of a Data; the kinds of values that ``to_data`` takes, and arrays as lists.

    Types that have no plain value here (portable and compact records, objects of other
    languages, custom types) come back as ``Opaque``.

    Raises:
        SerializationError: The bytes are not what their type id says.
    """
    type_id = type_of(data)
    source = Input(data, DATA_HEADER_BYTES)
    value = _value(type_id, source, 0)
    if source.at != len(data):
        raise SerializationError(f"bytes are left over after a {type_name(type_id)}")
    return value


def _value(type_id: int, source: Input, depth: int) -> Any:
    if type_id in _NUMBERS:
        return source.number(type_id)
    reader = _READERS.get(type_id)
    if reader is not None:
        return reader(source)
    if type_id in _ARRAYS:
        packing = _ARRAYS[type_id]
        count = source.count(packing.size)
        return [item for (item,) in packing.iter_unpack(source.take(count * packing.size))]
    if type_id in (ARRAY_LIST, LINKED_LIST, OBJECT_ARRAY):
        if depth >= NESTING_MAX:
            raise SerializationError(f"lists are nested more than {NESTING_MAX} deep")
        count = source.count(4)
        return [_value(int(source.unpack(_INT)[0]), source, depth + 1) for _ in range(count)]
    if depth:
        raise SerializationError(f"a list holds a {type_name(type_id)}, whose end is unknown")
    return Opaque(type_id, source.take(len(source.data) - source.at))


def _boolean(source: Input) -> bool:
    return source.take(1) != b"\0"


def _read(unpack: Callable[[bytes, int], Any], size: int) -> Callable[[Input], Any]:
    return lambda source: unpack(source.take(size), 0)


_READERS: dict[int, Callable[[Input], Any]] = {
    NULL: lambda _: None,
    BOOLEAN: _boolean,
    -5: lambda source: Char(int.from_bytes(source.take(2), "big")),
    STRING: Input.string,
    BYTE_ARRAY: lambda source: source.take(source.count(1)),
    -20: lambda source: [source.string() for _ in range(source.count(4))],
    UUID: lambda source: Uuid(source.take(UUID_BYTES)),
    BIG_INTEGER: Input.big_integer,
    BIG_DECIMAL: Input.decimal,
    LOCAL_DATE: _read(temporal.unpack_date, temporal.DATE.size),
    LOCAL_TIME: _read(temporal.unpack_time, temporal.TIME.size),
    LOCAL_DATE_TIME: _read(temporal.unpack_timestamp, temporal.TIMESTAMP.size),
    OFFSET_DATE_TIME: _read(temporal.unpack_zoned, temporal.ZONED.size),
    JSON: lambda source: Json(source.string()),
}

_ARRAYS = {
    -13: struct.Struct(">?"),
    -15: _NUMBERS[SHORT],
    -16: _NUMBERS[INTEGER],
    -17: _NUMBERS[LONG],
    -18: _NUMBERS[FLOAT],
    -19: _NUMBERS[DOUBLE],
}
