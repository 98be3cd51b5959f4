"""What can be configured of a ring buffer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from whimbrel.core.settings import PartitionedSettings

NAME: Final = "ringbuffer"
"""Of the kind."""
CAPACITY_MAX: Final = 2**31 - 1
"""The counts of a batch are ints of the protocol."""
LIFETIME_MAX_S: Final = 100 * 31_536_000


class RingbufferSettings(PartitionedSettings, frozen=True):
    """Settings of the ring buffers whose name fits ``pattern``."""

    kind: ClassVar[str] = NAME

    capacity: Annotated[
        int,
        Meta(
            ge=1,
            le=CAPACITY_MAX,
            description="Items; when there are more the oldest are overwritten",
        ),
    ] = 10_000
    time_to_live_s: Annotated[
        int,
        Meta(
            ge=0,
            le=LIFETIME_MAX_S,
            description="Items end this long after they were added; 0 never",
        ),
    ] = 0
