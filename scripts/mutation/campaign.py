"""Many mutants, one after another: which one is killed by what, kept as lines of JSON.

A mutant meets unit tests that run its lines, the most specific first, some simulator seeds,
property tests and scenario files, then all the rest, and the first failure ends it. That goes in
rounds: all mutants meet their first few tests before any meets its next ones, so that most are
decided early.
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
from mutation.trial import BUILD, judge, stage_of

RESULTS = BUILD / "mutants.jsonl"
ROUNDS = (("unit", 8), ("unit", 60), ("sim", 8), ("slow", 0), ("unit", 0), ("sim", 0))
"""What is asked in each round and how many of it, 0 for the rest: the cheapest first. ``slow`` are
property tests and scenario files."""


@dataclass(frozen=True)
class Result:
    """One line of the results."""

    id: str
    name: str
    kind: str
    where: str
    """``file:line`` when it was tried."""
    stage: str
    """As in ``Fate``; empty while nothing has failed."""
    by: str
    met: int
    """How many tests and simulator runs ran its lines."""
    cpu_s: float
    rounds: int
    """How many pieces of those were asked."""
    left: int
    """How many tests and runs were not asked yet; a survivor has none left."""

    @property
    def is_decided(self) -> bool:
        """Whether it is killed, or has survived all."""
        return bool(self.stage) or not self.left


def batches_of(names: Sequence[str]) -> list[list[str]]:
    """The names in the pieces that are tried one after another."""
    stages: dict[str, list[str]] = {"unit": [], "slow": [], "sim": []}
    for name in names:
        stage = stage_of(name)
        stages[stage if stage in stages else "slow"].append(name)
    rests = {stage: iter(members) for stage, members in stages.items()}
    return [list(islice(rests[stage], size or None)) for stage, size in ROUNDS]


def next_result(mutant: Mutant, before: Result | None, covered: Map) -> Result:
    """Let a mutant meet its next piece of tests."""
    names = covered.names_for(mutant)
    rounds, cpu_s = (before.rounds, before.cpu_s) if before else (0, 0.0)
    batches = batches_of(names)
    while rounds and rounds < len(batches) - 1 and not batches[rounds]:
        rounds += 1
    batch = batches[rounds] if rounds < len(batches) else []
    fate = judge(mutant, batch, sum(covered.taken_s[name] for name in batch))
    return Result(
        id=mutant.id,
        name=mutant.name,
        kind=mutant.kind,
        where=f"src/whimbrel/{mutant.file}:{mutant.line}",
        stage=fate.stage,
        by=fate.by,
        met=len(names),
        cpu_s=round(cpu_s + fate.cpu_s, 1),
        rounds=rounds + 1,
        left=sum(map(len, batches[rounds + 1 :])),
    )


def read_results() -> dict[str, Result]:
    """All results by id, the last one of each."""
    if not RESULTS.exists():
        return {}
    lines = [line for line in RESULTS.read_text().splitlines() if line.strip()]
    return {one.id: one for one in (Result(**json.loads(line)) for line in lines)}


def spare(mutants: Sequence[Mutant]) -> None:
    """Take these for survivors without trying them: somebody did, and wrote down why."""
    with RESULTS.open("a") as file:
        for one in mutants:
            where = f"src/whimbrel/{one.file}:{one.line}"
            result = Result(one.id, one.name, one.kind, where, "", "", 0, 0.0, 0, 0)
            file.write(json.dumps(asdict(result)) + "\n")


def forget_survivors() -> None:
    """Keep only the results of killed mutants, so that new tests are tried on the others."""
    killed = [one for one in read_results().values() if one.stage]
    RESULTS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in killed))


def run(sample: Sequence[Mutant], covered: Map, workers: int) -> None:
    """Try all of them to their ends, in rounds; what was tried before is not tried again."""
    while True:
        known = read_results()
        left = [one for one in sample if one.id not in known or not known[one.id].is_decided]
        if not left:
            return
        rounds = {one.id: known[one.id].rounds if one.id in known else 0 for one in left}
        now = min(rounds.values())
        chosen = [one for one in left if rounds[one.id] == now]
        _run_round(now + 1, chosen, known, covered, workers)


def _run_round(
    number: int,
    mutants: Sequence[Mutant],
    known: dict[str, Result],
    covered: Map,
    workers: int,
) -> None:
    """One piece of tests for each, so many at a time; each result is written as it comes."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    running: dict[int, Mutant] = {}
    with Progress(*columns) as progress:
        task = progress.add_task(f"round {number}", total=len(mutants))
        supply = iter(mutants)
        while True:
            for mutant in islice(supply, workers - len(running)):
                running[_fork(mutant, known.get(mutant.id), covered)] = mutant
            if not running:
                return
            pid, status = os.wait()
            mutant = running.pop(pid)
            if status:
                sys.exit(f"trying {mutant.id} failed: {BUILD / 'mutants-error.log'}")
            progress.advance(task)


def _fork(mutant: Mutant, before: Result | None, covered: Map) -> int:
    """Try one in a child that writes its line; returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        line = json.dumps(asdict(next_result(mutant, before, covered))) + "\n"
        with RESULTS.open("a") as file:
            file.write(line)
        status = 0
    except BaseException:
        Path(BUILD / "mutants-error.log").write_text(traceback.format_exc())
    finally:
        os._exit(status)
