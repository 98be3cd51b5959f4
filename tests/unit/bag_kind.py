"""A made-up kind of structure: bags, whose items lie in a partition that the client chooses.

The protocol has no requests for it, so requests that nobody handles stand in for its own.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, cast

from whimbrel.core.ids import Namespace
from whimbrel.core.kinds import StructureKind, StructureService
from whimbrel.core.messages import MergeCounts
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import PendingReply, Reply
from whimbrel.core.settings import PartitionedSettings
from whimbrel.errors import SerializationError
from whimbrel.serving.handlers_events import register
from whimbrel.serving.kinds import ServedKind
from whimbrel.serving.listeners import Listener, StructureEvent
from whimbrel.serving.operations import Effect, Operation, Scope, Share
from whimbrel.serving.server import Server
from whimbrel.serving.session import Connection
from whimbrel.serving.structure_handlers import StructureHandlers
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire.codec import decode_request, encode_event
from whimbrel.wire.field_codec import Fields
from whimbrel.wire.frames import RawMessage

BAG = "bag"
SERVICE = "test:bagService"
ADD, HAS, ITEMS = "MultiMap.forceUnlock", "MultiMap.isLocked", "Map.project"
LISTEN = "Map.addNearCacheInvalidationListener"
ADDED = 1
_LENGTH = struct.Struct("<I")


class BagSettings(PartitionedSettings, frozen=True):
    """Settings of bags."""

    kind: ClassVar[str] = BAG


class BagStore:
    """Items, in the order in which they came; its cursor is a list with the next position."""

    def __init__(self) -> None:
        self.items: dict[bytes, None] = {}
        self.bytes_used = 0

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: bytes) -> bool:
        is_new = item not in self.items
        self.items[item] = None
        self.bytes_used += len(item) if is_new else 0
        return is_new

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        self.add(buffer[start:end])

    def open_cursor(self) -> list[int]:
        return [0]

    def export(self, cursor: list[int], bytes_max: int) -> tuple[bytes, int, bool]:
        chunk, count = b"", 0
        for item in list(self.items)[cursor[0] :]:
            if len(chunk) >= bytes_max:
                break
            chunk += _LENGTH.pack(len(item)) + item
            count += 1
        cursor[0] += count
        return chunk, count, cursor[0] >= len(self.items)

    def ingest(self, data: bytes) -> int:
        items = items_in(data)
        for item in items:
            self.add(item)
        return len(items)

    def stop_sweeping(self) -> None:
        return

    def release(self) -> None:
        return

    def restart_idleness(self, now_ms: int) -> None:
        return


def items_in(chunk: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(chunk):
        end = position + 4 + _LENGTH.unpack_from(chunk, position)[0]
        if end > len(chunk):
            raise SerializationError("a bag's chunk ends within an item")
        found.append(chunk[position + 4 : end])
        position = end
    return found


class BagService(StructureService):
    """All bags of a member; a merge is a union, told with the first letter of its chunks."""

    kind_name = BAG

    def new_store(self, namespace: Namespace) -> BagStore:
        return BagStore()

    def add(
        self, partition: PartitionReplica, namespace: Namespace, item: bytes, reply: Reply
    ) -> bool:
        self._outgoing.admit(partition, namespace)
        return self._put(partition, namespace, item, reply)

    def _put(
        self, partition: PartitionReplica, namespace: Namespace, item: bytes, reply: Reply
    ) -> bool:
        fragment = self._holdings.begin(partition, namespace)
        is_new = cast("BagStore", fragment.store).add(item)
        if is_new:
            self._holdings.change(partition, fragment, item, reply)
            self._events.tell((namespace, ADDED, item, None, None))
        return is_new

    def items(self, partition: PartitionReplica, namespace: Namespace) -> list[bytes]:
        fragment = partition.fragments.get(namespace)
        return [] if fragment is None else list(cast("BagStore", fragment.store).items)

    def leftover_chunk(self, store: Any, cursor: Any, bytes_max: int) -> tuple[bytes, int]:
        chunk, count = super().leftover_chunk(store, cursor, bytes_max)
        return b"B" + chunk, count

    def merge(
        self, partition: PartitionReplica, namespace: Namespace, chunk: bytes, reply: PendingReply
    ) -> MergeCounts:
        if chunk[:1] != b"B":
            raise AssertionError("another kind's chunk")
        news = [self._put(partition, namespace, item, reply) for item in items_in(chunk[1:])]
        return MergeCounts(added=sum(news), same=len(news) - sum(news))


class BagHandlers(StructureHandlers):
    """Requests to bags."""

    def __init__(self, server: Server, kind: StructureKind) -> None:
        super().__init__(server, kind)
        self._bags = server.member.service(BagService)

    def operations(self) -> list[Operation[Any]]:
        everywhere = Scope.ALL_PARTITIONS
        adding = self._writing(self._add, is_silent=True)
        asking = self._asking("keys", lambda _, gather: gather.items)
        return [
            Operation(ADD, BAG, Scope.PARTITION, Effect.WRITE, adding),
            Operation(HAS, BAG, Scope.PARTITION, Effect.READ, self._reading(self._has)),
            Operation("keys", BAG, Scope.SHARE, Effect.READ, self._share_items),
            Operation(ITEMS, BAG, everywhere, Effect.READ, asking),
            Operation(LISTEN, BAG, Scope.CONNECTION, Effect.NEUTRAL, self._listen),
        ]

    def _add(self, p: PartitionReplica, n: Namespace, f: Fields, reply: PendingReply) -> object:
        return self._bags.add(p, n, f["key"], reply)

    def _has(self, p: PartitionReplica, n: Namespace, f: Fields) -> dict[str, Any]:
        return {"response": f["key"] in self._bags.items(p, n)}

    def _share_items(
        self, share: Share, p: PartitionReplica, n: Namespace, _: bytes, __: WriteGroup
    ) -> int:
        found = self._bags.items(p, n)
        share.items += found
        return len(found)

    def _listen(self, connection: Connection, message: RawMessage) -> None:
        _, fields = decode_request(message)
        namespace, only_here = self._named(fields["name"]), fields["local_only"]
        listener = Listener(connection, message[5], namespace, encode_item, only_here)
        register(self._server, listener, message)


def encode_item(event: StructureEvent) -> bytes:
    return encode_event(
        LISTEN, "invalidation", 0,
        key=event.key, source_uuid=event.source, partition_uuid=event.source, sequence=event.flag,
    )  # fmt: skip


BAGS = ServedKind(
    name=BAG,
    service_name=SERVICE,
    settings_type=BagSettings,
    make_service=BagService,
    make_handlers=BagHandlers,
)
