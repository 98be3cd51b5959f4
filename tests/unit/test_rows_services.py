"""Goal: what the data side sees of migrations: indexes, order, removals, its own faults."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, Net, manager_of, wish
from tests.unit.replication_net import SETTINGS as DATA_SETTINGS
from tests.unit.replication_net import Net as DataNet
from tests.unit.replication_net import make_row, migration

from whimbrel.core.events import Endpoint
from whimbrel.core.ids import MemberId, PartitionId, Row, split_namespace
from whimbrel.core.messages import (
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationOpened,
    PublicationAnswered,
    TablePublished,
)
from whimbrel.core.migration.repair import promotion_step
from whimbrel.core.migration.state_manager import ActiveMigration, step_fits
from whimbrel.core.model import MigrationInfo, MigrationKind, Step
from whimbrel.core.partition.planner import plan_row
from whimbrel.core.partition.table import PartitionTable
from whimbrel.structures.map.settings import MapSettings

SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)
NO_BACKUP_TO_SIX = tuple(MapSettings(f"k{count}", count) for count in range(7))
MEMBERS = "abcdefgh"


def seen(step: Step) -> dict[str, tuple[str | None, int, int]]:
    """(member, current index, new index) of both endpoints."""
    return {
        "SOURCE": (step.source, step.source_current, step.source_new),
        "DESTINATION": (step.destination, step.destination_current, step.destination_new),
    }


@pytest.mark.parametrize(
    ("before", "after", "kind", "source", "destination"),
    [
        ("ab", "cb", "MOVE", ("a", 0, -1), ("c", -1, 0)),
        ("ab", "ac", "MOVE", ("b", 1, -1), ("c", -1, 1)),
        ("a", "ac", "COPY", (None, -1, -1), ("c", -1, 1)),
        ("a-c", "ac", "SHIFT_UP", (None, -1, -1), ("c", 2, 1)),
        ("a-c", "dac", "SHIFT_DOWN", ("a", 0, 1), ("d", -1, 0)),
        ("a-c", "ca", "SHIFT_UP_SHIFT_DOWN", ("a", 0, 1), ("c", 2, 0)),
        ("abce", "abc", "CLEAR", ("e", 3, -1), (None, -1, -1)),
    ],
)
def test_both_endpoints_see_both_indexes(
    before: str,
    after: str,
    kind: str,
    source: tuple[str | None, int, int],
    destination: tuple[str | None, int, int],
) -> None:
    """ADL-71, bug 14: a hand-made table of all planned kinds; an index is -1 outside the row."""
    (step,) = plan_row(make_row(before), make_row(after))
    assert step.kind.value == kind
    assert seen(step) == {"SOURCE": source, "DESTINATION": destination}


def test_a_promotion_names_the_old_and_the_new_index() -> None:
    """ADL-71: the promoted member goes from its index to 0; nobody is displaced."""
    step = promotion_step(make_row("--c"))
    assert step is not None and step.kind is MigrationKind.PROMOTION
    assert seen(step) == {"SOURCE": (None, -1, -1), "DESTINATION": ("c", 2, 0)}


def with_every_depth(row: str, version: int) -> DataNet:
    """Maps of 0 to 6 backups with an entry each in partition 0."""
    settings = msgspec.structs.replace(DATA_SETTINGS, structures=NO_BACKUP_TO_SIX)
    net = DataNet(MEMBERS, settings)
    net.set_row(0, row, version)
    for count in range(7):
        net.put(f"k{count}", 1, "x")
    net.pump()
    return net


def kept(net: DataNet, member: str) -> list[int]:
    """Backup counts of the maps that a member holds of partition 0, ascending."""
    return sorted(
        int(split_namespace(name)[1][1:]) for name in net[member].plane.partitions[0].fragments
    )


@pytest.mark.parametrize("new", [-1, 0, 1, 2, 3, 4, 5, 6])
def test_a_committed_source_keeps_what_its_new_index_needs(new: int) -> None:
    """ADL-73, bug 32: new index -1 or above a backup count: removed; up to it: kept; 0 to 6."""
    net = with_every_depth("abcdefg", 7)
    others = "bcdefgh"
    after = others if new < 0 else others[:new] + "a" + others[new : max(new, 6)]
    net.set_row(0, after[:7], 20)
    assert kept(net, "a") == [count for count in range(7) if 0 <= new <= count]


@pytest.mark.parametrize("current", [-1, 1, 2, 3, 4, 5, 6])
def test_a_rolled_back_destination_keeps_what_its_old_index_needs(current: int) -> None:
    """ADL-74, GCM-41: current index -1 or above a backup count: removed; up to it: as before."""
    holders = "abcdefg"
    row = "abcdefg" if current < 0 else holders[:current] + "h" + holders[current:6]
    net = with_every_depth(row, 7)
    before = {name: f.counters() for name, f in net["h"].plane.partitions[0].fragments.items()}
    new = 6 if current < 0 else current - 1
    info = migration(MigrationKind.MOVE, "h", 7, new=new, current=current)
    net.migrate(info, row[0])
    net["h"].plane.roles.rollback_destination(info)
    net.set_row(0, row, 30)
    assert kept(net, "h") == [count for count in range(7) if 0 <= current <= count]
    held = net["h"].plane.partitions[0].fragments
    assert {name: f.counters() for name, f in held.items()} == before


def one_partition(patch: pytest.MonkeyPatch, row: str, wanted: str, backups: int = 1) -> Net:
    """Lite master m and one partition in a row that is about to become another one."""
    wish(patch, {0: row})
    net = Net(SETTINGS_1, backups)
    net.add("m", *row, lite=["m"])
    net.settle()
    net.fill()
    net.trace.clear()
    wish(patch, {0: wanted})
    return net


def test_a_handler_that_raises_still_clears_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-74, GCM-31, bug 38: the fault is not hidden, and writes do not wait for ever."""
    net = one_partition(monkeypatch, "ab", "cb")
    host = net.nodes["a"].host
    row_changed = host.row_changed

    def raises(pid: PartitionId, before: Row, after: Row, version: int) -> None:
        row_changed(pid, before, after, version)
        raise RuntimeError("a service that cannot")

    monkeypatch.setattr(host, "row_changed", raises)
    net.add("c")
    with pytest.raises(RuntimeError, match="a service that cannot"):
        net.settle()
    assert not host.flags and ("end_source", 0) in host.calls
    assert not net.nodes["a"].room.active_migrations()


def test_the_holder_of_a_moved_backup_keeps_it_until_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADL-34: data travel from the primary only; the old holder clears after the commit."""
    net = one_partition(monkeypatch, "ab", "ac")
    moments: list[tuple[bool, bool]] = []

    def watch(_: object) -> None:
        committed = bool(net.said(MigrationCommitAnswered))
        moments.append((committed, 0 in net.nodes["b"].host.data))

    net.after_step = watch
    net.add("c")
    net.settle()
    net.check()
    assert {(sender, to) for sender, to, _ in net.said(MigrationOpened)} == {("a", "c")}
    assert all(has for committed, has in moments if not committed)
    assert moments[-1] == (True, False)


def before_after(calls: Sequence[tuple[str, int]]) -> list[str]:
    return [name for name, _ in calls]


def test_before_comes_before_the_table_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-72, bug 6: begin, then the row, then the end; once each on both sides."""
    net = one_partition(monkeypatch, "ab", "cb")
    host = net.nodes["a"].host
    host.calls.clear()
    versions: list[int] = []
    begin = host.begin_source

    def note(info: MigrationInfo) -> None:
        versions.append(net.nodes["a"].room.table.version(PartitionId(0)) - info.initial_version)
        begin(info)

    monkeypatch.setattr(host, "begin_source", note)
    net.add("c")
    net.settle()
    assert versions == [0], "the table is as it was when the data side hears of a migration"
    assert before_after(host.calls) == ["begin_source", "row_changed", "end_source"]
    assert before_after(net.nodes["c"].host.calls)[-2:] == ["begin_destination", "row_changed"]


def test_a_destination_that_was_cut_off_takes_the_masters_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADL-21, ADL-22: it has committed, is taken for dead, comes back: the master's row wins."""
    net = one_partition(monkeypatch, "ab", "cb")
    cut = "c"

    def lose(sender: str, to: str, message: object) -> str:
        gone = sender == cut or to == cut
        has_committed = bool(net.said(MigrationCommitAnswered))
        return "drop" if gone and has_committed else "deliver"

    net.on_send = lose
    net.add("c")
    net.run(stop=lambda: bool(net.said(MigrationCommitAnswered)))
    lonely = net.nodes["c"].room.table
    assert lonely.row(PartitionId(0))[0] == "c", "it has committed by itself"
    own_version = lonely.version(PartitionId(0))
    wish(monkeypatch, {0: "ab"})
    net.order.remove("c")
    net.view()
    net.settle()
    assert net.master.room.table.version(PartitionId(0)) > own_version
    net.on_send = lambda *_: "deliver"
    net.order.append("c")
    net.view()
    net.settle()
    net.check()
    assert lonely.row(PartitionId(0))[:2] == (MemberId("a"), MemberId("b"))
    assert 0 not in net.nodes["c"].host.data


def test_the_master_changes_nothing_while_it_prepares_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADL-17, ADL-19, ADL-23: own rows, version and list as they were until the answer; then all
    members reach the new version, and the list holds the verdict until all have acknowledged.
    """
    net = one_partition(monkeypatch, "ab", "cb")
    net.add("c")
    master = net.master.room
    net.run(stop=lambda: bool(net.said(MigrationCommitRequested)))
    (_, to, sent) = net.said(MigrationCommitRequested)[0]
    assert isinstance(sent, MigrationCommitRequested) and to == "c"
    assert master.table.version(PartitionId(0)) == sent.migration.initial_version
    assert master.table.row(PartitionId(0))[0] == "a" and not master.completed_migrations()
    net.run(stop=lambda: bool(net.said(MigrationCommitAnswered)))
    assert master.table.row(PartitionId(0))[0] == "a"
    net.run(stop=lambda: master.table.version(PartitionId(0)) == sent.migration.final_version)
    (kept_one,) = master.completed_migrations()
    assert kept_one.id == sent.migration.id and kept_one.verdict.value == "SUCCESS"
    published = [
        message
        for _, _, message in net.said(TablePublished)
        if isinstance(message, TablePublished) and kept_one in message.completed
    ]
    assert len(published) == 3, "it goes to every other member"
    net.on_send = lambda sender, _to, message: (
        "drop" if sender == "b" and isinstance(message, PublicationAnswered) else "deliver"
    )
    net.run_for(1)
    assert [one.id for one in master.completed_migrations()] == [kept_one.id]
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()
    assert not master.completed_migrations()


@pytest.mark.parametrize(
    ("before", "after", "row", "fits"),
    [
        ("a-c", "dac", "a-c", True),
        ("a-c", "dac", "abc", False),
        ("a-c", "dac", "b-c", False),
        ("a-c", "ac", "a-c", True),
        ("a-c", "ac", "abc", False),
        ("a-c", "ac", "a-d", False),
        ("ab", "cb", "ab", True),
        ("ab", "cb", "db", False),
        ("a", "ac", "ab", False),
        ("a", "ac", "b", True),
        ("a-c", "ca", "a-c", True),
        ("a-c", "ca", "abc", False),
        ("a-c", "ca", "ac", False),
        ("abce", "abc", "abce", True),
        ("abce", "abc", "abc", False),
    ],
)
def test_a_step_fits_the_rows_that_hold_what_it_says(
    before: str, after: str, row: str, fits: bool
) -> None:
    """PIM-10: each endpoint stands where the step takes it from, and nobody is pushed out of where
    it puts them. Method: a step of each kind against its own row and against others.
    """
    step = plan_row(make_row(before), make_row(after))[0]
    assert step_fits(step, make_row(row)) is fits


@pytest.mark.parametrize(
    ("planned", "row", "committed", "moments"),
    [
        ("ac", "ac", True, "BEFORE COMMIT"),
        ("ac", "a", False, "BEFORE ROLLBACK"),
        ("c", "c", True, "BEFORE COMMIT"),
        ("c", "c", False, "BEFORE COMMIT"),
        ("c", "a", False, "BEFORE ROLLBACK"),
        ("c", "ca", False, "BEFORE ROLLBACK BEFORE COMMIT"),
    ],
)
def test_a_source_hears_how_its_migration_ended(
    planned: str, row: str, committed: bool, moments: str
) -> None:
    """ADL-72: the primary of a copy, whose index stays, hears of its verdict; one that is displaced
    sees the commit in a row that gives it the index it was to have, and the end in any other.
    """
    node = Net(SETTINGS_1).add_alone("a")
    table = PartitionTable(1)
    manager = manager_of(node.ctx, node.host, table)
    pid = PartitionId(0)
    manager.change(pid, make_row("a"), 1)
    heard: list[str] = []
    manager.hook = lambda moment, _event: heard.append(moment.value)
    (step,) = plan_row(make_row("a"), make_row(planned))
    info = MigrationInfo("m1", pid, step, MemberId("m"), 1)
    manager.begin(ActiveMigration(info, Endpoint.SOURCE))
    manager.change(pid, make_row(row), 9, "m1" if committed else "")
    assert " ".join(heard) == moments
    assert not node.host.flags and not manager.active
