"""The event stream on a real socket: events as they happen, silence, readers that do not read."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.process.runtime_fakes import until
from tests.process.test_admin_server import head_of, lone, rest_of, served

from whimbrel.admin import event_stream as stream_module
from whimbrel.admin import server as server_module
from whimbrel.core.events import (
    MemberAdded,
    MigrationStarted,
    MigrationState,
    PartitionLost,
    ReplicaMigrated,
    StateChanged,
)
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.model import ClusterState

STREAM = b"GET /api/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STATE = MigrationState(7, 3, 1, 1, 20)


async def lines_of(reader: asyncio.StreamReader, prefix: bytes, count: int) -> list[bytes]:
    """The next lines of the stream that begin so."""
    found: list[bytes] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            line = await reader.readline()
            assert line, "the stream ended"
            if line.startswith(prefix):
                found.append(line.removeprefix(prefix).strip())
    return found


def test_events_arrive_as_they_happen() -> None:
    """PIM-58: each event is one document with its kind; the reader's registration ends with it."""

    async def scenario() -> None:
        fake = lone()
        me = fake.engine.member.ctx.me
        async with served(fake) as connect:
            reader, writer = await connect()
            writer.write(STREAM)
            head = await head_of(reader)
            assert b"200 OK" in head and b"text/event-stream" in head
            await lines_of(reader, b": events", 1)
            lost = PartitionLost(PartitionId(4), 0, me.id)
            moved = ReplicaMigrated(
                STATE, PartitionId(4), ReplicaIndex(1), None, MemberId("b"), True, 5
            )
            state = StateChanged(ClusterState.ACTIVE, ClusterState.FROZEN)
            fake.subscriptions.tell([MigrationStarted(STATE), moved, lost, MemberAdded(me), state])
            found = [json.loads(line) for line in await lines_of(reader, b"data: ", 5)]
            kinds = [event["kind"] for event in found]
            assert kinds == [
                "migration_started",
                "replica_migrated",
                "partition_lost",
                "member_added",
                "state_changed",
            ]
            assert (found[0]["planned"], found[0]["remaining"]) == (3, 1)
            assert (found[1]["source"], found[1]["replica_index"]) == (None, 1)
            assert found[2]["lost_backup_count"] == 0
            assert found[3]["uuid"] == me.id and found[4]["state"] == "FROZEN"
            writer.close()
            await until(lambda: not fake.subscriptions.any, "the end of the registration")

    asyncio.run(scenario())


def test_a_silent_stream_outlives_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a stream without events is kept by comments although no new request comes; other
    silent connections are cut as before. Method: short clocks.
    """
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.05)

    async def scenario() -> None:
        fake = lone()
        async with served(fake) as connect:
            reader, writer = await connect()
            idle, _ = await connect()
            writer.write(STREAM)
            await head_of(reader)
            await lines_of(reader, b": still here", 12)
            assert await rest_of(idle) == b""

    asyncio.run(scenario())


def test_a_slow_reader_is_told_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the queue of a reader is bounded; it hears how many events it missed and its stream
    ends. Method: a queue of three and eight events at once.
    """
    monkeypatch.setattr(stream_module, "QUEUE_EVENTS_MAX", 3)

    async def scenario() -> None:
        fake = lone()
        async with served(fake) as connect:
            reader, writer = await connect()
            writer.write(STREAM)
            await head_of(reader)
            await lines_of(reader, b": events", 1)
            lost = PartitionLost(PartitionId(4), 0, fake.engine.member.ctx.id)
            fake.subscriptions.tell([lost] * 8)
            page = await rest_of(reader)
            assert page.count(b"partition_lost") == 2 * 3
            assert b'event: lost\ndata: {"kind":"lost","events":5}' in page
            assert not fake.subscriptions.any

    asyncio.run(scenario())


def test_a_reader_that_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a reader that has stopped holds its connection and memory for two clocks at most.

    Method: it asks and reads nothing while events fill every buffer on the way.
    """
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        fake = lone()
        async with served(fake) as connect:
            _, writer = await connect()
            writer.write(STREAM)
            await until(lambda: fake.subscriptions.any, "the registration")
            lost = PartitionLost(PartitionId(4), 0, fake.engine.member.ctx.id)

            def is_cut() -> bool:
                fake.subscriptions.tell([lost] * 9_000)
                return not fake.subscriptions.any

            await until(is_cut, "the cut")
            assert not fake.subscriptions.any

    asyncio.run(scenario())


def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one reader too many is refused with words."""
    monkeypatch.setattr(stream_module, "STREAMS_MAX", 0)

    async def scenario() -> None:
        fake = lone()
        async with served(fake) as connect:
            reader, writer = await connect()
            writer.write(STREAM)
            assert b"503" in await head_of(reader)

    asyncio.run(scenario())
