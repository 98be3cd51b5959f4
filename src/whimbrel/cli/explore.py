"""``whimbrel sim --explore``: all interleavings of tiny worlds, with progress and a table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from whimbrel.sim.explore.search import Exploration, Finding, Progress


def explore(world: str, states_max: int, as_json: bool) -> None:
    """Explore worlds by name, ``default`` or ``all``.

    Ends with 1 when a rule was broken or a state does not settle. What was found is written to
    ``explored-WORLD-RULE.txt``, which ``--replay`` plays.

    Raises:
        UsageError: There is no such world.
    """
    from whimbrel.sim.explore.search import Search
    from whimbrel.sim.explore.worlds import worlds_named

    teller = _Teller(is_shown=not as_json and sys.stderr.isatty())
    results: list[Exploration] = []
    for one in worlds_named(world):
        teller.begin(one.name)
        results.append(Search(one, states_max=states_max, on_progress=teller.tell).run())
        teller.end(results[-1])
    findings = [finding for result in results for finding in result.violations]
    files = [_write(finding) for finding in findings]
    if as_json:
        document = {
            "states": sum(result.states for result in results),
            "violations": [
                {"world": one.world, "rule": one.rule, "sentence": one.sentence,
                 "path": list(one.lines)}
                for one in findings
            ],
            "unsettled": sum(result.unsettled for result in results),
            "complete": all(result.is_complete for result in results),
            "worlds": [result.document() for result in results],
        }  # fmt: skip
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        _print_results(results)
        for finding, file in zip(findings, files, strict=True):
            _print_finding(finding, file)
    if findings or any(result.unsettled for result in results):
        raise typer.Exit(1)


def replay(file: Path) -> None:
    """Play a path file; ends with 1 when it does not go as the file expects.

    Raises:
        UsageError: The file is no path, or its steps are not possible.
    """
    from whimbrel.sim.explore.paths import parse_path

    path = parse_path(file.read_text(encoding="utf-8"))
    broken, lines = path.play()
    for line in lines:
        sys.stdout.write(line + "\n")
    for rule, sentence in broken:
        sys.stdout.write(f"{rule}: {sentence}\n")
    if not path.is_as_expected(broken):
        sys.stdout.write(f"expected: {path.expectation}\n")
        raise typer.Exit(1)


def _write(finding: Finding) -> Path:
    from whimbrel.sim.explore.paths import path_of

    file = Path(f"explored-{finding.world}-{finding.rule}.txt")
    file.write_text(path_of(finding).text, encoding="utf-8")
    return file


class _Teller:
    """One line of progress on the terminal."""

    def __init__(self, is_shown: bool) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._is_shown = is_shown
        self._began_s = 0.0

    def begin(self, world: str) -> None:
        self._began_s = time.monotonic()
        if self._is_shown:
            self._console.print(f"{world}: settling before it begins", end="\r")

    def tell(self, progress: Progress) -> None:
        if self._is_shown:
            rate = progress.states / max(0.001, time.monotonic() - self._began_s)
            self._console.print(
                f"{progress.world}: {progress.states} states, {rate:.0f}/s, depth "
                f"{progress.depth}, {progress.frontier} to go on from, "
                f"{progress.steps_run} steps of the core   ",
                end="\r",
            )

    def end(self, result: Exploration) -> None:
        if self._is_shown:
            span_s = time.monotonic() - self._began_s
            self._console.print(f"{result.world}: {result.states} states in {span_s:.1f} s{' ':40}")


def _print_results(results: list[Exploration]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("world", "states", "transitions", "depth", "settled ends", "unsettled", "rules")
    for one in results:
        verdict = "[bold red]broken[/]" if one.violations else "[green]hold[/]"
        table.add_row(
            one.world,
            str(one.states),
            str(one.transitions),
            str(one.depth),
            str(one.settled),
            str(one.unsettled),
            verdict if one.is_complete else f"{verdict}, not all states seen",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{sum(one.states for one in results)} distinct states")


def _print_finding(finding: Finding, file: Path) -> None:
    sys.stdout.write(f"\n{finding.rule} in {finding.world}: {finding.sentence}\n")
    for line in finding.lines:
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write(f"again: whimbrel sim --explore --replay {file}\n")
