"""Everything the core may ask its shell to do. Data, never callbacks."""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address, MemberId, PartitionId
from whimbrel.core.messages import Message
from whimbrel.core.model import LostStructure
from whimbrel.core.persistence.commands import Command


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all effects."""

    cause: str = ""
    """What it follows from (docs/design/0016); empty for what a shell says of itself."""


class Send(Effect, frozen=True):
    """Send to a member of the list (or one that just left it), over its link."""

    to: MemberId
    message: Message


class SendTo(Effect, frozen=True):
    """Send to whoever listens at an address; answered by AddressUnreachable if nobody does."""

    address: Address
    message: Message


class ArmTimer(Effect, frozen=True):
    """Deliver TimerFired(key, generation) at ``at_us``; replaces a timer of the same key."""

    key: str
    generation: int
    at_us: int


class Note(Effect, frozen=True):
    """Something worth a log line and an entry in the event list. Never user data."""

    level: str
    """``debug``, ``info``, ``warning`` or ``error``."""
    kind: str
    fields: dict[str, str | int | float | bool | None]


class LinkWanted(Effect, frozen=True):
    """Hold a link to this member from now on."""

    member: MemberId
    address: Address


class LinkUnwanted(Effect, frozen=True):
    """The member is off the list; close its link once what is queued has been sent."""

    member: MemberId


class MembersChanged(Effect, frozen=True):
    """A new member list is installed; tell the clients."""


class TableChanged(Effect, frozen=True):
    """Rows of these partitions changed; tell the clients, look at parked requests again."""

    partitions: tuple[PartitionId, ...]


class PartitionReleased(Effect, frozen=True):
    """The migrating flag of a partition is off; parked requests may run."""

    partition_id: PartitionId


class Joined(Effect, frozen=True):
    """This member is on the list and serves."""


class Expelled(Effect, frozen=True):
    """The cluster goes on without this member; it must drop its data and its clients."""

    reason: str
    addresses: tuple[Address, ...] = ()
    """Where those listen that go on, their master first; for ``Started`` of the next one."""


class Stopped(Effect, frozen=True):
    """The member has left or gives up; the shell ends. ``exit_status`` 0 is a graceful leave."""

    reason: str
    exit_status: int
    discarded: tuple[LostStructure, ...] = ()
    """What ends with the member: entries of which nobody has a copy."""


class DiskWork(Effect, frozen=True):
    """Carry these commands out beside the loop, after those before; answered by DiskDone or
    DiskFailed with the same number, once. Numbers rise by one from 1.
    """

    number: int
    commands: tuple[Command, ...]
