"""What a kind of structure is to the serving layer: what the core knows, and its handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.core.kinds import StructureKind
from whimbrel.serving.server import Server
from whimbrel.serving.structure_handlers import StructureHandlers


@dataclass(frozen=True, kw_only=True)
class ServedKind(StructureKind):
    """One kind of structure that clients may use.

    Attributes:
        make_handlers: Given the server and the kind itself.
    """

    make_handlers: Callable[[Server, StructureKind], StructureHandlers]
