"""Goal: a word of an earlier time, or of somebody who may not say it, changes nothing.

Method: literal messages to a room of one member, handed over by the test.
"""

from __future__ import annotations

import itertools

import pytest
from tests.unit.migration_net import Net, Node, wish
from tests.unit.test_migration_participants import Desk, fragment
from tests.unit.test_migration_publication import NOTHING, copy_of, grown, tell
from tests.unit.test_migration_recovery import P0, SETTINGS_1, account, move, row, settle

from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.jobs import finish
from whimbrel.core.messages import (
    Message,
    MigrationCommitAnswered,
    MigrationDataAnswered,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    StateAnswered,
    StateRequested,
    TablePublished,
)
from whimbrel.core.migration.recovery import Recovery
from whimbrel.core.migration.repair import image_of, promotion_step
from whimbrel.core.migration.settlement import settling_rows
from whimbrel.core.model import MemberInfo, MemberList, MigrationInfo, RowState, Verdict

A, B, C = (MemberId(name) for name in "abc")
P = [PartitionId(pid) for pid in range(7)]


# -- the table that a new master asks for -------------------------------------------------


class Fetch:
    """Member b as a new master that has just asked a and c for their tables."""

    def __init__(self) -> None:
        self.node: Node = Net(SETTINGS_1).add_alone("b")
        infos = [MemberInfo(member, Address("h", 9)) for member in (A, C)]
        self.node.ctx.members = MemberList(1, (self.node.info, *infos))
        self.recovery = Recovery(self.node.ctx, self.node.room.manager, settling_rows)
        self.rounds: list[int] = []
        self.start()

    def start(self) -> None:
        self.recovery.start()
        asked = [effect.message for effect in self.node.ctx.effects]  # type: ignore[attr-defined]
        self.node.ctx.effects.clear()
        assert {type(message) for message in asked} == {StateRequested}
        (number,) = {message.round for message in asked}
        self.rounds.append(number)

    def answer(self, sender: str, version: int, names: str, number: int | None = None) -> None:
        """An account of partition 0, of the present round unless another one is given."""
        image = image_of(1, [RowState(P0, version, row(names))])
        number = self.rounds[-1] if number is None else number
        self.recovery.answered(MemberId(sender), StateAnswered(number, image, (), ()))

    def waiting_for(self) -> list[MemberId]:
        return [inquiry.asked for inquiry in self.recovery.unanswered()]

    def end(self) -> RowState:
        """The row that is settled on."""
        finish(self.recovery.finishing(()))
        return self.node.room.table.state(P0)


def test_an_answer_of_an_earlier_fetch_is_not_this_ones() -> None:
    """ADL-13: what a member answered to an earlier fetch may be older than what it has now: the
    decision waits for its answer to this one.
    """
    fetch = Fetch()
    fetch.answer("a", 3, "bc")
    fetch.recovery.stop()
    fetch.start()
    fetch.answer("a", 3, "bc", fetch.rounds[0])
    fetch.answer("c", 3, "bc", fetch.rounds[0])
    assert fetch.waiting_for() == [A, C]
    fetch.answer("a", 4, "cb")
    fetch.answer("c", 3, "bc")
    assert fetch.end() == RowState(P0, 4, row("cb"))


def test_a_stranger_or_a_leaver_has_no_say_in_the_table() -> None:
    """ADL-13: only whoever was asked and has not left is heard; nobody is when nothing is asked."""
    fetch = Fetch()
    fetch.answer("z", 9, "z")
    fetch.answer("a", 9, "a")
    fetch.node.ctx.members = MemberList(2, fetch.node.ctx.members.members[::2])
    fetch.recovery.members_changed([A])
    fetch.answer("a", 9, "a")
    fetch.answer("c", 3, "bc")
    assert fetch.end() == RowState(P0, 3, row("bc"))
    fetch.answer("c", 5, "cb")
    assert fetch.waiting_for() == []


def test_parts_of_an_answer_are_taken_in_order() -> None:
    """ADL-13: a part whose predecessor is lost does not complete an answer; a new first part
    begins it anew.
    """
    fetch = Fetch()
    fetch.answer("a", 1, "bc")
    number, nothing = fetch.rounds[-1], image_of(1, [])
    image = image_of(1, [RowState(P0, 2, row("cb"))])
    last = StateAnswered(number, nothing, (), (), part=1)
    first = StateAnswered(number, image, (), (), part=0, more=True)
    fetch.recovery.answered(C, last)
    assert fetch.waiting_for() == [C]
    for message in (first, first, last):
        assert fetch.waiting_for() == [C]
        fetch.recovery.answered(C, message)
    assert fetch.waiting_for() == [] and fetch.end() == RowState(P0, 2, row("cb"))


def test_an_old_failure_does_not_undo_a_newer_commit() -> None:
    """PIM-15, ADL-30, bug 11: an old failed entry (final 8) is still on somebody's list; the row
    has come to 12 by a commit of the migration that is open at its source: it stays committed.
    """
    old = move("m0", 6, "z", "y").with_verdict(Verdict.FAILED)
    assert old.final_version == 8
    open_one = move("m1", 11)
    accounts = [
        account("a", 11, "ab", completed=(old,), active=(open_one,)),
        account("c", 12, "cb"),
    ]
    for order in (accounts, accounts[::-1]):
        settlement = settle(order)
        assert settlement.rolled_back == ()
        assert settlement.rows == (RowState(P0, 12, row("cb")),)


def test_the_higher_of_two_verdicts_counts() -> None:
    """ADL-21: a destination that was cut off has committed what the master has failed since."""
    one = move("m1", 4)
    accounts = [
        account("c", 5, "cb", completed=(one.with_verdict(Verdict.SUCCESS),)),
        account("a", 6, "ab", completed=(one.with_verdict(Verdict.FAILED),)),
    ]
    for order in (accounts, accounts[::-1]):
        settlement = settle(order)
        assert settlement.completed == (one.with_verdict(Verdict.FAILED),)
        assert settlement.rows == (RowState(P0, 6, row("ab")),) and not settlement.rolled_back


# -- what the master is told of its migrations --------------------------------------------


class OneMove:
    """Lite master m and a MOVE of the primary from a to c under way; nothing is delivered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.net = Desk(patch, "mab").net
        patch.setattr(self.net, "on_send", lambda *_: "deliver")
        wish(patch, {0: "cb"})
        self.net.add("c")
        self.net.run(stop=lambda: bool(self.running))
        self.net.on_send = lambda *_: "drop"

    @property
    def running(self) -> list[MigrationInfo]:
        return self.net.master.room.running_migrations()

    def tell(self, sender: str, message: Message) -> None:
        with self.net.step(self.net.master):
            self.net.master.room.on_message(MemberId(sender), message)


def test_only_the_source_says_that_all_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-16: an answer of anybody but the data source begins no commit and fails nothing."""
    move = OneMove(monkeypatch)
    (one,) = move.running
    execution = move.net.master.room.loop.execution
    for sender in "bc":
        for success in (True, False):
            move.tell(sender, MigrationDataAnswered(one.id, success, "", 1))
    move.tell("c", MigrationCommitAnswered(one.id, True, ""))
    assert move.running == [one] and execution.running_migrations[P0].phase == "COPYING"
    assert execution.running_migrations[P0].process.bytes_moved == 0
    move.tell("a", MigrationDataAnswered(one.id, True, "", 1))
    move.tell("a", MigrationDataAnswered(one.id, True, "", 1))
    assert execution.running_migrations[P0].phase == "COMMITTING"
    assert execution.running_migrations[P0].process.bytes_moved == 1


@pytest.mark.parametrize("committed", [True, False])
def test_only_the_destination_says_that_it_has_committed(
    monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """ADL-16: the master commits when the destination has: the yes of anybody else counts for
    nothing, and a no neither.
    """
    move = OneMove(monkeypatch)
    (one,) = move.running
    move.tell("a", MigrationDataAnswered(one.id, True, "", 1))
    table = move.net.master.room.table
    before = table.state(P0)
    for sender in "ab":
        move.tell(sender, MigrationCommitAnswered(one.id, committed, ""))
    assert move.running == [one] and table.state(P0) == before
    move.tell("c", MigrationCommitAnswered(one.id, committed, ""))
    assert not move.running and table.row(P0)[0] == ("c" if committed else "a")


def test_only_the_promoted_member_says_that_it_is_promoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIM-11, ADL-06: the batch is decided by a yes of its own member, and by nothing else."""
    wish(monkeypatch, {-1: "dbac"})
    net = grown("abcd")
    net.on_send = lambda _f, _t, m: "drop" if isinstance(m, PromotionAnswered) else "deliver"
    net.crash("d")
    net.run_for(1)
    master = net.master
    batches = master.room.loop.repair.batches
    number, batch = next(iter(batches.items()))
    assert batch.asked == "b"
    before = list(master.room.table.versions)
    for sender, message in (
        ("a", PromotionAnswered(number, True, "")),
        ("c", PromotionAnswered(number, True, "")),
        (batch.asked, PromotionAnswered(number, False, "no")),
        (batch.asked, PromotionAnswered(number + 10**9, True, "")),
    ):
        with net.step(master):
            master.room.on_message(MemberId(sender), message)
    assert number in batches and master.room.table.versions == before
    with net.step(master):
        master.room.on_message(batch.asked, PromotionAnswered(number, True, ""))
    assert number not in batches and master.room.table.versions != before


# -- what a participant learns from ------------------------------------------------------


@pytest.mark.parametrize("side", ["a", "c"])
def test_a_row_that_only_a_commit_can_have_made_commits(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """ADL-24, ADL-31: a participant that gets the whole table instead of the verdict takes the
    row of its migration's success for that: the destination keeps what it has received.
    """
    desk = Desk(monkeypatch)
    one = desk.migration()
    moments: list[str] = []
    hook = lambda moment, _event: moments.append(moment.value)  # noqa: E731
    desk.net.nodes[side].room.manager.hook = hook
    start_both(desk, one)
    done = one.with_verdict(Verdict.SUCCESS)
    after = RowState(P0, done.final_version, one.step.apply(desk.net.nodes["a"].room.table.row(P0)))
    desk.tell(side, "m", TablePublished(10**9, image_of(1, [after]), (), whole=True))
    host = desk.net.nodes[side].host
    assert moments == ["BEFORE", "COMMIT"] and not host.rolled_back and not host.flags
    assert host.data.get(0) == ((b"x", b"y") if side == "c" else None)


@pytest.mark.parametrize("what", ["version", "row"])
def test_any_other_row_rolls_back(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """ADL-24, ADL-31: the version of the success with another row, or its row under another
    version, is not that success.
    """
    desk = Desk(monkeypatch)
    one = desk.migration()
    start_both(desk, one)
    done = one.with_verdict(Verdict.SUCCESS)
    before = desk.net.nodes["c"].room.table.row(P0)
    if what == "version":
        after = RowState(P0, done.final_version + 1, one.step.apply(before))
    else:
        after = RowState(P0, done.final_version, row("a"))
    host = desk.net.nodes["c"].host
    host.keeps = lambda index: False  # type: ignore[method-assign]
    desk.tell("c", "m", TablePublished(10**9, image_of(1, [after]), (), whole=True))
    assert host.rolled_back == 1 and host.committed == 0


def start_both(desk: Desk, one: MigrationInfo) -> None:
    """The migration is active at both sides, and the destination has received everything."""
    desk.tell("a", "m", MigrationRequested(one, ()))
    for sequence, data in enumerate((b"", b"x", b"y")):
        desk.tell("c", "a", fragment(one, sequence, data, last=sequence == 2))


# -- publications -------------------------------------------------------------------------


def test_numbers_of_an_earlier_master_are_not_the_new_ones() -> None:
    """ADL-08: having heard publication n of one master says nothing about n of the next: its news
    that do not begin with the whole table are out of step, whatever their number.
    """
    net = grown("abc")
    c = net.nodes["c"]
    heard = vars(c.room.subscriber)["_heard"]
    done = copy_of(c, 0, "x", 0)
    tell(net, "c", "a", TablePublished(heard + 1, NOTHING, (done,), False, heard, 0))
    assert [one.id for one in c.room.completed_migrations()] == ["m0"]
    net.crash("a")
    assert c.ctx.master == "b"
    answer = tell(net, "c", "b", TablePublished(heard - 1, NOTHING, (), False, heard - 2, 0))
    assert answer is not None and not answer.in_step
    assert c.room.completed_migrations() == [], "the new master has settled it"
    whole = TablePublished(7, c.room.table.image(), (), whole=True)
    answer = tell(net, "c", "b", whole)
    assert answer is not None and answer.in_step
    answer = tell(net, "c", "b", TablePublished(8, NOTHING, (), False, 7, 0))
    assert answer is not None and answer.in_step
    answer = tell(net, "c", "b", TablePublished(10, NOTHING, (), False, 9, 0))
    assert answer is not None and not answer.in_step


def test_rows_of_one_message_are_compared_one_by_one() -> None:
    """PIM-02: p0 newer, p1 older, p2 equal in one message: only p0 changes."""
    net = grown()
    b = net.nodes["b"]
    table = b.room.table
    before = [table.state(pid) for pid in P]
    newer = RowState(P[0], before[0].version + 3, row("cb"))
    older = RowState(P[1], before[1].version - 1, row("c"))
    for number, order in enumerate(itertools.permutations(range(3)), 10**9):
        rows = [(newer, older, before[2])[position] for position in order]
        answer = tell(net, "b", "a", TablePublished(number, image_of(7, rows), (), whole=True))
        assert answer is not None
        assert [table.state(pid) for pid in P] == [newer, *before[1:]]
        newer = RowState(P[0], newer.version + 3, newer.row)


def test_the_same_promotion_twice_changes_nothing_the_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIM-11: what is applied already is answered with yes; neither rows, data nor listeners see
    it again.
    """
    wish(monkeypatch, {-1: "cba"})
    net = grown()
    b = net.nodes["b"]
    before = (None, *b.room.table.row(P[0])[1:])
    step = promotion_step(before)
    assert step is not None and step.destination == "b"
    one = MigrationInfo("p0", P[0], step, A, b.room.table.version(P[0]) + 1)
    image = image_of(7, [RowState(P[0], one.final_version, step.apply(before))])
    moments: list[object] = []
    b.room.manager.hook = lambda *moment: moments.append(moment)
    seen: list[tuple[object, ...]] = []
    for number in (1, 1, 2):
        start = len(net.trace)
        with net.step(b):
            b.room.on_message(A, PromotionRequested(number, (one,), image))
        assert [m for _, _, m in net.trace[start:]] == [PromotionAnswered(number, True, "")]
        table, kept = b.room.table, b.room.completed_migrations()
        seen.append((list(table.versions), list(b.host.calls), list(moments), b.told[:], kept))
    assert seen[0] == seen[1] == seen[2] and b.room.table.row(P[0])[0] == "b"
    assert len(moments) == 2
