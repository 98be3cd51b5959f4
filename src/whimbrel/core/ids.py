"""The words everything else uses: identities, indexes, addresses, rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple, NewType

import msgspec

MemberId = NewType("MemberId", str)
"""A member's uuid in its 36-character form. Identity is this, never an address (safety rule 4)."""

ClientId = NewType("ClientId", bytes)
"""A client's uuid, 16 bytes."""

PartitionId = NewType("PartitionId", int)
"""0-based number of a partition."""

ReplicaIndex = NewType("ReplicaIndex", int)
"""0 is the primary, 1 to 6 are backups, NO_INDEX is none."""

Namespace = NewType("Namespace", str)
"""Names a structure and its fragments: kind and name, for example ``map/flights``."""

CALLER_BYTES: Final = 24
"""Of a caller: a member's uuid and the time of its start (us, u64), so one run of one member."""


class Attempt(NamedTuple):
    """A call of a client as the member names it that sends it to its primary.

    When its answer is lost it is repeated under the same name, and replicas that remember it
    recognise it (docs/design/0015).
    """

    caller: bytes
    """CALLER_BYTES long."""
    number: int
    """Rises from call to call of a caller."""
    is_repetition: bool = False
    """Whether it may have been carried out before."""


NO_INDEX = ReplicaIndex(-1)
REPLICA_SLOTS = 7
"""Slots of a row: one primary and up to six backups (ADL-01)."""
BACKUP_COUNT_MAX = REPLICA_SLOTS - 1
LOST_ALL = BACKUP_COUNT_MAX
"""The lost backup count that means: no replica of the partition is left (ADL-05, FN-7)."""

Row = tuple[MemberId | None, ...]
"""The replicas of one partition, REPLICA_SLOTS long, hottest first; None is a hole."""

EMPTY_ROW: Row = (None,) * REPLICA_SLOTS


PORT_MAX = 65_535
Name = Annotated[str, msgspec.Meta(max_length=255)]
"""A short text that others announce; longer ones are refused when they are decoded."""


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a member listens. Ordered by host, then port; decoding checks both.

    As text ``host:port``, an IPv6 host in brackets: ``[::1]:5701``. ``config.parse_address`` reads
    that back; there is no other form.
    """

    host: Name
    port: Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def namespace_of(kind: str, name: str) -> Namespace:
    """The namespace of a structure: ``namespace_of("map", "flights") == "map/flights"``."""
    return Namespace(f"{kind}/{name}")


def split_namespace(namespace: Namespace) -> tuple[str, str]:
    """The kind and the name of a structure: what ``namespace_of`` joined."""
    kind, _, name = namespace.partition("/")
    return kind, name


def index_in(row: Row, member: MemberId) -> ReplicaIndex:
    """The replica index of a member in a row, NO_INDEX when it holds none."""
    return ReplicaIndex(row.index(member)) if member in row else NO_INDEX


def hottest_index(row: Row, is_here: Callable[[MemberId], bool] = lambda _member: True) -> int:
    """The index of the hottest replica whose member is here; REPLICA_SLOTS when there is none."""
    for index, member in enumerate(row):
        if member is not None and is_here(member):
            return index
    return REPLICA_SLOTS
