"""The live benchmark, in small: two real members, a third joins, leaves and is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.bench import idle, paper_07_live
from whimbrel.cli.main import run


def test_changes_of_real_members_cost_no_copy_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-46, PIM-54: the flow under a client: copies are the least, planned changes fail no
    operation, nothing is lost, and the table shows every row.
    """
    monkeypatch.setattr(paper_07_live, "PROBE_PER_S", 50)
    monkeypatch.setattr(paper_07_live, "IDLE_S", 0.2)
    figures = paper_07_live.run(mib=2, partitions=(31,), members=3)
    rows = figures["rows"]
    events = ["join", "leave", "join again", "crash", "two leave"]
    assert [row["event"] for row in rows] == events * 2
    for row in rows:
        assert row["safe"] and row["copies"] == row["copies_min"]
        assert row["operations"] > 0
        if row["event"] != "crash":
            assert row["failed"] == 0
    assert [row["entries_lost"] for row in rows if row["event"] == "two leave"] == [0, 0]
    assert "not measured" in figures["note"]
    [(_, columns, shown)] = paper_07_live.tables(figures)
    assert all(len(row) == len(columns) for row in shown) and len(shown) == 10


def test_idle_members_are_measured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the figure is the processor time of the members alone. Method: two for a moment; each
    used some at its start and next to none now.
    """
    monkeypatch.setattr(idle, "MEMBERS", 2)
    monkeypatch.setattr(idle, "SETTLE_S", 0.0)
    monkeypatch.setattr(idle, "SPAN_S", 1.0)
    figures = idle.run()
    shares = figures["percent_of_core"]
    assert isinstance(shares, list) and len(shares) == 2
    assert all(0 <= share < 100 for share in shares)


def test_a_folder_without_the_harness_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a wrong --peers is told before anything is measured. Method: an empty folder."""
    assert run(["bench", "paper-07-live", "--peers", str(tmp_path)]) == 2
    assert "cluster.py" in capsys.readouterr().err
