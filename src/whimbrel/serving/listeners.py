"""Who listens: entry listeners of maps, listeners of structures coming and going.

An event arises on the primary of a partition, once. The member there tells its own clients'
listeners; for listeners that want the whole cluster's events but sit elsewhere (``local_only``
false, a client with one connection) each member tells all others for which maps it wants events
(its *interest*), and events reach it by NOTIFY. So every listener hears every change exactly once
(FN-22).

Interest is state, sent whole under a rising number through ``Calls``: a repeated or late delivery
is harmless. A registration that widens it is answered when every other member knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import RegistryEntry
from whimbrel.core.registry import MAP_KIND
from whimbrel.errors import OverloadedError, ProtocolError
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.serving.hub import NOTIFY_EVENT, Hub
from whimbrel.serving.scatter import Scatter
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import encode_event

LISTENERS_MAX = 10_000
"""Most listeners of one member's clients; more are refused as overload."""
INTEREST = "interest"
"""Name of the note that tells other members what we want to hear."""
GRID = ""
"""In the place of a map's name: the cluster's own events. No map has an empty name."""
MAP_SERVICE = "hz:impl:mapService"

EVICT_ALL = 32
CLEAR_ALL = 64


class MapEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something happened to an entry, or (CLEAR_ALL, EVICT_ALL) to a whole map."""

    name: str
    type: int
    key: bytes | None
    value: bytes | None
    old_value: bytes | None
    source: MemberId
    affected_count: int = 1


class Interest(msgspec.Struct, frozen=True, array_like=True):
    """The maps whose events a member wants from everywhere; the greater number is newer."""

    number: int
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Listener:
    """One registration of a client."""

    connection: Connection
    correlation: int
    message: str
    """Name of the registration request; each has its own type of event."""
    name: str
    """The map, or GRID."""
    structure: str = ""
    """The map that a listener of GRID means; its losses are told."""
    registration: bytes = b""
    key: bytes | None = None
    """Serialized key without its partition hash; None for all keys."""
    include_value: bool = True
    flags: int = 0
    local_only: bool = True


encode_map_event = msgspec.msgpack.Encoder().encode
_decode_map_event = msgspec.msgpack.Decoder(MapEvent).decode
_encode_interest = msgspec.msgpack.Encoder().encode
_decode_interest = msgspec.msgpack.Decoder(Interest).decode


class Listeners:
    """All listeners of one member's clients, and what other members want to hear."""

    def __init__(self, hub: Hub, scatter: Scatter) -> None:
        """Take the notes of other members' interests."""
        self._hub = hub
        self._scatter = scatter
        self._listened = hub.maps.listened
        """Of the map service: names for which it must record events."""
        self._by_name: dict[str, dict[bytes, Listener]] = {}
        self._by_registration: dict[bytes, Listener] = {}
        self._objects: dict[bytes, Listener] = {}
        self._wanted: dict[str, dict[MemberId, None]] = {}
        self._interests: dict[MemberId, Interest] = {}
        self._told: tuple[str, ...] = ()
        self._number = 0
        self._next_registration = 0
        self.shell_listens = False
        """Whether the program around this member wants GRID events, from everywhere."""
        scatter.notes[INTEREST] = self.on_interest

    @property
    def count(self) -> int:
        """Registered listeners of all kinds."""
        return len(self._by_registration) + len(self._objects)

    # -- registering ----------------------------------------------------------------------

    def new_registration(self) -> bytes:
        """A registration id that no member hands out twice: half our identity, then a number."""
        self._next_registration += 1
        return uuid_bytes(self._hub.ctx.id)[:8] + self._next_registration.to_bytes(8, "big")

    def add(self, listener: Listener, then: Callable[[], None]) -> bytes:
        """Register an entry listener; ``then`` is called when its events arrive from everywhere.

        Raises:
            OverloadedError: This member has too many listeners.
        """
        self._check_room()
        listener.registration = self.new_registration()
        self._by_registration[listener.registration] = listener
        self._by_name.setdefault(listener.name, {})[listener.registration] = listener
        self._count(listener.name, 1)
        if listener.local_only:
            then()
        else:
            self._tell_interest(then)
        return listener.registration

    def add_object_listener(self, listener: Listener) -> bytes:
        """Register a listener of structures.

        Raises:
            OverloadedError: This member has too many listeners.
        """
        self._check_room()
        listener.registration = self.new_registration()
        self._objects[listener.registration] = listener
        return listener.registration

    def _check_room(self) -> None:
        if self.count >= LISTENERS_MAX:
            raise OverloadedError(f"a member has at most {LISTENERS_MAX} listeners")

    def remove(self, registration: bytes) -> bool:
        """End a listener of any kind; False when there is none of that id."""
        if self._objects.pop(registration, None) is not None:
            return True
        listener = self._by_registration.pop(registration, None)
        if listener is None:
            return False
        named = self._by_name[listener.name]
        del named[registration]
        if not named:
            del self._by_name[listener.name]
        self._count(listener.name, -1)
        if not listener.local_only:
            self._tell_interest(None)
        return True

    def listen_for_shell(self, listens: bool) -> None:
        """The program around this member begins or ends to listen."""
        if listens != self.shell_listens:
            self.shell_listens = listens
            self._tell_interest(None)

    def named(self, name: str) -> list[Listener]:
        """The listeners of a map, or of GRID, in order of registration."""
        return list(self._by_name.get(name, {}).values())

    def members_that_want(self, name: str) -> list[MemberId]:
        """Other members that want to hear of a map, or of GRID."""
        return list(self._wanted.get(name, {}))

    def is_wanted(self, name: str) -> bool:
        """Whether a client here or another member listens."""
        return name in self._by_name or name in self._wanted

    def drop(self, connection: Connection) -> None:
        """End all listeners of a connection."""
        for registration in [
            registration
            for table in (self._by_registration, self._objects)
            for registration, listener in table.items()
            if listener.connection is connection
        ]:
            self.remove(registration)

    def _count(self, name: str, change: int) -> None:
        count = self._listened.get(name, 0) + change
        if count > 0:
            self._listened[name] = count
        else:
            self._listened.pop(name, None)

    # -- interest between members ---------------------------------------------------------

    def _names_wanted(self) -> tuple[str, ...]:
        wanted = {
            name: None
            for name, named in self._by_name.items()
            if any(not listener.local_only for listener in named.values())
        }
        if self.shell_listens:
            wanted[GRID] = None
        return tuple(sorted(wanted))

    def _tell_interest(self, then: Callable[[], None] | None) -> None:
        """Tell all other members what we want to hear now; ``then`` when each has answered."""
        names = self._names_wanted()
        if names != self._told:
            self._told = names
            self._number += 1
        body = _encode_interest(Interest(self._number, names))
        self._scatter.tell(self._hub.ctx.others(), INTEREST, body, then)

    def member_came(self, member: MemberId) -> None:
        """A newcomer must know what we want to hear before it owns anything."""
        if self._told:
            body = _encode_interest(Interest(self._number, self._told))
            self._scatter.tell([member], INTEREST, body, None)

    def member_left(self, member: MemberId) -> None:
        """Forget what it wanted."""
        self._replace_interest(member, ())
        self._interests.pop(member, None)

    def on_interest(self, member: MemberId, body: bytes) -> None:
        """Another member says what it wants to hear.

        Raises:
            ProtocolError: It is no interest.
        """
        try:
            interest = _decode_interest(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"not an interest: {error}") from error
        known = self._interests.get(member)
        if known is not None and known.number >= interest.number:
            return
        self._replace_interest(member, interest.names)
        self._interests[member] = interest

    def _replace_interest(self, member: MemberId, names: Sequence[str]) -> None:
        known = self._interests.get(member)
        for name in known.names if known is not None else ():
            wanted = self._wanted[name]
            del wanted[member]
            if not wanted:
                del self._wanted[name]
            self._count(name, -1)
        for name in names:
            self._wanted.setdefault(name, {})[member] = None
            self._count(name, 1)

    # -- events ---------------------------------------------------------------------------

    def publish(self, event: MapEvent) -> None:
        """An event arose here: tell our listeners and the members that want it."""
        for listener in list(self._by_name.get(event.name, {}).values()):
            self._deliver(listener, event)
        wanted = self._wanted.get(event.name)
        if wanted:
            body = encode_map_event(event)
            for member in wanted:
                self._hub.notify(member, NOTIFY_EVENT, body)

    def on_event(self, body: bytes) -> None:
        """An event that arose on another member, for our listeners that want all of them.

        Raises:
            ProtocolError: It is no event.
        """
        try:
            event = _decode_map_event(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"not an event: {error}") from error
        for listener in list(self._by_name.get(event.name, {}).values()):
            if not listener.local_only:
                self._deliver(listener, event)

    def _deliver(self, listener: Listener, event: MapEvent) -> None:
        if not listener.flags & event.type:
            return
        if listener.key is not None and (event.key is None or event.key[4:] != listener.key):
            return
        shows = listener.include_value
        message = encode_event(
            listener.message,
            "entry",
            listener.correlation,
            key=event.key,
            value=event.value if shows else None,
            old_value=event.old_value if shows else None,
            merging_value=None,
            event_type=event.type,
            uuid=event.source,
            affected_entries=event.affected_count,
        )
        self._hub.deliver(listener.connection, message)

    def structure_changed(self, entry: RegistryEntry, before: RegistryEntry | None) -> None:
        """A structure came or went: tell the object listeners once per change."""
        was_alive = before is not None and before.alive
        if entry.kind != MAP_KIND or was_alive == entry.alive:
            return
        for listener in list(self._objects.values()):
            if listener.local_only and entry.origin != self._hub.ctx.id:
                continue
            message = encode_event(
                listener.message,
                "distributed_object",
                listener.correlation,
                name=entry.key,
                service_name=MAP_SERVICE,
                event_type="CREATED" if entry.alive else "DESTROYED",
                source=entry.origin,
            )
            self._hub.deliver(listener.connection, message)
