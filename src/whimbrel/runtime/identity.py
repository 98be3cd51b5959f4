"""A member's identity on disk: the uuid that a restart with the same directory keeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.errors import ConfigError
from whimbrel.runtime.entropy import new_member_id

FILE = "member.json"
LOCK = "member.lock"
FILE_BYTES_MAX = 65_536
FORMAT = 1


class IdentityRecord(msgspec.Struct, forbid_unknown_fields=False):
    """What ``member.json`` holds."""

    format: int
    uuid: str
    cluster: str


class Identity:
    """The identity of this member, held by a lock for as long as the process uses it."""

    def __init__(self, member: MemberId, folder: Path | None, lock: int, cluster: str) -> None:
        self.member = member
        self.folder = folder
        self._lock = lock
        self._cluster = cluster

    def renew(self) -> MemberId:
        """A fresh uuid, kept from now on: the old one was expelled and may not come back."""
        self.member = new_member_id()
        if self.folder is not None:
            _write(self.folder, IdentityRecord(FORMAT, self.member, self._cluster))
        return self.member

    def release(self) -> None:
        """Let another process use the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_identity(data_dir: str, cluster: str) -> Identity:
    """The identity kept in a directory, a new one when there is none yet or no directory.

    Args:
        data_dir: The directory, made when missing; empty for a member that keeps nothing.
        cluster: Name of the cluster; a directory of another one is refused.

    Raises:
        ConfigError: Not a directory, not writable, in use, damaged, of another cluster.
    """
    if not data_dir:
        return Identity(new_member_id(), None, -1, cluster)
    folder = Path(data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(folder)
    except OSError as problem:
        raise ConfigError([f"data directory {folder}: {problem.strerror}"]) from None
    try:
        record = _read(folder / FILE)
        if record is None:
            record = IdentityRecord(FORMAT, new_member_id(), cluster)
            _write(folder, record)
        if record.cluster != cluster:
            raise ConfigError(
                [
                    f"data directory {folder} belongs to cluster {record.cluster!r}, "
                    f"not to {cluster!r}; choose another directory"
                ]
            )
        return Identity(MemberId(record.uuid), folder, lock, cluster)
    except OSError as problem:
        os.close(lock)
        raise ConfigError([f"data directory {folder}: {problem.strerror}"]) from None
    except ConfigError:
        os.close(lock)
        raise


def _locked(folder: Path) -> int:
    """The open lock file.

    Raises:
        ConfigError: Another process holds it.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ConfigError(
            [f"data directory {folder} is in use by another member (process {holder})"]
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _read(path: Path) -> IdentityRecord | None:
    """The record, None when the file does not exist.

    Raises:
        ConfigError: It is no identity of ours, or of a newer format; it is left as it is.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        record = msgspec.json.decode(data, type=IdentityRecord)
        record.uuid = str(uuid.UUID(record.uuid))
    except (msgspec.MsgspecError, ValueError) as problem:
        raise ConfigError(
            [f"{path} is damaged ({problem}); remove it to start under a new identity"]
        ) from None
    if record.format > FORMAT:
        raise ConfigError([f"{path} has format {record.format}; this version reads {FORMAT}"])
    return record


def _write(folder: Path, record: IdentityRecord) -> None:
    """Replace the file so that a crash leaves the old or the new one, whole and on disk."""
    fresh = folder / f"{FILE}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(record) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / FILE)
    directory = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(directory)
    finally:
        os.close(directory)
