"""A member inside somebody else's asyncio program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from whimbrel.config import Config, Flag, load
from whimbrel.core.ids import Address, MemberId
from whimbrel.errors import GridError, OperationError
from whimbrel.runtime.node import AdminStarter, Node

START_TIMEOUT_S = 60.0


class Member:
    """A running member; made with ``Member.start``, ended with ``leave`` or ``stop``.

    Example:
        ``async with await Member.start({"cluster.name": "dev"}) as member: ...`` leaves the
        cluster gracefully at the end of the block.
    """

    def __init__(self, node: Node) -> None:
        """Use ``Member.start``."""
        self.node = node

    @classmethod
    async def start(
        cls,
        config: Config | Mapping[str, object] | None = None,
        *,
        admin: AdminStarter | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Member:
        """Start a member in the running loop and wait until it serves.

        Args:
            config: A loaded configuration, or values by key (``{"partition.count": 31}``);
                without ports the first free ones are taken.
            admin: Starts an admin server; without one the member has none.
            timeout_s: Longest wait for the cluster.

        Raises:
            ConfigError: The configuration is refused, or a port is in use.
            OperationError: The member has not joined in time, or gave up.
        """
        if config is None or isinstance(config, Mapping):
            flags = [Flag(key, value, key) for key, value in (config or {}).items()]
            config = load(flags=flags)
        node = Node(config, admin=admin)
        await node.start()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(node.joined)
        except TimeoutError:
            await node.close()
            raise OperationError(f"no cluster was joined within {timeout_s:g} s") from None
        except BaseException:
            await node.close()
            raise
        return cls(node)

    @property
    def id(self) -> MemberId:
        """The member's uuid; a new one after it was expelled."""
        return self.node.member_id

    @property
    def address(self) -> Address:
        """Where members and clients reach it."""
        return self.node.address

    async def ask(
        self, what: str, arguments: Mapping[str, object] | None = None, *, master: bool = False
    ) -> Any:
        """The JSON document this member, or the master, gives to a question.

        Raises:
            OperationError: It answered with an error, or not in time.
        """
        return await self.node.ask(None if master else self.id, what, arguments)

    async def promote_local_lite_member(self) -> None:
        """Make this lite member a data member; done when the list says so (GCM-15).

        Raises:
            IllegalStateError: It holds data already, migrations are not allowed, or the master
                has changed meanwhile: then the call may be repeated.
            UnsupportedError: The cluster is too old for it.
            UsageError: The master does not know this member.
        """
        await self._change_role(lite=False)

    async def demote_local_data_member(self) -> None:
        """Make this data member lite; done when the others hold all it held, and the list says so.

        Raises:
            IllegalStateError: It is lite already, nobody else could hold the data, or migrations
                are not allowed.
            UnsupportedError: The cluster is too old for it.
        """
        await self._change_role(lite=True)

    async def _change_role(self, lite: bool) -> None:
        ended: asyncio.Future[GridError | None] = asyncio.get_running_loop().create_future()

        def then(error: GridError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        self.node.want_role(lite, then)
        await asyncio.wait((ended, self.node.stopped), return_when=asyncio.FIRST_COMPLETED)
        error = ended.result() if ended.done() else OperationError("this member has ended")
        if error is not None:
            raise error

    async def leave(self, timeout_s: float | None = None) -> None:
        """Hand over all data, leave the cluster and close everything.

        Raises:
            OperationError: It ended in another way.
            TimeoutError: It has not left in time; it still runs and goes on trying.
        """
        self.node.leave()
        async with asyncio.timeout(timeout_s):
            stopped = await asyncio.shield(self.node.stopped)
        await self.node.close()
        if stopped.exit_status != 0:
            raise OperationError(stopped.reason)

    async def stop(self) -> None:
        """End at once without handing over data; to the cluster it is a crash."""
        self.node.stop_now("stopped by the program")
        await self.node.close()

    async def wait_stopped(self) -> str:
        """Wait until the member ends by itself; returns the reason."""
        return (await asyncio.shield(self.node.stopped)).reason

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is None and not self.node.stopped.done():
            await self.leave()
        else:
            await self.stop()
