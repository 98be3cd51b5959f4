"""What the handlers of all kinds of structures share: names, registration, replies, shares.

Handlers turn a request's bytes into calls of their kind's service and results into responses. What
is here is the same for every kind. The subclass gives the rows of its operations; the short cuts
of the few requests that make up nearly all traffic use the attributes of this class directly.

A write is answered when its synchronous backups have it. Where the settings say so, a backup-aware
client that has its backup listener on this connection is answered at once with the number of
acknowledgements it will get (docs/design/0001, decision 7); for everybody else we wait ourselves.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from whimbrel.core.ids import Namespace, namespace_of, split_namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import OverloadedError, ProtocolError
from whimbrel.serving.handlers_client import answer, check_name
from whimbrel.serving.operations import (
    Effect,
    Operation,
    RunInPartition,
    RunOnConnection,
    RunShare,
    Scope,
)
from whimbrel.serving.scatter import Gather
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, Origin
from whimbrel.wire.codec import decode_request
from whimbrel.wire.fast_codec import with_backup_acks
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import BACKUP_AWARE, RawMessage

NAMES_CACHED_MAX = 10_000
"""Names of a kind's structures kept decoded; the cache starts again beyond that."""

_ACK_TO = struct.Struct("<16sq")
"""Where backups send their acknowledgement: client uuid and correlation id of the call."""

Read = Callable[[PartitionReplica, Namespace, Fields], dict[str, Any]]
"""Makes the fields of the response."""
Write = Callable[[PartitionReplica, Namespace, Fields, PendingReply], object]
"""Makes the one field of the response, if it has one."""
Make = Callable[[Namespace, Gather], object]
"""Makes the field of a response of what was gathered; None for none."""
WholeCall = tuple[str, str, str, Make]
"""A request to a whole structure: its method, the share of members that it asks for, the field that
goes with the share ("" for none), and what makes its response."""


class StructureHandlers(ABC):
    """The requests to structures of one kind, as clients see them."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no structure in use."""
        self._server = server
        self._kind = kind
        self._registry = server.member.registry
        self._aware_flag = BACKUP_AWARE if server.ctx.settings.backup_acks_to_client else 0
        """The flag of requests whose client counts acknowledgements itself; 0 where nobody does."""
        self._namespaces: dict[bytes, Namespace] = {}
        """By the bytes of the name."""
        self._used: dict[Namespace, None] = {}
        """Those that every member knows, or is being told of."""

    @abstractmethod
    def operations(self) -> list[Operation[Any]]:
        """Every request of this kind that is offered, and the shares of members."""

    # -- names ----------------------------------------------------------------------------

    def _namespace(self, raw: bytes) -> Namespace:
        """The structure with this name; decoded once."""
        namespace = self._namespaces.get(raw)
        if namespace is None:
            try:
                name = raw.decode()
            except UnicodeDecodeError as error:
                text = f"the name of a {self._kind.name} is not UTF-8"
                raise ProtocolError(text, reason="name") from error
            namespace = self._named(name)
            if len(self._namespaces) >= NAMES_CACHED_MAX:
                self._namespaces.clear()
            self._namespaces[raw] = namespace
        return namespace

    def _named(self, name: str) -> Namespace:
        """The structure with this name.

        Raises:
            UsageError: It is no name.
        """
        check_name(name)
        return namespace_of(self._kind.name, name)

    def _use(self, namespace: Namespace) -> None:
        """A structure is written: see to it that every member knows that it exists."""
        if namespace not in self._used:
            self._registry.ensure(self._kind, split_namespace(namespace)[1])
            self._used[namespace] = None

    def forget(self, namespace: Namespace) -> None:
        """The structure was destroyed: its next use creates it again."""
        self._used.pop(namespace, None)

    # -- replies to writes ----------------------------------------------------------------

    def _begin(self, origin: Origin, message: RawMessage) -> PendingReply:
        """Who waits for the changes of a request, and whom backups shall tell.

        They tell a backup-aware client themselves, if it listens on this connection.
        """
        reply = PendingReply(origin)
        if (
            message[7] & self._aware_flag
            and isinstance(origin, Connection)
            and origin.backup_correlation is not None
            and origin.client_id is not None
        ):
            reply.ack_to = _ACK_TO.pack(origin.client_id, message[5])
        return reply

    def _finish(
        self, origin: Origin, message: RawMessage, reply: PendingReply, response: bytes
    ) -> None:
        """Answer a write now, or when its backups are done."""
        acks = reply.remaining
        if acks <= 0:
            self._server.deliver(origin, response)
        elif reply.ack_to:
            reply.payload = message[5]
            self._server.deliver(origin, with_backup_acks(response, acks))
        else:
            reply.payload = response
            origin.in_flight += 1

    # -- requests to one partition, by the table ------------------------------------------

    def _reading(self, run: Read) -> RunInPartition:
        def read(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            _, fields = decode_request(message)
            data = answer(message, **run(partition, self._named(fields["name"]), fields))
            self._server.deliver(origin, data)

        return read

    def _writing(self, run: Write, *, is_silent: bool = False) -> RunInPartition:
        """A write, whose response has one field, or none if it is silent."""

        def write(origin: Origin, partition: PartitionReplica, message: RawMessage) -> None:
            _, fields = decode_request(message)
            namespace = self._named(fields["name"])
            self._use(namespace)
            reply = self._begin(origin, message)
            result = run(partition, namespace, fields, reply)
            values = {} if is_silent else {"response": result}
            self._finish(origin, message, reply, answer(message, **values))

        return write

    # -- requests to all partitions -------------------------------------------------------

    def _asking(self, share: str, make: Make, argument: str = "") -> RunOnConnection:
        """A request that asks all primaries for a share and makes its response of the sum.

        Args:
            share: Of this kind.
            make: Makes the response's field.
            argument: The request's field that goes with the share; empty for none.
        """
        server = self._server

        def run(connection: Connection, message: RawMessage) -> None:
            _, fields = decode_request(message)
            namespace = self._named(fields["name"])

            def finished(gather: Gather) -> None:
                connection.in_flight -= 1
                if gather.error:
                    server.fail(connection, message[5], *gather.failure())
                else:
                    found = make(namespace, gather)
                    values = {} if found is None else {"response": found}
                    server.deliver(connection, answer(message, **values))

            connection.begin_waiting()
            try:
                value = fields[argument] if argument else b""
                server.scatter.gather(share, namespace, value, finished)
            except OverloadedError:
                connection.in_flight -= 1
                raise

        return run

    def _whole_rows(
        self, prefix: str, shares: Mapping[str, tuple[Effect, RunShare]], calls: Iterable[WholeCall]
    ) -> list[Operation[Any]]:
        """The rows of requests to whole structures, and of the shares that they ask for.

        Args:
            prefix: Of the requests' names.
            shares: By name, with what they do to data.
            calls: What is asked for them.
        """
        rows: list[Operation[Any]] = [
            Operation(name, self._kind.name, Scope.SHARE, effect, share)
            for name, (effect, share) in shares.items()
        ]
        for method, share, argument, make in calls:
            effect, run = shares[share][0], self._asking(share, make, argument)
            name = f"{prefix}{method}"
            rows.append(Operation(name, self._kind.name, Scope.ALL_PARTITIONS, effect, run))
        return rows
