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
from typing import Any, Final

from whimbrel.core.context import Context
from whimbrel.core.ids import BACKUP_COUNT_MAX, MemberId, Namespace, PartitionId
from whimbrel.core.messages import (
    FragmentPart,
    Message,
    Purpose,
    TransferAnswered,
    TransferSent,
    Vector,
)
from whimbrel.core.ports import Export
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.holdings import Holdings
from whimbrel.core.replication.outbox import Outbox
from whimbrel.core.replication.vectors import EMPTY_VECTOR, NO_LINEAGE, ZERO
from whimbrel.errors import SerializationError

MESSAGE_ENTRIES_MAX: Final = 1_000
"""A message with so many entries gets no further fragment: small entries cost time, not bytes."""
PART_ENTRIES: Final = 8
"""A fragment of its own costs its receiver as much time as so many entries, ..."""
PART_BYTES: Final = 100
"""... and about so many bytes beside its data."""
SILENT_CALLS_MAX: Final = 5
"""A copy without progress for this many call time-outs is given up and asked for anew (AE-13)."""


class FragmentExport:
    """A cursor over whole fragments, one part a piece; implements ``ports.Export``.

    A fragment's vector is taken with its first chunk (GCM-34), its entries when their chunk is
    made. A change in between is in the data before the receiver's vector counts it; its backup
    operation follows and repeats it. While writes wait (a migration) there is none.

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
        polls_max: int = 0,
        in_one: bool = False,
        marks_doubts: bool = False,
    ) -> None:
        self._copied = deque(copied)
        self._verified = deque(verified)
        self._drains = list(drains)
        self._polls_left = polls_max
        self._in_one = in_one
        self._marks_doubts = marks_doubts
        self._cursor: Any = None
        self._vector = EMPTY_VECTOR

    def next_parts(self, bytes_max: int) -> tuple[tuple[FragmentPart, ...], bool]:
        """The next parts and whether they are the last; see ``ports.Export``.

        An empty answer that is not the last means: ask again, backups are still under way.
        """
        parts: list[FragmentPart] = []
        budget, entries = bytes_max, 0
        while self._copied and (self._in_one or _has_room(budget, entries)):
            part, taken = self._next_part(bytes_max if self._in_one else budget)
            budget -= len(part.data) + PART_BYTES
            entries += taken + PART_ENTRIES
            parts.append(part)
            if not part.last and not self._in_one:
                break
        if self._copied:
            return tuple(parts), False
        self._drains = [one for one in self._drains if one[0].acknowledged < one[1]]
        if self._drains and self._polls_left > 0:
            self._polls_left -= 1
            return tuple(parts), False
        while self._verified and (self._in_one or _has_room(budget, entries)):
            fragment = self._verified.popleft()
            parts.append(_part(fragment, fragment.vector(), b"", first=False, last=True))
            budget -= PART_BYTES
            entries += PART_ENTRIES
        return tuple(parts), not self._verified

    def _next_part(self, budget: int) -> tuple[FragmentPart, int]:
        """The next piece of the fragment whose turn it is, and how many entries are in it."""
        fragment = self._copied[0]
        first = self._cursor is None
        if first:
            self._cursor = fragment.store.open_cursor()
            self._vector = fragment.vector()
        data, taken, last = fragment.store.export(self._cursor, budget)
        if last:
            self._copied.popleft()
            self._cursor = None
        vector = self._vector
        if self._marks_doubts and fragment.is_dirty:
            vector = Vector(NO_LINEAGE, vector.counters)
        return _part(fragment, vector, data, first=first, last=last), taken


def _part(
    fragment: Fragment, vector: Vector, data: bytes, *, first: bool, last: bool
) -> FragmentPart:
    settings = (fragment.sync_count, fragment.async_count)
    name = fragment.namespace
    return FragmentPart(name, data, vector, settings, first, last, fragment.generation)


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
        self.bytes_moved = 0
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

    def advance(self, *, or_nothing: bool = False) -> bool:
        """The message in flight has arrived: send the next one; False when everything is sent.

        With ``or_nothing`` nothing is sent where there is nothing to copy.
        """
        self.progress_us = self._ctx.now_us
        if self.last or self.export is None:
            return False
        parts, self.last = self.export.next_parts(self._ctx.settings.migration_chunk_bytes_max)
        if or_nothing and self.last and not parts and not self.sequence:
            return False
        self.sequence += 1
        self.bytes_moved += sum(len(part.data) for part in parts)
        name = (self._purpose, self.transfer, self.partition_id)
        self.send(TransferSent(*name, self.sequence, parts, self.last))
        return True


class Receiving:
    """A copy that a member gives to us: its messages in their order, whatever is repeated.

    Attributes:
        sequence: Number of the last message taken.
        complete: Whether all that was announced has arrived.
        problem: Why no more can be taken; empty while it can.
        progress_us: When something was last taken, or the copy was asked for.
    """

    def __init__(self, ctx: Context, member: MemberId) -> None:
        self._ctx = ctx
        self.member = member
        self.sequence = 0
        self.complete = True
        self.problem = ""
        self.progress_us = ctx.now_us

    def take(self, message: TransferSent, ingest: Callable[[Sequence[FragmentPart]], None]) -> str:
        """Take a message in, unless it was before; why not, empty when it is in."""
        if message.sequence > self.sequence + 1:
            return "a fragment message is missing"
        if message.sequence <= self.sequence or self.problem:
            return self.problem
        self.sequence = message.sequence
        self.progress_us = self._ctx.now_us
        self.complete = message.last
        try:
            ingest(message.parts)
        except SerializationError as error:
            self.complete = False
            self.problem = str(error)
        return self.problem


class Shadows:
    """Fragments for the replica at ``index`` that arrive part by part and that nobody holds.

    ``compared`` are parts without data, of namespaces that are compared and not copied.
    """

    def __init__(self, holdings: Holdings, pid: PartitionId, index: int) -> None:
        self._holdings = holdings
        self._pid = pid
        self.index = index
        self.arriving: dict[Namespace, Fragment] = {}
        self.whole: dict[Namespace, Fragment] = {}
        self.compared: dict[Namespace, FragmentPart] = {}

    def take(self, parts: Sequence[FragmentPart]) -> Iterator[tuple[FragmentPart, Fragment | None]]:
        """Take parts in, and yield each with the fragment that it is for; None to be compared.

        Raises:
            SerializationError: Damaged, out of order, or of no service of ours.
        """
        check_parts(parts)
        for part in parts:
            namespace = part.namespace
            if part.last and not part.first and not part.data and namespace not in self.arriving:
                self.compared[namespace] = part
                yield part, None
                continue
            if part.first:
                self._free(self.arriving.pop(namespace, None))
                self._free(self.whole.pop(namespace, None))
                fresh = self._holdings.make(self._pid, namespace, part)
                fresh.install(part.vector, self.index)
                self.arriving[namespace] = fresh
            fragment = self.arriving.get(namespace)
            if fragment is None:
                raise SerializationError(f"a piece of {namespace} came before its first piece")
            fragment.store.ingest(part.data)
            if part.last:
                self.whole[namespace] = self.arriving.pop(namespace)
            yield part, fragment

    def _free(self, fragment: Fragment | None) -> None:
        if fragment is not None:
            self._holdings.free(fragment)

    def give_up(self) -> None:
        """Nobody looks at what has arrived and is not held."""
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
            if not answer.success or (is_taken and not sending.advance()):
                del self.given[key]

    def answer(self, sender: MemberId, message: TransferSent, problem: str) -> None:
        """Tell a giver to go on, or to stop because of a problem."""
        name = (self._purpose, message.transfer, message.sequence)
        self._ctx.send(sender, TransferAnswered(*name, not problem, problem))

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


def check_parts(parts: Sequence[FragmentPart]) -> None:
    """Refuse parts that no primary makes: settings out of range, vectors of a wrong length.

    Raises:
        SerializationError: A part is malformed.
    """
    for part in parts:
        sync, asynchronous = part.settings
        if min(sync, asynchronous) < 0 or sync + asynchronous > BACKUP_COUNT_MAX:
            raise SerializationError(f"{part.namespace} has impossible backup counts")
        if len(part.vector.counters) != len(ZERO) or len(part.vector.base) != len(ZERO):
            raise SerializationError(f"{part.namespace} has a vector of a wrong length")
        if part.generation < 0:
            raise SerializationError(f"{part.namespace} has an impossible generation")
