"""Requests to maps as a whole: size, key sets, clear and their like by scatter.

Knows how the shares of a whole-map call are made on the members and put together where it was
asked. Events about a whole map (cleared, evicted) arise where the call was asked, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

from whimbrel.core.ids import namespace_of
from whimbrel.core.registry import MAP_KIND
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.structures.map_store import MapStore
from whimbrel.errors import OverloadedError
from whimbrel.serving.handlers_client import answer, check_name
from whimbrel.serving.listeners import CLEAR_ALL, EVICT_ALL, MapEvent
from whimbrel.serving.operations import Effect, Operation, RunOnConnection, RunShare, Scope, Share
from whimbrel.serving.scatter import Gather
from whimbrel.serving.server import Server
from whimbrel.serving.session import IN_FLIGHT_MAX, Connection
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire.codec import decode_request
from whimbrel.wire.fast_codec import empty_response
from whimbrel.wire.frames import RawMessage

INT_MAX = 2**31 - 1

Make = Callable[[str, Gather], object]
"""Makes the field of the response, None for none: (name of the map, what was gathered)."""


class WholeMapHandlers:
    """The map service's requests to whole maps, as clients see them."""

    def __init__(self, server: Server) -> None:
        """Nothing is asked yet."""
        self._server = server
        self._maps = server.maps
        self._shortage = server.dataplane.shortage

    def operations(self) -> list[Operation[Any]]:
        """Every request to a whole map that is offered, and the shares of members."""
        maps = self._maps
        shares: dict[str, tuple[Effect, RunShare]] = {
            "size": (Effect.READ, self._share_size),
            "contains_value": (Effect.READ, self._share_contains),
            "keys": (Effect.READ, _items(maps.key_set)),
            "values": (Effect.READ, _items(maps.values)),
            "entries": (Effect.READ, _items(lambda p, n: list(chain(*maps.entries(p, n))))),
            "clear": (Effect.WRITE, self._share_clear),
            "evict_all": (Effect.WRITE, self._share_clear),
        }
        calls: tuple[tuple[str, str, Make], ...] = (
            ("size", "size", lambda _, g: min(g.count, INT_MAX)),
            ("isEmpty", "size", lambda _, g: g.count == 0),
            ("containsValue", "contains_value", lambda _, g: g.count > 0),
            ("keySet", "keys", lambda _, g: g.items),
            ("values", "values", lambda _, g: g.items),
            ("entrySet", "entries", lambda _, g: _pairs(g.items)),
            ("clear", "clear", lambda n, g: self._publish_whole(n, CLEAR_ALL, g.count)),
            ("evictAll", "evict_all", lambda n, g: self._publish_whole(n, EVICT_ALL, g.count)),
        )
        flush = Operation("Map.flush", MAP_KIND, Scope.CONNECTION, Effect.WRITE, self._flush)
        rows: list[Operation[Any]] = [flush]
        for name, (effect, share) in shares.items():
            rows.append(Operation(name, MAP_KIND, Scope.SHARE, effect, share))
        for method, name, make in calls:
            effect, run = shares[name][0], self._asking(name, make)
            rows.append(Operation(f"Map.{method}", MAP_KIND, Scope.ALL_PARTITIONS, effect, run))
        return rows

    def _asking(self, share: str, make: Make) -> RunOnConnection:
        """A request that asks all primaries for this share and makes its response of the sum."""
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
                    found = make(name, gather)
                    fields = {} if found is None else {"response": found}
                    server.deliver(connection, answer(message, **fields))

            connection.in_flight += 1
            try:
                server.scatter.gather(share, name, fields.get("value", b""), finished)
            except OverloadedError:
                connection.in_flight -= 1
                raise

        return run

    def _share_size(
        self, share: Share, partition: PartitionReplica, name: str, _: bytes, __: WriteGroup
    ) -> int:
        share.count += self._maps.size((partition,), name)
        fragment = partition.maps.get(name)
        return 0 if fragment is None else len(cast("MapStore", fragment.store).timings)

    def _share_contains(
        self, share: Share, partition: PartitionReplica, name: str, value: bytes, _: WriteGroup
    ) -> int:
        if share.count or name not in partition.maps:
            return 0
        share.count = int(self._maps.contains_value((partition,), name, value))
        return len(partition.maps[name].store)

    def _share_clear(
        self, share: Share, partition: PartitionReplica, name: str, _: bytes, group: WriteGroup
    ) -> int | None:
        """Clear a partition; one with too few backups, or of which one cannot keep up, is asked
        for again: an error here would be told of a call that others have carried out.
        """
        if not self._shortage.admits(partition, namespace_of(MAP_KIND, name)):
            return None
        reply = group.reply()
        try:
            count = self._maps.clear(partition, name, reply)
        except OverloadedError:
            return None
        share.count += count
        group.expect(reply)
        return count

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


def _items(read: Callable[[Sequence[PartitionReplica], str], list[bytes]]) -> RunShare:
    """A share that hands over what it finds."""

    def run(share: Share, partition: PartitionReplica, name: str, _: bytes, __: WriteGroup) -> int:
        found = read((partition,), name)
        share.items += found
        return len(found)

    return run


def _pairs(items: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Keys and values that stand in turn, as pairs."""
    return list(zip(items[::2], items[1::2], strict=True))
