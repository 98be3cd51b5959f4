"""The values of one multimap in one partition, and nothing else.

Knows keys, values, and the bytes of backup operations and chunks. Knows nothing of replicas,
versions, members or listeners. How a value is told from the others of its key is in ``layout``.

Memory: the values of a key are one packed ``bytes``, and the keys are those of one dictionary of
bytes, which the collector does not walk. Only a key with more than PACKED_BYTES_MAX of values has a
dictionary of its own (mark to rest), so that a value is found and changed without touching the
others. A key goes without its partition hash, which equality does not look at; one that is not 0 is
kept beside.

Every change returns the backup operation that repeats it: a piece of state ("this value is, or is
not, under that key"), so that applying one twice, or late in its own order, does no harm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Final

from whimbrel.core.replication.content import Auditable
from whimbrel.core.replication.walk import Walk
from whimbrel.errors import ProtocolError
from whimbrel.serialization.data import DATA_HEADER_BYTES, HASH_BYTES, NO_HASH
from whimbrel.structures.multimap.content import MultiMapContent
from whimbrel.structures.multimap.cursor import Cursor, GivenUp
from whimbrel.structures.multimap.layout import (
    CHUNK_HEAD,
    CLEAR,
    GROUP,
    KIND_MASK,
    LENGTH,
    LENGTH_BYTES,
    OPERATION,
    OPERATION_BYTES,
    PUT,
    REMOVE,
    REMOVE_KEY,
    last_id,
    pack,
    read_chunk,
    unpack,
)

PACKED_BYTES_MAX: Final = 1_024
"""The values of a key are packed up to this size, and one of any size is."""
CHUNK_VALUES_MAX: Final = 2_000
"""Values in one chunk: small ones cost their receiver a microsecond each, whatever their bytes."""
FREED_AT_ONCE_MAX: Final = 4_000
"""A store, or a key, with more values than this is not freed in one step."""


class MultiMapStore(Auditable):
    """Keys with the values of each.

    Attributes:
        bytes_used: Bytes of keys and values, without what is needed to tell them apart.
    """

    __slots__ = (
        "_changes", "_count", "_free", "_hashes", "_large", "_last_id", "_packed", "bytes_used",
    )  # fmt: skip

    collection: ClassVar[int]
    """Its type: OF_SETS or OF_LISTS."""
    value_at: ClassVar[int]
    """Where in an item the value's Data begins."""

    def __init__(self, free: Callable[[GivenUp], None] | None = None) -> None:
        """An empty store.

        Args:
            free: Takes what is left of much that is removed; without it that is freed at once.
        """
        self._free = free
        self._packed: dict[bytes, bytes] = {}
        self._large: dict[bytes, dict[bytes, bytes]] = {}
        self._hashes: dict[bytes, bytes] = {}
        self._count = 0
        self._changes = 0
        """Rises when anything comes or goes."""
        self._last_id = 0
        """The greatest id that was ever given, here or at a primary before."""
        self.bytes_used = 0

    def __len__(self) -> int:
        """Values held, under all keys."""
        return self._count

    # -- the two types of collection -------------------------------------------------------

    @staticmethod
    @abstractmethod
    def _split(item: bytes) -> tuple[bytes, bytes]:
        """(mark, rest) of an item."""

    @staticmethod
    @abstractmethod
    def _join(mark: bytes, rest: bytes) -> bytes:
        """The item with this mark and rest."""

    @staticmethod
    @abstractmethod
    def _value(mark: bytes, rest: bytes) -> bytes:
        """The Data of the value with this mark and rest."""

    @staticmethod
    @abstractmethod
    def _id_of(item: bytes) -> int:
        """The id of an item; 0 where there are none."""

    @staticmethod
    @abstractmethod
    def _mark_of(values: dict[bytes, bytes], body: bytes) -> bytes | None:
        """The first mark of a value with this type and payload among many, or None."""

    @abstractmethod
    def _new_item(self, key: bytes, value: bytes) -> bytes | None:
        """The item by which a value is added to a stored key; None if it may not be."""

    # -- reading ---------------------------------------------------------------------------

    def get(self, key: bytes) -> list[bytes]:
        """The values of a key, those of a list in their order."""
        return self._values(key[HASH_BYTES:])

    def contains_key(self, key: bytes) -> bool:
        """Whether the key has a value."""
        stored = key[HASH_BYTES:]
        return stored in self._packed or stored in self._large

    def contains_entry(self, key: bytes, value: bytes) -> bool:
        """Whether the key has an equal value."""
        return self._find(key[HASH_BYTES:], value[HASH_BYTES:]) is not None

    def contains_value(self, value: bytes) -> bool:
        """Whether some key has an equal value; looks at all of them."""
        body = value[HASH_BYTES:]
        return any(self._find(key, body) is not None for key in self._keys())

    def count(self, key: bytes) -> int:
        """How many values the key has."""
        stored = key[HASH_BYTES:]
        packed = self._packed.get(stored)
        if packed is not None:
            return sum(1 for _ in unpack(packed))
        return len(self._large.get(stored, ()))

    def keys(self) -> list[bytes]:
        """The Data of all keys."""
        return [self._key_data(key) for key in self._keys()]

    def values(self) -> list[bytes]:
        """The Data of all values."""
        return [value for key in self._keys() for value in self._values(key)]

    def entries(self) -> list[bytes]:
        """The Data of keys and values in turn, a key before each of its values."""
        found: list[bytes] = []
        for key in self._keys():
            data = self._key_data(key)
            for value in self._values(key):
                found += (data, value)
        return found

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All that equal replicas have in common: each key's Data with each of its items."""
        for key in self._keys():
            data = self._key_data(key)
            for mark, rest in self._pairs(key):
                yield data, self._join(mark, rest)

    @property
    def content(self) -> MultiMapContent:
        """What equal replicas have in common."""
        return MultiMapContent(self)

    def mark_in(self, item: bytes) -> bytes:
        """By what an item is told from the others of its key."""
        return self._split(item)[0]

    def item(self, stored: bytes, mark: bytes) -> bytes:
        """The Data of a stored key and its item with this mark; empty when it is not there."""
        packed = self._packed.get(stored)
        if packed is None:
            rest = self._large.get(stored, {}).get(mark)
            return b"" if rest is None else self._key_data(stored) + self._join(mark, rest)
        for item in unpack(packed) if mark in packed else ():
            if self._split(item)[0] == mark:
                return self._key_data(stored) + item
        return b""

    def _keys(self) -> Iterator[bytes]:
        yield from self._packed
        yield from self._large

    def _key_data(self, key: bytes) -> bytes:
        """The Data of a stored key, with the partition hash it came with."""
        return (self._hashes.get(key, NO_HASH) if self._hashes else NO_HASH) + key

    def _values(self, key: bytes) -> list[bytes]:
        packed, at = self._packed.get(key), self.value_at
        if packed is not None:
            return [item[at:] for item in unpack(packed)]
        many = self._large.get(key, {})
        return [self._value(mark, rest) for mark, rest in many.items()]

    def _pairs(self, key: bytes) -> Iterable[tuple[bytes, bytes]]:
        """(mark, rest) of the items of a stored key."""
        packed = self._packed.get(key)
        if packed is not None:
            return map(self._split, unpack(packed))
        return self._large.get(key, {}).items()

    def _find(self, key: bytes, body: bytes) -> bytes | None:
        """The mark of the first value of a stored key with this type and payload, or None."""
        packed = self._packed.get(key)
        if packed is None:
            many = self._large.get(key)
            return None if many is None else self._mark_of(many, body)
        if body in packed:  # the bytes are there; but are they a value?
            at = self.value_at + HASH_BYTES
            for item in unpack(packed):
                if item[at:] == body:
                    return self._split(item)[0]
        return None

    # -- changing: each returns the backup operation ---------------------------------------

    def put(self, key: bytes, value: bytes) -> bytes | None:
        """Add a value to a key; None when a set has it already."""
        item = self._new_item(key[HASH_BYTES:], value)
        if item is None:
            return None
        self._add(key, item)
        return self._operation(PUT, key, item)

    def remove_entry(self, key: bytes, value: bytes) -> tuple[bytes, bytes] | None:
        """Remove the first equal value of a key: it, and the operation; None if there is none."""
        stored = key[HASH_BYTES:]
        mark = self._find(stored, value[HASH_BYTES:])
        if mark is None:
            return None
        rest = self._remove(stored, mark) or b""  # it is there: it was found just now
        return self._value(mark, rest), self._operation(REMOVE, key, mark)

    def remove_key(self, key: bytes) -> bytes | None:
        """Remove a key with all its values; None when it has none."""
        stored = key[HASH_BYTES:]
        packed = self._packed.pop(stored, None)
        many = self._large.pop(stored, None) if packed is None else None
        if packed is not None:
            lengths = [len(item) for item in unpack(packed)]
            count, size = len(lengths), sum(lengths)
        elif many is not None:
            count = len(many)
            size = sum(len(mark) + len(rest) for mark, rest in many.items())
            if count > FREED_AT_ONCE_MAX and self._free is not None:
                self._free(GivenUp({stored: many}))
        else:
            return None
        self._count -= count
        self.bytes_used -= size - count * self.value_at
        self._key_gone(stored)
        return self._operation(REMOVE_KEY, key)

    def clear(self) -> bytes:
        """Remove everything."""
        given = self.release()
        if given is not None and self._free is not None:
            self._free(given)
        self._packed, self._large, self._hashes = {}, {}, {}
        self._count = self.bytes_used = 0
        self._changes += 1
        return self._operation(CLEAR, b"")

    def release(self) -> GivenUp | None:
        """The values of a large store, which is empty then; a small one keeps them."""
        if self._count <= FREED_AT_ONCE_MAX:
            return None
        given = GivenUp(self._large, self._packed, self._hashes)
        self._packed, self._large, self._hashes = {}, {}, {}
        self._count = self.bytes_used = 0
        self._changes += 1
        return given

    def _operation(self, kind: int, key: bytes, tail: bytes = b"") -> bytes:
        return b"".join((OPERATION.pack(kind | self.collection, len(key)), key, tail))

    def _add(self, key: bytes, item: bytes) -> None:
        """Keep an item under the key with this Data, unless its mark is there."""
        stored = key[HASH_BYTES:]
        mark, rest = self._split(item)
        self._last_id = max(self._last_id, self._id_of(item))
        many = self._large.get(stored) if self._large else None
        if many is not None:
            if mark in many:
                return
            many[mark] = rest
        elif not self._add_packed(stored, item, mark, rest):
            return
        if not key.startswith(NO_HASH):
            self._hashes[stored] = key[:HASH_BYTES]
        self._count += 1
        self._changes += 1
        self.bytes_used += len(item) - self.value_at

    def _add_packed(self, stored: bytes, item: bytes, mark: bytes, rest: bytes) -> bool:
        """Add to a key that has packed values or none; False when the mark is there."""
        packed = self._packed.get(stored)
        if packed is None:
            self.bytes_used += len(stored)
            self._packed[stored] = LENGTH.pack(len(item)) + item
            return True
        if mark in packed and any(self._split(one)[0] == mark for one in unpack(packed)):
            return False
        if len(packed) + LENGTH_BYTES + len(item) > PACKED_BYTES_MAX:
            del self._packed[stored]
            many = self._large[stored] = dict(map(self._split, unpack(packed)))
            many[mark] = rest
        else:
            self._packed[stored] = b"".join((packed, LENGTH.pack(len(item)), item))
        return True

    def _remove(self, stored: bytes, mark: bytes) -> bytes | None:
        """Remove the item with this mark from a stored key: its rest; None when it is not there."""
        many = self._large.get(stored) if self._large else None
        if many is None:
            rest = self._remove_packed(stored, mark)
        else:
            rest = many.pop(mark, None)
            if len(many) == 1:
                del self._large[stored]
                self._packed[stored] = pack(self._join(*pair) for pair in many.items())
        if rest is None:
            return None
        self._count -= 1
        self._changes += 1
        self.bytes_used -= len(mark) + len(rest) - self.value_at
        return rest

    def _remove_packed(self, stored: bytes, mark: bytes) -> bytes | None:
        packed = self._packed.get(stored, b"")
        if mark not in packed:
            return None
        begin = 0
        for item in unpack(packed):
            end = begin + LENGTH_BYTES + len(item)
            found, rest = self._split(item)
            if found == mark:
                left = packed[:begin] + packed[end:]
                if left:
                    self._packed[stored] = left
                else:
                    del self._packed[stored]
                    self._key_gone(stored)
                return rest
            begin = end
        return None

    def _key_gone(self, stored: bytes) -> None:
        """A key has no value any more."""
        self._changes += 1
        self.bytes_used -= len(stored)
        if self._hashes:
            self._hashes.pop(stored, None)

    # -- repeating a change ----------------------------------------------------------------

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        """Apply the backup operation in ``buffer[start:end]``; applying it twice is harmless.

        Raises:
            ProtocolError: The bytes are no such operation; nothing is changed.
        """
        if start + OPERATION_BYTES > end:
            raise ProtocolError("a backup operation ends within its head")
        kind, key_length = OPERATION.unpack_from(buffer, start)
        if kind & ~KIND_MASK != self.collection:
            raise ProtocolError("a backup operation is of another value_collection_type")
        kind &= KIND_MASK
        start += OPERATION_BYTES
        split = start + key_length
        if split > end or (key_length < DATA_HEADER_BYTES and kind != CLEAR):
            raise ProtocolError("a backup operation ends within its key")
        key, tail = buffer[start:split], buffer[split:end]
        if kind == PUT:
            if len(tail) < self.value_at + DATA_HEADER_BYTES:
                raise ProtocolError("a backup operation ends within its value")
            self._add(key, tail)
        elif kind == REMOVE:
            self._remove(key[HASH_BYTES:], tail)
        elif kind == REMOVE_KEY:
            self.remove_key(key)
        elif kind == CLEAR:
            self.clear()
        else:
            raise ProtocolError(f"a multimap has no backup operation of kind {kind}")

    # -- nothing here expires --------------------------------------------------------------

    def stop_sweeping(self) -> None:
        """This store is a backup's from now on."""
        return

    def restart_idleness(self, now_ms: int) -> None:
        """Count idleness from now."""
        return

    # -- chunks ----------------------------------------------------------------------------

    def open_cursor(self) -> Cursor:
        """A walk over all values, for ``export``."""
        return Cursor(Walk(self._changes, self._packed, self._large))

    def export(self, cursor: Cursor, bytes_max: int) -> tuple[bytes, int, bool]:
        """The next values as they are now, their number and whether they are the last.

        The chunk ends with the value, or the packed values of a key, that reach ``bytes_max``, or
        after CHUNK_VALUES_MAX values; what was removed meanwhile is left out.
        """
        pieces = [CHUNK_HEAD.pack(self.collection, self._last_id)]
        keys = cursor.keys
        size = count = 0
        while keys.keys and size < bytes_max and count < CHUNK_VALUES_MAX:
            key = keys.keys[keys.position]
            packed = self._packed.get(key)
            taken = 0
            if packed is not None:
                taken = sum(1 for _ in unpack(packed))
                cursor.values = None
            elif key not in self._large:
                cursor.values = None
            else:
                packed, taken = self._export_some(cursor, key, bytes_max - size, count)
            if packed:
                data = self._key_data(key)
                pieces += (GROUP.pack(len(data), len(packed)), data, packed)
                size += GROUP.size + len(data) + len(packed)
                count += taken
            if cursor.values is None:
                keys.position += 1
                if keys.position == len(keys.keys):
                    keys.go_on(self._changes)
        return b"".join(pieces), count, not keys.keys

    def _export_some(
        self, cursor: Cursor, key: bytes, bytes_max: int, count: int
    ) -> tuple[bytes, int]:
        """The next values of a key with many, packed, and their number."""
        many = self._large[key]
        if cursor.values is not many:
            cursor.values = many
            cursor.marks = Walk(self._changes, many)
        marks = cursor.marks
        items: list[bytes] = []
        size = 0
        while marks.keys and size < bytes_max and count + len(items) < CHUNK_VALUES_MAX:
            mark = marks.keys[marks.position]
            rest = many.get(mark)
            if rest is not None:
                items.append(self._join(mark, rest))
                size += LENGTH_BYTES + len(mark) + len(rest)
            marks.position += 1
            if marks.position == len(marks.keys):
                marks.go_on(self._changes)
        if not marks.keys:
            cursor.values = None
        return pack(items), len(items)

    def ingest(self, data: bytes) -> int:
        """Take in a chunk; returns the number of values.

        Raises:
            SerializationError: The chunk is damaged; values before the damage are stored.
        """
        self._last_id = max(self._last_id, last_id(data, self.collection))
        count = 0
        for key, item in read_chunk(data, self.value_at):
            self._add(key, item)
            count += 1
        return count
