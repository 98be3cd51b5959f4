"""Joiners that the master told of: they may be on a list of its that has not reached us.

A master that dies right after an admission may have told the joiner only. So it tells everybody
*before* it admits anybody, and whoever claims its place asks those joiners, too: one that is joined
shows the list that admitted it. So nobody who was let in is lost with the master that did it.
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.messages import JoinersNoted, JoinersTold
from whimbrel.core.model import MemberInfo, MemberList

PENDING_JOINERS_MAX = 1_000
"""Joiners remembered; the oldest are forgotten. Not less than joiners may wait at the master."""


class PendingJoiners:
    """What a member knows about joiners that are not on its list."""

    def __init__(self, membership: MembershipState) -> None:
        """Begin knowing nobody."""
        self._membership = membership
        self._ctx = membership.ctx
        self._known: dict[MemberId, tuple[MemberInfo, int]] = {}
        """Each joiner, and when the master named it last."""

    def on_told(self, sender: MemberId, told: JoinersTold) -> None:
        """Keep what our master says, and say so; nobody else admits anybody.

        While we claim there is no answer: the old master then admits nobody, and the claim need
        not look for joiners that come up while it runs.
        """
        if sender != self._membership.taken_master or sender == self._ctx.id:
            return
        for info in told.joiners:
            self._forget(info)
            self._known[info.id] = (info, self._ctx.now_us)
        while len(self._known) > PENDING_JOINERS_MAX:
            del self._known[next(iter(self._known))]
        self._ctx.send(sender, JoinersNoted(told.joiners))

    def forget_listed(self) -> None:
        """A list was installed: who is on it needs no looking for, nor who was at its address."""
        if self._known:
            for info in self._ctx.members.members:
                self._forget(info)

    def _forget(self, process: MemberInfo) -> None:
        """Forget what is known of a joiner with this identity or at this address."""
        for member, (info, _) in list(self._known.items()):
            if member == process.id or info.address == process.address:
                del self._known[member]

    def missing_in(self, members: MemberList) -> list[MemberInfo]:
        """Joiners that could be members and are not in this list, in the order they were named.

        One that has tried for longer than the join time-out has given up, or is joined for so
        long that its list has reached us.
        """
        since_us = self._ctx.now_us - self._ctx.settings.join_timeout_us
        for member, (_, told_us) in list(self._known.items()):
            if told_us < since_us:
                del self._known[member]
        return [info for info, _ in self._known.values() if members.get(info.id) is None]
