"""A real cluster of version 4.0 is upgraded under load; members come and die around it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from hazelcast.errors import TargetDisconnectedError

import whimbrel
from whimbrel.testing import LocalCluster
from whimbrel.testing.waiting import wait_until

SETTINGS = {
    "partition.count": 31,
    "cluster.version": "4.0",
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 2,
}


class Load(threading.Thread):
    """Writes numbered entries one after another until it is stopped; knows what was answered."""

    def __init__(self, target: Any) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._stopped = threading.Event()
        self.written = 0
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._target.put(self.written, f"value {self.written}")
                except TargetDisconnectedError:
                    continue  # its member was killed meanwhile: the same write once more
                self.written += 1
        except Exception as problem:
            self.problem = problem

    def stop(self) -> int:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert self.problem is None
        return self.written


def tables(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [cluster.get("/api/v1/partitions", via=one.index) for one in cluster.running()]


def upgrade(cluster: LocalCluster, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whimbrel", "upgrade", version, "--json"]
    command += ["--admin", cluster.admin_url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_an_upgrade_under_load_loses_nothing(tmp_path: Path) -> None:
    """PIM-41, PIM-43, PIM-44, fault list 73: load, join, upgrade under load, join, kill: every
    acknowledged write is there, and every partition began with the last version of the table.
    """
    with whimbrel.local_cluster(members=3, settings=SETTINGS, folder=tmp_path) as cluster:
        cluster.wait_until_safe()
        target = cluster.client().get_map("kept").blocking()
        load = Load(target)
        load.start()
        cluster.add_member()
        cluster.wait_until_safe()
        before = cluster.get("/api/v1/partitions")
        assert before["cluster_version"] == "4.0"
        assert before["version"] == max(row["version"] for row in before["rows"])
        written = load.written
        assert upgrade(cluster, "4.0").returncode == 0
        done = upgrade(cluster, "4.1")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["cluster_version"] == "4.1"

        def seen() -> tuple[bool, list[dict[str, Any]]]:
            found = tables(cluster)
            return all(one["version"] is None for one in found), found

        wait_until(seen, 30, "all members to have cluster version 4.1")
        cluster.wait_until_safe()
        for table in tables(cluster):
            assert {row["version"] for row in table["rows"]} == {before["version"]}
        back = upgrade(cluster, "4.0")
        assert back.returncode == 1
        assert "cannot go back" in back.stderr
        wait_until(lambda: (load.written > written, load.written), 30, "the load to go on")
        newcomer = cluster.add_member()
        cluster.wait_until_safe()
        assert cluster.get("/api/v1/partitions", via=newcomer.index)["cluster_version"] == "4.1"
        cluster.kill(2)
        cluster.wait_until_safe()
        count = load.stop()
        assert count > written > 0
        found = target.get_all(set(range(count)))
        assert found == {number: f"value {number}" for number in range(count)}
        assert target.size() in (count, count + 1)
