"""A member's identity on disk: the uuid that a restart with the same directory keeps.

With persistence the directory holds data, too: then what lies there and cannot be used as it is
ends the start, and nothing of it is changed (APR-07, APR-09).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
import zlib
from pathlib import Path

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.errors import ConfigError, DataDirectoryError, GridError
from whimbrel.runtime.entropy import new_member_id

FILE = "member.json"
LOCK = "member.lock"
CLUSTER_FILE = "cluster.meta"
"""Beside it: what the cluster is whose data lie here."""
FILE_BYTES_MAX = 65_536
FORMAT = 2
FORMAT_WITHOUT_CHECKSUM = 1
FORMATS = (FORMAT_WITHOUT_CHECKSUM, FORMAT)


class IdentityRecord(msgspec.Struct, forbid_unknown_fields=False):
    """What ``member.json`` holds."""

    format: int
    uuid: str
    cluster: str
    crc: int | None = None
    """CRC-32 of the other fields, one a line; None in the first format."""


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
            _write(self.folder, self.member, self._cluster)
        return self.member

    def release(self) -> None:
        """Let another process use the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_identity(data_dir: str, cluster: str, *, keeps_data: bool = False) -> Identity:
    """The identity kept in a directory, a new one when there is none yet or no directory.

    Args:
        data_dir: The directory, made when missing; empty for a member that keeps nothing.
        cluster: Name of the cluster; a directory of another one is refused.
        keeps_data: Whether the member keeps its data there as well.

    Raises:
        ConfigError: Not a directory, not writable, in use; without data also damaged, of another
            cluster.
        DataDirectoryError: With data: damaged, of another cluster.
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
        member = _member_of(folder, cluster, keeps_data)
        if keeps_data and not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError([f"data directory {folder}: nothing can be written there"])
        return Identity(member, folder, lock, cluster)
    except OSError as problem:
        os.close(lock)
        raise ConfigError([f"data directory {folder}: {problem.strerror}"]) from None
    except GridError:
        os.close(lock)
        raise


def read_record(path: Path) -> IdentityRecord | None:
    """The record in a file, its uuid in the usual form; None when the file does not exist.

    Raises:
        ValueError: It is no identity of ours, or of a newer format: the rest of a sentence that
            begins with the file's name.
        OSError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        record = msgspec.json.decode(data, type=IdentityRecord)
        if record.format > FORMAT:
            raise ValueError(f"has format {record.format}; this version reads {FORMAT}")
        if record.format not in FORMATS or (record.crc is None) is (record.format == FORMAT):
            raise ValueError("is damaged (its checksum is missing, or its format another one)")
        if record.crc not in (None, _checksum(record)):
            raise ValueError("is damaged (its checksum is another one)")
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ValueError(f"is damaged ({problem})") from None
    try:
        record.uuid = str(uuid.UUID(record.uuid))
    except ValueError as problem:
        raise ValueError(f"is damaged ({problem})") from None
    return record


def _member_of(folder: Path, cluster: str, keeps_data: bool) -> MemberId:
    """The uuid kept in a directory, a new one where there is none.

    Raises:
        GridError: What lies there is damaged or another's.
        OSError: The file cannot be read or written.
    """
    path = folder / FILE
    try:
        record = read_record(path)
    except ValueError as problem:
        advice = "" if keeps_data else "; remove it to start under a new identity"
        raise _refusal(f"{path} {problem}{advice}", keeps_data) from None
    if record is None:
        return _member_without_record(folder, cluster, keeps_data)
    if record.cluster != cluster:
        raise _refusal(
            f"data directory {folder} belongs to cluster {record.cluster!r}, not to {cluster!r}; "
            "choose another directory",
            keeps_data,
        )
    member = MemberId(record.uuid)
    return member if record.format == FORMAT else _write(folder, member, cluster)


def _member_without_record(folder: Path, cluster: str, keeps_data: bool) -> MemberId:
    """A new uuid, kept from now on; not where data lie, which would be nobody's then.

    Raises:
        GridError: There are data.
    """
    if (folder / CLUSTER_FILE).exists():
        text = f"{folder / FILE} is gone, though {CLUSTER_FILE} beside it is there: put it back"
        raise _refusal(text, keeps_data)
    return _write(folder, new_member_id(), cluster)


def _refusal(sentence: str, keeps_data: bool) -> GridError:
    """The error for files that cannot be used: of the data, or else of the configuration."""
    if keeps_data:
        return DataDirectoryError(f"{sentence}; nothing was changed")
    return ConfigError([sentence])


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


def _checksum(record: IdentityRecord) -> int:
    return zlib.crc32(f"{record.format}\n{record.uuid}\n{record.cluster}\n".encode())


def _write(folder: Path, member: MemberId, cluster: str) -> MemberId:
    """Replace the file so that a crash leaves the old or the new one, whole and on disk."""
    record = IdentityRecord(FORMAT, member, cluster)
    record.crc = _checksum(record)
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
    return member
