"""Whole engines with simulated disks that outlive them, for backups of running clusters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.unit.engine_pump import Node, quick_settings
from tests.unit.split_pump import SplitPump, data

from whimbrel.core.backups.jobs import Wish
from whimbrel.core.backups.manifest import DEFAULT_PLACE
from whimbrel.core.effects import DiskWork
from whimbrel.core.ids import PartitionId
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.core.persistence.commands import Answer, DiskProblem
from whimbrel.core.settings import PersistenceSettings
from whimbrel.core.stimuli import DiskDone, DiskFailed, Started
from whimbrel.sim.disk import SimDisk

WORK_US = 500
"""How long a work takes."""
PARTITIONS = 3


class DiskNode(Node):
    """A member whose disk is at its seat."""

    def carry_out_effect(self, effect: object) -> None:
        pump = self.pump
        if isinstance(effect, DiskWork) and isinstance(pump, BackupPump):
            pump.at(WORK_US, lambda: self._work(pump, effect))
        else:
            super().carry_out_effect(effect)

    def _work(self, pump: BackupPump, work: DiskWork) -> None:
        """Carry it out, and maybe die in the middle of it."""
        disk = pump.disks[self.number]
        answers: list[Answer] = []
        for position, command in enumerate(work.commands):
            if not self.alive:
                return
            if pump.dies(self):
                disk.carry_out_part((command,))
                if pump.loses_power:
                    pump.black_out()
                else:
                    disk.kill()
                    pump.kill(self)
                return
            try:
                answers += disk.execute((command,))
            except DiskProblem as problem:
                self.handle(DiskFailed(work.number, position, problem.failure, problem.detail))
                return
        self.handle(DiskDone(work.number, tuple(answers)))


class BackupPump(SplitPump):
    """Seats with disks; a seat's member has the same identity whenever it begins."""

    def __init__(self, count: int = 2, **changes: Any) -> None:
        persistence = PersistenceSettings(enabled=True, fsync="always", segment_bytes=4_096)
        values = {"partition_count": PARTITIONS, "persistence": persistence, **changes}
        super().__init__(quick_settings(**values))
        self.disks = {number: SimDisk(random.Random(number)) for number in range(1, count + 1)}
        self.seats: dict[int, DiskNode] = {}
        self.lites: set[int] = set()
        """Seats of lite members, which have no disk."""
        self.dies: Callable[[DiskNode], bool] = lambda _node: False
        """Asked before each command of a disk: whether its process dies now."""
        self.loses_power = False
        """Whether all machines lose their power then, in the place of that process."""

    def begin(self) -> None:
        """A process at each seat, with what lies on its disk; until all serve."""
        for number in self.disks:
            node = self.seats[number] = DiskNode(self, number, number in self.lites)
            if number in self.lites:
                node.engine.member.persistence.is_enabled = False
            node.handle(Started(tuple(self.address_of(one) for one in self.disks)))
        self.run_until(self._all_serve, 60)
        self.run(5)

    def _all_serve(self) -> bool:
        nodes = list(self.seats.values())
        lists = [node.engine.member.ctx.members for node in nodes]
        return all(node.joined for node in nodes) and all(
            len(one.members) == len(nodes) and one.recovery is None for one in lists
        )

    def crash(self) -> None:
        """All processes end at once."""
        for number, node in self.seats.items():
            if node.alive:
                self.disks[number].kill()
                self.kill(node)

    def black_out(self) -> None:
        """All machines lose their power."""
        for number, node in self.seats.items():
            self.disks[number].crash()
            if node.alive:
                self.kill(node)

    # -- jobs -----------------------------------------------------------------------------

    @property
    def master(self) -> DiskNode:
        """The master of the cluster."""
        living = [node for node in self.seats.values() if node.alive]
        return next(node for node in living if node.engine.member.ctx.is_master)

    def order(self, what: str, name: str = "", **fields: Any) -> tuple[DiskNode, str]:
        """Begin a job."""
        master = self.master
        member = master.engine.member
        member.begin(self.now_us, self.wall_ms)
        job = member.backups.start(Wish(what, DEFAULT_PLACE, name, **fields))
        master.carry_out()
        return master, job

    def done(self, what: str, name: str = "", **fields: Any) -> Any:
        """Begin a job and wait for its end: its document, or a sentence why there is none."""
        master, job = self.order(what, name, **fields)

        def told() -> dict[str, Any]:
            return master.engine.member.backups.job(job) or {}

        self.run_until(lambda: told()["over"], 120)
        return told()["problem"] or told()["document"]

    def pid(self, key: str) -> PartitionId:
        """Where real clients look for it."""
        return partition_of(partition_hash(data(key)), self.settings.partition_count)

    # -- data -----------------------------------------------------------------------------

    def fill(self, text: str, name: str = "m", count: int = 12) -> None:
        """The same keys with these values."""
        client = self.client(self.master)
        for number in range(count):
            self.put(client, name, f"k{number}", f"{text}{number}")

    def shown(self, name: str = "m", count: int = 12) -> list[Any]:
        """What the keys have, as a client sees it."""
        client = self.client(self.master)
        return [self.get(client, name, f"k{number}") for number in range(count)]


def forked(first: BackupPump, seed: int) -> BackupPump:
    """The same cluster once more, from its disks."""
    pump = BackupPump()
    for number, disk in first.disks.items():
        pump.disks[number] = disk.fork(random.Random(seed))
    pump.now_us = first.now_us + 1
    pump.begin()
    return pump
