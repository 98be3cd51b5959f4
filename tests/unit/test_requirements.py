"""The list of requirements cannot rot: it is made from the tests and from what they killed."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "src" / "whimbrel" / "core").rglob("*.py"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """``scripts/requirements.py`` as a module."""
    spec = importlib.util.spec_from_file_location(
        "requirements_script", ROOT / "scripts" / "requirements.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_list_is_up_to_date(script: ModuleType) -> None:
    """Goal: docs/requirements.md is what the tests say. Method: make it again and compare."""
    assert script.DOCUMENT.read_text() == script.document(), "run python scripts/requirements.py"


def test_every_done_row_has_a_test(script: ModuleType) -> None:
    """Goal: no row is called done without a test. Method: as the script's own check; and see that
    the check notices a row without one.
    """
    assert script.lost(script.DOCUMENT.read_text()) == []
    assert script.lost("| GCM-99 | a row that no test names | done | |\n") == ["GCM-99"]


def test_a_row_is_done_by_a_kill(script: ModuleType) -> None:
    """Goal: naming a row does not show it. Method: states with a test, a kill, a gap, nothing."""
    row, gap = script.Row("AE-01", "title", ""), script.Row("AE-01", "title", "comes later")
    kill = script.kill_in("AE-01 | core/check.py | check | a | b => c | unit/test_x.py: test_y")
    assert script.state_of(row, ["a test"], kill) == "done"
    assert script.state_of(row, ["a test"], None) == "shown weakly"
    assert script.state_of(gap, ["a test"], kill) == "partly: comes later"
    assert script.state_of(gap, [], None) == "later: comes later"
    assert script.state_of(row, [], None) == "open"
    assert (kill.old, kill.test) == ("a | b", "unit/test_x.py: test_y")
    with pytest.raises(SystemExit, match="not 'ROW"):
        script.kill_in("AE-01 | core/check.py | check | no change | unit/test_x.py: test_y")


def test_a_kill_counts_while_its_text_and_its_test_stand(script: ModuleType) -> None:
    """Goal: a kill of code or of a test that is gone shows nothing. Method: a text that is there,
    over several lines, too; one that is not; another function; a test that names the row no more.
    """
    line = "AE-01 | core/check.py | {} | {} => pass | unit/test_x.py: test_y"
    tests = ["unit/test_x.py: test_y"]

    def still(function: str, old: str, tests: list[str] = tests) -> bool:
        return bool(script.counts(script.kill_in(line.format(function, old)), tests))

    assert still("check", "if not condition: raise InvariantViolation(fact)")
    assert still("check", "if not condition:", ["unit/test_x.py"])
    assert not still("check", "if condition:")
    assert not still("other", "if not condition:")
    assert not still("check", "if not condition:", ["unit/test_x.py: test_z"])
    assert not script.counts(script.Kill("AE-01", "core/gone.py", "f", "a => b", tests[0]), tests)


def test_all_rows_are_listed(script: ModuleType) -> None:
    """Goal: no row is forgotten. Method: count each group; ids are unique and in order."""
    ids = [row.id for row in script.rows()]
    for group, numbers in {
        "ADL": range(1, 76),
        "AE": range(1, 41),
        "GCM": range(1, 45),
        "PIM": [*range(1, 46), 57, 58],
        "APR": range(1, 74),
    }.items():
        assert [one for one in ids if one.startswith(group)] == [
            f"{group}-{number:02}" for number in numbers
        ]


def test_tests_name_known_rows(script: ModuleType) -> None:
    """Goal: no mistyped id. Method: every id in a test is a row, or one of the benchmark rows."""
    known = {row.id for row in script.rows()} | {f"PIM-{number}" for number in range(46, 57)}
    assert sorted(set(script.tests_by_id()) - known) == []


def test_spans_name_every_row_between(script: ModuleType) -> None:
    """Goal: ``AE-06 to AE-09`` names four rows. Method: a span, a list, a foreign word."""
    assert script.ids_in("AE-06 to AE-09, bug 3") == ["AE-06", "AE-07", "AE-08", "AE-09"]
    assert script.ids_in("ADL-1, GCM-31.") == ["ADL-01", "GCM-31"]
    assert script.ids_in("APR-40, XADL-12 and UP-40") == ["APR-40"]


def test_bugs_without_a_scenario_name_files_that_exist() -> None:
    """Goal: the list of bugs without a scenario file points somewhere. Method: look each up."""
    text = (ROOT / "docs" / "scenario-gaps.txt").read_text()
    names = re.findall(r"`((?:unit|property|sim)/test_\w+\.py)`", text)
    assert len(names) > 5
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.name))
def test_no_code_orders_tables_by_their_stamp(path: Path) -> None:
    """PIM-19: a stamp is for "same or not" only. Method: no ordering comparison, ``max``, ``min``
    or ``sorted`` in the core looks at one.
    """
    bad: list[int] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare | ast.Call):
            continue
        orders = isinstance(node, ast.Compare) and any(
            isinstance(one, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for one in node.ops
        )
        picks = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("max", "min", "sorted")
        )
        if orders or picks:
            names = [
                one.attr if isinstance(one, ast.Attribute) else one.id
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute | ast.Name)
            ]
            bad += [node.lineno for name in names if name.endswith("stamp")]
    assert not bad, f"a stamp is ordered on lines {bad}"
