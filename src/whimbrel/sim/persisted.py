"""What a run draws for members that keep their data on disk."""

from __future__ import annotations

import random

from whimbrel.core.persistence.commands import Read
from whimbrel.core.persistence.metadata import CLUSTER_FILE, ClusterFile, decode_cluster_file
from whimbrel.core.settings import PersistenceSettings
from whimbrel.sim.disk import SimDisk
from whimbrel.sim.entropy import pick

SECOND_US = 1_000_000


def draw_persistence(generator: random.Random) -> PersistenceSettings:
    """Mostly each write waits for the disk; files are small, so that there are many."""
    return PersistenceSettings(
        enabled=True,
        fsync="always",
        recovery_policy="FULL_RECOVERY_ONLY",
        validation_timeout_us=pick(generator, (15 * SECOND_US, 40 * SECOND_US)),
        data_load_timeout_us=20 * SECOND_US,
        segment_bytes=pick(generator, (2_000, 20_000, 20_000, 200_000)),
    )


def cluster_file(disk: SimDisk) -> ClusterFile | None:
    """What the files on a disk are of; None when there are none that anybody would come back to."""
    size = {one.file: one.size for one in disk.list_folder("")}.get(CLUSTER_FILE)
    if size is None:
        return None
    data = disk.fork(random.Random(0)).execute((Read(CLUSTER_FILE, 0, size),))[0]
    found = decode_cluster_file(data if isinstance(data, bytes) else b"")
    return None if found.has_left or not found.members.members else found
