"""A subject of the simulator: its rules, and what shows that they are worth something."""

from __future__ import annotations

import msgspec

from whimbrel.sim.bug import Bug
from whimbrel.sim.model import StructureModel
from whimbrel.sim.rule import Rule


class Subject(msgspec.Struct, frozen=True):
    """What a package has to say; ``registry`` gathers all of them."""

    rules: tuple[type[Rule], ...] = ()
    guards: tuple[Bug, ...] = ()
    """Protections of the product that a scenario file may switch off."""
    bugs: tuple[Bug, ...] = ()
    """Put in on purpose: each must be caught by one of the rules that it names."""
    model: type[StructureModel] | None = None
    """Of a kind of structure."""
