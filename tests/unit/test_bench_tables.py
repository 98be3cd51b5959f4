"""The tables that ``benchmarks/`` writes; what it measures needs the peer harness."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DISK: dict[str, tuple[float, float]] = {
    "memory only": (20.0, 100_000.0),
    "interval": (25.0, 90_000.0),
    "always": (40.0, 70_000.0),
    "redis, no file": (1.0, 900_000.0),
    "redis, always": (4.0, 300_000.0),
}
"""CPU of an operation, and operations a second."""


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """``disk_cost`` and ``run_all``, which finds the first one beside it."""
    found = {}
    for name in ("disk_cost", "run_all"):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        sys.modules[name] = found[name]
        spec.loader.exec_module(found[name])
    return found


def cells_of(rounds: int, disk: dict[str, tuple[float, float]] = DISK) -> list[dict[str, Any]]:
    """Rounds of which the first one ran on a machine twice as slow."""
    return [
        {
            "server": server,
            "round": number,
            "depth": depth,
            "server_cpu_s_per_million": cpu * (2 if number == 0 else 1),
            "ops_per_s": rate / (2 if number == 0 else 1),
            "p50_us": 100.0,
            "p99_us": 900.0 + depth,
        }
        for number in range(rounds)
        for server, (cpu, rate) in disk.items()
        for depth in (1, 16, 128)
    ]


def test_variants_are_compared_round_by_round(modules: dict[str, ModuleType]) -> None:
    """Goal: a machine that is slow for a while changes no ratio. Method: the first of three rounds
    is slow; then one variant costs too much, and so does what has no files.
    """
    disk = modules["disk_cost"]
    assert disk.ratios(cells_of(3), "interval", "memory only", 16, "ops_per_s") == [0.9] * 3
    goals = disk.goals_of(cells_of(3))
    assert [(goal["found"], goal["met"]) for goal in goals] == [
        (1.25, True), (0.7, True), (None, None),
    ]  # fmt: skip
    worse = DISK | {"interval": (26.1, 1.0), "before persistence": (19.0, 1.0)}
    assert [goal["met"] for goal in disk.goals_of(cells_of(1, worse))] == [False, True, False]


def test_ours_and_theirs_stand_in_one_table(modules: dict[str, ModuleType]) -> None:
    """Goal: each variant beside the one without files of its own kind, at every depth, with p99."""
    rows = modules["disk_cost"].rows_of({"cells": cells_of(3)})
    assert len(rows) == 3 * len(DISK)
    found = {tuple(row[:2]): row[2:] for row in rows}
    assert found["always", "16"] == [
        "40.0 / 40.0 / 80.0", "2.00", "70.0", "0.70", "100", "916",
    ]  # fmt: skip
    assert found["redis, always", "1"][1:4] == ["4.00", "300.0", "0.33"]
    assert found["memory only", "1"][1] == found["redis, no file", "1"][1] == ""
    shown = modules["run_all"]._disk(
        {
            "whimbrel": {
                "cells": cells_of(1), "members": 3, "value_bytes": 100, "redis": "v=7",
                "options": {"keys": 10, "rounds": 1, "seconds": 2.0},
                "goals": modules["disk_cost"].goals_of(cells_of(1)),
            }
        }
    )  # fmt: skip
    assert sum(line.startswith("| ") for line in shown) == 2 + 3 * len(DISK) + 2 + 3


def test_what_was_run_is_shown_without_paths(modules: dict[str, ModuleType]) -> None:
    """Goal: whoever reads a table can make it again. Method: a part of each kind of program."""
    shown = {part.name: part.shown(Path("/somewhere")) for part in modules["run_all"]._parts()}
    assert shown["memory"].startswith("measure.py memory --keys")
    assert shown["disk"] == "disk_cost.py --peers DIR"
    assert shown["loading"] == "whimbrel bench loading --json"


def test_tables_of_other_runs_are_kept(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one measurement made anew leaves what others have found. Method: no documents at all,
    then one; the page has a head, two tables that are known and one that is not.
    """
    run_all = modules["run_all"]
    monkeypatch.setattr(run_all, "RAW", tmp_path)
    titles = [run_all.TABLES[name][0] for name in ("moves", "memory")]
    page = tmp_path / "RESULTS.md"
    text = "# Results\n\nWords.\n\n## Figures\n\nWritten once.\n"
    text += "".join(f"\n### {title}\n\n| {title} |\n" for title in titles)
    page.write_text(text)
    run_all.write(page)
    assert page.read_text() == text
    document = '{"load_after": [0.1], "shown_command": "measure.py memory", "failed": "of itself"}'
    (tmp_path / "memory-whimbrel.json").write_text(document)
    run_all.write(page)
    found = page.read_text()
    assert found.startswith("# Results\n\nWords.\n\n## Figures\n\nWritten once.\n")
    assert f"| {titles[0]} |" in found and f"| {titles[1]} |" not in found
    assert "whimbrel failed: of itself" in found
