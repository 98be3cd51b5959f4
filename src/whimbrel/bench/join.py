"""What a fourth member costs a cluster of three with data: real processes on this machine.

Times are wall time of a machine that does everything at once, the members, the client and whatever
else runs; read them beside its load. Nothing is left behind.
"""

from __future__ import annotations

import time
from typing import Any

from whimbrel.testing.cluster import LocalCluster, local_cluster

ENTRIES = 20_000
VALUE_BYTES = 1_024
BATCH = 1_000
SAFE_TIMEOUT_S = 60.0


def run() -> dict[str, object]:
    """Start, fill, join, leave; seconds and the master's figures of each change."""
    figures: dict[str, object] = {"entries": ENTRIES, "value_bytes": VALUE_BYTES}
    begin_s = time.monotonic()
    with local_cluster(3) as cluster:
        figures["start_to_safe_s"] = _since(begin_s)
        _fill(cluster)
        begin_s = time.monotonic()
        member = cluster.launch()
        member.await_ready(SAFE_TIMEOUT_S)
        ready_s = time.monotonic()
        cluster.wait_until_safe(SAFE_TIMEOUT_S)
        figures["join_start_to_ready_s"] = round(ready_s - begin_s, 3)
        figures["join_ready_to_safe_s"] = _since(ready_s)
        figures["join"] = _latest_process(cluster)
        begin_s = time.monotonic()
        cluster.leave(member.index)
        figures["leave_s"] = _since(begin_s)
        cluster.wait_until_safe(SAFE_TIMEOUT_S)
        figures["leave"] = _latest_process(cluster)
    return figures


def _since(begin_s: float) -> float:
    return round(time.monotonic() - begin_s, 3)


def _fill(cluster: LocalCluster) -> None:
    target = cluster.client().get_map("bench").blocking()
    for start in range(0, ENTRIES, BATCH):
        keys = range(start, start + BATCH)
        target.put_all({f"key:{number:020d}": bytearray(VALUE_BYTES) for number in keys})


def _latest_process(cluster: LocalCluster) -> dict[str, Any]:
    """The newest finished migration process of the master."""
    history = cluster.get("/api/v1/migrations")["history"]
    return dict(history[-1]) if history else {}
