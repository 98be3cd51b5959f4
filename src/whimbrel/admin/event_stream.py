"""The cluster's events as a stream of server-sent events (``text/event-stream``).

Each reader has a bounded queue. One that does not read in time is told ``lost`` with the number
of events it missed at least, and its stream ends; it may come again. Silence is filled with
comments, so that both ends notice a dead connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from whimbrel.core.events import (
    GridEvent,
    MemberAdded,
    MemberChanged,
    MemberRemoved,
    MigrationFinished,
    MigrationStarted,
    PartitionLost,
    ReplicaMigrated,
    StateChanged,
)
from whimbrel.errors import OverloadedError
from whimbrel.runtime.node import Node

STREAMS_MAX = 50
"""Readers of one member at once; more are refused."""
QUEUE_EVENTS_MAX = 10_000
"""Events that wait for one reader; beyond that it is cut."""
HEARTBEAT_S = 5.0
BATCH_EVENTS_MAX = 500
"""Events written at once."""

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]

NAMES: dict[type[GridEvent], str] = {
    MigrationStarted: "migration_started",
    MigrationFinished: "migration_finished",
    ReplicaMigrated: "replica_migrated",
    PartitionLost: "partition_lost",
    MemberAdded: "member_added",
    MemberRemoved: "member_removed",
    MemberChanged: "member_changed",
    StateChanged: "state_changed",
}

_encode = msgspec.json.Encoder().encode


def document_of(event: GridEvent) -> dict[str, Any]:
    """The JSON document of an event; ``kind`` is its name."""
    found: dict[str, Any] = {"kind": NAMES[type(event)]}
    match event:
        case MigrationStarted() | MigrationFinished():
            found |= _figures(event)
        case ReplicaMigrated():
            found |= {
                "partition": event.partition_id,
                "replica_index": event.replica_index,
                "source": event.source,
                "destination": event.destination,
                "success": event.success,
                "elapsed_ms": event.elapsed_ms,
                "process": _figures(event),
            }
        case PartitionLost():
            found |= {
                "partition": event.partition_id,
                "lost_backup_count": event.lost_backup_count,
                "source": event.source,
                "version": event.version,
            }
        case MemberAdded() | MemberRemoved() | MemberChanged():
            info = event.member
            found |= {"uuid": info.id, "address": str(info.address), "lite": info.lite}
        case StateChanged():
            found |= {"before": str(event.before), "state": str(event.state)}
    return found


def _figures(event: MigrationStarted | MigrationFinished | ReplicaMigrated) -> dict[str, Any]:
    state = event.state
    return {
        "started_ms": state.started_ms,
        "planned": state.planned,
        "completed": state.completed,
        "failed": state.failed,
        "remaining": state.remaining,
        "elapsed_ms": state.elapsed_ms,
    }


def framed(name: str, content: object) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(content) + b"\n\n"


class Reader:
    """The queue of one reader."""

    def __init__(self) -> None:
        self.waiting: deque[GridEvent] = deque()
        self.lost = 0
        self.is_gone = False
        self.arrived = asyncio.Event()

    def take(self, event: GridEvent) -> None:
        """Queue an event, or count it as lost."""
        if self.lost or len(self.waiting) >= QUEUE_EVENTS_MAX:
            self.lost += 1
        else:
            self.waiting.append(event)
        self.arrived.set()

    def end(self) -> None:
        """The connection is gone."""
        self.is_gone = True
        self.arrived.set()

    async def next_bytes(self) -> bytes:
        """What is to be written next: events, or a comment after a while of silence."""
        if not (self.waiting or self.lost or self.is_gone):
            self.arrived.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.arrived.wait()
            except TimeoutError:
                return b": still here\n\n"
        batch: list[bytes] = []
        while self.waiting and len(batch) < BATCH_EVENTS_MAX:
            event = self.waiting.popleft()
            batch.append(framed(NAMES[type(event)], document_of(event)))
        return b"".join(batch)


class EventStreams:
    """The streams of one member."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._count = 0

    def open(self) -> Response:
        """The answer to a new reader.

        Raises:
            OverloadedError: There are too many.
        """
        if self._count >= STREAMS_MAX:
            raise OverloadedError(f"a member has at most {STREAMS_MAX} readers of events at once")
        return _Stream(self)

    async def serve(self, receive: Receive, send: Send) -> None:
        """Write to one reader until it is gone, or cut."""
        reader = Reader()
        number = self._node.subscriptions.add((GridEvent,), reader.take)
        self._count += 1
        watch = asyncio.ensure_future(_disconnected(receive))
        watch.add_done_callback(lambda _: reader.end())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _write(send, b": events from here on\n\n")
            while not reader.is_gone:
                await _write(send, await reader.next_bytes())
                if reader.lost and not reader.waiting:
                    await _write(send, framed("lost", {"kind": "lost", "events": reader.lost}))
                    break
            await _write(send, b"", more=False)
        finally:
            watch.cancel()
            self._count -= 1
            self._node.subscriptions.remove(number)


class _Stream(Response):
    """An answer that writes itself."""

    def __init__(self, streams: EventStreams) -> None:
        super().__init__(media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the reader."""
        await self._streams.serve(receive, send)


async def _disconnected(receive: Receive) -> None:
    """Ends when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
