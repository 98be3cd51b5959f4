"""What the core is configured with: plain values with units in their names.

The layer above (``whimbrel.config``) reads files, environment and flags and makes one of these.
"""

from __future__ import annotations

import msgspec


class MapSettings(msgspec.Struct, frozen=True):
    """Settings of the maps whose name fits ``pattern`` (a name; it may end in ``*``)."""

    pattern: str
    backup_count: int = 1
    async_backup_count: int = 0
    time_to_live_s: int = 0
    max_idle_s: int = 0
    merge_policy: str = "PutIfAbsent"
    """What becomes of the smaller part's entries after a split (``core.merging.policies``)."""
    min_in_sync: int = 0
    """Synchronous backups that must be there for a write to be admitted; 0: none need be."""
    split_brain_minimum_size: int | None = None
    """Data members below which operations on these maps are refused; None: as for the cluster."""
    split_brain_protects: str | None = None
    """What is refused then: ``write``, ``read``, ``read_write``; None: as for the cluster."""


class CoreSettings(msgspec.Struct, frozen=True):
    """Limits and periods of the core. Defaults are the product's defaults."""

    cluster_name: str = "dev"
    partition_count: int = 271
    cluster_version: str = "4.1"
    """Ways of a cluster that this member founds; one that it joins has its own (PIM-41)."""
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

    history_max: int = 100
    events_max: int = 1_000

    maps: tuple[MapSettings, ...] = (MapSettings("default"),)
    """The longest matching pattern wins; the entry named ``default`` is for all others."""

    def map_settings(self, name: str) -> MapSettings:
        """The settings of a map by its name: exact pattern, longest prefix, then default."""
        best: MapSettings | None = None
        fallback = MapSettings("default")
        for entry in self.maps:
            if entry.pattern == "default":
                fallback = entry
            if entry.pattern == name:
                return entry
            is_match = entry.pattern.endswith("*") and name.startswith(entry.pattern[:-1])
            if is_match and (best is None or len(entry.pattern) > len(best.pattern)):
                best = entry
        return best or fallback
