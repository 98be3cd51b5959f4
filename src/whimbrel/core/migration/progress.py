"""How far migrations are: the processes of the master, past and present.

Knows only numbers. A process is what one run of the control loop found to do: promotions of the
repair and the steps of the plan (FN-16, PIM-21). A run that finds nothing is none.
"""

from __future__ import annotations

from collections import deque

from whimbrel.core.check import check
from whimbrel.core.migration.reporter import MigrationReporter, ReportedProcess

US_PER_S = 1_000_000

Figure = str | int | float | None
"""A value of a progress document."""


class MigrationProcess:
    """Counters of one process; planned = waiting + running + completed + failed + dropped."""

    def __init__(self, number: int, reason: str, started_us: int, cause: str) -> None:
        self.number = number
        self.reason = reason
        self.cause = cause
        """Under which its work goes on whenever something wakes it."""
        self.started_us = started_us
        self.ended_us: int | None = None
        self.planned = 0
        self.running = 0
        self.completed = 0
        self.failed = 0
        self.dropped = 0
        self.copies = 0
        """Replicas that came to a member that had none of the partition."""
        self.promotions = 0
        self.bytes_moved = 0
        self.reported: ReportedProcess | None = None
        """Its plan as listeners know it."""
        self.closing = False
        """Nothing more is added; it ends with its last running migration."""

    @property
    def waiting(self) -> int:
        """Steps that are planned and not started."""
        return self.planned - self.running - self.completed - self.failed - self.dropped

    @property
    def remaining(self) -> int:
        """Planned and not done: waiting, running or dropped."""
        return self.planned - self.completed - self.failed

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
            "remaining": self.remaining,
            "failed": self.failed,
            "copies": self.copies,
            "promotions": self.promotions,
            "bytes": self.bytes_moved,
            "elapsed_s": elapsed_us / US_PER_S,
            "eta_s": eta_s,
        }


class MigrationHistory:
    """The processes of this master: those open now and the latest finished ones.

    Args:
        history_max: Finished processes that are kept, oldest dropped first.
        reporter: Told when a process has ended.
    """

    def __init__(self, history_max: int, reporter: MigrationReporter | None = None) -> None:
        self._reporter = reporter
        self.finished: deque[dict[str, Figure]] = deque(maxlen=max(1, history_max))
        self.open: list[MigrationProcess] = []
        self._number = 0

    def begin(self, reason: str, now_us: int, cause: str) -> MigrationProcess:
        """A new process, current until it is closed."""
        self._number += 1
        process = MigrationProcess(self._number, reason, now_us, cause)
        self.open.append(process)
        return process

    @property
    def current(self) -> MigrationProcess | None:
        """The newest open process that has found something to do."""
        for process in reversed(self.open):
            if process.planned:
                return process
        return None

    def close(self, process: MigrationProcess, now_us: int) -> None:
        """No more work is added: drop what waits; it ends when nothing of it runs any more."""
        process.dropped += process.waiting
        process.closing = True
        self.settle(process, now_us)

    def settle(self, process: MigrationProcess, now_us: int) -> None:
        """Move a closing process without running migrations to the finished ones."""
        check(process.waiting >= 0 and process.running >= 0, "a process counts every step once")
        if not process.closing or process.running or process.ended_us is not None:
            return
        process.ended_us = now_us
        if self._reporter is not None:
            self._reporter.end(process.reported)
        self.open.remove(process)
        if process.planned:
            self.finished.append(process.document(now_us))
