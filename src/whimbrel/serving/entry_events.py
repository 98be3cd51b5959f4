"""Events of entries, keys with their values, as the listeners of several kinds are told of them."""

from __future__ import annotations

from functools import partial

from whimbrel.serialization.data import HASH_BYTES
from whimbrel.serving.listeners import Encode, StructureEvent, Wants
from whimbrel.wire.codec import encode_event

CLEAR_ALL = 64
"""Flag of the event that a whole structure was cleared, beside those of its entries."""


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


def entry_encoders(*messages: str) -> dict[tuple[str, bool], Encode]:
    """How events are told, by the request that adds a listener and whether it is shown values."""
    return {
        (message, shows): partial(_encode_entry, message=message, shows=shows)
        for message in messages
        for shows in (False, True)
    }


def wants_entries(flags: int, key: bytes | None) -> Wants:
    """What a listener of entries wants.

    Args:
        flags: Flags of the events.
        key: Data of the only key; None for all.
    """
    body = None if key is None else key[HASH_BYTES:]

    def is_wanted(event: StructureEvent) -> bool:
        if not flags & event.flag:
            return False
        return body is None or (event.key is not None and event.key[HASH_BYTES:] == body)

    return is_wanted
