"""Listeners of maps: of their entries, and of partitions lost with entries of theirs."""

from __future__ import annotations

from typing import Final

from whimbrel.core.events import GridEvent, PartitionLost
from whimbrel.core.ids import Namespace, split_namespace
from whimbrel.core.registry import Registry, backups_of
from whimbrel.serving.entry_events import entry_encoders
from whimbrel.serving.listeners import Wants
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


def wants_losses(registry: Registry, namespace: Namespace) -> Wants:
    """What a listener of ADD_LOST wants: losses of partitions that had entries of its map in no
    more backups than were lost with the primary.
    """

    def is_wanted(event: GridEvent) -> bool:
        if not isinstance(event, PartitionLost):
            return False
        entry = registry.get(*split_namespace(namespace))
        return entry is not None and sum(backups_of(entry)) <= event.lost_backup_count

    return is_wanted
