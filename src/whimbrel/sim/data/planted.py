"""Bugs of acknowledgements: what a client is told before, or instead of, the truth."""

from __future__ import annotations

from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Origin
from whimbrel.sim.bug import Bug, replace
from whimbrel.wire.errors import RETRYABLE


def acknowledged_before_backup(engine: Engine) -> None:
    """The client is answered before any backup has the write."""
    holdings = engine.member.dataplane.holdings
    change = holdings.change

    def forget_reply(
        partition: PartitionReplica, fragment: Fragment, operation: bytes, _reply: object
    ) -> None:
        change(partition, fragment, operation, None)

    replace(holdings, "change", forget_reply)


def late_backup_is_retryable(engine: Engine) -> None:
    """A write that is not on every backup in time is told to have had no effect."""
    server = engine.server

    def fail_write(origin: Origin, correlation: int, reason: str) -> None:
        server.fail(origin, correlation, RETRYABLE, reason)

    replace(server.turn_end, "_fail_write", fail_write)


BUGS: tuple[Bug, ...] = (
    Bug(acknowledged_before_backup, "kill", ("R4", "D1")),
    Bug(late_backup_is_retryable, "nap", ("C5",)),
)
