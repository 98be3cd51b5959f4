"""Requests to queues: each goes to the one partition that a queue lies in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whimbrel.core.ids import Attempt, Namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.handlers_events import register, remover
from whimbrel.serving.listeners import Listener
from whimbrel.serving.operations import (
    Effect,
    Operation,
    RunInPartition,
    RunOnConnection,
    Scope,
    rows_of,
)
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, Origin, Request
from whimbrel.serving.structure_handlers import StructureHandlers
from whimbrel.serving.waits import FOR_EVER_MS
from whimbrel.structures.queue.listening import ADD_LISTENER, ENCODERS
from whimbrel.structures.queue.service import PUT, TAKE, QueueService
from whimbrel.structures.queue.settings import NAME
from whimbrel.wire.codec import decode_request
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import RawMessage

Try = Callable[[PartitionReplica, Namespace, Fields, PendingReply, Attempt | None], object]
"""A write that comes to something or has had no effect."""


class QueueHandlers(StructureHandlers):
    """The queue service's requests, as clients see them."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no queue in use."""
        super().__init__(server, kind)
        self._queues = server.member.service(QueueService)

    def operations(self) -> list[Operation[Any]]:
        """See ``StructureHandlers.operations``."""
        listening: dict[str, RunOnConnection] = {
            ADD_LISTENER: self._listen,
            "Queue.removeListener": remover(self._server),
        }
        return [
            *rows_of("Queue.", NAME, Scope.PARTITION, Effect.READ, self._reads()),
            *rows_of("Queue.", NAME, Scope.PARTITION, Effect.WRITE, self._writes()),
            *self._waiting(),
            *rows_of("", NAME, Scope.CONNECTION, Effect.NEUTRAL, listening),
        ]

    def _listen(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        namespace, encode = self._named(fields["name"]), ENCODERS[fields["include_value"]]
        local_only = fields["local_only"]
        listener = Listener(connection, message[5], namespace, encode, local_only)
        register(self._server, listener, message)

    def _reads(self) -> dict[str, RunInPartition]:
        queues = self._queues

        def contains(p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
            return {"response": queues.contains_all(p, n, [f["value"]])}

        def contains_all(p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
            return {"response": queues.contains_all(p, n, f["data_list"])}

        return {
            "size": self._reading(lambda p, n, f: {"response": queues.size(p, n)}),
            "isEmpty": self._reading(lambda p, n, f: {"response": not queues.size(p, n)}),
            "remainingCapacity": self._reading(
                lambda p, n, f: {"response": queues.remaining_capacity(p, n)}
            ),
            "peek": self._reading(lambda p, n, f: {"response": queues.peek(p, n)}),
            "iterator": self._reading(lambda p, n, f: {"response": queues.values(p, n)}),
            "contains": self._reading(contains),
            "containsAll": self._reading(contains_all),
        }

    def _writes(self) -> dict[str, RunInPartition]:
        queues = self._queues
        return {
            "addAll": self._writing(lambda p, n, f, r: queues.offer(p, n, f["data_list"], r)),
            "remove": self._writing(lambda p, n, f, r: queues.remove(p, n, f["value"], r)),
            "compareAndRemoveAll": self._writing(
                lambda p, n, f, r: queues.remove_all(p, n, f["data_list"], r)
            ),
            "compareAndRetainAll": self._writing(
                lambda p, n, f, r: queues.remove_all(p, n, f["data_list"], r, but=True)
            ),
            "drainTo": self._writing(lambda p, n, f, r: queues.drain(p, n, -1, r)),
            "drainToMaxSize": self._writing(
                lambda p, n, f, r: queues.drain(p, n, f["max_size"], r)
            ),
            "clear": self._writing(lambda p, n, f, r: queues.clear(p, n, r), is_silent=True),
        }

    def _waiting(self) -> list[Operation[RunInPartition]]:
        """The rows of calls that may wait, whose attempts are recognised."""
        queues = self._queues

        def put(
            p: PartitionReplica, n: Namespace, f: Fields, r: PendingReply, a: Attempt | None
        ) -> bool:
            return queues.offer(p, n, [f["value"]], r, a)

        def take(
            p: PartitionReplica, n: Namespace, _f: Fields, r: PendingReply, a: Attempt | None
        ) -> bytes | None:
            return queues.poll(p, n, r, a)

        return [
            self._row("offer", put, PUT),
            self._row("put", put, PUT, is_silent=True),
            self._row("poll", take, TAKE),
            self._row("take", take, TAKE),
        ]

    def _row(
        self, method: str, run: Try, awaited: bytes, *, is_silent: bool = False
    ) -> Operation[RunInPartition]:
        """A write that waits for ``awaited`` when it comes to nothing, as long as it says."""

        def attempt(
            origin: Origin,
            partition: PartitionReplica,
            message: RawMessage,
            request: Request | None = None,
        ) -> None:
            _, fields = decode_request(message)
            namespace = self._named(fields["name"])
            self._use(namespace)
            reply = self._begin(origin, message)
            name = None if request is None else request.attempt
            result = run(partition, namespace, fields, reply, name)
            response = answer(message, **({} if is_silent else {"response": result}))
            timeout_ms = fields.get("timeout_millis", FOR_EVER_MS)
            if result or ("timeout_millis" in fields and timeout_ms <= 0):
                self._finish(origin, message, reply, response)
            else:
                self._server.waits.later(
                    origin, message, partition, namespace, awaited, timeout_ms, response, request
                )

        def recognise(request: Request, partition: PartitionReplica, message: RawMessage) -> None:
            attempt(request.origin, partition, message, request)

        row = (f"Queue.{method}", NAME, Scope.PARTITION, Effect.WRITE)
        return Operation(*row, attempt, recognise)
