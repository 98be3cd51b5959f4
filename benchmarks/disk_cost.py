"""What files cost a put: whimbrel with each ``persistence.fsync``, and Redis with its file.

The peer harness's generator puts 100-byte values, with one synchronous backup, into three members
that keep nothing on disk, or sync each interval, or sync before they answer; then sets the same
into one Redis without a file, with one synced each second, and synced before it answers. Rounds
follow one another, each with fresh processes, so what is compared was measured within a minute.
``--before`` names a tree without persistence, which is measured beside; where Redis is not
installed its rows are missing. Prints one JSON document.

    python benchmarks/disk_cost.py --peers DIR [--before DIR] [--redis FILE] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
MEMBERS = 3
VALUE_BYTES = 100
DEPTHS = (1, 16, 128)
MAP = "b1disk"
"""A map with one backup, by the names of the harness."""
CONNECTIONS = 3
FIRST_PORT = 15901
REDIS_PORT = 15999
FIGURES = ("server_cpu_s_per_million", "ops_per_s", "p50_us", "p99_us")
OFF, INTERVAL, ALWAYS, BEFORE = "memory only", "interval", "always", "before persistence"
REDIS_OFF = "redis, no file"
REDIS = {REDIS_OFF: None, "redis, everysec": "everysec", "redis, always": "always"}
"""Redis's own word for when its file is synced."""
BASES = {INTERVAL: OFF, ALWAYS: OFF, OFF: BEFORE}
"""What a variant is compared with, in the same round."""
BASES |= {name: REDIS_OFF for name, sync in REDIS.items() if sync}

VARIANTS = (OFF, INTERVAL, ALWAYS, *REDIS)

Json = dict[str, Any]


class Load(NamedTuple):
    """How much is asked of each server."""

    rounds: int = 5
    keys: int = 100_000
    seconds: float = 2.0
    warm_s: float = 1.0


SMOKE = Load(1, 2_000, 0.3, 0.1)


# -- measuring ----------------------------------------------------------------------------


class Harness:
    """The modules of the peer harness."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "measure.py").is_file():
            raise SystemExit(f"{folder} is not the peer harness: it has no measure.py")
        sys.path.insert(0, str(folder))
        self.load = importlib.import_module("load")
        self.wire = importlib.import_module("wire")
        self.members = importlib.import_module("peer_member")

    @contextlib.contextmanager
    def whimbrel(self, name: str, before: Path | None) -> Iterator[Any]:
        """Three members, with a data directory each where they have files."""
        properties = {}
        if name in (INTERVAL, ALWAYS):
            properties = {"persistence.enabled": "true", "persistence.fsync": name}
        with tempfile.TemporaryDirectory(prefix="whimbrel-disk-cost-") as folder:
            tree = before if name == BEFORE else None

            class Members(self.members.WhimbrelCluster):  # type: ignore[name-defined, misc]
                """Of this variant."""

                def command_for_member(self, index: int) -> list[str]:
                    command: list[str] = super().command_for_member(index)
                    if tree is not None:
                        command[1] = str(tree / "benchmarks" / "member_process.py")
                        command = ["env", f"PYTHONPATH={tree / 'src'}", *command]
                    if properties:
                        command.append(f"member.data_dir={folder}/{index}")
                    return command

            members = Members(backups=1, first_port=FIRST_PORT, properties=properties)
            with members:
                members.start_many(MEMBERS)
                self.load.arrange(members)
                yield members

    def cells(self, name: str, load: Load, before: Path | None, redis: str) -> Iterator[Json]:
        """A row of figures for each depth."""
        if name in REDIS:
            with redis_server(redis, REDIS[name]) as process:
                ports = [REDIS_PORT] * CONNECTIONS
                plan = self.wire.redis_plan("set", VALUE_BYTES, load.keys, ports)
                yield from self._depths(plan, load, [process.pid])
            return
        with self.whimbrel(name, before) as members:
            plan = self.load.plan_for(members, "put", MAP, VALUE_BYTES, load.keys)
            yield from self._depths(plan, load, members.pids())

    def _depths(self, plan: Any, load: Load, pids: Sequence[int]) -> Iterator[Json]:
        self.load.rawload(plan, "fill", 64, 240)
        for depth in DEPTHS:
            found = self.load.rawload(
                plan, "run", depth, load.seconds, load.warm_s, pids=list(pids)
            )
            yield {"depth": depth, "errors": found["errors"], **{k: found[k] for k in FIGURES}}


@contextlib.contextmanager
def redis_server(program: str, sync: str | None) -> Iterator[subprocess.Popen[bytes]]:
    """One Redis; with a file in a folder of its own unless ``sync`` is None."""
    with tempfile.TemporaryDirectory(prefix="whimbrel-disk-cost-") as folder:
        command = [program, "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", folder, "--daemonize", "no"]
        command += ["--appendonly", "yes", "--appendfsync", sync] if sync else []
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.7)
            yield process
        finally:
            process.terminate()
            process.wait(60)


def measure(
    peers: Path, load: Load, before: Path | None, redis: str | None, names: Sequence[str] = VARIANTS
) -> Json:
    """All rounds of all variants."""
    harness = Harness(peers)
    chosen = [name for name in names if redis or name not in REDIS]
    if before is not None:
        chosen.insert(0, BEFORE)
    cells: list[Json] = []
    load_before = [round(figure, 1) for figure in os.getloadavg()]
    for number in range(load.rounds):
        for name in chosen:
            print(f"round {number + 1} of {load.rounds}: {name}", file=sys.stderr, flush=True)
            rows = harness.cells(name, load, before, redis or "")
            cells += [{"server": name, "round": number, **row} for row in rows]
    version = [redis, "--version"] if redis else ["echo", "not installed: not measured"]
    return {
        "redis": subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip(),
        "load_before": load_before,
        "options": load._asdict(),
        "members": MEMBERS,
        "value_bytes": VALUE_BYTES,
        "cells": cells,
        "goals": goals_of(cells),
    }


# -- what came of it ----------------------------------------------------------------------


def ratios(cells: Sequence[Json], name: str, base: str, depth: int, figure: str) -> list[float]:
    """A figure of one variant as a multiple of that of another one, round by round."""
    found = {
        (cell["server"], cell["round"]): cell[figure] for cell in cells if cell["depth"] == depth
    }
    rounds = sorted(number for server, number in found if server == name)
    return [
        found[name, number] / found[base, number] for number in rounds if found.get((base, number))
    ]


def goals_of(cells: Sequence[Json]) -> list[Json]:
    """The goals of files, by the medians of their rounds."""
    cpu, rate = FIGURES[:2]
    asked = (
        ("interval: CPU of a put at most 1.3 x memory only, depth 16", INTERVAL, 16, cpu, 1.3),
        ("always: puts a second at least 0.7 x memory only, depth 128", ALWAYS, 128, rate, 0.7),
        ("off: CPU of a put at most 1.02 x the tree before, depth 16", OFF, 16, cpu, 1.02),
    )
    goals: list[Json] = []
    for text, name, depth, figure, limit in asked:
        found = ratios(cells, name, BASES[name], depth, figure)
        middle = statistics.median(found) if found else None
        is_met = None
        if middle is not None:
            is_met = middle <= limit if figure == cpu else middle >= limit
        goals.append({"goal": text, "found": middle, "met": is_met})
    return goals


def rows_of(document: Json) -> list[list[str]]:
    """Of the table: one for each depth and server."""
    cells, rows = document["cells"], []
    names = list(dict.fromkeys(cell["server"] for cell in cells))
    for depth in DEPTHS:
        for name in names:
            own = [one for one in cells if one["server"] == name and one["depth"] == depth]
            cpu, rate, p50, p99 = ([one[figure] for one in own] for figure in FIGURES)
            base = BASES.get(name, "")
            beside = [
                _median(ratios(cells, name, base, depth, figure), ".2f") for figure in FIGURES[:2]
            ]
            rows.append([
                name, str(depth), _spread(cpu), beside[0], _median(rate, ".1f", 1_000), beside[1],
                _median(p50, ".0f"), _median(p99, ".0f"),
            ])  # fmt: skip
    return rows


HEADERS = [
    "server", "depth", "CPU us/op (least / median / greatest)", "x of its base", "k op/s",
    "x of its base", "p50 us", "p99 us",
]  # fmt: skip


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return " / ".join(f"{value:.1f}" for value in (min(values), middle, max(values)))


def _median(values: Sequence[float], form: str, unit: float = 1.0) -> str:
    return format(statistics.median(values) / unit, form) if values else ""


def main() -> None:
    """Measure, and print the document."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--peers", type=Path, default=HERE.parents[1] / "shared" / "peers")
    arguments.add_argument("--before", type=Path, help="a tree without persistence")
    arguments.add_argument("--redis", default=shutil.which("redis-server"), metavar="FILE")
    arguments.add_argument("--only", nargs="+", default=VARIANTS, choices=VARIANTS)
    arguments.add_argument("--rounds", type=int)
    arguments.add_argument("--smoke", action="store_true", help="to see that it works")
    given = arguments.parse_args()
    load = SMOKE if given.smoke else Load()
    if given.rounds:
        load = load._replace(rounds=given.rounds)
    sys.path.insert(0, str(HERE))
    before = given.before.resolve() if given.before else None
    document = measure(given.peers.resolve(), load, before, given.redis, given.only)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
