"""Rule D12: data that are gone are told, in the product's own words (docs/design/0014)."""

from __future__ import annotations

import json

from whimbrel.core.migration.losses import LOST_ALL
from whimbrel.sim.host import Host
from whimbrel.sim.stores import number_at
from whimbrel.sim.watch import Checker, member_of
from whimbrel.sim.workload import SET_MAP, KeyHistory
from whimbrel.sim.world import World

TOLD_US = 60_000_000
"""This long after data are gone somebody says so, and as soon as the cluster calls itself safe."""
SAMPLE_US = 1_000_000
"""For so long a loss is looked at when its time is over: longer than between two samples."""
CRASH = "crash"
"""Why a process ended that handed nothing over."""


class GoneIsTold(Checker):
    """D12: looked at when a process dies with the last copy of an acknowledged write.

    Nobody says anything where nobody is left who had a table: what a cluster knew dies with its
    last member. Nothing is asked where clusters were split: what is gone then is D10's affair.
    Judged are keys that are written once; so who holds one later got it with a copy that was under
    way when its holder died.
    """

    rule = "D12"
    sentence = "data of which every holder died are told by a running member, whatever masters die"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._gone: dict[tuple[int, str], tuple[int, KeyHistory]] = {}
        """Since when data of a partition and a map are gone, and one of their keys."""

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        world = self.world
        if world.plan.profile.split or world.plan.async_backup_count:
            return
        others = [one for one in world.up_hosts() if one is not host]
        if not any(member_of(one).migrations.table.initialised for one in others):
            self._gone.clear()
        elif reason == CRASH:
            self._look(host, others)

    def _look(self, host: Host, others: list[Host]) -> None:
        for pid, histories in enumerate(self.world.workload.history.by_partition):
            if not member_of(host).dataplane.partitions[pid].fragments:
                continue
            for history in histories:
                if _holds(host, history) and not any(_holds(one, history) for one in others):
                    self._gone.setdefault((pid, history.map), (self.world.now_us, history))

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


def _holds(host: Host, history: KeyHistory) -> bool:
    """Whether a member has what was written once and acknowledged."""
    acked = history.acked
    if history.map != SET_MAP or acked is None or acked is not history.writes[-1]:
        return False
    return number_at(host, history) >= acked.number


def told_losses(world: World) -> dict[tuple[int, str], None]:
    """Partition and map of every loss that some running member's own document shows.

    The map is "" where every replica is gone, or more structures are concerned than are named.
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


LOSS_CHECKERS: tuple[type[Checker], ...] = (GoneIsTold,)
