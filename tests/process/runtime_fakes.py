"""Stand-ins for the node and the engine, so that sockets can be tested without a member."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import uvloop

from whimbrel.config import RuntimeSettings
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.core.stimuli import Stimulus
from whimbrel.runtime.clients import Acceptor, EngineScope
from whimbrel.runtime.links import LinkHost, Links
from whimbrel.runtime.occupation import Occupation
from whimbrel.serving import outputs
from whimbrel.wire.links import Greeting, encode_greeting

PATIENCE_S = 10.0

assert outputs.BULK == "data"


class FakeEngine:
    """Writes down what a shell tells it."""

    client_backlog_limit_bytes = 1 << 20

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.received: dict[int, bytes] = {}
        self.stimuli: list[Stimulus] = []
        self.frames: list[tuple[MemberId, int, bytes]] = []
        self.unfinished: list[tuple[int, bool]] = []
        self.raises: BaseException | None = None

    def handle(self, stimulus: Stimulus, now_us: int, wall_ms: int) -> None:
        self.stimuli.append(stimulus)

    def peer_frame(
        self, peer: MemberId, kind: int, payload: bytes, now_us: int, wall_ms: int
    ) -> None:
        if self.raises is not None:
            raise self.raises
        self.frames.append((peer, kind, payload))

    def client_opened(self, conn: int, remote: str) -> None:
        self.calls.append(("opened", conn, remote))
        self.received[conn] = b""

    def client_bytes(self, conn: int, data: bytes, now_us: int, wall_ms: int) -> None:
        if self.raises is not None:
            raise self.raises
        self.received[conn] += data

    def client_closed(self, conn: int) -> None:
        self.calls.append(("closed", conn))

    def client_paused(self, conn: int) -> None:
        self.calls.append(("paused", conn))

    def client_resumed(self, conn: int, now_us: int, wall_ms: int) -> None:
        self.calls.append(("resumed", conn))

    def unfinished_clients(self) -> list[tuple[int, bool]]:
        return self.unfinished


class FakeNode:
    """One end of links and a data port, with a fake engine."""

    def __init__(self, name: str = "m", cluster: str = "dev", **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = RuntimeSettings(**settings)
        self.cluster_name = cluster
        self.fake = FakeEngine()
        self.engine_scope = EngineScope(self.crashed, self.flush_soon)
        self.counters: dict[str, int] = {}
        self.hints: list[tuple[str, dict[str, str | int]]] = []
        self.crashes: list[BaseException] = []
        self.flushes = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.server: asyncio.AbstractServer | None = None
        self.info = MemberInfo(MemberId(name), Address("127.0.0.1", 1))
        self.links = Links(
            LinkHost(
                self.loop, self.settings, self.greeting, self.stimulate, self.count, self.spawn
            )
        )
        self.occupation = Occupation()
        self.acceptor = Acceptor(self, self.loop)

    @property
    def engine(self) -> Any:
        return cast("Any", self.fake)

    async def listen(self, port: int = 0) -> Address:
        self.server = await self.loop.create_server(self.acceptor.new_connection, "127.0.0.1", port)
        address = Address("127.0.0.1", int(self.server.sockets[0].getsockname()[1]))
        self.info = MemberInfo(self.info.id, address)
        return address

    async def stop_listening(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        self.acceptor.close_all(at_once=True)
        await asyncio.sleep(0)

    async def end(self) -> None:
        self.links.close_all(at_once=True)
        await self.stop_listening()
        self.acceptor.end()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in later turns of the loop

    def crashed(self, problem: BaseException) -> None:
        self.crashes.append(problem)

    def flush_soon(self) -> None:
        self.flushes += 1

    def greeting(self, channel: str) -> bytes:
        return encode_greeting(Greeting(self.cluster_name, self.info, channel))

    def count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def hint(self, kind: str, **fields: str | int) -> None:
        self.hints.append((kind, fields))

    def stimulate(self, stimulus: Stimulus) -> None:
        self.fake.stimuli.append(stimulus)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.append(task)
        return task


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; a bounded number of turns of the loop."""
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"waited in vain: {what}")
        await asyncio.sleep(0.002)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run one asynchronous scenario on the standard loop and on the faster one."""

    async def main() -> None:
        await scenario()

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
