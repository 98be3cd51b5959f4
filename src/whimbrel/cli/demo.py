"""``whimbrel demo``: the main job, seen live, with a report at the end."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from whimbrel.demo.data import FLIGHTS_ROWS, folder_of_data
from whimbrel.errors import UsageError

OUT_DEFAULT = "whimbrel-demo"
NEEDED = ("pyspark", "pyarrow", "numpy", "hazelcast")


def demo(
    rows: Annotated[
        int, typer.Option("--rows", min=1, max=FLIGHTS_ROWS, help="Flights to load, of all")
    ] = FLIGHTS_ROWS,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Where the report goes; made if needed")
    ] = OUT_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report; the story goes to stderr")
    ] = False,
) -> None:
    """Show that nothing gets lost: Spark loads a year of flights while members come, leave and die.

    Starts everything it needs on this machine and ends it again. Leaves report.json and
    report.html behind; ends with 0 only if every row and every acknowledged write is there.
    """
    folder = _folder(out)
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the demo needs {name}: pip install 'whimbrel[spark]'")
    folder_of_data()

    from whimbrel.demo.job import Demo  # after the checks: refusals stay quick
    from whimbrel.demo.narrate import Narrator

    signal.signal(signal.SIGTERM, _interrupt)
    narrator = Narrator(to_stderr=as_json)
    try:
        report = Demo(rows, folder, narrator).run()
        narrator.say(f"report: {folder / 'report.html'}")
    finally:
        narrator.close()
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    raise typer.Exit(0 if report["verdict"]["good"] else 1)


def _folder(out: str) -> Path:
    """The folder of the report, made if needed.

    Raises:
        UsageError: It cannot be one.
    """
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as problem:
        raise UsageError(f"--out {out}: {problem.strerror}") from problem
    return folder.resolve()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the demonstration as Ctrl-C does: with everything cleaned up."""
    raise KeyboardInterrupt
