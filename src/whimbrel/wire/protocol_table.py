"""The one table of client protocol messages whose shapes we know: those of services offered here.

For each message: its name, its number, the fields of request, response and events in the order
of the protocol's definitions (2.10), and whether a client may repeat it. ``codec`` turns the
table into readers and writers; nothing else knows field orders.

Notation: fields are ``name:type`` separated by spaces. A trailing ``?`` on the type means that
the value may be null; a trailing ``+`` means that the field came after protocol 2.0, so older
peers leave it out (it then reads as None). Field names are the protocol's, in snake case.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.wire.protocol_names import NAMES

FIXED_TYPES = ("bool", "byte", "int", "long", "uuid")
"""Types that are packed into a first frame; all others are frames of their own."""


class Field(NamedTuple):
    """One field of a message or custom type."""

    name: str
    type: str
    nullable: bool
    late: bool
    """Whether older peers leave it out."""


class EventShape(NamedTuple):
    """One kind of event that a registration produces."""

    name: str
    type: int
    fields: tuple[Field, ...]


class MessageShape(NamedTuple):
    """One request with its response and events."""

    name: str
    type: int
    """Type of the request; the response's is one higher, then come the events'."""
    retryable: bool
    request: tuple[Field, ...]
    response: tuple[Field, ...]
    events: tuple[EventShape, ...]

    @property
    def response_type(self) -> int:
        """Type of the response."""
        return self.type + 1


def parse_fields(notation: str) -> tuple[Field, ...]:
    """Fields from the notation in the module's docstring."""
    fields = []
    for word in notation.split():
        name, _, kind = word.partition(":")
        late = kind.endswith("+")
        kind = kind.removesuffix("+")
        fields.append(Field(name, kind.removesuffix("?"), kind.endswith("?"), late))
    return tuple(fields)


_RETRY, _ONCE = True, False
"""Whether a client repeats the request by itself after a lost connection."""

_AUTHENTICATED = (
    "status:byte address:Address? member_uuid:uuid? serialization_version:byte "
    "server_version:string partition_count:int cluster_id:uuid failover_supported:bool "
    "tpc_ports:ints?+ tpc_token:bytes?+ member_list_version:int+ "
    "member_infos:list_MemberInfo+ partition_list_version:int+ partitions:partition_table+ "
    "key_value_pairs:map_string_string+"
)
_CLIENT_FACTS = (
    "uuid:uuid? client_type:string serialization_version:byte client_version:string "
    "client_name:string labels:list_string routing_mode:byte+ cp_direct_to_leader_routing:bool+"
)
_BYE = "registration_id:uuid"
_REGISTERED = "response:uuid"
_FLAG = "response:bool"

_Row = tuple[int, str, bool, str, str, tuple[tuple[str, str], ...]]

_CLIENT: tuple[_Row, ...] = (
    (
        0x01,
        "authentication",
        _RETRY,
        f"cluster_name:string username:string? password:string? {_CLIENT_FACTS}",
        _AUTHENTICATED,
        (),
    ),
    (
        0x02,
        "authenticationCustom",
        _RETRY,
        f"cluster_name:string credentials:bytes {_CLIENT_FACTS}",
        _AUTHENTICATED,
        (),
    ),
    (
        0x03,
        "addClusterViewListener",
        _ONCE,
        "",
        "",
        (
            ("members_view", "version:int member_infos:list_MemberInfo"),
            ("partitions_view", "version:int partitions:partition_table"),
            ("member_groups_view", "version:int member_groups:list_uuids"),
            ("cluster_version", "version:Version"),
        ),
    ),
    (0x04, "createProxy", _ONCE, "name:string service_name:string", "", ()),
    (0x05, "destroyProxy", _ONCE, "name:string service_name:string", "", ()),
    (
        0x06,
        "addPartitionLostListener",
        _ONCE,
        "local_only:bool",
        _REGISTERED,
        (("partition_lost", "partition_id:int lost_backup_count:int source:uuid?"),),
    ),
    (0x07, "removePartitionLostListener", _RETRY, _BYE, _FLAG, ()),
    (0x08, "getDistributedObjects", _ONCE, "", "response:list_DistributedObjectInfo", ()),
    (
        0x09,
        "addDistributedObjectListener",
        _ONCE,
        "local_only:bool",
        _REGISTERED,
        (
            (
                "distributed_object",
                "name:string service_name:string event_type:string source:uuid",
            ),
        ),
    ),
    (0x0A, "removeDistributedObjectListener", _RETRY, _BYE, _FLAG, ()),
    (0x0B, "ping", _RETRY, "", "", ()),
    (
        0x0C,
        "statistics",
        _ONCE,
        "timestamp:long client_attributes:string metrics_blob:bytes",
        "",
        (),
    ),
    (0x0D, "deployClasses", _ONCE, "class_definitions:entries_string_bytes", "", ()),
    (0x0E, "createProxies", _ONCE, "proxies:entries_string_string", "", ()),
    (
        0x0F,
        "localBackupListener",
        _ONCE,
        "",
        _REGISTERED,
        (("backup", "source_correlation_id:long"),),
    ),
    (0x10, "triggerPartitionAssignment", _RETRY, "", "", ()),
    (
        0x11,
        "addMigrationListener",
        _ONCE,
        "local_only:bool",
        _REGISTERED,
        (
            ("migration", "migration_state:MigrationState type:int"),
            (
                "replica_migration",
                "migration_state:MigrationState partition_id:int replica_index:int "
                "source_uuid:uuid? dest_uuid:uuid? success:bool elapsed_time:long",
            ),
        ),
    ),
    (0x12, "removeMigrationListener", _RETRY, _BYE, _FLAG, ()),
    (0x13, "sendSchema", _RETRY, "schema:Schema", "replicated_members:uuids", ()),
    (0x14, "fetchSchema", _RETRY, "schema_id:long", "schema:Schema?", ()),
    (0x15, "sendAllSchemas", _RETRY, "schemas:list_Schema", "", ()),
    (0x16, "tpcAuthentication", _RETRY, "uuid:uuid token:bytes", "", ()),
    (0x17, "addCPGroupViewListener", _ONCE, "", "", ()),
)
"""Service 0. The CP group view's event is left out: the request is refused by name."""

_KEY = "name:string key:data thread_id:long"
_PUT = "name:string key:data value:data thread_id:long ttl:long"
_PUT_IDLE = f"{_PUT} max_idle:long"
_OLD = "response:data?"
_NAME = "name:string"
_ALL_KEYS = "response:list_data"
_ALL_ENTRIES = "response:entries_data_data"
_ANCHORS = "anchor_data_list:AnchorDataListHolder"
_POINTERS = "iteration_pointers:pairs_int_int"
_FILTER = "include_value:bool listener_flags:int local_only:bool"
_ENTRY_EVENT = (
    (
        "entry",
        "key:data? value:data? old_value:data? merging_value:data? event_type:int uuid:uuid "
        "affected_entries:int",
    ),
)

_MAP: tuple[_Row, ...] = (
    (0x01, "put", _ONCE, _PUT, _OLD, ()),
    (0x02, "get", _RETRY, _KEY, _OLD, ()),
    (0x03, "remove", _ONCE, _KEY, _OLD, ()),
    (0x04, "replace", _ONCE, "name:string key:data value:data thread_id:long", _OLD, ()),
    (
        0x05,
        "replaceIfSame",
        _ONCE,
        "name:string key:data test_value:data value:data thread_id:long",
        _FLAG,
        (),
    ),
    (0x06, "containsKey", _RETRY, _KEY, _FLAG, ()),
    (0x07, "containsValue", _RETRY, "name:string value:data", _FLAG, ()),
    (0x08, "removeIfSame", _ONCE, "name:string key:data value:data thread_id:long", _FLAG, ()),
    (0x09, "delete", _ONCE, _KEY, "response:bool+", ()),
    (0x0A, "flush", _ONCE, _NAME, "", ()),
    (0x0B, "tryRemove", _ONCE, f"{_KEY} timeout:long", _FLAG, ()),
    (
        0x0C,
        "tryPut",
        _ONCE,
        "name:string key:data value:data thread_id:long timeout:long",
        _FLAG,
        (),
    ),
    (0x0D, "putTransient", _ONCE, _PUT, "", ()),
    (0x0E, "putIfAbsent", _ONCE, _PUT, _OLD, ()),
    (0x0F, "set", _ONCE, _PUT, "", ()),
    (0x10, "lock", _RETRY, f"{_KEY} ttl:long reference_id:long", "", ()),
    (0x11, "tryLock", _RETRY, f"{_KEY} lease:long timeout:long reference_id:long", _FLAG, ()),
    (0x12, "isLocked", _RETRY, "name:string key:data", _FLAG, ()),
    (0x13, "unlock", _RETRY, f"{_KEY} reference_id:long", "", ()),
    (0x14, "addInterceptor", _ONCE, "name:string interceptor:data", "response:string", ()),
    (0x15, "removeInterceptor", _ONCE, "name:string id:string", _FLAG, ()),
    (
        0x16,
        "addEntryListenerToKeyWithPredicate",
        _ONCE,
        f"name:string key:data predicate:data {_FILTER}",
        _REGISTERED,
        _ENTRY_EVENT,
    ),
    (
        0x17,
        "addEntryListenerWithPredicate",
        _ONCE,
        f"name:string predicate:data {_FILTER}",
        _REGISTERED,
        _ENTRY_EVENT,
    ),
    (
        0x18,
        "addEntryListenerToKey",
        _ONCE,
        f"name:string key:data {_FILTER}",
        _REGISTERED,
        _ENTRY_EVENT,
    ),
    (0x19, "addEntryListener", _ONCE, f"name:string {_FILTER}", _REGISTERED, _ENTRY_EVENT),
    (0x1A, "removeEntryListener", _RETRY, f"name:string {_BYE}", _FLAG, ()),
    (
        0x1B,
        "addPartitionLostListener",
        _ONCE,
        "name:string local_only:bool",
        _REGISTERED,
        (("map_partition_lost", "partition_id:int uuid:uuid"),),
    ),
    (0x1C, "removePartitionLostListener", _RETRY, f"name:string {_BYE}", _FLAG, ()),
    (0x1D, "getEntryView", _RETRY, _KEY, "response:SimpleEntryView? max_idle:long", ()),
    (0x1E, "evict", _ONCE, _KEY, _FLAG, ()),
    (0x1F, "evictAll", _ONCE, _NAME, "", ()),
    (0x20, "loadAll", _ONCE, "name:string replace_existing_values:bool", "", ()),
    (
        0x21,
        "loadGivenKeys",
        _ONCE,
        "name:string keys:list_data replace_existing_values:bool",
        "",
        (),
    ),
    (0x22, "keySet", _RETRY, _NAME, _ALL_KEYS, ()),
    (0x23, "getAll", _ONCE, "name:string keys:list_data", _ALL_ENTRIES, ()),
    (0x24, "values", _RETRY, _NAME, _ALL_KEYS, ()),
    (0x25, "entrySet", _RETRY, _NAME, _ALL_ENTRIES, ()),
    (0x26, "keySetWithPredicate", _RETRY, "name:string predicate:data", _ALL_KEYS, ()),
    (0x27, "valuesWithPredicate", _RETRY, "name:string predicate:data", _ALL_KEYS, ()),
    (0x28, "entriesWithPredicate", _RETRY, "name:string predicate:data", _ALL_ENTRIES, ()),
    (0x29, "addIndex", _ONCE, "name:string index_config:IndexConfig", "", ()),
    (0x2A, "size", _RETRY, _NAME, "response:int", ()),
    (0x2B, "isEmpty", _RETRY, _NAME, _FLAG, ()),
    (
        0x2C,
        "putAll",
        _ONCE,
        "name:string entries:entries_data_data trigger_map_loader:bool+",
        "",
        (),
    ),
    (0x2D, "clear", _ONCE, _NAME, "", ()),
    (
        0x2E,
        "executeOnKey",
        _ONCE,
        "name:string entry_processor:data key:data thread_id:long",
        _OLD,
        (),
    ),
    (
        0x2F,
        "submitToKey",
        _ONCE,
        "name:string entry_processor:data key:data thread_id:long",
        _OLD,
        (),
    ),
    (0x30, "executeOnAllKeys", _ONCE, "name:string entry_processor:data", _ALL_ENTRIES, ()),
    (
        0x31,
        "executeWithPredicate",
        _ONCE,
        "name:string entry_processor:data predicate:data",
        _ALL_ENTRIES,
        (),
    ),
    (
        0x32,
        "executeOnKeys",
        _ONCE,
        "name:string entry_processor:data keys:list_data",
        _ALL_ENTRIES,
        (),
    ),
    (0x33, "forceUnlock", _RETRY, "name:string key:data reference_id:long", "", ()),
    (
        0x34,
        "keySetWithPagingPredicate",
        _RETRY,
        "name:string predicate:PagingPredicateHolder",
        f"response:list_data {_ANCHORS}",
        (),
    ),
    (
        0x35,
        "valuesWithPagingPredicate",
        _RETRY,
        "name:string predicate:PagingPredicateHolder",
        f"response:list_data {_ANCHORS}",
        (),
    ),
    (
        0x36,
        "entriesWithPagingPredicate",
        _RETRY,
        "name:string predicate:PagingPredicateHolder",
        f"response:entries_data_data {_ANCHORS}",
        (),
    ),
    (
        0x37,
        "fetchKeys",
        _RETRY,
        f"name:string {_POINTERS} batch:int",
        f"{_POINTERS} keys:list_data",
        (),
    ),
    (
        0x38,
        "fetchEntries",
        _RETRY,
        f"name:string {_POINTERS} batch:int",
        f"{_POINTERS} entries:entries_data_data",
        (),
    ),
    (0x39, "aggregate", _RETRY, "name:string aggregator:data", _OLD, ()),
    (
        0x3A,
        "aggregateWithPredicate",
        _RETRY,
        "name:string aggregator:data predicate:data",
        _OLD,
        (),
    ),
    (0x3B, "project", _RETRY, "name:string projection:data", "response:list_data_or_null", ()),
    (
        0x3C,
        "projectWithPredicate",
        _RETRY,
        "name:string projection:data predicate:data",
        "response:list_data_or_null",
        (),
    ),
    (
        0x3D,
        "fetchNearCacheInvalidationMetadata",
        _ONCE,
        "names:list_string uuid:uuid",
        "name_partition_sequences:entries_string_pairs_int_long partition_uuids:pairs_int_uuid",
        (),
    ),
    (0x3E, "removeAll", _ONCE, "name:string predicate:data", "", ()),
    (
        0x3F,
        "addNearCacheInvalidationListener",
        _ONCE,
        "name:string listener_flags:int local_only:bool",
        _REGISTERED,
        (
            ("invalidation", "key:data? source_uuid:uuid partition_uuid:uuid sequence:long"),
            (
                "batch_invalidation",
                "keys:list_data source_uuids:uuids partition_uuids:uuids sequences:longs",
            ),
        ),
    ),
    (
        0x40,
        "fetchWithQuery",
        _RETRY,
        f"name:string {_POINTERS} batch:int projection:data predicate:data",
        f"results:list_data_or_null {_POINTERS}",
        (),
    ),
    (
        0x41,
        "eventJournalSubscribe",
        _RETRY,
        _NAME,
        "oldest_sequence:long newest_sequence:long",
        (),
    ),
    (
        0x42,
        "eventJournalRead",
        _RETRY,
        "name:string start_sequence:long min_size:int max_size:int predicate:data? "
        "projection:data?",
        "read_count:int items:list_data item_sequences:longs? next_sequence:long",
        (),
    ),
    (0x43, "setTtl", _ONCE, "name:string key:data ttl:long", _FLAG, ()),
    (0x44, "putWithMaxIdle", _ONCE, _PUT_IDLE, _OLD, ()),
    (0x45, "putTransientWithMaxIdle", _ONCE, _PUT_IDLE, _OLD, ()),
    (0x46, "putIfAbsentWithMaxIdle", _ONCE, _PUT_IDLE, _OLD, ()),
    (0x47, "setWithMaxIdle", _ONCE, _PUT_IDLE, _OLD, ()),
    (0x48, "replaceAll", _RETRY, "name:string function:data", "", ()),
    (0x49, "putAllWithMetadata", _ONCE, "name:string entries:list_SimpleEntryView", "", ()),
)
"""Service 1, all 73 messages."""

_VALUE = "name:string value:data"
_KEY_VALUE = "name:string key:data value:data thread_id:long"
_SHOWN = "include_value:bool local_only:bool"

_MULTIMAP: tuple[_Row, ...] = (
    (0x01, "put", _ONCE, _KEY_VALUE, _FLAG, ()),
    (0x02, "get", _RETRY, _KEY, _ALL_KEYS, ()),
    (0x03, "remove", _ONCE, _KEY, _ALL_KEYS, ()),
    (0x04, "keySet", _RETRY, _NAME, _ALL_KEYS, ()),
    (0x05, "values", _RETRY, _NAME, _ALL_KEYS, ()),
    (0x06, "entrySet", _RETRY, _NAME, _ALL_ENTRIES, ()),
    (0x07, "containsKey", _RETRY, _KEY, _FLAG, ()),
    (0x08, "containsValue", _RETRY, _VALUE, _FLAG, ()),
    (0x09, "containsEntry", _RETRY, _KEY_VALUE, _FLAG, ()),
    (0x0A, "size", _RETRY, _NAME, "response:int", ()),
    (0x0B, "clear", _ONCE, _NAME, "", ()),
    (0x0C, "valueCount", _RETRY, _KEY, "response:int", ()),
    (
        0x0D,
        "addEntryListenerToKey",
        _ONCE,
        f"name:string key:data {_SHOWN}",
        _REGISTERED,
        _ENTRY_EVENT,
    ),
    (0x0E, "addEntryListener", _ONCE, f"name:string {_SHOWN}", _REGISTERED, _ENTRY_EVENT),
    (0x0F, "removeEntryListener", _RETRY, f"name:string {_BYE}", _FLAG, ()),
    (0x10, "lock", _RETRY, f"{_KEY} ttl:long reference_id:long", "", ()),
    (0x11, "tryLock", _RETRY, f"{_KEY} lease:long timeout:long reference_id:long", _FLAG, ()),
    (0x12, "isLocked", _RETRY, "name:string key:data", _FLAG, ()),
    (0x13, "unlock", _RETRY, f"{_KEY} reference_id:long", "", ()),
    (0x14, "forceUnlock", _RETRY, "name:string key:data reference_id:long", "", ()),
    (0x15, "removeEntry", _ONCE, _KEY_VALUE, _FLAG, ()),
    (0x16, "delete", _ONCE, _KEY, "", ()),
    (0x17, "putAll", _ONCE, "name:string entries:entries_data_list_data", "", ()),
)
"""Service 2, all 23 messages."""
_ITEMS = "name:string data_list:list_data"
_WAIT = "timeout_millis:long"

_QUEUE: tuple[_Row, ...] = (
    (0x01, "offer", _ONCE, f"{_VALUE} {_WAIT}", _FLAG, ()),
    (0x02, "put", _ONCE, _VALUE, "", ()),
    (0x03, "size", _ONCE, _NAME, "response:int", ()),
    (0x04, "remove", _ONCE, _VALUE, _FLAG, ()),
    (0x05, "poll", _ONCE, f"{_NAME} {_WAIT}", _OLD, ()),
    (0x06, "take", _ONCE, _NAME, _OLD, ()),
    (0x07, "peek", _ONCE, _NAME, _OLD, ()),
    (0x08, "iterator", _ONCE, _NAME, "response:list_data", ()),
    (0x09, "drainTo", _ONCE, _NAME, "response:list_data", ()),
    (0x0A, "drainToMaxSize", _ONCE, f"{_NAME} max_size:int", "response:list_data", ()),
    (0x0B, "contains", _ONCE, _VALUE, _FLAG, ()),
    (0x0C, "containsAll", _ONCE, _ITEMS, _FLAG, ()),
    (0x0D, "compareAndRemoveAll", _ONCE, _ITEMS, _FLAG, ()),
    (0x0E, "compareAndRetainAll", _ONCE, _ITEMS, _FLAG, ()),
    (0x0F, "clear", _ONCE, _NAME, "", ()),
    (0x10, "addAll", _ONCE, _ITEMS, _FLAG, ()),
    (
        0x11,
        "addListener",
        _ONCE,
        f"{_NAME} include_value:bool local_only:bool",
        _REGISTERED,
        (("item", "item:data? uuid:uuid event_type:int"),),
    ),
    (0x12, "removeListener", _RETRY, f"{_NAME} {_BYE}", _FLAG, ()),
    (0x13, "remainingCapacity", _ONCE, _NAME, "response:int", ()),
    (0x14, "isEmpty", _ONCE, _NAME, _FLAG, ()),
)
"""Service 3, all 20 messages."""
_RINGBUFFER: tuple[_Row, ...] = (
    (0x01, "size", _RETRY, _NAME, "response:long", ()),
    (0x02, "tailSequence", _RETRY, _NAME, "response:long", ()),
    (0x03, "headSequence", _RETRY, _NAME, "response:long", ()),
    (0x04, "capacity", _RETRY, _NAME, "response:long", ()),
    (0x05, "remainingCapacity", _RETRY, _NAME, "response:long", ()),
    (0x06, "add", _ONCE, "name:string overflow_policy:int value:data", "response:long", ()),
    (0x07, "readOne", _RETRY, f"{_NAME} sequence:long", _OLD, ()),
    (
        0x08,
        "addAll",
        _ONCE,
        "name:string value_list:list_data overflow_policy:int",
        "response:long",
        (),
    ),
    (
        0x09,
        "readMany",
        _RETRY,
        "name:string start_sequence:long min_count:int max_count:int filter:data?",
        "read_count:int items:list_data item_seqs:longs? next_seq:long",
        (),
    ),
)
"""Service 23, all 9 messages."""
_FLAKE_ID_GENERATOR: tuple[_Row, ...] = (
    (
        0x01,
        "newIdBatch",
        _RETRY,
        "name:string batch_size:int",
        "base:long increment:long batch_size:int",
        (),
    ),
)
"""Service 28, its one message."""

_SERVICES: tuple[tuple[int, str, tuple[_Row, ...]], ...] = (
    (0x00, "Client", _CLIENT),
    (0x01, "Map", _MAP),
    (0x02, "MultiMap", _MULTIMAP),
    (0x03, "Queue", _QUEUE),
    (0x17, "Ringbuffer", _RINGBUFFER),
    (0x1C, "FlakeIdGenerator", _FLAKE_ID_GENERATOR),
)


def _shapes() -> dict[str, MessageShape]:
    table: dict[str, MessageShape] = {}
    for service, service_name, rows in _SERVICES:
        for number, method, retryable, request, response, events in rows:
            base = service << 16 | number << 8
            shapes = tuple(
                EventShape(event, base + 2 + at, parse_fields(fields))
                for at, (event, fields) in enumerate(events)
            )
            name = f"{service_name}.{method}"
            table[name] = MessageShape(
                name, base, retryable, parse_fields(request), parse_fields(response), shapes
            )
    return table


SHAPES: dict[str, MessageShape] = _shapes()
"""By name, for example ``Map.put``."""

BY_TYPE: dict[int, MessageShape] = {shape.type: shape for shape in SHAPES.values()}
"""By request type, for example ``0x010100``."""

ERROR_TYPE = 0
"""Type of the response that tells an error."""


def message_type(name: str) -> int:
    """The request type of a message by name; KeyError for a name we have no shape for."""
    return SHAPES[name].type


def message_name(kind: int) -> str | None:
    """The name of any request of the protocol by its type; None when there is no such message."""
    shape = BY_TYPE.get(kind)
    return shape.name if shape is not None else NAMES.get(kind)
