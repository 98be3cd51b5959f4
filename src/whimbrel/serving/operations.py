"""The one table of operations: what may be asked for, where it runs, and what it does to data.

The rows come from the modules of the handlers. Dispatch, forwarding, the cluster state PASSIVE,
split-brain protection, the metrics and ``docs/operations.md`` are fed by this table alone, so an
operation is offered by writing its row, and a row that does not say its effect cannot be written.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from whimbrel.core.check import check
from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.session import Connection, Origin, Request
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire import errors as codes
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import SHAPES, message_type

Run = TypeVar("Run", covariant=True)


class Share(msgspec.Struct, array_like=True):
    """One member's part of an operation on all partitions: those that it covers, a number, and
    items (keys, values or both in turn).
    """

    partitions: list[int]
    count: int = 0
    items: list[bytes] = []
    error: str = ""
    code: int = codes.GENERIC
    """Error code of the client protocol that goes with ``error``."""
    has_acted: bool = True
    """Whether a write may have changed something of this member's, covered or not."""


RunInPartition = Callable[[Origin, PartitionReplica, RawMessage], None]
RunAttempt = Callable[[Request, PartitionReplica, RawMessage], None]
RunOnConnection = Callable[[Connection, RawMessage], None]
RunAnywhere = Callable[[Origin, RawMessage], None]
RunShare = Callable[[Share, PartitionReplica, Namespace, bytes, WriteGroup], int | None]
"""Adds one partition of ours to a share: (share, partition, structure, argument, writes that wait
for backups). Returns how many entries it looked at; None when it cannot be done now."""


class Scope(enum.Enum):
    """Where an operation runs."""

    PARTITION = "partition"
    """At the primary of the partition that the request names; others send it on."""
    ALL_PARTITIONS = "all partitions"
    """At the member asked, which asks every primary for its share."""
    SHARE = "share"
    """At a primary, for its own partitions, asked by the member that has the request."""
    CONNECTION = "connection"
    """At the member that the client asks, for itself."""
    ANYWHERE = "anywhere"
    """At the member that the client asks, or at another one that it passes the request on to."""


class Effect(enum.Enum):
    """What an operation does to the data of structures."""

    READ = "read"
    WRITE = "write"
    NEUTRAL = "neutral"
    """Neither: views, listeners, pings, schemas."""


@dataclass(slots=True, eq=False)
class Operation(Generic[Run]):
    """One row."""

    name: str
    """Of the request (``Map.put``), or of the share as members name it."""
    kind: str
    """Kind of the structure that the first field names; "" for none."""
    scope: Scope
    effect: Effect
    run: Run
    """The handler."""
    recognise: RunAttempt | None = None
    """The handler of attempts that have a name, by which one is recognised when it comes again: so
    one whose answer is lost is repeated. None where that is not offered."""
    is_write: bool = field(init=False)
    """Whether ``effect`` is WRITE, for the path of every request."""
    is_retryable: bool = field(init=False)
    """Whether running it twice is harmless, so that what was lost may be repeated."""
    is_guarded: bool = False
    """Whether it may be refused at the moment; kept by ``admission``."""
    count: int = 0
    """How often it ran here; counted in a partition only."""

    def __post_init__(self) -> None:
        self.is_write = self.effect is Effect.WRITE
        is_harmless = self.effect is Effect.READ or self.scope is Scope.SHARE
        self.is_retryable = is_harmless or SHAPES[self.name].retryable


def rows_of(
    prefix: str, kind: str, scope: Scope, effect: Effect, runs: Mapping[str, Run]
) -> list[Operation[Run]]:
    """Rows that have all but name and handler in common; ``prefix`` begins each name."""
    return [Operation(f"{prefix}{name}", kind, scope, effect, run) for name, run in runs.items()]


class Operations:
    """The table of one member.

    Attributes:
        in_partition: Operations of PARTITION by type of the request: nearly all traffic.
        others: Those of ALL_PARTITIONS, CONNECTION and ANYWHERE by type of the request.
        shares: Those of SHARE by kind and name.
    """

    def __init__(self) -> None:
        self.in_partition: dict[int, Operation[RunInPartition]] = {}
        self.others: dict[int, Operation[RunOnConnection]] = {}
        self.shares: dict[tuple[str, str], Operation[RunShare]] = {}

    def add(self, rows: Iterable[Operation[Any]]) -> None:
        """Offer these operations."""
        indexes: dict[Scope, dict[Any, Operation[Any]]] = {
            Scope.PARTITION: self.in_partition,
            Scope.SHARE: self.shares,
        }
        for row in rows:
            index = indexes.get(row.scope, self.others)
            is_share = row.scope is Scope.SHARE
            key: object = (row.kind, row.name) if is_share else message_type(row.name)
            check(key not in index, f"{row.name} has one row")
            index[key] = row

    def rows(self) -> list[Operation[Any]]:
        """All rows."""
        return [*self.in_partition.values(), *self.others.values(), *self.shares.values()]
