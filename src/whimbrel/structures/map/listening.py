"""Listeners of maps: of their entries, and of partitions lost with entries of theirs."""

from __future__ import annotations

from functools import partial
from typing import Final

from whimbrel.core.events import GridEvent, PartitionLost
from whimbrel.serving.listeners import Encode, StructureEvent, Wants
from whimbrel.wire.codec import encode_event

ADD_LOST: Final = "Map.addPartitionLostListener"
EVICT_ALL: Final = 32
CLEAR_ALL: Final = 64
"""Flags of events of a whole map, beside those of entries (``service``)."""


def _encode_entry(event: StructureEvent, *, message: str, shows: bool) -> bytes:
    return encode_event(
        message,
        "entry",
        0,
        key=event.key,
        value=event.value if shows else None,
        old_value=event.old_value if shows else None,
        merging_value=None,
        event_type=event.flag,
        uuid=event.source,
        affected_entries=event.affected_count,
    )


ENCODERS: Final[dict[tuple[str, bool], Encode]] = {
    (message, shows): partial(_encode_entry, message=message, shows=shows)
    for message in ("Map.addEntryListener", "Map.addEntryListenerToKey")
    for shows in (False, True)
}
"""By the request that adds a listener and whether it is shown values."""


def wants(flags: int, key: bytes | None) -> Wants:
    """What a listener of entries wants.

    Args:
        flags: Flags of the events.
        key: Data of the only key; None for all.
    """
    body = None if key is None else key[4:]  # the partition hash is no part of equality

    def is_wanted(event: StructureEvent) -> bool:
        if not flags & event.flag:
            return False
        return body is None or (event.key is not None and event.key[4:] == body)

    return is_wanted


def encode_lost(event: GridEvent) -> bytes:
    """The event as a listener of ADD_LOST gets it, for no registration yet; b"" for none."""
    if not isinstance(event, PartitionLost):
        return b""
    return encode_event(
        ADD_LOST, "map_partition_lost", 0, partition_id=event.partition_id, uuid=event.source
    )
