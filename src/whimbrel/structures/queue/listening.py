"""Listeners of queues: of items that come and go."""

from __future__ import annotations

from functools import partial
from typing import Final

from whimbrel.serving.listeners import Encode, StructureEvent
from whimbrel.wire.codec import encode_event

ADD_LISTENER: Final = "Queue.addListener"


def _encode_item(event: StructureEvent, *, shows: bool) -> bytes:
    return encode_event(
        ADD_LISTENER,
        "item",
        0,
        item=event.value if shows else None,
        uuid=event.source,
        event_type=event.flag,
    )


ENCODERS: Final[dict[bool, Encode]] = {
    shows: partial(_encode_item, shows=shows) for shows in (False, True)
}
"""By whether the listener is shown the items."""
