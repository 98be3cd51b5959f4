"""How long a member takes from the start of its process to its ready line.

One member at a time, started as any user starts it. The first one may have to compile the sources;
where nothing may be written beside them, every one does.
"""

from __future__ import annotations

import time

from whimbrel.bench.live_sides import cpu_seconds
from whimbrel.testing.cluster import local_cluster

ROUNDS = 5


def run() -> dict[str, list[float]]:
    """Seconds to the ready line, of wall clock and of processor, one after the other."""
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(ROUNDS):
        begin_s = time.monotonic()
        with local_cluster(1) as cluster:
            wall.append(round(time.monotonic() - begin_s, 3))
            cpu.append(round(cpu_seconds(cluster.members[0].process.pid), 3))
    return {"ready_s": wall, "cpu_s": cpu}
