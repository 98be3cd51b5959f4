"""``whimbrel start`` with an admin server that only says that it lives.

The real one belongs to another room; here the shell alone is looked at. Usage: the arguments of
``whimbrel start``; ``WHIMBREL_TEST_BREAK=1`` breaks an invariant one tick after joining,
``WHIMBREL_TEST_ADMIN=1`` keeps the admin server from starting, and
``WHIMBREL_TEST_ADMIN_FAILS=N`` lets its first N starts fail for want of open files.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

from whimbrel.cli import main
from whimbrel.errors import InvariantViolation


class Admin:
    """Answers every request with the member's uuid."""

    def __init__(self, server: asyncio.AbstractServer) -> None:
        self._server = server

    async def stop(self) -> None:
        self._server.close()


async def start(node: Any, host: str, port: int) -> Admin:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = f"{node.member_id} {host}:{port}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    if next(attempts) < int(os.environ.get("WHIMBREL_TEST_ADMIN_FAILS", "0")):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if os.environ.get("WHIMBREL_TEST_ADMIN"):
        raise ImportError("the test has no admin server")
    if os.environ.get("WHIMBREL_TEST_BREAK"):

        def broken(now_us: int, wall_ms: int) -> None:
            raise InvariantViolation("the test breaks a fact")

        node.engine.tick = broken
    return Admin(await asyncio.start_server(answer, sock=node.admin_socket))


attempts = itertools.count()
Starter = Callable[[Any, str, int], Awaitable[Admin]]

module: Any = types.ModuleType("whimbrel.admin.server")
module.start = start
sys.modules["whimbrel.admin.server"] = module
sys.argv[0] = "whimbrel"
main.entry()
