"""Segments that a log does not need any more: removed, or kept for a backup that is to have them.

A backup that is being made *pins* what was cut for it. And what goes between two backups of a chain
is its *history*: with it any moment between the two can be had back (APR-27). It waits outside of
the log for the next increment, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from whimbrel.core.persistence.commands import Command, FileSize, Move, Remove, Replace
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.core.persistence.format import DamageError, segment_file
from whimbrel.core.persistence.metadata import Segment

HISTORY_FOLDER: Final = "backups/.history"
HISTORY_FILE: Final = f"{HISTORY_FOLDER}/list"
"""Says what is in the folder, and since which backup that is all that went."""
HISTORY_KIND: Final = "history"
HISTORY_SEGMENTS_MAX: Final = 64
"""So many times the bytes of a segment; then the history is given up until the next backup."""

_encode = msgspec.msgpack.encode


class History(msgspec.Struct, frozen=True, array_like=True):
    """What went of a log since a backup was made; ``since`` is its place and id, empty for none."""

    log_id: bytes
    since: str = ""
    segments: tuple[Segment, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(one.end for one in self.segments)


NO_HISTORY: Final = History(b"")

_decode = msgspec.msgpack.Decoder(History).decode


def history_file(segment: Segment) -> str:
    """Where a segment lies that went."""
    name = segment_file(segment.stream, segment.number).rpartition("/")[2]
    return f"{HISTORY_FOLDER}/{name}"


class Retired:
    """What becomes of the segments that a log gives up.

    Attributes:
        history: What went since the latest backup, and is kept.
        is_over_bound: Whether a history was given up since this was last asked.
    """

    def __init__(self, log_id: bytes, segment_bytes: int, encryption: Encryption = PLAIN) -> None:
        """Of a log without a history, or whose history is to come (``await_found``)."""
        self._encryption = encryption
        self._bytes_max = HISTORY_SEGMENTS_MAX * segment_bytes
        self.history = History(log_id)
        self.is_over_bound = False
        self._is_known = True
        self._pinned: dict[Segment, None] = {}
        self._waiting: list[Segment] = []
        """Those that cannot go yet."""

    def pin(self, segments: Iterable[Segment]) -> None:
        """Keep these where they are until ``release``."""
        self._pinned |= dict.fromkeys(segments)

    def take(self, gone: Sequence[Segment]) -> list[Command]:
        """The log needs these no more, and its file does not name them; what is to be done."""
        self._waiting += gone
        ready = [one for one in self._waiting if self._may_go(one)]
        self._waiting = [one for one in self._waiting if one not in ready]
        return self._retire(ready)

    def _may_go(self, segment: Segment) -> bool:
        """What has a history is moved, pinned or not: a death must not tear it."""
        return self._is_known and (bool(self.history.since) or segment not in self._pinned)

    def where(self, segment: Segment) -> str:
        """The file of a segment that is pinned or in the history, once all works are done."""
        if segment in self.history.segments:
            return history_file(segment)
        return segment_file(segment.stream, segment.number)

    def release(self) -> list[Command]:
        """Nothing is pinned any more."""
        self._pinned.clear()
        return self.take(())

    def _retire(self, ready: Sequence[Segment]) -> list[Command]:
        files = [segment_file(one.stream, one.number) for one in ready]
        history = self.history
        if not history.since:
            return [Remove(file) for file in files]
        if not ready:
            return []
        longer = msgspec.structs.replace(history, segments=(*history.segments, *ready))
        if longer.size > self._bytes_max and not self._pinned:
            self.is_over_bound = True
            return [*self._set(History(history.log_id)), *(Remove(file) for file in files)]
        # The list comes first: of what it has and the folder has not it is known that it is gone.
        moves = [Move(file, history_file(one)) for file, one in zip(files, ready, strict=True)]
        return [*self._set(longer), *moves]

    def _set(self, history: History) -> list[Command]:
        """Have this history; of the former one only what it has stays."""
        kept = dict.fromkeys(history.segments)
        gone = [one for one in self.history.segments if one not in kept]
        self.history = history
        removals = [Remove(history_file(one)) for one in gone]
        data = self._encryption.encrypt_file(HISTORY_KIND, _encode(history))
        return [Replace(HISTORY_FILE, data), *removals]

    def begin_history(self, since: str, held: Iterable[Segment]) -> list[Command]:
        """A backup was made that has these segments: what goes besides, from now on, is kept."""
        known = dict.fromkeys(held)
        left = tuple(one for one in self.history.segments if one not in known)
        return self._set(History(self.history.log_id, since, left))

    def await_found(self) -> None:
        """A history lies there that has not been read: until ``take_found`` everything stays."""
        self._is_known = False

    def take_found(self, data: bytes, files: Sequence[FileSize]) -> list[Command]:
        """What lay there at the start. What is not of this log, or not whole, is no history.

        Raises:
            KeyProblemError: It can be read with none of the keys; everything stays.
        """
        try:
            found = _decode(self._encryption.decrypt_file(HISTORY_KIND, HISTORY_FILE, data))
        except (msgspec.MsgspecError, DamageError):
            found = NO_HISTORY
        self._is_known = True
        sizes = {one.file: one.size for one in files}
        is_whole = all(sizes.get(history_file(one)) == one.end for one in found.segments)
        if found.log_id == self.history.log_id and is_whole and not self.history.since:
            self.history = found
            named = {history_file(one) for one in found.segments}
        else:
            named = set()
        strays = [file for file in sizes if file not in named and file != HISTORY_FILE]
        return [*(Remove(file) for file in strays), *self.take(())]
