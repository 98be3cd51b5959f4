"""Goal: the rules of a cluster of version 4.0, and of its switch to 4.1, one by one."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, FakeHost, Net, Node, manager_of, wish
from tests.unit.rows import row_from

from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import (
    LegacyTableAnswered,
    LegacyTablePublished,
    LegacyTableRequested,
    LegacyVersionPublished,
    Message,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    StampPublished,
    TablePublished,
)
from whimbrel.core.migration.repair import image_of, promotion_step
from whimbrel.core.migration.serial.cluster_mode import raise_versions
from whimbrel.core.migration.serial.settlement import settle_table
from whimbrel.core.migration.serial.versioning import TableVersion
from whimbrel.core.migration.settlement import Account
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable
from whimbrel.errors import InvariantViolation, ProtocolError

SERIAL = msgspec.structs.replace(SETTINGS, cluster_version="4.0")
P0, P1, P2 = PartitionId(0), PartitionId(1), PartitionId(2)
A, B, C, D = (MemberId(name) for name in "abcd")


def grown(*names: str, backups: int = 1) -> Net:
    """A settled cluster of version 4.0 with data, its members come one by one."""
    net = Net(SERIAL, backups)
    for name in names:
        net.add(name)
        net.settle()
        if name == names[0]:
            net.fill()
    net.check()
    return net


def version(node: Node) -> int:
    found = node.room.table_version
    assert found is not None
    return found


def tell(net: Net, to: str, sender: str, message: Message) -> list[Message]:
    """What a member sends on a message; nothing of it travels on."""
    before, node = len(net.trace), net.nodes[to]
    net.on_send = lambda *_: "drop"
    with net.step(node):
        node.room.on_message(MemberId(sender), message)
    return [message for _, _, message in net.trace[before:]]


def table_with(net: Net, pid: PartitionId, row: Row, at: int) -> LegacyTablePublished:
    """The master's whole table with one row changed."""
    table = net.master.room.table
    states = {one: table.state(PartitionId(one)) for one in range(table.partition_count)}
    states[pid] = RowState(pid, at, row)
    return LegacyTablePublished(at, image_of(table.partition_count, states.values()), ())


# -- one version --------------------------------------------------------------------------


def test_the_table_has_one_version_and_every_change_a_number_of_its_own() -> None:
    """ADL-07, PIM-07: each change raises the one version; the partition gets that number."""
    net = Net(SERIAL, 1)
    net.add("a", "b")
    net.settle()
    table = net.master.room.table
    assert table.versions == [2 * number for number in range(1, 8)]
    assert version(net.master) == 14
    net.fill()
    seen: list[int] = []
    change = table.set_row

    def watched(pid: PartitionId, row: Row, at: int) -> None:
        assert at > max(table.versions)
        seen.append(at)
        change(pid, row, at)

    vars(table)["set_row"] = watched
    net.add("c")
    net.settle()
    net.crash("b")
    net.settle()
    net.check()
    assert len(seen) > 5
    assert [version(node) for node in net.live] == [max(table.versions)] * 2


def test_one_migration_in_the_whole_cluster() -> None:
    """ADL-35, PIM-41: never two active migrations, although members have room for ten."""
    net = grown("a", "b")
    net.add("c", "d", "e")
    net.settle()
    net.check()
    assert len(net.seen) > 5
    assert net.active_max == 1


def test_the_modern_way_runs_several_in_the_same_case() -> None:
    """PIM-41: the same joins run in parallel above 4.0, so the test before this one can fail."""
    net = Net(SETTINGS, 1)
    net.add("a", "b")
    net.settle()
    net.fill()
    net.add("c", "d", "e")
    net.settle()
    assert net.active_max > 1


def test_whole_tables_are_published_after_each_change() -> None:
    """PIM-07, PIM-42: every table lists every partition; nothing of the modern way is sent."""
    net = grown("a", "b", "c")
    assert not net.said(TablePublished, StampPublished)
    before = version(net.master)
    net.trace.clear()
    net.add("d")
    net.settle()
    tables = [one[2] for one in net.said(LegacyTablePublished) if one[1] == "b"]
    assert [one.version for one in tables] == sorted({one.version for one in tables})  # type: ignore[attr-defined]
    assert len(tables) > 2
    for table in tables:
        assert isinstance(table, LegacyTablePublished)
        assert len(table.image.partitions) == 7
        assert table.version == max(table.image.versions) > before


def test_a_silent_member_gets_the_newest_table_later_and_one_at_a_time() -> None:
    """PIM-07: a table that is not acknowledged holds back the next one, and is repeated."""
    net = grown("a", "b", "c")
    net.on_send = lambda _from, to, message: (
        "drop" if to == "c" and isinstance(message, LegacyTablePublished) else "deliver"
    )
    net.trace.clear()
    net.add("d")
    net.run_for(1)
    assert version(net.master) > version(net.nodes["c"])
    assert len([one for one in net.said(LegacyTablePublished) if one[1] == "c"]) == 1
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    """Goal: a late answer may find a member that is not master any more. Method: a member that has
    sent no table is told that one was taken.
    """
    net = grown("a", "b")
    before = version(net.nodes["b"])
    assert tell(net, "b", "a", LegacyTableAnswered(before)) == []
    assert version(net.nodes["b"]) == before


# -- tables -------------------------------------------------------------------------------


def test_a_table_is_taken_when_ours_is_lower() -> None:
    """ADL-08, PIM-07: lower than ours, equal, foreign: nothing changes; higher: all of it."""
    net = grown("a", "b", "c")
    node, now = net.nodes["c"], version(net.nodes["c"])
    before = list(node.room.table.versions)
    row: Row = row_from([C, A])
    newer = table_with(net, P1, row, now + 3)
    assert tell(net, "c", "b", newer) == []
    old = LegacyTablePublished(
        now - 1, image_of(7, [RowState(PartitionId(p), now - 1, row) for p in range(7)]), ()
    )
    assert tell(net, "c", "a", old) == [LegacyTableAnswered(now)]
    same = LegacyTablePublished(now, net.master.room.table.image(), ())
    assert tell(net, "c", "a", same) == [LegacyTableAnswered(now)]
    assert node.room.table.versions == before
    assert tell(net, "c", "a", newer) == [LegacyTableAnswered(now + 3)]
    assert node.room.table.row(P1) == row
    assert version(node) == now + 3


def test_promotions_that_no_table_has_told_yet_are_bounded() -> None:
    """ADL-25, ADL-30: kept up to ``migration_max_parallel``, until a table has told them."""
    net = Net(msgspec.structs.replace(SERIAL, migration_max_parallel=2), 1)
    net.add("a", "b", "c")
    net.settle()
    node, now = net.nodes["c"], version(net.nodes["c"])
    step = promotion_step(row_from([None, C]))
    assert step is not None
    promoted = tuple(
        MigrationInfo(f"p{pid}", PartitionId(pid), step, A, now + pid) for pid in range(4)
    )
    rows = table_with(net, P0, row_from([C]), now + 1)
    tell(net, "c", "a", PromotionRequested(9, promoted, rows.image))
    assert [one.id for one in node.room.completed_migrations()] == ["p2", "p3"]
    tell(net, "c", "a", table_with(net, P0, row_from([C]), now + 9))
    assert node.room.completed_migrations() == []


def test_another_table_of_our_version_is_a_divergence() -> None:
    """ADL-08, bug 9: one version, two tables: the member stops rather than choose."""
    net = grown("a", "b", "c")
    pid = PartitionId(net.nodes["c"].room.table.versions.index(version(net.nodes["c"])))
    other = table_with(net, pid, row_from([C]), version(net.nodes["c"]))
    with pytest.raises(InvariantViolation):
        tell(net, "c", "a", other)


def test_what_is_not_a_whole_table_is_refused() -> None:
    """PIM-07: a part of a table, or one under a wrong version, changes nothing."""
    net = grown("a", "b", "c")
    table, now = net.nodes["c"].room.table, version(net.nodes["c"])
    part = image_of(7, [RowState(P0, now + 1, row_from([C]))])
    with pytest.raises(ProtocolError, match="every partition"):
        tell(net, "c", "a", LegacyTablePublished(now + 1, part, ()))
    with pytest.raises(ProtocolError, match="last change"):
        tell(net, "c", "a", LegacyTablePublished(now + 9, table.image(), ()))
    assert version(net.nodes["c"]) == now


def test_versions_are_compared_periodically() -> None:
    """ADL-10: only the version travels; who is below it asks for the table, once."""
    net = grown("a", "b", "c")
    now = version(net.nodes["c"])
    assert tell(net, "c", "a", LegacyVersionPublished(now)) == []
    assert tell(net, "c", "b", LegacyVersionPublished(now + 1)) == []
    assert tell(net, "c", "a", LegacyVersionPublished(now + 1)) == [LegacyTableRequested(now)]
    (answer,) = tell(net, "a", "c", LegacyTableRequested(now - 1))
    assert isinstance(answer, LegacyTablePublished)
    assert tell(net, "a", "c", LegacyTableRequested(now - 1)) == []


# -- requests -----------------------------------------------------------------------------


def copy_to_c(net: Net, pid: PartitionId, at: int) -> tuple[MigrationInfo, str]:
    """A MOVE of the backup of a partition to d, and the partition's primary."""
    row = net.master.room.table.row(pid)
    primary, backup = row[0], row[1]
    assert primary is not None
    assert backup is not None
    index = index_in(row, backup)
    step = Step(MigrationKind.MOVE, backup, D, index, destination_new=index)
    return MigrationInfo(f"m{pid}:{at}", pid, step, MemberId("a"), at), str(primary)


def with_lite_d() -> Net:
    """Members a, b and c with data and d without any."""
    net = grown("a", "b", "c")
    net.add("d", lite=["d"])
    net.settle()
    return net


@pytest.mark.parametrize(("offset", "runs"), [(-1, False), (0, True), (1, False)])
def test_a_source_runs_a_request_at_exactly_the_version_of_the_table(
    offset: int, runs: bool
) -> None:
    """PIM-07, PIM-32, ADL-28: behind, equal, ahead: refused, runs, refused."""
    net = with_lite_d()
    pid = next(PartitionId(p) for p, row in enumerate(net.master.room.table.rows) if row[0] == B)
    migration, primary = copy_to_c(net, pid, version(net.nodes["b"]) + offset)
    (answer,) = tell(net, primary, "a", MigrationRequested(migration, ()))
    if runs:
        assert isinstance(answer, MigrationOpened)
    else:
        assert isinstance(answer, MigrationDataAnswered)
        assert not answer.success
        assert "version" in answer.reason


def test_a_request_brings_all_recent_migrations_of_any_partition() -> None:
    """PIM-07, PIM-08: who lags applies what the request carries and runs; with a gap it refuses."""
    net = with_lite_d()
    node, now = net.nodes["b"], version(net.nodes["b"])
    pids = [PartitionId(p) for p, row in enumerate(node.room.table.rows) if row[0] == B]
    others = [PartitionId(p) for p, row in enumerate(node.room.table.rows) if row[0] != B][:2]
    first, _ = copy_to_c(net, others[0], now)
    second, _ = copy_to_c(net, others[1], now + 1)
    carried = (first.with_verdict(Verdict.SUCCESS), second.with_verdict(Verdict.FAILED))
    assert [one.final_version for one in carried] == [now + 1, now + 3]
    late, _ = copy_to_c(net, pids[0], now + 3)
    (answer,) = tell(net, "b", "a", MigrationRequested(late, carried[1:]))
    assert isinstance(answer, MigrationDataAnswered)
    assert version(node) == now
    (answer,) = tell(net, "b", "a", MigrationRequested(late, carried))
    assert isinstance(answer, MigrationOpened)
    assert answer.completed == carried
    assert version(node) == now + 3
    assert node.room.table.row(others[0])[1] == D


def test_requests_of_the_master_carry_what_not_everybody_knows() -> None:
    """PIM-07: with a member that takes no tables the list grows, whatever the partition is."""
    net = grown("a", "b", "c")
    net.on_send = lambda _from, to, message: (
        "drop" if to == "c" and isinstance(message, LegacyTablePublished) else "deliver"
    )
    net.trace.clear()
    net.add("d")
    net.run_for(30)
    requests = [one[2] for one in net.said(MigrationRequested, MigrationOpened)]
    pids = {
        carried.partition_id
        for request in requests
        if isinstance(request, MigrationRequested | MigrationOpened)
        for carried in request.completed
        if carried.partition_id != request.migration.partition_id
    }
    assert pids
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_a_commit_is_compared_by_the_version_of_the_table() -> None:
    """PIM-10, PIM-32: final equals ours: yes again; ours beyond: no; not the initial one: no."""
    net = with_lite_d()
    now = version(net.nodes["d"])
    for at, committed in ((now - 1, True), (now - 2, False), (now + 1, False), (now, False)):
        migration, _ = copy_to_c(net, P0, at)
        commit = MigrationCommitRequested(migration.with_verdict(Verdict.SUCCESS), ())
        (answer,) = tell(net, "d", "a", commit)
        assert isinstance(answer, MigrationCommitAnswered)
        assert answer.committed is committed, at


def test_a_failed_commit_moves_the_table_on_by_one_more_than_success() -> None:
    """ADL-21: the destination leaves during the commit: rows stay, the version rises by 2."""
    net = grown("a", "b")
    net.add("c")

    def commits() -> list[Message]:
        return [message for _, to, message in net.said(MigrationCommitRequested) if to == "c"]

    net.run(stop=lambda: bool(commits()))
    (commit,) = commits()
    assert isinstance(commit, MigrationCommitRequested)
    migration, table = commit.migration, net.master.room.table
    assert migration.step.increment == 1
    before, row = version(net.master), table.row(migration.partition_id)
    net.crash("c", tail=False)
    assert version(net.master) == before + 2
    assert table.row(migration.partition_id) == row
    assert table.version(migration.partition_id) == before + 2
    net.settle()
    net.check()


# -- promotions ---------------------------------------------------------------------------


def test_promotions_go_member_by_member_with_the_whole_table() -> None:
    """ADL-06, PIM-07: one batch at a time; its versions follow one another."""
    net = grown("a", "b", "c", "d")
    net.trace.clear()
    busiest = 0

    def watch(_: Node) -> None:
        nonlocal busiest
        busiest = max(busiest, len(net.master.room.loop.repair.batches))

    net.after_step = watch
    net.crash("b")
    net.settle()
    net.check()
    promotions = [one[2] for one in net.said(PromotionRequested)]
    assert promotions
    for one in promotions:
        assert isinstance(one, PromotionRequested)
        assert len(one.image.partitions) == 7
        assert max(one.image.versions) == one.migrations[-1].final_version
        for earlier, later in zip(one.migrations, one.migrations[1:], strict=False):
            assert later.initial_version == earlier.final_version
    assert busiest == 1


def test_a_promoted_member_with_a_newer_table_refuses() -> None:
    """PIM-07: paper 07 section 1.1: rejected if our version is greater; a repeat is accepted."""
    net = grown("a", "b", "c")
    now = version(net.nodes["c"])
    rows = table_with(net, P0, row_from([C]), now + 2)
    request = PromotionRequested(9, (), rows.image)
    assert tell(net, "c", "b", request) == []
    assert tell(net, "c", "a", request) == [PromotionAnswered(9, True, "")]
    assert tell(net, "c", "a", request) == [PromotionAnswered(9, True, "")]
    tell(net, "c", "a", table_with(net, P0, row_from([A]), now + 5))
    (answer,) = tell(net, "c", "a", request)
    assert isinstance(answer, PromotionAnswered)
    assert not answer.accepted


def test_failed_promotions_move_the_table_beyond_all_of_them() -> None:
    """ADL-21: the promoted member dies with the batch applied: nobody meets its versions."""
    net = grown("a", "b", "c", "d", backups=2)
    net.trace.clear()
    net.crash("b")
    net.run(stop=lambda: bool(net.said(PromotionAnswered)))
    (promoted, _, _) = net.said(PromotionAnswered)[0]
    applied = version(net.nodes[promoted])
    net.crash(promoted, tail=False)
    net.settle()
    net.check()
    assert version(net.master) > applied


def test_a_failed_batch_leaves_the_numbers_that_its_member_may_have_used() -> None:
    """ADL-21, PIM-07: every row stays, under a version of its own above all that success would have
    given. Method: two promotions of one batch, and the member is gone.
    """
    ctx, table = Net(SERIAL).add_alone("k").ctx, PartitionTable(3)
    versioning = TableVersion(ctx, table)
    manager = PartitionStateManager(ctx, FakeHost(MemberId("k"), 1), table, versioning)
    for number, pid in enumerate((P0, P1, P2), 1):
        manager.change(pid, row_from([None, B] if pid is not P2 else [A]), number)
    rows = list(table.rows)
    step = promotion_step(rows[0])
    assert step is not None
    batch = tuple(MigrationInfo(f"p{pid}", pid, step, A, 0) for pid in (P0, P1))
    decided = [one.with_verdict(Verdict.FAILED) for one in versioning.numbered(batch)]
    succeeded = [one.with_verdict(Verdict.SUCCESS).final_version for one in decided]
    assert versioning.decide_promotions(manager, decided) == ()
    assert table.rows == rows
    assert max(succeeded) < table.versions[0] < table.versions[1] == versioning.table_version


# -- a new master -------------------------------------------------------------------------


def account(member: MemberId, rows: dict[int, tuple[int, str]], *active: MigrationInfo,
            completed: tuple[MigrationInfo, ...] = ()) -> Account:  # fmt: skip
    states = tuple(
        RowState(PartitionId(pid), at, row_from([MemberId(name) for name in names]))
        for pid, (at, names) in sorted(rows.items())
    )
    return Account(member, states, completed, active)


def test_the_newest_table_is_the_table() -> None:
    """ADL-11, ADL-12: the highest version wins whole; what it does not decide fails."""
    step = Step(MigrationKind.COPY, None, C, destination_new=index_in((None, C), C))
    done = MigrationInfo("done", P0, step, A, 10, Verdict.SUCCESS)
    stale = MigrationInfo("stale", P0, step, A, 9)
    undecided = MigrationInfo("open", P1, step, A, 11)
    old = account(A, {0: (10, "ab"), 1: (9, "ba")}, stale)
    new = account(B, {0: (11, "abc"), 1: (9, "ba")}, undecided, completed=(done,))
    for accounts in ([old, new], [new, old]):
        found = settle_table(accounts)
        assert found.rows == new.rows
        assert found.completed[0] == done
        assert [one.id for one in found.rolled_back] == ["open"]
        assert found.rolled_back[0].final_version == 13
        assert found.without_data == ((P0, C),) or C not in [one.member for one in accounts]


def test_two_tables_of_one_version_stop_a_new_master() -> None:
    """Bug 9: one version, two tables: stop rather than choose."""
    with pytest.raises(InvariantViolation):
        settle_table([account(A, {0: (5, "ab")}), account(B, {0: (5, "ba")})])


@pytest.mark.parametrize("kind", [MigrationRequested, MigrationCommitRequested])
def test_the_master_dies_in_a_migration(kind: type[Message]) -> None:
    """ADL-29, ADL-30: the next master settles it one way, before anything else runs."""
    net = grown("a", "b", "c")
    net.trace.clear()
    net.add("d")
    net.run(stop=lambda: bool(net.said(kind)))
    net.run_for(0.002)
    net.crash("a")
    net.settle()
    net.check()


# -- the switch ---------------------------------------------------------------------------


def test_every_partition_gets_the_last_version_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIM-43: the last global version becomes that of every partition, the stamp is new."""
    net = grown("a", "b", "c")
    last, rows = version(net.master), list(net.master.room.table.rows)
    stamp = net.master.room.table.stamp
    finished = net.master.room.table.versions
    net.upgrade()
    net.settle()
    for node in net.live:
        assert node.room.table_version is None
        assert node.room.table.versions == [last] * 7
        assert node.room.table.rows == rows
        assert node.room.table.stamp == node.room.table.recompute_stamp() != stamp
    assert all(last >= one for one in finished), "earlier migrations are in the past"
    monkeypatch.undo()
    net.add("d", "e")
    net.settle()
    net.check()
    assert net.active_max > 1


def test_the_switch_arranges_nothing() -> None:
    """PIM-43, PIM-13: rows below the last version of the table get it, those above it keep theirs,
    and one that was never arranged has none.
    """
    table = PartitionTable(3)
    manager = manager_of(Net().add_alone("k").ctx, FakeHost(MemberId("k"), 1), table)
    manager.change(P0, row_from([A]), 2)
    manager.change(P1, row_from([B]), 9)
    raise_versions(manager, 5)
    assert table.versions == [5, 9, 0]


def test_the_switch_happens_once() -> None:
    """PIM-43: a later list, a later master and a joiner raise nothing any more."""
    net = grown("a", "b", "c")
    last = version(net.master)
    net.upgrade({"b": 40_000, "c": 90_000})
    net.settle()
    assert net.master.room.table.versions == [last] * 7
    net.add("d")
    net.settle()
    versions = list(net.master.room.table.versions)
    assert min(versions) == last < max(versions)
    net.view()
    net.settle()
    assert net.master.room.table.versions == versions
    net.crash("a")
    net.settle()
    net.check()
    now = net.master.room.table.versions
    changed = [one for one, two in zip(now, versions, strict=True) if one != two]
    assert len(changed) < 7


@pytest.mark.parametrize("told", ["nobody", "b", "c", "b and c"])
def test_the_master_dies_in_the_switch(told: str) -> None:
    """PIM-43, fault list 73: one way on all members, whoever had the list already."""
    net = grown("a", "b", "c", "d")
    last = version(net.master)
    net.cluster_version = "4.1" if told != "nobody" else "4.0"
    late = {name: 60_000_000 for name in "bcd" if name not in told}
    net.upgrade(late) if told != "nobody" else net.view()
    net.run_for(0.0)
    net.crash("a", tail=False)
    net.settle()
    net.check()
    modes = {node.room.table_version is None for node in net.live}
    assert modes == {told != "nobody"}
    if told != "nobody":
        assert min(net.master.room.table.versions) >= last


def test_a_switch_while_migrations_run_settles_them() -> None:
    """PIM-41, PIM-43: even if nothing refused it, what runs is decided once."""
    for messages in range(1, 40, 3):
        net = grown("a", "b")
        net.add("c")
        net.run_sending(messages)
        net.upgrade({"b": 5_000})
        net.settle()
        net.check()
        assert all(node.room.table_version is None for node in net.live)


def test_tables_of_the_other_way_are_dropped() -> None:
    """PIM-42: before the list with the new version a modern table means nothing, and after it an
    old one.
    """
    net = grown("a", "b", "c")
    table = net.master.room.table
    modern = TablePublished(99, table.image(), (), whole=True)
    assert tell(net, "c", "a", modern) == []
    old = table_with(net, P0, row_from([C]), version(net.master) + 5)
    net.on_send = lambda *_: "deliver"
    net.upgrade()
    net.settle()
    assert tell(net, "c", "a", old) == []
    assert net.nodes["c"].room.table.row(P0) == table.row(P0)


def test_a_joiner_takes_the_ways_of_the_cluster() -> None:
    """PIM-41: whatever its own settings say, in both directions."""
    for ours, theirs in (("4.1", "4.0"), ("4.0", "4.1")):
        net = Net(msgspec.structs.replace(SETTINGS, cluster_version=ours), 1)
        net.add("a")
        net.settle()
        net.fill()
        net.settings = msgspec.structs.replace(SETTINGS, cluster_version=theirs)
        net.add("b")
        net.settle()
        net.check()
        assert {node.room.table_version is None for node in net.live} == {ours == "4.1"}


def test_no_cluster_is_downgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-43: a member with a modern table stops rather than give it one version."""
    wish(monkeypatch, {-1: "ab"})
    net = Net(SETTINGS, 1)
    net.add("a", "b")
    net.settle()
    net.cluster_version = "4.0"
    with pytest.raises(InvariantViolation, match="downgraded"):
        net.view()
