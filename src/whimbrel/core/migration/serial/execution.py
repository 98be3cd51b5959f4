"""Carrying out a plan one migration after another in the whole cluster (ADL-35).

While a migration is under way nothing else may change the table, because its request names the
version of the whole table.
"""

from __future__ import annotations

from whimbrel.core.migration.plan_execution import PlanExecution


class SerialExecution(PlanExecution):
    """The plan under way; at most one migration of it runs."""

    def _must_pause(self) -> bool:
        """Whether the next start has to wait for the migration under way, or for its time."""
        return bool(self.running_migrations) or super()._must_pause()

    def _apply_clears(self) -> None:
        """Clearing a slot changes the table's version, so it waits as well."""
        if not self.running_migrations:
            super()._apply_clears()
