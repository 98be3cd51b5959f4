"""How a new master is found when all older members are suspected.

The oldest member that suspects all older ones asks every younger member for agreement. Each agrees
only if it suspects them too, and shows its own list, because the old master may have published a
newer one to some. So it also asks the joiners that the old master told of: whoever was admitted
shows the list that did it, and whoever was not says that it still seeks. The result is the newest
list seen, restricted to those who agreed, and its version jumps, so that whatever the old master
still publishes elsewhere stays below.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.membership_state import MemberPhase, MembershipState
from whimbrel.core.membership.pending_joiners import PendingJoiners
from whimbrel.core.messages import ClaimAnswered, ClaimRequested
from whimbrel.core.model import MemberInfo, MemberList

CLAIM_TIMER = "membership.claim"


@dataclass(slots=True, eq=False)
class _Attempt:
    """What a claimant knows of its claim, the last one."""

    call: int
    cause: str
    newest: MemberList
    """The newest list that contains us, our own or one shown in an answer."""
    rounds: int = 0
    agreed: dict[MemberId, bool] = field(default_factory=dict)
    """Who answered this claim, and what."""
    dropped: dict[MemberId, None] = field(default_factory=dict)
    """Who did not answer in time, or cannot be reached."""
    seeking: dict[MemberId, int] = field(default_factory=dict)
    """Joiners that answered that they have no list yet, with the start of their process."""


class Claim:
    """Both sides of a mastership claim: the claimant's and the asked member's."""

    def __init__(self, membership: MembershipState, pending_joiners: PendingJoiners) -> None:
        """Begin without a claim.

        Args:
            membership: What the parts share.
            pending_joiners: Joiners that may be on a list we do not have.
        """
        self._membership = membership
        self._ctx = membership.ctx
        self._pending_joiners = pending_joiners
        self._attempt = _Attempt(0, "", MemberList(0, ()))
        self._linked: dict[MemberId, None] = {}
        """Whom we opened a link to without having them on our list."""
        self._refused: dict[MemberId, int] = {}
        """Claimants that we refused, with the number of their claim; at most one per member."""

    # -- claimant -------------------------------------------------------------------------

    def pursue(self) -> None:
        """All older members are suspected: claim, and finish when everybody asked agrees."""
        membership, ctx = self._membership, self._ctx
        if not membership.is_claiming:
            membership.is_claiming = True
            membership.accepted = None
            self._attempt = _Attempt(ctx.next_number(), ctx.cause, ctx.members)
            ctx.note("mastership_claimed", "warning", version=ctx.members.version)
            self._ask()
        self._maybe_conclude()

    def abandon(self) -> None:
        """An older member is heard again. Our heartbeats tell those who agreed."""
        membership, ctx = self._membership, self._ctx
        if not membership.is_claiming:
            return
        membership.is_claiming = False
        ctx.disarm(CLAIM_TIMER)
        self._unlink(ctx.members)
        ctx.note("claim_abandoned")

    def on_timer(self) -> None:
        """Ask again those who have not agreed; in the end drop those who say nothing.

        Rounds are counted, not time, so that a pause of ours drops nobody. A member that
        answers with a refusal lives and trusts an older one; it is asked on, because either
        its mind or our place in the older one's list will change.
        """
        membership, settings = self._membership, self._ctx.settings
        if not membership.is_claiming:
            return
        self._ctx.resume(self._attempt.cause)
        self._attempt.rounds += 1
        if self._attempt.rounds * settings.call_timeout_us >= settings.claim_timeout_us:
            for info in (*self._electorate(), *self._outsiders()):
                if info.id not in self._attempt.agreed:
                    self._attempt.dropped[info.id] = None
        self._ask()

    def on_answer(self, sender: MemberId, answer: ClaimAnswered) -> bool:
        """Count an answer to the current claim.

        Returns:
            False when the answer shows a newer list without us: we were removed.
        """
        membership, ctx = self._membership, self._ctx
        if not membership.is_claiming or answer.call != self._attempt.call:
            return True
        if answer.list.version > self._attempt.newest.version:
            if answer.list.get(ctx.id) is None:
                if not ctx.is_member(sender):
                    self._attempt.dropped[sender] = None
                return False
            self._attempt.newest = answer.list
            self._ask()
        elif self._attempt.newest.get(sender) is None:
            self._attempt.dropped[sender] = None  # a newer list than its own is without it
            return True
        self._attempt.agreed[sender] = answer.accepted or self._attempt.agreed.get(sender, False)
        self._attempt.dropped.pop(sender, None)
        return True

    def on_seeking(self, joiner: MemberInfo, call: int) -> None:
        """Somebody we asked is not joined yet: it follows whoever has it on a list, or joins anew.

        It will not take the old master's list any more (see ``Discovery.may_install``).
        """
        if self._membership.is_claiming and call == self._attempt.call:
            self._attempt.seeking[joiner.id] = joiner.started_us

    def on_link_failed(self, member: MemberId) -> None:
        """Somebody who is not on our list, and whom we asked, cannot be reached."""
        if self._membership.is_claiming and not self._ctx.is_member(member):
            self._attempt.dropped[member] = None

    def _electorate(self) -> list[MemberInfo]:
        """Younger members of the newest list that we neither suspect nor dropped, oldest first."""
        ids = self._attempt.newest.ids()
        younger = self._attempt.newest.members[ids.index(self._ctx.id) + 1 :]
        return [
            info
            for info in younger
            if info.id not in self._attempt.dropped
            and not self._membership.detector.is_suspected(info.id)
        ]

    def _outsiders(self) -> list[MemberInfo]:
        """Joiners of whom we must know whether they were admitted before we conclude."""
        return [
            info
            for info in self._pending_joiners.missing_in(self._attempt.newest)
            if info.id not in self._attempt.dropped and info.id not in self._attempt.seeking
        ]

    def _has_agreed(self, info: MemberInfo) -> bool:
        is_seeking = self._attempt.seeking.get(info.id) == info.started_us
        return is_seeking or self._attempt.agreed.get(info.id, False)

    def _unlink(self, members: MemberList) -> None:
        """Close the links of this claim to whom it did not bring onto the list."""
        for member in self._linked:
            if members.get(member) is None:
                self._membership.drop_link(member)
        self._linked = {}

    def _ask(self) -> None:
        request = ClaimRequested(self._ctx.members.version, self._attempt.call)
        for info in (*self._electorate(), *self._outsiders()):
            is_listed = self._ctx.is_member(info.id)
            # Our heartbeats do not go to members that only an answer told us of.
            if not self._has_agreed(info) or not is_listed:
                self._membership.want_link(info)
                if not is_listed:
                    self._linked[info.id] = None
                self._ctx.send(info.id, request)
        self._ctx.arm(CLAIM_TIMER, self._ctx.settings.call_timeout_us)

    def _maybe_conclude(self) -> None:
        membership, ctx = self._membership, self._ctx
        electorate = self._electorate()
        if self._outsiders() or not all(map(self._has_agreed, electorate)):
            return
        ctx.resume(self._attempt.cause)
        newest = self._attempt.newest
        followers = {info.id for info in electorate}
        members = tuple(
            info for info in newest.members if info.id == ctx.id or info.id in followers
        )
        # A jump by our place: two claimants of one list never meet at one version, and the old
        # master, who goes up in ones, needs more changes than there are members to catch up.
        jump = newest.ids().index(ctx.id) * max(1, len(newest.members))
        ctx.disarm(CLAIM_TIMER)
        claimed = msgspec.structs.replace(
            newest.with_members(members), version=newest.version + max(1, jump)
        )
        self._unlink(claimed)
        membership.install(claimed)

    # -- asked ----------------------------------------------------------------------------

    def on_request(self, sender: MemberId, request: ClaimRequested) -> None:
        """Agree if we suspect everybody older than the claimant too.

        Args:
            sender: A member of our list.
            request: Its claim; a repetition gets a fresh answer.
        """
        if self.may_follow(sender):
            self._accept(sender, request.call)
            return
        self._refused[sender] = request.call
        self._answer(sender, request.call, accepted=False)

    def reconsider(self) -> None:
        """Tell a claimant that we refused as soon as we suspect its elders too.

        A claimant that we agreed to and that died before it was done binds us no longer.
        """
        accepted = self._membership.accepted
        if accepted is not None and self._membership.detector.is_suspected(accepted):
            self._membership.accepted = None
        for claimant, call in list(self._refused.items()):
            if not self._ctx.is_member(claimant):
                del self._refused[claimant]
            elif self.may_follow(claimant):
                self._accept(claimant, call)

    def on_heartbeat(self, sender: MemberId, master: MemberId | None) -> None:
        """A claimant that names another master has abandoned its claim."""
        if master == sender:
            return
        self._refused.pop(sender, None)
        if self._membership.accepted == sender:
            self._membership.accepted = None

    def may_follow(self, claimant: MemberId) -> bool:
        """Whether we would agree to a member's claim now.

        Not one that we suspect: its claim may be a late word of a dead member, and by then we may
        have agreed to the next one.
        """
        membership = self._membership
        if (
            membership.phase is not MemberPhase.MEMBER
            or membership.is_claiming
            or not self._ctx.is_member(claimant)
            or membership.detector.is_suspected(claimant)
        ):
            return False
        older = membership.older_than(claimant)
        return self._ctx.id not in older and all(map(membership.detector.is_suspected, older))

    def _accept(self, claimant: MemberId, call: int) -> None:
        self._refused.pop(claimant, None)
        if claimant != self._ctx.master:
            self._membership.accepted = claimant
        self._answer(claimant, call, accepted=True)

    def _answer(self, claimant: MemberId, call: int, accepted: bool) -> None:
        self._ctx.send(claimant, ClaimAnswered(accepted, self._ctx.members, call))
