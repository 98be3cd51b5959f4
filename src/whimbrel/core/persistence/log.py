"""The link to the disk: changes become records, blocks and works; who waits for them is told.

It is to the disk what an ``Outbox`` is to a member (0017). One work is under way; what is changed
meanwhile leaves with the next one. A fragment that is persistent has a ``FragmentLog``, every
other one has None, and that is all a write looks at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import Namespace
from whimbrel.core.persistence.commands import (
    Answer,
    Append,
    Command,
    Remove,
    Replace,
    Sync,
    SyncFolder,
)
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.core.persistence.format import (
    BLOCK_BYTES_TARGET,
    BLOCK_HEAD_BYTES,
    LOG_FOLDER,
    WITH_CONTROL,
    RecordKind,
    Stream,
    encode_number,
    encode_record,
    name_record,
    prefix_of,
    segment_file,
    segment_of,
)
from whimbrel.core.persistence.fragment_log import FragmentLog
from whimbrel.core.persistence.images import BYTES_PER_WORK, ImageDone, Images
from whimbrel.core.persistence.loading import Held, Loading
from whimbrel.core.persistence.metadata import CLUSTER_FILE, OPEN, LogFiles
from whimbrel.core.persistence.retired import Retired
from whimbrel.core.persistence.segments import Owner, Segments
from whimbrel.core.persistence.waiting import Waiting
from whimbrel.core.replication.fragments import Fragment, Store
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.settings import PersistenceSettings
from whimbrel.core.stimuli import DiskFailed

UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that wait for the disk; beyond that writes are refused until it has caught up."""
GATHERED_BYTES_MAX: Final = 256 * 1024
"""Where nobody waits for the disk a work leaves when it has so many bytes, if not before."""
RETRY_US: Final = 100_000
"""Pause before a full disk is tried again."""
CLUSTER_PAUSE_US: Final = 100_000
"""The cluster file is replaced at most once in this time, unless somebody waits for it."""
FLUSHES_PER_INTERVAL: Final = 4
FLUSH_PAUSE_MAX_US: Final = 100_000
"""Beyond this larger works save nothing, and the cluster file would be old."""
COMPACT_US: Final = 1_000_000
"""After something was written, when it is looked whether the log has grown too large; ..."""
COMPACT_PAUSE_US: Final = 50_000
"""... and how often while it is being made smaller."""
_BESIDE: Final = 28
"""About what an entry takes in an image beside key and value."""

COUNTERS: Final = (
    *("disk_works", "disk_syncs", "disk_images", "disk_refusals"),
    *("disk_bytes_written", "disk_change_bytes"),
)
"""What is counted; see the help texts of the metrics page."""

FLUSH_TIMER: Final = "persistence.flush"
SYNC_TIMER: Final = "persistence.sync"
RETRY_TIMER: Final = "persistence.retry"
COMPACT_TIMER: Final = "persistence.compact"

Submit = Callable[
    [tuple[Command, ...], Callable[[tuple[Answer, ...]], None], Callable[[DiskFailed], None]], None
]

EncodeCluster = Callable[[LogFiles, bool], bytes]

_encode = msgspec.msgpack.encode


class Seal(NamedTuple):
    """A wish for segments that are closed and hold all of one moment.

    Attributes:
        taken: Told of them at that moment, to look at what else is of it. They stay until
            ``release``.
        then: Called when they are durable.
    """

    taken: Callable[[LogFiles], None]
    then: Callable[[], None]


class DiskLog:
    """Everything under way from this member to its disk.

    Attributes:
        parts: Records of the open block, heads and bodies; the hot path appends to it.
        size: Their bytes.
        waiting: Who waits for what is gathered, and for what is under way.
        is_marked: Whether fragments wait to have their state written.
        has_begun: Whether anything leaves yet; before that it is gathered.
        next_block: The number of the open block.
        numbers: Of structures.
        trouble: Why the disk takes nothing now, empty while it does.
        on_trouble: Told that ``trouble`` or ``is_behind`` has changed.
        on_broken: Told, once, that what is on the disk is not known any more (S5).
    """

    def __init__(
        self,
        ctx: Context,
        settings: PersistenceSettings,
        completed: Callable[[], list[PendingReply]],
        encode_cluster: EncodeCluster,
        submit: Submit,
        files: LogFiles,
        loading: Loading | None = None,
        strays: Iterable[str] = (),
        encryption: Encryption = PLAIN,
    ) -> None:
        """Begin an empty log, or go on with one that was loaded.

        Args:
            ctx: The member's.
            settings: When to write and to sync.
            completed: Where replies go that are decided.
            encode_cluster: Gives the cluster file that names these files, with news or without.
            submit: Has commands carried out; ``done`` or ``failed`` is told of each.
            files: The segments there are; an empty log has an id that no log here had before.
            loading: What read them.
            strays: Files of other segments that a death left there; they are removed, and their
                names are not used again.
            encryption: How segments are encrypted.
        """
        self._ctx, self._settings, self._encryption = ctx, settings, encryption
        self._encode_cluster, self._submit = encode_cluster, submit
        self.log_id = files.log_id
        self.segments = Segments(settings.segment_bytes)
        self.images = Images()
        self.next_block = 1
        self.numbers: dict[Namespace, int] = {}
        self._logs: dict[Fragment, FragmentLog] = {}
        self._loaded: dict[Fragment, Held] = {}
        """What the log has of fragments that it was loaded from and that nobody has held yet."""
        self._lost: dict[int, Held] = {}
        """The same, by prefix, of what it holds and nobody does."""
        self._dropping: dict[int, FragmentLog] = {}
        """By prefix, what is held no longer: until the next note these may be all the data."""
        self._named: dict[int, None] = {}
        """Structures whose names stand in the segment of the open block."""
        self.parts: list[bytes] = []
        self.size = self._flags = self._gathered = self._under_way_bytes = 0
        self._closed: list[tuple[int, int, bytes]] = []
        """Flags, wall clock and body of blocks that are cut and have not left."""
        self._marked: dict[Fragment, None] = {}
        self.is_marked = self.has_begun = False
        self.waiting = Waiting(completed)
        self._under_way: tuple[Command, ...] = ()
        self._unsynced: dict[str, None] = {}
        """Files with bytes that no sync covers."""
        self._unsynced_blocks = dict.fromkeys(Stream, 0)
        """Blocks behind the last sync."""
        self._seals: deque[Seal] = deque()
        self.retired = Retired(files.log_id, settings.segment_bytes, encryption)
        self._opening: list[Command] = []
        """Makes the file of the segment that the open block belongs into."""
        self._strays: list[Command] = []  # for files that are not needed here any more
        self._is_due = self._must_sync = self._must_note = self._must_shrink = False
        self._is_timed = self._was_behind = self._is_rewriting = False
        self._noted_us = ctx.now_us - CLUSTER_PAUSE_US
        self.trouble = ""
        self.on_trouble: Callable[[], None] = lambda: None
        self.on_broken: Callable[[str], None] = lambda _reason: None
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._start(files, loading, strays)

    def _start(self, files: LogFiles, loading: Loading | None, strays: Iterable[str]) -> None:
        self._avoid(strays)
        if loading is not None:
            self._go_on_from(loading, files)
        newest = self.segments.of[Stream.IMAGES][-1:]
        if newest and newest[0].key_id != self._encryption.current_id:
            # It stays, needed or not, as long as it is the newest one.
            self._begin(Stream.IMAGES, self.images.next_block, self._opening)
        self._open_segment()

    def _avoid(self, strays: Iterable[str]) -> None:
        """Take no name that lies there, and have what has it removed."""
        for file in strays:
            found = segment_of(file)
            if found is not None:
                self.segments.avoid(*found)
            self._strays.append(Remove(file))
        self._must_shrink = bool(self._strays)

    def _go_on_from(self, loading: Loading, files: LogFiles) -> None:
        """What was loaded stays where it is; what the log holds besides is dropped."""
        self.next_block = loading.next_block[Stream.CHANGES]
        self.images.next_block = loading.next_block[Stream.IMAGES]
        self.images.last_image = loading.last_image
        self.numbers = {namespace: number for number, namespace in loading.names.items()}
        ends = {(one.stream, one.number): one for one in loading.torn}
        for stream in Stream:
            for segment in files.of(stream):
                known = ends.get((stream, segment.number), segment)
                images = loading.images if stream is Stream.IMAGES else {}
                self.segments.restore(known, known.end, images.get(segment.number, {}))
        for torn in loading.torn:
            if torn.end:  # its last bytes may be in the system's memory alone
                self._unsynced[segment_file(torn.stream, torn.number)] = None
        left = dict(loading.held)
        for fragment in loading.fragments:
            prefix = prefix_of(self.numbers[fragment.namespace], fragment.partition_id)
            self._loaded[fragment] = left.pop(prefix)
        self._lost = left

    # -- fragments ------------------------------------------------------------------------

    def hold(self, fragment: Fragment, fsync: str) -> None:
        """A fragment is held from now on: all that is in it, and each change, belongs on disk."""
        log = self._follow(fragment, fsync)
        before = self._dropping.pop(log.prefix, None)
        if before is not None:
            self._dropped(before)
        image = self.images.adopt(fragment)
        loaded = self._loaded.pop(fragment, None)
        if loaded is not None:
            log.floor, log.image = loaded.floor, loaded.image
            self.mark(fragment)
        elif image or not (any(fragment.counters()) or len(fragment.store)):
            # Counted and without items it may know more than nothing; without backups none counts.
            self.cut()
            log.floor, log.image = self.next_block, image
            self._marked.pop(fragment, None)
            self._control(log, RecordKind.HELD, image, _encode(log.state()))
        else:
            self.images.want(fragment, log)
        self._go_soon()

    def forget_unheld(self) -> None:
        """All that was loaded and is held has been told: the rest is held no longer."""
        for fragment, held in self._loaded.items():
            prefix = prefix_of(self.numbers[fragment.namespace], fragment.partition_id)
            self._lost[prefix] = held
        self._loaded.clear()
        begun = {log.prefix for log in self._logs.values() if log.floor}
        for prefix, held in self._lost.items():
            self.segments.drop_image(held.image)
            if prefix not in begun:  # a HELD of another fragment has said so already
                self._add(encode_record(RecordKind.DROPPED, prefix, 0))
        self._lost.clear()

    def _follow(self, fragment: Fragment, fsync: str) -> FragmentLog:
        number = self._number_of(fragment.namespace)
        log = FragmentLog(self, fragment, number, waits=fsync == "always")
        fragment.log = self._logs[fragment] = log
        self._is_timed = self._is_timed or fsync != "off"
        return log

    def _number_of(self, namespace: Namespace) -> int:
        """Above all that the log has: with segments the names of some structures go."""
        number = self.numbers.get(namespace)
        if number is None:
            number = self.numbers[namespace] = 1 + max(self.numbers.values(), default=0)
        return number

    def drop(self, fragment: Fragment) -> None:
        """A fragment is held no longer; the log says so behind the note of why."""
        log = self._logs.pop(fragment, None)
        if log is None:
            return
        fragment.log = None
        self._marked.pop(fragment, None)
        self.is_marked = bool(self._marked)
        self.segments.drop_image(self.images.give_up(fragment))
        if log.floor:
            self._dropping[log.prefix] = log
        else:  # the disk never had all of it
            self._dropped(log)
        self.note_cluster()

    def _dropped(self, log: FragmentLog) -> None:
        self._control(log, RecordKind.DROPPED, 0)
        self.segments.drop_image(log.image)

    def stage(self, fragment: Fragment, chunk: bytes, *, is_last: bool) -> None:
        """A fragment that may be held later has got this chunk, which goes to the disk at once."""
        number = self._number_of(fragment.namespace)
        self.images.stage(fragment, number, chunk, is_last=is_last)
        self._go_soon()

    def unstage(self, fragment: Fragment) -> None:
        """That fragment will not be held."""
        self.segments.drop_image(self.images.give_up(fragment))

    def mark(self, fragment: Fragment) -> None:
        """Write the fragment's state before its next change, or with the next work."""
        self._marked[fragment] = None
        self.is_marked = True
        self._go_soon()

    def settle(self, fragment: Fragment) -> None:
        """Write the state of this fragment now, if it is to be written."""
        if fragment in self._marked:
            self._write_state(fragment)

    def _write_state(self, fragment: Fragment) -> None:
        self._marked.pop(fragment, None)
        self.is_marked = bool(self._marked)
        log = self._logs[fragment]
        self._control(log, RecordKind.STATE, 0, _encode(log.state()))

    @property
    def unfinished(self) -> int:
        """Fragments that are held and of which the disk does not have everything yet."""
        return sum(not log.floor for log in self._logs.values()) if self.images.is_busy else 0

    # -- records --------------------------------------------------------------------------

    def _control(self, log: FragmentLog, kind: RecordKind, number: int, body: bytes = b"") -> None:
        if log.structure not in self._named:
            self._name(log.structure, log.namespace)
        self._add(encode_record(kind, log.prefix, number, body))

    def _name(self, structure: int, namespace: Namespace) -> None:
        self._named[structure] = None
        self._add(name_record(structure, namespace))

    def _add(self, record: bytes) -> None:
        if self.size and self.size + len(record) > BLOCK_BYTES_TARGET:
            self.cut()
        self.parts.append(record)
        self.size += len(record)
        self._flags = WITH_CONTROL

    def cut(self) -> None:
        """Close the open block, if there is anything in it."""
        if self.size:
            body = b"".join(self.parts)
            self._closed.append((self._flags, self._ctx.wall_ms, body))
            self._gathered += len(body) + BLOCK_HEAD_BYTES
            self.next_block += 1
            self.parts, self.size, self._flags = [], 0, 0

    # -- who waits ------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the disk that no more may be added."""
        return self.waiting_bytes > UNWRITTEN_BYTES_MAX

    @property
    def waiting_bytes(self) -> int:
        """What is gathered and under way."""
        return self._under_way_bytes + self._gathered + self.images.staged_bytes

    def note_cluster(self) -> None:
        """What the cluster file says has changed; it is replaced soon."""
        self._must_note = True
        self._go_soon()

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call this once all that has happened so far is on the disk; at once when it is."""
        is_gathered = bool(self._has_news or self._unsynced or self._must_note or self._opening)
        self._must_sync = self._must_sync or is_gathered
        self.waiting.when_durable(then, is_gathered=is_gathered)

    def hold_back(self, then: Callable[[bool], None]) -> bool:
        """Keep an acknowledgement until all that it covers is durable; False: it may go.

        ``then`` is told whether the disk took it all.
        """
        return not self.trouble and self.waiting.hold_back(then, must_wait=self.is_behind)

    # -- leaving --------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        return bool(self.size or self._closed or self._marked or self.images.is_busy)

    def begin(self) -> None:
        """Let what is gathered leave, and say what the cluster is."""
        self.has_begun = True
        self._is_rewriting = self.bytes_of_other_keys > 0
        if self._is_rewriting:
            self._ctx.arm(COMPACT_TIMER, COMPACT_US)
        self._encode_cluster(self.files(), True)  # it says this until data of later rows are there
        self.note_cluster()

    def flush(self) -> None:
        """Once a turn: let a work leave, if none is under way and it is time for one."""
        if self.is_behind is not self._was_behind:
            self._was_behind = not self._was_behind
            self.on_trouble()
        if self.waiting.under_way or not self.has_begun:
            return
        if (
            self.waiting.is_waited_for
            or self._must_sync
            or self._is_due
            or self._seals
            or self._gathered >= GATHERED_BYTES_MAX
        ):
            self._leave()
        elif self.size:
            self._go_soon()

    def _go_soon(self) -> None:
        """Let a work leave before long, whoever waits for it."""
        if not self._ctx.is_armed(FLUSH_TIMER):
            pause_us = self._settings.fsync_interval_us // FLUSHES_PER_INTERVAL
            self._ctx.arm(FLUSH_TIMER, max(1, min(pause_us, FLUSH_PAUSE_MAX_US)))

    def on_timer(self, key: str) -> None:
        """One of our timers fired; what follows leaves with the turn."""
        if key == FLUSH_TIMER:
            self._is_due = True
        elif key == SYNC_TIMER:
            self._must_sync = self._must_sync or bool(self._unsynced)
        elif key == COMPACT_TIMER:
            self._compact()
        elif key == RETRY_TIMER:
            self._send(self._under_way)

    def try_again(self) -> None:
        """Do not wait with what the disk has refused."""
        if self._ctx.is_armed(RETRY_TIMER):
            self._ctx.disarm(RETRY_TIMER)
            self._send(self._under_way)

    def _leave(self) -> None:
        """Put all that is gathered into one work."""
        commands = self._open()
        must_sync = self._must_sync or self.waiting.is_waited_for or self._must_shrink
        must_sync = must_sync or bool(self._seals)
        self._put_images(commands)
        self._put_changes(commands)
        if must_sync:
            self._sync(commands)
        if self._must_shrink:
            self._shrink(commands)
        elif self._must_note and (must_sync or self._may_note()):
            self._note(commands)
        if self._seals and not self.unfinished:
            self._carry_out_seal(commands)
        self._is_due = self._must_sync = self._must_shrink = False
        if commands:
            self.waiting.leave(self._ctx.now_us)
            self._under_way_bytes = _size_of(commands)
            self._send(tuple(commands))
        if self.segments.is_full(Stream.CHANGES):
            self._open_segment()
        if self._must_note or self.images.is_busy:
            self._go_soon()
        if self._unsynced and self._is_timed and not self._ctx.is_armed(SYNC_TIMER):
            self._ctx.arm(SYNC_TIMER, self._settings.fsync_interval_us)

    def _open(self) -> list[Command]:
        """Begins a work: with a new segment of changes, if what is gathered belongs into one."""
        commands, self._opening = self._opening, []
        if commands:
            self._name_segments(commands)
        return commands

    def _send(self, commands: tuple[Command, ...]) -> None:
        self._under_way = commands
        self.counters["disk_works"] += 1
        self._submit(commands, lambda _answers: self._done(), self._failed)

    def _put_changes(self, commands: list[Command]) -> None:
        """All that is gathered, in blocks, under their numbers."""
        for fragment in list(self._marked):
            self._write_state(fragment)
        self.cut()
        if not self._closed:
            return
        unsynced = self._unsynced_blocks[Stream.CHANGES]
        number = self.next_block - len(self._closed)
        segment = self.segments.of[Stream.CHANGES][-1]
        blocks: list[bytes] = []
        for flags, wall_ms, body in self._closed:
            blocks += segment.encode(number, wall_ms, flags, body, unsynced)
            number += 1
            unsynced += 1
        self._unsynced_blocks[Stream.CHANGES] = unsynced
        self.counters["disk_change_bytes"] += self._gathered
        self._closed, self._gathered = [], 0
        self._append(Stream.CHANGES, blocks, commands)

    def _append(self, stream: Stream, blocks: Iterable[bytes], commands: list[Command]) -> int:
        segment = self.segments.of[stream][-1]
        file = segment_file(stream, segment.number)
        commands.append(Append(file, tuple(blocks)))
        size = sum(map(len, blocks))
        segment.size += size
        self.counters["disk_bytes_written"] += size
        self._unsynced[file] = None
        if not self._ctx.is_armed(COMPACT_TIMER):
            self._ctx.arm(COMPACT_TIMER, COMPACT_US)
        return size

    def _sync(self, commands: list[Command]) -> None:
        commands += [Sync(file) for file in self._unsynced]
        self.counters["disk_syncs"] += len(self._unsynced)
        self._unsynced.clear()
        self._unsynced_blocks = dict.fromkeys(Stream, 0)

    # -- segments and the cluster file ------------------------------------------------------

    def _open_segment(self, commands: list[Command] | None = None) -> None:
        """What is gathered from now on goes into a new segment of changes.

        Its file is made by these commands, or with the next work.
        """
        opening = self._opening if commands is None else commands
        self._begin(Stream.CHANGES, self.next_block, opening)
        self._named.clear()
        for log in self._logs.values():
            if log.structure not in self._named:
                self._name(log.structure, log.namespace)

    def _begin(self, stream: Stream, first_block: int, commands: list[Command]) -> None:
        """Make the file of a segment; nothing may be put into it before the cluster file has it.

        What is written is synced first: the cluster file will say that all of it counts.
        """
        self._sync(commands)
        segment = self.segments.begin(stream, first_block)
        header = segment.open(self.log_id, self._ctx.members.cluster_id, self._encryption)
        file = segment_file(stream, segment.number)
        commands += (Append(file, (header,)), Sync(file))

    def _may_note(self) -> bool:
        return self._ctx.now_us - self._noted_us >= CLUSTER_PAUSE_US

    def _note(self, commands: list[Command]) -> None:
        """Replace the cluster file, behind all that is written.

        Who has a row has the data: a row that came with a copy must not outlive it, and what went
        with a row is dropped with the next work.
        """
        self._sync(commands)
        self._must_note = False
        self._noted_us = self._ctx.now_us
        self._name_segments(commands, with_news=True)
        for log in self._dropping.values():
            self._dropped(log)
        self._dropping.clear()

    def _name_segments(self, commands: list[Command], *, with_news: bool = False) -> None:
        """Have the cluster file name all segments.

        Of the cluster it says what it said before, as data of this work may be behind it.
        """
        commands.append(Replace(CLUSTER_FILE, self._encode_cluster(self.files(), with_news)))

    def files(self) -> LogFiles:
        """The segments as the cluster file names them."""
        found = [one.entry() for stream in Stream for one in self.segments.of[stream]]
        return LogFiles(self.log_id, tuple(found))

    # -- seals ------------------------------------------------------------------------------

    def seal(self, seal: Seal) -> None:
        """Close all segments, behind everything that has happened, as soon as the disk has it.

        Fragments that are held and not on the disk yet come first.
        """
        self._seals.append(seal)

    def _carry_out_seal(self, commands: list[Command]) -> None:
        current = self.segments.current(Stream.CHANGES)
        if current is not None and current.has_blocks:
            self._open_segment(commands)
        self.segments.close(Stream.IMAGES)
        self._note(commands)
        sealed = [one for one in self.files().segments if one.end != OPEN]
        self.retired.pin(sealed)
        for taken, then in self._seals:
            taken(LogFiles(self.log_id, tuple(sealed)))
            self.waiting.when_durable(then, is_gathered=True)
        self._seals.clear()

    def release(self) -> None:
        """What was sealed may go when nobody needs it here."""
        self.retire(self.retired.release())

    def retire(self, commands: Iterable[Command]) -> None:
        """Have this done with files that are not needed here any more."""
        self._strays += commands
        if self._strays:
            self._must_shrink = True
            self._go_soon()

    # -- images and compaction --------------------------------------------------------------

    def _put_images(self, commands: list[Command]) -> None:
        """Write pieces of images; those that are whole are durable before changes name them."""
        images, size = self.images, 0
        while piece := images.next_piece(self.next_block, BYTES_PER_WORK - size):
            if self.segments.is_full(Stream.IMAGES):
                self._begin(Stream.IMAGES, images.next_block, commands)
                self._name_segments(commands)
                images.begin_segment()
            if piece.is_first and piece.fragment in self._logs:
                self._write_state(piece.fragment)
            unsynced = self._unsynced_blocks[Stream.IMAGES]
            segment = self.segments.of[Stream.IMAGES][-1]
            block = images.encode(piece, segment, self._ctx.wall_ms, unsynced)
            self._unsynced_blocks[Stream.IMAGES] = unsynced + 1
            written = self._append(Stream.IMAGES, block, commands)
            self.segments.add_chunk(piece.image, written)
            size += written
        done, is_closed = images.take_done()
        if is_closed:
            self._sync(commands)
        for image in done:
            self._imaged(image)

    def _imaged(self, done: ImageDone) -> None:
        """An image of a fragment that is held is whole: it counts from here on."""
        log = done.log
        self.counters["disk_images"] += 1
        self._control(log, RecordKind.IMAGED, done.image, encode_number(done.since))
        self.segments.drop_image(log.image)
        log.floor, log.image = done.since, done.image

    def _floor(self) -> int:
        """The first block of changes that anybody needs."""
        logs = (*self._logs.values(), *self._dropping.values())
        floors = [log.floor for log in logs if log.floor]
        return min(floors, default=self.next_block)

    def _compact(self) -> None:
        """See whether segments are not needed any more, or fragments are worth an image."""
        self._must_shrink = self._must_shrink or self.segments.has_unneeded(self._floor())
        if not self.images.is_busy:
            self._choose()
        if self.images.is_busy or self._must_shrink:
            self._ctx.arm(COMPACT_TIMER, COMPACT_PAUSE_US)
            self._go_soon()
        elif self._is_rewriting:
            self._look_for_other_keys()

    def _shrink(self, commands: list[Command]) -> None:
        """Remove the segments that nobody needs.

        What made them needless is durable with the sync before this; the cluster file names them no
        more when they go.
        """
        gone = self.segments.take_unneeded(self._floor())
        self._note(commands)
        commands += self.retired.take([one.entry() for one in gone])
        commands += (*self._strays, SyncFolder(LOG_FOLDER))
        self._strays = []
        if self.retired.is_over_bound:
            self.retired.is_over_bound = False
            self._ctx.note("backup_history_ended", "warning")

    def _choose(self) -> None:
        """Have images made of what holds the log back, if it is larger than it may be."""
        logs = list(self._logs.values())
        owners = [Owner(log.floor, log.image, _cost_of(log.fragment.store)) for log in logs]
        chosen: list[int] = []
        if self._is_rewriting:
            chosen = self.segments.owners_not_under(self._encryption.current_id, owners)
        if not chosen and self.segments.is_over(sum(owner.cost for owner in owners)):
            chosen = self.segments.choose(owners)
        for position in chosen:
            self.images.want(logs[position].fragment, logs[position])

    @property
    def bytes_of_other_keys(self) -> int:
        """Bytes of the log that are not under the key that is written with."""
        return self.segments.bytes_not_under(self._encryption.current_id)

    def _look_for_other_keys(self) -> None:
        """Whether all is under the current key by now; else what needs the rest is on its way."""
        self._is_rewriting = self.bytes_of_other_keys > 0
        if self._is_rewriting:
            self._ctx.arm(COMPACT_TIMER, COMPACT_US)
        else:
            self._ctx.note("log_rewritten", key=self._encryption.current_id.hex() or "none")

    # -- ends ---------------------------------------------------------------------------------

    def close(self, *, has_left: bool) -> None:
        """The member ends: put down all that is gathered, after what is under way.

        Nobody is told any more. One that ``has_left`` keeps nothing but the cluster file, in which
        that stands.
        """
        if has_left:
            gone = self.segments.named()
            self.segments = Segments(self._settings.segment_bytes)
            self._unsynced.clear()
            commands: list[Command] = []
            self._note(commands)
            commands += [Remove(segment_file(*one)) for one in gone]
        else:
            commands = self._open()
            while self.images.is_busy:
                self._put_images(commands)
            self._put_changes(commands)
            self._note(commands)
        self._submit(tuple(commands), lambda _answers: None, lambda _failed: None)

    # -- what the disk says -------------------------------------------------------------------

    def _done(self) -> None:
        """The work under way is carried out."""
        self._under_way, self._under_way_bytes = (), 0
        self.waiting.done()
        if self.trouble:
            self._say("")

    def _failed(self, failed: DiskFailed) -> None:
        """A command of the work under way failed."""
        failure = failed.failure
        if not failure.may_pass:
            self.on_broken(f"the disk failed: {failure.value} ({failed.detail})")
            return
        self._under_way = self._under_way[failed.position :]
        self._ctx.arm(RETRY_TIMER, RETRY_US)
        self.counters["disk_refusals"] += 1
        self._say(failure.value)
        self.waiting.refuse(failure.value)

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self.on_trouble()


def _cost_of(store: Store) -> int:
    """About how many bytes an image has."""
    return store.bytes_used + _BESIDE * len(store)


def _size_of(commands: list[Command]) -> int:
    """Bytes that commands bring along."""
    return sum(sum(map(len, command.data)) for command in commands if isinstance(command, Append))
