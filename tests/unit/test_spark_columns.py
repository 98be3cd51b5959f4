"""Frames as entries and back: options, JSON and Compact values, every type, every refusal."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from whimbrel.client.values import dumps, loads
from whimbrel.errors import SerializationError, UsageError
from whimbrel.serialization.compact import CompactSchema
from whimbrel.serialization.data import Json, to_data
from whimbrel.spark import json_columns
from whimbrel.spark.columns import Encoder, arrow_schema
from whimbrel.spark.entries import decoder_for
from whimbrel.spark.errors import ColumnError, OptionError, RowError
from whimbrel.spark.options import parse_options

BASE = {"address": "127.0.0.1:5701", "map": "m"}
SCHEMA = st.StructType(
    [
        st.StructField("id", st.StringType(), False),
        st.StructField("small", st.IntegerType()),
        st.StructField("big", st.LongType()),
        st.StructField("ratio", st.DoubleType()),
        st.StructField("flag", st.BooleanType()),
        st.StructField("day", st.DateType()),
        st.StructField("at", st.TimestampType()),
        st.StructField("naive", st.TimestampNTZType()),
        st.StructField("price", st.DecimalType(20, 4)),
        st.StructField("raw", st.BinaryType()),
        st.StructField("note", st.StringType()),
        st.StructField("tiny", st.ByteType()),
        st.StructField("short", st.ShortType()),
        st.StructField("single", st.FloatType()),
    ]
)
ROWS: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "small": [-(2**31), None, 2**31 - 1],
    "big": [2**63 - 1, -(2**63), None],
    "ratio": [1 / 3, None, -0.0],
    "flag": [True, None, False],
    "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
    "at": [dt.datetime(1, 1, 1, tzinfo=dt.UTC), None, dt.datetime(2026, 1, 1, 1, 2, 3, 4, dt.UTC)],
    "naive": [
        dt.datetime(1969, 7, 20, 1, 2, 3, 999_999, dt.UTC).replace(tzinfo=None),
        None,
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC).replace(tzinfo=None),
    ],
    "price": [decimal.Decimal("0.0001"), None, decimal.Decimal("-9999999999999999.9999")],
    "raw": [b"\x00\xff\n", b"", None],
    "note": ['q"\\\n\t\x00', "ünï 😀", None],
    "tiny": [-128, None, 127],
    "short": [-32768, None, 32767],
    "single": [0.1, None, 3.5],
}


def options(**more: str) -> Any:
    return parse_options({**BASE, **more})


def batch(rows: Mapping[str, Any] = ROWS, schema: st.StructType = SCHEMA) -> Any:
    arrow = arrow_schema(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(rows[name], arrow.field(name).type) for name in arrow.names], schema=arrow
    )


def decode(decoder: Any, keys: Any, values: Any) -> list[Any]:
    return list(decoder.decode(pa.array([0] * len(keys), pa.int32()), keys, values))


def data_of(*values: Any) -> Any:
    return pa.array([dumps(value) for value in values], pa.binary())


@pytest.mark.parametrize("form", ["json", "compact"])
def test_every_type_comes_back_equal(form: str) -> None:
    """Goal: what a frame holds, nulls and extremes included, is what is read back, in both forms
    of values, bit for bit.
    """
    encoder = Encoder(options(key="id", valueformat=form), SCHEMA)
    keys, values = encoder.encode(batch(), 0, 0)
    assert [loads(key) for key in keys.to_pylist()] == ["a", "b", "c"]
    decoder = decoder_for(options(key="id"), SCHEMA, lambda _: encoder.record)
    (found,) = decode(decoder, keys, values)
    assert found.equals(batch())
    assert found.schema.equals(to_arrow_schema(SCHEMA, timezone="UTC"))
    assert math.copysign(1, found.column("ratio")[2].as_py()) == -1


def test_the_fast_and_the_tolerant_way_of_json_agree() -> None:
    """Goal: objects that are read one by one give the same columns as whole batches."""
    columns = {name: batch().column(name) for name in SCHEMA.fieldNames()}
    values = json_columns.encode_objects(columns)
    fields = list(batch().schema)
    assert json_columns._parsed(values, fields) is not None
    objects = [json_columns._object(data) for data in values.to_pylist()]
    for field in fields:
        slow = json_columns._column(field, [found.get(field.name) for found in objects])
        assert slow.equals(columns[field.name]), field.name


def test_numbers_that_json_lacks_come_back() -> None:
    """Goal: NaN and the infinities survive as strings, as Spark's own to_json writes them."""
    column = pa.array([math.nan, math.inf, -math.inf, None, 1.5])
    values = json_columns.encode_objects({"x": column})
    texts = [loads(data) for data in values.to_pylist()]
    assert texts[:3] == ['{"x":"NaN"}', '{"x":"Infinity"}', '{"x":"-Infinity"}']
    found = json_columns.decode_objects(values, [pa.field("x", pa.float64())])["x"]
    assert math.isnan(found[0].as_py())
    assert found.slice(1).equals(column.slice(1))


def test_rows_of_several_forms_lie_in_one_map() -> None:
    """Goal: a map may hold JSON rows and Compact rows of older schemas; fields that a form lacks
    are null.
    """
    wide = st.StructType([SCHEMA["id"], SCHEMA["small"], SCHEMA["note"]])
    narrow = st.StructType([SCHEMA["id"], SCHEMA["small"]])
    parts = [
        Encoder(options(key="id"), wide),
        Encoder(options(key="id", valueformat="compact"), narrow),
        Encoder(options(key="id", valueformat="compact"), wide),
    ]
    keys, values = [], []
    schemas: dict[int, CompactSchema] = {}
    for number, encoder in enumerate(parts):
        rows = {"id": [f"k{number}"], "small": [number], "note": ["n"]}
        schema = narrow if number == 1 else wide
        key, value = encoder.encode(batch(rows, schema), 0, 0)
        keys += key.to_pylist()
        values += value.to_pylist()
        if encoder.record is not None:
            schemas[encoder.record.id] = encoder.record
    decoder = decoder_for(options(key="id"), wide, schemas.get)
    found = decode(decoder, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    read = [tuple(row.values()) for part in found for row in part.to_pylist()]
    assert sorted(read) == [("k0", 0, "n"), ("k1", 1, None), ("k2", 2, "n")]


def test_a_frame_with_only_a_key_has_a_value() -> None:
    """Goal: a set of keys can be kept; its column comes back."""
    only = st.StructType([SCHEMA["id"]])
    keys, values = Encoder(options(key="id"), only).encode(batch({"id": ["x"]}, only), 0, 0)
    assert loads(values[0].as_py()) == '{"id":"x"}'
    (found,) = decode(decoder_for(options(key="id"), only, lambda _: None), keys, values)
    assert found.to_pylist() == [{"id": "x"}]


def test_a_null_key_names_column_and_row() -> None:
    """Goal: the error tells the key column and the number of the row in its Spark partition."""
    two = st.StructType([st.StructField("id", st.StringType()), SCHEMA["small"]])
    encoder = Encoder(options(key="id"), two)
    rows = {"id": ["a", "b", None], "small": [1, 2, 3]}
    with pytest.raises(
        RowError, match=r"row 102 of Spark partition 7: the key column 'id' is null"
    ):
        encoder.encode(batch(rows, two), 100, 7)


def test_a_row_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an oversize value is refused before it is sent, with its row."""
    monkeypatch.setattr("whimbrel.spark.columns.ENTRY_BYTES_MAX", 100)
    two = st.StructType([SCHEMA["id"], SCHEMA["note"]])
    rows = {"id": ["a", "b"], "note": ["x", "y" * 100]}
    with pytest.raises(RowError, match=r"row 1 of Spark partition 0: \d+ bytes"):
        Encoder(options(key="id"), two).encode(batch(rows, two), 0, 0)


def test_columns_that_cannot_be_written_are_named() -> None:
    """Goal: a column of a type without a form, a key that is not there, or of a wrong type, a
    doubled name: each error names the column.
    """
    nested = st.StructType([SCHEMA["id"], st.StructField("tags", st.ArrayType(st.StringType()))])
    with pytest.raises(ColumnError, match=r"'tags': the type array<string> cannot be kept"):
        Encoder(options(key="id"), nested)
    with pytest.raises(ColumnError, match=r"'idd': the option 'key' names it"):
        Encoder(options(key="idd"), SCHEMA)
    with pytest.raises(ColumnError, match="'ratio': a key is a string"):
        Encoder(options(key="ratio"), SCHEMA)
    with pytest.raises(ColumnError, match="two columns"):
        Encoder(options(key="id"), st.StructType([SCHEMA["id"], SCHEMA["small"], SCHEMA["small"]]))


def test_dates_of_other_millennia_are_refused_in_json() -> None:
    """Goal: a date that ISO text with four digits cannot hold is told, not mangled; Compact has
    room for it.
    """
    two = st.StructType([SCHEMA["id"], SCHEMA["day"]])
    found = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.array([4_000_000], pa.int32()).cast(pa.date32())],
        schema=arrow_schema(two),
    )
    with pytest.raises(ColumnError, match="'day'"):
        Encoder(options(key="id"), two).encode(found, 0, 0)
    encoder = Encoder(options(key="id", valueformat="compact"), two)
    keys, values = encoder.encode(found, 0, 0)
    (back,) = decode(decoder_for(options(key="id"), two, lambda _: encoder.record), keys, values)
    assert back.equals(found)


def test_plain_maps_are_read_by_their_types() -> None:
    """Goal: keys and values of other clients come as columns; integers and longs may be mixed; a
    value of another type names the option.
    """
    schema = st.StructType(
        [st.StructField("key", st.StringType()), st.StructField("value", st.LongType())]
    )
    decoder = decoder_for(options(keytype="string", valuetype="long"), schema, lambda _: None)
    (found,) = decode(decoder, data_of("a", "b"), data_of(1, 2**40))
    assert found.to_pylist() == [{"key": "a", "value": 1}, {"key": "b", "value": 2**40}]
    with pytest.raises(SerializationError, match=r"'valuetype': there is a string"):
        decode(decoder, data_of("a", "b"), data_of(1, "x"))
    (empty,) = decode(decoder, data_of(), data_of())
    assert empty.num_rows == 0


def test_json_of_other_clients_is_read_with_tolerance() -> None:
    """Goal: pretty-printed objects, numbers for strings, whole numbers written as fractions, time
    stamps without zone and missing fields are read; what does not fit names its column.
    """
    schema = st.StructType(
        [
            st.StructField("key", st.StringType()),
            st.StructField("n", st.LongType()),
            st.StructField("s", st.StringType()),
            st.StructField("at", st.TimestampType()),
        ]
    )
    decoder = decoder_for(options(keytype="string", valuetype="json"), schema, lambda _: None)
    texts = ['{"n": 1.0,\n "s": [1, 2.5]}', '{"at": "2026-01-01T00:00:00", "x": {}}', "{}"]
    values = pa.array([to_data(Json(text)) for text in texts], pa.binary())
    (found,) = decode(decoder, data_of("a", "b", "c"), values)
    assert found.to_pylist() == [
        {"key": "a", "n": 1, "s": "[1, 2.5]", "at": None},
        {"key": "b", "n": None, "s": None, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
        {"key": "c", "n": None, "s": None, "at": None},
    ]
    for text, error, told in (
        ('{"n": "x"}', ColumnError, "'n'"),
        ("[1]", SerializationError, "no object"),
        ("{", SerializationError, "not JSON"),
    ):
        with pytest.raises(error, match=told):
            decode(decoder, data_of("a"), pa.array([to_data(Json(text))], pa.binary()))


def test_raw_reading_gives_the_bytes() -> None:
    """Goal: raw columns are exactly key, value and partition, or some of them."""
    schema = st.StructType(
        [st.StructField("value", st.BinaryType()), st.StructField("partition", st.IntegerType())]
    )
    decoder = decoder_for(options(raw="true"), schema, lambda _: None)
    (found,) = decode(decoder, data_of("a"), data_of(1))
    assert found.to_pylist() == [{"value": dumps(1), "partition": 0}]
    wrong = st.StructType([st.StructField("other", st.BinaryType())])
    with pytest.raises(ColumnError, match="'other'"):
        decoder_for(options(raw="true"), wrong, lambda _: None)


def test_a_null_where_the_schema_forbids_it_is_told() -> None:
    """Goal: a schema that promises no nulls is not broken silently."""
    strict = st.StructType([SCHEMA["id"], st.StructField("small", st.IntegerType(), False)])
    loose = st.StructType([SCHEMA["id"], SCHEMA["small"]])
    rows = {"id": ["a"], "small": [None]}
    keys, values = Encoder(options(key="id"), loose).encode(batch(rows, loose), 0, 0)
    with pytest.raises(ColumnError, match=r"'small': is null in the map"):
        decode(decoder_for(options(key="id"), strict, lambda _: None), keys, values)


def test_values_that_are_no_rows_tell_what_to_do() -> None:
    """Goal: reading other clients' values as a frame is refused with the way out."""
    decoder = decoder_for(options(key="id"), SCHEMA, lambda _: None)
    with pytest.raises(OptionError, match="'keytype' and 'valuetype'"):
        decode(decoder, data_of("a"), data_of("long enough to be anything"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"map": "m"}, "'address': is missing"),
        ({"address": "127.0.0.1:1"}, "'map': is missing"),
        ({**BASE, "mapp": "x"}, "did you mean 'map'"),
        (
            {**BASE, "address": "nowhere"},
            "'address': 'nowhere' is no address of the form host:port",
        ),
        ({**BASE, "address": " , "}, "'address': is missing"),
        ({**BASE, "raw": "maybe"}, "'raw': is one of"),
        ({**BASE, "keytype": "float"}, "'keytype': is one of"),
        ({**BASE, "taskspermember": "0"}, "'taskspermember'"),
        ({**BASE, "timeout": "soon"}, "'timeout'"),
        ({**BASE, "key": ""}, "'key': is empty"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], told: str) -> None:
    """Goal: a missing, unknown or senseless option is named."""
    with pytest.raises(OptionError, match=told):
        parse_options(given)


def test_options_must_fit_together() -> None:
    """Goal: a read says which way it means, and only one; a write needs a key and no more."""
    for more, told in (
        ({}, "'key': is missing"),
        ({"key": "id", "raw": "true"}, "'raw': does not go together with 'key'"),
        ({"keytype": "int"}, "'valuetype': is missing"),
        ({"key": "id", "valuetype": "int"}, "'keytype': is missing"),
        ({"raw": "true", "pushdown": "true"}, "'pushdown'"),
    ):
        with pytest.raises(OptionError, match=told):
            options(**more).check_reading()
    for more, told in (
        ({}, "'key': is missing"),
        ({"keytype": "int", "key": "id"}, "'keytype'"),
        ({"raw": "true"}, "'raw'"),
    ):
        with pytest.raises(UsageError, match=told):
            options(**more).check_writing()
