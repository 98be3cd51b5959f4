"""How long a member takes from the start of its process to its ready line.

One member at a time, started as any user starts it. The first one may have to compile the sources;
where nothing may be written beside them, every one does.
"""

from __future__ import annotations

import time

from whimbrel.bench.live_sides import cpu_seconds
from whimbrel.testing.cluster import START_TIMEOUT_S, local_cluster

ROUNDS = 5


def run() -> dict[str, list[float]]:
    """Seconds to the ready line, of wall clock and of processor, one after the other."""
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(ROUNDS):
        cluster = local_cluster(1)
        begin_s = time.monotonic()
        try:
            member = cluster.launch()
            member.await_ready(START_TIMEOUT_S)
            wall.append(round(time.monotonic() - begin_s, 3))
            cpu.append(round(cpu_seconds(member.process.pid), 3))
        finally:
            cluster.close()
    return {"ready_s": wall, "cpu_s": cpu}
