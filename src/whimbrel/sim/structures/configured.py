"""What the structures of a run are configured with: the settings of each kind, one line each."""

from __future__ import annotations

from typing import Final

from whimbrel.core.settings import StructureSettings
from whimbrel.structures.map.settings import LRU, NAME, MapSettings
from whimbrel.structures.multimap.settings import LIST, MultiMapSettings
from whimbrel.structures.queue.settings import QueueSettings
from whimbrel.structures.ringbuffer.settings import RingbufferSettings

MAPS_ONLY: Final = (NAME,)
"""What clients use in a run that was written down before there were other kinds, and in many
others."""

LIST_NAME: Final = "sim.list"
"""The multimap whose values are lists."""
BOUNDED_QUEUE: Final = "sim.bounded-queue"
"""A queue that is often full, ..."""
BOUNDED_ITEMS: Final = 3
"""... because it takes no more."""
BOUNDED_MAP: Final = "sim.bounded"
"""A map that is nearly always full, ..."""
BOUNDED_ENTRIES: Final = 12
"""... because a member holds no more of it as primary."""
RING_ITEMS: Final = 100
"""Items of a ring buffer, unless ..."""
SMALL_RING: Final = "sim.small-ring"
"""... it is this one, which overwrites most of the time."""
SMALL_RING_ITEMS: Final = 6
SHORT_RING: Final = "sim.short-ring"
"""A ring buffer whose items end by themselves."""


def configured(backups: int, asynchronous: int) -> tuple[StructureSettings, ...]:
    """The settings of a run's structures, all with the same numbers of backups."""
    lists = MultiMapSettings(LIST_NAME, backups, asynchronous, value_collection_type=LIST)
    bounded = MapSettings(
        BOUNDED_MAP, backups, asynchronous, max_size=BOUNDED_ENTRIES, eviction_policy=LRU
    )
    return (
        MapSettings("default", backups, asynchronous),
        bounded,
        MultiMapSettings("default", backups, asynchronous),
        lists,
        QueueSettings("default", backups, asynchronous),
        QueueSettings(BOUNDED_QUEUE, backups, asynchronous, max_size=BOUNDED_ITEMS),
        RingbufferSettings("default", backups, asynchronous, capacity=RING_ITEMS),
        RingbufferSettings(SMALL_RING, backups, asynchronous, capacity=SMALL_RING_ITEMS),
        RingbufferSettings(
            SHORT_RING, backups, asynchronous, capacity=RING_ITEMS, time_to_live_s=2
        ),
    )
