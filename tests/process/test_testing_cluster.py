"""``local_cluster``: real processes come, die and leave, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import hazelcast
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


class SilentMember:
    """Stands for a process: what it was started with, and what was waited for."""

    waits: ClassVar[list[str]] = []
    is_running = True

    def __init__(self, index: int, command: list[str], folder: Path) -> None:
        self.index, self.command, self.port = index, command, 0
        self.waits.append(f"{index} starts")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def await_port(self, timeout_s: float) -> None:
        self.waits.append(f"port of {self.index}")

    def await_ready(self, timeout_s: float) -> None:
        self.waits.append(f"{self.index} ready")


def test_each_member_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a cluster with data on disk is started with all that have data, and those first: one
    without must not be a cluster before it can hear of the others. Method: no processes; data of a
    third member lie there, and what a graceful leave has left of a first one.
    """
    monkeypatch.setattr("whimbrel.testing.cluster.LocalMember", SilentMember)
    monkeypatch.setattr(LocalCluster, "_await_safe", lambda *_: None)
    (tmp_path / "data" / "3").mkdir(parents=True)
    (tmp_path / "data" / "3" / "cluster.meta").write_bytes(b"")
    for number, size in ((1, 44), (3, 200)):
        (tmp_path / "data" / f"{number}" / "log").mkdir(parents=True)
        log = tmp_path / "data" / f"{number}" / "log" / "changes-00000001.seg"
        log.write_bytes(bytes(size))
    (tmp_path / "data" / "notes").mkdir()
    (tmp_path / "data" / "notes" / "cluster.meta").write_bytes(b"")
    SilentMember.waits.clear()
    cluster = whimbrel.local_cluster(
        2,
        settings={"persistence.fsync": "always"},
        folder=tmp_path / "logs",
        data_dir=tmp_path / "data",
    )
    assert cluster.name == "local"
    cluster.start()
    members: list[Any] = list(cluster.members)
    for number, member in zip((3, 1, 2), members, strict=True):
        assert f"member.data_dir={tmp_path / 'data' / str(number)}" in member.command
        assert "persistence.enabled=true" in member.command
        assert "persistence.fsync=always" in member.command
    joins = [member.command[member.command.index("--join") + 1] for member in members]
    own = [member.command[member.command.index("--port") + 1] for member in members]
    assert [set(join.split(",")) for join in joins] == [{f"127.0.0.1:{port}" for port in own}] * 3
    assert SilentMember.waits == [
        "0 starts", "port of 0", "1 starts", "2 starts", "0 ready", "1 ready", "2 ready",
    ]  # fmt: skip
    other: Any = cluster.launch(settings={"member.data_dir": "d"})
    assert "member.data_dir=d" in other.command


@contextlib.contextmanager
def dev_cluster(*arguments: str) -> Iterator[dict[str, Any]]:
    """``whimbrel dev`` with these arguments; Ctrl-C at the end of the block, and its end with 0."""
    command = [sys.executable, "-m", "whimbrel", "dev", "--json", "--cluster-name", "dev-kept"]
    # What runs in the background of a shell has Ctrl-C ignored, and so has whatever it starts.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, former)
        try:
            assert process.stdout is not None
            ready: dict[str, Any] = json.loads(process.stdout.readline())
            yield ready
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.terminate()


@pytest.mark.timeout(600)
def test_dev_has_its_data_again(tmp_path: Path) -> None:
    """Goal: with ``--data-dir`` a cluster that was ended with Ctrl-C comes back with its members
    and data; with a key none of it lies there in the clear, and the key can be changed between two
    starts. Method: three starts, the second one with fewer members than there are data of, the
    third one with a new key before the old one; ``whimbrel files`` with and without the right key.
    """
    key_file, data = tmp_path / "keys", tmp_path / "grid"
    key_file.write_text("01" * 32 + "\n")
    options = ["--data-dir", str(data), "--set", "partition.count=7"]
    options += ["--set", f"persistence.encryption.key_file={key_file}"]
    entries = {number: f"a value that is kept {number}" for number in range(100)}
    identities: list[set[str]] = []
    for start, count in enumerate((2, 1, 2)):
        if start == 2:
            key_file.write_text("02" * 32 + "\n" + "01" * 32 + "\n")
        with dev_cluster("--members", str(count), *options) as ready:
            identities.append({member["uuid"] for member in ready["members"]})
            client = hazelcast.HazelcastClient(
                cluster_name="dev-kept", cluster_members=[ready["members"][0]["address"]]
            )
            kept = client.get_map("kept").blocking()
            if start == 0:
                kept.put_all(entries)
            assert kept.get_all(list(entries)) == entries
            client.shutdown()
    assert identities[0] == identities[1] == identities[2] and len(identities[0]) == 2
    files = [file for file in data.rglob("*") if file.is_file()]
    assert {"1", "2"} == {file.name for file in data.iterdir()}
    assert any(file.suffix == ".seg" for file in files)
    assert not any(b"value that is kept" in file.read_bytes() for file in files)
    looks = [
        [sys.executable, "-m", "whimbrel", "files", str(data / name), "--key-file", str(key_file)]
        for name in ("1", "2")
    ]
    names = [
        structure["name"]
        for look in looks
        for found in [subprocess.run([*look, "--json"], capture_output=True, check=True)]
        for structure in json.loads(found.stdout)["structures"]
    ]
    assert "kept" in names, "who left last has it, or both"
    key_file.write_text("03" * 32 + "\n")
    wrong = subprocess.run(looks[0], capture_output=True, text=True)
    assert wrong.returncode == 1 and "not looked into without key" in wrong.stderr


def test_waiting_is_bounded_and_tells_what_it_saw() -> None:
    """Goal: a wait in vain says what was last seen. Method: something that never comes."""
    with pytest.raises(TimeoutError, match="not blue within 0 s; last seen: red"):
        wait_until(lambda: (False, "red"), 0, "blue")
    assert wait_until(lambda: (True, "blue"), 0, "blue") == "blue"
