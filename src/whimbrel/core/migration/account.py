"""Telling a new master all we know, a large table in parts (ADL-11)."""

from __future__ import annotations

from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import StateAnswered, StateRequested
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.ports import FragmentHost

ACCOUNT_TIMER = "migration.account"
"""Fires at once while a part of an account is still to be sent."""


class AccountTelling:
    """One account under way at most: a member has one master, and its newest question counts.

    Rows do not change on the way: only the new master could change them, and it waits for us. Were
    one to change all the same, its part would tell the older or the newer row and the last part all
    migrations, as if the account had been asked for at that moment.
    """

    def __init__(self, shared: MigrationContext, host: FragmentHost) -> None:
        self._ctx, self._manager = shared.ctx, shared.manager
        self._subscriber, self._unkept = shared.subscriber, shared.unkept
        self._host = host
        self._asked: tuple[MemberId, int] | None = None
        self._part = 0

    def requested(self, sender: MemberId, message: StateRequested) -> None:
        """Answer the one we take for master, from the first part on.

        Not before our disk has the data of all rows that we have committed: the new master tells
        these rows to everybody, and their sources let go.
        """
        if sender == self._ctx.master and sender != self._ctx.id:
            self._asked = (sender, message.round)
            self._part = 0
            if self._unkept:
                self._host.when_durable(self.go_on)
            else:
                self.go_on()

    def go_on(self) -> None:
        """Send the next part, unless the one who asked is the master no longer."""
        if self._asked is None or self._ctx.master != self._asked[0]:
            self._asked = None
            return
        master, number = self._asked
        table = self._manager.table
        pids: list[PartitionId] = []
        more = False
        if table.initialised:
            pids, more = table.part(self._part, self._ctx.settings.step_rows_max)
        completed = () if more else tuple(self._subscriber.completed)
        active = () if more else tuple(one.migration for one in self._manager.active.values())
        image = table.image(pids)
        self._ctx.send(master, StateAnswered(number, image, completed, active, self._part, more))
        self._part += 1
        if more:
            self._ctx.arm(ACCOUNT_TIMER, 0)
        else:
            self._asked = None
