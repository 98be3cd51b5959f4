"""Every member's side: its part of a job, round by round, as the master asks for it (0020).

A round is a ``Flow`` of its own. Whatever comes twice is answered as the first time; a job that the
master does not ask about any more ends by itself, and leaves nothing behind but files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from whimbrel.core.backups.files import BEGUN_FILE, PlaceFiles, never, nothing
from whimbrel.core.backups.flow import Fail, Flow, Resume, Work
from whimbrel.core.backups.manifest import MANIFEST_FILE
from whimbrel.core.backups.offering import Offering
from whimbrel.core.backups.pattern import fits
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, namespace_of, split_namespace
from whimbrel.core.kinds import StructureService
from whimbrel.core.membership.cluster_state import ClusterStates
from whimbrel.core.messages import (
    BackupAnswered,
    BackupAsked,
    RegistryEntry,
    StateLockRequested,
)
from whimbrel.core.messages import backups as b
from whimbrel.core.persistence.commands import Copy, RemoveFolder, Replace
from whimbrel.core.persistence.format import FragmentState, segment_file
from whimbrel.core.persistence.log import DiskLog, Seal
from whimbrel.core.persistence.metadata import CLUSTER_FILE, LogFiles
from whimbrel.core.persistence.retired import NO_HISTORY, History
from whimbrel.core.persistence.service import Persistence
from whimbrel.core.registry import Registry
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.core.replication.fragments import Fragment
from whimbrel.errors import GridError, OperationError

LEASE_US: Final = 60_000_000
"""A job that the master has not asked about for so long is over here."""
JOBS_MAX: Final = 8
"""Jobs that a member takes part in at once; the master has one or two."""

Answer = Callable[[MemberId, BackupAnswered], None]


class NotNowError(OperationError):
    """A member cannot take part in this moment; in another one it may."""


@dataclass(slots=True, eq=False)
class _Part:
    """What a member does for one job.

    Attributes:
        log: The log that was cut for it and whose segments stay until it is over.
        files: Those segments.
        history: What had gone of the log since the backup before, and is kept.
        meta: What the cluster was at the cut.
        loaded: Fragments that nobody holds, with the members whose parts they are of.
        entries: What the registries of these parts know.
        partition_count: Of the cluster that they are of.
        is_loaded: Whether it was told to load, even if there was nothing for it.
    """

    name: str
    master: MemberId
    heard_us: int = 0
    round: int = 0
    flow: Flow[b.Answer] | None = None
    answered: BackupAnswered | None = None
    done: int = 0
    total: int = 0
    place: str = ""
    id: str = ""
    log: DiskLog | None = None
    files: LogFiles | None = None
    history: History = NO_HISTORY
    meta: bytes = b""
    loaded: list[tuple[MemberId, Fragment]] = field(default_factory=list)
    entries: list[RegistryEntry] = field(default_factory=list)
    partition_count: int = 0
    is_loaded: bool = False

    def tell(self, done: int, total: int) -> None:
        """Note how far it is."""
        self.done, self.total = done, total


class Participant:
    """What one member does for backups."""

    def __init__(
        self,
        ctx: Context,
        plane: DataPlane,
        persistence: Persistence,
        states: ClusterStates,
        services: Mapping[str, StructureService],
        registry: Registry,
        offering: Offering,
        answer: Answer,
    ) -> None:
        """``answer`` sends to the master, or back to this member."""
        self._ctx = ctx
        self._plane = plane
        self._persistence = persistence
        self._states = states
        self._services = services
        self._registry = registry
        self._offering = offering
        self._answer = answer
        self._files = PlaceFiles(persistence.submit, persistence.encryption)
        self._parts: dict[str, _Part] = {}
        self._works: dict[type[b.Order], Callable[[_Part, Any], Work[b.Answer]]] = {
            b.LookAt: lambda _, order: self._look(order),
            b.Begin: self._begin,
            b.Cut: lambda part, _: self._cut(part),
            b.Gather: self._gather,
            b.Conclude: self._conclude,
            b.Revoke: lambda _, order: self._revoke(order),
            b.Delete: lambda _, order: self._delete(order),
            b.Check: self._check,
            b.Load: self._load,
            b.Choose: self._choose,
            b.Offer: lambda part, _: self._offer(part),
        }

    @property
    def is_busy(self) -> bool:
        """Whether it takes part in any job."""
        return bool(self._parts)

    @property
    def running(self) -> str:
        """The id of the backup that it makes its part of, empty when it makes none."""
        return next((part.id for part in self._parts.values() if part.id), "")

    # -- what the master says ---------------------------------------------------------------

    def on_asked(self, sender: MemberId, asked: BackupAsked) -> None:
        """Begin a round, or say how far it is."""
        part = self._parts.get(asked.job)
        if part is None:
            if len(self._parts) >= JOBS_MAX:
                self.give_up(next(iter(self._parts)))
            part = self._parts[asked.job] = _Part(asked.job, sender)
        part.heard_us = self._ctx.now_us
        if asked.round > part.round:
            self._begin_round(part, sender, asked)
        elif asked.round == part.round and part.answered is not None:
            self._answer(sender, part.answered)
        elif asked.round == part.round:
            told = BackupAnswered(part.name, part.round, done=part.done, total=part.total)
            self._answer(sender, told)

    def _begin_round(self, part: _Part, sender: MemberId, asked: BackupAsked) -> None:
        if part.flow is not None:
            part.flow.give_up()
        part.round, part.answered = asked.round, None
        part.tell(0, 0)

        def say(answered: BackupAnswered) -> None:
            part.answered = answered
            self._answer(sender, answered)

        def done(answer: Any) -> None:
            total = part.total
            say(BackupAnswered(part.name, asked.round, answer, done=total, total=total))

        def failed(problem: GridError) -> None:
            is_passing = isinstance(problem, NotNowError)
            say(BackupAnswered(part.name, asked.round, refusal=str(problem), is_passing=is_passing))

        part.flow = Flow(self._ctx, self._work(part, asked.order), done, failed)
        part.flow.start()

    def _work(self, part: _Part, order: b.Order) -> Work[b.Answer]:
        if not self._persistence.is_enabled:
            return self._without_disk(part, order)
        work: Work[b.Answer] = self._works[type(order)](part, order)
        return work

    def give_up(self, name: str) -> None:
        """A job is over: what it held goes, and what stood still for it moves."""
        part = self._parts.pop(name, None)
        if part is None:
            return
        if part.flow is not None:
            part.flow.give_up()
        self._states.move_again(name)
        self._let_go(part)
        self._free(part)

    def _let_go(self, part: _Part) -> None:
        if part.log is not None:
            part.log.release()
            part.log = None

    def _free(self, part: _Part) -> None:
        for _, fragment in part.loaded:
            self._plane.holdings.free(fragment)
        part.loaded, part.entries = [], []

    def tick(self) -> None:
        """Give up what the master has forgotten, or what it died with."""
        for name, part in list(self._parts.items()):
            if self._ctx.now_us - part.heard_us > LEASE_US:
                self.give_up(name)

    def master_changed(self) -> None:
        """Another master knows nothing of the jobs of the one before."""
        for name in list(self._parts):
            self.give_up(name)

    def _without_disk(self, part: _Part, order: b.Order) -> Work[b.Answer]:
        """A lite member has no data and needs no disk; as the master it stands still as well."""
        yield _at_once
        if not self._ctx.me.lite:
            raise OperationError("it keeps nothing on disk (persistence.enabled)")
        match order:
            case b.LookAt():
                return b.Seen(())
            case b.Begin():
                self._stand_still(part, order)
            case b.Cut():
                return b.WasCut({}, self._ctx.wall_ms)
            case b.Gather():
                self._states.move_again(part.name)
                return b.Gathered(b.Part(self._ctx.id, "", (), 0))
            case b.Load():
                return b.Loaded((), self._present(order.pattern))
            case b.Offer():
                return b.Offered(0)
        return b.Done()

    # -- looking and deleting -----------------------------------------------------------------

    def _look(self, order: b.LookAt) -> Work[b.Answer]:
        found = yield from self._files.look(order.place)
        return b.Seen(found)

    def _revoke(self, order: b.Revoke) -> Work[b.Answer]:
        for name in order.ids:
            for one in (yield from self._files.listed(f"{order.place}/{name}")):
                if one.file.rpartition("/")[2] == MANIFEST_FILE:
                    yield self._files.do(Replace(one.file, b""))
        return b.Done()

    def _delete(self, order: b.Delete) -> Work[b.Answer]:
        for name in order.ids:
            yield self._files.do(RemoveFolder(f"{order.place}/{name}"))
        return b.Done()

    # -- making one ---------------------------------------------------------------------------

    def _begin(self, part: _Part, order: b.Begin) -> Work[b.Answer]:
        log = self._persistence.log
        if log is None:
            raise OperationError("it keeps nothing on disk (persistence.enabled)")
        if log.trouble:
            raise OperationError(f"its disk takes nothing: {log.trouble}")
        others = [one for one in self._parts.values() if one is not part and one.id]
        if others:
            raise OperationError(f"backup {others[0].id} is being made there")
        part.place, part.id = order.place, order.id
        folder = f"{order.place}/{order.id}/{self._ctx.id}"
        yield self._files.do(Replace(f"{folder}/{BEGUN_FILE}", b""))
        self._stand_still(part, order)
        return b.Done()

    def _stand_still(self, part: _Part, order: b.Begin) -> None:
        """See ``ClusterStates.stand_still``.

        Raises:
            NotNowError: Not in this moment.
        """
        answer = self._states.stand_still(
            part.master,
            StateLockRequested(part.name, order.list_version, order.mark, order.lease_us),
        )
        if answer.reason:
            raise NotNowError(answer.reason)
        if answer.without_data:
            self._states.move_again(part.name)
            raise NotNowError("it has not got its data back")

    def _cut(self, part: _Part) -> Work[b.Answer]:
        log = self._persistence.log
        if log is None or not self._states.stands_still_for(part.name):
            raise OperationError("it did not stand still any more")
        entries: dict[Namespace, int] = {}
        at_ms = 0

        def taken(files: LogFiles) -> None:
            nonlocal at_ms
            part.log, part.files, part.history = log, files, log.retired.history
            part.meta = self._persistence.describe_as(files)
            at_ms = self._ctx.wall_ms
            for partition in self._plane.partitions:
                if partition.is_primary:
                    for namespace, fragment in partition.fragments.items():
                        if fragment.log is not None:
                            count = entries.get(namespace, 0) + len(fragment.store)
                            entries[namespace] = count

        def wait(resume: Resume, _fail: Fail) -> None:
            log.seal(Seal(taken, lambda: resume(None)))

        yield wait
        if not self._states.stands_still_for(part.name):
            raise OperationError("it did not stand still long enough")
        return b.WasCut(entries, at_ms)

    def _gather(self, part: _Part, order: b.Gather) -> Work[b.Answer]:
        self._states.move_again(part.name)
        files = part.files
        log = part.log
        if files is None or log is None:
            raise OperationError("its log was not cut")
        base = order.base
        known: dict[tuple[int, int], b.PartFile] = {}
        since, past = "", NO_HISTORY.segments
        if base is not None and base.log_id == files.log_id.hex():
            known = {(one.stream, one.number): one for one in (*base.files, *base.history)}
            if part.history.since == f"{part.place}/{order.base_id}":
                since, past = order.base_id, part.history.segments
        me = self._ctx.id
        folder = f"{part.place}/{part.id}/{me}"
        yield self._files.do(Replace(f"{folder}/{CLUSTER_FILE}", part.meta))
        listed: list[b.PartFile] = []
        size = len(part.meta)
        wanted = (*files.segments, *past)
        for position, one in enumerate(wanted):
            part.tell(position, len(wanted))
            there = known.get((one.stream, one.number))
            if there is not None and (there.end, there.salt) == (one.end, one.salt):
                listed.append(there)
                continue
            to = f"{folder}/{segment_file(one.stream, one.number)}"
            yield self._files.do(Copy(log.retired.where(one), to))
            file = b.PartFile(
                one.stream, one.number, one.first_block, one.end, part.id, one.key_id, one.salt
            )
            listed.append(file)
            size += one.end
        count = len(files.segments)
        return b.Gathered(
            b.Part(
                me, files.log_id.hex(), tuple(listed[:count]), size, since, tuple(listed[count:])
            )
        )

    def _conclude(self, part: _Part, order: b.Conclude) -> Work[b.Answer]:
        file = f"{part.place}/{part.id}/{self._ctx.id}/{MANIFEST_FILE}"
        manifest = self._persistence.encryption.encrypt_file(MANIFEST_FILE, order.manifest)
        yield self._files.do(Replace(file, manifest))
        if part.log is not None and part.files is not None:
            held = (*part.files.segments, *part.history.segments)
            since = f"{part.place}/{part.id}"
            part.log.retire(part.log.retired.begin_history(since, held))
        self._let_go(part)
        return b.Done()

    # -- reading one --------------------------------------------------------------------------

    def _check(self, part: _Part, order: b.Check) -> Work[b.Answer]:
        for one in order.parts:
            yield from self._files.read_part(
                order.place, order.id, one, nothing, never, None, part.tell
            )
        return b.Done()

    def _load(self, part: _Part, order: b.Load) -> Work[b.Answer]:
        self._free(part)
        part.is_loaded = True
        found: list[tuple[MemberId, PartitionId, Namespace, int]] = []

        def make(pid: PartitionId, namespace: Namespace, _state: FragmentState) -> Fragment:
            return self._plane.holdings.make_as(pid, namespace, (0, 0), 0)

        for one in order.parts:
            counted = dict.fromkeys(one.primary_of)

            def wanted(
                pid: PartitionId, namespace: Namespace, counted: dict[PartitionId, None] = counted
            ) -> bool:
                return pid in counted and fits(namespace, order.pattern)

            read = yield from self._files.read_part(
                order.place, order.id, one, wanted, make, order.until_ms, part.tell
            )
            part.loaded += [(one.source, fragment) for fragment in read.fragments]
            part.partition_count = read.meta.partition_count
            part.entries += [entry for entry in read.meta.registry if entry.alive]
            for fragment in read.fragments:
                entries = len(fragment.store)
                found.append((one.source, fragment.partition_id, fragment.namespace, entries))
        return b.Loaded(tuple(found), self._present(order.pattern))

    def _present(self, pattern: str) -> dict[Namespace, int]:
        """Entries in our partitions of the structures that fit."""
        found: dict[Namespace, int] = {}
        owned = [partition for partition in self._plane.partitions if partition.is_primary]
        for entry in self._registry.structures():
            namespace = namespace_of(entry.kind, entry.key)
            service = self._services.get(entry.kind)
            if service is not None and fits(namespace, pattern):
                found[namespace] = sum(service.size(one, namespace) for one in owned)
        return found

    def _choose(self, part: _Part, order: b.Choose) -> Work[b.Answer]:
        yield _at_once
        _refuse_unloaded(part)
        kept = dict.fromkeys(order.kept)
        before, part.loaded = part.loaded, []
        for source, fragment in before:
            if (source, fragment.partition_id, fragment.namespace) in kept:
                part.loaded.append((source, fragment))
            else:
                self._plane.holdings.free(fragment)
        return b.Done()

    def _offer(self, part: _Part) -> Work[b.Answer]:
        """Tell everybody what structures and schemas there are, then offer what is in them."""
        _refuse_unloaded(part)
        kinds = {split_namespace(fragment.namespace)[0] for _, fragment in part.loaded}
        missing = [kind for kind in sorted(kinds) if kind not in self._services]
        if missing:
            raise OperationError(f"this member has no structures of the kind {missing[0]!r}")
        yield from self._offering.announce(part.entries, [one for _, one in part.loaded])
        offered = [(fragment, part.partition_count) for _, fragment in part.loaded]
        part.loaded = []
        try:
            taken = yield from self._offering.offer(offered, part.tell)
        finally:
            self._offering.give_up()
            for fragment, _ in offered:
                self._plane.holdings.free(fragment)
        return b.Offered(taken)


def _refuse_unloaded(part: _Part) -> None:
    """A process that began after the others had loaded has nothing, and must not say so little."""
    if not part.is_loaded:
        raise OperationError("it was restarted meanwhile")


def _at_once(resume: Resume, _fail: Fail) -> None:
    """Waits for nothing."""
    resume(None)
