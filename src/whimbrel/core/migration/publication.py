"""How the master's decisions reach every member, and how a member takes them in.

``Publisher`` is the master's side: a log of changes that somebody has not acknowledged yet, and
what each member was sent. ``Subscriber`` is every member's side. A publication normally carries
only the news (PIM-04); a member that is new, too far behind or has missed one gets the whole
table (PIM-05). Sending is optimistic and repeated until acknowledged (ADL-10, ADL-25).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    PublicationAnswered,
    StampPublished,
    TablePublished,
    TableRequested,
)
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MemberInfo, MigrationInfo


@dataclass(frozen=True, slots=True)
class News:
    """One change of the table: a finished migration, or (None) a row to be sent as it is now."""

    number: int
    partition_id: PartitionId
    migration: MigrationInfo | None


class Round:
    """The sending of a large whole table, part by part, to those who were owed it together."""

    __slots__ = ("cause", "members", "numbers", "part")

    def __init__(self, cause: str) -> None:
        self.cause = cause
        self.members: list[MemberId] = []
        self.numbers: list[int] = []
        """Of its parts' publications; drawn when the first one is sent, so that whatever changes
        meanwhile is news with a higher number."""
        self.part = 0
        """Which part is next."""


class Peer:
    """What the master knows about one member's table."""

    __slots__ = (
        "acked", "cause", "owed_whole", "round", "sent", "sent_us", "since_us", "whole_number",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acked = 0
        """Highest publication it has acknowledged; it has all news up to there."""
        self.sent = 0
        """Highest publication sent to it."""
        self.since_us: int | None = None
        """Since when an answer is due; None when all publications are answered."""
        self.sent_us = 0
        """When something was last sent to it."""
        self.cause = ""
        """Of that."""
        self.owed_whole = True
        self.whole_number = 0
        """Publication number of an unanswered whole table, 0 when there is none."""
        self.round: Round | None = None
        """The round in which a whole table is being sent; its number is not known before the
        end, and no news are sent before that."""

    @property
    def base(self) -> int:
        """What was acknowledged or is in a whole table on its way."""
        if self.round is not None and self.round.numbers:
            return max(self.acked, self.round.numbers[0])
        return max(self.acked, self.whole_number)


class Publisher:
    """The master's side of publication."""

    def __init__(
        self, ctx: Context, manager: PartitionStateManager, withheld: Collection[PartitionId]
    ) -> None:
        self._ctx = ctx
        self._table = manager.table
        self._withheld = withheld
        """Partitions left out of whole tables: a newcomer stands there that has not their data."""
        self.peers: dict[MemberId, Peer] = {}
        self.latest = 0
        """Number of the newest news."""
        self._log: deque[News] = deque()
        self._staged: list[tuple[PartitionId, MigrationInfo | None]] = []
        self._rounds: deque[Round] = deque()
        self._opening: Round | None = None
        """The round that tells everybody the table with which this master begins."""
        self._finished: dict[PartitionId, dict[str, MigrationInfo]] = {}

    # -- taking and losing charge ---------------------------------------------------------

    def start(self, completed: Iterable[MigrationInfo]) -> None:
        """Begin as master: everybody is owed the whole table and these migrations (ADL-14)."""
        self.stop()
        self.latest = self._ctx.next_number()
        for migration in completed:
            self._append(News(self.latest, migration.partition_id, migration))
        self.members_changed(())
        self.flush()
        self._opening = self._rounds[-1] if self._rounds else None

    def stop(self) -> None:
        """Forget everything; this member is not master, or not yet."""
        self.peers.clear()
        self._log.clear()
        self._finished.clear()
        self._staged.clear()
        self._rounds.clear()
        self._opening = None

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Forget members that left, owe newcomers the whole table."""
        for member in gone:
            self.peers.pop(member, None)
        for member in self._ctx.others():
            if member not in self.peers:
                self.peers[member] = Peer()
        self._trim()

    # -- news -----------------------------------------------------------------------------

    def stage_completed(self, migration: MigrationInfo) -> None:
        """Tell everybody about a finished migration with the next flush (ADL-23)."""
        self._staged.append((migration.partition_id, migration))
        self._finished.setdefault(migration.partition_id, {})[migration.id] = migration

    def ask_for_acknowledgements(self) -> None:
        """Publish a number without news: who answers it has also got what was sent before.

        So after a change of state no migration is begun while a member stands in the old one.
        """
        self.latest = self._ctx.next_number()

    def stage_row(self, partition_id: PartitionId) -> None:
        """Tell everybody about a row that was changed otherwise."""
        self._staged.append((partition_id, None))

    def stage_loss(self, partition_id: PartitionId) -> None:
        """Tell everybody about a mark that changed and its row did not."""
        self.stage_row(partition_id)

    def completed_of(self, partition_id: PartitionId) -> tuple[MigrationInfo, ...]:
        """Finished migrations of a partition that not every member knows (PIM-08), in order."""
        return tuple(self._finished.get(partition_id, {}).values())

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that not every member has acknowledged (ADL-25), in order."""
        kept = [news.migration for news in self._log if news.migration is not None]
        return kept + [migration for _, migration in self._staged if migration is not None]

    def flush(self) -> None:
        """Send what was staged, and whole tables to those who are owed one."""
        if self._staged:
            self.latest = self._ctx.next_number()
            for pid, migration in self._staged:
                self._append(News(self.latest, pid, migration))
            self._staged.clear()
            self._bound_log()
            self._trim()
        if not self._table.initialised:
            return
        made: dict[int, TablePublished] = {}
        for member, peer in self.peers.items():
            if peer.owed_whole and not self._is_silent(peer):
                self._send_whole(member, peer)
            elif peer.round is None and peer.sent < self.latest and not self._is_silent(peer):
                self._send_news(member, peer, peer.sent, made)

    def _is_silent(self, peer: Peer) -> bool:
        """Whether a member has not answered for so long that only repeats are sent to it."""
        waiting = peer.since_us
        return waiting is not None and (
            self._ctx.now_us - waiting >= self._ctx.settings.call_timeout_us
        )

    def _send_whole(self, member: MemberId, peer: Peer) -> None:
        if self._table.partition_count > self._ctx.settings.step_rows_max:
            self._join_round(member, peer)
            return
        number = self._ctx.next_number()
        peer.owed_whole = False
        peer.whole_number = number
        self._mark_sent(peer, number)
        pids = None
        if self._withheld:
            everything = map(PartitionId, range(self._table.partition_count))
            pids = [pid for pid in everything if pid not in self._withheld]
        image = self._table.image(pids)
        message = TablePublished(
            number, image, tuple(self.completed), whole=True, after=0, floor=self._floor()
        )
        self._ctx.send(member, message)

    def _join_round(self, member: MemberId, peer: Peer) -> None:
        """Send the table to a member from the first part on, with others if one is to begin."""
        begun = not self._rounds or self._rounds[-1].numbers
        peer.owed_whole = False
        peer.sent_us, peer.cause = self._ctx.now_us, self._ctx.cause
        if peer.since_us is None:
            peer.since_us = self._ctx.now_us
        if begun:
            self._rounds.append(Round(self._ctx.cause))
        if peer.round is not self._rounds[-1]:
            peer.round = self._rounds[-1]
            peer.round.members.append(member)
        peer.whole_number = _NOT_PUBLISHED

    @property
    def is_opening(self) -> bool:
        """Whether somebody has yet to be sent a part of the table of ``start`` (ADL-14)."""
        return self._opening is not None

    def owes_parts(self, member: MemberId) -> bool:
        """Whether a member is being sent a whole table, and no news before its last part."""
        peer = self.peers.get(member)
        return peer is not None and peer.round is not None

    @property
    def has_parts_left(self) -> bool:
        """Whether ``go_on`` has something to do."""
        return bool(self._rounds)

    def go_on(self) -> None:
        """Send the next part of a large whole table."""
        if not self._rounds:
            return
        now = self._rounds[0]
        self._ctx.resume(now.cause)
        size = self._ctx.settings.step_rows_max
        if not now.numbers:
            parts = -(-self._table.partition_count // size)
            now.numbers = [self._ctx.next_number() for _ in range(parts)]
        pids, more = self._table.part(now.part, size)
        message = TablePublished(
            now.numbers[now.part],
            self._table.image([pid for pid in pids if pid not in self._withheld]),
            () if more else tuple(self.completed),
            whole=now.part == 0,
            after=now.numbers[now.part - 1] if now.part else 0,
            floor=self._floor(),
            more=more,
        )
        for member in now.members:
            peer = self.peers.get(member)
            if peer is None or peer.round is not now:
                continue
            self._mark_sent(peer, message.publication)
            if not more:
                peer.round, peer.whole_number = None, message.publication
            self._ctx.send(member, message)
        now.part += 1
        if not more:
            self._rounds.popleft()
            if now is self._opening:
                self._opening = None

    def _send_news(
        self, member: MemberId, peer: Peer, after: int, made: dict[int, TablePublished]
    ) -> None:
        """Send the news above ``after``; ``made`` shares equal messages of one round."""
        message = made.get(after)
        if message is None:
            news = self._news_after(after)
            rows = dict.fromkeys(item.partition_id for item in news if item.migration is None)
            message = made[after] = TablePublished(
                self.latest,
                self._table.image(rows),
                tuple(item.migration for item in news if item.migration is not None),
                whole=False,
                after=after,
                floor=self._floor(),
            )
        self._mark_sent(peer, self.latest)
        self._ctx.send(member, message)

    def _mark_sent(self, peer: Peer, number: int) -> None:
        peer.sent = number
        peer.sent_us, peer.cause = self._ctx.now_us, self._ctx.cause
        if peer.since_us is None:
            peer.since_us = self._ctx.now_us

    def _news_after(self, after: int) -> list[News]:
        """The news above a number, oldest first; looks only at the end of the log."""
        news: list[News] = []
        for item in reversed(self._log):
            if item.number <= after:
                break
            news.append(item)
        news.reverse()
        return news

    # -- answers --------------------------------------------------------------------------

    def answered(self, sender: MemberId, message: PublicationAnswered) -> None:
        """A member has, or could not, apply a publication."""
        peer = self.peers.get(sender)
        if peer is None or message.publication > peer.sent:
            return
        if message.publication < peer.whole_number:
            return  # about something that the whole table on its way replaces
        if not message.in_step:
            # The whole table on its way was sent after what this member could not apply.
            if message.publication != peer.whole_number:
                peer.owed_whole = True
                peer.since_us = None
            return
        peer.acked = max(peer.acked, message.publication)
        peer.whole_number = 0
        peer.since_us = None if peer.acked >= peer.sent else self._ctx.now_us
        self._trim()

    def table_requested(self, sender: MemberId, stamp: int) -> None:
        """A member found that its table is not ours: it gets the whole one.

        Args:
            sender: Who.
            stamp: The stamp of its table; 0 when it only suspects that there is a newer one,
                which is answered only while its news are unacknowledged.
        """
        peer = self.peers.get(sender)
        if peer is None or peer.whole_number:
            return
        if peer.acked < self.latest or stamp not in (0, self._table.stamp):
            peer.owed_whole = True
            peer.since_us = None

    def repeat(self) -> None:
        """Send again to everybody who has not answered within the call timeout."""
        due_us = self._ctx.now_us - self._ctx.settings.call_timeout_us
        for member, peer in self.peers.items():
            if peer.since_us is not None and peer.sent_us <= due_us:
                self._send_again(member, peer)

    def link_restored(self, member: MemberId) -> None:
        """The link was broken: its unanswered publications may be lost."""
        peer = self.peers.get(member)
        if peer is not None and peer.since_us is not None:
            self._send_again(member, peer)

    def _send_again(self, member: MemberId, peer: Peer) -> None:
        self._ctx.resume(peer.cause)
        if peer.owed_whole or peer.whole_number:
            self._send_whole(member, peer)
        else:
            self._send_news(member, peer, peer.acked, {})

    def publish_stamp(self) -> None:
        """The periodic comparison of tables (ADL-10): only the stamp travels."""
        if self._table.initialised:
            self._ctx.broadcast(StampPublished(self._table.stamp), list(self.peers))

    @property
    def unacknowledged(self) -> list[MemberId]:
        """Members that have not acknowledged the newest table, in list order."""
        if not self._table.initialised:
            return []
        if self._staged:
            return list(self.peers)
        return [
            member
            for member, peer in self.peers.items()
            if peer.acked < self.latest or peer.owed_whole or peer.whole_number
        ]

    # -- the log --------------------------------------------------------------------------

    def _append(self, news: News) -> None:
        self._log.append(news)
        if news.migration is not None:
            finished = self._finished.setdefault(news.partition_id, {})
            finished[news.migration.id] = news.migration

    def _floor(self) -> int:
        """The publication up to which finished migrations need not be kept by anybody."""
        return self._log[0].number - 1 if self._log else self.latest

    def _bound_log(self) -> None:
        """Above ``completed_batch_max`` news, whoever is behind gets the whole table instead."""
        excess = len(self._log) - self._ctx.settings.completed_batch_max
        if excess <= 0:
            return
        lost = self._log[excess - 1].number
        for peer in self.peers.values():
            if peer.base < lost:
                peer.owed_whole = True
                peer.whole_number = 0
                peer.round = None

    def _trim(self) -> None:
        """Drop the news that nobody needs any more (ADL-25)."""
        known = min((peer.acked for peer in self.peers.values()), default=self.latest)
        while self._log and self._log[0].number <= known:
            self._drop_oldest()
        while len(self._log) > self._ctx.settings.completed_batch_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        news = self._log.popleft()
        if news.migration is None:
            return
        finished = self._finished.get(news.partition_id)
        if finished is not None:
            finished.pop(news.migration.id, None)
            if not finished:
                del self._finished[news.partition_id]


class Subscriber:
    """Every member's side of publication."""

    def __init__(self, ctx: Context, manager: PartitionStateManager) -> None:
        self._ctx = ctx
        self._manager = manager
        self._publisher: MemberInfo | None = None
        self._heard = 0
        self._floor = 0
        self._part = 0
        """Publication of the last part taken of a whole table of which more is to come, else 0."""
        self._completed: dict[str, tuple[int, MigrationInfo]] = {}
        """Published ones by id, with the number of the publication."""
        self._own: dict[str, MigrationInfo] = {}
        """Committed here and not published yet."""

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations of the last publications that somebody may not know (ADL-26)."""
        published = [migration for _, migration in self._completed.values()]
        return [*published, *self._own.values()]

    def forget(self) -> None:
        """This member has become master: its publisher keeps the finished migrations."""
        self._publisher = None
        self._heard = 0
        self._floor = 0
        self._part = 0
        self._completed.clear()
        self._own.clear()

    def remember(self, migration: MigrationInfo) -> None:
        """Keep a migration committed here until a publication has told it to all (ADL-30).

        The newest ``migration_max_parallel`` of them: a batch of promotions may have any number.
        The rows tell a new master the same, because it goes by the newest (``recovery.settle``).
        """
        if migration.id in self._completed:
            return
        self._own[migration.id] = migration
        while len(self._own) > self._ctx.settings.migration_max_parallel:
            del self._own[next(iter(self._own))]

    def published(self, sender: MemberId, message: TablePublished) -> None:
        """Apply a publication of the member we take for master; others change nothing (ADL-08).

        Raises:
            ProtocolError: The image breaks a rule; nothing was applied.
        """
        if sender != self._ctx.master or sender == self._ctx.id:
            self._ctx.note("migration.foreign_table", "warning", sender=sender)
            return
        rows = list(self._manager.table.rows_of(message.image))
        self._manager.table.take_losses(message.image.losses)
        publisher = self._ctx.members.get(sender)
        if publisher != self._publisher:
            self.forget()  # numbers of another master, or of one that has restarted
            self._publisher = publisher
        in_step = message.whole or message.after <= self._heard
        missed = [item for item in message.completed if not self._manager.apply_completed(item)]
        for row in rows:
            self._manager.apply_row(row)
        for item in missed:
            if self._manager.table.version(item.partition_id) < item.final_version:
                in_step = False
        self._keep(message, self._ends_whole_table(message))
        if in_step:
            self._heard = max(self._heard, message.publication)
        if message.more:
            return
        stamp = self._manager.table.stamp if message.whole else 0
        self._ctx.send(sender, PublicationAnswered(message.publication, in_step, stamp))

    def _ends_whole_table(self, message: TablePublished) -> bool:
        """Whether a message is the last part of a whole table of which no part is missing here."""
        if not message.whole and not 0 < message.after == self._part:
            return False
        self._part = message.publication if message.more else 0
        return not message.more

    def _keep(self, message: TablePublished, is_all: bool) -> None:
        """Keep what this message carries, drop what everybody knows (ADL-25, ADL-26).

        Args:
            message: With the finished migrations that it tells.
            is_all: Whether there are no others that somebody may not know.
        """
        if message.publication < self._heard:
            return  # a repeat that newer ones have overtaken
        if is_all:
            self._completed.clear()
            self._own.clear()
        for item in message.completed:
            self._own.pop(item.id, None)
            self._completed.pop(item.id, None)  # the order is that of the message
            self._completed[item.id] = (message.publication, item)
        if message.floor > self._floor:
            self._floor = message.floor
            known = [key for key, (number, _) in self._completed.items() if number <= message.floor]
            for key in known:
                del self._completed[key]
        self._bound_completed()

    def _bound_completed(self) -> None:
        """Keep ``completed_batch_max`` published ones, as the master does.

        Its floor speaks of whole publications, but its log drops migration by migration.
        """
        if len(self._completed) <= self._ctx.settings.completed_batch_max:
            return
        told = [(number, key) for key, (number, _) in self._completed.items()]
        told.sort(key=lambda item: item[0])
        for _, key in told[: -self._ctx.settings.completed_batch_max]:
            del self._completed[key]

    def stamp_published(self, sender: MemberId, message: StampPublished) -> None:
        """Ask for the table when ours is another one (FN-6)."""
        if sender != self._ctx.master or sender == self._ctx.id:
            return
        if message.stamp != self._manager.table.stamp:
            self._ctx.send(sender, TableRequested(self._manager.table.stamp))


_NOT_PUBLISHED = 1 << 62
"""Stands for the number of a publication that is still to come."""
