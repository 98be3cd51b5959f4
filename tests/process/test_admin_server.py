"""The admin server on a real socket: half requests, silence, too many connections, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.process.runtime_fakes import until
from tests.unit.admin_fakes import FakeNode, as_node, fakes
from tests.unit.engine_pump import Pump

from whimbrel.admin import server as server_module

Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REQUEST = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def lone() -> FakeNode:
    pump = Pump()
    pump.form(1)
    fake = fakes(pump)[0]
    fake.admin_socket = socket.create_server(("127.0.0.1", 0))
    return fake


@asynccontextmanager
async def served(fake: FakeNode) -> AsyncIterator[Callable[[], Awaitable[Talk]]]:
    """The server of a member; calling the result connects."""
    assert fake.admin_socket is not None
    port = int(fake.admin_socket.getsockname()[1])
    server = await server_module.start(as_node(fake), "127.0.0.1", port)
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Talk:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in opened:
            writer.close()
        await server.stop()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes; a cut counts as a close."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def head_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readuntil(b"\r\n\r\n")


def test_an_answer_and_the_end() -> None:
    """Goal: the server answers on the port that was open before it was loaded, and stops."""

    async def work() -> None:
        fake = lone()
        async with served(fake) as connect:
            reader, writer = await connect()
            writer.write(REQUEST)
            assert (await head_of(reader)).startswith(b"HTTP/1.1 200")
        assert fake.notes == []
        assert fake.admin_socket is not None
        assert fake.admin_socket.fileno() == -1

    asyncio.run(work())


@pytest.mark.parametrize(
    "noise",
    [b"", b"GET /health", REQUEST[:-2], b"POST /api/v1/shutdown HTTP/1.1\r\nHost: 127.0.0.1\r\n"],
    ids=["nothing", "half a line", "half a head", "half a post"],
)
def test_half_a_request_is_ended(noise: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whoever does not get a request over in time loses the connection; others go on."""
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.1)

    async def work() -> None:
        async with served(lone()) as connect:
            reader, writer = await connect()
            writer.write(noise)
            await rest_of(reader)
            reader, writer = await connect()
            writer.write(REQUEST)
            assert (await head_of(reader)).startswith(b"HTTP/1.1 200")

    asyncio.run(work())


def test_a_busy_connection_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a poller that uses one connection is not cut off. Method: requests for longer than
    the time limit, each well within it.
    """
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.3)

    async def work() -> None:
        async with served(lone()) as connect:
            reader, writer = await connect()
            for _ in range(12):
                writer.write(REQUEST)
                head = await head_of(reader)
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                await asyncio.sleep(0.05)  # a poller's rest between two requests

    asyncio.run(work())


@pytest.mark.parametrize(
    "noise",
    [
        b"CP2" + bytes(100),
        b"GET " + b"a" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)),
        b"POST /api/v1/shutdown HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
    ],
    ids=["client protocol", "long line", "many headers", "huge body"],
)
def test_noise_is_answered_and_closed(noise: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: noise costs one connection. Method: four kinds; each gets a 4xx or is cut off."""
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.5)

    async def work() -> None:
        async with served(lone()) as connect:
            reader, writer = await connect()
            writer.write(noise)
            answer = await rest_of(reader)
            assert not answer or answer.startswith(b"HTTP/1.1 4")

    asyncio.run(work())


def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: connections are bounded. Method: a limit of three; the one above it gets 503."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 3)

    async def work() -> None:
        async with served(lone()) as connect:
            for _ in range(3):
                await connect()
            reader, writer = await connect()
            writer.write(REQUEST)
            assert (await head_of(reader)).startswith(b"HTTP/1.1 503")

    asyncio.run(work())


def test_a_failing_server_leaves_the_member_alive() -> None:
    """Goal: an admin port that cannot be served is told, so that it is tried again, and no reason
    to stop. Method: a socket that is closed already.
    """

    async def work() -> None:
        fake = lone()
        assert fake.admin_socket is not None
        port = int(fake.admin_socket.getsockname()[1])
        fake.admin_socket.close()
        server = await server_module.start(as_node(fake), "127.0.0.1", port)
        await until(lambda: fake.admin_ends, "the end told")
        await server.stop()
        assert len(fake.admin_ends) == 1

    asyncio.run(work())


def test_a_server_that_is_stopped_has_not_failed() -> None:
    """Goal: the end of the member is not told as a failure of its admin server."""

    async def work() -> None:
        fake = lone()
        async with served(fake) as connect:
            await connect()
        assert fake.admin_ends == []

    asyncio.run(work())
