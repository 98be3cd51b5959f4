"""The one table of configuration keys: name, kind, default, limits, old name, meaning.

Everything else in this package is derived from ``KEYS`` and ``STRUCTURE_KEYS``, and the latter from
the fields of each kind's settings. A key's unit is the end of its name (``_s`` seconds, ``_ms``,
``_bytes``); ``scale`` brings it to the unit of the field it fills. ``alias`` is the property name
that operators know from the papers (``hazelcast...``).
"""

from __future__ import annotations

import enum
from typing import Any, cast, get_args

import msgspec
from msgspec.inspect import (
    BoolType,
    Field,
    IntType,
    LiteralType,
    Metadata,
    StrType,
    StructType,
    UnionType,
    type_info,
)

from whimbrel.config.settings import RuntimeSettings, Value
from whimbrel.core.ids import BACKUP_COUNT_MAX
from whimbrel.core.persistence.encryption import PlainFiles
from whimbrel.core.settings import (
    CLUSTER_SIZE_MAX,
    DEFAULT_PATTERN,
    CoreSettings,
    Fsync,
    PersistenceSettings,
    Protects,
    RecoveryPolicy,
    StructureSettings,
)
from whimbrel.structures.kinds import KINDS

PORT_FIRST = 5701
"""Where the search for a free data port begins."""
ADMIN_OFFSET = 3_000
"""Distance of the admin port from the data port when none is given."""
PORT_MAX = 65_535
PROTECTS = get_args(Protects)
SETTINGS_TYPES: tuple[type[StructureSettings], ...] = tuple(kind.settings_type for kind in KINDS)
"""Of every kind of structure: its fields are the keys of its tables."""


class Kind(enum.StrEnum):
    """What kind of value a key takes."""

    INTEGER = "integer"
    SECONDS = "seconds"
    SWITCH = "switch"
    TEXT = "text"
    CHOICE = "choice"
    ADDRESSES = "addresses"
    HOST = "host"
    """A name or an address; an IPv6 address may stand in brackets."""


class Key(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    kind: Kind
    section: str
    """Which settings struct the value goes to: ``core``, its part ``persistence``, ``runtime``, or
    that of a kind of structure."""
    field: str
    doc: str
    minimum: float = 0
    maximum: float = 0
    scale: int = 1
    """The field's unit per unit of the key."""
    choices: tuple[str, ...] = ()
    alias: str = ""
    alias_scale: float = 1
    """The key's unit per unit of the alias: 0.001 for an alias in milliseconds."""
    optional: bool = False
    """The field may be None, which is its default."""
    shared: str = ""
    """The key of the cluster whose value holds where this one is not given."""

    @property
    def default(self) -> Value:
        """The default in the unit of the key."""
        value: Any = getattr(_DEFAULTS[self.section], self.field)
        if value is None or self.kind in (Kind.SWITCH, Kind.TEXT, Kind.CHOICE, Kind.HOST):
            return cast("Value", value)
        if self.kind is Kind.ADDRESSES:
            return tuple(str(address) for address in value)
        return _tidy(value / self.scale)


_DEFAULTS: dict[str, object] = {
    "core": CoreSettings(),
    "persistence": PersistenceSettings(),
    "runtime": RuntimeSettings(),
    **{settings.kind: settings(DEFAULT_PATTERN) for settings in SETTINGS_TYPES},
}


def _tidy(number: float) -> int | float:
    """The number as an int when it is whole."""
    return int(number) if number == int(number) else number


def _seconds(
    name: str,
    section: str,
    field: str,
    doc: str,
    minimum: float,
    maximum: float,
    alias: str = "",
    alias_scale: float = 1,
) -> Key:
    """A key in seconds for a field in microseconds."""
    return Key(
        name,
        Kind.SECONDS,
        section,
        field,
        doc,
        minimum,
        maximum,
        scale=1_000_000,
        alias=alias,
        alias_scale=alias_scale,
    )


def _integer(
    name: str,
    section: str,
    field: str,
    doc: str,
    minimum: int,
    maximum: int,
    alias: str = "",
    optional: bool = False,
) -> Key:
    """A whole number."""
    return Key(
        name, Kind.INTEGER, section, field, doc, minimum, maximum, alias=alias, optional=optional
    )


def _switch(name: str, section: str, field: str, doc: str, alias: str = "") -> Key:
    """True or false."""
    return Key(name, Kind.SWITCH, section, field, doc, alias=alias)


def _text(name: str, section: str, field: str, doc: str, length_max: int = 255) -> Key:
    """Words; ``maximum`` is the greatest length in characters."""
    return Key(name, Kind.TEXT, section, field, doc, 0, length_max)


def _choice(name: str, section: str, field: str, doc: str, choices: tuple[str, ...]) -> Key:
    """One of a few words."""
    return Key(name, Kind.CHOICE, section, field, doc, choices=choices)


_CLUSTER = (
    _text("cluster.name", "core", "cluster_name", "Members and clients of other names are refused"),
    _choice(
        "cluster.version",
        "core",
        "cluster_version",
        "Version of a cluster that this member founds: 4.0 has one table version and migrates one "
        "partition at a time; whoever joins a cluster follows the cluster's",
        ("4.1", "4.0"),
    ),
    _integer("cluster.events_max", "core", "events_max", "Events kept for operators", 10, 100_000),
    _integer(
        "cluster.history_max",
        "core",
        "history_max",
        "Finished migration processes kept for operators",
        50,
        10_000,
    ),
)

_NETWORK = (
    Key(
        "network.host",
        Kind.HOST,
        "runtime",
        "host",
        "Address to listen on; loopback unless insecure",
        maximum=255,
    ),
    _integer(
        "network.port",
        "runtime",
        "port",
        "Data port; unset takes the first free one from 5701 up, 0 any free one",
        0,
        PORT_MAX,
        optional=True,
    ),
    Key(
        "network.join",
        Kind.ADDRESSES,
        "runtime",
        "join",
        "Addresses where other members may be found; own and dead ones do no harm",
    ),
    _text(
        "network.advertise",
        "runtime",
        "advertise",
        "host, [IPv6 host], or one of them with :port, under which others reach this member",
    ),
    _switch(
        "network.insecure",
        "runtime",
        "insecure",
        "Confirms that a port without encryption may be open to the network",
    ),
    _integer(
        "network.clients_max", "runtime", "clients_max", "Client connections at once", 1, 1_000_000
    ),
    _integer(
        "network.undecided_max",
        "runtime",
        "undecided_max",
        "Connections that have not yet said who they are",
        10,
        1_000_000,
    ),
    _seconds(
        "network.handshake_timeout_s",
        "runtime",
        "handshake_timeout_us",
        "Time for a connection to authenticate or greet, and to finish a message it began",
        0.1,
        600,
    ),
    _integer(
        "network.client_high_water_bytes",
        "runtime",
        "client_high_water_bytes",
        "Unsent answers at which a client is not read from until it has read some",
        4_096,
        67_108_864,
    ),
    _integer(
        "network.link_backlog_bytes_max",
        "runtime",
        "link_backlog_bytes_max",
        "Unsent bytes to one member at which its connection is cut, unless it still takes some",
        1_048_576,
        4_294_967_296,
    ),
    _seconds(
        "network.stop_timeout_s",
        "runtime",
        "stop_timeout_us",
        "Time for the last bytes to leave when the member ends",
        0.01,
        60,
    ),
    _integer(
        "admin.port",
        "runtime",
        "admin_port",
        "Admin HTTP port; unset is data port + 3000",
        0,
        PORT_MAX,
        optional=True,
    ),
)

_MEMBER = (
    _switch("member.lite", "runtime", "lite", "A lite member holds no data"),
    _text(
        "member.data_dir",
        "runtime",
        "data_dir",
        "Directory that keeps the member's identity over restarts, and its data with "
        "persistence.enabled; empty: none",
        4_096,
    ),
    _seconds(
        "member.ready_wait_s",
        "runtime",
        "ready_wait_us",
        "Longest wait for the replicas of a member that has joined before it says that it is ready",
        0,
        3_600,
    ),
    _text("member.zone", "runtime", "zone", "Zone of the member, for partition.group = zone"),
    _text(
        "member.machine",
        "runtime",
        "machine",
        "Machine of the member, for partition.group = host; empty: the host name",
    ),
    _choice(
        "log.level",
        "runtime",
        "log_level",
        "Least important level that is logged",
        ("debug", "info", "warning", "error"),
    ),
    _choice(
        "log.format",
        "runtime",
        "log_format",
        "Log lines on stderr; auto is pretty on a terminal, else json",
        ("auto", "json", "pretty"),
    ),
)

_MEMBERSHIP = (
    _seconds(
        "membership.heartbeat_interval_s",
        "core",
        "heartbeat_interval_us",
        "Pause between heartbeats",
        0.05,
        60,
        "hazelcast.heartbeat.interval.seconds",
    ),
    _seconds(
        "membership.heartbeat_timeout_s",
        "core",
        "heartbeat_timeout_us",
        "Silence after which a member is suspected; at least twice the interval",
        0.1,
        3_600,
        "hazelcast.max.no.heartbeat.seconds",
    ),
    _seconds(
        "membership.join_window_s",
        "core",
        "join_window_us",
        "The master waits this long after a join request for further ones",
        0,
        60,
        "hazelcast.wait.seconds.before.join",
    ),
    _seconds(
        "membership.join_window_max_s",
        "core",
        "join_window_max_us",
        "Longest wait of the first of several joiners",
        0,
        600,
        "hazelcast.max.wait.seconds.before.join",
    ),
    _seconds(
        "membership.discovery_interval_s",
        "core",
        "discovery_interval_us",
        "Pause between two rounds of asking the join addresses",
        0.02,
        60,
    ),
    _seconds(
        "membership.join_timeout_s",
        "core",
        "join_timeout_us",
        "A member that is in no cluster after this time ends",
        1,
        86_400,
        "hazelcast.max.join.seconds",
    ),
    _seconds(
        "membership.claim_timeout_s",
        "core",
        "claim_timeout_us",
        "A new master drops members that do not answer its claim in this time",
        0.1,
        3_600,
        "hazelcast.mastership.claim.timeout.seconds",
    ),
    _seconds(
        "membership.state_lock_lease_s",
        "core",
        "state_lock_lease_us",
        "How long members stand still at most for a change of the cluster state",
        1,
        3_600,
    ),
    _seconds(
        "membership.call_timeout_s",
        "core",
        "call_timeout_us",
        "An unanswered request between members is repeated after this time",
        0.05,
        60,
    ),
    _seconds(
        "membership.leave_retry_s",
        "core",
        "leave_retry_us",
        "Pause before a leaving member asks the master again",
        0.05,
        60,
    ),
    _seconds(
        "membership.leave_timeout_s",
        "core",
        "leave_timeout_us",
        "Longest time a graceful leave may take",
        1,
        7 * 86_400,
        "hazelcast.graceful.shutdown.max.wait",
    ),
    _seconds(
        "membership.list_publish_interval_s",
        "core",
        "member_list_publish_interval_us",
        "Pause between publications of an unchanged member list",
        1,
        3_600,
        "hazelcast.member.list.publish.interval.seconds",
    ),
)

_PARTITION = (
    _integer(
        "partition.count",
        "core",
        "partition_count",
        "Number of partitions; the same on every member, for ever",
        1,
        65_536,
        "hazelcast.partition.count",
    ),
    _choice(
        "partition.depth",
        "core",
        "plan_depth",
        "Replica rows as deep as the structures need, or always seven",
        ("needed", "deep"),
    ),
    _choice(
        "partition.group",
        "core",
        "member_group",
        "What may not hold two replicas of one partition",
        ("member", "host", "zone", "custom"),
    ),
    _text(
        "partition.groups",
        "core",
        "member_group_patterns",
        "For partition.group = custom: address patterns, groups apart by ';', patterns by ','",
        4_000,
    ),
    _seconds(
        "partition.table_send_interval_s",
        "core",
        "table_send_interval_us",
        "Pause between comparisons of the partition tables",
        0.1,
        3_600,
        "hazelcast.partition.table.send.interval",
    ),
)

_MIGRATION = (
    _integer(
        "migration.max_parallel",
        "core",
        "migration_max_parallel",
        "Migrations a member takes part in at once, once there is a structure to copy",
        1,
        1_000,
        "hazelcast.partition.max.parallel.migrations",
    ),
    _seconds(
        "migration.interval_s",
        "core",
        "migration_interval_us",
        "Pause between the starts of two migrations in the cluster",
        0,
        3_600,
        "hazelcast.partition.migration.interval",
    ),
    _seconds(
        "migration.timeout_s",
        "core",
        "migration_timeout_us",
        "A migration that takes longer fails and is planned again",
        1,
        86_400,
        "hazelcast.partition.migration.timeout",
    ),
    _seconds(
        "migration.retry_s",
        "core",
        "migration_retry_us",
        "Pause before a new plan after a failed migration",
        0.01,
        600,
    ),
    _integer(
        "migration.chunk_bytes",
        "core",
        "migration_chunk_bytes_max",
        "Size of one piece of a moving fragment",
        1_024,
        16_777_216,
    ),
    _integer(
        "migration.copy_bytes",
        "core",
        "migration_copy_bytes_max",
        "Data under way to one member beyond which further partitions wait for their turn",
        1,
        1_073_741_824,
    ),
    _switch(
        "migration.fragments_enabled",
        "core",
        "migration_fragments_enabled",
        "Move a partition in pieces rather than at once",
        "hazelcast.partition.migration.fragments.enabled",
    ),
    _switch(
        "migration.stale_read_disabled",
        "core",
        "stale_read_disabled",
        "Refuse reads of a partition that is moving",
        "hazelcast.partition.migration.stale.read.disabled",
    ),
    _integer(
        "migration.completed_batch_max",
        "core",
        "completed_batch_max",
        "Finished migrations told one by one before whole rows are sent",
        10,
        100_000,
    ),
)

_REPLICATION = (
    _seconds(
        "replication.sync_interval_s",
        "core",
        "backup_sync_interval_us",
        "Pause between comparisons of a primary with its backups",
        0.1,
        86_400,
        "hazelcast.partition.backup.sync.interval",
    ),
    Key(
        "replication.max_parallel",
        Kind.INTEGER,
        "core",
        "replication_max_parallel",
        "Backup repairs a member takes part in at once, as many as migrations unless given; 0 "
        "switches repair off",
        0,
        1_000,
        alias="hazelcast.partition.max.parallel.replications",
        shared="migration.max_parallel",
    ),
    _integer(
        "replication.unacknowledged_max",
        "core",
        "unacknowledged_backups_max",
        "Backups in flight to one member before writes are refused as overloaded",
        100,
        10_000_000,
    ),
    _seconds(
        "replication.backup_timeout_s",
        "core",
        "backup_timeout_us",
        "A write waits no longer for its backups; then its outcome is indeterminate",
        0.1,
        600,
        "hazelcast.operation.backup.timeout.millis",
        0.001,
    ),
    _switch(
        "replication.backup_acks_to_client",
        "core",
        "backup_acks_to_client",
        "Backups tell backup-aware clients themselves; costs more, and a reply saves one way",
    ),
)

_SPLIT_BRAIN = (
    _integer(
        "split_brain_protection.minimum_size",
        "core",
        "split_brain_minimum_size",
        "Data members below which this part of the cluster refuses; 0 never; see KIND.PATTERN too",
        0,
        CLUSTER_SIZE_MAX,
    ),
    _choice(
        "split_brain_protection.protects",
        "core",
        "split_brain_protects",
        "What a part that is too small refuses",
        PROTECTS,
    ),
)

_PERSISTENCE = (
    _switch(
        "persistence.enabled",
        "persistence",
        "enabled",
        "Keeps the data in member.data_dir, so that they are there after all members have died",
    ),
    _choice(
        "persistence.fsync",
        "persistence",
        "fsync",
        "When a change is durable: before its write is answered, once in fsync_interval_ms, or "
        "when the operating system likes; see KIND.PATTERN too",
        get_args(Fsync),
    ),
    Key(
        "persistence.fsync_interval_ms",
        Kind.INTEGER,
        "persistence",
        "fsync_interval_us",
        "For fsync = interval: what is lost at most when all members are killed at once",
        1,
        3_600_000,
        scale=1_000,
    ),
    _choice(
        "persistence.recovery_policy",
        "persistence",
        "recovery_policy",
        "With whom a cluster goes on from its files: all its members, those of the newest table, "
        "or the largest group of equal tables",
        get_args(RecoveryPolicy),
    ),
    _seconds(
        "persistence.validation_timeout_s",
        "persistence",
        "validation_timeout_us",
        "Longest wait of a recovery for missing members; then the policy decides",
        1,
        86_400,
    ),
    _seconds(
        "persistence.data_load_timeout_s",
        "persistence",
        "data_load_timeout_us",
        "Longest time for loading the data of a recovery",
        1,
        7 * 86_400,
    ),
    _switch(
        "persistence.auto_remove_stale_data",
        "persistence",
        "auto_remove_stale_data",
        "A member whose cluster went on without it sets its files aside and joins empty, instead "
        "of refusing to start",
    ),
    _integer(
        "persistence.k_safety",
        "persistence",
        "k_safety",
        "Copies that a partition may lack in STABLE_CLUSTER before new ones are made; 0 makes them "
        "at once. The master's counts",
        0,
        BACKUP_COUNT_MAX,
    ),
    _integer(
        "persistence.segment_bytes",
        "persistence",
        "segment_bytes",
        "Size of a file of the log at which the next one is begun",
        4_096,
        1_073_741_824,
    ),
    _text(
        "persistence.encryption.key_file",
        "runtime",
        "key_file",
        "File with the keys of all files that hold data, one a line (32 bytes as hexadecimal "
        "digits or base64): the first one is written with, all are read with; empty: no encryption",
        4_096,
    ),
    _text(
        "persistence.encryption.key_command",
        "runtime",
        "key_command",
        "Command for /bin/sh whose output has the keys, instead of a file",
        4_096,
    ),
    _seconds(
        "persistence.encryption.key_timeout_s",
        "runtime",
        "key_timeout_us",
        "Longest time for the command",
        0.1,
        600,
    ),
    _choice(
        "persistence.encryption.plain_files",
        "runtime",
        "plain_files",
        "Of files that are not encrypted: refuse them, read them and write them anew encrypted, or "
        "write everything plain from now on and use the keys for reading alone",
        get_args(PlainFiles),
    ),
)

KEYS: tuple[Key, ...] = (
    *_CLUSTER,
    *_NETWORK,
    *_MEMBER,
    *_MEMBERSHIP,
    *_PARTITION,
    *_MIGRATION,
    *_REPLICATION,
    *_SPLIT_BRAIN,
    *_PERSISTENCE,
)
"""Every key but those of structures, in the order in which ``config explain`` lists them."""

SHARED = {
    "split_brain_minimum_size": "split_brain_protection.minimum_size",
    "split_brain_protects": "split_brain_protection.protects",
    "fsync": "persistence.fsync",
}
"""Fields of structures that are as for the cluster where nobody gave them."""


def _structure_key(settings: type[StructureSettings], field: Field) -> Key:
    """The key of a field, by the type and the limits that the field was declared with."""
    parts = field.type.types if isinstance(field.type, UnionType) else (field.type,)
    annotated = next(part for part in parts if isinstance(part, Metadata))
    kind, minimum, maximum = Kind.TEXT, 0.0, 0.0
    choices: tuple[str, ...] = ()
    if isinstance(annotated.type, IntType):
        kind, minimum, maximum = Kind.INTEGER, annotated.type.ge or 0, annotated.type.le or 0
    elif isinstance(annotated.type, LiteralType):
        kind, choices = Kind.CHOICE, tuple(str(value) for value in annotated.type.values)
    elif isinstance(annotated.type, BoolType):
        kind = Kind.SWITCH
    elif isinstance(annotated.type, StrType):
        maximum = annotated.type.max_length or 0
    return Key(
        field.name,
        kind,
        settings.kind,
        field.name,
        (annotated.extra_json_schema or {})["description"],
        minimum,
        maximum,
        choices=choices,
        optional=len(parts) > 1,
        shared=SHARED.get(field.name, ""),
    )


def _structure_keys(settings: type[StructureSettings]) -> dict[str, Key]:
    declared = cast("StructType", type_info(settings)).fields
    return {field.name: _structure_key(settings, field) for field in declared if not field.required}


STRUCTURE_KEYS: dict[str, dict[str, Key]] = {
    settings.kind: _structure_keys(settings) for settings in SETTINGS_TYPES
}
"""By kind and field: keys of ``KIND.PATTERN``; PATTERN is a name that may end in ``*``, or
``default``."""

BY_NAME: dict[str, Key] = {key.name: key for key in KEYS}
BY_ALIAS: dict[str, Key] = {key.alias: key for key in KEYS if key.alias}
SECTIONS: tuple[str, ...] = (
    *dict.fromkeys(key.name.split(".")[0] for key in KEYS),
    *STRUCTURE_KEYS,
)
"""The tables a file may have, beside ``[properties]``."""
