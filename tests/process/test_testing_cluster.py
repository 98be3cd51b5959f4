"""``local_cluster``: real processes come, die and leave, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import whimbrel
from whimbrel.errors import OperationError, UsageError
from whimbrel.testing import ClusterError, LocalCluster
from whimbrel.testing.waiting import wait_until

QUICK = {
    "partition.count": 7,
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 2,
}


def cli(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whimbrel", *arguments, "--admin", cluster.admin_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_cluster_from_start_to_end(tmp_path: Path) -> None:
    """Goal: the life of a cluster as the README tells it, with the command line beside it.
    Method: two members, a client, a kill, a join, a leave through the command line.
    """
    with whimbrel.local_cluster(members=2, settings=QUICK, folder=tmp_path) as cluster:
        assert cluster.status()["safe"]
        target = cluster.client().get_map("kept").blocking()
        target.put_all({number: number for number in range(100)})
        assert cluster.kill(1) == -signal.SIGKILL
        newcomer = cluster.add_member()
        assert cluster.status()["safe"]
        assert target.size() == 100
        members = cluster.get("/api/v1/members")
        assert [row["uuid"] for row in members] == [cluster.members[0].uuid, newcomer.uuid]
        assert cluster.get("/health/ready", via=2)["ready"]
        done = cli(cluster, "status", "--wait-safe", "20", "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout)["members"] == 2
        assert cli(cluster, "shutdown", newcomer.uuid).returncode == 0
        assert newcomer.await_end(60) == 0
        cluster.wait_until_safe()
        assert target.size() == 100
        kinds = [event["kind"] for event in cluster.get("/api/v1/events")]
        assert "joined" in kinds
        assert "shutdown_ordered" in kinds
        assert cluster.stop()[0] == 0
    assert not cluster.running()
    assert (tmp_path / "member-0.log").exists()
    assert "Traceback" not in (tmp_path / "member-0.log").read_text()


def test_a_paused_member_makes_the_cluster_unsafe() -> None:
    """Goal: ``safe`` is not said while a member cannot answer; it comes back with it. Method:
    SIGSTOP and SIGCONT within the heartbeat time-out; the end removes the temporary folder.
    """
    settings = {**QUICK, "membership.heartbeat_timeout_s": 60}
    with whimbrel.local_cluster(members=2, settings=settings) as cluster:
        cluster.wait_until_safe()
        cluster.pause(1)
        found = cluster.status()
        assert not found["safe"]
        assert "does not answer" in found["reason"]
        cluster.resume(1)
        cluster.wait_until_safe()
        folder = cluster.folder
    assert not folder.exists()


def test_a_client_of_a_joiner_finds_its_backups() -> None:
    """Goal: what is acknowledged after the ready line of a join to an empty grid survives a crash,
    although nobody has waited for safe. Method: so many partitions that their copies take longer
    than a few writes; two members join at once; their word is followed by writes, and by the end
    of the founder, which had everything before.
    """
    settings = {**QUICK, "partition.count": 2003, "member.ready_wait_s": 60}
    with whimbrel.local_cluster(members=1, settings=settings) as cluster:
        target = cluster.client().get_map("kept").blocking()
        for member in [cluster.launch() for _ in range(2)]:
            member.await_ready(60)
        target.put_all({number: number for number in range(200)})
        cluster.kill(0)
        cluster.wait_until_safe()
        assert target.size() == 200


def test_a_joiner_waits_only_so_long_for_its_replicas() -> None:
    """Goal: the wait before ready is bounded by ``member.ready_wait_s``, and its end is told in
    the log. Method: far more partitions than can be arranged in that time.
    """
    settings = {**QUICK, "partition.count": 5003, "member.ready_wait_s": 0.05}
    with whimbrel.local_cluster(members=2, settings=settings) as cluster:
        founder, joiner = (_reasons_of_early_ready(one.log) for one in cluster.members)
    assert len(joiner) == 1
    assert "replicas have not arrived" in joiner[0] or "not assigned" in joiner[0]
    assert all("not assigned" in reason for reason in founder)  # of others it needs nothing


def _reasons_of_early_ready(log: Path) -> list[str]:
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    return [note["reason"] for note in notes if note["event"] == "ready_before_replicas"]


def test_a_cluster_that_does_not_become_safe_is_told() -> None:
    """Goal: ``add_members`` ends with an error that says why, where it cannot become safe, and at
    once in a state in which nothing moves. Method: a member that is stopped; NO_MIGRATION.
    """
    settings = {**QUICK, "membership.heartbeat_timeout_s": 60}
    with whimbrel.local_cluster(members=2, settings=settings) as cluster:
        cluster.pause(1)
        with pytest.raises(ClusterError, match=r"cluster is not safe within 1 s.*does not answer"):
            cluster.add_members(0, timeout_s=1)
        cluster.resume(1)
        cluster.wait_until_safe()
        assert cli(cluster, "state", "set", "NO_MIGRATION").returncode == 0
        cluster.add_member()
        assert not cluster.status()["safe"]


def test_a_member_that_does_not_start_is_told() -> None:
    """Goal: a failing start names the member and shows its log, and nothing stays. Method: a key
    that does not exist.
    """
    cluster = whimbrel.local_cluster(members=1, settings={"partition.cuont": 7})
    with pytest.raises(ClusterError, match=r"partition\.count"), cluster:
        raise AssertionError("it must not start")
    assert not cluster.running()
    assert not cluster.folder.exists()
    with pytest.raises(OperationError, match="no member"):
        _ = cluster.admin_url


def test_counts_without_sense_are_refused() -> None:
    """Goal: no cluster of nobody, none without bound."""
    for count in (0, -1, 101):
        with pytest.raises(UsageError):
            whimbrel.local_cluster(members=count)


def test_dev_runs_until_it_is_told_to_stop() -> None:
    """Goal: ``whimbrel dev`` tells where its members are, says when one ends, and lets all leave
    on SIGTERM with status 0. Method: run it, kill one member.
    """
    command = [sys.executable, "-m", "whimbrel", "dev", "--members", "2", "--json"]
    command += ["--cluster-name", "dev-test", "--set", "partition.count=7"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready: dict[str, Any] = json.loads(process.stdout.readline())
        assert (ready["event"], len(ready["members"])) == ("ready", 2)
        victim = ready["members"][1]
        subprocess.run(["kill", "-9", str(victim["pid"])], check=True)
        ended: dict[str, Any] = json.loads(process.stdout.readline())
        assert (ended["uuid"], ended["exit_status"]) == (victim["uuid"], -9)
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_waiting_is_bounded_and_tells_what_it_saw() -> None:
    """Goal: a wait in vain says what was last seen. Method: something that never comes."""
    with pytest.raises(TimeoutError, match="not blue within 0 s; last seen: red"):
        wait_until(lambda: (False, "red"), 0, "blue")
    assert wait_until(lambda: (True, "blue"), 0, "blue") == "blue"
