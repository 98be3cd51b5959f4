"""Copying fragments from member to member: the one sender and the one receiver.

    sender                                             receiver
      | TransferSent(purpose, transfer, 1, parts) ------>|  fills shadows: nobody holds them
      |<------------- TransferAnswered(transfer, 1, ...) |
      | ... one message in flight, numbered from 1; the last one says so (GCM-36, GCM-39)

Who asks for a copy, what it is of, when it is given up and what follows when it is there is the
affair of those who copy: migrations, syncs, primaries that have come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages import (
    NOTHING_COMPARED,
    CopyBase,
    FragmentPart,
    LogPiece,
    Message,
    Progress,
    Purpose,
    Stretch,
    TransferAnswered,
    TransferSent,
    Vector,
)
from whimbrel.core.ports import Export
from whimbrel.core.replication.comparison import (
    COPY_FIGURES,
    NO_LEAVES,
    Answering,
    Asking,
    Way,
    bits_for,
    comparison_of,
    is_same,
    is_worthwhile,
    lacked_by,
    nothing_differs,
)
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.outbox import Outbox
from whimbrel.core.replication.parts import bytes_in, check_parts, make_part, take_some
from whimbrel.core.replication.vectors import EMPTY_VECTOR, NO_LINEAGE
from whimbrel.core.settings import ComparisonBounds
from whimbrel.errors import SerializationError

MESSAGE_ENTRIES_MAX: Final = 1_000
"""A message with so many entries gets no further fragment: small entries cost time, not bytes."""
PART_ENTRIES: Final = 8
"""A fragment of its own costs its receiver as much time as so many entries, ..."""
PART_BYTES: Final = 100
"""... and about so many bytes beside its data."""
DEFAULT_BOUNDS: Final = ComparisonBounds()
SILENT_CALLS_MAX: Final = 5
"""A copy without progress for this many call time-outs is given up and asked for anew (AE-13)."""


@dataclass(slots=True, eq=False)
class _Copy:
    """A fragment whose entries are sent, or are about to be."""

    fragment: Fragment
    way: Way = Way.WHOLE
    asking: Asking | None = None
    base: CopyBase | None = None
    cursor: Any = None
    vector: Vector = EMPTY_VECTOR
    removed: list[bytes] = field(default_factory=list)
    """Keys that are still to be told."""
    logged: list[tuple[bytes, int]] = field(default_factory=list)
    """The same of a log that goes along."""
    stretches: tuple[Stretch, ...] = ()


class FragmentExport:
    """A cursor over whole fragments, one part a piece; implements ``ports.Export``.

    A fragment's vector is taken with its first chunk (GCM-34), its entries when their chunk is
    made. A change in between is in the data before the receiver's vector counts it; its backup
    operation follows and repeats it. While writes wait (a migration) there is none.

    A fragment of which the receiver has a base is compared with it first, and its vector is taken
    when that begins (docs/design/0018). All are compared side by side, a piece in each message.

    ``verified`` fragments are those the receiver has already: a part without data carries the
    vector for it to compare. They come last, when every backup operation under way (``drains``) has
    been acknowledged, so that the receiver's replica can be compared at all. With ``marks_doubts``
    a vector has no lineage where the fragment may lack something (AE-07).
    """

    def __init__(
        self,
        copied: Sequence[Fragment],
        verified: Sequence[Fragment] = (),
        drains: Sequence[tuple[Outbox, int]] = (),
        *,
        index: int = 0,
        bases: Sequence[CopyBase] = (),
        polls_max: int = 0,
        in_one: bool = False,
        marks_doubts: bool = False,
        with_logs: bool = False,
        figures: dict[str, int] | None = None,
        bounds: ComparisonBounds = DEFAULT_BOUNDS,
    ) -> None:
        """``index`` is the receiver's; what is sent is counted in ``figures``. ``with_logs`` may be
        set only while writes wait.
        """
        self._bounds = bounds
        self._copies = deque(_Copy(fragment) for fragment in copied)
        self._verified = deque(verified)
        self._drains = list(drains)
        self._index = index
        self._polls_left = polls_max
        self._in_one = in_one
        self._marks_doubts = marks_doubts
        self._with_logs = with_logs
        self._figures = dict.fromkeys(COPY_FIGURES, 0) if figures is None else figures
        self._compared: dict[Namespace, _Copy] = {}
        """Those of which it is not known yet what differs."""
        self._ending: list[_Copy] = []
        """Those whose receiver still takes entries from its base; then comes their last part."""
        self._is_ready = False
        self._has_begun = False
        self._compare(bases)

    def _compare(self, bases: Sequence[CopyBase]) -> None:
        """Copy what is equal to a base, or worth a comparison with it, in that way."""
        known = {} if self._in_one else {base.namespace: base for base in bases}
        whole: deque[_Copy] = deque()
        for copy in self._copies:
            fragment, base = copy.fragment, known.get(copy.fragment.namespace)
            comparison = None if base is None else comparison_of(fragment.store)
            if base is None or comparison is None:
                whole.append(copy)
            elif is_same(fragment, base, self._index):
                copy.way = Way.SAME
                whole.append(copy)
            elif lacked_by(fragment, base) is not None:
                copy.way, copy.base = Way.LOG, base
                whole.append(copy)
            elif is_worthwhile(fragment, base, self._bounds):
                entries = max(len(fragment.store), base.entries)
                copy.way = Way.DIFFERENCE
                bits = bits_for(entries, self._bounds.leaf_entries)
                copy.asking = Asking(fragment, comparison, bits)
                self._compared[fragment.namespace] = copy
            else:
                whole.append(copy)
        self._copies = whole

    def answered(self, answer: TransferAnswered) -> None:
        """What the receiver says beside that it took the last message; see ``ports.Export``."""
        if not self._has_begun:
            self._compare(answer.bases)
        for namespace, differing in answer.progress.differing.items():
            copy = self._compared.get(namespace)
            if copy is None or copy.asking is None:
                raise SerializationError(f"no comparison of {namespace} is under way")
            copy.asking.answered(differing)
            if copy.asking.leaves is not None:
                self._copies.append(self._compared.pop(namespace))
        self._is_ready = answer.progress.is_ready

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        """The next parts and whether they are the last; see ``ports.Export``.

        An empty answer that is not the last means: ask again. Backups are still under way, or one
        of the two has not finished its piece of a comparison.
        """
        parts: list[FragmentPart] = []
        self._has_begun = True
        if self._is_ready:
            parts += [self._end(copy) for copy in self._ending]
            self._ending.clear()
        budget, entries = self._compare_on(parts, bytes_max), len(parts) * PART_ENTRIES
        while self._copies and (self._in_one or _has_room(budget, entries)):
            copy = self._copies[0]
            part = self._next_part(bytes_max if self._in_one else budget)
            budget -= bytes_in(part) + PART_BYTES
            entries += part.entries + PART_ENTRIES
            parts.append(part)
            if copy.cursor is not None and not self._in_one:
                break
        if self._copies or self._compared or self._ending:
            return tuple(parts), False
        self._drains = [one for one in self._drains if one[0].acknowledged < one[1]]
        if self._drains and self._polls_left > 0:
            self._polls_left -= 1
            return tuple(parts), False
        while self._verified and (self._in_one or _has_room(budget, entries)):
            fragment = self._verified.popleft()
            parts.append(make_part(fragment, fragment.vector(), last=True))
            budget -= PART_BYTES
            entries += PART_ENTRIES
        return tuple(parts), not self._verified

    def _compare_on(self, parts: list[FragmentPart], budget: int) -> int:
        """A piece of work on trees, and the sums that are ready; how many bytes are left."""
        work = self._bounds.work_max
        for copy in self._compared.values():
            asking = copy.asking
            if asking is None or work <= 0 or not _has_room(budget, len(parts) * PART_ENTRIES):
                break
            first = not asking.is_begun
            if first:
                asking.begin()
            work = asking.sum_up(work)
            sums = asking.next_sums()
            if first or sums:
                bits = asking.bits if first else 0
                parts.append(
                    make_part(copy.fragment, asking.vector, first=first, bits=bits, sums=sums)
                )
                budget -= len(sums) + PART_BYTES
                self._figures["copy_sum_bytes_sent"] += len(sums)
        return budget

    def _next_part(self, budget: int) -> FragmentPart:
        """The next piece of the fragment whose turn it is."""
        copy = self._copies[0]
        fragment, first = copy.fragment, copy.cursor is None
        if first:
            self._open(copy)
        removed = tuple(take_some(copy.removed, budget, len))
        budget -= sum(map(len, removed))
        log = self._next_of_log(copy, budget)
        budget -= 0 if log is None else sum(map(len, log.keys))
        data, entries, last = b"", 0, False
        if not copy.removed and not copy.logged and budget > 0:
            data, entries, last = fragment.store.export(copy.cursor, budget)
        self._figures["copy_entries_sent"] += entries
        self._figures["copy_removals_sent"] += len(removed)
        is_told = last
        if last:
            self._copies.popleft()
            copy.cursor = None
            last = copy.way is Way.WHOLE or (copy.way is Way.DIFFERENCE and self._is_ready)
            if last:
                self._figures[copy.way.value] += 1
            else:
                self._ending.append(copy)
        return make_part(
            fragment,
            copy.vector,
            data,
            first=first and copy.asking is None,
            last=last,
            entries=entries,
            is_same=first and copy.way is Way.SAME,
            removed=removed if copy.way is Way.LOG else None,
            is_told=is_told and copy.way is Way.LOG,
            log=log,
        )

    def _next_of_log(self, copy: _Copy, budget: int) -> LogPiece | None:
        """The next piece of a log that goes along; its stretches go with each."""
        if not copy.stretches:
            return None
        taken = take_some(copy.logged, budget, lambda item: len(item[0]))
        stretches = copy.stretches
        if not copy.logged:
            copy.stretches = ()
        keys, changed = tuple(key for key, _ in taken), tuple(place for _, place in taken)
        return LogPiece(stretches, keys, changed)

    def _open(self, copy: _Copy) -> None:
        """Begin to send the entries of a fragment, all or some."""
        fragment, comparison = copy.fragment, comparison_of(copy.fragment.store)
        if self._with_logs and fragment.key_log is not None:
            copy.logged, copy.stretches = fragment.key_log.told(), tuple(fragment.key_log.stretches)
        if copy.asking is not None:
            copy.vector, copy.cursor = copy.asking.vector, copy.asking.open_export()
            return
        copy.vector = fragment.vector()
        if self._marks_doubts and fragment.is_dirty:
            copy.vector = Vector(NO_LINEAGE, copy.vector.counters)
        keys = None if copy.base is None else lacked_by(fragment, copy.base)
        if copy.way is Way.SAME and comparison is not None:
            copy.cursor = comparison.open_export(NO_LEAVES)
        elif keys is not None and comparison is not None:
            present, copy.removed = comparison.parted(keys)
            copy.cursor = comparison.open_export_of(present)
        else:
            copy.way = Way.WHOLE
            copy.cursor = fragment.store.open_cursor()

    def _end(self, copy: _Copy) -> FragmentPart:
        """The last part of a fragment all of whose entries are sent or taken."""
        self._figures[copy.way.value] += 1
        return make_part(copy.fragment, copy.vector, last=True)


def _has_room(budget: int, entries: int) -> bool:
    """Whether a message with so many bytes left, and so many entries, takes another piece."""
    return budget > 0 and entries < MESSAGE_ENTRIES_MAX


class Sending:
    """A copy that we give to a member.

    Attributes:
        cause: Under which it was begun and goes on, whatever wakes it (docs/design/0016).
        sequence: Number of the message in flight, sent ``attempts`` times, last at ``sent_us``; 0
            before the first one.
        last: Whether that one is the last.
        progress_us: When the receiver last took something, or the copy began.
        bytes_moved, entries_moved: What was sent, sums of comparisons among the bytes.
        weight: What it counts for in a limit of its giver.
    """

    def __init__(
        self, ctx: Context, purpose: Purpose, transfer: str, pid: PartitionId, member: MemberId
    ) -> None:
        self._ctx = ctx
        self._purpose = purpose
        self.cause = ctx.cause
        self.transfer = transfer
        self.partition_id = pid
        self.member = member
        self.export: Export | None = None
        self.sequence = 0
        self.last = False
        self.bytes_moved = self.entries_moved = 0
        self.sent_us = 0
        self.progress_us = ctx.now_us
        self.attempts = self.weight = 0
        self._message: Message | None = None

    def send(self, message: Message) -> None:
        """Send a message for the first time; it is in flight until it is answered."""
        self._message, self.attempts = message, 0
        self.repeat()

    def repeat(self) -> None:
        """Send the message in flight (again); receivers drop repeats."""
        self._ctx.resume(self.cause)
        self.sent_us = self._ctx.now_us
        self.attempts += 1
        if self._message is not None and self._ctx.is_member(self.member):
            self._ctx.send(self.member, self._message)

    def advance(self, answer: TransferAnswered | None = None, *, or_nothing: bool = False) -> bool:
        """The message in flight has arrived: send the next one; False when everything is sent.

        With ``or_nothing`` nothing is sent where there is nothing to copy.

        Raises:
            SerializationError: The answer to it is damaged.
        """
        self.progress_us = self._ctx.now_us
        if self.last or self.export is None:
            return False
        if answer is not None:
            self.export.answered(answer)
        parts, self.last = self.export.next_parts(self._ctx.settings.migration_chunk_bytes_max)
        if or_nothing and self.last and not parts and not self.sequence:
            return False
        self.sequence += 1
        self.bytes_moved += sum(map(bytes_in, parts))
        self.entries_moved += sum(part.entries for part in parts)
        name = (self._purpose, self.transfer, self.partition_id)
        self.send(TransferSent(*name, self.sequence, parts, self.last))
        return True


class Receiving:
    """A copy that a member gives to us: its messages in their order, whatever is repeated.

    Attributes:
        sequence: Number of the last message taken.
        complete: Whether all that was announced has arrived.
        problem: Why no more can be taken; empty while it can.
        progress: What its answer says beside that, again for a repeat.
        progress_us: When something was last taken, or the copy was asked for.
    """

    def __init__(self, ctx: Context, member: MemberId) -> None:
        self._ctx = ctx
        self.member = member
        self.sequence = 0
        self.complete = True
        self.problem = ""
        self.progress = NOTHING_COMPARED
        self.progress_us = ctx.now_us

    def take(
        self, message: TransferSent, ingest: Callable[[Sequence[FragmentPart]], Progress]
    ) -> str:
        """Take a message in, unless it was before; why not, empty when it is in."""
        if message.sequence > self.sequence + 1:
            return "a fragment message is missing"
        if message.sequence <= self.sequence or self.problem:
            return self.problem
        self.sequence = message.sequence
        self.progress_us = self._ctx.now_us
        self.complete = message.last
        try:
            self.progress = ingest(message.parts)
        except SerializationError as error:
            self.complete = False
            self.problem = str(error)
        return self.problem


FindBase = Callable[[Namespace], Fragment | None]


def _has_no_base(_namespace: Namespace) -> None:
    return None


class Shadows:
    """Fragments for the replica at ``index`` that arrive part by part and that nobody holds.

    Attributes:
        arriving, whole: Those of which more is to come, and those that are complete.
        compared: Parts without data, of namespaces that are compared by versions and not copied.
        filled: Those that have got entries from a base of ours.
        logs: Turns and keys of logs of changed keys that came along.
    """

    def __init__(
        self,
        holdings: Holdings,
        pid: PartitionId,
        index: int,
        find_base: FindBase = _has_no_base,
        *,
        is_staged: bool = False,
    ) -> None:
        """``find_base`` tells the base there is; with ``is_staged`` the disk gets what it gives."""
        self._holdings = holdings
        self._pid = pid
        self._find_base = find_base
        self._is_staged = is_staged
        self._work_max = holdings.bounds.work_max
        self.index = index
        self.arriving: dict[Namespace, Fragment] = {}
        self.whole: dict[Namespace, Fragment] = {}
        self.compared: dict[Namespace, FragmentPart] = {}
        self.filled: dict[Namespace, None] = {}
        self.logs: dict[Namespace, tuple[tuple[Stretch, ...], dict[bytes, int]]] = {}
        self._answering: dict[Namespace, Answering] = {}
        self._differing: dict[Namespace, bytes] = {}

    def take(self, parts: Sequence[FragmentPart]) -> Iterator[tuple[FragmentPart, Fragment | None]]:
        """Take parts in, and yield each with the fragment that it is for; None to be compared.

        Raises:
            SerializationError: Damaged, out of order, or of no service of ours; or the base of a
                comparison is gone.
        """
        check_parts(parts)
        work = self._fill_some(self._work_max)
        for part in parts:
            namespace = part.namespace
            if part.last and not part.first and not part.data and namespace not in self.arriving:
                self.compared[namespace] = part
                yield part, None
                continue
            if part.first:
                self._begin(part)
            fragment = self.arriving.get(namespace)
            if fragment is None:
                raise SerializationError(f"a piece of {namespace} came before its first piece")
            if part.sums:
                self._told(fragment, part.sums)
            if part.removed is not None:
                self._removed(fragment, part)
            if part.log is not None:
                _, keys = self.logs.setdefault(namespace, (part.log.stretches, {}))
                keys.update(zip(part.log.keys, part.log.changed, strict=True))
            fragment.store.ingest(part.data)
            if part.last:
                self._finish(namespace)
                self.whole[namespace] = self.arriving.pop(namespace)
            yield part, fragment
        self._compare_some(work)

    def _begin(self, part: FragmentPart) -> None:
        """Begin a fragment anew, with the base that it may have."""
        namespace = part.namespace
        self._answering.pop(namespace, None)
        self.logs.pop(namespace, None)
        self._free(self.arriving.pop(namespace, None))
        self._free(self.whole.pop(namespace, None))
        fresh = self._holdings.make(self._pid, namespace, part)
        fresh.install(part.vector, self.index)
        self.arriving[namespace] = fresh
        is_by_log = part.removed is not None
        if part.bits or part.is_same or is_by_log:
            base = self._find_base(namespace)
            if base is not None:
                answering = Answering(base, fresh, part.bits, is_by_log=is_by_log)
                self._answering[namespace] = answering
            elif not self._is_destroyed(fresh):
                raise SerializationError(f"there is no base for a copy of {namespace}")

    # -- comparing ------------------------------------------------------------------------

    def progress(self) -> Progress:
        """What the sender is to be told; each answer is told once."""
        differing, self._differing = self._differing, {}
        left = sum(one.work_left for one in self._answering.values())
        return Progress(differing, left <= self._work_max)

    def _told(self, fragment: Fragment, sums: bytes) -> None:
        namespace = fragment.namespace
        answering = self._answering.get(namespace)
        if answering is not None:
            answering.told(sums)
        elif self._is_destroyed(fragment):
            self._differing[namespace] = nothing_differs(sums)
        else:
            raise SerializationError(f"no comparison of {namespace} is under way")

    def _removed(self, fragment: Fragment, part: FragmentPart) -> None:
        answering = self._answering.get(fragment.namespace)
        if answering is not None:
            answering.removed(part.removed or (), is_told=part.is_told)
        elif not self._is_destroyed(fragment):
            raise SerializationError(f"{fragment.namespace} is not copied key by key")

    def _is_destroyed(self, fragment: Fragment) -> bool:
        return self._holdings.is_destroyed(fragment.namespace, fragment.generation)

    def _present(self) -> list[Answering]:
        """The comparisons whose base is there; of what was destroyed nothing is compared."""
        for namespace, answering in list(self._answering.items()):
            if self._find_base(namespace) is answering.base:
                continue
            if not self._is_destroyed(answering.copy):
                raise SerializationError(f"the base of {namespace} is gone")
            if answering.sums_told:
                self._differing[namespace] = bytes(answering.sums_told // 8)
            del self._answering[namespace]
        return list(self._answering.values())

    def _fill_some(self, work: int) -> int:
        """Take entries from bases; how much work is left.

        Not of what a comparison has just found out: what the sender had changed before that began
        is here with the next message (docs/design/0018).
        """
        for answering in self._present():
            if work > 0:
                work = self._fill(answering, work)
        return work

    def _fill(self, answering: Answering, work: int) -> int:
        if not answering.work_left:
            return work
        fragment = answering.copy
        self.filled[fragment.namespace] = None
        is_staged = self._is_staged and self._holdings.is_on_disk(fragment.namespace)
        left, chunk = answering.fill(work, wants_chunk=is_staged)
        if chunk and self._holdings.disk is not None:
            self._holdings.disk.stage(fragment, chunk, is_last=False)
        return left

    def _compare_some(self, work: int) -> None:
        """A piece of our trees; what is found out is told with the answer."""
        for answering in self._present():
            if work <= 0:
                return
            work = answering.compare(work)
            if answering.differing:
                self._differing[answering.copy.namespace] = answering.differing
                answering.differing = b""

    def _finish(self, namespace: Namespace) -> None:
        """The last part has come: take what is left; it is little, or the sender was told so."""
        self._present()
        answering = self._answering.pop(namespace, None)
        if answering is None:
            return
        if not answering.is_decided:
            raise SerializationError(f"the comparison of {namespace} has not ended")
        while answering.work_left:
            self._fill(answering, self._work_max)

    # -- ends -----------------------------------------------------------------------------

    def _free(self, fragment: Fragment | None) -> None:
        if fragment is not None:
            self._holdings.free(fragment)

    def give_up(self) -> None:
        """Nobody looks at what has arrived and is not held."""
        self._answering.clear()
        for fragments in (self.arriving, self.whole):
            while fragments:
                self._free(fragments.popitem()[1])


class Asked(Receiving):
    """A copy of fragments of a partition that we have asked a member for.

    Attributes:
        number: Of the request.
        cause: Of the request; what follows from its answers goes on under it.
        doubted: What was asked for by name, and the fragments that it is to replace.
        passed: Backup operations (lineage, counter, bytes) that came before the first answer.
    """

    def __init__(
        self,
        ctx: Context,
        member: MemberId,
        shadows: Shadows,
        doubted: dict[Namespace, Fragment] | None = None,
    ) -> None:
        super().__init__(ctx, member)
        self.number = ctx.next_number()
        self.cause = ctx.cause
        self.shadows = shadows
        self.doubted = doubted or {}
        self.passed: dict[Namespace, list[tuple[int, int, bytes]]] = {}
        self.complete = False


class Exchange:
    """Copies that a member asks for because it lacks something: what we ask for, what we give.

    A copy ends with its link, with the row it was asked under, and without progress for a while,
    on both sides by themselves (AE-16); whoever asked asks anew. ``asked`` are those to us, at most
    one for a partition, ``given`` those by us, by who asked and the number of the request.
    """

    def __init__(self, ctx: Context, purpose: Purpose) -> None:
        self._ctx = ctx
        self._purpose = purpose
        self.asked: dict[PartitionId, Asked] = {}
        self.given: dict[tuple[MemberId, int], Sending] = {}

    def find(self, sender: MemberId, pid: PartitionId, number: int | str) -> Asked | None:
        """What we have asked this member for under this number, if anything; it goes on."""
        asked = self.asked.get(pid)
        if asked is None or asked.member != sender or str(asked.number) != str(number):
            return None
        self._ctx.resume(asked.cause)
        return asked

    def give(
        self, member: MemberId, number: int, pid: PartitionId, export: Export, weight: int
    ) -> None:
        """Begin to give a member what it has asked for."""
        sending = Sending(self._ctx, self._purpose, str(number), pid, member)
        sending.export, sending.weight = export, weight
        self.given[member, number] = sending
        sending.advance()

    def answered(self, sender: MemberId, answer: TransferAnswered) -> None:
        """The message in flight was taken, or nothing more is wanted."""
        for key, sending in list(self.given.items()):
            if sending.member != sender or sending.transfer != answer.transfer:
                continue
            is_taken = answer.success and answer.sequence == sending.sequence
            if not answer.success or (is_taken and not self._go_on(sending, answer)):
                del self.given[key]

    def _go_on(self, sending: Sending, answer: TransferAnswered) -> bool:
        """Send the next message; False at the end, also that of a receiver who answers damage."""
        try:
            return sending.advance(answer)
        except SerializationError as error:
            pid, problem = sending.partition_id, str(error)
            self._ctx.note("copy_answer_damaged", "warning", partition=pid, problem=problem)
            return False

    def answer(
        self,
        sender: MemberId,
        message: TransferSent,
        problem: str,
        progress: Progress = NOTHING_COMPARED,
    ) -> None:
        """Tell a giver to go on, or to stop because of a problem."""
        name = (self._purpose, message.transfer, message.sequence)
        self._ctx.send(sender, TransferAnswered(*name, not problem, problem, progress))

    def end_asked(self, pid: PartitionId) -> None:
        """A request of ours is over; what has arrived and is not held goes."""
        asked = self.asked.pop(pid, None)
        if asked is not None:
            asked.shadows.give_up()

    def end_given(
        self, is_over: Callable[[Sending], bool]
    ) -> list[tuple[MemberId, int, PartitionId]]:
        """Give nothing more of some copies; who asked for each, by what number, its partition."""
        ended = [(*key, one.partition_id) for key, one in self.given.items() if is_over(one)]
        for member, number, _ in ended:
            del self.given[member, number]
        return ended

    def link_lost(self, member: MemberId) -> list[tuple[MemberId, int, PartitionId]]:
        """Messages may be lost; the copies that the member gets no more of."""
        for pid in [pid for pid, asked in self.asked.items() if asked.member == member]:
            self.end_asked(pid)
        return self.end_given(lambda sending: sending.member == member)

    def give_up_silent(self) -> int:
        """End copies without progress; how many of those we have asked for."""
        before_us = self._ctx.now_us - SILENT_CALLS_MAX * self._ctx.settings.call_timeout_us
        late = [pid for pid, asked in self.asked.items() if asked.progress_us < before_us]
        for pid in late:
            self.end_asked(pid)
        self.end_given(lambda sending: sending.progress_us < before_us)
        return len(late)


def refuse_older(copy: Fragment, held: Fragment | None) -> None:
    """Refuse a copy that no primary of ours makes.

    Raises:
        SerializationError: It counts less, under the same lineage, than what it would replace.
    """
    if held is not None and copy.is_behind(held):
        raise SerializationError(f"the copy of {copy.namespace} counts less than what is held")
