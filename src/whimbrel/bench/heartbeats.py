"""Whether heartbeats are on time while data move: real processes on this machine.

Three members get the data, a fourth joins and leaves again; about half of the data move twice. Each
member tells the longest time between two rounds of its heartbeats, and how long its loop was
occupied by one step of the control plane. Wall time: a busy machine makes both longer.
"""

from __future__ import annotations

import time

from whimbrel.bench.live_sides import metrics_of
from whimbrel.testing.cluster import LocalCluster, LocalMember, local_cluster

VALUE_BYTES = 64 * 1024
BATCH = 64
SAFE_TIMEOUT_S = 600.0
INTERVAL_S = 0.25
TIMEOUT_S = 10.0
FIGURES = (
    "heartbeat_gap_longest_seconds",
    "loop_step_longest_seconds",
    "loop_late_longest_seconds",
)


def run(mib: int = 256, partitions: int = 271) -> dict[str, object]:
    """Fill, join, leave.

    Args:
        mib: Values in all, in MiB; each is kept twice.
        partitions: Of the cluster.

    Returns:
        The figures of each member after the join, and of those that stay after the leave; how long
        both took, and what was copied, from the master.
    """
    settings = {
        "partition.count": partitions,
        "membership.heartbeat_interval_s": INTERVAL_S,
        "membership.heartbeat_timeout_s": TIMEOUT_S,
    }
    with local_cluster(3, settings=settings) as cluster:
        _fill(cluster, mib)
        begin_s = time.monotonic()
        member = cluster.add_member(timeout_s=SAFE_TIMEOUT_S)
        joined_s = time.monotonic()
        join = {one.address: figures_of(one) for one in cluster.running()}
        cluster.leave(member.index, timeout_s=SAFE_TIMEOUT_S)
        cluster.wait_until_safe(SAFE_TIMEOUT_S)
        history = cluster.get("/api/v1/migrations")["history"]
        return {
            "mib": mib,
            "heartbeat_interval_s": INTERVAL_S,
            "join_s": round(joined_s - begin_s, 1),
            "leave_s": round(time.monotonic() - joined_s, 1),
            "bytes_moved": sum(process["bytes"] for process in history),
            "after_join": join,
            "after_leave": {one.address: figures_of(one) for one in cluster.running()},
        }


def _fill(cluster: LocalCluster, mib: int) -> None:
    target = cluster.client().get_map("bench").blocking()
    count = mib * 1024 * 1024 // VALUE_BYTES
    for start in range(0, count, BATCH):
        keys = range(start, min(start + BATCH, count))
        target.put_all({f"key:{number:020d}": bytearray(VALUE_BYTES) for number in keys})


def figures_of(member: LocalMember) -> dict[str, float]:
    """``FIGURES`` of a member, from its metrics page."""
    values = metrics_of(member)
    return {name: round(values[name], 4) for name in FIGURES}
