"""Accepts connections at the data port: the first bytes decide between a client and a member.

Bytes go to the engine as they arrive, answers leave once per turn of the loop. Nothing here
reads a client message; member frames are only split and told apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Protocol, cast

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import ADDRESSED
from whimbrel.core.stimuli import Received
from whimbrel.errors import ProtocolError
from whimbrel.runtime.clock import now_us, wall_ms
from whimbrel.wire import links as wire

if TYPE_CHECKING:
    from whimbrel.config import RuntimeSettings
    from whimbrel.runtime.occupation import Occupation
    from whimbrel.serving.engine import Engine

CLIENT_PRELUDE = b"CP2"
PRELUDES = (CLIENT_PRELUDE, wire.PRELUDE)
MEMBER_CONNECTIONS_MAX = 4_096
"""Incoming member connections; two for each member and some that are about to end."""
HINTS_MAX = 1_000
"""Sources of foreign bytes that are remembered, so that each is logged once."""
KEEP_ALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)  # not every system knows all of them
)
"""Seconds of silence before the kernel asks, between its questions, and how many it asks."""
STEP_US = 2_000
"""A member's messages beyond this time wait for the next turn of the loop: one read may bring
hundreds of them, and heartbeats and clients come first then."""
PIECE_BYTES = 64 * 1024
"""More bytes of a client than this in one read are taken in pieces of it, with a look at the clock:
they may be thousands of tiny requests, and other clients wait meanwhile."""
CHECK_S = 1.0
"""How often silent connections are looked for."""


class AcceptorHost(Protocol):
    """What the data port needs of its node."""

    @property
    def settings(self) -> RuntimeSettings:
        """Limits."""
        ...

    @property
    def cluster_name(self) -> str:
        """Members of other clusters may only ask who we are."""
        ...

    @property
    def engine(self) -> Engine:
        """The engine of the present incarnation."""
        ...

    @property
    def engine_scope(self) -> EngineScope:
        """A context in which engine code runs."""
        ...

    @property
    def occupation(self) -> Occupation:
        """Where the length of steps is noted."""
        ...

    def crashed(self, problem: BaseException) -> None:
        """The engine raised what it must not: stop the member."""
        ...

    def flush_soon(self) -> None:
        """Carry out the engine's outputs in the next turn of the loop."""
        ...

    def greeting(self, channel: str) -> bytes:
        """Our greeting, prelude included."""
        ...

    def count(self, name: str) -> None:
        """Raise a counter of the shell."""
        ...

    def hint(self, kind: str, **fields: str | int) -> None:
        """Log a warning."""
        ...


class EngineScope:
    """Runs engine code: outputs are carried out afterwards, an exception stops the member.

    One object serves all: it keeps no state between enter and exit.
    """

    def __init__(
        self, crashed: Callable[[BaseException], None], flush_soon: Callable[[], None]
    ) -> None:
        self._crashed = crashed
        self._flush_soon = flush_soon

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        """Flush or stop; exceptions never pass."""
        if problem is not None:
            self._crashed(problem)
            return True
        self._flush_soon()
        return False


class AcceptedConnection(asyncio.Protocol):
    """Base of a connection that is accepted as a client's or a member's."""

    def __init__(self, acceptor: Acceptor, transport: asyncio.Transport, source: str) -> None:
        self.acceptor = acceptor
        self.transport = transport
        self.source = source
        """Host of the other side."""
        self.opened_s = acceptor.loop.time()

    def close(self) -> None:
        """End it once everything written has been sent."""
        self.transport.close()

    def abort(self) -> None:
        """End it at once."""
        self.transport.abort()


class UndecidedConnection(asyncio.Protocol):
    """A connection whose first bytes have not decided yet whose it is."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._bytes = b""
        self.opened_s = 0.0
        self.transport: asyncio.Transport | None = None
        self.source = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        # a cast: transports of other loops are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)
        remote = transport.get_extra_info("peername")
        self.source = str(remote[0]) if remote else "unknown"
        self.opened_s = self._acceptor.loop.time()
        _keep_alive(self.transport)
        self._acceptor.opened(self)

    def data_received(self, data: bytes) -> None:
        """Decide as soon as the bytes allow it."""
        self._bytes += data
        if self.transport is None:
            return
        for prelude in PRELUDES:
            if self._bytes.startswith(prelude):
                self._acceptor.decided(self, prelude, self._bytes)
                return
        if not any(prelude.startswith(self._bytes) for prelude in PRELUDES):
            self._acceptor.refused(self, self._bytes)

    def connection_lost(self, problem: Exception | None) -> None:
        """It went away undecided."""
        self.transport = None
        self._acceptor.gone(self)


class ClientConnection(AcceptedConnection):
    """A client: bytes in, bytes out."""

    def __init__(
        self, acceptor: Acceptor, transport: asyncio.Transport, source: str, conn: int
    ) -> None:
        super().__init__(acceptor, transport, source)
        self.conn = conn
        self.heard_us = now_us()
        """When bytes of it arrived last."""
        self._rest = b""
        """Bytes that were read and wait for the next turn; no more is read meanwhile."""
        self._is_put_off = False
        self._is_choked = False
        """Whether the client does not read."""
        transport.set_write_buffer_limits(high=acceptor.host.settings.client_high_water_bytes)

    def data_received(self, data: bytes) -> None:
        """Give the engine what has arrived."""
        if len(data) > PIECE_BYTES or self._rest:
            self._take_much(data)
            return
        host = self.acceptor.host
        self.heard_us = moment_us = monotonic_ns() // 1_000  # as ``now_us``, without the call
        engine, reply = host.engine, None
        try:  # not ``engine_scope``: this is the path of every request
            engine.client_bytes(self.conn, data, moment_us, time_ns() // 1_000_000)
            reply = engine.take_reply(self.conn)
        except BaseException as problem:
            host.crashed(problem)
        if reply is None:
            host.flush_soon()
        elif reply:
            self.send(reply)

    def _take_much(self, data: bytes) -> None:
        """Take these piece by piece; what would occupy the loop for too long waits for its turn.

        The loop itself may read on and on from one connection before it looks at another.
        """
        data, self._rest = self._rest + data, b""
        if self._is_put_off:
            self._rest = data
            return
        begun_us, at = now_us(), 0
        while at < len(data) and not self._is_put_off:
            self.data_received(data[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            self._is_put_off = now_us() - begun_us > STEP_US
        self._rest = data[at:]
        self.acceptor.host.occupation.stepped(begun_us)
        if self._is_put_off and not self.transport.is_closing():
            self.transport.pause_reading()
            self.acceptor.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Go on with what was put off, then with what is to be read."""
        self._is_put_off = False
        if self._rest and not self.transport.is_closing():
            self._take_much(b"")
        self._read_on()

    def _read_on(self) -> None:
        if not (self._is_put_off or self._is_choked or self.transport.is_closing()):
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The client does not read: stop reading from it, and stop running its requests."""
        self.acceptor.host.count("clients_paused")
        self._is_choked = True
        if not self.transport.is_closing():
            self.transport.pause_reading()
        host = self.acceptor.host
        with host.engine_scope:
            host.engine.client_paused(self.conn)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._is_choked = False
        self._read_on()
        host = self.acceptor.host
        with host.engine_scope:
            host.engine.client_resumed(self.conn, now_us(), wall_ms())

    def connection_lost(self, problem: Exception | None) -> None:
        """Tell the engine, unless it closed the connection itself."""
        if self.acceptor.clients.pop(self.conn, None) is not None:
            host = self.acceptor.host
            with host.engine_scope:
                host.engine.client_closed(self.conn)

    def send(self, data: bytes) -> None:
        """Write an answer; a client that leaves too much unread is disconnected.

        What counts is what it had not read before: one answer may be longer than the limit.
        """
        transport = self.transport
        if transport.is_closing():
            return
        host = self.acceptor.host
        if transport.get_write_buffer_size() > host.engine.client_backlog_limit_bytes:
            host.count("clients_cut_by_backlog")
            transport.abort()
            return
        transport.write(data)


class MemberConnection(AcceptedConnection):
    """A member that sends to us: its greeting first, then frames."""

    def __init__(self, acceptor: Acceptor, transport: asyncio.Transport, source: str) -> None:
        super().__init__(acceptor, transport, source)
        self._splitter = wire.FrameSplitter(wire.GREETING_BYTES_MAX)
        self.greeting: wire.Greeting | None = None
        self._data_sender: MemberId | None = None
        """Who sends, once it has greeted as a member of our cluster."""
        self._rest: list[tuple[int, bytes]] = []
        """Frames of the last read that wait for the next turn; no more is read meanwhile."""

    def data_received(self, data: bytes) -> None:
        """Take frames; one that breaks the protocol ends the connection."""
        try:
            frames = self._splitter.feed(data)
        except ProtocolError as problem:
            self._refuse(problem)
            return
        if self._rest:
            self._rest += frames  # read before the pause
        else:
            self._take(frames, is_late=False)

    def _take(self, frames: list[tuple[int, bytes]], *, is_late: bool) -> None:
        """Take these one by one; what would occupy the loop for too long waits for the next turn.

        The clock is looked at after messages, and after data only when they are late already.
        """
        host = self.acceptor.host
        moment_us, moment_ms = monotonic_ns() // 1_000, time_ns() // 1_000_000  # as the clock's
        try:  # not ``engine_scope``: this is the path of every write
            for number, (kind, payload) in enumerate(frames, 1):
                sender = self._data_sender
                if sender is not None and kind > wire.MESSAGE:
                    host.engine.peer_frame(sender, kind, payload, moment_us, moment_ms)
                    if not is_late:
                        continue
                else:
                    self._frame(kind, payload, moment_us, moment_ms)
                if number < len(frames) and now_us() - moment_us > STEP_US:
                    self._put_off(frames[number:])
                    break
        except ProtocolError as problem:
            self._refuse(problem)
        except BaseException as problem:
            host.crashed(problem)
        host.occupation.stepped(moment_us)
        host.flush_soon()

    def _put_off(self, frames: list[tuple[int, bytes]]) -> None:
        """Take these in the next turn, and read nothing before."""
        self._rest = frames
        if not self.transport.is_closing():
            self.transport.pause_reading()
        self.acceptor.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Go on with what was put off; also after the connection's end, as if it had come late."""
        frames, self._rest = self._rest, []
        self._take(frames, is_late=True)
        if not self._rest and not self.transport.is_closing():
            self.transport.resume_reading()

    def _refuse(self, problem: ProtocolError) -> None:
        """The sender breaks the protocol."""
        host = self.acceptor.host
        host.count("link_protocol_errors")
        host.count(f"link_refused_{problem.reason}")
        self.acceptor.hint_once("member_connection_refused", self.source, str(problem))
        self.transport.abort()

    def connection_lost(self, problem: Exception | None) -> None:
        """The sender notices itself."""
        self.acceptor.members.pop(self, None)

    def _frame(self, kind: int, payload: bytes, moment_us: int, moment_ms: int) -> None:
        host = self.acceptor.host
        greeting = self.greeting
        if greeting is None:
            self._greet(kind, payload)
        elif kind == wire.MESSAGE:
            cause, message = wire.decode_message(payload)
            if greeting.cluster_name != host.cluster_name and not isinstance(message, ADDRESSED):
                raise ProtocolError(
                    f"a member of cluster {greeting.cluster_name!r} is none of ours",
                    reason="cluster_name",
                )
            sender = greeting.sender
            received = Received(sender.id, sender.address, message, sender.started_us, cause=cause)
            host.engine.handle(received, moment_us, moment_ms)
        else:
            raise ProtocolError(f"a frame of kind {kind} where none is allowed", reason="order")

    def _greet(self, kind: int, payload: bytes) -> None:
        if kind != wire.GREETING:
            raise ProtocolError("a member connection starts with a greeting", reason="order")
        self.greeting = wire.decode_greeting(payload)
        if self.greeting.cluster_name == self.acceptor.host.cluster_name:
            self._data_sender = self.greeting.sender.id
        self._splitter.bytes_max = wire.LINK_FRAME_BYTES_MAX
        answer = self.acceptor.host.greeting(self.greeting.channel)
        self.transport.write(answer[len(wire.PRELUDE) :])


class Acceptor:
    """All incoming connections of a node."""

    def __init__(self, host: AcceptorHost, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.loop = loop
        self.clients: dict[int, ClientConnection] = {}
        self.members: dict[MemberConnection, None] = {}
        self._undecided: dict[UndecidedConnection, None] = {}
        self._numbers = itertools.count(1)
        self._hinted: dict[tuple[str, str], None] = {}
        self._check = loop.call_later(CHECK_S, self._close_silent)

    def new_connection(self) -> UndecidedConnection:
        """A protocol for a connection that was accepted."""
        return UndecidedConnection(self)

    # -- deciding -------------------------------------------------------------------------

    def opened(self, connection: UndecidedConnection) -> None:
        """A connection was opened; when too many are undecided, the oldest must go."""
        self._undecided[connection] = None
        if len(self._undecided) > self.host.settings.undecided_max:
            oldest = next(iter(self._undecided))
            del self._undecided[oldest]
            self.host.count("connections_dropped_undecided")
            if oldest.transport is not None:
                oldest.transport.abort()

    def gone(self, connection: UndecidedConnection) -> None:
        """An undecided connection ended, or was decided."""
        self._undecided.pop(connection, None)

    def decided(self, connection: UndecidedConnection, prelude: bytes, data: bytes) -> None:
        """Accept a connection; its bytes so far come with it."""
        self.gone(connection)
        transport = connection.transport
        if transport is None or transport.is_closing():
            return
        if prelude == CLIENT_PRELUDE:
            self._serve_client(transport, connection.source, data)
            return
        if len(self.members) >= MEMBER_CONNECTIONS_MAX:
            self.host.count("members_refused_by_limit")
            transport.abort()
            return
        member = MemberConnection(self, transport, connection.source)
        self.members[member] = None
        transport.set_protocol(member)
        member.data_received(data[len(prelude) :])

    def _serve_client(self, transport: asyncio.Transport, source: str, data: bytes) -> None:
        if len(self.clients) >= self.host.settings.clients_max:
            self.host.count("clients_refused_by_limit")
            self.hint_once("too_many_clients", source, str(self.host.settings.clients_max))
            transport.abort()
            return
        client = ClientConnection(self, transport, source, next(self._numbers))
        self.clients[client.conn] = client
        transport.set_protocol(client)
        with self.host.engine_scope:
            self.host.engine.client_opened(client.conn, source)
        client.data_received(data)

    def refused(self, connection: UndecidedConnection, data: bytes) -> None:
        """Somebody speaks another protocol: close at once, say once what it looks like."""
        self.gone(connection)
        kind, text = _looks_like(data)
        self.host.count("connections_foreign")
        self.host.count(f"connections_foreign_{kind}")
        self.hint_once("foreign_connection", connection.source, text)
        if connection.transport is not None:
            connection.transport.abort()

    def hint_once(self, kind: str, source: str, text: str) -> None:
        """Log something about a source, once per kind and source."""
        if (kind, source) not in self._hinted and len(self._hinted) < HINTS_MAX:
            self._hinted[kind, source] = None
            self.host.hint(kind, source=source, text=text)

    # -- ending ---------------------------------------------------------------------------

    def close_client(self, conn: int, reason: str = "") -> None:
        """The engine is done with a client; what was written is sent first.

        A reason is told once per source: whoever comes again and again fills no log.
        """
        client = self.clients.pop(conn, None)
        if client is not None:
            if reason:
                self.hint_once("client_refused", client.source, reason)
            client.close()
            stop_s = self.host.settings.stop_timeout_us / 1_000_000
            self.loop.call_later(stop_s, client.abort)

    def close_all(self, at_once: bool = False) -> list[asyncio.Transport]:
        """End every connection; those that still have to send come back."""
        everything: list[AcceptedConnection] = [*self.clients.values(), *self.members]
        self.clients.clear()
        self.members.clear()
        for connection in list(self._undecided):
            if connection.transport is not None:
                connection.transport.abort()
        for accepted in everything:
            if at_once:
                accepted.abort()
            else:
                accepted.close()
        return [accepted.transport for accepted in everything]

    def end(self) -> None:
        """No more checks; the port is closed."""
        self._check.cancel()

    def gauges(self) -> dict[str, float]:
        """How many connections there are."""
        return {
            "connections_clients": len(self.clients),
            "connections_members": len(self.members),
            "connections_undecided": len(self._undecided),
        }

    def _close_silent(self) -> None:
        """Close what has not finished its handshake, or a message it began, in time."""
        self._check = self.loop.call_later(CHECK_S, self._close_silent)
        timeout_s = self.host.settings.handshake_timeout_us / 1_000_000
        before_s = self.loop.time() - timeout_s
        for connection in list(self._undecided):
            if connection.opened_s > before_s:
                break  # they stand in the order in which they came
            if connection.transport is not None:
                self._too_slow(connection.transport.abort)
        for member in list(self.members):
            if member.greeting is None and member.opened_s <= before_s:
                self._too_slow(member.abort)
        self._close_stuck_clients(timeout_s)

    def _close_stuck_clients(self, timeout_s: float) -> None:
        """Clients that have not authenticated in time, or sent half a message and then nothing."""
        unfinished: list[tuple[int, bool]] = []
        with self.host.engine_scope:
            unfinished = self.host.engine.unfinished_clients()
        before_s = self.loop.time() - timeout_s
        heard_before_us = now_us() - int(timeout_s * 1_000_000)
        for conn, is_ready in unfinished:
            client = self.clients.get(conn)
            if client is None:
                continue
            since = client.heard_us <= heard_before_us if is_ready else client.opened_s <= before_s
            if since:
                self._too_slow(client.abort)

    def _too_slow(self, abort: Callable[[], None]) -> None:
        self.host.count("connections_too_slow")
        abort()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the kernel notice within two minutes that the other machine is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _looks_like(data: bytes) -> tuple[str, str]:
    """What foreign first bytes probably are: a word for the count, words for the log."""
    if data[:1] == b"\x16":
        return "tls", "a TLS handshake; this port is not encrypted"
    word = data.split(b" ", 1)[0]
    if word.isalpha() and word.isupper() and b"HTTP/" in data[:4096]:
        return "http", "an HTTP request; HTTP is spoken on the admin port"
    if data.startswith((b"HZC", b"CB2", b"CP")):
        return "version", "another version of the client or member protocol"
    return "other", "bytes of no protocol spoken here"
