"""Goal: when plans are made, stopped and made again; what is told about them meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from tests.unit.migration_net import MS, SECOND, SETTINGS, Net, Node, wish
from tests.unit.rows import row_from

from whimbrel.core.events import GridEvent, MigrationFinished, MigrationStarted, ReplicaMigrated
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.jobs import Job
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    MigrationCommitRequested,
    MigrationOpened,
    MigrationRequested,
    Progress,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.migration import control_loop, plan_execution
from whimbrel.core.migration.reporter import MigrationReporter
from whimbrel.core.model import MigrationInfo, MigrationKind, Step
from whimbrel.core.partition.assignment import assigning
from whimbrel.core.partition.planner import plan_row
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import SerializationError


def grown(names: str, backups: int = 1, settings: CoreSettings = SETTINGS, lite: str = "") -> Net:
    net = Net(settings, backups)
    net.add(*names, lite=list(lite))
    net.settle()
    net.fill()
    net.trace.clear()
    return net


def test_first_arrangement_moves_nothing() -> None:
    """PIM-13, PIM-18: version = number of replicas, no migration, no process, whole table sent."""
    net = Net(backup_count=2)
    net.add("m", lite=["m"])
    assert not net.master.room.table.initialised and net.master.room.table.stamp == 0
    net.add("a", "b")
    net.settle()
    assert net.master.room.table.versions == [2] * 7
    assert not net.said(MigrationRequested) and not net.master.room.reporter.finished
    assert all(node.told == list(range(7)) for node in net.live)
    net.fill()
    net.check()


def test_nobody_is_given_data_before_the_list_is_durable() -> None:
    """S3: who is on no list in anybody's files is not waited for when all come back, so it must not
    be alone with anything. Method: the master's disk answers when it may; an arrangement, a copy.
    """
    net = Net(backup_count=1)
    net.add("m", lite=["m"])
    waiting: list[Callable[[], None]] = []
    net.master.room.loop.when_durable = waiting.append

    def answer() -> None:
        while waiting:
            waiting.pop(0)()

    net.add("a", "b")
    net.run_for(5)
    assert len(waiting) == 1 and not net.master.room.table.initialised
    net.master.step(answer)
    net.settle()
    net.fill()
    net.add("c")
    net.add("d")
    net.run_for(5)
    assert len(waiting) == 2 and not net.said(MigrationRequested)
    net.master.step(waiting.pop(0))
    net.run_for(5)
    assert not net.said(MigrationRequested), "the younger list is not durable"
    net.master.step(answer)
    net.settle()
    assert net.said(MigrationRequested)
    net.check()


def held_back(node: Node) -> list[Callable[[], None]]:
    """What waits for a member's disk from now on."""
    waiting: list[Callable[[], None]] = []
    vars(node.host)["when_durable"] = waiting.append
    return waiting


def rows_told(net: Net, pids: Iterable[int], but: str) -> list[tuple[str, int]]:
    """Who knows a row of these as it is at one member."""
    ours = net.nodes[but].room.table
    return [
        (node.id, pid)
        for node in net.live
        for pid in pids
        if node.id != but and node.room.table.version(PartitionId(pid)) >= ours.versions[pid]
    ]


def test_nobody_is_told_a_row_before_its_data_are_durable_at_the_master() -> None:
    """S1, seed 37 of ``disks``: a master that is a destination has the row of its commit in its
    table, and a source that sees it there lets go of the only copy on a disk. Method: the master's
    disk answers late, while others ask for the table, one of them a newcomer.
    """
    net = grown("abc")
    waiting = held_back(net.master)
    before = list(net.master.room.table.versions)
    net.leave("b")
    net.run(stop=lambda: bool(waiting))
    net.add("d")
    net.run_for(5)
    pids = [pid for pid, old in enumerate(before) if net.master.room.table.versions[pid] > old]
    undurable = [pid for pid in pids if PartitionId(pid) in net.master.room.destination._unkept]
    assert undurable and not rows_told(net, undurable, "a")
    del vars(net.master.host)["when_durable"]
    net.master.step(lambda: [told() for told in waiting] and None)
    net.settle()
    net.check()


def test_a_new_master_hears_of_no_row_before_its_data_are_durable() -> None:
    """The same of a destination whose master dies: what it has committed it tells the next one
    when its disk has the data.
    """
    net = grown("abcd")
    waiting = held_back(net.nodes["c"])
    net.leave("d")
    net.run(stop=lambda: bool(waiting))
    undurable = list(net.nodes["c"].room.destination._unkept)
    net.crash("a")
    net.run_for(5)
    assert undurable and not rows_told(net, undurable, "c")
    del vars(net.nodes["c"].host)["when_durable"]
    net.nodes["c"].step(lambda: [told() for told in waiting] and None)
    net.settle()
    net.check()


def test_a_join_in_the_middle_stops_the_plan() -> None:
    """ADL-50, PIM-28: nothing of the old plan starts after the trigger; one new run follows."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=40, migration_max_parallel=2)
    net = grown("ab", settings=settings)
    net.add("c")
    net.run_for(0.02)
    running = {migration.id for migration in net.master.room.running_migrations()}
    first = set(net.seen)
    assert running
    net.add("d")
    net.run(stop=lambda: not running & {m.id for m in net.master.room.running_migrations()})
    net.settle()
    net.check()
    history = list(net.master.room.reporter.finished)
    assert [entry["reason"] for entry in history] == ["a member joined", "a member joined"]
    assert history[0]["planned"] == len(first) + int(str(history[0]["remaining"]))
    assert history[1]["completed"] == history[1]["planned"]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_failed_migration_is_tried_again_after_a_pause(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADL-50, PIM-28, bugs 16 to 19: the k-th fails: no later start, 3 s, one new plan."""
    net = grown("ab")
    refused: list[str] = []

    def refuse(node: Node) -> None:
        host = node.host
        real = host.ingest

        def ingest(migration: MigrationInfo, parts: tuple[FragmentPart, ...]) -> Progress:
            if migration.id not in refused and len(refused) < number:
                refused.append(migration.id)
                raise SerializationError("damaged on purpose")
            return real(migration, parts)

        monkeypatch.setattr(host, "ingest", ingest)

    net.nodes["c"] = Node(net, "c", False)
    refuse(net.nodes["c"])
    net.order.append("c")
    net.view()
    begun = net.now_us
    net.settle()
    net.check()
    assert net.now_us - begun >= 3 * SECOND
    assert net.now_us - begun < 7 * SECOND
    history = list(net.master.room.reporter.finished)
    assert sum(int(str(entry["failed"])) for entry in history) == number
    assert history[-1]["completed"] == history[-1]["planned"] and not history[-1]["failed"]
    assert any(note.kind == "migration.failed" for note in net.master.notes)


def test_every_fifth_failed_plan_in_a_row_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who looks at a cluster that never gets its backups reads why. Method: no copy ever
    succeeds under a new master, which has seen no plan succeed before.
    """
    net = grown("abc")

    def damaged(_migration: MigrationInfo, _parts: tuple[FragmentPart, ...]) -> Progress:
        raise SerializationError("damaged on purpose")

    for node in net.live:
        monkeypatch.setattr(node.host, "ingest", damaged)
    net.crash("a")
    told = net.master.notes

    def failed_plans() -> list[object]:
        return [entry for entry in net.master.room.reporter.finished if entry["failed"]]

    for count in (5, 10):
        net.run(
            net.now_us + 60 * SECOND,
            stop=lambda count=count: len(failed_plans()) == count,  # type: ignore[misc]
        )
        notes = [int(str(n.fields["plans"])) for n in told if n.kind == "migration.plans_fail"]
        assert notes == list(range(5, count + 1, 5))


def test_a_large_plan_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no step plans more than ROWS_PLANNED rows. Method: a join at 271 partitions, with
    the rows of each step counted.
    """
    settings = msgspec.structs.replace(SETTINGS, partition_count=271)
    net = grown("ab", settings=settings)
    planned: list[int] = [0]

    def counted(current: Row, target: Row, fewest: int) -> Sequence[Step]:
        planned[-1] += 1
        return plan_row(current, target, fewest)

    monkeypatch.setattr(control_loop, "plan_row", counted)
    net.after_step = lambda _node: planned.append(0)
    net.add("c")
    net.settle()
    net.check()
    assert max(planned) == control_loop.ROWS_PLANNED < sum(planned)


def test_a_bad_endpoint_does_not_starve_the_rest() -> None:
    """Bugs 16, #26466: one member refuses everything: the others make progress, no hot loop."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=30, migration_max_parallel=1)
    net = grown("ab", settings=settings)

    def fate(_from: str, to: str, message: Message) -> str:
        return "drop" if to == "bad" and isinstance(message, MigrationOpened) else "deliver"

    net.on_send = fate
    settings_short = msgspec.structs.replace(settings, migration_timeout_us=4 * SECOND)
    for node in net.live:
        node.ctx.settings = settings_short
    net.add("bad", "good")
    net.run_for(300)
    table = net.master.room.table
    assert table.replica_count(MemberId("bad")) == 0
    assert table.replica_count(MemberId("good")) >= 12
    warnings = [note for note in net.master.notes if note.kind == "migration.plans_fail"]
    assert warnings and warnings[0].fields["plans"] == 5
    assert "time-out" in str(warnings[0].fields["why"])
    assert len(net.seen) < 100, "one plan every few seconds, not a hot loop"
    net.on_send = lambda *_: "deliver"
    net.settle()
    net.check()


def test_levelling_that_levels_nothing_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-50: an assignment that wants copies again and again while primaries stay uneven: a few
    plans more, not one after the other for ever.
    """
    net = grown("abc")
    a, b, c = (node.ctx.id for node in net.live)

    def to_and_fro(rows: Sequence[Row], *_: object) -> Job[list[Row]]:
        yield
        target: list[Row] = []
        for row in rows:
            if a not in row:
                target.append(row_from((a, row[1])))
            elif row[0] == a:
                target.append(row_from((a, c if row[1] == b else b)))
            else:
                target.append(row)
        return target

    monkeypatch.setattr(control_loop, "assigning", to_and_fro)
    net.add("d")
    net.run_for(60)
    reasons = [entry["reason"] for entry in net.master.room.reporter.finished if entry["planned"]]
    tries = control_loop.LEVELLINGS_MAX
    assert reasons[-1 - tries :] == ["a member joined", *[control_loop.UNEVEN] * tries]
    assert reasons.count(control_loop.UNEVEN) == tries


def test_what_one_plan_cannot_level_the_next_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADL-50, P10: at rest members are level. Method: an assignment that levels primaries at once
    and the replicas of a few rows at a time.
    """
    net = grown("abc", settings=msgspec.structs.replace(SETTINGS, partition_count=40))

    def few_at_a_time(rows: Sequence[Row], *others: Any) -> Job[list[Row]]:
        targets = yield from assigning(rows, *others)
        left = 4
        for pid, (row, target) in enumerate(zip(rows, targets, strict=True)):
            if row[0] == target[0] and row != target:
                targets[pid] = target if left > 0 else row
                left -= 1
        return targets

    monkeypatch.setattr(control_loop, "assigning", few_at_a_time)
    net.add("d")
    net.run_for(60)
    table = net.master.room.table
    counts = [table.replica_count(node.ctx.id) for node in net.live]
    assert max(counts) - min(counts) <= 1
    reasons = [entry["reason"] for entry in net.master.room.reporter.finished if entry["planned"]]
    assert control_loop.UNEVEN in reasons


def test_no_plan_is_made_before_a_joiner_has_its_table() -> None:
    """PIM-05, ADL-49: also when telling it, part by part, takes longer than an answer is waited
    for. Method: single rows with a pause between two of them.
    """
    settings = msgspec.structs.replace(SETTINGS, partition_count=71, step_rows_max=1)
    net = grown("ab", settings=settings)
    net.late_us = lambda key: 50 * MS if key == control_loop.SLICE_TIMER else 0
    net.trace.clear()
    began_us = net.now_us
    net.add("c")
    net.run(stop=lambda: bool(net.said(MigrationRequested)))
    assert net.now_us - began_us > settings.call_timeout_us
    parts = [message for to, message in net.tables() if to == "c"]
    assert len(parts) >= 71 and not parts[70].more
    net.settle()
    net.check()


def test_the_cap_is_kept_and_reached() -> None:
    """PIM-23 to PIM-25: a member takes part in at most its limit, and does so."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=64, migration_max_parallel=3)
    net = grown("abcd", settings=settings)
    net.add("e")
    net.settle()
    net.check()
    assert max(net.load_max.values()) == 3 and net.load_max["e"] == 3


def test_an_empty_grid_is_arranged_in_one_go() -> None:
    """PIM-24: while no structure is known the limit does not hold up what copies nothing.

    Method: a join of an empty grid; all that is planned runs at once, and the time of it.
    """
    settings = msgspec.structs.replace(SETTINGS, partition_count=64, migration_max_parallel=3)
    net = Net(settings, 1)
    net.add("a", "b", "c")
    net.settle()
    net.master.room.is_grid_empty = lambda: True
    net.active_max = 0
    began_us = net.now_us
    net.add("d")
    net.settle()
    net.check(entries=0)
    assert net.active_max == net.master.room.reporter.finished[-1]["planned"]
    assert net.now_us - began_us < 20 * MS


def test_the_limit_holds_from_the_first_structure_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-24: what runs goes on, and nothing more starts before a member is below its limit.

    Method: a structure comes to be when the first migrations of an empty grid run.
    """
    monkeypatch.setattr(plan_execution, "EMPTY_PARALLEL_MAX", 7)
    settings = msgspec.structs.replace(SETTINGS, partition_count=64, migration_max_parallel=3)
    net = Net(settings, 1)
    net.add("a", "b", "c")
    net.settle()
    room, seen = net.master.room, [0]
    room.is_grid_empty = lambda: max(seen) == 0

    def look(node: Node) -> None:
        if node is net.master:
            seen.append(len(room.running_migrations()))

    net.after_step = look
    net.add("d")
    net.settle()
    net.check(entries=0)
    assert max(seen) == 7
    top = seen.index(7)
    for before, now in itertools.pairwise(seen[top:]):
        assert now <= max(before, 3)
    assert room.reporter.finished[-1]["completed"] == room.reporter.finished[-1]["planned"]


def test_refilling_starts_before_moves() -> None:
    """PIM-27: in dispatch order COPY and SHIFT UP precede independent moves."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=40, migration_max_parallel=1)
    net = grown("abcd", settings=settings)
    net.crash("d")
    net.add("e")
    net.settle()
    net.check()
    refills = ("COPY", "SHIFT_UP")
    first_other = next((n for n, kind in enumerate(net.kinds()) if kind not in refills), None)
    last_refill = max(n for n, kind in enumerate(net.kinds()) if kind in refills)
    assert first_other is None or last_refill - first_other < len(net.kinds())


def test_starts_keep_the_interval() -> None:
    """Settings: ``migration_interval_us`` between any two starts in the cluster."""
    settings = msgspec.structs.replace(SETTINGS, migration_interval_us=50 * MS)
    net = grown("ab", settings=settings)
    starts: list[int] = []

    def watch(_: Node) -> None:
        if len(net.seen) > len(starts):
            starts.append(net.now_us)

    net.after_step = watch
    net.add("c")
    net.settle()
    net.check()
    assert len(starts) == len(net.seen) >= 4
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert all(gap >= 50 * MS for gap in gaps)


def test_a_deeper_backup_count_fills_rows() -> None:
    """PIM-30: the needed depth rises: COPYs; it falls again: CLEARs; equal depth: nothing."""
    net = grown("abcd")
    for depth, filled in ((3, 3), (3, 3), (1, 1)):
        before = len(net.seen)
        net.backup_count = depth - 1
        for node in net.live:
            node.host.backup_count = depth - 1
            with net.step(node):
                node.room.depth_changed(depth)
        net.settle()
        table = net.master.room.table
        assert all(7 - row.count(None) == filled for row in table.rows)
        assert (len(net.seen) > before) == (before == 0)


def test_deep_plans_fill_all_seven() -> None:
    """PIM-30: ``plan_depth`` deep."""
    settings = msgspec.structs.replace(SETTINGS, plan_depth="deep")
    net = Net(settings, 1)
    net.add(*"abcdefgh")
    net.settle()
    assert net.master.room.loop.replica_depth == 7
    assert all(None not in row for row in net.master.room.table.rows)


def test_a_lite_member_that_becomes_a_data_member_gets_its_share() -> None:
    """ADL-01, bug 50: same members, other roles: a plan follows."""
    net = grown("amn", lite="mn")
    for name in "mn":
        node = net.nodes[name]
        node.info = msgspec.structs.replace(node.info, lite=False)
    net.view()
    net.settle()
    net.check()
    assert net.master.room.table.replica_count(MemberId("m")) > 0


def test_figures_add_up_at_every_moment() -> None:
    """PIM-21, PIM-58, bug 18: planned = waiting + running + done + failed + dropped."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=30, migration_max_parallel=2)
    net = grown("abc", settings=settings)
    seen_active = False

    def watch(node: Node) -> None:
        nonlocal seen_active
        progress = node.room.progress()
        for process in node.room.reporter.open:
            assert process.waiting >= 0 and process.running >= 0
        total = int(str(progress["completed"])) + int(str(progress["failed"]))
        assert int(str(progress["planned"])) == total + int(str(progress["remaining"]))
        seen_active |= bool(progress["active"]) and bool(progress["queued"])
        current = node.room.current_process()
        assert (current is None) == (progress["planned"] == 0)

    net.after_step = watch
    net.crash("c")
    net.run_for(0.01)
    net.add("d")
    net.settle()
    net.check()
    assert seen_active
    assert net.master.room.progress()["planned"] == 0 and net.master.room.current_process() is None
    copies = sum(int(str(entry["copies"])) for entry in net.master.room.reporter.finished)
    begun = sum(node.host.begun for node in net.nodes.values())
    assert copies <= begun
    keys = "id reason planned completed remaining failed copies promotions bytes entries"
    keys += " elapsed_s eta_s"
    assert all(list(entry) == keys.split() for entry in net.master.room.reporter.finished)
    assert sum(int(str(entry["bytes"])) for entry in net.master.room.reporter.finished) > 0


@pytest.mark.parametrize("crash", [False, True])
def test_data_that_overtake_the_table_are_not_refused(crash: bool) -> None:
    """PIM-05, bug 16: the plan waits until its members know the repaired rows, then runs."""
    settings = msgspec.structs.replace(SETTINGS, partition_count=20)
    net = grown("abcd", settings=settings)
    net.delay_us = lambda is_data: MS if is_data else 40 * MS
    if crash:
        net.crash("c")
    else:
        net.add("e")
    net.settle()
    net.check()
    assert [entry["failed"] for entry in net.master.room.reporter.finished] == [0]


def test_a_row_that_no_safe_step_leads_to_its_target_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """APR-38: what is left as it is, is said, and nothing waits for it. Method: targets with a hole
    behind the primary, where every step towards them would cost a copy.
    """
    net = grown("abc", 2)

    def hollow(rows: Sequence[Row], *_: object) -> Job[list[Row]]:
        yield
        return [(row[0], None, *row[1:6]) for row in rows]

    before = list(net.master.room.table.rows)
    monkeypatch.setattr(control_loop, "assigning", hollow)
    with net.step(net.master):
        net.master.room.loop.trigger("by hand")
        net.master.room.conclude()
    net.settle()
    assert net.master.room.table.rows == before
    told = [note.fields for note in net.master.notes if note.kind == "migration.rows_left"]
    assert told == [{"partitions": len(before)}]


def history_of(history_max: int) -> MigrationReporter:
    settings = msgspec.structs.replace(SETTINGS, history_max=history_max)
    return MigrationReporter(Net(settings).add_alone("m").ctx)


def test_the_history_is_bounded() -> None:
    """Safety rule 9: the latest ``history_max`` processes; a run without work is none."""
    history = history_of(2)
    for number in range(4):
        process = history.begin(f"reason {number}", "m-1")
        process.planned = process.completed = number
        assert process.document(SECOND)["eta_s"] == (0.0 if number else None)
        history.close(process)
    assert [entry["id"] for entry in history.finished] == [3, 4] and history.current is None


def test_what_was_not_started_is_dropped_with_its_process() -> None:
    """PIM-21: a process that ends counts what it did not start as dropped; none of it waits."""
    history = history_of(2)
    process = history.begin("a reason", "m-1")
    process.planned, process.completed, process.failed = 9, 2, 1
    history.close(process)
    assert (process.dropped, process.waiting, process.document(0)["remaining"]) == (6, 0, 6)


def test_quiet_when_nothing_changes() -> None:
    """Inv: a settled cluster only compares stamps; a view with the same members plans nothing."""
    net = grown("abc")
    net.view()
    net.run_for(60)
    assert {type(message).__name__ for _, _, message in net.trace} == {"StampPublished"}


def test_copies_that_take_too_long_fail_but_commits_never_do() -> None:
    """ADL-18: a destination that takes nothing is given up; a commit never is."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {0: "ab"})
        settings = msgspec.structs.replace(
            SETTINGS, partition_count=1, migration_timeout_us=10 * SECOND
        )
        net = grown("ab", settings=settings)
        wish(patch, {0: "cb"})
        net.on_send = lambda _f, _t, m: "drop" if isinstance(m, TransferAnswered) else "deliver"
        net.add("c")
        net.run_for(2)
        net.run(stop=lambda: bool(net.master.room.reporter.finished))
        net.run_for(0.01)
        assert net.master.room.reporter.finished[-1]["failed"] == 1
        assert not net.nodes["a"].host.flags and not net.nodes["c"].host.ingesting
        net.on_send = lambda _f, _t, m: (
            "drop" if isinstance(m, MigrationCommitRequested) else "deliver"
        )
        net.run_for(60)
        assert net.master.room.progress()["active"] == 1
        assert len(net.said(MigrationCommitRequested)) > 20
        net.on_send = lambda *_: "deliver"
        net.settle()
        net.check()
        assert MigrationKind.MOVE in net.kinds()


def test_a_long_copy_that_makes_progress_goes_on() -> None:
    """Bounded waiting without starvation: the time-out counts from the last progress."""
    with pytest.MonkeyPatch.context() as patch:
        wish(patch, {0: "a"})
        settings = msgspec.structs.replace(
            SETTINGS, partition_count=1, migration_timeout_us=4 * SECOND
        )
        net = grown("a", settings=settings)
        net.fill(30)
        wish(patch, {0: "ac"})
        dropped: set[int] = set()

        def once(_from: str, _to: str, message: Message) -> str:
            sequence = 0 if isinstance(message, MigrationOpened) else -1
            if isinstance(message, TransferSent):
                sequence = message.sequence
            if sequence >= 0 and sequence not in dropped:
                dropped.add(sequence)
                return "drop"
            return "deliver"

        net.on_send = once
        net.add("c")
        begun = net.now_us
        net.settle()
        net.check(30)
        assert (
            net.now_us - begun > 30 * SECOND and not net.master.room.reporter.finished[-1]["failed"]
        )


def test_listeners_are_told_what_a_plan_copies() -> None:
    """PIM-58: a process tells beforehand how many replicas it migrates, and ends with the last one;
    a plan that ends well is not tried again.
    """
    net = grown("ab")
    heard: list[GridEvent] = []
    net.master.room.tell_events(heard.append)
    net.add("c")
    net.settle()
    planned = sum(one.state.planned for one in heard if isinstance(one, MigrationStarted))
    done = sum(one.state.completed for one in heard if isinstance(one, MigrationFinished))
    replicas = [one for one in heard if isinstance(one, ReplicaMigrated)]
    assert planned == done == len(replicas) > 0
    assert not net.master.ctx.is_armed(control_loop.RETRY_TIMER)


def test_what_is_under_way_is_said_to_its_last_migration() -> None:
    """Safety rule 6: who asks why a cluster is busy hears of migrations while one runs, also when
    none waits any more.
    """
    net = grown("ab")
    net.delay_us = lambda is_data: 20 * MS if is_data else MS
    net.add("c")
    execution = net.master.room.loop.execution
    net.run(net.now_us + 60 * SECOND, stop=lambda: bool(execution.running_migrations))
    assert net.master.room.loop.pending() == "migrations are due"
    net.run(net.now_us + 60 * SECOND, stop=lambda: not execution.queue.waiting_count)
    assert execution.running_migrations
    assert net.master.room.loop.pending() == "migrations are due"
    net.settle()
    assert net.master.room.loop.pending() == ""
