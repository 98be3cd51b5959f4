"""Deaths at crash points."""

from __future__ import annotations

from whimbrel.sim.faults.crash_points import CRASH_POINTS, sighting_of
from whimbrel.sim.rule import Sightings


class CrashSightings(Sightings):
    """A death on both sides of each message that a crash point knows."""

    situations = tuple(
        sighting_of(kind, is_after) for kind in CRASH_POINTS for is_after in (False, True)
    )
