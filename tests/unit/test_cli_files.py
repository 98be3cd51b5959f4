"""``whimbrel files``: what lies in a directory, and damage told file by file."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit import keys
from tests.unit.keys import CLUSTER_ID, FIRST, SECOND, encryption_now, encryption_with, header_bytes
from tests.unit.log_writer import WALL_MS, LogWriter, put, state
from tests.unit.test_persistence_metadata import FILE, ROWS

from whimbrel.cli import main
from whimbrel.core.persistence.format import Stream, encode_header
from whimbrel.core.persistence.metadata import CLUSTER_FILE, encode_cluster_file
from whimbrel.runtime.identity import LOCK, open_identity
from whimbrel.storage.encryption import AesKey
from whimbrel.structures.map.store import MapStore

either = pytest.mark.usefixtures("either")
CHANGES_1, CHANGES_2 = "log/changes-00000001.seg", "log/changes-00000002.seg"
IMAGES_1 = "log/images-00000001.seg"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a member that was killed while it wrote: two segments of changes, an
    image, a torn tail.
    """
    folder = tmp_path / "grid"
    identity = open_identity(str(folder), FILE.cluster_name)
    identity.release()
    writer, store = LogWriter(), MapStore()
    writer.held(3)
    for number in range(100):
        writer.operation(3, number + 1, put(store, f"key {number}", "x" * 100))
    writer.roll(Stream.CHANGES)
    writer.state(3, state(100))
    floor = writer.flush(Stream.CHANGES)
    writer.image(3, 1, store)
    writer.imaged(3, 1, floor)
    log = writer.log()
    (folder / "log").mkdir()
    for name, data in writer.files.items():
        (folder / name).write_bytes(data)
    with (folder / CHANGES_2).open("ab") as file:
        file.write(bytes(77))
    members = msgspec.structs.replace(FILE.members, cluster_id=CLUSTER_ID)
    found = msgspec.structs.replace(FILE, member=identity.member, members=members, log=log)
    data = encryption_now().encrypt_file(CLUSTER_FILE, encode_cluster_file(found))
    (folder / CLUSTER_FILE).write_bytes(data)
    key_file(tmp_path, FIRST, SECOND)
    return folder


def key_file(place: Path, *chosen: AesKey) -> Path:
    """A file with these keys."""
    file = place / "keys"
    file.write_text("".join(f"{one._secret.hex()}\n" for one in chosen))
    return file


def asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and stderr; the directory is as it was."""
    before = contents(folder)
    given = ["--key-file", str(folder.parent / "keys")] if keys.usual else []
    code = main.run(["files", "--json", *given, str(folder)])
    assert contents(folder) == before
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, at: int) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damaged(document: dict[str, Any]) -> list[tuple[str, str]]:
    """File and reason of each damage."""
    return [(one["file"], one["why"]) for one in document["damage"]]


@either
def test_what_lies_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: whose files, of which cluster, which structures and segments; a torn tail is none."""
    code, found, err = asked(place, capsys)
    assert (code, err, found["damage"], found["process"], found["aside"]) == (0, "", [], None, [])
    cluster = found["cluster"]
    assert (cluster["name"], cluster["id"]) == (FILE.cluster_name, CLUSTER_ID)
    assert (cluster["state"], cluster["version"], cluster["has_left"]) == (
        "NO_MIGRATION", "4.1", False,
    )  # fmt: skip
    assert [(one["address"], one["missing"]) for one in cluster["members"]] == [
        ("h1:5701", False), ("h2:5702", False), ("box:65535", True),
    ]  # fmt: skip
    assert cluster["partitions"]["count"] == 4
    assert cluster["partitions"]["version_sum"] == sum(state.version for state in ROWS)
    (structure,) = found["structures"]
    assert (structure["kind"], structure["name"], structure["partitions"]) == ("map", "flights", 1)
    assert 2 * 100 * 100 < structure["bytes"] < 2 * 100 * 200
    assert [(one["file"], one["open"], one["torn_bytes"]) for one in found["segments"]] == [
        (CHANGES_1, False, 0), (CHANGES_2, True, 77), (IMAGES_1, True, 0),
    ]  # fmt: skip
    first = found["segments"][0]
    assert first["bytes"] == (place / CHANGES_1).stat().st_size
    assert first["blocks"] > 3
    assert first["first_at"] == first["last_at"] == "2023-11-14T22:13:20.000+00:00"
    assert WALL_MS == 1_700_000_000_000


@either
def test_damage_in_one_file_hides_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: everything that is wrong is told at once. Method: a bit in a closed segment, an image
    that is gone, another identity; then the list itself.
    """
    flip(place / CHANGES_1, 5_000)
    (place / IMAGES_1).unlink()
    text = (place / "member.json").read_text()
    (place / "member.json").write_text(text.replace(FILE.cluster_name, "other"))
    code, found, err = asked(place, capsys)
    assert code == 1
    assert [name for name, _ in damaged(found)] == ["member.json", CHANGES_1, IMAGES_1]
    assert 5_000 - 4_200 < found["damage"][1]["offset"] <= 5_000
    assert all(name in err for name in ("member.json", CHANGES_1, IMAGES_1))
    flip(place / CLUSTER_FILE, 50)
    code, found, err = asked(place, capsys)
    assert (code, found["cluster"]) == (1, None)
    assert [name for name, _ in damaged(found)] == [CLUSTER_FILE, "member.json", CHANGES_1]
    assert found["segments"][1]["torn_bytes"] == 77
    assert found["structures"][0]["name"] == "flights"


@either
def test_files_that_are_gone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what should be there and is not is damage."""
    (place / "member.json").unlink()
    assert damaged(asked(place, capsys)[1]) == [
        ("member.json", "it is gone, cluster.meta is there")
    ]
    (place / CLUSTER_FILE).unlink()
    code, found, _ = asked(place, capsys)
    assert (code, damaged(found)) == (1, [(CLUSTER_FILE, "it is gone, its log is there")])
    assert [one["listed"] for one in found["segments"]] == [None, None, None]


@either
def test_what_only_a_start_would_find(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: each file may be sound and all of them together not. Method: an image that is cut, a
    list that is older than the log, the identity of another member.
    """
    whole = (place / IMAGES_1).read_bytes()
    (place / IMAGES_1).write_bytes(whole[:-1])
    ((name, why),) = damaged(asked(place, capsys)[1])
    assert (name, why) == (IMAGES_1, "image 1 of map/flights in partition 3 does not end")
    (place / IMAGES_1).write_bytes(whole)
    moved = (place / CHANGES_2).read_bytes()
    head = encode_header(Stream.CHANGES, 3, 9, b"another log's id")
    (place / "log/changes-00000003.seg").write_bytes(head)
    code, found, _ = asked(place, capsys)
    assert (code, found["segments"][2]["listed"]) == (0, False)
    (place / CHANGES_2).write_bytes(moved[: header_bytes()])
    (place / "log/changes-00000003.seg").write_bytes(moved)
    ((name, why),) = damaged(asked(place, capsys)[1])
    assert (name, why) == (CLUSTER_FILE, "it is older than log/changes-00000003.seg")
    (place / "log/changes-00000003.seg").unlink()
    (place / CHANGES_2).write_bytes(moved)
    (place / CLUSTER_FILE).write_bytes(encode_cluster_file(FILE))
    assert "it names" in damaged(asked(place, capsys)[1])[0][1]


def test_a_running_member_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: who looks while a member runs knows it, and keeps it from nothing."""
    lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"4711\n", 0)
    assert asked(place, capsys)[1]["process"] == "4711"
    os.close(lock)
    assert asked(place, capsys)[1]["process"] is None


def test_for_people(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the same as text, damage included, also for what was set aside."""
    (place / "aside" / "2026").mkdir(parents=True)
    assert main.run(["files", str(place)]) == 0
    out = capsys.readouterr().out
    for words in ("näme", "NO_MIGRATION", "flights", CHANGES_1, "open", "77 B", "set aside: 2026"):
        assert words in out
    assert "nothing is damaged" in out
    flip(place / CHANGES_1, 5_000)
    assert main.run(["files", str(place)]) == 1
    out, err = capsys.readouterr()
    assert "its checksum is another one" in out
    assert CHANGES_1 in err
    assert main.run(["files", str(place / "aside" / "2026")]) == 0
    assert "nothing is known of a cluster" in capsys.readouterr().out


def test_keys_that_are_there(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: it is said which keys the files have. Method: files under one key, plain ones beside
    them, a backup under a third one; without a key, with another one, with all.
    """
    assert asked(place, capsys)[1]["keys"] == [
        {"key": None, "given": True, "files": 4, "bytes": size_of(place), "other_files": 0}
    ]
    backup = place / "backups/one/member"
    backup.mkdir(parents=True)
    data = encryption_with(SECOND).encrypt_file("manifest", b"{}")
    (backup / "manifest").write_bytes(data)
    (backup / "begun").write_bytes(b"")
    monkeypatch.setattr(keys, "usual", (FIRST,))
    shutil.rmtree(place / "log")
    writer = LogWriter()
    writer.held(3)
    members = msgspec.structs.replace(FILE.members, cluster_id=CLUSTER_ID)
    member = asked(place, capsys)[1]["member"]
    found = msgspec.structs.replace(FILE, member=member, members=members, log=writer.log())
    meta = encryption_now().encrypt_file(CLUSTER_FILE, encode_cluster_file(found))
    (place / "log").mkdir()
    for name, segment in {**writer.files, CLUSTER_FILE: meta}.items():
        (place / name).write_bytes(segment)
    uses = [
        {"key": FIRST.id.hex(), "files": 3, "bytes": size_of(place), "other_files": 0},
        {"key": SECOND.id.hex(), "files": 0, "bytes": 0, "other_files": 1},
    ]
    uses.sort(key=lambda use: str(use["key"]))
    for given, has in (((), set()), ((SECOND,), {SECOND.id.hex()}), ((FIRST,), {FIRST.id.hex()})):
        options = ["--key-file", str(key_file(place.parent, *given))] if given else []
        code = main.run(["files", "--json", *options, str(place)])
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert document["keys"] == [{**use, "given": use["key"] in has} for use in uses]
        assert {one["key"] for one in document["segments"]} == {FIRST.id.hex()}
        assert document["segments"][0]["blocks"] == 2
        is_read = FIRST in given
        assert (document["cluster"] is not None) is is_read
        assert document["unread"] == ([] if is_read else [CLUSTER_FILE, CHANGES_1, IMAGES_1])
        assert [one["kind"] for one in document["structures"]] == (["map"] if is_read else [])
        assert code == (given == (SECOND,))
        assert (f"without key {FIRST.id.hex()}" in err) is (given == (SECOND,))
    assert main.run(["files", str(place)]) == 0
    out = capsys.readouterr().out
    assert "not given" in out and FIRST.id.hex() in out and "not looked into" in out


def size_of(place: Path) -> int:
    """Bytes of what a member starts from."""
    files = (place / CLUSTER_FILE, *(place / "log").iterdir())
    return sum(file.stat().st_size for file in files)


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a place that is none ends with 2 and is named."""
    assert main.run(["files", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no directory" in capsys.readouterr().err
    both = ["--key-file", "a", "--key-command", "b"]
    assert main.run(["files", *both, str(tmp_path)]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main.run(["files", "--key-file", str(tmp_path / "none"), str(tmp_path)]) == 2
    assert "none: No such file" in capsys.readouterr().err
