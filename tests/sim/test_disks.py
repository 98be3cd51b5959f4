"""Clusters that keep files: everybody dies at once, disks are slow, full, lose what was not synced.

Planted bugs of disks are in ``test_planted``, as all others are.
"""

from __future__ import annotations

import random

import pytest

from whimbrel.sim.disks.rules import CAME_BACK, DIED_LOADING, load_all
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run, simulate

SECOND = 1_000_000


@pytest.mark.parametrize("seed", [2, 6, 9, 12, 18, 42, 79])
def test_what_was_acknowledged_comes_back(seed: int) -> None:
    """Goal: no rule is broken, S1 and S7 among them, however often everybody dies. Method: fixed
    seeds that have found something once; each is long back before the end.
    """
    report = simulate(seed, "disks")
    assert report.violations == (), report.story[-20:]
    assert report.phase == "done"
    assert report.faults["outage"] > 1
    assert report.seen[CAME_BACK] and report.seen[DIED_LOADING]


def test_everybody_dies_once_and_returns() -> None:
    """Goal: the plainest case, and S7 looked at from outside. Method: a script without other harm;
    after the run what lies on each disk is loaded.
    """
    entropy = Entropy(3)
    plan = draw_plan(entropy, profile_named("disks"))
    run = Run(plan, entropy)
    names = [host.name for host in run.world.hosts[: plan.members]]
    run.nemesis.script = [
        FaultEvent(9 * SECOND, "outage", value=1),
        *(FaultEvent(10 * SECOND + at, "start", (name,)) for at, name in enumerate(names)),
    ]
    run.go()
    assert run.world.violations == []
    assert run.world.history.acked_writes > 20
    for host in run.world.up_hosts():
        held = host.member.dataplane.partitions
        loaded = load_all(host.disk.fork(random.Random(1)), host)
        assert {pid for pid, _ in loaded} == {one.pid for one in held if one.fragments}


def test_a_run_without_disks_makes_none() -> None:
    """Goal: other profiles pay nothing. Method: no member has asked for a work."""
    entropy = Entropy(1)
    run = Run(draw_plan(entropy, profile_named("kill")), entropy)
    run.go()
    assert all(host.works._disk is None for host in run.world.hosts)
