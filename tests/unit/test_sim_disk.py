"""The simulator's disk: what it loses, what it never loses, and what lies between it and a host."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from whimbrel.core.effects import DiskWork, Stopped
from whimbrel.core.persistence.commands import (
    Append,
    Command,
    DiskProblem,
    Failure,
    FileSize,
    List,
    Move,
    Read,
    Remove,
    Replace,
    Sync,
    SyncFolder,
)
from whimbrel.core.stimuli import DiskDone, DiskFailed, Stimulus
from whimbrel.serving.engine import Engine
from whimbrel.sim.disk import SLOW_WORK_US, WORK_US, Fault, SimDisk
from whimbrel.sim.disk_file import SECTOR_BYTES
from whimbrel.sim.entropy import Entropy
from whimbrel.sim.host import Host
from whimbrel.sim.profile import draw_plan
from whimbrel.sim.profiles import profile_named
from whimbrel.sim.world import World
from whimbrel.storage.contract import folder_of

SEEDS = 300
BYTES_MAX = 1 << 20
OLD = b"o" * 700
"""Of another file: what may come up in holes."""


def disk_with(seed: int, *commands: Command) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.execute(commands)
    return disk


def content(disk: SimDisk, file: str) -> bytes | None:
    """Bytes of a file; None when it is not there."""
    if file not in names(disk, folder_of(file)):
        return None
    (data,) = disk.execute((Read(file, 0, BYTES_MAX),))
    assert isinstance(data, bytes)
    return data


def names(disk: SimDisk, folder: str) -> list[str]:
    (listed,) = disk.execute((List(folder),))
    assert isinstance(listed, tuple)
    return [one.file for one in listed if isinstance(one, FileSize)]


def crashed(*commands: Command) -> Iterator[SimDisk]:
    """The same history, and many ways to lose the power behind it."""
    for seed in range(SEEDS):
        disk = disk_with(seed, *commands)
        disk.crash()
        yield disk


# -- what a crash leaves ----------------------------------------------------------------------


def test_what_was_synced_is_there_after_any_crash() -> None:
    """Goal (S1): what was told to be durable is. Method: a synced beginning, an unsynced end, a
    replaced and a moved file; a second crash right behind the first.
    """
    history = (
        Append("log/a", (b"synced",)),
        Sync("log/a"),
        Append("log/a", (b"not",)),
        Append("meta", (b"old",)),
        Replace("meta", b"new"),
        Append("x", (b"moved",)),
        Sync("x"),
        Move("x", "aside/x"),
    )
    for disk in crashed(*history):
        for _ in range(2):
            assert (content(disk, "log/a") or b"").startswith(b"synced")
            assert content(disk, "meta") == b"new"
            assert content(disk, "x") is None
            assert content(disk, "aside/x") == b"moved"
            disk.crash()


def ways_of(disk: SimDisk, parts: list[bytes], synced: bytes) -> Iterator[str]:
    """In which ways what a crash left differs from what was written."""
    data = content(disk, "a") or b""
    whole = synced + b"".join(parts)
    assert data.startswith(synced)
    if data == whole:
        yield "all kept"
    elif data == synced:
        yield "all lost"
    elif whole.startswith(data):
        is_at_sector = len(data) % SECTOR_BYTES == 0
        yield "torn at a sector" if is_at_sector else "torn at a byte"
    starts = [len(synced) + sum(map(len, parts[:index])) for index in range(len(parts))]
    found = [data[start : start + len(part)] for start, part in zip(starts, parts, strict=True)]
    kept = [piece == part for piece, part in zip(found, parts, strict=True)]
    if not kept[0] and any(kept[1:]):
        yield "reordered"
    if any(piece and piece == bytes(len(piece)) for piece in found):
        yield "zeros"
    if any(piece and set(piece) <= {ord("o"), 0} and b"o" in piece for piece in found):
        yield "old bytes"
    if len(data) == len(whole) and data.endswith(bytes(10)):
        yield "zeros at the end"
    middle = found[1]
    is_inside = middle[:10] == middle[-10:] == b"2" * 10
    if is_inside and len(middle) == len(parts[1]) and middle != parts[1]:
        yield "sectors missing"


def test_what_was_not_synced_is_lost_in_every_way() -> None:
    """Goal: a crash is as nasty as real ones (faults 44 to 46, 56). Method: three appends behind a
    synced beginning; over many seeds each way must come up, and none that may not.
    """
    parts = [b"1" * 300, b"2" * 3000, b"3" * 500]
    history = (
        Append("old", (OLD,)),
        Sync("old"),
        Append("a", (b"synced",)),
        Sync("a"),
        *(Append("a", (part,)) for part in parts),
    )
    met = {way for disk in crashed(*history) for way in ways_of(disk, parts, b"synced")}
    assert met == {
        "all kept",
        "all lost",
        "torn at a byte",
        "torn at a sector",
        "reordered",
        "zeros",
        "old bytes",
        "zeros at the end",
        "sectors missing",
    }


def test_names_are_lost_without_a_sync_of_their_folder() -> None:
    """Goal (fault 49): a new name, or that one is gone, is durable only once that was synced.
    Method: make and remove, with and without; each outcome must come up over many seeds.
    """
    made = [Append("log/a", (b"1",)), Append("log/b", (b"2",))]
    seen = {tuple(names(disk, "log")) for disk in crashed(*made)}
    assert seen == {(), ("log/a",), ("log/b",), ("log/a", "log/b")}
    seen = {tuple(names(disk, "log")) for disk in crashed(*made, SyncFolder("log"))}
    assert seen == {("log/a", "log/b")}
    removed = [*made, Sync("log/a"), SyncFolder("log"), Remove("log/a")]
    back = {content(disk, "log/a") for disk in crashed(*removed)}
    assert back == {None, b"1"}
    assert {content(disk, "log/a") for disk in crashed(*removed, SyncFolder("log"))} == {None}
    again = {content(disk, "log/a") for disk in crashed(*removed, Append("log/a", (b"3",)))}
    assert {None, b"1", b"3"} <= again
    synced = (*removed, Append("log/a", (b"3",)), Sync("log/a"))
    assert {content(disk, "log/a") for disk in crashed(*synced)} == {b"3"}


def test_a_process_that_dies_loses_nothing_that_was_carried_out() -> None:
    """Goal: kill -9 is no loss of power. Method: unsynced bytes and names, kill."""
    disk = disk_with(1, Append("log/a", (b"1",)), Append("b", (b"2",)), Remove("b"))
    disk.kill()
    assert content(disk, "log/a") == b"1"
    assert names(disk, "") == []


def test_a_work_may_be_carried_out_in_part() -> None:
    """Goal: who is killed in the middle of a work leaves any part of it (fault 22). Method: many
    seeds; commands in order, the one at hand half, a replacement never so under its own name.
    """
    work = (Append("a", (b"12", b"3")), Replace("meta", b"new"), Append("a", (b"4",)))
    seen = set()
    for seed in range(SEEDS):
        disk = disk_with(seed, Replace("meta", b"old"))
        disk.carry_out_part(work)
        seen.add((content(disk, "a"), content(disk, "meta"), content(disk, "meta.new")))
    assert {left for left, _, _ in seen} == {None, b"", b"1", b"12", b"123", b"1234"}
    assert {meta for _, meta, _ in seen} == {b"old", b"new"}
    assert {fresh for _, _, fresh in seen} == {None, b"", b"n", b"ne", b"new"}
    for left, meta, fresh in seen:
        assert meta == b"old" or left in (b"123", b"1234")
        assert fresh is None or (left, meta) == (b"123", b"old")


def test_a_history_may_be_swept() -> None:
    """Goal (S7): every point of a short history can be tried, whatever happens at the others.
    Method: a copy of the disk behind each command loses its power; the disk itself does not.
    """
    disk = SimDisk(random.Random(1))
    written = b""
    for index in range(20):
        disk.execute((Append("a", (b"%02d" % index,)), Sync("a")))
        written += b"%02d" % index
        copy = disk.fork(random.Random(index))
        copy.execute((Append("a", (b"more",)), Append("b", (b"1",))))
        copy.crash()
        assert (content(copy, "a") or b"").startswith(written)
        assert content(disk, "a") == written
        assert names(disk, "") == ["a"]


def test_one_seed_is_one_history() -> None:
    """Goal: a run can be repeated. Method: the same crashes and faults twice, and other ones."""

    def history(seed: int) -> list[bytes | None]:
        disk = SimDisk(random.Random(seed))
        disk.rates = dict.fromkeys((Fault.SYNC_LIE, Fault.BIT_ROT, Fault.MISDIRECTED), 0.3)
        found = []
        for number in range(20):
            disk.execute((Append(f"f{number % 3}", (b"x" * 100,)), Sync(f"f{number % 3}")))
            if number % 5 == 4:
                disk.crash()
            found += [content(disk, f"f{number}") for number in range(3)]
        return found

    assert history(3) == history(3)
    assert history(3) != history(4)


# -- faults -----------------------------------------------------------------------------------


def test_a_failed_sync_leaves_what_no_later_sync_saves() -> None:
    """Goal (fault 47): after a sync failed the next process reads everything, syncs without an
    error, and loses it with the power all the same. Method: many seeds; some are lost, some not.
    """
    seen = set()
    for seed in range(SEEDS):
        disk = disk_with(seed, Append("a", (b"1",)), Sync("a"), Append("a", (b"2",)))
        disk.arm(Fault.SYNC_ERROR)
        with pytest.raises(DiskProblem, match="input/output error"):
            disk.execute((Sync("a"),))
        disk.kill()
        assert content(disk, "a") == b"12"
        disk.execute((Append("a", (b"3",)), Sync("a")))
        disk.crash()
        data = content(disk, "a")
        assert data is not None
        assert (data[:1], data[2:]) == (b"1", b"3")
        seen.add(data[1:2])
    assert b"2" in seen
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("before", "command", "file"),
    [
        ((Append("a", (b"1",)),), Sync("a"), "a"),
        ((Append("a", (b"1",)), Sync("a"), Remove("a")), SyncFolder(""), "a"),
        ((Replace("a", b"1"),), Replace("a", b"22"), "a"),
        ((Append("b", (b"1",)), Sync("b")), Move("b", "a"), "a"),
    ],
    ids=["sync", "folder", "replace", "move"],
)
def test_a_sync_may_lie(before: tuple[Command, ...], command: Command, file: str) -> None:
    """Goal (fault 48): what was told to be durable is lost. Method: each command that syncs, with
    and without the lie; many seeds.
    """
    honest, lied = set(), set()
    for seed in range(SEEDS):
        disk = disk_with(seed, *before, command)
        disk.crash()
        honest.add(content(disk, file))
        disk = disk_with(seed, *before)
        disk.arm(Fault.SYNC_LIE)
        disk.execute((command,))
        disk.crash()
        lied.add(content(disk, file))
    assert len(honest) == 1
    assert honest < lied


def test_bits_rot_sectors_are_stale_and_writes_go_astray() -> None:
    """Goal (faults 50 to 52): damage is there, is of the kind that was asked for, and stays.
    Method: one of each on synced files, compared with what was written.
    """
    good = bytes(range(1, 201)) * 20
    history = (Append("a", (good,)), Sync("a"), Append("b", (OLD,)), Sync("b"))

    disk = disk_with(1, *history)
    disk.rot("a", 77)
    data = content(disk, "a") or b""
    assert [index for index in range(len(good)) if data[index] != good[index]] == [77]
    assert (data[77] ^ good[77]).bit_count() == 1
    with pytest.raises(LookupError, match="is not on the disk"):
        disk.rot("a", len(good))

    disk = disk_with(2, *history)
    disk.arm(Fault.BIT_ROT)
    data = content(disk, "a") or b""
    assert sum((one ^ other).bit_count() for one, other in zip(data, good, strict=True)) == 1
    assert content(disk, "a") == data

    disk = disk_with(3, *history)
    disk.arm(Fault.STALE)
    data = content(disk, "a") or b""
    wrong = [index for index in range(len(good)) if data[index] != good[index]]
    assert len({index // SECTOR_BYTES for index in wrong}) == 1

    seen = set()
    for seed in range(50):
        disk = disk_with(seed, *history)
        disk.arm(Fault.MISDIRECTED)
        disk.execute((Append("b", (b"N" * 40,)),))
        data_a, data_b = content(disk, "a") or b"", content(disk, "b") or b""
        assert (len(data_a), len(data_b)) == (len(good), len(OLD) + 40)
        assert data_b[len(OLD) :] != b"N" * 40
        seen.add("a" if b"N" * 40 in data_a else "b" if b"N" * 40 in data_b else "nowhere")
    assert {"a", "b"} <= seen


def test_reads_and_writes_may_fail() -> None:
    """Goal (faults 53, 54, 57): each once, and by chance; the same command succeeds afterwards.
    Method: arm, use, use again; then rates of nothing and of always.
    """
    disk = disk_with(1, Append("a", (b"1",)))
    tries = (
        (Fault.READ_ERROR, Read("a", 0, 9), Failure.BROKEN),
        (Fault.FULL, Append("a", (b"2",)), Failure.FULL),
        (Fault.READ_ONLY, Replace("b", b"2"), Failure.READ_ONLY),
        (Fault.READ_ONLY, Move("a", "c"), Failure.READ_ONLY),
        (Fault.READ_ONLY, Remove("c"), Failure.READ_ONLY),
    )
    for fault, command, failure in tries:
        for way in ("armed", "rate"):
            if way == "armed":
                disk.arm(fault)
            else:
                disk.rates[fault] = 1.0
            with pytest.raises(DiskProblem) as caught:
                disk.execute((command,))
            assert caught.value.failure is failure
            disk.rates[fault] = 0.0
        disk.execute((command,))


def test_a_full_disk_has_room_for_so_many_bytes() -> None:
    """Goal (fault 54): space is counted, and comes back. Method: fill it, remove, go on."""
    disk = disk_with(1, Append("a", (b"123",)))
    disk.bytes_max = 5
    disk.execute((Append("b", (b"45",)),))
    for command in (Append("b", (b"6",)), Replace("c", b"6")):
        with pytest.raises(DiskProblem, match="no space left"):
            disk.execute((command,))
    disk.execute((Remove("a"), Append("b", (b"678",))))
    assert content(disk, "b") == b"45678"


def test_a_disk_takes_its_time() -> None:
    """Goal (fault 55): works take from 50 us to 20 ms, on a slow disk up to half a second. Method:
    many draws of both.
    """
    disk = SimDisk(random.Random(1))
    for is_slow, (least_us, most_us) in ((False, WORK_US), (True, SLOW_WORK_US)):
        disk.is_slow = is_slow
        drawn = [disk.latency_us() for _ in range(1000)]
        assert least_us <= min(drawn) < 2 * least_us
        assert most_us / 2 < max(drawn) <= most_us


# -- the host ---------------------------------------------------------------------------------


class Place:
    """A host with a running member, whose engine hears of nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
        entropy = Entropy(seed)
        self.world = World(draw_plan(entropy, profile_named("calm")), entropy)
        self.host: Host = self.world.hosts[0]
        self.heard: list[tuple[int, Stimulus]] = []

        def handle(engine: Engine, stimulus: Stimulus, now_us: int, wall_ms: int) -> None:
            if isinstance(stimulus, DiskDone | DiskFailed):
                self.heard.append((self.world.now_us, stimulus))

        monkeypatch.setattr(Engine, "handle", handle)
        self.host.start(())

    def says(self, *effects: Any) -> None:
        self.host.member.ctx.effects += effects
        self.host.flush()

    def numbers(self) -> list[int]:
        return [stimulus.number for _, stimulus in self.heard if isinstance(stimulus, DiskDone)]

    def content(self, file: str) -> bytes | None:
        return content(self.host.disk, file)

    def pass_us(self, span_us: int) -> None:
        self.world.scheduler.run_until(self.world.now_us + span_us)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def appends(*numbers: int) -> list[DiskWork]:
    return [DiskWork(number, (Append("a", (b"%d" % number,)),)) for number in numbers]


def test_works_of_a_host_take_their_time_in_order(place: Place) -> None:
    """Goal: a member goes on before the disk has begun, and hears of each work once, in order.
    Method: works at once; a slow disk.
    """
    numbers = list(range(1, 101))
    place.says(*appends(*numbers))
    assert (place.content("a"), place.heard) == (None, [])
    place.pass_us(len(numbers) * WORK_US[1])
    assert place.numbers() == numbers
    assert place.content("a") == b"".join(b"%d" % number for number in numbers)
    place.host.disk.is_slow = True
    place.says(*appends(101))
    place.pass_us(SLOW_WORK_US[0])
    assert place.numbers() == numbers
    place.pass_us(SLOW_WORK_US[1])
    assert place.numbers()[-1] == 101


def test_a_process_that_stands_still_writes_nothing(place: Place) -> None:
    """Goal: SIGSTOP stops the thread at the disk, too. Method: pause with works under way."""
    place.says(*appends(1, 2))
    place.host.pause()
    place.pass_us(1_000_000)
    assert place.content("a") is None
    place.host.resume()
    place.pass_us(1_000_000)
    assert place.numbers() == [1, 2]


def test_a_process_that_is_killed_leaves_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: works that were not begun are lost, that at hand in part; who starts at the same place
    finds the disk, and hears of nothing. Method: kill at once, with many seeds.
    """
    seen = set()
    for seed in range(40):
        place = Place(monkeypatch, seed)
        place.says(DiskWork(1, (Append("a", (b"12",)),)), *appends(3))
        place.host.crash()
        place.host.start(())
        place.pass_us(1_000_000)
        assert place.heard == []
        seen.add(place.content("a"))
    assert seen == {None, b"", b"1", b"12"}


def test_an_answer_does_not_outlive_its_process(place: Place) -> None:
    """Goal: works are numbered per engine, so who starts anew hears of none of those before.
    Method: kill between a work that is carried out and its answer, start at once.
    """
    place.says(*appends(1))
    while place.content("a") is None:
        place.world.scheduler.run_one()
    assert place.heard == []
    place.host.crash()
    place.host.start(())
    place.pass_us(1_000_000)
    assert place.heard == []
    assert place.content("a") == b"1"


def test_a_machine_that_is_gone_loses_what_was_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a power failure is one for the disk. Method: silence the host behind a synced and an
    unsynced work, with many seeds; a killed process loses neither.
    """
    seen: dict[bool, set[bytes | None]] = {True: set(), False: set()}
    for seed in range(40):
        for is_silent in (True, False):
            place = Place(monkeypatch, seed)
            place.says(DiskWork(1, (Append("a", (b"1",)), Sync("a"))), *appends(2))
            place.pass_us(1_000_000)
            place.host.crash(silent=is_silent)
            seen[is_silent].add((place.content("a") or b"")[:2].rstrip(b"\0"))
    assert {b"1", b"12"} <= seen[True]
    assert seen[False] == {b"12"}


def test_who_stops_or_is_expelled_writes_all(place: Place) -> None:
    """Goal: a process that ends by itself, or goes on as somebody else, carries out what it asked
    for, also in the turn in which it stops. Method: both with works under way.
    """
    place.says(*appends(1, 2))
    place.host.end("expelled", keep_sent=True)
    assert place.content("a") == b"12"
    place.host.start(())
    place.says(*appends(3), Stopped("left", 0), *appends(4))
    assert place.content("a") == b"1234"
    place.pass_us(1_000_000)
    assert place.heard == []


def test_another_disk_may_be_put_in(place: Place) -> None:
    """Goal (fault 33): a member may come back with an old copy of its disk. Method: fork, write
    more, put the copy in.
    """
    place.says(*appends(1))
    place.pass_us(1_000_000)
    old = place.host.disk.fork(random.Random(1))
    place.says(*appends(2))
    place.pass_us(1_000_000)
    place.host.crash()
    place.host.works.disk = old
    place.host.start(())
    assert place.content("a") == b"1"


def test_a_run_without_works_draws_nothing(place: Place) -> None:
    """Goal: runs of members that keep nothing are what they were. Method: a crash of process and of
    machine; no generator of a disk was asked for.
    """
    place.host.crash()
    place.host.start(())
    place.host.crash(silent=True)
    place.host.end("left", keep_sent=True)
    assert not [name for name in place.world.entropy._generators if name.startswith("disk")]
