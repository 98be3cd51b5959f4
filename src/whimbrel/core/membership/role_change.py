"""Lite to data and back: the wish of a member, and the master's answer to a promotion.

A member asks the master it knows, again and again until there is an answer; the master changes
the list and answers with it (paper 04, "Lite"). What must happen before a data member becomes
lite is in ``demotion``. A wish ends in exactly one way: fulfilled, or with an error that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.membership_state import MemberPhase, MembershipState
from whimbrel.core.messages import RoleChangeAnswered, RoleChangeRequested
from whimbrel.core.model import MemberList
from whimbrel.errors import GridError, IllegalStateError, UnsupportedError, UsageError

ROLE_TIMER = "membership.role"
CLUSTER_VERSION_MIN = (3, 9)
"""Older clusters know no promotion (GCM-16)."""
WAITERS_MAX = 1_000
"""Callers that wait for one wish; more are refused."""

Then = Callable[[GridError | None], None]
"""Called once: with None when the member is what it wished to be, else with the reason."""

PROBLEMS: dict[str, type[GridError]] = {
    "illegal_state": IllegalStateError,
    "illegal_argument": UsageError,
    "unsupported": UnsupportedError,
}
"""How an error is called in an answer."""


def problem_of(error: GridError) -> str:
    """The word for an error in an answer; whatever has none is an illegal state."""
    found = (word for word, kind in PROBLEMS.items() if isinstance(error, kind))
    return next(found, "illegal_state")


def error_of(problem: str, reason: str) -> GridError:
    """The error that an answer tells."""
    return PROBLEMS.get(problem, IllegalStateError)(reason)


def cluster_version_of(text: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for what is no version."""
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return 0, 0
    return int(major), int(minor)


def with_lite(members: MemberList, member: MemberId, lite: bool) -> MemberList:
    """The next list, in which one member has changed sides and nothing else (GCM-21, bug 50)."""
    return members.with_members(
        tuple(
            msgspec.structs.replace(info, lite=lite) if info.id == member else info
            for info in members.members
        )
    )


@dataclass(slots=True, eq=False)
class Wish:
    """What this member wants to become, and who waits for it."""

    call: int
    lite: bool
    master: MemberId
    """Whom we ask; a promotion fails when this one is master no longer (GCM-24)."""
    cause: str
    waiters: list[Then]


class RoleChanges:
    """The wishing member's side, and the master's side of a promotion."""

    def __init__(self, membership: MembershipState) -> None:
        """Begin without a wish.

        Args:
            membership: What the parts share.
        """
        self._membership = membership
        self._ctx = membership.ctx
        self.wish: Wish | None = None
        self.demote: Callable[[RoleChangeRequested], None] = lambda _request: None
        """The master's side of a demotion."""
        self.draining: Collection[MemberId] = ()
        """At the master: members whose demotion is under way; it goes on in whatever state."""

    # -- the member that wishes -----------------------------------------------------------

    def want(self, lite: bool, then: Then) -> None:
        """Become lite, or a data member. The same wish again joins the one under way.

        Args:
            lite: What to become.
            then: Told how it ended; at once when nothing is to be sent.
        """
        ctx, master = self._ctx, self._membership.taken_master
        refusal = self._refusal(lite)
        if refusal is not None:
            then(refusal)
        elif self.wish is not None:
            self.wish.waiters.append(then)
        elif master is None:
            then(IllegalStateError("this member knows no master"))
        else:
            self.wish = Wish(ctx.next_number(), lite, master, ctx.cause, [then])
            self._ask(self.wish)

    def _refusal(self, lite: bool) -> GridError | None:
        """Why a wish makes no sense here; nothing is sent then (GCM-16, GCM-17)."""
        membership, ctx = self._membership, self._ctx
        if membership.phase is not MemberPhase.MEMBER:
            return IllegalStateError("this member is on no list")
        if ctx.members.recovery is not None:
            return IllegalStateError("the cluster is coming back from its files")
        if cluster_version_of(ctx.members.cluster_version) < CLUSTER_VERSION_MIN:
            return UnsupportedError(
                f"a cluster of version {ctx.members.cluster_version} knows no change between "
                "lite and data members; 3.9 is the first that does"
            )
        if ctx.me.lite == lite:
            return IllegalStateError(
                f"this member is a {'lite' if lite else 'data'} member already"
            )
        if self.wish is not None and len(self.wish.waiters) >= WAITERS_MAX:
            return IllegalStateError(f"{WAITERS_MAX} callers wait for this change already")
        return None

    def _ask(self, wish: Wish) -> None:
        """One request to the member known as master, which may be ourselves (GCM-18)."""
        self._ctx.resume(wish.cause)
        self._ctx.arm(ROLE_TIMER, self._ctx.settings.leave_retry_us)
        request = RoleChangeRequested(wish.call, self._ctx.id, wish.lite)
        if wish.master == self._ctx.id:
            self.on_request(self._ctx.id, self._ctx.me.address, request)
        else:
            self._ctx.send(wish.master, request)

    def on_timer(self) -> None:
        """The request or its answer may be lost."""
        if self.wish is not None:
            self._ask(self.wish)

    def on_answer(self, sender: MemberId, answer: RoleChangeAnswered) -> None:
        """Install the list that is the answer (GCM-23), or end with the error it tells."""
        wish, membership = self.wish, self._membership
        if wish is None or answer.call != wish.call or sender != wish.master:
            return
        if answer.problem:
            self._end(error_of(answer.problem, answer.reason))
            return
        new = answer.list
        mine = None if new is None else new.get(self._ctx.id)
        if new is None or mine is None or mine.lite != wish.lite:
            self._end(IllegalStateError("the master's answer is not the list that was asked for"))
        elif sender == membership.taken_master and new.version > self._ctx.members.version:
            membership.install(new)
        self.follow()

    def follow(self) -> None:
        """A new list, or another master: the wish may be fulfilled, or never will be (GCM-24)."""
        wish, membership = self.wish, self._membership
        if wish is None:
            return
        if self._ctx.me.lite == wish.lite:
            self._end(None)
        elif membership.taken_master != wish.master:
            if not wish.lite:
                self._end(
                    IllegalStateError(
                        "the master has changed during the promotion; it may be repeated safely"
                    )
                )
            elif membership.taken_master is not None and not membership.is_claiming:
                wish.master = membership.taken_master  # a long way: the timer asks the next one

    def give_up(self, reason: str) -> None:
        """This member ends: nobody will answer."""
        self._end(IllegalStateError(reason))

    def _end(self, error: GridError | None) -> None:
        wish, self.wish = self.wish, None
        if wish is None:
            return
        self._ctx.disarm(ROLE_TIMER)
        word = "" if error is None else str(error)
        self._ctx.note("role_change_ended", lite=wish.lite, problem=word)
        for then in wish.waiters:
            then(error)

    # -- the master -----------------------------------------------------------------------

    def on_request(self, sender: MemberId, address: Address, request: RoleChangeRequested) -> None:
        """Decide about a request, the first or a repeated one."""
        membership, ctx = self._membership, self._ctx
        refusal = self._refused(sender, request)
        if refusal is not None:
            answer = refused(request, refusal)
            if ctx.is_member(sender):
                self.answer(sender, answer)
            else:
                ctx.send_to(address, answer)
            return
        info = ctx.members.get(request.member)
        if request.lite:
            self.demote(request)
            return
        if info is not None and info.lite:
            ctx.note("member_promoted", member=request.member)
            membership.install(with_lite(ctx.members, request.member, lite=False))
        self.answer(request.member, RoleChangeAnswered(request.call, "", "", ctx.members))

    def _refused(self, sender: MemberId, request: RoleChangeRequested) -> GridError | None:
        """Why the master, or who is taken for it, does not do it (GCM-19, GCM-20, GCM-26)."""
        membership, ctx = self._membership, self._ctx
        if not ctx.is_master:  # nor is a claimant, whose list begins with the old one
            word = (
                "its claim is still running" if membership.is_claiming else "it is not the master"
            )
            return IllegalStateError(f"member {ctx.me.address} does not decide this: {word}")
        info = ctx.members.get(request.member)
        if info is None or sender != request.member:
            return UsageError(f"there is no member {request.member} on the master's list")
        if info.lite == request.lite:
            return None  # done already: the present list is the answer, its version stays
        is_fixed = not ctx.state.migration_allowed or ctx.state.is_stable
        if request.member not in self.draining and is_fixed:
            forbids = "keeps its members" if ctx.state.is_stable else "forbids migrations"
            return IllegalStateError(
                f"the cluster state {ctx.state} {forbids}, so no member changes between "
                "lite and data; set the state ACTIVE first"
            )
        return None

    def answer(self, to: MemberId, answer: RoleChangeAnswered) -> None:
        """Answer a member of the list, ourselves included."""
        if to == self._ctx.id:
            self.on_answer(to, answer)
        else:
            self._ctx.send(to, answer)


def refused(request: RoleChangeRequested, error: GridError) -> RoleChangeAnswered:
    """The answer that tells an error."""
    return RoleChangeAnswered(request.call, problem_of(error), str(error), None)
