"""Columns as JSON objects and back: the form of values that every client can read.

A row becomes a Data of type JSON with one object, its fields in the order of the columns. What
JSON has no form for is a string: dates and times in ISO 8601, binary in base64, and the doubles
``NaN``, ``Infinity`` and ``-Infinity``. Decimals are numbers with all their digits.

Whole columns are written and read at once. Objects of other writers that Arrow's strict reader
refuses are read one by one, by the same rules with more tolerance.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from whimbrel.errors import SerializationError
from whimbrel.serialization import arrow_bytes as ab
from whimbrel.serialization.data import DATA_HEADER_BYTES, JSON, Json, header, to_object
from whimbrel.spark.errors import ColumnError

TEXT_AT: Final = DATA_HEADER_BYTES + 4
"""Offset of the text in a Data: behind header and length."""
_ESCAPED: Final = '["\\\\\\x00-\\x1f]'
"""Characters that a JSON string must not contain as they are."""
_YEAR_FIRST_US: Final = -62_135_596_800_000_000
_YEAR_LAST_US: Final = 253_402_300_799_999_999
_YEAR_FIRST_DAY: Final = -719_162
_YEAR_LAST_DAY: Final = 2_932_896
"""Moments and days of the years 1 to 9999, the only ones with four digits."""
_NUMBERS: Final = msgspec.json.Decoder(float_hook=Decimal)


# -- writing ------------------------------------------------------------------------------


def encode_objects(columns: Mapping[str, Any]) -> Any:
    """A JSON object as Data per row.

    Args:
        columns: An Arrow array (or chunked array) per field, all of one length.

    Returns:
        A binary array.

    Raises:
        ColumnError: A column has a value, or a type, that has no form here.
        SerializationError: The objects together are beyond 2 GiB.
    """
    pieces: list[Any] = []
    lead = "{"
    for name, column in columns.items():
        pieces += (pa.scalar(f"{lead}{_quoted(name)}:"), _texts(name, ab.single(column)))
        lead = ","
    try:
        body = pc.binary_join_element_wise(*pieces, pa.scalar("}"), pa.scalar("")).cast(pa.binary())
        sizes = ab.to_matrix(ab.numbers_of(pc.binary_length(body)), "i4")
        heads = np.broadcast_to(np.frombuffer(header(JSON), np.uint8), (len(sizes), 8))
        head = ab.binary_of(np.hstack([heads, sizes]))
        return pc.binary_join_element_wise(head, body, pa.scalar(b""))
    except pa.ArrowException as error:
        raise SerializationError(f"a batch is too large, use smaller batches: {error}") from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _texts(name: str, array: Any) -> Any:
    """JSON text of each value, ``null`` where there is none."""
    types = pa.types
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        found = _strings(array.cast(pa.string()))
    elif types.is_floating(kind):
        found = _floats(array)
    elif types.is_binary(kind) or types.is_large_binary(kind):
        coded = [None if raw is None else base64.b64encode(raw) for raw in array.to_pylist()]
        found = _in_quotes(pa.array(coded, pa.binary()).cast(pa.string()))
    elif types.is_date(kind):
        _check_range(name, array.cast(pa.int32()), _YEAR_FIRST_DAY, _YEAR_LAST_DAY)
        found = _in_quotes(array.cast(pa.string()))
    elif types.is_timestamp(kind):
        found = _moments(name, array)
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        found = array.cast(pa.string())
    else:
        raise ColumnError(name, f"there is no JSON for the Arrow type {kind}")
    return pc.coalesce(found, pa.scalar("null")) if found.null_count else found


def _in_quotes(array: Any) -> Any:
    return pc.binary_join_element_wise(pa.scalar('"'), array, pa.scalar('"'), pa.scalar(""))


def _strings(array: Any) -> Any:
    found = _in_quotes(array)
    special = pc.match_substring_regex(array, _ESCAPED)
    if not pc.any(special).as_py():
        return found
    special = pc.fill_null(special, False)
    escaped = [_quoted(text) for text in array.filter(special).to_pylist()]
    return pc.replace_with_mask(found, special, pa.array(escaped, pa.string()))


def _floats(array: Any) -> Any:
    found = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return found
    infinite = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(finite, found, pc.if_else(pc.is_nan(array), '"NaN"', infinite))


def _moments(name: str, array: Any) -> Any:
    ticks = array.cast(pa.timestamp("us", array.type.tz))
    _check_range(name, ticks.cast(pa.int64()), _YEAR_FIRST_US, _YEAR_LAST_US)
    plain = pa.array(ticks.cast(pa.int64())).cast(pa.timestamp("us")).cast(pa.string())
    text = pc.utf8_replace_slice(plain, 10, 11, "T")
    zone = '"' if array.type.tz is None else 'Z"'
    return pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar(zone), pa.scalar(""))


def _check_range(name: str, numbers: Any, least: int, most: int) -> None:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < least or bounds["max"] > most):
        raise ColumnError(name, "a date is outside of the years 1 to 9999; write it as 'compact'")


# -- reading ------------------------------------------------------------------------------


def decode_objects(records: Any, fields: list[Any]) -> dict[str, Any]:
    """Columns of JSON objects; a field that an object lacks is null.

    Args:
        records: A binary array of Data of type JSON, or strings that hold JSON.
        fields: An Arrow field per column, names and types.

    Returns:
        An Arrow array per name.

    Raises:
        SerializationError: A value is no JSON object.
        ColumnError: A field does not fit its type.
    """
    table = _parsed(records, fields)
    if table is not None:
        try:
            return {
                field.name: _finished(field, ab.single(table.column(field.name)))
                for field in fields
            }
        except (pa.ArrowException, binascii.Error, NotImplementedError):
            pass  # a value in a form of its own: the tolerant way tells whether it is wrong
    objects = [_object(data) for data in records.to_pylist()]
    return {
        field.name: _column(field, [found.get(field.name) for found in objects]) for field in fields
    }


def is_json(records: Any) -> Any:
    """Whether each Data of a binary array is JSON, as a mask."""
    bounds, data = ab.parts_of(records)
    if len(bounds) < 2 or int(np.diff(bounds).min()) < TEXT_AT:
        return np.zeros(len(bounds) - 1, np.bool_)
    types = ab.to_numbers(ab.gather(data, bounds[:-1] + 4, 4), "i4")
    return types == JSON


def _parsed(records: Any, fields: list[Any]) -> Any:
    """A table by Arrow's reader; None when it cannot make one row of each record.

    The texts stand one behind the other already: header and length of each become white space.
    """
    bounds, data = ab.parts_of(records)
    if not fields or len(bounds) < 2 or int(np.diff(bounds).min()) < TEXT_AT:
        return None
    text = data[bounds[0] : bounds[-1]].copy()
    starts = bounds[:-1] - bounds[0]
    text[starts[:, None] + np.arange(TEXT_AT)] = ord(" ")
    if (text == ord("\n")).any():
        return None
    text[starts[1:]] = ord("\n")
    schema = pa.schema([pa.field(field.name, _parsed_type(field.type)) for field in fields])
    try:
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowException:
        return None
    return table if table.num_rows == len(starts) else None


def _parsed_type(kind: Any) -> Any:
    types = pa.types
    return pa.string() if types.is_temporal(kind) or types.is_binary(kind) else kind


def _finished(field: Any, array: Any) -> Any:
    """The column in its own type, from what the reader made."""
    if pa.types.is_binary(field.type):
        raw = [
            None if text is None else base64.b64decode(text, validate=True)
            for text in array.to_pylist()
        ]
        return pa.array(raw, pa.binary())
    return array.cast(field.type)


def _object(data: bytes) -> dict[str, Any]:
    value = to_object(data)
    if not isinstance(value, Json | str):
        raise SerializationError("a value of the map is not JSON")
    try:
        found = _NUMBERS.decode(value.text if isinstance(value, Json) else value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SerializationError(f"a value of the map is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SerializationError("a JSON value of the map is no object")
    return found


def _column(field: Any, values: list[Any]) -> Any:
    """A column of values as the JSON reader makes them."""
    try:
        return _converted(field.type, values)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError, NotImplementedError) as e:
        raise ColumnError(field.name, f"a JSON value does not fit {field.type}: {e}") from e


def _converted(kind: Any, values: list[Any]) -> Any:
    types = pa.types
    if types.is_string(kind):
        texts = [v if v is None or isinstance(v, str) else _text_of(v) for v in values]
        return pa.array(texts, kind)
    if types.is_timestamp(kind):
        return _timestamps(kind, values)
    if types.is_temporal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if types.is_binary(kind):
        raw = [None if v is None else base64.b64decode(v, validate=True) for v in values]
        return pa.array(raw, kind)
    if types.is_decimal(kind):
        texts = [None if v is None else format(Decimal(v), "f") for v in values]
        return pa.array(texts, pa.string()).cast(kind)
    if types.is_floating(kind):
        return pa.array([None if v is None else float(v) for v in values], kind)
    if types.is_integer(kind):
        return pa.array([None if v is None else _whole(v) for v in values], kind)
    return pa.array(values, kind)


def _text_of(value: Any) -> str:
    """JSON text of a value that is not a string, for a column of strings."""
    return json.dumps(value, ensure_ascii=False, default=float)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value != int(value):
        raise ValueError(f"a {type(value).__name__} is not a whole number")
    return int(value)


def _timestamps(kind: Any, values: list[Any]) -> Any:
    """Moments with or without a zone; those without are in UTC."""
    texts = pa.array(values, pa.string())
    if kind.tz is None:
        return texts.cast(kind)
    bare = pc.invert(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$"))
    return pc.if_else(
        pc.fill_null(bare, False),
        pc.binary_join_element_wise(texts, pa.scalar("Z"), pa.scalar("")),
        texts,
    ).cast(kind)
