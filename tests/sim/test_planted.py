"""Planted bugs: each deliberately broken protection is caught by the simulator.

A checker is trusted only after it has caught something (FN-25).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from whimbrel.sim.bug import Bug
from whimbrel.sim.registry import BUGS
from whimbrel.sim.report import Report
from whimbrel.sim.run import simulate

pytestmark = [pytest.mark.planted]

SEEDS_MAX = 200
IN_ONE_RUN = [bug for bug in BUGS.values() if bug.rules != ("X3",)]

TWICE = """
import json, sys
from whimbrel.sim.registry import BUGS
from whimbrel.sim.run import simulate
bug = BUGS["members_in_set_order"]
print(json.dumps([simulate(seed, bug.profile, bug=bug).trace_hash for seed in (1, 2)]))
"""


def first_catch(bug: Bug) -> Report | None:
    """The first failing run of a bug within the seeds that the brief allows."""
    for seed in bug.seeds:
        report = simulate(seed, bug.profile, bug=bug)
        if report.violations:
            return report
    return None


@pytest.mark.parametrize("bug", IN_ONE_RUN, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    """Goal: the bug breaks one of the rules it is known to break. Method: seeds in order, at
    most 200; the first violation must carry one of the expected ids and a story.
    """
    assert len(bug.seeds) <= SEEDS_MAX
    report = first_catch(bug)
    assert report is not None, f"{bug.name} was not caught"
    assert report.violations[0].rule in bug.rules, report.violations[0]
    assert report.story
    assert report.members


@pytest.mark.parametrize("bug", IN_ONE_RUN, ids=lambda bug: bug.name)
def test_planted_bug_is_the_cause(bug: Bug) -> None:
    """Goal: it is the bug that is caught, not the profile. Method: its first seed without it."""
    assert simulate(bug.seeds[0], bug.profile).violations == ()


def test_planted_set_order_is_caught_by_comparing_processes() -> None:
    """Goal: X3 catches an order that comes from a set. Method: two seeds in two processes with
    different hash seeds; without the bug the hashes are equal (test_sim_runs).
    """
    hashes = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TWICE],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            timeout=120,
        )
        hashes.append(json.loads(done.stdout))
    assert hashes[0] != hashes[1]
