"""Members inside a program: the Python face of the shell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.process.runtime_fakes import until

import whimbrel
from whimbrel.errors import ConfigError, OperationError

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
