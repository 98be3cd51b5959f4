"""Listeners of maps: of their entries, and of partitions lost with entries of theirs."""

from __future__ import annotations

from typing import Final

from whimbrel.core.events import PartitionLost
from whimbrel.serving.entry_events import entry_encoders
from whimbrel.wire.codec import encode_event

ADD_LOST: Final = "Map.addPartitionLostListener"
EVICT_ALL: Final = 32
"""Flag of the event of a whole map that was evicted, beside those of entries (``service``)."""
ENCODERS: Final = entry_encoders("Map.addEntryListener", "Map.addEntryListenerToKey")


def encode_lost(event: PartitionLost) -> bytes:
    """The event as a listener of ADD_LOST gets it, for no registration yet."""
    return encode_event(
        ADD_LOST, "map_partition_lost", 0, partition_id=event.partition_id, uuid=event.source
    )
