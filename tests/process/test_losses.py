"""Real members lose data, or take them along, and say so (docs/design/0014)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from whimbrel.testing import LocalCluster, local_cluster
from whimbrel.testing.waiting import wait_until

SETTINGS = {
    "partition.count": 7,
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 3,
    "map.b0.backup_count": 0,
}
PATIENCE_S = 60


def lost(cluster: LocalCluster, via: int) -> dict[str, int | None]:
    found = cluster.get("/api/v1/losses", via)
    return {str(row["name"]): row["entries"] for row in found["structures"]}


def test_the_losses_of_one_map_outlive_the_master() -> None:
    """Goal: entries of a map without backups die with a member beside a map with one: told by its
    name, by whoever is master then. Method: kill -9 of the youngest, then of the master.
    """
    with local_cluster(4, settings=SETTINGS) as cluster:
        cluster.wait_until_safe(PATIENCE_S)
        client = cluster.client()
        for name in ("b0", "b1"):
            client.get_map(name).blocking().put_all({number: number for number in range(200)})
        cluster.wait_until_safe(PATIENCE_S)
        cluster.kill(3)
        wait_until(lambda: (bool(lost(cluster, 1)), "no loss is told"), PATIENCE_S, "the loss")
        cluster.wait_until_safe(PATIENCE_S)
        told = lost(cluster, 1)
        assert list(told) == ["b0"]
        cluster.kill(0)
        cluster.wait_until_safe(PATIENCE_S)
        assert list(lost(cluster, 1)) == list(lost(cluster, 2)) == ["b0"]
        assert cluster.get("/api/v1/cluster", 1)["partitions_lost"] > 0
        kinds = [
            event for event in cluster.get("/api/v1/events", 1) if event["kind"] == "partition.lost"
        ]
        assert any("b0" in str(event.get("structures")) for event in kinds)


def test_the_last_member_says_what_goes_with_it(tmp_path: Path) -> None:
    """Goal: SIGTERM ends the last member with 0 and a word about its data. Method: two members,
    entries, SIGTERM to both; the lines on stdout and in the log.
    """
    with local_cluster(2, settings=SETTINGS, folder=tmp_path) as cluster:
        cluster.wait_until_safe(PATIENCE_S)
        cluster.client().get_map("b1").blocking().put_all({n: n for n in range(100)})
        members = list(cluster.members)
        for member in members:
            member.process.send_signal(signal.SIGTERM)
        assert [member.await_end(PATIENCE_S) for member in members] == [0, 0]
        text = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"event": "disc')]
    assert sum(row["entries"] for line in lines for row in line["structures"]) == 100
