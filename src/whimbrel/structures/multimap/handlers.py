"""Requests to multimaps: single keys, whole multimaps, listeners."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import Namespace
from whimbrel.core.kinds import StructureKind
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.entry_events import CLEAR_ALL, entry_encoders, wants_entries
from whimbrel.serving.handlers_events import register, remover
from whimbrel.serving.listeners import Listener
from whimbrel.serving.operations import (
    Effect,
    Operation,
    RunInPartition,
    RunOnConnection,
    RunShare,
    Scope,
    Share,
    rows_of,
)
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection
from whimbrel.serving.structure_handlers import Read, StructureHandlers, WholeCall, Write
from whimbrel.serving.whole_structures import (
    INT_MAX,
    clear_share,
    contains_share,
    items_share,
    pairs,
    publish_whole,
)
from whimbrel.serving.write_group import WriteGroup
from whimbrel.structures.multimap.service import ADDED, REMOVED, MultiMapService
from whimbrel.structures.multimap.settings import NAME
from whimbrel.wire.codec import decode_request
from whimbrel.wire.frames import RawMessage

ADD_LISTENER = "MultiMap.addEntryListener"
ADD_LISTENER_TO_KEY = "MultiMap.addEntryListenerToKey"
_ENCODERS = entry_encoders(ADD_LISTENER, ADD_LISTENER_TO_KEY)


class MultiMapHandlers(StructureHandlers):
    """The multimap service's requests, as clients see them."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        """Begin with no multimap in use."""
        super().__init__(server, kind)
        self._multimaps = server.member.service(MultiMapService)

    def operations(self) -> list[Operation[Any]]:
        """See ``StructureHandlers.operations``."""
        listening: dict[str, RunOnConnection] = {
            ADD_LISTENER: self._listen,
            ADD_LISTENER_TO_KEY: self._listen,
            "MultiMap.removeEntryListener": remover(self._server),
        }
        return [
            *self._in_partition(),
            *self._whole(),
            *rows_of("", NAME, Scope.CONNECTION, Effect.NEUTRAL, listening),
        ]

    # -- single keys ----------------------------------------------------------------------

    def _in_partition(self) -> list[Operation[RunInPartition]]:
        """The rows of requests to one key, or to keys of one partition."""
        multimaps = self._multimaps
        reads: tuple[tuple[str, Read], ...] = (
            ("get", lambda p, n, f: {"response": multimaps.get(p, n, f["key"])}),
            ("containsKey", lambda p, n, f: {"response": multimaps.contains_key(p, n, f["key"])}),
            ("containsEntry", lambda p, n, f: {
                "response": multimaps.contains_entry(p, n, f["key"], f["value"])}),
            ("valueCount", lambda p, n, f: {
                "response": min(multimaps.count(p, n, f["key"]), INT_MAX)}),
        )  # fmt: skip
        answering: tuple[tuple[str, Write], ...] = (
            ("put", lambda p, n, f, r: multimaps.put(p, n, f["key"], f["value"], r)),
            ("remove", lambda p, n, f, r: multimaps.remove(p, n, f["key"], r)),
            ("removeEntry", lambda p, n, f, r: multimaps.remove_entry(
                p, n, f["key"], f["value"], r)),
        )  # fmt: skip
        silent: tuple[tuple[str, Write], ...] = (
            ("delete", lambda p, n, f, r: multimaps.delete(p, n, f["key"], r)),
            ("putAll", lambda p, n, f, r: multimaps.put_all(p, n, f["entries"], r)),
        )
        reading = {name: self._reading(run) for name, run in reads}
        writing = {name: self._writing(run) for name, run in answering}
        writing |= {name: self._writing(run, is_silent=True) for name, run in silent}
        return [
            *rows_of("MultiMap.", NAME, Scope.PARTITION, Effect.READ, reading),
            *rows_of("MultiMap.", NAME, Scope.PARTITION, Effect.WRITE, writing),
        ]

    # -- whole multimaps ------------------------------------------------------------------

    def _whole(self) -> list[Operation[Any]]:
        """The rows of requests to whole multimaps, and of their shares."""
        server, multimaps = self._server, self._multimaps
        shares: dict[str, tuple[Effect, RunShare]] = {
            "size": (Effect.READ, self._share_size),
            "contains_value": (Effect.READ, contains_share(multimaps.contains_value)),
            "keys": (Effect.READ, items_share(multimaps.key_set)),
            "values": (Effect.READ, items_share(multimaps.values)),
            "entries": (Effect.READ, items_share(multimaps.entries)),
            "clear": (Effect.WRITE, clear_share(server.dataplane.shortage, multimaps.clear)),
        }
        calls: tuple[WholeCall, ...] = (
            ("size", "size", "", lambda _, g: min(g.count, INT_MAX)),
            ("containsValue", "contains_value", "value", lambda _, g: g.count > 0),
            ("keySet", "keys", "", lambda _, g: g.items),
            ("values", "values", "", lambda _, g: g.items),
            ("entrySet", "entries", "", lambda _, g: pairs(g.items)),
            ("clear", "clear", "", lambda n, g: publish_whole(server, n, CLEAR_ALL, g)),
        )
        return self._whole_rows("MultiMap.", shares, calls)

    def _share_size(
        self,
        share: Share,
        partition: PartitionReplica,
        namespace: Namespace,
        _: bytes,
        __: WriteGroup,
    ) -> int:
        share.count += self._multimaps.size(partition, namespace)
        return 0

    # -- listeners ------------------------------------------------------------------------

    def _listen(self, connection: Connection, message: RawMessage) -> None:
        name, fields = decode_request(message)
        listener = Listener(
            connection,
            message[5],
            self._named(fields["name"]),
            _ENCODERS[name, fields["include_value"]],
            fields["local_only"],
            wants_entries(ADDED | REMOVED | CLEAR_ALL, fields.get("key")),
        )
        register(self._server, listener, message)
