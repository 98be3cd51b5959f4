"""One member of a cluster with files goes and comes back: real processes, measured from outside.

The flow of paper 05 (APR-54): members with a data directory each, one map, every write synced; the
youngest member is killed, some keys may be changed, and it is started again on its directory. What
was copied comes from the members' own counters, migrations from the master's documents, times from
looking at the master's status every POLL_S.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

from whimbrel.bench.live_sides import metrics_of
from whimbrel.core.model import ClusterState
from whimbrel.core.replication.comparison import COPY_FIGURES
from whimbrel.errors import OperationError
from whimbrel.testing.cluster import START_TIMEOUT_S, ClusterError, LocalCluster, LocalMember
from whimbrel.testing.waiting import wait_until

MEMBERS: Final = 4
MAP: Final = "bench"
POLL_S: Final = 0.02
"""Between two looks at the status; times to safe are late by that much, and by one answer."""
SAFE_TIMEOUT_S: Final = 1_800.0
LOAD_TIMEOUT_S: Final = 1_800.0
BATCH_BYTES: Final = 1 << 20
CALLS_MAX: Final = 4
"""Batches under way: the client waits for the oldest before it sends one more."""
SAMPLE: Final = 500
"""Keys, of those changed and of all, whose values are looked at in the end."""
NOTHING, ONE_EACH, TENTH = "nothing", "one key a partition", "a tenth"
COPIED: Final = "copy_entries_sent"
SUMS: Final = "copy_sum_bytes_sent"

Figures = dict[str, Any]
Loaded = Callable[[float], None]
"""Told which share of the entries is stored."""


class Size(msgspec.Struct, frozen=True):
    """What is measured; the paper has 4,000,000 entries."""

    entries: int = 300_000
    value_bytes: int = 10_240
    partitions: int = 271


class Mode(NamedTuple):
    """How a cluster is set up before a member goes.

    Attributes:
        name: As the tables have it.
        state: The cluster state meanwhile.
        compares: Whether copies of the map begin with a comparison.
        backups: Synchronous ones of the map.
        changes: What is changed while the member is away, one flow after the other.
    """

    name: str
    state: ClusterState
    compares: bool
    backups: int
    changes: tuple[str, ...]


class _Look(NamedTuple):
    """Counters before an event."""

    figures: dict[int, dict[str, float]]
    """Of each member, by its index."""
    process: int
    """Number of the last migration process."""


class PersistentGrid:
    """The cluster of one mode; a context manager that leaves no process and no file behind."""

    def __init__(self, mode: Mode, size: Size) -> None:
        self.mode, self.size = mode, size
        settings = {
            "partition.count": size.partitions,
            "persistence.enabled": True,
            "persistence.fsync": "always",
            "persistence.data_load_timeout_s": LOAD_TIMEOUT_S,
            "map.default.backup_count": mode.backups,
            "map.default.comparison": mode.compares,
        }
        self._cluster = LocalCluster(MEMBERS, f"bench-{os.getpid()}", settings, None)
        self._values = bytearray(size.entries)
        """What each key's value is filled with."""
        self._round = 0
        self._client: Any = None
        self._map: Any = None

    def __enter__(self) -> Self:
        """Start all members: the first one, then the others at the same moment."""
        try:
            self._launch(0).await_ready(START_TIMEOUT_S)
            for member in [self._launch(seat) for seat in range(1, MEMBERS)]:
                member.await_ready(START_TIMEOUT_S)
            self._cluster.wait_until_safe()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill all members and remove their files."""
        self._cluster.close()

    def _launch(self, seat: int) -> LocalMember:
        folder = self._cluster.folder / f"data-{seat}"
        return self._cluster.launch(settings={"member.data_dir": folder})

    # -- the data -------------------------------------------------------------------------

    def load(self, loaded: Loaded) -> float:
        """Store all entries, wait until safe, enter the mode's state; seconds of storing."""
        self._client = self._cluster.client()
        self._map = self._client.get_map(MAP)
        begin_s = time.monotonic()
        self._store(range(self.size.entries), loaded)
        seconds = time.monotonic() - begin_s
        self._cluster.wait_until_safe(SAFE_TIMEOUT_S)
        self._cluster.set_state(self.mode.state)
        return seconds

    def _store(self, numbers: Sequence[int], loaded: Loaded = lambda _share: None) -> None:
        """Put new values under some keys; several batches at a time."""
        self._round += 1
        value = bytearray([self._round]) * self.size.value_bytes
        calls: deque[Any] = deque()
        batch = max(1, BATCH_BYTES // self.size.value_bytes)
        left = iter(numbers)
        done = 0
        while part := list(islice(left, batch)):
            if len(calls) >= CALLS_MAX:
                calls.popleft().result()
            calls.append(self._map.put_all({key_of(number): value for number in part}))
            done += len(part)
            loaded(done / len(numbers))
        for call in calls:
            call.result()
        for number in numbers:
            self._values[number] = self._round

    def _chosen(self, change: str, away: str) -> list[int]:
        """Which keys are changed while the member with that uuid is away.

        In FROZEN nobody takes its place, and writes to partitions of which it is the primary wait
        for it: others are chosen there, as many.
        """
        if change == NOTHING:
            return []
        allowed: list[int] = []
        first: dict[int, int] = {}
        partition_of = self._client.partition_service.get_partition_id
        rows = self._cluster.get("/api/v1/partitions")["rows"]
        waits = self.mode.state == ClusterState.FROZEN
        for number in range(self.size.entries):
            pid = partition_of(key_of(number))
            if not waits or rows[pid]["replicas"][0] != away:
                allowed.append(number)
                first.setdefault(pid, number)
        if change == ONE_EACH:
            return list(first.values())
        count = self.size.entries // 10
        return allowed[:: max(1, len(allowed) // count)][:count]

    def check(self) -> Figures:
        """How many entries are lost, and how many of a sample have another value than the last."""
        newest = [number for number, round_ in enumerate(self._values) if round_ == self._round]
        every = range(self.size.entries)
        wrong = 0
        for numbers in (newest, every):
            sample = numbers[:: max(1, len(numbers) // SAMPLE)]
            found = self._map.get_all([key_of(number) for number in sample]).result()
            for number in sample:
                value = bytes([self._values[number]]) * self.size.value_bytes
                wrong += bytes(found.get(key_of(number), b"")) != value
        return {"lost": self.size.entries - self._map.size().result(), "wrong": wrong}

    # -- one member goes, and comes back --------------------------------------------------

    def flow(self, change: str) -> Iterator[Figures]:
        """Kill the youngest member, change keys, start it again: a row of figures for both."""
        leaver = self._cluster.running()[-1]
        before = self._look()
        begin_s = time.monotonic()
        self._cluster.kill(leaver.index)
        # Where seats are kept replicas are missing until their member is back: never safe.
        becomes_safe = self.mode.state != ClusterState.FROZEN
        safe_s = self._wait(MEMBERS - 1, is_safe=becomes_safe)
        spent_s = round(safe_s - begin_s, 3) if becomes_safe else None
        yield {"event": "kill", "seconds": spent_s, **self._since(before)}
        keys = self._chosen(change, leaver.uuid)
        if keys:
            self._store(keys)
        before = self._look()
        begin_s = time.monotonic()
        returner = self._launch(MEMBERS - 1)
        listed_s = self._wait(MEMBERS, is_safe=False, coming=returner)
        safe_s = self._wait(MEMBERS, is_safe=True, coming=returner)
        returner.await_ready(START_TIMEOUT_S)
        yield {
            "event": "restart",
            "seconds": round(safe_s - listed_s, 3),
            "load_s": round(listed_s - begin_s, 3),
            "total_s": round(safe_s - begin_s, 3),
            "changed": len(keys),
            **self._since(before),
            **self.check(),
        }

    def _wait(self, members: int, *, is_safe: bool, coming: LocalMember | None = None) -> float:
        """Wait until so many members are on the list, or the cluster is safe as well; when.

        Raises:
            ClusterError: The member that was started has ended.
            TimeoutError: It takes too long.
        """

        def look() -> tuple[bool, str]:
            if coming is not None and not coming.is_running:
                raise ClusterError(f"the member that comes back has ended: {coming.log_tail()}")
            try:
                found = self._cluster.status()
            except OperationError as problem:
                return False, str(problem)
            if found["members"] != members:
                return False, f"{found['members']} members on the list"
            differing = (found["stable"] or {}).get("slots_differing", 0)
            if is_safe and members == MEMBERS and differing:
                return False, f"{differing} slots differ from the stable table"
            return not is_safe or found["safe"], found["reason"]

        wait_until(look, SAFE_TIMEOUT_S, "safe" if is_safe else "on the list", POLL_S)
        return time.monotonic()

    def _look(self) -> _Look:
        figures = {one.index: metrics_of(one) for one in self._cluster.running()}
        history = self._cluster.get("/api/v1/migrations")["history"]
        return _Look(figures, max((process["id"] for process in history), default=0))

    def _since(self, before: _Look) -> Figures:
        """What was copied and migrated since then, by the members that run."""
        copied = dict.fromkeys(COPY_FIGURES, 0)
        for member in self._cluster.running():
            figures, old = metrics_of(member), before.figures.get(member.index, {})
            for name in COPY_FIGURES:
                copied[name] += int(figures[f"{name}_total"] - old.get(f"{name}_total", 0.0))
        history = self._cluster.get("/api/v1/migrations")["history"]
        processes = [process for process in history if process["id"] > before.process]
        return {
            "migrations": sum(process["completed"] for process in processes),
            "failed": sum(process["failed"] for process in processes),
            "plans": len(processes),
            "records": copied.pop(COPIED),
            "sum_bytes": copied.pop(SUMS),
            "migration_bytes": sum(process["bytes"] for process in processes),
            "migration_s": round(sum(process["elapsed_s"] for process in processes), 3),
            **copied,
        }


def key_of(number: int) -> str:
    """The key of an entry."""
    return f"key:{number:020d}"
