"""``whimbrel bench``: one benchmark that needs nothing but this package, as one JSON document."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from whimbrel.errors import UsageError


class Benchmark(NamedTuple):
    """One line of the table of benchmarks."""

    module: str
    """Module below ``whimbrel.bench`` with a function ``run``; loaded only when it is run."""
    help: str


BENCHMARKS = {
    "hot-path": Benchmark("hot_path", "CPU of pipelined gets and puts in Python alone"),
    "planner": Benchmark("planner", "CPU of the master's planning, copies beside their bound"),
    "join": Benchmark("join", "Time of a join and a leave, four real processes"),
}
"""By name, in the order of the help."""

_HELP = "\n\n".join(f"{name}: {entry.help}." for name, entry in BENCHMARKS.items())


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=_HELP)],
) -> None:
    """Run one benchmark and print its figures as one JSON document.

    Comparisons with other servers are in benchmarks/ of the source tree.
    """
    if name not in BENCHMARKS:
        raise UsageError(f"there is no benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    run: Callable[[], dict[str, Any]] = importlib.import_module(
        f"whimbrel.bench.{BENCHMARKS[name].module}"
    ).run
    begin_s = time.monotonic()
    figures = run()
    document = {
        "benchmark": name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "took_s": round(time.monotonic() - begin_s, 1),
        "figures": figures,
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
