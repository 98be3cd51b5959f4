"""Graceful leave: the leaver asks until it may go; the master keeps who asked, in order.

Requests repeat, so a master that takes over learns of them without a hand-over. The migration
room decides when a member is in no row any more (P12) and then calls ``allow``.
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.room import Phase, Room
from whimbrel.core.messages import GoodbyeTold, LeaveAllowed, LeaveRequested

LEAVE_TIMER = "membership.leave"


class Leaving:
    """The leaver's and the master's side of a graceful leave."""

    def __init__(self, room: Room) -> None:
        """Begin with nobody leaving."""
        self._room = room
        self.is_wanted = False
        """Whether this member is on its way out."""
        self._asked: MemberId | None = None
        self._rounds = 0
        self._allowed: dict[MemberId, None] = {}

    # -- leaver ---------------------------------------------------------------------------

    def want(self) -> None:
        """Leave as soon as possible; a second call changes nothing.

        A member that holds no data (it is lite, or on no list yet) goes at once.
        """
        room = self._room
        if self.is_wanted or room.phase is Phase.ENDED:
            return
        self.is_wanted = True
        room.ctx.note("leave_wanted")
        if room.phase is not Phase.MEMBER or room.ctx.me.lite:
            self._finish()
        else:
            self._ask()

    def follow(self) -> None:
        """Ask a new master at once instead of at the next repetition."""
        if (
            self.is_wanted
            and self._room.phase is Phase.MEMBER
            and not self._room.is_claiming
            and self._room.taken_master != self._asked
        ):
            self._ask()

    def on_timer(self) -> None:
        """Ask again, or give up when the time for leaving is over."""
        settings = self._room.ctx.settings
        if self._room.phase is not Phase.MEMBER:
            return
        self._rounds += 1
        if self._rounds * settings.leave_retry_us >= settings.leave_timeout_us:
            seconds = settings.leave_timeout_us / 1_000_000
            self._room.stop(f"not allowed to leave within {seconds:g} s", 1)
        else:
            self._ask()

    def on_allowed(self, sender: MemberId, allowed: LeaveAllowed) -> None:
        """The master says that we hold nothing; only our own identity counts (P12)."""
        is_ours = allowed.member == self._room.ctx.id and sender == self._room.taken_master
        if is_ours and self.is_wanted:
            self._finish()

    def _ask(self) -> None:
        ctx = self._room.ctx
        self._asked = self._room.taken_master
        ctx.arm(LEAVE_TIMER, ctx.settings.leave_retry_us)
        if ctx.is_master:
            self.on_request(ctx.id, LeaveRequested(ctx.id))
        elif self._asked is not None and self._asked != ctx.id:
            ctx.send(self._asked, LeaveRequested(ctx.id))

    def _finish(self) -> None:
        room = self._room
        room.ctx.broadcast(GoodbyeTold(room.ctx.id))
        room.ctx.disarm(LEAVE_TIMER)
        if room.on_left is not None:
            room.on_left()
        room.stop("left", 0)

    # -- master ---------------------------------------------------------------------------

    def on_request(self, sender: MemberId, request: LeaveRequested) -> None:
        """Keep the request and tell the migration room; repeat an answer that may be lost."""
        room, ctx = self._room, self._room.ctx
        member = request.member
        info = ctx.members.get(member)
        if not ctx.is_master or sender != member or info is None:
            return
        if member in self._allowed or info.lite:
            self.allow(member)
            return
        if member not in ctx.leaving:
            ctx.leaving = (*ctx.leaving, member)
            ctx.note("leave_requested", member=member)
        if room.on_leave_requested is not None:
            room.on_leave_requested()

    def allow(self, member: MemberId) -> None:
        """The member is in no row: let it go. Ignored unless we are master and it is a member."""
        ctx = self._room.ctx
        if self._room.phase is not Phase.MEMBER or not ctx.is_master or not ctx.is_member(member):
            return
        self._allowed = {item: None for item in self._allowed if ctx.is_member(item)}
        self._allowed[member] = None
        if member != ctx.id:
            ctx.send(member, LeaveAllowed(member))
        elif self.is_wanted:
            self._finish()
