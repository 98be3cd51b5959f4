"""Bugs of multimaps: a removal that stays at home, a value that falls between two chunks."""

from __future__ import annotations

from whimbrel.core.ids import Namespace
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.core.replication.outbox import Reply
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace
from whimbrel.sim.structures.configured import LIST_NAME
from whimbrel.sim.structures.multimap.ledger import store_of
from whimbrel.structures.multimap.cursor import Cursor
from whimbrel.structures.multimap.service import MultiMapService
from whimbrel.structures.multimap.settings import NAME
from whimbrel.structures.multimap.store import MultiMapStore
from whimbrel.structures.multimap.typed_stores import ListStore, SetStore


def removal_not_backed_up(engine: Engine) -> None:
    """A value is removed at the primary alone."""
    service = engine.member.service(MultiMapService)

    def remove_entry(
        partition: PartitionReplica, namespace: Namespace, key: bytes, value: bytes, reply: Reply
    ) -> bool:
        fragment = partition.fragments.get(namespace)
        return (
            fragment is not None and store_of(fragment.store).remove_entry(key, value) is not None
        )

    replace(service, "remove_entry", remove_entry)


def value_lost_between_chunks(engine: Engine) -> None:
    """A chunk that ends among the values of a key forgets the next one."""

    def forget(store: MultiMapStore, cursor: Cursor) -> None:
        if cursor.values is not None and cursor.marks.position + 1 < len(cursor.marks.keys):
            cursor.marks.position += 1

    class Sets(SetStore):
        __slots__ = ()

        def export(self, cursor: Cursor, bytes_max: int) -> tuple[bytes, int, bool]:
            result = super().export(cursor, bytes_max)
            forget(self, cursor)
            return result

    class Lists(ListStore):
        __slots__ = ()

        def export(self, cursor: Cursor, bytes_max: int) -> tuple[bytes, int, bool]:
            result = super().export(cursor, bytes_max)
            forget(self, cursor)
            return result

    def new_store(namespace: Namespace) -> MultiMapStore:
        return Lists() if namespace.endswith(LIST_NAME) else Sets()

    engine.member.dataplane.holdings.register(NAME, new_store)


def ids_begin_again(engine: Engine) -> None:
    """A copy of a list does not say which ids were given: a new value may get one of the old."""

    class Lists(ListStore):
        __slots__ = ()

        def ingest(self, data: bytes) -> int:
            count = super().ingest(data)
            self._last_id = 0
            return count

    def new_store(namespace: Namespace) -> MultiMapStore:
        return Lists() if namespace.endswith(LIST_NAME) else SetStore()

    engine.member.dataplane.holdings.register(NAME, new_store)


BUGS: tuple[Bug, ...] = (
    Bug(removal_not_backed_up, "kill", ("D9", "D13", "D3", "D1"), kinds=(NAME,)),
    Bug(value_lost_between_chunks, "move", ("D13", "D9", "D6", "D1"), kinds=(NAME,)),
    Bug(ids_begin_again, "move", ("D13", "D9", "D6", "D1"), kinds=(NAME,)),
)
