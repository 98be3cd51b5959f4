"""Bugs of what the product calls safe."""

from __future__ import annotations

from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def missing_seats_count(engine: Engine) -> None:
    """A seat that waits for a missing member counts as a replica that is there."""
    safety, table = engine.member.safety, engine.member.migrations.table
    replace(safety, "missing_replicas", lambda: table.hole_count(safety.depth()))


def doubt_not_counted(engine: Engine) -> None:
    """Replicas that are known to lack something count as in step."""
    replace(engine.member.dataplane, "unsettled", lambda: 0)


def survives_by_settings(engine: Engine) -> None:
    """As many failures are promised to be borne as there are backups configured."""
    safety = engine.member.safety
    replace(safety, "survives", lambda: max(safety._backups_asked()))


BUGS: tuple[Bug, ...] = (
    Bug(missing_seats_count, "states", ("D13",)),
    Bug(doubt_not_counted, "salvo", ("D13",)),
    Bug(survives_by_settings, "salvo", ("D13",)),
)
