"""What an idle cluster of ten costs: processor time of each member, as a share of one core.

Real processes; heartbeats, clean-up and comparisons of tables go on, nobody asks for anything.
"""

from __future__ import annotations

import time

from whimbrel.bench.live_sides import cpu_seconds
from whimbrel.errors import OperationError
from whimbrel.testing.cluster import local_cluster

MEMBERS = 10
PARTITIONS = 271
SETTLE_S = 5.0
SPAN_S = 60.0
SAFE_TIMEOUT_S = 120.0


def run() -> dict[str, object]:
    """Share of a core of each member in percent, greatest and mean.

    Raises:
        OperationError: A member ended meanwhile.
    """
    with local_cluster(MEMBERS, settings={"partition.count": PARTITIONS}) as cluster:
        cluster.wait_until_safe(SAFE_TIMEOUT_S)
        time.sleep(SETTLE_S)  # the work of the start is not idling
        pids = [member.process.pid for member in cluster.members]
        before, begin_s = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(SPAN_S)
        after, span_s = [cpu_seconds(pid) for pid in pids], time.monotonic() - begin_s
        if len(cluster.running()) != MEMBERS:
            raise OperationError("a member ended while the cluster was idle")
    shares = [100 * (end - start) / span_s for start, end in zip(before, after, strict=True)]
    return {
        "members": MEMBERS,
        "partitions": PARTITIONS,
        "span_s": round(span_s, 1),
        "percent_of_core": [round(share, 2) for share in shares],
        "percent_greatest": round(max(shares), 2),
        "percent_mean": round(sum(shares) / len(shares), 2),
    }
