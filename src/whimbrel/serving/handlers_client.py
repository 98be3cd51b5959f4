"""Requests to the member itself: authentication, views, structures, schemas, ping, statistics.

Knows what each of these requests means; routing and sessions are the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from whimbrel.core.ids import ClientId
from whimbrel.core.kinds import StructureKind
from whimbrel.core.registry import SCHEMA_KIND, Fact
from whimbrel.errors import GridError, ProtocolError, UsageError
from whimbrel.serialization.uuids import NIL_UUID
from whimbrel.serving.operations import Effect, Operation, RunOnConnection, Scope, rows_of
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection, Phase
from whimbrel.wire.codec import decode_request, encode_response
from whimbrel.wire.custom_types import DistributedObjectInfo, FieldDescriptor, Schema
from whimbrel.wire.fast_codec import empty_response
from whimbrel.wire.frames import AUTHENTICATED, RawMessage
from whimbrel.wire.protocol_table import BY_TYPE

PRODUCT_VERSION = "5.7.0"
"""Version told to clients; their test suites choose what to run by it."""
SERIALIZATION_VERSION = 1
NAME_LENGTH_MAX = 1_000
"""Longest name of a structure, in characters."""
STATISTICS_CLIENTS_MAX = 1_000
"""Clients whose last statistics are kept; the oldest are forgotten."""
STATISTICS_BYTES_MAX = 1024 * 1024
"""Longest statistics kept of one client."""

STATUS_AUTHENTICATED = 0
STATUS_CREDENTIALS_FAILED = 1
STATUS_SERIALIZATION_MISMATCH = 2

_encode_schema = msgspec.msgpack.Encoder().encode
_decode_schema = msgspec.msgpack.Decoder(tuple[str, list[tuple[str, int]]]).decode


class ClientStatistics(msgspec.Struct, frozen=True):
    """What a client last said about itself. Opaque to us."""

    timestamp_ms: int
    attributes: str
    metrics: bytes


class ClientHandlers:
    """The client service of one member."""

    def __init__(self, server: Server) -> None:
        """Greet clients from now on."""
        self._server = server
        self._ctx = server.ctx
        self._registry = server.member.registry
        self._kinds = server.member.kinds
        self._by_service = {kind.service_name: kind for kind in self._kinds.values()}
        self.statistics: dict[bytes, ClientStatistics] = {}
        server.intake.hello = self.hello

    def operations(self) -> list[Operation[RunOnConnection]]:
        """Every request of the client service that is offered; most touch no data."""
        neutral: dict[str, RunOnConnection] = {
            "authentication": self._authenticate_again,
            "authenticationCustom": self._authenticate_again,
            "ping": self._ping,
            # Partitions are arranged as soon as there is a data member; nothing is to be triggered.
            "triggerPartitionAssignment": self._ping,
            "addClusterViewListener": self._add_cluster_view_listener,
            "localBackupListener": self._add_backup_listener,
            "createProxy": self._create,
            "createProxies": self._create,
            "getDistributedObjects": self._get_distributed_objects,
            "statistics": self._statistics,
            "sendSchema": self._send_schema,
            "fetchSchema": self._fetch_schema,
            "sendAllSchemas": self._send_all_schemas,
        }
        destroy: dict[str, RunOnConnection] = {"destroyProxy": self._destroy_proxy}
        rows = rows_of("Client.", "", Scope.CONNECTION, Effect.NEUTRAL, neutral)
        return rows + rows_of("Client.", "", Scope.CONNECTION, Effect.WRITE, destroy)

    # -- authentication -------------------------------------------------------------------

    def hello(self, connection: Connection, message: RawMessage) -> None:
        """The first message of a connection: an authentication, or the end of it."""
        server = self._server
        try:
            name, fields = decode_request(message)
        except GridError as error:
            server.tally("protocol_errors")
            server.refuse(connection, message[5], error)
            server.intake.close(connection, f"not authenticated: {error}")
            return
        if not name.startswith("Client.authentication"):
            server.tally("unauthenticated_requests")
            early = ProtocolError(f"{name} came before authentication", reason="unauthenticated")
            server.refuse(connection, message[5], early)
            server.intake.close(connection, str(early))
            return
        if not server.member.is_joined:
            # A client tries its next address; status 3 would make it give the cluster up.
            server.intake.close(connection, "this member has not joined its cluster yet")
            return
        status, reason = self._status(name, fields)
        if status == STATUS_AUTHENTICATED:
            self._admit(connection, fields)
        else:
            server.tally("authentications_failed")
            server.tally(f"refused_{reason}")
        server.deliver(connection, self._authentication_answer(name, message[5], status))
        if status != STATUS_AUTHENTICATED:
            server.intake.close(connection, f"authentication failed with status {status}")

    def _status(self, name: str, fields: dict[str, object]) -> tuple[int, str]:
        """What becomes of an authentication; why, for the count of refused ones."""
        if fields["cluster_name"] != self._ctx.settings.cluster_name:
            return STATUS_CREDENTIALS_FAILED, "cluster_name"
        if name != "Client.authentication" or fields["username"] or fields["password"]:
            # Nobody configured credentials here; whoever sends some means another cluster.
            return STATUS_CREDENTIALS_FAILED, "credentials"
        if fields["serialization_version"] != SERIALIZATION_VERSION:
            return STATUS_SERIALIZATION_MISMATCH, "serialization_version"
        return STATUS_AUTHENTICATED, ""

    def _admit(self, connection: Connection, fields: dict[str, object]) -> None:
        connection.phase = Phase.READY
        connection.splitter.limits = AUTHENTICATED
        connection.client_name = str(fields["client_name"])
        labels = fields["labels"]
        connection.labels = tuple(labels) if isinstance(labels, list) else ()
        identity = fields["uuid"]
        if isinstance(identity, bytes):
            connection.client_id = ClientId(identity)
            self._server.clients[identity] = connection
        self._server.tally("authentications")

    def _authentication_answer(self, name: str, correlation: int, status: int) -> bytes:
        good = status == STATUS_AUTHENTICATED
        ctx = self._ctx
        return encode_response(
            name,
            correlation,
            status=status,
            address=ctx.me.address if good else None,
            member_uuid=ctx.id if good else None,
            serialization_version=SERIALIZATION_VERSION,
            server_version=PRODUCT_VERSION,
            partition_count=ctx.settings.partition_count if good else -1,
            cluster_id=ctx.members.cluster_id if good else NIL_UUID,
            failover_supported=False,
            member_list_version=-1,
            partition_list_version=-1,
        )

    def _authenticate_again(self, connection: Connection, message: RawMessage) -> None:
        raise UsageError("this connection is authenticated already")

    # -- keeping in touch -----------------------------------------------------------------

    def _ping(self, connection: Connection, message: RawMessage) -> None:
        self._server.deliver(connection, empty_response(message[4], message[5], 0))

    def _add_cluster_view_listener(self, connection: Connection, message: RawMessage) -> None:
        self._server.views.register(connection, message[5])

    def _add_backup_listener(self, connection: Connection, message: RawMessage) -> None:
        connection.backup_correlation = message[5]
        registration = self._server.listeners.new_registration()
        self._answer(connection, message, response=registration)

    def _statistics(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        size = len(fields["client_attributes"]) + len(fields["metrics_blob"])
        if size > STATISTICS_BYTES_MAX:
            raise UsageError(f"statistics have at most {STATISTICS_BYTES_MAX} bytes, not {size}")
        identity = connection.client_id
        if identity is not None:
            self.statistics.pop(identity, None)
            self.statistics[identity] = ClientStatistics(
                fields["timestamp"], fields["client_attributes"], fields["metrics_blob"]
            )
            while len(self.statistics) > STATISTICS_CLIENTS_MAX:
                del self.statistics[next(iter(self.statistics))]
        self._answer(connection, message)

    # -- structures -----------------------------------------------------------------------

    def _create(self, connection: Connection, message: RawMessage) -> None:
        """One structure, or several."""
        _, fields = decode_request(message)
        proxies = fields.get("proxies")
        if proxies is None:
            proxies = [(fields["name"], fields["service_name"])]
        facts: list[Fact] = []
        for name, service in proxies:
            kind = self._kind_of(service)
            check_name(name)
            if self._registry.get(kind.name, name) is None:
                facts.append(self._registry.structure_fact(kind, name, alive=True))
        self._announce(connection, facts, lambda: answer(message))

    def _kind_of(self, service: str) -> StructureKind:
        """The kind that clients name so.

        Raises:
            UnsupportedError: This cluster has none of that name.
        """
        kind = self._by_service.get(service)
        if kind is None:
            raise self._server.absences.service(service)
        return kind

    def _destroy_proxy(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        name = fields["name"]
        kind = self._kind_of(fields["service_name"])
        self._server.admission.protection.admit(kind.name, Effect.WRITE, name.encode())
        check_name(name)
        # Not only one that we know of: who wrote it first may not have told us yet.
        facts = [self._registry.structure_fact(kind, name, alive=False)]
        self._announce(connection, facts, lambda: answer(message))

    def _get_distributed_objects(self, connection: Connection, message: RawMessage) -> None:
        found = [
            DistributedObjectInfo(self._kinds[entry.kind].service_name, entry.key)
            for entry in self._registry.structures()
            if entry.kind in self._kinds
        ]
        self._answer(connection, message, response=found)

    # -- Compact schemas ------------------------------------------------------------------

    def _send_schema(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        # The set of members is read when all have answered: by then each on our list has it.
        self._announce(
            connection,
            self._schema_facts([fields["schema"]]),
            lambda: answer(message, replicated_members=list(self._ctx.members.ids())),
        )

    def _send_all_schemas(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        facts = self._schema_facts(fields["schemas"])
        self._announce(connection, facts, lambda: answer(message))

    def _schema_facts(self, schemas: list[Schema]) -> list[Fact]:
        facts = []
        for schema in schemas:
            pairs = [(field.field_name, field.kind) for field in schema.fields]
            value = _encode_schema((schema.type_name, pairs))
            facts.append((SCHEMA_KIND, str(schema.compact().id), True, value))
        return facts

    def _fetch_schema(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        entry = self._registry.get(SCHEMA_KIND, str(fields["schema_id"]))
        schema = None
        if entry is not None:
            type_name, pairs = _decode_schema(entry.value)
            schema = Schema(type_name, [FieldDescriptor(*pair) for pair in pairs])
        self._answer(connection, message, schema=schema)

    # -- answering ------------------------------------------------------------------------

    def _answer(self, connection: Connection, message: RawMessage, **fields: object) -> None:
        self._server.deliver(connection, answer(message, **fields))

    def _announce(
        self, connection: Connection, facts: list[Fact], response: Callable[[], bytes]
    ) -> None:
        """Answer when every member knows the facts."""
        token = _Announced(connection, response)
        if facts:
            self._registry.announce(facts, token)
        else:
            self._registry.completed.append(token)

    def drain_announcements(self) -> None:
        """Answer those whose facts every member has by now."""
        completed, self._registry.completed = self._registry.completed, []
        for token in completed:
            if isinstance(token, _Announced):
                self._server.deliver(token.connection, token.response())


@dataclass(slots=True, eq=False)
class _Announced:
    """Whom to answer, and how, when an announcement is done."""

    connection: Connection
    response: Callable[[], bytes]


def answer(message: RawMessage, **fields: object) -> bytes:
    """The response to a message, by its type."""
    return encode_response(BY_TYPE[message[4]].name, message[5], **fields)


def check_name(name: str) -> None:
    """Refuse names that are no names.

    Raises:
        UsageError: The name is empty or too long.
    """
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise UsageError(f"a structure's name has 1 to {NAME_LENGTH_MAX} characters", reason="name")
