"""A primary's side of audits: compares the backups of a partition with what it has.

    primary                                            backup
      | SumUp, again and again, a piece each ------------>|  a tree of its own; nothing stands still
      | Descend: sums, level by level ------------------->|
      |<---------------------------- which of them differ |
      | Compare: keys of those leaves, their sums, and the|
      |   version at which they were summed up ---------->|  waits for exactly that version
      |<------------------ missing, different, or the same|
      | ListKeys ---------------------------------------->|
      |<------------- its keys in those leaves; those that|
      |   are not here are compared as the others         |

Trees find candidates, made while writes go on; what is told was seen at one version on both sides.
Why nothing else can come of it is in docs/design/0018.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from whimbrel.core.audit.meeting import NotComparableError
from whimbrel.core.audit.tally import Tally
from whimbrel.core.backups.flow import Wait, Work
from whimbrel.core.backups.pattern import fits
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, ReplicaIndex, split_namespace
from whimbrel.core.messages import ReplicaAsked
from whimbrel.core.messages.audit import (
    Compare,
    Compared,
    Descend,
    Differing,
    Doubt,
    Doubted,
    Finding,
    GoOn,
    Listed,
    ListKeys,
    Question,
    Summed,
    SumUp,
)
from whimbrel.core.replication.comparison import (
    Descent,
    Leaves,
    bits_for,
    child_sums,
    encode_sums,
)
from whimbrel.core.replication.content import ABSENT, Content, content_of
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.replication.holdings import Holdings
from whimbrel.errors import OperationError, SerializationError

PACE_US: Final = 5_000
"""Between two pieces; a piece is a millisecond or two, so most of the time is that of clients."""
POLL_US: Final = 1_000
POLL_MAX_US: Final = 100_000
"""Until a backup is asked again whether it has reached a version; twice as long each time."""
AGAIN_US: Final = 250_000
"""Until a fragment that could not be compared is compared from the beginning."""
TRIES_MIN: Final = 4
"""How often that is tried at least."""
PATIENCE_US: Final = 20_000_000
"""How long that is tried before it is told as not compared, beside the interval in which backups
that lack something hear of it anyway."""
KEYS_MAX: Final = 200
"""Keys in one question."""

R = TypeVar("R")


class MovedError(OperationError):
    """The partition's row has changed: another member may be its primary by now."""


class Patience:
    """For how long an audit tries again, at one primary, what could not be compared.

    A backup that stays in doubt, in many partitions, must not make an audit wait for it in each.
    """

    def __init__(self, ctx: Context) -> None:
        self._left_us = PATIENCE_US + ctx.settings.backup_sync_interval_us

    def is_left(self, tries: int, pause_us: int) -> bool:
        """Whether to try again, after a pause."""
        self._left_us -= pause_us
        return tries < TRIES_MIN or self._left_us > 0

    def succeeded(self, tries: int, pause_us: int) -> None:
        """So many pauses were not in vain."""
        self._left_us += tries * pause_us


class Line(Protocol):
    """How a primary talks to one backup."""

    def ask(self, member: MemberId, message: ReplicaAsked) -> Wait:
        """Ask, until it is answered; resumes with the reply."""

    def pause(self, pause_us: int) -> Wait:
        """Resumes after some time."""


class PartitionAudit:
    """The audit of one partition of which we are the primary.

    Attributes:
        rows: Entries of the structures that are looked at.
    """

    def __init__(
        self,
        ctx: Context,
        holdings: Holdings,
        pid: PartitionId,
        pattern: str,
        line: Line,
        patience: Patience,
        *,
        may_repair: bool,
    ) -> None:
        self._ctx = ctx
        self._patience = patience
        self._piece = holdings.bounds.audit_max
        self._partition = holdings.partitions[pid]
        self._version = self._partition.version
        self._pattern = pattern
        self._line = line
        self._may_repair = may_repair
        self.rows: dict[Namespace, int] = {}

    def work(self) -> Work[tuple[Finding, ...]]:
        """Compare all backups of all structures that fit.

        Raises:
            MovedError: The row changes meanwhile, or we are not its primary.
        """
        partition = self._stand()
        fitting = [one for one in partition.fragments if fits(one, self._pattern)]
        self.rows = {one: len(partition.fragments[one].store) for one in fitting}
        found: list[Finding] = []
        for index, member in partition.backups:
            for namespace in fitting:
                fragment = partition.fragments.get(namespace)
                if fragment is not None and fragment.backup_count >= index:
                    one = _Replica(self, index, member, namespace)
                    found.append((yield from one.work()))
        return tuple(found)

    def _stand(self) -> PartitionReplica:
        partition = self._partition
        if not partition.is_primary or partition.version != self._version:
            raise MovedError("the partition has moved")
        return partition

    # -- for one replica -----------------------------------------------------------------------

    @property
    def ctx(self) -> Context:
        """The member's."""
        return self._ctx

    @property
    def piece(self) -> int:
        """Entries of one step."""
        return self._piece

    @property
    def patience(self) -> Patience:
        """For what cannot be compared."""
        return self._patience

    @property
    def may_repair(self) -> bool:
        """Whether what differs is to be made good."""
        return self._may_repair

    def fragment(self, namespace: Namespace) -> Fragment | None:
        """What we have of a structure now."""
        return self._stand().fragments.get(namespace)

    def ask(
        self, index: ReplicaIndex, namespace: Namespace, number: int, question: Question
    ) -> Wait:
        """Ask the backup at an index."""
        ctx, pid = self._ctx, self._partition.pid
        member = self._stand().row[index]
        if member is None or not ctx.is_member(member):
            raise MovedError("the backup has left")
        named = (number, ctx.next_number(), pid, index, namespace)
        return self._line.ask(member, ReplicaAsked(*named, question))  # type: ignore[arg-type]

    def pause(self, pause_us: int) -> Wait:
        """Let others work."""
        return self._line.pause(pause_us)


class _Replica:
    """One backup's fragment of one structure."""

    def __init__(
        self, audit: PartitionAudit, index: ReplicaIndex, member: MemberId, namespace: Namespace
    ) -> None:
        self._audit = audit
        self._ctx = audit.ctx
        self._index = index
        self._member = member
        self._namespace = namespace
        self._number = 0

    def work(self) -> Work[Finding]:
        """Compare it, and make good what differs, if that is wanted."""
        found = yield from self._try()
        if not found.differing or found.reason or not self._audit.may_repair:
            return found
        reason = yield from self._repair()
        left = None if reason else (yield from self._try())
        if left is None or left.reason:
            reason = f"not repaired: {reason if left is None else left.reason}"
            repaired = 0
        else:
            reason = "some of it differs still" if left.differing else ""
            repaired = max(0, found.differing - left.differing)
        counts = (found.rows, found.missing, found.different, found.extra)
        return Finding(self._namespace, self._member, *counts, found.keys, repaired, reason)

    def _try(self) -> Work[Finding]:
        """Compare it, from the beginning whenever that cannot go on."""
        tries = 0
        while True:
            try:
                found = yield from self._compare()
            except (NotComparableError, SerializationError) as problem:
                if self._audit.fragment(self._namespace) is None:
                    return Finding(self._namespace, self._member)  # it was destroyed
                tries += 1
                if not self._audit.patience.is_left(tries, AGAIN_US):
                    return Finding(self._namespace, self._member, reason=str(problem))
            else:
                self._audit.patience.succeeded(tries, AGAIN_US)
                return found
            yield self._audit.pause(AGAIN_US)

    def _compare(self) -> Work[Finding]:
        fragment = self._fragment()
        content = content_of(fragment.store)
        if content is None:
            kind = split_namespace(self._namespace)[0]
            reason = f"structures of kind {kind} cannot be compared"
            return Finding(self._namespace, self._member, reason=reason)
        self._number = self._ctx.next_number()
        rows = len(fragment.store)
        leaves = yield from self._leaves(fragment, content, rows)
        tally = Tally(content)
        if leaves.count:
            yield from self._compare_ours(fragment, content, leaves, tally)
            yield from self._compare_theirs(fragment, content, tally)
        return tally.finding(self._namespace, self._member, rows)

    # -- trees ---------------------------------------------------------------------------------

    def _leaves(self, fragment: Fragment, content: Content, rows: int) -> Work[Leaves]:
        """The leaves that differ, or in which something was written meanwhile."""
        bits = bits_for(rows, 1)
        own, piece = content.sum_up(bits), self._audit.piece
        theirs = yield from self._ask(SumUp(bits, is_first=True), Summed)
        while True:
            if not own.is_over:
                own.step(piece)
            if not theirs.is_over:
                theirs = yield from self._ask(SumUp(bits, is_first=False), Summed)
                self._same(fragment)
            if own.is_over and theirs.is_over:
                break
            yield self._audit.pause(PACE_US)
            self._same(fragment)
        descent = Descent(bits)
        leaves: Leaves | None = None
        while leaves is None:
            sums = child_sums(own.sums, bits, descent.depth, descent.nodes)
            answer = yield from self._ask(Descend(encode_sums(sums)), Differing)
            leaves = descent.go_down(answer.bits)
        return leaves

    # -- keys ----------------------------------------------------------------------------------

    def _compare_ours(
        self, fragment: Fragment, content: Content, leaves: Leaves, tally: Tally
    ) -> Work[None]:
        """Compare the keys that we have in leaves that differ."""
        walk = content.keys_in(leaves)
        while not walk.is_over:
            keys = walk.step(self._audit.piece)
            yield from self._meet(fragment, content, keys, tally)
            yield self._audit.pause(PACE_US)
            self._same(fragment)

    def _compare_theirs(self, fragment: Fragment, content: Content, tally: Tally) -> Work[None]:
        """Compare the keys that the backup has there and we have not."""
        while True:
            listed = yield from self._ask(ListKeys(), Listed)
            self._same(fragment)
            sums = content.sums_of(listed.keys, sys.maxsize)
            keys = [key for key, own in zip(listed.keys, sums, strict=True) if own == ABSENT]
            yield from self._meet(fragment, content, keys, tally)
            if listed.is_last:
                return
            yield self._audit.pause(PACE_US)

    def _meet(
        self, fragment: Fragment, content: Content, keys: Sequence[bytes], tally: Tally
    ) -> Work[None]:
        """Compare some keys, each as both have it at one version."""
        while keys:
            self._same(fragment)
            sums = content.sums_of(keys[:KEYS_MAX], self._audit.piece)
            some, keys = tuple(keys[: len(sums)]), keys[len(sums) :]
            told = sums[:]
            if sys.byteorder == "big":
                told.byteswap()
            question = Compare(fragment.vector(), some, told.tobytes())
            answer = yield from self._ask(question, Compared)
            pause_us, until_us = POLL_US, self._ctx.now_us + PATIENCE_US
            while answer.marks is None:
                if self._ctx.now_us >= until_us:
                    raise NotComparableError("the backup is too far behind")
                yield self._audit.pause(pause_us)
                pause_us = min(POLL_MAX_US, 2 * pause_us)
                answer = yield from self._ask(GoOn(), Compared)
            if len(answer.marks) != len(some):
                raise SerializationError("a backup answers about other keys than were asked about")
            tally.take(some, answer.marks)

    # -- making good ---------------------------------------------------------------------------

    def _repair(self) -> Work[str]:
        """Have the backup ask for the fragment anew; why that did not end, or empty."""
        tries, begin = 0, True
        while True:
            problem = "the backup is being made good still"
            try:
                answer = yield from self._ask(Doubt(begin), Doubted)
            except NotComparableError as refusal:
                problem = str(refusal)
            else:
                begin = False
                if not answer.is_dirty:
                    self._audit.patience.succeeded(tries, POLL_MAX_US)
                    return ""
            tries += 1
            if not self._audit.patience.is_left(tries, POLL_MAX_US):
                return problem
            yield self._audit.pause(POLL_MAX_US)

    # -- all of them ---------------------------------------------------------------------------

    def _ask(self, question: Question, kind: type[R]) -> Work[R]:
        reply = yield self._audit.ask(self._index, self._namespace, self._number, question)
        if not isinstance(reply, kind):
            raise SerializationError("a backup answers what was not asked")
        return reply

    def _fragment(self) -> Fragment:
        fragment = self._audit.fragment(self._namespace)
        if fragment is None:
            raise NotComparableError("the structure was destroyed meanwhile")
        return fragment

    def _same(self, fragment: Fragment) -> None:
        if self._fragment() is not fragment:
            raise NotComparableError("the structure was destroyed, or copied, meanwhile")
