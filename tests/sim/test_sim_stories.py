"""Threads of the simulator (docs/design/0016): lines and their causes, told by subject."""

from __future__ import annotations

import json

import pytest

from whimbrel.cli.main import run as run_command
from whimbrel.errors import UsageError
from whimbrel.sim import threads as threads_module
from whimbrel.sim.run import simulate
from whimbrel.sim.threads import Subject, threads
from whimbrel.sim.trace import Trace

RUN = ["sim", "--seed", "2", "--profile", "leave"]


def trace_of(*lines: tuple[str, str, str, str]) -> Trace:
    """A trace of (who, what, detail, cause)."""
    trace = Trace()
    for number, (who, what, detail, cause) in enumerate(lines):
        trace.add(number * 1_000_000, who, what, detail, cause)
    return trace


def test_a_line_gets_the_cause_of_its_step() -> None:
    """Goal: what a step is caused by may be known at its end. Method: nested steps."""
    trace = Trace()
    outer = trace.begin_step()
    trace.add(1, "m1", "request", "7 20")
    trace.add(1, "m1", "moment", "x", "own-1")
    inner = trace.begin_step()
    trace.add(1, "m2", "leave", "")
    trace.end_step("m2-1", inner)
    trace.end_step("m1-1", outer)
    trace.add(2, "--", "crash", "m1")
    assert [line[4] for line in trace.lines] == ["m1-1", "own-1", "m2-1", ""]


def test_a_cause_is_part_of_the_history() -> None:
    """Goal: two runs whose stories differ are two histories. Method: one cause changed."""
    one, two = trace_of(("m1", "x", "", "a-1")), trace_of(("m1", "x", "", "a-2"))
    assert one.digest != two.digest


def test_threads_are_told_by_subject() -> None:
    """Goal: a partition's lines give the causes; newest last. Method: three stories, two of p1."""
    trace = trace_of(
        ("m1", "note migration.planned", "steps=2", "a-1"),
        ("m1", "StampPublished", "x", "b-1"),
        ("m2", "MigrationRequested", "0a p1 COPY v3", "a-1"),
        ("m2", "MigrationRequested", "0a p11 COPY v3", "a-1"),
        ("m3", "note partition.lost", "partition=1 lost_backup_count=0", "c-1"),
        ("m3", "note partition.lost", "partition=11 lost_backup_count=0", "d-1"),
        ("m1", "note migration.finished", "reason=x", "a-1"),
    )
    told = threads(trace, Subject("partition=1"))
    assert [line for line in told if line.startswith("cause")] == [
        "cause a-1: 4 lines in 6.000 s on m1, m2",
        "cause c-1: 1 lines in 0.000 s on m3",
    ]
    assert "migration.planned" in told[1] and "migration.finished" in told[4]
    assert threads(trace, Subject("c-1"))[1:] == told[-1:]
    assert threads(trace, Subject("partition=2")) == []


def test_a_members_threads_are_those_of_its_life() -> None:
    """Goal: starts, ends and notes about a member, not all it hears. Method: two incarnations."""
    trace = trace_of(
        ("m2", "start", "0a0a0a0a", "a-1"),
        ("m2", "Heartbeat", "0b0b0b0b", "b-1"),
        ("m1", "Heartbeat", "0a0a0a0a", "b-2"),
        ("m1", "note member_removed", "member=0a0a0a0a-x why=left", "c-1"),
        ("m1", "note member_removed", "member=0c0c0c0c-x why=left", "d-1"),
        ("m2", "stopped", "0 left", "e-1"),
    )
    assert Subject("member=m2").causes(trace.lines) == ["a-1", "c-1", "e-1"]


@pytest.mark.parametrize("text", ["", "partition=", "partition=x", "member=", "m2", "a-", "a b-1"])
def test_what_is_no_subject_is_refused(text: str) -> None:
    """Goal: a typing error is told, with what is possible. Method: texts near a subject."""
    with pytest.raises(UsageError, match="partition=N"):
        Subject(text)


def test_threads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is cut is said, and lines about the subject are cut last. Method: low limits."""
    monkeypatch.setattr(threads_module, "THREADS_MAX", 2)
    monkeypatch.setattr(threads_module, "THREAD_LINES_MAX", 8)
    lines = [("m1", f"old {number}", "p3", f"old-{number}") for number in range(3)]
    lines += [
        ("m1", f"step {number}", "p3" if number == 50 else "p4", "a-1") for number in range(99)
    ]
    trace = trace_of(*lines)
    told = threads(trace, Subject("partition=3"))
    assert told[0] == "... 2 older threads ..."
    steps = [line.partition("m1   ")[2] or line for line in told[told.index("") + 4 :]]
    assert steps[1:] == [
        "step 0 p4", "step 1 p4", "... 48 lines ...", "step 50 p3", "... 46 lines ...",
        "step 97 p4", "step 98 p4",
    ]  # fmt: skip
    trace = Trace()
    trace.keep(5)
    for number in range(9):
        trace.add(number, "m1", "x", "p3", "a-1")
    assert threads(trace, Subject("partition=3"))[0].startswith("... the first 4 lines")


def test_a_failures_story_has_the_threads_of_what_broke() -> None:
    """Goal: what led to a violation is told although it names neither. Method: a planted line."""
    trace = trace_of(
        ("m1", "note migration.planned", "steps=1", "a-1"),
        ("m1", "note other", "steps=1", "b-1"),
        ("m2", "MigrationRequested", "0a p7 COPY", "a-1"),
    )
    told = trace.story([" m2 ", " p7 "])
    assert [line.split()[1:4] for line in told] == [
        ["m1", "note", "migration.planned"], ["m2", "MigrationRequested", "0a"],
    ]  # fmt: skip


def test_a_joins_plan_is_one_thread() -> None:
    """Goal: from the start of a member by its request to the end of the plan, on every member.
    Method: a whole run; the plan that a late member brings about.
    """
    report = simulate(2, "leave", story="member=m2")
    assert report.violations == ()
    heads = [number for number, line in enumerate(report.threads) if line.startswith("cause ")]
    ends = [*heads[1:], len(report.threads)]
    stories = [report.threads[head:end] for head, end in zip(heads, ends, strict=True)]
    landmarks = (
        *(" start ", " JoinRequested ", " note members_installed ", " joined"),
        *(" note migration.planned ", " MigrationRequested ", " note migration.finished "),
    )
    whole = [one for one in stories if all(any(word in line for line in one) for word in landmarks)]
    assert whole, [one[0] for one in stories]
    found = [next(n for n, line in enumerate(whole[0]) if word in line) for word in landmarks]
    assert found == sorted(found)


def test_nearly_all_lines_of_members_have_a_cause() -> None:
    """Goal: no line of the control plane is without. Method: all lines of a run, by kind."""
    kept: list[Trace] = []
    keep = Trace.keep

    def remember(self: Trace, lines_max: int) -> None:
        kept.append(self)
        keep(self, lines_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trace, "keep", remember)
        simulate(2, "leave", story="partition=0")
    without = {line[2] for line in kept[0].lines if line[1].startswith("m") and not line[4]}
    batches = {"request", "backups", "acks", "scatter", "scatter-reply", "forward", "forward-reply"}
    assert without <= {*batches, "notify", "leave asked"}


def test_the_command_tells_threads(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: text and JSON are the same lines; nothing found is exit 1. Method: three commands."""
    assert run_command([*RUN, "--story", "partition=1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(("cause ", "... "))
    assert run_command([*RUN, "--story", "partition=1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["story"] == "partition=1"
    assert "\n".join(document["lines"]) + "\n" == text
    assert run_command([*RUN, "--story", "partition=99999"]) == 1
    told = capsys.readouterr()
    assert "partition=99999" in told.err and not told.out
