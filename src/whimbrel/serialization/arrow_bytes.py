"""Bytes of whole columns: byte matrices, binary arrays, calendar and decimal arithmetic.

A *matrix* is an array of bytes with one row per value; a *mask* has one boolean per value, True
where the value is not null. Nothing here knows a protocol.

Needs numpy and pyarrow, which a member is installed without. So this module, ``compact_columns``
and ``data_columns`` stand beside the layouts that they share but are imported by ``spark`` alone;
an import contract keeps the rooms of a member from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import SerializationError

Matrix = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

BINARY_BYTES_MAX = (1 << 31) - 1
"""Most bytes of one binary array; its offsets are signed 32-bit numbers."""
DAY_S = 86_400
UNITS: dict[str, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second of Arrow's time units."""
_DECIMAL_BYTES = 16
_ERA_DAYS = 146_097
_EPOCH_SHIFT_DAYS = 719_468


def single(array: Any) -> Any:
    """One plain array of an array or chunked array."""
    if isinstance(array, pa.ChunkedArray):
        return array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array


def mask_of(array: Any) -> Mask:
    """True where a value is not null."""
    mask: Mask = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return mask


def numbers_of(array: Any) -> npt.NDArray[Any]:
    """The numbers of an array, 0 where it is null."""
    if array.null_count:
        array = array.fill_null(0)
    numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def to_matrix(numbers: npt.NDArray[Any], code: str) -> Matrix:
    """Big-endian bytes per number; ``code`` is numpy's, for example ``i4``."""
    packed = np.ascontiguousarray(numbers.astype(f">{code}"))
    matrix: Matrix = packed.view(np.uint8).reshape(len(numbers), packed.itemsize)
    return matrix


def to_numbers(matrix: Matrix, code: str) -> npt.NDArray[Any]:
    """Numbers in native order from big-endian bytes."""
    packed = np.ascontiguousarray(matrix).view(f">{code}").reshape(len(matrix))
    return packed.astype(code)


def binary_of(matrix: Matrix, mask: Mask | None = None) -> Any:
    """A binary array with a row of the matrix per value; empty where the mask is False."""
    count, width = matrix.shape
    if mask is None or bool(mask.all()):
        return binary_from(np.full(count, width, np.int64), matrix.reshape(-1))
    return binary_from(np.where(mask, width, 0), matrix[mask].reshape(-1))


def binary_from(lengths: Longs, content: Matrix, mask: Mask | None = None) -> Any:
    """A binary array of values that stand one behind the other in ``content``.

    Raises:
        SerializationError: The content is longer than one array can hold.
    """
    if len(content) > BINARY_BYTES_MAX:
        raise SerializationError(
            f"a batch of {len(content)} bytes; at most {BINARY_BYTES_MAX} fit, use smaller batches"
        )
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bitmap = None
    if mask is not None and not mask.all():
        bitmap = pa.py_buffer(np.packbits(mask, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def parts_of(array: Any) -> tuple[Longs, Matrix]:
    """Offsets (one more than values) and content of a binary array, without copying."""
    _, offsets, content = array.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return bounds.astype(np.int64), data


def head_matrix(array: Any, width: int) -> Matrix:
    """The first ``width`` bytes of every value; all values must have that many."""
    if not len(array):
        return np.zeros((0, width), np.uint8)
    bounds, data = parts_of(pc.binary_slice(array, 0, width))
    matrix: Matrix = data[bounds[0] : bounds[-1]].reshape(len(array), width)
    return matrix


def gather(data: Matrix, starts: Longs, width: int) -> Matrix:
    """``width`` bytes from each start."""
    matrix: Matrix = data[starts[:, None] + np.arange(width)]
    return matrix


def gather_ragged(data: Matrix, starts: Longs, lengths: Longs) -> Matrix:
    """``lengths[i]`` bytes from ``starts[i]``, one run behind the other."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return data[np.repeat(starts - before, lengths) + np.arange(total)]


# -- calendar -----------------------------------------------------------------------------


def days_to_civil(days: Longs) -> tuple[Longs, Longs, Longs]:
    """Year, month and day of days since 1970-01-01, in the proleptic Gregorian calendar.

    Counts in eras of 400 years and years that begin in March, so that the leap day is last.
    """
    shifted = days + _EPOCH_SHIFT_DAYS
    era = shifted // _ERA_DAYS
    day_of_era = shifted - era * _ERA_DAYS
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * march_month + 2) // 5 + 1
    month = np.where(march_month < 10, march_month + 3, march_month - 9)
    year = year_of_era + era * 400 + (month <= 2)
    return year, month, day


def civil_to_days(year: Longs, month: Longs, day: Longs) -> Longs:
    """Days since 1970-01-01; the inverse of ``days_to_civil``."""
    march_year = year - (month <= 2)
    era = march_year // 400
    year_of_era = march_year - era * 400
    march_month = np.where(month > 2, month - 3, month + 9)
    day_of_year = (153 * march_month + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    days: Longs = era * _ERA_DAYS + day_of_era - _EPOCH_SHIFT_DAYS
    return days


def date_matrix(days: Longs) -> Matrix:
    """Year as int, month and day as bytes."""
    year, month, day = days_to_civil(days)
    matrix = np.empty((len(days), 6), np.uint8)
    matrix[:, :4] = to_matrix(year, "i4")
    matrix[:, 4], matrix[:, 5] = month, day
    return matrix


def clock_matrix(ticks: Longs, unit: str) -> Matrix:
    """Hour, minute and second as bytes, nanosecond as int, of ticks since midnight."""
    rate = UNITS[unit]
    seconds = ticks // rate
    nanos = (ticks - seconds * rate) * (UNITS["ns"] // rate)
    matrix = np.empty((len(ticks), 7), np.uint8)
    matrix[:, 0] = seconds // 3600
    matrix[:, 1] = seconds // 60 % 60
    matrix[:, 2] = seconds % 60
    matrix[:, 3:] = to_matrix(nanos, "i4")
    return matrix


def timestamp_matrix(ticks: Longs, unit: str) -> Matrix:
    """Date, then time of day, of ticks since 1970-01-01."""
    day_ticks = DAY_S * UNITS[unit]
    days = ticks // day_ticks
    return np.hstack([date_matrix(days), clock_matrix(ticks - days * day_ticks, unit)])


def matrix_days(matrix: Matrix) -> Longs:
    """Days since 1970-01-01 from what ``date_matrix`` wrote.

    Raises:
        SerializationError: A date cannot be.
    """
    year = to_numbers(matrix[:, :4], "i4").astype(np.int64)
    month, day = matrix[:, 4].astype(np.int64), matrix[:, 5].astype(np.int64)
    days = civil_to_days(year, month, day)
    back = days_to_civil(days)
    if not ((month >= 1) & (month <= 12) & (back[1] == month) & (back[2] == day)).all():
        raise SerializationError("a date that does not exist")
    return days


def matrix_nanos(matrix: Matrix) -> Longs:
    """Nanoseconds since midnight from what ``clock_matrix`` wrote.

    Raises:
        SerializationError: A part is out of its range.
    """
    hour, minute, second = (matrix[:, at].astype(np.int64) for at in range(3))
    nanos = to_numbers(matrix[:, 3:7], "i4").astype(np.int64)
    fits = (hour < 24) & (minute < 60) & (second < 60) & (nanos >= 0) & (nanos < UNITS["ns"])
    if not fits.all():
        raise SerializationError("a time of day has an impossible part")
    return ((hour * 60 + minute) * 60 + second) * UNITS["ns"] + nanos


def matrix_micros(matrix: Matrix) -> Longs:
    """Microseconds since 1970-01-01 from what ``timestamp_matrix`` wrote; nanoseconds are cut.

    Raises:
        SerializationError: The moment cannot be, or does not fit 64 bits of microseconds.
    """
    days = matrix_days(matrix[:, :6])
    if len(days) and int(np.abs(days).max()) > 106_000_000:
        raise SerializationError("a time stamp is too far from 1970 for microseconds")
    return days * (DAY_S * UNITS["us"]) + matrix_nanos(matrix[:, 6:]) // 1_000


# -- decimals -----------------------------------------------------------------------------


def decimals_of(array: Any) -> tuple[Longs, Matrix]:
    """Length of the shortest two's complement per value, and 16 right-aligned bytes each.

    Args:
        array: A decimal128 array; nulls count as 0.
    """
    count = len(array)
    raw = np.frombuffer(array.buffers()[1], np.uint8, 16 * count, 16 * array.offset)
    matrix = raw.reshape(count, _DECIMAL_BYTES)[:, ::-1].copy()
    if array.null_count:
        matrix[~mask_of(array)] = 0
    sign = matrix[:, 0] >> 7
    differs = matrix != (sign * 0xFF)[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), _DECIMAL_BYTES)
    leading = matrix[np.arange(count), np.minimum(first, _DECIMAL_BYTES - 1)]
    needs_sign = (first == _DECIMAL_BYTES) | (leading >> 7 != sign)
    return (_DECIMAL_BYTES - first + needs_sign).astype(np.int64), matrix


def decimals_from(matrix: Matrix, mask: Mask, scale: int) -> Any:
    """A decimal128(38) array from 16 big-endian bytes per value."""
    raw = pa.py_buffer(np.ascontiguousarray(matrix[:, ::-1]))
    bitmap = None if mask.all() else pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(matrix), [bitmap, raw])
