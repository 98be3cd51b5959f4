"""Goal: what a plan may do and when: the order of the stages, the end of a failed plan, figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from tests.unit.migration_net import MS, SECOND, SETTINGS, Net, Node, watch_verdicts, wish
from tests.unit.rows import row_from

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.jobs import finish
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    MigrationOpened,
    MigrationRequested,
    Progress,
    PromotionAnswered,
    PromotionRequested,
    PublicationAnswered,
    StateRequested,
    TablePublished,
)
from whimbrel.core.model import MigrationInfo, MigrationKind, Step, Verdict
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import InvariantViolation, SerializationError

P0 = PartitionId(0)
SETTINGS_1 = msgspec.structs.replace(SETTINGS, partition_count=1)
REFILLS = ("COPY", "SHIFT_UP")


def grown(names: str, backups: int = 1, settings: CoreSettings = SETTINGS, lite: str = "") -> Net:
    net = Net(settings, backups)
    net.add(*names, lite=list(lite))
    net.settle()
    net.fill()
    net.trace.clear()
    return net


def refuse(net: Net, name: str, numbers: tuple[int, ...]) -> list[str]:
    """Add a member that cannot take in the copies with these numbers; ids of those it has not."""
    node = net.nodes[name] = Node(net, name, lite=False)
    seen: list[str] = []
    refused: list[str] = []
    take = node.host.ingest

    def ingest(migration: MigrationInfo, parts: Sequence[FragmentPart]) -> Progress:
        if migration.id not in seen:
            seen.append(migration.id)
        if seen.index(migration.id) + 1 in numbers:
            refused.append(migration.id)
            raise SerializationError("damaged on purpose")
        return take(migration, parts)

    node.host.ingest = ingest  # type: ignore[method-assign]
    net.order.append(name)
    net.view()
    return refused


# -- the order of the stages --------------------------------------------------------------

STAGES: dict[type[Message] | str, str] = {
    StateRequested: "fetch",
    TablePublished: "publish",
    PromotionRequested: "promote",
    "migration.planned": "plan",
    MigrationRequested: "migrate",
}


class Log(list[Note]):
    """Notes of a member, each told when it is added."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__()
        self.told = told

    def append(self, note: Note) -> None:
        self.told(note.kind)
        super().append(note)


def stages(net: Net, occasion: str) -> list[str]:
    """What the master did after an occasion, each stage when it begins."""
    seen: list[str] = []

    def saw(name: str, what: type[Message] | str) -> None:
        if name == net.master.id and what in STAGES:
            seen.append(STAGES[what])

    def heard(sender: str, _to: str, message: Message) -> str:
        saw(sender, type(message))
        return "deliver"

    net.on_send = heard
    for node in net.live:
        node.notes = Log(lambda kind, name=node.id: saw(name, kind))  # type: ignore[misc]
    if occasion == "join":
        net.add("e")
    elif occasion == "leave":
        net.leave("c")
    else:
        net.crash("a" if occasion == "change of master" else "c")
    net.settle()
    net.check()
    return [stage for stage, _ in itertools.groupby(seen)]


@pytest.mark.parametrize(
    ("occasion", "first"),
    [
        ("join", ["publish", "plan", "migrate"]),
        ("leave", ["plan", "migrate"]),
        ("crash", ["publish", "promote", "publish", "plan", "migrate"]),
        ("change of master", ["fetch", "publish", "promote", "publish", "plan", "migrate"]),
    ],
)
def test_the_order_of_the_stages(
    occasion: str, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADL-49, ADL-14: settle a change of master, publish, repair, then plan and migrate; each
    stage begins when the one before has ended.
    """
    wish(monkeypatch, {0: "acbd", 1: "cbad", -1: "bdca"})
    net = grown("abcd", 2)
    wish(monkeypatch, {0: "acbd", 1: "cbad", 2: "ebda", -1: "bdca"})
    seen = stages(net, occasion)
    assert seen[: len(first)] == first
    rest = seen[len(first) :]
    assert not {"fetch", "promote"} & set(rest) and seen.count("plan") == 1


@pytest.mark.parametrize("lost", [PromotionRequested, PromotionAnswered])
def test_nothing_is_planned_while_promotions_are_under_way(
    lost: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADL-49, PIM-05: a promotion takes longer than a call: no plan meanwhile, and when it is over
    the plan waits until its members know the promoted rows, so that none of its copies is refused.
    """
    wish(monkeypatch, {-1: "dbca"})
    net = grown("abcd", 2)
    promotions = 0

    def fate(_from: str, _to: str, message: Message) -> str:
        nonlocal promotions
        promotions += isinstance(message, lost)
        return "drop" if isinstance(message, lost) and promotions < 3 else "deliver"

    loop = net.master.room.loop
    planned: list[tuple[bool, list[MemberId]]] = []

    def heard(kind: str) -> None:
        if kind == "migration.planned":
            planned.append((loop.repair.is_promoting, loop.publisher.unacknowledged))

    def watch(_: Node) -> None:
        busy = loop.execution.running_migrations or loop.execution.queue.waiting_count
        assert not (busy and loop.repair.is_promoting)

    net.on_send = fate
    net.delay_us = lambda is_data: MS if is_data else 40 * MS
    net.master.notes = Log(heard)
    net.after_step = watch
    net.crash("d")
    net.settle()
    net.check()
    assert promotions >= 3 and planned == [(False, [])]
    assert net.master.room.reporter.finished[-1]["failed"] == 0


def test_a_new_master_first_tells_the_table_as_it_found_it() -> None:
    """ADL-14: the table that everybody gets first still has the seats of the dead; they are
    emptied in what follows.
    """
    net = grown("abcd", 2)
    settled = list(net.master.room.table.rows)
    assert any("a" in row for row in settled)
    net.crash("a")
    net.settle()
    told: dict[str, TablePublished] = {}
    for sender, to, message in net.trace:
        if sender == "b" and isinstance(message, TablePublished):
            told.setdefault(to, message)
    table = net.master.room.table
    for to in "cd":
        assert told[to].whole
        assert [state.row for state in table.take_image(told[to].image)] == settled


# -- a plan that fails --------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("parallel", [1, 2])
def test_nothing_starts_after_a_failure(number: int, parallel: int) -> None:
    """PIM-28, bugs 16 to 19: the k-th copy fails: nothing of its plan starts after that, what
    runs ends, flags and permits are free before the next plan.
    """
    settings = msgspec.structs.replace(
        SETTINGS, partition_count=30, migration_max_parallel=parallel
    )
    net = grown("ab", settings=settings)
    failed_us: list[int] = []
    late: list[int] = []

    def watch(node: Node) -> None:
        failed = [note for note in node.notes if note.kind == "migration.failed"]
        if failed and not failed_us:
            failed_us.append(net.now_us)
        execution = net.master.room.loop.execution
        if failed_us and net.now_us < failed_us[0] + 3 * SECOND:
            late.extend(f.started_us for f in execution.running_migrations.values())
            if not execution.running_migrations:
                assert not execution.queue.waiting_count
                for name in map(MemberId, "abc"):
                    with pytest.raises(InvariantViolation, match="once per migration"):
                        execution.queue.release(name, name)

    net.after_step = watch
    refused = refuse(net, "c", (number,))
    net.settle()
    net.check()
    assert len(refused) == 1 and len(failed_us) == 1
    assert not [us for us in late if us >= failed_us[0]], "a start after the failure"
    first, second = list(net.master.room.reporter.finished)[-2:]
    assert first["failed"] == 1 and int(str(first["remaining"])) > 0
    assert second["reason"] == "retry after a failed migration" and not second["failed"]


def test_a_start_that_fails_at_once_ends_the_plan() -> None:
    """PIM-28: a step whose destination is on no list is decided as it starts, and the next step,
    which could start, does not.
    """
    net = grown("abcd")
    execution = net.master.room.loop.execution
    process = net.master.room.reporter.begin("by hand", "m-1")
    plan = []
    for pid, name in enumerate(("z", "", "")):
        row = net.master.room.table.row(PartitionId(pid))
        member = MemberId(name or next(name for name in "abcd" if name not in row))
        step = Step(MigrationKind.COPY, None, member, destination_new=ReplicaIndex(2))
        plan.append((PartitionId(pid), (step,)))
    with net.step(net.master):
        finish(execution.queue.loading(plan))
        execution.load(plan, process)
        execution.advance()
        assert (process.failed, process.running, execution.is_idle) == (1, 0, True)
        execution.advance()
    assert not net.said(MigrationRequested)


# -- verdicts -----------------------------------------------------------------------------


def test_a_failed_migration_is_told_as_a_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-23: every verdict goes to the completed list, a failure as well: the list grows by one,
    its entry says FAILED, and it travels to every member instead of a bare row.
    """
    wish(monkeypatch, {0: "ab"})
    net = grown("mab", settings=SETTINGS_1, lite="m")
    wish(monkeypatch, {0: "cb"})
    net.on_send = lambda sender, _to, message: (
        "drop" if sender == "b" and isinstance(message, PublicationAnswered) else "deliver"
    )
    refused = refuse(net, "c", (1,))
    net.run(stop=lambda: bool(refused))
    net.run_for(0.5)
    (failed,) = net.master.room.completed_migrations()
    assert (failed.id, failed.verdict) == (refused[0], Verdict.FAILED)
    for name in "abc":
        news = [
            message
            for sender, to, message in net.trace
            if sender == "m" and to == name and isinstance(message, TablePublished)
        ]
        assert [m.image.partitions for m in news if failed in m.completed] == [()]
        assert failed in net.nodes[name].room.completed_migrations()
        assert net.nodes[name].room.table.version(P0) == failed.final_version
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_a_slot_is_cleared_after_what_is_open_in_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADL-53, PIM-13: `abce` to `dbc`: the clear is a migration of its own, + 1, sends
    no data, and is decided when the other steps of its partition are; never before, never at 0.
    """
    wish(monkeypatch, {0: "abce"})
    net = grown("mabce", 3, SETTINGS_1, "m")
    version = net.master.room.table.version(P0)
    wish(monkeypatch, {0: "dbc"})
    for node in net.live:
        node.room.loop.depth = 3
    net.backup_count = 2
    for name in "abce":
        net.nodes[name].host.backup_count = 2
    steps: list[MigrationInfo] = []

    def watch(node: Node) -> None:
        for one in net.master.room.completed_migrations():
            if one not in steps:
                assert not net.master.room.running_migrations()
                steps.append(one)

    net.after_step = watch
    net.add("d")
    net.settle()
    net.check()
    assert [one.step.kind for one in steps] == [MigrationKind.MOVE, MigrationKind.CLEAR]
    clear = steps[-1]
    assert (clear.step.source, clear.step.source_current, clear.verdict) == ("e", 3, "SUCCESS")
    assert clear.final_version == clear.initial_version + 1 == version + 2
    assert net.master.room.table.version(P0) == version + 2
    assert {to for _, to, _ in net.said(MigrationOpened)} == {"d"}


# -- the order of a plan ------------------------------------------------------------------


def test_refilling_is_started_before_balancing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-27: one at a time, some partitions lack a backup and others only change hands: every
    refill starts before any move, twice in the same order.
    """
    settings = msgspec.structs.replace(SETTINGS, partition_count=12, migration_max_parallel=1)
    wanted: dict[int, Sequence[str]] = {pid: "cb" if pid % 2 else "ad" for pid in range(12)}
    orders = []
    for _ in range(2):
        wish(monkeypatch, {-1: "ab"})
        net = grown("mab", settings=settings, lite="m")
        for pid in map(PartitionId, range(0, 12, 2)):
            for node in net.live:
                with net.step(node):
                    version = node.room.table.version(pid) + 1
                    node.room.manager.change(pid, row_from([MemberId("a")]), version)
        wish(monkeypatch, wanted)
        net.add("c", "d")
        net.settle()
        net.check()
        kinds = net.kinds()
        first_move = kinds.index("MOVE")
        assert kinds.count("MOVE") == 6 and set(kinds[:first_move]) == {"COPY"}
        assert kinds[:first_move].count("COPY") == 6 == kinds.count("COPY")
        orders.append(started(net))
    assert orders[0] == orders[1]


def started(net: Net) -> list[PartitionId]:
    """Partitions in the order in which their sources were asked to copy."""
    asked = [message for _, _, message in net.trace if isinstance(message, MigrationRequested)]
    return [message.migration.partition_id for message in asked]


# -- figures ------------------------------------------------------------------------------


def test_figures_are_those_of_what_happens() -> None:
    """PIM-21, bug 18: at every moment a process counts as running what is under way, as waiting
    what is queued, as done and failed the verdicts that were told.
    """
    settings = msgspec.structs.replace(SETTINGS, partition_count=30, migration_max_parallel=2)
    net = grown("abc", settings=settings)
    room = net.master.room
    loop = room.loop
    verdicts: Counter[Verdict] = Counter()
    watch_verdicts(room, lambda one, _us: verdicts.update([one.verdict]))
    seen: Counter[str] = Counter()

    def watch(_: Node) -> None:
        if net.master.room is not room:
            return
        open_ones = room.reporter.open
        under_way = Counter(
            running.process.number for running in loop.execution.running_migrations.values()
        )
        for batch in loop.repair.batches.values():
            under_way[batch.process.number] += len(batch.migrations)
        for process in open_ones:
            assert process.running == under_way[process.number]
        assert sum(under_way.values()) == sum(process.running for process in open_ones)
        if not loop.execution.failure:  # what a failure dropped is counted when its plan has ended
            waiting = sum(process.waiting for process in open_ones)
            assert waiting == loop.execution.queue.waiting_count
        done = sum(int(str(one["completed"])) for one in room.reporter.finished)
        failed = sum(int(str(one["failed"])) for one in room.reporter.finished)
        done += sum(process.completed for process in open_ones)
        failed += sum(process.failed for process in open_ones)
        assert (done, failed) == (verdicts[Verdict.SUCCESS], verdicts[Verdict.FAILED])
        for process in open_ones:
            assert process.planned >= process.running + process.completed + process.failed
            seen.update(running=process.running > 0, waiting=process.waiting > 0)

    net.after_step = watch
    net.crash("c")
    net.run_for(0.01)
    refuse(net, "d", (3,))
    net.settle()
    net.check()
    assert verdicts[Verdict.FAILED] == 1 and verdicts[Verdict.SUCCESS] > 30
    assert seen["running"] and seen["waiting"]
    for entry in room.reporter.finished:
        assert entry["planned"] == sum(int(str(entry[key])) for key in FIGURES)


FIGURES = ("completed", "failed", "remaining")


def test_below_4_1_repair_waits_for_a_promotion_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-49, PIM-41: a promotion names the version of the whole table, so a second death is
    repaired when it is decided and not before; both end well.
    """
    wish(monkeypatch, {0: "dbca", -1: "acbd"})
    net = grown("abcd", 2, msgspec.structs.replace(SETTINGS, cluster_version="4.0"))
    lost = 0

    def fate(_from: str, _to: str, message: Message) -> str:
        nonlocal lost
        lost += isinstance(message, PromotionRequested)
        return "drop" if isinstance(message, PromotionRequested) and lost < 4 else "deliver"

    net.on_send = fate
    net.crash("d")
    net.run_for(1)
    assert net.master.room.loop.repair.is_promoting
    version = net.master.room.table_version
    assert version is not None
    net.crash("c")
    net.run_for(1)
    assert net.master.room.loop.repair.is_promoting
    assert net.master.room.table_version == version
    net.settle()
    net.check()
    assert not net.lost_everything()
