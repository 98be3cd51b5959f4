"""One run from its first event to its report, and what speed runs have.

A run goes through phases: start, load, harm, pause to a safe point, harm again, stop all faults,
become safe in bounded time (L1), final reads, checks at rest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from whimbrel.sim.bug import Bug
from whimbrel.sim.check_more import clients_differ
from whimbrel.sim.coverage import ERRORS
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.moments import Moment
from whimbrel.sim.nemesis import FaultEvent
from whimbrel.sim.profile import HOUR_US, SECOND_US, Plan, Profile, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.stores import copy_wait_us, restless_because, unsafe_because
from whimbrel.sim.threads import KEPT_LINES_MAX, Subject, threads
from whimbrel.sim.watch import member_of
from whimbrel.sim.workload import REGISTER_MAP, SET_MAP
from whimbrel.sim.world import Violation, World

POLL_US = 250_000
"""How often a run looks whether the cluster is safe."""
LOAD_US = 3 * SECOND_US
CLIENT_WAIT_US = 75 * SECOND_US
"""How long clients may take to finish what they began."""
FINAL_READS_MAX = 150


class MemberRow(msgspec.Struct, frozen=True):
    """A member as the table of a failure shows it."""

    name: str
    identity: str
    state: str
    list_version: int
    is_master: bool
    stamp: int
    primaries: int
    replicas: int
    open_migrations: int


class Report(msgspec.Struct, frozen=True):
    """What a run has to say."""

    seed: int
    profile: str
    trace_hash: str
    unseed: int
    events: int
    simulated_s: float
    violations: tuple[Violation, ...]
    phase: str
    """Phase in which the run ended; ``done`` when nothing was violated."""
    operations: int
    acked_writes: int
    unknown_writes: int
    faults: dict[str, int]
    errors: dict[str, int]
    notes: dict[str, int]
    settings: dict[str, Any]
    members: tuple[MemberRow, ...]
    safe_points: int
    slowest_recovery_s: float
    stale_window_s: float = 0.0
    """Longest span in which a stale primary took writes beside the new one (P3)."""
    seen: dict[str, int] = {}
    """Rare situations to how often they came about (``coverage``)."""
    timeline: tuple[tuple[int, str, str, str], ...] = ()
    story: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    """The causal threads that were asked for (``threads``)."""
    fault_events: tuple[FaultEvent, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON document of ``whimbrel sim --json``."""
        return {
            "seed": self.seed,
            "profile": self.profile,
            "trace_hash": self.trace_hash,
            "unseed": self.unseed,
            "events": self.events,
            "violations": [
                {
                    "rule": violation.rule,
                    "sentence": violation.sentence,
                    "at_s": violation.at_us / SECOND_US,
                    "who": violation.who,
                }
                for violation in self.violations
            ],
            "simulated_s": self.simulated_s,
            "phase": self.phase,
            "operations": self.operations,
            "acknowledged_writes": self.acked_writes,
            "unknown_writes": self.unknown_writes,
            "safe_points": self.safe_points,
            "slowest_recovery_s": self.slowest_recovery_s,
            "stale_window_s": self.stale_window_s,
            "seen": self.seen,
            "faults": self.faults,
            "errors": self.errors,
            "settings": self.settings,
        }


class Run:
    """Drives a world through its phases."""

    def __init__(self, world: World, length_us: int) -> None:
        self.world = world
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
            world.watch.sample()
            if world.violations:
                return False
        return True

    def _start(self) -> bool:
        world = self.world
        generator = world.entropy.of("plan")
        for host in world.hosts[: world.plan.members]:
            world.scheduler.after(generator.randrange(SECOND_US), world.start, host)
        for client in world.clients:
            world.scheduler.after(generator.randrange(2 * SECOND_US), client.start)
        world.nemesis.play()
        return self._advance(2 * SECOND_US)

    def _round(self) -> bool:
        world = self.world
        self.phase = "load"
        world.workload.start()
        if not self._advance(LOAD_US):
            return False
        self.phase = "harm"
        world.nemesis.start()
        if not self._advance(world.plan.harm_us):
            return False
        world.nemesis.stop()
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
                rule, reason = "L2", world.nemesis.unfinished()
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
        world.watch.quiet()
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
        world.workload.stop()
        world.nemesis.forsake()
        if not self._clients_end() or not self._rest("rest") or not self._merges_end():
            return
        self.phase = "final reads"
        self._final_reads()
        if not self._clients_end():
            return
        world.watch.final()
        if not world.violations:
            self.phase = "done"

    def _clients_end(self) -> bool:
        """Wait until no client waits for an answer."""
        world = self.world
        limit_us = world.now_us + CLIENT_WAIT_US
        while world.now_us < limit_us and world.someone_is_busy():
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
        return any(member_of(host).merging.is_active for host in self.world.up_hosts())

    def _final_reads(self) -> None:
        """Every client reads its share of the keys, one after the other."""
        world = self.world
        keys = list(world.workload.history.keys)
        registers = [key for key in keys if key[0] == REGISTER_MAP]
        sets = [key for key in keys if key[0] == SET_MAP]
        step = max(1, len(sets) // FINAL_READS_MAX)
        chosen = [*registers[:FINAL_READS_MAX], *sets[::step]]
        world.workload.read_finally(chosen)


def simulate(
    seed: int,
    profile: str = "swarm",
    hours: float = 0.0,
    bug: Bug | None = None,
    script: list[FaultEvent] | None = None,
    plan: Plan | None = None,
    moments: Sequence[Moment] = (),
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
        moments: Events of the script that wait for a message instead of a time.
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
    world = World(plan or drawn, entropy, bug.make_engine if bug is not None else None)
    if script is not None:
        world.nemesis.script = script
    world.moments.expect(moments)
    run = Run(world, max(world.plan.profile.quick_us, int(hours * HOUR_US)))
    if subject is not None:
        world.trace.keep(KEPT_LINES_MAX)
    run.go()
    report = _report(run, world)
    if subject is None:
        return report
    return msgspec.structs.replace(report, threads=tuple(threads(world.trace, subject)))


def safe_wait_us(world: World) -> int:
    """How long this cluster may take now to become safe once nothing harms it (L1)."""
    return world.plan.safe_wait_us + copy_wait_us(world)


def _report(run: Run, world: World) -> Report:
    plan = world.plan
    history = world.workload.history
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
        members=tuple(_member_row(host.name, world) for host in world.hosts),
        safe_points=run.safe_points,
        slowest_recovery_s=run.slowest_recovery_us / SECOND_US,
        stale_window_s=world.stale_window_us / SECOND_US,
        seen=seen_of(world),
        timeline=tuple(world.trace.timeline),
        story=_story(world) if world.violations else (),
        fault_events=tuple(world.nemesis.events),
    )


def seen_of(world: World) -> dict[str, int]:
    """Rare situations of a run, the errors that clients got among them."""
    seen = dict(world.seen)
    for code, count in world.error_counts.items():
        if code in ERRORS:
            seen[ERRORS[code]] = count
    return dict(sorted(seen.items()))


def _story(world: World) -> tuple[str, ...]:
    """The last lines about the first violation; all the last lines when none is about it."""
    return tuple(world.trace.story(story_words(world)) or world.trace.story())


def story_words(world: World) -> list[str]:
    """What the first violation is about: the member and the partition it names."""
    first = world.violations[0]
    words = [first.who] if first.who else []
    words += [
        word.strip(",:")
        for word in first.sentence.split()
        if word[0] == "p" and word[1:].strip(",:").isdigit()
    ]
    return [f" {word} " for word in words]


def _member_row(name: str, world: World) -> MemberRow:
    host = world.host_named(name)
    state = "down" if not host.is_up else "paused" if host.is_paused else "up"
    if not host.is_up:
        return MemberRow(name, host.info.id[:8], state, 0, False, 0, 0, 0, 0)
    if host.is_leaving:
        state = "leaving"
    member = member_of(host)
    table = member.migrations.table
    return MemberRow(
        name,
        host.info.id[:8],
        state if host.joined else f"{state}, not joined",
        member.ctx.members.version,
        member.ctx.is_master,
        table.stamp,
        table.primary_count(host.info.id),
        table.replica_count(host.info.id),
        len(member.migrations.active_migrations()),
    )


def speed(seed: int = 1, profile: str = "busy", hours: float = 0.5) -> dict[str, float]:
    """How fast runs are: simulated cluster-hours per CPU-minute, and events per CPU-second."""
    before = time.process_time()
    report = simulate(seed, profile, hours)
    cpu_s = time.process_time() - before
    return {
        "cpu_s": cpu_s,
        "events": float(report.events),
        "events_per_cpu_s": report.events / cpu_s,
        "simulated_s": report.simulated_s,
        "cluster_hours_per_cpu_minute": (report.simulated_s / 3600) / (cpu_s / 60),
        "acknowledged_writes": float(report.acked_writes),
        "violations": float(len(report.violations)),
    }


def versions() -> dict[str, str]:
    """What a failing seed is valid for."""
    return {"python": sys.version.split()[0]}
