"""Bugs of cluster states."""

from __future__ import annotations

from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Origin
from whimbrel.sim.bug import Bug, replace
from whimbrel.wire.frames import RawMessage


def passive_takes_writes(engine: Engine) -> None:
    """Writes are taken in PASSIVE as in any other state."""
    server = engine.server
    dispatch = server.dispatch

    def take(origin: Origin, message: RawMessage, hops: int = 0) -> None:
        server.is_passive = False
        dispatch(origin, message, hops)

    replace(server, "dispatch", take)


def anybody_may_join(engine: Engine) -> None:
    """Newcomers are admitted whatever the cluster state says."""
    replace(engine.member.membership.joining, "_may_join", lambda _joiner: True)


BUGS: tuple[Bug, ...] = (
    Bug(passive_takes_writes, "states", ("O1",)),
    Bug(anybody_may_join, "mixed", ("O1",)),
)
