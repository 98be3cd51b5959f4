"""What the core may ask of a disk, and what a disk answers. Data; nobody here touches a file.

Names of files are relative to the member's data directory, with ``/`` between their parts. Those
that begin with ``/`` lie outside of it: places for backups that an operator has named, the only
ones that ``Copy.to``, ``Replace``, ``Read``, ``List`` and ``RemoveFolder`` may lead to. The
commands of one ``DiskWork`` are carried out in order, those of the next one after them; the first
one that fails ends its work, and what came before it stands. A shell (``whimbrel.storage``, or the
simulator's disk) carries them out beside the event loop and answers each work once.
"""

from __future__ import annotations

import enum

import msgspec

from whimbrel.errors import GridError


class Command(msgspec.Struct, frozen=True, tag=True):
    """Base of all commands."""


class Append(Command, frozen=True):
    """Add bytes at the end of a file, which is made, with its folders, when it is not there.

    All of them or none: what a full disk took of them is cut off again.
    """

    file: str
    data: tuple[bytes, ...]


class Replace(Command, frozen=True):
    """Give a file this content so that a crash at any moment leaves the old or the new one.

    Whole and durable when it is done, its name as well.
    """

    file: str
    data: bytes


class Sync(Command, frozen=True):
    """Make what was appended to a file durable, and its name when the file is new."""

    file: str


class Remove(Command, frozen=True):
    """Delete a file; one that is not there is no failure. Durable with the next ``SyncFolder``."""

    file: str


class Move(Command, frozen=True):
    """Give a file or folder another name, in folders that are made when they are not there.

    Nothing may have that name. Durable when it is done.
    """

    file: str
    to: str


class Copy(Command, frozen=True):
    """Have the bytes of a file, to which nobody adds any more, under another name as well.

    By a hard link where the file system has them, else as a copy. Whole and durable when it is
    done, its name as well; a crash on the way leaves what had the name before, if anything.
    """

    file: str
    to: str


class RemoveFolder(Command, frozen=True):
    """Delete a folder with all that is in it; one that is not there is no failure.

    Durable when it is done. A crash on the way leaves any part of it.
    """

    folder: str


class SyncFolder(Command, frozen=True):
    """Make the names in a folder durable; ``""`` is the data directory itself."""

    folder: str


class Read(Command, frozen=True):
    """Answered by the bytes of a file from ``offset`` on, ``bytes_max`` at most; fewer at its end.

    A file that is not there is the failure ``Failure.MISSING``.
    """

    file: str
    offset: int
    bytes_max: int


class List(Command, frozen=True):
    """Answered by the ``FileSize`` of each file in a folder, by name.

    Folders in it are left out, or looked into as well where it ``is_deep``; one that is not there
    has no files.
    """

    folder: str
    is_deep: bool = False


class FileSize(msgspec.Struct, frozen=True):
    """A file, named from the data directory on, and its bytes."""

    file: str
    size: int


Answer = bytes | tuple[FileSize, ...] | None
"""Of ``Read``, of ``List``, of any other command."""


class Failure(enum.StrEnum):
    """Why a command failed."""

    FULL = "no space left on the disk"
    """Nothing has happened; it may be tried again."""
    READ_ONLY = "the disk is read-only"
    """As FULL."""
    MISSING = "there is no such file"
    SYNC = "a sync failed"
    """What of the file is durable nobody knows, and no later sync tells (S5)."""
    BROKEN = "input/output error"
    """Anything else; as SYNC where bytes were to be written."""

    @property
    def may_pass(self) -> bool:
        """Whether the same command may succeed later, with nothing done so far."""
        return self in (Failure.FULL, Failure.READ_ONLY)


class DiskProblem(GridError):
    """A command failed. Those before it are carried out, those behind it are not.

    Raised by a disk to the shell that drives it; the core hears of it as ``DiskFailed``.
    """

    reason = "disk"

    def __init__(self, position: int, failure: Failure, detail: str) -> None:
        """Tell which command it was, counted from 0, and what the system said, with its file."""
        super().__init__(detail)
        self.position = position
        self.failure = failure
        self.detail = detail
