"""Goal: a change of master ends on the newest table and one verdict for every open migration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, FakeHost, Net, manager_of, wish
from tests.unit.rows import row_from

from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex, Row
from whimbrel.core.jobs import finish
from whimbrel.core.messages import (
    Message,
    MigrationCommitRequested,
    MigrationRequested,
    PromotionRequested,
    StateAnswered,
    StateRequested,
    TablePublished,
)
from whimbrel.core.migration import settlement as settlement_module
from whimbrel.core.migration.settlement import Account, Settlement, applying, settling
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable
from whimbrel.errors import InvariantViolation

pytestmark = pytest.mark.usefixtures("both_sizes")

P0 = PartitionId(0)
SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)


def row(names: str) -> Row:
    return row_from([MemberId(name) for name in names])


def move(name: str, initial: int, source: str = "a", destination: str = "c") -> MigrationInfo:
    step = Step(
        MigrationKind.MOVE,
        MemberId(source),
        MemberId(destination),
        source_current=ReplicaIndex(0),
        destination_new=ReplicaIndex(0),
    )
    return MigrationInfo(name, P0, step, MemberId("old"), initial)


def settle(accounts: Sequence[Account]) -> Settlement:
    """The decision, at once."""
    return finish(settling(accounts))


def account(
    name: str,
    version: int,
    names: str,
    completed: tuple[MigrationInfo, ...] = (),
    active: tuple[MigrationInfo, ...] = (),
) -> Account:
    rows = (RowState(P0, version, row(names)),) if version else ()
    return Account(MemberId(name), rows, completed, active)


def test_open_on_both_sides_is_rolled_back() -> None:
    """ADL-29, PIM-14: nobody committed it: FAILED, version + increment + 1, row as it was."""
    open_one = move("m1", 4)
    settlement = settle(
        [account("a", 4, "ab", active=(open_one,)), account("c", 4, "ab", active=(open_one,))]
    )
    assert settlement.rows == (RowState(P0, 4, row("ab")),)
    assert settlement.rolled_back == (open_one.with_verdict(Verdict.FAILED),)
    assert settlement.completed == settlement.rolled_back
    assert settlement.completed[0].final_version == 6


def test_committed_at_the_destination_is_committed_everywhere() -> None:
    """ADL-30: the destination's row and list say so; nothing is rolled back."""
    done = move("m1", 4).with_verdict(Verdict.SUCCESS)
    settlement = settle(
        [
            account("a", 4, "ab", active=(move("m1", 4),)),
            account("c", 5, "cb", completed=(done,)),
        ]
    )
    assert settlement.rows == (RowState(P0, 5, row("cb")),)
    assert settlement.completed == (done,) and settlement.rolled_back == ()


def test_an_open_migration_whose_row_moved_on_is_decided_by_the_row() -> None:
    """ADL-30: even when the list does not name it any more, its row can only be its success."""
    settlement = settle([account("a", 4, "ab", active=(move("m1", 4),)), account("c", 5, "cb")])
    assert settlement.rolled_back == () and settlement.rows[0].version == 5


def test_an_open_migration_without_any_known_row_fails() -> None:
    """PIM-15, ADL-29: it is rolled back from whatever version, the lowest one too."""
    open_one = move("m1", 0)
    settlement = settle([account("a", 0, "", active=(open_one,))])
    assert settlement.rolled_back == (open_one.with_verdict(Verdict.FAILED),)


@pytest.mark.parametrize(("count", "pauses"), [(9, 0), (10, 1), (19, 1), (20, 2)])
def test_accounts_are_compared_in_pieces(
    count: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no piece of settling compares more than so many rows of an account (0012). Method: one
    account of ``count`` rows, ten in a piece; the pauses beside those of a small account.
    """
    monkeypatch.setattr(settlement_module, "ROWS_COMPARED", 10)

    def pieces(rows: int) -> int:
        known = tuple(RowState(PartitionId(pid), 1, row("ab")) for pid in range(rows))
        return sum(1 for _ in settling([Account(MemberId("a"), known, (), ())]))

    assert pieces(count) - pieces(1) == pauses


def test_versions_never_fall() -> None:
    """PIM-15, bug 11: an old failed entry does not lower, a newer final version raises."""
    failed = move("m0", 6).with_verdict(Verdict.FAILED)
    assert failed.final_version == 8
    newer = settle([account("a", 12, "ab"), account("b", 7, "ab", completed=(failed,))])
    assert newer.rows == (RowState(P0, 12, row("ab")),)
    table = PartitionTable(1)
    manager = manager_of(Net(SETTINGS_1).add_alone("k").ctx, FakeHost(MemberId("k"), 1), table)
    finish(applying(manager, newer, 1))
    assert table.version(P0) == 12
    table = PartitionTable(1)
    manager = manager_of(Net(SETTINGS_1).add_alone("k").ctx, FakeHost(MemberId("k"), 1), table)
    behind = settle([account("a", 5, "ab"), account("b", 5, "ab", completed=(failed,))])
    finish(applying(manager, behind, 1))
    assert table.state(P0) == RowState(P0, 8, row("ab"))


def test_stale_master_with_newer_completed_migrations() -> None:
    """ADL-11, bug 11: finished migrations that follow the newest row are applied, in order."""
    first = move("m1", 4).with_verdict(Verdict.SUCCESS)
    second = move("m2", 5, "c", "d").with_verdict(Verdict.FAILED)
    settlement = settle([account("b", 4, "ab"), account("x", 3, "ax", completed=(second, first))])
    assert [migration.id for migration in settlement.completed] == ["m1", "m2"]
    assert settlement.rows[0].version == 4


def test_settling_does_not_depend_on_the_order_of_answers() -> None:
    """ADL-11: merging is order-free and idempotent."""
    done = move("m1", 4).with_verdict(Verdict.SUCCESS)
    other = msgspec.structs.replace(move("m2", 2), partition_id=PartitionId(1))
    accounts = [
        account("a", 4, "ab", active=(move("m1", 4),)),
        account("c", 5, "cb", completed=(done,)),
        Account(MemberId("d"), (RowState(PartitionId(1), 2, row("ad")),), (), (other,)),
        account("e", 0, ""),
    ]
    results = [settle(order) for order in itertools.permutations([*accounts, accounts[0]])]
    assert all(result == results[0] for result in results)
    assert [migration.id for migration in results[0].rolled_back] == ["m2"]


def test_equal_versions_with_different_rows_stop_the_member() -> None:
    """ADL-08, PIM-02: a divergence is never papered over."""
    with pytest.raises(InvariantViolation):
        settle([account("a", 4, "ab"), account("b", 4, "ba")])


def test_a_member_that_never_heard_of_its_row_holds_nothing() -> None:
    """M4: it restarted with its identity; the newest row still names it."""
    settlement = settle([account("b", 4, "ab"), account("a", 0, "")])
    assert settlement.without_data == ((P0, MemberId("a")),)


@pytest.mark.parametrize("rows_max", [1, 2, 3])
def test_a_settlement_is_applied_in_pieces_of_changed_rows(rows_max: int) -> None:
    """Goal: no piece changes more than so many rows, and those that are known cost nothing.

    Method: six rows of which the last five are new; no migrations.
    """
    count = 6
    settings = msgspec.structs.replace(SETTINGS, partition_count=count)
    table = PartitionTable(count)
    manager = manager_of(Net(settings).add_alone("k").ctx, FakeHost(MemberId("k"), 1), table)
    rows = tuple(RowState(PartitionId(pid), 4, row("ab")) for pid in range(count))
    manager.apply_row(rows[0])
    before = table.change_count
    job = applying(manager, Settlement(rows, (), (), ()), rows_max)
    changes = [before, *(table.change_count for _ in job)]
    assert table.versions == [4] * count
    pieces = [after - before for before, after in itertools.pairwise(changes)]
    assert pieces == [rows_max] * ((count - 1) // rows_max)


# -- on the cluster -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, 64, 65, 271])
def test_nothing_is_published_before_everybody_has_answered(count: int) -> None:
    """ADL-12 to ADL-14: one member is mute for three minutes; then the whole table goes first, its
    last part to every member too, also where a step deals with a part of it only.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=count), backup_count=1)
    net.add("a", "b", "c", "d")
    net.settle()
    net.fill()
    net.on_send = lambda sender, _to, m: (
        "drop" if sender == "d" and isinstance(m, StateAnswered) else "deliver"
    )
    net.trace.clear()
    net.crash("a")
    net.run_for(180)
    assert net.master.room.loop.recovery.running
    assert not net.master.room.is_settled()[0]
    assert "fetching" in net.master.room.is_settled()[1]
    busy = (TablePublished, MigrationRequested, MigrationCommitRequested, PromotionRequested)
    assert not net.said(*busy)
    assert len(net.said(StateRequested)) > 50
    owned = [net.master.room.table.primary_count(MemberId("b"))]

    def note_owned(sender: str, _to: str, message: Message) -> str:
        if isinstance(message, TablePublished) and sender == "b":
            owned.append(net.master.room.table.primary_count(MemberId("b")))
        return "deliver"

    net.on_send = note_owned
    net.settle()
    net.check()
    after = net.said(*busy)
    parts = -(-count // SETTINGS.step_rows_max)
    opening = after[: parts * 2]
    for other in ("c", "d"):
        told = [m for _, to, m in opening if to == other and isinstance(m, TablePublished)]
        assert [m.whole for m in told] == [True, *[False] * (parts - 1)]
        assert [m.more for m in told] == [*[True] * (parts - 1), False]
    assert any(isinstance(m, PromotionRequested) for _, _, m in after[parts * 2 :])
    if parts > 1:  # else the table is handed to the links, and the rest done, in one step
        assert len(set(owned[: parts * 2 - 1])) == 1, "the new master promotes itself no earlier"
        assert owned[-1] > owned[0]


def test_a_settled_master_keeps_no_account() -> None:
    """Goal: what everybody has told of a table of any size is held only while it is compared.
    Method: the master dies, and the next one settles.
    """
    net = Net(backup_count=1)
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    net.crash("a")
    net.settle()
    assert net.said(StateAnswered)
    assert not net.master.room.loop.recovery._inquiries


def test_who_is_told_to_be_master_takes_charge_at_once() -> None:
    """Goal: the word alone is enough, and is taken once. Method: the list is there already."""
    net = Net(backup_count=1)
    net.add("a", "b")
    net.settle()
    node = net.nodes["b"]
    net.order.remove("a")
    node.ctx.members = msgspec.structs.replace(node.ctx.members, version=9, members=(node.info,))
    for _ in range(2):
        with net.step(node):
            node.room.became_master()
        assert node.room.loop.in_charge
    net.settle()
    assert len([n for n in node.notes if n.kind == "migration.table_settled"]) == 1


def test_who_dies_while_the_first_table_is_told_is_not_promoted_past_it() -> None:
    """ADL-14, ADL-50: a trigger in the middle of the parts starts no repair before their end.

    Method: the second member dies as well when the first part has left.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=271), backup_count=2)
    net.add("a", "b", "c", "d", "e")
    net.settle()
    net.fill()
    net.trace.clear()
    net.crash("a")
    net.run(stop=lambda: any(message.more for _, message in net.tables()))
    assert not net.said(PromotionRequested)
    net.crash("d")
    net.settle()
    net.check()
    after = net.said(TablePublished, PromotionRequested)
    first = next(n for n, (_, _, m) in enumerate(after) if isinstance(m, PromotionRequested))
    before = [(to, m) for _, to, m in after[:first] if isinstance(m, TablePublished)]
    assert {to for to, m in before if not m.more} >= {"c", "e"}


def test_a_mute_member_that_leaves_is_not_waited_for() -> None:
    """ADL-13: it must answer or leave."""
    net = Net(backup_count=2)
    net.add("a", "b", "c", "d")
    net.settle()
    net.fill()
    net.on_send = lambda sender, _to, m: (
        "drop" if sender == "d" and isinstance(m, StateAnswered) else "deliver"
    )
    net.crash("a")
    net.run_for(10)
    net.crash("d")
    net.settle()
    net.check()


@pytest.mark.parametrize("reached", range(8))
def test_a_change_that_reached_only_some(reached: int) -> None:
    """ADL-15: the master dies after its last change reached any subset of three members."""
    wanted = [name for bit, name in enumerate("bcd") if reached >> bit & 1]
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {0: "ab"})
        net = Net(SETTINGS_1, 1)
        net.add("m", "a", "b", "c", "d", lite=["m"])
        net.settle()
        net.fill()
        wish(patch, {0: "cb"})

        def fate(sender: str, to: str, message: Message) -> str:
            lost = isinstance(message, TablePublished) and sender == "m" and to not in wanted
            return "drop" if lost else "deliver"

        net.on_send = fate
        net.leave("a")
        net.run_for(0.5)
        assert net.nodes["m"].room.table.row(P0)[0] == "c"
        net.on_send = lambda *_: "deliver"
        net.crash("m")
        net.settle()
        net.check()
        assert net.master.room.table.row(P0)[0] == "c"


def test_a_new_master_in_the_middle_of_a_promotion_batch() -> None:
    """ADL-06, bug 13: some promotions are applied at their member, the master dies."""
    for boundary in range(0, 12, 1 + Net().settings.partition_count // 100):
        net = Net(backup_count=2)
        net.add("a", "b", "c", "d", "e")
        net.settle()
        net.fill()
        net.crash("e")
        net.run_sending(boundary)
        net.crash("a")
        net.settle()
        net.check()
        assert not net.lost_everything()


def test_a_restarted_member_is_not_taken_for_the_one_it_was() -> None:
    """M4, bugs 59, #8263: same identity, no data: its slots are emptied, then filled again."""
    net = Net(backup_count=1)
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    net.crash("b")
    net.add("b")
    net.settle()
    net.check()
    assert not net.lost_everything()
    net.crash("c")
    net.add("c")
    net.run_for(0.002)
    net.crash("a")  # and now the master as well, while c has just restarted
    net.settle()
    assert {pid for pid, row in enumerate(net.master.room.table.rows) if None in row[:2]} == set()


def test_a_restart_elsewhere_touches_the_rows_it_stands_in_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIM-36, bugs 59, 64: a member is back under its identity at another address, with nothing:
    its slots are emptied, + 1 in each row that names it, and its backup promoted where it was the
    primary, + 2; no other version rises.
    """
    wish(monkeypatch, {0: "ab", 1: "ba", -1: "ac"})
    net = Net(backup_count=1)
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    before = list(net.master.room.table.versions)
    address = net.nodes["b"].info.address
    net.on_send = lambda *_: "drop"
    net.crash("b")
    net.add("b")
    net.run_for(0.001)
    assert net.nodes["b"].info.address != address
    table = net.master.room.table
    rises = [new - old for new, old in zip(table.versions, before, strict=True)]
    assert rises[:2] == [1, 1 + 2] and not any(rises[2:])
    net.on_send = lambda *_: "deliver"
    net.settle(300)
    net.check()
    assert net.master.room.table.versions[2:] == before[2:]


def test_the_list_alone_makes_its_first_member_take_charge() -> None:
    """ADL-11: a list without the master is enough; the word that follows begins nothing anew."""
    net = Net(backup_count=1)
    net.add("a", "b")
    net.settle()
    node = net.nodes["b"]
    net.order.remove("a")
    old = node.ctx.members
    new = node.ctx.members = msgspec.structs.replace(old, version=9, members=(node.info,))
    with net.step(node):
        node.room.view_changed(old, new)
    assert node.room.loop.in_charge
    net.settle()
    assert len([n for n in node.notes if n.kind == "migration.table_settled"]) == 1


def test_a_master_that_is_not_the_oldest_any_more_resigns() -> None:
    """ADL-08: one member decides. Method: a list of the same members with another one first."""
    net = Net(backup_count=1)
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    net.order = ["b", "a", "c"]
    net.view()
    assert [node.id for node in net.live if node.room.loop.in_charge] == ["b"]
    net.settle()
    net.check()
