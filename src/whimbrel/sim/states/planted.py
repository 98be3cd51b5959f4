"""Bugs of cluster states."""

from __future__ import annotations

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def passive_takes_writes(engine: Engine) -> None:
    """Writes are taken in PASSIVE as in any other state."""
    admission = engine.server.admission
    guard = admission.guard

    def take() -> None:
        admission.is_passive = False
        guard()

    replace(admission, "guard", take)


def anybody_may_join(engine: Engine) -> None:
    """Newcomers are admitted whatever the cluster state says."""
    replace(engine.member.membership.joining, "_may_join", lambda _joiner, _files: True)


BUGS: tuple[Bug, ...] = (
    Bug(passive_takes_writes, "states", ("O1",)),
    Bug(anybody_may_join, "mixed", ("O1",)),
)
