"""Frames as entries: which Arrow type a Spark column has, and whole batches to keys and values.

A row is an entry. The key column is the key, as the clients store their own strings, integers and
longs. The other columns are the value: the fields of a JSON object, which every client can read, or
of a Compact record, which is smaller and typed but which a client only reads once it has been given
a serializer (FN-23). ``entries`` does the way back.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from whimbrel.serialization.compact import CompactSchema
from whimbrel.serialization.compact_columns import encode_columns, schema_for
from whimbrel.serialization.data_columns import encode_data
from whimbrel.spark.errors import ColumnError, RowError, listed
from whimbrel.spark.json_columns import encode_objects
from whimbrel.spark.options import COMPACT, Options

ENTRY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest value that is written; members refuse messages of 100 MiB."""

_ARROW_TYPES: Final[tuple[tuple[Any, Any], ...]] = (
    (st.StringType, pa.string()),
    (st.CharType, pa.string()),
    (st.VarcharType, pa.string()),
    (st.ByteType, pa.int8()),
    (st.ShortType, pa.int16()),
    (st.IntegerType, pa.int32()),
    (st.LongType, pa.int64()),
    (st.FloatType, pa.float32()),
    (st.DoubleType, pa.float64()),
    (st.BooleanType, pa.bool_()),
    (st.DateType, pa.date32()),
    (st.TimestampType, pa.timestamp("us", "UTC")),
    (st.TimestampNTZType, pa.timestamp("us")),
    (st.BinaryType, pa.binary()),
)
_KEY_TYPES: Final = (
    st.StringType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.BinaryType,
)


def arrow_schema(schema: Any) -> Any:
    """The Arrow schema that Spark uses for a ``StructType``, which batches must follow exactly.

    Raises:
        ColumnError: A column has a type that no field of a record holds.
    """
    return pa.schema(
        [pa.field(field.name, _arrow_type(field), field.nullable) for field in schema.fields]
    )


def _arrow_type(field: Any) -> Any:
    if isinstance(field.dataType, st.DecimalType):
        return pa.decimal128(field.dataType.precision, field.dataType.scale)
    for spark, arrow in _ARROW_TYPES:
        if isinstance(field.dataType, spark):
            return arrow
    raise ColumnError(
        field.name,
        f"the type {field.dataType.simpleString()} cannot be kept in a map; cast the column "
        "or turn it into a string with to_json",
    )


def key_index(schema: Any, key: str) -> int:
    """Where the key column stands in a ``StructType``.

    Raises:
        ColumnError: There is no such column, or its type cannot be a key.
    """
    names = schema.fieldNames()
    if key not in names:
        raise ColumnError(key, f"the option 'key' names it, but there is only {listed(names)}")
    found = names.index(key)
    kind = schema.fields[found].dataType
    if not isinstance(kind, _KEY_TYPES):
        raise ColumnError(
            key, f"a key is a string, an integer or binary, not {kind.simpleString()}"
        )
    return int(found)


class Encoder:
    """Turns batches of one frame into keys and values."""

    def __init__(self, options: Options, schema: Any) -> None:
        """Prepare for frames of a ``StructType``.

        Raises:
            OptionError: The options do not fit a write.
            ColumnError: A column cannot be written.
        """
        self._key = options.check_writing()
        self._key_at = key_index(schema, self._key)
        columns = arrow_schema(schema)
        names = schema.fieldNames()
        for name in names:
            if names.count(name) > 1:
                raise ColumnError(name, "there are two columns of this name")
        # A frame that has only a key still needs a value: then the key is in it.
        fields = [field for field in columns if field.name != self._key] or list(columns)
        self._names = [field.name for field in fields]
        self.record: CompactSchema | None = None
        """Schema of the values; None for JSON."""
        if options.value_format == COMPACT:
            self.record = schema_for(options.type_name or options.map, pa.schema(fields))

    def encode(self, batch: Any, first_row: int, spark_partition: int) -> tuple[Any, Any]:
        """Keys and values as binary arrays of Data.

        Args:
            batch: A record batch or table of the frame.
            first_row: Number of its first row in the Spark partition.
            spark_partition: Number of the Spark partition, for errors.

        Raises:
            RowError: A key is null, or a value too long.
            SerializationError: A column does not fit its type.
        """
        keys = batch.column(self._key_at)
        if keys.null_count:
            nulls = pc.is_null(keys).to_numpy(zero_copy_only=False)
            problem = f"the key column {self._key!r} is null"
            raise RowError(first_row + int(np.argmax(nulls)), spark_partition, problem)
        columns = {name: batch.column(name) for name in self._names}
        if self.record is None:
            values = encode_objects(columns)
        else:
            values = encode_columns(self.record, columns)
        sizes = pc.binary_length(values)
        if len(values) and pc.max(sizes).as_py() > ENTRY_BYTES_MAX:
            at = int(np.argmax(sizes.to_numpy(zero_copy_only=False)))
            raise RowError(
                first_row + at,
                spark_partition,
                f"{sizes[at].as_py()} bytes; a row has at most {ENTRY_BYTES_MAX}",
            )
        return encode_data(keys), values
