"""Which clients are gone: who holds something for a client hears when no member is connected to it.

A primary that keeps something of a client's may never have seen it: the client asks another member,
which sends its requests on. So while something is kept, the member that keeps it asks all others,
round after round, which of these clients are connected to them now. A client is gone when every
member said no, and said so again a while later. Nobody decides for a member that is on the list and
does not answer; one that has left counts as a no.

    member that keeps something                      every other member
      | note WANTED (number of the round, clients) --->|
      |<------------- note THERE (number, those here) -|
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberList, members_came, members_left
from whimbrel.serving.bodies import read_body
from whimbrel.serving.hub import Hub
from whimbrel.serving.scatter import Scatter

GONE_US: Final = 5_000_000
"""A client that no member was connected to for so long is gone; one that comes back earlier keeps
what it has."""
ROUND_US: Final = 1_000_000
"""From the beginning of one round to that of the next."""
CLIENTS_PER_ROUND_MAX: Final = 10_000
"""Clients asked for in one round, 200 kB; of more the next ones are asked for in the next round."""
WANTED: Final = "clients.wanted"
THERE: Final = "clients.there"
"""Names of the notes."""

Holders = Callable[[], Iterable[bytes]]
"""Gives the uuids of the clients that something is kept for."""
Gone = Callable[[bytes], None]
"""Takes the uuid of a client that is gone; again and again while something is kept for it."""


class Clients(msgspec.Struct, frozen=True, array_like=True):
    """Uuids of clients, in a round."""

    number: int
    uuids: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode_clients = msgspec.msgpack.Decoder(Clients).decode


@dataclass(slots=True, eq=False)
class _Round:
    """A question under way to all members."""

    number: int
    begun_us: int
    clients: list[bytes]
    waiting: dict[MemberId, None]
    """Who has not answered."""
    there: dict[bytes, None]
    """Clients that somebody is connected to."""


class Presence:
    """The clients that this member keeps something for, and what others ask it about theirs."""

    def __init__(self, hub: Hub, scatter: Scatter) -> None:
        """Take the notes of other members."""
        self._hub = hub
        self._scatter = scatter
        self._watches: list[tuple[Holders, Gone]] = []
        self._round: _Round | None = None
        self._next_us = 0
        self._number = 0
        self._left: list[bytes] = []
        """Clients that the next rounds ask for."""
        self._absent: dict[bytes, int] = {}
        """Since when (us) nobody has been connected to a client."""
        scatter.notes[WANTED] = self.on_wanted
        scatter.notes[THERE] = self.on_there

    def watch(self, holders: Holders, gone: Gone) -> None:
        """Tell somebody of the clients that it keeps something for."""
        self._watches.append((holders, gone))

    def seen(self, client: bytes) -> None:
        """A client asks for something: it is not gone, whatever was said of it before."""
        self._absent.pop(client, None)
        if self._round is not None:
            self._round.there[client] = None

    # -- asking ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Time has passed: begin a round if it is due and the last one is over."""
        self._maybe_finish()
        now_us = self._hub.ctx.now_us
        if self._round is not None or now_us < self._next_us:
            return
        self._next_us = now_us + ROUND_US
        if not self._left:
            held = {client: None for holders, _ in self._watches for client in holders()}
            self._absent = {c: since for c, since in self._absent.items() if c in held}
            self._left = list(held)
        clients = self._left[:CLIENTS_PER_ROUND_MAX]
        del self._left[:CLIENTS_PER_ROUND_MAX]
        for client in clients:
            if client in self._hub.clients:
                self._absent.pop(client, None)
        clients = [client for client in clients if client not in self._hub.clients]
        if clients:
            self._ask(clients)

    def _ask(self, clients: list[bytes]) -> None:
        self._number += 1
        others = self._hub.ctx.others()
        waiting = dict.fromkeys(others)
        self._round = _Round(self._number, self._hub.ctx.now_us, clients, waiting, {})
        self._scatter.tell(others, WANTED, _encode(Clients(self._number, clients)), None)
        self._maybe_finish()

    def on_there(self, member: MemberId, body: bytes) -> None:
        """A member says which of the clients asked for are connected to it.

        Raises:
            ProtocolError: It says no clients.
        """
        told = read_body(_decode_clients, body, "clients that are connected")
        asked = self._round
        if asked is not None and told.number == asked.number and member in asked.waiting:
            del asked.waiting[member]
            asked.there.update(dict.fromkeys(told.uuids))
            self._maybe_finish()

    def members_changed(self, old: MemberList, new: MemberList) -> None:
        """Who has left is not waited for; who has come may know clients and was not asked."""
        if self._round is None:
            return
        if members_came(old, new):
            self._round = None
            return
        for member in members_left(old, new):
            self._round.waiting.pop(member, None)

    def _maybe_finish(self) -> None:
        """Everybody has answered: tell of those clients that were absent long enough."""
        asked = self._round
        if asked is None or asked.waiting:
            return
        self._round = None
        now_us = self._hub.ctx.now_us
        for client in asked.clients:
            if client in asked.there or client in self._hub.clients:
                self._absent.pop(client, None)
            elif asked.begun_us - self._absent.setdefault(client, now_us) >= GONE_US:
                for _, gone in self._watches:
                    gone(client)

    # -- answering ------------------------------------------------------------------------

    def on_wanted(self, member: MemberId, body: bytes) -> None:
        """Another member asks which of these clients are connected to us.

        Raises:
            ProtocolError: It asks for no clients.
        """
        asked = read_body(_decode_clients, body, "clients that somebody asks for")
        here = [client for client in asked.uuids if client in self._hub.clients]
        self._scatter.tell([member], THERE, _encode(Clients(asked.number, here)), None)
