"""Run every comparison one after the other and write the tables of RESULTS.md.

Each measurement is one call of the peer harness's ``measure.py``, of ``disk_cost.py`` or of
``whimbrel bench``, with a time limit; one that fails or takes too long is told in the tables and
does not stop the others. Raw documents go to ``build/benchmarks``. All of it takes about an hour on
two cores, half of it for paper 05.

    python benchmarks/run_all.py [--peers DIR] [--only PART ...] [--before DIR] [--tables]
                                 [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import disk_cost

from whimbrel.cli.bench import BENCHMARKS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RAW = ROOT / "build" / "benchmarks"
OURS, THEIRS = "whimbrel", "hazelcast"
SERVERS = {OURS: ["--server", "peer_member:WhimbrelCluster"], THEIRS: []}
"""Arguments that choose the server; Redis rides along where the harness knows it."""
PATHS = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
"""Where else modules are looked for."""

Json = dict[str, Any]


class Part(NamedTuple):
    """One measurement of one server."""

    name: str
    server: str
    arguments: tuple[str, ...]
    limit_s: int
    program: str = "measure.py"

    def command(self, peers: Path) -> list[str]:
        """What is run."""
        match self.program:
            case "measure.py":
                head = [str(peers / self.program), *SERVERS[self.server], self.name]
            case "disk_cost.py":
                head = [str(HERE / self.program), "--peers", str(peers)]
            case _:
                head = ["-m", "whimbrel", "bench", self.name, "--json"]
        return [sys.executable, *head, *self.arguments]

    def shown(self, peers: Path) -> str:
        """The same for people."""
        program, *rest = self.command(peers)[1:]
        if program == "-m":
            return " ".join(rest)
        return " ".join(
            [Path(program).name, *("DIR" if one == str(peers) else one for one in rest)]
        )

    @property
    def file(self) -> Path:
        """Where its document is kept."""
        return RAW / f"{self.name}-{self.server}.json"


def _parts() -> list[Part]:
    load = ("--sizes", "100", "--runs", "3", "--seconds", "1.0")
    return [
        Part("throughput", OURS, ("--targets", "1", "3", "redis", "--warm", "3", *load), 300),
        Part("throughput", THEIRS, ("--targets", "1", "3", "--warm", "20", *load), 420),
        Part("moves", OURS, ("--backups", "1", "--runs", "3"), 240),
        Part("moves", THEIRS, ("--backups", "1", "--runs", "1"), 180),
        Part("restart", OURS, ("--runs", "3"), 90),
        Part("restart", THEIRS, ("--runs", "1"), 90),
        Part("memory", OURS, ("--keys", "300000", "--sizes", "100"), 120),
        Part("memory", THEIRS, ("--keys", "300000", "--sizes", "100", "--heap", "2g"), 150),
        Part("together", OURS, ("--runs", "2"), 120),
        Part("together", THEIRS, ("--runs", "1"), 120),
        Part("partitions", OURS, ("--members", "3", "--timeout", "90"), 200),
        Part("partitions", THEIRS, ("--members", "3", "--timeout", "90"), 300),
        Part("disk", OURS, (), 900, "disk_cost.py"),
        Part("loading", OURS, (), 300, "whimbrel bench"),
        Part("paper-persistence", OURS, (), 5_400, "whimbrel bench"),
    ]


def measure(part: Part, peers: Path) -> Json:
    """Run one part; its document, or one with the key ``failed``."""
    command = part.command(peers)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *PATHS])}
    begin_s = time.monotonic()
    print(f"{part.name} of {part.server} ...", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=part.limit_s, env=environment
        )
        document: Json = json.loads(done.stdout) if done.returncode == 0 else {}
        if done.returncode != 0:
            document["failed"] = (done.stderr.strip().splitlines() or ["no word"])[-1]
    except subprocess.TimeoutExpired:
        document = {"failed": f"not done within {part.limit_s} s"}
    document["at"] = _now()
    document["load_after"] = [round(load, 1) for load in os.getloadavg()]
    document["shown_command"] = part.shown(peers)
    print(f"    {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True)
    return document


# -- tables -------------------------------------------------------------------------------


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(headers) + " |", "| " + " | ".join("---" for _ in headers) + " |"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return lines


def _spread(values: Sequence[float], digits: int = 2) -> str:
    """Least, median and greatest, or the one value there is."""
    ordered = sorted(values)
    middle = statistics.median(ordered)
    shown = [ordered[0], middle, ordered[-1]] if ordered[1:] else ordered
    return " / ".join(f"{value:.{digits}f}" for value in shown)


def _throughput(found: dict[str, Json]) -> list[str]:
    rows = []
    for server, document in found.items():
        for cell in document.get("cells", ()):
            name = cell["server"].replace("grid", server)
            cpu = " / ".join(f"{value:.1f}" for value in cell["server_cpu_s_per_million"])
            rate = f"{cell['ops_per_s'][1] / 1000:.1f}"
            p50, p99 = (f"{cell[key][1]:.0f}" for key in ("p50_us", "p99_us"))
            rows.append(
                [name, cell["operation"], cell["backups"], cell["depth"], cpu, rate, p50, p99]
            )
    rows.sort(key=lambda row: (str(row[1]), int(str(row[3])), -int(str(row[2])), str(row[0])))
    headers = [
        "server",
        "operation",
        "sync backups",
        "depth",
        "CPU us/op (least / median / greatest)",
    ]
    return table([*headers, "k op/s", "p50 us", "p99 us"], rows)


def _moves(found: dict[str, Json]) -> list[str]:
    rows: list[list[object]] = []
    for server, document in found.items():
        runs = [run for group in document.get("results", {}).values() for run in group]
        for event in ("join", "shutdown", "join_again", "crash") if runs else ():
            changes = [run[event] for run in runs]
            start_s = [c["action_s"] for c in changes if event.startswith("join")]
            ready = [c["event_to_safe_s"] - c["action_s"] for c in changes]
            errors: dict[str, int] = {}
            for change in changes:
                for name, count in change["client"]["errors"].items():
                    errors[name] = errors.get(name, 0) + count
            rows.append([
                server,
                event.replace("_", " "),
                _spread([c["event_to_safe_s"] for c in changes]),
                _spread(ready) if start_s else "",
                _spread([c["migration_window_s"] for c in changes]),
                _spread([c["operations"] for c in changes], 0),
                _spread([c["new_data_copies"] for c in changes], 0),
                _spread([c["longest_migration_ms"] for c in changes], 0),
                _spread([c["client"]["longest_stall_ms"] for c in changes], 0),
                ", ".join(f"{count} {name}" for name, count in errors.items()) or "none",
            ])  # fmt: skip
    headers = ["server", "event", "event to safe s", "joiner ready to safe s", "window s"]
    headers += ["operations", "new copies", "longest migration ms", "longest client call ms"]
    return table([*headers, "client errors"], rows)


def _restart(found: dict[str, Json]) -> list[str]:
    rows = []
    for server, document in found.items():
        runs = document.get("runs", [])
        if runs:
            keys = ("all_started_s", "first_put_s", "safe_s", "cpu_s")
            resident = [size for run in runs for size in run["rss_mb"]]
            cells = [_spread([run[key] for run in runs]) for key in keys]
            rows.append([server, *cells, f"{min(resident)}-{max(resident)}"])
    headers = ["server", "all started s", "first put s", "safe s", "CPU s of all", "RSS MB each"]
    return table(headers, rows)


def _memory(found: dict[str, Json]) -> list[str]:
    rows = []
    for server, document in found.items():
        for cell in document.get("cells", ()):
            if cell["server"] == "redis" and server != OURS:
                continue
            name = server if cell["server"] == "grid" else "redis"
            used = cell.get("heap_bytes_per_entry", cell["rss_bytes_per_entry"])
            user_bytes = cell["value"] + 24
            rows.append([
                name, cell["value"], cell["keys"], used, round(used - user_bytes, 1),
                cell["rss_bytes_per_entry"], cell["rss_empty_mb"], cell["fill_s"],
            ])  # fmt: skip
    headers = ["server", "value B", "entries", "B per entry", "of it overhead", "RSS B per entry"]
    return table([*headers, "RSS empty MB", "fill s"], rows)


def _together(found: dict[str, Json]) -> list[str]:
    rows = []
    for server, document in found.items():
        runs = document.get("runs", [])
        if runs:
            rows.append([
                server,
                _spread([run["event_to_safe_s"] for run in runs]),
                _spread([run["operations"] for run in runs], 0),
                _spread([run["new_data_copies"] for run in runs], 0),
                _spread([run["client"]["longest_stall_ms"] for run in runs], 0),
                all(run["size_after"] == run["expected_size"] for run in runs),
            ])  # fmt: skip
    headers = ["server", "to safe s", "operations", "new copies", "longest client call ms"]
    return table([*headers, "nothing lost"], rows)


def _partitions(found: dict[str, Json]) -> list[str]:
    rows = []
    for server, document in found.items():
        steps = [(f"{n} -> {n + 1}", step) for n, step in enumerate(document.get("joins", ()), 1)]
        if "leave" in document:
            steps.append(("leave", document["leave"]))
        rows += [
            [
                server,
                name,
                step["event_to_safe_s"],
                step["migration_window_s"],
                step["operations"],
                step["new_data_copies"],
                step["loopback_mb"],
                step["cpu_s_of_stayers"],
            ]
            for name, step in steps
        ]
    headers = ["server", "step", "event to safe s", "window s", "operations", "new copies"]
    return table([*headers, "loopback MB", "CPU s of the members that stay"], rows)


def _disk(found: dict[str, Json]) -> list[str]:
    lines = []
    for document in found.values():
        if "cells" in document:
            options = document["options"]
            lines += [
                f"{document['members']} members, one synchronous backup, {document['value_bytes']}"
                f"-byte values, {options['keys']:,} keys, {options['rounds']} rounds of "
                f"{options['seconds']:g} s, fresh processes in each; Redis: {document['redis']}. "
                "The base of a variant is the one without files, of the same round.",
                "",
                *table(disk_cost.HEADERS, disk_cost.rows_of(document)),
                *_goals(document["goals"]),
            ]
    return lines


def _bench(found: dict[str, Json]) -> list[str]:
    """The tables that ``whimbrel bench`` shows."""
    lines: list[str] = []
    for document in found.values():
        if "figures" in document:
            name = BENCHMARKS[document["benchmark"]].module
            module = importlib.import_module(f"whimbrel.bench.{name}")
            for title, columns, rows in module.tables(document["figures"]):
                headers = [name.removeprefix(">") for name in columns]
                lines += ["", f"{title}:", "", *table(headers, rows)]
    return lines


def _goals(goals: Sequence[Json]) -> list[str]:
    words = {True: "yes", False: "**no**", None: "not judged"}
    rows = [
        [
            goal["goal"],
            "not measured" if goal["found"] is None else f"{goal['found']:.2f} x",
            words[goal["met"]],
        ]
        for goal in goals
    ]
    return ["", *table(["goal", "found", "reached"], rows)]


TABLES: dict[str, tuple[str, Callable[[dict[str, Json]], list[str]]]] = {
    "throughput": ("Throughput and CPU, 100-byte values", _throughput),
    "moves": ("A member joins, leaves, crashes: 100,000 entries of 1 KiB, one backup", _moves),
    "restart": ("Three members started at the same moment", _restart),
    "memory": ("Memory of one member, 24-character keys", _memory),
    "together": ("Two of four members leave at the same moment", _together),
    "partitions": ("20,011 partitions with next to no data", _partitions),
    "disk": ("What files cost a put", _disk),
    "loading": ("A member loads its own files", _bench),
    "paper-persistence": ("The tables of paper 05", _bench),
}
"""Title and table of each measurement."""


def report(former: str) -> str:
    """All tables from the documents that are kept; of other measurements, what stood there."""
    former_head, *sections = former.split("\n### ")
    kept = dict(part.partition("\n")[::2] for part in sections)
    head = (
        f"\n\nWritten by `run_all.py` on {_now()}: "
        f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}. Cells with three figures: least / median / "
        "greatest of the runs.\n"
    )
    lines: list[str] = []
    for name, (title, make) in TABLES.items():
        parts = [part for part in _parts() if part.name == name and part.file.exists()]
        found = {part.server: json.loads(part.file.read_text()) for part in parts}
        if found:
            lines += ["", f"### {title}", ""]
            lines += [line for one in found.items() for line in _told(*one)]
            lines += ["", *make(found)]
        elif title in kept:
            head = former_head
            lines += ["", f"### {title}", kept[title].rstrip()]
    return "## Figures" + head + "\n".join(lines) + "\n"


def _told(server: str, document: Json) -> list[str]:
    """How a measurement was made, and what went wrong."""
    at = f", {document['at']}" if "at" in document else ""
    load = document["load_after"][0]
    lines = [f"- {server}: `{document['shown_command']}`{at}, load average afterwards {load}"]
    if "failed" in document:
        lines.append(f"- {server} failed: {document['failed']}")
    return lines


def _now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _processor() -> str:
    """What the system calls the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def write(file: Path) -> None:
    """Put the tables behind what a person has written above them."""
    head, _, former = (file.read_text() if file.exists() else "").partition("## Figures")
    file.write_text(head + report(former))


def main() -> None:
    """Measure what is asked for, then write the tables."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--peers", type=Path, default=ROOT.parent / "shared" / "peers")
    arguments.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    arguments.add_argument("--servers", nargs="+", default=list(SERVERS), choices=list(SERVERS))
    arguments.add_argument("--before", type=Path, help="disk: a tree without persistence")
    arguments.add_argument("--tables", action="store_true", help="measure nothing")
    arguments.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = arguments.parse_args()
    RAW.mkdir(parents=True, exist_ok=True)
    for part in _parts() if not given.tables else ():
        if part.name in given.only and part.server in given.servers:
            if part.name == "disk" and given.before:
                part = part._replace(arguments=("--before", str(given.before.resolve())))
            document = measure(part, given.peers)
            part.file.write_text(json.dumps(document, indent=1))
            write(given.out)
    write(given.out)


if __name__ == "__main__":
    main()
