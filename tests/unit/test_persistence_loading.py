"""From the segments of a log to fragments: what counts, what is torn, what is damage."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.keys import header_bytes
from tests.unit.log_writer import (
    LOG_ID,
    MAP,
    STRUCTURE,
    Files,
    LogWriter,
    begun,
    content,
    entries,
    listed,
    load,
    loading_of,
    prefix,
    put,
    state,
)

from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.persistence.format import (
    BLOCK_HEAD_BYTES,
    WITH_CONTROL,
    DamageError,
    RecordKind,
    Stream,
    checksum_of,
    encode_block,
    segment_file,
)
from whimbrel.core.persistence.loading import READ_BYTES_MAX
from whimbrel.core.persistence.metadata import CLUSTER_FILE, OPEN, LogFiles
from whimbrel.structures.map.store import MapStore

pytestmark = pytest.mark.usefixtures("either")
CHANGES, IMAGES = Stream.CHANGES, Stream.IMAGES


def damage(files: Files, log: LogFiles) -> DamageError:
    """The damage that loading tells."""
    with pytest.raises(DamageError) as found:
        load(files, log)
    return found.value


def history() -> tuple[LogWriter, list[dict[str, str]]]:
    """Two closed segments and an open one; and what partition 3 held after each operation."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    seen: list[dict[str, str]] = [{}]
    for number in range(1, 13):
        operation = put(store, f"key {number % 3}", f"value {number}")
        if number % 5 == 0:
            operation = store.remove(f"key {number % 3}".encode())[1]
        writer.operation(3, number, operation)
        writer.flush(CHANGES)
        seen.append(entries(store))
        if number in (4, 8):
            writer.roll(CHANGES)
    return writer, seen


# -- what counts --------------------------------------------------------------------------


def test_changes_alone_make_a_fragment() -> None:
    """APR-01, APR-44: content, counters, lineage, base and doubt are those of the last change."""
    writer, seen = history()
    loading = load(writer.files, writer.log())
    assert content(loading) == {3: seen[-1]}
    (fragment,) = loading.fragments
    assert (fragment.lineage, fragment.base_lineage, fragment.base) == (9, 8, (1, 0, 0, 0, 0, 0))
    assert fragment.counters() == (12, 0, 0, 0, 0, 0)
    assert (fragment.slot, fragment.backup_count, fragment.is_dirty) == (0, 1, False)
    assert loading.names == {STRUCTURE: MAP}
    assert loading.next_block == {CHANGES: writer.next_block[CHANGES], IMAGES: 1}
    assert [(one.stream, one.number, one.end) for one in loading.torn] == [
        (CHANGES, 3, len(writer.files["log/changes-00000003.seg"])),
        (IMAGES, 1, header_bytes()),
    ]


def test_a_later_state_counts_and_operations_after_it() -> None:
    """APR-44, AE-11: versions that changed otherwise than by an operation are those of the last
    state.
    """
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    writer.operation(3, 1, put(store, "a", "1"))
    writer.state(3, state(50, lineage=77, is_dirty=True))
    loading = load(writer.files, writer.log())
    assert loading.fragments[0].counters()[0] == 50
    assert (loading.fragments[0].lineage, loading.fragments[0].is_dirty) == (77, True)
    writer.operation(3, 51, put(store, "b", "2"))
    loading = load(writer.files, writer.log())
    assert loading.fragments[0].counters()[0] == 51
    assert content(loading) == {3: {"a": "1", "b": "2"}}


def test_dropped_and_held_again_begins_anew() -> None:
    """APR-01: what was said before a DROPPED or a HELD counts no more."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    writer.held(4)
    writer.operation(3, 1, put(store, "old", "1"))
    writer.operation(4, 1, put(store, "old", "1"))
    writer.dropped(3)
    writer.dropped(4)
    assert load(writer.files, writer.log()).fragments == []
    writer.held(3, at=state(7))
    writer.operation(3, 8, put(store, "new", "2"))
    loading = load(writer.files, writer.log())
    assert content(loading) == {3: {"new": "2"}}
    assert loading.fragments[0].counters()[0] == 8


def test_operations_in_the_middle_of_an_image() -> None:
    """APR-01: an image made in pieces while changes go on, and what was changed on top of it."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    for number in range(10):
        writer.operation(3, number + 1, put(store, f"key {number}", "before"))
    floor = writer.flush(CHANGES)
    writer.roll(CHANGES)
    writer.state(3, state(10))
    cursor = store.open_cursor()
    writer.chunk(3, 5, store.export(cursor, 100)[0])
    writer.operation(3, 11, store.remove(b"key 0")[1])
    writer.operation(3, 12, put(store, "key 9", "meanwhile"))
    is_last = False
    while not is_last:
        piece, _, is_last = store.export(cursor, 100)
        writer.chunk(3, 5, piece)
    writer.image_end(3, 5, 9)
    writer.operation(3, 13, put(store, "key 1", "behind"))
    writer.imaged(3, 5, floor)
    writer.operation(3, 14, put(store, "key 2", "behind"))
    files, log = writer.files, writer.log()
    assert content(load(files, log)) == {3: entries(store)}
    assert load(files, log).fragments[0].counters()[0] == 14
    without = msgspec.structs.replace(
        log, segments=tuple(one for one in log.segments if (one.stream, one.number) != (CHANGES, 1))
    )
    assert content(load(files, without)) == {3: entries(store)}
    del files["log/changes-00000001.seg"]
    assert content(load(files, without)) == {3: entries(store)}
    assert load(files, without).fragments[0].counters()[0] == 14


def test_what_was_counted_before_the_floor_counts() -> None:
    """AE-11: where no state stands behind an image's floor, operations before it are counted."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    for number in range(1, 4):
        writer.operation(3, number, put(store, f"key {number}", "value"))
    floor = writer.flush(CHANGES)
    writer.image(3, 1, store)
    writer.imaged(3, 1, floor)
    loading = load(writer.files, writer.log())
    assert content(loading) == {3: entries(store)}
    assert loading.fragments[0].counters()[0] == 3
    assert [one.floor < floor for one in loading.held.values()] == [True]


def test_a_fragment_that_began_as_an_image() -> None:
    """APR-01: HELD with the content of an image, and changes on top."""
    writer, store = LogWriter(), MapStore()
    put(store, "copied", "1")
    writer.image(3, 8, store)
    writer.held(3, 8, state(40))
    writer.operation(3, 41, put(store, "later", "2"))
    assert content(load(writer.files, writer.log())) == {3: {"copied": "1", "later": "2"}}


def test_two_images_of_one_fragment() -> None:
    """APR-01: the one that the changes name counts, not the one that was made last."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    put(store, "a", "first")
    writer.image(3, 1, store)
    writer.state(3, state(1))
    writer.flush(CHANGES)
    writer.imaged(3, 1, writer.flush(CHANGES) - 1)
    put(store, "a", "second")
    writer.image(3, 2, store)
    assert content(load(writer.files, writer.log())) == {3: {"a": "first"}}
    writer.imaged(3, 2, writer.flush(CHANGES))
    assert content(load(writer.files, writer.log())) == {3: {"a": "second"}}


def test_an_image_of_an_earlier_life_is_not_taken() -> None:
    """S1: an image that was begun before the fragment was held anew has nothing to say."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    floor = writer.flush(CHANGES)
    writer.operation(3, 1, put(store, "a", "of the earlier life"))
    writer.flush(CHANGES)
    writer.image(3, 1, store)
    writer.dropped(3)
    writer.imaged(3, 1, floor)
    assert load(writer.files, writer.log()).fragments == []
    writer.held(3)
    writer.imaged(3, 1, floor)
    assert content(load(writer.files, writer.log())) == {3: {}}


def test_an_image_may_begin_in_the_block_in_which_the_earlier_life_ended() -> None:
    """APR-01: then the changes of that life, which stand before its end, are not carried out."""
    writer, old, store = LogWriter(), MapStore(), MapStore()
    writer.held(3)
    writer.held(4)
    floor = writer.flush(CHANGES)
    for pid in (3, 4):
        writer.operation(pid, 1, put(old, "old", "of the earlier life"))
        writer.dropped(pid)
    put(store, "copied", "1")
    for pid in (4, 3):
        writer.state(pid, state(7))
        writer.operation(pid, 8, put(store, f"changed {pid}", "meanwhile"))
        writer.image(pid, pid, store)
        writer.imaged(pid, pid, floor)
    assert writer.flush(CHANGES) == floor + 1
    loading = load(writer.files, writer.log())
    assert content(loading)[3] == {
        "copied": "1",
        "changed 4": "meanwhile",
        "changed 3": "meanwhile",
    }
    assert content(loading)[4] == {"copied": "1", "changed 4": "meanwhile"}
    assert [one.counters()[0] for one in loading.fragments] == [8, 8]
    assert [(one.image, one.floor) for one in loading.held.values()] == [(4, floor), (3, floor)]
    assert loading.last_image == 4
    assert sorted(loading.images[1]) == [3, 4]


def test_only_what_is_wanted_is_loaded() -> None:
    """APR-13: the rows say what a member loads; with nothing wanted all is checked."""
    writer, store = LogWriter(), MapStore()
    put(store, "a", "1")
    for pid in (3, 4):
        writer.image(pid, pid, store)
        writer.held(pid, pid)
        writer.operation(pid, 1, put(MapStore(), "b", "2"))
    asked: list[tuple[int, Namespace]] = []

    def wanted(pid: PartitionId, namespace: Namespace) -> bool:
        asked.append((pid, namespace))
        return pid == 4

    assert content(load(writer.files, writer.log(), wanted)) == {4: {"a": "1", "b": "2"}}
    assert asked == [(3, MAP), (4, MAP)]
    assert load(writer.files, writer.log(), lambda _pid, _namespace: False).fragments == []
    log = writer.log()
    writer.files[IMAGES_1] = writer.files[IMAGES_1][:-1]
    with pytest.raises(DamageError, match="does not end"):
        load(writer.files, log, lambda _pid, _namespace: False)


IMAGES_1 = segment_file(IMAGES, 1)


def test_loading_twice_gives_the_same() -> None:
    """S3: a log is not changed by being loaded, and what is loaded is determined by it."""
    writer, _ = history()
    first, second = load(writer.files, writer.log()), load(writer.files, writer.log())
    assert content(first) == content(second)
    assert [one.vector() for one in first.fragments] == [one.vector() for one in second.fragments]
    assert (first.torn, first.next_block) == (second.torn, second.next_block)


def test_an_empty_log_is_loaded_at_once() -> None:
    """APR-06: nothing listed, nothing to read."""
    loading = loading_of(LogFiles(LOG_ID, ()), ())
    assert (loading.next_commands(), loading.is_done, loading.fragments) == ((), True, [])
    assert loading.next_block == {CHANGES: 1, IMAGES: 1}


def test_a_large_log_comes_in_pieces() -> None:
    """Never more than a piece at once; a block may span several of them."""
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    writer.operation(3, 1, put(store, "large", "x" * (3 * READ_BYTES_MAX)))
    for number in range(2, 50):
        writer.operation(3, number, put(store, f"key {number}", "y" * 9_000))
    log = writer.log()
    loading = loading_of(log, listed(writer.files))
    pieces = 0
    while commands := loading.next_commands():
        (read,) = commands
        assert read.bytes_max <= READ_BYTES_MAX
        loading.take([writer.files[read.file][read.offset : read.offset + read.bytes_max]])
        pieces += 1
    assert pieces > 7
    assert content(loading) == {3: entries(store)}


# -- what is torn -------------------------------------------------------------------------


def test_a_crash_at_every_byte_leaves_a_prefix() -> None:
    """S2: wherever the newest segment ends, what came before counts, and nothing is wrong."""
    writer, seen = history()
    log, file = writer.log(), writer.newest(CHANGES)
    whole = writer.files[file]
    ends = [*writer.offsets[file], len(whole)]
    for length in range(len(whole) + 1):
        loading = load({**writer.files, file: whole[:length]}, log)
        blocks = sum(end <= length for end in ends[1:])
        assert content(loading) == {3: seen[8 + blocks]}
        assert loading.fragments[0].counters()[0] == 8 + blocks
        sound = ends[blocks] if length >= ends[0] else 0
        assert next(one.end for one in loading.torn if one.stream is CHANGES) == sound
        assert loading.next_block[CHANGES] == writer.next_block[CHANGES] - 4 + blocks


def test_what_is_written_after_a_tear_counts() -> None:
    """S2: the torn segment is closed where it was sound, and the next one goes on from there."""
    writer, seen = history()
    log, file = writer.log(), writer.newest(CHANGES)
    for cut in (1, 150, 260):
        files = {**writer.files, file: writer.files[file][:-cut]}
        torn = load(files, log)
        closed = [one for one in log.segments if one.end != OPEN]
        block = torn.next_block[CHANGES]
        fresh, files["log/changes-00000004.seg"] = begun(CHANGES, 4, block)
        again = LogFiles(LOG_ID, (*closed, *torn.torn, fresh))
        assert content(load(files, again)) == content(torn)
        assert content(torn)[3] in seen


@pytest.mark.parametrize("tail", [bytes(5_000), b"\xff" * 100, b"WBLK" + bytes(60), b"WBLK"])
def test_a_tail_of_zeros_or_garbage_counts_for_nothing(tail: bytes) -> None:
    """S2: what was being written may be anything."""
    writer, seen = history()
    log, file = writer.log(), writer.newest(CHANGES)
    size = len(writer.files[file])
    loading = load({**writer.files, file: writer.files[file] + tail}, log)
    assert content(loading) == {3: seen[-1]}
    assert loading.torn[0].end == size


def test_a_hole_in_what_was_never_synced_is_a_tear() -> None:
    """S2: after a power failure a later block may be there and an earlier one not; where the
    earlier one was durable before the later one was written it is damage (S4).
    """
    writer, seen = history()
    log, file = writer.log(), writer.newest(CHANGES)
    sound, offsets = writer.files[file], writer.offsets[file]
    body = b""
    number = writer.next_block[CHANGES]
    for unsynced, is_torn in ((0, False), (1, False), (2, True), (5, True), (1 << 30, True)):
        last = encode_block(checksum_of(sound), number, 0, 0, body, unsynced=unsynced)
        hole = bytearray(sound + last)
        hole[offsets[-2] :] = bytes(len(sound) - offsets[-2]) + last
        files = {**writer.files, file: bytes(hole)}
        if is_torn:
            assert content(load(files, log)) == {3: seen[-3]}
        else:
            assert damage(files, log).offset == offsets[-2]


def test_a_torn_image_is_an_image_that_is_missing() -> None:
    """S2, S4: one that nobody holds may be torn; one that is held was durable before."""
    writer, store = LogWriter(), MapStore()
    put(store, "a", "1")
    writer.held(3)
    writer.image(3, 1, store)
    log = writer.log()
    whole = writer.files[IMAGES_1]
    torn = {**writer.files, IMAGES_1: whole[:-1]}
    assert content(load(torn, log)) == {3: {}}
    writer.state(3, state(1))
    writer.imaged(3, 1, writer.next_block[CHANGES])
    log = writer.log()
    assert content(load(writer.files, log)) == {3: {"a": "1"}}
    for length in range(len(whole)):
        found = damage({**writer.files, IMAGES_1: whole[:length]}, log)
        assert found.file == IMAGES_1
        assert "image 1 of map/flights in partition 3 does not end" in found.why


# -- what is damage -----------------------------------------------------------------------


def test_a_flipped_bit_in_a_closed_segment_is_found_and_placed() -> None:
    """S4: at every byte of a closed segment, of either stream; the block is named that has it."""
    writer, _ = history()
    store = MapStore()
    for number in range(3):
        put(store, f"key {number}", "value")
        writer.image(3, number + 1, store)
        writer.flush(IMAGES)
    writer.roll(IMAGES)
    log = writer.log()
    for file in ("log/changes-00000002.seg", IMAGES_1):
        whole, offsets = writer.files[file], writer.offsets[file]
        for at in range(len(whole)):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            found = damage({**writer.files, file: bytes(flipped)}, log)
            assert found.file == file
            assert found.offset == max((one for one in offsets if one <= at), default=0)


def test_a_closed_segment_that_is_cut_is_damaged() -> None:
    """S4: at every byte; at the end of a block, too."""
    writer, _ = history()
    log, file = writer.log(), "log/changes-00000002.seg"
    whole, offsets = writer.files[file], writer.offsets[file]
    for length in range(len(whole)):
        found = damage({**writer.files, file: whole[:length]}, log)
        assert found.file == file
        ends = [one for one in (*offsets, len(whole)) if one <= length]
        assert found.offset == (ends[-1] if ends else 0)


def test_damage_in_the_open_segment_is_no_tear() -> None:
    """S4: a block that was durable before a later one was written is damaged, not torn."""
    writer, _ = history()
    log, file = writer.log(), writer.newest(CHANGES)
    whole, offsets = writer.files[file], writer.offsets[file]
    for at in range(offsets[0], offsets[-1], 3):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        found = damage({**writer.files, file: bytes(flipped)}, log)
        assert (found.file, found.offset) == (file, max(one for one in offsets if one <= at))


def test_a_segment_that_is_gone_is_named() -> None:
    """S4: cluster.meta knows them all."""
    writer, _ = history()
    log = writer.log()
    for file in list(writer.files):
        files = {name: data for name, data in writer.files.items() if name != file}
        found = damage(files, log)
        assert (found.file, found.offset, found.why) == (file, 0, "it is gone")


def test_swapped_segments_and_those_of_another_log_are_refused() -> None:
    """S4: a segment says which one of which log it is."""
    writer, _ = history()
    log = writer.log()
    first, second = "log/changes-00000001.seg", "log/changes-00000002.seg"
    files = {**writer.files, first: writer.files[second], second: writer.files[first]}
    found = damage(files, log)
    assert (found.file, found.offset) == (first, 0)
    assert "it is segment 2" in found.why
    other = damage(writer.files, msgspec.structs.replace(log, log_id=b"another log's id"))
    assert (other.file, other.why) == (first, "it belongs to another log")
    skipped = [one for one in log.segments if (one.stream, one.number) != (CHANGES, 2)]
    gap = damage(writer.files, LogFiles(LOG_ID, tuple(skipped)))
    assert (gap.file, gap.offset) == ("log/changes-00000003.seg", 0)


def test_a_list_older_than_the_log_is_refused() -> None:
    """S4: a segment with blocks behind those that are listed; a bare one is what a crash leaves,
    one of another log what is left of that.
    """
    writer, seen = history()
    log = writer.log()
    older = LogFiles(LOG_ID, tuple(one for one in log.segments if one.number < 3))
    found = damage(writer.files, older)
    assert (found.file, found.why) == (CLUSTER_FILE, "it is older than log/changes-00000003.seg")
    _, bare = begun(CHANGES, 4, writer.next_block[CHANGES])
    other = LogWriter(b"another log's id")
    other.held(4)
    other.log()
    given_up = other.files["log/changes-00000001.seg"]
    for extra in (bare, bare[:10], b"", bare + bytes(100), b"no segment" * 100, given_up):
        files = {**writer.files, "log/changes-00000004.seg": extra, "log/notes.txt": b"notes"}
        assert content(load(files, log)) == {3: seen[-1]}


def test_a_list_that_makes_no_sense_is_refused() -> None:
    """S4: only the newest segment of a stream may be open."""
    writer, _ = history()
    opened = tuple(msgspec.structs.replace(one, end=OPEN) for one in writer.log().segments)
    assert damage(writer.files, LogFiles(LOG_ID, opened)).file == CLUSTER_FILE


@pytest.mark.parametrize(
    "what", ["operation", "state", "name", "unnamed", "two names", "long", "kind"]
)
def test_whole_blocks_that_make_no_sense_are_damage(what: str) -> None:
    """S4: bytes with a good checksum that nobody wrote are never decoded into data."""
    writer = LogWriter()
    writer.held(3)
    writer.flush(CHANGES)
    if what == "operation":
        writer.operation(3, 1, b"\x7fno operation")
    elif what == "state":
        writer.add(CHANGES, RecordKind.STATE, prefix(3), 0, b"\xc1")
    elif what == "name":
        writer.add(CHANGES, RecordKind.NAME, prefix(3), 0, b"\xff")
    elif what == "two names":
        writer.add(CHANGES, RecordKind.NAME, prefix(3), 0, b"map/other")
    elif what == "kind":
        writer.add(CHANGES, RecordKind.CHUNK, prefix(3))
        writer._flags[CHANGES] = WITH_CONTROL
    elif what == "unnamed":
        writer.add(CHANGES, RecordKind.HELD, prefix(3) << 1, 0, msgspec.msgpack.encode(state()))
    else:
        writer.operation(3, 1, put(MapStore(), "a", "1"))
        writer._bodies[CHANGES] = writer._bodies[CHANGES][:-1]
    offset = len(writer.files[writer.newest(CHANGES)])
    found = damage(writer.files, writer.log())
    if what == "unnamed":
        assert (found.file, found.offset) == (CLUSTER_FILE, 0)
    else:
        assert (found.file, found.offset) == (writer.newest(CHANGES), offset)
    assert len(writer.files[writer.newest(CHANGES)]) - offset > BLOCK_HEAD_BYTES


def test_versions_are_never_guessed() -> None:
    """S4, AE-11: a fragment that is held without a state is told, not begun from zero."""
    writer = LogWriter()
    writer.name(CHANGES, STRUCTURE, MAP)
    writer.imaged(3, 1, 1)
    assert "held without a state" in damage(writer.files, writer.log()).why
    lost = LogWriter()
    lost.roll(CHANGES)
    lost.next_block[CHANGES] = 5
    lost.roll(CHANGES)
    lost.image(3, 1, MapStore())
    lost.state(3, state(1))
    lost.imaged(3, 1, 4)
    newest = tuple(one for one in lost.log().segments if one.stream is IMAGES or one.number == 3)
    found = damage(lost.files, LogFiles(LOG_ID, newest))
    assert "the beginning of map/flights in partition 3 is missing" in found.why
