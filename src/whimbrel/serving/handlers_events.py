"""Requests of clients that want to hear of structures, migrations and lost partitions.

A listener with ``local_only`` hears what arises on this member; a smart client registers with every
member and so hears each event once. Migrations and losses arise on the master; a client that asks
several members for those of all hears them from each. Listeners of what happens in structures are
added by the handlers of their kinds, with what is here.
"""

from __future__ import annotations

from whimbrel.core.ids import Namespace
from whimbrel.core.messages import RegistryEntry
from whimbrel.serving.grid_events import ADD_LOST, ADD_MIGRATION, encode_lost, encode_migration
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.listeners import GRID, OBJECTS, Encode, Listener
from whimbrel.serving.operations import Effect, Operation, RunOnConnection, Scope, rows_of
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import decode_request, encode_event
from whimbrel.wire.frames import RawMessage

ADD_OBJECTS = "Client.addDistributedObjectListener"


class EventHandlers:
    """Registering and ending listeners that belong to no structure."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def operations(self) -> list[Operation[RunOnConnection]]:
        """The requests that add or remove a listener."""
        remove = remover(self._server)
        requests: dict[str, RunOnConnection] = {
            ADD_MIGRATION: self._adder(GRID, encode_migration),
            "Client.removeMigrationListener": remove,
            ADD_LOST: self._adder(GRID, encode_lost),
            "Client.removePartitionLostListener": remove,
            ADD_OBJECTS: self._adder(OBJECTS, self._encode_object),
            "Client.removeDistributedObjectListener": remove,
        }
        return rows_of("", "", Scope.CONNECTION, Effect.NEUTRAL, requests)

    def _adder(self, name: Namespace, encode: Encode) -> RunOnConnection:
        """A request for the events of GRID or OBJECTS that are told so."""

        def add(connection: Connection, message: RawMessage) -> None:
            _, fields = decode_request(message)
            listener = Listener(connection, message[5], name, encode, fields["local_only"])
            register(self._server, listener, message)

        return add

    def _encode_object(self, entry: object) -> bytes:
        """A structure that came or went, as a listener of ADD_OBJECTS gets it; b"" for others."""
        if not isinstance(entry, RegistryEntry):
            return b""
        return encode_event(
            ADD_OBJECTS,
            "distributed_object",
            0,
            name=entry.key,
            service_name=self._server.member.kinds[entry.kind].service_name,
            event_type="CREATED" if entry.alive else "DESTROYED",
            source=entry.origin,
        )


def register(server: Server, listener: Listener, message: RawMessage) -> None:
    """Add a listener; its request is answered when its events arrive from everywhere."""

    def registered() -> None:
        response = answer(message, response=listener.registration)
        server.deliver(listener.connection, response)

    server.listeners.add(listener, message, registered)


def remover(server: Server) -> RunOnConnection:
    """A request that ends a listener, of whatever kind."""

    def remove(connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        removed = server.listeners.remove(fields["registration_id"])
        server.deliver(connection, answer(message, response=removed))

    return remove
