"""``whimbrel start`` as an operator meets it: ready line, ports, signals, exit status, identity."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hazelcast
import pytest
from tests.process.runtime_members import ROOT, MemberProcess, free_ports, until

QUICK = ("--set", "membership.heartbeat_interval_s=0.2", "--set", "partition.count=7")
Start = Callable[..., MemberProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts members in a folder of the test; they end with it."""
    started: list[MemberProcess] = []

    def make(*arguments: str, is_whole: bool = False, **environment: str) -> MemberProcess:
        member = MemberProcess(tmp_path, *QUICK, *arguments, is_whole=is_whole, **environment)
        started.append(member)
        return member

    yield make
    for member in started:
        member.destroy()


def flags(port: int, admin: int, *join: int) -> list[str]:
    addresses = ",".join(f"127.0.0.1:{other}" for other in (port, *join))
    return ["--port", str(port), "--admin-port", str(admin), "--join", addresses]


def whimbrel(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from whimbrel.cli.main import entry; entry()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_ready_line_and_a_graceful_end(start: Start, number: signal.Signals) -> None:
    """Goal: stdout carries exactly one JSON line; the admin port answers although its server is
    loaded later; a signal leaves with status 0.
    """
    port, admin, dead = free_ports(3)
    member = start(*flags(port, admin, dead), "--cluster-name", "alone")
    ready = member.ready()
    assert (ready["event"], ready["port"], ready["admin"]) == ("ready", port, admin)
    assert ready["uuid"].count("-") == 4
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/", timeout=10) as answer:
        assert answer.read().decode() == f"{ready['uuid']} 127.0.0.1:{admin}"
    member.signal(number)
    assert member.wait() == 0
    assert member.rest() == b""
    kinds = [note["event"] for note in member.notes()]
    assert "joined" in kinds
    assert kinds[-1] == "ended"
    assert "Traceback" not in member.log.read_text()


def test_ports_that_are_taken(start: Start) -> None:
    """Goal: exit 2, the port named on stderr, nothing on stdout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = int(listener.getsockname()[1])
        (free,) = free_ports(1)
        for arguments in (
            ["--port", str(taken)],
            ["--port", str(free), "--admin-port", str(taken)],
        ):
            member = start(*arguments)
            assert member.wait() == 2
            assert str(taken) in member.log.read_text()
            assert member.rest() == b""


def test_data_directory_keeps_the_identity(start: Start, tmp_path: Path) -> None:
    """Goal: same directory, same uuid; a second process is refused; without one always new."""
    folder = str(tmp_path / "data")
    port, admin, *other = free_ports(4)
    first = start(*flags(port, admin), "--data-dir", folder)
    uuid = first.ready()["uuid"]
    second = start(*flags(*other), "--data-dir", folder)
    assert second.wait() == 2
    assert "in use by another member" in second.log.read_text()
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    again = start(*flags(port, admin), "--data-dir", folder)
    assert again.ready()["uuid"] == uuid
    again.signal(signal.SIGKILL)
    assert again.wait() == -signal.SIGKILL
    fresh = start(*flags(port, admin))
    assert fresh.ready()["uuid"] != uuid


def test_a_founder_that_restarts_founds_another_cluster(start: Start, tmp_path: Path) -> None:
    """Goal: a client learns that the data are gone although the member's uuid and address are as
    before. Method: a lone member with a data directory is killed and started again under a
    connected official client; the same client then knows another cluster, and the same uuid.
    """
    port, admin = free_ports(2)
    folder = ("--data-dir", str(tmp_path / "data"))
    first = start(*flags(port, admin), *folder)
    uuid = first.ready()["uuid"]
    client = hazelcast.HazelcastClient(
        cluster_name="dev", cluster_members=[f"127.0.0.1:{port}"], cluster_connect_timeout=60
    )
    try:
        target = client.get_map("held").blocking()
        target.put("key", "value")
        known = client._connection_manager._cluster_id
        first.signal(signal.SIGKILL)
        first.wait()
        again = start(*flags(port, admin), *folder)
        assert again.ready()["uuid"] == uuid
        until(lambda: client._connection_manager._cluster_id != known, "another cluster id")
        assert target.get("key") is None
        assert [str(member.uuid) for member in client.cluster_service.get_members()] == [uuid]
    finally:
        client.shutdown()


def test_a_broken_invariant_stops_the_member(start: Start, tmp_path: Path) -> None:
    """Goal: exit 70 and a readable report beside the data (safety rule 8)."""
    port, admin = free_ports(2)
    member = start(
        *flags(port, admin), "--data-dir", str(tmp_path / "data"), WHIMBREL_TEST_BREAK="1"
    )
    member.ready()
    assert member.wait() == 70
    (report,) = (tmp_path / "data").glob("whimbrel-crash-*.txt")
    text = report.read_text()
    assert "the test breaks a fact" in text
    assert "InvariantViolation" in text
    assert '"kind": "joined"' in text
    assert any(note["event"] == "crashed" for note in member.notes())


def test_a_member_outlives_its_admin_server(start: Start) -> None:
    """Goal: an admin server that cannot start is an error in the log, not the end of the data."""
    port, admin = free_ports(2)
    member = start(*flags(port, admin), WHIMBREL_TEST_ADMIN="1")
    member.ready()
    until(lambda: any(n["event"] == "admin_failed" for n in member.notes()), "the failure told")
    member.signal(signal.SIGTERM)
    assert member.wait() == 0


def answer_of(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and document of the real admin server, within a second, as probes ask for it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def is_served(port: int) -> bool:
    try:
        return answer_of(port, "/health/live")[0] == 200
    except OSError:
        return False


def test_a_member_that_seeks_answers_probes(start: Start) -> None:
    """Goal: while a member joins it lives and is not ready, and every other path says why it has
    no answer, at once. Method: the only join address accepts connections and never says a word.
    """
    port, admin = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        joins = flags(port, admin, int(silent.getsockname()[1]))
        member = start(*joins, is_whole=True)
        until(lambda: is_served(admin), "the admin server")
        for _ in range(20):
            assert answer_of(admin, "/health/live") == (200, {"live": True})
            assert answer_of(admin, "/health/ready")[0] == 503
            assert answer_of(admin, "/health/serving")[0] == 503
            time.sleep(0.2)  # longer than an attempt to connect, after which it must seek on
        status, told = answer_of(admin, "/api/v1/cluster")
        assert status == 200
        assert not told["safe"] and "not joined" in told["reason"]
        for path in ("members", "partitions", "migrations", "structures", "events", "plan?join=1"):
            status, told = answer_of(admin, f"/api/v1/{path}")
            assert (status, list(told)) == (503, ["error"]), path
            assert "not joined" in told["error"]
        member.signal(signal.SIGTERM)
        assert member.wait() == 0
        assert member.rest() == b""


def test_an_admin_server_that_cannot_start_is_tried_again(start: Start) -> None:
    """Goal: a lack of open files at the start costs the admin side a while, and is told each time.
    Method: the first two starts fail so.
    """
    port, admin = free_ports(2)
    member = start(*flags(port, admin), WHIMBREL_TEST_ADMIN_FAILS="2")
    ready = member.ready()

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/", timeout=20) as answer:
            return str(answer.read().decode())

    assert page() == f"{ready['uuid']} 127.0.0.1:{admin}"
    failures = [note for note in member.notes() if note["event"] == "admin_failed"]
    assert ["Too many open files" in note["problem"] for note in failures] == [True, True]
    assert [note["again_in_s"] for note in failures] == [1.0, 2.0]


def test_a_second_signal_stops_at_once(start: Start) -> None:
    """Goal: an operator who does not want to wait gets out, with status 1.

    Method: the leave cannot end because the master is stopped (SIGSTOP).
    """
    port_a, admin_a, port_b, admin_b = free_ports(4)
    quiet = ("--set", "membership.heartbeat_timeout_s=60")
    master = start(*flags(port_a, admin_a), *quiet)
    master.ready()
    member = start(*flags(port_b, admin_b, port_a), *quiet)
    member.ready()
    master.signal(signal.SIGSTOP)
    member.signal(signal.SIGTERM)
    until(lambda: any(n["event"] == "leaving" for n in member.notes()), "the first signal")
    assert member.process.poll() is None
    member.signal(signal.SIGTERM)
    assert member.wait() == 1


def test_a_member_that_has_found_nobody_can_leave(start: Start) -> None:
    """Goal: a signal ends a member that is still looking for its cluster, without a ready line.

    Method: the only join address accepts connections and never says a word.
    """
    port, admin = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        member = start(*flags(port, admin, int(silent.getsockname()[1])))

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(answers, "the open port")
        member.signal(signal.SIGTERM)
        assert member.wait() == 0
        assert member.rest() == b""


def test_a_short_pause_costs_nothing(start: Start) -> None:
    """Goal: SIGSTOP for less than the heartbeat time-out removes nobody, on either side.

    Method: stop one of two members for three fifths of the time-out; a list is only installed
    for the join.
    """
    port_a, admin_a, port_b, admin_b = free_ports(4)
    patient = ("--set", "membership.heartbeat_timeout_s=2.5")
    first = start(*flags(port_a, admin_a), *patient)
    first.ready()
    second = start(*flags(port_b, admin_b, port_a), *patient)
    second.ready()
    second.signal(signal.SIGSTOP)
    time.sleep(1.5)  # the pause is the fault
    second.signal(signal.SIGCONT)
    until(lambda: any(n["event"] == "stalled" for n in second.notes()), "the pause noticed")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    kinds = [n["event"] for n in first.notes() + second.notes()]
    assert "expelled" not in kinds
    assert kinds.count("joined") == 2
    assert not [n for n in second.notes() if n["event"] == "member_removed"]


@pytest.mark.parametrize("keeps_data", [False, True])
def test_an_expelled_member_comes_back_by_itself(
    start: Start, tmp_path: Path, *, keeps_data: bool
) -> None:
    """Goal: a member that was stopped for too long joins again by itself, on the same ports,
    without a second ready line, even if nobody told it where to look: as somebody new, or where it
    has files, which are of whom they name, as whom it was, with those set aside.
    """
    port_a, admin_a, port_b, admin_b = free_ports(4)
    impatient = ["--set", "membership.heartbeat_timeout_s=1"]
    if keeps_data:
        impatient += ["--set", "persistence.enabled=true"]
    kept = [["--data-dir", str(tmp_path / name)] if keeps_data else [] for name in "ab"]
    first = start("--port", str(port_a), "--admin-port", str(admin_a), *impatient, *kept[0])
    first.ready()
    second = start(*flags(port_b, admin_b, port_a), *impatient, *kept[1])
    second.ready()
    first.signal(signal.SIGSTOP)
    until(lambda: any(n["event"] == "member_removed" for n in second.notes()), "the removal")
    first.signal(signal.SIGCONT)
    until(lambda: sum(n["event"] == "joined" for n in first.notes()) == 2, "the return")
    ids = [n["member"] for n in first.notes() if n["event"] == "joined"]
    assert (ids[0] == ids[1]) is keeps_data
    assert any(n["event"] == "files_set_aside" for n in first.notes()) is keeps_data
    for member in (first, second):
        member.signal(signal.SIGTERM)
        assert member.wait() == 0
    assert first.rest() == b""


def test_a_reader_that_goes_away_changes_nothing(start: Start) -> None:
    """Goal: a closed stdout costs the ready line, not the member."""
    port, admin = free_ports(2)
    member = start(*flags(port, admin))
    assert member.process.stdout is not None
    member.process.stdout.close()
    until(lambda: any(n["event"] == "joined" for n in member.notes()), "the join")
    member.signal(signal.SIGTERM)
    assert member.wait() == 0
    text = member.log.read_text()
    assert "Traceback" not in text
    assert "BrokenPipe" not in text


def test_the_command_line_refuses_in_words() -> None:
    """Goal: wrong usage and configuration end with 2, words on stderr, nothing on stdout."""
    for arguments, word in (
        (["frobnicate"], "frobnicate"),
        (["memebrs"], "did you mean members"),
        (["--nope"], "--nope"),
        (["start", "--port", "seventy"], "seventy"),
        (["start", "--port", "70000"], "65535"),
        (["start", "--set", "partition.cuont=1"], "partition.count"),
        (["start", "--host", "10.1.2.3"], "network.insecure"),
        (["start", "--config", "/nonexistent.toml"], "does not exist"),
    ):
        done = whimbrel(*arguments)
        assert done.returncode == 2, arguments
        assert word in done.stderr or word == "seventy"
        assert done.stdout == ""


def test_help_and_version() -> None:
    """Goal: the program explains itself."""
    top = whimbrel("--help")
    assert top.returncode == 0
    assert "start" in top.stdout
    assert whimbrel("start", "--help").returncode == 0
    version = whimbrel("--version")
    assert version.returncode == 0
    assert version.stdout.split()[-1][0].isdigit()
