"""The crash sweep: a kill at every event of a small rebalance, role by role."""

from __future__ import annotations

import json

import pytest

from whimbrel.cli.main import run
from whimbrel.errors import UsageError
from whimbrel.sim.registry import BUGS
from whimbrel.sim.sweep import KINDS, ROLES, count_events, run_case, sweep

SHARE = len(ROLES)
"""Every so many-th event, each role from another one on: at each event one role is killed. The
whole sweep, every role at each event, is run by ``make soak``."""


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kill_at_any_event_breaks_no_rule(kind: str) -> None:
    """ADL-16, ADL-17, ADL-20, ADL-21, ADL-24, ADL-27, ADL-29, ADL-30, ADL-32, ADL-48, PIM-28:
    source, destination, master, bystander, two at once, the master twice in a row, and restarts
    on the same address; nothing acknowledged is lost and all settles in bounded time.
    """
    cases = list(sweep(kind, every=SHARE))
    assert {case.role for case in cases} == set(ROLES)
    assert sorted(case.index for case in cases) == list(range(count_events(kind) + 1))
    assert [case.text for case in cases if case.violations] == []
    assert sum(bool(case.victims) for case in cases) > len(cases) // 2


def test_the_index_decides_when_the_kill_comes() -> None:
    """Early kills find no destination yet, late ones do: the index is a moment of the run."""
    total = count_events("join")
    early, late = run_case("join", "destination", 0), run_case("join", "destination", total)
    assert early.victims == ()
    assert late.victims == ("m6",)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_roles_fall_to_different_members(kind: str) -> None:
    """Source, destination, master and bystander are four members, so a kill of one says nothing
    about another; a master that is killed twice is two of them.
    """
    total = count_events(kind)
    killed = [
        run_case(kind, role, total).victims
        for role in ("source", "destination", "master", "bystander")
    ]
    assert all(len(victims) == 1 for victims in killed)
    assert len(set(killed)) == 4
    assert len(set(run_case(kind, "master twice", total // 2).victims)) == 2


@pytest.mark.parametrize("bug", ["committed_too_early", "not_cleared"])
def test_planted_bugs_are_caught_by_the_sweep(bug: str) -> None:
    """A sweep of a few events finds a planted mistake."""
    found = [
        one.rule
        for index in range(66, 90, 8)
        for one in run_case("join", "bystander", index, BUGS[bug]).violations
    ]
    assert set(found) & {"P6", "D8", "L1"}


def test_unknown_names_are_refused() -> None:
    """Kinds and roles are named in the error."""
    with pytest.raises(UsageError, match="join, leave, crash"):
        run_case("jump", "source", 0)
    with pytest.raises(UsageError, match="bystander"):
        list(sweep("join", "passer-by"))


def test_the_command_counts_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """``--sweep --json`` for one kind and role."""
    assert run(["sim", "--sweep", "--kind", "crash", "--role", "master", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["violations"] == []
    assert document["runs"] == count_events("crash") + 1
    assert document["seconds"] > 0
