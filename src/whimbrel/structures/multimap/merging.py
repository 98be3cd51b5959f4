"""Multimaps after a split: what a part hands over, and which of it is missing at the primary.

Of a set the union remains. Of a list the values remain of which the smaller part has more than the
bigger, as many as it has more: each value is handed over with its *ordinal*, the how manieth of its
equals under its key it is, and is missing where there are fewer. So it does not matter how the
values of a key are spread over chunks, nor whether one comes twice.

A chunk is, for each value, (little-endian) u32 length of the key, u32 length of the value, u32
ordinal, key's Data, value's Data; a key of length 0 is that of the value before.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Final

from whimbrel.core.ids import PartitionId
from whimbrel.core.partition.hashing import partition_hash, partition_of
from whimbrel.errors import SerializationError
from whimbrel.serialization.data import DATA_HEADER_BYTES, HASH_BYTES
from whimbrel.structures.multimap.cursor import Cursor
from whimbrel.structures.multimap.layout import read_chunk
from whimbrel.structures.multimap.store import MultiMapStore
from whimbrel.structures.multimap.typed_stores import ListStore

_HEAD: Final = struct.Struct("<III")


def make_chunk(store: MultiMapStore, cursor: Cursor, bytes_max: int) -> tuple[bytes, int]:
    """The next values of a store that nobody writes to, and how many they are."""
    chunk, count, _ = store.export(cursor, bytes_max)
    at = store.value_at
    pieces: list[bytes] = []
    last = b""
    for key, item in read_chunk(chunk, at):
        if key != cursor.last_key:
            cursor.last_key, cursor.tally = key, {}
        value = item[at:]
        body = value[HASH_BYTES:]
        ordinal = cursor.tally[body] = cursor.tally.get(body, 0) + 1
        named = b"" if key == last else key
        pieces += (_HEAD.pack(len(named), len(value), ordinal), named, value)
        last = key
    return b"".join(pieces), count


def split_chunk(chunk: bytes, partition_count: int) -> list[tuple[PartitionId, bytes, int]]:
    """A chunk by the partitions that its keys have among so many, with the values of each.

    Raises:
        SerializationError: It is damaged.
    """
    found: dict[PartitionId, list[bytes]] = {}
    last: dict[PartitionId, bytes] = {}
    counts: Counter[PartitionId] = Counter()
    for key, value, ordinal in read_values(chunk):
        pid = partition_of(partition_hash(key), partition_count)
        named = b"" if last.get(pid) == key else key
        found.setdefault(pid, []).extend(
            (_HEAD.pack(len(named), len(value), ordinal), named, value)
        )
        last[pid] = key
        counts[pid] += 1
    return [(pid, b"".join(pieces), counts[pid]) for pid, pieces in found.items()]


def read_values(chunk: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, ordinal) of each value in a chunk.

    Raises:
        SerializationError: It is damaged; what stands before the damage is yielded before.
    """
    position, end = 0, len(chunk)
    key = b""
    while position < end:
        at = position + _HEAD.size
        if at > end:
            raise SerializationError("a chunk of a multimap ends within its lengths")
        key_length, value_length, ordinal = _HEAD.unpack_from(chunk, position)
        split = at + key_length
        position = split + value_length
        key = chunk[at:split] or key
        if position > end or min(len(key), value_length) < DATA_HEADER_BYTES:
            raise SerializationError("a chunk of a multimap ends within an entry")
        yield key, chunk[split:position], ordinal


class Missing:
    """Which values of a chunk a store has fewer of, asked once for each in their order."""

    def __init__(self, store: MultiMapStore) -> None:
        self._store = store
        self._key = b""
        self._tally: Counter[bytes] = Counter()
        """How often the key asked about last has each value."""

    def is_missing(self, key: bytes, value: bytes, ordinal: int) -> bool:
        """Whether it has fewer than ``ordinal`` of this value; it has one more from now on then."""
        if not isinstance(self._store, ListStore):
            return not self._store.contains_entry(key, value)
        if key != self._key:
            self._key = key
            self._tally = Counter(one[HASH_BYTES:] for one in self._store.get(key))
        body = value[HASH_BYTES:]
        if self._tally[body] >= ordinal:
            return False
        self._tally[body] += 1
        return True
