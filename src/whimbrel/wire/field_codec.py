"""Values of the client protocol to frames and back, by the type names of the table.

A uuid is 16 big-endian bytes (text is accepted when writing), a Data its full bytes, a custom
type one of the structs in ``custom_types``. No count or length that a peer announces is believed:
lists end at their END frame, packed lists have the length of their frame, and frames were
bounded when they arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from whimbrel.errors import ProtocolError
from whimbrel.serialization.data import DATA_HEADER_BYTES
from whimbrel.serialization.uuids import NIL_UUID, uuid_bytes
from whimbrel.wire.custom_types import CUSTOM_FIELDS
from whimbrel.wire.frame_io import NOT_PLAIN, FrameReader, FrameWriter, frame_head
from whimbrel.wire.frames import BEGIN, END, NULL
from whimbrel.wire.protocol_table import FIXED_TYPES, Field

Fields = dict[str, Any]
"""Field name to value."""

Write = Callable[[FrameWriter, Any], None]
Read = Callable[[FrameReader], Any]

_FIXED_FORMATS = {"bool": "?", "byte": "B", "int": "i", "long": "q", "uuid": "?16s"}


# -- values in frames of their own --------------------------------------------------------


def _write_string(out: FrameWriter, value: str) -> None:
    out.put(value.encode())


def _read_string(frames: FrameReader) -> str:
    try:
        return frames.take().decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a string is not UTF-8") from error


def _write_bytes(out: FrameWriter, value: bytes) -> None:
    out.put(value)


def _read_data(frames: FrameReader) -> bytes:
    content = frames.take()
    if len(content) < DATA_HEADER_BYTES:
        raise ProtocolError(
            f"a Data has at least {DATA_HEADER_BYTES} bytes, this one {len(content)}"
        )
    return content


def _write_skipped(out: FrameWriter, _value: object) -> None:
    out.mark(NULL)


def _read_skipped(frames: FrameReader) -> None:
    if frames.flags() & BEGIN:
        frames.begin()
        frames.end()
    else:
        frames.take()


def _list(write: Write, read: Read) -> tuple[Write, Read]:
    def write_list(out: FrameWriter, values: Sequence[Any]) -> None:
        out.mark(BEGIN)
        for value in values:
            write(out, value)
        out.mark(END)

    def read_list(frames: FrameReader) -> list[Any]:
        frames.begin()
        values = []
        while not frames.at_end():
            values.append(read(frames))
        frames.end()
        return values

    return write_list, read_list


def _entries(
    write_key: Write, read_key: Read, write_value: Write, read_value: Read
) -> tuple[Write, Read]:
    def write_entries(out: FrameWriter, entries: Sequence[tuple[Any, Any]]) -> None:
        out.mark(BEGIN)
        for key, value in entries:
            write_key(out, key)
            write_value(out, value)
        out.mark(END)

    def read_entries(frames: FrameReader) -> list[tuple[Any, Any]]:
        frames.begin()
        entries = []
        while not frames.at_end():
            key = read_key(frames)
            entries.append((key, read_value(frames)))
        frames.end()
        return entries

    return write_entries, read_entries


def _map(entries: tuple[Write, Read]) -> tuple[Write, Read]:
    write_entries, read_entries = entries

    def write_map(out: FrameWriter, values: dict[Any, Any] | None) -> None:
        write_entries(out, list((values or {}).items()))

    def read_map(frames: FrameReader) -> dict[Any, Any]:
        return dict(read_entries(frames))

    return write_map, read_map


def _write_data_list(out: FrameWriter, values: Sequence[bytes]) -> None:
    """Like the writer that ``_list`` makes, for long lists of Data."""
    out.mark(BEGIN)
    parts, pack = out.parts, frame_head.pack
    for value in values:
        parts += (pack(6 + len(value), 0), value)
    out.mark(END)


def _write_data_entries(out: FrameWriter, entries: Sequence[tuple[bytes, bytes]]) -> None:
    """Like the writer that ``_entries`` makes, for long lists of pairs of Data."""
    out.mark(BEGIN)
    parts, pack = out.parts, frame_head.pack
    for key, value in entries:
        parts += (pack(6 + len(key), 0), key, pack(6 + len(value), 0), value)
    out.mark(END)


def _read_data_list(frames: FrameReader) -> list[bytes]:
    """Like the reader that ``_list`` makes, for long lists of Data."""
    frames.begin()
    buffer, offsets = frames.buffer, frames.frames
    values = []
    at, count = frames.at, len(offsets)
    while at < count:
        start, end = offsets[at], offsets[at + 1]
        if buffer[start - 1] & NOT_PLAIN:
            break
        if end - start < 8:
            raise ProtocolError(f"a Data has at least 8 bytes, this one {end - start}")
        values.append(buffer[start:end])
        at += 2
    frames.at = at
    if not frames.at_end():
        raise ProtocolError("a marker or null stands where a Data is needed")
    frames.end()
    return values


def _read_data_entries(frames: FrameReader) -> list[tuple[bytes, bytes]]:
    """Like the reader that ``_entries`` makes, for long lists of pairs of Data."""
    flat = _read_data_list(frames)
    if len(flat) % 2:
        raise ProtocolError("a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _nullable(write: Write, read: Read) -> tuple[Write, Read]:
    def write_nullable(out: FrameWriter, value: Any) -> None:
        if value is None:
            out.mark(NULL)
        else:
            write(out, value)

    def read_nullable(frames: FrameReader) -> Any:
        return None if frames.take_null() else read(frames)

    return write_nullable, read_nullable


# -- packed lists: one frame of fixed-size items ------------------------------------------


def _uuid_in(raw: bytes) -> bytes:
    return raw[7::-1] + raw[:7:-1]


def _uuid_out(value: bytes | str) -> bytes:
    raw = uuid_bytes(value) if isinstance(value, str) else value
    if len(raw) != 16:
        raise ProtocolError(f"a uuid is 16 bytes, not {len(raw)}")
    return raw[7::-1] + raw[:7:-1]


def _numbers(code: str) -> tuple[Write, Read]:
    """One frame of ints (``i``) or longs (``q``)."""
    size = struct.calcsize(f"<{code}")

    def write_numbers(out: FrameWriter, values: Sequence[int]) -> None:
        try:
            out.put(struct.pack(f"<{len(values)}{code}", *values))
        except struct.error as error:
            raise ProtocolError(f"a number does not fit into its list: {error}") from error

    def read_numbers(frames: FrameReader) -> list[int]:
        content = frames.take()
        return list(struct.unpack(f"<{_item_count(content, size)}{code}", content))

    return write_numbers, read_numbers


def _items(codes: str) -> tuple[Write, Read]:
    """One frame of items: a uuid (``u``), or a pair of ints, longs (``i``, ``q``) or uuids."""
    packing = struct.Struct("<" + codes.replace("u", "?16s"))
    single = len(codes) == 1

    def write_items(out: FrameWriter, values: Sequence[Any]) -> None:
        content = bytearray()
        for value in values:
            flat: list[Any] = []
            for code, part in zip(codes, (value,) if single else value, strict=True):
                flat += (False, _uuid_out(part)) if code == "u" else (part,)
            try:
                content += packing.pack(*flat)
            except struct.error as error:
                raise ProtocolError(f"an item does not fit into its list: {error}") from error
        out.put(bytes(content))

    def read_items(frames: FrameReader) -> list[Any]:
        content = frames.take()
        _item_count(content, packing.size)
        values: list[Any] = []
        for flat in packing.iter_unpack(content):
            parts = iter(flat)
            item = [
                _uuid_or_nil(next(parts), next(parts)) if code == "u" else next(parts)
                for code in codes
            ]
            values.append(item[0] if single else tuple(item))
        return values

    return write_items, read_items


def _uuid_or_nil(null: bool, raw: bytes) -> bytes:
    return NIL_UUID if null else _uuid_in(raw)


def _item_count(content: bytes, size: int) -> int:
    if len(content) % size:
        raise ProtocolError(f"a packed list of {len(content)} bytes has items of {size} bytes")
    return len(content) // size


_write_ints, _read_ints = _numbers("i")
_write_uuids, _read_uuids = _items("u")
_write_int_lists, _read_int_lists = _list(_write_ints, _read_ints)


def _write_table(out: FrameWriter, rows: Sequence[tuple[bytes | str, Sequence[int]]]) -> None:
    """The partition table: per member its partitions, then all members in one frame."""
    _write_int_lists(out, [partitions for _, partitions in rows])
    _write_uuids(out, [member for member, _ in rows])


def _read_table(frames: FrameReader) -> list[tuple[bytes, list[int]]]:
    partitions = _read_int_lists(frames)
    members = _read_uuids(frames)
    if len(partitions) != len(members):
        raise ProtocolError("the partition table has not one list per member")
    return list(zip(members, partitions, strict=True))


# -- structs ------------------------------------------------------------------------------


class FixedFields:
    """The fixed-size fields of a first frame, packed one behind the other."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = [field for field in fields if field.type in FIXED_TYPES]
        self._packing = struct.Struct(
            "<" + "".join(_FIXED_FORMATS[field.type] for field in self.fields)
        )
        self.bytes = self._packing.size

    def pack(self, values: Fields, what: str) -> bytes:
        """The bytes of the fields; late ones that are not given get their default."""
        flat: list[Any] = []
        for field in self.fields:
            value = values.get(field.name)
            if value is None and field.late:
                value = _LATE_DEFAULTS[field.type]
            if field.type == "uuid":
                if value is None and not field.nullable:
                    raise ProtocolError(f"{what}: the uuid {field.name!r} is missing")
                flat += (True, NIL_UUID) if value is None else (False, _uuid_out(value))
            else:
                flat.append(value)
        try:
            return self._packing.pack(*flat)
        except struct.error as error:
            raise ProtocolError(f"{what}: a fixed-size field does not fit: {error}") from error

    def unpack(self, content: bytes, offset: int, values: Fields, what: str) -> None:
        """Put the fields into ``values``; late ones that are absent become None."""
        if len(content) - offset >= self.bytes:
            flat = iter(self._packing.unpack_from(content, offset))
            for field in self.fields:
                values[field.name] = self._value(field, flat, what)
            return
        for field in self.fields:
            packing = struct.Struct("<" + _FIXED_FORMATS[field.type])
            if len(content) - offset < packing.size:
                if not field.late:
                    raise ProtocolError(f"{what}: too short for the field {field.name!r}")
                values[field.name] = None
                continue
            values[field.name] = self._value(
                field, iter(packing.unpack_from(content, offset)), what
            )
            offset += packing.size

    @staticmethod
    def _value(field: Field, flat: Iterator[Any], what: str) -> Any:
        value = next(flat)
        if field.type != "uuid":
            return value
        raw = next(flat)
        if not value:
            return _uuid_in(raw)
        if not field.nullable:
            raise ProtocolError(f"{what}: the uuid {field.name!r} is null")
        return None


_LATE_DEFAULTS: dict[str, Any] = {"bool": False, "byte": 0, "int": -1, "long": -1, "uuid": None}


class VariableFields:
    """The fields that have frames of their own."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields: list[tuple[Field, Write, Read]] = []
        for field in fields:
            if field.type not in FIXED_TYPES:
                write, read = value_codec(field.type)
                if field.nullable:
                    write, read = _nullable(write, read)
                self._fields.append((field, write, read))

    def write(self, out: FrameWriter, values: Fields, what: str) -> None:
        """Add the frames of the fields; late ones that are not given are empty."""
        for field, write, _ in self._fields:
            value = values.get(field.name)
            if value is None and not field.nullable:
                if not field.late:
                    raise ProtocolError(f"{what}: the field {field.name!r} is missing")
                value = ()
            if value == () and field.type.startswith("map_"):
                value = {}
            write(out, value)

    def read(self, frames: FrameReader, values: Fields, what: str) -> None:
        """Put the fields into ``values``; late ones that are absent become None."""
        for field, _, read in self._fields:
            if field.late and frames.at_end():
                values[field.name] = None
                continue
            try:
                values[field.name] = read(frames)
            except ProtocolError as error:
                raise ProtocolError(f"{what}: {field.name}: {error}") from error


def _custom(name: str) -> tuple[Write, Read]:
    kind, fields = CUSTOM_FIELDS[name]
    fixed, variable = FixedFields(fields), VariableFields(fields)
    names = [field.name for field in fields]

    def write_custom(out: FrameWriter, value: Any) -> None:
        values = {field: getattr(value, field) for field in names}
        out.mark(BEGIN)
        if fixed.bytes:
            out.put(fixed.pack(values, name))
        variable.write(out, values, name)
        out.mark(END)

    def read_custom(frames: FrameReader) -> Any:
        values: Fields = {}
        frames.begin()
        if fixed.bytes:
            fixed.unpack(frames.take(), 0, values, name)
        variable.read(frames, values, name)
        frames.end()
        return kind(**values)

    return write_custom, read_custom


# -- types by name ------------------------------------------------------------------------

_STRING: tuple[Write, Read] = (_write_string, _read_string)
_BYTES: tuple[Write, Read] = (_write_bytes, FrameReader.take)
_DATA: tuple[Write, Read] = (_write_bytes, _read_data)
_SIMPLE: dict[str, tuple[Write, Read]] = {
    "string": _STRING,
    "bytes": _BYTES,
    "data": _DATA,
    "skipped": (_write_skipped, _read_skipped),
    "ints": (_write_ints, _read_ints),
    "longs": _numbers("q"),
    "uuids": (_write_uuids, _read_uuids),
    "pairs_int_int": _items("ii"),
    "pairs_int_long": _items("iq"),
    "pairs_int_uuid": _items("iu"),
    "pairs_uuid_uuid": _items("uu"),
    "partition_table": (_write_table, _read_table),
    "list_data_or_null": _list(*_nullable(*_DATA)),
    "list_data": (_write_data_list, _read_data_list),
    "entries_data_data": (_write_data_entries, _read_data_entries),
    "entries_data_list_data": _entries(*_DATA, _write_data_list, _read_data_list),
    "entries_string_string": _entries(*_STRING, *_STRING),
    "entries_string_bytes": _entries(*_STRING, *_BYTES),
    "entries_string_pairs_int_long": _entries(*_STRING, *_items("iq")),
    "map_string_string": _map(_entries(*_STRING, *_STRING)),
}


@cache
def value_codec(type_name: str) -> tuple[Write, Read]:
    """Writer and reader of a value with frames of its own, by its type in the table."""
    if type_name in _SIMPLE:
        return _SIMPLE[type_name]
    if type_name == "endpoint_map":
        return _map(_entries(*value_codec("EndpointQualifier"), *value_codec("Address")))
    if type_name.startswith("list_"):
        return _list(*value_codec(type_name.removeprefix("list_")))
    return _custom(type_name)
