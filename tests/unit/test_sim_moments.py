"""Moments of scenario files: what may be written, and that each comes exactly once."""

from __future__ import annotations

import pytest

from whimbrel.errors import UsageError
from whimbrel.sim.faults.message_triggers import MessageTrigger, parse_trigger
from whimbrel.sim.scenario import Scenario, parse_scenario

LINE = "when any gets 2 MigrationCommitRequested/MOVE since 6.000000 crash source"
RUN = """
profile move
seed 1
set members 3
set hosts 4
set backups 1
set partitions 7
set rounds 1
set harm_us 3000000
at 6.000000 start m4
"""


def run_of(*lines: str) -> Scenario:
    return parse_scenario(RUN + "\n".join(lines) + "\nexpect safe\n")


def test_a_moment_is_what_was_written() -> None:
    """Goal: text and moment are one. Method: there and back."""
    moment = parse_trigger(LINE.split())
    assert moment == MessageTrigger(
        "any", "gets", 2, "MigrationCommitRequested/MOVE", 6_000_000, "crash", ("source",)
    )
    assert moment.text() == LINE
    delayed = "when m2 gets 1 backups since 6.000000 late 300000"
    assert parse_trigger(delayed.split()).text() == delayed


@pytest.mark.parametrize(
    "line",
    [
        "when m2 sees 1 TablePublished since 6 crash m1",
        "when m2 gets many TablePublished since 6 crash m1",
        "when m2 gets 1 TablePublished crash m1",
        "when m2 has 1 TablePublished since 6 lose",
    ],
)
def test_what_is_no_moment_is_refused(line: str) -> None:
    """Goal: a clear error. Method: a wrong side, number, shape; a treatment that comes too late."""
    with pytest.raises(UsageError, match="line 1: 'when m2"):
        parse_scenario(line)


def test_a_moment_comes_once_and_names_its_members() -> None:
    """Goal: the second commit request kills who handles it. Method: the time line of a run."""
    report = run_of("when any gets 2 MigrationCommitRequested since 6.000000 crash here").play()
    moments = [row for row in report.timeline if row[2] == "moment gets"]
    assert len(moments) == 1
    at_us, host, _, kind = moments[0]
    assert kind == "MigrationCommitRequested"
    crashes = [row for row in report.timeline if row[2] == "crash"]
    assert [(row[0], row[3]) for row in crashes] == [(at_us, host)]


def test_a_held_message_comes_in_order() -> None:
    """Goal: what is held comes later, once, and nothing is broken. Method: hold a joiner's news."""
    report = run_of("when m4 gets 1 TablePublished since 6.000000 hold 300000").play()
    assert report.faults["hold"] == 1 and not report.violations


def test_a_place_may_be_named_by_rank() -> None:
    """Goal: ``second`` is who follows the master in its list. Method: kill it; a claim is none."""
    report = run_of("at 7.000000 crash second").play()
    assert report.faults["crash"] == 1 and not report.violations
    assert "mastership_claimed" not in report.notes


def test_a_frame_that_is_spoilt_is_refused_and_comes_again() -> None:
    """Goal: AE-05: it is not acknowledged. Method: spoil one; the link is made anew."""
    report = run_of("when any gets 5 backups since 6.000000 spoil").play()
    assert report.faults["spoil"] == report.faults["reset"] == 1 and not report.violations
