"""Structures of the client protocol that are more than one value, as frozen structs of ours.

``CUSTOM_FIELDS`` tells ``codec`` how each travels: fields in the order of the protocol's custom
type definitions, in the notation of ``protocol_table``. The struct's attributes have the same
names in the same order.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address
from whimbrel.serialization.compact import CompactSchema
from whimbrel.wire.protocol_table import Field, parse_fields


class EndpointQualifier(msgspec.Struct, frozen=True):
    """For whom an address of a member is meant."""

    type: int
    identifier: str | None = None


class MemberVersion(msgspec.Struct, frozen=True):
    """Version of a member's software."""

    major: int
    minor: int
    patch: int


class ClientMember(msgspec.Struct, frozen=True):
    """A member as clients see it (``MemberInfo`` of the client protocol)."""

    address: Address
    uuid: bytes
    attributes: dict[str, str]
    lite_member: bool
    version: MemberVersion
    address_map: dict[EndpointQualifier, Address] | None = None
    """Keyed by ``EndpointQualifier``; empty when the one address serves everybody."""


class Version(msgspec.Struct, frozen=True):
    """Version of a cluster."""

    major: int
    minor: int


class DistributedObjectInfo(msgspec.Struct, frozen=True):
    """A structure that exists."""

    service_name: str
    name: str


class StackTraceElement(msgspec.Struct, frozen=True):
    """A place in a program."""

    class_name: str
    method_name: str
    file_name: str | None
    line_number: int


class ErrorHolder(msgspec.Struct, frozen=True):
    """An error as it travels; further holders in the same list are its causes."""

    error_code: int
    class_name: str
    message: str | None
    stack_trace_elements: list[StackTraceElement]


class SimpleEntryView(msgspec.Struct, frozen=True):
    """A map entry with its book-keeping. Times are milliseconds of the wall clock."""

    key: bytes
    value: bytes
    cost: int
    creation_time: int
    expiration_time: int
    hits: int
    last_access_time: int
    last_stored_time: int
    last_update_time: int
    version: int
    ttl: int
    max_idle: int


class FieldDescriptor(msgspec.Struct, frozen=True):
    """Name and kind of a field of a Compact schema."""

    field_name: str
    kind: int


class Schema(msgspec.Struct, frozen=True):
    """A Compact schema as it travels."""

    type_name: str
    fields: list[FieldDescriptor]

    @staticmethod
    def of(schema: CompactSchema) -> Schema:
        """What travels of a schema."""
        fields = [FieldDescriptor(field.name, field.kind) for field in schema.fields]
        return Schema(schema.type_name, fields)

    def compact(self) -> CompactSchema:
        """The schema that travelled.

        Raises:
            SerializationError: It is none; see ``CompactSchema``.
        """
        return CompactSchema(self.type_name, [(each.field_name, each.kind) for each in self.fields])


class MigrationState(msgspec.Struct, frozen=True):
    """How far the migrations of a plan are. Times in milliseconds."""

    start_time: int
    planned_migrations: int
    completed_migrations: int
    total_elapsed_time: int


class AnchorDataListHolder(msgspec.Struct, frozen=True):
    """Where the pages of a paging query begin."""

    anchor_page_list: list[int]
    anchor_data_list: list[tuple[bytes, bytes]]


class PagingPredicateHolder(msgspec.Struct, frozen=True):
    """A paging query."""

    anchor_data_list_holder: AnchorDataListHolder
    predicate_data: bytes | None
    comparator_data: bytes | None
    page_size: int
    page: int
    iteration_type_id: int
    partition_key_data: bytes | None
    partition_keys_data: list[bytes] | None = None


class BitmapIndexOptions(msgspec.Struct, frozen=True):
    """Options of a bitmap index."""

    unique_key: str
    unique_key_transformation: int


class IndexConfig(msgspec.Struct, frozen=True):
    """An index somebody asks for. The B-tree part is skipped when read, null when written."""

    name: str | None
    type: int
    attributes: list[str]
    bitmap_index_options: BitmapIndexOptions | None = None
    b_tree_index_config: None = None


_NOTATION: tuple[tuple[str, type, str], ...] = (
    ("Address", Address, "host:string port:int"),
    ("EndpointQualifier", EndpointQualifier, "type:int identifier:string?"),
    ("MemberVersion", MemberVersion, "major:byte minor:byte patch:byte"),
    (
        "MemberInfo",
        ClientMember,
        "address:Address uuid:uuid attributes:map_string_string lite_member:bool "
        "version:MemberVersion address_map:endpoint_map+",
    ),
    ("Version", Version, "major:byte minor:byte"),
    ("DistributedObjectInfo", DistributedObjectInfo, "service_name:string name:string"),
    (
        "StackTraceElement",
        StackTraceElement,
        "class_name:string method_name:string file_name:string? line_number:int",
    ),
    (
        "ErrorHolder",
        ErrorHolder,
        "error_code:int class_name:string message:string? "
        "stack_trace_elements:list_StackTraceElement",
    ),
    (
        "SimpleEntryView",
        SimpleEntryView,
        "key:data value:data cost:long creation_time:long expiration_time:long hits:long "
        "last_access_time:long last_stored_time:long last_update_time:long version:long "
        "ttl:long max_idle:long",
    ),
    ("FieldDescriptor", FieldDescriptor, "field_name:string kind:int"),
    ("Schema", Schema, "type_name:string fields:list_FieldDescriptor"),
    (
        "MigrationState",
        MigrationState,
        "start_time:long planned_migrations:int completed_migrations:int total_elapsed_time:long",
    ),
    (
        "AnchorDataListHolder",
        AnchorDataListHolder,
        "anchor_page_list:ints anchor_data_list:entries_data_data",
    ),
    (
        "PagingPredicateHolder",
        PagingPredicateHolder,
        "anchor_data_list_holder:AnchorDataListHolder predicate_data:data? comparator_data:data? "
        "page_size:int page:int iteration_type_id:byte partition_key_data:data? "
        "partition_keys_data:list_data?+",
    ),
    ("BitmapIndexOptions", BitmapIndexOptions, "unique_key:string unique_key_transformation:int"),
    (
        "IndexConfig",
        IndexConfig,
        "name:string? type:int attributes:list_string bitmap_index_options:BitmapIndexOptions? "
        "b_tree_index_config:skipped?+",
    ),
)

CUSTOM_FIELDS: dict[str, tuple[type, tuple[Field, ...]]] = {
    name: (kind, parse_fields(fields)) for name, kind, fields in _NOTATION
}
"""Protocol type name to our struct and its fields."""
