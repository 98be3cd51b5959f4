"""Protections of acknowledgements."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.replication.outbox import FAILED_STALE, PendingReply
from whimbrel.serving.calls import Call
from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Origin
from whimbrel.sim.bug import Bug, replace
from whimbrel.wire.errors import INDETERMINATE, RETRYABLE


def refusals_weighed(engine: Engine) -> None:
    """A write that its backup has refused is told to have had no effect (0013)."""
    server, dataplane = engine.server, engine.member.dataplane

    def give_up(_: MemberId, reply: PendingReply) -> None:
        if reply.fail(FAILED_STALE):
            dataplane.outgoing.completed.append(reply)

    def fail_write(origin: Origin, correlation: int, reason: str) -> None:
        code = RETRYABLE if reason == FAILED_STALE else INDETERMINATE
        server.fail(origin, correlation, code, reason)

    replace(dataplane.handovers, "refused", give_up)
    replace(server.turn_end, "_fail_write", fail_write)


def sent_once(engine: Engine) -> None:
    """A request whose executing member died is sent to the next one, whatever it is (0013)."""
    calls = engine.server.calls
    member_left = calls.member_left

    def forget(peer: MemberId) -> list[tuple[Call, bool]]:
        return [(call, False) for call, _ in member_left(peer)]

    replace(calls, "member_left", forget)


GUARDS: tuple[Bug, ...] = (
    Bug(refusals_weighed, "reset", ("C5",)),
    Bug(sent_once, "kill", ("C5",)),
)
