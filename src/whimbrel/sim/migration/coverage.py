"""Rare situations of migrations: who dies when, what is rolled back, every kind of step."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    FragmentSent,
    MigrationCommitRequested,
    MigrationRequested,
    TablePublished,
)
from whimbrel.core.model import MigrationKind, Verdict
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Sightings

PREPARED = "the master dies between prepare and commit"
CONFIRMED = "the master dies between the destination's commit and publication"
DESTINATION = "the destination dies after its commit, before publication"
SHIFT_UP_BACK = "a SHIFT UP is rolled back"
OLD_WORDS = "a message of a process that is gone arrives"
KINDS = tuple(
    f"migration {kind.value}"
    for kind in MigrationKind
    if kind not in (MigrationKind.STEP_DOWN, MigrationKind.PROMOTION)
)
_SHIFTS_UP = (MigrationKind.SHIFT_UP, MigrationKind.SHIFT_UP_SHIFT_DOWN)


class MigrationSightings(Sightings):
    """Deaths between the messages of a migration, and what finished migrations were."""

    messages = (TablePublished, MigrationRequested, FragmentSent, MigrationCommitRequested)
    situations = (PREPARED, CONFIRMED, DESTINATION, SHIFT_UP_BACK, OLD_WORDS, *KINDS)

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        for migration in host.member.migrations.running_migrations():
            destination = self.world.host_of(migration.step.destination)
            self.saw(CONFIRMED if self._has_committed(destination, migration) else PREPARED)
        for other in self.world.up_hosts():
            if other is host or not other.member.migrations.is_in_charge:
                continue
            for migration in other.member.migrations.running_migrations():
                mine = migration.step.destination == host.info.id
                if mine and self._has_committed(host, migration):
                    self.saw(DESTINATION)

    @staticmethod
    def _has_committed(destination: Host | None, migration: Any) -> bool:
        if destination is None:
            return False
        version = destination.member.migrations.table.versions[migration.partition_id]
        return bool(version >= migration.with_verdict(Verdict.SUCCESS).final_version)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        if self.world.host_of(sender) is None:
            self.saw(OLD_WORDS)
        for migration in message.completed:
            if migration.verdict is not Verdict.FAILED:
                self.saw(f"migration {migration.step.kind.value}")
            elif migration.step.kind in _SHIFTS_UP:
                self.saw(SHIFT_UP_BACK)
