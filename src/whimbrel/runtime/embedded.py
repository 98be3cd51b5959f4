"""A member inside somebody else's asyncio program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from whimbrel.config import Config, Flag, load
from whimbrel.core.events import (
    MemberAdded,
    MemberChanged,
    MemberRemoved,
    MembershipEvent,
    MigrationEvent,
    MigrationFinished,
    MigrationStarted,
    PartitionLost,
    ReplicaMigrated,
    StateChanged,
)
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.safety import Answer, master_word, member_answer, unsafe_because
from whimbrel.errors import GridError, OperationError
from whimbrel.runtime.node import AdminStarter, Node

START_TIMEOUT_S = 60.0
SAFE_POLL_S = 0.2
"""Pause between two looks at a member that is to become safe."""


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
        """Start a member in the running loop and wait until it serves and has its replicas.

        For replicas it waits ``member.ready_wait_s`` at most.

        Args:
            config: A loaded configuration, or values by key (``{"partition.count": 31}``);
                without ports the first free ones are taken.
            admin: Starts an admin server; without one the member has none.
            timeout_s: Longest wait for the cluster.

        Raises:
            ConfigError: The configuration is refused, or a port is in use.
            DataDirectoryError: What lies in the data directory is damaged or another cluster's.
            OperationError: The member has not joined in time, or gave up.
        """
        if config is None or isinstance(config, Mapping):
            flags = [Flag(key, value, key) for key, value in (config or {}).items()]
            config = load(flags=flags)
        node = Node(config, admin=admin)
        await node.start()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(node.ready)
        except TimeoutError:
            if node.has_joined:
                return cls(node)  # only its replicas take longer
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

    # -- listening ------------------------------------------------------------------------

    def add_migration_listener(self, callback: Callable[[MigrationEvent], None]) -> int:
        """Hear of migration processes and of each replica in them, from the whole cluster.

        The callback runs on the loop's thread and must be short; what it raises is logged.
        Registered twice it hears twice. Events are best effort: when the master dies, the end
        of its process may never be told.

        Returns:
            The number for ``remove_listener``.
        """
        kinds = (MigrationStarted, MigrationFinished, ReplicaMigrated)
        return self.node.subscriptions.add(kinds, callback)

    def add_partition_lost_listener(self, callback: Callable[[PartitionLost], None]) -> int:
        """Hear of lost primaries; see ``add_migration_listener``."""
        return self.node.subscriptions.add((PartitionLost,), callback)

    def add_membership_listener(self, callback: Callable[[MembershipEvent], None]) -> int:
        """Hear of members that come, go and change sides; see ``add_migration_listener``."""
        return self.node.subscriptions.add((MemberAdded, MemberRemoved, MemberChanged), callback)

    def add_state_listener(self, callback: Callable[[StateChanged], None]) -> int:
        """Hear of changes of the cluster state; see ``add_migration_listener``."""
        return self.node.subscriptions.add((StateChanged,), callback)

    def remove_listener(self, number: int) -> bool:
        """End a registration of any kind; False when it has ended before."""
        return self.node.subscriptions.remove(number)

    # -- safety ---------------------------------------------------------------------------

    async def is_local_member_safe(self) -> bool:
        """Whether no replica of this member migrates and all it should hold are in step.

        True is about this moment only. Nothing moves and every backup is in step, which is more
        than "there is a backup".
        """
        return await self.is_member_safe(self.id)

    async def is_member_safe(self, member: MemberId) -> bool:
        """As ``is_local_member_safe``, for any member; False when it does not answer."""
        try:
            return bool((await self.node.ask(member, "readiness"))["ready"])
        except OperationError:
            return False

    async def is_cluster_safe(self) -> bool:
        """Whether the cluster is safe, by the definition of ``status`` (docs/guarantees.md)."""
        members = self.node.engine.member.ctx.members.members
        try:
            master = master_word(await self.node.ask(None, "master"))
        except OperationError:
            return False
        if not master.settled:
            return False
        documents = await asyncio.gather(
            *(self.node.ask(info.id, "safety") for info in members),
            return_exceptions=True,
        )
        answers: list[Answer] = []
        for info, document in zip(members, documents, strict=True):
            if isinstance(document, BaseException) and not isinstance(document, OperationError):
                raise document
            answers.append(member_answer(info, document))
        return not unsafe_because(master, answers)

    async def force_local_member_to_be_safe(self, timeout_s: float) -> bool:
        """Wait until this member is safe, having its backups compared meanwhile.

        Returns:
            Whether it was safe in time.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        await self.node.ask(self.id, "compare")
        while not await self.is_local_member_safe():
            left_s = end_s - loop.time()
            if left_s <= 0:
                return False
            await asyncio.sleep(min(SAFE_POLL_S, left_s))
        return True

    # -- changing sides -------------------------------------------------------------------

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
