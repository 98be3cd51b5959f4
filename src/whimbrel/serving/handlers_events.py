"""Requests of clients that want to hear of migrations and lost partitions.

A listener with ``local_only`` hears what arises on this member, which for these events is the
master; a smart client registers with every member and so hears each event once.
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
from whimbrel.wire.frames import RawMessage


class EventHandlers:
    """Registering and ending listeners of the cluster's events."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def operations(self) -> list[Operation[RunOnConnection]]:
        """The requests that add or remove a listener."""
        requests: tuple[tuple[str, str, RunOnConnection], ...] = (
            (ADD_MIGRATION, "", self._add),
            (ADD_LOST, "", self._add),
            (ADD_MAP_LOST, MAP_KIND, self._add),
            ("Client.removeMigrationListener", "", self._remove),
            ("Client.removePartitionLostListener", "", self._remove),
            ("Map.removePartitionLostListener", MAP_KIND, self._remove),
        )
        return [
            Operation(name, kind, Scope.CONNECTION, Effect.NEUTRAL, run)
            for name, kind, run in requests
        ]

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
