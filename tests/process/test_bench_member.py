"""The members of ``benchmarks/`` obey the commands that the peer harness gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.process.runtime_members import ROOT, free_ports

MEMBER = ROOT / "benchmarks" / "member_process.py"


class Steered:
    """One such member."""

    def __init__(self, port: int, join: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(MEMBER),
                f"port={port}",
                "cluster=bench",
                "backups=1",
                f"members={join}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )

    def read(self, event: str) -> dict[str, Any]:
        """The next line, which is of this event."""
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        assert line.get("event") == event, line
        return line

    def ask(self, command: str) -> dict[str, Any]:
        """Give a command and read its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.read(command.split()[0])


@contextmanager
def steered(*members: Steered) -> Iterator[None]:
    """Members that do not outlive the test."""
    try:
        yield
    finally:
        for member in members:
            member.process.kill()
            member.process.communicate()


def test_a_measured_member_obeys_the_harness() -> None:
    """Goal: the figures of the benchmarks come from members that answer every command. Method: one
    starts, a second one joins, and the first is asked for all of them.
    """
    ports = free_ports(2)
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    first = Steered(ports[0], join)
    with steered(first):
        assert first.read("started")["members"] == 1
        assert first.ask("await-safe 1 20000")["safe"]
        assert first.ask("reset")["ok"]
        second = Steered(ports[1], join)
        with steered(second):
            second.read("started")
            assert first.ask("await-safe 2 20000")["safe"]
            stats = first.ask("stats")
            assert stats["failed"] == 0 and stats["processes"] >= 1
            assert sum(stats["by_index"]) > 0 and stats["first_at"] <= stats["last_at"]
            rows = first.ask("table")["rows"]
            assert {port for row in rows for port in row} == set(ports)
            assert first.ask("memory")["used_heap"] > 1_000_000
