"""A new master asks every other member what it knows, and waits for all (ADL-11 to ADL-13).

Nothing is published and nothing planned until every other member has answered or left. What
follows from the answers is in ``settlement``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.messages import StateAnswered, StateRequested
from whimbrel.core.migration.mode import Settling
from whimbrel.core.migration.settlement import ROWS_COMPARED, Account, Settlement
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo, RowState


@dataclass(slots=True)
class Inquiry:
    """What one member was asked and has said."""

    asked: MemberId
    sent_us: int = 0
    """When it was asked, or a part of its answer came."""
    parts: int = -1
    """How many parts of an answer have come; -1 while none is under way."""
    rows: list[RowState] = field(default_factory=list)
    """Of those parts."""
    account: Account | None = None
    """Its last whole answer."""


class Recovery:
    """The questions of one change of master."""

    def __init__(self, ctx: Context, manager: PartitionStateManager, settling: Settling) -> None:
        self._ctx = ctx
        self._manager = manager
        self._settling = settling
        self.running = False
        self._cause = ""
        self._round = 0
        self._inquiries: dict[MemberId, Inquiry] = {}

    def start(self) -> None:
        """Ask everybody."""
        self.running = True
        self._cause = self._ctx.cause
        self._round = self._ctx.next_number()
        self._inquiries.clear()
        self._ask_new()

    def stop(self) -> None:
        """Forget the round."""
        self.running = False
        self._inquiries.clear()

    def _ask_new(self) -> None:
        for member in self._ctx.others():
            if member not in self._inquiries:
                inquiry = self._inquiries[member] = Inquiry(member)
                self.ask(inquiry)

    def ask(self, request: Inquiry) -> None:
        """Ask, the first time or again."""
        self._ctx.resume(self._cause)
        request.sent_us = self._ctx.now_us
        self._ctx.send(request.asked, StateRequested(self._round))

    def unanswered(self) -> list[Inquiry]:
        """Questions to members that have neither answered nor left."""
        return [one for one in self._inquiries.values() if one.account is None]

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Those who left are not waited for, nor heard; newcomers are asked as well."""
        if not self.running:
            return
        for member in gone:
            self._inquiries.pop(member, None)
        self._ask_new()

    def answered(self, sender: MemberId, message: StateAnswered) -> None:
        """Take an answer of this round, or the next part of one.

        An answer that begins again replaces what has come of it; one with a gap is asked for
        again when the call times out.

        Raises:
            ProtocolError: The image breaks a rule.
        """
        inquiry = self._inquiries.get(sender)
        if not self.running or message.round != self._round or inquiry is None:
            return
        rows = self._manager.table.take_image(message.image)
        if not message.part:
            inquiry.rows, inquiry.parts = [], 0
        if message.part != inquiry.parts:
            return
        inquiry.parts += 1
        inquiry.rows += rows
        inquiry.sent_us = self._ctx.now_us
        if not message.more:
            whole = tuple(inquiry.rows)
            inquiry.account = Account(sender, whole, message.completed, message.active)
            inquiry.rows, inquiry.parts = [], -1

    def finishing(self, own_completed: Iterable[MigrationInfo]) -> Job[Settlement]:
        """All have answered: decide, and bring our own table to the decision.

        Begun anew when a member has left or come before the end.
        """
        self._ctx.resume(self._cause)
        accounts = yield from self._accounts(own_completed)
        rows_max = self._ctx.settings.step_rows_max
        settlement = yield from self._settling(self._manager, accounts, rows_max)
        self.stop()
        return settlement

    def _accounts(self, own_completed: Iterable[MigrationInfo]) -> Job[list[Account]]:
        """Everybody's account, our own first."""
        check(self.running and not self.unanswered(), "everybody has answered or left")
        table = self._manager.table
        rows: list[RowState] = []
        for pid in range(table.partition_count):
            rows.append(table.state(PartitionId(pid)))
            if not (pid + 1) % ROWS_COMPARED:
                yield
        active = tuple(active.migration for active in self._manager.active.values())
        own = Account(self._ctx.id, tuple(rows), tuple(own_completed), active)
        others = [one.account for one in self._inquiries.values() if one.account is not None]
        return [own, *others]
