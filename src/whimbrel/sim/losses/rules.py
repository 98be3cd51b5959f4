"""Rules of what is lost: D7, D12."""

from __future__ import annotations

import json
from typing import ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.ids import LOST_ALL, PartitionId, Row, index_in
from whimbrel.sim.history import Ledger
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule, Sightings
from whimbrel.sim.world import World

TOLD_US = 60_000_000
"""This long after data are gone somebody says so, and as soon as the cluster calls itself safe."""
SAMPLE_US = 1_000_000
"""For so long a loss is looked at when its time is over: longer than between two samples."""
CRASH = "crash"
"""Why a process ended that handed nothing over."""
LOST = "a partition is lost"


class LossIsTold(Rule):
    """D7 (ADL-05; ETQ): a lost partition is told, with the right count; nothing else is told as
    lost.
    """

    rule = "D7"
    sentence = "partition loss is signalled if and only if all replicas up to an index are gone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._expected: dict[str, dict[tuple[int, int], int]] = {}

    def started(self, host: Host) -> None:
        """A fresh process has told nothing; it tells what is lost of seats that it came back to."""
        self._expected[host.name] = {}
        recovery = host.member.dataplane.recovery
        seat_lost = recovery.on_seat_lost

        def probed(pid: PartitionId, count: int) -> None:
            self._lost(host, pid, count)
            seat_lost(pid, count)

        recovery.on_seat_lost = probed

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: at the master a row loses its last replica, or one without primary gets one."""
        member = host.member
        if not member.ctx.is_master or member.migrations.loop.recovery.running:
            return
        if any(before) and not any(after):
            count = LOST_ALL
        elif any(before) and before[0] is None and after[0] is not None:
            count = index_in(before, after[0]) - 1
        else:
            return
        self._lost(host, pid, count)

    def _lost(self, host: Host, pid: PartitionId, count: int) -> None:
        self._book(host, pid, count, 1)
        within = count >= self.world.plan.backup_count and self.world.data_is_promised()
        if within and self._held_data(pid):
            self.fail(f"p{pid} lost {count} backups within the promise", host.name)

    def _held_data(self, pid: int) -> bool:
        return any(ledger.owes for ledger in self.world.history.by_partition[pid])

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind != "partition.lost" or note.fields.get("known_before"):
            return  # what an earlier master saw and may have told
        pid, count = note.fields["partition"], note.fields["lost_backup_count"]
        self._book(host, int(pid or 0), int(count or 0), -1)

    def _book(self, host: Host, pid: int, count: int, change: int) -> None:
        open_ones = self._expected[host.name]
        left = open_ones.get((pid, count), 0) + change
        if left:
            open_ones[pid, count] = left
        else:
            open_ones.pop((pid, count), None)

    def quiet(self) -> None:
        """Q: what was lost has been told, what was told was lost."""
        for host in self.world.up_hosts():
            for (pid, count), left in self._expected[host.name].items():
                what = "was not told" if left > 0 else "was told, though a copy survived"
                self.fail(f"p{pid}, lost backup count {count}: {what}", host.name)
            self._expected[host.name] = {}


class GoneIsTold(Rule):
    """D12 (design 0014; ESQ): looked at when a process dies with the last copy of an acknowledged
    write.

    Nobody says anything where nobody is left who had a table: what a cluster knew dies with its
    last member. Nothing is asked where clusters were split: what is gone then is D10's affair.
    Judged is what is written once; so who holds one later got it with a copy that was under
    way when its holder died.
    """

    rule = "D12"
    sentence = "data of which every holder died are told by a running member, whatever masters die"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._gone: dict[tuple[int, str], tuple[int, Ledger]] = {}
        """Since when data of a partition and a structure are gone, and one of their ledgers."""

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        world = self.world
        if world.plan.profile.split or world.plan.async_backup_count:
            return
        others = [one for one in world.up_hosts() if one is not host]
        if not any(one.member.migrations.table.initialised for one in others):
            self._gone.clear()
        elif reason == CRASH:
            self._look(host, others)

    def _look(self, host: Host, others: list[Host]) -> None:
        for pid, ledgers in enumerate(self.world.history.by_partition):
            if not host.member.dataplane.partitions[pid].fragments:
                continue
            for ledger in ledgers:
                if _holds(host, ledger) and not any(_holds(one, ledger) for one in others):
                    self._gone.setdefault((pid, ledger.name), (self.world.now_us, ledger))

    def sample(self) -> None:
        """Look at what should be known by now."""
        late_us = self.world.now_us - TOLD_US
        due = [
            key
            for key, (since_us, _) in self._gone.items()
            if late_us - SAMPLE_US < since_us <= late_us
        ]
        self._judge(due)

    def quiet(self) -> None:
        """Q: a cluster that calls itself safe knows what it has lost, however long ago."""
        self._judge(list(self._gone))

    def _judge(self, due: list[tuple[int, str]]) -> None:
        if not due:
            return
        told, hosts = told_losses(self.world), self.world.up_hosts()
        for pid, name in due:
            if any(_holds(one, self._gone[pid, name][1]) for one in hosts):
                del self._gone[pid, name]
                continue
            if (pid, name) not in told and (pid, "") not in told:
                self.fail(f"p{pid} has lost entries of {name}, and nobody says so")
                return


def _holds(host: Host, ledger: Ledger) -> bool:
    """Whether a member has what was written once and acknowledged."""
    acked = ledger.acked
    if not ledger.is_written_once or acked is None or not ledger.is_settled:
        return False
    return ledger.shows(host.store_at(ledger.partition_id, ledger.namespace), acked)


def told_losses(world: World) -> dict[tuple[int, str], None]:
    """Partition and map of every loss that some running member's own document shows.

    The structure is "" where every replica is gone, or more are concerned than are named.
    """
    found: dict[tuple[int, str], None] = {}
    for host in world.up_hosts():
        engine = host.engine
        if engine is None:
            continue
        for mark in json.loads(engine.questions.documents["losses"](b""))["marks"]:
            pid = int(mark["partition"])
            if mark["lost_backup_count"] == LOST_ALL or mark["unnamed"]:
                found[pid, ""] = None
            found.update(((pid, one["name"]), None) for one in mark["structures"])
    return found


class LossSightings(Sightings):
    """What was told."""

    situations = (LOST,)
    notes: ClassVar = {"partition.lost": LOST}


RULES: tuple[type[Rule], ...] = (LossIsTold, GoneIsTold, LossSightings)
