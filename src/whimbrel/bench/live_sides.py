"""The servers of a live comparison: members of ours, or of the peer harness, driven alike.

Both are real processes on this machine that take the official client. What is counted is counted
from outside: processor time from ``/proc``, traffic from the loopback's counter, copies from the
partition table.
"""

from __future__ import annotations

import importlib
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any, Protocol

from whimbrel.errors import UsageError
from whimbrel.testing.cluster import START_TIMEOUT_S, LocalCluster, LocalMember

METRICS_PREFIX = "whimbrel_"
Rows = list[list[str]]
"""Names of the holders of each partition, primary first."""


class Side(Protocol):
    """A cluster that can be measured."""

    def start(self, count: int) -> None:
        """Start the first members."""
        ...

    def add(self) -> str:
        """Start one more; its name once it serves."""
        ...

    def leave(self, names: list[str]) -> None:
        """Let members hand over their data and end, all at the same time."""
        ...

    def kill(self, name: str) -> None:
        """SIGKILL."""
        ...

    def names(self) -> list[str]:
        """The members that run, oldest first."""
        ...

    def addresses(self) -> list[str]:
        """Where clients connect to them."""
        ...

    def cluster_name(self) -> str:
        """What clients must ask for."""
        ...

    def pids(self) -> dict[str, int]:
        """Processes of the members that run, by name."""
        ...

    def rows(self) -> Rows:
        """The partition table as the oldest member knows it."""
        ...

    def await_safe(self, timeout_s: float) -> bool:
        """Wait until the running members are the cluster and every replica is in step."""
        ...

    def close(self) -> None:
        """End whatever runs."""
        ...


class Ours:
    """Whimbrel members, started as any user starts them."""

    def __init__(self, settings: dict[str, object]) -> None:
        self._cluster = LocalCluster(1, f"bench-{os.getpid()}", settings, None)

    def start(self, count: int) -> None:
        """Start the first one, then the others at the same moment."""
        self._cluster.launch().await_ready(START_TIMEOUT_S)
        for member in [self._cluster.launch() for _ in range(count - 1)]:
            member.await_ready(START_TIMEOUT_S)

    def add(self) -> str:
        """Start one more."""
        member = self._cluster.launch()
        member.await_ready(START_TIMEOUT_S)
        return member.uuid

    def _index(self, name: str) -> int:
        return next(member.index for member in self._cluster.running() if member.uuid == name)

    def leave(self, names: list[str]) -> None:
        """SIGTERM to all, then wait for their ends."""
        members = [self._cluster.members[self._index(name)] for name in names]
        for member in members[1:]:
            member.process.terminate()
        for member in members:
            self._cluster.leave(member.index, timeout_s=300.0)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._cluster.kill(self._index(name))

    def names(self) -> list[str]:
        """Uuids."""
        return [member.uuid for member in self._cluster.running()]

    def addresses(self) -> list[str]:
        """Data ports."""
        return self._cluster.addresses()

    def cluster_name(self) -> str:
        """Of this run."""
        return self._cluster.name

    def pids(self) -> dict[str, int]:
        """By uuid."""
        return {member.uuid: member.process.pid for member in self._cluster.running()}

    def rows(self) -> Rows:
        """From the oldest member's admin port."""
        found = self._cluster.get("/api/v1/partitions")
        return [[name for name in row["replicas"] if name] for row in found["rows"]]

    def await_safe(self, timeout_s: float) -> bool:
        """Ask the admin port."""
        try:
            self._cluster.wait_until_safe(timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Kill and clean up."""
        self._cluster.close()


def check_harness(folder: Path) -> None:
    """Refuse a folder without the peer harness.

    Raises:
        UsageError: It has no ``cluster.py``.
    """
    if not (folder / "cluster.py").is_file():
        raise UsageError(f"{folder} is not the peer harness: it has no cluster.py")


class Peer:
    """Hazelcast members, started by the peer harness."""

    def __init__(self, folder: Path, properties: dict[str, str], heap_mib: int) -> None:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        module = importlib.import_module("cluster")
        self._cluster: Any = module.HazelcastCluster(
            backups=1, heap=f"{heap_mib}m", properties=properties
        )
        self._cluster.__enter__()
        self._next = 0

    def start(self, count: int) -> None:
        """Start the first members one after another."""
        for _ in range(count):
            self.add()

    def add(self) -> str:
        """Start one more."""
        index = self._next
        self._next += 1
        self._cluster.start(index)
        return str(self._cluster.port(index))

    def _member(self, name: str) -> Any:
        return self._cluster.members[int(name) - int(self._cluster.port(0))]

    def leave(self, names: list[str]) -> None:
        """Ask all, then wait for their ends."""
        for name in names:
            self._member(name).send("shutdown")
        for name in names:
            self._member(name).process.wait(300)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._member(name).crash()

    def names(self) -> list[str]:
        """Ports."""
        return [str(member.port) for member in self._cluster.alive()]

    def addresses(self) -> list[str]:
        """Data ports."""
        return [f"127.0.0.1:{name}" for name in self.names()]

    def cluster_name(self) -> str:
        """The harness's."""
        return str(self._cluster.name)

    def pids(self) -> dict[str, int]:
        """By port."""
        return {str(member.port): member.process.pid for member in self._cluster.alive()}

    def rows(self) -> Rows:
        """From the oldest member, as deep as one backup."""
        return [[str(port) for port in row[:2] if port] for row in self._cluster.table()]

    def await_safe(self, timeout_s: float) -> bool:
        """The harness asks the oldest member."""
        reply = self._cluster.await_safe(len(self.names()), timeout_s, strict=False)
        return bool(reply["safe"])

    def close(self) -> None:
        """Kill and clean up."""
        self._cluster.__exit__(None, None, None)


def metrics_of(member: LocalMember) -> dict[str, float]:
    """The figures without labels on a member's metrics page, by name without prefix."""
    url = f"{member.admin_url}/metrics"
    with urllib.request.urlopen(url, timeout=10.0) as page:  # noqa: S310  # our own member
        lines = page.read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(METRICS_PREFIX))
    return {
        name.removeprefix(METRICS_PREFIX): float(value) for name, value in found if "{" not in name
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loopback_bytes() -> int:
    """Bytes received on the loopback interface since boot.

    Raises:
        UsageError: This machine does not tell.
    """
    path = Path("/proc/net/dev")
    if not path.exists():
        raise UsageError("the live benchmark needs Linux: there is no /proc/net/dev")
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "lo":
            return int(figures.split()[0])
    raise UsageError("this machine has no loopback interface")
