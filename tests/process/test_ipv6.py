"""Members that listen on ``::1``: joined, shown, asked and stopped by the one form ``[::1]:P``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.runtime_members import ROOT, MemberProcess, until

from whimbrel.client.bulk import BulkClient


def has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no ::1")


def free_ports(count: int) -> list[int]:
    """Ports of ``::1`` nobody listens on at the moment."""
    listeners = [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def ask(*arguments: str) -> Any:
    """The JSON document that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "whimbrel", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[list[MemberProcess], list[int], list[int]]]:
    """Two members, one of them told ``--host [::1]``, with their data and admin ports."""
    first, second, *admins = free_ports(4)
    members = []
    try:
        for host, port, admin in (("::1", first, admins[0]), ("[::1]", second, admins[1])):
            members.append(
                MemberProcess(
                    tmp_path,
                    *("--host", host, "--port", str(port), "--admin-port", str(admin)),
                    *("--join", f"[::1]:{first},[0:0::1]:{second}", "--set", "partition.count=7"),
                    is_whole=True,
                )
            )
            assert members[-1].ready()["address"] == f"[::1]:{port}"
        yield members, [first, second], admins
    finally:
        for member in members:
            member.destroy()


def test_one_form_in_every_place(
    pair: tuple[list[MemberProcess], list[int], list[int]],
) -> None:
    """Goal: what is shown may be typed. Method: documents, events, metrics of one member; a plan, a
    client and a shutdown that are given the address as it was shown.
    """
    members, ports, admins = pair
    shown = [f"[::1]:{port}" for port in ports]
    admin = ("--admin", f"http://[::1]:{admins[0]}")
    assert [row["address"] for row in ask("members", *admin)] == shown
    assert ask("status", "--wait-safe", "30", *admin)["safe"]
    added = [event for event in ask("events", *admin) if event["kind"] == "member_added"]
    assert sorted(event["address"] for event in added) == sorted(shown)
    assert ask("plan", "--leave", shown[1], *admin)["copies"] == 0
    with BulkClient([shown[0]], "dev", 10.0) as client:
        assert sorted(str(member.address) for member in client.members()) == sorted(shown)
    assert ask("shutdown", shown[1], "--wait", "30", *admin)["address"] == shown[1]
    assert members[1].wait() == 0
    until(lambda: len(ask("members", *admin)) == 1, "the shorter list")
