"""Who asks: a client's connection, a member that forwarded a request, and the request itself.

Both kinds of origin collect reply bytes in ``out``; the server flushes those marked ``dirty`` once
per turn. Knows no message shapes.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from whimbrel.core.ids import Attempt, ClientId, MemberId, Namespace, PartitionId
from whimbrel.errors import OverloadedError
from whimbrel.serving.calls import Call
from whimbrel.wire.frames import MessageSplitter, RawMessage, message_bytes

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
    client_id: ClientId | None = field(default=None, init=False)
    """Whose requests they are; None while it has not said."""

    def begin_waiting(self) -> None:
        """One more request waits for something; ``in_flight`` is lowered when it does no more.

        Raises:
            OverloadedError: Too many wait already.
        """
        if self.in_flight >= IN_FLIGHT_MAX:
            raise OverloadedError(f"{IN_FLIGHT_MAX} requests of this connection wait already")
        self.in_flight += 1


@dataclass(slots=True, eq=False)
class Connection(Origin):
    """One client connection and what the client registered on it."""

    conn: int
    remote: str
    phase: Phase = Phase.PRELUDE
    prelude: bytes = b""
    splitter: MessageSplitter = field(default_factory=MessageSplitter)
    client_name: str = ""
    labels: tuple[str, ...] = ()
    backup_correlation: int | None = None
    """Correlation of the backup listener registered here; None while there is none."""
    paused: bool = False
    """The client does not read at the moment."""
    held: deque[RawMessage] = field(default_factory=deque)
    """Requests that wait until the client reads, or until the next turn."""
    held_bytes: int = 0
    waiting: dict[int, Request] = field(default_factory=dict)
    """Calls that wait for something to change, by correlation id (``waits``)."""


Place = tuple[int, int]
"""Where a call stands among those that wait for the same: since when (us), and its number."""


@dataclass(slots=True, eq=False)
class ForwardOrigin(Origin):
    """A call of another member on behalf of one of its clients."""

    member: MemberId
    call: int
    hops: int = 1
    """How often the request was sent on; the first time by the client's own member."""
    place: Place | None = None
    """Of an attempt of a call that waits there."""


@dataclass(slots=True, eq=False)
class Wait:
    """What a call of a client of ours waits for, and how far it is (``waits``)."""

    namespace: Namespace
    key: bytes
    expired: bytes
    """The response at the end of its time."""
    deadline_us: int
    order: int
    """Rises from call to call."""
    is_idle: bool = False
    """Whether no attempt is under way."""
    is_here: bool = False
    """Whether an attempt runs here at this moment."""
    due_us: int = 0
    """When it is tried again if nobody wakes it, or its time is over."""
    call: Call | None = None
    """The last attempt that was sent to another member."""
    target: MemberId | None = None
    """Who remembers it, under the number of the attempt that found nothing; None: nobody else."""
    number: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """A request that could not be served on the spot, with everything to run it later."""

    origin: Origin
    type: int
    correlation: int
    partition: PartitionId
    data: bytes
    """The bytes of its message alone, not the buffer in which they arrived."""
    hops: int
    deadline_us: int = 0
    """When it is given up; 0 until it is parked for the first time."""
    since_us: int = 0
    """When it was first tried, here or at its primary; 0 before that."""
    wait: Wait | None = None
    """Of a call that waits for something to change."""
    attempt: Attempt | None = None
    """The name of its last attempt, if that is recognised when it is repeated."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether a client of ours waits for it and an attempt was lost: so its repetition ends
        without effect, and what became of it before is unknown.
        """
        attempt = self.attempt
        return attempt is not None and attempt.is_repetition and isinstance(self.origin, Connection)

    @classmethod
    def of(cls, origin: Origin, message: RawMessage, hops: int = 0) -> Request:
        """The request that a message is."""
        pid = PartitionId(message[6])
        return cls(origin, message[4], message[5], pid, message_bytes(message), hops)
