"""Who asks: a client's connection, a member that forwarded a request, and the request itself.

Both kinds of origin collect reply bytes in ``out``; the server flushes those marked ``dirty`` once
per turn. Knows no message shapes.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from whimbrel.core.ids import ClientId, MemberId, PartitionId
from whimbrel.wire.frames import MessageSplitter, RawMessage

IN_FLIGHT_MAX = 10_000
"""Requests of one connection that wait for something; more are refused as overload."""
UNREAD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes kept of a client that goes on sending while it does not read; more ends the connection."""


class Phase(enum.Enum):
    """How far a client's connection has come."""

    PRELUDE = 0
    HELLO = 1
    """The prelude is there; only authentication is listened to."""
    READY = 2
    CLOSED = 3


@dataclass(slots=True, eq=False)
class Origin:
    """Where replies go."""

    out: list[bytes] = field(default_factory=list, init=False)
    out_bytes: int = field(default=0, init=False)
    """Bytes of large replies in ``out``; small ones are not counted."""
    dirty: bool = field(default=False, init=False)
    alive: bool = field(default=True, init=False)
    in_flight: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class Connection(Origin):
    """One client connection and what the client registered on it."""

    conn: int
    remote: str
    phase: Phase = Phase.PRELUDE
    prelude: bytes = b""
    splitter: MessageSplitter = field(default_factory=MessageSplitter)
    client_id: ClientId | None = None
    client_name: str = ""
    labels: tuple[str, ...] = ()
    backup_correlation: int | None = None
    """Correlation of the backup listener registered here; None while there is none."""
    view_correlation: int | None = None
    paused: bool = False
    """The client does not read at the moment."""
    held: deque[RawMessage] = field(default_factory=deque)
    """Requests that wait until the client reads, or until the next turn."""
    held_bytes: int = 0


@dataclass(slots=True, eq=False)
class ForwardOrigin(Origin):
    """A call of another member on behalf of one of its clients."""

    member: MemberId
    call: int


class Request:
    """A request that could not be served on the spot, with everything to run it later.

    It keeps the bytes of its message alone, not the buffer in which they arrived.
    """

    __slots__ = (
        "correlation",
        "data",
        "deadline_us",
        "hops",
        "origin",
        "partition",
        "type",
    )

    def __init__(self, origin: Origin, message: RawMessage, data: bytes, hops: int = 0) -> None:
        self.origin = origin
        self.data = data
        self.type = message[4]
        self.correlation = message[5]
        self.partition = PartitionId(message[6])
        self.hops = hops
        self.deadline_us = 0
        """When it is given up; 0 until it is parked for the first time."""
