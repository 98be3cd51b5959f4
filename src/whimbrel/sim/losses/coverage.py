"""Rare situations of losses."""

from __future__ import annotations

from typing import ClassVar

from whimbrel.sim.rule import Sightings

LOST = "a partition is lost"


class LossSightings(Sightings):
    """What was told."""

    situations = (LOST,)
    notes: ClassVar = {"partition.lost": LOST}
