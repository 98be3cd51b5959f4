"""A network between real members that can be cut, one way or both, delayed, and healed.

Every member advertises the address of a proxy of its own, so all connections to it pass there. A
proxy knows who calls from the greeting that a link between members begins with. A cut holds bytes
back, and the closing of a connection too, as a network does that loses packets: nobody is told, and
what was under way arrives after the healing. Clients are never cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from whimbrel.errors import ProtocolError, UsageError
from whimbrel.wire.links import PRELUDE, FrameSplitter, decode_greeting

HOST = "127.0.0.1"
CLIENT = -1
"""The place of everybody who is no member."""
PIECE_BYTES = 65_536
CALL_TIMEOUT_S = 10.0
"""Longest wait for the network's own thread."""

T = TypeVar("T")


class _Place:
    """A member's proxy."""

    __slots__ = ("port", "server", "target_port")

    def __init__(self, port: int, target_port: int, server: asyncio.Server) -> None:
        self.port = port
        self.target_port = target_port
        self.server = server


class FaultNetwork:
    """Proxies in a thread of their own; a context manager. Members are numbered from 0."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._places: dict[int, _Place] = {}
        self._cuts: dict[tuple[int, int], asyncio.Event] = {}
        self._delays_s: dict[tuple[int, int], float] = {}
        self._open: dict[asyncio.Task[None], tuple[int, int]] = {}
        """Connections by their task: (who called, whom)."""
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and proxies."""
        if self._thread.is_alive():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT_S)
            self._loop.close()

    # -- members --------------------------------------------------------------------------

    def add(self, member: int) -> tuple[int, int]:
        """Open the proxy of a member.

        Returns:
            The port to advertise, and the free port on which the member shall listen.
        """
        if member in self._places:
            raise UsageError(f"member {member} has a proxy already")
        place = self._run(self._open_place(member))
        return place.port, place.target_port

    def address_of(self, member: int) -> str:
        """``host:port`` under which a member is reached through the network."""
        return f"{HOST}:{self._places[member].port}"

    # -- faults ---------------------------------------------------------------------------

    def cut(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Let nothing pass from one member to another; in both directions unless ``one_way``."""
        self._run(self._set_cut(source, target, True))
        if not one_way:
            self._run(self._set_cut(target, source, True))

    def heal(self, source: int, target: int) -> None:
        """Let everything pass between two members; what was held back first."""
        self._run(self._set_cut(source, target, False))
        self._run(self._set_cut(target, source, False))

    def split(self, *parts: Sequence[int]) -> None:
        """Cut every member of a part off from those of all other parts."""
        for part in parts:
            for other in parts:
                if other is not part:
                    for source in part:
                        for target in other:
                            self.cut(source, target, one_way=True)

    def heal_all(self) -> None:
        """End all cuts and delays."""
        self._run(self._heal_all())

    def delay(self, source: int, target: int, seconds: float) -> None:
        """Hold each piece of bytes up for so long, one after the other; 0 ends it."""
        self._delays_s[source, target] = seconds

    def reset(self, source: int, target: int) -> None:
        """Break the connections between two members."""
        self._run(self._reset(source, target))

    # -- in the thread --------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _open_place(self, member: int) -> _Place:
        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(member, reader, writer)

        server = await asyncio.start_server(called, HOST, 0)
        with socket.socket() as free:
            free.bind((HOST, 0))
            target_port = free.getsockname()[1]
        place = _Place(server.sockets[0].getsockname()[1], target_port, server)
        self._places[member] = place
        return place

    async def _close(self) -> None:
        for place in self._places.values():
            place.server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _set_cut(self, source: int, target: int, is_cut: bool) -> None:
        if is_cut:
            self._cuts.setdefault((source, target), asyncio.Event())
        else:
            healed = self._cuts.pop((source, target), None)
            if healed is not None:
                healed.set()

    async def _heal_all(self) -> None:
        for source, target in list(self._cuts):
            await self._set_cut(source, target, False)
        self._delays_s.clear()

    async def _reset(self, source: int, target: int) -> None:
        for task, ends in list(self._open.items()):
            if ends in ((source, target), (target, source)):
                task.cancel()

    async def _serve(
        self, member: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection to a member, until either end is done with it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._open[task] = (CLIENT, member)
        ends = [writer]
        try:
            caller, first = await self._find_caller(reader)
            self._open[task] = (caller, member)
            await self._passage(caller, member)
            there, to_member = await asyncio.open_connection(HOST, self._places[member].target_port)
            ends.append(to_member)
            to_member.write(first)
            await self._both_ways(caller, member, (reader, to_member), (there, writer))
        except (OSError, ProtocolError, asyncio.CancelledError):
            pass  # the connection is over for both ends, as after a reset
        finally:
            del self._open[task]
            for end in ends:
                end.transport.abort()

    async def _both_ways(
        self,
        caller: int,
        member: int,
        inward: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outward: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass bytes until one direction ends."""
        pumps = [
            asyncio.ensure_future(self._pump(caller, member, *inward)),
            asyncio.ensure_future(self._pump(member, caller, *outward)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        source: int,
        target: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            piece = await reader.read(PIECE_BYTES)
            await self._passage(source, target)
            if not piece:
                with contextlib.suppress(OSError):
                    await writer.drain()
                return
            writer.write(piece)
            await writer.drain()

    async def _passage(self, source: int, target: int) -> None:
        """Wait until bytes may pass from one place to another."""
        delay_s = self._delays_s.get((source, target), 0.0)
        if delay_s:
            await asyncio.sleep(delay_s)
        while (cut := self._cuts.get((source, target))) is not None:
            await cut.wait()

    async def _find_caller(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Who calls, by the first bytes, and these bytes."""
        first = b""
        splitter: FrameSplitter | None = None
        while True:
            piece = await reader.read(PIECE_BYTES)
            if not piece:
                raise ConnectionResetError("closed before the greeting")
            first += piece
            if splitter is None and len(first) >= len(PRELUDE):
                if not first.startswith(PRELUDE):
                    return CLIENT, first
                splitter, piece = FrameSplitter(), first[len(PRELUDE) :]
            frames = splitter.feed(piece) if splitter is not None else []
            if frames:
                port = decode_greeting(frames[0][1]).sender.address.port
                for number, place in self._places.items():
                    if place.port == port:
                        return number, first
                return CLIENT, first
