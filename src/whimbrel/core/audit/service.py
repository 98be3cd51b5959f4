"""Audits of one member: those that it was asked to drive, and its part in those of others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from whimbrel.core.audit.job import AuditJob, Wish
from whimbrel.core.audit.primary_side import PACE, PrimarySide
from whimbrel.core.audit.replica import ReplicaSide
from whimbrel.core.backups.pattern import fits
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, namespace_of
from whimbrel.core.messages import (
    AuditEnded,
    Message,
    PartitionAuditAnswered,
    PartitionAuditRequested,
    ReplicaAnswered,
    ReplicaAsked,
)
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.registry import Registry
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.errors import IllegalStateError

TICK: Final = "audit.tick"
TICK_US: Final = 250_000
"""How often it is looked who is silent."""
STEP: Final = "audit.step"
LEASE_US: Final = 30_000_000
"""An audit of which nobody has asked for so long how it stands ends."""
RESULTS_MAX: Final = 10
"""Audits that are over and remembered for whoever asks; the oldest are forgotten."""

Json = dict[str, Any]


class Audits:
    """The room of audits of one member.

    Attributes:
        counters: Audits of ours that came to their end, and what they found.
    """

    def __init__(
        self,
        ctx: Context,
        plane: DataPlane,
        table: PartitionTable,
        registry: Registry,
        kinds: Collection[str],
    ) -> None:
        """``kinds`` are those of structures that lie in partitions."""
        self._ctx = ctx
        self._table = table
        self._registry = registry
        self._kinds = kinds
        self._primary = PrimarySide(ctx, plane, self._send)
        self._replica = ReplicaSide(ctx, plane)
        self._jobs: dict[str, AuditJob] = {}
        names = ("audits", "audit_entries_compared", "audit_entries_differing")
        self.counters = dict.fromkeys((*names, "audit_entries_repaired"), 0)

    # -- orders --------------------------------------------------------------------------------

    def start(self, wish: Wish) -> str:
        """Begin an audit that we drive; its name.

        Raises:
            IllegalStateError: Another one is under way here, the cluster is not ready, or nothing
                fits the pattern.
        """
        if self._ctx.members.recovery is not None:
            raise IllegalStateError("the cluster is coming back from its files")
        if any(not job.is_over for job in self._jobs.values()):
            raise IllegalStateError("this member drives another audit; ask again, or ask another")
        known = [
            namespace
            for one in self._registry.structures()
            if one.kind in self._kinds
            and fits(namespace := namespace_of(one.kind, one.key), wish.pattern)
        ]
        if wish.pattern and not known:
            raise IllegalStateError(f"there is no structure that fits {wish.pattern}")
        job = AuditJob(self._ctx, self._table, wish, known, self._send)
        self._jobs[job.name] = job
        for name in list(self._jobs)[:-RESULTS_MAX]:
            del self._jobs[name]
        self._ctx.note("audit_begun", pattern=wish.pattern, repairs=wish.may_repair)
        self._arm()
        self._ctx.arm(STEP, 0)
        return job.name

    def job(self, name: str) -> Json | None:
        """How an audit stands; None for one that is not known here."""
        job = self._jobs.get(name)
        if job is None:
            return None
        job.asked_us = self._ctx.now_us
        return job.told()

    def cancel(self, name: str) -> bool:
        """End an audit; whether there was one."""
        job = self._jobs.get(name)
        if job is None or job.is_over:
            return False
        self._end(job, "it was cancelled")
        return True

    def figures(self) -> dict[str, float]:
        """Counters by name."""
        return {f"{name}_total": value for name, value in self.counters.items()}

    def _end(self, job: AuditJob, problem: str) -> None:
        job.end(problem)
        self._ended(job)

    def _ended(self, job: AuditJob) -> None:
        """Write down what came of it."""
        told = job.told()
        self.counters["audits"] += not job.problem
        self.counters["audit_entries_compared"] += told["rows"]
        self.counters["audit_entries_differing"] += told["differing"]
        self.counters["audit_entries_repaired"] += told["repaired"]
        level = "warning" if told["differing"] or job.problem else "info"
        self._ctx.note(
            "audit_over", level, rows=told["rows"], differing=told["differing"],
            repaired=told["repaired"], first=job.first_difference, problem=job.problem,
        )  # fmt: skip

    # -- what comes in -------------------------------------------------------------------------

    def _send(self, to: MemberId, message: Message) -> None:
        """Say something to a member, maybe to ourselves."""
        if to == self._ctx.id:
            self.on_message(to, message)
        elif self._ctx.is_member(to):
            self._ctx.send(to, message)

    def on_message(self, sender: MemberId, message: Message) -> None:
        """Take a message of this room."""
        match message:
            case ReplicaAsked():
                self._replica.on_asked(sender, message)
            case ReplicaAnswered():
                self._primary.on_answered(sender, message)
            case PartitionAuditRequested():
                self._primary.on_requested(sender, message)
            case PartitionAuditAnswered():
                job = self._jobs.get(message.audit)
                if job is not None and not job.is_over:
                    job.on_answered(sender, message)
                    # A step of its own, because we may be the sender, in the middle of its work.
                    self._ctx.arm(STEP, 0)
            case AuditEnded():
                self._primary.on_ended(sender, message.audit)
        self._arm()

    def on_timer(self, key: str) -> None:
        """A timer whose key starts with ``audit.`` fired."""
        if key == PACE:
            self._primary.on_pace()
            return
        for job in [one for one in self._jobs.values() if not one.is_over]:
            if key == STEP:
                job.step()
            elif self._ctx.now_us - job.asked_us >= LEASE_US:
                job.end("nobody has asked for a while how it stands")
            else:
                job.tick()
            if job.is_over:
                self._ended(job)
        if key == TICK:
            self._primary.tick()
            self._replica.tick()
            self._arm()

    def _arm(self) -> None:
        """Look again soon, as long as there is anything to look at."""
        is_busy = self._primary.is_busy or self._replica.is_busy
        is_busy = is_busy or any(not one.is_over for one in self._jobs.values())
        if is_busy and not self._ctx.is_armed(TICK):
            self._ctx.arm(TICK, TICK_US)
