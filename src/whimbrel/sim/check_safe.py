"""Rule D13: what the product calls safe bears the failures that it promises to bear."""

from __future__ import annotations

from whimbrel.core.member import Member
from whimbrel.core.registry import MAP_KIND
from whimbrel.sim.host import Host
from whimbrel.sim.sim_client import Reply
from whimbrel.sim.stores import (
    acting_master,
    number_in,
    replica_of,
    store_of,
    survived_failures,
    unsafe_because,
)
from whimbrel.sim.watch import Checker
from whimbrel.sim.workload import ABSENT, KeyHistory, Operation
from whimbrel.sim.world import World

WHOLE_LOOK_US = 5_000_000
"""While the same members hold the same table, all keys are looked at only once in this time."""


class SafeIsSafe(Checker):
    """D13: whenever the product says safe, the hottest survivor of any *b* deaths has every value.

    *b* is as many as the maps have synchronous backups, as far as the places allow, or what the
    product says that it survives, if that is more. Nobody is killed for it: the hottest survivor
    is one of the first *b* + 1 present replicas of a row, whoever dies, so each of those must hold
    what was acknowledged. The family ``salvo`` kills that many in earnest.
    """

    rule = "D13"
    sentence = "when the cluster says that it is safe, any b members may die and nothing is lost"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._fresh: dict[tuple[str, int], None] = {}
        """Keys that were written since the last look."""
        self._seen: object = None
        """Master, list and table of the last look at all keys."""
        self._seen_us = 0

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: remember which keys have news."""
        self._fresh[operation.map, operation.key] = None

    def sample(self) -> None:
        """A quarter of a second is often enough: what is wrong then is not made good by itself."""
        self._look()

    def ending(self, host: Host, reason: str) -> None:
        """A member dies: what was called safe until now must have been."""
        if reason != "left":
            self._look()

    def quiet(self) -> None:
        """Q: all keys, however little has changed."""
        self._seen = None
        self._look()

    def _look(self) -> None:
        world = self.world
        if world.plan.profile.split or world.violations:
            return
        master = acting_master(world)
        deaths = 0 if master is None else self._deaths_promised(master)
        if master is None or deaths <= 0:
            return
        table = master.migrations.table
        seen = (master.ctx.id, master.ctx.members.version, table.stamp, deaths)
        if seen != self._seen or world.now_us - self._seen_us >= WHOLE_LOOK_US:
            self._seen, self._seen_us = seen, world.now_us
            keys = list(world.workload.history.keys.values())
        else:
            found = map(world.workload.history.keys.get, self._fresh)
            keys = [history for history in found if history is not None]
        self._fresh.clear()
        self._look_at(keys, master, deaths)

    def _deaths_promised(self, master: Member) -> int:
        """How many may die at once by the product's word; 0 when it promises nothing."""
        world = self.world
        survives = survived_failures(world)
        if unsafe_because(world):
            return survives
        listed = [world.watch.host_of(info.id) for info in master.ctx.members.members]
        present = [host for host in listed if host is not None and self._may_hold(host)]
        return max(survives, min(world.plan.backup_count, world.places_of(present) - 1))

    @staticmethod
    def _may_hold(host: Host) -> bool:
        return host.joined and not (host.lite or host.is_leaving or host.is_draining)

    def _look_at(self, keys: list[KeyHistory], master: Member, deaths: int) -> None:
        """Each of the replicas that may be the hottest survivor has what was acknowledged."""
        world = self.world
        members, rows = master.ctx.members, master.migrations.table.rows
        for history in keys:
            acked = history.acked
            if not history.is_judged or acked is None or acked is not history.writes[-1]:
                continue
            if acked.effect == ABSENT and acked.seen == ABSENT:
                continue  # nothing was there to remove: it has changed nothing that could be lost
            if master.registry.get(MAP_KIND, history.map) is None:
                continue  # everybody who knew of the map has died since
            row = rows[history.partition_id][: 1 + world.plan.backup_count]
            listed = [one for one in row if one is not None and members.get(one)]
            present = [host for host in map(world.watch.host_of, listed) if host is not None]
            numbers = [self._held(host, history) for host in present[: deaths + 1]]
            if not numbers or not self._is_right(numbers[0], history):
                if world.data_is_promised() and acked.effect != ABSENT:
                    self._blame(history, "the primary lacks", deaths)
                continue
            if len(present) <= deaths:
                self._blame(history, f"only {len(present)} replicas have", deaths)
            elif not all(self._is_right(number, history) for number in numbers):
                self._blame(history, "a backup lacks", deaths)
            if world.violations:
                return

    @staticmethod
    def _is_right(number: int, history: KeyHistory) -> bool:
        newest = 0 if history.acked is None else history.acked.number
        return number >= newest or history.is_allowed(number)

    @staticmethod
    def _held(host: Host, history: KeyHistory) -> int:
        fragment = replica_of(host, history.partition_id).fragments.get(history.namespace)
        return ABSENT if fragment is None else number_in(store_of(fragment).records, history)

    def _blame(self, history: KeyHistory, what: str, deaths: int) -> None:
        self.fail(
            f"p{history.partition_id}: {what} {history.acked!r}, "
            f"{deaths} deaths were promised to be borne"
        )


SAFE_CHECKERS: tuple[type[Checker], ...] = (SafeIsSafe,)
