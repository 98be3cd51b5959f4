"""The demonstration's parts by themselves: ledger, tables, report, verdict, waiting."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from whimbrel.cli.main import run as run_cli
from whimbrel.demo import probe
from whimbrel.demo.cluster import Row, copies_made, promotions_after
from whimbrel.demo.data import AIRLINES, FLIGHTS, PLANES, TABLES, WEATHER, read_table
from whimbrel.demo.job import verdict
from whimbrel.demo.later import Worker, begin
from whimbrel.demo.report import picture, quantile, stall_between, write_report


class FakeMap:
    """A map that forgets, errs and lies on demand."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.forgets: set[str] = set()
        self.fails: set[str] = set()

    def set(self, key: str, value: int) -> None:
        if key in self.fails:
            raise RuntimeError("unknown outcome")
        if key not in self.forgets:
            self.held[key] = value

    def get(self, key: str) -> int | None:
        return self.held.get(key)

    def get_all(self, keys: list[str]) -> dict[str, int]:
        return {key: self.held[key] for key in keys if key in self.held}


def test_the_ledger_finds_lost_writes() -> None:
    """Goal: a write that was acknowledged and is not there is found; one of unknown outcome is
    not held against the cluster.
    """
    target, ledger = FakeMap(), probe.Ledger()
    target.forgets, target.fails = {"n3"}, {"n5"}
    for number in range(10):
        probe.write_one(target, number, ledger)
        probe.read_one(target, number, ledger)
    assert len(ledger.acknowledged) == 9
    assert ledger.unknown == 1
    assert probe.check(target, ledger) == [3]
    assert ledger.errors == ["RuntimeError: unknown outcome"]
    assert len(ledger.samples) == 20


def test_a_stale_read_is_counted() -> None:
    """Goal: reads that do not give what was acknowledged are counted meanwhile, too."""
    target, ledger = FakeMap(), probe.Ledger()
    target.forgets = {f"n{number}" for number in range(3)}
    for number in range(3):
        probe.write_one(target, number, ledger)
        probe.read_one(target, number, ledger)
    assert ledger.wrong_reads == 3


def test_the_probe_ends_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the loop stops at the signal and tells its progress."""
    monkeypatch.setattr(probe, "PAUSE_S", 0.0)
    stop = threading.Event()
    told: list[dict[str, Any]] = []

    def tell(document: dict[str, Any]) -> None:
        told.append(document)
        stop.set()

    ledger = probe.run(FakeMap(), stop, tell)
    assert told == [{"acknowledged": 1, "unknown": 0}]
    assert ledger.acknowledged == [0]


@pytest.mark.parametrize(
    ("table", "rows", "nulls"),
    [(AIRLINES, 16, {}), (PLANES, 3_322, {"year": 70, "speed": 3_299}), (WEATHER, 26_115, {})],
)
def test_tables_have_their_rows_and_keys(table: Any, rows: int, nulls: dict[str, int]) -> None:
    """Goal: all rows are read with their types, what is missing is null, and keys are unique."""
    found = read_table(table)
    assert found.num_rows == rows
    assert found.column_names == list(table.types())
    keys = found.column(table.key)
    assert keys.null_count == 0
    assert len(keys.unique()) == rows
    for name, count in nulls.items():
        assert found.column(name).null_count == count


def test_flights_are_cut_and_numbered() -> None:
    """Goal: the first flights of the year, numbered from 0; a missing time is null, not NaN."""
    found = read_table(FLIGHTS, 1_000)
    assert found.column("flight_id").to_pylist() == list(range(1_000))
    assert found.column("dep_time")[0].as_py() == 517
    assert found.column("dep_time").null_count > 0
    assert [table.name for table in TABLES][-1] == "flights"


def change(kind: str, at_s: float, status: int | None = None) -> dict[str, Any]:
    return {
        "kind": kind,
        "member": "h:1",
        "at_s": at_s,
        "time_to_safe_s": 1.5,
        "copies": 3,
        "least_copies": 3,
        "promotions": 0,
        "longest_stall_s": 0.25,
        "exit_status": status,
    }


def report(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rows_loaded": 10,
        "rows_verified": 10,
        "rows_missing": 0,
        "rows_different": 0,
        "rows_extra": 0,
        "acknowledged_writes": 99,
        "lost_writes": 0,
        "spark_version": "4",
        "partitions_read": 4,
        "events": [change("join", 2.0), change("kill", 3.0, -9), change("leave", 9.5, 0)],
        "tables": [
            {
                "table": "<t>",
                "rows": 10,
                "same": 10,
                "different": 0,
                "missing": 0,
                "extra": 0,
                "examples": {"missing": ["<row>"]},
            }
        ],
        "load": {"flights_rows_per_s": 5.0},
        "probe": {"unknown": 0, "wrong_reads": 0, "median_ms": 1.0, "p99_ms": 2.0},
        "query": [
            {
                "carrier": "AA",
                "name": "A & A",
                "flights": 3,
                "mean_delay_min": 1.5,
                "late_percent": 2.5,
            }
        ],
        "seconds": 12.0,
        **more,
    }
    found["verdict"] = verdict(found)
    return found


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("rows_missing", 1, "rows are missing"),
        ("rows_different", 2, "rows are different"),
        ("rows_extra", 3, "rows are extra"),
        ("lost_writes", 4, "writes of the probe are lost"),
        ("rows_verified", 9, "9 of 10 flights"),
    ],
)
def test_the_verdict_is_strict(field: str, value: int, told: str) -> None:
    """Goal: anything missing, different, extra or lost makes the verdict bad and is named."""
    assert report()["verdict"]["good"]
    found = report(**{field: value})["verdict"]
    assert not found["good"]
    assert told in found["text"]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """Goal: report.json is the document, the page loads nothing, shows the changes and their
    stalls, and what it shows of rows is escaped.
    """
    samples = [(float(number) / 10, 0.001 + (number == 30) * 0.8) for number in range(100)]
    document = report()
    write_report(tmp_path, document, samples)
    assert json.loads((tmp_path / "report.json").read_text()) == document
    page = (tmp_path / "report.html").read_text()
    assert "http" not in page
    assert "src=" not in page
    assert "<row>" not in page
    assert "&lt;row&gt;" in page
    assert page.count("longest stall 250 ms") == 3


@pytest.mark.parametrize("samples", [[], [(0.0, 0.5)], [(n / 50, 0.002) for n in range(500)]])
def test_the_picture_is_well_formed(samples: list[tuple[float, float]]) -> None:
    """Goal: the picture is valid with no, one and many calls."""
    found = picture(samples, [change("join", 2.0), change("kill", 2.1)])
    root = ElementTree.fromstring(found)  # noqa: S314 - our own text
    assert root.tag == "svg"
    assert "NaN" not in found
    assert "nan" not in found


def test_stalls_and_quantiles() -> None:
    """Goal: the longest call that touches the time of a change is its stall."""
    samples = [(0.0, 1.0), (2.0, 0.1), (2.9, 0.5), (5.0, 9.0)]
    assert stall_between(samples, 2.0, 3.0) == 0.5
    assert stall_between(samples, 1.5, 1.9) == 0.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile([], 0.5) == 0.0


def test_work_in_threads_is_waited_for() -> None:
    """Goal: outcomes and errors come back to who waits; a worker does things in order."""
    worker = Worker()
    order: list[int] = []
    parts = [worker.begin(partial(order.append, n)) for n in range(5)]
    parts[-1].outcome()
    assert order == list(range(5))
    assert worker.do(lambda: 7) == 7

    def fail() -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        begin(fail).outcome()


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--rows", "-5"], ["--rows", "400000"]])
def test_wrong_numbers_of_rows_are_refused(arguments: list[str]) -> None:
    """Goal: a number of rows that makes no sense ends with 2 before anything starts."""
    assert run_cli(["demo", *arguments]) == 2


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an --out that is a file is refused, and the file stays."""
    file = tmp_path / "mine"
    file.write_text("mine")
    assert run_cli(["demo", "--out", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_copies_are_counted_from_tables() -> None:
    """Goal: the figures survive a leaving master, whose history goes with it. Method: one row
    that gained a holder, one that only changed roles, one that lost its primary.
    """
    before: list[Row] = [["a", "b"], ["a", "b"], ["c", "a"], ["c"]]
    after: list[Row] = [["d", "a"], ["b", "a"], ["a", "b"], ["a", None]]
    assert copies_made(before, after) == 3
    assert promotions_after(before, "c") == 1
