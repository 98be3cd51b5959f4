"""Goal: what the master does about members that are gone, without copying anything."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import SETTINGS, Net, wish
from tests.unit.rows import row_from

from whimbrel.core.effects import Send
from whimbrel.core.events import GridEvent, MigrationFinished, MigrationStarted, ReplicaMigrated
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    TablePublished,
    TableRequested,
)
from whimbrel.core.migration import repair as repair_module
from whimbrel.core.migration.repair import promotion_step, without_departed
from whimbrel.core.model import MigrationKind

pytestmark = pytest.mark.usefixtures("both_sizes")


def test_slots_of_departed_members_are_emptied() -> None:
    """ADL-04, PIM-13: `ABC`, B leaves: `A-C`; one version per slot."""
    a, b, c = MemberId("a"), MemberId("b"), MemberId("c")
    row = row_from([a, b, c])
    assert without_departed(row, [a, c]) == (row_from([a, None, c]), 1)
    assert without_departed(row, [a, b, c]) == (row, 0)
    assert without_departed(row, [a, b, c], departed=[a, c]) == (row_from([None, b]), 2)


def test_the_hottest_live_backup_is_promoted() -> None:
    """ADL-06, PIM-13: version + 2; nobody to promote when there is a primary, or no replica."""
    b, c = MemberId("b"), MemberId("c")
    step = promotion_step(row_from([None, None, b, c]))
    assert step is not None and step.kind is MigrationKind.PROMOTION
    assert (step.destination, step.destination_current, step.destination_new) == (b, 2, 0)
    assert step.increment == 2
    assert promotion_step(row_from([b])) is None
    assert promotion_step(row_from([])) is None


def three(backups: int = 2) -> Net:
    net = Net(backup_count=backups)
    net.add("a", "b", "c", "d")
    net.settle()
    net.fill()
    net.trace.clear()
    return net


def test_only_the_promoted_act_as_primary_and_only_after_the_decision() -> None:
    """ADL-02, ADL-06, ADL-09: no member but the master changes a row of its own accord."""
    net = three()
    tables = {node.id: list(node.room.table.rows) for node in net.live}
    late = {"a": 30_000_000}
    net.crash("d", delays_us=late)
    net.run_for(20)
    for node in net.live:
        assert node.room.table.rows == tables[node.id]
    assert not net.said(TablePublished, PromotionRequested)
    net.settle()
    net.check()


def test_who_holds_nothing_loses_its_seat_and_nobody_else() -> None:
    """M4, ADL-04: a member that stands in a row without its data is put out, and the place is
    filled by a copy. Method: the master is told of one backup, and a list brings the next run.
    """
    net = three(backups=1)
    pid, table = PartitionId(3), net.master.room.table
    backup, before = table.row(pid)[1], list(table.versions)
    assert backup is not None
    net.master.room.note_without_data([(pid, backup)])
    net.view()
    net.settle()
    net.check()
    assert table.version(pid) == before[pid] + 2, "one for the empty place, one for the copy"
    assert [one for one in range(len(before)) if table.versions[one] != before[one]] == [pid]


def test_each_loss_is_reported_with_its_depth() -> None:
    """ADL-05, ADL-06, bugs 2, 19b, 67: 0 when only the primary died, 1 with the first backup."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {-1: "bcad"})
        net = Net(backup_count=2)
        net.add("a", "b", "c", "d")
        net.settle()
        net.fill()
        net.order.remove("b")
        net.nodes["b"].alive = False
        net.crash("c")
        net.settle()
        net.check()
        assert sorted(net.master.lost) == [(pid, 1) for pid in range(net.settings.partition_count)]
        assert not net.lost_everything()


def test_a_lost_partition_gets_an_empty_primary() -> None:
    """ADL-05, bug 48: version + 1 per emptied slot and + 1 for the new primary; never silent."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {-1: "bca"})
        net = Net(backup_count=1)
        net.add("a", "b", "c")
        net.settle()
        net.fill()
        before = net.master.room.table.version(PartitionId(0))
        net.order.remove("b")
        net.nodes["b"].alive = False
        net.crash("c")
        net.settle()
        net.check()
    room = net.master.room
    assert room.reporter.partitions_lost == net.settings.partition_count
    assert net.master.lost == [(pid, 6) for pid in range(net.settings.partition_count)]
    assert room.table.row(PartitionId(0))[0] == "a"
    assert room.table.version(PartitionId(0)) == before + 2 + 1
    assert room.is_settled() == (True, "")


def test_partitions_stay_unowned_until_a_data_member_comes() -> None:
    """ADL-05: only a lite master is left; the next data member gets them all."""
    net = Net(backup_count=1)
    net.add("m", "a", lite=["m"])
    net.settle()
    net.fill()
    net.crash("a")
    net.run_for(1)
    assert net.master.room.reporter.partitions_lost == net.settings.partition_count
    assert not net.master.room.is_settled()[0]
    net.add("b")
    net.settle()
    net.check()
    assert net.master.room.reporter.partitions_lost == net.settings.partition_count


def test_a_promotion_waits_for_the_table_that_its_member_is_being_sent() -> None:
    """ADL-04, ADL-06: a member learns the emptied slots before it is promoted, also when it is
    just being sent a large table in parts. Method: a member that has missed everything asks for
    the table, and another one dies when the first part has left.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=271), backup_count=2)
    net.add("a", "b", "c", "d")
    net.settle()
    net.fill()
    net.trace.clear()
    with net.step(net.master):
        net.master.room.loop.publisher.handlers()[TableRequested](MemberId("b"), TableRequested(1))
        net.master.room.on_timer("migration.repeat")
    net.run(stop=lambda: any(message.more for _, message in net.tables()))
    net.crash("c")
    net.settle()
    net.check()
    to_b = [m for _, to, m in net.said(TablePublished, PromotionRequested) if to == "b"]
    last_part = next(n for n, m in enumerate(to_b) if isinstance(m, TablePublished) and not m.more)
    promoted = next(n for n, m in enumerate(to_b) if isinstance(m, PromotionRequested))
    emptied = to_b[last_part + 1]
    assert isinstance(emptied, TablePublished) and not emptied.whole
    assert last_part + 1 < promoted


@pytest.mark.parametrize("lost", [PromotionRequested, PromotionAnswered])
def test_a_repeated_batch_changes_nothing(lost: type) -> None:
    """PIM-11, PIM-12, bugs 3, 4: request or answer lost three times; applied once, no re-count."""
    net = three()
    count = 0

    def fate(_from: str, _to: str, message: object) -> str:
        nonlocal count
        if isinstance(message, lost) and count < 3:
            count += 1
            return "drop"
        return "deliver"

    net.on_send = fate
    net.crash("b")
    net.settle()
    net.check()
    assert count == 3
    history = net.master.room.reporter.finished[-1]
    assert history["promotions"] == len(net.master.lost)
    assert history["failed"] == 0 and history["completed"] == history["planned"]


def test_the_next_backup_is_promoted_when_the_promoted_member_dies() -> None:
    """ADL-06, ADL-21: the batch fails with its member, version + 3, and the next one is asked."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {-1: "bcda"})
        net = Net(backup_count=2)
        net.add("a", "b", "c", "d")
        net.settle()
        net.fill()
        before = net.master.room.table.version(PartitionId(0))
        net.on_send = lambda _f, to, m: (
            "drop" if isinstance(m, PromotionRequested) and to == "c" else "deliver"
        )
        net.crash("b")
        net.run_for(5)
        net.crash("c")
        net.settle()
        net.check()
        assert net.master.room.table.row(PartitionId(0))[:2] == ("d", "a")
        # b's slot, the failed promotion, c's slot, the promotion, and the copy to a.
        rise = net.master.room.table.version(PartitionId(0)) - before
        assert rise == 1 + 3 + 1 + 2 + 1


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safety rule 9: no message names more promotions than its limit."""
    monkeypatch.setattr(repair_module, "PROMOTION_BATCH_MAX", 2)
    net = three()
    net.crash("b")
    net.settle()
    net.check()
    batches = [message for _, _, message in net.said(PromotionRequested)]
    assert all(len(m.migrations) <= 2 for m in batches if isinstance(m, PromotionRequested))


def test_promotions_do_not_wait_for_copies_of_other_partitions() -> None:
    """ADL-49: while a long copy goes on, partitions nobody works on are repaired at once."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {0: "abe", -1: "cba"})
        net = Net(backup_count=1)
        net.add("a", "b", "c")
        net.settle()
        net.fill()
        wish(patch, {0: "ae", -1: "cba"})
        net.on_send = lambda _f, _t, m: (
            "drop" if type(m).__name__ == "TransferAnswered" else "deliver"
        )
        net.add("e")
        net.run_for(1)
        assert net.master.room.progress()["active"] == 1
        net.crash("c")
        net.run_for(1)
        rows = net.master.room.table.rows
        assert net.master.room.progress()["active"] == 1, "the copy still goes on"
        assert all(row[0] == "b" for row in rows[1:])
        net.on_send = lambda *_: "deliver"
        net.settle()
        net.check()


def test_repair_makes_no_migration_of_an_empty_table() -> None:
    """ADL-04: a departure before the first arrangement changes nothing."""
    net = Net(SETTINGS, backup_count=1)
    net.add("m", "n", lite=["m", "n"])
    net.crash("n")
    net.run_for(1)
    assert not net.master.room.table.initialised
    assert net.master.room.is_settled() == (False, "the partitions are not assigned yet")
    assert not net.said(MigrationRequested, TablePublished)


def test_a_repair_that_begins_anew_has_ended_for_listeners() -> None:
    """Goal: every process that was begun ends, also when a second member dies in the middle of
    the rows of the first. Method: starts and ends are counted.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=271), backup_count=2)
    net.add("a", "b", "c", "d", "e")
    net.settle()
    net.fill()
    events: list[GridEvent] = []
    net.master.room.tell_events(events.append)
    repair = net.master.room.loop.repair
    net.crash("e")
    assert repair.has_rows_left
    net.crash("d")
    net.settle()
    net.check()
    begun = [event for event in events if isinstance(event, MigrationStarted)]
    ended = [event for event in events if isinstance(event, MigrationFinished)]
    assert len(begun) == len(ended) > 2


def test_the_rest_of_a_repair_is_in_its_story() -> None:
    """Design 0016: rows that are repaired later are told under what the first ones were. Method:
    a table of several pieces; the next one is begun by a step that follows from something else.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=271), backup_count=1)
    net.add("a", "b", "c")
    net.settle()
    master = net.master
    loop = master.room.loop
    net.crash("c")
    assert loop.repair.has_rows_left
    assert loop._process is not None
    story = loop._process.cause
    with net.step(master):
        master.ctx.resume("other-1")
        loop.slice_due()
        sent = [effect for effect in master.ctx.effects if isinstance(effect, Send)]
    assert {type(effect.message) for effect in sent} == {TablePublished, PromotionRequested}
    assert {effect.cause for effect in sent} == {story} != {"other-1"}


def test_an_unanswered_promotion_is_repeated_once_in_a_time_out() -> None:
    """Design decision: every request is repeated until it is answered, and no oftener than once in
    ``call_timeout_us``, however often it is looked at.
    """
    net = three()
    net.on_send = lambda _a, _b, m: "drop" if isinstance(m, PromotionAnswered) else "deliver"
    net.crash("b")
    net.run(
        net.now_us + 10 * net.settings.call_timeout_us,
        stop=lambda: bool(net.said(PromotionRequested)),
    )
    net.trace.clear()
    net.run(net.now_us + 4 * net.settings.call_timeout_us)
    said = [message for _, _, message in net.said(PromotionRequested)]
    numbers = [message.batch for message in said if isinstance(message, PromotionRequested)]
    assert numbers and all(3 <= numbers.count(number) <= 4 for number in numbers)
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_a_new_empty_primary_is_told_as_a_success() -> None:
    """PIM-58, ADL-05: listeners hear of each replica that a lost partition gets anew, in a process
    of its own. Method: all copies of all partitions die at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {-1: "bca"})
        net = Net(backup_count=0)
        net.add("a", "b")
        net.settle()
        heard: list[GridEvent] = []
        net.master.room.tell_events(heard.append)
        net.crash("b")
        net.settle()
    started = [one for one in heard if isinstance(one, MigrationStarted)]
    ended = [one for one in heard if isinstance(one, MigrationFinished)]
    replicas = [one for one in heard if isinstance(one, ReplicaMigrated)]
    count = net.settings.partition_count
    assert [one.state.planned for one in started] == [count]
    assert [(one.state.completed, one.state.failed) for one in ended] == [(count, 0)]
    assert sorted(one.partition_id for one in replicas) == list(range(count))
    assert all(one.success and one.replica_index == 0 for one in replicas)
    assert all((one.source, one.destination) == (None, "a") for one in replicas)
