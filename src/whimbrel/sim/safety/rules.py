"""Rule D13: what the product calls safe bears the failures that it promises to bear."""

from __future__ import annotations

from whimbrel.core.member import Member
from whimbrel.sim.history import ABSENT, Ledger, Operation, Reply
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Rule
from whimbrel.sim.safety.words import acting_master, survived_failures, unsafe_because
from whimbrel.sim.world import World

WHOLE_LOOK_US = 5_000_000
"""While the same members hold the same table, everything is looked at only once in this time."""


class SafeIsSafe(Rule):
    """D13 (core.safety; ESQH): whenever the product says safe, the hottest survivor of any *b*
    deaths has every value.

    *b* is as many as there are synchronous backups, as far as the places allow, or what the product
    says that it survives, if that is more. Nobody is killed for it: the hottest survivor
    is one of the first *b* + 1 present replicas of a row, whoever dies, so each of those must hold
    what was acknowledged. The family ``salvo`` kills that many in earnest.
    """

    rule = "D13"
    sentence = "when the cluster says that it is safe, any b members may die and nothing is lost"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._fresh: dict[Ledger, None] = {}
        """What was used since the last look."""
        self._seen: object = None
        """Master, list and table of the last look at everything."""
        self._seen_us = 0

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H: remember what has news."""
        if operation.ledger.is_judged:
            self._fresh[operation.ledger] = None

    def sample(self) -> None:
        """A quarter of a second is often enough: what is wrong then is not made good by itself."""
        self._look()

    def ending(self, host: Host, reason: str) -> None:
        """A member dies: what was called safe until now must have been."""
        if reason != "left":
            self._look()

    def quiet(self) -> None:
        """Q: everything, however little has changed."""
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
            ledgers = list(world.history.ledgers)
        else:
            ledgers = list(self._fresh)
        self._fresh.clear()
        self._look_at(ledgers, master, deaths)

    def _deaths_promised(self, master: Member) -> int:
        """How many may die at once by the product's word; 0 when it promises nothing."""
        world = self.world
        survives = survived_failures(world)
        if unsafe_because(world):
            return survives
        listed = [world.host_of(info.id) for info in master.ctx.members.members]
        present = [host for host in listed if host is not None and self._may_hold(host)]
        return max(survives, min(world.plan.backup_count, world.places_of(present) - 1))

    @staticmethod
    def _may_hold(host: Host) -> bool:
        return host.joined and not (host.lite or host.is_leaving or host.is_draining)

    def _look_at(self, ledgers: list[Ledger], master: Member, deaths: int) -> None:
        """Each of the replicas that may be the hottest survivor has what was acknowledged."""
        world = self.world
        members, rows = master.ctx.members, master.migrations.table.rows
        for ledger in ledgers:
            acked = ledger.acked
            if acked is None or not ledger.is_settled:
                continue
            if acked.effect == ABSENT and acked.seen == ABSENT:
                continue  # nothing was there to remove: it has changed nothing that could be lost
            if master.registry.get(ledger.kind, ledger.name) is None:
                continue  # everybody who knew of the structure has died since
            row = rows[ledger.partition_id][: 1 + world.plan.backup_count]
            listed = [one for one in row if one is not None and members.get(one)]
            present = [host for host in map(world.host_of, listed) if host is not None]
            lacking = [
                ledger.lacks(host.store_at(ledger.partition_id, ledger.namespace))
                for host in present[: deaths + 1]
            ]
            if not lacking or lacking[0]:
                if world.data_is_promised() and ledger.owes:
                    self._blame(ledger, "the primary lacks", deaths)
                continue
            if len(present) <= deaths:
                self._blame(ledger, f"only {len(present)} replicas have", deaths)
            elif any(lacking):
                self._blame(ledger, "a backup lacks", deaths)
            if world.violations:
                return

    def _blame(self, ledger: Ledger, what: str, deaths: int) -> None:
        self.fail(
            f"p{ledger.partition_id}: {what} {ledger.acked!r}, "
            f"{deaths} deaths were promised to be borne"
        )


RULES: tuple[type[Rule], ...] = (SafeIsSafe,)
