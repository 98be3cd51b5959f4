"""Which kinds of structures a run uses: one line each."""

from __future__ import annotations

from collections.abc import Sized

from whimbrel.core.ids import split_namespace
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.structures import map as maps
from whimbrel.sim.structures import multimap as multimaps
from whimbrel.sim.structures import queue as queues
from whimbrel.sim.structures import ringbuffer as ringbuffers

STRUCTURES = (
    maps.SUBJECT,
    multimaps.SUBJECT,
    queues.SUBJECT,
    ringbuffers.SUBJECT,
)
MODELS = {one.model.kind: one.model for one in STRUCTURES if one.model is not None}
"""By kind."""


def content_of(fragment: Fragment) -> Sized:
    """Everything that equal replicas have in common."""
    return MODELS[split_namespace(fragment.namespace)[0]].content(fragment.store)
