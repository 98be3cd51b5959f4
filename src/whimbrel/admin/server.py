"""The admin HTTP server of one member, in the member's own loop, on a port that is open already.

Knows how the web server is run inside a loop that is not its own: it catches no signals, ends no
process, and a connection that does not get a request over in time is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from whimbrel.admin.routes import EVENT_STREAM, make_app
from whimbrel.core.check import check
from whimbrel.runtime.node import Node

REQUEST_TIMEOUT_S = 15.0
"""A connection is closed when no new request began on it for this long; that ends those who send
half a request, who never read their answer, and who do nothing. Only event streams take as long;
their readers get twice the time to read."""
KEEP_ALIVE_S = 5
CONNECTIONS_MAX = 200
"""Admin connections at once; more are answered with 503."""
HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers together."""
STOP_TIMEOUT_S = 1
"""Requests under way at the end of the member get this long."""


SOURCES_TOLD_MAX = 1_000
"""Senders of bad requests that are remembered, so that each is logged once."""

_requests_log = logging.getLogger("uvicorn.error.requests")
_requests_log.setLevel(logging.ERROR)
"""What is wrong with a request is counted, not logged each time."""


class _Config(uvicorn.Config):
    """A configuration that leads from a connection to its server."""

    server: AdminServer


class _Protocol(H11Protocol):
    """The protocol with a clock: half a request must not keep a connection for ever."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.logger = _requests_log

    _clock: asyncio.TimerHandle | None = None
    _is_stuck = False
    """Whether the stream's reader had not read at the last look."""
    _last: RequestResponseCycle | None = None
    """The request that was the newest one when the clock was wound."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        if self._clock is not None:
            self._clock.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; tell it once."""
        if isinstance(self.config, _Config):
            self.config.server.refused(str((self.client or ("unknown",))[0]), msg)
        super().send_400_response(msg)

    def _wind(self) -> None:
        self._last = self.cycle
        self._clock = self.loop.call_later(REQUEST_TIMEOUT_S, self._on_clock)

    def _on_clock(self) -> None:
        if self.cycle is self._last and not self._streams():
            self.transport.abort()
        else:
            self._wind()

    def _streams(self) -> bool:
        """Whether an event stream runs whose reader reads: what was written has left."""
        cycle, transport = self.cycle, self.transport
        if cycle is None or cycle.response_complete or cycle.scope["path"] != EVENT_STREAM:
            return False
        has_left = isinstance(transport, asyncio.Transport) and (
            transport.get_write_buffer_size() == 0
        )
        was_stuck, self._is_stuck = self._is_stuck, not has_left
        return has_left or not was_stuck


class _Server(uvicorn.Server):
    """A server that leaves signals to the member."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch none."""
        yield


class AdminServer:
    """The running server; see ``start``."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        config = _Config(
            make_app(node),
            host=host,
            port=port,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.server = self
        self._node = node
        self._told: dict[str, None] = {}
        self._server = _Server(config)
        self._running: asyncio.Task[None] | None = None

    def refused(self, source: str, why: str) -> None:
        """Count something that is no request, and log the first of each source."""
        self._node.count("admin_requests_refused")
        if source not in self._told and len(self._told) < SOURCES_TOLD_MAX:
            self._told[source] = None
            self._node.hint("admin_request_refused", source=source, text=why)

    def open(self) -> None:
        """Serve from the next turn of the loop on; the port takes connections already."""
        listener = self._node.admin_socket
        check(listener is not None, "the admin port is opened before its server")
        self._running = self._node.spawn(self._run([listener]))

    async def _run(self, sockets: list[Any]) -> None:
        """Serve until ``stop``; an end before that is told and leaves the member alive."""
        why = "the server stopped by itself"
        try:
            await self._server.serve(sockets)
        except (Exception, SystemExit) as problem:
            why = repr(problem)
        if not self._server.should_exit:
            for listener in sockets:
                listener.close()
            self._node.admin_ended(why)

    async def stop(self) -> None:
        """Stop listening; requests under way get a moment to end."""
        self._server.should_exit = True
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running


async def start(node: Node, host: str, port: int) -> AdminServer:
    """Serve the admin side of a member, joined or not.

    Args:
        node: The member.
        host: Address the port is open on, for messages.
        port: The open port.
    """
    server = AdminServer(node, host, port)
    server.open()
    return server
