"""Who listens: listeners of structures, of the cluster, of structures coming and going.

An event of a structure arises on the primary of a partition, once. The member there tells its own
clients' listeners; for listeners that want the whole cluster's events but sit elsewhere
(``local_only`` false, a client with one connection) each member tells all others for which
structures it wants events (its *interest*), and events reach it by NOTIFY. So every listener hears
every change exactly once (FN-22). A client that registers at every member and asks each for the
events of all hears each from every member: its registrations are listeners of their own.

What an event says to a client is its kind's affair: each listener brings along how its message is
made and which events it wants.

Interest is state, sent whole under a rising number through ``Calls``: a repeated or late delivery
is harmless. A registration that widens it is answered when every other member knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import RegistryEntry
from whimbrel.errors import OverloadedError
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.serving.bodies import read_body
from whimbrel.serving.hub import NOTIFY_EVENT, Hub
from whimbrel.serving.scatter import Scatter
from whimbrel.serving.session import Connection
from whimbrel.serving.views import with_correlation

LISTENERS_MAX = 10_000
"""Most listeners of one member's clients; more are refused as overload."""
INTEREST = "interest"
"""Name of the note that tells other members what we want to hear."""
GRID = Namespace("")
"""In the place of a structure: the cluster's own events."""
OBJECTS = Namespace("/")
"""In the place of a structure: the coming and going of all of them, which every member hears of
anyway (``Registry``)."""


class StructureEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something happened in a structure; what the flag and the fields mean is its kind's affair."""

    namespace: Namespace
    flag: int
    key: bytes | None
    value: bytes | None
    old_value: bytes | None
    source: MemberId
    affected_count: int = 1


class Interest(msgspec.Struct, frozen=True, array_like=True):
    """The structures whose events a member wants from everywhere; the greater number is newer."""

    number: int
    namespaces: tuple[Namespace, ...]


Encode = Callable[[Any], bytes]
"""Makes the message of an event, for no registration yet; b"" for an event that it does not tell.
Listeners with the same one get the same bytes but for the correlation."""
Wants = Callable[[Any], bool]
"""Whether a listener is told of an event."""


def everything(_: object) -> bool:
    """Want all events."""
    return True


@dataclass(slots=True, eq=False)
class Listener:
    """One registration of a client."""

    connection: Connection
    correlation: int
    namespace: Namespace
    """The structure, GRID or OBJECTS."""
    encode: Encode
    """Takes a ``StructureEvent``, a ``GridEvent`` of GRID, or a ``RegistryEntry`` of OBJECTS."""
    local_only: bool
    wants: Wants = everything
    """Takes what ``encode`` takes."""
    registration: bytes = b""

    @property
    def needs_others(self) -> bool:
        """Whether other members must know of it, to tell it what happens at them."""
        return not self.local_only and self.namespace != OBJECTS


_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(StructureEvent).decode
_decode_interest = msgspec.msgpack.Decoder(Interest).decode


class Listeners:
    """All listeners of one member's clients, and what other members want to hear."""

    def __init__(self, hub: Hub, scatter: Scatter) -> None:
        """Take the notes of other members' interests."""
        self._hub = hub
        self._scatter = scatter
        self._listened = hub.dataplane.events.listened
        """Structures whose services must tell what happens."""
        self._by_name: dict[Namespace, dict[bytes, Listener]] = {}
        self._by_registration: dict[bytes, Listener] = {}
        self._wanted: dict[Namespace, dict[MemberId, None]] = {}
        self._interests: dict[MemberId, Interest] = {}
        self._told = Interest(0, ())
        self._next_registration = 0
        self.shell_listens = False
        """Whether the program around this member wants GRID events, from everywhere."""
        scatter.notes[INTEREST] = self.on_interest

    @property
    def count(self) -> int:
        """Registered listeners of all kinds."""
        return len(self._by_registration)

    # -- registering ----------------------------------------------------------------------

    def new_registration(self) -> bytes:
        """A registration id that no member hands out twice: half our identity, then a number."""
        self._next_registration += 1
        return uuid_bytes(self._hub.ctx.id)[:8] + self._next_registration.to_bytes(8, "big")

    def add(self, listener: Listener, then: Callable[[], None]) -> bytes:
        """Register a listener; ``then`` is called when its events arrive from everywhere.

        Raises:
            OverloadedError: This member has too many listeners.
        """
        if self.count >= LISTENERS_MAX:
            raise OverloadedError(f"a member has at most {LISTENERS_MAX} listeners")
        listener.registration = self.new_registration()
        self._by_registration[listener.registration] = listener
        self._by_name.setdefault(listener.namespace, {})[listener.registration] = listener
        self._count(listener.namespace, 1)
        if listener.needs_others:
            self._tell_interest(then)
        else:
            then()
        return listener.registration

    def remove(self, registration: bytes) -> bool:
        """End a listener of any kind; False when there is none of that id."""
        listener = self._by_registration.pop(registration, None)
        if listener is None:
            return False
        named = self._by_name[listener.namespace]
        del named[registration]
        if not named:
            del self._by_name[listener.namespace]
        self._count(listener.namespace, -1)
        if listener.needs_others:
            self._tell_interest(None)
        return True

    def listen_for_shell(self, listens: bool) -> None:
        """The program around this member begins or ends to listen."""
        if listens != self.shell_listens:
            self.shell_listens = listens
            self._tell_interest(None)

    def named(self, name: Namespace) -> list[Listener]:
        """The listeners of a structure, or of GRID, in order of registration."""
        return list(self._by_name.get(name, {}).values())

    def members_that_want(self, name: Namespace) -> list[MemberId]:
        """Other members that want to hear of a structure, or of GRID."""
        return list(self._wanted.get(name, {}))

    def is_wanted(self, name: Namespace) -> bool:
        """Whether a client here or another member listens."""
        return name in self._by_name or name in self._wanted

    def drop(self, connection: Connection) -> None:
        """End all listeners of a connection."""
        for listener in list(self._by_registration.values()):
            if listener.connection is connection:
                self.remove(listener.registration)

    def _count(self, name: Namespace, change: int) -> None:
        if name == OBJECTS:
            return  # of which services tell nothing
        count = self._listened.get(name, 0) + change
        if count > 0:
            self._listened[name] = count
        else:
            self._listened.pop(name, None)

    # -- interest between members ---------------------------------------------------------

    def _names_wanted(self) -> tuple[Namespace, ...]:
        wanted = {
            name: None
            for name, named in self._by_name.items()
            if any(listener.needs_others for listener in named.values())
        }
        if self.shell_listens:
            wanted[GRID] = None
        return tuple(sorted(wanted))

    def _tell_interest(self, then: Callable[[], None] | None) -> None:
        """Tell all other members what we want to hear now; ``then`` when each has answered."""
        names = self._names_wanted()
        if names != self._told.namespaces:
            self._told = Interest(self._told.number + 1, names)
        self._tell(self._hub.ctx.others(), then)

    def _tell(self, members: Sequence[MemberId], then: Callable[[], None] | None) -> None:
        self._scatter.tell(members, INTEREST, _encode(self._told), then)

    def member_came(self, member: MemberId) -> None:
        """A newcomer must know what we want to hear before it owns anything."""
        if self._told.namespaces:
            self._tell([member], None)

    def member_left(self, member: MemberId) -> None:
        """Forget what it wanted."""
        self._replace_interest(member, None)

    def on_interest(self, member: MemberId, body: bytes) -> None:
        """Another member says what it wants to hear.

        Raises:
            ProtocolError: It is no interest.
        """
        interest = read_body(_decode_interest, body, "an interest")
        known = self._interests.get(member)
        if known is not None and known.number >= interest.number:
            return
        self._replace_interest(member, interest)

    def _replace_interest(self, member: MemberId, interest: Interest | None) -> None:
        known = self._interests.pop(member, None)
        for name in known.namespaces if known is not None else ():
            wanted = self._wanted[name]
            del wanted[member]
            if not wanted:
                del self._wanted[name]
            self._count(name, -1)
        if interest is None:
            return
        self._interests[member] = interest
        for name in interest.namespaces:
            self._wanted.setdefault(name, {})[member] = None
            self._count(name, 1)

    # -- events ---------------------------------------------------------------------------

    def publish(self, event: StructureEvent) -> None:
        """An event arose here: tell our listeners and the members that want it."""
        self.deliver(event.namespace, event, is_here=True)
        wanted = self._wanted.get(event.namespace)
        if wanted:
            body = _encode(event)
            for member in wanted:
                self._hub.notify(member, NOTIFY_EVENT, body)

    def on_event(self, body: bytes) -> None:
        """An event that arose on another member, for our listeners that want all of them.

        Raises:
            ProtocolError: It is no event.
        """
        event = read_body(_decode_event, body, "an event")
        self.deliver(event.namespace, event, is_here=False)

    def deliver(self, name: Namespace, event: object, *, is_here: bool) -> None:
        """Tell an event to the listeners of a structure, of GRID or of OBJECTS.

        Args:
            name: Whose listeners.
            event: What they take.
            is_here: Whether it arose on this member; if not, some do not want it.
        """
        made: dict[Encode, bytes] = {}
        for listener in self.named(name):
            if (listener.local_only and not is_here) or not listener.wants(event):
                continue
            message = made.get(listener.encode)
            if message is None:
                message = made[listener.encode] = listener.encode(event)
            if message:
                told = with_correlation(message, listener.correlation)
                self._hub.deliver(listener.connection, told)

    def structure_changed(self, entry: RegistryEntry, before: RegistryEntry | None) -> None:
        """A structure came or went: tell the listeners of OBJECTS once per change."""
        was_alive = before is not None and before.alive
        if entry.kind in self._hub.member.kinds and was_alive != entry.alive:
            self.deliver(OBJECTS, entry, is_here=entry.origin == self._hub.ctx.id)
