"""Members inside a program: the Python face of the shell."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.process.runtime_fakes import until

import whimbrel
from whimbrel.core.events import (
    MemberAdded,
    MemberRemoved,
    MigrationFinished,
    PartitionLost,
    ReplicaMigrated,
)
from whimbrel.core.ids import MemberId
from whimbrel.core.safety import Safety
from whimbrel.errors import ConfigError, IllegalStateError, OperationError
from whimbrel.runtime import neighbours
from whimbrel.runtime import node as node_module

QUICK: dict[str, object] = {
    "network.port": 0,
    "partition.count": 7,
    "membership.heartbeat_interval_s": 0.2,
    "log.level": "error",
}


def test_two_members_in_one_loop() -> None:
    """Goal: start, find each other, answer questions, leave; nothing stays open.

    Method: warnings about sockets, tasks and transports that stay open fail the test.
    """

    async def scenario() -> None:
        first = await whimbrel.Member.start(QUICK)
        second = await whimbrel.Member.start({**QUICK, "network.join": str(first.address)})
        assert first.id != second.id
        assert first.node.admin_socket is None
        await until(lambda: second.node.metrics()["links_standing"] == 1, "the link")
        assert [event["kind"] for event in second.node.events if event["kind"] == "joined"]
        with pytest.raises(OperationError, match="no-such-question"):
            await second.ask("no-such-question", master=True)
        await second.leave(timeout_s=20)
        await first.stop()
        assert first.node.stopped.result().exit_status == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("wait_s", "timeout_s"), [(0.2, 60), (60, 3)])
def test_start_waits_only_so_long_for_replicas(
    monkeypatch: pytest.MonkeyPatch, wait_s: float, timeout_s: float
) -> None:
    """Goal: a member whose replicas do not come is started all the same: after its own bound, or
    after the caller's, because it has joined. Method: they are said never to have arrived.
    """
    monkeypatch.setattr(Safety, "arriving_because", lambda _self: "1 replica has not arrived")

    async def scenario() -> None:
        config = {**QUICK, "member.ready_wait_s": wait_s, "log.level": "info"}
        member = await whimbrel.Member.start(config, timeout_s=timeout_s)
        assert member.node.has_joined
        told = [event for event in member.node.events if event["kind"] == "ready_before_replicas"]
        assert len(told) == (wait_s < timeout_s)
        await member.stop()
        if wait_s > timeout_s:
            with pytest.raises(OperationError, match="stopped by the program"):
                await member.node.ready

    asyncio.run(scenario())


def test_block_leaves_at_its_end() -> None:
    """Goal: ``async with`` leaves gracefully, and stops at once after an exception."""

    async def scenario() -> None:
        async with await whimbrel.Member.start(QUICK) as member:
            node = member.node
        assert node.stopped.result().exit_status == 0
        member = await whimbrel.Member.start(QUICK)
        node = member.node
        await member.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert node.stopped.result().exit_status == 1

    asyncio.run(scenario())


def test_refusals() -> None:
    """Goal: wrong keys and taken ports are errors of the caller, with nothing left open."""

    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"partition\.count"):
            await whimbrel.Member.start({"partition.cuont": 1})
        async with await whimbrel.Member.start(QUICK) as member:
            taken: Any = member.address.port
            with pytest.raises(ConfigError, match=f"{taken} is in use"):
                await whimbrel.Member.start({**QUICK, "network.port": taken})

    asyncio.run(scenario())


def test_unknown_name_of_the_package() -> None:
    """Goal: a misspelt public name is an AttributeError like anywhere else."""
    with pytest.raises(AttributeError, match="Membre"):
        whimbrel.Membre  # noqa: B018 - the access is the test


async def is_safe_soon(member: whimbrel.Member) -> bool:
    for _ in range(100):
        if await member.is_cluster_safe():
            return True
        await asyncio.sleep(0.1)
    return False


def test_listeners_and_safety() -> None:
    """PIM-58, FN-16: callbacks hear of members and migrations on the loop's thread; twice
    registered is twice told, ending is idempotent, one that raises harms nobody; the safety
    calls agree with what happens.
    """

    async def scenario() -> None:
        first = await whimbrel.Member.start(QUICK)
        thread = threading.get_ident()
        heard: list[object] = []
        threads: list[int] = []

        def hear(event: object) -> None:
            heard.append(event)
            threads.append(threading.get_ident())

        def raises(event: object) -> None:
            raise ZeroDivisionError(event)

        first.add_migration_listener(raises)
        first.add_migration_listener(hear)
        first.add_state_listener(hear)
        first.add_partition_lost_listener(hear)
        numbers = [first.add_membership_listener(hear) for _ in range(2)]
        second = await whimbrel.Member.start({**QUICK, "network.join": str(first.address)})
        await until(lambda: any(isinstance(e, MigrationFinished) for e in heard), "the end")
        added = [event for event in heard if isinstance(event, MemberAdded)]
        assert [event.member.id for event in added] == [second.id] * 2
        assert any(isinstance(event, ReplicaMigrated) for event in heard)
        assert first.node.counters["listener_errors"] > 0 and set(threads) == {thread}
        assert [first.remove_listener(numbers[0]) for _ in range(2)] == [True, False]
        for member in (first, second):
            assert await member.force_local_member_to_be_safe(20)
            assert await member.is_local_member_safe()
        assert await first.is_member_safe(second.id)
        assert await is_safe_soon(first)
        assert not await first.is_member_safe(MemberId("nobody"))
        await second.stop()
        await until(lambda: any(isinstance(e, MemberRemoved) for e in heard), "the removal")
        await until(lambda: any(isinstance(e, PartitionLost) for e in heard), "the loss")
        await first.leave(timeout_s=20)

    asyncio.run(scenario())


def test_a_lite_member_is_promoted_and_demoted() -> None:
    """GCM-15, GCM-17, GCM-23: the call ends when the list says so; errors have their types."""

    async def scenario() -> None:
        first = await whimbrel.Member.start(QUICK)
        join = {**QUICK, "network.join": str(first.address), "member.lite": True}
        second = await whimbrel.Member.start(join)
        with pytest.raises(IllegalStateError, match="data member already"):
            await first.promote_local_lite_member()
        with pytest.raises(IllegalStateError, match="no other data member"):
            await first.demote_local_data_member()
        assert second.node.engine.member.ctx.me.lite
        await second.promote_local_lite_member()
        assert [row["lite"] for row in await second.ask("members")] == [False, False]
        await first.demote_local_data_member()
        rows = (await second.ask("partitions"))["rows"]
        assert {member for row in rows for member in row["replicas"]} == {second.id}
        await first.leave(timeout_s=20)
        with pytest.raises(IllegalStateError, match="ended"):
            await first.promote_local_lite_member()
        await second.leave(timeout_s=20)

    asyncio.run(scenario())


def test_an_admin_server_that_ended_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an end that nobody ordered is told, and the port is served again, however long
    somebody else has it meanwhile. Method: the server closes the port and says that it ended.
    """
    monkeypatch.setattr(node_module, "ADMIN_PAUSE_S", 0.01)
    sockets: list[int] = []

    async def serve(node: node_module.Node) -> Callable[[], Awaitable[None]]:
        assert node.admin_socket is not None
        sockets.append(node.admin_socket.getsockname()[1])

        async def stop() -> None:
            """Nothing to close: the node closes its ports."""

        return stop

    async def scenario() -> None:
        member = await whimbrel.Member.start(QUICK, admin=serve)
        node, port = member.node, member.node.ports.admin_port
        await until(lambda: sockets, "the first start")
        assert node.admin_socket is not None
        node.admin_socket.close()
        with socket.create_server(("127.0.0.1", port)):
            node.admin_ended("the test")
            kinds = [event["kind"] for event in node.events]
            assert kinds.count("admin_ended") == 1
            await until(
                lambda: [e for e in node.events if e["kind"] == "admin_failed"], "a failure told"
            )
            assert node.ports.admin_port == port
        await until(lambda: len(sockets) == 2, "the second start")
        assert sockets == [port, port]
        await member.stop()

    asyncio.run(scenario())


def told(member: whimbrel.Member, kind: str) -> list[dict[str, object]]:
    return [event for event in member.node.events if event["kind"] == kind]


def test_a_lone_founder_hears_of_its_namesakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: two members of one name that nobody told to join stay apart, and the second says which
    cluster it could have joined and how; where there is none it says that it was told nothing.

    Method: default ports at which a member of the name, one of another name and a stranger that
    says nothing listen, and one where nobody does.
    """
    monkeypatch.setattr(neighbours, "GREETING_TIMEOUT_S", 0.3)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports = [silent.getsockname()[1], free.getsockname()[1]]
            monkeypatch.setattr(neighbours, "NEIGHBOUR_PORTS", ports)
            first = await whimbrel.Member.start(QUICK)
            await until(lambda: told(first, "founded_alone"), "a word about no --join")
            assert f"--join {first.address}" in str(told(first, "founded_alone")[0]["text"])
            other = await whimbrel.Member.start({**QUICK, "cluster.name": "another"})
            ports += [first.address.port, other.address.port]
            second = await whimbrel.Member.start(QUICK)
            await until(lambda: told(second, "founded_beside"), "a word about the namesake")
            (hint,) = told(second, "founded_beside")
            assert hint["members"] == str(first.address)
            assert hint["level"] == "warning"
            assert f"--join {first.address} " in str(hint["text"])
            assert not told(second, "founded_alone")
            for member in (first, second, other):
                assert len(await member.ask("members")) == 1
                assert not told(member, "expelled")
            third = await whimbrel.Member.start({**QUICK, "network.join": str(first.address)})
            assert not told(third, "founded_beside") and not told(third, "founded_alone")
            for member in (third, second, other, first):
                await member.stop()

    asyncio.run(scenario())
