"""Entries as frames: keys and values of a map to the Arrow batches that Spark expects.

There is a decoder for each way of reading: ``raw``, plain types, JSON of other clients, and rows
that were written from a frame. Each works on whole columns; only what does not fit the fast way
(plain values of several types in one batch, odd JSON) is looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from whimbrel.errors import SerializationError
from whimbrel.serialization import arrow_bytes as ab
from whimbrel.serialization.compact import RECORD_AT, CompactSchema
from whimbrel.serialization.compact_columns import decode_columns
from whimbrel.serialization.data import COMPACT, DATA_HEADER_BYTES, to_object, type_name
from whimbrel.serialization.data_columns import decode_data
from whimbrel.spark.columns import arrow_schema, key_index
from whimbrel.spark.errors import ColumnError, OptionError, listed
from whimbrel.spark.json_columns import decode_objects, is_json
from whimbrel.spark.options import JSON, Options

KEY: Final = "key"
VALUE: Final = "value"
PARTITION: Final = "partition"

_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "int": (int,),
    "long": (int,),
    "double": (float, int),
    "boolean": (bool,),
}
PLAIN_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
"""Arrow type of each plain type."""

FetchSchema = Callable[[int], CompactSchema | None]
"""Asks the cluster for a Compact schema."""


class Decoder(Protocol):
    """Makes batches of entries."""

    def decode(self, partitions: Any, keys: Any, values: Any) -> Iterator[Any]:
        """Record batches of some entries.

        Args:
            partitions: An int32 array with the partition of each entry.
            keys: A binary array of Data.
            values: The same for the values.
        """
        ...


def decoder_for(options: Options, schema: Any, fetch_schema: FetchSchema) -> Decoder:
    """The decoder that the options ask for.

    Args:
        options: The options of the read.
        schema: The ``StructType`` to read as.
        fetch_schema: Asks the cluster for a Compact schema by its id.

    Raises:
        OptionError: The options do not fit a read.
        ColumnError: The schema does not fit the options.
    """
    options.check_reading()
    arrow = arrow_schema(schema)
    if options.raw:
        return RawDecoder(arrow)
    if options.value_type == JSON:
        return JsonDecoder(options, arrow)
    if options.is_plain:
        return PlainDecoder(options, arrow)
    return RowDecoder(options, schema, fetch_schema)


def _batch(columns: Mapping[str, Any], arrow: Any) -> Any:
    """A batch in exactly this schema.

    Raises:
        ColumnError: A column that must not be null is.
    """
    for field in arrow:
        if not field.nullable and columns[field.name].null_count:
            raise ColumnError(field.name, "is null in the map, which the schema forbids")
    return pa.RecordBatch.from_arrays([columns[name] for name in arrow.names], schema=arrow)


def _check_names(arrow: Any, allowed: tuple[str, ...], way: str) -> None:
    for name in arrow.names:
        if name not in allowed:
            raise ColumnError(name, f"{way} gives the columns {listed(allowed)} only")


class RawDecoder:
    """Columns ``key binary, value binary, partition int``, or some of them."""

    def __init__(self, arrow: Any) -> None:
        _check_names(arrow, (KEY, VALUE, PARTITION), "the option 'raw'")
        for field in arrow:
            wanted = pa.int32() if field.name == PARTITION else pa.binary()
            if field.type != wanted:
                raise ColumnError(field.name, f"the option 'raw' reads it as {wanted}")
        self._arrow = arrow

    def decode(self, partitions: Any, keys: Any, values: Any) -> Iterator[Any]:
        """One batch."""
        yield _batch({KEY: keys, VALUE: values, PARTITION: partitions}, self._arrow)


def plain_column(records: Any, kind: str, wanted: Any, what: str) -> Any:
    """A column of Data that all hold a plain type.

    Args:
        records: A binary array of Data.
        kind: The plain type, one of ``PLAIN_ARROW``.
        wanted: Arrow type of the column.
        what: For errors, which column or option it is.

    Raises:
        SerializationError: A Data holds something else, or does not fit ``wanted``.
    """
    try:
        column = decode_data(records)
        if len(column) and column.type != PLAIN_ARROW[kind]:
            column = _one_by_one(records, kind, what)
    except SerializationError:
        column = _one_by_one(records, kind, what)
    try:
        return column.cast(wanted)
    except (pa.ArrowException, NotImplementedError) as error:
        raise SerializationError(f"{what}: a {kind} does not fit {wanted}: {error}") from error


def _one_by_one(records: Any, kind: str, what: str) -> Any:
    """The slow way, for several types in one batch: integers and longs go together."""
    found = []
    for data in records.to_pylist():
        value = to_object(data)
        if not isinstance(value, _PYTHON_TYPES[kind]) or (
            isinstance(value, bool) and kind != "boolean"
        ):
            held = type_name(int.from_bytes(data[4:DATA_HEADER_BYTES], "big", signed=True))
            raise SerializationError(f"{what}: there is a {held} where a {kind} was expected")
        found.append(value)
    try:
        return pa.array(found, PLAIN_ARROW[kind])
    except (pa.ArrowException, OverflowError) as error:
        raise SerializationError(f"{what}: a value does not fit the type {kind}") from error


class PlainDecoder:
    """Columns ``key`` and ``value`` of plain types, or one of them."""

    def __init__(self, options: Options, arrow: Any) -> None:
        _check_names(arrow, (KEY, VALUE), "reading with 'keytype' and 'valuetype'")
        self._kinds = {KEY: options.key_type or "", VALUE: options.value_type or ""}
        self._arrow = arrow

    def decode(self, partitions: Any, keys: Any, values: Any) -> Iterator[Any]:
        """One batch."""
        found = {KEY: keys, VALUE: values}
        columns = {
            field.name: plain_column(
                found[field.name], self._kinds[field.name], field.type, f"option '{field.name}type'"
            )
            for field in self._arrow
        }
        yield _batch(columns, self._arrow)


class JsonDecoder:
    """Column ``key`` and a column per field of the JSON objects that the schema names."""

    def __init__(self, options: Options, arrow: Any) -> None:
        self._kind = options.key_type or ""
        self._arrow = arrow

    def decode(self, partitions: Any, keys: Any, values: Any) -> Iterator[Any]:
        """One batch; a field that an object lacks is null."""
        fields = [field for field in self._arrow if field.name != KEY]
        found = decode_objects(values, fields)
        if KEY in self._arrow.names:
            wanted = self._arrow.field(KEY).type
            found[KEY] = plain_column(keys, self._kind, wanted, "option 'keytype'")
        yield _batch(found, self._arrow)


class RowDecoder:
    """A key column and the fields of JSON objects or Compact records, as frames were written."""

    def __init__(self, options: Options, schema: Any, fetch_schema: FetchSchema) -> None:
        self._key = options.key or ""
        key_index(schema, self._key)
        self._arrow = arrow_schema(schema)
        self._fetch_schema = fetch_schema
        self._schemas: dict[int, CompactSchema] = {}

    def decode(self, partitions: Any, keys: Any, values: Any) -> Iterator[Any]:
        """A batch per form of values; a field that a form lacks is null."""
        if not len(values):
            return
        forms = is_json(values)
        if forms.all():
            yield self._finish(keys, self._objects(values))
            return
        if forms.any():
            yield self._finish(keys.filter(forms), self._objects(values.filter(forms)))
            keys, values = keys.filter(~forms), values.filter(~forms)
        ids = _schema_ids(values)
        for schema_id in np.unique(ids).tolist():
            chosen = np.flatnonzero(ids == schema_id)
            schema = self._schema(schema_id)
            yield self._finish(keys.take(chosen), self._records(schema, values.take(chosen)))

    def _objects(self, values: Any) -> dict[str, Any]:
        return decode_objects(values, [f for f in self._arrow if f.name != self._key])

    def _records(self, schema: CompactSchema, values: Any) -> dict[str, Any]:
        known = {field.name for field in schema.fields}
        names = [name for name in self._arrow.names if name in known and name != self._key]
        types = {name: self._arrow.field(name).type for name in names}
        return decode_columns(schema, values, names, types) if names else {}

    def _schema(self, schema_id: int) -> CompactSchema:
        schema = self._schemas.get(schema_id)
        if schema is None:
            schema = self._fetch_schema(schema_id)
            if schema is None:
                raise SerializationError(f"the cluster does not know the schema {schema_id}")
            self._schemas[schema_id] = schema
        return schema

    def _finish(self, keys: Any, found: dict[str, Any]) -> Any:
        """A batch with the key column and nulls for what is missing."""
        wanted = self._arrow.field(self._key).type
        try:
            found[self._key] = decode_data(keys).cast(wanted)
        except (pa.ArrowException, NotImplementedError, SerializationError) as error:
            raise ColumnError(self._key, f"the keys are not of type {wanted}: {error}") from error
        for field in self._arrow:
            if field.name not in found:
                found[field.name] = pa.nulls(len(keys), field.type)
        return _batch(found, self._arrow)


def _schema_ids(values: Any) -> Any:
    """Id of the Compact schema of each record.

    Raises:
        OptionError: A value is no Compact record.
    """
    sizes = np.diff(ab.parts_of(values)[0])
    if int(sizes.min()) >= RECORD_AT:
        head = ab.head_matrix(values, RECORD_AT)
        types = ab.to_numbers(head[:, 4:DATA_HEADER_BYTES], "i4")
        if (types == COMPACT).all():
            return ab.to_numbers(head[:, DATA_HEADER_BYTES:], "i8")
    raise OptionError(
        "key",
        "the map holds values that are no rows of a frame; read it with 'keytype' and 'valuetype'",
    )
