"""Rare situations of maps."""

from __future__ import annotations

from whimbrel.sim.rule import Sightings

WRITTEN_AGAIN = "a client writes again after an indeterminate outcome"


class MapSightings(Sightings):
    """What clients did; counted by the model."""

    situations = (WRITTEN_AGAIN,)
