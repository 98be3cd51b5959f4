"""``member.json``: a uuid that is kept, and what lies there otherwise is told and left alone."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest

from whimbrel.errors import ConfigError, DataDirectoryError, GridError
from whimbrel.runtime.identity import CLUSTER_FILE, FILE, FORMAT, LOCK, open_identity, read_record

UUID = "01234567-89ab-4def-8123-456789abcdef"
OTHER = "11234567-89ab-4def-8123-456789abcdef"


def opened(folder: Path, cluster: str = "dev", *, keeps_data: bool = True) -> str:
    """The uuid that a member finds there; given back at once."""
    identity = open_identity(str(folder), cluster, keeps_data=keeps_data)
    identity.release()
    return identity.member


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def refused(folder: Path, kind: type[GridError], cluster: str = "dev") -> str:
    """The sentence of a start that is refused twice in the same way and changes no file."""
    before = content(folder)
    keeps_data = kind is DataDirectoryError
    for _ in range(2):
        with pytest.raises(GridError) as refusal:
            opened(folder, cluster, keeps_data=keeps_data)
        assert type(refusal.value) is kind
    assert content(folder) == before
    return str(refusal.value)


def test_the_file_has_a_checksum_of_its_fields(tmp_path: Path) -> None:
    """Goal: the second format, which docs/files.md shows."""
    member = opened(tmp_path)
    record = json.loads((tmp_path / FILE).read_text())
    assert (record["format"], record["uuid"], record["cluster"]) == (FORMAT, member, "dev")
    assert uuid.UUID(member).version == 4
    fixed = f'{{"format":2,"uuid":"{UUID}","cluster":"dev","crc":%d}}'
    (tmp_path / FILE).write_text(fixed % 223_294_298)
    assert opened(tmp_path) == UUID


@pytest.mark.parametrize("keeps_data", [False, True])
def test_the_first_format_is_read_and_replaced(tmp_path: Path, keeps_data: bool) -> None:
    """Goal: a directory of before keeps its identity, and has a checksum from then on."""
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "uuid": UUID, "cluster": "dev"}))
    assert opened(tmp_path, keeps_data=keeps_data) == UUID
    record = read_record(tmp_path / FILE)
    assert record is not None and record.format == FORMAT and record.crc is not None
    assert opened(tmp_path, keeps_data=keeps_data) == UUID


@pytest.mark.parametrize("kind", [ConfigError, DataDirectoryError])
def test_no_bit_can_change_the_identity(tmp_path: Path, kind: type[GridError]) -> None:
    """S4: whatever single bit flips, and wherever the file is cut, the uuid is the same or the
    file is named; nothing is rewritten. Method: every bit, every length.
    """
    member = opened(tmp_path)
    path = tmp_path / FILE
    good = path.read_bytes()
    damaged = [good[:size] for size in range(len(good))]
    for place in range(len(good)):
        damaged += [
            good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :] for bit in range(8)
        ]
    told: list[GridError] = []
    for data in damaged:
        path.write_bytes(data)
        try:
            assert opened(tmp_path, keeps_data=kind is DataDirectoryError) == member
        except GridError as problem:
            told.append(problem)
        assert path.read_bytes() == data
    assert all(type(problem) is kind and str(path) in str(problem) for problem in told)
    assert len(told) == len(damaged) - 1  # of a file that lacks its last line feed nothing is lost


@pytest.mark.parametrize("kind", [ConfigError, DataDirectoryError])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("{}", "damaged"),
        ('{"format": 1, "uuid": "me", "cluster": "dev"}', "damaged"),
        (f'{{"format": 0, "uuid": "{UUID}", "cluster": "dev"}}', "damaged"),
        (f'{{"format": 2, "uuid": "{UUID}", "cluster": "dev"}}', "checksum is missing"),
        (f'{{"format": 1, "uuid": "{UUID}", "cluster": "dev", "crc": 5}}', "damaged"),
        (f'{{"format": 2, "uuid": "{OTHER}", "cluster": "dev", "crc": 5}}', "another one"),
        (f'{{"format": 9, "uuid": "{UUID}", "cluster": "dev"}}', "format 9; this version reads 2"),
    ],
)
def test_what_cannot_be_read_is_named_and_left_alone(
    tmp_path: Path, text: str, words: str, kind: type[GridError]
) -> None:
    """Goal: with data the start has failed (status 1), without them it is configured wrongly (2);
    the lock is given back in both cases.
    """
    (tmp_path / FILE).write_text(text)
    told = refused(tmp_path, kind)
    assert words in told and str(tmp_path / FILE) in told


@pytest.mark.parametrize("kind", [ConfigError, DataDirectoryError])
def test_a_directory_of_another_cluster(tmp_path: Path, kind: type[GridError]) -> None:
    """APR-06: a foreign directory: it and both names are told, nothing is mixed in or set aside."""
    opened(tmp_path, "here")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "changes-00000001.seg").write_bytes(b"theirs")
    told = refused(tmp_path, kind, "there")
    assert str(tmp_path) in told and "'here'" in told and "'there'" in told


@pytest.mark.parametrize("kind", [ConfigError, DataDirectoryError])
def test_data_without_the_file_of_their_owner(tmp_path: Path, kind: type[GridError]) -> None:
    """S4: a member that lost its ``member.json`` does not come back as somebody else beside its
    data; an empty directory is a new member's.
    """
    (tmp_path / CLUSTER_FILE).write_bytes(b"what the cluster is")
    assert str(tmp_path / FILE) in refused(tmp_path, kind)
    assert opened(tmp_path / "new") == opened(tmp_path / "new")


def test_a_second_process_and_places_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: with data as without, what the operator chose wrongly is wrong configuration, and
    names the place. Method: a lock that is held, a file, a directory without the right to write.
    """
    first = open_identity(str(tmp_path), "dev", keeps_data=True)
    told = refused_place(tmp_path)
    assert "in use by another member" in told and str(os.getpid()) in told
    first.release()
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused_place(tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert str(tmp_path) in refused_place(tmp_path)
    monkeypatch.undo()
    assert opened(tmp_path) == first.member


def refused_place(folder: Path) -> str:
    """The sentence about a directory that cannot be used."""
    with pytest.raises(ConfigError) as refusal:
        opened(folder)
    return str(refusal.value)
