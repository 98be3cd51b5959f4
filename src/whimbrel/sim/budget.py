"""The failure budget: how many copies may be put at risk between two safe points.

A run whose faults stay within it must lose nothing (D1); one that overdraws it is judged by other
rules. A *safe point* is a moment at which every configured replica is complete (facts/reliability
section 3.1). Lost copies are never won back before the next safe point.
"""

from __future__ import annotations

from whimbrel.sim.trace import Trace


class FailureBudget:
    """Counts ungraceful losses since the last safe point."""

    def __init__(self, backup_count: int, trace: Trace) -> None:
        self.backup_count = backup_count
        self._trace = trace
        self._cap = 0
        """Losses that the cluster can bear since the last safe point."""
        self._losses: list[str] = []
        self.overdrawn = False
        """More was lost than the promise covers; cleared never, the run is judged by less."""

    def safe_point(self, data_members: int) -> None:
        """Every configured replica is complete and equal now."""
        self._losses.clear()
        self._cap = max(0, min(self.backup_count, data_members - 1))

    def shrunk(self, data_members: int) -> None:
        """A data member is leaving or has left gracefully: fewer copies can exist."""
        self._cap = max(0, min(self._cap, data_members - 1))

    def may_lose(self, data_members: int) -> bool:
        """Whether one more of the present data members may be lost within the promise."""
        return len(self._losses) < self._cap and data_members > 1

    def lose(self, now_us: int, name: str, once: bool = False) -> None:
        """A place that holds data is lost ungracefully; ``once``: it may be lost bit by bit."""
        if once and name in self._losses:
            return
        self._losses.append(name)
        if len(self._losses) > self._cap and not self.overdrawn:
            self.overdrawn = True
            self._trace.mark(now_us, name, "budget overdrawn", f"{len(self._losses)} lost")

    @property
    def losses(self) -> int:
        """Members lost since the last safe point."""
        return len(self._losses)
