"""Whole columns to Compact records and back, without a Python object per row.

The layout is that of ``compact``; a test holds the two together, and both against the official
client. Columns are Arrow arrays; records are an Arrow binary array of Data, one per row. Needs
numpy and pyarrow: see ``arrow_bytes`` for who may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import SerializationError
from whimbrel.serialization import arrow_bytes as ab
from whimbrel.serialization.arrow_bytes import Longs, Mask, Matrix
from whimbrel.serialization.compact import (
    NULLABLE_OF,
    NUMBERS,
    RECORD_AT,
    CompactField,
    CompactSchema,
    Kind,
)
from whimbrel.serialization.data import COMPACT, header

DECIMAL_DEFAULT = pa.decimal128(38, 18)
"""What a decimal field is read as when the caller names no type."""

ARROW_TYPES: dict[int, Any] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.ARRAY_OF_INT8: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("ns"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMP_WITH_TIMEZONE: pa.timestamp("us", "UTC"),
    Kind.DECIMAL: DECIMAL_DEFAULT,
}
"""Arrow type that each kind is read as; a nullable kind is read as its plain one."""

_CODES = {
    Kind.INT8: "i1",
    Kind.INT16: "i2",
    Kind.INT32: "i4",
    Kind.INT64: "i8",
    Kind.FLOAT32: "f4",
    Kind.FLOAT64: "f8",
}
_PLAIN_OF = {nullable: Kind(plain) for plain, nullable in NULLABLE_OF.items()}
_LENGTH = 4


def plain_kind(kind: int) -> Kind:
    """The kind without nullability."""
    return _PLAIN_OF.get(Kind(kind), Kind(kind))


def kind_of(arrow_type: Any, nullable: bool) -> Kind:
    """The kind of field that holds an Arrow type.

    Raises:
        SerializationError: No kind does.
    """
    for kind, known in ARROW_TYPES.items():
        if arrow_type == known:
            return Kind(NULLABLE_OF.get(kind, kind) if nullable else kind)
    types = pa.types
    if types.is_decimal128(arrow_type):
        return Kind.DECIMAL
    if types.is_large_string(arrow_type):
        return Kind.STRING
    if types.is_large_binary(arrow_type) or types.is_fixed_size_binary(arrow_type):
        return Kind.ARRAY_OF_INT8
    if types.is_date(arrow_type):
        return Kind.DATE
    if types.is_time(arrow_type):
        return Kind.TIME
    if types.is_timestamp(arrow_type):
        return Kind.TIMESTAMP_WITH_TIMEZONE if arrow_type.tz else Kind.TIMESTAMP
    raise SerializationError(f"there is no Compact field for the Arrow type {arrow_type}")


def schema_for(type_name: str, arrow_schema: Any) -> CompactSchema:
    """The Compact schema for the columns of an Arrow schema.

    Raises:
        SerializationError: A column has a type that no field holds; the text names it.
    """
    fields = []
    for field in arrow_schema:
        try:
            fields.append((field.name, kind_of(field.type, field.nullable)))
        except SerializationError as error:
            raise SerializationError(f"column {field.name!r}: {error}") from error
    return CompactSchema(type_name, fields)


# -- writing ------------------------------------------------------------------------------


def encode_columns(schema: CompactSchema, columns: Mapping[str, Any]) -> Any:
    """A Compact record as Data per row.

    Args:
        schema: Schema of the records; every kind must be in ``Kind``.
        columns: An Arrow array (or chunked array) per field, all of one length.

    Returns:
        A binary array.

    Raises:
        SerializationError: A column is missing, does not fit its field, or holds a null where
            the field cannot; or the records together are beyond 2 GiB.
    """
    arrays = {field.name: _column(schema, field, columns) for field in schema.fields}
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1:
        raise SerializationError("the columns of a batch must all have the same length")
    count = lengths.pop()
    head = np.zeros((count, schema.data_at + schema.fixed_bytes), np.uint8)
    start = header(COMPACT) + schema.id.to_bytes(8, "big", signed=True)
    head[:, :RECORD_AT] = np.frombuffer(start, np.uint8)
    for field in schema.fields:
        if field.index < 0:
            _put_fixed(head, schema.data_at + field.position, field, arrays[field.name])
    if not schema.variable:
        return ab.binary_of(head)
    return _with_variable(schema, arrays, head)


def _column(schema: CompactSchema, field: CompactField, columns: Mapping[str, Any]) -> Any:
    if field.name not in columns:
        raise SerializationError(f"the type {schema.type_name!r} needs a column {field.name!r}")
    array = ab.single(columns[field.name])
    kind = plain_kind(field.kind)
    try:
        if kind in _KEPT and not pa.types.is_null(array.type):
            exact = kind_of(array.type, nullable=False) == kind
            return array if exact else array.cast(ARROW_TYPES[kind])
        return array.cast(ARROW_TYPES[kind])
    except (pa.ArrowException, NotImplementedError) as error:
        raise SerializationError(f"the column {field.name!r} does not fit: {error}") from error


_KEPT = (Kind.DECIMAL, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_WITH_TIMEZONE)
"""Kinds whose columns are taken in the unit or scale that they have."""


def _put_fixed(head: Matrix, at: int, field: CompactField, array: Any) -> None:
    if array.null_count:
        raise SerializationError(f"the field {field.name!r} must not be null")
    if field.kind == Kind.BOOLEAN:
        head[:, at] |= ab.numbers_of(array).astype(np.uint8) << field.bit
        return
    matrix = ab.to_matrix(ab.numbers_of(array), _CODES[plain_kind(field.kind)])
    head[:, at : at + matrix.shape[1]] = matrix


def _with_variable(schema: CompactSchema, arrays: Mapping[str, Any], head: Matrix) -> Any:
    """Fixed section, variable-size values and offset table of every row, joined."""
    position = np.full(len(head), schema.fixed_bytes, np.int64)
    offsets = np.empty((len(head), len(schema.variable)), np.int64)
    pieces = []
    for field in schema.variable:
        array = arrays[field.name]
        mask = ab.mask_of(array)
        offsets[:, field.index] = np.where(mask, position, -1)
        values, lengths = _variable(field, array, mask)
        pieces += values
        position = position + lengths
    total = int(position.sum()) + len(head) * (schema.data_at + 4 * len(schema.variable))
    if total > ab.BINARY_BYTES_MAX:
        raise SerializationError(f"a batch of {total} bytes is too large, use smaller batches")
    head[:, RECORD_AT : schema.data_at] = ab.to_matrix(position, "i4")
    table = _offset_table(offsets, position)
    return pc.binary_join_element_wise(ab.binary_of(head), *pieces, table, pa.scalar(b""))


def _offset_table(offsets: Longs, data_bytes: Longs) -> Any:
    """The offset table of each row, in the width that the row's length asks for."""
    count = offsets.shape[1]
    widths = _widths(data_bytes)
    lengths = widths * count
    starts = np.cumsum(lengths) - lengths
    content = np.empty(int(lengths.sum()), np.uint8)
    for width in (1, 2, 4):
        chosen = np.flatnonzero(widths == width)
        if len(chosen):
            packed = ab.to_matrix(offsets[chosen].reshape(-1), "i4")[:, 4 - width :]
            where = starts[chosen][:, None] + np.arange(width * count)
            content[where] = packed.reshape(len(chosen), width * count)
    return ab.binary_from(lengths, content)


def _widths(data_bytes: Longs) -> Longs:
    """Bytes per entry of the offset table of every row, by the bytes of data before it."""
    return np.where(data_bytes < 0xFF, 1, np.where(data_bytes < 0xFFFF, 2, 4)).astype(np.int64)


def _variable(field: CompactField, array: Any, mask: Mask) -> tuple[list[Any], Longs]:
    """The values of one variable-size field as binary arrays to join, and their lengths."""
    kind = plain_kind(field.kind)
    if kind in (Kind.STRING, Kind.ARRAY_OF_INT8):
        body = array.cast(pa.binary()).fill_null(b"")
        sizes = ab.numbers_of(pc.binary_length(body)).astype(np.int64)
        prefix = ab.binary_of(ab.to_matrix(sizes, "i4"), mask)
        return [prefix, body], np.where(mask, sizes + _LENGTH, 0)
    if kind == Kind.DECIMAL:
        return _decimal_pieces(array, mask)
    matrix = _matrix(kind, array)
    return [ab.binary_of(matrix, mask)], np.where(mask, matrix.shape[1], 0)


def _matrix(kind: Kind, array: Any) -> Matrix:
    """The bytes of a field whose values all have one width."""
    if kind == Kind.BOOLEAN:
        return ab.numbers_of(array.cast(pa.uint8())).reshape(-1, 1)
    if kind in _CODES:
        return ab.to_matrix(ab.numbers_of(array), _CODES[kind])
    if kind == Kind.DATE:
        return ab.date_matrix(ab.numbers_of(array.cast(pa.int32())).astype(np.int64))
    ticks = ab.numbers_of(array.cast(_tick_type(array.type))).astype(np.int64)
    if kind == Kind.TIME:
        return ab.clock_matrix(ticks, array.type.unit)
    matrix = ab.timestamp_matrix(ticks, array.type.unit)
    if kind == Kind.TIMESTAMP:
        return matrix
    return np.hstack([matrix, np.zeros((len(matrix), 4), np.uint8)])


def _tick_type(arrow_type: Any) -> Any:
    return pa.int32() if pa.types.is_time32(arrow_type) else pa.int64()


def _decimal_pieces(array: Any, mask: Mask) -> tuple[list[Any], Longs]:
    """Length, shortest two's complement and scale: one run of bytes per value."""
    sizes, digits = ab.decimals_of(array)
    scale = np.frombuffer(array.type.scale.to_bytes(4, "big", signed=True), np.uint8)
    tail = np.broadcast_to(scale, (len(digits), 4))
    matrix = np.hstack([ab.to_matrix(sizes, "i4"), digits, tail])
    wanted = np.ones(matrix.shape, np.bool_)
    wanted[:, 4:20] = np.arange(16) >= 16 - sizes[:, None]
    wanted &= mask[:, None]
    lengths = np.where(mask, sizes + 8, 0)
    return [ab.binary_from(lengths, matrix[wanted])], lengths


# -- reading ------------------------------------------------------------------------------


def decode_columns(
    schema: CompactSchema,
    records: Any,
    names: list[str] | None = None,
    types: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Columns of records that all follow one schema.

    Args:
        schema: The schema.
        records: A binary array (or chunked array, or list of bytes) of Data, no nulls.
        names: Fields to read; all of them when None.
        types: Arrow type per field; the default is that of ``ARROW_TYPES``.

    Returns:
        An Arrow array per name.

    Raises:
        SerializationError: A record follows another schema or is damaged, or a value does not
            fit the type asked for.
    """
    if isinstance(records, list):
        records = pa.array(records, pa.binary())
    reader = _RecordReader(schema, ab.single(records).cast(pa.binary()))
    wanted = [field.name for field in schema.fields] if names is None else names
    types = types or {}
    return {name: reader.column(schema.field(name), types.get(name)) for name in wanted}


class _RecordReader:
    """Records of one schema, checked once, read column by column."""

    def __init__(self, schema: CompactSchema, records: Any) -> None:
        self._schema = schema
        bounds, self._data = ab.parts_of(records)
        self._starts = bounds[:-1] + schema.data_at
        sizes = np.diff(bounds)
        width = schema.data_at + schema.fixed_bytes
        if records.null_count or (len(sizes) and int(sizes.min()) < width):
            raise SerializationError("a Compact record ends too early")
        self._head = ab.head_matrix(records, width)
        start = header(COMPACT) + schema.id.to_bytes(8, "big", signed=True)
        if (self._head[:, 4:RECORD_AT] != np.frombuffer(start, np.uint8)[4:]).any():
            raise SerializationError(
                f"not every record follows the schema {schema.id} of {schema.type_name!r}"
            )
        if schema.variable:
            self._lengths = ab.to_numbers(self._head[:, RECORD_AT : RECORD_AT + 4], "i4").astype(
                np.int64
            )
            self._widths = _widths(self._lengths)
            ends = schema.data_at + self._lengths + len(schema.variable) * self._widths
            if (self._lengths < schema.fixed_bytes).any() or (ends > sizes).any():
                raise SerializationError("a Compact record ends too early")

    def column(self, field: CompactField, wanted: Any) -> Any:
        """One field of all records as an Arrow array."""
        kind = plain_kind(field.kind) if field.kind in set(Kind) else None
        if kind is None:
            raise SerializationError(f"the kind {field.kind} of {field.name!r} cannot be read")
        try:
            if field.index < 0:
                array = self._fixed(field, kind)
            else:
                array = self._variable(field, kind, wanted)
            return array if wanted is None else array.cast(wanted)
        except (pa.ArrowException, NotImplementedError) as error:
            raise SerializationError(f"the field {field.name!r} does not fit: {error}") from error

    def _fixed(self, field: CompactField, kind: Kind) -> Any:
        at = self._schema.data_at + field.position
        if kind == Kind.BOOLEAN:
            bits = self._head[:, at] >> field.bit & 1
            return pa.array(bits.astype(np.bool_))
        matrix = self._head[:, at : at + NUMBERS[field.kind].size]
        return pa.array(ab.to_numbers(matrix, _CODES[kind]))

    def _offsets(self, field: CompactField) -> tuple[Longs, Mask]:
        """Offset of the field in every record, and where it is not null."""
        offsets = np.empty(len(self._starts), np.int64)
        tables = self._starts + self._lengths
        for width in (1, 2, 4):
            chosen = np.flatnonzero(self._widths == width)
            if len(chosen):
                raw = ab.gather(self._data, tables[chosen] + field.index * width, width)
                values = raw.astype(np.int64) @ (256 ** np.arange(width - 1, -1, -1))
                offsets[chosen] = np.where(values == (1 << 8 * width) - 1, -1, values)
        return offsets, offsets >= 0

    def _variable(self, field: CompactField, kind: Kind, wanted: Any) -> Any:
        offsets, mask = self._offsets(field)
        present = np.flatnonzero(mask)
        at, left = offsets[present], (self._lengths - offsets)[present]
        if (at < self._schema.fixed_bytes).any():
            raise SerializationError("a Compact record points outside of itself")
        starts = self._starts[present] + at
        if kind in (Kind.STRING, Kind.ARRAY_OF_INT8):
            return self._texts(kind, starts, left, mask)
        if kind == Kind.DECIMAL:
            return self._decimals(starts, left, mask, wanted or DECIMAL_DEFAULT)
        width = 1 if kind == Kind.BOOLEAN else _VALUE_WIDTHS[kind]
        if (left < width).any():
            raise SerializationError("a value of a Compact record ends too early")
        values = _from_matrix(kind, ab.gather(self._data, starts, width))
        if len(present) == len(mask):
            return pa.array(values).cast(ARROW_TYPES[kind])
        spread = np.zeros(len(mask), values.dtype)
        spread[present] = values
        return pa.array(spread, mask=~mask).cast(ARROW_TYPES[kind])

    def _sizes(self, starts: Longs, left: Longs, behind: int) -> Longs:
        """Announced sizes of length-prefixed values, compared with what is there."""
        if (left < _LENGTH).any():
            raise SerializationError("a value of a Compact record ends too early")
        sizes = ab.to_numbers(ab.gather(self._data, starts, _LENGTH), "i4").astype(np.int64)
        if (sizes < 0).any() or (sizes + _LENGTH + behind > left).any():
            raise SerializationError("a value of a Compact record ends too early")
        return sizes

    def _texts(self, kind: Kind, starts: Longs, left: Longs, mask: Mask) -> Any:
        sizes = self._sizes(starts, left, 0)
        content = ab.gather_ragged(self._data, starts + _LENGTH, sizes)
        lengths = np.zeros(len(mask), np.int64)
        lengths[mask] = sizes
        array = ab.binary_from(lengths, content, mask)
        return array.cast(pa.string()) if kind == Kind.STRING else array

    def _decimals(self, starts: Longs, left: Longs, mask: Mask, wanted: Any) -> Any:
        sizes = self._sizes(starts, left, 4)
        if (sizes > 16).any() or (sizes < 1).any():
            raise SerializationError("a decimal has more digits than a column can hold")
        scales = ab.to_numbers(ab.gather(self._data, starts + _LENGTH + sizes, 4), "i4")
        reach = np.minimum(np.arange(16)[None, :] - 16 + sizes[:, None], 15)
        raw = self._data[starts[:, None] + _LENGTH + np.maximum(reach, 0)]
        sign = (raw[np.arange(len(raw)), 16 - sizes] >> 7) * np.uint8(0xFF)
        digits = np.where(reach >= 0, raw, sign[:, None]).astype(np.uint8)
        spread = np.zeros((len(mask), 16), np.uint8)
        result = pa.nulls(len(mask), wanted)
        for scale in np.unique(scales).tolist():
            if not -38 <= scale <= 38:
                raise SerializationError("a decimal has a scale that no column can hold")
            chosen = np.zeros(len(mask), np.bool_)
            chosen[np.flatnonzero(mask)[scales == scale]] = True
            spread[chosen] = digits[scales == scale]
            part = ab.decimals_from(spread, chosen, int(scale)).cast(wanted)
            result = pc.coalesce(result, part)
        return result


_VALUE_WIDTHS: dict[Kind, int] = {
    **{Kind(kind): packing.size for kind, packing in NUMBERS.items()},
    Kind.DATE: 6,
    Kind.TIME: 7,
    Kind.TIMESTAMP: 13,
    Kind.TIMESTAMP_WITH_TIMEZONE: 17,
}


def _from_matrix(kind: Kind, matrix: Matrix) -> Any:
    """Numbers, days, nanoseconds or microseconds of values that all have one width."""
    if kind == Kind.BOOLEAN:
        return matrix[:, 0] != 0
    if kind in _CODES:
        return ab.to_numbers(matrix, _CODES[kind])
    if kind == Kind.DATE:
        return ab.matrix_days(matrix).astype(np.int32)
    if kind == Kind.TIME:
        return ab.matrix_nanos(matrix)
    micros = ab.matrix_micros(matrix[:, :13])
    if kind == Kind.TIMESTAMP:
        return micros
    return micros - ab.to_numbers(matrix[:, 13:], "i4").astype(np.int64) * ab.UNITS["us"]
