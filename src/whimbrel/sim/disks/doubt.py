"""What may be lost when everybody dies, in the product's own words: no rule breaks by that.

With ``interval`` it is the last interval, with ``off`` what the system had not got or not written
(docs/guarantees.md, docs/persistence.md); with a partial policy what only those had that the others
go on without, each of whom is one that was lost.
"""

from __future__ import annotations

from whimbrel.core.effects import Note
from whimbrel.core.persistence.log import FLUSH_PAUSE_MAX_US, FLUSHES_PER_INTERVAL
from whimbrel.sim.disk import ANSWER_US, WORK_US
from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.host import CRASHED, Host
from whimbrel.sim.persisted import ALWAYS, OFF
from whimbrel.sim.profile import Plan
from whimbrel.sim.rule import Sightings
from whimbrel.sim.world import World

REMEMBERED_US = 30_000_000
"""Who died so long ago is off the list that all others have on their disks."""
SAMPLE_US = 250_000
"""From one look at a disk to the next."""
CAUGHT_UP_US = 2_000_000
"""A disk that is as before has everything after this time."""
DOUBTED = "acknowledged writes may be lost with everybody"
GONE_ON = "a recovery goes on without some of those it had waited for"


def unwritten_us(plan: Plan, *, power: bool) -> int:
    """How long after it a write may not be on a disk that is well, and is not waited for.

    Args:
        plan: Of the run.
        power: Whether on the platter, or only with the system.
    """
    settings = plan.settings.persistence
    work_us = WORK_US[1] + ANSWER_US[1]
    gather_us = min(settings.fsync_interval_us // FLUSHES_PER_INTERVAL, FLUSH_PAUSE_MAX_US)
    span_us = gather_us + plan.timer_late_us + plan.flush_delay_us + 2 * work_us
    if power:
        span_us += settings.fsync_interval_us + plan.timer_late_us + 2 * work_us
    return span_us * (1_000_000 + 2 * plan.clock_drift_ppm) // 1_000_000


class MayBeLost(Sightings):
    """Books what is not promised to come back."""

    situations = (DOUBTED, GONE_ON)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._died: dict[int, bool] = {}
        """When somebody has died, everybody for example, and whether by a loss of power."""
        self._ill: dict[Host, tuple[int, int]] = {}
        """Disks that are not well: since when, and when that was seen last."""
        self._is_over = True
        """Whether the cluster has run since everybody died."""

    @property
    def _fsync(self) -> str:
        persistence = self.world.plan.settings.persistence
        return persistence.fsync if persistence.enabled else ALWAYS

    def sample(self) -> None:
        """S: which disks are not well."""
        now_us = self.world.now_us
        for host in self.world.hosts if self._fsync != ALWAYS else ():
            if host.disk.is_ill:
                self._ill[host] = self._ill.get(host, (now_us - SAMPLE_US, 0))[0], now_us
            elif host in self._ill and now_us - self._ill[host][1] > CAUGHT_UP_US:
                del self._ill[host]

    def ending(self, host: Host, reason: str) -> None:
        """E: one alone may take its tail along, and be back before others know."""
        if reason == CRASHED and self._fsync != ALWAYS:
            now_us = self.world.now_us
            self._died[now_us] = self._died.get(now_us, False) or host.is_silent

    def outage(self, power: bool) -> None:
        """E: of the last moments, and of those of all that are not off every list."""
        world, now_us = self.world, self.world.now_us
        if self._fsync == ALWAYS:
            return
        if self._is_over:
            self._died = {
                at: power for at, power in self._died.items() if now_us - at < REMEMBERED_US
            }
        self._is_over = False
        self._died[now_us] = power
        is_by_power = any(self._died.values())
        first_us = min((*self._died, *(since_us for since_us, _ in self._ill.values())))
        since_us = first_us - unwritten_us(world.plan, power=is_by_power)
        if is_by_power and self._fsync == OFF:
            since_us = 0
        self.saw(DOUBTED)
        world.history.doubt(since_us)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: what a client hears from who is dead."""
        if self.world.is_dark and not self._is_over:
            if operation.outcome is Outcome.OK and not operation.is_read:
                self.world.history.doubt(operation.completed_us)
        else:
            self._is_over = True

    def note(self, host: Host, note: Note) -> None:
        """E: who is left out with what it has, and who is not there when all have loaded."""
        recovery = host.member.ctx.members.recovery
        if recovery is None:
            return
        expected = [info.id for info in recovery.expected]
        if note.kind == "recovery.left_out":
            if host.info.id in expected and host.member.persistence.found is not None:
                self._lose(host)
        elif note.kind == "recovery.loaded":
            for other in self.world.hosts:
                is_here = host.member.ctx.is_member(other.info.id)
                if other.info.id in expected and not is_here:
                    self._lose(other)

    def _lose(self, host: Host) -> None:
        self.saw(GONE_ON)
        self.world.budget.lose(self.world.now_us, self.world.place_for(host), once=True)
