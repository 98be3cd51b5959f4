"""The data directory of a member: commands carried out on files.

Synchronous; ``writer.py`` runs it in a thread. What may fail is either done and durable as its
command says, or undone, or remembered as spoiled: a file of which nobody knows what is on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from whimbrel.core.persistence.commands import Failure, FileSize
from whimbrel.storage.contract import (
    NEW_SUFFIX,
    CommandDisk,
    CommandFailed,
    folder_of,
    folders_of,
    is_within,
)

DESCRIPTORS_MAX: Final = 16
"""Files kept open for appending; a log has two at a time, the rest are those it has just left."""
BUFFERS_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
"""Buffers that one ``writev`` takes."""
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
"""What lies there is the users' data; nobody but the member's own account reads it."""
ROOM_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, no quota, or the limit of a process for the size of a file: each can be raised."""
LINK_ERRORS: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Another file system, one without hard links, or too many of them: the bytes are copied then."""
COPY_BYTES: Final = 1024 * 1024
OUTSIDE: Final = ".."
"""The folder that the data directory itself has its name in."""


class _OpenFile:
    """A file that is appended to."""

    __slots__ = ("descriptor", "is_synced", "length")

    def __init__(self, descriptor: int, length: int) -> None:
        self.descriptor = descriptor
        self.length = length
        """Bytes of all appends that are done."""
        self.is_synced = True
        """Whether nothing was appended since it was synced, or opened."""


class Disk(CommandDisk):
    """One data directory. Not for two threads at once."""

    def __init__(self, folder: Path) -> None:
        """Use a directory, which is there and which no other process uses.

        Args:
            folder: The directory.
        """
        super().__init__()
        self._folder = folder
        self._open: dict[str, _OpenFile] = {}
        """By name; the one that was not used for longest comes first."""
        self._named: set[str] = set()
        """Files and folders whose names are known to be durable, all the way up. What an earlier
        process has left is not known: it may have died before it synced a folder."""

    def close(self) -> None:
        """Close all files, as they are."""
        super().close()
        for file in list(self._open):
            self._drop(file)

    # -- commands -------------------------------------------------------------------------

    def append(self, file: str, data: tuple[bytes, ...]) -> None:
        """Write all of it or cut off what was written of it."""
        is_made = False
        opened = self._open.pop(file, None)
        with told(file):
            if opened is None:
                opened, is_made = self._opened(file)
            self._open[file] = opened
        try:
            write_all(opened.descriptor, data)
        except OSError as problem:
            raise self._taken_back(file, opened, is_made, problem) from problem
        opened.length += sum(map(len, data))
        opened.is_synced = False

    def replace(self, file: str, data: bytes) -> None:
        """Write a new file, sync it, give it the name, sync the folder."""
        fresh = self._path(file + NEW_SUFFIX)
        with told(file):
            self._make_folders(file)
            try:
                self._write_new(file, fresh, (data,))
                os.rename(fresh, self._path(file))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
                raise
        self._drop(file)
        self._named.discard(file)
        self._sync_names(file)

    def sync(self, file: str) -> None:
        """Sync the data, and every name on the way to it that is not known to be durable."""
        opened = self._open.get(file)
        if opened is None:
            with told(file):
                opened = self._open[file] = self._opened_again(file)
        try:
            os.fdatasync(opened.descriptor)
        except OSError as problem:
            raise self._spoil(file, in_words(file, problem)) from problem
        opened.is_synced = True
        self._sync_names(file)

    def remove(self, file: str) -> None:
        """Delete a file."""
        with told(file), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._path(file))
        self._drop(file)
        self._named.discard(file)

    def move(self, file: str, to: str) -> None:
        """Rename, and sync both folders; files and names in a folder that moves are synced before,
        since what is moved is mostly not touched again.
        """
        source, target = self._path(file), self._path(to)
        with told(file):
            os.lstat(source)
        with told(to):
            if os.path.lexists(target):  # a rename would replace it without a word
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._make_folders(to)
        for name in [name for name in self._open if is_within(name, file)]:
            self._retire(name)
        for path, _, _ in os.walk(source):
            self._sync_one_folder(os.path.relpath(path, self._folder))
        with told(file):
            os.rename(source, target)
        self._named -= {name for name in self._named if is_within(name, file)}
        self._spoiled_moved(file, to)
        self._sync_names(to)
        self._sync_one_folder(folder_of(file))

    def copy(self, file: str, to: str) -> None:
        """Link under a name of our own, which then takes the name; a rename is the old or the new.

        Where there are no links, or none from here to there, the bytes are copied.
        """
        fresh = self._path(to + NEW_SUFFIX)
        with told(file):
            os.lstat(self._path(file))
        with told(to):
            self._make_folders(to)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            try:
                try:
                    os.link(self._path(file), fresh)
                except OSError as problem:
                    if problem.errno not in LINK_ERRORS:
                        raise
                    self._copy_bytes(file, to, fresh)
                os.rename(fresh, self._path(to))
            finally:  # a rename to another name of the same file does nothing
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
        self._drop(to)
        self._named.discard(to)
        self._sync_names(to)

    def _copy_bytes(self, file: str, to: str, fresh: str) -> None:
        with open(self._path(file), "rb", buffering=0) as source:
            self._write_new(to, fresh, iter(lambda: source.read(COPY_BYTES), b""))

    def remove_folder(self, folder: str) -> None:
        """Delete all of it, and sync the folder that it stood in."""
        path = self._path(folder)
        for file in [file for file in self._open if is_within(file, folder)]:
            self._drop(file)
        self._named -= {name for name in self._named if is_within(name, folder)}
        with told(folder):
            try:
                os.lstat(path)
            except FileNotFoundError:
                return
            shutil.rmtree(path)
        self._sync_one_folder(folder_of(folder))

    def sync_folder(self, folder: str) -> None:
        """Sync a folder, and the way to it."""
        self._sync_one_folder(folder)
        self._sync_names(folder)

    def read(self, file: str, offset: int, bytes_max: int) -> bytes:
        """Read some bytes."""
        parts: list[bytes] = []
        with told(file):
            descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
            try:
                left = min(bytes_max, os.fstat(descriptor).st_size - offset)
                while left > 0 and (part := os.pread(descriptor, left, offset)):
                    parts.append(part)
                    offset += len(part)
                    left -= len(part)
            finally:
                os.close(descriptor)
        return b"".join(parts)

    def list_folder(self, folder: str, *, is_deep: bool = False) -> tuple[FileSize, ...]:
        """Look what is there. Links to folders are not followed."""
        found: list[FileSize] = []
        folders = [folder]
        while folders:
            folder = folders.pop()
            prefix = f"{folder}/" if folder else ""
            with told(folder):
                try:
                    entries = os.scandir(self._path(folder))
                except FileNotFoundError:
                    continue
                with entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):  # gone since: it is not there
                            if entry.is_file():
                                found.append(FileSize(prefix + entry.name, entry.stat().st_size))
                            elif is_deep and entry.is_dir(follow_symlinks=False):
                                folders.append(prefix + entry.name)
        return tuple(sorted(found, key=lambda one: one.file))

    # -- files ----------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name) if name else str(self._folder)

    def _make_folders(self, name: str) -> None:
        for folder in folders_of(name):
            with contextlib.suppress(FileExistsError):  # where it is a file, what follows fails
                os.mkdir(self._path(folder), FOLDER_MODE)

    def _opened(self, file: str) -> tuple[_OpenFile, bool]:
        """A file to be appended to, and whether it was made for that."""
        with contextlib.suppress(FileNotFoundError):
            return self._opened_again(file), False
        self._make_room()
        self._make_folders(file)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return _OpenFile(os.open(self._path(file), flags, FILE_MODE), 0), True

    def _opened_again(self, file: str) -> _OpenFile:
        self._make_room()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path(file), flags)
        return _OpenFile(descriptor, os.fstat(descriptor).st_size)

    def _make_room(self) -> None:
        while len(self._open) >= DESCRIPTORS_MAX:
            self._retire(next(iter(self._open)))

    def _retire(self, file: str) -> None:
        """Close a file that may be appended to or synced later.

        What was written is synced before: of an error that comes up after the last descriptor is
        closed the system may tell nobody. One that comes up here is told by the next command.
        """
        opened = self._open.pop(file)
        try:
            if not opened.is_synced:
                os.fdatasync(opened.descriptor)
        except OSError as problem:
            self._spoil(file, in_words(file, problem))
        _close(opened.descriptor)

    def _drop(self, file: str) -> None:
        """Close a file that is no more, or as it is."""
        opened = self._open.pop(file, None)
        if opened is not None:
            _close(opened.descriptor)

    def _taken_back(
        self, file: str, opened: _OpenFile, is_made: bool, problem: OSError
    ) -> CommandFailed:
        """Undo an append that ended half-way; the error to raise."""
        failure = failure_of(problem)
        words = in_words(file, problem)
        try:
            if is_made:
                self._drop(file)
                os.unlink(self._path(file))
            else:
                os.ftruncate(opened.descriptor, opened.length)
        except OSError as second:
            failure = Failure.BROKEN
            words += f"; cutting it off again failed: {second.strerror}"
        if not failure.may_pass:
            self._spoil(file, words)
            failure = Failure.BROKEN
        return CommandFailed(failure, words)

    def _write_new(self, file: str, fresh: str, pieces: Iterable[bytes]) -> None:
        """Make the file ``fresh`` of these and sync it; it is about to take the name ``file``."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(fresh, flags, FILE_MODE)
        try:
            for piece in pieces:
                write_all(descriptor, (piece,))
            try:
                os.fsync(descriptor)
            except OSError as problem:
                raise self._spoil(file, in_words(file, problem)) from problem
        finally:
            os.close(descriptor)

    # -- names ----------------------------------------------------------------------------

    def _sync_names(self, name: str) -> None:
        """Make the way to a file or folder durable, that of the data directory included."""
        while name not in self._named and name != "/":
            try:
                self._sync_one_folder(folder_of(name) if name else OUTSIDE)
            except CommandFailed as problem:
                if problem.failure is Failure.SYNC:
                    self._spoil(name, problem.detail)
                raise
            self._named.add(name)
            name = folder_of(name)

    def _sync_one_folder(self, folder: str) -> None:
        self._refuse_spoiled(folder)
        path = os.path.dirname(os.path.abspath(self._folder))
        if folder != OUTSIDE:
            path = self._path(folder)
        with told(folder):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:
                if folder == OUTSIDE or folder.startswith("/"):
                    return  # what we have made we may look into
                raise
        try:
            os.fsync(descriptor)
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # some network file systems have no such thing
                raise self._spoil(folder, in_words(folder, problem)) from problem
        finally:
            os.close(descriptor)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # whatever it says of the bytes a sync has said before
        os.close(descriptor)


def failure_of(problem: OSError) -> Failure:
    """What an error of the system means to the core."""
    if problem.errno in ROOM_ERRORS:
        return Failure.FULL
    if problem.errno == errno.EROFS:
        return Failure.READ_ONLY
    return Failure.MISSING if problem.errno == errno.ENOENT else Failure.BROKEN


def in_words(name: str, problem: OSError) -> str:
    """A file, and what the system said of it."""
    return f"{name or 'the data directory'}: {problem.strerror or problem}"


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Turn an error of the system into a failure of the command that is about this file."""
    try:
        yield
    except OSError as problem:
        raise CommandFailed(failure_of(problem), in_words(name, problem)) from problem


def write_all(descriptor: int, data: Sequence[bytes]) -> None:
    """Write buffers to a file, behind each other.

    Raises:
        OSError: Some of it may have been written.
    """
    for start in range(0, len(data), BUFFERS_MAX):
        left: list[bytes | memoryview] = list(data[start : start + BUFFERS_MAX])
        while left:
            written = os.writev(descriptor, left)
            left = left_of(left, written)
            if left and not written:
                raise OSError(errno.EIO, "nothing was written")


def left_of(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What of the buffers is still to be written; the system may take less than it was given."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
