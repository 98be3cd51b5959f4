"""Requests of clients that want to hear of entries, structures, migrations and lost partitions.

A listener with ``local_only`` hears what arises on this member; a smart client registers with every
member and so hears each event once. Migrations and losses arise on the master.
"""

from __future__ import annotations

from whimbrel.core.registry import MAP_KIND
from whimbrel.serving.grid_events import ADD_LOST, ADD_MAP_LOST, ADD_MIGRATION
from whimbrel.serving.handlers_client import answer, check_name
from whimbrel.serving.listeners import GRID, Listener
from whimbrel.serving.operations import Effect, Operation, RunOnConnection, Scope
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import decode_request
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import RawMessage


class EventHandlers:
    """Registering and ending listeners of all kinds."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def operations(self) -> list[Operation[RunOnConnection]]:
        """The requests that add or remove a listener."""
        requests: tuple[tuple[str, str, RunOnConnection], ...] = (
            ("Map.addEntryListener", MAP_KIND, self._add_entry),
            ("Map.addEntryListenerToKey", MAP_KIND, self._add_entry),
            ("Map.removeEntryListener", MAP_KIND, self._remove),
            (ADD_MAP_LOST, MAP_KIND, self._add),
            ("Map.removePartitionLostListener", MAP_KIND, self._remove),
            (ADD_MIGRATION, "", self._add),
            ("Client.removeMigrationListener", "", self._remove),
            (ADD_LOST, "", self._add),
            ("Client.removePartitionLostListener", "", self._remove),
            ("Client.addDistributedObjectListener", "", self._add_object),
            ("Client.removeDistributedObjectListener", "", self._remove),
        )
        return [
            Operation(name, kind, Scope.CONNECTION, Effect.NEUTRAL, run)
            for name, kind, run in requests
        ]

    def _add(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        listener = Listener(connection, message[5], name, GRID)
        if name == ADD_MAP_LOST:
            check_name(fields["name"])
            listener.structure = fields["name"]
        self._register(listener, message, fields)

    def _add_entry(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        check_name(fields["name"])
        listener = Listener(connection, message[5], name, fields["name"])
        key = fields.get("key")
        listener.key = None if key is None else key[4:]
        listener.include_value = fields["include_value"]
        listener.flags = fields["listener_flags"]
        self._register(listener, message, fields)

    def _register(self, listener: Listener, message: RawMessage, fields: Fields) -> None:
        """Answer when the listener's events arrive from everywhere."""
        listener.local_only = fields["local_only"]

        def registered() -> None:
            response = answer(message, response=listener.registration)
            self._server.deliver(listener.connection, response)

        self._server.listeners.add(listener, registered)

    def _add_object(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        listener = Listener(connection, message[5], name, "", local_only=fields["local_only"])
        registration = self._server.listeners.add_object_listener(listener)
        self._server.deliver(connection, answer(message, response=registration))

    def _remove(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        removed = self._server.listeners.remove(fields["registration_id"])
        self._server.deliver(connection, answer(message, response=removed))
