"""Many mutants, one after another: which one is killed by what, kept as lines of JSON.

A mutant meets the unit tests that run its lines, the most specific first, then property tests and
scenario files, then simulator seeds, and the first failure ends it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mutation.cover import Map
from mutation.places import Mutant
from mutation.trial import BUILD, SURVIVED, Fate, judge, stage_of

RESULTS = BUILD / "mutants.jsonl"
BATCHES = {"unit": (8, 60), "slow": (), "sim": (8,)}
"""Sizes of the first pieces of each stage; the last piece is the rest. A piece costs a start."""


@dataclass(frozen=True)
class Result:
    """One line of the results."""

    id: str
    name: str
    kind: str
    where: str
    """``file:line`` when it was tried."""
    stage: str
    """As in ``Fate``; empty for a survivor."""
    by: str
    met: int
    """How many tests and simulator runs ran its lines."""
    cpu_s: float


def batches_of(names: Sequence[str]) -> list[list[str]]:
    """The names in the pieces that are tried one after another."""
    stages: dict[str, list[str]] = {stage: [] for stage in BATCHES}
    for name in names:
        stage = stage_of(name)
        stages[stage if stage in stages else "slow"].append(name)
    found = []
    for stage, members in stages.items():
        rest = iter(members)
        found += [list(islice(rest, size)) for size in BATCHES[stage]]
        found.append(list(rest))
    return [batch for batch in found if batch]


def result_of(mutant: Mutant, covered: Map) -> Result:
    """Try one mutant to its end."""
    names = covered.names_for(mutant)
    cpu_s, fate = 0.0, SURVIVED
    for batch in batches_of(names) or [[]]:
        fate = judge(mutant, batch, sum(covered.taken_s[name] for name in batch))
        cpu_s += fate.cpu_s
        if fate.stage:
            break
    return _result(mutant, fate, len(names), cpu_s)


def _result(mutant: Mutant, fate: Fate, met: int, cpu_s: float) -> Result:
    where = f"src/whimbrel/{mutant.file}:{mutant.line}"
    return Result(
        mutant.id, mutant.name, mutant.kind, where, fate.stage, fate.by, met, round(cpu_s, 1)
    )


def read_results() -> dict[str, Result]:
    """All results by id, the last one of each."""
    if not RESULTS.exists():
        return {}
    lines = [line for line in RESULTS.read_text().splitlines() if line.strip()]
    return {one.id: one for one in (Result(**json.loads(line)) for line in lines)}


def run(mutants: Sequence[Mutant], covered: Map, workers: int) -> None:
    """Try all of them, so many at a time; each result is written as it comes."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    running: dict[int, Mutant] = {}
    with Progress(*columns) as progress:
        task = progress.add_task("mutants", total=len(mutants))
        supply = iter(mutants)
        while True:
            for mutant in islice(supply, workers - len(running)):
                running[_fork(mutant, covered)] = mutant
            if not running:
                return
            pid, status = os.wait()
            mutant = running.pop(pid)
            if status:
                sys.exit(f"trying {mutant.id} failed: {BUILD / 'mutants-error.log'}")
            progress.advance(task)


def _fork(mutant: Mutant, covered: Map) -> int:
    """Try one in a child that writes its line; returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        line = json.dumps(asdict(result_of(mutant, covered))) + "\n"
        with RESULTS.open("a") as file:
            file.write(line)
        status = 0
    except BaseException:
        Path(BUILD / "mutants-error.log").write_text(traceback.format_exc())
    finally:
        os._exit(status)
