"""A primary's part in audits: partitions that it was asked to audit, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from whimbrel.core.audit.meeting import NotComparableError
from whimbrel.core.audit.primary import MovedError, PartitionAudit, Patience
from whimbrel.core.backups.flow import Fail, Flow, Resume, Wait
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import (
    Message,
    PartitionAuditAnswered,
    PartitionAuditRequested,
    ReplicaAnswered,
    ReplicaAsked,
)
from whimbrel.core.messages.audit import Finding, Refused
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.errors import GridError

PACE: Final = "audit.pace"
WAITING_MAX: Final = 1_000
"""Partitions that members wait for here; each asks for one at a time."""
SILENT_CALLS_MAX: Final = 5
"""A backup that has not answered after so many call time-outs is not waited for."""

Send = Callable[[MemberId, Message], None]


class PrimarySide:
    """The audits of a member's partitions; implements ``primary.Line``."""

    def __init__(self, ctx: Context, plane: DataPlane, send: Send) -> None:
        """``send`` says something to a member, maybe to ourselves."""
        self._ctx = ctx
        self._plane = plane
        self._send = send
        self._waiting: dict[tuple[MemberId, str], PartitionAuditRequested] = {}
        """By driver and audit; the first is under way."""
        self._answered: dict[tuple[MemberId, str], PartitionAuditAnswered] = {}
        """The last answer to each."""
        self._patience: dict[tuple[MemberId, str], Patience] = {}
        self._audit: PartitionAudit | None = None
        self._flow: Flow[tuple[Finding, ...]] | None = None
        self._asked: tuple[ReplicaAsked, Resume, Fail] | None = None
        self._asked_us = self._first_us = 0
        self._target: MemberId | None = None
        self._resume: Resume | None = None

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way, or remembered."""
        return bool(self._waiting or self._answered)

    # -- asked by drivers ----------------------------------------------------------------------

    def on_requested(self, sender: MemberId, request: PartitionAuditRequested) -> None:
        """Audit a partition; asked again, tell how far it is."""
        key, name = (sender, request.audit), (request.attempt, request.partition_id)
        last = self._answered.get(key)
        if last is not None and (last.attempt, last.partition_id) == name:
            self._send(sender, last)
            return
        waiting = self._waiting.get(key)
        if waiting == request:
            self._send(sender, PartitionAuditAnswered(request.audit, *name, is_over=False))
            return
        if waiting is not None or len(self._waiting) < WAITING_MAX:
            self._drop(key)
            self._waiting[key] = request
            self._begin_next()

    def on_ended(self, sender: MemberId, audit: str) -> None:
        """Nobody waits for an audit any more."""
        self._drop((sender, audit))
        self._answered.pop((sender, audit), None)
        self._patience.pop((sender, audit), None)
        self._begin_next()

    def _drop(self, key: tuple[MemberId, str]) -> None:
        """Audit no more what was asked for under this name."""
        if next(iter(self._waiting), None) == key and self._flow is not None:
            self._flow.give_up()
            self._close()
        self._waiting.pop(key, None)

    def _close(self) -> None:
        self._flow = self._audit = self._asked = self._resume = None
        self._ctx.disarm(PACE)

    def _begin_next(self) -> None:
        """Begin what waits longest, unless something is under way."""
        while self._flow is None and self._waiting:
            key, request = next(iter(self._waiting.items()))
            patience = self._patience.setdefault(key, Patience(self._ctx))
            audit = self._audit = PartitionAudit(
                self._ctx,
                self._plane.holdings,
                request.partition_id,
                request.pattern,
                self,
                patience,
                may_repair=request.may_repair,
            )

            def done(findings: tuple[Finding, ...], one: PartitionAudit = audit) -> None:
                self._over("", one.rows, findings)

            self._flow = Flow(
                self._ctx, audit.work(), done, lambda problem: self._over(str(problem), {}, ())
            )
            self._flow.start()

    def _over(
        self, problem: str, rows: dict[Namespace, int], findings: tuple[Finding, ...]
    ) -> None:
        """Tell who asked, and go on with the next."""
        key, request = next(iter(self._waiting.items()))
        del self._waiting[key]
        name = (request.audit, request.attempt, request.partition_id)
        self._answered[key] = PartitionAuditAnswered(
            *name, is_over=True, problem=problem, rows=rows, findings=findings
        )
        if len(self._answered) > WAITING_MAX:
            oldest = next(iter(self._answered))
            del self._answered[oldest]
            self._patience.pop(oldest, None)
        self._close()
        self._send(key[0], self._answered[key])

    # -- for the work --------------------------------------------------------------------------

    def ask(self, member: MemberId, message: ReplicaAsked) -> Wait:
        """See ``primary.Line``."""

        def wait(resume: Resume, fail: Fail) -> None:
            self._asked, self._target = (message, resume, fail), member
            self._asked_us = self._first_us = self._ctx.now_us
            self._ctx.send(member, message)

        return wait

    def pause(self, pause_us: int) -> Wait:
        """See ``primary.Line``."""

        def wait(resume: Resume, _fail: Fail) -> None:
            self._resume = resume
            self._ctx.arm(PACE, pause_us)

        return wait

    def on_pace(self) -> None:
        """A pause is over."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume(None)
            self._begin_next()

    def on_answered(self, sender: MemberId, answered: ReplicaAnswered) -> None:
        """A backup has answered."""
        if self._asked is None or sender != self._target:
            return
        message, resume, fail = self._asked
        if (answered.number, answered.sequence) != (message.number, message.sequence):
            return
        self._asked = None
        if isinstance(answered.reply, Refused):
            fail(NotComparableError(answered.reply.reason))
        else:
            resume(answered.reply)
        self._begin_next()

    def tick(self) -> None:
        """Ask again who has not answered; forget who has left."""
        ctx = self._ctx
        for key in [*self._waiting, *self._answered]:
            if not ctx.is_member(key[0]):
                self.on_ended(*key)
        if self._asked is not None and self._target is not None:
            message, _, fail = self._asked
            timeout_us = ctx.settings.call_timeout_us
            if not ctx.is_member(self._target):
                self._fail(fail, MovedError("the backup has left"))
            elif ctx.now_us - self._first_us >= SILENT_CALLS_MAX * timeout_us:
                self._fail(fail, NotComparableError("the backup does not answer"))
            elif ctx.now_us - self._asked_us >= timeout_us:
                self._asked_us = ctx.now_us
                ctx.send(self._target, message)
        self._begin_next()

    def _fail(self, fail: Fail, problem: GridError) -> None:
        self._asked = None
        fail(problem)
