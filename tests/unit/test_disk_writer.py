"""The thread between a member's loop and its disk, and the member around it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from whimbrel.config import Config, RuntimeSettings
from whimbrel.core.effects import DiskWork, Stopped
from whimbrel.core.persistence.commands import Answer, Append, Command, Failure, Read, Sync
from whimbrel.core.settings import CoreSettings, PersistenceSettings
from whimbrel.core.stimuli import DiskDone, DiskFailed, Stimulus
from whimbrel.errors import InvariantViolation, OverloadedError, UsageError
from whimbrel.runtime.node import Node
from whimbrel.storage.disk import Disk
from whimbrel.storage.writer import WORKS_MAX, DiskThread

PATIENCE_S = 10.0


class SlowDisk(Disk):
    """Begins a work only when it may; remembers which thread carried it out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[str] = []

    def execute(self, commands: Sequence[Command]) -> tuple[Answer, ...]:
        self.threads.append(threading.current_thread().name)
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return super().execute(commands)


@pytest.fixture(autouse=True)
def no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that fails must not leave a thread that the interpreter waits for at its end."""
    made: list[DiskThread] = []
    real = DiskThread.__init__

    def remembered(thread: DiskThread, *arguments: Any) -> None:
        made.append(thread)
        real(thread, *arguments)

    monkeypatch.setattr(DiskThread, "__init__", remembered)
    yield
    for thread in made:
        if isinstance(thread._disk, SlowDisk):
            thread._disk.may_go_on.set()
        assert thread.close(PATIENCE_S)


def work(number: int, *commands: Command) -> DiskWork:
    return DiskWork(number, commands, cause=f"asked {number}")


def append(number: int) -> DiskWork:
    return work(number, Append("a", (b"%d" % number,)))


def test_works_are_carried_out_in_order_beside_the_loop(tmp_path: Path) -> None:
    """Goal: the loop goes on while the disk works, and hears of each work once, in order, in its
    own thread (APR-03). Method: a disk that waits until the loop has turned; one of three fails.
    """

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        disk = SlowDisk(tmp_path)
        crashes: list[BaseException] = []
        thread = DiskThread(disk, loop.call_soon_threadsafe, crashes.append)
        told: list[tuple[str, DiskDone | DiskFailed]] = []
        all_told = asyncio.Event()

        def answers(answer: DiskDone | DiskFailed) -> None:
            told.append((threading.current_thread().name, answer))
            if len(told) == 3:
                all_told.set()

        for one in (append(1), work(2, Sync("a"), Read("none", 0, 1)), work(3, Read("a", 0, 9))):
            thread.submit(one, answers)
        await asyncio.to_thread(disk.has_begun.wait, PATIENCE_S)
        assert told == []
        disk.may_go_on.set()
        await asyncio.wait_for(all_told.wait(), PATIENCE_S)
        here = threading.current_thread().name
        assert [answer for thread_name, answer in told if thread_name == here] == [
            DiskDone(1, (None,), cause="asked 1"),
            DiskFailed(2, 1, Failure.MISSING, "none: No such file or directory", cause="asked 2"),
            DiskDone(3, (b"1",), cause="asked 3"),
        ]
        assert set(disk.threads) == {"whimbrel-disk"}
        assert await asyncio.to_thread(thread.close, PATIENCE_S)
        assert crashes == []

    asyncio.run(scenario())


def test_works_that_wait_are_bounded(tmp_path: Path) -> None:
    """Goal: a disk that hangs costs no memory without end. Method: one work more than may wait."""
    disk = SlowDisk(tmp_path)
    thread = DiskThread(disk, lambda callback, *arguments: None, lambda problem: None)
    thread.submit(append(0), print)
    assert disk.has_begun.wait(PATIENCE_S)
    for number in range(WORKS_MAX):
        thread.submit(append(number), print)
    with pytest.raises(OverloadedError, match="wait for the disk"):
        thread.submit(append(99), print)
    disk.may_go_on.set()
    assert thread.close(PATIENCE_S)
    assert len(disk.threads) == 1 + WORKS_MAX


def test_the_end_waits_for_what_was_asked_for_but_not_for_ever(tmp_path: Path) -> None:
    """Goal: what was submitted is on the disk when the member ends; a disk that hangs holds it up
    for a bounded time, and then nothing more is written. Method: close with and without patience.
    """
    patient = DiskThread(Disk(tmp_path), lambda callback, *arguments: None, lambda problem: None)
    for number in range(9):
        patient.submit(append(number), print)
    assert patient.close(PATIENCE_S)
    assert (tmp_path / "a").read_bytes() == b"012345678"

    disk = SlowDisk(tmp_path)
    cut = DiskThread(disk, lambda callback, *arguments: None, lambda problem: None)
    cut.submit(work(1, Append("b", (b"1",))), print)
    cut.submit(work(2, Append("b", (b"2",))), print)
    assert disk.has_begun.wait(PATIENCE_S)
    assert not cut.close(0.01)
    disk.may_go_on.set()
    assert cut.close(PATIENCE_S)
    assert (tmp_path / "b").read_bytes() == b"1"


def test_a_work_that_is_none_is_told_as_our_bug(tmp_path: Path) -> None:
    """Goal: what no disk can carry out stops the member, and nothing is written after it. Method: a
    name that leads outside, and a work behind it.
    """
    posted: list[tuple[Any, tuple[object, ...]]] = []

    def crashed(problem: BaseException) -> None:
        raise AssertionError

    thread = DiskThread(
        Disk(tmp_path), lambda callback, *arguments: posted.append((callback, arguments)), crashed
    )
    thread.submit(work(1, Append("../a", (b"1",))), print)
    thread.submit(append(2), print)
    assert thread.close(PATIENCE_S)
    ((callback, (problem,)),) = posted
    assert callback is crashed
    assert isinstance(problem, UsageError)
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_is_closed_is_not_told(tmp_path: Path) -> None:
    """Goal: a program that ends its loop first still has its works written. Method: the loop says
    that it is closed.
    """

    def post(callback: object, *arguments: object) -> None:
        raise RuntimeError("Event loop is closed")

    thread = DiskThread(Disk(tmp_path), post, lambda problem: None)
    thread.submit(append(1), print)
    thread.submit(append(2), print)
    assert thread.close(PATIENCE_S)
    assert (tmp_path / "a").read_bytes() == b"12"


FORSAKEN = """
import sys
from pathlib import Path
from whimbrel.core.effects import DiskWork
from whimbrel.core.persistence.commands import Append
from whimbrel.storage.disk import Disk
from whimbrel.storage.writer import DiskThread
thread = DiskThread(Disk(Path(sys.argv[1])), print, print)
thread.submit(DiskWork(1, (Append("a", (b"1",)),)), print)
raise SystemExit(3)
"""


def test_a_program_that_forgets_its_member_ends_all_the_same(tmp_path: Path) -> None:
    """Goal: no program hangs at its end because it did not close a member; what was asked for is
    written. Method: a process that ends right behind its first work.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORSAKEN, str(tmp_path)], capture_output=True, timeout=60
    )
    assert done.returncode == 3
    assert (tmp_path / "a").read_bytes() == b"1"


# -- the member -------------------------------------------------------------------------------


def member(folder: Path, *, enabled: bool = True) -> Node:
    """A member that is told to keep its data, and has not started."""
    core = CoreSettings(partition_count=7, persistence=PersistenceSettings(enabled=enabled))
    runtime = RuntimeSettings(port=0, data_dir=str(folder), log_level="error")
    return Node(Config(core, runtime))


def emit(node: Node, *effects: Any) -> None:
    """Have the engine say something."""
    with node.engine_scope:
        node.engine.member.ctx.effects += effects


def listen(node: Node, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Stimulus]:
    """What the disk tells of the works asked for here; the engine hears of nothing any more."""
    heard: asyncio.Queue[Stimulus] = asyncio.Queue()

    def stimulate(stimulus: Stimulus) -> None:
        if isinstance(stimulus, DiskDone | DiskFailed) and str(stimulus.cause).startswith("asked"):
            heard.put_nowait(stimulus)

    monkeypatch.setattr(node, "stimulate", stimulate)
    return heard


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "whimbrel-disk"]


def test_a_member_writes_what_it_says_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: works go out, answers come in, and those of the turn in which the member stops are on
    the disk before the directory is free again. Method: the engine asks, hears, asks and stops.
    """
    release = threading.Event()

    async def scenario() -> None:
        node = member(tmp_path)
        await node.start()
        heard = listen(node, monkeypatch)
        emit(node, append(1), work(2, Sync("a")))
        for number in (1, 2):
            answer = await asyncio.wait_for(heard.get(), PATIENCE_S)
            assert answer == DiskDone(number, (None,), cause=f"asked {number}")
        monkeypatch.setattr(node.identity, "release", released(node))
        emit(node, Stopped("left", 0), append(3), append(4))
        assert (await asyncio.wait_for(node.stopped, PATIENCE_S)).exit_status == 0
        await node.close()
        assert release.is_set()

    def released(node: Node) -> Any:
        real = node.identity.release

        def release_now() -> None:
            assert (tmp_path / "a").read_bytes() == b"134"
            release.set()
            real()

        return release_now

    asyncio.run(scenario())
    assert threads() == []


def test_answers_to_an_engine_that_is_no_more_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: works are numbered per engine, so the next engine must not hear of those of the one
    that was expelled. Method: the engine is replaced while a work is under way.
    """
    monkeypatch.setattr("whimbrel.runtime.node.Disk", SlowDisk)

    async def scenario() -> None:
        node = member(tmp_path)
        await node.start()
        disk = cast("SlowDisk", cast("DiskThread", node._disk)._disk)
        heard = listen(node, monkeypatch)
        emit(node, append(1))
        await asyncio.to_thread(disk.has_begun.wait, PATIENCE_S)
        node._new_engine(False)
        emit(node, work(1, Read("a", 0, 9)))
        disk.may_go_on.set()
        answer = await asyncio.wait_for(heard.get(), PATIENCE_S)
        assert answer == DiskDone(1, (b"1",), cause="asked 1")
        assert heard.empty()
        node.stop_now("test")
        await node.close()

    asyncio.run(scenario())


def test_a_disk_that_hangs_keeps_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a member ends although its disk does not, says so, and nobody else gets the directory
    while something may still write there. Method: a work that hangs at the end.
    """
    monkeypatch.setattr("whimbrel.runtime.node.Disk", SlowDisk)

    async def scenario() -> None:
        node = member(tmp_path)
        node.settings = msgspec.structs.replace(node.settings, stop_timeout_us=20_000)
        await node.start()
        disk = cast("SlowDisk", cast("DiskThread", node._disk)._disk)
        emit(node, append(1))
        await asyncio.to_thread(disk.has_begun.wait, PATIENCE_S)
        node.stop_now("test")
        await node.close()
        assert node.events[-1]["kind"] == "disk_cut"
        assert node.identity._lock >= 0
        disk.may_go_on.set()
        node.identity.release()

    asyncio.run(scenario())


def test_a_member_that_keeps_nothing_has_no_thread(tmp_path: Path) -> None:
    """Goal: who does not persist pays nothing. Method: switched off, and without a directory; then
    a work would be a bug.
    """

    async def scenario(node: Node) -> None:
        await node.start()
        assert threads() == []
        with pytest.raises(InvariantViolation, match="has a disk"):
            node._disk_work(append(1))
        node.stop_now("test")
        await node.close()

    asyncio.run(scenario(member(tmp_path, enabled=False)))
    nowhere = member(tmp_path)
    nowhere.settings = msgspec.structs.replace(nowhere.settings, data_dir="")
    asyncio.run(scenario(nowhere))
