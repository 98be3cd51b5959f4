"""The master's side of joining: who is let in, and the window that gathers joiners.

Joins are gathered because each new list costs the whole cluster a plan: ten members that start
together should make one list, not ten.
"""

from __future__ import annotations

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.room import Room
from whimbrel.core.messages import JoinRefused, JoinRequested, ProbeAnswered
from whimbrel.core.model import MemberInfo, MemberList

JOIN_TIMER = "membership.join"
JOINERS_MAX = 1_000
"""Joiners that wait for the window to close; more are asked to try again."""


class Joining:
    """Takes join requests; every member answers them, only the master admits."""

    def __init__(self, room: Room) -> None:
        """Begin with nobody waiting."""
        self._room = room
        self._waiting: dict[MemberId, JoinRequested] = {}
        self._first_us = 0

    def on_request(self, request: JoinRequested) -> None:
        """Refuse, redirect to the master, answer a repetition, or put on the waiting list."""
        room, ctx = self._room, self._room.ctx
        joiner = request.joiner
        if not ctx.is_master:
            self._redirect(joiner)
            return
        refusal = self._objection(request)
        if refusal:
            ctx.note("join_refused", "warning", joiner=joiner.id, reason=refusal)
            ctx.send_to(joiner.address, JoinRefused(refusal, True, joiner.id))
            return
        if ctx.is_member(joiner.id):
            self._on_repetition(joiner)
            return
        displaced = room.displaced_by(joiner)
        if displaced is not None:
            room.detector.gone(displaced, "a new process took its address")
        if joiner.id not in self._waiting and len(self._waiting) >= JOINERS_MAX:
            refused = JoinRefused("too many members join now", False, joiner.id)
            ctx.send_to(joiner.address, refused)
            return
        self._put_waiting(request)

    def forget(self, member: MemberId) -> None:
        """A waiting joiner says that it goes."""
        self._waiting.pop(member, None)

    def on_timer(self) -> None:
        """The window closes: all who wait come on one new list, in the order of their requests."""
        ctx = self._room.ctx
        waiting, self._waiting = self._waiting, {}
        if not ctx.is_master:
            return
        taken = {info.address for info in ctx.members.members}
        joiners = [
            request.joiner
            for request in waiting.values()
            if not ctx.is_member(request.joiner.id) and request.joiner.address not in taken
        ]
        if not joiners:
            return
        members = ctx.members
        self._room.install(
            MemberList(members.version + 1, (*members.members, *joiners), members.cluster_id)
        )

    # -- cases ----------------------------------------------------------------------------

    def _redirect(self, joiner: MemberInfo) -> None:
        ctx = self._room.ctx
        master = self._room.taken_master
        info = ctx.members.get(master) if master is not None else None
        ctx.send_to(joiner.address, ProbeAnswered(ctx.settings.cluster_name, ctx.me, info))

    def _objection(self, request: JoinRequested) -> str:
        """Why the joiner can never come in, as a sentence; empty when it may."""
        ctx, joiner = self._room.ctx, request.joiner
        settings = ctx.settings
        listed = ctx.members.get(joiner.id)
        if request.cluster_name != settings.cluster_name:
            return (
                f"this is cluster {settings.cluster_name!r}, not {request.cluster_name!r}"
                " (cluster name)"
            )
        if request.partition_count != settings.partition_count:
            return (
                f"this cluster has {settings.partition_count} partitions,"
                f" the joiner {request.partition_count} (partition count)"
            )
        if listed is not None and listed.address != joiner.address:
            return f"a member at {listed.address} has the id {joiner.id} already (duplicate id)"
        if listed is None and joiner.address == ctx.me.address:
            return f"the address {joiner.address} is the master's own (duplicate address)"
        return ""

    def _on_repetition(self, joiner: MemberInfo) -> None:
        """A listed member asks again: its list got lost, or a new process has its identity.

        Such a process has none of the data that the table says it has, so it is removed first
        and comes in with its next request (M4).
        """
        if joiner.id == self._room.ctx.id:
            return
        listed = self._room.ctx.members.get(joiner.id)
        if listed is not None and listed.started_us == joiner.started_us:
            self._room.publish(joiner.id)
        elif self._room.displaced_by(joiner) is not None:
            self._room.detector.gone(joiner.id, "a new process has its identity")

    def _put_waiting(self, request: JoinRequested) -> None:
        """Add the joiner and close the window soon, but not later than its maximum."""
        ctx = self._room.ctx
        joiner = request.joiner
        is_new = joiner.id not in self._waiting
        self._drop_address(joiner.address, except_for=joiner.id)
        if not self._waiting:
            self._first_us = ctx.now_us
        self._waiting[joiner.id] = request
        if is_new or not ctx.is_armed(JOIN_TIMER):
            left_us = self._first_us + ctx.settings.join_window_max_us - ctx.now_us
            ctx.arm(JOIN_TIMER, min(ctx.settings.join_window_us, left_us))

    def _drop_address(self, address: Address, except_for: MemberId) -> None:
        for member, request in list(self._waiting.items()):
            if request.joiner.address == address and member != except_for:
                del self._waiting[member]
