"""Everything that may change a member's control-plane state."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.persistence.commands import Answer, Failure


class Stimulus(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all stimuli."""

    cause: str | None = None
    """What it follows from (docs/design/0016); None for what begins a story of its own."""


class Started(Stimulus, frozen=True):
    """The shell listens; begin discovery."""

    join_addresses: tuple[Address, ...]
    heard: tuple[Address, ...] = ()
    """Where those listen that the incarnation before this one gave way to (``Expelled``)."""


class Received(Stimulus, frozen=True):
    """A message arrived. All but the message was told in the link's greeting.

    ``started_us`` is the start of the sender's process; None is taken for the listed one's.
    """

    sender: MemberId
    address: Address
    message: Message
    started_us: int | None = None


class TimerFired(Stimulus, frozen=True):
    """An armed timer is due; stale generations are ignored."""

    key: str
    generation: int


class LinkLost(Stimulus, frozen=True):
    """The connection to a member broke; what was in flight may be lost. The shell reconnects."""

    member: MemberId


class LinkRestored(Stimulus, frozen=True):
    """A connection to the member stands again after ``LinkLost``."""

    member: MemberId


class LinkFailed(Stimulus, frozen=True):
    """The connection broke and cannot be made again: nobody listens there any more."""

    member: MemberId


class AddressUnreachable(Stimulus, frozen=True):
    """Nobody could be reached at an address a message was sent to."""

    address: Address


class LeaveWanted(Stimulus, frozen=True):
    """The operator wants this member to leave gracefully (SIGTERM, ``shutdown``)."""


class DiskDone(Stimulus, frozen=True):
    """All commands of a ``DiskWork`` are carried out; one answer for each."""

    number: int
    answers: tuple[Answer, ...] = ()


class DiskFailed(Stimulus, frozen=True):
    """A command of a ``DiskWork`` failed; those before it are carried out, those behind it not."""

    number: int
    position: int
    """Of the command, from 0."""
    failure: Failure
    detail: str
    """What the system said, with the file's name."""
