"""The entries of one map in one partition, and nothing else.

Knows keys, packed records, expiry and the bytes of backup operations and chunks. Knows nothing of
replicas, versions, members or listeners. Time is given by the caller in wall clock milliseconds.

A key is kept in the form that ``record.stored_key`` gives it: without the partition hash, which
equality does not look at. A hash other than 0 is kept beside, so that a key is handed out as it
came in. Timings are kept beside too, for entries that can expire only: the ordinary entry is one
dictionary slot.

Every change returns the backup operation that repeats it: a piece of state ("this record under that
key"), so that applying one twice, or late in its own order, does no harm.
"""

from __future__ import annotations

import heapq
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from whimbrel.core.replication.comparison import Comparable
from whimbrel.core.replication.content import Auditable
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.serialization.data import HASH_BYTES, NO_HASH
from whimbrel.structures.map.comparing import MapComparison, StoreWalk
from whimbrel.structures.map.content import MapContent
from whimbrel.structures.map.locks import Locks
from whimbrel.structures.map.record import (
    CHUNK_ENTRY,
    CHUNK_HASH,
    CHUNK_LENGTH_MASK,
    CHUNK_LOCK,
    CHUNK_TIMING,
    CLEAR,
    KIND_MASK,
    LOCK_STATE,
    MOMENT_BYTES,
    MOMENT_MASK,
    NEVER_MS,
    OPERATION,
    OPERATION_BYTES,
    PUT,
    RECORD,
    RECORD_BYTES,
    REMOVE,
    TIMING,
    TIMING_BYTES,
    UNSET,
    WITH_HASH,
    WITH_TIMING,
    EntryView,
    deadline_of,
    key_body,
    make_timing,
    record_head,
)
from whimbrel.structures.map.sampling import Sampling

CHUNK_ENTRIES_MAX = 2_000
"""Entries in one chunk: small ones cost their receiver a microsecond each, whatever their bytes."""

SCAN_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of keys and values after which a chunk of a scan ends, however few entries it has: an
answer must fit into a message whatever the size of the values."""
FREED_AT_ONCE_MAX = 4_000
"""A store with more entries than this is not freed in one step."""
SCAN_END = -1
"""The cursor after the last chunk."""
SCAN_IDLE_MS = 60_000
"""The order of an abandoned scan is forgotten after this time; a later call makes it again."""
HEAP_SLACK = 64
"""The expiry heap is rebuilt when it has this many more than twice the entries that can expire."""

_pack_record = RECORD.pack
_unpack_record = RECORD.unpack_from
_pack_operation = OPERATION.pack
_unpack_operation = OPERATION.unpack_from
_CLEAR_OPERATION = OPERATION.pack(CLEAR, 0)


class GivenUp:
    """The entries of a store that was dropped or cleared, until they are freed."""

    __slots__ = ("_tables",)

    def __init__(self, *tables: dict[bytes, Any]) -> None:
        self._tables = [table for table in tables if table]

    def __len__(self) -> int:
        """Entries that are still to be freed, those beside the records counted, too."""
        return sum(map(len, self._tables))

    def free_some(self, entries_max: int, bytes_max: int) -> int:
        """See ``deferred_free.Freeable``."""
        size = 0
        while self._tables and entries_max > 0 and size < bytes_max:
            _, value = self._tables[0].popitem()
            size += len(value) if isinstance(value, bytes) else 0
            entries_max -= 1
            if not self._tables[0]:
                del self._tables[0]
        return size


class MapStore(Comparable, Auditable):
    """A dictionary of packed records with expiry, scans, chunks and byte accounting.

    Attributes:
        records: Stored key to packed record. Read-only for everybody else.
        timings: Stored key to packed timing, for entries that can expire.
        hashes: Stored key to the partition hash that it came with, where there was one.
        changes: Rises whenever a key comes or goes.
        locks: Who holds which keys; None until one is locked for the first time.
        bytes_used: Bytes of stored keys and of values, headers of records excluded, and of locks.
    """

    __slots__ = (
        "_compares", "_free", "_heap", "_sampling", "_scan_at_ms", "_scan_changes",
        "_scan_hashes", "_scan_keys", "bytes_used", "changes", "hashes", "locks", "records",
        "timings",
    )  # fmt: skip

    def __init__(
        self, free: Callable[[GivenUp], None] | None = None, *, compares: bool = True
    ) -> None:
        """An empty store.

        Args:
            free: Takes what ``clear`` leaves of a large store; without it that is freed at once.
            compares: Whether copies of it may begin with a comparison.
        """
        self._free = free
        self._compares = compares
        self.records: dict[bytes, bytes] = {}
        self.timings: dict[bytes, bytes] = {}
        self.locks: Locks | None = None
        self.bytes_used = 0
        self.hashes: dict[bytes, bytes] = {}
        self._heap: list[bytes] | None = None
        self._sampling: Sampling | None = None
        self.changes = 0
        self._scan_keys: list[bytes] = []
        self._scan_hashes = array("I")
        self._scan_changes = -1
        """As of the order of the keys; negative when there is none."""
        self._scan_at_ms = 0

    def __len__(self) -> int:
        """Entries held, expired ones that were not swept yet included."""
        return len(self.records)

    @property
    def comparison(self) -> MapComparison | None:
        """How it is compared with another store of the same map, if it may be."""
        return MapComparison(self) if self._compares else None

    @property
    def content(self) -> MapContent:
        """What equal replicas have in common."""
        return MapContent(self)

    # -- reading --------------------------------------------------------------------------

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        """The value of a stored key, or None; counts as an access for the idle limit."""
        record = self.records.get(key)
        if record is None:
            return None
        if self.timings and key in self.timings and not self._touch(key, now_ms):
            return None
        return record[RECORD_BYTES:]

    def contains(self, key: bytes, now_ms: int) -> bool:
        """Whether the key is there; counts as an access, as reading does."""
        if key not in self.records:
            return False
        return key not in self.timings or self._touch(key, now_ms)

    def is_expired(self, key: bytes, now_ms: int) -> bool:
        """Whether the key is there but past its time."""
        timing = self.timings.get(key)
        return timing is not None and deadline_of(timing) <= now_ms

    def size(self, now_ms: int) -> int:
        """Entries that are not expired. O(entries that can expire)."""
        expired = 0
        for timing in self.timings.values():
            if deadline_of(timing) <= now_ms:
                expired += 1
        return len(self.records) - expired

    def entries(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Key Data and value of each entry that is not expired; no change may come between."""
        timings = self.timings
        for key, record in self.records.items():
            if timings and key in timings and deadline_of(timings[key]) <= now_ms:
                continue
            yield self.key_data(key), record[RECORD_BYTES:]

    def key_data(self, key: bytes) -> bytes:
        """The whole Data of a stored key, with the partition hash it came with."""
        return (self.hashes.get(key, NO_HASH) if self.hashes else NO_HASH) + key_body(key)

    def entry_view(self, key: bytes, now_ms: int) -> EntryView | None:
        """Everything known about an entry, None when it is not there or expired."""
        record = self.records.get(key)
        if record is None or self.is_expired(key, now_ms):
            return None
        created_ms, updated_ms, version = record_head(record)
        ttl_ms = idle_ms = 0
        access_ms = UNSET
        expires_ms = NEVER_MS
        timing = self.timings.get(key)
        if timing is not None:
            ttl_ms, _, idle_ms, touched_ms = TIMING.unpack(timing)
            access_ms = touched_ms if idle_ms else UNSET
            expires_ms = deadline_of(timing)
        return EntryView(
            key=self.key_data(key),
            value=record[RECORD_BYTES:],
            cost=len(key) + len(record),
            created_ms=created_ms,
            updated_ms=updated_ms,
            expires_ms=expires_ms,
            last_access_ms=access_ms,
            hits=UNSET,
            version=version,
            ttl_ms=ttl_ms,
            max_idle_ms=idle_ms,
        )

    def _touch(self, key: bytes, now_ms: int) -> bool:
        """Note an access to an entry that can expire; False when it is expired."""
        timing = self.timings[key]
        ttl_ms, end_ms, idle_ms, access_ms = TIMING.unpack(timing)
        if end_ms <= now_ms or (idle_ms and access_ms + idle_ms <= now_ms):
            return False
        if idle_ms and now_ms > access_ms:
            # A later moment than the one in the heap: the sweep finds that out by itself.
            self.timings[key] = TIMING.pack(ttl_ms, end_ms, idle_ms, now_ms)
        return True

    # -- changing: each returns the backup operation ---------------------------------------

    def put(
        self, key: bytes, value: bytes, now_ms: int, timing: bytes = b"", key_hash: bytes = b""
    ) -> tuple[bytes | None, bytes]:
        """Store a value, with a timing of ``make_timing`` or none; the former record or None.

        Limits of an earlier value do not live on; the caller has removed an expired one before
        (``is_expired``). Also returns the backup operation.
        """
        old = self.records.get(key)
        low, high = now_ms & 0xFFFFFFFF, now_ms >> 32 & 0xFFFF
        if old is None:
            created = (now_ms & MOMENT_MASK).to_bytes(MOMENT_BYTES, "little")
            record = _pack_record(created, low, high, 0, 0) + value
            self.bytes_used += len(key) + len(value)
            self.changes += 1
        else:
            created, _, _, version, version_high = _unpack_record(old)
            version += 1 + (version_high << 16)
            record = (
                _pack_record(created, low, high, version & 0xFFFF, version >> 16 & 0xFF) + value
            )
            self.bytes_used += len(record) - len(old)
        self.records[key] = record
        if timing or key_hash or self.timings:
            self._set_beside(key, timing, key_hash)
            return old, self._put_operation(key, record)
        return old, b"".join((_pack_operation(PUT, len(key)), key, record))

    def put_merged(self, key: bytes, source: MapStore, value: bytes | None, now_ms: int) -> bytes:
        """Store an entry of another store with its times and limits; the backup operation.

        A value stands in place of the entry's own, written now.
        """
        timing, key_hash = source.timings.get(key, b""), source.hashes.get(key, b"")
        if value is not None:
            return self.put(key, value, now_ms, timing, key_hash)[1]
        record = source.records[key]
        self.take(key, record, timing, key_hash)
        return self._put_operation(key, record)

    def set_timing(self, key: bytes, ttl_ms: int, max_idle_ms: int, now_ms: int) -> bytes | None:
        """Give an entry other limits, counted from now; None when the key is not there."""
        record = self.records.get(key)
        if record is None or self.is_expired(key, now_ms):
            return None
        self._set_beside(key, make_timing(ttl_ms, max_idle_ms, now_ms), b"")
        return self._put_operation(key, record)

    def remove(self, key: bytes) -> tuple[bytes | None, bytes]:
        """Remove a key: its record or None, and the backup operation."""
        old = self.records.pop(key, None)
        if old is not None:
            self.bytes_used -= len(key) + len(old) - RECORD_BYTES
            self.changes += 1
            if self.timings:
                self.timings.pop(key, None)
            if self.hashes:
                self.hashes.pop(key, None)
        return old, _pack_operation(REMOVE, len(key)) + key

    def clear(self) -> bytes:
        """Remove everything but the entries of locked keys; the backup operation.

        What stays goes along, and is no question of the locks that the receiver has: a copy that
        is under way may have entries and not their locks yet.
        """
        held: dict[bytes, bytes] = {} if self.locks is None else self.locks.held
        kept = self.chunk_of([key for key in held if key in self.records])
        self._replace_all(kept)
        return _CLEAR_OPERATION + kept

    def _replace_all(self, kept: bytes) -> None:
        """Remove everything but the entries of this chunk."""
        given = self.release()
        if given is not None and self._free is not None:
            self._free(given)
        for table in self._tables():
            table.clear()
        self.bytes_used = 0 if self.locks is None else self.locks.bytes_used
        self.ingest(kept)
        self._heap = self._sampling = None
        self.changes += 1
        self._forget_scan()

    def set_lock(self, key: bytes, lock: bytes) -> bytes:
        """Make this true of a key's lock, see ``Locks.set``; the backup operation."""
        locks = self.locks
        if locks is None:
            locks = self.locks = Locks()
        before = locks.bytes_used
        locks.set(key, lock)
        self.bytes_used += locks.bytes_used - before
        return b"".join((_pack_operation(LOCK_STATE, len(key)), key, lock))

    def release(self) -> GivenUp | None:
        """The entries of a large store, which is empty then; a small one keeps them."""
        if len(self.records) <= FREED_AT_ONCE_MAX:
            return None
        given = GivenUp(*self._tables())
        self._sampling = None
        self.records, self.timings, self.hashes = {}, {}, {}
        self.bytes_used = 0
        return given

    def _tables(self) -> tuple[dict[bytes, Any], ...]:
        """What grows with the number of entries."""
        return self.records, self.timings, self.hashes

    def _set_beside(self, key: bytes, timing: bytes, key_hash: bytes) -> None:
        """Keep what the ordinary entry does not have; an empty timing takes the limits away."""
        if key_hash:
            self.hashes[key] = key_hash
        if not timing:
            self.timings.pop(key, None)
            return
        former = self.timings.get(key)
        self.timings[key] = timing
        heap = self._heap
        if heap is None:
            return
        deadline = deadline_of(timing)
        # A heap item with an earlier moment is put back by the sweep, so only an earlier one
        # than the known must be added.
        if former is None or deadline < deadline_of(former):
            heapq.heappush(heap, deadline.to_bytes(8, "big") + key)
            if len(heap) > 2 * len(self.timings) + HEAP_SLACK:
                self._heap = None

    def _put_operation(self, key: bytes, record: bytes) -> bytes:
        """The backup operation that stores this record with all that is kept beside it."""
        timing = self.timings.get(key, b"")
        key_hash = self.hashes.get(key, b"")
        kind = PUT | (WITH_TIMING if timing else 0) | (WITH_HASH if key_hash else 0)
        return b"".join((_pack_operation(kind, len(key)), timing, key_hash, key, record))

    # -- repeating a change ----------------------------------------------------------------

    def apply(self, buffer: bytes, start: int, end: int) -> None:
        """Apply the backup operation in ``buffer[start:end]``; applying it twice is harmless.

        Raises:
            ProtocolError: The bytes are no such operation; nothing is changed.
        """
        kind, key_length = _unpack_operation(buffer, start)
        start += OPERATION_BYTES
        if kind != PUT or self.timings:
            self._apply_other(kind, key_length, buffer, start, end)
            return
        # What nearly every operation is, of backups and of logs that are loaded; as ``take``.
        split = start + key_length
        if split + RECORD_BYTES > end:
            raise ProtocolError("a backup operation ends within its record")
        key, record, records = buffer[start:split], buffer[split:end], self.records
        old = records.setdefault(key, record)
        if old is record:
            self.bytes_used += end - start - RECORD_BYTES
            self.changes += 1
        else:
            records[key] = record
            self.bytes_used += len(record) - len(old)

    def _apply_other(self, kind: int, key_length: int, buffer: bytes, start: int, end: int) -> None:
        """Apply an operation whose key, or what stands before it, begins at ``start``."""
        timing = key_hash = b""
        if kind > KIND_MASK:
            if kind & WITH_TIMING:
                timing = buffer[start : start + TIMING_BYTES]
                start += TIMING_BYTES
            if kind & WITH_HASH:
                key_hash = buffer[start : start + HASH_BYTES]
                start += HASH_BYTES
            kind &= KIND_MASK
        split = start + key_length
        if kind == PUT:
            if split + RECORD_BYTES > end:
                raise ProtocolError("a backup operation ends within its record")
            self.take(buffer[start:split], buffer[split:end], timing, key_hash)
        elif split > end:
            raise ProtocolError("a backup operation ends within its key")
        elif kind == REMOVE:
            self.remove(buffer[start:split])
        elif kind == CLEAR:
            kept = buffer[split:end]
            try:
                MapStore().ingest(kept)
            except SerializationError as error:
                raise ProtocolError(f"a map is not cleared: {error}") from error
            self._replace_all(kept)
        elif kind == LOCK_STATE:
            self.set_lock(buffer[start:split], buffer[split:end])
        else:
            raise ProtocolError(f"a map has no backup operation of kind {kind}")

    def take(self, key: bytes, record: bytes, timing: bytes, key_hash: bytes) -> None:
        """Put a whole record in place, with what is kept beside it."""
        old = self.records.get(key)
        if old is None:
            self.bytes_used += len(key) + len(record) - RECORD_BYTES
            self.changes += 1
        else:
            self.bytes_used += len(record) - len(old)
        self.records[key] = record
        if timing or key_hash or self.timings:
            self._set_beside(key, timing, key_hash)

    # -- expiry ----------------------------------------------------------------------------

    def sweep_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, bytes, bytes]]:
        """Remove entries whose time is over, earliest first.

        The heap is made at the first call, so a backup, which never sweeps, has none.

        Returns:
            At most ``limit`` triples (key Data, value, backup operation).
        """
        if not self.timings:
            self._heap = None
            return []
        heap = self._heap
        if heap is None:
            heap = self._heap = [
                deadline_of(timing).to_bytes(8, "big") + key for key, timing in self.timings.items()
            ]
            heapq.heapify(heap)
        gone: list[tuple[bytes, bytes, bytes]] = []
        later = (now_ms + 1).to_bytes(8, "big")
        while heap and heap[0] < later and len(gone) < limit:
            item = heapq.heappop(heap)
            key = item[8:]
            timing = self.timings.get(key)
            if timing is None:
                continue
            deadline = deadline_of(timing)
            if deadline > now_ms:
                if deadline < NEVER_MS:
                    heapq.heappush(heap, deadline.to_bytes(8, "big") + key)
                continue
            data = self.key_data(key)
            record, operation = self.remove(key)
            if record is not None:
                gone.append((data, record[RECORD_BYTES:], operation))
        return gone

    def stop_sweeping(self) -> None:
        """Forget what only a primary needs: this store is a backup's from now on."""
        self._heap = self._sampling = None

    def restart_idleness(self, now_ms: int) -> None:
        """Count idleness from now: a backup has not seen the reads at its primary.

        Called at a promotion. An entry may live longer than its limit, never shorter.
        """
        for key, timing in list(self.timings.items()):
            ttl_ms, end_ms, idle_ms, access_ms = TIMING.unpack(timing)
            if idle_ms and access_ms < now_ms:
                self.timings[key] = TIMING.pack(ttl_ms, end_ms, idle_ms, now_ms)

    # -- eviction --------------------------------------------------------------------------

    def sample(self, count: int, spared: bytes) -> list[bytes]:
        """Some stored keys, ``spared`` not among them; see ``Sampling.take``.

        What it takes is made at the first call, so only the primary of a map that is full has it.
        """
        if self._sampling is None:
            self._sampling = Sampling()
        return self._sampling.take(self.records, count, spared)

    # -- scanning ----------------------------------------------------------------------------

    def scan(self, cursor: int, count: int, now_ms: int) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The next entries of a walk over all of them.

        The walk goes along a 31-bit hash of the keys, so a cursor needs no memory here and means
        the same at every replica: it may go on at another member. An entry that is there from the
        first call to the last is returned exactly once; one that comes or goes meanwhile, at most
        once. Keys of equal hash stay together, so a chunk may be a little longer than asked.

        The order is computed at a first call (cursor 0) and reused until keys have come or gone.
        ``count`` entries are wanted; fewer come when they fill SCAN_BYTES_MAX, and those that are
        expired are left out.

        Returns:
            The next cursor, SCAN_END after the last chunk, and pairs (key Data, value).
        """
        if cursor < 0:
            return SCAN_END, []
        if self._scan_changes < 0 or (cursor == 0 and self._scan_changes != self.changes):
            self._order_scan()
        self._scan_at_ms = now_ms
        keys, hashes = self._scan_keys, self._scan_hashes
        records, timings = self.records, self.timings
        position = bisect_left(hashes, cursor)
        found: list[tuple[bytes, bytes]] = []
        total, size = len(keys), 0
        while position < total:
            here = hashes[position]
            if (len(found) >= count or size >= SCAN_BYTES_MAX) and here != hashes[position - 1]:
                return here, found
            key = keys[position]
            record = records.get(key)
            position += 1
            if record is None or (timings and self.is_expired(key, now_ms)):
                continue
            found.append((self.key_data(key), record[RECORD_BYTES:]))
            size += len(key) + len(record)
        self._forget_scan()
        return SCAN_END, found

    def forget_idle_scan(self, now_ms: int) -> None:
        """Free the order of a scan that nobody went on with."""
        if self._scan_keys and now_ms - self._scan_at_ms > SCAN_IDLE_MS:
            self._forget_scan()

    def _order_scan(self) -> None:
        """Sort the keys by hash; O(n log n), once for a scan."""
        self._scan_keys = sorted(self.records, key=crc32)
        self._scan_hashes = array("I", [crc32(key) >> 1 for key in self._scan_keys])
        self._scan_changes = self.changes

    def _forget_scan(self) -> None:
        self._scan_keys = []
        self._scan_hashes = array("I")
        self._scan_changes = -1

    # -- chunks ------------------------------------------------------------------------------

    def open_cursor(self) -> StoreWalk:
        """A walk over all entries and locks, for ``export``."""
        return StoreWalk(self)

    def export(self, cursor: StoreWalk, bytes_max: int) -> tuple[bytes, int, bool]:
        """The next entries as they are now, their number and whether they are the last.

        The chunk ends with the entry that reaches ``bytes_max``, so a large one is a chunk of its
        own, or after CHUNK_ENTRIES_MAX entries; keys removed meanwhile are counted and left out.
        Locks come in chunks of their own behind the entries and are not counted.
        """
        if cursor.is_over and self.locks is not None:
            return self._export_locks(self.locks, cursor, bytes_max)
        keys, begin = cursor.keys, cursor.position
        end = min(len(keys), begin + CHUNK_ENTRIES_MAX)
        chunk, cursor.position = self._pack(keys, begin, end, bytes_max)
        taken = cursor.position - begin
        if cursor.position == len(keys):
            cursor.go_on(self.changes)
        return chunk, taken, cursor.is_over and self.locks is None

    def chunk_of(self, keys: list[bytes]) -> bytes:
        """A chunk with the entries of these keys, as they are now; of those that are gone none."""
        return self._pack(keys, 0, len(keys), sys.maxsize)[0]

    def _pack(self, keys: list[bytes], begin: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """A chunk of the entries of some keys, and the position behind the last one looked at."""
        records, timings, hashes = self.records, self.timings, self.hashes
        pack = CHUNK_ENTRY.pack
        pieces: list[bytes] = []
        add = pieces.append
        size = 0
        position = begin
        while position < end and size < bytes_max:
            key = keys[position]
            position += 1
            record = records.get(key)
            if record is None:
                continue
            length = len(key)
            beside = b""
            if timings or hashes:
                timing, key_hash = timings.get(key, b""), hashes.get(key, b"")
                beside = timing + key_hash
                length |= (CHUNK_TIMING if timing else 0) | (CHUNK_HASH if key_hash else 0)
            add(pack(length, len(record)))
            if beside:
                add(beside)
            add(key)
            add(record)
            size += len(key) + len(record) + len(beside) + 8
        return b"".join(pieces), position

    def _export_locks(
        self, locks: Locks, cursor: StoreWalk, bytes_max: int
    ) -> tuple[bytes, int, bool]:
        """The next chunk of locks."""
        walk = cursor.locks = cursor.locks or locks.open_cursor()
        pieces: list[bytes] = []
        for key, lock in locks.export(walk, CHUNK_ENTRIES_MAX, bytes_max):
            pieces += (CHUNK_ENTRY.pack(len(key) | CHUNK_LOCK, len(lock)), key, lock)
        return b"".join(pieces), 0, not walk.keys

    def ingest(self, data: bytes) -> int:
        """Take in a chunk; returns the number of entries.

        Raises:
            SerializationError: The chunk is damaged; entries before the damage are stored.
        """
        unpack = CHUNK_ENTRY.unpack_from
        position, end, count = 0, len(data), 0
        try:
            while position < end:
                head, record_length = unpack(data, position)
                position += 8
                timing = key_hash = b""
                if head & CHUNK_TIMING:
                    timing = data[position : position + TIMING_BYTES]
                    position += TIMING_BYTES
                if head & CHUNK_HASH:
                    key_hash = data[position : position + HASH_BYTES]
                    position += HASH_BYTES
                split = position + (head & CHUNK_LENGTH_MASK)
                stop = split + record_length
                if stop > end or record_length < RECORD_BYTES:
                    raise SerializationError("a map chunk ends within an entry")
                if head & CHUNK_LOCK:
                    self._take_lock(data[position:split], data[split:stop])
                else:
                    self.take(data[position:split], data[split:stop], timing, key_hash)
                    count += 1
                position = stop
        except struct.error as error:
            raise SerializationError("a map chunk ends within an entry's lengths") from error
        return count

    def _take_lock(self, key: bytes, lock: bytes) -> None:
        try:
            self.set_lock(key, lock)
        except ProtocolError as error:
            raise SerializationError(f"a map chunk has a damaged lock: {error}") from error
