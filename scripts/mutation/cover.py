"""Which test runs which line of the core: taken once, kept in ``build/`` until something changes.

Simulator runs are not traced: each meets nearly every line. Lines that run at import belong to no
test. For a change there, the tests of the lines that use the
changed name are taken; for a default in a function's head, those of the function.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutation.places import PACKAGE, Mutant, core_files
from mutation.trial import BUILD, ROOT, Chosen, run_sim, run_tests, sim_runs

MAP = BUILD / "mutants-map.json"
FOLDERS = ("unit", "property", "scenario")
PARTS = 6
"""The tests are taken in so many pieces, by file."""
SKIPPED = (
    "::test_scenario_needs_its_protection[",
    "::test_no_piece_of_a_plan_takes_long",
    "::test_no_step_of_a_migration_occupies_a_member_for_long",
    "tests/unit/test_house.py",
    "tests/unit/test_requirements.py",
    "tests/unit/test_client_bulk.py",
    "tests/unit/test_bench_",
)
"""Not asked: they look at tests (a scenario with its protection off says nothing of a mutant), at
sources, or at this machine's clock."""


class Covered(Chosen):
    """Runs tests one by one under the tracer and notes what each one took."""

    def __init__(self, tracer: coverage.Coverage) -> None:
        super().__init__(())
        self._tracer = tracer
        self.taken: dict[str, float] = {}
        self.bad: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """All but the skipped."""
        items[:] = [one for one in items if not any(word in one.nodeid for word in SKIPPED)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test with its set-up."""
        self._tracer.switch_context(item.nodeid)
        before_s = time.process_time()
        result = yield
        self.taken[item.nodeid] = time.process_time() - before_s
        self._tracer.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails without a mutant shows nothing."""
        if report.failed:
            self.bad.append(report.nodeid)


class Map:
    """Lines to tests, as bits of whole numbers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.names: list[str] = document["names"]
        self.taken_s: dict[str, float] = dict(zip(self.names, document["taken_s"], strict=True))
        self._lines = {
            file: {int(line): int(mask, 16) for line, mask in lines.items()}
            for file, lines in document["lines"].items()
        }
        self._asked = sum(
            1 << number
            for number, name in enumerate(self.names)
            if not any(word in name for word in SKIPPED)
        )
        self.width = dict.fromkeys(self.names, 0)
        for lines in self._lines.values():
            for mask in lines.values():
                for number in _bits(mask):
                    self.width[self.names[number]] += 1

    def names_for(self, mutant: Mutant) -> list[str]:
        """The tests and simulator runs that meet a mutant, the most specific first.

        Those whose file is named like the mutant's come before those that meet few lines.
        """
        lines = self._lines.get(mutant.file, {})
        mask = _union(lines, mutant.lines)
        if not mask:
            mask = self._mask_of_function(mutant) or self._mask_of_name(mutant)
        found = [self.names[number] for number in _bits(mask & self._asked)]
        found += [name for name in self.names if name.startswith("sim/")]
        words = set(_words(mutant.file))
        kin = {
            file: -len(words & set(_words(file))) for file in {one.split("::")[0] for one in found}
        }
        return sorted(
            found,
            key=lambda name: (kin[name.split("::")[0]], self.width[name], self.taken_s[name]),
        )

    def _mask_of_function(self, mutant: Mutant) -> int:
        tree = ast.parse((PACKAGE / mutant.file).read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.lineno == mutant.lines[0]:
                first, last = node.body[0].lineno, node.end_lineno or node.lineno
                return _union(self._lines.get(mutant.file, {}), range(first, last + 1))
        return 0

    def _mask_of_name(self, mutant: Mutant) -> int:
        """Of a constant or a field: the lines of the core that use its name."""
        if mutant.function[0].islower():
            return 0
        name = mutant.old.split(":")[0].split("=")[0].strip()
        mask = 0
        for file in core_files():
            text = (PACKAGE / file).read_bytes()
            if name.encode() not in text:
                continue
            users = [
                node.lineno
                for node in ast.walk(ast.parse(text))
                if (isinstance(node, ast.Name) and node.id == name)
                or (isinstance(node, ast.Attribute) and node.attr == name)
            ]
            mask |= _union(self._lines.get(file, {}), users)
        return mask


def _words(path: str) -> list[str]:
    """The words in a path, without those that say nothing."""
    return [word for word in re.split(r"[/_.]", path) if word not in ("core", "test", "py")]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _union(lines: dict[int, int], wanted: Iterable[int]) -> int:
    mask = 0
    for line in wanted:
        mask |= lines.get(line, 0)
    return mask


def state_of_sources() -> str:
    """A hash of the core, of structures, and of the tests that are asked."""
    digest = hashlib.sha256()
    rooms = ("core", "structures", "sim")
    paths = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    for folder in FOLDERS:
        paths += [*(ROOT / "tests" / folder).rglob("*.py")]
        paths += [*(ROOT / "tests" / folder).rglob("*.txt")]
    for path in sorted(paths):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def taken_map(workers: int, old_is_good: bool) -> Map:
    """The map of the sources as they are, from ``build/`` or taken anew in some minutes.

    Args:
        workers: Pieces at a time.
        old_is_good: Take what is in ``build/`` although something has changed since.
    """
    state = state_of_sources()
    if MAP.exists():
        document = json.loads(MAP.read_text())
        if old_is_good or document["state"] == state:
            return Map(document)
    print("taking the map of lines and tests, once for these sources", flush=True)
    files = sorted(
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / "tests" / folder).glob("test_*.py")
    )
    pieces = [files[number::PARTS] for number in range(PARTS)] + [
        sim_runs()[0::2],
        sim_runs()[1::2],
    ]
    running: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        if len(running) >= workers:
            _wait_for(running)
        running[_fork_piece(number, piece)] = number
    while running:
        _wait_for(running)
    document = _joined(state, len(pieces))
    MAP.write_text(json.dumps(document))
    return Map(document)


def _wait_for(running: dict[int, int]) -> None:
    """Wait until a piece is done."""
    pid, status = os.wait()
    number = running.pop(pid)
    if status:
        sys.exit(f"piece {number} of the map failed: see {_piece(number)}.log")


def _piece(number: int) -> Path:
    return BUILD / f"mutants-map-{number}"


def _fork_piece(number: int, piece: Sequence[str]) -> int:
    """Take one piece in a child; returns its process id."""
    BUILD.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    log = os.open(f"{_piece(number)}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        document = _taken(number, piece)
        _piece(number).with_suffix(".json").write_text(json.dumps(document))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _taken(number: int, piece: Sequence[str]) -> dict[str, Any]:
    """Run a piece, tests under the tracer."""
    if piece[0].startswith("sim/"):
        return _simulated(piece)
    store = f"{_piece(number)}.coverage"
    patterns = [str(PACKAGE / room / "*") for room in ("core", "structures")]
    tracer = coverage.Coverage(store, config_file=False, include=patterns, messages=False)
    tracer.erase()
    tracer.start()
    plugin = Covered(tracer)
    run_tests(piece, plugin)
    tracer.stop()
    tracer.save()
    lines: dict[str, dict[int, list[str]]] = {}
    data = tracer.get_data()
    for path in data.measured_files():
        lines[str(Path(path).relative_to(PACKAGE))] = data.contexts_by_lineno(path)
    return {"taken": plugin.taken, "bad": plugin.bad, "lines": lines}


def _simulated(piece: Sequence[str]) -> dict[str, Any]:
    """How long simulator runs take, and which break a rule without a mutant."""
    taken: dict[str, float] = {}
    bad = []
    for run in piece:
        before_s = time.process_time()
        if not run_sim(run):
            bad.append(run)
        taken[run] = time.process_time() - before_s
    return {"taken": taken, "bad": bad, "lines": {}}


def _joined(state: str, count: int) -> dict[str, Any]:
    """One document of all pieces, without the tests that failed."""
    pieces = [
        json.loads(_piece(number).with_suffix(".json").read_text()) for number in range(count)
    ]
    bad = {name for piece in pieces for name in piece["bad"]}
    for name in sorted(bad):
        print(f"fails without a mutant, not asked: {name}")
    taken = {name: took for piece in pieces for name, took in piece["taken"].items()}
    names = sorted(set(taken) - bad)
    number_of = {name: number for number, name in enumerate(names)}
    masks: dict[str, dict[str, int]] = {}
    for piece in pieces:
        for file, lines in piece["lines"].items():
            into = masks.setdefault(file, {})
            for line, contexts in lines.items():
                for context in contexts:
                    if context in number_of:
                        into[line] = into.get(line, 0) | 1 << number_of[context]
    return {
        "state": state,
        "names": names,
        "taken_s": [round(taken[name], 3) for name in names],
        "lines": {
            file: {line: f"{mask:x}" for line, mask in lines.items()}
            for file, lines in masks.items()
        },
    }
