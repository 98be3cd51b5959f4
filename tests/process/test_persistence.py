"""Real members with files: all are killed, and come back with what was acknowledged."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hazelcast.client import HazelcastClient
from hazelcast.errors import HazelcastError
from tests.process.runtime_members import MemberProcess, free_ports

MEMBERS = 3
ROUNDS = 2
WRITERS = 3
WRITES_MIN = 60
"""Acknowledged writes before the members are killed."""
EVENTS = ("recovering", "ready")


class Grid:
    """Members with a directory each, which may all die and come back."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.ports = free_ports(MEMBERS)
        self.settings = {"enabled": "true", "fsync": "always", **settings}
        self.members: list[MemberProcess] = []

    def start(self) -> list[list[str]]:
        """Start all; what each of them says on stdout until it is ready."""
        join = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        options = [f"persistence.{key}={value}" for key, value in self.settings.items()]
        options.append("partition.count=31")
        self.members = [
            MemberProcess(
                logs,
                *("--port", str(port), "--join", join, "--data-dir", str(self.folder / str(port))),
                *(part for option in options for part in ("--set", option)),
                is_whole=True,
            )
            for port in self.ports
        ]
        return [list(said_until_ready(member)) for member in self.members]

    def die(self) -> None:
        """Kill -9 of all at one moment."""
        for member in self.members:
            member.signal(signal.SIGKILL)
        for member in self.members:
            member.destroy()

    @contextmanager
    def client(self) -> Iterator[HazelcastClient]:
        """An official client that calls a write acknowledged only when it is."""
        client = HazelcastClient(
            cluster_name="dev",
            cluster_members=[f"127.0.0.1:{port}" for port in self.ports],
            fail_on_indeterminate_operation_state=True,
            cluster_connect_timeout=30,
        )
        try:
            yield client
        finally:
            client.shutdown()


def said_until_ready(member: MemberProcess) -> Iterator[str]:
    """The events on a member's stdout, ``ready`` the last one."""
    event = ""
    while event != "ready":
        event = str(member.ready()["event"])
        yield event


def write_until_killed(grid: Grid, kill: Any) -> dict[str, str]:
    """Writers put until their members are gone; what was acknowledged."""
    acknowledged: dict[str, str] = {}
    enough = threading.Event()

    def write(writer: int) -> None:
        with grid.client() as client:
            target = client.get_map("kept").blocking()
            for number in range(100_000):
                key, text = f"{writer}/{number % 500}", f"{number}"
                try:
                    target.set(key, text)
                except (HazelcastError, OSError):
                    return
                acknowledged[key] = text
                if len(acknowledged) >= WRITES_MIN:
                    enough.set()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for one in writers:
        one.start()
    try:
        assert enough.wait(60), "the members take no writes"
    finally:
        kill()
    for one in writers:
        one.join(60)
    return acknowledged


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    """Members that do not outlive the test."""
    found = Grid(tmp_path)
    yield found
    found.die()


def test_all_are_killed_under_load_and_come_back(grid: Grid) -> None:
    """APR-01, APR-04, APR-13, S1: with ``always`` nothing acknowledged is gone after kill -9 of all
    members under load; each says that it recovers and, once, that it is ready.
    """
    assert grid.start() == [["ready"]] * MEMBERS
    for _ in range(ROUNDS):
        acknowledged = write_until_killed(grid, grid.die)
        assert grid.start() == [list(EVENTS)] * MEMBERS
        with grid.client() as client:
            found = client.get_map("kept").blocking().get_all(list(acknowledged))
        older = [key for key, text in acknowledged.items() if int(found.get(key, -1)) < int(text)]
        assert not older, f"{len(older)} of {len(acknowledged)} are lost, for example {older[:3]}"


def test_all_end_gracefully_and_come_back(tmp_path: Path) -> None:
    """APR-05: whatever ``fsync`` says, who stops gracefully finds everything again; SIGTERM to all
    at once hands nothing over and loses nothing. What was destroyed stays so.
    """
    grid = Grid(tmp_path, fsync="off", fsync_interval_ms="60000")
    grid.start()
    entries = {f"key {number}": "x" * 100 for number in range(300)}
    with grid.client() as client:
        client.get_map("kept").blocking().put_all(entries)
        gone = client.get_map("gone").blocking()
        gone.put("key", "value")
        assert gone.destroy()
    for member in grid.members:
        member.signal(signal.SIGTERM)
    assert [member.wait() for member in grid.members] == [0] * MEMBERS
    for member in grid.members:
        member.destroy()
    assert grid.start() == [list(EVENTS)] * MEMBERS
    with grid.client() as client:
        assert client.get_map("kept").blocking().get_all(list(entries)) == entries
        assert [one.name for one in client.get_distributed_objects()] == ["kept"]
    grid.die()


def test_a_damaged_segment_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    """S4, APR-09: a bit is flipped in what was durable: exit 1, file and place in words, and
    every file as it was.
    """
    grid = Grid(tmp_path, segment_bytes="4096")
    grid.ports = grid.ports[:1]
    grid.start()
    with grid.client() as client:
        target = client.get_map("kept").blocking()
        for number in range(60):
            target.set(number, "x" * 300)
    grid.die()
    folder = tmp_path / str(grid.ports[0])
    victim = min((folder / "log").glob("changes-*.seg"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    victim.write_bytes(data)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(AssertionError):
        grid.start()
    (member,) = grid.members
    assert member.wait() == 1
    told = member.log.read_text()
    assert victim.name in told and "damaged at offset" in told and "Traceback" not in told
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path, was in before.items() if after.get(path) != was} <= {"member.lock"}
    reasons = [note["reason"] for note in member.notes() if note["event"] == "ended"]
    assert json.dumps(reasons).count(victim.name) == 1
    member.destroy()
