"""Requests of clients that want to hear of structures, migrations and lost partitions.

A listener with ``local_only`` hears what arises on this member; a smart client registers with every
member and so hears each event once. Migrations and losses arise on the master. Listeners of what
happens in structures are added by the handlers of their kinds, with what is here.
"""

from __future__ import annotations

from whimbrel.serving.grid_events import ADD_LOST, ADD_MIGRATION, encode_lost, encode_migration
from whimbrel.serving.handlers_client import answer
from whimbrel.serving.listeners import GRID, OBJECTS, Encode, Listener, ObjectListener
from whimbrel.serving.operations import Effect, Operation, RunOnConnection, Scope
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage


class EventHandlers:
    """Registering and ending listeners that belong to no structure."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def operations(self) -> list[Operation[RunOnConnection]]:
        """The requests that add or remove a listener."""
        remove = remover(self._server)
        requests: dict[str, RunOnConnection] = {
            ADD_MIGRATION: self._adder(encode_migration),
            "Client.removeMigrationListener": remove,
            ADD_LOST: self._adder(encode_lost),
            "Client.removePartitionLostListener": remove,
            OBJECTS: self._add_object,
            "Client.removeDistributedObjectListener": remove,
        }
        return [
            Operation(name, "", Scope.CONNECTION, Effect.NEUTRAL, run)
            for name, run in requests.items()
        ]

    def _adder(self, encode: Encode) -> RunOnConnection:
        """A request for the cluster's events that are told so."""

        def add(connection: Connection, message: RawMessage) -> None:
            _, fields = decode_request(message)
            listener = Listener(connection, message[5], GRID, encode, fields["local_only"])
            register(self._server, listener, message)

        return add

    def _add_object(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        listener = ObjectListener(connection, message[5], fields["local_only"])
        registration = self._server.listeners.add_object_listener(listener)
        self._server.deliver(connection, answer(message, response=registration))


def register(server: Server, listener: Listener, message: RawMessage) -> None:
    """Add a listener; its request is answered when its events arrive from everywhere."""

    def registered() -> None:
        response = answer(message, response=listener.registration)
        server.deliver(listener.connection, response)

    server.listeners.add(listener, registered)


def remover(server: Server) -> RunOnConnection:
    """A request that ends a listener, of whatever kind."""

    def remove(connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        removed = server.listeners.remove(fields["registration_id"])
        server.deliver(connection, answer(message, response=removed))

    return remove
