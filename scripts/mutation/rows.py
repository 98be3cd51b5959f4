"""Which row of the papers is really shown: a mutant of its rule is killed by a test that names it.

Mutants of a row's rule are written by hand in ``docs/row-mutants.txt`` (as ``ROW | file | function
| old => new``, runs of blanks as one); without any, small changes are drawn from the functions of
the core and of serving whose docstring or comments cite the row. Only tests that name the row are
asked. The first kill of each row is kept in ``docs/row-kills.txt``; ``scripts/requirements.py``
reads it.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import requirements

from mutation.places import PACKAGE, Mutant, drawn, mutants_of, one_line
from mutation.trial import ROOT, judge

BY_HAND = ROOT / "docs" / "row-mutants.txt"
DRAWN_MAX = 12
"""Mutants that are tried for a row without one written by hand."""
CALM_S = 20.0
"""CPU that the tests which name one row may take; the limit is a multiple of it."""
SWITCHES = ("always", "never", "negate", "drop condition", "drop call", "drop jump", "not")
"""The changes that switch a rule off; those of numbers and signs come after them."""
NO_RULE = ("import", "time")
"""A module that cannot be imported or does not end says nothing about a rule."""
FOLDERS = ("unit", "property", "scenario")
"""Tests of whole simulated clusters and real members take too long to be asked for every row."""
SCENARIOS = "tests/scenario/test_scenario_files.py::test_scenario"


def by_hand() -> dict[str, list[Mutant]]:
    """The mutants written for each row; those whose text is gone are told and left out.

    Exits with a message when a line is malformed.
    """
    found: dict[str, list[Mutant]] = {}
    for number, line in enumerate(BY_HAND.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(" | ", 3)]
        if len(parts) != 4 or " => " not in parts[3]:
            sys.exit(f"{BY_HAND.name}:{number}: a line is 'ROW | file | function | old => new'")
        row, file, function, change = parts
        old, _, new = change.partition(" => ")
        mutant = written(file, function, old.strip(), new.strip())
        if mutant is None:
            print(f"{BY_HAND.name}:{number}: {function} of {file} does not hold {old!r} once")
        else:
            found.setdefault(row, []).append(mutant)
    return found


def written(file: str, function: str, old: str, new: str) -> Mutant | None:
    """A mutant given by its texts; none when the old text does not stand there exactly once."""
    if not (PACKAGE / file).exists():
        return None
    data = (PACKAGE / file).read_bytes()
    span = requirements.span_of(data.decode(), function)
    if span is None:
        return None
    begin, end = span
    pattern = rb"\s+".join(re.escape(word.encode()) for word in old.split())
    matches = list(re.finditer(pattern, data[begin:end]))
    if len(matches) != 1:
        return None
    start, stop = (begin + offset for offset in matches[0].span())
    line = data.count(b"\n", 0, start) + 1
    return Mutant(file, function, "by hand", line, (line,), start, stop, new, one_line(old), new)


def citing(row: str) -> Iterator[Mutant]:
    """The mutants of every function of core, serving or structures that cites a row."""
    for room in ("core", "serving", "structures"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            text = path.read_text()
            if row not in requirements.ids_in(text):
                continue
            file = str(path.relative_to(PACKAGE))
            functions = set(_citing_functions(text, row))
            yield from (one for one in mutants_of(file) if one.function in functions)


def _citing_functions(text: str, row: str) -> Iterator[str]:
    """The names of the functions whose text cites a row."""

    def walk(node: ast.AST, scope: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{scope}.{child.name}" if scope else child.name
                if isinstance(child, ast.FunctionDef):
                    source = ast.get_source_segment(text, child) or ""
                    if row in requirements.ids_in(source):
                        yield name
                yield from walk(child, name)

    yield from walk(ast.parse(text), "")


def tests_of(row: str, named: dict[str, list[str]]) -> list[str]:
    """The tests that name a row, as pytest calls them; those of whole modules last."""
    single, whole = [], []
    for test in named.get(row, []):
        if not test.startswith(FOLDERS):
            continue
        path, _, function = test.partition(": ")
        if path.endswith(".txt"):
            if path.startswith("scenario/"):
                single.append(f"{SCENARIOS}[{path.split('/')[1].removesuffix('.txt')}]")
        elif test == requirements.CASES or not function:
            whole.append(f"tests/{path}")
        else:
            single.append(f"tests/{path}::{function}")
    return single + whole


def spoken(node_id: str) -> str:
    """A test as the document names it."""
    path, _, function = node_id.removeprefix("tests/").partition("::")
    scenario = re.fullmatch(r"test_scenario\[(.+)\]", function)
    return f"scenario/{scenario[1]}.txt" if scenario else f"{path}: {function.split('[')[0]}"


def candidates(row: str, hand: dict[str, list[Mutant]], seed: int) -> list[Mutant]:
    """What is tried for a row, in this order."""
    if row in hand:
        return hand[row]
    found = drawn(list(citing(row)), seed, 10 * DRAWN_MAX)
    return sorted(found, key=lambda one: one.kind not in SWITCHES)[:DRAWN_MAX]


def kill_of(row: str, mutants: Sequence[Mutant], tests: Sequence[str]) -> requirements.Kill | None:
    """The first mutant that a test naming the row kills."""
    for mutant in mutants:
        fate = judge(mutant, tests, CALM_S)
        if fate.stage and fate.stage not in NO_RULE:
            change = f"{mutant.old} => {mutant.new}"
            return requirements.Kill(row, mutant.file, mutant.function, change, spoken(fate.by))
    return None


def _try_row(row: str, hand: dict[str, list[Mutant]], tests: Sequence[str], seed: int) -> None:
    """Look for the kill of one row and write it to its place in ``build/``."""
    kill = kill_of(row, candidates(row, hand, seed), tests) if tests else None
    text = "" if kill is None else kill.line
    (requirements.BUILD / f"row-{row}.txt").write_text(text)


def main(wanted: Sequence[str], seed: int, workers: int) -> int:
    """Try the wanted rows, keep the others' kills; returns the exit status."""
    requirements.BUILD.mkdir(exist_ok=True)
    hand, named = by_hand(), requirements.tests_by_id()
    known = {row.id for row in requirements.rows()}
    stranger = sorted((set(wanted) | set(hand)) - known)
    if stranger:
        sys.exit(f"no such row: {', '.join(stranger)}")
    chosen = [row.id for row in requirements.rows() if not wanted or row.id in wanted]
    supply, running = iter(chosen), 0
    while True:
        for row in islice(supply, workers - running):
            running += 1
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    _try_row(row, hand, tests_of(row, named), seed)
                    status = 0
                finally:
                    os._exit(status)
        if not running:
            break
        _, status = os.wait()
        running -= 1
        if status:
            sys.exit("a row could not be tried; run it alone with --workers 1")
    _keep(chosen)
    return 0


def _keep(chosen: Sequence[str]) -> None:
    """Write the kills of the chosen rows among those of the others."""
    kills = requirements.kills()
    for row in chosen:
        line = (requirements.BUILD / f"row-{row}.txt").read_text()
        kills.pop(row, None)
        if line:
            kills[row] = requirements.kill_in(line)
        print(line or f"{row} | nothing that names it fails")
    order = [row.id for row in requirements.rows()]
    lines = [kills[row].line for row in order if row in kills]
    requirements.KILLS.write_text(requirements.KILLS_HEAD + "".join(f"{one}\n" for one in lines))
