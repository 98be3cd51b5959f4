"""The crash sweep: a member is killed at every event of a small rebalance, role by role.

Nothing is drawn but the orders of one seed. A rebalance is first run unharmed, and the events of
the simulated world are counted from its trigger until all is safe: every delivery of a message or
of a client's bytes, every timer, every connection made or lost. Then it is run again for each of
them, and a member is killed right after that event (which is right before the next one). Every
rule of the simulator judges every run, to its end at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.errors import UsageError
from whimbrel.sim.bug import Bug
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.profile import SECOND_US, Plan, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.run import Run
from whimbrel.sim.safety.words import restless_because, unsafe_because
from whimbrel.sim.structures.configured import MAPS_ONLY
from whimbrel.sim.world import Violation


class Rebalance(msgspec.Struct, frozen=True):
    """What sets a rebalance off, in a cluster that a seed has arranged."""

    event: FaultEvent
    seed: int


KINDS: dict[str, Rebalance] = {
    "join": Rebalance(FaultEvent(0, "start", ("m6",)), seed=2),
    "leave": Rebalance(FaultEvent(0, "leave", ("m3",)), seed=4),
    "crash": Rebalance(FaultEvent(0, "crash", ("m4",)), seed=6),
}
"""A move to a newcomer; a move away from a leaver; a promotion, and copies in place of what was
lost. The seeds are such that the roles fall to different members."""
ROLES = (
    "source",
    "replaced",
    "destination",
    "master",
    "bystander",
    "master+destination",
    "master twice",
    "source restarts",
    "destination restarts",
    "master restarts",
)
"""Who is killed: the primary that data come from, the one whose replica goes away, and so on;
``restarts``: a new process comes up on the same address at once."""
SECOND_KILL_SPREAD = 31
"""``master twice``: the new master dies fewer events than this after it has taken charge, one more
with each index, so that the kills fall on all of what it does first."""
EVENTS_MAX = 5_000
"""Events of a small rebalance; more means that it never ends."""


class Case(msgspec.Struct, frozen=True):
    """One run of a sweep."""

    kind: str
    role: str
    index: int
    """Events of the rebalance before the kill."""
    victims: tuple[str, ...]
    violations: tuple[Violation, ...]

    @property
    def text(self) -> str:
        """For people."""
        verdict = "; ".join(f"{one.rule}: {one.sentence}" for one in self.violations) or "holds"
        return f"{self.kind}, {self.role} at {self.index} ({', '.join(self.victims)}): {verdict}"


def sweep_plan(seed: int) -> Plan:
    """Five members and three partitions with two backups, a light load on maps, quick paths."""
    plan = draw_plan(Entropy(seed), profile_named("kill"))
    settings = msgspec.structs.replace(
        plan.settings,
        partition_count=3,
        structures=tuple(
            msgspec.structs.replace(one, backup_count=2, async_backup_count=0)
            for one in plan.settings.structures
        ),
    )
    return msgspec.structs.replace(
        plan, settings=settings, members=5, hosts=6, backup_count=2, async_backup_count=0,
        smart_clients=1, single_clients=1, operations_per_s=20, kinds=MAPS_ONLY,
    )  # fmt: skip


class _RebalanceRun:
    """One run: start, load, the trigger, maybe kills, rest, final reads."""

    def __init__(self, kind: str, bug: Bug | None) -> None:
        if bug is not None:
            bug.begin_run()
        trigger = KINDS[kind]
        entropy = Entropy(trigger.seed)
        self.run = Run(sweep_plan(trigger.seed), entropy, bug.make_engine if bug else None)
        self.run.nemesis.script = []
        self.world = self.run.world
        self.trigger = trigger.event
        self.passed = 0
        """Events since the trigger."""
        self.victims: list[str] = []
        self._roles: dict[str, str] = {}

    def until_trigger(self) -> bool:
        """To a settled cluster under load, and the trigger; False when a rule is broken."""
        run, world = self.run, self.world
        if not run._start() or not run._rest("start"):
            return False
        run.workload.start()
        if not run._advance(SECOND_US):
            return False
        run.nemesis.perform(self.trigger)
        return not world.violations

    def is_safe(self) -> bool:
        """Whether the rebalance is over: everybody knows, everything is in step."""
        return not (restless_because(self.world) or unsafe_because(self.world))

    def play(self, until: Callable[[], bool]) -> bool:
        """Event by event until something holds; False at a violation, or when it never does."""
        world = self.world
        while not until():
            world.scheduler.run_one()
            self.passed += 1
            self._look_at_roles()
            if world.violations or self.passed > EVENTS_MAX:
                return False
        return True

    def play_to_next_master(self, after: int) -> None:
        """Until another member than the one just killed is in charge, and some events more."""
        first = self._roles.get("master", "")
        if not self.play(lambda: self._roles.get("master", "") != first or self.is_safe()):
            return
        until = self.passed + after
        self.play(lambda: self.passed >= until)

    def _look_at_roles(self) -> None:
        """Who takes part in the newest migration, as the master knows it."""
        for host in self.world.up_hosts():
            migrations = host.member.migrations
            if not migrations.loop.in_charge:
                continue
            self._roles["master"] = host.name
            for batch in migrations.loop.repair.batches.values():
                self._roles["destination"] = self._name_of(batch.asked)
            for migration in migrations.running_migrations()[-1:]:
                primary = migrations.table.rows[migration.partition_id][0]
                self._roles["source"] = self._name_of(primary)
                self._roles["replaced"] = self._name_of(migration.step.source)
                self._roles["destination"] = self._name_of(migration.step.destination)

    def _name_of(self, member: MemberId | None) -> str:
        return self.world.name_of(member)

    def kill(self, role: str) -> None:
        """Kill who has the role now, or had it last."""
        world = self.world
        if role == "bystander":
            taken = [*self._roles.values(), *self.trigger.names]
            host = next((one for one in world.up_hosts() if one.name not in taken), None)
        else:
            name = self._roles.get(role)
            host = next((one for one in world.up_hosts() if one.name == name), None)
        if host is None:
            return
        self.victims.append(host.name)
        self.run.nemesis.perform(FaultEvent(0, "crash", (host.name,)))

    def finish(self) -> None:
        """Rest, final reads, everything that is judged at the end."""
        if not self.world.violations:
            self.run._finish()


def run_case(kind: str, role: str, index: int, bug: Bug | None = None) -> Case:
    """One run with a kill right after so many events of the rebalance.

    Raises:
        UsageError: There is no such kind or role.
    """
    _check_names(kind, role)
    rebalance = _RebalanceRun(kind, bug)
    if rebalance.until_trigger():
        rebalance.play(lambda: rebalance.passed >= index)
        who, _, then = role.partition(" ")
        for one in who.split("+"):
            rebalance.kill(one)
        if then == "restarts" and rebalance.victims:
            rebalance.run.nemesis.perform(FaultEvent(0, "start", (rebalance.victims[0],)))
        elif then == "twice":
            rebalance.play_to_next_master(index % SECOND_KILL_SPREAD)
            rebalance.kill("master")
        rebalance.finish()
    world = rebalance.world
    return Case(kind, role, index, tuple(rebalance.victims), tuple(world.violations))


def count_events(kind: str) -> int:
    """Events of an unharmed rebalance, from its trigger until all is safe.

    Raises:
        UsageError: There is no such kind.
    """
    _check_names(kind, ROLES[0])
    rebalance = _RebalanceRun(kind, None)
    if rebalance.until_trigger():
        rebalance.play(rebalance.is_safe)
    return rebalance.passed


def sweep(kind: str = "all", role: str = "all", every: int = 1) -> Iterator[Case]:
    """All cases of a kind and a role, or of all of them.

    Args:
        kind: A name of ``KINDS`` or ``all``.
        role: One of ``ROLES`` or ``all``.
        every: Take every so many-th event index only; the first one shifts from role to role.

    Yields:
        Each case when it has been run.

    Raises:
        UsageError: There is no such kind or role.
    """
    for one in KINDS if kind == "all" else (kind,):
        total = count_events(one)
        for shift, who in enumerate(ROLES if role == "all" else (role,)):
            for index in range(shift % every, total + 1, every):
                yield run_case(one, who, index)


def _check_names(kind: str, role: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"no rebalance is called {kind!r}; there are: {', '.join(KINDS)}, all")
    if role not in ROLES:
        raise UsageError(f"no role is called {role!r}; there are: {', '.join(ROLES)}, all")
