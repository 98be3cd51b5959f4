"""Who asks: a client's connection, a member that forwarded a request, and the request itself.

Both kinds of origin collect reply bytes in ``out``; the server flushes those marked ``dirty`` once
per turn. Knows no message shapes.
"""

from __future__ import annotations

import enum
from collections import deque

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


class Origin:
    """Where replies go."""

    __slots__ = ("alive", "dirty", "in_flight", "out", "out_bytes")

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.out_bytes = 0
        """Bytes of large replies in ``out``; small ones are not counted."""
        self.dirty = False
        self.alive = True
        self.in_flight = 0


class Connection(Origin):
    """One client connection and what the client registered on it."""

    __slots__ = (
        "backup_correlation",
        "client_id",
        "client_name",
        "conn",
        "held",
        "held_bytes",
        "labels",
        "paused",
        "phase",
        "prelude",
        "remote",
        "splitter",
        "view_correlation",
    )

    def __init__(self, conn: int, remote: str) -> None:
        super().__init__()
        self.conn = conn
        self.remote = remote
        self.phase = Phase.PRELUDE
        self.prelude = b""
        self.splitter = MessageSplitter()
        self.client_id: ClientId | None = None
        self.client_name = ""
        self.labels: tuple[str, ...] = ()
        self.backup_correlation: int | None = None
        """Correlation of the backup listener registered here; None while there is none."""
        self.view_correlation: int | None = None
        self.paused = False
        """The client does not read at the moment."""
        self.held: deque[RawMessage] = deque()
        """Requests that wait until the client reads, or until the next turn."""
        self.held_bytes = 0


class ForwardOrigin(Origin):
    """A call of another member on behalf of one of its clients."""

    __slots__ = ("call", "member")

    def __init__(self, member: MemberId, call: int) -> None:
        super().__init__()
        self.member = member
        self.call = call


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
