"""Goal: each kind of migration from plan to finalisation on every member, undisturbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, Net, Node, wish
from tests.unit.rows import row_from

from whimbrel.core.effects import Effect, PartitionReleased
from whimbrel.core.ids import PartitionId
from whimbrel.core.messages import (
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    TablePublished,
    TransferSent,
)

SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)


@dataclass(frozen=True)
class Case:
    """A row, a change of members, a wished row, and the steps and version rise that follow."""

    kinds: Sequence[str]
    rise: int
    backups: int
    start: str
    row: str
    joins: str
    crashes: str
    wanted: str


CASES = [
    Case(["MOVE"], 1, 1, "mab", "ab", "c", "", "cb"),
    Case(["MOVE"], 1, 1, "mab", "ab", "c", "", "ac"),
    Case(["COPY"], 1, 1, "ma", "a", "c", "", "ac"),
    Case(["SHIFT_DOWN"], 2, 1, "ma", "a", "c", "", "ca"),
    Case(["MOVE", "SHIFT_DOWN"], 3, 2, "mab", "ab", "c", "", "cab"),
    Case(["SHIFT_UP", "COPY"], 1 + 2 + 1, 2, "mabcd", "abc", "", "b", "acd"),
    Case(["SHIFT_UP_SHIFT_DOWN"], 1 + 3, 2, "mabc", "abc", "", "b", "ca"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}-{case.wanted}")
def test_kind_end_to_end(case: Case) -> None:
    """ADL-03, ADL-16, ADL-33, ADL-38, ADL-39, PIM-06, PIM-13: rows, versions, data afterwards.

    A crash first empties the slot of the dead member, which is one version more (ADL-04).
    """
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {0: case.row})
        net = Net(SETTINGS_1, case.backups)
        net.add(*case.start, lite=["m"])
        net.settle()
        net.fill()
        before = net.master.room.table.version(PartitionId(0))
        wish(patch, {0: case.wanted})
        for name in case.crashes:
            net.crash(name)
        if case.joins:
            net.add(*case.joins)
        net.settle()
        net.check()
    table = net.master.room.table
    assert table.row(PartitionId(0)) == row_from([net.nodes[name].id for name in case.wanted])
    assert net.kinds() == list(case.kinds)
    assert table.version(PartitionId(0)) == before + case.rise


def test_fewer_backups_are_cleared() -> None:
    """ADL-53, PIM-13: fewer backups wanted: CLEAR, +1, no data travel, all learn it."""
    net = Net(backup_count=2)
    net.add(*"abcd")
    net.settle()
    net.fill()
    versions = list(net.master.room.table.versions)
    net.trace.clear()
    for name in "abcd":
        net.backup_count = net.nodes[name].host.backup_count = 1
        with net.step(net.nodes[name]):
            net.nodes[name].room.depth_changed(2)
    net.settle()
    net.check()
    table = net.master.room.table
    assert [row.count(None) for row in table.rows] == [5] * table.partition_count
    cleared = [new - old for new, old in zip(table.versions, versions, strict=True)]
    assert all(rise >= 1 for rise in cleared)
    assert (
        net.master.room.reporter.finished[-1]["completed"]
        == net.master.room.reporter.finished[-1]["planned"]
    )


def prepared(patch: pytest.MonkeyPatch) -> Net:
    """Lite master m, row a b, and c about to take the primary over by a MOVE."""
    wish(patch, {0: "ab"})
    net = Net(SETTINGS_1, 1)
    net.add("m", "a", "b", lite=["m"])
    net.settle()
    net.fill()
    wish(patch, {0: "cba"})
    net.trace.clear()
    return net


def test_order_of_commit_and_of_the_data_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-16, ADL-20, ADL-72, GCM-36, GCM-40: destination, master, source; flag on until then."""
    net = prepared(monkeypatch)
    source = net.nodes["a"]
    moments: list[bool] = []

    def watch(_: Node) -> None:
        if "c" in net.nodes and 0 in net.nodes["c"].host.data and 0 in source.host.flags:
            moments.append(source.host.data[0] == net.content(0))

    net.after_step = watch
    net.add("c")
    net.settle()
    net.check()
    assert moments and all(moments), "the source keeps everything until it learns the verdict"
    said = [message for _, _, message in net.trace]
    kinds = [type(message) for message in said]
    order = [
        kinds.index(kind)
        for kind in (
            MigrationRequested,
            MigrationOpened,
            TransferSent,
            MigrationDataAnswered,
            MigrationCommitRequested,
            MigrationCommitAnswered,
        )
    ]
    order += [next(n for n, m in enumerate(said) if isinstance(m, TablePublished) and m.completed)]
    assert sorted(order) == order
    assert [name for name, _ in source.host.calls][-3:] == [
        "begin_source",
        "row_changed",
        "end_source",
    ]
    assert [name for name, _ in net.nodes["c"].host.calls] == [
        "row_changed",  # the table it got as a newcomer
        "begin_destination",
        "row_changed",
    ]
    fragments = [message for message in said if isinstance(message, TransferSent)]
    assert [m.sequence for m in fragments] == [1, 2, 3]
    assert [m.last for m in fragments] == [False, False, True]


def test_released_partition_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCM-31: when the flag goes off the effect PartitionReleased says so."""
    net = prepared(monkeypatch)
    source = net.nodes["a"]
    released: list[Effect] = []
    monkeypatch.setattr(source.ctx, "emit", released.append)
    net.add("c")
    net.settle()
    assert released == [PartitionReleased(PartitionId(0))]


def test_request_carries_only_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-08, GCM-39: carried finished migrations are of the same partition."""
    net = Net(backup_count=2)
    net.add("a", "b")
    net.settle()
    net.fill()
    net.on_send = lambda _a, to, m: (
        "drop" if isinstance(m, TablePublished) and not m.whole and to == "b" else "deliver"
    )
    net.add("c", "d")
    net.run_for(1)
    carried = [m for _, _, m in net.trace if isinstance(m, MigrationRequested) and m.completed]
    for message in carried:
        pid = message.migration.partition_id
        assert {done.partition_id for done in message.completed} == {pid}
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()
