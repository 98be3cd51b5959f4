"""Goal: what the twin of a multimap's store (``tests/property``) does not look at: memory, limits,
damage, and walks over a store that changes.
"""

from __future__ import annotations

import contextlib
import gc

import pytest
from tests.unit.replication_net import key, value

from whimbrel.core.replication import walk
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.structures.multimap.cursor import GivenUp
from whimbrel.structures.multimap.layout import (
    CHUNK_HEAD,
    CLEAR,
    GROUP,
    OF_LISTS,
    OPERATION,
    PUT,
    REMOVE_KEY,
)
from whimbrel.structures.multimap.merging import make_chunk, read_values
from whimbrel.structures.multimap.store import (
    CHUNK_VALUES_MAX,
    FREED_AT_ONCE_MAX,
    PACKED_BYTES_MAX,
    MultiMapStore,
)
from whimbrel.structures.multimap.typed_stores import ListStore, SetStore

TYPES = pytest.mark.parametrize("make", [SetStore, ListStore])
Make = type[SetStore] | type[ListStore]


def filled(make: Make, keys: int, values: int) -> MultiMapStore:
    store = make()
    for number in range(keys):
        for each in range(values):
            store.put(key(number), value(f"value {each:06d}"))
    return store


def chunks(store: MultiMapStore, bytes_max: int) -> list[tuple[bytes, int]]:
    cursor, found, last = store.open_cursor(), [], False
    while not last:
        chunk, count, last = store.export(cursor, bytes_max)
        found.append((chunk, count))
    return found


def copied(store: MultiMapStore, bytes_max: int) -> MultiMapStore:
    copy = type(store)()
    for chunk, count in chunks(store, bytes_max):
        assert copy.ingest(chunk) == count
    return copy


@TYPES
def test_no_object_of_an_entry_is_tracked(make: Make) -> None:
    """The collector has one dictionary to look at for each key with very many values, and none for
    the others: what it would walk takes a full member a long pause.
    """
    store = filled(make, 1_000, 5)
    for number in range(1_000):
        store.put(key(5_000), value(f"one of many {number}"))
    gc.collect()
    assert not gc.is_tracked(store._packed)
    assert [len(many) for many in store._large.values()] == [1_000]
    assert not any(map(gc.is_tracked, store._large.values()))
    assert len(store) == 6_000


@TYPES
def test_values_are_packed_until_they_are_many(make: Make) -> None:
    """One value is packed whatever its size; a key that shrinks to one has it packed again."""
    store = make()
    store.put(key(1), value("x" * 10 * PACKED_BYTES_MAX))
    assert store._packed and not store._large
    store.put(key(1), value("y"))
    assert store._large and not store._packed
    assert store.get(key(1)) == [value("x" * 10 * PACKED_BYTES_MAX), value("y")]
    removed = store.remove_entry(key(1), value("x" * 10 * PACKED_BYTES_MAX))
    assert removed is not None and store._packed and not store._large
    assert store.get(key(1)) == [value("y")] and store.bytes_used == 12 + len(value("y"))


@TYPES
@pytest.mark.parametrize("bytes_max", [1, 200, 100_000, 10_000_000])
def test_chunks_are_bounded_whatever_a_key_has(make: Make, bytes_max: int) -> None:
    """X1: by bytes and by values; a key with many is spread over chunks."""
    store = filled(make, 3, 5_000)
    store.put(key(9), value("last"))
    made = chunks(store, bytes_max)
    most = max(len(value("value 000000")) + 60, bytes_max + 100)
    assert all(count <= CHUNK_VALUES_MAX for _, count in made)
    assert all(len(chunk) <= most for chunk, _ in made)
    copy = copied(store, bytes_max)
    assert dict.fromkeys(copy.items()) == dict.fromkeys(store.items())
    assert copy.get(key(1)) == store.get(key(1))
    assert copy.bytes_used == store.bytes_used


def test_an_empty_store_is_one_chunk() -> None:
    """Which names the last id, so that none comes twice where the copy goes on."""
    store = ListStore()
    store.put(key(1), value("x"))
    store.put(key(1), value("x"))
    store.remove_key(key(1))
    ((chunk, count),) = chunks(store, 1)
    assert count == 0 and chunk == CHUNK_HEAD.pack(OF_LISTS, 2)
    copy = copied(store, 1)
    copy.put(key(1), value("y"))
    assert [item[:8] for _, item in copy.items()] == [(3).to_bytes(8, "big")]


@TYPES
def test_a_walk_misses_nothing_that_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values come and go in equal numbers, so that a dictionary is as long as before but
    laid out anew; keys turn from few values to many and back.
    """
    monkeypatch.setattr(walk, "KEYS_TAKEN", 10)
    store = filled(make, 40, 1)
    for number in range(200):
        store.put(key(100), value(f"of many {number}"))
    stays = {(key(number), value("value 000000")) for number in range(20, 40)}
    stays |= {(key(100), value(f"of many {number}")) for number in range(100, 200)}
    copy, cursor, last, step = make(), store.open_cursor(), False, 0
    while not last:
        chunk, _, last = store.export(cursor, 60)
        copy.ingest(chunk)
        if step < 20:
            store.remove_key(key(step))
            store.put(key(1_000 + step), value("new"))
            store.remove_entry(key(100), value(f"of many {step}"))
            store.put(key(100), value(f"new {step}"))
            for number in range(60):
                store.put(key(30), value(f"grows {number}"))
            for number in range(60):
                store.remove_entry(key(30), value(f"grows {number}"))
        step += 1
    found = copy.entries()
    assert stays <= set(zip(found[::2], found[1::2], strict=True))


@TYPES
def test_what_is_large_is_freed_in_pieces(make: Make) -> None:
    """GCM-42: a store that is dropped or cleared, and a key with very many values that is removed,
    are empty at once; what is small is freed where it is.
    """
    given: list[GivenUp] = []
    count = FREED_AT_ONCE_MAX + 1
    for way in ("clear", "remove_key", "release"):
        store = make(given.append)
        for number in range(count):
            store.put(key(1), value(str(number)))
        store.put(key(2), value("x"))
        if way == "clear":
            store.clear()
        elif way == "remove_key":
            assert store.remove_key(key(1)) is not None
            assert len(store) == 1 and store.get(key(1)) == []
        else:
            released = store.release()
            assert released is not None
            given.append(released)
        assert len(store) == (1 if way == "remove_key" else 0)
        left = given.pop()
        assert len(left) == count + (1 if way == "remove_key" else 2) and not given
        size = 0
        while len(left):
            before = len(left)
            size += left.free_some(1_000, 5_000)
            assert 0 < before - len(left) <= 1_000
        assert size > 9 * count
    small = filled(make, 3, 3)
    assert small.release() is None and len(small) == 9
    store = make(given.append)
    for each in range(2):
        store.put(key(1), value(str(each) * PACKED_BYTES_MAX))
    assert store.remove_key(key(1)) is not None and not given


@TYPES
def test_a_value_that_comes_again_is_there_once(make: Make) -> None:
    """Decision 3: a backup that hears of a change twice has it once, among few values and among
    many of a key.
    """
    store, backup = make(), make()
    for number in range(PACKED_BYTES_MAX // 16):
        operation = store.put(key(1), value(f"value {number}"))
        assert operation is not None
        for _ in range(2):
            backup.apply(operation, 0, len(operation))
        assert backup.get(key(1)) == store.get(key(1)) and len(backup) == number + 1
    assert store._large, "few became many"


@TYPES
def test_a_walk_passes_a_key_that_went_while_its_values_were_taken(make: Make) -> None:
    """Goal: a sync ends whatever is removed meanwhile, and brings what stays."""
    store, copy = filled(make, 2, 200), make()
    cursor, last = store.open_cursor(), False
    while not last:
        chunk, _, last = store.export(cursor, 100)
        copy.ingest(chunk)
        if 0 < copy.count(key(0)) < 200:
            store.remove_key(key(0))
    assert store.keys() == [key(1)] and copy.get(key(1)) == store.get(key(1))


@TYPES
@pytest.mark.parametrize(
    "damaged",
    [
        None,
        (PUT, 16, b""),
        (PUT, 16, key(1)),
        (PUT, 16, key(1) + b"1234567"),
        (REMOVE_KEY, 3, b"abc"),
        (9, 16, key(1)),
        (CLEAR ^ OF_LISTS, 0, b""),
    ],
)
def test_a_damaged_operation_changes_nothing(
    make: Make, damaged: tuple[int, int, bytes] | None
) -> None:
    """Refused with a reason, whatever bytes stand behind it; so is one of the other type."""
    store = filled(make, 1, 2)
    operation = b""
    if damaged is not None:
        kind, length, rest = damaged
        operation = OPERATION.pack(kind ^ store.collection, length) + rest
    before = list(store.items())
    with pytest.raises(ProtocolError):
        store.apply(operation + bytes(100), 0, len(operation))
    assert list(store.items()) == before


@TYPES
def test_an_operation_ends_where_it_is_said_to_end(make: Make) -> None:
    """Goal: whoever is told to remove a key is told which: what stands behind an operation does not
    complete it. Method: cut it at each byte, the rest behind it.
    """
    store = filled(make, 1, 2)
    operation = filled(make, 1, 2).remove_key(key(0))
    assert operation is not None
    for end in range(len(operation)):
        with pytest.raises(ProtocolError):
            store.apply(operation, 0, end)
    assert len(store) == 2
    store.apply(operation, 0, len(operation))
    assert len(store) == 0


@TYPES
def test_a_damaged_chunk_is_refused(make: Make) -> None:
    """Cut anywhere it either ends with a whole group or is told to be damaged; so are lengths that
    no store makes.
    """
    store = filled(make, 2, 3)
    ((chunk, count),) = chunks(store, 10_000)
    whole = 0
    for cut in range(len(chunk)):
        copy = make()
        with contextlib.suppress(SerializationError):
            whole += copy.ingest(chunk[:cut]) > 0
        assert len(copy) < count
    assert whole == 1
    for head in (GROUP.pack(3, 0) + b"abc", GROUP.pack(16, 8) + key(1) + b"\1\0\0\0abcd"):
        with pytest.raises(SerializationError):
            make().ingest(CHUNK_HEAD.pack(make.collection, 0) + head)
    with pytest.raises(SerializationError, match="value_collection_type"):
        make().ingest(CHUNK_HEAD.pack(make.collection ^ OF_LISTS, 0))


def test_leftovers_say_how_often() -> None:
    """D10: each value of a list goes with its number among its equals, over all chunks, and a key
    that several values share is named once in a chunk.
    """
    store = ListStore()
    for number in range(300):
        store.put(key(1), value(f"value {number % 3}"))
    store.put(key(2), value("value 0"))
    cursor, found, entries = store.open_cursor(), [], 0
    while entries < len(store):
        chunk, count = make_chunk(store, cursor, 500)
        assert chunk.count(key(1)) <= 1
        found += list(read_values(chunk))
        entries += count
    ordinals: dict[tuple[bytes, bytes], list[int]] = {}
    for of, what, ordinal in found:
        ordinals.setdefault((of, what), []).append(ordinal)
    assert ordinals[key(1), value("value 0")] == [*range(1, 101)]
    assert ordinals[key(2), value("value 0")] == [1]
    assert len(found) == 301
    with pytest.raises(SerializationError):
        list(read_values(chunk[:-1]))
    with pytest.raises(SerializationError):
        list(read_values(chunk + b"123"))
