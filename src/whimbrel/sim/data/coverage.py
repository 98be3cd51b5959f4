"""Rare situations of acknowledged data."""

from __future__ import annotations

from whimbrel.sim.history import Operation, Outcome, Reply
from whimbrel.sim.rule import Sightings

FEW_BACKUPS = "a write is acknowledged with fewer backups because the cluster is small"


class DataSightings(Sightings):
    """What was acknowledged, and by how many."""

    situations = (FEW_BACKUPS,)

    def operation(self, operation: Operation, reply: Reply) -> None:
        """H."""
        is_write = operation.outcome is Outcome.OK and not operation.is_read
        if is_write and self.world.data_member_count() <= self.world.plan.backup_count:
            self.saw(FEW_BACKUPS)
