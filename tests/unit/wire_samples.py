"""Sample values for every type of the protocol table, ours and the official client's."""

from __future__ import annotations

import importlib
import random
import re
import struct
import uuid
from types import ModuleType
from typing import Any

from hazelcast.core import Address as ClientAddress
from hazelcast.core import DistributedObjectInfo, EndpointQualifier, MemberInfo, MemberVersion
from hazelcast.core import SimpleEntryView as ClientEntryView
from hazelcast.protocol import AnchorDataListHolder as ClientAnchors
from hazelcast.protocol import PagingPredicateHolder as ClientPaging
from hazelcast.protocol.client_message import Frame, InboundMessage
from hazelcast.serialization.compact import FIELD_OPERATIONS, FieldDescriptor, FieldKind, Schema
from hazelcast.serialization.data import Data

from whimbrel.core.ids import Address
from whimbrel.wire import custom_types
from whimbrel.wire.protocol_table import Field, MessageShape

_LIST = "list_"


def frame(content: bytes, flags: int = 0) -> bytes:
    """One frame of the client protocol."""
    return struct.pack("<iH", 6 + len(content), flags) + content


class Samples:
    """Seeded sample values by type name."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def data(self) -> bytes:
        return bytes(4) + self.random.randbytes(self.random.randrange(4, 30))

    def text(self) -> str:
        return self.random.choice(["", "a", "flights", "grüße", "名前", "x" * 300])

    def fields(self, fields: tuple[Field, ...], without_late: bool = False) -> dict[str, Any]:
        return {
            field.name: self.value(field) for field in fields if not (without_late and field.late)
        }

    def value(self, field: Field) -> Any:
        if field.nullable and self.random.random() < 0.3:
            return None
        return self.of(field.type)

    def of(self, kind: str) -> Any:
        if kind in custom_types.CUSTOM_FIELDS:
            struct, fields = custom_types.CUSTOM_FIELDS[kind]
            return struct(**{f.name: self.value(f) for f in fields})
        if kind.startswith(_LIST) and kind != "list_data_or_null":
            return [self.of(kind.removeprefix(_LIST)) for _ in range(self.random.randrange(4))]
        return getattr(self, "_" + kind)()

    def _bool(self) -> bool:
        return self.random.random() < 0.5

    def _byte(self) -> int:
        return self.random.randrange(128)

    def _int(self) -> int:
        return self.random.randrange(-(2**31), 2**31)

    def _long(self) -> int:
        return self.random.randrange(-(2**63), 2**63)

    def _uuid(self) -> bytes:
        return self.random.randbytes(16)

    def _string(self) -> str:
        return self.text()

    def _bytes(self) -> bytes:
        return self.random.randbytes(self.random.randrange(20))

    def _data(self) -> bytes:
        return self.data()

    def _skipped(self) -> None:
        return None

    def _many(self, *kinds: str) -> list[Any]:
        count = self.random.randrange(5)
        if len(kinds) == 1:
            return [self.of(kinds[0]) for _ in range(count)]
        return [tuple(self.of(kind) for kind in kinds) for _ in range(count)]

    def _ints(self) -> list[int]:
        return self._many("int")

    def _longs(self) -> list[int]:
        return self._many("long")

    def _uuids(self) -> list[bytes]:
        return self._many("uuid")

    def _pairs_int_int(self) -> list[Any]:
        return self._many("int", "int")

    def _pairs_int_long(self) -> list[Any]:
        return self._many("int", "long")

    def _pairs_int_uuid(self) -> list[Any]:
        return self._many("int", "uuid")

    def _partition_table(self) -> list[Any]:
        return self._many("uuid", "ints")

    def _list_data_or_null(self) -> list[bytes | None]:
        return [self.random.choice([None, self.data()]) for _ in range(4)]

    def _entries_data_data(self) -> list[Any]:
        return self._many("data", "data")

    def _entries_data_list_data(self) -> list[Any]:
        return self._many("data", "list_data")

    def _entries_string_string(self) -> list[Any]:
        return self._many("string", "string")

    def _entries_string_bytes(self) -> list[Any]:
        return self._many("string", "bytes")

    def _entries_string_pairs_int_long(self) -> list[Any]:
        return self._many("string", "pairs_int_long")

    def _map_string_string(self) -> dict[str, str]:
        return dict(self._many("string", "string"))

    def _endpoint_map(self) -> dict[Any, Any]:
        return {custom_types.EndpointQualifier(i, None): self.of("Address") for i in range(2)}


def client_value(kind: str, value: Any) -> Any:
    """Our value as the official client's codecs take and give it."""
    if value is None:
        return None
    if kind == "data":
        return Data(bytearray(value))
    if kind == "uuid":
        return uuid.UUID(bytes=value)
    if kind == "uuids":
        return [uuid.UUID(bytes=item) for item in value]
    if kind == "list_data_or_null":
        return [client_value("data", item) for item in value]
    if kind.startswith(_LIST):
        return [client_value(kind.removeprefix(_LIST), item) for item in value]
    if kind in (
        "entries_data_data", "entries_data_list_data", "partition_table", "pairs_int_uuid"
    ):  # fmt: skip
        types = {
            "entries_data_data": ("data", "data"),
            "entries_data_list_data": ("data", "list_data"),
            "partition_table": ("uuid", "ints"),
            "pairs_int_uuid": ("int", "uuid"),
        }[kind]
        return [tuple(map(client_value, types, item)) for item in value]
    return _CLIENT_STRUCTS[kind](value) if kind in _CLIENT_STRUCTS else value


def _client_member(value: custom_types.ClientMember) -> MemberInfo:
    return MemberInfo(
        client_value("Address", value.address),
        client_value("uuid", value.uuid),
        value.attributes,
        value.lite_member,
        MemberVersion(value.version.major, value.version.minor, value.version.patch),
        None,
        {
            EndpointQualifier(where.type, where.identifier): client_value("Address", at)
            for where, at in (value.address_map or {}).items()
        },
    )


def _client_view(view: custom_types.SimpleEntryView) -> ClientEntryView:
    times = [getattr(view, f.name) for f in custom_types.CUSTOM_FIELDS["SimpleEntryView"][1][2:]]
    return ClientEntryView(Data(bytearray(view.key)), Data(bytearray(view.value)), *times)


def _client_anchors(value: custom_types.AnchorDataListHolder) -> ClientAnchors:
    return ClientAnchors(
        value.anchor_page_list, client_value("entries_data_data", value.anchor_data_list)
    )


_CLIENT_STRUCTS: dict[str, Any] = {
    "Address": lambda v: ClientAddress(v.host, v.port),
    "DistributedObjectInfo": lambda v: DistributedObjectInfo(v.service_name, v.name),
    "MemberInfo": _client_member,
    "SimpleEntryView": _client_view,
    "AnchorDataListHolder": _client_anchors,
    "PagingPredicateHolder": lambda v: ClientPaging(
        _client_anchors(v.anchor_data_list_holder),
        client_value("data", v.predicate_data),
        client_value("data", v.comparator_data),
        v.page_size,
        v.page,
        v.iteration_type_id,
        client_value("data", v.partition_key_data),
    ),
}


def schema_pair(count: int) -> tuple[custom_types.Schema, Schema]:
    """The same schema, ours and the client's, with ``count`` fields of all kinds in turn."""
    kinds = [kind for kind in FieldKind if FIELD_OPERATIONS[kind] is not None]
    ours = [
        custom_types.FieldDescriptor(f"f{i:02}", int(kinds[i % len(kinds)])) for i in range(count)
    ]
    theirs = [FieldDescriptor(f.field_name, FieldKind(f.kind)) for f in ours]
    return custom_types.Schema("type", ours), Schema("type", theirs)


def plain(value: Any) -> Any:
    """Structures of the client as comparable tuples."""
    if isinstance(value, Data):
        return bytes(value.buffer)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return sorted(((plain(k), plain(v)) for k, v in value.items()), key=repr)
    if isinstance(value, uuid.UUID | str | bytes | bytearray | int) or value is None:
        return value
    if isinstance(value, Address):
        return plain(ClientAddress(value.host, value.port))
    names = getattr(value, "__slots__", None) or list(vars(value))
    return [plain(getattr(value, name)) for name in names]


def client_codec(shape: MessageShape) -> ModuleType | None:
    """The official client's codec module of a message; None when it has none."""
    snake = re.sub(r"(?<![.^])(?=[A-Z])", "_", f".{shape.name}")[1:].replace(".", "_").lower()
    try:
        return importlib.import_module(f"hazelcast.protocol.codec.{snake}_codec")
    except ModuleNotFoundError:
        return None


def inbound(message: bytes) -> InboundMessage:
    """Our bytes as the message object that the client's codecs read."""
    frames, position = [], 0
    while position < len(message):
        length = int.from_bytes(message[position : position + 4], "little")
        flags = int.from_bytes(message[position + 4 : position + 6], "little")
        frames.append(Frame(message[position + 6 : position + length], flags))
        position += length
    result = InboundMessage(frames[0])
    for frame in frames[1:]:
        result.add_frame(frame)
    return result
