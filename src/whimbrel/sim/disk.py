"""The disk of a simulated machine: it does to files what real ones do, on demand or by chance.

Keeps what ``storage.disk`` keeps, and loses with the power all that was not synced. A process that
dies loses nothing that was carried out: the machine still has it.

Names are durable by themselves, without regard to their folders: what makes a name durable on a
real disk (``storage.disk``) syncs the whole way to it.
"""

from __future__ import annotations

import copy
import enum
import random
from collections.abc import Callable, Sequence

from whimbrel.core.persistence.commands import (
    Append,
    Command,
    DiskProblem,
    Failure,
    FileSize,
    Remove,
    RemoveFolder,
    Replace,
)
from whimbrel.sim.disk_file import SECTOR_BYTES, SimFile
from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.storage.contract import (
    NEW_SUFFIX,
    CommandDisk,
    CommandFailed,
    folder_of,
    folders_of,
    is_within,
)

WORK_US = (50, 20_000)
"""Shortest and longest work."""
SLOW_WORK_US = (20_000, 500_000)
ANSWER_US = (10, 500)
"""From the end of a work until its process hears of it."""


class Fault(enum.Enum):
    """What a disk may do wrong, each at the command that would be right otherwise."""

    SYNC_ERROR = "a sync fails; some of the file is on the platter, nobody knows what"
    SYNC_LIE = "a sync tells that it is done, and does nothing"
    READ_ERROR = "a read fails"
    BIT_ROT = "a bit of what is read has changed on the platter"
    STALE = "a sector of what is read was never written: what lay there before still does"
    MISDIRECTED = "an append lands somewhere else, in whatever lies there"
    FULL = "there is no space for a write"
    READ_ONLY = "a write is refused"


class SimDisk(CommandDisk):
    """One disk. Without faults nothing is drawn but at a crash."""

    def __init__(self, entropy: random.Random) -> None:
        """An empty disk.

        Args:
            entropy: Draws what chance decides here.
        """
        super().__init__()
        self.rates: dict[Fault, float] = {}
        """How often each fault strikes where it can."""
        self.bytes_max: int | None = None
        """Room for all files together."""
        self.is_read_only = False
        self.is_slow = False
        self.is_rotten = False
        """Whether something on the platter has changed by itself."""
        self._entropy = entropy
        self._armed: dict[Fault, int] = {}
        self._files: dict[str, SimFile] = {}
        """By name, as a process sees them."""
        self._folders: set[str] = set()
        self._durable: dict[str, SimFile] = {}
        """By name, as the platter has them."""
        self._changes: list[dict[str, SimFile | None]] = []
        """What happened to names since, in order; of each all of it gets to the platter, or none.
        None is a name that is no more."""

    # -- what happens to it -----------------------------------------------------------------

    def arm(self, fault: Fault, times: int = 1) -> None:
        """Let a fault strike at the next occasions."""
        self._armed[fault] = self._armed.get(fault, 0) + times

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(one.data) for one in {id(one): one for one in self._files.values()}.values())

    @property
    def is_ill(self) -> bool:
        """Whether it is slow or full, takes nothing, or something is to go wrong."""
        is_closed = self.bytes_max is not None or self.is_read_only
        return self.is_slow or is_closed or any(self._armed.values())

    def disarm(self) -> None:
        """What was to go wrong does not."""
        self._armed.clear()

    def mend(self) -> None:
        """It works from now on, and there is room."""
        self.is_slow, self.is_read_only, self.bytes_max = False, False, None
        self.disarm()

    def latency_us(self) -> int:
        """How long a work takes."""
        return log_uniform(self._entropy, *(SLOW_WORK_US if self.is_slow else WORK_US))

    def answer_us(self) -> int:
        """How long a process takes to hear of a work that is done."""
        return self._entropy.randrange(*ANSWER_US)

    def carry_out_part(self, commands: Sequence[Command]) -> None:
        """The process dies in the middle of these: some are done, and one maybe half."""
        done = self._entropy.randrange(len(commands) + 1)
        try:
            self.execute(commands[:done])
            if done < len(commands) and coin(self._entropy, 0.5):
                size = size_of(commands[done])
                self.begin(commands[done], self._entropy.randint(0, size) if size else 0)
        except DiskProblem:
            return

    def begin(self, command: Command, size: int) -> None:
        """The process dies in the middle of a command.

        Args:
            command: Something that may be half done.
            size: How many of its bytes have been written.

        Raises:
            DiskProblem: It would have failed.
        """
        match command:
            case Append():
                self.execute((Append(command.file, (b"".join(command.data)[:size],)),))
            case Replace():
                fresh = command.file + NEW_SUFFIX
                self.execute((Remove(fresh), Append(fresh, (command.data[:size],))))
            case RemoveFolder():
                for name in [name for name in self._files if is_within(name, command.folder)]:
                    if coin(self._entropy, 0.5):
                        self.execute((Remove(name),))

    def kill(self) -> None:
        """The process dies. Nobody remembers which syncs have failed; all the rest is there."""
        self.close()

    def crash(self) -> None:
        """The power is lost, and is there again."""
        self.kill()
        generator = self._entropy
        kept = len(self._changes)
        if coin(generator, 0.5):
            kept = generator.randrange(kept + 1)
        changes = self._changes[:kept]
        if coin(generator, 0.5):
            changes = [change for change in changes if coin(generator, 0.5)]
        self._changes = []
        for change in changes:
            self._apply(change)
        for name in sorted(self._durable):
            self._durable[name].lose_power(generator, self._old_bytes)
        self._come_back()

    def lose_power(self, *, keeps: bool) -> None:
        """The same without chance: all that no sync has covered is on the platter, or none of it.

        Args:
            keeps: Whether it is all there.
        """
        self.kill()
        changes, self._changes = self._changes, []
        for change in changes if keeps else ():
            self._apply(change)
        for file in self._durable.values():
            if keeps:
                file.sync()
            else:
                file.drop_pending()
        self._come_back()

    def _come_back(self) -> None:
        """What is read from now on is what is on the platter."""
        self._files = {name: self._durable[name] for name in sorted(self._durable)}
        self._folders = {folder for name in self._files for folder in folders_of(name)}

    def rot(self, file: str, offset: int) -> None:
        """Change a bit of a file on the platter.

        Raises:
            LookupError: There is no such byte on it.
        """
        found = self._files.get(file)
        if found is None or offset >= len(found.data) or not found.is_durable_at(offset):
            raise LookupError(f"byte {offset} of {file} is not on the disk")
        found.flip(offset, self._entropy.randrange(8))
        self.is_rotten = True

    def fork(self, entropy: random.Random) -> SimDisk:
        """Another disk with what is on this one, its faults apart; what happens to one of them
        does not happen to the other.
        """
        other = SimDisk(entropy)
        other._files, other._folders, other._durable, other._changes, other._spoiled = (
            copy.deepcopy((self._files, self._folders, self._durable, self._changes, self._spoiled))
        )
        return other

    # -- commands -------------------------------------------------------------------------

    def append(self, file: str, data: tuple[bytes, ...]) -> None:
        """Add to a file, in memory."""
        self._refuse_folder(file)
        added = b"".join(data)
        self._refuse_write(file, len(added))
        present = self._files.get(file)
        if present is None:
            self._make_folders(file)
            present = self._files[file] = SimFile()
            self._changes.append({file: present})
        span = present.append(added)
        if added and self._strikes(Fault.MISDIRECTED):
            self._misdirect(present, span.start, added)

    def replace(self, file: str, data: bytes) -> None:
        """Have a new file under an old name."""
        self._refuse_folder(file)
        self._refuse_write(file, len(data))
        self._make_folders(file)
        if self._strikes(Fault.SYNC_ERROR):
            raise self._spoil(file, f"{file}: input/output error")
        fresh = SimFile()
        fresh.append(data)
        is_lie = self._strikes(Fault.SYNC_LIE)
        self._files[file] = fresh
        self._changes.append({file: fresh})
        if not is_lie:
            fresh.sync()
            self._settle(lambda name: name == file)

    def sync(self, file: str) -> None:
        """Put a file and its name on the platter."""
        self._refuse_folder(file)
        found = self._found(file)
        if self._durable.get(file) is not found:
            self._refuse_spoiled(folder_of(file))
        if self._strikes(Fault.SYNC_ERROR):
            found.sync_failed(self._entropy)
            raise self._spoil(file, f"{file}: input/output error")
        if not self._strikes(Fault.SYNC_LIE):
            found.sync()
            self._settle(lambda name: name == file)

    def remove(self, file: str) -> None:
        """Take a name away."""
        if file in self._folders:
            raise CommandFailed(Failure.BROKEN, f"{file}: is a directory")
        if file in self._files:
            self._refuse_write(file, 0)
            del self._files[file]
            self._changes.append({file: None})

    def move(self, file: str, to: str) -> None:
        """Give another name to a file, or to all that is in a folder."""
        self._refuse_way(file)
        if file not in self._files and file not in self._folders:
            raise CommandFailed(Failure.MISSING, f"{file}: no such file or directory")
        if to in self._files or to in self._folders:
            raise CommandFailed(Failure.BROKEN, f"{to}: file exists")
        self._refuse_way(to)
        self._refuse_write(file, 0)
        self._make_folders(to)
        self._folders = {_renamed(name, file, to) for name in self._folders}
        moved = [name for name in self._files if is_within(name, file)]
        change: dict[str, SimFile | None] = dict.fromkeys(moved)
        for name in moved:
            change[_renamed(name, file, to)] = self._files[_renamed(name, file, to)] = (
                self._files.pop(name)
            )
        self._changes.append(change)
        self._spoiled_moved(file, to)
        if self._strikes(Fault.SYNC_ERROR):
            self._spoil(folder_of(to), f"{to}: input/output error")
            raise self._spoil(to, f"{to}: input/output error")
        if not self._strikes(Fault.SYNC_LIE):
            self._settle(lambda name: is_within(name, file) or is_within(name, to))

    def copy(self, file: str, to: str) -> None:
        """Another name for the same file, as a hard link is; its bytes get to the platter, too."""
        self._refuse_folder(file)
        found = self._found(file)
        self._refuse_folder(to)
        self._refuse_write(to, 0)
        self._make_folders(to)
        if self._strikes(Fault.SYNC_ERROR):
            raise self._spoil(to, f"{to}: input/output error")
        is_lie = self._strikes(Fault.SYNC_LIE)
        self._files[to] = found
        self._changes.append({to: found})
        if not is_lie:
            found.sync()
            self._settle(lambda name: name == to)

    def remove_folder(self, folder: str) -> None:
        """Take away all names in a folder, each by itself."""
        self._refuse_file(folder)
        gone = sorted(name for name in self._files if is_within(name, folder))
        if gone or folder in self._folders:
            self._refuse_write(folder, 0)
        for name in gone:
            del self._files[name]
            self._changes.append({name: None})
        self._folders = {name for name in self._folders if not is_within(name, folder)}
        if self._strikes(Fault.SYNC_ERROR):
            raise self._spoil(folder_of(folder), f"{folder}: input/output error")
        if not self._strikes(Fault.SYNC_LIE):
            self._settle(lambda name: is_within(name, folder))

    def sync_folder(self, folder: str) -> None:
        """Put the names in a folder on the platter."""
        self._refuse_file(folder)
        if folder and folder not in self._folders:
            raise CommandFailed(Failure.MISSING, f"{folder}: no such file or directory")
        if self._strikes(Fault.SYNC_ERROR):
            raise self._spoil(folder, f"{folder}: input/output error")
        if not self._strikes(Fault.SYNC_LIE):
            self._settle(lambda name: folder_of(name) == folder)

    def read(self, file: str, offset: int, bytes_max: int) -> bytes:
        """Read some bytes, if they can be read."""
        self._refuse_folder(file)
        found = self._found(file)
        if self._strikes(Fault.READ_ERROR):
            raise CommandFailed(Failure.BROKEN, f"{file}: input/output error")
        end = min(len(found.data), offset + bytes_max)
        if offset < end:
            at = offset
            if self._strikes(Fault.BIT_ROT) and found.is_durable_at(at := self._between(at, end)):
                found.flip(at, self._entropy.randrange(8))
            if self._strikes(Fault.STALE):
                at = self._between(offset, end)
                at = max(offset, at - at % SECTOR_BYTES)
                found.overwrite(at, self._old_bytes(min(end - at, SECTOR_BYTES)))
        return bytes(found.data[offset:end])

    def list_folder(self, folder: str, *, is_deep: bool = False) -> tuple[FileSize, ...]:
        """Look what is there."""
        self._refuse_file(folder)
        names = sorted(
            name
            for name in self._files
            if folder_of(name) == folder or (is_deep and is_within(name, folder))
        )
        return tuple(FileSize(name, len(self._files[name].data)) for name in names)

    # -- parts ----------------------------------------------------------------------------

    def _found(self, file: str) -> SimFile:
        found = self._files.get(file)
        if found is None:
            raise CommandFailed(Failure.MISSING, f"{file}: no such file or directory")
        return found

    def _refuse_way(self, name: str) -> None:
        """Fail where a file stands in the place of a folder."""
        for folder in folders_of(name):
            if folder in self._files:
                raise CommandFailed(Failure.BROKEN, f"{name}: not a directory")

    def _refuse_folder(self, file: str) -> None:
        self._refuse_way(file)
        if file in self._folders:
            raise CommandFailed(Failure.BROKEN, f"{file}: is a directory")

    def _refuse_file(self, folder: str) -> None:
        self._refuse_way(folder)
        if folder in self._files:
            raise CommandFailed(Failure.BROKEN, f"{folder}: not a directory")

    def _refuse_write(self, file: str, size: int) -> None:
        """Fail where there is no room for so many bytes, or nothing can be changed at all."""
        if self.is_read_only or self._strikes(Fault.READ_ONLY):
            raise CommandFailed(Failure.READ_ONLY, f"{file}: read-only file system")
        used = self.used_bytes if size and self.bytes_max is not None else 0
        is_full = size > 0 and self.bytes_max is not None and used + size > self.bytes_max
        if is_full or (size and self._strikes(Fault.FULL)):
            raise CommandFailed(Failure.FULL, f"{file}: no space left on device")

    def _make_folders(self, name: str) -> None:
        self._folders.update(folders_of(name))

    def _settle(self, is_meant: Callable[[str], bool]) -> None:
        """Put on the platter what happened to some names, and to others with them."""
        left = []
        for change in self._changes:
            if any(map(is_meant, change)):
                self._apply(change)
            else:
                left.append(change)
        self._changes = left

    def _apply(self, change: dict[str, SimFile | None]) -> None:
        for name, file in change.items():
            if file is None:
                self._durable.pop(name, None)
            else:
                self._durable[name] = file

    def _strikes(self, fault: Fault) -> bool:
        if self._armed.get(fault):
            self._armed[fault] -= 1
            return True
        rate = self.rates.get(fault, 0.0)
        return rate > 0 and coin(self._entropy, rate)

    def _between(self, start: int, end: int) -> int:
        return start + self._entropy.randrange(end - start)

    def _misdirect(self, file: SimFile, start: int, data: bytes) -> None:
        """The bytes lie over others, and their own place is as it was before."""
        victim = self._files[pick(self._entropy, sorted(self._files))]
        at = self._between(0, max(1, len(victim.data)))
        victim.overwrite(at - at % SECTOR_BYTES, data)
        file.overwrite(start, self._old_bytes(len(data)))

    def _old_bytes(self, count: int) -> bytes:
        """What lay there before: zeros, or a piece of some file that is there or was."""
        names = sorted(self._durable)
        if not names or coin(self._entropy, 0.5):
            return bytes(count)
        source = bytes(self._durable[pick(self._entropy, names)].data)
        at = self._between(0, max(1, len(source)))
        return source[at : at + count].ljust(count, b"\0")


def size_of(command: Command) -> int:
    """Bytes that a command writes."""
    match command:
        case Append():
            return sum(map(len, command.data))
        case Replace():
            return len(command.data)
    return 0


def _renamed(name: str, file: str, to: str) -> str:
    return to + name.removeprefix(file) if is_within(name, file) else name
