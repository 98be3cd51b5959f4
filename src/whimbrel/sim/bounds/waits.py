"""How long a cluster may take to become safe (L1)."""

from __future__ import annotations

from whimbrel.core.ids import PartitionId
from whimbrel.core.settings import CoreSettings
from whimbrel.sim.world import World

ENTRY_BYTES = 60
"""What a key and its record take beside the value, about."""
QUESTIONS = 3
"""Of a copy besides its chunks: the master's to the source, the probe, the commit."""


def copy_wait_us(world: World) -> int:
    """How long a cluster may take to copy what it holds, twice (a plan may be dropped half-way).

    A fragment has one chunk in flight, and small chunks over a slow network are what makes a copy
    long. Migrations run side by side unless they take turns, but a partition is copied in one go.
    """
    settings = world.plan.settings
    entries = [0] * settings.partition_count
    for host in world.up_hosts():
        for pid in range(settings.partition_count):
            entries[pid] = max(entries[pid], host.entry_count(PartitionId(pid)))
    a_chunk = max(
        1, settings.migration_chunk_bytes_max // (ENTRY_BYTES + world.plan.value_bytes_max)
    )
    parallel = min(settings.migration_max_parallel, settings.replication_max_parallel)
    if settings.migration_copy_bytes_max < CoreSettings().migration_copy_bytes_max:
        parallel = 1
    in_a_row = max(max(entries), sum(entries) // parallel)
    depth = 1 + world.plan.backup_count + world.plan.async_backup_count
    questions = in_a_row // a_chunk + QUESTIONS * settings.partition_count // parallel
    return 2 * depth * questions * world.plan.round_trip_us


def safe_wait_us(world: World) -> int:
    """How long this cluster may take now to become safe once nothing harms it (L1)."""
    return world.plan.safe_wait_us + copy_wait_us(world)
