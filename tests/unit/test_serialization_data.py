"""Data of plain values, both ways, against the official client's serialisers."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hazelcast.config import Config, IntType
from hazelcast.core import HazelcastJsonValue
from hazelcast.serialization.data import Data
from hazelcast.serialization.service import SerializationServiceV1

from whimbrel.client import values
from whimbrel.errors import SerializationError
from whimbrel.serialization import data as ser
from whimbrel.serialization.temporal import Date, Time, Timestamp, ZonedTimestamp


def official(int_type: int = IntType.INT) -> SerializationServiceV1:
    config = Config()
    config.default_int_type = int_type
    return SerializationServiceV1(config)


PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**31 - 1,
    -(2**31),
    1.5,
    float("inf"),
    "",
    "flights",
    "grüße 名前 😀",
    Decimal(0),
    Decimal("-12345678901234567890.123456789"),
    Decimal("1E+9"),
    Decimal(128),
    Decimal(-128),
    uuid.UUID(int=5),
    dt.date(2024, 2, 29),
    dt.time(23, 59, 59, 999_999),
    dt.datetime(1999, 12, 31, 1, 2, 3, 4, dt.timezone(dt.timedelta(hours=-5, minutes=-30))),
    ["a", 1, None, [2.5]],
    [],
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_values_as_the_official_client_writes_them(value: Any) -> None:
    """Goal: the same bytes as the official client, and each side reads the other."""
    ours, theirs = values.dumps(value), official().to_data(value)
    assert ours == (bytes(8) if value is None else bytes(theirs.buffer))
    assert official().to_object(Data(bytearray(ours))) == value
    assert values.loads(ours) == value


def test_numbers_widen_as_needed() -> None:
    """Goal: an int becomes integer, long or big integer; every width is read."""
    for number in (2**31, -(2**63), 2**63, -(2**63) - 1, 2**200, -(2**200)):
        ours = ser.to_data(number)
        assert ours == bytes(official(IntType.VAR).to_data(number).buffer)
        assert ser.to_object(ours) == number
    for kind, which in ((ser.BYTE, 1), (ser.SHORT, 2), (ser.INTEGER, 3), (ser.LONG, 4)):
        data = bytes(official(which).to_data(5).buffer)
        assert (ser.type_of(data), ser.to_object(data)) == (kind, 5)
    assert ser.to_object(ser.header(ser.FLOAT) + struct.pack(">f", 0.5)) == 0.5


def test_bytes_json_and_naive_time_stamps() -> None:
    """Goal: types the official client writes from its own classes; a naive time stamp is kept
    without a zone.
    """
    array = official().to_data(bytearray(b"\x00\xff"))
    assert ser.to_data(b"\x00\xff") == bytes(array.buffer)
    assert ser.to_object(bytes(array.buffer)) == b"\x00\xff"
    text = official().to_data(HazelcastJsonValue({"a": 1}))
    assert ser.to_object(bytes(text.buffer)) == ser.Json('{"a": 1}')
    assert ser.to_data(ser.Json('{"a": 1}')) == bytes(text.buffer)
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - naive on purpose
    data = values.dumps(moment)
    assert ser.type_of(data) == ser.LOCAL_DATE_TIME and values.loads(data) == moment
    assert official().to_object(Data(bytearray(data))) == moment


def test_arrays_are_read_as_lists() -> None:
    """Goal: Java arrays of numbers, strings and booleans become lists."""
    cases = {
        -13: (struct.pack(">i3?", 3, True, False, True), [True, False, True]),
        -15: (struct.pack(">i2h", 2, -1, 7), [-1, 7]),
        -16: (struct.pack(">i1i", 1, 9), [9]),
        -17: (struct.pack(">i1q", 1, -9), [-9]),
        -19: (struct.pack(">i1d", 1, 0.5), [0.5]),
        -20: (struct.pack(">ii1si", 2, 1, b"a", 0), ["a", ""]),
        -5: (b"\x00A", ser.Char(65)),
    }
    for type_id, (payload, wanted) in cases.items():
        assert ser.to_object(ser.header(type_id) + payload) == wanted


def test_foreign_objects_stay_opaque() -> None:
    """Goal: bad input 12, 13: other languages' objects are never loaded, travel unchanged
    and are named.
    """
    stream = official().to_data({"a": 1})
    value = ser.to_object(bytes(stream.buffer))
    assert isinstance(value, ser.Opaque) and value.type_id == -120
    assert "Python object" in str(value) and ser.to_data(value) == bytes(stream.buffer)
    assert str(ser.to_object(ser.header(77) + b"x")) == "<custom type 77, 1 bytes>"
    assert ser.type_name(-999) == "type -999"


def test_values_print_for_people() -> None:
    """Goal: ISO 8601, with only the digits that are there."""
    stamp = Timestamp(Date(2024, 2, 9), Time(1, 2, 3, 50_000_000))
    assert str(stamp) == "2024-02-09T01:02:03.05"
    assert str(ZonedTimestamp(stamp, 0)).endswith(".05Z")
    assert str(ZonedTimestamp(stamp, -19830)).endswith("-05:30:30")
    assert str(ZonedTimestamp(stamp, 3600)).endswith("+01:00")
    assert str(ser.Uuid(uuid.UUID(int=7).bytes)) == str(uuid.UUID(int=7))


BAD = {
    "short": b"1234567",
    "string without length": ser.header(ser.STRING) + b"\x00",
    "string announces 2 GiB": ser.header(ser.STRING) + b"\x7f\xff\xff\xffabc",
    "negative length": ser.header(ser.STRING) + b"\xff\xff\xff\xff",
    "not UTF-8": ser.header(ser.STRING) + b"\x00\x00\x00\x01\xff",
    "array announces 2 GiB": ser.header(-17) + b"\x7f\xff\xff\xff" + bytes(80),
    "list announces 2 GiB": ser.header(ser.ARRAY_LIST) + b"\x7f\xff\xff\xff" + bytes(80),
    "left over": ser.to_data(1) + b"\x00",
    "month 13": ser.header(ser.LOCAL_DATE) + struct.pack(">ibb", 2024, 13, 1),
    "hour 24": ser.header(ser.LOCAL_TIME) + struct.pack(">bbbi", 24, 0, 0, 0),
    "offset of a day": ser.header(ser.OFFSET_DATE_TIME)
    + struct.pack(">ibbbbbii", 1, 1, 1, 0, 0, 0, 0, 86_400),
    "scale 2^31": ser.header(ser.BIG_DECIMAL) + struct.pack(">ibi", 1, 1, 2**31 - 1),
    "long integer": ser.header(ser.BIG_INTEGER) + struct.pack(">i", 20_000) + bytes(20_000),
    "deep list": ser.header(ser.ARRAY_LIST) + struct.pack(">ii", 1, ser.ARRAY_LIST) * 50,
    "list of objects": ser.header(ser.ARRAY_LIST) + struct.pack(">ii", 1, -100),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_values_are_refused(name: str) -> None:
    """Goal: bad input 9-12: a sentence, no memory taken on announced lengths."""
    with pytest.raises(SerializationError):
        ser.to_object(BAD[name])


@pytest.mark.parametrize(
    "value",
    [object(), {"a": 1}, (1,), Decimal("NaN"), Decimal("1E-200000"), "\ud800", ser.Uuid(b"1")],
    ids=repr,
)
def test_what_cannot_be_written_is_told(value: Any) -> None:
    """Goal: no guess for values without a plain serialised form; the type is named."""
    with pytest.raises(SerializationError):
        ser.to_data(value)
    nested: list[Any] = []
    for _ in range(ser.NESTING_MAX + 1):
        nested = [nested]
    with pytest.raises(SerializationError):
        ser.to_data(nested)


def test_python_cannot_hold_every_date() -> None:
    """Goal: years that Python has not are a clear error; nanoseconds are cut."""
    with pytest.raises(SerializationError, match="cannot hold"):
        values.from_wire(Date(20_000, 1, 1))
    assert values.from_wire(Time(1, 2, 3, 1_999)) == dt.time(1, 2, 3, 1)
    assert values.to_wire(bytearray(b"x")) == b"x"
