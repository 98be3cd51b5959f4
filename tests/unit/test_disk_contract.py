"""What a member may rely on of a disk: the same tests for files and for the simulator's twin."""

from __future__ import annotations

import errno
import os
import random
import resource
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.core.effects import DiskWork
from whimbrel.core.persistence.commands import (
    Answer,
    Append,
    Command,
    Copy,
    DiskProblem,
    Failure,
    FileSize,
    List,
    Move,
    Read,
    Remove,
    RemoveFolder,
    Replace,
    Sync,
    SyncFolder,
)
from whimbrel.core.stimuli import DiskDone, DiskFailed
from whimbrel.errors import UsageError
from whimbrel.sim.disk import Fault, SimDisk
from whimbrel.storage import disk as disk_module
from whimbrel.storage.contract import CommandDisk
from whimbrel.storage.disk import BUFFERS_MAX, DESCRIPTORS_MAX, Disk

BYTES_MAX = 1 << 20


class Bench:
    """A disk of either kind, and how to make it fail."""

    def __init__(self, disk: CommandDisk) -> None:
        self.disk = disk

    def do(self, *commands: Command) -> tuple[Answer, ...]:
        return self.disk.execute(commands)

    def fails(self, *commands: Command) -> DiskProblem:
        with pytest.raises(DiskProblem) as caught:
            self.disk.execute(commands)
        return caught.value

    def content(self, file: str) -> Answer:
        return self.do(Read(file, 0, BYTES_MAX))[0]

    def names(self, folder: str = "") -> list[str]:
        (listed,) = self.do(List(folder))
        assert isinstance(listed, tuple)
        return [one.file for one in listed]

    def sync_fails_once(self) -> None:
        raise NotImplementedError

    def writes_fail(self, failure: Failure) -> Callable[[], None]:
        """Every write fails like this; calling what is returned ends it."""
        raise NotImplementedError


class SimBench(Bench):
    def __init__(self) -> None:
        self.sim = SimDisk(random.Random(1))
        super().__init__(self.sim)

    def sync_fails_once(self) -> None:
        self.sim.arm(Fault.SYNC_ERROR)

    def writes_fail(self, failure: Failure) -> Callable[[], None]:
        if failure is Failure.READ_ONLY:
            self.sim.is_read_only = True
            return lambda: setattr(self.sim, "is_read_only", False)
        used = sum(one.size for folder in ("", "log") for one in self.listed(folder))
        self.sim.bytes_max = used + 5
        return lambda: setattr(self.sim, "bytes_max", None)

    def listed(self, folder: str) -> tuple[FileSize, ...]:
        (listed,) = self.do(List(folder))
        assert isinstance(listed, tuple)
        return tuple(one for one in listed if isinstance(one, FileSize))


class FileBench(Bench):
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(Disk(folder))
        self.folder = folder
        self.patch = patch

    def sync_fails_once(self) -> None:
        """As the system does it: told once, and never again."""
        left = [errno.EIO]

        def failing(real: Callable[[int], None]) -> Callable[[int], None]:
            def sync(descriptor: int) -> None:
                if left:
                    raise OSError(left.pop(), "Input/output error")
                real(descriptor)

            return sync

        self.patch.setattr(os, "fsync", failing(os.fsync))
        self.patch.setattr(os, "fdatasync", failing(os.fdatasync))

    def writes_fail(self, failure: Failure) -> Callable[[], None]:
        """The first five bytes are written, the rest is not."""
        number = errno.ENOSPC if failure is Failure.FULL else errno.EROFS
        real = os.writev
        room = [5]

        def writev(descriptor: int, buffers: Sequence[Any]) -> int:
            if not room:
                raise OSError(number, os.strerror(number))
            count = real(descriptor, [b"".join(buffers)[: room.pop()]])
            room.clear()
            return count

        self.patch.setattr(os, "writev", writev)

        def end() -> None:
            self.patch.setattr(os, "writev", real)

        return end


@pytest.fixture(params=["files", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return FileBench(tmp_path, monkeypatch) if request.param == "files" else SimBench()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileBench:
    return FileBench(tmp_path, monkeypatch)


def test_appended_bytes_are_read_back_in_order(bench: Bench) -> None:
    """Goal: what is appended stands behind what was there, folders come by themselves. Method:
    two appends with a sync between; reads of all, of a part, at and beyond the end.
    """
    answers = bench.do(
        Append("log/a", (b"one", b"", b"two")), Sync("log/a"), Append("log/a", (b"three",))
    )
    assert answers == (None, None, None)
    assert bench.content("log/a") == b"onetwothree"
    assert bench.do(Read("log/a", 3, 3), Read("log/a", 8, 99), Read("log/a", 11, 1)) == (
        b"two",
        b"ree",
        b"",
    )
    assert bench.do(Read("log/a", 50, 10)) == (b"",)


def test_a_folder_lists_its_files_by_name(bench: Bench) -> None:
    """Goal: sizes of files, sorted, without folders, ones within neither. Method: files on three
    levels, made out of order; a folder that is not there.
    """
    bench.do(Append("b", (b"12",)), Append("a/x/y", (b"1",)), Append("a/z", ()), Append("a/b", ()))
    assert bench.do(List("")) == ((FileSize("b", 2),),)
    assert bench.do(List("a")) == ((FileSize("a/b", 0), FileSize("a/z", 0)),)
    assert bench.do(List("a/x"), List("none"), List("a/none/deep")) == (
        (FileSize("a/x/y", 1),),
        (),
        (),
    )


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        (Read("none", 0, 1), Failure.MISSING),
        (Read("a/none", 0, 1), Failure.MISSING),
        (Sync("none"), Failure.MISSING),
        (SyncFolder("none"), Failure.MISSING),
        (Move("none", "there"), Failure.MISSING),
        (Move("b", "a/x"), Failure.BROKEN),
        (Move("b", "a"), Failure.BROKEN),
        (Move("a", "b"), Failure.BROKEN),
        (Move("b", "a/x/y"), Failure.BROKEN),
        (Append("b/x", (b"1",)), Failure.BROKEN),
        (Append("a", (b"1",)), Failure.BROKEN),
        (Replace("b/x", b"1"), Failure.BROKEN),
        (Replace("a", b"1"), Failure.BROKEN),
        (Read("a", 0, 1), Failure.BROKEN),
        (Read("b/x", 0, 1), Failure.BROKEN),
        (Sync("a"), Failure.BROKEN),
        (Sync("b/x"), Failure.BROKEN),
        (SyncFolder("b"), Failure.BROKEN),
        (Remove("a"), Failure.BROKEN),
        (List("b"), Failure.BROKEN),
        (List("b/x"), Failure.BROKEN),
    ],
    ids=repr,
)
def test_what_cannot_be_done_fails_by_name(
    bench: Bench, command: Command, failure: Failure
) -> None:
    """Goal: each command fails with its reason, tells the file, and changes nothing. Method: a file
    ``b``, a folder ``a`` with a file ``x``, and something that does not fit them.
    """
    bench.do(Append("b", (b"B",)), Append("a/x", (b"X",)))
    problem = bench.fails(Sync("b"), command)
    assert (problem.position, problem.failure) == (1, failure)
    assert any(name in problem.detail for name in ("none", "a", "b"))
    assert bench.names() == ["b"]
    assert bench.names("a") == ["a/x"]
    assert (bench.content("b"), bench.content("a/x")) == (b"B", b"X")


def test_a_file_that_is_not_there_is_removed_without_a_word(bench: Bench) -> None:
    """Goal: removing is idempotent. Method: never there, in no folder, below a file, twice."""
    bench.do(Append("b", ()))
    assert bench.do(Remove("x"), Remove("no/x"), Remove("b/x"), Remove("b"), Remove("b"))
    assert bench.names() == []
    bench.do(Append("b", (b"new",)))
    assert bench.content("b") == b"new"


def test_a_failure_ends_its_work(bench: Bench) -> None:
    """Goal: what came before it stands, what comes behind was not tried. Method: a work of three,
    the second of which fails; as the stimulus that the core gets.
    """
    commands = (Append("a", (b"1",)), Read("none", 0, 1), Append("a", (b"2",)))
    answer = bench.disk.answer_to(DiskWork(7, commands, cause="c1"))
    assert isinstance(answer, DiskFailed)
    assert (answer.number, answer.position, answer.failure) == (7, 1, Failure.MISSING)
    assert answer.detail.lower() == "none: no such file or directory"
    assert answer.cause == "c1"
    assert bench.content("a") == b"1"
    done = bench.disk.answer_to(DiskWork(8, (Sync("a"), Read("a", 0, 9))))
    assert done == DiskDone(8, (None, b"1"), cause=None)


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "a\0b"]
)
def test_names_stay_in_the_data_directory(bench: Bench, name: str) -> None:
    """Goal: no name leads elsewhere. Method: each kind of command, behind one that is right: it is
    not carried out either.
    """
    wrong: list[Command] = [
        Append(name, (b"1",)),
        Sync(name),
        Remove(name),
        Move(name, "x"),
        Move("first", name),
        Copy(name, "x"),
    ]
    if name:
        wrong += [SyncFolder(name)]
    if not name.startswith("/"):  # what a place for backups is asked may lie outside
        wrong += [Replace(name, b"1"), Read(name, 0, 1), Copy("first", name), RemoveFolder(name)]
        wrong += [List(name)] * bool(name)
    for command in wrong:
        with pytest.raises(UsageError, match="is no name"):
            bench.do(Append("first", (b"1",)), command)
    with pytest.raises(UsageError, match="into itself"):
        bench.do(Move("a", "a/b"))
    assert bench.names() == []


def test_a_sync_that_failed_is_never_made_good(bench: Bench) -> None:
    """Goal (S5): of a file whose sync failed no later command says that it is well. Method: the
    system tells of it once; then every command, other files, and the file under another name.
    """
    bench.do(Append("log/a", (b"1",)), Append("log/b", (b"2",)))
    bench.sync_fails_once()
    assert bench.fails(Sync("log/a")).failure is Failure.SYNC
    for command in (Sync("log/a"), Append("log/a", (b"3",)), Replace("log/a", b"4")):
        for _ in range(2):
            assert bench.fails(command).failure is Failure.SYNC
    assert bench.content("log/a") == b"1"
    bench.do(Sync("log/b"), Append("log/b", (b"3",)), Sync("log/b"))
    bench.do(Move("log/a", "aside/a"))
    assert bench.fails(Sync("aside/a")).failure is Failure.SYNC
    bench.do(Move("aside", "kept"), Remove("kept/none"))
    assert bench.fails(Append("kept/a", (b"1",))).failure is Failure.SYNC
    bench.do(Remove("log/a"))
    assert bench.fails(Append("log/a", (b"1",))).failure is Failure.SYNC


def test_a_folder_whose_sync_failed_stays_unsure(bench: Bench) -> None:
    """Goal (S5): the same for names. Method: a folder's sync fails; then the folder, a file that is
    new in it, and another folder.
    """
    bench.do(Append("log/a", (b"1",)), Append("else/b", (b"2",)))
    bench.sync_fails_once()
    assert bench.fails(SyncFolder("log")).failure is Failure.SYNC
    assert bench.fails(SyncFolder("log")).failure is Failure.SYNC
    assert bench.fails(Sync("log/a")).failure is Failure.SYNC
    bench.do(Sync("else/b"), SyncFolder("else"))


def test_a_replacement_that_is_not_synced_leaves_the_old(bench: Bench) -> None:
    """Goal: a file is replaced as a whole or not at all, and unsure for ever once its sync failed.
    Method: replace twice, then with a sync that fails; nothing else is left lying about.
    """
    bench.do(Replace("meta", b"old"), Replace("meta", b"newer"))
    bench.sync_fails_once()
    assert bench.fails(Replace("meta", b"newest")).failure is Failure.SYNC
    assert bench.fails(Replace("meta", b"newest")).failure is Failure.SYNC
    assert bench.content("meta") == b"newer"
    assert bench.names() == ["meta"]


@pytest.mark.parametrize("failure", [Failure.FULL, Failure.READ_ONLY])
def test_what_does_not_fit_is_not_there_at_all(bench: Bench, failure: Failure) -> None:
    """Goal: a write that found no room has not happened, and succeeds once there is some. Method:
    append to a file that is there and to one that is not, replace; room for five bytes is left.
    """
    bench.do(Append("log/a", (b"old",)), Sync("log/a"), Replace("meta", b"old"))
    for command in (
        Append("log/a", (b"123", b"45678")),
        Append("log/new", (b"12345678",)),
        Replace("meta", b"12345678"),
    ):
        end = bench.writes_fail(failure)
        problem = bench.fails(command)
        assert (problem.failure, problem.failure.may_pass) == (failure, True)
        assert bench.content("log/a") == b"old"
        assert bench.content("meta") == b"old"
        assert bench.names("log") == ["log/a"]
        assert bench.names() == ["meta"]
        end()
    bench.do(Append("log/a", (b"123",)), Append("log/new", (b"1",)), Replace("meta", b"new"))
    bench.do(Sync("log/a"), Sync("log/new"))
    assert bench.content("log/a") == b"old123"
    assert bench.content("meta") == b"new"


def test_a_folder_moves_with_all_that_is_in_it(bench: Bench) -> None:
    """Goal: setting aside is one command; the old names are free again. Method: move a folder whose
    files are open, go on under both names.
    """
    bench.do(Append("log/a", (b"1",)), Append("log/deep/b", (b"2",)), Append("logs", (b"3",)))
    bench.do(Move("log", "aside/1/log"))
    assert bench.names("aside/1/log") == ["aside/1/log/a"]
    assert bench.names("log") == []
    bench.do(Append("log/a", (b"new",)), Append("aside/1/log/a", (b"more",)), Sync("log/a"))
    assert bench.content("log/a") == b"new"
    assert bench.content("aside/1/log/a") == b"1more"
    assert bench.content("aside/1/log/deep/b") == b"2"
    assert bench.names() == ["logs"]


def test_a_file_has_a_second_name(bench: Bench) -> None:
    """Goal: what is copied outlives the name that it had, and takes the place of what was there.
    Method: copy a file over another one and into new folders; remove and replace the first.
    """
    bench.do(Append("log/a", (b"1", b"2")), Sync("log/a"), Append("old", (b"old",)))
    bench.do(Copy("log/a", "backups/x/log/a"), Copy("log/a", "old"), Copy("log/a", "log/a"))
    bench.do(Remove("log/a"))
    assert bench.content("backups/x/log/a") == bench.content("old") == b"12"
    assert bench.names("log") == [] and bench.names("backups/x/log") == ["backups/x/log/a"]
    assert bench.fails(Copy("log/a", "again")).failure is Failure.MISSING


def test_a_folder_goes_with_all_that_is_in_it(bench: Bench) -> None:
    """Goal: a backup is deleted by one command, other names of its files stay. Method: a deep
    folder beside one with nearly its name; it goes twice, and its name can be used again.
    """
    bench.do(Append("x/1/a", (b"1",)), Sync("x/1/a"), Append("x/10/b", (b"2",)), Copy("x/1/a", "y"))
    bench.do(Append("x/1/deep/c", (b"3",)), List("x", is_deep=True))
    (listed,) = bench.do(List("x", is_deep=True))
    assert listed == (FileSize("x/1/a", 1), FileSize("x/1/deep/c", 1), FileSize("x/10/b", 1))
    bench.do(RemoveFolder("x/1"), RemoveFolder("x/1"))
    assert bench.names("x/1") == [] and bench.content("x/10/b") == b"2"
    assert bench.content("y") == b"1"
    bench.do(Append("x/1/a", (b"new",)))
    assert bench.content("x/1/a") == b"new"
    assert bench.fails(RemoveFolder("y")).failure is Failure.BROKEN


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "d", "d/e"])
FOLDERS = st.sampled_from(["", "d", "d/e", "a"])
DATA = st.binary(max_size=6)
COMMANDS = st.one_of(
    st.builds(Append, NAMES, st.lists(DATA, max_size=3).map(tuple)),
    st.builds(Append, NAMES, st.lists(DATA, max_size=3).map(tuple)),
    st.builds(Replace, NAMES, DATA),
    st.builds(Sync, NAMES),
    st.builds(Remove, NAMES),
    st.builds(Move, NAMES, NAMES).filter(lambda move: not move.to.startswith(f"{move.file}/")),
    st.builds(SyncFolder, FOLDERS),
    st.builds(Read, NAMES, st.integers(0, 8), st.integers(1, 8)),
    st.builds(List, FOLDERS),
    st.builds(Copy, NAMES, NAMES),
    st.builds(RemoveFolder, FOLDERS.filter(bool)),
    st.builds(lambda folder: List(folder, is_deep=True), FOLDERS.filter(bool)),
)


def outcome(disk: CommandDisk, commands: Sequence[Command]) -> object:
    try:
        return disk.execute(commands)
    except DiskProblem as problem:
        return problem.position, problem.failure


@settings(max_examples=150, deadline=None, derandomize=True)
@given(works=st.lists(st.lists(COMMANDS, max_size=4), max_size=12))
def test_both_disks_answer_alike(works: list[list[Command]]) -> None:
    """Goal: what a simulated run shows holds for files. Method: any works, and in the end all
    folders and all bytes, on both.
    """
    look: list[list[Command]] = [[List(folder)] for folder in ("", "d", "d/e")]
    look += [[Read(name, 0, BYTES_MAX)] for name in ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):  # they would take all of the time
            patch.setattr(os, name, lambda descriptor: None)
        real, twin = Disk(Path(folder)), SimDisk(random.Random(1))
        for work in [*works, *look]:
            assert outcome(real, work) == outcome(twin, work)
        real.close()


# -- of files alone: what the system is asked, and what it may say ----------------------------


@pytest.mark.parametrize("links", [True, False])
def test_a_place_outside_takes_copies(
    files: FileBench, tmp_path_factory: pytest.TempPathFactory, links: bool
) -> None:
    """Goal: backups may lie elsewhere, on another file system as well. Method: an absolute name;
    with hard links, and where the system refuses them: the same bytes, no unfinished file.
    """

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if not links:
        files.patch.setattr(os, "link", refuse)
    place = tmp_path_factory.mktemp("elsewhere") / "new"
    to = f"{place}/id/a"
    files.do(Append("log/a", (b"bytes" * 1000,)), Sync("log/a"), Copy("log/a", to))
    files.do(Replace(f"{place}/id/manifest", b"m"))
    assert files.content(to) == b"bytes" * 1000
    assert (Path(to).stat().st_nlink == 2) is links
    (listed,) = files.do(List(str(place), is_deep=True))
    assert listed == (FileSize(to, 5000), FileSize(f"{place}/id/manifest", 1))
    files.do(RemoveFolder(f"{place}/id"))
    assert not any(place.iterdir()) and files.content("log/a") == b"bytes" * 1000


def test_a_write_in_many_pieces_is_whole(files: FileBench) -> None:
    """Goal: neither the system's limit of buffers nor one that takes less than it is given harms.
    Method: three times as many buffers as one call takes; each call writes 1,000 bytes at most.
    """
    data = tuple(b"%d." % number for number in range(3 * BUFFERS_MAX))
    files.do(Append("a", data))
    assert files.content("a") == b"".join(data)
    real = os.writev
    files.patch.setattr(
        os, "writev", lambda descriptor, buffers: real(descriptor, [b"".join(buffers)[:1000]])
    )
    files.do(Append("b", data))
    assert files.content("b") == b"".join(data)
    files.patch.setattr(os, "writev", lambda descriptor, buffers: 0)
    assert files.fails(Append("c", (b"1",))).failure is Failure.BROKEN


def test_a_file_that_cannot_be_cut_is_spoiled(files: FileBench) -> None:
    """Goal: nothing is appended behind half a block. Method: no space, and cutting off fails."""

    def ftruncate(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    files.do(Append("a", (b"1",)))
    end = files.writes_fail(Failure.FULL)
    files.patch.setattr(os, "ftruncate", ftruncate)
    problem = files.fails(Append("a", (b"2345678",)))
    assert problem.failure is Failure.BROKEN
    assert "a: No space left on device; cutting it off again failed" in problem.detail
    end()
    assert files.fails(Append("a", (b"2",))).failure is Failure.SYNC
    assert files.content("a") == b"123456"


def test_an_error_of_a_write_spoils_its_file(files: FileBench) -> None:
    """Goal: after an input/output error nobody knows what is there. Method: once, then again."""
    files.do(Append("a", (b"1",)))
    end = files.writes_fail(Failure.FULL)
    files.patch.setattr(disk_module, "failure_of", lambda problem: Failure.BROKEN)
    assert files.fails(Append("a", (b"2345678",))).failure is Failure.BROKEN
    end()
    assert files.fails(Sync("a")).failure is Failure.SYNC


def test_the_limit_of_a_process_counts_as_no_space(files: FileBench) -> None:
    """Goal: a limit that an operator can raise is no broken disk. Method: RLIMIT_FSIZE."""
    files.do(Append("a", (b"1" * 5000,)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        assert files.fails(Append("a", (b"2" * 5000,))).failure is Failure.FULL
        assert files.fails(Replace("b", b"2" * 9000)).failure is Failure.FULL
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files.content("a") == b"1" * 5000
    assert files.names() == ["a"]


class Calls:
    """What the system was asked, in order: the call, and the name of its file."""

    def __init__(self, files: FileBench) -> None:
        self.made: list[str] = []
        self._root = str(files.folder)
        for name in ("fsync", "fdatasync"):
            self._watch(files.patch, name, self._by_descriptor)
        for name in ("rename", "unlink"):
            self._watch(files.patch, name, self._by_path)

    def _watch(self, patch: pytest.MonkeyPatch, name: str, named: Callable[[Any], str]) -> None:
        real = getattr(os, name)

        def call(what: Any, *others: Any) -> object:
            self.made.append(f"{name} {named(what)}")
            return real(what, *others)

        patch.setattr(os, name, call)

    def _by_descriptor(self, descriptor: int) -> str:
        return self._by_path(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _by_path(self, path: Any) -> str:
        return os.path.relpath(path, self._root)

    def take(self) -> list[str]:
        made, self.made = self.made, []
        return made


def test_names_are_synced_the_whole_way_and_once(files: FileBench) -> None:
    """Goal: a new file is there after a power failure, with all folders on its way, and what is
    known to be durable is not synced again. Method: the calls of syncs, also by the next process.
    """
    calls = Calls(files)
    files.do(Append("log/a", (b"1",)), Sync("log/a"))
    assert calls.take() == ["fdatasync log/a", "fsync log", "fsync .", "fsync .."]
    files.do(Append("log/a", (b"1",)), Sync("log/a"))
    assert calls.take() == ["fdatasync log/a"]
    files.do(Append("log/b", (b"1",)), Sync("log/b"), SyncFolder("log"))
    assert calls.take() == ["fdatasync log/b", "fsync log", "fsync log"]
    files.do(Remove("log/b"), Append("log/b", (b"1",)), Sync("log/b"))
    assert calls.take() == ["unlink log/b", "fdatasync log/b", "fsync log"]
    next_process = Disk(files.folder)
    next_process.execute((Sync("log/a"),))
    next_process.close()
    assert calls.take() == ["fdatasync log/a", "fsync log", "fsync .", "fsync .."]


def test_a_file_is_synced_before_it_takes_a_name(files: FileBench) -> None:
    """Goal: at no moment is half a file, or none, under the name. Method: the calls, in order."""
    files.do(Replace("x/meta", b"old"))
    calls = Calls(files)
    files.do(Replace("x/meta", b"new"))
    assert calls.take() == ["fsync x/meta.new", "rename x/meta.new", "fsync x"]
    files.do(Append("log/a", (b"1",)), Move("log", "aside/log"))
    moved = ["fdatasync log/a", "fsync log", "rename log", "fsync aside", "fsync .", "fsync ."]
    assert calls.take() == moved


def test_open_files_are_bounded_and_none_is_forgotten(files: FileBench) -> None:
    """Goal: descriptors do not run out, and a file that is closed for others is synced before, or
    spoiled. Method: append to many; syncing fails for the first one that has to go.
    """
    descriptors = len(os.listdir("/proc/self/fd"))
    calls = Calls(files)
    names = [f"{number:03}" for number in range(DESCRIPTORS_MAX)]
    files.do(*(Append(name, (b"1",)) for name in names))
    assert calls.take() == []
    files.do(Sync("000"), Append("000", (b"2",)), Append("more", (b"3",)))
    assert calls.take() == ["fdatasync 000", "fsync .", "fsync ..", "fdatasync 001"]
    files.sync_fails_once()
    files.do(Append("still more", (b"4",)))
    assert len(os.listdir("/proc/self/fd")) == descriptors + DESCRIPTORS_MAX
    assert files.fails(Sync("002")).failure is Failure.SYNC
    files.do(Sync("001"), *(Sync(name) for name in names[3:]))
    files.disk.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_system_without_folder_syncs_is_taken(files: FileBench) -> None:
    """Goal: where folders cannot be synced that is no error. Method: the system says EINVAL."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    files.patch.setattr(os, "fsync", fsync)
    files.do(Append("log/a", (b"1",)), Sync("log/a"), SyncFolder("log"))
    assert files.fails(Replace("b", b"1")).failure is Failure.SYNC


def test_nobody_else_reads_what_lies_there(files: FileBench) -> None:
    """Goal: files and folders are their owner's alone. Method: their modes, with an open umask."""
    before = os.umask(0)
    try:
        files.do(Append("log/a", (b"1",)), Replace("meta", b"1"))
    finally:
        os.umask(before)
    modes = [os.stat(files.folder / name).st_mode & 0o777 for name in ("log", "log/a", "meta")]
    assert modes == [0o700, 0o600, 0o600]
