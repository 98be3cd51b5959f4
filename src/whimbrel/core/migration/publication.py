"""How the master's decisions reach every member: the news, and whole tables where they do not do.

``NewsPublisher`` is the master's side: a log of changes that somebody has not acknowledged yet, and
what each member was sent. ``NewsSubscriber`` is every member's side. A publication normally carries
only the news (PIM-04); a member that is new, too far behind or has missed one gets the whole
table (PIM-05). Sending is optimistic and repeated until acknowledged (ADL-10, ADL-25).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from whimbrel.core import messages as m
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.migration.mode import Handlers, Withheld
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MemberInfo, MigrationInfo
from whimbrel.core.partition.table import PartitionTable

_NOT_PUBLISHED = 1 << 62
"""Stands for the number of a publication that is still to come."""


@dataclass(frozen=True, slots=True)
class News:
    """One change of the table: a finished migration, or (None) a row to be sent as it is now."""

    number: int
    partition_id: PartitionId
    migration: MigrationInfo | None


@dataclass(slots=True, eq=False)
class Round:
    """The sending of a large whole table, part by part, to those who were owed it together."""

    cause: str
    numbers: list[int] = field(default_factory=list)
    """Of its parts' publications; drawn when the first one is sent, so that whatever changes
    meanwhile is news with a higher number."""
    part: int = 0
    """Which part is next."""


@dataclass(slots=True, eq=False)
class Peer:
    """What the master knows about one member's table."""

    asked: MemberId
    acked: int = 0
    """Highest publication it has acknowledged; it has all news up to there."""
    sent: int = 0
    """Highest publication sent to it."""
    since_us: int | None = None
    """Since when an answer is due; None when all publications are answered."""
    sent_us: int = 0
    """When something was last sent to it."""
    cause: str = ""
    """Of that."""
    owed_whole: bool = True
    whole_number: int = 0
    """Publication number of an unanswered whole table, 0 when there is none."""
    round: Round | None = None
    """The round in which a whole table is being sent; its number is not known before the
    end, and no news are sent before that."""

    @property
    def base(self) -> int:
        """What was acknowledged or is in a whole table on its way."""
        if self.round is not None and self.round.numbers:
            return max(self.acked, self.round.numbers[0])
        return max(self.acked, self.whole_number)

    def owe_whole(self) -> None:
        """What it was sent does not do: it gets the whole table next."""
        self.owed_whole = True
        self.since_us = None


class NewsPublisher:
    """The master's side of publication; see ``mode.Publisher``."""

    def __init__(self, ctx: Context, table: PartitionTable, withheld: Withheld) -> None:
        self._ctx = ctx
        self._table = table
        self._withheld = withheld
        self.peers: dict[MemberId, Peer] = {}
        self.latest = 0
        """Number of the newest news."""
        self._log: deque[News] = deque()
        self._staged: list[tuple[PartitionId, MigrationInfo | None]] = []
        self._rounds: deque[Round] = deque()
        self._opening: Round | None = None
        """The round that tells everybody the table with which this master begins."""
        self._finished: dict[PartitionId, dict[str, MigrationInfo]] = {}

    def handlers(self) -> Handlers:
        """Answers, and questions of members whose table is another one."""
        return {m.PublicationAnswered: self.answered, m.TableRequested: self.table_requested}

    # -- taking and losing charge ---------------------------------------------------------

    def start(self, completed: Iterable[MigrationInfo]) -> None:
        """Begin as master: everybody is owed the whole table and these migrations (ADL-14)."""
        self.stop()
        self.latest = self._ctx.next_number()
        for migration in completed:
            self.stage_completed(migration)
        self.members_changed(())
        self.flush()
        self._opening = self._rounds[-1] if self._rounds else None

    def stop(self) -> None:
        """Forget everything; this member is not master, or not yet."""
        for known in (self.peers, self._log, self._finished, self._staged, self._rounds):
            known.clear()

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Forget members that left, owe newcomers the whole table."""
        for member in gone:
            self.peers.pop(member, None)
        for member in self._ctx.others():
            self.peers.setdefault(member, Peer(member))
        self._trim()

    # -- news -----------------------------------------------------------------------------

    def stage_completed(self, migration: MigrationInfo) -> None:
        """Tell everybody about a finished migration with the next flush (ADL-23)."""
        self._staged.append((migration.partition_id, migration))
        self._finished.setdefault(migration.partition_id, {})[migration.id] = migration

    def stage_row(self, partition_id: PartitionId) -> None:
        """Tell everybody about a row that was changed otherwise."""
        self._staged.append((partition_id, None))

    stage_loss = stage_row
    """A mark travels with its row."""

    def ask_for_acknowledgements(self) -> None:
        """Publish a number without news."""
        self.latest = self._ctx.next_number()

    def completed_of(self, partition_id: PartitionId) -> tuple[MigrationInfo, ...]:
        """Finished migrations of the partition that not every member knows (PIM-08), in order."""
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
                self._log.append(News(self.latest, pid, migration))
            self._staged.clear()
            self._bound_log()
            self._trim()
        if not self._table.initialised:
            return
        made: dict[int, m.TablePublished] = {}
        for peer in self.peers.values():
            if self._is_silent(peer):
                continue
            if peer.owed_whole:
                self._send_whole(peer)
            elif peer.round is None and peer.sent < self.latest:
                self._send_news(peer, peer.sent, made)

    def _is_silent(self, peer: Peer) -> bool:
        """Whether a member has not answered for so long that only repeats are sent to it."""
        waiting = peer.since_us
        return waiting is not None and (
            self._ctx.now_us - waiting >= self._ctx.settings.call_timeout_us
        )

    def _send_news(self, peer: Peer, after: int, made: dict[int, m.TablePublished]) -> None:
        """Send the news above ``after``; ``made`` shares equal messages of one flush."""
        message = made.get(after)
        if message is None:
            news = self._news_after(after)
            rows = dict.fromkeys(item.partition_id for item in news if item.migration is None)
            message = made[after] = m.TablePublished(
                self.latest,
                self._table.image(rows),
                tuple(item.migration for item in news if item.migration is not None),
                whole=False,
                after=after,
                floor=self._floor(),
            )
        self._send(peer, message)

    def _send(self, peer: Peer, message: m.TablePublished) -> None:
        peer.sent = message.publication
        self._mark_sent(peer)
        self._ctx.send(peer.asked, message)

    def _mark_sent(self, peer: Peer) -> None:
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

    # -- whole tables ---------------------------------------------------------------------

    def _send_whole(self, peer: Peer) -> None:
        peer.owed_whole = False
        if self._table.partition_count > self._ctx.settings.step_rows_max:
            self._join_round(peer)
            return
        peer.whole_number = self._ctx.next_number()
        pids = range(self._table.partition_count)
        self._send(peer, self._make_part(peer.whole_number, 0, pids, is_last=True))

    def _make_part(
        self, number: int, after: int, pids: Iterable[int], *, is_last: bool
    ) -> m.TablePublished:
        """A part of a whole table; the finished migrations come with the last one."""
        return m.TablePublished(
            number,
            self._table.image([PartitionId(pid) for pid in pids if pid not in self._withheld]),
            tuple(self.completed) if is_last else (),
            whole=not after,
            after=after,
            floor=self._floor(),
            more=not is_last,
        )

    def _join_round(self, peer: Peer) -> None:
        """Send the table to a member from the first part on, with others if one is to begin."""
        self._mark_sent(peer)
        if not self._rounds or self._rounds[-1].numbers:
            self._rounds.append(Round(self._ctx.cause))
        peer.round = self._rounds[-1]
        peer.whole_number = _NOT_PUBLISHED

    @property
    def is_opening(self) -> bool:
        """Whether somebody has yet to be sent a part of the table of ``start`` (ADL-14)."""
        return self._opening in self._rounds

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
        after = now.numbers[now.part - 1] if now.part else 0
        message = self._make_part(now.numbers[now.part], after, pids, is_last=not more)
        for peer in self.peers.values():
            if peer.round is now:
                if not more:
                    peer.round, peer.whole_number = None, message.publication
                self._send(peer, message)
        now.part += 1
        if not more:
            self._rounds.popleft()

    # -- answers --------------------------------------------------------------------------

    def answered(self, sender: MemberId, message: m.PublicationAnswered) -> None:
        """A member has, or could not, apply a publication."""
        peer = self.peers.get(sender)
        if peer is None or message.publication > peer.sent:
            return
        if message.publication < peer.whole_number:
            return  # about something that the whole table on its way replaces
        if not message.in_step:
            # The whole table on its way was sent after what this member could not apply.
            if message.publication != peer.whole_number:
                peer.owe_whole()
            return
        peer.acked = max(peer.acked, message.publication)
        peer.whole_number = 0
        peer.since_us = None if peer.acked >= peer.sent else self._ctx.now_us
        self._trim()

    def table_requested(self, sender: MemberId, message: m.TableRequested) -> None:
        """A member found that its table is not ours: it gets the whole one.

        One that only suspects that there is a newer one (stamp 0) is answered only while its news
        are unacknowledged.
        """
        peer = self.peers.get(sender)
        if peer is None or peer.whole_number:
            return
        if peer.acked < self.latest or message.stamp not in (0, self._table.stamp):
            peer.owe_whole()

    def unanswered(self) -> list[Peer]:
        """Members whose acknowledgement is due."""
        return [peer for peer in self.peers.values() if peer.since_us is not None]

    def ask(self, request: Peer) -> None:
        """Send again what a member has not acknowledged."""
        self._ctx.resume(request.cause)
        if request.owed_whole or request.whole_number:
            self._send_whole(request)
        else:
            self._send_news(request, request.acked, {})

    def publish_stamp(self) -> None:
        """The periodic comparison of tables (ADL-10): only the stamp travels."""
        if self._table.initialised:
            self._ctx.broadcast(m.StampPublished(self._table.stamp), list(self.peers))

    @property
    def unacknowledged(self) -> list[MemberId]:
        """Members that have not acknowledged the newest table, in list order."""
        if not self._table.initialised:
            return []
        return [
            member
            for member, peer in self.peers.items()
            if self._staged or peer.acked < self.latest or peer.owed_whole or peer.whole_number
        ]

    # -- the log --------------------------------------------------------------------------

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
        """Drop the news that nobody needs any more, or that are too many (ADL-25)."""
        known = min((peer.acked for peer in self.peers.values()), default=self.latest)
        limit = self._ctx.settings.completed_batch_max
        while self._log and (self._log[0].number <= known or len(self._log) > limit):
            news = self._log.popleft()
            finished = self._finished.get(news.partition_id)
            if news.migration is None or finished is None:
                continue
            finished.pop(news.migration.id, None)
            if not finished:
                del self._finished[news.partition_id]


class NewsSubscriber:
    """Every member's side of publication; see ``mode.Subscriber``."""

    def __init__(self, ctx: Context, manager: PartitionStateManager) -> None:
        self._ctx = ctx
        self._manager = manager
        self._publisher: MemberInfo | None = None
        self._heard = 0
        self._part = 0
        """Publication of the last part taken of a whole table of which more is to come, else 0."""
        self._completed: dict[str, tuple[int, MigrationInfo]] = {}
        """Published ones by id, with the number of the publication."""
        self._own: dict[str, MigrationInfo] = {}
        """Committed here and not published yet."""

    def handlers(self) -> Handlers:
        """News, whole tables and stamps."""
        return {m.TablePublished: self.published, m.StampPublished: self.stamp_published}

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations of the last publications that somebody may not know (ADL-26)."""
        published = [migration for _, migration in self._completed.values()]
        return [*published, *self._own.values()]

    def forget(self) -> None:
        """This member has become master: its publisher keeps the finished migrations."""
        self._publisher = None
        self._heard = self._part = 0
        self._completed.clear()
        self._own.clear()

    def remember(self, migration: MigrationInfo) -> None:
        """Keep a migration committed here until a publication has told it to all (ADL-30).

        The newest ``migration_max_parallel`` of them: a batch of promotions may have any number.
        The rows tell a new master the same, because it goes by the newest (``settling``).
        """
        if migration.id in self._completed:
            return
        self._own[migration.id] = migration
        while len(self._own) > self._ctx.settings.migration_max_parallel:
            del self._own[next(iter(self._own))]

    def published(self, sender: MemberId, message: m.TablePublished) -> None:
        """Apply a publication of the member we take for master; others change nothing (ADL-08).

        Raises:
            ProtocolError: The image breaks a rule; nothing was applied.
        """
        if sender != self._ctx.master or sender == self._ctx.id:
            self._ctx.note("migration.foreign_table", "warning", sender=sender)
            return
        rows = self._manager.table.take_image(message.image)
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
        self._ctx.send(sender, m.PublicationAnswered(message.publication, in_step, stamp))

    def _ends_whole_table(self, message: m.TablePublished) -> bool:
        """Whether a message is the last part of a whole table of which no part is missing here."""
        if not message.whole and not 0 < message.after == self._part:
            return False
        self._part = message.publication if message.more else 0
        return not message.more

    def _keep(self, message: m.TablePublished, is_all: bool) -> None:
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
        for key in [key for key, (number, _) in self._completed.items() if number <= message.floor]:
            del self._completed[key]
        # The floor speaks of whole publications, but the master's log drops migration by migration.
        excess = len(self._completed) - self._ctx.settings.completed_batch_max
        if excess > 0:
            for key in sorted(self._completed, key=lambda key: self._completed[key][0])[:excess]:
                del self._completed[key]

    def stamp_published(self, sender: MemberId, message: m.StampPublished) -> None:
        """Ask for the table when ours is another one (FN-6)."""
        if sender != self._ctx.master or sender == self._ctx.id:
            return
        if message.stamp != self._manager.table.stamp:
            self._ctx.send(sender, m.TableRequested(self._manager.table.stamp))
