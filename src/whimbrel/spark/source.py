"""The data source behind ``format("whimbrel")``: decides what a read or a write is.

Spark finds it through the top-level module ``pyspark_whimbrel``. Its methods run in short-lived
Python workers of the driver: they check options and columns, ask the cluster once, and hand
readers and writers to the tasks.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource

from whimbrel.client.bulk import BulkClient
from whimbrel.errors import SerializationError, UsageError
from whimbrel.serialization.compact import CompactSchema, Kind, schema_id_of
from whimbrel.serialization.compact_columns import plain_kind
from whimbrel.serialization.data import (
    BYTE,
    BYTE_ARRAY,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    type_name,
    type_of,
)
from whimbrel.spark.columns import Encoder
from whimbrel.spark.entries import KEY, PARTITION, VALUE, decoder_for
from whimbrel.spark.errors import ColumnError, OptionError
from whimbrel.spark.options import JSON, Options, parse_options
from whimbrel.spark.reader import PushingReader, Reader
from whimbrel.spark.writer import Writer

_PLAIN = {"string": "string", "int": "int", "long": "bigint", "double": "double"}
_KEYS = {
    STRING: st.StringType(),
    BYTE: st.ByteType(),
    SHORT: st.ShortType(),
    INTEGER: st.IntegerType(),
    LONG: st.LongType(),
    BYTE_ARRAY: st.BinaryType(),
}
_FIELDS = {
    Kind.BOOLEAN: st.BooleanType(),
    Kind.INT8: st.ByteType(),
    Kind.INT16: st.ShortType(),
    Kind.INT32: st.IntegerType(),
    Kind.INT64: st.LongType(),
    Kind.FLOAT32: st.FloatType(),
    Kind.FLOAT64: st.DoubleType(),
    Kind.STRING: st.StringType(),
    Kind.ARRAY_OF_INT8: st.BinaryType(),
    Kind.DECIMAL: st.DecimalType(38, 18),
    Kind.DATE: st.DateType(),
    Kind.TIMESTAMP: st.TimestampNTZType(),
    Kind.TIMESTAMP_WITH_TIMEZONE: st.TimestampType(),
}


class WhimbrelSource(DataSource):  # type: ignore[misc]  # pyspark is not checked
    """Maps of a cluster as frames: batch reads, and appends that replace rows of the same key."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format``."""
        return "whimbrel"

    def schema(self) -> Any:
        """The schema of a read for which the user gave none.

        With ``raw``, or plain types, it follows from the options. Compact records tell theirs:
        it is that of the first one found. JSON does not tell.

        Raises:
            OptionError: The options do not tell it, or the map is empty.
        """
        options = parse_options(self.options)
        options.check_reading()
        if options.raw:
            return f"{KEY} binary, {VALUE} binary, {PARTITION} int"
        if options.value_type == JSON:
            raise OptionError("valuetype", "with 'json' the read needs a schema: .schema(...)")
        if options.is_plain:
            key, value = options.key_type or "", options.value_type or ""
            return f"{KEY} {_PLAIN.get(key, key)}, {VALUE} {_PLAIN.get(value, value)}"
        return guessed_schema(options)

    def reader(self, schema: Any) -> Reader:
        """A reader; the user's schema is the projection.

        Raises:
            OptionError: The options do not fit a read.
            ColumnError: The schema does not fit the options.
        """
        options = parse_options(self.options)
        decoder_for(options, schema, lambda _: None)
        return PushingReader(options, schema) if options.pushdown else Reader(options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Writer:
        """A writer, once the cluster knows the map and the schema of the records.

        Raises:
            OptionError: The options do not fit a write.
            ColumnError: A column cannot be written.
            UsageError: ``overwrite`` was asked for.
        """
        if overwrite:
            raise UsageError(
                "mode 'overwrite' is not offered: write with mode 'append', which replaces rows "
                "of the same key"
            )
        options = parse_options(self.options)
        encoder = Encoder(options, schema)
        with connect(options) as client:
            client.create_map(options.map)
            if encoder.record is not None:
                client.send_schema(encoder.record)
        return Writer(options, schema)


def connect(options: Options) -> BulkClient:
    """A client for the cluster that the options name."""
    return BulkClient(options.addresses, options.cluster, options.timeout_s, "whimbrel-spark")


def guessed_schema(options: Options) -> Any:
    """A ``StructType`` after the first entry of a map of records.

    Raises:
        OptionError: The map is empty or holds no Compact records.
    """
    with connect(options) as client:
        for _, entries in client.scan(options.map, batch=1):
            key, value = entries[0]
            try:
                record = client.fetch_schema(schema_id_of(value))
            except SerializationError as error:
                raise OptionError(
                    "key", f"{error}, so the read needs a schema: .schema(...)"
                ) from error
            if record is None:
                raise OptionError("map", "its records follow a schema the cluster does not know")
            return _struct(options.key or "", type_of(key), record)
    raise OptionError("map", f"{options.map!r} is empty: the read needs a schema: .schema(...)")


def _struct(key: str, key_type: int, record: CompactSchema) -> Any:
    if key_type not in _KEYS:
        raise ColumnError(key, f"a {type_name(key_type)} cannot be a key column")
    fields = [st.StructField(key, _KEYS[key_type], False)]
    for field in record.fields:
        kind = _FIELDS.get(plain_kind(field.kind)) if field.kind in set(Kind) else None
        if kind is not None and field.name != key:
            fields.append(st.StructField(field.name, kind, field.index >= 0))
    return st.StructType(fields)
