"""``whimbrel bench``: one benchmark that this package can run by itself.

A benchmark is a module below ``whimbrel.bench`` with ``run(progress, **options) -> figures``. The
document is printed as JSON; one that has a ``tables(figures)`` is shown as tables at a terminal.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from whimbrel.cli.http import AsJson
from whimbrel.errors import UsageError


class Benchmark(NamedTuple):
    """One line of the table of benchmarks."""

    module: str
    """Module below ``whimbrel.bench`` with a function ``run``; loaded only when it is run."""
    help: str
    options: tuple[str, ...] = ()
    """Arguments of ``run`` that may be given on the command line."""
    has_tables: bool = False
    """Whether the module has ``tables`` and its ``run`` tells its progress."""


BENCHMARKS = {
    "hot-path": Benchmark("hot_path", "CPU of pipelined gets and puts in Python alone"),
    "planner": Benchmark("planner", "CPU of the master's planning, copies beside their bound"),
    "join": Benchmark("join", "Time of a join and a leave, four real processes"),
    "start": Benchmark("start", "Time from the start of a member's process to its ready line"),
    "heartbeats": Benchmark(
        "heartbeats", "Longest gap between heartbeats while data move, four real processes",
        ("mib",),
    ),
    "steps": Benchmark("steps", "The longest steps of members' loops, by kind, in CPU time"),
    "idle": Benchmark("idle", "Processor time of ten members that nobody asks anything"),
    "paper-07": Benchmark(
        "paper_07", "The tables of paper 07 at their own sizes, simulated, beside the least "
        "time the links allow", ("chunk_kib",), has_tables=True,
    ),
    "paper-07-live": Benchmark(
        "paper_07_live", "The same changes with real members on this machine, serial, parallel "
        "and Hazelcast (with --peers)", ("peers", "mib"), has_tables=True,
    ),
    "paper-persistence": Benchmark(
        "paper_persistence", "The tables of paper 05 with real members on this machine: one of "
        "four is killed and returns with its files", ("entries", "smoke"), has_tables=True,
    ),
    "loading": Benchmark(
        "loading", "MB per second and core at which a member loads its own files", ("mib",),
        has_tables=True,
    ),
}  # fmt: skip
"""By name, in the order of the help."""

_HELP = "\n\n".join(f"{name}: {entry.help}." for name, entry in BENCHMARKS.items())


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_HELP)],
    chunk_kib: Annotated[
        int | None,
        typer.Option(metavar="KIB", min=64, max=65_536, help="paper-07: data of one message"),
    ] = None,
    mib: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=1,
            max=4_096,
            help="paper-07-live, heartbeats: values in all; loading: values of each case",
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="paper-07-live: the peer harness, for Hazelcast"),
    ] = None,
    entries: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=100, max=10_000_000, help="paper-persistence: entries of 10 KiB"
        ),
    ] = None,
    smoke: Annotated[
        bool | None,
        typer.Option("--smoke", help="paper-persistence: a few entries, to see that it works"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one benchmark and print its figures: tables at a terminal, else one JSON document.

    Comparisons with other servers are in benchmarks/ of the source tree.
    """
    if name not in BENCHMARKS:
        raise UsageError(f"there is no benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    entry = BENCHMARKS[name]
    given: dict[str, object] = {"chunk_kib": chunk_kib, "mib": mib, "peers": peers}
    given |= {"entries": entries, "smoke": smoke}
    options = {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in entry.options:
            flag = f"--{key.replace('_', '-')}"
            raise UsageError(f"the benchmark {name} has no option {flag}")
    module = importlib.import_module(f"whimbrel.bench.{entry.module}")
    begin_s = time.monotonic()
    load = [round(figure, 1) for figure in os.getloadavg()]
    if entry.has_tables:
        with _progress(name) as progress:
            figures = module.run(progress=progress, **options)
    else:
        figures = module.run(**options)
    document = {
        "benchmark": name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": load,
        "took_s": round(time.monotonic() - begin_s, 1),
        "figures": figures,
    }
    if entry.has_tables and not as_json and sys.stdout.isatty():
        _show(document, module.tables(figures))
    else:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that is told how many of all steps are done; none when nobody watches."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(
    document: dict[str, Any], tables: Sequence[tuple[str, list[str], list[list[str]]]]
) -> None:
    """Tables for people: title, columns, rows each."""
    from whimbrel.cli.render import console, print_rows, table

    for title, columns, rows in tables:
        print_rows(table(*columns, title=title), rows, "nothing was measured")
    console().print(
        f"Python {document['python']}, {document['cores']} cores, load before "
        f"{document['load'][0]}, {document['took_s']} s"
    )
