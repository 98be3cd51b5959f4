"""Maps as a whole: the shares of members in size, key sets, clear and their like, and their sums.

Events about a whole map (cleared, evicted) arise where the call was asked, once.
"""

from __future__ import annotations

from itertools import chain
from typing import cast

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.entry_events import CLEAR_ALL
from whimbrel.serving.operations import Effect, RunShare, Share
from whimbrel.serving.server import Server
from whimbrel.serving.structure_handlers import WholeCall
from whimbrel.serving.whole_structures import (
    INT_MAX,
    clear_share,
    contains_share,
    items_share,
    pairs,
    publish_whole,
)
from whimbrel.serving.write_group import WriteGroup
from whimbrel.structures.map.listening import EVICT_ALL
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.store import MapStore


class WholeMaps:
    """The parts of requests to whole maps, as ``StructureHandlers`` makes rows of them."""

    def __init__(self, server: Server, maps: MapService) -> None:
        self._maps = maps
        clear = clear_share(server.dataplane.shortage, maps.clear)
        self.shares: dict[str, tuple[Effect, RunShare]] = {
            "size": (Effect.READ, self._share_size),
            "contains_value": (Effect.READ, contains_share(maps.contains_value)),
            "keys": (Effect.READ, items_share(maps.key_set)),
            "values": (Effect.READ, items_share(maps.values)),
            "entries": (Effect.READ, items_share(lambda p, n: list(chain(*maps.entries(p, n))))),
            "clear": (Effect.WRITE, clear),
            "evict_all": (Effect.WRITE, clear),
        }
        self.calls: tuple[WholeCall, ...] = (
            ("size", "size", "", lambda _, g: min(g.count, INT_MAX)),
            ("isEmpty", "size", "", lambda _, g: g.count == 0),
            ("containsValue", "contains_value", "value", lambda _, g: g.count > 0),
            ("keySet", "keys", "", lambda _, g: g.items),
            ("values", "values", "", lambda _, g: g.items),
            ("entrySet", "entries", "", lambda _, g: pairs(g.items)),
            ("clear", "clear", "", lambda n, g: publish_whole(server, n, CLEAR_ALL, g)),
            ("evictAll", "evict_all", "", lambda n, g: publish_whole(server, n, EVICT_ALL, g)),
        )

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
