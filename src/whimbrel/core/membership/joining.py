"""The master's side of joining: who is let in, and the window that gathers joiners.

Joins are gathered because each new list costs the whole cluster a plan: ten members that start
together should make one list, not ten. Meanwhile every member is told who is about to come, and
nobody comes before all have noted it: if the master dies with its new list, they know whom to ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.detector import ADDRESS_TAKEN, IDENTITY_TAKEN
from whimbrel.core.membership.membership_state import MemberPhase, MembershipState
from whimbrel.core.messages import (
    JoinersNoted,
    JoinersTold,
    JoinRefused,
    JoinRequested,
    MembersPublished,
    ProbeAnswered,
)
from whimbrel.core.model import ClusterState, MemberInfo

JOIN_TIMER = "membership.join"
JOINERS_MAX = 1_000
"""Joiners that wait for the window to close; more are asked to try again."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A joiner that waits for the window to close."""

    joiner: MemberInfo
    files: str
    """Id of the cluster that it has files of, empty for none."""
    files_version: int
    """Version of the list in them."""
    cause: str
    """Of its first request."""
    noted: dict[MemberId, int] = field(default_factory=dict)
    """The members that know of it, with the start of their process."""


class Joining:
    """Takes join requests; every member answers them, only the master admits."""

    def __init__(self, membership: MembershipState) -> None:
        """Begin with nobody waiting."""
        self._membership = membership
        self._ctx = membership.ctx
        self._waiting: dict[MemberId, _Waiting] = {}
        self._first_us = 0
        self._is_due = False
        """Whether the window is closed, and only notes are missing."""
        self._forbidden: dict[MemberId, str] = {}
        """Joiners that were told to come later, and why, so that each is noted once."""

    def on_request(self, request: JoinRequested) -> None:
        """Refuse, redirect to the master, answer a repetition, or put on the waiting list."""
        membership, ctx = self._membership, self._ctx
        joiner = request.joiner
        if not ctx.is_master:
            self._redirect(joiner)
            return
        refusal = self._objection(request)
        if refusal:
            ctx.note("join_refused", "warning", joiner=joiner.id, reason=refusal)
            ctx.send_to(joiner.address, JoinRefused(refusal, True, joiner.id))
            return
        if (joiner.id, joiner.started_us) in membership.over:
            return  # sent before its end, on a connection that was slower
        if ctx.is_member(joiner.id):
            self._on_repetition(joiner)
            return
        displaced = membership.displaced_by(joiner)
        if displaced is not None:
            membership.detector.gone(displaced, ADDRESS_TAKEN)
        if not self._may_join(joiner, request.files, request.files_version):
            self._forbid(joiner, request.files)
            return
        if request.files and not request.has_loaded and ctx.members.recovery is None:
            # Once it is on the list it is sent what it lacks, so it has to know that before.
            awaited = JoinRefused("it has files to load first", False, joiner.id, is_awaited=True)
            ctx.send_to(joiner.address, awaited)
            return
        if joiner.id not in self._waiting and len(self._waiting) >= JOINERS_MAX:
            refused = JoinRefused("too many members join now", False, joiner.id)
            ctx.send_to(joiner.address, refused)
            return
        self._put_waiting(joiner, request.files, request.files_version)

    def forget(self, member: MemberId) -> None:
        """A waiting joiner says that it goes, or is not to come any more."""
        self._waiting.pop(member, None)

    def on_noted(self, sender: MemberId, noted: JoinersNoted) -> None:
        """A member knows of these joiners; what it knows of earlier processes counts nothing."""
        member = self._ctx.members.get(sender)
        if member is None:
            return
        for info in noted.joiners:
            waiting = self._waiting.get(info.id)
            if waiting is not None and waiting.joiner == info:
                waiting.noted[sender] = member.started_us

    def on_timer(self) -> None:
        """The window closes: all who wait and are known to everybody come on one new list."""
        if not self._ctx.is_master:
            self._waiting.clear()
            return
        self._is_due = True
        self._admit()
        if self._waiting:
            self._first_us = self._ctx.now_us
            self._tell(self._waiting.values())
            self._ctx.arm(JOIN_TIMER, self._ctx.settings.call_timeout_us)

    def follow(self) -> None:
        """A note came or a member went: admit if only that was missing."""
        is_ready = self._is_due and bool(self._waiting) and self._ctx.is_master
        if is_ready and not any(map(self._unaware, self._waiting.values())):
            self._admit()

    def _admit(self) -> None:
        """Put those who are known to everybody on one new list, in the order of their requests."""
        taken = {info.address for info in self._ctx.members.members}
        for member, waiting in list(self._waiting.items()):
            is_in = self._ctx.is_member(member) or waiting.joiner.address in taken
            may_join = self._may_join(waiting.joiner, waiting.files, waiting.files_version)
            if is_in or not (may_join or self._is_changing()):
                self.forget(member)
        noted = [waiting for waiting in self._waiting.values() if not self._unaware(waiting)]
        # Who was told to go counts on this list: a joiner could take data that goes with it.
        if not noted or self._membership.parting or self._is_changing():
            return
        self._ctx.resume(noted[0].cause)
        joiners = [waiting.joiner for waiting in noted]
        for info in joiners:
            self.forget(info.id)
        members = self._ctx.members
        self._membership.install(members.with_members((*members.members, *joiners)))

    def show_list(self, prober: MemberInfo) -> None:
        """Give our list to a member of it that never got it and is next to rule.

        Its master died with the list on its way. Nobody younger may claim while that member is
        heard, and its probes are heard; so it has to claim, and needs the list for that (M5, L1).
        The order of the list names who is shown it: one whose elders are all suspected.
        """
        membership, ctx = self._membership, self._ctx
        if (
            membership.phase is not MemberPhase.MEMBER
            or membership.is_claiming
            or membership.accepted is not None
        ):
            return
        listed = ctx.members.get(prober.id)
        if listed is None or listed.started_us != prober.started_us or prober.id == ctx.master:
            return
        if all(map(membership.detector.is_suspected, membership.older_than(prober.id))):
            ctx.send_to(prober.address, MembersPublished(ctx.members))

    # -- who may --------------------------------------------------------------------------

    def _is_changing(self) -> bool:
        """Whether the cluster state is just changing: nobody is admitted nor refused (GCM-08)."""
        return self._ctx.state is ClusterState.IN_TRANSITION

    def _may_join(self, joiner: MemberInfo, files: str, files_version: int) -> bool:
        """Whether the joiner is let in now.

        A recovery takes whoever has files of its cluster, as long as nobody has rows; and who has
        none though it is expected: it died before it had any, or left, and holds nothing. Else the
        state decides, which a missing member does not need to allow (GCM-09). With files it takes
        only who is missing, and took part in the last recovery if there was one: all other files
        are of the cluster's past (APR-14, APR-39).
        """
        members = self._ctx.members
        if members.recovery is not None:
            is_expected = any(info.id == joiner.id for info in members.recovery.expected)
            is_of_it = files == members.cluster_id or (not files and is_expected)
            return is_of_it and not members.recovery.order
        is_awaited = (
            files == members.cluster_id
            and files_version >= members.recovered
            and not members.state.join_allowed
        )
        return self._state_admits(joiner) and (not files or is_awaited)

    def _state_admits(self, joiner: MemberInfo) -> bool:
        return self._ctx.state.join_allowed or (
            not self._is_changing() and self._ctx.members.may_return(joiner.id)
        )

    def _forbid(self, joiner: MemberInfo, files: str) -> None:
        """Tell a joiner that it cannot come in now (GCM-05), and why; it will ask again.

        In STABLE_CLUSTER it need not: the cluster is as it is meant to be (APR-32, APR-33).
        """
        if self._is_changing():
            return
        members, is_stale, is_final = self._ctx.members, False, False
        if members.recovery is not None:
            reason = (
                f"cluster {members.cluster_id} comes back from its files: members without files "
                "of it come in when it runs"
            )
        elif files and self._state_admits(joiner):
            is_stale = True
            reason = (
                f"the cluster has gone on without this member, whose files of cluster {files} are "
                "stale"
            )
        else:
            reason = f"the cluster state is {members.state}: only members that are missing may join"
            is_final = members.state.is_stable
        if self._forbidden.get(joiner.id) != reason:
            self._forbidden.pop(joiner.id, None)
            self._forbidden[joiner.id] = reason
            self._ctx.note("join_refused", "warning", joiner=joiner.id, reason=reason)
            while len(self._forbidden) > JOINERS_MAX:
                del self._forbidden[next(iter(self._forbidden))]
        is_recovering = members.recovery is not None
        refused = JoinRefused(reason, is_final, joiner.id, is_stale, is_recovering)
        self._ctx.send_to(joiner.address, refused)

    # -- who knows ------------------------------------------------------------------------

    def _unaware(self, waiting: _Waiting) -> list[MemberId]:
        """Members that have to know of a waiting joiner and do not; suspected ones do not count."""
        membership, noted = self._membership, waiting.noted
        return [
            info.id
            for info in self._ctx.members.members
            if info.id != self._ctx.id
            and noted.get(info.id) != info.started_us
            and not membership.detector.is_suspected(info.id)
        ]

    def has_data_joiner(self) -> bool:
        """Whether somebody waits who can hold data."""
        return any(not waiting.joiner.lite for waiting in self._waiting.values())

    def _tell(self, those: Iterable[_Waiting]) -> None:
        """Tell every member of the joiners that it does not know, in one message."""
        unaware: dict[MemberId, list[MemberInfo]] = {}
        for waiting in those:
            for member in self._unaware(waiting):
                unaware.setdefault(member, []).append(waiting.joiner)
        for member, joiners in unaware.items():
            self._ctx.send(member, JoinersTold(tuple(joiners)))

    # -- cases ----------------------------------------------------------------------------

    def _redirect(self, joiner: MemberInfo) -> None:
        ctx = self._ctx
        master = self._membership.taken_master
        info = ctx.members.get(master) if master is not None else None
        ctx.send_to(joiner.address, ProbeAnswered(ctx.settings.cluster_name, ctx.me, info))

    def _objection(self, request: JoinRequested) -> str:
        """Why the joiner can never come in, as a sentence; empty when it may."""
        ctx, joiner = self._ctx, request.joiner
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
        members = ctx.members
        if members.recovery is None and request.files not in (
            "",
            members.cluster_id,
            members.given_up,
        ):
            return (
                f"this is cluster {members.cluster_id}, the joiner has files of cluster "
                f"{request.files} (cluster id)"
            )
        return ""

    def _on_repetition(self, joiner: MemberInfo) -> None:
        """A listed member asks again: its list got lost, or a new process has its identity.

        Such a process has none of the data that the table says it has, so it is removed first
        and comes in with its next request (M4).
        """
        if joiner.id == self._ctx.id:
            return
        listed = self._ctx.members.get(joiner.id)
        if listed is not None and listed.started_us == joiner.started_us:
            self._membership.publish(joiner.id)
        elif self._membership.displaced_by(joiner) is not None:
            self._membership.detector.gone(joiner.id, IDENTITY_TAKEN)

    def _put_waiting(self, joiner: MemberInfo, files: str, files_version: int) -> None:
        """Add the joiner and close the window soon, but not later than its maximum."""
        waiting = self._waiting.get(joiner.id)
        is_new = waiting is None
        self._drop_address(joiner.address, except_for=joiner.id)
        if not self._waiting:
            self._first_us = self._ctx.now_us
        if waiting is None or waiting.joiner != joiner:
            cause = self._ctx.cause if waiting is None else waiting.cause
            waiting = self._waiting[joiner.id] = _Waiting(joiner, files, files_version, cause)
        waiting.files, waiting.files_version = files, files_version
        self._tell([waiting])
        if is_new:
            self._is_due = False
        if is_new or not self._ctx.is_armed(JOIN_TIMER):
            left_us = self._first_us + self._ctx.settings.join_window_max_us - self._ctx.now_us
            self._ctx.arm(JOIN_TIMER, min(self._ctx.settings.join_window_us, left_us))

    def _drop_address(self, address: Address, except_for: MemberId) -> None:
        for member, waiting in list(self._waiting.items()):
            if waiting.joiner.address == address and member != except_for:
                self.forget(member)
