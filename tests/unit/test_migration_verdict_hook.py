"""Who wants to measure migrations hears of each verdict at the master (PIM-58)."""

from __future__ import annotations

from tests.unit.migration_net import Net, watch_verdicts

from whimbrel.core.events import Moment
from whimbrel.core.model import MigrationInfo, MigrationKind, Verdict


def test_every_verdict_is_told_once_with_its_time() -> None:
    """Goal: the hook's count agrees with the process documents, promotions included. Method: a
    join and a crash, with the hook at the master.
    """
    net = Net()
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    told: list[tuple[MigrationInfo, int]] = []
    room = net.master.room
    watch_verdicts(room, lambda migration, elapsed_us: told.append((migration, elapsed_us)))
    before = len(room.reporter.finished)
    net.add("d")
    net.settle()
    net.crash("d")
    net.settle()
    documents = list(room.reporter.finished)[before:]
    completed = sum(int(document["completed"] or 0) for document in documents)
    assert len(told) == completed > 0
    assert all(migration.verdict is Verdict.SUCCESS for migration, _ in told)
    assert all(elapsed_us > 0 for _, elapsed_us in told)
    kinds = [migration.step.kind for migration, _ in told]
    promotions = sum(int(document["promotions"] or 0) for document in documents)
    assert kinds.count(MigrationKind.PROMOTION) == promotions > 0
    assert len(dict.fromkeys(migration.id for migration, _ in told)) == len(told)


def test_every_migration_begins_and_ends_for_the_master_s_listeners() -> None:
    """PIM-58: a promotion is a migration like any other: its begin is told before its end. Method:
    a crash, with the master's own events counted by partition.
    """
    net = Net()
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    heard: list[tuple[Moment, int]] = []
    net.master.room.reporter.hook = lambda moment, event: heard.append((moment, event.partition_id))
    net.crash("c")
    net.settle()
    begun = sorted(pid for moment, pid in heard if moment is Moment.START)
    ended = sorted(pid for moment, pid in heard if moment is Moment.COMPLETE)
    assert begun and begun == ended
