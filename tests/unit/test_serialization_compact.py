"""Compact records, one by one and in columns, against the official client's serialiser."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hazelcast.config import Config
from hazelcast.serialization.api import CompactReader, CompactSerializer, CompactWriter
from hazelcast.serialization.compact import SchemaNotReplicatedError
from hazelcast.serialization.data import Data
from hazelcast.serialization.service import SerializationServiceV1
from tests.unit.compact_records import decode_record, encode_record, offset_width
from tests.unit.wire_samples import schema_pair

from whimbrel.client.values import from_wire, to_wire
from whimbrel.errors import SerializationError
from whimbrel.serialization.compact import (
    CompactSchema,
    Kind,
    fingerprint,
    schema_id_of,
)
from whimbrel.serialization.compact_columns import (
    decode_columns,
    encode_columns,
    kind_of,
    schema_for,
)
from whimbrel.serialization.data import LONG, header, to_data
from whimbrel.serialization.data_columns import decode_data, encode_data
from whimbrel.wire.custom_types import Schema

UTC = dt.UTC


class Row:
    """A record of any fields."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


class RowSerializer(CompactSerializer[Row]):  # type: ignore[misc]
    """Drives the official serialiser from a list of (name, kind)."""

    def __init__(self, fields: list[tuple[str, Kind]]) -> None:
        self.fields = fields

    def read(self, reader: CompactReader) -> Row:
        return Row({name: self._call(reader, "read", kind)(name) for name, kind in self.fields})

    def write(self, writer: CompactWriter, obj: Row) -> None:
        for name, kind in self.fields:
            self._call(writer, "write", kind)(name, obj.values.get(name))

    @staticmethod
    def _call(side: Any, verb: str, kind: Kind) -> Any:
        return getattr(side, f"{verb}_{kind.name.lower()}")

    def get_type_name(self) -> str:
        return "row"

    def get_class(self) -> type[Row]:
        return Row


class Official:
    """The official client's serialisation service with one registered schema."""

    def __init__(self, fields: list[tuple[str, Kind]]) -> None:
        config = Config()
        config.compact_serializers = [RowSerializer(fields)]
        self.service = SerializationServiceV1(config)

    def write(self, values: dict[str, Any]) -> tuple[int, bytes]:
        try:
            data = self.service.to_data(Row(values))
        except SchemaNotReplicatedError as error:
            self.service.compact_stream_serializer.register_schema_to_type(error.schema, Row)
            data = self.service.to_data(Row(values))
        return int.from_bytes(data.buffer[8:16], "big", signed=True), bytes(data.buffer)

    def read(self, data: bytes) -> dict[str, Any]:
        row: Row = self.service.to_object(Data(bytearray(data)))
        return row.values


def value_of(kind: Kind, rng: random.Random, long_text: int) -> Any:
    """A seeded value as Python's types, None where the kind may be null."""
    if kind >= Kind.STRING and rng.random() < 0.25:
        return None
    name = kind.name.removeprefix("NULLABLE_")
    makers: dict[str, Any] = {
        "BOOLEAN": lambda: rng.random() < 0.5,
        "INT8": lambda: rng.randrange(-128, 128),
        "INT16": lambda: rng.randrange(-(2**15), 2**15),
        "INT32": lambda: rng.randrange(-(2**31), 2**31),
        "INT64": lambda: rng.randrange(-(2**63), 2**63),
        "FLOAT32": lambda: rng.randrange(-1000, 1000) / 4,
        "FLOAT64": rng.random,
        "STRING": lambda: rng.choice(["", "ab", "grüße", "x" * rng.randrange(long_text)]),
        "ARRAY_OF_INT8": lambda: rng.randbytes(rng.randrange(9)),
        "DECIMAL": lambda: Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-4),
        "DATE": lambda: dt.date.fromordinal(rng.randrange(1, 3_600_000)),
        "TIME": lambda: dt.time(rng.randrange(24), 59, rng.randrange(60), rng.randrange(10**6)),
        "TIMESTAMP": lambda: dt.datetime(rng.randrange(1, 9999), 2, 28, 23, 5, 6, 7),  # noqa: DTZ001
        "TIMESTAMP_WITH_TIMEZONE": lambda: dt.datetime(rng.randrange(2, 9998), 1, 2, tzinfo=UTC),
    }
    return makers[name]()


def official_form(kind: Kind, value: Any) -> Any:
    """The official client takes and gives arrays of int8 as lists of numbers."""
    if kind == Kind.ARRAY_OF_INT8 and value is not None:
        return list(struct.unpack(f">{len(value)}b", value))
    return value


def random_case(seed: int) -> tuple[list[tuple[str, Kind]], list[dict[str, Any]]]:
    rng = random.Random(seed)
    kinds = rng.choices(list(Kind), k=rng.randrange(1, 24))
    fields = [(f"f{rng.randrange(10**6)}_{at}", kind) for at, kind in enumerate(kinds)]
    long_text = rng.choice([3, 300, 70_000])
    rows = [{name: value_of(kind, rng, long_text) for name, kind in fields} for _ in range(6)]
    return fields, rows


def test_fingerprints_are_those_of_the_official_client() -> None:
    """Goal: schema ids equal, for every kind a schema may have and for odd names."""
    for count in (0, 1, 9, 44, 80):
        ours, theirs = schema_pair(count)
        assert ours.compact().id == theirs.schema_id
        assert Schema.of(ours.compact()) == ours
    assert fingerprint(b"") == 0xC15D213AA4D7A795


@pytest.mark.parametrize("seed", range(25))
def test_records_equal_the_official_client(seed: int) -> None:
    """Goal: byte for byte its records and its values back, over all kinds and offset widths."""
    fields, rows = random_case(seed)
    schema, official = CompactSchema("row", fields), Official(fields)
    # The official writer puts variable-size values in the order its serialiser writes them.
    official.service.compact_stream_serializer._type_to_serializer[Row].fields.sort()
    for row in rows:
        theirs = {name: official_form(kind, row[name]) for name, kind in fields}
        schema_id, data = official.write(theirs)
        ours = encode_record(schema, {name: to_wire(value) for name, value in row.items()})
        assert (schema.id, schema_id_of(data)) == (schema_id, schema_id)
        assert ours == data
        assert official.read(ours) == theirs
        back = {name: from_wire(value) for name, value in decode_record(schema, data).items()}
        assert back == row


@pytest.mark.parametrize("seed", range(25))
def test_columns_equal_records(seed: int) -> None:
    """Goal: whole columns give the same bytes as record by record, and come back."""
    fields, rows = random_case(seed)
    schema = CompactSchema("row", fields)
    columns = {name: arrow_column(kind, [row[name] for row in rows]) for name, kind in fields}
    data = encode_columns(schema, columns)
    wire = [{name: to_wire(value) for name, value in row.items()} for row in rows]
    assert data.to_pylist() == [encode_record(schema, row) for row in wire]
    types = {name: column.type for name, column in columns.items()}
    # A slice behind others must read the same as a whole array.
    padded = pa.concat_arrays([data[:1], data])[1:]
    for records in (data, padded, pa.chunked_array([data[:2], data[2:]]), data.to_pylist()):
        back = decode_columns(schema, records, types=types)
        for name, _ in fields:
            assert back[name].equals(columns[name]), name
    some = fields[0][0]
    assert list(decode_columns(schema, data, [some])) == [some]


def arrow_column(kind: Kind, values: list[Any]) -> Any:
    plain = kind.name.removeprefix("NULLABLE_")
    types = {
        "BOOLEAN": pa.bool_(),
        "INT8": pa.int8(),
        "INT16": pa.int16(),
        "INT32": pa.int32(),
        "INT64": pa.int64(),
        "FLOAT32": pa.float32(),
        "FLOAT64": pa.float64(),
        "STRING": pa.string(),
        "ARRAY_OF_INT8": pa.binary(),
        "DECIMAL": pa.decimal128(30, 4),
        "DATE": pa.date32(),
        "TIME": pa.time64("us"),
        "TIMESTAMP": pa.timestamp("us"),
        "TIMESTAMP_WITH_TIMEZONE": pa.timestamp("us", "UTC"),
    }
    return pa.array(values, types[plain])


def test_schemas_follow_arrow_types() -> None:
    """Goal: a column's type and nullability choose the kind; what fits nothing is named."""
    schema = schema_for(
        "t",
        pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False),
                pa.field("b", pa.int64()),
                pa.field("c", pa.large_string()),
                pa.field("d", pa.decimal128(9, 2)),
                pa.field("e", pa.timestamp("ns")),
                pa.field("f", pa.timestamp("s", "Europe/Berlin")),
                pa.field("g", pa.date64()),
                pa.field("h", pa.time32("ms")),
                pa.field("i", pa.binary(3)),
                pa.field("j", pa.bool_()),
            ]
        ),
    )
    assert [Kind(field.kind).name for field in schema.fields] == [
        "INT64",
        "NULLABLE_INT64",
        "STRING",
        "DECIMAL",
        "TIMESTAMP",
        "TIMESTAMP_WITH_TIMEZONE",
        "DATE",
        "TIME",
        "ARRAY_OF_INT8",
        "NULLABLE_BOOLEAN",
    ]
    assert kind_of(pa.int8(), nullable=False) == Kind.INT8
    with pytest.raises(SerializationError, match=r"'x'.*list"):
        schema_for("t", pa.schema([("x", pa.list_(pa.int64()))]))


def test_other_units_and_scales() -> None:
    """Goal: nanoseconds, seconds, large strings and other scales are taken as they are."""
    moment = dt.datetime(1969, 12, 31, 23, 59, 59)  # noqa: DTZ001
    columns = {
        "ns": pa.array([-1, 1_700_000_000_123_456_789], pa.timestamp("ns")),
        "s": pa.array([moment, None], pa.timestamp("s")),
        "text": pa.array(["a", "b"], pa.large_string()),
        "ms": pa.array([1, 2], pa.time32("ms")),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date64()),
        "money": pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2)),
    }
    schema = schema_for("t", pa.table(columns).schema)
    data = encode_columns(schema, columns)
    first = decode_record(schema, data[0].as_py())
    assert str(first["ns"]) == "1969-12-31T23:59:59.999999999"
    assert str(first["s"]) == "1969-12-31T23:59:59"
    assert (str(first["ms"]), str(first["day"])) == ("00:00:00.001", "0001-01-01")
    assert first["money"] == Decimal("-1.50")
    back = decode_columns(schema, data, types={"money": pa.decimal128(38, 6), "text": pa.string()})
    assert back["money"].to_pylist() == [Decimal("-1.500000"), None]
    assert back["s"].to_pylist() == [moment, None]
    with pytest.raises(SerializationError, match="money"):
        decode_columns(schema, data, ["money"], {"money": pa.decimal128(38, 0)})


def test_mixed_scales_in_one_column() -> None:
    """Goal: decimals of other writers may each have their own scale."""
    schema = CompactSchema("t", [("d", Kind.DECIMAL)])
    wanted = [Decimal("1.5"), None, Decimal(-2), Decimal("3E+2"), Decimal("0.0001")]
    records = [encode_record(schema, {"d": value}) for value in wanted]
    got = decode_columns(schema, records, types={"d": pa.decimal128(20, 4)})["d"].to_pylist()
    assert got == wanted
    records.append(encode_record(schema, {"d": Decimal(10**40)}))
    with pytest.raises(SerializationError, match="digits"):
        decode_columns(schema, records)


def test_empty_batches() -> None:
    """Goal: no rows are no error."""
    schema = CompactSchema("t", [("a", Kind.INT32), ("s", Kind.STRING), ("d", Kind.DECIMAL)])
    columns = {"a": pa.array([], pa.int32()), "s": pa.array([], pa.string()), "d": pa.nulls(0)}
    data = encode_columns(schema, columns)
    assert len(data) == 0
    assert {len(column) for column in decode_columns(schema, data).values()} == {0}
    fixed = CompactSchema("t", [("a", Kind.INT32)])
    assert len(encode_columns(fixed, columns)) == 0


def test_columns_that_do_not_fit_are_named() -> None:
    """Goal: a missing column, a null, a wrong type or length is told with the field's name."""
    schema = CompactSchema("t", [("a", Kind.INT32), ("s", Kind.STRING)])
    good = {"a": pa.array([1, 2]), "s": pa.array(["x", "y"])}
    for change, text in (
        ({"a": pa.array([1, None])}, "'a' must not be null"),
        ({"a": pa.array([1, 2**40])}, "'a' does not fit"),
        ({"a": pa.array(["x", "y"])}, "'a' does not fit"),
        ({"a": pa.array([1])}, "same length"),
    ):
        with pytest.raises(SerializationError, match=text):
            encode_columns(schema, {**good, **change})
    with pytest.raises(SerializationError, match="needs a column 's'"):
        encode_columns(schema, {"a": good["a"]})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([("a", 1), ("a", 3)], "two fields 'a'"),
        ([("a", 5)], "unknown kind 5"),
        ([("a", 99)], "unknown kind 99"),
        ([("x" * 70_000, 1)], "at most"),
        ([(f"f{i}", 1) for i in range(5_000)], "at most"),
    ],
)
def test_bad_schemas_are_refused(fields: list[tuple[str, int]], text: str) -> None:
    """Goal: a schema of a client is checked before it is kept or replicated."""
    with pytest.raises(SerializationError, match=text):
        CompactSchema("t", fields)


def test_bad_values_name_their_field() -> None:
    """Goal: what does not fit is refused by field name."""
    schema = CompactSchema("t", [("a", Kind.INT8), ("s", Kind.STRING), ("l", Kind.ARRAY_OF_INT8)])
    for values in ({}, {"a": 200}, {"a": "x"}, {"a": 1, "s": 5}, {"a": 1, "l": 5}, {"b": 1}):
        with pytest.raises(SerializationError, match=r"'[asbl]'"):
            encode_record(schema, values)
    other = CompactSchema("t", [("x", 29)])
    with pytest.raises(SerializationError, match="cannot be written"):
        encode_record(other, {"x": 1})
    assert decode_record(other, encode_record(other, {})) == {}


def test_damaged_records_are_refused_both_ways() -> None:
    """Goal: bad input 12: whatever bytes are cut or changed, the answer is a value or a
    SerializationError, and column-wise reading agrees with single reading on what it accepts.
    """
    fields = [("a", Kind.INT32), ("b", Kind.BOOLEAN), ("s", Kind.STRING), ("d", Kind.DECIMAL)]
    schema = CompactSchema("row", [*fields, ("t", Kind.TIMESTAMP), ("n", Kind.NULLABLE_INT16)])
    row = {"a": 5, "b": True, "s": "text", "d": Decimal("1.5"), "n": 3}
    good = encode_record(schema, {**row, "t": to_wire(dt.datetime(2024, 1, 1))})  # noqa: DTZ001
    rng = random.Random(5)
    refused = 0
    for _ in range(600):
        bad = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(1, 4)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        refused += not agree(schema, bytes(bad))
    assert refused > 300


def agree(schema: CompactSchema, data: bytes) -> bool:
    """Whether a record is accepted; both ways of reading it must give the same values."""
    try:
        single = decode_record(schema, data)
    except SerializationError:
        single = {}
    try:
        columns = decode_columns(schema, [data], types={"d": pa.decimal128(38, 1)})
    except SerializationError:
        return False
    if not single:
        return False
    assert single["a"] == columns["a"][0].as_py()
    assert single["s"] == columns["s"][0].as_py()
    assert single["n"] == columns["n"][0].as_py()
    return True


def test_offset_widths_change_where_the_official_client_changes() -> None:
    """Goal: exactly at 255 and 65,535 bytes of data the offsets grow."""
    assert [offset_width(size) for size in (254, 255, 65_534, 65_535)] == [1, 2, 2, 4]
    schema, official = CompactSchema("row", [("s", Kind.STRING)]), Official([("s", Kind.STRING)])
    for size in (250, 251, 65_530, 65_531):
        text = "x" * size
        _, data = official.write({"s": text})
        assert encode_record(schema, {"s": text}) == data
        assert encode_columns(schema, {"s": pa.array([text])}).to_pylist() == [data]
        assert decode_columns(schema, [data])["s"].to_pylist() == [text]


# -- keys ---------------------------------------------------------------------------------


def test_columns_of_plain_data() -> None:
    """Goal: keys in columns are the keys that single values make, and come back."""
    longs = pa.array([1, -(2**63)], pa.int64())
    singles = [header(LONG) + struct.pack(">q", number) for number in longs.to_pylist()]
    assert encode_data(longs).to_pylist() == singles
    text = pa.array(["", "grüße"], pa.large_string())
    assert encode_data(text).to_pylist() == [to_data(t) for t in text.to_pylist()]
    for array in (
        longs,
        pa.array([True, False]),
        pa.array([1.5], pa.float32()),
        pa.array([-7], pa.int16()),
        pa.array([b"", b"\x00"]),
        pa.array(["a", "b"]),
    ):
        assert decode_data(encode_data(array)).equals(array)
        assert decode_data(encode_data(array).to_pylist()).equals(array)
    assert len(decode_data([])) == 0


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([to_data(1), to_data("a")], "different types"),
        ([b"short"], "header"),
        ([None], "null"),
        ([to_data(1) + b"x"], "wrong length"),
        ([to_data("ab")[:-1]], "wrong length"),
        ([to_data("ab")[:9]], "wrong length"),
        ([to_data(None)], "cannot be made"),
        ([to_data("a")[:-1] + b"\xff"], "UTF-8"),
    ],
)
def test_columns_that_are_not_plain_are_refused(records: list[Any], text: str) -> None:
    """Goal: a column is one type, whole and valid, or a sentence says why not."""
    with pytest.raises(SerializationError, match=text):
        decode_data(records)


def test_keys_must_not_be_null_or_nested() -> None:
    """Goal: a null key and a type without plain Data are refused."""
    with pytest.raises(SerializationError, match="1 values"):
        encode_data(pa.array([1, None]))
    with pytest.raises(SerializationError, match="list"):
        encode_data(pa.array([[1]]))
