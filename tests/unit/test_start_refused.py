"""``whimbrel start`` on a data directory that cannot be used: exit status, words, and no harm."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from whimbrel.cli import main
from whimbrel.core.ids import Address
from whimbrel.runtime.identity import CLUSTER_FILE, FILE, LOCK, open_identity
from whimbrel.runtime.node import Node
from whimbrel.runtime.process import announce, announce_recovery

ON = ("--set", "persistence.enabled=true")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A member that has ended hears no signals; the test's process goes on hearing them."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def start(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status, and what was said on stderr; nothing on stdout."""
    ports = ("--port", "0", "--admin-port", "0")
    status = main.run(["start", "--cluster-name", "here", *ports, *arguments])
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    return status, told.err


def kept(folder: Path) -> str:
    """A directory in which a member of the cluster ``here`` has been."""
    open_identity(str(folder), "here", keeps_data=True).release()
    return str(folder)


def content(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path: path.read_bytes() for path in found}


def test_without_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a member that could not keep its promise does not start; 2, the flag named."""
    status, told = start(capsys, *ON)
    assert status == 2 and "--data-dir" in told


def test_in_a_place_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a file in its place, a disk that is mounted read-only, another member in it: 2, the
    place named. Method: an ``open`` that fails as on such a disk, since a test may have any right.
    """
    file = tmp_path / "file"
    file.write_text("mine")
    status, told = start(capsys, *ON, "--data-dir", str(file))
    assert status == 2 and str(file) in told and file.read_text() == "mine"
    folder = kept(tmp_path / "data")
    holder = open_identity(folder, "here", keeps_data=True)
    status, told = start(capsys, *ON, "--data-dir", folder)
    assert status == 2 and folder in told and "in use by another member" in told
    holder.release()
    real = os.open

    def stubborn(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if str(path).startswith(folder) and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", stubborn)
    status, told = start(capsys, *ON, "--data-dir", folder)
    assert status == 2 and folder in told and "Read-only" in told


def test_files_of_another_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """APR-06: a foreign directory: 1, it and both names told, every byte as before; without
    persistence it is a mistake in the configuration, as ever.
    """
    folder = kept(tmp_path / "data")
    before = content(tmp_path)
    asked = ("--data-dir", folder, "--cluster-name", "there")
    status, told = start(capsys, *ON, *asked)
    assert status == 1
    assert all(word in told for word in (folder, "'here'", "'there'"))
    assert start(capsys, *asked)[0] == 2
    assert content(tmp_path) == before


@pytest.mark.parametrize("damage", ["changed", "cut", "empty", "gone"])
def test_a_damaged_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """S4: 1, the file named, every byte as before, so that a good copy can be put back."""
    folder = kept(tmp_path)
    (tmp_path / CLUSTER_FILE).write_bytes(b"what the cluster is")
    path = tmp_path / FILE
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = bytes([good[len(good) // 2] ^ 0x10])
        changed = good[: len(good) // 2] + middle + good[len(good) // 2 + 1 :]
        path.write_bytes({"changed": changed, "cut": good[:-20], "empty": b""}[damage])
    before = content(tmp_path)
    status, told = start(capsys, *ON, "--data-dir", folder)
    assert status == 1 and str(path) in told and "nothing was changed" in told
    assert content(tmp_path) == before


def test_what_a_member_says_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the line of a member that has found files has the shape of the ready line."""
    ports = SimpleNamespace(data_port=5701, admin_port=8701)
    node = cast(
        "Node",
        SimpleNamespace(
            member_id="m", ports=ports, address=Address("127.0.0.1", 5701), cluster_name="here"
        ),
    )
    announce_recovery(node)
    announce(node)
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {
        "event": "recovering", "uuid": "m", "port": 5701, "admin": 8701,
        "address": "127.0.0.1:5701", "cluster": "here",
    }  # fmt: skip
    assert second == {**first, "event": "ready"}
