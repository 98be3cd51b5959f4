"""Goal: what source and destination accept, refuse and repeat, message by message."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.unit.migration_net import NO_VECTOR, SECOND, SETTINGS, Net, wish
from tests.unit.rows import row_from

from whimbrel.core.events import Moment
from whimbrel.core.ids import MemberId, Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    Purpose,
    TablePublished,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.migration.repair import image_of, promotion_step
from whimbrel.core.model import MigrationInfo, MigrationKind, RowState, Step, Verdict
from whimbrel.core.partition.planner import plan_row
from whimbrel.errors import InvariantViolation, SerializationError

P0 = PartitionId(0)
SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)


class Desk:
    """Lite master m, row a b, and c outside; messages are handed over by the test."""

    def __init__(self, patch: pytest.MonkeyPatch, members: str = "mabc") -> None:
        wish(patch, {0: "ab"})
        self.net = Net(SETTINGS_1, 1)
        self.net.add(*members, lite=["m"])
        self.net.settle()
        self.net.fill()
        self.net.trace.clear()
        self.net.on_send = lambda *_: "drop"

    def migration(self, wanted: str = "cb", name: str = "m1", master: str = "m") -> MigrationInfo:
        """The first step from the present row to the wanted one, at the present version."""
        table = self.net.master.room.table
        target = row_from([MemberId(member) for member in wanted])
        step = plan_row(table.row(P0), target)[0]
        return MigrationInfo(name, P0, step, MemberId(master), table.version(P0))

    def tell(self, to: str, sender: str, message: Message) -> list[Message]:
        """What a member sends on a message."""
        before = len(self.net.trace)
        node = self.net.nodes[to]
        with self.net.step(node):
            node.room.on_message(MemberId(sender), message)
        return [message for _, _, message in self.net.trace[before:]]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def fragment(migration: MigrationInfo, sequence: int, data: bytes = b"x", last: bool = False,
             completed: tuple[MigrationInfo, ...] = ()) -> Message:  # fmt: skip
    if not sequence:
        return MigrationOpened(migration, completed)
    part = FragmentPart(Namespace("map/m"), data, NO_VECTOR, (1, 0), sequence == 1, last)
    pid = migration.partition_id
    return TransferSent(Purpose.MIGRATION, migration.id, pid, sequence, (part,), last)


def answer(sequence: int, success: bool = True, reason: str = "", name: str = "m1") -> Message:
    return TransferAnswered(Purpose.MIGRATION, name, sequence, success, reason)


def ok(sequence: int, migration: MigrationInfo) -> list[Message]:
    return [answer(sequence, name=migration.id)]


def refused(messages: list[Message], words: str) -> bool:
    """Whether the only message says no, with these words."""
    (message,) = messages
    kinds = TransferAnswered | MigrationDataAnswered | MigrationCommitAnswered
    assert isinstance(message, kinds)
    said_no = not (
        message.committed if isinstance(message, MigrationCommitAnswered) else message.success
    )
    return said_no and words in message.reason


# -- source -------------------------------------------------------------------------------


def test_a_source_checks_version_role_and_destination(desk: Desk) -> None:
    """ADL-28, PIM-09: behind, ahead, not primary, no such destination: refused, no flag."""
    right = desk.migration()
    for wrong, words in (
        (msgspec.structs.replace(right, initial_version=right.initial_version - 1), "version"),
        (msgspec.structs.replace(right, initial_version=right.initial_version + 1), "version"),
    ):
        assert refused(desk.tell("a", "m", MigrationRequested(wrong, ())), words)
    assert refused(desk.tell("b", "m", MigrationRequested(right, ())), "primary")
    gone = msgspec.structs.replace(
        right, step=msgspec.structs.replace(right.step, destination=MemberId("z"))
    )
    assert refused(desk.tell("a", "m", MigrationRequested(gone, ())), "member list")
    itself = msgspec.structs.replace(
        right, step=msgspec.structs.replace(right.step, destination=MemberId("a"))
    )
    assert refused(desk.tell("a", "m", MigrationRequested(itself, ())), "no other member")
    assert not desk.net.nodes["a"].host.flags


def test_only_the_master_may_ask_a_source(desk: Desk) -> None:
    """ADL-08: a request of somebody else, or of an earlier master, changes nothing."""
    assert desk.tell("a", "b", MigrationRequested(desk.migration(), ())) == []
    assert desk.tell("a", "m", MigrationRequested(desk.migration(master="old"), ())) == []
    assert not desk.net.nodes["a"].room.active_migrations()
    assert any(note.kind == "migration.foreign_request" for note in desk.net.nodes["a"].notes)


def test_one_active_migration_per_partition(desk: Desk) -> None:
    """ADL-27: another one is refused until the verdict; the same one is the same request."""
    first, second = desk.migration(), desk.migration(name="m2")
    probe = desk.tell("a", "m", MigrationRequested(first, ()))
    assert probe == [MigrationOpened(first, ())]
    assert desk.tell("a", "m", MigrationRequested(first, ())) == []
    assert refused(desk.tell("a", "m", MigrationRequested(second, ())), "undecided")
    assert desk.net.nodes["a"].room.active_migrations() == [first]
    failed = first.with_verdict(Verdict.FAILED)
    after = msgspec.structs.replace(second, initial_version=failed.final_version)
    assert desk.tell("a", "m", MigrationRequested(after, (failed,))) == [
        MigrationOpened(after, (failed,))
    ]


def test_a_source_sends_one_fragment_at_a_time_and_repeats_its_answer(desk: Desk) -> None:
    """GCM-34, GCM-36, GCM-40: next after the answer; stale answers ignored; the end is repeated."""
    migration = desk.migration()
    desk.tell("a", "m", MigrationRequested(migration, ()))
    assert desk.tell("a", "b", answer(0)) == []
    for sequence in (1, 2, 3):
        (sent,) = desk.tell("a", "c", answer(sequence - 1))
        assert isinstance(sent, TransferSent)
        assert (sent.sequence, sent.last) == (sequence, sequence == 3)
        assert desk.tell("a", "c", answer(sequence - 1)) == []
    done: list[Message] = [MigrationDataAnswered("m1", True, "", 12)]
    assert desk.tell("a", "c", answer(3)) == done
    assert desk.tell("a", "m", MigrationRequested(migration, ())) == done
    assert desk.net.nodes["a"].host.flags == {0}, "writes wait until the verdict"


def test_a_source_tells_why_it_failed(desk: Desk) -> None:
    """GCM-40: the destination's reason reaches the master; the flag stays until the verdict."""
    desk.tell("a", "m", MigrationRequested(desk.migration(), ()))
    assert refused(desk.tell("a", "c", answer(0, False, "no room")), "no room")
    assert desk.net.nodes["a"].host.flags == {0}


def test_an_empty_partition_needs_only_the_probe(desk: Desk) -> None:
    """FN-6: nothing to copy: the answered probe is the end."""
    desk.net.nodes["a"].host.data[0] = ()
    desk.tell("a", "m", MigrationRequested(desk.migration(), ()))
    assert desk.tell("a", "c", answer(0)) == [MigrationDataAnswered("m1", True, "", 0)]


def test_unanswered_fragments_are_repeated_ever_more_patiently(desk: Desk) -> None:
    """Bounded repetition: after 1, 2, 3, 4, 5, 5, ... call timeouts, and on a restored link."""
    times: list[int] = []

    def lose(_from: str, _to: str, message: Message) -> str:
        if isinstance(message, MigrationOpened):
            times.append(desk.net.now_us)
        return "drop"

    desk.net.on_send = lose
    desk.tell("a", "m", MigrationRequested(desk.migration(), ()))
    desk.net.run_for(62)
    sent = [m for _, _, m in desk.net.trace if isinstance(m, MigrationOpened)]
    assert all(message == sent[0] for message in sent)
    pauses = [(later - sooner) / SECOND for sooner, later in itertools.pairwise(times)]
    assert pauses == [2, 4, 6, 8, 10, 10, 10, 10]
    desk.net.restore_link("a", "c")
    assert len(desk.net.said(MigrationOpened)) == len(sent) + 1
    assert SETTINGS.call_timeout_us == 2 * SECOND


# -- destination --------------------------------------------------------------------------


def test_a_destination_checks_before_it_opens(desk: Desk) -> None:
    """GCM-39, PIM-09, ADL-27: master, role, version, sender; nothing registered on refusal."""
    right = desk.migration()
    old = desk.migration(master="old")
    assert refused(desk.tell("c", "a", fragment(old, 0)), "present master")
    assert refused(desk.tell("b", "a", fragment(right, 0)), "not the destination")
    assert refused(desk.tell("c", "b", fragment(right, 0)), "not the primary")
    ahead = msgspec.structs.replace(right, initial_version=right.initial_version + 1)
    assert refused(desk.tell("c", "a", fragment(ahead, 0)), "version")
    assert refused(desk.tell("c", "a", fragment(right, 1)), "not active")
    assert not desk.net.nodes["c"].room.active_migrations()
    assert not desk.net.nodes["c"].host.ingesting


def test_a_destination_catches_up_by_what_the_probe_carries(desk: Desk) -> None:
    """PIM-08, GCM-39: one finished migration behind: applied first, then it opens."""
    failed = desk.migration(name="m0").with_verdict(Verdict.FAILED)
    right = msgspec.structs.replace(desk.migration(), initial_version=failed.final_version)
    assert desk.tell("c", "a", fragment(right, 0, completed=(failed,))) == ok(0, right)
    assert desk.net.nodes["c"].room.table.version(P0) == failed.final_version


def test_fragments_are_taken_once_and_in_order(desk: Desk) -> None:
    """GCM-39: repeats acknowledged, gaps and foreign ones refused, nothing applied twice."""
    migration = desk.migration()
    assert desk.tell("c", "a", fragment(migration, 0)) == ok(0, migration)
    assert desk.tell("c", "a", fragment(migration, 0)) == ok(0, migration)
    assert desk.tell("c", "a", fragment(migration, 1, b"x")) == ok(1, migration)
    assert desk.tell("c", "a", fragment(migration, 1, b"x")) == ok(1, migration)
    assert refused(desk.tell("c", "a", fragment(migration, 3)), "missing")
    assert refused(desk.tell("c", "b", fragment(migration, 2)), "not active")
    assert refused(desk.tell("c", "a", fragment(desk.migration(name="m2"), 2)), "not active")
    assert desk.tell("c", "a", fragment(migration, 2, b"y", last=True)) == ok(2, migration)
    assert desk.net.nodes["c"].host.ingesting[0][1] == [b"x", b"y"]


def commit(migration: MigrationInfo) -> MigrationCommitRequested:
    return MigrationCommitRequested(migration.with_verdict(Verdict.SUCCESS), ())


def test_commit_by_versions(desk: Desk) -> None:
    """PIM-10, ADL-18, bug 3: final = local yes; final < local no; initial wrong no; else match."""
    right = desk.migration()
    c = desk.net.nodes["c"]
    for sequence in range(3):
        desk.tell("c", "a", fragment(right, sequence, last=sequence == 2))
    assert desk.tell("c", "b", commit(right)) == []
    ahead = msgspec.structs.replace(right, id="m9", initial_version=right.initial_version + 5)
    assert refused(desk.tell("c", "m", commit(ahead)), "partition version is")
    yes: list[Message] = [MigrationCommitAnswered("m1", True, "")]
    assert desk.tell("c", "m", commit(right)) == yes
    calls = list(c.host.calls)
    assert desk.tell("c", "m", commit(right)) == yes
    assert c.host.calls == calls, "a repeated commit finalises nothing"
    older = msgspec.structs.replace(right, id="m0", initial_version=right.initial_version - 1)
    assert refused(desk.tell("c", "m", commit(older)), "already")
    assert c.room.table.row(P0)[0] == "c"
    assert [m.id for m in c.room.completed_migrations()] == ["m1"]


@pytest.mark.parametrize(
    ("before", "late", "words"),
    [
        ((), (0, 1, 2), "not active"),
        ((), (0,), "not active"),
        ((0, 1), (2,), "not received everything"),
    ],
)
def test_a_destination_that_says_no_never_commits(
    desk: Desk, before: tuple[int, ...], late: tuple[int, ...], words: str
) -> None:
    """ADL-18, PIM-10: its master decides by the answer, so no is for good: whatever comes late, the
    rest of the data and the same request once more, it is not committed; the verdict ends it.
    """
    right = desk.migration()
    c = desk.net.nodes["c"]
    messages = [fragment(right, sequence, last=sequence == 2) for sequence in range(3)]
    for sequence in before:
        desk.tell("c", "a", messages[sequence])
    assert refused(desk.tell("c", "m", commit(right)), words)
    for sequence in late:
        assert desk.tell("c", "a", messages[sequence]) == ok(sequence, right)
    assert refused(desk.tell("c", "m", commit(right)), "refused")
    assert c.room.table.version(P0) == right.initial_version
    assert not c.room.completed_migrations()
    failed = right.with_verdict(Verdict.FAILED)
    again = msgspec.structs.replace(right, id="m2", initial_version=failed.final_version)
    for sequence in range(3):
        carried = () if sequence else (failed,)
        desk.tell("c", "a", fragment(again, sequence, last=sequence == 2, completed=carried))
    assert c.host.rolled_back == 1
    assert desk.tell("c", "m", commit(again)) == [MigrationCommitAnswered("m2", True, "")]


def test_a_damaged_fragment_ends_the_copy_and_never_commits(desk: Desk) -> None:
    """ADL-74: refused with the reason, also when repeated; rolled back on the failed verdict."""
    migration = desk.migration()
    desk.tell("c", "a", fragment(migration, 0))
    host = desk.net.nodes["c"].host

    def ingest(_migration: object, _parts: object) -> None:
        raise SerializationError("bad bytes")

    patch = pytest.MonkeyPatch()
    patch.setattr(host, "ingest", ingest)
    assert refused(desk.tell("c", "a", fragment(migration, 1, last=True)), "bad bytes")
    assert refused(desk.tell("c", "a", fragment(migration, 1, last=True)), "bad bytes")
    patch.undo()
    assert refused(desk.tell("c", "a", fragment(migration, 2, last=True)), "bad bytes"), "for good"
    assert refused(desk.tell("c", "m", commit(migration)), "not received everything")
    failed = migration.with_verdict(Verdict.FAILED)
    desk.tell("c", "a", fragment(desk.migration(name="m2"), 0, completed=(failed,)))
    assert host.rolled_back == 1 and host.calls[-2:] == [
        ("rollback_destination", 0),
        ("row_changed", 0),
    ]


def test_a_row_that_moved_on_ends_an_open_migration(desk: Desk) -> None:
    """ADL-24: the row wins: rolled back at the destination, flag off at the source, once."""
    migration = desk.migration()
    desk.tell("a", "m", MigrationRequested(migration, ()))
    desk.tell("c", "a", fragment(migration, 0))
    table = desk.net.master.room.table
    state = RowState(P0, table.version(P0) + 7, row_from([MemberId("a")]))
    for name in "ac":
        promotion = PromotionRequested(1, (), image_of(1, [state]))
        desk.tell(name, "m", promotion)
        assert not desk.net.nodes[name].room.active_migrations()
    assert not desk.net.nodes["a"].host.flags
    assert desk.net.nodes["c"].host.rolled_back == 1 and not desk.net.nodes["c"].host.data


# -- promotion ----------------------------------------------------------------------------


def test_a_promotion_that_is_known_already_changes_nothing(desk: Desk) -> None:
    """PIM-11: the same commit again, and late, when everybody has heard of it, is answered yes; no
    version rises, no data is touched, services are told nothing, nothing is kept anew.
    """
    b = desk.net.nodes["b"]
    told: list[Moment] = []
    b.room.set_hook(lambda moment, _event: told.append(moment))
    row = row_from([None, MemberId("b")])
    step, version = promotion_step(row), b.room.table.version(P0) + 1
    assert step is not None
    promotion = MigrationInfo("p1", P0, step, MemberId("m"), version, Verdict.SUCCESS)
    image = image_of(1, [RowState(P0, promotion.final_version, step.apply(row))])
    request = PromotionRequested(1, (promotion,), image)
    yes: list[Message] = [PromotionAnswered(1, True, "")]
    assert desk.tell("b", "m", request) == yes
    assert told == [Moment.BEFORE, Moment.COMMIT] and b.room.table.row(P0)[0] == "b"
    before = list(b.host.calls), list(told), list(b.room.table.versions)
    assert desk.tell("b", "m", request) == yes
    assert [m.id for m in b.room.completed_migrations()] == ["p1"]
    number = 10**9
    empty = image_of(1, [])
    heard = vars(b.room.subscriber)["_heard"]
    desk.tell("b", "m", TablePublished(number, empty, (promotion,), False, heard))
    desk.tell("b", "m", TablePublished(number + 1, empty, (), False, number, floor=number))
    assert not b.room.completed_migrations()
    assert desk.tell("b", "m", request) == yes
    assert not b.room.completed_migrations(), "everybody knows it"
    assert (list(b.host.calls), list(told), list(b.room.table.versions)) == before


def test_promotions_are_skipped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-12: three promotions, one of a partition whose local version is greater: two applied.

    ADL-02: none of a member that is not the master, however new its rows are.
    """
    net = Net(msgspec.structs.replace(SETTINGS, partition_count=3), 1)
    wish(monkeypatch, {-1: "ab"})
    net.add("m", "a", "b", lite=["m"])
    net.settle()
    net.fill()
    b = net.nodes["b"]
    states, migrations = [], []
    for pid in map(PartitionId, range(3)):
        row = row_from([None, MemberId("b")])
        step = promotion_step(row)
        assert step is not None
        version = b.room.table.version(pid) + 1
        migrations.append(MigrationInfo(f"p{pid}", pid, step, MemberId("m"), version))
        states.append(RowState(pid, version + 2, step.apply(row)))
    newer = RowState(PartitionId(1), states[1].version + 4, row_from([MemberId("a")]))
    for batch, images in ((1, [newer]), (2, states), (2, states)):
        message = PromotionRequested(batch, tuple(migrations), image_of(3, images))
        with net.step(b):
            b.room.on_message(MemberId("m"), message)
    assert [row[0] for row in b.room.table.rows] == ["b", "a", "b"]
    foreign = RowState(PartitionId(0), states[0].version + 9, row_from([MemberId("a")]))
    with net.step(b):
        b.room.on_message(MemberId("a"), PromotionRequested(3, (), image_of(3, [foreign])))
    assert [row[0] for row in b.room.table.rows] == ["b", "a", "b"]
    assert any(note.kind == "migration.foreign_promotion" for note in b.notes)


def test_a_verdict_that_would_lose_data_stops_the_member(desk: Desk) -> None:
    """ADL-16, GCM-36: news of a commit for which data are still missing here, and a migration that
    would leave nobody as primary, are bugs: the member stops before its table and data follow.
    """
    right = desk.migration()
    c = desk.net.nodes["c"]
    for sequence in range(2):
        desk.tell("c", "a", fragment(right, sequence))
    before, manager = c.room.table.state(P0), c.room.manager
    done = right.with_verdict(Verdict.SUCCESS)
    row = RowState(P0, done.final_version, done.step.apply(before.row))
    with pytest.raises(InvariantViolation, match="arrived whole"):
        manager.apply_row(row)
    ended = Step(MigrationKind.CLEAR, MemberId("a"), None, source_current=ReplicaIndex(0))
    orphan = MigrationInfo("m2", P0, ended, MemberId("m"), before.version, Verdict.SUCCESS)
    with pytest.raises(InvariantViolation, match="leaves a primary"):
        manager.apply_completed(orphan)
    assert c.room.table.state(P0) == before
