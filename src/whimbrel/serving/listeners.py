"""Who listens: listeners of structures, of the cluster, of structures coming and going.

An event of a structure arises on the primary of a partition, once. The member there tells its own
clients' listeners. Others that want the whole cluster's events (``local_only`` false) may be
elsewhere: the listener of a client with one connection, or of one that registers with every member
it is connected to, asking each for everything, and is not connected here. Every member tells all
others what such listeners want (``interest``), and who has an event tells it to one member for each
registration that it has not itself; NOTIFY_EVENT says for which. So every registration hears every
change exactly once (FN-22), at however many members it was made, while members come and go.

A client that registers with every member for what happens there alone (``local_only``) takes a
while to find a newcomer. Until it has registered there, too, the newcomer's events are told to it
in the same way: by one of the members that were there before.

What is on its way when a client's connection breaks is lost with it. Until the member at its other
end knows, that is also what arises there, and what others tell that member for the client. A client
that registers again elsewhere is told there from the answer on, but for what arises at a member
that has not noticed yet.

What an event says to a client is its kind's affair: each listener brings along how its message is
made and which events it wants.

Interest is state, sent whole under a rising number through ``Calls``: a repeated or late delivery
is harmless. It is sent once for all that changes in a turn, as when a connection ends with many
listeners. A registration that widens it is answered when every other member knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from whimbrel.core.ids import MemberId, Namespace
from whimbrel.core.messages import RegistryEntry
from whimbrel.errors import OverloadedError
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.serving.bodies import read_body
from whimbrel.serving.hub import NOTIFY_EVENT, Hub
from whimbrel.serving.interest import (
    Interest,
    Interests,
    Marks,
    encode_interest,
    mark_of,
    pack_marks,
    unpack_marks,
)
from whimbrel.serving.scatter import Scatter
from whimbrel.serving.session import Connection
from whimbrel.serving.views import with_correlation
from whimbrel.wire.frames import RawMessage

LISTENERS_MAX = 10_000
"""Most listeners of one member's clients, and so marks that it wants told; more are refused as
overload."""
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
    """Set when it is added, as are its mark (``interest``) ..."""
    mark: bytes = b""
    elders: frozenset[MemberId] = frozenset()
    """... and the other members that there were then."""

    @property
    def needs_others(self) -> bool:
        """Whether other members must know of it, to tell it what happens at them."""
        return not self.local_only and self.namespace != OBJECTS

    @property
    def needs_newcomers(self) -> bool:
        """Whether members that come later must, until its client registers with them."""
        return self.local_only and self.namespace not in (OBJECTS, GRID)


_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(StructureEvent).decode


def marks_of(listeners: Iterable[Listener]) -> Marks:
    """Their marks, each once, by structure."""
    found: dict[Namespace, dict[bytes, None]] = {}
    for one in listeners:
        found.setdefault(one.namespace, {})[one.mark] = None
    return {name: tuple(marks) for name, marks in found.items()}


class Listeners:
    """All listeners of one member's clients, and who is told what they hear not here."""

    def __init__(self, hub: Hub, scatter: Scatter) -> None:
        """Take the notes of other members' interests."""
        self._hub = hub
        self._scatter = scatter
        self._listened = hub.dataplane.events.listened
        """Structures whose services must tell what happens."""
        self._by_name: dict[Namespace, dict[bytes, Listener]] = {}
        self._by_registration: dict[bytes, Listener] = {}
        self._interests = Interests(hub.ctx.id, self._count)
        self._told = Interest(0, {}, {})
        """What we have told others that we want to hear."""
        self._tellers: dict[Namespace, dict[MemberId, bytes]] = {}
        """Which other members are told, and for which marks (``pack_marks``), of structures with
        events since the last change."""
        self._next_registration = 0
        self.has_news = False
        """Whether others must be told at the end of this turn."""
        self._unanswered: list[Callable[[], None]] = []
        """Of registrations that others have not been told of."""
        self.shell_listens = False
        """Whether the program around this member wants GRID events, from everywhere."""
        scatter.notes[INTEREST] = self._interests.take

    @property
    def count(self) -> int:
        """Registered listeners of all kinds."""
        return len(self._by_registration)

    # -- registering ----------------------------------------------------------------------

    def new_registration(self) -> bytes:
        """A registration id that no member hands out twice: half our identity, then a number."""
        self._next_registration += 1
        return uuid_bytes(self._hub.ctx.id)[:8] + self._next_registration.to_bytes(8, "big")

    def add(self, listener: Listener, request: RawMessage, then: Callable[[], None]) -> bytes:
        """Register a listener; ``then`` is called when its events arrive from everywhere.

        Raises:
            OverloadedError: This member has too many listeners.
        """
        if self.count >= LISTENERS_MAX:
            raise OverloadedError(f"a member has at most {LISTENERS_MAX} listeners")
        registration = listener.registration = self.new_registration()
        listener.mark = mark_of(listener.connection.client_id or registration, request)
        listener.elders = frozenset(self._hub.ctx.others())
        self._by_registration[registration] = listener
        self._by_name.setdefault(listener.namespace, {})[registration] = listener
        self._count(listener.namespace, 1)
        if listener.needs_others:
            self.has_news = True
            self._unanswered.append(then)
        else:
            then()
        return registration

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
        self.has_news |= listener.needs_others or (
            listener.needs_newcomers and not listener.elders.issuperset(self._hub.ctx.others())
        )
        return True

    def listen_for_shell(self, listens: bool) -> None:
        """The program around this member begins or ends to listen."""
        if listens != self.shell_listens:
            self.shell_listens = listens
            self.has_news = True

    def named(self, name: Namespace) -> Collection[Listener]:
        """The listeners of a structure, or of GRID, in order of registration."""
        named = self._by_name.get(name)
        return named.values() if named else ()

    def members_that_want(self, name: Namespace) -> list[MemberId]:
        """Other members that want to hear of a structure, or of GRID."""
        return self._interests.members(name)

    def is_wanted(self, name: Namespace) -> bool:
        """Whether a client here or another member listens."""
        return name in self._listened

    def drop(self, connection: Connection) -> None:
        """End all listeners of a connection."""
        for listener in list(self._by_registration.values()):
            if listener.connection is connection:
                self.remove(listener.registration)

    def _count(self, name: Namespace, change: int) -> None:
        """Who listens to a structure is not what it was: so many more, here or of the members."""
        self._tellers.pop(name, None)
        if name == OBJECTS:
            return  # of which services tell nothing
        count = self._listened.get(name, 0) + change
        if count > 0:
            self._listened[name] = count
        else:
            self._listened.pop(name, None)

    # -- interest between members ---------------------------------------------------------

    def _look(self) -> None:
        """See what we want to hear now, from everybody and from members that came later."""
        listeners = self._by_registration.values()
        marks = marks_of(one for one in listeners if one.needs_others)
        if self.shell_listens:
            marks.setdefault(GRID, ())
        nearby = [one for one in listeners if one.needs_newcomers]
        late = {
            member: marks_of(one for one in nearby if member not in one.elders)
            for member in self._hub.ctx.others()
            if any(member not in one.elders for one in nearby)
        }
        if (marks, late) != (self._told.marks, self._told.late):
            self._told = Interest(self._told.number + 1, marks, late)

    def tell_news(self) -> None:
        """Tell all other members what we want to hear now; then those who wait for that."""
        self.has_news = False
        self._look()
        unanswered, self._unanswered = self._unanswered, []

        def known() -> None:
            for then in unanswered:
                then()

        self._tell(self._hub.ctx.others(), known if unanswered else None)

    def _tell(self, members: Sequence[MemberId], then: Callable[[], None] | None) -> None:
        self._scatter.tell(members, INTEREST, encode_interest(self._told), then)

    def member_came(self, member: MemberId) -> None:
        """A newcomer must know what we want to hear before it owns anything."""
        self._look()
        if self._told.marks or member in self._told.late:
            self._tell([member], None)

    def member_left(self, member: MemberId) -> None:
        """Forget what it wanted; what it would have told on, others are told from now on."""
        self._interests.forget(member)

    # -- events ---------------------------------------------------------------------------

    def publish(self, event: StructureEvent) -> None:
        """An event arose here: tell our listeners, and a member for each mark not among theirs."""
        name = event.namespace
        if name not in self._listened:
            return
        self.deliver(name, event, is_here=True)
        tellers = self._tellers.get(name)
        if tellers is None:
            here = dict.fromkeys(one.mark for one in self.named(name))
            tellers = self._tellers[name] = {
                member: pack_marks(marks)
                for member, marks in self._interests.tellers(name, here).items()
            }
        if tellers:
            body = _encode(event)
            for member, marks in tellers.items():
                self._hub.notify(member, NOTIFY_EVENT, marks + body)

    def on_event(self, body: bytes) -> None:
        """An event that arose on another member, which leaves it to us to tell some marks.

        Raises:
            ProtocolError: It is no event.
        """
        marks, rest = unpack_marks(body)
        event = read_body(_decode_event, rest, "an event")
        self._tell_clients([one for one in self.named(event.namespace) if one.mark in marks], event)

    def deliver(self, name: Namespace, event: object, *, is_here: bool) -> None:
        """Tell an event to the listeners of a structure, of GRID or of OBJECTS.

        Args:
            name: Whose listeners.
            event: What they take.
            is_here: Whether it arose on this member; if not, some do not want it.
        """
        self._tell_clients(
            [one for one in self.named(name) if is_here or not one.local_only], event
        )

    def _tell_clients(self, listeners: Iterable[Listener], event: object) -> None:
        made: dict[Encode, bytes] = {}
        for listener in listeners:
            if not listener.wants(event):
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
