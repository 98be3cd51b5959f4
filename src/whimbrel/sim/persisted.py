"""What a run draws for members that keep their data on disk."""

from __future__ import annotations

import random
from functools import cache

from whimbrel.core.persistence.commands import Read
from whimbrel.core.persistence.encryption import KEY_BYTES, Encryption, PlainFiles
from whimbrel.core.persistence.format import SALT_BYTES, DamageError, segment_file
from whimbrel.core.persistence.metadata import CLUSTER_FILE, ClusterFile, decode_cluster_file
from whimbrel.core.settings import Fsync, PersistenceSettings, RecoveryPolicy
from whimbrel.sim.disk import SimDisk
from whimbrel.sim.entropy import coin, pick
from whimbrel.storage.keys import parse_keys

SECOND_US = 1_000_000
ALWAYS: Fsync = "always"
INTERVAL: Fsync = "interval"
OFF: Fsync = "off"
FULL: RecoveryPolicy = "FULL_RECOVERY_ONLY"
RECENT: RecoveryPolicy = "PARTIAL_RECOVERY_MOST_RECENT"
COMPLETE: RecoveryPolicy = "PARTIAL_RECOVERY_MOST_COMPLETE"
PATIENCE_US = (14 * SECOND_US, 25 * SECOND_US)
"""Where a policy may go on without somebody: longer than who is to come takes."""
ROT_TRIES = 20
LOG_SHARE = 0.8
"""How often it is the log that rots, where it has a closed segment."""


ENCRYPTED_SHARE = 0.3
"""How many runs with disks have keys."""
READ: PlainFiles = "read"
WRITE: PlainFiles = "write"
_KEYS = ("5a" * KEY_BYTES, "c3" * KEY_BYTES)


def draw_encryption(generator: random.Random) -> Encryption:
    """Of a process: it writes with one of two keys, or plain, and its successor with another."""
    lines = _KEYS if coin(generator, 0.5) else _KEYS[::-1]
    keys = parse_keys("\n".join(lines).encode(), "the keys of a run")
    plain = pick(generator, (READ, READ, READ, WRITE))
    return Encryption(keys, generator.randbytes(SALT_BYTES), plain=plain)


@cache
def reader() -> Encryption:
    """Reads what any process of a run has written."""
    return draw_encryption(random.Random(0))


def draw_persistence(generator: random.Random) -> PersistenceSettings:
    """Mostly each write waits for the disk; files are small, so that there are many."""
    validation_us = pick(generator, (15 * SECOND_US, 40 * SECOND_US))
    segment_bytes = pick(generator, (2_000, 20_000, 20_000, 200_000))
    policy = pick(generator, (FULL, FULL, RECENT, COMPLETE))
    if policy != FULL:
        validation_us = pick(generator, PATIENCE_US)
    return PersistenceSettings(
        enabled=True,
        fsync=pick(generator, (ALWAYS, ALWAYS, ALWAYS, INTERVAL, INTERVAL, OFF)),
        fsync_interval_us=pick(generator, (20_000, 100_000, 100_000, 400_000)),
        recovery_policy=policy,
        validation_timeout_us=validation_us,
        data_load_timeout_us=20 * SECOND_US,
        segment_bytes=segment_bytes,
    )


def cluster_file(disk: SimDisk) -> ClusterFile | None:
    """What the files on a disk are of; None when there are none that anybody would come back to.

    Raises:
        DamageError: ``cluster.meta`` is damaged.
    """
    size = {one.file: one.size for one in disk.list_folder("")}.get(CLUSTER_FILE)
    if size is None:
        return None
    data = disk.fork(random.Random(0)).execute((Read(CLUSTER_FILE, 0, size),))[0]
    data = data if isinstance(data, bytes) else b""
    found = decode_cluster_file(reader().decrypt_file(CLUSTER_FILE, CLUSTER_FILE, data))
    return None if found.has_left or not found.members.members else found


def has_files(disk: SimDisk) -> bool:
    """Whether somebody would come back to a disk, be it to say that its files are damaged."""
    try:
        return cluster_file(disk) is not None
    except DamageError:
        return True


def rot_somewhere(disk: SimDisk, generator: random.Random) -> str:
    """Change a bit that counts: in the cluster file, or in a closed segment.

    In a segment that is written to it may be in what nobody was told of yet, like what a death has
    torn off.

    Returns:
        The file; empty when there is no such bit, or something is damaged already.
    """
    try:
        found = cluster_file(disk)
    except DamageError:
        return ""
    if found is None:
        return ""
    sizes = {one.file: one.size for one in disk.list_folder("")}
    ends = {segment_file(one.stream, one.number): one.end for one in found.log.segments}
    closed = sorted((file, end) for file, end in ends.items() if end > 0)
    for _ in range(ROT_TRIES):
        is_log = bool(closed) and coin(generator, LOG_SHARE)
        file, end = pick(generator, closed) if is_log else (CLUSTER_FILE, sizes[CLUSTER_FILE])
        try:
            disk.rot(file, generator.randrange(end))
        except LookupError:
            continue  # not on the platter
        return file
    return ""
