"""The command ``whimbrel bench`` and the benchmarks that need no processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whimbrel.bench import hot_path, planner
from whimbrel.bench.engines import BenchCluster
from whimbrel.cli import bench as command
from whimbrel.cli.main import run
from whimbrel.core.settings import CoreSettings
from whimbrel.structures.map.settings import MapSettings


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: nobody has to read the source for a name. Method: the help text."""
    assert run(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in command.BENCHMARKS)


def test_an_unknown_benchmark_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a wrong name ends with 2 and says which there are. Method: one such name."""
    assert run(["bench", "warp"]) == 2
    assert "hot-path" in capsys.readouterr().err


def test_an_option_of_another_benchmark_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Goal: no option is ignored. Method: one of another benchmark."""
    assert run(["bench", "planner", "--mib", "3"]) == 2
    assert "--mib" in capsys.readouterr().err


def test_a_benchmark_prints_one_json_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the output can be read by a program. Method: the planner with two small cases."""
    monkeypatch.setattr(planner, "CASES", ((13, 3, 2),))
    monkeypatch.setattr(planner, "ZONES", ((31, (2, 2, 1), 2),))
    assert run(["bench", "planner"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["benchmark"] == "planner"
    for figures in document["figures"].values():
        assert figures["copies"] == figures["copies_lower_bound"]


def test_the_hot_path_benchmark_serves_what_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the figure is the cost of answered requests. Method: all of it with few keys; then one
    put through the same engines is found on its backup.
    """
    monkeypatch.setattr(hot_path, "KEYS", 200)
    monkeypatch.setattr(hot_path, "CHUNKS", (1, 4))
    monkeypatch.setattr(hot_path, "ROUNDS", 1)
    figures = hot_path.run()
    assert set(figures) >= {"get_us", "put_us", "put_one_backup_us", "set_two_backup_us"}
    assert {"get_chunk_1_us", "put_one_backup_chunk_4_us"} <= set(figures)
    assert all(value > 0 for value in figures.values())


def test_requests_reach_primary_and_backup() -> None:
    """Goal: the benchmark's cluster is a real one. Method: keys put through it are on two
    members each.
    """
    cluster = BenchCluster(
        3, CoreSettings(partition_count=271, structures=(MapSettings("default"),))
    )
    chunks = hot_path._chunks(cluster, "put", "things", hot_path.DEPTH)
    for member, data in chunks[:6]:
        cluster.request(member, data)
    cluster.settle()
    planes = [member.engine.member.dataplane for member in cluster.members]
    held = sum(
        len(fragment.store)
        for plane in planes
        for partition in plane.partitions
        for fragment in partition.fragments.values()
    )
    assert held == 2 * 6 * hot_path.DEPTH
