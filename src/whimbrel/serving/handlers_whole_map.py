"""Requests to maps as a whole: size, key sets, clear and their like by scatter; entry listeners.

Knows how the shares of a whole-map call are made on the members and put together where it was
asked. Events about a whole map (cleared, evicted) arise where the call was asked, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from whimbrel.core.ids import PartitionId
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.errors import OverloadedError
from whimbrel.serving.handlers_client import answer, check_name
from whimbrel.serving.listeners import CLEAR_ALL, EVICT_ALL, Listener, MapEvent
from whimbrel.serving.scatter import Gather, Share
from whimbrel.serving.session import IN_FLIGHT_MAX, Connection
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.hot import empty_response, int_response
from whimbrel.wire.protocol_table import message_type

if TYPE_CHECKING:
    from whimbrel.serving.server import Server

INT_MAX = 2**31 - 1


class WholeMapHandlers:
    """The map service's requests to whole maps, as clients see them."""

    def __init__(self, server: Server) -> None:
        """Register every request to a whole map that is offered."""
        self._server = server
        self._maps = server.maps
        self._dataplane = server.dataplane
        self._register_whole_map()
        for method, run in (
            ("addEntryListener", self._add_listener),
            ("addEntryListenerToKey", self._add_listener),
            ("removeEntryListener", self._remove_listener),
            ("flush", self._flush),
        ):
            server.connection_operations[message_type(f"Map.{method}")] = run

    def _register_whole_map(self) -> None:
        scatter = self._server.scatter
        scatter.executors.update(
            {
                "size": self._share_size,
                "contains_value": self._share_contains,
                "keys": self._share_keys,
                "values": self._share_values,
                "entries": self._share_entries,
                "clear": self._share_clear,
                "evict_all": self._share_evict_all,
            }
        )
        calls: tuple[tuple[str, str, Callable[[RawMessage, str, Gather], bytes]], ...] = (
            ("size", "size", _size_answer),
            ("isEmpty", "size", lambda m, _, g: answer(m, response=g.count == 0)),
            ("containsValue", "contains_value", lambda m, _, g: answer(m, response=g.count > 0)),
            ("keySet", "keys", lambda m, _, g: answer(m, response=g.items)),
            ("values", "values", lambda m, _, g: answer(m, response=g.items)),
            ("entrySet", "entries", lambda m, _, g: answer(m, response=_pairs(g.items))),
            ("clear", "clear", self._cleared),
            ("evictAll", "evict_all", self._evicted),
        )
        for method, operation, make in calls:
            self._add_whole_map(method, operation, make)

    def _add_whole_map(
        self, method: str, operation: str, make: Callable[[RawMessage, str, Gather], bytes]
    ) -> None:
        server = self._server

        def run(connection: Connection, message: RawMessage) -> None:
            _, fields = decode_request(message)
            name = fields["name"]
            check_name(name)
            if connection.in_flight >= IN_FLIGHT_MAX:
                raise OverloadedError(f"{IN_FLIGHT_MAX} requests of this connection wait already")

            def finished(gather: Gather) -> None:
                connection.in_flight -= 1
                if gather.error:
                    server.fail(connection, message[5], *gather.failure())
                else:
                    server.deliver(connection, make(message, name, gather))

            connection.in_flight += 1
            try:
                server.scatter.gather(operation, name, fields.get("value", b""), finished)
            except OverloadedError:
                connection.in_flight -= 1
                raise

        self._server.connection_operations[message_type(f"Map.{method}")] = run

    def _share_size(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        done(Share(list(pids), self._maps.size(self._replicas(pids), name)))

    def _share_contains(
        self, name: str, value: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        found = self._maps.contains_value(self._replicas(pids), name, value)
        done(Share(list(pids), int(found)))

    def _share_keys(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        done(Share(list(pids), 0, self._maps.key_set(self._replicas(pids), name)))

    def _share_values(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        done(Share(list(pids), 0, self._maps.values(self._replicas(pids), name)))

    def _share_entries(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        items: list[bytes] = []
        for pair in self._maps.entries(self._replicas(pids), name):
            items += pair
        done(Share(list(pids), 0, items))

    def _share_clear(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        self._write_share(self._maps.clear, name, pids, done)

    def _share_evict_all(
        self, name: str, _: bytes, pids: Sequence[PartitionId], done: Callable[[Share], None]
    ) -> None:
        self._write_share(self._maps.clear, name, pids, done)

    def _replicas(self, pids: Sequence[PartitionId]) -> list[PartitionReplica]:
        partitions = self._dataplane.partitions
        return [partitions[pid] for pid in pids]

    def _write_share(
        self,
        write: Callable[[PartitionReplica, str, PendingReply], int],
        name: str,
        pids: Sequence[PartitionId],
        done: Callable[[Share], None],
    ) -> None:
        """Write to our partitions that may be written; covered are those whose backups have it.

        Those that cannot be written now, with too few backups or of which one cannot keep up,
        are asked for again: an error here would be told of a call that others have carried out.
        """
        share = Share([], has_acted=False)
        admits = self._dataplane.shortage.admits

        def finished(failed: dict[int, str]) -> None:
            share.partitions = [pid for pid in share.partitions if pid not in failed]
            done(share)

        group = WriteGroup(finished)
        for replica in self._replicas(pids):
            if not (replica.writable and admits(replica, name)):
                continue
            reply = group.reply()
            try:
                share.count += write(replica, name, reply)
            except OverloadedError:
                continue
            share.partitions.append(replica.pid)
            group.expect(reply)
        share.has_acted = share.count > 0
        group.close()

    def _cleared(self, message: RawMessage, name: str, gather: Gather) -> bytes:
        self._publish_whole(name, CLEAR_ALL, gather.count)
        return empty_response(message[4], message[5], 0)

    def _evicted(self, message: RawMessage, name: str, gather: Gather) -> bytes:
        self._publish_whole(name, EVICT_ALL, gather.count)
        return empty_response(message[4], message[5], 0)

    def _publish_whole(self, name: str, kind: int, count: int) -> None:
        """One event for the whole map, from the member that was asked."""
        if count:
            source = self._server.ctx.id
            self._server.listeners.publish(
                MapEvent(name, kind, None, None, None, source, min(count, INT_MAX))
            )

    def _flush(self, connection: Connection, message: RawMessage) -> None:
        """There is no store behind a map to flush to."""
        self._server.deliver(connection, empty_response(message[4], message[5], 0))

    # -- listeners ------------------------------------------------------------------------

    def _add_listener(self, connection: Connection, message: RawMessage) -> None:
        method, fields = decode_request(message)
        check_name(fields["name"])
        listener = Listener(connection, message[5], method, fields["name"])
        key = fields.get("key")
        listener.key = None if key is None else key[4:]
        listener.include_value = fields["include_value"]
        listener.flags = fields["listener_flags"]
        listener.local_only = fields["local_only"]
        server = self._server

        def registered() -> None:
            server.deliver(connection, answer(message, response=listener.registration))

        server.listeners.add(listener, registered)

    def _remove_listener(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        removed = self._server.listeners.remove(fields["registration_id"])
        self._server.deliver(connection, answer(message, response=removed))


def _size_answer(message: RawMessage, _: str, gather: Gather) -> bytes:
    return int_response(message[4], message[5], 0, min(gather.count, INT_MAX))


def _pairs(items: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Keys and values that stand in turn, as pairs."""
    return list(zip(items[::2], items[1::2], strict=True))
