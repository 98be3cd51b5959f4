"""The membership room: takes what comes in, passes it to its part, and draws the consequences.

After every step ``_react`` compares suspicions with the list: the master removes whom it suspects,
the oldest trusted member claims mastership, a claim whose reason is gone is abandoned. So no part
needs to know what follows from its findings.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec

from whimbrel.core import messages as m
from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.claim import CLAIM_TIMER, Claim
from whimbrel.core.membership.cluster_state import (
    CHANGE_TIMER,
    LOCK_TIMER,
    ClusterStates,
    StateChangeResult,
    Table,
)
from whimbrel.core.membership.demotion import Demotions
from whimbrel.core.membership.detector import ADDRESS_TAKEN, LEFT
from whimbrel.core.membership.discovery import DISCOVERY_TIMER, Discovery
from whimbrel.core.membership.expulsion import SEARCH_TIMER, Expulsion
from whimbrel.core.membership.heartbeats import HEARTBEAT_TIMER, Heartbeats
from whimbrel.core.membership.joining import JOIN_TIMER, Joining
from whimbrel.core.membership.leaving import GRACE_TIMER, LEAVE_TIMER, Leaving
from whimbrel.core.membership.membership_state import PUBLISH_TIMER, MemberPhase, MembershipState
from whimbrel.core.membership.pending_joiners import PendingJoiners
from whimbrel.core.membership.role_change import ROLE_TIMER, RoleChanges, Then
from whimbrel.core.membership.split_brain import told_of
from whimbrel.core.messages import Message
from whimbrel.core.model import ClusterState, MemberList, members_left

Handlers = dict[type[Message], Callable[[MemberId, Address, Any], None]]
"""Who takes a message, given its sender and where it listens; each its own type."""


class Membership(MembershipState):
    """The membership of one member; owns ``ctx.members``.

    The member sets the callbacks of ``MembershipState`` that it needs and feeds stimuli; every
    method is one bounded step. An ended member (left, expelled, given up) takes no notice of
    anything.
    """

    def __init__(self, ctx: Context, table: Table) -> None:
        """Build the parts; nothing happens before ``on_started``.

        Args:
            ctx: Shared with the other rooms.
            table: What a change of the cluster state asks: the migration room.
        """
        super().__init__(ctx)
        ctx.me = msgspec.structs.replace(ctx.me, started_us=ctx.started_us)
        self.heartbeats = Heartbeats(self)
        self.discovery = Discovery(self)
        self.joining = Joining(self)
        self.pending_joiners = PendingJoiners(self)
        self.claim = Claim(self, self.pending_joiners)
        self.roles = RoleChanges(self)
        self.demotions = Demotions(self, self.roles)
        self.leave = Leaving(self, self.joining, self.demotions)
        self.expulsion = Expulsion(self, self.heartbeats)
        self.states = ClusterStates(self, table)
        seeking: Handlers = {
            m.ProbeRequested: self._on_probe,
            m.ProbeAnswered: self.discovery.on_answer,
            m.JoinRefused: self.discovery.on_refused,
            m.MembersPublished: self._on_first_list,
            m.Heartbeat: self.discovery.on_heartbeat,
            m.ClaimRequested: self.discovery.on_claim,
            m.LeaveOrdered: self._on_leave_ordered,
        }
        joined: Handlers = {
            m.ProbeRequested: self._on_probe,
            m.ProbeAnswered: self.expulsion.on_answer,
            m.JoinRequested: self._on_join_requested,
            m.MembersPublished: self._on_members,
            m.Heartbeat: self._on_heartbeat,
            m.SuspicionTold: self._on_suspicion,
            m.ClaimRequested: self._on_claim,
            m.ClaimAnswered: self._on_claim_answered,
            m.LeaveOrdered: self._on_leave_ordered,
            m.GoodbyeTold: self._on_goodbye,
            m.RoleChangeRequested: self.roles.on_request,
        }
        self._listed: dict[type[Message], Callable[[MemberId, Any], None]] = {
            m.JoinersTold: self.pending_joiners.on_told,
            m.JoinersNoted: self.joining.on_noted,
            m.LeaveRequested: self.leave.on_request,
            m.LeaveAllowed: self.leave.on_allowed,
            m.RoleChangeAnswered: self.roles.on_answer,
            m.StateLockRequested: self.states.on_lock_requested,
            m.StateLockAnswered: self.states.on_lock_answered,
            m.StateUnlockRequested: self.states.on_unlock_requested,
            m.StateUnlockAnswered: self.states.on_answered,
            m.StateConfirmRequested: self.states.on_confirm_requested,
            m.StateConfirmAnswered: self.states.on_answered,
        }
        joined |= dict.fromkeys(self._listed, self._on_listed)  # from our list's members only
        self._takers = {MemberPhase.SEEKING: seeking, MemberPhase.MEMBER: joined}
        """Of each phase that listens, who takes what; the rest is nothing to it."""
        self._timers: dict[str, Callable[[], None]] = {
            DISCOVERY_TIMER: self.discovery.on_timer,
            HEARTBEAT_TIMER: self.heartbeats.on_timer,
            JOIN_TIMER: self.joining.on_timer,
            CLAIM_TIMER: self.claim.on_timer,
            LEAVE_TIMER: self.leave.on_timer,
            GRACE_TIMER: self.leave.on_grace_over,
            PUBLISH_TIMER: self._on_publish_timer,
            ROLE_TIMER: self.roles.on_timer,
            SEARCH_TIMER: self.expulsion.on_timer,
            LOCK_TIMER: self.states.on_lock_timer,
            CHANGE_TIMER: self.states.on_change_timer,
        }

    # -- stimuli --------------------------------------------------------------------------

    def on_started(
        self, join_addresses: tuple[Address, ...], heard: tuple[Address, ...] = ()
    ) -> None:
        """Begin discovery. A second start is ignored.

        Args:
            join_addresses: Where members may be; our own and dead ones may be among them.
            heard: Where the members listen that the incarnation before this one gave way to.
        """
        if self.phase is not MemberPhase.IDLE:
            return
        self.phase = MemberPhase.SEEKING
        self.join_addresses = tuple(dict.fromkeys((*heard, *join_addresses)))
        self.discovery.start(join_addresses, heard)
        self._react()

    def on_message(self, sender: MemberId, address: Address, message: Message) -> None:
        """Take a membership message of anybody, on our list or not.

        Args:
            sender: Who sent it, as told in the link's greeting.
            address: Where the sender listens.
            message: One of the types of the membership part of ``core.messages``.
        """
        takers = self._takers.get(self.phase)
        if takers is None:
            return
        is_ours = isinstance(message, m.MembershipMessage)
        check(is_ours, "the membership room is given membership messages only")
        self._notice_pause()
        self.detector.heard(sender)
        take = takers.get(type(message))
        if take is not None:
            take(sender, address, message)
        self._react()

    def on_timer(self, key: str) -> None:
        """A timer of ours fired, in its current generation."""
        if self.phase in (MemberPhase.IDLE, MemberPhase.ENDED):
            return
        check(key in self._timers, "the membership room is given membership timers only")
        self._notice_pause()
        self._timers[key]()
        self._react()

    def _notice_pause(self) -> None:
        """Begin a claim anew after a long pause: who agreed to it may have gone on since.

        Their answers are read first and their later words after them. A list made of the former
        would be newer than that of the master they follow, and take its members from it.
        """
        if self.heartbeats.notice_pause():
            self.claim.abandon()

    def on_link_failed(self, member: MemberId) -> None:
        """The link to a member broke and cannot be made again: it is suspected at once."""
        if self.phase is MemberPhase.MEMBER:
            self.detector.link_failed(member)
            self.claim.on_link_failed(member)
            self._react()

    def on_link_restored(self, member: MemberId) -> None:
        """A link stands again; what was lost on the way may have been our list."""
        if self.phase is MemberPhase.MEMBER:
            self.detector.link_restored(member)
            self._react()
            if self.rules_over(member):
                self.publish(member)
                self.states.link_restored(member)

    def on_address_unreachable(self, address: Address) -> None:
        """Nobody was reached at an address that a message was sent to."""
        if self.phase is MemberPhase.SEEKING:
            self.discovery.on_unreachable(address)

    # -- the member's wishes --------------------------------------------------------------

    def want_leave(self) -> None:
        """Leave gracefully; ends in ``on_left`` and the effect ``Stopped("left", 0)``."""
        self.leave.want()

    def allow_leave(self, member: MemberId) -> None:
        """The migration room says that a leaving member is in no row any more.

        One that is to become lite becomes it; the others may go.
        """
        if not self.demotions.take(member):
            self.leave.allow(member)

    def want_role(self, lite: bool, then: Then) -> None:
        """Become lite or a data member; ``then`` is told how it ended. See ``RoleChanges``."""
        self.roles.want(lite, then)
        self._react()

    def change_cluster(
        self, wish: str, state: ClusterState | None = None, cluster_version: str | None = None
    ) -> StateChangeResult:
        """As master, change what the whole cluster agreed on (GCM-11, PIM-44).

        Asked again under the same name it tells what has become of the wish; nothing is begun
        twice. Anybody but the master refuses.

        Args:
            wish: A name that no other wish has.
            state: The new cluster state; None leaves it.
            cluster_version: The new version of the cluster; None leaves it.
        """
        result = self.states.change(wish, state, cluster_version)
        self._react()
        return result

    # -- consequences ---------------------------------------------------------------------

    def install(self, new: MemberList) -> None:
        """As in ``MembershipState``; the first list also ends discovery and starts the
        heartbeats.
        """
        is_first = self.phase is MemberPhase.SEEKING
        if is_first:
            self.ctx.disarm(DISCOVERY_TIMER)
        if self.leave.is_end and members_left(self.ctx.members, new):
            self.on_end_seen()
        self.states.before_list(new)
        if new.master == self.ctx.id:
            self.demotions.before_list(new.members)
        else:
            self.demotions.resign()
        super().install(new)
        self.pending_joiners.forget_listed()
        if is_first and self.phase is MemberPhase.MEMBER:
            self.heartbeats.beat()
            self.expulsion.start()
        self.states.after_list()

    def stop(self, reason: str, exit_status: int, *, is_end: bool = False) -> None:
        """As in ``MembershipState``; nobody waits any longer for this member to change."""
        self.roles.give_up(f"this member has ended: {reason}")
        super().stop(reason, exit_status, is_end=is_end)

    def expel(self, reason: str) -> None:
        """As in ``MembershipState``; a member that was on its way out anyway just ends."""
        if self.leave.is_wanted:
            self.stop(f"expelled while leaving: {reason}", 1)
        else:
            self.roles.give_up(f"this member was expelled: {reason}")
            super().expel(reason)

    def _react(self) -> None:
        if self.phase is not MemberPhase.MEMBER:
            return
        ctx = self.ctx
        # Not ``older_than``: this runs with every message, and the first one is hardly suspected.
        older = takewhile(lambda member: member != ctx.id, ctx.members.ids())
        if ctx.is_master:
            self._remove_suspected()
        elif all(map(self.detector.is_suspected, older)):
            self.claim.pursue()
        else:
            self.claim.abandon()
        self.claim.reconsider()
        self.joining.follow()
        self.leave.follow()
        self.roles.follow()

    def _remove_suspected(self) -> None:
        """Only the master removes members, all that it suspects in one new list."""
        suspected, members = self.detector.suspected(), self.ctx.members
        if suspected:
            kept = tuple(info for info in members.members if info.id not in suspected)
            self.install(members.with_members(kept))

    def _on_publish_timer(self) -> None:
        if self.phase is MemberPhase.MEMBER and self.ctx.is_master:
            self.publish()

    # -- messages -------------------------------------------------------------------------

    def _on_listed(self, sender: MemberId, address: Address, message: Message) -> None:
        if self.ctx.is_member(sender):
            self._listed[type(message)](sender, message)

    def _on_probe(self, sender: MemberId, address: Address, probe: m.ProbeRequested) -> None:
        ctx = self.ctx
        if probe.cluster_name != ctx.settings.cluster_name:
            ctx.note("foreign_probe", "warning", address=str(address), name=probe.cluster_name)
        files = ""
        if self.phase is MemberPhase.SEEKING:
            self.discovery.on_probe(probe)
            files = self.discovery.files
        if probe.sender.id == ctx.id:
            return
        displaced = self.displaced_by(probe.sender)
        if displaced is not None:
            self.detector.gone(displaced, ADDRESS_TAKEN)
        # While joined we always name somebody: "none" would let the prober found a cluster.
        master = self.taken_master
        info = None if master is None else ctx.members.get(master)
        answer = m.ProbeAnswered(ctx.settings.cluster_name, ctx.me, info, probe.asked, files)
        ctx.send_to(probe.sender.address, answer)
        self.joining.show_list(probe.sender)

    def _on_join_requested(
        self, sender: MemberId, address: Address, request: m.JoinRequested
    ) -> None:
        self.claim.on_seeking(request.joiner, request.claim)
        self.joining.on_request(request)

    def _is_concluded_claim(self, sender: MemberId, new: MemberList) -> bool:
        """Whether this is the list of a claim that we agreed to and do not wait for any longer.

        Who claims lists nobody that did not agree. If it was silent meanwhile, for a pause, we
        suspected it and forgot; now it is heard, and we follow it if we would agree again.
        """
        return (
            self.accepted is None
            and new.master == sender
            and new.version > self.ctx.members.version
            and new.get(self.ctx.id) is not None
            and self.claim.may_follow(sender)
        )

    def _on_first_list(
        self, sender: MemberId, address: Address, message: m.MembersPublished
    ) -> None:
        """Install the list that ends our search, if we are in it.

        An entry with another start is that of a process before us (M4). Others than the master
        show it only to whom it is to be followed by (``Joining.show_list``).
        """
        new = message.list
        mine = new.get(self.ctx.id)
        is_ours = mine is not None and mine.started_us == self.ctx.started_us
        if is_ours and new.get(sender) is not None and self.discovery.may_install(new):
            self.install(new)
            self.numbers.on_asked(message.numbers)

    def _on_members(self, sender: MemberId, address: Address, message: m.MembersPublished) -> None:
        """Install a list: from our master, newer than ours, with us in it (M1)."""
        new, ours = message.list, self.ctx.members
        if sender != self.taken_master and not self._is_concluded_claim(sender, new):
            # Having agreed to a claim we wait for its outcome before we judge anybody.
            if self.accepted is None and not self.is_claiming and new.version > ours.version:
                self.expulsion.tell(sender, address)
            return
        if new.version == ours.version:
            check(new == ours, "two member lists of one master and version are the same")
        if new.version > ours.version:
            if new.get(self.ctx.id) is None:
                self.expulsion.on_told(sender, address, told_of(new))
                return
            self.install(new)
        self.numbers.on_asked(message.numbers)

    def _on_heartbeat(self, sender: MemberId, address: Address, beat: m.Heartbeat) -> None:
        member = self.ctx.members.get(sender)
        if member is None:
            self.expulsion.answer(sender, address, beat.list_version)
            return
        self.seat_taken(sender, beat.list_version)
        self.numbers.on_told(member, beat.told)
        if sender == self.taken_master:
            self.numbers.on_asked(beat.asked)
        if beat.census is not None:
            self.on_census(sender, beat.census)
        self.claim.on_heartbeat(sender, beat.master)
        if self.ctx.is_master and beat.list_version < self.ctx.members.version:
            self.publish(sender)

    def _on_suspicion(self, sender: MemberId, address: Address, told: m.SuspicionTold) -> None:
        self.expulsion.on_told(sender, address, told)

    def _on_claim(self, sender: MemberId, address: Address, request: m.ClaimRequested) -> None:
        if self.ctx.is_member(sender):
            self.claim.on_request(sender, request)
        else:
            self.expulsion.answer(sender, address, request.list_version)

    def _on_claim_answered(
        self, sender: MemberId, address: Address, answer: m.ClaimAnswered
    ) -> None:
        if not self.claim.on_answer(sender, answer):
            self.expulsion.on_told(sender, address, told_of(answer.list))

    def _on_leave_ordered(self, sender: MemberId, address: Address, order: m.LeaveOrdered) -> None:
        if order.member == self.ctx.id:
            self.leave.want()

    def _on_goodbye(self, sender: MemberId, address: Address, goodbye: m.GoodbyeTold) -> None:
        if goodbye.member == sender:
            if goodbye.is_end:
                self.on_end_told(sender)
            self.detector.gone(sender, LEFT)
            self.joining.forget(sender)
            leaver = self.ctx.members.get(sender)
            if leaver is not None:
                self.numbers.on_goodbye(leaver, goodbye.numbers)
