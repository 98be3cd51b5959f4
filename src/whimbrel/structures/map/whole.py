"""Maps as a whole: the shares of members in size, key sets, clear and their like, and their sums.

Events about a whole map (cleared, evicted) arise where the call was asked, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.entry_events import CLEAR_ALL
from whimbrel.serving.operations import Effect, Operation, RunShare, Scope, Share
from whimbrel.serving.server import Server
from whimbrel.serving.structure_handlers import Make
from whimbrel.serving.whole_structures import (
    INT_MAX,
    clear_share,
    items_share,
    pairs,
    publish_whole,
)
from whimbrel.serving.write_group import WriteGroup
from whimbrel.structures.map.listening import EVICT_ALL
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import NAME
from whimbrel.structures.map.store import MapStore


class WholeMaps:
    """The parts of requests to whole maps."""

    def __init__(self, server: Server, maps: MapService) -> None:
        self._server = server
        self._maps = maps
        clear = clear_share(server.dataplane.shortage, maps.clear)
        self._shares: dict[str, tuple[Effect, RunShare]] = {
            "size": (Effect.READ, self._share_size),
            "contains_value": (Effect.READ, self._share_contains),
            "keys": (Effect.READ, items_share(maps.key_set)),
            "values": (Effect.READ, items_share(maps.values)),
            "entries": (Effect.READ, items_share(lambda p, n: list(chain(*maps.entries(p, n))))),
            "clear": (Effect.WRITE, clear),
            "evict_all": (Effect.WRITE, clear),
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
        server = self._server
        calls: tuple[tuple[str, str, Make], ...] = (
            ("size", "size", lambda _, g: min(g.count, INT_MAX)),
            ("isEmpty", "size", lambda _, g: g.count == 0),
            ("containsValue", "contains_value", lambda _, g: g.count > 0),
            ("keySet", "keys", lambda _, g: g.items),
            ("values", "values", lambda _, g: g.items),
            ("entrySet", "entries", lambda _, g: pairs(g.items)),
            ("clear", "clear", lambda n, g: publish_whole(server, n, CLEAR_ALL, g)),
            ("evictAll", "evict_all", lambda n, g: publish_whole(server, n, EVICT_ALL, g)),
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
        share.count = int(self._maps.contains_value(partition, namespace, value))
        return len(fragment.store)
