"""What a disk is, whatever it is made of: the names it takes, how a work ends, what it remembers.

The file system's disk (``disk.py``) and the simulator's keep the same promises; what they promise
alike without touching a byte stands here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

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
from whimbrel.errors import GridError, UsageError

NEW_SUFFIX = ".new"
"""Of the file that a ``Replace`` writes before it takes the name; one may be left by a crash."""


class CommandFailed(GridError):
    """The command at hand failed; ``execute`` says which one that was."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


class CommandDisk(ABC):
    """Carries out commands, one after the other; a method for each kind of them.

    A method raises ``CommandFailed``. Names have been checked when it is called.
    """

    def __init__(self) -> None:
        self._spoiled: dict[str, str] = {}
        """Files and folders of which a sync failed, and what was said then. The system tells it
        once: it takes the pages for clean afterwards, and the next sync succeeds (S5)."""

    def close(self) -> None:
        """Let go of what is held; the disk is used no more by this process."""
        self._spoiled.clear()

    def execute(self, commands: Sequence[Command]) -> tuple[Answer, ...]:
        """Carry out commands in order, until one fails.

        Returns:
            One answer for each.

        Raises:
            DiskProblem: One failed; those before it stand, those behind it were not tried.
            UsageError: A name leads out of the data directory; nothing was carried out.
        """
        for command in commands:
            check_names(command)
        answers: list[Answer] = []
        for position, command in enumerate(commands):
            try:
                answers.append(self._carry_out(command))
            except CommandFailed as problem:
                raise DiskProblem(position, problem.failure, problem.detail) from problem
        return tuple(answers)

    def answer_to(self, work: DiskWork) -> DiskDone | DiskFailed:
        """Carry out a work; what the core is to hear of it.

        Raises:
            UsageError: As ``execute``; the core is wrong, not the disk.
        """
        cause = work.cause or None
        try:
            return DiskDone(work.number, self.execute(work.commands), cause=cause)
        except DiskProblem as problem:
            return DiskFailed(
                work.number, problem.position, problem.failure, problem.detail, cause=cause
            )

    def _carry_out(self, command: Command) -> Answer:
        match command:
            case Append():
                self._refuse_spoiled(command.file)
                self.append(command.file, command.data)
            case Replace():
                self._refuse_spoiled(command.file)
                self.replace(command.file, command.data)
            case Sync():
                self._refuse_spoiled(command.file)
                self.sync(command.file)
            case SyncFolder():
                self._refuse_spoiled(command.folder)
                self.sync_folder(command.folder)
            case Remove():
                self.remove(command.file)
            case Move():
                self.move(command.file, command.to)
            case Copy():
                self._refuse_spoiled(command.to)
                self.copy(command.file, command.to)
            case RemoveFolder():
                self.remove_folder(command.folder)
            case Read():
                return self.read(command.file, command.offset, command.bytes_max)
            case List():
                return self.list_folder(command.folder, is_deep=command.is_deep)
            case _:
                raise TypeError(f"no disk carries out a {type(command).__name__}")
        return None

    def _refuse_spoiled(self, name: str) -> None:
        """Fail when an earlier sync of this file or folder failed: no later one tells the truth."""
        said = self._spoiled.get(name)
        if said is not None:
            raise CommandFailed(Failure.SYNC, f"an earlier sync failed: {said}")

    def _spoil(self, name: str, detail: str) -> CommandFailed:
        """Remember that what of a file or folder is durable nobody knows; the error to raise."""
        self._spoiled.setdefault(name, detail)
        return CommandFailed(Failure.SYNC, detail)

    def _spoiled_moved(self, file: str, to: str) -> None:
        """What was spoiled is so under its new name, too."""
        for name in [name for name in self._spoiled if is_within(name, file)]:
            self._spoiled.setdefault(to + name.removeprefix(file), self._spoiled[name])

    @abstractmethod
    def append(self, file: str, data: tuple[bytes, ...]) -> None:
        """Carry out an ``Append``."""

    @abstractmethod
    def replace(self, file: str, data: bytes) -> None:
        """Carry out a ``Replace``."""

    @abstractmethod
    def sync(self, file: str) -> None:
        """Carry out a ``Sync``."""

    @abstractmethod
    def sync_folder(self, folder: str) -> None:
        """Carry out a ``SyncFolder``."""

    @abstractmethod
    def remove(self, file: str) -> None:
        """Carry out a ``Remove``."""

    @abstractmethod
    def move(self, file: str, to: str) -> None:
        """Carry out a ``Move``."""

    @abstractmethod
    def copy(self, file: str, to: str) -> None:
        """Carry out a ``Copy``."""

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Carry out a ``RemoveFolder``."""

    @abstractmethod
    def read(self, file: str, offset: int, bytes_max: int) -> bytes:
        """Carry out a ``Read``."""

    @abstractmethod
    def list_folder(self, folder: str, *, is_deep: bool = False) -> tuple[FileSize, ...]:
        """Carry out a ``List``."""


def check_names(command: Command) -> None:
    """Refuse names that are none, and of what changes the member's own files those outside.

    Raises:
        UsageError: Such a name, or something is moved into itself.
    """
    match command:
        case List():
            if command.folder:
                _check_place(command.folder)
        case RemoveFolder():
            _check_place(command.folder)
        case Replace() | Read():
            _check_place(command.file)
        case Copy():
            _check_name(command.file)
            _check_place(command.to)
        case SyncFolder():
            if command.folder:
                _check_name(command.folder)
        case Move():
            _check_name(command.file)
            _check_name(command.to)
            if command.to.startswith(f"{command.file}/"):
                raise UsageError(f"{command.file!r} cannot be moved into itself, {command.to!r}")
        case Append() | Sync() | Remove():
            _check_name(command.file)


def _check_place(name: str) -> None:
    """A name in the data directory, or one outside that says the whole way."""
    _check_name(name.removeprefix("/"))


def _check_name(name: str) -> None:
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(f"{name!r} is no name of a file in the data directory")


def folder_of(name: str) -> str:
    """The folder that a name stands in; ``""`` is the data directory."""
    folder = name.rpartition("/")[0]
    return "/" if not folder and name.startswith("/") else folder


def folders_of(name: str) -> Iterator[str]:
    """The folders on the way to a name, the outermost first, without the one they begin in."""
    end = name.find("/", 1)
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)


def is_within(name: str, place: str) -> bool:
    """Whether a name is a place, or that of something in it."""
    return name == place or name.startswith(f"{place}/")
