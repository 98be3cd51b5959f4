"""How far migrations are, in numbers: for operators a process, for listeners its parts.

A process is what one run of the control loop found to do: promotions of the repair and the steps
of the plan (FN-16, PIM-21). A run that finds nothing is none. Listeners are told of each part that
was planned together: the promotions of one repair, the new empty primaries of one repair, one plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.core.events import MigrationState

US_PER_S = 1_000_000
US_PER_MS = 1_000

Figure = str | int | float | None
"""A value of a progress document."""


@dataclass(slots=True, eq=False)
class ReportedProcess:
    """What was planned together, as listeners know it; steps that only empty a slot are none."""

    planned: int
    started_us: int
    started_ms: int
    completed: int = 0
    failed: int = 0
    ended: bool = False

    def state(self, now_us: int) -> MigrationState:
        """The figures now."""
        elapsed_ms = max(0, now_us - self.started_us) // US_PER_MS
        return MigrationState(
            self.started_ms, self.planned, self.completed, self.failed, elapsed_ms
        )


@dataclass(slots=True, eq=False)
class MigrationProcess:
    """Counters of one process; planned = waiting + running + completed + failed + dropped."""

    number: int
    reason: str
    started_us: int
    cause: str
    """Under which its work goes on whenever something wakes it."""
    ended_us: int | None = None
    planned: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    dropped: int = 0
    copies: int = 0
    """Replicas that came to a member that had none of the partition."""
    promotions: int = 0
    bytes_moved: int = 0
    entries_moved: int = 0
    """Of structures, that were sent; what a destination had already is not."""
    reported: ReportedProcess | None = None
    """Its plan as listeners know it."""
    closing: bool = False
    """Nothing more is added; it ends with its last running migration."""

    @property
    def waiting(self) -> int:
        """Steps that are planned and not started."""
        return self.planned - self.running - self.completed - self.failed - self.dropped

    def document(self, now_us: int) -> dict[str, Figure]:
        """The PROCESS document of the admin interface; ``eta_s`` is None when nobody can say."""
        ended = now_us if self.ended_us is None else self.ended_us
        elapsed_us = max(0, ended - self.started_us)
        done = self.completed + self.failed
        eta_s: float | None = None
        if self.ended_us is None and done:
            eta_s = elapsed_us * (self.running + self.waiting) / done / US_PER_S
        return {
            "id": self.number,
            "reason": self.reason,
            "planned": self.planned,
            "completed": self.completed,
            "remaining": self.planned - done,
            "failed": self.failed,
            "copies": self.copies,
            "promotions": self.promotions,
            "bytes": self.bytes_moved,
            "entries": self.entries_moved,
            "elapsed_s": elapsed_us / US_PER_S,
            "eta_s": eta_s,
        }
