"""One member of a measured cluster: steered over stdin, reporting JSON lines on stdout.

Runs what ``whimbrel start`` runs, admin server included, and speaks the protocol of the peer
harness besides: ``await-safe MEMBERS TIMEOUT_MS``, ``reset``, ``stats``, ``table``, ``memory``,
``shutdown``; each is answered by one line whose ``event`` is the command's name. When stdin ends
the process ends too: it must not outlive the harness. With ``WHIMBREL_PROFILE`` set to a folder,
the loop's thread is profiled from the start on and a ``profile`` command writes the figures there.

    python benchmarks/member_process.py port=15701 cluster=peers backups=1 members=H:P,... [KEY=V]
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from whimbrel.admin.documents import ClusterDocuments
from whimbrel.cli.start import start_admin
from whimbrel.config import load
from whimbrel.core.events import ReplicaMigrated
from whimbrel.core.ids import NO_INDEX, REPLICA_SLOTS, MemberId
from whimbrel.runtime.node import Node
from whimbrel.runtime.process import run_member

POLL_S = 0.02
"""Pause between two looks at the safety of the cluster."""
SAFE_STREAK = 3
"""Safe answers in a row that count as safe."""
OWN_SHARE = 0.8
"""Every member must be primary of this share of an even spread."""
HARNESS = ("port", "cluster", "backups", "members")
"""Arguments that are the harness's own; all others are configuration keys."""


def emit(event: str, **fields: object) -> None:
    """One line for the harness."""
    line = {"event": event, "at": int(time.time() * 1000), **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Counters:
    """What masters have decided since the last reset."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._processes_before = 0
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self.by_index = [0] * REPLICA_SLOTS
        self.failed = self.elapsed_ms = self.longest_ms = 0
        self.first_ms = self.last_ms = 0
        self._processes_before = max((int(p["id"]) for p in self._documents()), default=0)

    def migrated(self, event: ReplicaMigrated) -> None:
        """One migration or promotion has its verdict."""
        now_ms = int(time.time() * 1000)
        self.first_ms = self.first_ms or now_ms - event.elapsed_ms
        self.last_ms = now_ms
        if not event.success:
            self.failed += 1
            return
        if event.replica_index > NO_INDEX:
            self.by_index[event.replica_index] += 1
        self.elapsed_ms += event.elapsed_ms
        self.longest_ms = max(self.longest_ms, event.elapsed_ms)

    def _documents(self) -> list[Any]:
        migrations = self._node.engine.member.migrations
        current = migrations.current_process()
        return [*migrations.reporter.finished, *([current] if current else [])]

    def figures(self) -> dict[str, object]:
        """The fields of ``stats``."""
        processes = [p for p in self._documents() if int(p["id"]) > self._processes_before]
        return {
            "processes": len(processes),
            "planned": sum(int(p["planned"]) for p in processes),
            "failed": self.failed,
            "without_source": sum(int(p["copies"]) for p in processes),
            "by_index": self.by_index,
            "elapsed_ms_sum": self.elapsed_ms,
            "longest_ms": self.longest_ms,
            "first_at": self.first_ms,
            "last_at": self.last_ms,
            "bytes": sum(int(p["bytes"]) for p in processes),
        }


class Steered:
    """Obeys the commands of the harness inside the member's own loop."""

    def __init__(self, node: Node, profile: cProfile.Profile | None) -> None:
        self._node = node
        self._profile = profile
        self._documents = ClusterDocuments(node)
        self._counters = Counters(node)
        node.subscriptions.add((ReplicaMigrated,), self._counters.migrated)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            words = line.split()
            if words:
                self._node.loop.call_soon_threadsafe(self._obey, words)
        os._exit(0)

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["await-safe", members, timeout_ms]:
                self._spawn(self._await_safe(int(members), int(timeout_ms) / 1000))
            case ["reset"]:
                self._counters.reset()
                emit("reset", ok=True)
            case ["stats"]:
                emit("stats", **self._counters.figures())
            case ["table"]:
                emit("table", rows=[list(self._ports(row)) for row in self._rows()])
            case ["memory"]:
                gc.collect()
                emit("memory", used_heap=_resident_bytes())
            case ["profile"]:
                self._write_profile()
            case ["shutdown"]:
                self._node.leave()
            case _:
                emit("error", message="unknown command")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._node.spawn(work)

    def _rows(self) -> list[tuple[MemberId | None, ...]]:
        return list(self._node.engine.member.migrations.table.rows)

    def _ports(self, row: tuple[MemberId | None, ...]) -> Iterator[int]:
        members = self._node.engine.member.ctx.members
        for member in row:
            info = None if member is None else members.get(member)
            if info is not None:
                yield info.address.port

    def _owns_evenly(self, count: int) -> bool:
        """Every member has at least ``OWN_SHARE`` of an even share of the primaries."""
        owned: dict[MemberId | None, int] = {}
        rows = self._rows()
        for row in rows:
            owned[row[0]] = owned.get(row[0], 0) + 1
        if owned == {None: len(rows)}:
            return True  # nothing is arranged yet
        least = int(len(rows) / count * OWN_SHARE)
        return None not in owned and len(owned) == count and min(owned.values()) >= least

    async def _await_safe(self, count: int, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        streak, first_ms = 0, 0
        while streak < SAFE_STREAK and time.monotonic() < deadline_s:
            now_ms = int(time.time() * 1000)
            good = (
                len(self._documents.members()) == count
                and self._owns_evenly(count)
                and bool((await self._documents.status())["safe"])
            )
            streak = streak + 1 if good else 0
            first_ms = now_ms if streak == 1 else first_ms
            await asyncio.sleep(POLL_S)
        emit("await-safe", safe=streak >= SAFE_STREAK, safe_at=first_ms)

    def _write_profile(self) -> None:
        folder = os.environ.get("WHIMBREL_PROFILE")
        if self._profile is None or not folder:
            emit("profile", file="")
            return
        self._profile.disable()
        file = Path(folder) / f"member-{self._node.ports.data_port}.prof"
        self._profile.dump_stats(file)
        self._profile.clear()
        self._profile.enable()
        emit("profile", file=str(file))


def _resident_bytes() -> int:
    """Resident memory: Python has no figure of its own for a used heap."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settings_of(arguments: list[str]) -> list[str]:
    """The ``KEY=VALUE`` settings for a member, from the harness's arguments."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    settings = [
        f"network.port={given['port']}",
        f"cluster.name={given['cluster']}",
        f"network.join={given['members']}",
        "log.level=warning",
        f"map.default.backup_count={given['backups']}",
    ]
    settings += [f"map.b{count}*.backup_count={count}" for count in range(3)]
    settings += [f"{key}={value}" for key, value in given.items() if key not in HARNESS]
    return settings


def main() -> None:
    """Run the member until it has left or the harness is gone."""
    config = load(None, {}, (), settings_of(sys.argv[1:]))
    profile = cProfile.Profile(time.thread_time) if os.environ.get("WHIMBREL_PROFILE") else None
    if profile is not None:
        profile.enable()
    kept: list[Steered] = []

    def ready(node: Node) -> None:
        kept.append(Steered(node, profile))
        emit("started", members=len(node.engine.member.ctx.members.members))

    sys.exit(run_member(config, start_admin, ready))


if __name__ == "__main__":
    main()
