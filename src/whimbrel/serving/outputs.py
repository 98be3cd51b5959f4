"""What a shell has to do for an engine: frames to members, bytes to clients, and core effects.

Knows the shapes only. A shell takes a list of outputs after each call of the engine, or once
per turn of its loop, and carries them out in order.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.effects import (
    ArmTimer,
    DiskWork,
    Expelled,
    Joined,
    LinkUnwanted,
    LinkWanted,
    Note,
    Stopped,
)
from whimbrel.core.events import GridEvent
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message

CONTROL = "control"
"""Channel of everything small and urgent: heartbeats, lists, table, migration control."""
BULK = "data"
"""Channel of data: backups, acknowledgements, forwarded requests, fragments."""


class ToPeer(msgspec.Struct, frozen=True):
    """Send one frame to a member over the named connection of its link, in order.

    ``payload`` is a ``Message`` when ``kind`` is MESSAGE (the shell encodes it), else bytes.
    When the link is down the shell may drop the frame or keep it: everything that must arrive
    is sent again after ``LinkRestored``.
    """

    peer: MemberId
    channel: str
    kind: int
    payload: Message | bytes
    cause: str = ""
    """What a ``Message`` follows from; it travels with it (docs/design/0016)."""


class ToAddress(msgspec.Struct, frozen=True):
    """Send a message to whoever listens there; ``AddressUnreachable`` when nobody does."""

    address: Address
    message: Message
    cause: str


class ToClient(msgspec.Struct, frozen=True):
    """Write bytes to a client's connection; at most one per connection and take."""

    conn: int
    data: bytes


class CloseClient(msgspec.Struct, frozen=True):
    """End a client's connection once what was written before has been sent."""

    conn: int
    reason: str


class Answered(msgspec.Struct, frozen=True):
    """A question put with ``Engine.ask`` has its answer: a JSON document, or an error sentence."""

    call: int
    document: bytes
    error: str


class EventsTold(msgspec.Struct, frozen=True):
    """The cluster's events for the program around this member, in order; see ``want_events``."""

    events: tuple[GridEvent, ...]


Output = (
    ToPeer
    | ToAddress
    | ToClient
    | CloseClient
    | Answered
    | EventsTold
    | ArmTimer
    | DiskWork
    | Note
    | LinkWanted
    | LinkUnwanted
    | Joined
    | Expelled
    | Stopped
)
