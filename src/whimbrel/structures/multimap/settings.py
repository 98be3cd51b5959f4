"""What can be configured of a multimap."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from whimbrel.core.ids import Namespace, split_namespace
from whimbrel.core.settings import CoreSettings, PartitionedSettings

NAME: Final = "multimap"
"""Of the kind."""
SET: Final = "SET"
LIST: Final = "LIST"
CollectionType = Literal["SET", "LIST"]


class MultiMapSettings(PartitionedSettings, frozen=True):
    """Settings of the multimaps whose name fits ``pattern``."""

    kind: ClassVar[str] = NAME

    value_collection_type: Annotated[
        CollectionType,
        Meta(
            description="SET: a key has each value once; "
            "LIST: in the order in which they came, equal ones too"
        ),
    ] = SET


def settings_of(settings: CoreSettings, namespace: Namespace) -> MultiMapSettings:
    """The settings of a multimap."""
    return settings.structure(MultiMapSettings, split_namespace(namespace)[1])
