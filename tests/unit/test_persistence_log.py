"""The log of a member on a simulated disk: what is written, who waits, what a load finds (0017)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.keys import CLUSTER_ID, encryption_now, header_bytes
from tests.unit.persistence_rig import MAP, PARTITIONS, ROW, Rig, expected

from whimbrel.core.ids import EMPTY_ROW, PartitionId, namespace_of
from whimbrel.core.model import RowState
from whimbrel.core.persistence import log
from whimbrel.core.persistence.commands import Append, Command, Read
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    ClusterFile,
    LogFiles,
    decode_cluster_file,
)
from whimbrel.core.replication.fragments import Fragment
from whimbrel.errors import OverloadedError
from whimbrel.sim.disk import Fault, SimDisk
from whimbrel.structures.map.locks import LOCK
from whimbrel.structures.map.store import MapStore

pytestmark = pytest.mark.usefixtures("either")
LATER = 9
"""A version of rows."""
VOLATILE = namespace_of("map", "volatile")


def test_a_write_is_acknowledged_when_it_is_synced() -> None:
    """APR-04, R4: the reply waits for the work that has the change and its sync."""
    rig = Rig()
    rig.begin()
    reply = rig.put(b"a", b"1")
    assert reply.remaining == 1
    rig.turn()
    assert not rig.acknowledged
    assert rig.work()
    assert rig.acknowledged == [(b"a", b"1")]


def test_changes_gather_while_a_work_is_under_way() -> None:
    """APR-03: group commit, one work at a time, and the next one has all that came meanwhile."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.turn()
    for number in range(10):
        rig.put(b"b%d" % number, b"2")
        rig.turn()
    assert len(rig.works) == 1
    rig.work()
    assert len(rig.works) == 1 and len(rig.acknowledged) == 1
    rig.work()
    assert len(rig.acknowledged) == 11 and not rig.works


@pytest.mark.parametrize("power", [False, True])
def test_what_was_acknowledged_is_there_after_a_death(power: bool) -> None:
    """APR-01, S1: after kill -9, or a power failure, whatever was acknowledged is found."""
    rig = Rig()
    rig.begin()
    for number in range(300):
        rig.put(b"key %d" % number, b"value %d" % number)
        if number % 3 == 0:
            rig.remove(b"key %d" % (number // 2))
        rig.settle()
    before = expected(rig.acknowledged)
    assert before == rig.content()
    rig.die(power=power)
    rig.begin()
    assert rig.content() == before and not rig.problems


def test_a_log_that_was_loaded_goes_on() -> None:
    """Three lives on one disk: each finds the last one's writes, and adds its own."""
    rig = Rig()
    for life in range(4):
        rig.begin()
        assert rig.content() == expected(rig.acknowledged)
        for number in range(60):
            rig.put(b"%d" % number, b"life %d" % life)
            rig.put(b"only %d %d" % (life, number), b"x" * 50)
        rig.settle()
        rig.die(power=bool(life % 2))
    rig.begin()
    assert rig.content() == expected(rig.acknowledged) and len(rig.content()) == 300


def test_structures_that_are_not_persistent_write_nothing() -> None:
    """APR-02, APR-68: not a byte of them, and no reply waits."""
    rig = Rig()
    rig.begin()
    before = rig.usage()
    assert rig.put(b"a", b"secret" * 100, VOLATILE).remaining == 0
    rig.carry_on()
    assert rig.usage() == before
    rig.die(power=False)
    rig.begin()
    assert rig.content(VOLATILE) == {}


@pytest.mark.parametrize("fsync", ["interval", "off"])
def test_nobody_waits_where_syncs_are_not_asked_for(fsync: str) -> None:
    """APR-05: the reply is decided at once; the change is written within a part of the interval,
    and a process that dies then loses nothing.
    """
    rig = Rig(fsync=fsync)
    rig.begin()
    assert rig.put(b"a", b"1").remaining == 0
    rig.turn()
    assert not rig.works
    rig.carry_on()
    assert rig.acknowledged == [(b"a", b"1")]
    rig.die(power=False)
    rig.begin()
    assert rig.content() == {b"a": b"1"}


def test_the_number_of_a_structure_that_is_forgotten_is_not_given_to_another() -> None:
    """With old segments the names of structures go that are no more; the numbers of others stay."""
    rig = Rig()
    rig.begin()
    first, second = (namespace_of("map", name) for name in ("first", "second"))
    rig.put(b"a", b"1", first)
    rig.put(b"a", b"2", second)
    rig.settle()
    rig.plane.holdings.destroy(first, 5)
    for number in range(2_000):
        rig.put(b"%d" % (number % 20), b"x" * 100, second)
        rig.settle()
    rig.carry_on()
    for name in ("third", "fourth"):
        rig.die(power=True)
        rig.begin()
        rig.put(b"a", b"3", namespace_of("map", name))
        rig.carry_on()
    rig.die(power=True)
    rig.begin()
    assert not rig.problems and not rig.stopped
    assert rig.content(second)[b"a"] == b"2"
    assert rig.content(namespace_of("map", "fourth")) == {b"a": b"3"}


def test_what_waits_for_nobody_is_synced_in_time() -> None:
    """APR-05: with ``interval`` by itself, so that whatever a power failure takes is younger."""
    for seed in range(10):
        rig = Rig(seed, fsync="interval")
        rig.begin()
        rig.put(b"a", b"1")
        rig.carry_on()
        rig.die(power=True)
        rig.begin()
        assert rig.content() == {b"a": b"1"}, seed


def test_compaction_bounds_the_disk_and_loses_nothing() -> None:
    """APR-69: sixty times the same thousand bytes leave a bounded log; what is gone stays gone."""
    rig = Rig(segment_bytes=4_096)
    rig.begin()
    for turn in range(60):
        for number in range(40):
            rig.put(b"key %d" % number, b"%d" % turn * 100)
        rig.settle()
        if turn % 10 == 9:
            rig.carry_on()
    for number in range(20):
        rig.remove(b"key %d" % number)
    rig.carry_on()
    live = sum(len(key) + len(value) for key, value in rig.content().items())
    assert rig.usage() <= 4 * live + 8 * 4_096
    written = rig.files.log
    assert written is not None and written.counters["disk_images"] > 0
    assert written.counters["disk_bytes_written"] <= 3 * written.counters["disk_change_bytes"]
    rig.die(power=True)
    rig.begin()
    assert rig.content() == expected(rig.acknowledged) and len(rig.content()) == 20


def test_a_full_disk_refuses_and_goes_on_when_there_is_room() -> None:
    """APR-25, fault 54: what waited fails and says why, the member lives, and nothing is lost of
    it: what memory has had is on the disk in the end.
    """
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    rig.disk.bytes_max = sum(one.size for one in rig.disk.list_folder("log")) + 2_000
    rig.put(b"b", b"2" * 8_000)
    rig.turn()
    rig.work()
    assert rig.failed == [(b"b", b"2" * 8_000)]
    assert "space" in rig.plane.outgoing.disk_trouble and not rig.stopped
    rig.disk.bytes_max = None
    rig.carry_on()
    assert not rig.plane.outgoing.disk_trouble
    rig.put(b"c", b"3")
    rig.settle()
    rig.die(power=True)
    rig.begin()
    assert rig.content() == {b"a": b"1", b"b": b"2" * 8_000, b"c": b"3"}


def test_a_sync_that_fails_is_final() -> None:
    """APR-04, S5: nothing is acknowledged any more, and the member stops and says so."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.turn()
    rig.disk.arm(Fault.SYNC_ERROR)
    rig.work()
    assert not rig.acknowledged and len(rig.stopped) == 1
    assert "sync" in rig.stopped[0]


def test_random_histories_lose_nothing_acknowledged() -> None:
    """APR-25, S1, S2, S7: changes, works, timers and deaths in any order; after each death what is
    found is a prefix of the changes that has all that was acknowledged.
    """
    for seed in range(40):
        _history(seed)


def _history(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(seed, segment_bytes=chance.choice([300, 4_096, 65_536]))
    before: dict[bytes, bytes] = {}
    made: list[tuple[bytes, bytes | None]] = []
    for _ in range(5):
        rig.begin()
        assert not rig.problems and not rig.stopped, (seed, rig.problems, rig.stopped)
        found = rig.content()
        check_kept(found, before, made, rig.acknowledged, seed)
        before, made = found, []
        rig.acknowledged = []
        for step in range(chance.randrange(100)):
            dice = chance.random()
            if dice < 0.6:
                key, is_removed = b"%d" % chance.randrange(30), chance.random() < 0.2
                value = None if is_removed else b"%d " % step * chance.randrange(1, 200)
                if rig.remove(key).remaining if value is None else rig.put(key, value).remaining:
                    made.append((key, value))
            elif dice < 0.75:
                rig.turn()
            elif dice < 0.95:
                rig.turn()
                rig.work()
            else:
                rig.fire()
        rig.die(power=chance.random() < 0.5)


def check_kept(
    found: dict[bytes, bytes],
    before: dict[bytes, bytes],
    made: list[tuple[bytes, bytes | None]],
    acknowledged: list[tuple[bytes, bytes | None]],
    seed: int,
) -> None:
    """What is found is a prefix of the changes, and no acknowledged one is missing from it.

    Changes are acknowledged in their order.
    """
    assert made[: len(acknowledged)] == acknowledged, seed
    content = before | {}
    prefixes = [dict(content)]
    for key, value in made:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
        prefixes.append(dict(content))
    assert found in prefixes[len(acknowledged) :], (seed, len(made), len(acknowledged))


def test_a_fragment_that_is_given_up_is_not_found_again() -> None:
    """DROPPED: what moved away, and what was destroyed, does not come back."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    rig.plane.holdings.destroy(MAP, 5)
    rig.carry_on()
    rig.die(power=True)
    rig.begin()
    assert rig.content() == {}


def say_later_rows(rig: Rig) -> None:
    """Have the cluster file say from now on that every row is of version LATER."""
    before = rig.files.describe
    assert before is not None

    def describe(log: LogFiles, has_left: bool) -> ClusterFile:
        said = before(log, has_left)
        rows = tuple(RowState(row.partition_id, LATER, row.row) for row in said.rows)
        return msgspec.structs.replace(said, rows=rows)

    rig.files.describe = describe


def test_what_went_with_a_row_is_there_until_the_row_is_noted() -> None:
    """The new primary's disk may be lost with it, and then these data are all there are (D1).
    Method: a loss of power behind each command; whoever has the old row has the data.
    """
    rig = Rig()
    rig.begin()
    rig.put(b"0", b"1")
    rig.carry_on()
    rig.plane.holdings.discard(rig.plane.partitions[0], MAP)
    say_later_rows(rig)
    disk, commands = rig.disk.fork(random.Random(1)), list[Command]()
    for _ in range(40):
        rig.turn()
        while rig.works:
            commands += rig.works[0].commands
            rig.work()
        if not rig.fire():
            break
    seen = [found_on(rig, disk, commands[:end]) for end in range(len(commands) + 1)]
    assert seen[0] == (False, 1) and seen[-1] == (True, 0) and (False, 0) not in seen


def copy_of(rig: Rig, entries: int) -> Fragment:
    """A fragment that nobody holds, with entries in it, as a transfer fills it."""
    fragment = rig.plane.holdings.make(PartitionId(0), MAP)
    store = fragment.store
    for number in range(entries):
        key = b"%d0" % number
        store.put(b"\x00\x00\x00\x00\x00\x00\x00\x01" + key, b"v" * 500, 0, 0, 0)  # type: ignore[attr-defined]
    fragment.lineage = 77
    fragment.set_counters((entries,) * 6, 0)
    return fragment


def test_a_copy_without_entries_is_not_nothing() -> None:
    """A queue knows whose items it has given away, a ring buffer its next sequence, a map its
    locks: an image has that, too.
    """
    rig = Rig()
    rig.begin()
    fragment = copy_of(rig, 0)
    store = fragment.store
    assert isinstance(store, MapStore)
    store.set_lock(b"key", LOCK.pack(b"u" * 16, 1, 1, 0, 0))
    fragment.set_counters((1,) * 6, 0)
    assert rig.plane.holdings.hold(rig.plane.partitions[0], fragment)
    rig.carry_on()
    rig.die(power=True)
    rig.begin()
    found = rig.plane.partitions[0].fragments[MAP].store
    assert isinstance(found, MapStore) and found.locks is not None
    assert store.locks is not None and found.locks.state(b"key") == store.locks.state(b"key")


def test_a_staged_copy_is_durable_with_the_word_that_it_is_held() -> None:
    """0017: chunks go to the disk as they arrive; once the commit may be answered, a power failure
    takes nothing of the copy.
    """
    rig = Rig()
    rig.begin()
    fragment = copy_of(rig, 40)
    cursor, is_last = fragment.store.open_cursor(), False
    while not is_last:
        chunk, _, is_last = fragment.store.export(cursor, 4_000)
        rig.files.stage(fragment, chunk, is_last=is_last)
    partition = rig.plane.partitions[0]
    assert rig.plane.holdings.hold(partition, fragment)
    told: list[bool] = []
    rig.plane.roles.when_durable(lambda: told.append(True))
    assert not told
    rig.settle()
    assert told == [True]
    rig.die(power=True)
    rig.begin()
    assert len(rig.content()) == 40
    found = rig.plane.partitions[0].fragments[MAP]
    assert found.counters()[0] == 40 and found.base_lineage == 77


def found_on(rig: Rig, disk: SimDisk, commands: Sequence[Command]) -> tuple[bool, int]:
    """After these commands and a loss of power: has it the later row, and how many entries?"""
    lost = disk.fork(random.Random(len(commands)))
    lost.execute(tuple(commands))
    lost.crash()
    size = {one.file: one.size for one in lost.list_folder("")}[CLUSTER_FILE]
    (data,) = lost.execute((Read(CLUSTER_FILE, 0, size),))
    assert isinstance(data, bytes)
    found = decode_cluster_file(encryption_now().decrypt_file(CLUSTER_FILE, CLUSTER_FILE, data))
    loading = Loading(
        found.log,
        lost.list_folder("log"),
        lambda pid, _namespace: pid == 0,
        lambda pid, namespace, state: rig.plane.holdings.make_as(pid, namespace, (1, 0), 0),
        encryption=encryption_now(),
        cluster_id=CLUSTER_ID,
    )
    while not loading.is_done:
        loading.take(lost.execute(loading.next_commands()))
    return found.rows[0].version == LATER, sum(len(one.store) for one in loading.fragments)


@pytest.mark.parametrize("segment_bytes", [300, 1_000_000])
def test_a_row_is_not_on_the_disk_before_the_copy_that_came_with_it(segment_bytes: int) -> None:
    """Whose row is newest is the primary after a recovery: it must have what it was given. Method:
    a loss of power behind each command, also of those that begin segments.
    """
    rig = Rig(segment_bytes=segment_bytes)
    rig.begin()
    rig.put(b"1", b"x" * 400)
    rig.carry_on()
    fragment = copy_of(rig, 40)
    cursor, is_last = fragment.store.open_cursor(), False
    while not is_last:
        chunk, _, is_last = fragment.store.export(cursor, 4_000)
        rig.files.stage(fragment, chunk, is_last=is_last)
    assert rig.plane.holdings.hold(rig.plane.partitions[0], fragment)
    say_later_rows(rig)
    rig.files.note_cluster()
    rig.put(b"2", b"behind it")
    disk, commands = rig.disk.fork(random.Random(1)), list[Command]()
    rig.turn()
    while rig.works:
        commands += rig.works[0].commands
        rig.work()
    seen = [found_on(rig, disk, commands[:end]) for end in range(len(commands) + 1)]
    assert seen[-1] == (True, 40) and (False, 0) in seen and (True, 0) not in seen


@pytest.mark.parametrize("works", range(4))
def test_a_copy_that_is_not_whole_on_the_disk_is_not_found(works: int) -> None:
    """A copy that was not staged gets its image piece by piece: until that is whole the cluster is
    not safe, and a death leaves nothing of it rather than a part.
    """
    rig = Rig()
    rig.begin()
    fragment = copy_of(rig, 1_500)
    rig.plane.holdings.hold(rig.plane.partitions[0], fragment)
    assert rig.plane.unsettled() > 0
    for _ in range(works):
        rig.fire()
        rig.work()
    is_whole = not rig.files.unfinished
    rig.put(b"00", b"behind it")
    rig.settle()
    rig.die(power=True)
    rig.begin()
    found = rig.content()
    assert len(found) == (1_500 if is_whole else 0)
    assert not is_whole or found[b"00"] == b"behind it"
    assert not rig.problems


def test_a_destination_answers_a_commit_when_its_copy_is_durable() -> None:
    """At rest nobody waits: what is on the disk already is told at once."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.carry_on()
    told: list[bool] = []
    rig.plane.roles.when_durable(lambda: told.append(True))
    assert told == [True]


def test_a_graceful_end_puts_everything_down() -> None:
    """APR-05: after a clean stop nothing is lost, whatever ``fsync`` says."""
    rig = Rig(fsync="off")
    rig.begin()
    rig.put(b"a", b"1")
    rig.files.end()
    rig.settle()
    rig.die(power=True)
    rig.begin()
    assert rig.content() == {b"a": b"1"}


def test_a_member_that_left_with_nothing_has_no_files() -> None:
    """A leaver that handed everything over begins empty."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    rig.discard_all()
    rig.files.end()
    rig.settle()
    rig.die(power=True)
    rig.begin()
    assert rig.files.found is None and rig.content() == {} and not rig.stopped


def test_what_is_set_aside_is_out_of_the_way_and_whole() -> None:
    """Stale files are moved, never deleted; what is written next is a log of its own."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    rig.die(power=False)
    rig.files.begin(lambda: None)
    rig.settle()
    before = {one.file.rpartition("/")[2]: one.size for one in rig.disk.list_folder("log")}
    told: list[bool] = []
    rig.files.set_aside(lambda: told.append(True))
    rig.settle()
    assert told == [True] and rig.files.found is None
    folders = {file.rpartition("/")[0] for file in rig.disk._files if file.startswith("aside/")}
    kept = [one for folder in sorted(folders) for one in rig.disk.list_folder(folder)]
    assert {one.file.rpartition("/")[2]: one.size for one in kept}.items() >= before.items()
    rig.begin()
    rig.put(b"b", b"2")
    rig.settle()
    rig.die(power=True)
    rig.begin()
    assert rig.content() == {b"b": b"2"}


def test_a_disk_that_is_too_slow_refuses_rather_than_gathers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """APR-03: every queue is bounded; beyond the limit writes are refused until the disk has
    caught up.
    """
    monkeypatch.setattr(log, "UNWRITTEN_BYTES_MAX", 5_000)
    rig = Rig()
    rig.begin()
    for number in range(8):
        rig.put(b"%d" % number, b"x" * 1_000)
    rig.turn()
    with pytest.raises(OverloadedError, match="waits for the disk"):
        rig.put(b"9", b"x")
    rig.settle()
    rig.put(b"9", b"x")
    rig.settle()
    assert len(rig.acknowledged) == 9


def test_what_changes_before_the_cluster_runs_is_written_when_it_does() -> None:
    """A member has rows before it is told that all are back: others may send it their changes."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    rig.die(power=True)
    rig.files.begin(lambda: None)
    rig.settle()
    rig.files.load(dict.fromkeys(map(PartitionId, range(PARTITIONS)), 0))  # type: ignore[arg-type]
    rig.settle()
    before = dict(rig.disk._files)
    rig.files.follow()
    for partition in rig.plane.partitions:
        rig.plane.roles.row_changed(partition.pid, EMPTY_ROW, ROW, 2)
    rig.remove(b"a")
    rig.put(b"b", b"2")
    rig.carry_on()
    assert rig.disk._files == before and len(rig.acknowledged) == 1
    rig.files.began()
    rig.carry_on()
    assert len(rig.acknowledged) == 3
    rig.die(power=True)
    rig.begin()
    assert rig.content() == {b"b": b"2"}


def test_nothing_is_kept_once_the_files_are_closed_for_all() -> None:
    """AE-17: where all leave, a destruction after the first goodbye is in nobody's files, and it is
    not answered as if it were.
    """
    rig = Rig()
    rig.begin()
    kept: list[str] = []
    rig.files.when_kept(lambda: kept.append("before"))
    rig.settle()
    rig.files.end_with_all()
    rig.files.when_kept(lambda: kept.append("after"))
    rig.settle()
    assert kept == ["before"]


@pytest.mark.parametrize("has_left", [False, True])
def test_what_a_death_left_is_not_written_to(has_left: bool) -> None:
    """A header that nobody names, or the log of a member that left and died as it removed it."""
    rig = Rig()
    rig.begin()
    rig.put(b"a", b"1")
    rig.settle()
    kept = {name: bytes(file.data) for name, file in rig.disk._files.items()}
    if has_left:
        for partition in rig.plane.partitions:
            for namespace in list(partition.fragments):
                rig.plane.holdings.discard(partition, namespace)
        rig.files.end()
        rig.settle()
        strays = {name: data for name, data in kept.items() if name.startswith("log/")}
        strays["log/images-00000009.seg"] = next(iter(strays.values()))
    else:
        strays = {"log/changes-00000002.seg": kept["log/changes-00000001.seg"][: header_bytes()]}
    rig.die(power=False)
    rig.disk.execute([Append(name, (data,)) for name, data in strays.items()])
    for value in (b"2", b"3"):
        rig.begin()
        rig.put(b"b", value)
        rig.carry_on()
        assert not set(strays) & set(rig.disk._files)
        rig.die(power=True)
    rig.begin()
    assert not rig.problems and not rig.stopped
    assert rig.content() == {b"b": b"3"} | ({} if has_left else {b"a": b"1"})


@pytest.mark.parametrize("missing", [1_000, 99, 1, 0])
def test_a_death_in_the_first_moment_is_no_damage(missing: int) -> None:
    """The first segment is begun before anything names it; a log with blocks has been named."""
    rig = Rig()
    rig.begin()
    file, header = next(iter(rig.disk._files.items()))
    data = bytes(header.data)[: max(0, header_bytes() - missing)]
    for blocks, problems in ((b"", 0), (b"x" * (header_bytes() + 1), 1)):
        rig = Rig()
        rig.disk.execute((Append(file, (data + blocks,)),))
        rig.begin()
        assert file.startswith("log/") and len(rig.stopped) == problems
