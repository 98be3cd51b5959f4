"""The two types of a multimap's store: what tells the values of a key apart (see ``layout``)."""

from __future__ import annotations

from whimbrel.serialization.data import HASH_BYTES, NO_HASH
from whimbrel.structures.multimap.layout import (
    ID_BYTES,
    OF_LISTS,
    OF_SETS,
)
from whimbrel.structures.multimap.store import MultiMapStore


class SetStore(MultiMapStore):
    """A store in which a key has each value once, in no order."""

    __slots__ = ()
    collection = OF_SETS
    value_at = 0

    @staticmethod
    def _split(item: bytes) -> tuple[bytes, bytes]:
        rest = item[:HASH_BYTES]
        return item[HASH_BYTES:], NO_HASH if rest == NO_HASH else rest

    @staticmethod
    def _join(mark: bytes, rest: bytes) -> bytes:
        return rest + mark

    _value = _join

    @staticmethod
    def _id_of(item: bytes) -> int:
        return 0

    @staticmethod
    def _mark_of(values: dict[bytes, bytes], body: bytes) -> bytes | None:
        return body if body in values else None

    def _new_item(self, key: bytes, value: bytes) -> bytes | None:
        return value if self._find(key, value[HASH_BYTES:]) is None else None


class ListStore(MultiMapStore):
    """A store in which a key has its values in the order in which they came, equal ones too."""

    __slots__ = ()
    collection = OF_LISTS
    value_at = ID_BYTES

    @staticmethod
    def _split(item: bytes) -> tuple[bytes, bytes]:
        return item[:ID_BYTES], item[ID_BYTES:]

    @staticmethod
    def _join(mark: bytes, rest: bytes) -> bytes:
        return mark + rest

    @staticmethod
    def _value(mark: bytes, rest: bytes) -> bytes:
        return rest

    @staticmethod
    def _id_of(item: bytes) -> int:
        return int.from_bytes(item[:ID_BYTES], "big")

    @staticmethod
    def _mark_of(values: dict[bytes, bytes], body: bytes) -> bytes | None:
        return next((mark for mark, rest in values.items() if rest[HASH_BYTES:] == body), None)

    def _new_item(self, key: bytes, value: bytes) -> bytes | None:
        return (self._last_id + 1).to_bytes(ID_BYTES, "big") + value
