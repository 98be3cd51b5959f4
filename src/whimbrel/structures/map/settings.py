"""What can be configured of a map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Self

import msgspec
from msgspec import Meta

from whimbrel.core.ids import Namespace, split_namespace
from whimbrel.core.settings import CoreSettings, PartitionedSettings
from whimbrel.errors import UsageError
from whimbrel.structures.map.policies import NAME_LENGTH_MAX, PUT_IF_ABSENT, resolve

NAME: Final = "map"
"""Of the kind."""
LIFETIME_MAX_S = 100 * 31_536_000
Lifetime = Annotated[int, Meta(ge=0, le=LIFETIME_MAX_S)]
"""Seconds that an entry may live; 0 for ever."""


class MapSettings(PartitionedSettings, frozen=True):
    """Settings of the maps whose name fits ``pattern``."""

    kind: ClassVar[str] = NAME

    time_to_live_s: Annotated[
        Lifetime, Meta(description="Entries end this long after they were written; 0 never")
    ] = 0
    max_idle_s: Annotated[
        Lifetime, Meta(description="Entries end this long after they were last touched; 0 never")
    ] = 0
    merge_policy: Annotated[
        str,
        Meta(
            max_length=NAME_LENGTH_MAX,
            description="What becomes of the smaller part's entries after a split",
        ),
    ] = PUT_IF_ABSENT
    """A name that ``policies`` knows."""

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """A policy that nobody knows would be found out in the middle of a merge."""
        yield from super().problems()
        try:
            resolve(self.merge_policy)
        except UsageError as problem:
            yield ("merge_policy",), f"map.{self.pattern}.merge_policy: {problem}"

    def normal(self) -> Self:
        """With the policy's short name."""
        return msgspec.structs.replace(self, merge_policy=resolve(self.merge_policy))


def settings_of(settings: CoreSettings, namespace: Namespace) -> MapSettings:
    """The settings of a map."""
    return settings.structure(MapSettings, split_namespace(namespace)[1])
