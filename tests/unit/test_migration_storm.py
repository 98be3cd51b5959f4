"""Goal: joins, leaves, crashes, lost and repeated messages in any mixture end well.

Method: seeded storms on the in-test cluster; never more crashes between two settled points than
there are backups. At each settled point all tables are equal, every row is filled, no data are
lost or leaked, nothing is flagged, every begin has its one end (ADL-24, ADL-31, ADL-50, PIM-03).
"""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.unit.migration_net import MS, SETTINGS, Net

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import Message
from whimbrel.core.partition.groups import member_groups
from whimbrel.core.partition.table import filled_count


class Storm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.backups = rng.choice([0, 1, 1, 1, 2, 3])
        settings = msgspec.structs.replace(
            SETTINGS,
            partition_count=rng.choice([1, 3, 7, 16]),
            migration_max_parallel=rng.choice([1, 2, 10]),
            migration_interval_us=rng.choice([0, 0, 5 * MS]),
            completed_batch_max=rng.choice([3, 1000]),
            member_group=rng.choice(["member", "member", "host"]),
        )
        turns = random.Random(seed ^ 0x7A11).choice([1, 40, 8_388_608])
        settings = msgspec.structs.replace(settings, migration_copy_bytes_max=turns)
        self.net = Net(settings, self.backups)
        self.drop = rng.choice([0.0, 0.0, 0.02, 0.2])
        self.twice = rng.choice([0.0, 0.05, 0.3])
        self.calm = True
        self.names = 0
        self.net.on_send = self.fate
        slow = rng.choice([1, 5, 30])
        self.net.delay_us = lambda is_data: rng.randrange(1, 2 if is_data else slow + 1) * MS

    def fate(self, _sender: str, _to: str, _message: Message) -> str:
        if self.calm:
            return "deliver"
        point = self.rng.random()
        if point < self.drop:
            return "drop"
        return "twice" if point < self.drop + self.twice else "deliver"

    def join(self) -> None:
        count = self.rng.choice([1, 1, 2])
        names = [f"n{self.names + number}" for number in range(count)]
        self.names += count
        lite = [name for name in names if self.rng.random() < 0.1]
        self.net.add(*names, lite=lite)

    def delays(self) -> dict[str, int]:
        return {name: self.rng.choice([0, 0, 1, 3, 40]) * MS for name in self.net.order}

    def data_names(self) -> list[str]:
        return [node.id for node in self.net.live if not node.info.lite]

    def run(self) -> None:
        net, rng = self.net, self.rng
        net.add("first")
        for _ in range(rng.randrange(4)):
            self.join()
        net.settle()
        net.fill()
        for _ in range(4):
            self.harm()
            self.calm = rng.random() < 0.5  # settling must work under faults as well
            net.settle(2_000)
            self.calm = True
            self.finish_leaves()
            net.run_for(40)
            net.settle(2_000)
            net.check()
            assert not net.lost_everything()

    def harm(self) -> None:
        net, rng = self.net, self.rng
        self.calm = False
        crashes_left = min(filled_count(row) for row in net.master.room.table.rows) - 1
        for _ in range(rng.randrange(1, 6)):
            action = rng.random()
            data = self.data_names()
            if action < 0.4 and len(net.order) < 8:
                self.join()
            elif action < 0.65 and crashes_left > 0 and len(data) > 1:
                crashes_left -= 1
                victim = rng.choice(net.order)
                net.crash(victim, rng.random() < 0.5, self.delays())
                if rng.random() < 0.4:
                    net.run_for(rng.choice([0.0, 0.001, 0.01]))
                    net.add(victim, lite=[victim] if net.nodes[victim].info.lite else [])
            elif action < 0.85 and (leaver := self.leaver(data)):
                net.leave(leaver)
            elif len(net.order) > 1:
                one, other = rng.sample(net.order, 2)
                net.restore_link(one, other)
            net.run_for(rng.choice([0.0, 0.001, 0.003, 0.01, 0.05, 1.0, 5.0]))

    def leaver(self, data: list[str]) -> str | None:
        """Somebody who may leave and still as many groups stay as there are replicas."""
        net = self.net
        stay = [name for name in data if name not in net.leaving]
        name = self.rng.choice(stay) if stay else None
        infos = [net.nodes[other].info for other in stay if other != name]
        groups = member_groups(infos, net.settings.member_group)
        return name if len(groups) > self.backups else None

    def finish_leaves(self) -> None:
        net = self.net
        while net.leaving:
            name = net.leaving[0]
            # A new master learns of leaving members by their repeated requests.
            net.master.ctx.leaving = net.leaving
            with net.step(net.master):
                net.master.room.leave_requested()
            net.settle(2_000)
            assert MemberId(name) in net.master.may_leave
            assert all(name not in row for row in net.master.room.table.rows)
            net.crash(name)
            net.settle(2_000)


@pytest.mark.parametrize("block", range(8))
def test_storms(block: int) -> None:
    """ADL-37, ADL-46, ADL-48, bugs 1, 2, 7, 8, 10, 16, 19: see the module's goal."""
    for seed in range(block * 12, block * 12 + 12):
        try:
            Storm(seed).run()
        except BaseException as error:
            error.add_note(f"storm seed {seed}")
            raise
