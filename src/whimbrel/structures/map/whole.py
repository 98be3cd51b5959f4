"""Maps as a whole: the shares of members in size, key sets, clear and their like, and their sums.

Events about a whole map (cleared, evicted) arise where the call was asked, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import cast

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.errors import OverloadedError
from whimbrel.serving.listeners import StructureEvent
from whimbrel.serving.operations import Effect, Operation, RunShare, Scope, Share
from whimbrel.serving.scatter import Gather
from whimbrel.serving.server import Server
from whimbrel.serving.structure_handlers import Make
from whimbrel.serving.write_group import WriteGroup
from whimbrel.structures.map.listening import CLEAR_ALL, EVICT_ALL
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import NAME
from whimbrel.structures.map.store import MapStore

INT_MAX = 2**31 - 1


class WholeMaps:
    """The parts of requests to whole maps."""

    def __init__(self, server: Server, maps: MapService) -> None:
        self._server = server
        self._maps = maps
        self._shortage = server.dataplane.shortage
        self._shares: dict[str, tuple[Effect, RunShare]] = {
            "size": (Effect.READ, self._share_size),
            "contains_value": (Effect.READ, self._share_contains),
            "keys": (Effect.READ, _items(maps.key_set)),
            "values": (Effect.READ, _items(maps.values)),
            "entries": (Effect.READ, _items(lambda p, n: list(chain(*maps.entries(p, n))))),
            "clear": (Effect.WRITE, self._share_clear),
            "evict_all": (Effect.WRITE, self._share_clear),
        }

    def shares(self) -> list[Operation[RunShare]]:
        """The rows of the shares."""
        return [
            Operation(name, NAME, Scope.SHARE, effect, share)
            for name, (effect, share) in self._shares.items()
        ]

    def calls(self) -> Iterator[tuple[str, Effect, str, Make, str]]:
        """Each request: its method, effect, share, what makes its response, and the field that is
        the argument of the share, if any.
        """
        calls: tuple[tuple[str, str, Make], ...] = (
            ("size", "size", lambda _, g: min(g.count, INT_MAX)),
            ("isEmpty", "size", lambda _, g: g.count == 0),
            ("containsValue", "contains_value", lambda _, g: g.count > 0),
            ("keySet", "keys", lambda _, g: g.items),
            ("values", "values", lambda _, g: g.items),
            ("entrySet", "entries", lambda _, g: _pairs(g.items)),
            ("clear", "clear", lambda n, g: self._publish_whole(n, CLEAR_ALL, g)),
            ("evictAll", "evict_all", lambda n, g: self._publish_whole(n, EVICT_ALL, g)),
        )
        for method, share, make in calls:
            argument = "value" if share == "contains_value" else ""
            yield method, self._shares[share][0], share, make, argument

    def _share_size(
        self,
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        _: bytes,
        __: WriteGroup,
    ) -> int:
        share.count += self._maps.size(partition, namespace)
        fragment = partition.fragments.get(namespace)
        return 0 if fragment is None else len(cast("MapStore", fragment.store).timings)

    def _share_contains(
        self,
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        value: bytes,
        _: WriteGroup,
    ) -> int:
        fragment = partition.fragments.get(namespace)
        if share.count or fragment is None:
            return 0
        share.count = int(self._maps.contains_value((partition,), namespace, value))
        return len(fragment.store)

    def _share_clear(
        self,
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        _: bytes,
        group: WriteGroup,
    ) -> int | None:
        """Clear a partition; one with too few backups, or of which one cannot keep up, is asked
        for again: an error here would be told of a call that others have carried out.
        """
        if not self._shortage.admits(partition, namespace):
            return None
        reply = group.reply()
        try:
            count = self._maps.clear(partition, namespace, reply)
        except OverloadedError:
            return None
        share.count += count
        group.expect(reply)
        return count

    def _publish_whole(self, namespace: Namespace, flag: int, gather: Gather) -> None:
        """One event for the whole map, from the member that was asked."""
        if gather.count:
            source, count = self._server.ctx.id, min(gather.count, INT_MAX)
            event = StructureEvent(namespace, flag, None, None, None, source, count)
            self._server.listeners.publish(event)


def _items(read: Callable[[Sequence[PartitionReplica], Namespace], list[bytes]]) -> RunShare:
    """A share that hands over what it finds."""

    def run(
        share: Share, partition: PartitionReplica, namespace: Namespace, _: bytes, __: WriteGroup
    ) -> int:
        found = read((partition,), namespace)
        share.items += found
        return len(found)

    return run


def _pairs(items: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Keys and values that stand in turn, as pairs."""
    return list(zip(items[::2], items[1::2], strict=True))
