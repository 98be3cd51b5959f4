"""Whole simulated clusters of version 4.0, and upgraded ones, under all checkers."""

from __future__ import annotations

import pytest

from whimbrel.sim.run import simulate


@pytest.mark.parametrize("profile", ["serial", "serial-move"])
@pytest.mark.parametrize("seed", [1, 2])
def test_serial_clusters_break_no_rule(profile: str, seed: int) -> None:
    """PIM-07, PIM-32, PIM-41, ADL-35: the rules of the modern way and one more hold below 4.1."""
    report = simulate(seed, profile)
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"


@pytest.mark.parametrize("seed", [1, 4])
def test_upgrades_in_the_middle_of_load(seed: int) -> None:
    """PIM-41, PIM-43, PIM-44, fault list 73: kills and joins around the order, which is obeyed."""
    report = simulate(seed, "upgrade")
    assert report.violations == (), report.story[-20:]
    assert report.faults["upgrade"] > 1
    assert report.notes["migration.ways"] >= 3
