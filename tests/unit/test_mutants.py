"""The tool that plants small faults: what it changes, what it leaves, and that a fault is seen."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
SAMPLE = b'''"""Words 1."""
LIMIT = 5


def rule(rows: list[int], top: int = 3) -> int | None:
    """Words 2."""
    if not rows or (top) < 4:
        return None
    check(top, "words 3")
    note("words", size=4)
    rows.sort()
    best = min(row + 1 for row in rows if row is not top)
    while best:
        best -= top
        break
    if best > 6:
        raise ValueError(7)
    return best
'''
TRY_ONE = """
import sys
from dataclasses import replace
sys.path.insert(0, {scripts!r})
from mutation import trial
from mutation.places import mutants_of
trial.prepare()
found = [one for one in mutants_of("core/check.py") if one.new == {new!r}]
mutant = found[0] if found else replace(mutants_of("core/check.py")[0], end=0, start=0, text="")
print(trial.judge(mutant, [{test!r}], 5.0).stage or "survived")
"""


@pytest.fixture(scope="module")
def places() -> ModuleType:
    """``scripts/mutation/places.py`` as a module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("mutation.places")
    finally:
        sys.path.remove(str(SCRIPTS))


def changes(places: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Any]:
    (folder / "sample.py").write_bytes(SAMPLE)
    monkeypatch.setattr(places, "PACKAGE", folder)
    return list(places.mutants_of("sample.py"))


def test_what_is_changed(
    places: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: every kind of change is made where it can be. Method: the changed lines of a text."""
    found = {one.new for one in changes(places, monkeypatch, tmp_path)}
    assert {
        "if (rows) or (top) < 4:",
        "if ((not rows) and ((top) < 4)):",
        "if ((not rows)):",
        "if not rows or (top) <= 4:",
        "if not rows or (top) < (3):",
        "if True:",
        "if False:",
        "def rule(rows: list[int], top: int = (2)) -> int | None:",
        "best = max(row + 1 for row in rows if row is not top)",
        "best = min(row - 1 for row in rows if row is not top)",
        "best = min(row + 1 for row in rows if row is top)",
        "best = min(row + 1 for row in rows if True)",
        "while (not (best)):",
        "best += top",
        "pass",
    } <= found


def test_what_is_left_alone(
    places: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: words, limits, notes, checks and errors stay. Method: no change on their lines."""
    lines = SAMPLE.decode().splitlines()
    touched = {lines[one.line - 1].strip() for one in changes(places, monkeypatch, tmp_path)}
    for word in ("Words 1", "Words 2", "LIMIT", "check", "note", "raise", "words"):
        assert not [line for line in touched if word in line], word


def test_changes_are_small_parse_and_have_one_name(
    places: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a change is one place of a valid text. Method: parse each; compare with the text."""
    found = changes(places, monkeypatch, tmp_path)
    assert len({one.id for one in found}) == len(found) > 25
    for one in found:
        ast.parse(one.source())
        assert one.source() != SAMPLE
        assert one.source().startswith(SAMPLE[: one.start])
        assert one.source().endswith(SAMPLE[one.end :])
        assert SAMPLE.count(b"\n") == one.source().count(b"\n")


def test_a_sample_stays_where_the_code_stays(places: ModuleType) -> None:
    """Goal: an edit elsewhere draws no new sample. Method: take a twentieth of the mutants away."""
    mutants = places.mutants_of("core/registry.py")
    sample = places.drawn(mutants, 1, 40)
    fewer = [one for number, one in enumerate(mutants) if number % 20]
    again = {one.id for one in places.drawn(fewer, 1, 40)}
    assert again >= {one.id for one in sample if one in fewer}
    assert sample != places.drawn(mutants, 2, 40)


@pytest.mark.parametrize(
    ("new", "stage"),
    [
        ("if (condition):", "unit"),
        ("if False:", "unit"),
        ("nothing changed", "survived"),
    ],
)
def test_a_planted_fault_is_seen(new: str, stage: str) -> None:
    """Goal: a killed mutant is one that a test fails on, in the text it was given, with no file
    changed. Method: two faults of ``check`` against a test that needs it; and no fault.
    """
    test = "tests/unit/test_partition_table.py::test_versions_only_rise"
    program = TRY_ONE.format(scripts=str(SCRIPTS), new=new, test=test)
    before = (ROOT / "src" / "whimbrel" / "core" / "check.py").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == stage, done.stderr
    assert (ROOT / "src" / "whimbrel" / "core" / "check.py").read_bytes() == before


def test_a_mutant_by_hand_is_found_by_its_text(places: ModuleType) -> None:
    """Goal: a line of docs/row-mutants.txt is one place. Method: a text over two lines, one that is
    not there, one that stands there twice, and a file and a function that do not exist.
    """
    sys.path.insert(0, str(SCRIPTS))
    try:
        rows = importlib.import_module("mutation.rows")
    finally:
        sys.path.remove(str(SCRIPTS))
    old = "if not condition: raise InvariantViolation(fact)"
    found = rows.written("core/check.py", "check", old, "pass")
    assert found is not None
    body = ast.parse(found.source()).body[-1]
    assert isinstance(body, ast.FunctionDef) and isinstance(body.body[-1], ast.Pass)
    for file, function, text in (
        ("core/check.py", "check", "if condition:"),
        ("core/check.py", "check", "condition"),
        ("core/check.py", "other", old),
        ("core/gone.py", "check", old),
    ):
        assert rows.written(file, function, text, "pass") is None


def test_every_survivor_has_a_reason() -> None:
    """Goal: nothing survives unexplained. Method: read the document that the tool made."""
    text = (ROOT / "docs" / "mutants.md").read_text()
    assert "## Survivors" in text
    assert "no reason given" not in text


def test_a_reason_is_of_a_mutant_of_today(places: ModuleType) -> None:
    """Goal: no reason outlives the code that it is about. Method: every name in the list of reasons
    is that of a mutant of the file it names.
    """
    text = (ROOT / "docs" / "mutant-reasons.txt").read_text()
    named = [line for line in text.splitlines() if line and line[0] not in "# "]
    files = dict.fromkeys(name.split(" | ")[0] for name in named)
    found = {mutant.name for file in files for mutant in places.mutants_of(file)}
    assert named and not [name for name in named if name not in found]
