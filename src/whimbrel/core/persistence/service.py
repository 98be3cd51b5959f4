"""The persistence room: what this member's files say, their log, and getting back what is in them.

It reads the cluster file before anything else happens, keeps it up to date while the member is in a
cluster, and owns the log; ``Holdings`` tells it of fragments. What becomes of a cluster whose
members all begin with files is decided elsewhere (``core/recovery``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.effects import DiskWork
from whimbrel.core.ids import Namespace, PartitionId, ReplicaIndex
from whimbrel.core.messages import DiskTold
from whimbrel.core.model import MemberList
from whimbrel.core.persistence.commands import (
    Answer,
    Command,
    FileSize,
    List,
    Move,
    Read,
    Remove,
    Replace,
    SyncFolder,
)
from whimbrel.core.persistence.encryption import PLAIN, Encryption, KeyProblemError
from whimbrel.core.persistence.format import (
    LOG_FOLDER,
    LOG_ID_BYTES,
    DamageError,
    FragmentState,
    segment_file,
    segment_of,
)
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.log import DiskLog
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    ClusterFile,
    LogFiles,
    decode_cluster_file,
    encode_cluster_file,
)
from whimbrel.core.persistence.retired import HISTORY_FILE, HISTORY_FOLDER
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.outbox import PendingReply
from whimbrel.core.stimuli import DiskDone, DiskFailed

ASIDE_FOLDER: Final = "aside"
ASIDE_MARK: Final = "aside.mark"
"""Names the folder that files are being moved to, while they are."""

Done = Callable[[tuple[Answer, ...]], None]
Failed = Callable[[DiskFailed], None]
Describe = Callable[[LogFiles, bool], ClusterFile]
"""Gives the cluster file for these segments; told whether the member has left."""


class Persistence:
    """The files of one member. Implements ``ports.FilesHost`` and ``holdings.FragmentDisk``.

    Attributes:
        encryption: The keys with which files are read and written.
        is_enabled: Whether this member keeps files at all.
        found: What its files were of when it began; None when there were none, when it had left
            with nothing behind, and once they are set aside.
        left: The member list with which it had left so; None unless it had.
        bytes_total: What the present load reads, 0 before it is known.
        bytes_loaded: How much of that is read.
        log: The log that is written to, None before the cluster runs.
        stop: Ends the member, for a reason in words; the files stay as they are.
        describe: Gives the cluster file; set by who knows all rooms.
        on_loaded, on_damaged: Set by the recovery room.
    """

    def __init__(self, ctx: Context, plane: DataPlane, encryption: Encryption = PLAIN) -> None:
        self._ctx = ctx
        self.encryption = encryption
        self._plane = plane
        self._settings = ctx.settings.persistence
        self.is_enabled = self._settings.enabled
        self.found: ClusterFile | None = None
        self.left: MemberList | None = None
        self.bytes_total = self.bytes_loaded = 0
        self.log: DiskLog | None = None
        self.stop: Callable[[str], None] = lambda _reason: None
        self.describe: Describe | None = None
        self.on_loaded: Callable[[], None] = lambda: None
        self.on_damaged: Callable[[str], None] = lambda _problem: None
        self._said: ClusterFile | None = None
        """What ``cluster.meta`` says, but for the segments that it names."""
        self._number = 0
        self._asked: dict[int, tuple[Done, Failed]] = {}
        """Works that are not answered."""
        self._loading: Loading | None = None
        self._lying: tuple[str, ...] = ()
        """Segments that lay there when it was last looked."""
        self._history: tuple[FileSize, ...] = ()
        """What lay there then of segments that are kept for a backup."""
        self._aside: list[Callable[[], None]] = []
        """Who waits until the files are set aside."""
        self._is_broken = self._is_closed = self._has_left = False

    # -- works ----------------------------------------------------------------------------

    def submit(self, commands: tuple[Command, ...], done: Done, failed: Failed) -> None:
        """Have commands carried out behind those before; one of the two is told once."""
        self._number += 1
        self._asked[self._number] = (done, failed)
        self._ctx.emit(DiskWork(self._number, commands))

    def on_disk(self, stimulus: DiskDone | DiskFailed) -> None:
        """The disk has answered."""
        done, failed = self._asked.pop(stimulus.number)
        if isinstance(stimulus, DiskDone):
            done(stimulus.answers)
        else:
            failed(stimulus)

    def on_timer(self, key: str) -> None:
        """A timer whose key starts with ``persistence.`` fired."""
        if self.log is not None:
            self.log.on_timer(key)

    def _give_up(self, failed: DiskFailed) -> None:
        """What cannot be read or moved cannot be begun with."""
        self._broken(f"{failed.failure.value} ({failed.detail})")

    def _broken(self, reason: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._ctx.note("disk_failed", "error", reason=reason)
            self.stop(reason)

    # -- the beginning --------------------------------------------------------------------

    def begin(self, then: Callable[[], None]) -> None:
        """Read what the files are of; ``then`` is called when that is known, and they are ours."""
        if not self.is_enabled:
            then()
            return

        def listed(answers: tuple[Answer, ...]) -> None:
            top, logs, history = answers
            self._lying, self._history = _segments(logs), _sizes(history)
            sizes = {one.file: one.size for one in _sizes(top)}
            if ASIDE_MARK in sizes:
                self._go_on_aside(sizes[ASIDE_MARK], top, logs, then)
            elif CLUSTER_FILE in sizes:
                read = Read(CLUSTER_FILE, 0, sizes[CLUSTER_FILE])
                self.submit((read,), lambda got: self._take_found(got, then), self._give_up)
            elif any(one.size > self.encryption.header_bytes for one in _sizes(logs)):
                # A segment that is begun has no blocks before cluster.meta names it.
                self._refuse(DamageError(CLUSTER_FILE, 0, "it is gone, and there is a log"), then)
            else:
                then()

        looks = (List(""), List(LOG_FOLDER), List(HISTORY_FOLDER))
        self.submit(looks, listed, self._give_up)

    def _go_on_aside(self, size: int, top: Answer, logs: Answer, then: Callable[[], None]) -> None:
        """The member died while it set its files aside: what still lies here follows."""
        self._aside.append(then)

        def read(answers: tuple[Answer, ...]) -> None:
            folder = answers[0].decode("ascii", "replace") if isinstance(answers[0], bytes) else ""
            if folder.startswith(f"{ASIDE_FOLDER}/"):
                self._move_aside(folder, top, logs)
            else:
                self._broken(f"{ASIDE_MARK} names no folder in {ASIDE_FOLDER}/; look and remove it")

        self.submit((Read(ASIDE_MARK, 0, size),), read, self._give_up)

    def _take_found(self, answers: tuple[Answer, ...], then: Callable[[], None]) -> None:
        data = answers[0] if isinstance(answers[0], bytes) else b""
        try:
            data = self.encryption.decrypt_file(CLUSTER_FILE, CLUSTER_FILE, data)
            found = decode_cluster_file(data)
            for one in found.log.segments:
                file = segment_file(one.stream, one.number)
                self.encryption.check_readable(file, one.key_id)
        except KeyProblemError as problem:  # whatever the policy: these files are sound
            self._broken(f"{problem}; nothing was changed")
            return
        except DamageError as problem:
            self._refuse(problem, then)
            return
        settings, ours = self._ctx.settings, self._ctx.id
        if found.cluster_name != settings.cluster_name:
            what = f"cluster {found.cluster_name!r}, not of {settings.cluster_name!r}"
        elif found.partition_count != settings.partition_count:
            counts = f"{found.partition_count} partitions, not {settings.partition_count}"
            what = f"a cluster of {counts}"
        elif found.member != ours:
            what = f"member {found.member}; member.json says {ours}"
        else:
            if found.has_left:
                self.left = found.members
            elif found.members.members:
                self.found = found
            then()
            return
        self._broken(f"the files in the data directory ({CLUSTER_FILE}) are of {what}")

    def _refuse(self, problem: DamageError, then: Callable[[], None]) -> None:
        """What the files are of cannot be told: end, or go on without them where policy says so."""
        if self._settings.recovery_policy == "FULL_RECOVERY_ONLY":
            self._broken(str(problem))
        else:
            self._ctx.note("files_damaged", "error", reason=str(problem))
            self.set_aside(then)

    def follow(self) -> None:
        """See ``ports.FilesHost``: what sweeps remove and what primaries send are changes, too."""
        if not self.is_enabled or self.log is not None:
            return
        log = self.log = self._make_log()
        if self._history:
            log.retired.await_found()
        self._loading = None
        log.on_broken = self._broken
        log.on_trouble = self._disk_changed
        self._plane.holdings.disk = self
        for partition in self._plane.partitions:
            for fragment in partition.fragments.values():
                self._plane.holdings.follow(fragment)
        log.forget_unheld()

    def began(self) -> None:
        """See ``ports.FilesHost``."""
        self.follow()
        if self.log is not None:
            self.log.begin()
            self._find_history(self.log)

    def _find_history(self, log: DiskLog) -> None:
        """Look what is kept for a backup; until that is known nothing goes."""
        found, self._history = self._history, ()
        sizes = {one.file: one.size for one in found}
        if HISTORY_FILE in sizes:
            read = Read(HISTORY_FILE, 0, sizes[HISTORY_FILE])

            def taken(answers: tuple[Answer, ...]) -> None:
                data = answers[0] if isinstance(answers[0], bytes) else b""
                try:
                    log.retire(log.retired.take_found(data, found))
                except KeyProblemError as problem:
                    self._broken(str(problem))

            self.submit((read,), taken, self._give_up)
        elif found:
            log.retire(log.retired.take_found(b"", found))

    def _make_log(self) -> DiskLog:
        """The log that was loaded goes on; else one begins."""
        loading, found = self._loading, self.found
        if loading is None or found is None or not loading.is_done:
            loading = None
            name = f"{self._ctx.id}@{self._ctx.started_us}/{self._ctx.wall_ms}/{self._number}"
            files = LogFiles(blake2b(name.encode(), digest_size=LOG_ID_BYTES).digest(), ())
        else:
            files = found.log
        named = {segment_file(one.stream, one.number) for one in files.segments}
        return DiskLog(
            self._ctx,
            self._settings,
            self._completed,
            self._encode_cluster,
            self.submit,
            files,
            loading,
            [file for file in self._lying if file not in named],
            self.encryption,
        )

    def _completed(self) -> list[PendingReply]:
        return self._plane.outgoing.completed

    def _encode_cluster(self, files: LogFiles, with_news: bool) -> bytes:
        if self.describe is None:
            raise TypeError("nobody describes the cluster")
        if with_news or self._said is None:
            self._said = self.describe(files, self._has_left)
        data = encode_cluster_file(msgspec.structs.replace(self._said, log=files))
        return self.encryption.encrypt_file(CLUSTER_FILE, data)

    # -- fragments ------------------------------------------------------------------------

    def hold(self, fragment: Fragment) -> None:
        """See ``FragmentDisk``; of structures that are not persistent nothing is written."""
        settings, namespace = self._ctx.settings, fragment.namespace
        if self.log is not None and settings.is_persistent(namespace):
            self.log.hold(fragment, settings.fsync_of(namespace))

    def drop(self, fragment: Fragment) -> None:
        """See ``FragmentDisk``."""
        if self.log is not None:
            self.log.drop(fragment)

    def stage(self, fragment: Fragment, chunk: bytes, *, is_last: bool) -> None:
        """See ``FragmentDisk``."""
        if self.log is not None and self._ctx.settings.is_persistent(fragment.namespace):
            self.log.stage(fragment, chunk, is_last=is_last)

    def unstage(self, fragment: Fragment) -> None:
        """See ``FragmentDisk``."""
        if self.log is not None:
            self.log.unstage(fragment)

    def when_durable(self, then: Callable[[], None]) -> None:
        """See ``FragmentDisk``."""
        if self.log is None:
            then()
        else:
            self.log.when_durable(then)

    def when_kept(self, then: Callable[[], None]) -> None:
        """As ``when_durable``, for what the next start has to know.

        Once the files are closed because all leave nothing more of that is kept.
        """
        if not self._is_closed:
            self.when_durable(then)

    def try_again(self) -> None:
        """See ``FragmentDisk``."""
        if self.log is not None:
            self.log.try_again()

    def expire(self, before_us: int) -> int:
        """See ``FragmentDisk``."""
        return 0 if self.log is None else self.log.waiting.expire(before_us)

    @property
    def unfinished(self) -> int:
        """See ``FragmentDisk``."""
        return 0 if self.log is None else self.log.unfinished

    def note_cluster(self) -> None:
        """What the cluster file says has changed."""
        if self.log is not None:
            self.log.note_cluster()

    def _disk_changed(self) -> None:
        """The disk takes nothing any more, or does again; or too much waits for it."""
        if self.log is None:
            return
        trouble = self.log.trouble
        behind = "too much waits for the disk" if self.log.is_behind else ""
        self._plane.outgoing.disk_changed(trouble or behind)
        if self._plane.incoming.is_disk_full is bool(trouble):
            return
        self._plane.incoming.disk_changed(is_full=bool(trouble))
        self._ctx.broadcast(DiskTold(bool(trouble)))
        level = "error" if trouble else "info"
        self._ctx.note("disk_refuses" if trouble else "disk_takes_again", level, why=trouble)

    def describe_as(self, files: LogFiles) -> bytes:
        """The cluster file as it is now, for these segments."""
        return self._encode_cluster(files, with_news=False)

    def figures(self) -> dict[str, float]:
        """Counters and gauges by name; none without a log."""
        log = self.log
        if log is None:
            return {}
        found: dict[str, float] = {f"{name}_total": value for name, value in log.counters.items()}
        found["disk_log_bytes"] = log.segments.bytes_total
        found["disk_other_keys_bytes"] = log.bytes_of_other_keys
        found["disk_waiting_bytes"] = log.waiting_bytes
        found["disk_history_bytes"] = log.retired.history.size
        found["disk_refuses"] = int(bool(log.trouble))
        return found

    # -- the end --------------------------------------------------------------------------

    def end_with_all(self) -> None:
        """One has gone with its data, and we are about to, as all others.

        Our files are of the cluster before the first one went: they say that all are waited for at
        the next start, and nothing of what its going leads to is written, nor any further change.
        """
        if self.log is not None and not self._is_broken:
            self.end()
            self._is_closed = True
            self._plane.outgoing.disk_changed(
                "all members are leaving, nothing is written any more"
            )

    def end(self) -> None:
        """The member stops: all that it holds is put down, or that it has left with nothing."""
        if self.log is None or self._is_broken or not self.log.has_begun:
            return
        self._has_left = not any(partition.fragments for partition in self._plane.partitions)
        self.log.close(has_left=self._has_left)
        self.log = self._plane.holdings.disk = None

    # -- setting aside --------------------------------------------------------------------

    def set_aside(self, then: Callable[[], None]) -> None:
        """See ``ports.FilesHost``."""
        self._aside.append(then)
        if len(self._aside) > 1:
            return
        self._discard_all()
        self._loading, self.log = None, None
        folder = f"{ASIDE_FOLDER}/{self._ctx.wall_ms}-{self._number}"
        self._ctx.note("files_set_aside", "warning", folder=folder)
        mark = Replace(ASIDE_MARK, folder.encode())
        self.submit(
            (mark, List(""), List(LOG_FOLDER)),
            lambda answers: self._move_aside(folder, answers[1], answers[2]),
            self._give_up,
        )

    def _discard_all(self) -> None:
        """Hold nothing: what comes next is from files, or from others."""
        for partition in self._plane.partitions:
            for namespace in list(partition.fragments):
                self._plane.holdings.discard(partition, namespace)

    def _move_aside(self, folder: str, top: Answer, logs: Answer) -> None:
        """A death on the way leaves the mark, and the next start goes on from it."""
        moves: list[Command] = []
        if _sizes(logs):
            moves.append(Move(LOG_FOLDER, f"{folder}/{LOG_FOLDER}"))
        if any(one.file == CLUSTER_FILE for one in _sizes(top)):
            moves.append(Move(CLUSTER_FILE, f"{folder}/{CLUSTER_FILE}"))

        def moved(_answers: tuple[Answer, ...]) -> None:
            self.found, self._lying = None, ()
            waiting, self._aside = self._aside, []
            for call in waiting:
                call()

        self.submit((*moves, Remove(ASIDE_MARK), SyncFolder("")), moved, self._give_up)

    # -- loading --------------------------------------------------------------------------

    def load(self, wanted: Mapping[PartitionId, ReplicaIndex]) -> None:
        """See ``ports.FilesHost``."""
        found = self.found
        if found is None:
            self.on_loaded()
            return
        holdings, settings = self._plane.holdings, self._ctx.settings
        self._discard_all()

        def is_wanted(pid: PartitionId, namespace: Namespace) -> bool:
            index = wanted.get(pid)
            counts = settings.structure_of(namespace)
            return index is not None and index <= counts.total_backup_count

        def make(pid: PartitionId, namespace: Namespace, state: FragmentState) -> Fragment:
            counts = (state.sync_count, state.async_count)
            return holdings.make_as(pid, namespace, counts, state.generation)

        def listed(answers: tuple[Answer, ...]) -> None:
            self._lying = _segments(answers[0])
            try:
                loading = Loading(
                    found.log,
                    _sizes(answers[0]),
                    is_wanted,
                    make,
                    encryption=self.encryption,
                    cluster_id=found.members.cluster_id,
                )
            except DamageError as problem:
                self.on_damaged(str(problem))
                return
            self._loading = loading
            self.bytes_total = loading.bytes_total
            self._load_on(loading)

        self._loading = None
        self.submit((List(LOG_FOLDER),), listed, self._give_up)

    def _load_on(self, loading: Loading) -> None:
        """The next piece, with the rest of the world in between."""
        if loading is not self._loading:
            return
        self.bytes_loaded = loading.bytes_loaded
        if loading.is_done:
            for fragment in loading.fragments:
                self._plane.holdings.hold(self._plane.partitions[fragment.partition_id], fragment)
            self.on_loaded()
            return

        def read(answers: tuple[Answer, ...]) -> None:
            if loading is not self._loading:
                return
            try:
                loading.take(answers)
            except DamageError as problem:
                self._loading = None
                self.on_damaged(str(problem))
                return
            self._load_on(loading)

        self.submit(loading.next_commands(), read, self._give_up)


def _sizes(answer: Answer) -> tuple[FileSize, ...]:
    """The answer to ``List``."""
    return answer if isinstance(answer, tuple) else ()


def _segments(answer: Answer) -> tuple[str, ...]:
    """Of these files those that are named as segments are."""
    return tuple(one.file for one in _sizes(answer) if segment_of(one.file) is not None)
