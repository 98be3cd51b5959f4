"""Everybody dies in the middle of a command of a disk, and comes back: each command in turn."""

from __future__ import annotations

import json

import pytest

from whimbrel.cli.main import run
from whimbrel.errors import UsageError
from whimbrel.sim.cuts import HISTORIES, TEARS, count_writes, cut, cuts
from whimbrel.sim.registry import BUGS

RUNS_MAX = 40
"""Of each history; ``whimbrel sim --cuts`` plays all."""


@pytest.mark.parametrize("history", list(HISTORIES))
def test_a_death_at_any_write_breaks_no_rule(history: str) -> None:
    """S1, S2, S3, S7: what was acknowledged is there, once, whichever command of whichever disk was
    not carried out, or half; in a recovery as well. Method: deaths spread over all commands, by
    kills and by losses of power; to the end of each run.
    """
    cases = list(cuts(history, RUNS_MAX))
    assert [case.text for case in cases if case.violations] == []
    assert len(cases) == RUNS_MAX and all(case.victim for case in cases)
    assert {case.power for case in cases} == {False, True}
    assert {case.tear for case in cases} == set(TEARS)
    assert len({case.victim for case in cases}) > 1


def test_what_is_counted_is_what_is_cut() -> None:
    """Goal: no command is left out. Method: the last one is reached, and nothing behind it."""
    total = len(count_writes("load"))
    assert cut("load", total - 1, 0, power=False).victim
    assert not cut("load", total, 0, power=False).victim


def test_a_planted_bug_is_caught() -> None:
    """Goal: the cuts see something. Method: writes are acknowledged before they are synced."""
    bug = BUGS["acknowledged_before_sync"]
    assert any(one.violations for one in cuts("load", RUNS_MAX, bug))


def test_unknown_histories_are_refused() -> None:
    with pytest.raises(UsageError, match="load, join"):
        count_writes("war")


def test_the_command_counts_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--cuts --json`` for one history, of which a few commands are played."""
    monkeypatch.setattr("whimbrel.sim.cuts.count_writes", lambda _history: [10, 0])
    assert run(["sim", "--cuts", "--kind", "backup", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["violations"] == [] and document["runs"] == 2 * len(TEARS) + 2
