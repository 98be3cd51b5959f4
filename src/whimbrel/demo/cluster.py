"""Changes of the cluster during the demonstration, and what each of them cost.

Before a change the cluster is asked for the least number of copies that it needs; afterwards the
demonstration waits until everything is safe again and compares the tables for those made.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import msgspec

from whimbrel.errors import OperationError
from whimbrel.testing import LocalCluster
from whimbrel.testing.cluster import START_TIMEOUT_S

SAFE_TIMEOUT_S: Final = 110.0
"""Longest wait until the cluster is safe after a change."""
PROBE_END_S: Final = 60.0
"""Longest time the probe may take to check its ledger."""
API: Final = "/api/v1"

Row = list[str | None]
"""Uuids of a partition's holders, primary first."""


class Change(msgspec.Struct):
    """A change of the members and its consequences. Times are monotonic seconds."""

    kind: str
    member: str
    at_s: float
    least_copies: int
    done_s: float = 0.0
    """When the member was in, dead, or out."""
    safe_s: float = 0.0
    copies: int = 0
    promotions: int = 0
    exit_status: int | None = None
    longest_stall_s: float = 0.0
    """Longest call of the probe between the change and safety; filled in at the end."""

    @property
    def time_to_safe_s(self) -> float:
        """From the change until the cluster was safe again."""
        return self.safe_s - self.at_s


class Director:
    """Makes members join, die and leave."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.changes: list[Change] = []
        self.has_joined = threading.Event()
        """Set once a member has joined, or could not."""

    def join(self) -> Change:
        """One more member."""
        return self._carry_out("join", "join=1", None, self._add)

    def kill(self, index: int) -> Change:
        """SIGKILL for a member."""
        uuid = self._cluster.members[index].uuid
        return self._carry_out("kill", f"crash={uuid}", index, lambda: self._kill(index))

    def leave(self, index: int) -> Change:
        """SIGTERM for a member, which hands its data over before it ends."""
        uuid = self._cluster.members[index].uuid
        return self._carry_out("leave", f"leave={uuid}", index, lambda: self._leave(index))

    def _add(self) -> int | None:
        try:
            self._cluster.launch().await_ready(START_TIMEOUT_S)
        finally:
            self.has_joined.set()
        return None

    def _kill(self, index: int) -> int | None:
        return self._cluster.kill(index)

    def _leave(self, index: int) -> int | None:
        member = self._cluster.members[index]
        member.send(signal.SIGTERM)
        return member.await_end(SAFE_TIMEOUT_S)

    def _carry_out(
        self, kind: str, question: str, index: int | None, act: Callable[[], int | None]
    ) -> Change:
        cluster = self._cluster
        least = int(cluster.get(f"{API}/plan?{question}")["lower_bound_copies"])
        before = self._rows()
        change = Change(kind, "", time.monotonic(), least)
        change.exit_status = act()
        change.done_s = time.monotonic()
        member = cluster.members[-1 if index is None else index]
        change.member = member.address
        cluster.wait_until_safe(SAFE_TIMEOUT_S)
        change.safe_s = time.monotonic()
        change.copies = copies_made(before, self._rows())
        if kind == "kill":
            change.promotions = promotions_after(before, member.uuid)
        self.changes.append(change)
        return change

    def _rows(self) -> list[Row]:
        """Holders of every partition, primary first.

        The tables are compared, not the master's history: a leaving master takes that along.
        """
        rows = self._cluster.get(f"{API}/partitions")["rows"]
        return [row["replicas"] for row in rows]


def copies_made(before: Sequence[Row], after: Sequence[Row]) -> int:
    """How often a member holds a partition now that it did not hold before."""
    return sum(
        holder is not None and holder not in old
        for old, new in zip(before, after, strict=True)
        for holder in new
    )


def promotions_after(before: Sequence[Row], killed: str) -> int:
    """Partitions whose primary was killed and that had a backup to take over."""
    return sum(row[0] == killed and any(row[1:]) for row in before)


class ProbeProcess:
    """The probe client, from outside."""

    def __init__(self, cluster_name: str, addresses: list[str]) -> None:
        self.last: dict[str, Any] = {"acknowledged": 0, "unknown": 0}
        """What it told last."""
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "whimbrel.demo.probe", cluster_name, *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            self.last = msgspec.json.decode(line)

    def await_start(self, timeout_s: float) -> None:
        """Wait until it has written something.

        Raises:
            OperationError: It has not.
        """
        end_s = time.monotonic() + timeout_s
        while not self.last["acknowledged"]:
            if time.monotonic() > end_s or self._process.poll() is not None:
                raise OperationError("the probe client could not write anything")
            time.sleep(0.05)

    def finish(self) -> dict[str, Any]:
        """Let it check its ledger; what it found.

        Raises:
            OperationError: It did not come to an end.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(PROBE_END_S)
        if "lost" not in self.last:
            raise OperationError("the probe client could not check what it had written")
        self._process.wait(PROBE_END_S)
        return self.last

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
