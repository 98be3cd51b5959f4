"""Columns of plain values as Data and back: the keys of a batch, without an object per row.

Integers become bytes, shorts, integers or longs by their width, so that a key written from a
64-bit column is the same key that Java's ``Long`` and the official client's LONG make. Needs numpy
and pyarrow: see ``arrow_bytes`` for who may import it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import SerializationError
from whimbrel.serialization import arrow_bytes as ab
from whimbrel.serialization.data import (
    BOOLEAN,
    BYTE,
    BYTE_ARRAY,
    DATA_HEADER_BYTES,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    header,
    type_name,
)

_FIXED: tuple[tuple[int, Any, str], ...] = (
    (BYTE, pa.int8(), "i1"),
    (SHORT, pa.int16(), "i2"),
    (INTEGER, pa.int32(), "i4"),
    (LONG, pa.int64(), "i8"),
    (FLOAT, pa.float32(), "f4"),
    (DOUBLE, pa.float64(), "f8"),
    (BOOLEAN, pa.bool_(), "u1"),
)
_BY_ARROW = {arrow: (type_id, code) for type_id, arrow, code in _FIXED}
_BY_ID = {type_id: (arrow, code) for type_id, arrow, code in _FIXED}


def encode_data(array: Any) -> Any:
    """A binary array of Data from a column of integers, floats, booleans, strings or bytes.

    Raises:
        SerializationError: A value is null, or the column's type has no plain Data.
    """
    array = ab.single(array)
    if array.null_count:
        raise SerializationError(f"{array.null_count} values of the column are null")
    if array.type in _BY_ARROW:
        type_id, code = _BY_ARROW[array.type]
        if type_id == BOOLEAN:
            array = array.cast(pa.uint8())
        values = ab.to_matrix(ab.numbers_of(array), code)
        return ab.binary_of(np.hstack([_headers(type_id, len(values)), values]))
    types = pa.types
    if types.is_string(array.type) or types.is_large_string(array.type):
        type_id = STRING
    elif types.is_binary(array.type) or types.is_large_binary(array.type):
        type_id = BYTE_ARRAY
    else:
        raise SerializationError(f"there is no plain Data for the Arrow type {array.type}")
    body = array.cast(pa.binary())
    sizes = ab.to_matrix(ab.numbers_of(pc.binary_length(body)), "i4")
    head = ab.binary_of(np.hstack([_headers(type_id, len(sizes)), sizes]))
    return pc.binary_join_element_wise(head, body, pa.scalar(b""))


def _headers(type_id: int, count: int) -> ab.Matrix:
    return np.broadcast_to(np.frombuffer(header(type_id), np.uint8), (count, DATA_HEADER_BYTES))


def decode_data(records: Any) -> Any:
    """The column behind a binary array of Data that are all of one plain type.

    Raises:
        SerializationError: The types differ, are not plain, or a value is damaged.
    """
    if isinstance(records, list):
        records = pa.array(records, pa.binary())
    records = ab.single(records).cast(pa.binary())
    bounds, data = ab.parts_of(records)
    sizes = np.diff(bounds)
    if not len(sizes):
        return pa.nulls(0)
    if records.null_count or int(sizes.min()) < DATA_HEADER_BYTES:
        raise SerializationError("a Data is null or shorter than its header")
    head = ab.head_matrix(records, DATA_HEADER_BYTES)
    if (head[:, 4:] != head[0, 4:]).any():
        raise SerializationError("the values of the column have different types")
    type_id = int.from_bytes(head[0, 4:].tobytes(), "big", signed=True)
    if type_id in _BY_ID:
        arrow, code = _BY_ID[type_id]
        width = np.dtype(code).itemsize
        if (sizes != DATA_HEADER_BYTES + width).any():
            raise SerializationError(f"a {type_name(type_id)} has the wrong length")
        values = ab.to_numbers(ab.gather(data, bounds[:-1] + DATA_HEADER_BYTES, width), code)
        return pa.array(values).cast(arrow)
    if type_id not in (STRING, BYTE_ARRAY):
        raise SerializationError(f"a column cannot be made of a {type_name(type_id)}")
    if int(sizes.min()) < DATA_HEADER_BYTES + 4:
        raise SerializationError(f"a {type_name(type_id)} has the wrong length")
    starts = bounds[:-1] + DATA_HEADER_BYTES + 4
    told = ab.to_numbers(ab.gather(data, starts - 4, 4), "i4").astype(np.int64)
    if (told != sizes - DATA_HEADER_BYTES - 4).any():
        raise SerializationError(f"a {type_name(type_id)} has the wrong length")
    array = ab.binary_from(told, ab.gather_ragged(data, starts, told))
    try:
        return array.cast(pa.string()) if type_id == STRING else array
    except pa.ArrowException as error:
        raise SerializationError("a string is not UTF-8") from error
