"""One run from its first event to its report.

A run goes through phases: start, load, harm, pause to a safe point, harm again, stop all faults,
become safe in bounded time (L1), final reads, checks at rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from whimbrel.sim.bounds.waits import safe_wait_us
from whimbrel.sim.bug import Bug
from whimbrel.sim.client import SimClient
from whimbrel.sim.clients.rules import clients_differ, errors_met
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.actions import ACTIONS
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.faults.families import FAMILIES
from whimbrel.sim.faults.message_triggers import MessageTrigger
from whimbrel.sim.faults.nemesis import Nemesis
from whimbrel.sim.profile import HOUR_US, SECOND_US, Plan, Profile, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.registry import RULES
from whimbrel.sim.report import Report, member_row, story_words
from whimbrel.sim.safety.words import restless_because, unsafe_because
from whimbrel.sim.structures.kinds import MODELS
from whimbrel.sim.threads import KEPT_LINES_MAX, Subject, threads
from whimbrel.sim.watch import Watch
from whimbrel.sim.workload import Workload
from whimbrel.sim.world import MakeEngine, World

POLL_US = 250_000
"""How often a run looks whether the cluster is safe."""
LOAD_US = 3 * SECOND_US
CLIENT_WAIT_US = 75 * SECOND_US
"""How long clients may take to finish what they began."""


class Run:
    """A world with its clients, harm and rules, driven through its phases."""

    def __init__(
        self,
        plan: Plan,
        entropy: Entropy,
        make_engine: MakeEngine | None = None,
        length_us: int = 0,
    ) -> None:
        self.world = World(plan, entropy, make_engine)
        models = [MODELS[kind](self.world) for kind in plan.kinds or MODELS]
        self.clients = [
            SimClient(self.world, index, index < plan.smart_clients, models)
            for index in range(plan.smart_clients + plan.single_clients)
        ]
        self.world.clients = self.clients
        self.workload = Workload(self.world, self.clients, models)
        self.nemesis = Nemesis(self.world, self.workload, FAMILIES, ACTIONS)
        Watch(self.world, RULES)
        self.length_us = length_us
        self.phase = "start"
        self.safe_points = 0
        self.slowest_recovery_us = 0

    def go(self) -> None:
        """All phases; returns early at the first violation."""
        if not self._start() or not self._rest("start"):
            return
        rounds = 0
        while rounds < self.world.plan.rounds or self.world.now_us < self.length_us:
            rounds += 1
            if not self._round():
                return
        self._finish()

    def _advance(self, span_us: int) -> bool:
        """Let time pass in small steps; False once a rule is broken."""
        world = self.world
        deadline_us = world.now_us + span_us
        while world.now_us < deadline_us:
            world.scheduler.run_until(min(deadline_us, world.now_us + POLL_US))
            world.tell("sample")
            if world.violations:
                return False
        return True

    def _start(self) -> bool:
        world = self.world
        generator = world.entropy.of("plan")
        for host in world.hosts[: world.plan.members]:
            world.scheduler.after(generator.randrange(SECOND_US), world.start, host)
        for client in self.clients:
            world.scheduler.after(generator.randrange(2 * SECOND_US), client.start)
        self.nemesis.play()
        return self._advance(2 * SECOND_US)

    def _round(self) -> bool:
        world = self.world
        self.phase = "load"
        self.workload.start()
        if not self._advance(LOAD_US):
            return False
        self.phase = "harm"
        self.nemesis.start()
        if not self._advance(world.plan.harm_us):
            return False
        self.nemesis.stop()
        return self._rest("recover")

    def _rest(self, phase: str) -> bool:
        """Wait until the cluster is safe; L1 when it takes too long (L6: a copy must be there)."""
        world = self.world
        self.phase = phase
        began_us = world.now_us
        while True:
            if not self._advance(POLL_US):
                return False
            reason = restless_because(world) or unsafe_because(world)
            rule = "L2" if "joining or leaving" in reason else "L1"
            if not reason:
                rule, reason = "L2", self.nemesis.unfinished()
            if not reason:
                rule, reason = "C2", clients_differ(world)
            if not reason:
                break
            waited_us = world.now_us - began_us
            if waited_us >= world.plan.safe_wait_us and waited_us >= safe_wait_us(world):
                self._blame(rule, reason)
                return False
        self.slowest_recovery_us = max(self.slowest_recovery_us, world.now_us - began_us)
        self.safe_points += 1
        world.reached_safe_point()
        world.tell("quiet")
        return not world.violations

    def _blame(self, rule: str, reason: str) -> None:
        """It took too long: which rule is broken, if convergence was possible at all (L6)."""
        world = self.world
        if not world.up_hosts():
            return  # nobody is left who could be safe
        waited_s = safe_wait_us(world) / SECOND_US
        world.violation(rule, f"the cluster is not safe after {waited_s:.0f} s: {reason}")

    def _finish(self) -> None:
        world = self.world
        left_us = self.length_us - world.now_us
        if left_us > 0:
            self.phase = "calm"
            if not self._advance(left_us):
                return
        self.workload.stop()
        self.nemesis.forsake()
        if not self._clients_end() or not self._rest("rest") or not self._merges_end():
            return
        self.phase = "final reads"
        self.workload.read_finally()
        if not self._clients_end():
            return
        world.tell("final")
        if not world.violations:
            self.phase = "done"

    def _clients_end(self) -> bool:
        """Wait until no client waits for an answer."""
        world = self.world
        limit_us = world.now_us + CLIENT_WAIT_US
        while world.now_us < limit_us and self.workload.is_busy:
            if not self._advance(POLL_US):
                return False
        return True

    def _merges_end(self) -> bool:
        """Wait until nothing is merged any more; D10 judges what waits after a bounded time.

        A cluster may be safe while a member still brings in what its part held: a chunk after the
        other, each with its backups.
        """
        world = self.world
        self.phase = "merge"
        limit_us = world.now_us + world.plan.safe_wait_us
        while world.now_us < limit_us and self._someone_merges():
            if not self._advance(POLL_US):
                return False
        return True

    def _someone_merges(self) -> bool:
        return any(host.member.merging.is_active for host in self.world.up_hosts())


def simulate(
    seed: int,
    profile: str = "swarm",
    hours: float = 0.0,
    bug: Bug | None = None,
    script: list[FaultEvent] | None = None,
    plan: Plan | None = None,
    triggers: Sequence[MessageTrigger] = (),
    story: str = "",
) -> Report:
    """One run.

    Args:
        seed: Decides everything.
        profile: Name of a profile.
        hours: Least simulated length; 0 for the profile's own.
        bug: A planted bug, to see that it is caught.
        script: Fault events to play instead of drawn ones.
        plan: Parameters to use instead of drawn ones.
        triggers: Events of the script that wait for a message instead of a time.
        story: Subject whose threads the report shall tell: ``partition=17``, ``member=m2``, or
            the id of a cause.

    Returns:
        The report; its ``violations`` are empty when every rule held.

    Raises:
        UsageError: There is no such profile, a script names something that does not exist, or
            the subject is none.
    """
    subject = Subject(story) if story else None
    if bug is not None:
        bug.begin_run()
    chosen: Profile = profile_named(profile)
    entropy = Entropy(seed)
    drawn = draw_plan(entropy, chosen)
    used = plan or drawn
    if bug is not None and plan is None:
        used = msgspec.structs.replace(used, kinds=bug.kinds)
    length_us = max(used.profile.quick_us, int(hours * HOUR_US))
    run = Run(used, entropy, bug.make_engine if bug is not None else None, length_us)
    if script is not None:
        run.nemesis.script = script
    run.nemesis.triggers.expect(triggers)
    if subject is not None:
        run.world.trace.keep(KEPT_LINES_MAX)
    run.go()
    return _report(run, subject)


def _report(run: Run, subject: Subject | None) -> Report:
    world = run.world
    plan, history = world.plan, world.history
    return Report(
        seed=plan.seed,
        profile=plan.profile.name,
        trace_hash=world.trace.digest,
        unseed=world.entropy.unseed(),
        events=world.scheduler.events,
        simulated_s=world.now_us / SECOND_US,
        violations=tuple(world.violations),
        phase=run.phase,
        operations=history.operations,
        acked_writes=history.acked_writes,
        unknown_writes=history.unknown_writes,
        faults=dict(sorted(world.fault_counts.items())),
        errors={str(code): count for code, count in sorted(world.error_counts.items())},
        notes=dict(sorted(world.note_counts.items())),
        settings={
            "members": plan.members,
            "partitions": plan.settings.partition_count,
            "backups": plan.backup_count,
            "async_backups": plan.async_backup_count,
            "operations_per_s": plan.operations_per_s,
            "encoded": plan.encoded,
            "families": sorted(plan.fault_gap_us),
        },
        members=tuple(map(member_row, world.hosts)),
        safe_points=run.safe_points,
        slowest_recovery_s=run.slowest_recovery_us / SECOND_US,
        stale_window_s=world.stale_window_us / SECOND_US,
        seen=dict(sorted({**world.seen, **errors_met(world.error_counts)}.items())),
        timeline=tuple(world.trace.timeline),
        story=_story(world) if world.violations else (),
        threads=() if subject is None else tuple(threads(world.trace, subject)),
        fault_events=tuple(run.nemesis.events),
        kinds=plan.kinds,
    )


def _story(world: World) -> tuple[str, ...]:
    """The last lines about the first violation; all the last lines when none is about it."""
    return tuple(world.trace.story(story_words(world)) or world.trace.story())


def versions() -> dict[str, str]:
    """What a failing seed is valid for."""
    return {"python": sys.version.split()[0]}
