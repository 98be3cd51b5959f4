"""Scenario files: every fixed bug, and some hard moments, written down as verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.sim.scenario import parse_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Goal: what the file expects. Method: play its events on its plan."""
    scenario = parse_scenario(path.read_text())
    report = scenario.play()
    assert scenario.is_as_expected(report), (report.violations[:2], report.story[-20:])


def test_there_are_scenarios() -> None:
    """Goal: the folder is not forgotten. Method: count."""
    assert len(FILES) >= 5
