"""Goal: every member ends on the master's table, whatever is lost, and lists stay bounded."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import SECOND, SETTINGS, Net, Node
from tests.unit.rows import row_from

from whimbrel.core.effects import Send
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.messages import (
    Message,
    PromotionRequested,
    PublicationAnswered,
    StampPublished,
    TableImage,
    TablePublished,
    TableRequested,
)
from whimbrel.core.migration.publication import NewsPublisher, Peer
from whimbrel.core.migration.repair import image_of, promotion_step
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import InvariantViolation, ProtocolError

P = [PartitionId(pid) for pid in range(7)]
NOTHING = PartitionTable(7).image(())


def grown(names: str = "abc", settings: CoreSettings = SETTINGS) -> Net:
    net = Net(settings, 1)
    net.add(*names)
    net.settle()
    net.fill()
    net.trace.clear()
    return net


def tell(net: Net, to: str, sender: str, message: Message) -> PublicationAnswered | None:
    """Hand a message to a member; returns its answer to the sender, if any."""
    node = net.nodes[to]
    before = len(net.trace)
    with net.step(node):
        node.room.on_message(MemberId(sender), message)
    answers = [m for _, _, m in net.trace[before:] if isinstance(m, PublicationAnswered)]
    return answers[-1] if answers else None


def rows_after(node: Node, *pids: int, rise: int = 1) -> TableImage:
    """The rows a master would send if it had emptied the last slot of these rows."""
    table = node.room.table
    changed = []
    for pid in pids:
        row = list(table.row(P[pid]))
        last = max(index for index, member in enumerate(row) if member is not None)
        row[last] = None
        changed.append(RowState(P[pid], table.version(P[pid]) + rise, tuple(row)))
    return image_of(7, changed)


def copy_of(node: Node, pid: int, name: str, number: int) -> MigrationInfo:
    """A finished COPY that follows a member's row."""
    row = node.room.table.row(P[pid])
    hole = ReplicaIndex(row.index(None))
    step = Step(MigrationKind.COPY, None, MemberId(name), destination_new=hole)
    version = node.room.table.version(P[pid])
    return MigrationInfo(f"m{number}", P[pid], step, MemberId("a"), version, Verdict.SUCCESS)


def test_newer_rows_only_and_only_from_the_master() -> None:
    """ADL-08, PIM-02, bug 60: newer taken, older and equal ignored, foreign sender refused."""
    net = grown()
    b = net.nodes["b"]
    image = rows_after(b, 0)
    versions = list(b.room.table.versions)
    assert tell(net, "b", "c", TablePublished(10**9, image, (), whole=True)) is None
    assert b.room.table.versions == versions
    assert any(note.kind == "migration.foreign_table" for note in b.notes)
    answer = tell(net, "b", "a", TablePublished(10**9, image, (), whole=True))
    assert answer is not None and answer.in_step and answer.stamp == b.room.table.stamp
    assert b.room.table.versions == [versions[0] + 1, *versions[1:]]
    tell(
        net, "b", "a", TablePublished(10**9 + 1, net.master.room.table.image(None), (), whole=True)
    )
    assert b.room.table.versions == [versions[0] + 1, *versions[1:]]
    assert b.told == [*b.told[:-1], 0]


def test_equal_version_with_another_row_stops_the_member() -> None:
    """PIM-02: divergence raises; nothing goes on as if it were all right."""
    net = grown()
    image = rows_after(net.nodes["b"], 0, rise=0)
    with pytest.raises(InvariantViolation):
        tell(net, "b", "a", TablePublished(10**9, image, (), whole=True))


def test_a_broken_image_changes_nothing() -> None:
    """Bad input: a clear error, no row applied."""
    net = grown()
    b = net.nodes["b"]
    versions = list(b.room.table.versions)
    broken = TableImage((), (0, 99), (1_000, 1_000), b"\xff" * 28)
    with pytest.raises(ProtocolError):
        b.room.on_message(MemberId("a"), TablePublished(10**9, broken, (), whole=True))
    assert b.room.table.versions == versions


def test_a_member_keeps_what_the_last_message_says_it_must() -> None:
    """ADL-25, ADL-26: list {1,2}, then message {3} with everybody's acknowledgement of 1 and 2."""
    net = grown("abcd")
    b = net.nodes["b"]
    after = vars(b.room.subscriber)["_heard"]
    done = [copy_of(b, pid, "x", pid) for pid in (0, 1, 2)]
    number = 10**9
    answer = tell(net, "b", "a", TablePublished(number, NOTHING, tuple(done[:2]), False, after, 0))
    assert answer is not None and answer.in_step
    assert [m.id for m in b.room.completed_migrations()] == ["m0", "m1"]
    tell(net, "b", "a", TablePublished(number + 1, NOTHING, (done[2],), False, number, 0))
    assert [m.id for m in b.room.completed_migrations()] == ["m0", "m1", "m2"]
    tell(net, "b", "a", TablePublished(number + 2, NOTHING, (), False, number + 1, number))
    assert [m.id for m in b.room.completed_migrations()] == ["m2"]


@pytest.mark.parametrize(("parts", "missing"), [(1, None), (3, None), (3, 0), (3, 1)])
def test_a_whole_table_tells_all_that_is_to_be_kept(parts: int, missing: int | None) -> None:
    """ADL-26: list {1,2,3}, one committed here, then a table with {3,4}: {3,4} are kept, also when
    it comes in parts. With a part missing nothing is forgotten.
    """
    net = grown("abcd")
    b = net.nodes["b"]
    number, heard = 10**9, vars(b.room.subscriber)["_heard"]
    done = [copy_of(b, pid, "x", pid) for pid in range(6)]
    tell(net, "b", "a", TablePublished(number, NOTHING, tuple(done[1:4]), False, heard, 0))
    b.room.subscriber.remember(done[5])
    for part in range(parts):
        is_last = part == parts - 1
        number += 1
        message = TablePublished(
            number,
            NOTHING,
            tuple(done[3:5]) if is_last else (),
            whole=part == 0,
            after=number - 1 if part else 0,
            more=not is_last,
        )
        if part != missing:
            tell(net, "b", "a", message)
    kept = [m.id for m in b.room.completed_migrations()]
    assert kept == (["m3", "m4"] if missing is None else ["m1", "m2", "m3", "m4", "m5"])


def test_a_member_keeps_what_somebody_may_not_know() -> None:
    """ADL-25, ADL-26: news carry only what is new, so a member keeps more than the last message: at
    every moment all that the master has told it and still keeps. One member answers nothing for a
    while, so that there is much; a new master would find it with any of the others.
    """
    net = grown("abcde", msgspec.structs.replace(SETTINGS, partition_count=60))
    net.on_send = lambda sender, _to, m: (
        "drop" if sender == "e" and isinstance(m, PublicationAnswered) else "deliver"
    )
    most = 0

    def watch(_node: Node) -> None:
        nonlocal most
        log = vars(net.master.room.loop.publisher)["_log"]
        for node in net.live[1:]:
            subscriber = node.room.subscriber
            kept = {migration.id for migration in subscriber.completed}
            told = [
                news.migration.id
                for news in log
                if news.migration is not None and news.number <= vars(subscriber)["_heard"]
            ]
            assert kept.issuperset(told), node.id
            most = max(most, len(told))

    net.after_step = watch
    net.add("f")
    net.run_for(3)
    assert most > 5
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_a_member_keeps_no_more_than_the_master() -> None:
    """ADL-25, inv P8: what the master's log has dropped from the middle of a publication goes,
    oldest first, although other migrations of that publication are still to be kept.
    """
    net = grown("abcd", msgspec.structs.replace(SETTINGS, completed_batch_max=3))
    b = net.nodes["b"]
    heard, number = vars(b.room.subscriber)["_heard"], 10**9
    done = [copy_of(b, pid, "x", pid) for pid in range(5)]
    tell(net, "b", "a", TablePublished(number, NOTHING, tuple(done[:3]), False, heard, number - 1))
    assert [m.id for m in b.room.completed_migrations()] == ["m0", "m1", "m2"]
    later = TablePublished(number + 1, NOTHING, tuple(done[3:]), False, number, number - 1)
    tell(net, "b", "a", later)
    assert [m.id for m in b.room.completed_migrations()] == ["m2", "m3", "m4"]
    # Sent again from before the first one: the order is that of the message.
    again = TablePublished(number + 1, NOTHING, tuple(done[2:]), False, heard, number - 1)
    tell(net, "b", "a", again)
    assert [m.id for m in b.room.completed_migrations()] == ["m2", "m3", "m4"]


def test_promotions_that_nobody_has_told_yet_are_bounded() -> None:
    """ADL-25, ADL-30: a batch of promotions is kept up to ``migration_max_parallel``; the rows
    tell the others, and a new master goes by the newest row.
    """
    net = grown("abcd", msgspec.structs.replace(SETTINGS, migration_max_parallel=2))
    b = net.nodes["b"]
    promoted, rows = [], []
    for pid in (0, 1, 2, 3):
        row = row_from([None, MemberId("b")])
        step, version = promotion_step(row), b.room.table.version(P[pid])
        assert step is not None
        promoted.append(MigrationInfo(f"p{pid}", P[pid], step, MemberId("a"), version))
        rows.append(RowState(P[pid], version + 2, step.apply(row)))
    with net.step(b):
        b.room.on_message(MemberId("a"), PromotionRequested(1, tuple(promoted), image_of(7, rows)))
    assert [m.id for m in b.room.completed_migrations()] == ["p2", "p3"]
    assert [b.room.table.row(P[pid])[0] for pid in (0, 1, 2, 3)] == ["b"] * 4


def test_a_gap_is_noticed_and_told() -> None:
    """ADL-10: a lost publication shows in the next one; what can be applied is applied."""
    net = grown("abcd")
    b = net.nodes["b"]
    heard = vars(b.room.subscriber)["_heard"]
    done = copy_of(b, 0, "x", 1)
    answer = tell(net, "b", "a", TablePublished(10**9, NOTHING, (done,), False, heard + 1, 0))
    assert answer is not None and not answer.in_step
    assert b.room.table.version(P[0]) == done.final_version
    ahead = msgspec.structs.replace(done, id="m9", initial_version=done.final_version + 3)
    answer = tell(net, "b", "a", TablePublished(10**9, NOTHING, (ahead,), False, heard, 0))
    assert answer is not None and not answer.in_step


def test_a_member_that_misses_publications_catches_up() -> None:
    """ADL-10, PIM-03, PIM-05, bugs 16, 53: all news to one member are lost, then it heals."""
    net = grown()
    net.on_send = lambda _f, to, m: (
        "drop" if to == "b" and isinstance(m, TablePublished) else "deliver"
    )
    net.add("d")
    net.run_for(3)
    assert net.nodes["b"].room.table.versions != net.master.room.table.versions
    assert "acknowledged" in net.master.room.is_settled()[1] or not net.master.room.is_settled()[0]
    net.on_send = lambda *_: "deliver"
    net.settle(15)
    net.check()


def test_stamps_are_compared_periodically() -> None:
    """ADL-10: a member with another table asks; equal tables cost one small message each."""
    net = grown()
    net.run_for(20)
    stamps = net.said(StampPublished)
    assert len(stamps) == 2 and not net.said(TableRequested, TablePublished)
    b = net.nodes["b"]
    tell(net, "b", "a", TablePublished(10**9, rows_after(b, 3), (), True))
    before = len(net.trace)
    net.run_for(20)
    asked = [m for _, _, m in net.trace[before:] if isinstance(m, TableRequested)]
    assert asked == [TableRequested(b.room.table.stamp)]


def test_news_are_small() -> None:
    """PIM-04: what a finished migration costs does not depend on the number of partitions."""
    sizes = []
    for count in (7, 140):
        net = grown("ab", msgspec.structs.replace(SETTINGS, partition_count=count))
        net.add("c")
        net.settle()
        news = [m for _, _, m in net.trace if isinstance(m, TablePublished) and not m.whole]
        sizes.append(max(len(msgspec.msgpack.encode(m)) for m in news if len(m.completed) == 1))
    assert sizes[1] <= sizes[0] + 8


def test_lists_are_bounded_while_a_member_is_mute() -> None:
    """ADL-25, inv P8: at most ``completed_batch_max``; the mute one then gets the whole table."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=60, completed_batch_max=5)
    net = grown("abcd", settings)
    net.on_send = lambda sender, to, _m: (
        "drop" if "d" in (sender, to) and sender != to else "deliver"
    )
    longest = 0

    def watch(node: Node) -> None:
        nonlocal longest
        longest = max(longest, len(node.room.completed_migrations()))

    net.after_step = watch
    net.add("e")
    net.run_for(1)
    assert 3 < longest <= 5 + 10, "a list may exceed its limit by one flush only"
    net.on_send = lambda *_: "deliver"
    net.trace.clear()
    net.settle()
    net.check()
    assert any(m.whole for _, to, m in net.trace if to == "d" and isinstance(m, TablePublished))


def test_a_silent_member_is_sent_repeats_only() -> None:
    """Bounded waiting: a member that does not answer is sent more with time, not with news."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=200)
    net = grown("abc", settings)
    net.on_send = lambda sender, _to, _m: "drop" if sender == "c" else "deliver"
    net.add("d")
    net.run_for(2.5)
    net.trace.clear()
    net.run_for(20)
    assert len([m for _, to, m in net.trace if to == "c" and isinstance(m, TablePublished)]) <= 11


def test_a_restored_link_repeats_at_once() -> None:
    """Design decision: every request is repeated; a reset does not cost a whole time-out."""
    net = grown()
    net.on_send = lambda *_: "drop"
    net.leave("c")
    net.run_for(0.01)
    net.on_send = lambda *_: "deliver"
    begun = net.now_us
    for name in "bc":
        net.restore_link("a", name)
    net.restore_link("b", "c")
    net.settle(1.5)
    assert net.now_us - begun < 1.5 * SECOND
    net.check()


def test_table_requests_are_answered_with_measure() -> None:
    """A suspicion (stamp 0) of a member that has everything is not worth a whole table."""
    net = grown()
    for stamp, whole in ((0, 0), (net.master.room.table.stamp, 0), (4711, 1), (4711, 1)):
        tell(net, "a", "b", TableRequested(stamp))
        sent = [m for _, _, m in net.trace if isinstance(m, TablePublished) and m.whole]
        assert len(sent) == whole
    net.settle()
    net.check()


def test_the_completed_list_drains() -> None:
    """ADL-25, inv P8: kept while one member cannot answer; emptied once it does."""
    net = grown()
    net.on_send = lambda sender, _to, m: (
        "drop" if sender == "b" and isinstance(m, PublicationAnswered) else "deliver"
    )
    net.add("d")
    net.run_for(10)
    assert net.master.room.completed_migrations()
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()
    net.run_for(1)
    assert not net.master.room.completed_migrations()


def test_only_who_lacks_what_is_forgotten_gets_the_whole_table() -> None:
    """ADL-25: of the oldest news that go, one member has acknowledged the last, another has not."""
    settings = msgspec.structs.replace(SETTINGS, completed_batch_max=5)
    net = Net(settings, 1)
    ctx = net.add_alone("a").ctx
    publisher = NewsPublisher(ctx, PartitionTable(7), ())
    behind, level = (Peer(MemberId(name), owed_whole=False) for name in "bc")
    publisher.peers = {peer.asked: peer for peer in (behind, level)}
    numbers = []
    for pid in range(5):
        publisher.stage_row(P[pid])
        publisher.flush()
        numbers.append(publisher.latest)
    assert not behind.owed_whole and not level.owed_whole
    behind.acked, level.acked = numbers[:2]
    publisher.stage_row(P[5])
    publisher.stage_row(P[6])
    publisher.flush()
    assert (behind.owed_whole, level.owed_whole) == (True, False)


def test_what_is_decided_and_not_sent_yet_is_known_to_nobody() -> None:
    """ADL-25: a migration is kept from its verdict on. Method: the verdict, the next flush."""
    net = grown("ab")
    publisher = NewsPublisher(net.add_alone("m").ctx, PartitionTable(7), ())
    publisher.peers = {MemberId("b"): Peer(MemberId("b"), owed_whole=False)}
    done = copy_of(net.master, 0, "x", 1)
    publisher.stage_completed(done)
    assert publisher.completed == [done]
    publisher.flush()
    assert publisher.completed == [done]


@pytest.mark.parametrize("early_us", [1, 0])
def test_who_has_not_answered_for_a_call_time_out_gets_no_news(early_us: int) -> None:
    """Bounded waiting: a member is silent from that very moment on. Method: a change just before
    it, and at it.
    """
    ctx = Net(SETTINGS, 1).add_alone("a").ctx
    table = PartitionTable(7)
    table.set_row(P[0], row_from([MemberId("a")]), 1)
    publisher = NewsPublisher(ctx, table, ())
    since_us = ctx.now_us - SETTINGS.call_timeout_us + early_us
    publisher.peers = {MemberId("b"): Peer(MemberId("b"), owed_whole=False, since_us=since_us)}
    ctx.effects.clear()
    publisher.stage_row(P[0])
    publisher.flush()
    assert len([one for one in ctx.effects if isinstance(one, Send)]) == early_us
