"""Goal: one map's entries in one partition are kept, expired, walked, copied and counted right."""

from __future__ import annotations

import gc
import sys
from zlib import crc32

import pytest

from whimbrel.core.replication import walk as walks
from whimbrel.errors import ProtocolError, SerializationError, UsageError
from whimbrel.structures.map.record import (
    NEVER_MS,
    RECORD,
    RECORD_BYTES,
    UNSET,
    key_body,
    make_timing,
    record_head,
    same_value,
    split_key,
    stored_key,
)
from whimbrel.structures.map.store import (
    SCAN_BYTES_MAX,
    SCAN_END,
    SCAN_IDLE_MS,
    MapStore,
)


def body(number: int) -> bytes:
    """A key's Data without its partition hash: type id and payload."""
    return b"\xff\xff\xff\xf8" + number.to_bytes(8, "big")


def key(number: int) -> bytes:
    """The stored form of the same key."""
    return stored_key(bytes(4) + body(number))


def value(number: int) -> bytes:
    return bytes(8) + b"value %d" % number


def filled(count: int) -> MapStore:
    store = MapStore()
    for number in range(count):
        store.put(key(number), value(number), 1_000)
    return store


def walk(store: MapStore, count: int, now_ms: int = 1_000) -> list[bytes]:
    """The keys of a whole scan."""
    cursor = 0
    keys: list[bytes] = []
    while cursor != SCAN_END:
        cursor, found = store.scan(cursor, count, now_ms)
        keys.extend(data for data, _ in found)
    return keys


def test_put_get_remove() -> None:
    """The former record comes back; accounting follows; the version counts updates."""
    store = MapStore()
    assert store.put(key(1), value(1), 10)[0] is None
    old, _ = store.put(key(1), value(22), 20)
    assert old is not None and old[RECORD_BYTES:] == value(1)
    assert store.get(key(1), 20) == value(22) and store.contains(key(1), 20)
    assert store.get(key(2), 20) is None and not store.contains(key(2), 20)
    view = store.entry_view(key(1), 20)
    assert view is not None
    assert (view.created_ms, view.updated_ms, view.version) == (10, 20, 1)
    assert (view.expires_ms, view.ttl_ms, view.max_idle_ms) == (NEVER_MS, 0, 0)
    assert (view.hits, view.last_access_ms) == (UNSET, UNSET) == (-1, -1)
    assert view.key == bytes(4) + body(1) and view.value == value(22)
    assert store.bytes_used == len(key(1)) + len(value(22))
    assert store.remove(key(1))[0] is not None and store.remove(key(1))[0] is None
    assert store.bytes_used == 0 and len(store) == 0 and store.entry_view(key(1), 20) is None


def test_a_partition_hash_is_remembered_but_not_compared() -> None:
    """FN-1: keys are equal without their first four bytes; they come back as they came."""
    head, stored = split_key(b"\x00\x00\x00\x07" + body(1))
    assert (head, stored) == (b"\x00\x00\x00\x07", key(1))
    assert split_key(bytes(4) + body(1)) == (b"", key(1))
    store = MapStore()
    _, operation = store.put(stored, value(1), 0, b"", head)
    assert store.key_data(stored) == head + body(1)
    twin = MapStore()
    twin.apply(operation, 0, len(operation))
    assert list(twin.entries(0)) == [(head + body(1), value(1))]
    with pytest.raises(UsageError):
        split_key(b"short")
    assert same_value(b"\0\0\0\1" + b"same", b"\0\0\0\2" + b"same")


def test_last_access_is_known_where_idleness_is_limited() -> None:
    """A read moves the last access of an entry with a limit on idleness; hits are not kept."""
    store = MapStore()
    store.put(key(1), value(1), 1_000, make_timing(0, 500, 1_000))
    for now_ms in (1_000, 1_300):
        assert store.get(key(1), now_ms) == value(1)
        view = store.entry_view(key(1), now_ms)
        assert view is not None and (view.hits, view.last_access_ms) == (UNSET, now_ms)


def test_time_to_live_counts_from_the_write() -> None:
    """An entry is invisible from the very millisecond on, is swept once, and can come back."""
    store = MapStore()
    store.put(key(1), value(1), 1_000, make_timing(500, 0, 1_000))
    seen = store.entry_view(key(1), 1_499)
    assert seen is not None and (seen.ttl_ms, seen.last_access_ms) == (500, UNSET)
    assert store.get(key(1), 1_499) == value(1) and store.size(1_499) == 1
    assert store.get(key(1), 1_500) is None and store.size(1_500) == 0
    assert not store.contains(key(1), 1_500) and store.is_expired(key(1), 1_500)
    assert list(store.entries(1_500)) == [] and walk(store, 5, 1_500) == []
    assert store.entry_view(key(1), 1_500) is None
    assert store.sweep_expired(1_499, 10) == []
    ((data, gone, _),) = store.sweep_expired(1_500, 10)
    assert (data, gone) == (bytes(4) + body(1), value(1))
    assert store.sweep_expired(9_999, 10) == [] and len(store) == 0


def test_reading_keeps_an_idle_entry_alive() -> None:
    """The idle span counts from the last read; the earlier of both limits wins."""
    store = MapStore()
    store.put(key(1), value(1), 0, make_timing(0, 100, 0))
    store.put(key(2), value(2), 0, make_timing(250, 100, 0))
    assert store.sweep_expired(10, 9) == []
    for now_ms in range(50, 250, 50):
        assert store.get(key(1), now_ms) and store.contains(key(2), now_ms)
        assert store.sweep_expired(now_ms, 9) == []
    assert [v for _, v, _ in store.sweep_expired(250, 9)] == [value(2)]
    assert store.get(key(1), 299) == value(1)
    assert [v for _, v, _ in store.sweep_expired(399, 9)] == [value(1)]


def test_a_later_write_lifts_or_changes_the_limits() -> None:
    """A plain write takes the limits away; set_timing counts from now; a shorter one is noticed."""
    store = MapStore()
    store.put(key(1), value(1), 0, make_timing(100, 0, 0))
    store.put(key(2), value(2), 0, make_timing(100, 0, 0))
    store.put(key(3), value(3), 0, make_timing(10_000, 0, 0))
    assert store.sweep_expired(1, 9) == []
    store.put(key(1), value(1), 50)
    assert store.set_timing(key(2), 1_000, 0, 50) is not None
    assert store.set_timing(key(3), 100, 0, 50) is not None
    assert store.set_timing(key(9), 100, 0, 50) is None
    assert [v for _, v, _ in store.sweep_expired(500, 9)] == [value(3)]
    assert [v for _, v, _ in store.sweep_expired(1_050, 9)] == [value(2)]
    assert store.get(key(1), 10**12) == value(1)
    assert store.set_timing(key(1), 5, 0, 2_000) is not None
    assert store.set_timing(key(1), 5, 0, 3_000) is None, "it has expired meanwhile"


def test_sweeping_is_bounded_and_earliest_first() -> None:
    """A sweep removes no more than asked; the heap does not outgrow the entries."""
    store = MapStore()
    for number in range(50):
        store.put(key(number), value(number), 0, make_timing(1_000 - number, 0, 0))
    assert [v for _, v, _ in store.sweep_expired(5_000, 3)] == [value(49), value(48), value(47)]
    for turn in range(5_000):
        store.put(key(0), value(0), 0, make_timing(100_000 - turn, 0, 0))
    assert store._heap is None or len(store._heap) < 300
    assert len(store.sweep_expired(10_000_000, 1_000)) == 47


def test_a_map_in_which_nothing_expires_any_more_costs_no_heap() -> None:
    """Goal: an entry that is gone takes no memory until its time would have been over. Method: one
    that lives for long is removed after a sweep has seen it; the next one comes by.
    """
    store = MapStore()
    store.put(key(1), value(1), 0, make_timing(1 << 40, 0, 0))
    assert store.sweep_expired(1, 10) == [] and store._heap
    store.remove(key(1))
    assert store.sweep_expired(2, 10) == [] and store._heap is None


def test_a_backup_repeats_every_change() -> None:
    """Decision 3: operations are state; applying them twice, one by one, makes an equal store."""
    store, twin = MapStore(), MapStore()
    operations = [
        store.put(key(1), value(1), 1)[1],
        store.put(key(2), value(2), 1, make_timing(100, 50, 1), b"\1\2\3\4")[1],
        store.put(key(3), value(3), 1, make_timing(100, 0, 1))[1],
        store.put(key(1), value(11), 2)[1],
        store.put(key(3), value(33), 2)[1],
        store.set_timing(key(2), 7_000, 0, 3),
        store.remove(key(1))[1],
    ]
    for operation in operations:
        assert operation is not None
        for _ in range(2):
            twin.apply(b"prefix" + operation + b"suffix", 6, 6 + len(operation))
    assert twin.records == store.records and twin.timings == store.timings
    assert list(twin.entries(5)) == list(store.entries(5))
    assert twin.bytes_used == store.bytes_used
    clear = store.clear()
    twin.apply(clear, 0, len(clear))
    assert len(twin) == 0 and twin.bytes_used == 0 and not twin.timings


def test_damaged_operations_are_refused_and_change_nothing() -> None:
    """Rule 10."""
    store = filled(3)
    _, operation = MapStore().put(key(7), value(7), 0)
    for damaged in (operation[:30], b"\x09\0\0\0\0", b"\x02\xff\0\0\0", operation[:5]):
        with pytest.raises(ProtocolError):
            store.apply(damaged, 0, len(damaged))
    assert len(store) == 3


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_a_scan_returns_everything_once(count: int) -> None:
    """In chunks of any size."""
    store = filled(300)
    assert sorted(walk(store, count)) == sorted(bytes(4) + body(n) for n in range(300))
    assert walk(MapStore(), count) == []
    assert store.scan(SCAN_END, 5, 0) == (SCAN_END, [])
    assert len(store.scan(0, count, 0)[1]) == min(count, 300)


ALIKE = ((171_679_057_439_322, 182_161_587_797_100), (163_138_375_503_100, 189_859_411_169_635))
"""Numbers of keys whose hashes are the same but for the lowest bit."""


def test_keys_of_equal_hash_come_together() -> None:
    """Goal: the upper 31 bits of a stored key's CRC-32 are its place in a walk, at every replica
    whatever its release; a chunk does not end between two keys of one place, or one of them would
    come twice. Method: chunks of one entry, begun anywhere.
    """
    store = filled(20)
    for numbers in ALIKE:
        for number in numbers:
            store.put(key(number), value(number), 1_000)
    places = sorted({crc32(stored) >> 1 for stored in store.records})
    assert len(store) == 24 and len(places) == 22
    for place, after in zip(places, [*places[1:], SCAN_END], strict=True):
        cursor, found = store.scan(place, 1, 1_000)
        keys = {data for data, _ in found}
        wanted = {s for s in store.records if crc32(s) >> 1 == place}
        assert cursor == after and keys == {store.key_data(stored) for stored in wanted}


def test_a_chunk_of_a_scan_is_bounded_in_bytes() -> None:
    """Large values make short chunks, so that every answer fits into a message; none is missed."""
    store = MapStore()
    large = bytes(SCAN_BYTES_MAX // 4)
    for number in range(10):
        store.put(key(number), large, 1_000)
    cursor, found = store.scan(0, 100, 1_000)
    assert cursor != SCAN_END and 4 <= len(found) <= 5
    assert sorted(walk(store, 100)) == sorted(bytes(4) + body(n) for n in range(10))


def test_a_scan_survives_changes_and_goes_on_at_another_replica() -> None:
    """Entries there all the time come exactly once, whatever comes, goes, or moves meanwhile."""
    store = filled(500)
    cursor = turn = 0
    seen: list[bytes] = []
    while cursor != SCAN_END:
        cursor, found = store.scan(cursor, 10, 1_000)
        seen.extend(data for data, _ in found)
        turn += 1
        store.remove(key(turn))
        store.put(key(10_000 + turn), value(0), 1_000)
        store.put(key(400), value(turn), 1_000)
        if turn % 5 == 0:  # the partition moved: another store with the same entries
            other = MapStore()
            chunk, _, _ = store.export(store.open_cursor(), 1 << 30)
            other.ingest(chunk)
            store = other
        if turn % 7 == 0:  # somebody else scans too
            walk(store, 100)
    stayed = {bytes(4) + body(n) for n in range(turn + 1, 500)}
    assert len(seen) == len(set(seen)) and stayed <= set(seen)


def test_an_abandoned_scan_is_forgotten() -> None:
    """Its order is freed after a minute; its cursor still works."""
    store = filled(50)
    cursor, first = store.scan(0, 10, 1_000)
    store.forget_idle_scan(1_000 + SCAN_IDLE_MS)
    assert store._scan_keys
    store.forget_idle_scan(1_001 + SCAN_IDLE_MS)
    assert not store._scan_keys
    rest = []
    while cursor != SCAN_END:
        cursor, found = store.scan(cursor, 10, 1_000)
        rest.extend(found)
    assert len({data for data, _ in first + rest}) == 50 == len(first + rest)


def test_chunks_carry_whole_records_and_timings() -> None:
    """Export and ingest make an equal store; chunks are near the asked size."""
    store = filled(200)
    store.put(key(1), value(1), 5, make_timing(50, 60, 5), b"\1\1\1\1")
    cursor, last, chunks = store.open_cursor(), False, []
    store.remove(key(3))
    while not last:
        chunk, _, last = store.export(cursor, 500)
        assert len(chunk) < 600
        chunks.append(chunk)
    twin = MapStore()
    assert sum(twin.ingest(chunk) for chunk in chunks) == 199
    assert twin.records == store.records and twin.timings == store.timings
    assert twin.bytes_used == store.bytes_used
    assert dict(twin.entries(6)) == dict(store.entries(6))
    large = MapStore()
    large.put(key(1), bytes(10_000), 0)
    assert len(large.export(large.open_cursor(), 10)[0]) > 10_000


def test_what_stands_beside_a_record_counts_for_a_chunk() -> None:
    """Goal: a chunk ends with the entry that reaches its limit, lengths, limits of life and
    partition hashes included. Method: entries of one size that have all of that.
    """
    store = MapStore()
    for number in range(50):
        store.put(key(number), bytes(20), 5, make_timing(50, 60, 5), b"\1\1\1\1")
    cursor, last = store.open_cursor(), False
    whole, _, _ = store.export(store.open_cursor(), 1 << 30)
    size = len(whole) // 50
    while not last:
        chunk, count, last = store.export(cursor, 4 * size)
        assert len(chunk) == count * size and (count == 4 or last)


def test_a_walk_goes_on_over_a_store_that_was_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a sync of a map that is cleared meanwhile ends, without what went. Method: the walk has
    listed a part of the keys.
    """
    monkeypatch.setattr(walks, "KEYS_TAKEN", 10)
    store = filled(30)
    cursor = store.open_cursor()
    assert store.export(cursor, 1)[1:] == (1, False)
    store.clear()
    twin, last = MapStore(), False
    while not last:
        chunk, _, last = store.export(cursor, 1_000)
        twin.ingest(chunk)
    assert not twin.records


def test_damaged_chunks_are_refused() -> None:
    """Rule 10: every truncation is seen."""
    store = filled(2)
    chunk, _, _ = store.export(store.open_cursor(), 1_000)
    half = len(chunk) // 2
    for size in range(len(chunk)):
        if size not in (0, half):
            with pytest.raises(SerializationError):
                MapStore().ingest(chunk[:size])
    with pytest.raises(SerializationError):
        MapStore().ingest(b"\0\0\0\xc0\x14\0\0\0" + bytes(20))


def test_entries_cost_the_collector_nothing() -> None:
    """FN-20: no tracked object per entry, with or without limits."""
    store = MapStore()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2_000):
        timing = make_timing(100_000, 0, 0) if number % 2 else b""
        store.put(key(number), value(number), 0, timing)
    store.sweep_expired(1, 10)
    assert len(gc.get_objects()) - before < 50


@pytest.mark.parametrize(
    "type_id", [-1, -11, -128, -129, -65_536, -65_537, -(1 << 31), 0, 1, 255, 65_535, (1 << 31) - 1]
)
def test_a_stored_key_is_short_and_exact(type_id: int) -> None:
    """Every type id comes back; two keys are stored alike only if they are equal."""
    payloads = (b"", b"\xff", b"\0", b"\xff\xff\xffx")
    bodies = [type_id.to_bytes(4, "big", signed=True) + payload for payload in payloads]
    for data in bodies:
        assert key_body(stored_key(bytes(4) + data)) == data
    others = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\0\0", b"\0\xff\xff\xff", b"\xff\0\0\0"]
    everything = bodies + [other + payload for other in others for payload in payloads]
    stored = {stored_key(bytes(4) + data) for data in everything}
    assert len(stored) == len(set(everything))


def test_an_ordinary_entry_costs_few_bytes() -> None:
    """A string key of 24 characters and a value of 100 bytes fill their steps of 16 bytes."""
    data = bytes(4) + b"\xff\xff\xff\xf5" + (24).to_bytes(4, "big") + b"k" * 24
    store = MapStore()
    store.put(stored_key(data), bytes(12) + b"v" * 100, 1)
    ((stored, record),) = store.records.items()
    assert (sys.getsizeof(stored), sys.getsizeof(record)) == (64, 160)


def test_the_head_of_a_record_holds_both_moments_and_counts_changes() -> None:
    """48 bits for each moment; the version has 24 and wraps."""
    store, late_ms = MapStore(), 1_700_000_000_000
    store.put(key(1), value(1), 5)
    assert record_head(store.records[key(1)]) == (5, 5, 0)
    store.put(key(1), value(2), late_ms)
    assert record_head(store.records[key(1)]) == (5, late_ms, 1)
    for before, after in ((0xFFFF, 0x10000), (0xFFFFFF, 0)):
        head = RECORD.pack(bytes(6), 0, 0, before & 0xFFFF, before >> 16)
        store.records[key(1)] = head + value(1)
        store.put(key(1), value(3), -1)
        assert record_head(store.records[key(1)]) == (0, (1 << 48) - 1, after)


def test_a_cleared_store_remembers_no_partition_hash() -> None:
    """Goal: a key that comes back after a clear is handed out as it came then. Method: the same key
    with a partition hash before the clear and without one after it.
    """
    store = MapStore()
    stored = stored_key(bytes(4) + (-8).to_bytes(4, "big", signed=True) + b"k")
    store.put(stored, b"value", 1, key_hash=b"hash")
    assert store.key_data(stored).startswith(b"hash")
    store.clear()
    store.put(stored, b"value", 2)
    assert store.key_data(stored).startswith(bytes(4))
