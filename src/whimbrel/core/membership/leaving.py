"""Graceful leave: the leaver asks until it may go; the master keeps who asked, in order.

Requests repeat, so a master that takes over learns of them without a hand-over. The migration
room decides when a member is in no row any more (P12) and then calls ``allow``.
"""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.demotion import Demotions
from whimbrel.core.membership.joining import Joining
from whimbrel.core.membership.membership_state import MemberPhase, MembershipState
from whimbrel.core.messages import GoodbyeTold, LeaveAllowed, LeaveRequested

LEAVE_TIMER = "membership.leave"
GRACE_TIMER = "membership.leave_grace"
GRACE_US = 200_000
GRACE_PER_PARTITION_US = 20
"""A leaver that holds nothing stays for so long: by then clients know who serves now, so none has
a request under way to it when its connections end. Table news are coalesced by partition count."""


class Leaving:
    """The leaver's and the master's side of a graceful leave."""

    def __init__(self, membership: MembershipState, joining: Joining, demotions: Demotions) -> None:
        """Begin with nobody leaving.

        Args:
            membership: What the parts share.
            joining: Who waits to come in.
            demotions: Told of a leaver before it counts as one.
        """
        self._demotions = demotions
        self._membership = membership
        self._ctx = membership.ctx
        self._joining = joining
        self.is_wanted = False
        """Whether this member is on its way out."""
        self._asked: MemberId | None = None
        self._last_call = 0
        """Number of the request whose answer lets us go; 0 before the grace is over."""
        self._is_end = False
        """Whether, by the last permission, all data members leave."""
        self._rounds = 0
        self._cause = ""
        self._causes: dict[MemberId, str] = {}
        """At the master: of each leaver's last request."""
        self._calls: dict[MemberId, int] = {}
        """At the master: number of each leaver's last request."""
        self._aware: dict[MemberId, None] = {}
        """At the master: leavers whose last request showed that they know that all leave."""

    @property
    def is_end(self) -> bool:
        """Whether we leave and, by the master's last word, all other data members do, too."""
        return self.is_wanted and self._is_end

    # -- leaver ---------------------------------------------------------------------------

    def want(self) -> None:
        """Leave as soon as possible; a second call changes nothing.

        A member that holds no data (it is lite, or on no list yet) goes at once, as does one that
        is not back from its files.
        """
        membership = self._membership
        if self.is_wanted or membership.phase is MemberPhase.ENDED:
            return
        self.is_wanted = True
        self._cause = self._ctx.cause
        self._ctx.note("leave_wanted")
        is_recovering = self._ctx.members.recovery is not None
        if membership.phase is not MemberPhase.MEMBER or self._ctx.me.lite or is_recovering:
            self._finish()
        else:
            self._ask()

    def follow(self) -> None:
        """Ask a new master at once instead of at the next repetition."""
        if (
            self.is_wanted
            and self._membership.phase is MemberPhase.MEMBER
            and not self._membership.is_claiming
            and self._membership.taken_master != self._asked
        ):
            self._ask()

    def on_timer(self) -> None:
        """Ask again, or give up when the time for leaving is over."""
        settings = self._ctx.settings
        if self._membership.phase is not MemberPhase.MEMBER:
            return
        self._ctx.resume(self._cause)
        self._rounds += 1
        self._last_call = 0
        if self._rounds * settings.leave_retry_us >= settings.leave_timeout_us:
            seconds = settings.leave_timeout_us / 1_000_000
            self._membership.stop(f"not allowed to leave within {seconds:g} s", 1)
        else:
            self._ask()

    def on_allowed(self, sender: MemberId, allowed: LeaveAllowed) -> None:
        """The master says that we hold nothing; only our own identity counts (P12)."""
        is_ours = allowed.member == self._ctx.id and sender == self._membership.taken_master
        if is_ours and self.is_wanted:
            self._on_permission(allowed.call, allowed.is_end)

    def _on_permission(self, call: int, is_end: bool) -> None:
        """Stay a moment longer; go if this answers what was asked after that moment."""
        is_news = is_end and not self._is_end
        self._is_end = is_end
        if call:
            if call == self._last_call:
                self._finish()
        elif self._last_call:
            if is_news and self._keeps_files:
                self._ask()
        elif not self._ctx.is_armed(GRACE_TIMER):
            partition_count = self._ctx.settings.partition_count
            self._ctx.arm(GRACE_TIMER, GRACE_US + GRACE_PER_PARTITION_US * partition_count)

    def on_grace_over(self) -> None:
        """Ask a last time: somebody who can take our data may have come, or another master."""
        if self._membership.phase is MemberPhase.MEMBER:
            self._last_call = self._ctx.next_number()
            self._ask()

    def _ask(self) -> None:
        ctx = self._ctx
        ctx.resume(self._cause)
        self._asked = self._membership.taken_master
        ctx.arm(LEAVE_TIMER, ctx.settings.leave_retry_us)
        request = LeaveRequested(ctx.id, self._last_call, self._is_end)
        if ctx.is_master:
            self.on_request(ctx.id, request)
        elif self._asked is not None and self._asked != ctx.id:
            ctx.send(self._asked, request)

    def _finish(self) -> None:
        membership = self._membership
        goodbye = GoodbyeTold(self._ctx.id, self._is_end, membership.numbers.last_word())
        self._ctx.broadcast(goodbye)
        self._ctx.disarm(LEAVE_TIMER)
        membership.on_left()
        membership.stop("left", 0, is_end=self._is_end)

    # -- master ---------------------------------------------------------------------------

    def on_request(self, sender: MemberId, request: LeaveRequested) -> None:
        """Keep the request and tell the migration room, which then allows it, again if need be."""
        membership, ctx = self._membership, self._ctx
        member = request.member
        info = ctx.members.get(member)
        if not ctx.is_master or sender != member or info is None:
            return
        self._calls = {item: call for item, call in self._calls.items() if ctx.is_member(item)}
        self._calls[member] = request.call
        self._aware = {item: None for item in self._aware if ctx.is_member(item) and item != member}
        if request.is_end:
            self._aware[member] = None
        self._causes = {item: self._causes.get(item, ctx.cause) for item in self._calls}
        membership.parting.pop(member, None)
        if info.lite:
            self.allow(member)
            return
        self._demotions.before_leave(member)
        if member not in ctx.leaving:
            ctx.leaving = (*ctx.leaving, member)
            ctx.note("leave_requested", member=member)
        membership.on_leave_requested()

    def allow(self, member: MemberId) -> None:
        """The member is in no row: let it go. Ignored unless we are master and it is a member.

        When all data members leave they take the data with them. Not so while a joiner waits
        that can have it: the permission then waits for the list with it, and for its copies. Where
        files are kept the first one goes when all know it: whoever sees another's end before then
        would write down that it is alone.
        """
        membership, ctx = self._membership, self._ctx
        if not membership.rules_over(member):
            return
        is_end = not ctx.staying()
        if is_end and self._joining.has_data_joiner():
            return
        ctx.resume(self._causes.get(member, ctx.cause))
        call = self._calls.get(member, 0)
        if is_end and self._keeps_files and not self._all_aware():
            call = 0
        if member != ctx.id:
            if call:
                membership.parting[member] = None
            ctx.send(member, LeaveAllowed(member, call, is_end))
        elif self.is_wanted:
            self._on_permission(call, is_end)

    @property
    def _keeps_files(self) -> bool:
        return self._ctx.settings.persistence.enabled

    def _all_aware(self) -> bool:
        return all(info.id in self._aware for info in self._ctx.data_members())
