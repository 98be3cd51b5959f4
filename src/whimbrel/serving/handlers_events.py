"""Requests of clients that want to hear of migrations and lost partitions.

A listener with ``local_only`` hears what arises on this member, which for these events is the
master; a smart client registers with every member and so hears each event once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whimbrel.serving.grid_events import ADD_LOST, ADD_MAP_LOST, ADD_MIGRATION
from whimbrel.serving.handlers_client import answer, check_name
from whimbrel.serving.listeners import GRID, Listener
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import message_type

if TYPE_CHECKING:
    from whimbrel.serving.server import Server

REMOVALS = (
    "Client.removeMigrationListener",
    "Client.removePartitionLostListener",
    "Map.removePartitionLostListener",
)


class EventHandlers:
    """Registering and ending listeners of the cluster's events."""

    def __init__(self, server: Server) -> None:
        """Register the requests."""
        self._server = server
        for name in (ADD_MIGRATION, ADD_LOST, ADD_MAP_LOST):
            server.connection_operations[message_type(name)] = self._add
        for name in REMOVALS:
            server.connection_operations[message_type(name)] = self._remove

    def _add(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        listener = Listener(connection, message[5], name, GRID)
        listener.local_only = fields["local_only"]
        if name == ADD_MAP_LOST:
            check_name(fields["name"])
            listener.structure = fields["name"]

        def registered() -> None:
            self._server.deliver(connection, answer(message, response=listener.registration))

        self._server.listeners.add(listener, registered)

    def _remove(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        removed = self._server.listeners.remove(fields["registration_id"])
        self._server.deliver(connection, answer(message, response=removed))
