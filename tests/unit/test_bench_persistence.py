"""What the benchmarks of persistence make of their figures; the members are real elsewhere
(``tests/process/test_bench_persistence.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whimbrel.bench import loading, paper_persistence
from whimbrel.bench.bars import WIDTH, bar
from whimbrel.bench.paper_persistence import (
    FULL,
    MERKLE,
    MODES,
    ONE_BACKUP,
    PAPER,
    PLANNED,
    check_room,
    goals_of,
    records_expected,
    tables,
)
from whimbrel.bench.paper_persistence_live import NOTHING, ONE_EACH, TENTH, Size
from whimbrel.core.persistence.format import Stream
from whimbrel.core.replication.comparison import Way
from whimbrel.errors import UsageError

SIZE = Size(entries=100_000)
GIB = 1 << 30

Rows = list[dict[str, Any]]


def rows_of(seconds: dict[tuple[str, str], float], records: dict[tuple[str, str], int]) -> Rows:
    """A row for each event of each mode, with these figures of the returns."""
    rows: Rows = []
    for mode in MODES:
        for change in mode.changes:
            for event in ("kill", "restart"):
                row: dict[str, Any] = {
                    "mode": mode.name, "backups": mode.backups, "change": change, "event": event,
                    "seconds": 0.5, "records": 0, "migrations": 271, "failed": 0, "plans": 1,
                    "sum_bytes": 0, **{way.value: 0 for way in Way},
                }  # fmt: skip
                paper = PAPER.get((mode.name, change, event))
                row["paper"] = None if paper is None else paper._asdict()
                if event == "restart":
                    row["seconds"] = seconds.get((mode.name, change), 1.0)
                    row["records"] = records.get((mode.name, change), 0)
                    changed = {NOTHING: 0, ONE_EACH: 271, TENTH: 10_000}[change]
                    row |= {"changed": changed, "load_s": 2.0, "lost": 0, "wrong": 0}
                rows.append(row)
    return rows


GOOD = (
    {(FULL, NOTHING): 50.0, (FULL, TENTH): 50.0, (PLANNED, NOTHING): 0.2, (PLANNED, TENTH): 5.0},
    {(FULL, NOTHING): 100_000, (FULL, TENTH): 100_000, (PLANNED, TENTH): 11_000},
)


def met(rows: Rows) -> list[bool | None]:
    """Which goals are."""
    return [goal.is_met for goal in goals_of(rows)]


def test_goals_are_met_at_their_limits() -> None:
    """APR-57, APR-60: no record, 1.1 times what changed, 1/250 and 1/10 of our own full mode."""
    assert met(rows_of(*GOOD)) == [True] * 6


@pytest.mark.parametrize(
    ("goal", "seconds", "records"),
    [
        (0, {}, {(PLANNED, NOTHING): 1}),
        (1, {}, {(PLANNED, TENTH): 11_001}),
        (2, {(PLANNED, NOTHING): 0.21}, {}),
        (3, {(PLANNED, TENTH): 5.1}, {}),
    ],
)
def test_goals_are_not_met_beyond(
    goal: int, seconds: dict[tuple[str, str], float], records: dict[tuple[str, str], int]
) -> None:
    """APR-57, APR-60: one goal, and no other one."""
    found = met(rows_of(GOOD[0] | seconds, GOOD[1] | records))
    assert found == [number != goal for number in range(6)]


@pytest.mark.parametrize(
    ("name", "value", "goal"), [("failed", 1, 4), ("plans", 2, 4), ("lost", 1, 5), ("wrong", 1, 5)]
)
def test_a_failed_migration_a_second_plan_and_a_loss_show(name: str, value: int, goal: int) -> None:
    """APR-54, APR-63: wherever it happens; here at the last return."""
    rows = rows_of(*GOOD)
    rows[-1][name] = value
    assert met(rows) == [number != goal for number in range(6)]


def test_what_was_not_measured_is_not_judged() -> None:
    """APR-54: a mode that fails leaves its goals open, and says why in its row."""
    rows = [row for row in rows_of(*GOOD) if row["mode"] != PLANNED]
    rows.append({"mode": PLANNED, "change": "", "event": "failed", "reason": "TimeoutError: x"})
    assert met(rows) == [None] * 6
    figures = figures_of(rows)
    assert any("TimeoutError: x" in cell for row in tables(figures)[0][2] for cell in row)
    assert all(row[2] == "not judged" for row in tables(figures)[2][2])


def figures_of(rows: Rows) -> dict[str, Any]:
    """As ``run`` makes them of rows."""
    return paper_persistence.figures_of(SIZE, rows)


def test_the_tables_have_the_papers_figures_beside_ours() -> None:
    """APR-55, APR-56, APR-58, APR-59, APR-61: migrations, records and time of both, for the kill
    and for the return; rows that the paper has not got stay empty there.
    """
    first, chart, goals, notes = tables(figures_of(rows_of(*GOOD)))
    for _, columns, cells in (first, chart, goals, notes):
        assert cells and all(len(row) == len(columns) for row in cells)
    shown = {tuple(row[:3]): row[3:] for row in first[2]}
    for (mode, change, event), paper in PAPER.items():
        found = shown[mode, change, event]
        assert (found[1], found[3], found[-1]) == tuple(map(str, paper))
    assert shown[ONE_BACKUP, NOTHING, "kill"][1] == ""
    assert shown[PLANNED, TENTH, "restart"][2] == "11000"
    rows = rows_of(*GOOD)
    rows[0] |= {Way.WHOLE.value: 3, Way.DIFFERENCE.value: 268}
    assert "3 whole, 268 by difference" in tables(figures_of(rows))[0][2][0]


def test_bars_are_shares_of_the_longest() -> None:
    """APR-55, APR-58: records by the paper's worst, times by each one's own full mode."""
    [_, (_, _, rows), *_] = tables(figures_of(rows_of(*GOOD)))
    bars = {tuple(row[:3]): (row[4], row[6]) for row in rows}
    assert len(bars[NOTHING, FULL, "paper"][0]) == WIDTH
    assert bars[NOTHING, FULL, "ours"][1] == bars[TENTH, FULL, "paper"][1] == bar(1, 1)
    assert bars[NOTHING, PLANNED, "ours"][0] == ""
    assert bars[TENTH, PLANNED, "ours"][1] == bar(0.1, 1)
    assert (NOTHING, MERKLE, "paper") in bars
    assert bar(5, 2) == "█" * WIDTH and bar(1, 0) == bar(-1, 1) == ""
    assert bar(1, 2, width=3) == "█▌"


def test_leaves_that_are_shared_are_told() -> None:
    """APR-60, APR-62: what a tree sends beside what has changed, by its leaves: an entry for each
    that shares a leaf with one that changed.
    """
    assert records_expected(100_000, 271) == pytest.approx(1.32, abs=0.02)
    assert records_expected(300_000, 271) == pytest.approx(1.03, abs=0.01)
    assert records_expected(4_000_000, 271) == pytest.approx(1.38, abs=0.03)
    notes = " ".join(figures_of(rows_of(*GOOD))["notes"])
    assert "1.32 x" in notes and "after 2 exchanges" in notes


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    """APR-54: as many entries as fit; memory and disk are asked before anything is started."""
    check_room(Size(), 22 * GIB, 60 * GIB)
    with pytest.raises(UsageError, match=r"in memory: --entries \d{4,5} would"):
        check_room(Size(), 4 * GIB, 60 * GIB)
    with pytest.raises(UsageError, match="TMPDIR"):
        check_room(Size(), 22 * GIB, 5 * GIB)
    with pytest.raises(UsageError, match="--entries 0 would"):
        check_room(Size(), GIB, 60 * GIB)


def test_loading_is_measured_on_a_log_that_a_member_would_load() -> None:
    """APR-71 and the speed of recovery: every entry of every case is there again, from changes and
    from images; memory beside keys and values is told.
    """
    figures = loading.run(mib=1)
    rows = figures["rows"]
    assert [(row["value_bytes"], row["stream"]) for row in rows] == [
        (size, stream.name.lower()) for size in loading.VALUE_BYTES for stream in Stream
    ]
    for row in rows:
        assert row["entries"] == (1 << 20) // row["value_bytes"]
        assert row["log_bytes"] > row["entries"] * (row["value_bytes"] + loading.KEY_BYTES)
        assert row["values_mb_per_s"] > 0
        beside = row["memory_bytes_per_entry"] - row["value_bytes"] - loading.KEY_BYTES
        assert row["overhead_bytes_per_entry"] == pytest.approx(beside, abs=0.2)
    assert len(figures["goals"]) == 2
    for _, columns, shown in loading.tables(figures):
        assert shown and all(len(row) == len(columns) for row in shown)


@pytest.mark.parametrize("stream", Stream)
def test_a_log_that_lacks_entries_is_no_measurement(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no speed of work that was not done. Method: one partition is not wanted."""
    monkeypatch.setattr(loading, "_everything", lambda pid, _namespace: pid != 7)
    with pytest.raises(RuntimeError, match=r"of 1000 entries"):
        loading.measure(tmp_path, 1_000, 100, stream)
