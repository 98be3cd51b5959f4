"""What a run has to say in the end."""

from __future__ import annotations

from typing import Any

import msgspec

from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.host import Host
from whimbrel.sim.profile import SECOND_US
from whimbrel.sim.world import Violation, World


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
    kinds: tuple[str, ...] = ()
    """Of structures, as in the plan."""

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


def member_row(host: Host) -> MemberRow:
    """A place and the process there, if any."""
    state = "down" if not host.is_up else "paused" if host.is_paused else "up"
    if not host.is_up:
        return MemberRow(host.name, host.info.id[:8], state, 0, False, 0, 0, 0, 0)
    if host.is_leaving:
        state = "leaving"
    member = host.member
    table = member.migrations.table
    return MemberRow(
        host.name,
        host.info.id[:8],
        state if host.joined else f"{state}, not joined",
        member.ctx.members.version,
        member.ctx.is_master,
        table.stamp,
        table.primary_count(host.info.id),
        table.replica_count(host.info.id),
        len(member.migrations.active_migrations()),
    )


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
