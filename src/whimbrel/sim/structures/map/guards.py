"""Protections of maps."""

from __future__ import annotations

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def destroyed_refused(engine: Engine) -> None:
    """Copies that were under way when their map was destroyed are taken (D11)."""
    replace(engine.member.dataplane.holdings, "is_destroyed", lambda *_: False)


def stale_reads_refused(engine: Engine) -> None:
    """A partition is read while it migrates, also where reads must be fresh (bug 40)."""
    for partition in engine.member.dataplane.partitions:
        partition.stale_read_disabled = False


GUARDS: tuple[Bug, ...] = (
    Bug(destroyed_refused, "operator", ("D11",)),
    Bug(stale_reads_refused, "move", ("D4", "D3")),
)
