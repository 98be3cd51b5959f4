"""What can be configured of a map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

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
SIZE_MAX: Final = 2**31 - 1
"""Entries of a map that clients can count."""
NONE: Final = "NONE"
LRU: Final = "LRU"
LFU: Final = "LFU"
RANDOM: Final = "RANDOM"
EvictionPolicy = Literal["NONE", "LRU", "LFU", "RANDOM"]


class Limits(NamedTuple):
    """What a map sets its entries, as its operations need it."""

    ttl_ms: int = 0
    """Time to live; 0 for ever."""
    max_idle_ms: int = 0
    """Longest span without access; 0 for any."""
    max_size: int = 0
    """Entries that one member may hold as primary; 0 for any number."""
    eviction_policy: str = NONE


UNLIMITED: Final = Limits()
"""Of nearly every map: this very object, so that one comparison of identities tells."""


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
    max_size: Annotated[
        int,
        Meta(
            ge=0,
            le=SIZE_MAX,
            description="Entries that a member holds as primary before some are evicted; "
            "0 no limit",
        ),
    ] = 0
    comparison: Annotated[
        bool,
        Meta(
            description="Whether a member that has an older copy of a partition's entries is sent "
            "only those that differ, found by hash trees"
        ),
    ] = True
    eviction_policy: Annotated[
        EvictionPolicy,
        Meta(
            description="What goes when a map is full: LRU the least recently used, "
            "LFU the least often read, RANDOM any"
        ),
    ] = NONE

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """A merge policy that nobody knows, which would be found out in the middle of a merge; a
        bound that nobody keeps, or one that is kept and not there.
        """
        yield from super().problems()
        size, policy = f"map.{self.pattern}.max_size", f"map.{self.pattern}.eviction_policy"
        if self.max_size and self.eviction_policy == NONE:
            yield (
                ("max_size", "eviction_policy"),
                f"{size} ({self.max_size}) says how many entries are too many, and not which are "
                f"to go: set {policy} to {LRU}, {LFU} or {RANDOM}, or {size} to 0",
            )
        if self.eviction_policy != NONE and not self.max_size:
            yield (
                ("eviction_policy", "max_size"),
                f"{policy} ({self.eviction_policy}) evicts nothing from a map without a bound: set "
                f"{size} to the entries that a member may hold, or {policy} to {NONE}",
            )
        try:
            resolve(self.merge_policy)
        except UsageError as problem:
            yield ("merge_policy",), f"map.{self.pattern}.merge_policy: {problem}"

    def normal(self) -> Self:
        """With the policy's short name."""
        return msgspec.structs.replace(self, merge_policy=resolve(self.merge_policy))

    def limits(self) -> Limits:
        """What operations need of this; UNLIMITED itself where nothing is limited."""
        found = Limits(
            self.time_to_live_s * 1000, self.max_idle_s * 1000, self.max_size, self.eviction_policy
        )
        return UNLIMITED if found == UNLIMITED else found


def settings_of(settings: CoreSettings, namespace: Namespace) -> MapSettings:
    """The settings of a map."""
    return settings.structure(MapSettings, split_namespace(namespace)[1])
