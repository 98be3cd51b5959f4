"""The failure budget: how many copies may be put at risk between two safe points.

A run whose faults stay within it must lose nothing (D1); one that overdraws it is judged by other
rules. A *safe point* is a moment at which every configured replica is complete. Lost copies are
never won back before the next safe point.
"""

from __future__ import annotations

from collections.abc import Collection

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

    def shrunk(self, now_us: int, staying: Collection[str]) -> None:
        """A data member is leaving or has left gracefully: fewer copies can exist.

        Args:
            now_us: Simulated time.
            staying: The places that hold data and are meant to stay.
        """
        self._cap = self._cap_with(staying)
        self._look(now_us, "--")

    def may_shrink(self, staying: Collection[str]) -> bool:
        """Whether what was lost since the last safe point is borne when only these places stay."""
        return len(self._losses) <= self._cap_with(staying)

    def _cap_with(self, staying: Collection[str]) -> int:
        """The losses that can be borne when some place goes gracefully.

        A place that was lost meanwhile counts: its copies were there, and their loss is booked.
        """
        return max(0, min(self._cap, len({*staying, *self._losses}) - 1))

    def may_lose(self, data_members: int) -> bool:
        """Whether one more of the present data members may be lost within the promise."""
        return len(self._losses) < self._cap and data_members > 1

    def lose(self, now_us: int, name: str, once: bool = False) -> None:
        """A place that holds data is lost ungracefully; ``once``: it may be lost bit by bit."""
        if once and name in self._losses:
            return
        self._losses.append(name)
        self._look(now_us, name)

    def _look(self, now_us: int, name: str) -> None:
        if len(self._losses) > self._cap and not self.overdrawn:
            self.overdrawn = True
            self._trace.mark(now_us, name, "budget overdrawn", f"{len(self._losses)} lost")

    @property
    def losses(self) -> int:
        """Members lost since the last safe point."""
        return len(self._losses)
