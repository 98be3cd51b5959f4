"""One audit of the whole cluster: asks each partition's primary, and adds up what they answer.

Each primary audits one partition at a time for it, so its cost is spread over all members and over
time. A partition that moves, or whose primary dies, is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, Namespace, PartitionId, split_namespace
from whimbrel.core.messages import (
    AuditEnded,
    Message,
    PartitionAuditAnswered,
    PartitionAuditRequested,
)
from whimbrel.core.messages.audit import Finding
from whimbrel.core.partition.table import PartitionTable

AGAIN_US: Final = 500_000
"""Until a partition is asked for again that could not be audited."""
PATIENCE_US: Final = 60_000_000
"""A partition for which no primary has done anything for so long is told as not compared."""
LISTED_MAX: Final = 1_000
"""Differences, and fragments that were not compared, that are listed one by one."""
PARTITIONS_MAX: Final = 1_000
"""Partitions that are looked at in one step, those first that were not for longest."""

Json = dict[str, Any]


class Wish(msgspec.Struct, frozen=True):
    """What is to be audited: ``KIND/NAME`` with ``*`` and ``?``, empty for all structures."""

    pattern: str = ""
    may_repair: bool = False


class _Asked(msgspec.Struct):
    """A partition that a primary audits."""

    pid: PartitionId
    attempt: int
    sent_us: int


class _Sum(msgspec.Struct):
    """What is known of one structure."""

    rows: int = 0
    replicas: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    repaired: int = 0
    not_compared: int = 0

    @property
    def differing(self) -> int:
        """Entries of backups that were not what they should be."""
        return self.missing + self.different + self.extra

    def add(self, finding: Finding) -> None:
        """One fragment of it at one backup was compared, or not."""
        self.replicas += 1
        self.missing += finding.missing
        self.different += finding.different
        self.extra += finding.extra
        self.repaired += finding.repaired
        self.not_compared += bool(finding.reason) and not finding.differing


class AuditJob:
    """An audit that is under way, or over.

    Attributes:
        name: By which it is known.
        asked_us: When somebody last wanted to know how it stands.
        problem: Why it has ended without a result, empty when it has one.
    """

    def __init__(
        self,
        ctx: Context,
        table: PartitionTable,
        wish: Wish,
        known: Iterable[Namespace],
        send: Callable[[MemberId, Message], None],
    ) -> None:
        """``known`` are all structures that fit; ``send`` may also send to ourselves."""
        self.name = ctx.next_name("audit")
        self.asked_us = self._started_us = ctx.now_us
        self.problem = ""
        self._ended_us = 0
        self._ctx = ctx
        self._table = table
        self._wish = wish
        self._send = send
        self._attempt = 0
        pids = map(PartitionId, range(table.partition_count))
        self._waiting: dict[PartitionId, int] = dict.fromkeys(pids, ctx.now_us)
        """Partitions that nobody audits, and from when on they may be asked for."""
        self._seen_us: dict[PartitionId, int] = dict.fromkeys(self._waiting, ctx.now_us)
        """When something was last heard of a partition that is not over."""
        self._reasons: dict[PartitionId, str] = {}
        self._asked: dict[MemberId, _Asked] = {}
        """By primary."""
        self._sums: dict[Namespace, _Sum] = {namespace: _Sum() for namespace in known}
        self._differences: list[Json] = []
        self._not_compared: list[Json] = []
        self._lost = 0
        """Partitions of which nothing could be compared."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return bool(self._ended_us)

    @property
    def first_difference(self) -> str:
        """Where the first difference was found; empty when none was."""
        if not self._differences:
            return ""
        first = self._differences[0]
        return f"{first['structure']} in partition {first['partition']} at {first['member']}"

    # -- asking --------------------------------------------------------------------------------

    def step(self) -> None:
        """Ask each primary that audits nothing for its next partition."""
        ctx, rows = self._ctx, self._table.rows
        if self.is_over:
            return
        for pid, from_us in list(islice(self._waiting.items(), PARTITIONS_MAX)):
            primary = rows[pid][0]
            del self._waiting[pid]
            if primary in self._asked:
                self._waiting[pid], self._seen_us[pid] = from_us, ctx.now_us
            elif ctx.now_us - self._seen_us[pid] >= PATIENCE_US:
                self._lose(pid)
            elif primary is None or not ctx.is_member(primary):
                self._waiting[pid], self._reasons[pid] = from_us, "the partition has no primary"
            elif from_us > ctx.now_us:
                self._waiting[pid] = from_us
            else:
                self._attempt += 1
                self._asked[primary] = _Asked(pid, self._attempt, ctx.now_us)
                self._request(primary)
        if not self._waiting and not self._asked:
            self.end("")

    def _request(self, primary: MemberId) -> None:
        asked = self._asked[primary]
        asked.sent_us = self._ctx.now_us
        wish = self._wish
        named = (self.name, asked.attempt, asked.pid)
        self._send(primary, PartitionAuditRequested(*named, wish.pattern, wish.may_repair))

    def tick(self) -> None:
        """Ask again who is silent; give up who has left."""
        ctx = self._ctx
        for primary, asked in list(self._asked.items()):
            if not ctx.is_member(primary):
                self._again(primary, "its primary has left")
            elif ctx.now_us - self._seen_us[asked.pid] >= PATIENCE_US:
                self._again(primary, "its primary does not answer")
            elif ctx.now_us - asked.sent_us >= ctx.settings.call_timeout_us:
                self._request(primary)
        self.step()

    def _again(self, primary: MemberId, reason: str) -> None:
        """Ask for a partition again, in a moment."""
        asked = self._asked.pop(primary)
        self._reasons[asked.pid] = reason
        self._waiting[asked.pid] = self._ctx.now_us + AGAIN_US

    def _lose(self, pid: PartitionId) -> None:
        """A partition is not compared."""
        del self._seen_us[pid]
        self._lost += 1
        self._list(self._not_compared, pid, None, None, reason=self._reasons.get(pid, "no answer"))

    # -- answers -------------------------------------------------------------------------------

    def on_answered(self, sender: MemberId, answer: PartitionAuditAnswered) -> None:
        """A primary is done with a partition, or goes on with it."""
        asked = self._asked.get(sender)
        if asked is None or (asked.attempt, asked.pid) != (answer.attempt, answer.partition_id):
            return
        if not answer.is_over:
            self._seen_us[asked.pid] = self._ctx.now_us
        elif answer.problem:
            self._again(sender, answer.problem)
        else:
            del self._asked[sender]
            del self._seen_us[asked.pid]
            self._take(asked.pid, answer)

    def _take(self, pid: PartitionId, answer: PartitionAuditAnswered) -> None:
        for namespace, rows in answer.rows.items():
            self._sums.setdefault(namespace, _Sum()).rows += rows
        for one in answer.findings:
            self._sums.setdefault(one.namespace, _Sum()).add(one)
            if one.differing:
                self._list(
                    self._differences, pid, one.member, one.namespace, missing=one.missing,
                    different=one.different, extra=one.extra, repaired=one.repaired,
                    keys=list(one.keys), reason=one.reason,
                )  # fmt: skip
            elif one.reason:
                self._list(self._not_compared, pid, one.member, one.namespace, reason=one.reason)

    def _list(
        self,
        listed: list[Json],
        pid: PartitionId,
        member: MemberId | None,
        namespace: Namespace | None,
        **fields: object,
    ) -> None:
        if len(listed) >= LISTED_MAX:
            return
        info = None if member is None else self._ctx.members.get(member)
        listed.append(
            {
                "partition": pid,
                "member": member,
                "address": None if info is None else str(info.address),
                "structure": namespace,
                **fields,
            }
        )

    # -- the end -------------------------------------------------------------------------------

    def end(self, problem: str) -> None:
        """It is over, with a result unless there is a problem."""
        if self.is_over:
            return
        self.problem = problem
        self._ended_us = max(1, self._ctx.now_us)
        for member in self._ctx.members.ids():
            self._send(member, AuditEnded(self.name))

    def told(self) -> Json:
        """How it stands, as a document."""
        total = self._table.partition_count
        return {
            "audit": self.name,
            "over": self.is_over,
            "problem": self.problem,
            "done": total - len(self._seen_us),
            "total": total,
            "rows": sum(one.rows for one in self._sums.values()),
            "differing": sum(one.differing for one in self._sums.values()),
            "repaired": sum(one.repaired for one in self._sums.values()),
            "document": self._document() if self.is_over and not self.problem else None,
        }

    def _document(self) -> Json:
        sums = self._sums.values()
        found = sum(one.differing for one in sums)
        left_out = self._lost + sum(one.not_compared for one in sums)
        structures: list[Json] = []
        for namespace in sorted(self._sums):
            kind, name = split_namespace(namespace)
            fields = msgspec.structs.asdict(self._sums[namespace])
            structures.append({"kind": kind, "name": name, **fields})
        return {
            "equal": not found and not left_out,
            "complete": not left_out,
            "structures": structures,
            "missing": sum(one.missing for one in sums),
            "different": sum(one.different for one in sums),
            "extra": sum(one.extra for one in sums),
            "repaired": sum(one.repaired for one in sums),
            "partitions": self._table.partition_count,
            "partitions_not_compared": self._lost,
            "differences": self._differences,
            "not_compared": self._not_compared,
            "elapsed_s": (self._ended_us - self._started_us) / 1_000_000,
        }
