"""What can be configured of a flake id generator."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from whimbrel.core.ids import Namespace, split_namespace
from whimbrel.core.settings import CoreSettings, StructureSettings

NAME: Final = "flake_id_generator"
"""Of the kind."""
BATCH_SPAN_MS: Final = 2_000
"""More than a batch of the greatest size takes, at 64 ids in a millisecond."""
ALLOWED_FUTURE_MAX_MS: Final = 86_400_000


class FlakeIdGeneratorSettings(StructureSettings, frozen=True):
    """Settings of the generators whose name fits ``pattern``; clients have theirs."""

    kind: ClassVar[str] = NAME

    allowed_future_ms: Annotated[
        int,
        Meta(
            ge=BATCH_SPAN_MS,
            le=ALLOWED_FUTURE_MAX_MS,
            description="How far ids may run ahead of the clock before a member makes no more",
        ),
    ] = 15_000
    """Not less than the largest batch takes."""


def settings_of(settings: CoreSettings, namespace: Namespace) -> FlakeIdGeneratorSettings:
    """The settings of a generator."""
    return settings.structure(FlakeIdGeneratorSettings, split_namespace(namespace)[1])
