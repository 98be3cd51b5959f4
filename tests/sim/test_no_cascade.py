"""One machine that stalls takes nobody else with it."""

from __future__ import annotations

import pytest

from whimbrel.sim.run import simulate


@pytest.mark.parametrize(("seed", "profile"), [(1, "cascade"), (2, "cascade"), (1, "cascade_100")])
def test_a_stalled_machine_does_not_cascade(seed: int, profile: str) -> None:
    """M5, L1, D1, fault 67: thirty members and a hundred, ten on a machine, under load and while
    newcomers get their data: the ten of one machine stall for one and a half heartbeat time-outs.
    Nobody else is removed, all come back, nothing acknowledged is lost.
    """
    report = simulate(seed, profile)
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"
    stalled = report.faults["pause"]
    assert stalled >= 10
    assert stalled % 10 == 0
    # Whoever stalled for so long is removed and comes back as a new member; nobody else is.
    assert report.notes["expelled"] == stalled
    assert [row.name for row in report.members if row.state != "up"] == []
    assert report.acked_writes > 100
