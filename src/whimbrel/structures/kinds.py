"""The kinds of structures that this product has, one line each; nothing else names them all."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.flake_id_generator.kind import FLAKE_ID_GENERATOR
from whimbrel.structures.map.kind import MAP
from whimbrel.structures.multimap.kind import MULTIMAP
from whimbrel.structures.queue.kind import QUEUE
from whimbrel.structures.ringbuffer.kind import RINGBUFFER

KINDS: tuple[ServedKind, ...] = (
    MAP,
    MULTIMAP,
    QUEUE,
    RINGBUFFER,
    FLAKE_ID_GENERATOR,
)
