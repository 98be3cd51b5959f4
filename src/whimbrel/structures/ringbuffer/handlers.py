"""Requests to ring buffers: each goes to the one partition that a ring buffer lies in."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import UnsupportedError
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.operations import Effect, Operation, RunInPartition, Scope, rows_of
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, ForwardOrigin, Origin
from whimbrel.serving.structure_handlers import StructureHandlers
from whimbrel.serving.waits import FOR_EVER_MS
from whimbrel.structures.ringbuffer.service import RingbufferService, awaited
from whimbrel.structures.ringbuffer.settings import NAME
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage


class RingbufferHandlers(StructureHandlers):
    """The ring buffer service's requests, as clients see them."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no ring buffer in use."""
        super().__init__(server, kind)
        self._rings = server.member.service(RingbufferService)

    def operations(self) -> list[Operation[Any]]:
        """See ``StructureHandlers.operations``."""
        return [
            *rows_of("Ringbuffer.", NAME, Scope.PARTITION, Effect.READ, self._reads()),
            *rows_of("Ringbuffer.", NAME, Scope.PARTITION, Effect.WRITE, self._writes()),
        ]

    def _reads(self) -> dict[str, RunInPartition]:
        rings = self._rings
        return {
            "size": self._reading(lambda p, n, f: {"response": rings.size(p, n)}),
            "tailSequence": self._reading(lambda p, n, f: {"response": rings.bounds(p, n)[1] - 1}),
            "headSequence": self._reading(lambda p, n, f: {"response": rings.bounds(p, n)[0]}),
            "capacity": self._reading(lambda p, n, f: {"response": rings.capacity(n)}),
            "remainingCapacity": self._reading(
                lambda p, n, f: {"response": rings.remaining_capacity(p, n)}
            ),
            "readOne": self._read_one,
            "readMany": self._read_many,
        }

    def _writes(self) -> dict[str, RunInPartition]:
        rings = self._rings
        return {
            "add": self._writing(
                lambda p, n, f, r: rings.add(p, n, [f["value"]], f["overflow_policy"], r)
            ),
            "addAll": self._writing(
                lambda p, n, f, r: rings.add(p, n, f["value_list"], f["overflow_policy"], r)
            ),
        }

    def _read_one(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        _, fields = decode_request(message)
        namespace, sequence = self._named(fields["name"]), fields["sequence"]
        item = self._rings.read_one(partition, namespace, sequence)
        if item is None:
            self._wait(origin, message, partition, namespace, awaited(sequence))
        else:
            self._server.deliver(origin, answer(message, response=item))

    def _read_many(self, origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
        _, fields = decode_request(message)
        if fields["filter"] is not None:
            raise UnsupportedError(
                "Ringbuffer.readMany with a filter is not offered by this cluster: it has no "
                "filter functions"
            )
        namespace = self._named(fields["name"])
        found = self._rings.read_many(
            partition,
            namespace,
            fields["start_sequence"],
            fields["min_count"],
            fields["max_count"],
            is_again=_has_waited(origin, message),
        )
        if isinstance(found, bytes):
            self._wait(origin, message, partition, namespace, found)
            return
        response = answer(
            message,
            read_count=found.next - found.first,
            items=found.values,
            item_seqs=found.sequences,
            next_seq=found.next,
        )
        self._server.deliver(origin, response)

    def _wait(
        self,
        origin: Origin,
        message: RawMessage,
        partition: PartitionReplica,
        namespace: Namespace,
        key: bytes,
    ) -> None:
        """Read again when that is there; no read has a time-out."""
        later = self._server.waits.later
        later(origin, message, partition, namespace, key, FOR_EVER_MS, b"")


def _has_waited(origin: Origin, message: RawMessage) -> bool:
    """Whether this is a further attempt of a call that waits, here or at another member."""
    if isinstance(origin, ForwardOrigin):
        return origin.place is not None
    return isinstance(origin, Connection) and message[5] in origin.waiting
