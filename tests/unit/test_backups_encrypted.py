"""Backups of encrypted logs: with the key, without it, with another one, and after a change."""

from __future__ import annotations

import pytest
from tests.unit import keys
from tests.unit.backup_net import BackupPump
from tests.unit.keys import FIRST, SECOND
from tests.unit.test_backups import ids, listed, values

from whimbrel.core.persistence.commands import Read
from whimbrel.core.persistence.encryption import PlainFiles, key_id_in
from whimbrel.storage.encryption import AesKey


@pytest.fixture
def pump(monkeypatch: pytest.MonkeyPatch) -> BackupPump:
    """Two members with a key, some entries, and a backup of them."""
    monkeypatch.setattr(keys, "usual", (FIRST,))
    made = BackupPump()
    made.begin()
    made.fill("old")
    assert made.done("create", "first")["entries"] == 12
    return made


def again(
    pump: BackupPump,
    monkeypatch: pytest.MonkeyPatch,
    *chosen: AesKey,
    plain: PlainFiles = "refuse",
) -> None:
    """All members end, and come back with these keys."""
    pump.crash()
    monkeypatch.setattr(keys, "usual", chosen)
    monkeypatch.setattr(keys, "plain_files", plain)
    pump.begin()


def key_ids(pump: BackupPump, name: str) -> set[bytes | None]:
    """The keys of the files of a backup; what is empty has none."""
    return {
        key_id_in(data)
        for number in (1, 2)
        for one in listed(pump, number)
        if f"/{name}/" in one.file and one.size
        for (data,) in [pump.disks[number].execute((Read(one.file, 0, 100),))]
        if isinstance(data, bytes)
    }


def test_a_backup_is_as_encrypted_as_the_log(pump: BackupPump) -> None:
    """APR-26: every file of it; nothing of the values lies there; it is restored as any other."""
    assert key_ids(pump, "first") == {FIRST.id}
    for disk in pump.disks.values():
        assert not any(b"old1" in file.data for file in disk._files.values())
    pump.fill("new")
    assert pump.done("verify", "first")["entries"] == 12
    assert pump.done("restore", "first", may_replace=True)["entries"] == 12
    assert pump.shown() == values("old")


def test_a_backup_outlives_its_key(pump: BackupPump, monkeypatch: pytest.MonkeyPatch) -> None:
    """APR-27, APR-29: after a change of the key the old one is still needed for it, and asked for
    by its id; an increment on it has what is new under the new key.
    """
    again(pump, monkeypatch, SECOND, FIRST)
    pump.fill("new")
    assert pump.done("create", "more", is_incremental=True)["incremental_of"] == "first"
    assert SECOND.id in key_ids(pump, "more"), "beside what was written before the change"
    assert pump.done("restore", "first", may_replace=True)["entries"] == 12
    assert pump.shown() == values("old")
    again(pump, monkeypatch, SECOND)
    for what in ("verify", "restore"):
        told = pump.done(what, "first", **({"may_replace": True} if what == "restore" else {}))
        assert f"is encrypted with key {FIRST.id.hex()}, which is not among" in told
    assert pump.shown() == values("old")
    assert not ids(pump)["first"] and key_ids(pump, "first") == {FIRST.id}
    fresh = pump.done("create", "fresh", is_incremental=True)
    assert pump.done("verify", "fresh")["entries"] == fresh["entries"] == 12
    again(pump, monkeypatch, SECOND, FIRST)
    assert pump.done("restore", "more", may_replace=True)["entries"] == 12
    assert pump.shown() == values("new")


def test_scheduled_ones_that_cannot_be_read_are_not_retired(
    pump: BackupPump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APR-28: what was interrupted is deleted; what is under a key that is not here is whole."""
    pump.done("create", "scheduled-1")
    again(pump, monkeypatch, SECOND, FIRST)
    pump.run(5)
    again(pump, monkeypatch, SECOND)
    done = pump.done("create", "scheduled-2", keep=1)
    assert isinstance(done, dict)
    assert set(ids(pump)) >= {"scheduled-1", "scheduled-2"}
    assert key_ids(pump, "scheduled-1") == {FIRST.id}


def test_plain_backups_where_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where plain files are, and refused in words where they are not."""
    made = BackupPump()
    made.begin()
    made.fill("old")
    made.done("create", "first")
    again(made, monkeypatch, FIRST, plain="read")
    made.fill("new")
    assert made.done("restore", "first", may_replace=True)["entries"] == 12
    assert made.shown() == values("old")
    made.run(5)
    again(made, monkeypatch, FIRST)
    told = made.done("restore", "first", may_replace=True)
    assert "is not encrypted" in told and 'plain_files = "read"' in told
    again(made, monkeypatch, FIRST, plain="write")
    made.run(5)
    again(made, monkeypatch)
    assert made.shown() == values("old")
