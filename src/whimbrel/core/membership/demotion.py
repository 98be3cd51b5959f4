"""The master's side of a demotion: drained like a leaver, then lite (FN-13).

A member to be demoted stands in ``ctx.leaving``, so that plans take its replicas away; when it is
in no row and all members know that, the list says that it is lite and the list is the answer.
Requests repeat, so a new master learns of them without a hand-over. A demotion that would leave
nobody to hold data is refused, or called off when the last other data member goes.
"""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.core.ids import MemberId
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.membership.role_change import RoleChanges, refused, with_lite
from whimbrel.core.messages import RoleChangeAnswered, RoleChangeRequested
from whimbrel.core.model import MemberInfo
from whimbrel.errors import IllegalStateError

LAST_DATA_MEMBER = "no other data member would be left to hold the data"


class Demotions:
    """Members that are drained to become lite."""

    def __init__(self, membership: MembershipState, roles: RoleChanges) -> None:
        """Begin with none.

        Args:
            membership: What the parts share.
            roles: Sends the answers.
        """
        self._membership = membership
        self._ctx = membership.ctx
        self._roles = roles
        self._wanted: dict[MemberId, RoleChangeRequested] = {}
        roles.demote = self.on_request
        roles.draining = self._wanted

    def on_request(self, request: RoleChangeRequested) -> None:
        """Drain a member, or go on with it; the request was vetted.

        A repeated request is also how the migration room is asked again.
        """
        membership, ctx = self._membership, self._ctx
        member = request.member
        info = ctx.members.get(member)
        if info is None or info.lite:
            self._roles.answer(member, RoleChangeAnswered(request.call, "", "", ctx.members))
            return
        if member not in self._wanted:
            if member in ctx.leaving:
                self._refuse(request, "the member is leaving")
                return
            if not self._staying(ctx.members.members, without=member):
                self._refuse(request, LAST_DATA_MEMBER)
                return
            ctx.leaving = (*ctx.leaving, member)
            ctx.note("demotion_requested", member=member)
        self._wanted[member] = request
        membership.on_leave_requested()

    def take(self, member: MemberId) -> bool:
        """A member is in no row any more: make it lite if that is what it waits for.

        Returns:
            False when it is no demotion; then it wants to leave.
        """
        request = self._wanted.get(member)
        if request is None:
            return False
        membership, ctx = self._membership, self._ctx
        if not membership.rules_over(member):
            return True
        self._forget(member)
        ctx.note("member_demoted", member=member)
        membership.install(with_lite(ctx.members, member, lite=True))
        self._roles.answer(member, RoleChangeAnswered(request.call, "", "", ctx.members))
        return True

    def before_leave(self, member: MemberId) -> None:
        """Somebody asks to leave: call off what cannot be done without it."""
        request = self._wanted.get(member)
        if request is not None:
            self._forget(member)
            self._refuse(request, "the member is leaving")
        if member not in self._ctx.leaving:
            self.before_list(self._ctx.members.members, without=member)

    def before_list(self, members: Iterable[MemberInfo], without: MemberId | None = None) -> None:
        """A new list is about to come: call the demotions off when nobody else holds data."""
        present = {info.id: None for info in members}
        for member in [member for member in self._wanted if member not in present]:
            self._forget(member)
        if not self._wanted or self._staying(members, without):
            return
        for member, request in list(self._wanted.items()):
            self._forget(member)
            self._refuse(request, LAST_DATA_MEMBER)

    def resign(self) -> None:
        """This member is not master; whoever is will be asked."""
        for member in list(self._wanted):
            self._forget(member)

    def _staying(self, members: Iterable[MemberInfo], without: MemberId | None) -> bool:
        """Whether some data member neither leaves nor is demoted."""
        leaving = self._ctx.leaving
        return any(
            not info.lite and info.id not in leaving and info.id != without for info in members
        )

    def _forget(self, member: MemberId) -> None:
        del self._wanted[member]
        self._ctx.leaving = tuple(item for item in self._ctx.leaving if item != member)

    def _refuse(self, request: RoleChangeRequested, reason: str) -> None:
        if self._ctx.is_member(request.member):
            answer = refused(request, IllegalStateError(f"it cannot become lite: {reason}"))
            self._roles.answer(request.member, answer)
