"""The kinds of structures that this product has, one line each; nothing else names them all."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.map.kind import MAP

KINDS: tuple[ServedKind, ...] = (MAP,)
