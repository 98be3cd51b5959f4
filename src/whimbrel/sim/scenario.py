"""Scenario files: a run written down as verbs, so that a fixed bug stays fixed.

A seed is valid for one state of the code only; its plan and fault events are not. A file has one
statement a line, ``#`` begins a comment::

    seed 4711
    profile kill
    set members 3
    set partitions 7
    at 12.500000 crash m2
    expect safe

``set`` overrides a drawn parameter, ``at`` is a fault at a simulated second, ``when`` one that a
message sets off (``faults.message_triggers``), ``expect`` is ``safe`` (no rule is broken) or
``broken RULE`` (only with a planted bug, ``bug NAME``).
``never NOTE`` also forbids members to note that. ``guard NAME RULES`` names the protection that the
situation calls for (``registry.GUARDS``): without it one of the rules, or ``never``, is broken.
"""

from __future__ import annotations

from typing import Any

import msgspec

from whimbrel.errors import UsageError
from whimbrel.sim.bug import Bug
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.faults.message_triggers import MessageTrigger, parse_trigger
from whimbrel.sim.profile import Plan, draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.registry import BUGS, GUARDS
from whimbrel.sim.report import Report
from whimbrel.sim.run import simulate
from whimbrel.sim.structures.configured import MAPS_ONLY, configured
from whimbrel.sim.structures.kinds import MODELS

SAFE = "safe"
_PLAN_FIELDS = (
    *("members", "hosts", "lite_hosts", "machine_size", "smart_clients", "single_clients"),
    *("operations_per_s", "rounds", "harm_us", "register_keys", "tick_us"),
)
_SETTING_FIELDS = {
    "partitions": "partition_count",
    "call_timeout_us": "call_timeout_us",
    "heartbeat_timeout_us": "heartbeat_timeout_us",
    "migration_chunk_bytes_max": "migration_chunk_bytes_max",
    "migration_interval_us": "migration_interval_us",
    "migration_timeout_us": "migration_timeout_us",
    "replication_max_parallel": "replication_max_parallel",
    "stamp_interval_us": "table_send_interval_us",
    "sync_interval_us": "backup_sync_interval_us",
    "completed_batch_max": "completed_batch_max",
    "lock_lease_us": "state_lock_lease_us",
    "leave_timeout_us": "leave_timeout_us",
    "migration_max_parallel": "migration_max_parallel",
    "stale_read_disabled": "stale_read_disabled",
    "acks_to_client": "backup_acks_to_client",
}
REST_US = 1_000_000
"""With ``set rounds`` a run ends so long after its last event, or when its rounds are over."""
_BACKUPS = "backups"
"""Synchronous backups of every map; then there are no asynchronous ones."""


class Scenario(msgspec.Struct, frozen=True):
    """A run written down."""

    seed: int
    profile: str
    overrides: dict[str, int]
    events: tuple[FaultEvent, ...]
    triggers: tuple[MessageTrigger, ...] = ()
    """Events that wait for a message instead of a time."""
    expectation: str = SAFE
    """``safe``, or the rule that must be broken."""
    bug: str = ""
    guard: str = ""
    """Protection without which the scenario must fail."""
    guard_rules: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    """Notes that no member may make."""
    kinds: tuple[str, ...] = MAPS_ONLY
    """Of structures, as in the plan."""

    @property
    def text(self) -> str:
        """As a file."""
        lines = [f"seed {self.seed}", f"profile {self.profile}"]
        if self.bug:
            lines.append(f"bug {self.bug}")
        if self.guard:
            lines.append(" ".join(("guard", self.guard, *self.guard_rules)))
        lines += [f"never {note}" for note in self.never]
        if self.kinds != MAPS_ONLY:
            lines.append(" ".join(("kinds", *self.kinds)))
        lines += [f"set {name} {value}" for name, value in self.overrides.items()]
        lines += [event.text() for event in self.events]
        lines += [trigger.text() for trigger in self.triggers]
        lines.append(
            f"expect {self.expectation}"
            if self.expectation == SAFE
            else f"expect broken {self.expectation}"
        )
        return "\n".join(lines) + "\n"

    def plan(self) -> Plan:
        """The drawn plan with the overrides.

        Raises:
            UsageError: There is no such profile.
        """
        plan = draw_plan(Entropy(self.seed), profile_named(self.profile))
        fields = {name: value for name, value in self.overrides.items() if name in _PLAN_FIELDS}
        settings: dict[str, Any] = {
            _SETTING_FIELDS[name]: value
            for name, value in self.overrides.items()
            if name in _SETTING_FIELDS
        }
        if _BACKUPS in self.overrides:
            count = self.overrides[_BACKUPS]
            plan = msgspec.structs.replace(
                plan,
                backup_count=count,
                async_backup_count=0,
                settings=msgspec.structs.replace(plan.settings, structures=configured(count, 0)),
            )
        profile = plan.profile
        if "rounds" in self.overrides and (self.events or self.triggers):
            last_us = max(
                *(event.at_us for event in self.events),
                *(trigger.since_us for trigger in self.triggers),
                0,
            )
            profile = msgspec.structs.replace(profile, quick_us=last_us + REST_US)
        if "stale_read_disabled" in settings:
            settings["stale_read_disabled"] = bool(settings["stale_read_disabled"])
        if self.overrides.get("machine_size", 1) > 1:
            settings["member_group"] = "host"
        return msgspec.structs.replace(
            plan,
            profile=profile,
            kinds=self.kinds,
            settings=msgspec.structs.replace(plan.settings, **settings),
            **fields,
        )

    def play(self) -> Report:
        """Run it."""
        return self._play(BUGS[self.bug] if self.bug else None)

    def play_unguarded(self) -> Report:
        """Run it with its protection switched off.

        Raises:
            UsageError: It names no protection.
        """
        if not self.guard:
            raise UsageError("the scenario names no protection")
        return self._play(GUARDS[self.guard])

    def with_seed(self, seed: int) -> Scenario:
        """The same events on another draw of everything else."""
        return msgspec.structs.replace(self, seed=seed)

    def _play(self, bug: Bug | None) -> Report:
        return simulate(
            self.seed,
            self.profile,
            bug=bug,
            script=list(self.events),
            plan=self.plan(),
            triggers=self.triggers,
        )

    def is_as_expected(self, report: Report) -> bool:
        """Whether a report is what the file says."""
        broken = [violation.rule for violation in report.violations]
        if any(note in report.notes for note in self.never):
            return False
        return not broken if self.expectation == SAFE else self.expectation in broken

    def is_caught(self, report: Report) -> bool:
        """Whether a run without the protection failed as the file says."""
        if self.never and any(note in report.notes for note in self.never):
            return True
        return bool(report.violations) and report.violations[0].rule in self.guard_rules


def parse_scenario(text: str) -> Scenario:
    """A scenario from its file.

    Raises:
        UsageError: A line is none of the statements; names the line.
    """
    scenario = Scenario(0, "swarm", {}, ())
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            if words:
                changes = _about_the_run(words) or _about_its_end(words)
                if "overrides" in changes:
                    changes["overrides"] = {**scenario.overrides, **changes["overrides"]}
                for name in ("events", "triggers", "never"):
                    if name in changes:
                        changes[name] = (*getattr(scenario, name), changes[name])
                scenario = msgspec.structs.replace(scenario, **changes)
        except ValueError as error:
            raise UsageError(
                f"line {number}: {line.strip()!r} is no statement ({error})"
            ) from error
    return scenario


def _about_the_run(words: list[str]) -> dict[str, Any]:
    """What a statement about the plan or its faults changes; nothing when it is about the end."""
    match words:
        case ["seed", value]:
            return {"seed": int(value)}
        case ["profile", value]:
            return {"profile": value}
        case ["bug", value] if value in BUGS:
            return {"bug": value}
        case ["kinds", *names] if all(name in MODELS for name in names):
            return {"kinds": tuple(names)}
        case ["set", name, value] if name in (*_PLAN_FIELDS, *_SETTING_FIELDS, _BACKUPS):
            return {"overrides": {name: int(value)}}
        case ["at", second, verb, *rest]:
            return {"events": _event(second, verb, rest)}
        case ["when", *_]:
            return {"triggers": parse_trigger(words)}
    return {}


def _about_its_end(words: list[str]) -> dict[str, Any]:
    """What a statement about the expected end changes.

    Raises:
        ValueError: It is no statement at all.
    """
    match words:
        case ["expect", "safe"]:
            return {"expectation": SAFE}
        case ["expect", "broken", rule]:
            return {"expectation": rule}
        case ["never", value]:
            return {"never": value}
        case ["guard", value, *rules] if value in GUARDS:
            return {"guard": value, "guard_rules": tuple(rules)}
    raise ValueError("no statement")


def _event(second: str, verb: str, rest: list[str]) -> FaultEvent:
    value = int(rest.pop()) if rest and rest[-1].isdigit() else 0
    return FaultEvent(round(float(second) * 1_000_000), verb, tuple(rest), value)
