"""Client connections: from bytes to requests, as far as the client reads its replies.

Knows the prelude, that nothing but an authentication is listened to before one has succeeded, and
how a connection's requests are held while its replies pile up. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.errors import ProtocolError
from whimbrel.serving.hub import Hub
from whimbrel.serving.listeners import Listeners
from whimbrel.serving.outputs import CloseClient
from whimbrel.serving.session import UNREAD_BYTES_MAX, Connection, Phase
from whimbrel.serving.views import Views
from whimbrel.serving.waits import Waits
from whimbrel.wire.frames import PRELUDE, RawMessage

REPLY_BYTES_PER_TURN = 8 * 1024 * 1024
"""Large reply bytes made for one connection before its further requests wait for the next turn."""

Dispatch = Callable[[Connection, RawMessage], None]


class Intake:
    """The client connections of one member."""

    def __init__(
        self, hub: Hub, views: Views, listeners: Listeners, waits: Waits, dispatch: Dispatch
    ) -> None:
        self._hub = hub
        self._views = views
        self._listeners = listeners
        self._waits = waits
        self._dispatch = dispatch
        """Runs a request of an authenticated client."""
        self.connections: dict[int, Connection] = {}
        self.hello: Callable[[Connection, RawMessage], None] | None = None
        """What an unauthenticated connection's message runs; set by the client handlers."""
        self.overflowing: dict[int, Connection] = {}
        """Connections with requests that wait for the next turn only."""

    def opened(self, conn: int, remote: str) -> None:
        """A client connected."""
        self.connections[conn] = Connection(conn, remote)
        self._hub.tally("connections_opened")

    def closed(self, conn: int) -> None:
        """A client's connection is gone: forget it and what it registered."""
        connection = self.connections.pop(conn, None)
        if connection is None:
            return
        self._hub.tally("connections_closed")
        connection.alive = False
        connection.phase = Phase.CLOSED
        connection.out.clear()
        connection.held.clear()
        self.overflowing.pop(conn, None)
        self._views.drop(connection)
        self._listeners.drop(connection)
        self._waits.drop(connection)
        client_id = connection.client_id
        if client_id is not None and self._hub.clients.get(client_id) is connection:
            del self._hub.clients[client_id]

    def close(self, connection: Connection, reason: str) -> None:
        """End a connection after what was already written to it."""
        if connection.phase is not Phase.CLOSED:
            self._hub.flush_origin(connection)
            self._hub.outputs.append(CloseClient(connection.conn, reason))
            self._hub.tally("connections_ended")
            self.closed(connection.conn)

    def feed(self, conn: int, data: bytes) -> None:
        """Take bytes of a client."""
        connection = self.connections.get(conn)
        self._hub.only_read = False
        if connection is None:
            return
        if connection.phase is Phase.PRELUDE:
            data = self._take_prelude(connection, data)
            if not data:
                return
        messages: list[RawMessage] = []
        error = ""
        try:
            connection.splitter.feed_into(data, messages)
        except ProtocolError as problem:
            self._hub.tally("protocol_errors")
            self._hub.tally(f"refused_{problem.reason}")
            error = str(problem)
        if connection.held or connection.paused:
            self._hold(connection, messages)
        else:
            self._run(connection, messages)
        if error:
            self.close(connection, f"protocol error: {error}")

    def _take_prelude(self, connection: Connection, data: bytes) -> bytes:
        """Check the first three bytes; returns what follows them."""
        connection.prelude += data[:3]
        got = connection.prelude
        if got[:3] == PRELUDE:
            connection.phase = Phase.HELLO
            rest = got[3:] + data[3:]
            connection.prelude = b""
            return rest
        if not PRELUDE.startswith(got):
            self._hub.tally("protocol_errors")
            self._hub.tally("refused_prelude")
            self.close(connection, "the first bytes are not those of a client")
        return b""

    def _run(self, connection: Connection, messages: list[RawMessage]) -> None:
        """Run messages in order until replies grow large or the connection ends."""
        if connection.phase is not Phase.READY:
            self._greet(connection, messages)
            return
        hub = self._hub
        if not connection.dirty:
            connection.dirty = True
            hub.dirty.append(connection)
        hub.only_read = True
        dispatch = self._dispatch
        for at, message in enumerate(messages):
            dispatch(connection, message)
            if connection.out_bytes > REPLY_BYTES_PER_TURN or not connection.alive:
                hub.only_read = False
                self._hold(connection, messages[at + 1 :])
                return

    def take_reply(self, conn: int) -> bytes | None:
        """See ``Engine.take_reply``."""
        hub, connection = self._hub, self.connections.get(conn)
        if connection is None or not hub.only_read:
            return None
        hub.only_read = False
        out = connection.out
        connection.out = []
        connection.out_bytes = 0
        return out[0] if len(out) == 1 else b"".join(out)

    def _greet(self, connection: Connection, messages: list[RawMessage]) -> None:
        """Run the messages of a connection that is not authenticated yet."""
        for at, message in enumerate(messages):
            if connection.phase is Phase.READY:
                self._run(connection, messages[at:])
                self._hub.only_read = False
                return
            if connection.phase is Phase.CLOSED or self.hello is None:
                return
            self.hello(connection, message)

    def _hold(self, connection: Connection, messages: list[RawMessage]) -> None:
        if not messages or connection.phase is Phase.CLOSED:
            return
        connection.held.extend(messages)
        connection.held_bytes += sum(message[2] - message[1] for message in messages)
        if not connection.paused:
            self.overflowing[connection.conn] = connection
        if connection.held_bytes > UNREAD_BYTES_MAX:
            self._hub.tally("slow_readers_ended")
            self._hub.tally("refused_unread_replies")
            self.close(connection, "the client sends on but does not read")

    def unfinished(self) -> list[tuple[int, bool]]:
        """Connections that are not authenticated or stopped within a message; see the engine."""
        return [
            (conn, connection.phase is Phase.READY)
            for conn, connection in self.connections.items()
            if connection.phase is not Phase.READY or connection.splitter.pending_bytes
        ]

    def pause(self, conn: int) -> None:
        """The client does not read: none of its requests runs until it does."""
        connection = self.connections.get(conn)
        if connection is not None:
            connection.paused = True
            self.overflowing.pop(conn, None)

    def resume(self, conn: int) -> None:
        """The client reads again."""
        connection = self.connections.get(conn)
        if connection is not None and connection.paused:
            connection.paused = False
            self._run_held(connection)

    def resume_input(self) -> None:
        """Run requests that were put off by ``REPLY_BYTES_PER_TURN``."""
        waiting = list(self.overflowing.values())
        self.overflowing.clear()
        for connection in waiting:
            self._run_held(connection)

    def _run_held(self, connection: Connection) -> None:
        messages = list(connection.held)
        connection.held.clear()
        connection.held_bytes = 0
        self._run(connection, messages)
