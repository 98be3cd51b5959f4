"""What can be configured of a queue."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from whimbrel.core.settings import PartitionedSettings

NAME: Final = "queue"
"""Of the kind."""
SIZE_MAX: Final = 2**31 - 1
"""Items of a queue that clients can count."""


class QueueSettings(PartitionedSettings, frozen=True):
    """Settings of the queues whose name fits ``pattern``."""

    kind: ClassVar[str] = NAME

    max_size: Annotated[
        int,
        Meta(
            ge=0,
            le=SIZE_MAX,
            description="Items; an offer to a full queue waits for its time; 0 no limit",
        ),
    ] = 0
