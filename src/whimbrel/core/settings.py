"""What the core is configured with: plain values with units in their names.

The layer above (``whimbrel.config``) reads files, environment and flags and makes one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self, TypeVar

import msgspec
from msgspec import Meta

from whimbrel.core.ids import BACKUP_COUNT_MAX, Namespace, split_namespace

CLUSTER_SIZE_MAX = 65_000
"""Largest minimum size of a cluster."""
DEFAULT_PATTERN = "default"
"""The pattern of all structures of a kind that no other one fits."""
Protects = Literal["write", "read", "read_write"]
Fsync = Literal["always", "interval", "off"]
"""When changes are made durable (APR-04, APR-05): before a write is answered, once in an interval,
or when the operating system likes."""
RecoveryPolicy = Literal[
    "FULL_RECOVERY_ONLY", "PARTIAL_RECOVERY_MOST_RECENT", "PARTIAL_RECOVERY_MOST_COMPLETE"
]
"""With whom a cluster goes on from its files (PIM-37 to PIM-39): with all its members alone, with
those of the newest table, or with the largest group of equal tables."""

S = TypeVar("S", bound="StructureSettings")


class StructureSettings(msgspec.Struct, frozen=True):
    """Settings of the structures of one kind whose name fits ``pattern`` (it may end in ``*``).

    Each kind has a subclass; its fields are the keys of ``KIND.PATTERN`` in the configuration, with
    their limits and meanings as ``msgspec.Meta``.
    """

    kind: ClassVar[str]
    """The kind's name, which is that of its table in the configuration, too."""

    pattern: str

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What no single field can break: the fields at fault and what is wrong with them."""
        return iter(())

    def normal(self) -> Self:
        """The same with each value in the one form that the kind compares."""
        return self


class ProtectedSettings(StructureSettings, frozen=True, kw_only=True):
    """Of a kind that a part of a split cluster may refuse; None is as for the cluster."""

    split_brain_minimum_size: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=CLUSTER_SIZE_MAX,
                description="Data members below which operations on these are refused; 0 never",
            ),
        ]
        | None
    ) = None
    split_brain_protects: (
        Annotated[Protects, Meta(description="What of these a part that is too small refuses")]
        | None
    ) = None


class StoredSettings(ProtectedSettings, frozen=True, kw_only=True):
    """Of a kind whose structures may lie on the members' disks."""

    persistent: Annotated[
        bool,
        Meta(description="Whether these are kept on disk, where persistence.enabled is true"),
    ] = True
    fsync: Annotated[Fsync, Meta(description="As persistence.fsync, for these alone")] | None = None


class PartitionedSettings(StoredSettings, frozen=True):
    """Of a kind whose structures lie in partitions and have backups."""

    backup_count: Annotated[
        int, Meta(ge=0, le=BACKUP_COUNT_MAX, description="Backups a write waits for")
    ] = 1
    async_backup_count: Annotated[
        int,
        Meta(ge=0, le=BACKUP_COUNT_MAX, description="Further backups a write does not wait for"),
    ] = 0
    min_in_sync: Annotated[
        int,
        Meta(
            ge=0,
            le=BACKUP_COUNT_MAX,
            description="Writes are refused while fewer synchronous backups than this are there; "
            "0 never",
        ),
    ] = 0

    @property
    def total_backup_count(self) -> int:
        """Sync and async backups together."""
        return self.backup_count + self.async_backup_count

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """More backups than a row has places, or more in sync than there ever are."""
        if self.total_backup_count > BACKUP_COUNT_MAX:
            yield (
                ("backup_count", "async_backup_count"),
                f"{self.kind} {self.pattern!r} asks for {self.total_backup_count} backups; at most "
                f"{BACKUP_COUNT_MAX} are possible",
            )
        if self.min_in_sync > self.backup_count:
            where = f"{self.kind}.{self.pattern}"
            yield (
                ("min_in_sync", "backup_count"),
                f"{where}.min_in_sync ({self.min_in_sync}) must not be above {where}.backup_count "
                f"({self.backup_count}): no write could ever be admitted",
            )


class PersistenceSettings(msgspec.Struct, frozen=True):
    """What is kept on disk, and what becomes of it at a start."""

    enabled: bool = False
    fsync: Fsync = "interval"
    """Of structures that have none of their own."""
    fsync_interval_us: int = 100_000
    recovery_policy: RecoveryPolicy = "FULL_RECOVERY_ONLY"
    validation_timeout_us: int = 120_000_000
    """From the start of a recovery until everybody expected is there (APR-08)."""
    data_load_timeout_us: int = 900_000_000
    """From the choice of a table until everybody has loaded (APR-10)."""
    auto_remove_stale_data: bool = True
    """Whether a member that its cluster has gone on without sets its files aside (APR-14) instead
    of refusing to start (APR-15)."""
    segment_bytes: int = 8_388_608
    """Size of a file of the log at which the next one is begun."""
    k_safety: int = 0
    """Copies that a partition may lack in STABLE_CLUSTER before new ones are made; 0: none."""


class ComparisonBounds(msgspec.Struct, frozen=True):
    """From where on a copy begins with a comparison, and in what pieces (docs/design/0018)."""

    few_entries: int = 32
    """A fragment of so many entries is copied whole: sums of 32 nodes are no cheaper, ..."""
    few_bytes: int = 16_384
    """... unless it has more bytes than this."""
    leaf_entries: int = 1
    """So many entries there are in a leaf of a tree, about, or fewer: what differs is sent with
    those that share its leaf."""
    work_max: int = 3_000
    """Entries that are hashed, or taken from a base, in one step; a large one counts as more."""
    audit_max: int = 1_000
    """The same of an audit, which has time, beside clients that have none."""
    log_keys_max: int = 20_000
    """Changed keys of one fragment that are remembered while somebody is away; with more there is
    no log of them, and trees find out what differs (APR-48)."""
    log_bytes_max: int = 67_108_864
    """The same of all fragments of a member, in bytes of memory, about."""
    tail_bytes_max: int = 524_288
    """Of the last frames of each link, kept in case that who has got them dies before its disk has;
    more than 100 ms of a link with 4 MB/s."""


class CoreSettings(msgspec.Struct, frozen=True):
    """Limits and periods of the core. Defaults are the product's defaults."""

    cluster_name: str = "dev"
    partition_count: int = 271
    cluster_version: str = "4.1"
    """Version of a cluster that this member founds; one that it joins has its own (PIM-41)."""
    plan_depth: str = "needed"
    """``needed``: rows are as deep as the deepest live backup count; ``deep``: always seven."""
    member_group: str = "member"
    """What may not hold two replicas of a partition: ``member``, ``host``, ``zone``, ``custom``."""
    member_group_patterns: str = ""
    """For ``custom``: lists of address patterns; see ``partition.groups.parse_patterns``."""

    heartbeat_interval_us: int = 1_000_000
    heartbeat_timeout_us: int = 10_000_000
    join_window_us: int = 100_000
    """The master waits this long after a join request for further ones."""
    join_window_max_us: int = 500_000
    discovery_interval_us: int = 150_000
    join_timeout_us: int = 60_000_000
    claim_timeout_us: int = 20_000_000
    """Mastership claim: members that do not answer in this time are dropped."""
    call_timeout_us: int = 2_000_000
    """An unanswered control request is repeated after this time."""
    state_lock_lease_us: int = 60_000_000
    """How long a member stands still at most for a change of the cluster state (PIM-31)."""
    leave_retry_us: int = 1_000_000
    leave_timeout_us: int = 600_000_000
    member_list_publish_interval_us: int = 60_000_000

    migration_max_parallel: int = 10
    """Migrations a member takes part in at once, as source or destination (PIM-24)."""
    migration_interval_us: int = 0
    migration_timeout_us: int = 300_000_000
    migration_retry_us: int = 3_000_000
    """Pause before a new plan after a failed migration (ADL-50)."""
    migration_chunk_bytes_max: int = 262_144
    migration_copy_bytes_max: int = 8_388_608
    """What a member copies to one destination at once, if that is more than one partition.

    Writes to a partition wait while it is copied. Partitions that share a connection all take as
    long as all of them together, so large ones are copied one after the other."""
    migration_fragments_enabled: bool = True
    comparison: ComparisonBounds = ComparisonBounds()
    stale_read_disabled: bool = False
    step_rows_max: int = 64
    """Rows of the table that one step changes, plans or tells, so that none takes longer than a few
    milliseconds; a smaller table is dealt with in one step."""
    completed_batch_max: int = 1_000
    """Finished migrations that not every member knows; reaching it sends whole rows instead."""
    table_send_interval_us: int = 15_000_000

    backup_sync_interval_us: int = 30_000_000
    replication_max_parallel: int = 10
    """Sync permits of a member, requests and answers together (AE-14); 0 switches it off.

    A configuration that sets ``migration.max_parallel`` alone sets this one, too."""
    unacknowledged_backups_max: int = 200_000
    """Backup operations in flight to one member before writes are refused as overloaded."""
    backup_timeout_us: int = 10_000_000
    """A reply never waits longer than this for its backups; then its outcome is indeterminate."""
    backup_acks_to_client: bool = False
    """Whether backups tell a client that asks for it themselves; else its member waits for them."""

    split_brain_minimum_size: int = 0
    """Data members below which operations on maps are refused; 0 never. A map may have its own."""
    split_brain_protects: str = "write"
    """What is refused then: ``write``, ``read`` or ``read_write``, unless a map has its own."""

    persistence: PersistenceSettings = PersistenceSettings()

    history_max: int = 100
    events_max: int = 1_000

    structures: tuple[StructureSettings, ...] = ()
    """Of every kind; the longest matching pattern wins, ``default`` is for all others."""

    def structure(self, kind: type[S], name: str) -> S:
        """The settings of a structure by its name: exact pattern, longest prefix, then default."""
        entries = [entry for entry in self.structures if isinstance(entry, kind)]
        return _fitting(entries, name) or kind(DEFAULT_PATTERN)

    def structure_of(self, namespace: Namespace) -> PartitionedSettings:
        """The same of one that lies in partitions, for what does not know the kinds."""
        kind, name = split_namespace(namespace)
        entries = [entry for entry in self.partitioned() if entry.kind == kind]
        return _fitting(entries, name) or PartitionedSettings(DEFAULT_PATTERN)

    def is_persistent(self, namespace: Namespace) -> bool:
        """Whether a structure that lies in partitions is kept on disk, too."""
        return self.persistence.enabled and self.structure_of(namespace).persistent

    def fsync_of(self, namespace: Namespace) -> Fsync:
        """When changes of a structure that is persistent are made durable.

        What its pattern leaves open is as for all others of its kind, then as for the cluster.
        """
        kind = split_namespace(namespace)[0]
        entries = [entry for entry in self.partitioned() if entry.kind == kind]
        shared = (entry.fsync for entry in entries if entry.pattern == DEFAULT_PATTERN)
        return self.structure_of(namespace).fsync or next(shared, None) or self.persistence.fsync

    def partitioned(self) -> list[PartitionedSettings]:
        """The settings of structures that lie in partitions."""
        return [entry for entry in self.structures if isinstance(entry, PartitionedSettings)]

    @property
    def default_backup_count(self) -> int:
        """Synchronous backups of a structure that no pattern of its kind but ``default`` fits."""
        found = [one.backup_count for one in self.partitioned() if one.pattern == DEFAULT_PATTERN]
        return max(found, default=1)


def _fitting(entries: list[S], name: str) -> S | None:
    """The entry whose pattern fits a name best."""
    best: S | None = None
    fallback: S | None = None
    for entry in entries:
        if entry.pattern == DEFAULT_PATTERN:
            fallback = entry
        if entry.pattern == name:
            return entry
        is_match = entry.pattern.endswith("*") and name.startswith(entry.pattern[:-1])
        if is_match and (best is None or len(entry.pattern) > len(best.pattern)):
            best = entry
    return best or fallback
