"""What the parts of membership share: the phase, the installed list, the ways out.

Knows how a member list is put in place (links, effects, callbacks, in this order) and how the
member ends. Does not know when any of this should happen; the parts decide.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.effects import LinkUnwanted, LinkWanted, MembersChanged, Stopped
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.detector import Detector
from whimbrel.core.membership.numbers import Numbers
from whimbrel.core.membership.split_brain import told_of
from whimbrel.core.messages import Census, MembersPublished, SuspicionTold
from whimbrel.core.model import LostStructure, MemberInfo, MemberList, structures_in_words
from whimbrel.core.persistence.metadata import ClusterFile
from whimbrel.core.ports import FilesHost

PUBLISH_TIMER = "membership.publish"
FORMER_ADDRESSES_MAX = 64
"""Addresses of removed members that a master goes on looking for; the oldest are forgotten."""
PROCESSES_OVER_MAX = 256
"""Removed processes whose late requests are known; the oldest are forgotten."""


class MemberPhase(enum.Enum):
    """Where the member stands in its life."""

    IDLE = "idle"
    SEEKING = "seeking"
    MEMBER = "member"
    ENDED = "ended"


class MembershipState:
    """State and callbacks of the membership of one member, for one incarnation."""

    def __init__(self, ctx: Context) -> None:
        """Start idle, with an empty list.

        Args:
            ctx: Shared with the other rooms; ``ctx.members`` is replaced only here.
        """
        self.ctx = ctx
        self.phase = MemberPhase.IDLE
        self.is_joined = False
        """Whether a list with us is installed on which we serve, and we are not expelled since."""
        self.files: FilesHost | None = None
        """What is kept on our disk; None where nothing is."""
        self.load_base: Callable[[Callable[[], None]], None] = lambda then: then()
        """Loads what our files have of our seats, before we return to a cluster that runs."""
        self.detector = Detector(ctx)
        self.numbers = Numbers(ctx)
        self.accepted: MemberId | None = None
        """The claimant whose claim we accepted and whose list we wait for."""
        self.is_claiming = False
        self.is_split = False
        """Whether we were expelled by a part of the cluster that had gone its own way (M6)."""
        self.gone_on: tuple[MemberId, ...] = ()
        """Once we are expelled: the members that go on without us; empty when nobody named them."""
        self.gone_on_at: tuple[Address, ...] = ()
        """Where these listen, their master first: the next incarnation looks there, too."""
        self.join_addresses: tuple[Address, ...] = ()
        """Where members may be: what we were configured with, and what was heard before us."""
        self.former: dict[Address, MemberId] = {}
        """Where removed members listened, unless they left gracefully; oldest first."""
        self.over: dict[tuple[MemberId, int], None] = {}
        """Processes (identity and start) that had come in and are no member any more, or whose
        place another took: a late request of theirs is old (M4)."""
        self._unseated: dict[MemberId, int] = {}
        """Listed members that may not know of it yet, with the version of the list that they came
        with; one that is removed before it knew may ask again under its identity."""
        self.parting: dict[MemberId, None] = {}
        """At the master: members that were told to go and are still on the list."""
        self.on_view_changed: Callable[[MemberList, MemberList], None] = lambda _old, _new: None
        self.on_became_master: Callable[[], None] = lambda: None
        self.on_leave_requested: Callable[[], None] = lambda: None
        self.on_joined: Callable[[], None] = lambda: None
        self.on_expelled: Callable[[str], None] = lambda _reason: None
        self.on_left: Callable[[], None] = lambda: None
        self.on_end_told: Callable[[MemberId], None] = lambda _member: None
        """Told of a member that has said what ends with it, while all leave; it is still listed."""
        self.on_end_seen: Callable[[], None] = lambda: None
        """Told before a list without somebody is installed, while all leave: it is gone with its
        data, though its goodbye may be slower than the news of its end."""
        self.discarded: Callable[[bool], tuple[LostStructure, ...]] = lambda _is_end: ()
        """Gives what ends with us; told whether all data members leave."""
        self.on_stopping: Callable[[], None] = lambda: None
        """Told that this member ends; what it emits goes before the end."""
        self.make_census: Callable[[], Census | None] = lambda: None
        """Gives what the next heartbeat tells the master of our entries."""
        self.on_census: Callable[[MemberId, Census], None] = lambda _member, _census: None
        self._links: dict[MemberId, Address] = {}

    @property
    def found(self) -> ClusterFile | None:
        """What cluster our files are of, as long as they are to be used."""
        return None if self.files is None else self.files.found

    @property
    def is_listed(self) -> bool:
        """Whether a list with us is installed, and we have not ended since."""
        return self.phase is MemberPhase.MEMBER

    # -- who rules ------------------------------------------------------------------------

    @property
    def taken_master(self) -> MemberId | None:
        """Whom we obey: ourselves while claiming, an accepted claimant, else the oldest."""
        if self.is_claiming:
            return self.ctx.id
        return self.accepted or self.ctx.master

    def rules_over(self, member: MemberId) -> bool:
        """Whether we are the master of a list with this member."""
        ctx = self.ctx
        return self.phase is MemberPhase.MEMBER and ctx.is_master and ctx.is_member(member)

    def older_than(self, member: MemberId) -> list[MemberId]:
        """Members of the installed list in front of ``member``, oldest first."""
        ids = self.ctx.members.ids()
        return list(ids[: ids.index(member)])

    def displaced_by(self, process: MemberInfo) -> MemberId | None:
        """The listed member whose address ``process`` has taken, or whose identity at that address.

        Two processes cannot listen at one address, so the listed one is dead (M4). A process
        that started earlier than the listed one displaces nobody: its message was late.
        """
        for info in self.ctx.members.members:
            if info.address != process.address or info.id == self.ctx.id:
                continue
            is_other = info.id != process.id or info.started_us != process.started_us
            if is_other and process.started_us >= info.started_us:
                return info.id
        return None

    def seat_taken(self, member: MemberId, list_version: int) -> None:
        """A listed member shows the version of its list: it knows that it came in."""
        if list_version >= self._unseated.get(member, list_version + 1):
            del self._unseated[member]

    # -- links ----------------------------------------------------------------------------

    def want_link(self, info: MemberInfo) -> None:
        """Ask for a link, once per member and address; never to ourselves."""
        if info.id != self.ctx.id and self._links.get(info.id) != info.address:
            self._links[info.id] = info.address
            self.ctx.emit(LinkWanted(info.id, info.address))

    def drop_link(self, member: MemberId) -> None:
        """Give a link up, if there is one."""
        if self._links.pop(member, None) is not None:
            self.ctx.emit(LinkUnwanted(member))

    # -- the list -------------------------------------------------------------------------

    def install(self, new: MemberList) -> None:
        """Replace the member list (M1) and tell everybody concerned.

        As master the new list is published to all, and those it no longer contains are told
        (M5), before their links close.

        Args:
            new: Higher in version than ours, and it contains us.

        Raises:
            InvariantViolation: It is not, it does not, or it names a member twice.
        """
        ctx, old = self.ctx, self.ctx.members
        mine = new.get(ctx.id)
        ids = new.ids()
        check(new.version > old.version, "member lists are installed in rising version order")
        check(len(dict.fromkeys(ids)) == len(ids), "no member stands twice in a member list")
        check(mine is not None, "an installed member list contains the installer")
        was_master = ctx.is_master
        removed = [info for info in old.members if new.get(info.id) is None]
        self._note_changes(old, new, removed)
        ctx.members = new
        ctx.me = mine if mine is not None else ctx.me
        ctx.leaving = tuple(member for member in ctx.leaving if new.get(member) is not None)
        self.parting = {item: None for item in self.parting if new.get(item) is not None}
        self.accepted = None
        self.is_claiming = False
        self.phase = MemberPhase.MEMBER
        for info in new.members:
            self.want_link(info)
        self.numbers.list_installed(old)
        if ctx.is_master:
            self.publish()
            for info in removed:
                if not self.detector.is_unreachable(info.id):
                    ctx.send(info.id, self.suspicion(info.id))
        for info in removed:
            self.drop_link(info.id)
        self.detector.sync()
        ctx.emit(MembersChanged())
        self._call_back(old, new, was_master)

    def publish(self, to: MemberId | None = None) -> None:
        """Send our list to all other members, or to one (ADL-10 for lists). Master only."""
        ctx = self.ctx
        check(ctx.is_master, "only the master publishes the member list")
        message = MembersPublished(ctx.members, self.numbers.word())
        if to is not None:
            ctx.send(to, message)
            return
        ctx.broadcast(message)
        ctx.arm(PUBLISH_TIMER, ctx.settings.member_list_publish_interval_us)

    def suspicion(self, to: MemberId) -> SuspicionTold:
        """What we tell somebody who is not on our list."""
        return told_of(self.ctx.members, to, self.ctx.settings.partition_count)

    def _note_changes(self, old: MemberList, new: MemberList, removed: list[MemberInfo]) -> None:
        for info in removed:
            why = self.detector.why(info.id)
            self.ctx.note("member_removed", "warning", member=info.id, why=why)
            if self._unseated.pop(info.id, None) is None or self.detector.is_over(info.id):
                self.over[info.id, info.started_us] = None
            if not self.detector.has_left(info.id):
                self.former.pop(info.address, None)
                self.former[info.address] = info.id
        if old.version and (old.state, old.cluster_version) != (new.state, new.cluster_version):
            self.ctx.note(
                "cluster_state_changed",
                before=old.state.value,
                state=new.state.value,
                cluster_version=new.cluster_version,
            )
        for info in new.members:
            self.former.pop(info.address, None)
            known = old.get(info.id)
            if known is None or known.started_us != info.started_us:
                self._unseated[info.id] = new.version
            if known is None and info.id != self.ctx.id:
                self.ctx.note("member_added", member=info.id, address=str(info.address))
        while len(self.former) > FORMER_ADDRESSES_MAX:
            del self.former[next(iter(self.former))]
        while len(self.over) > PROCESSES_OVER_MAX:
            del self.over[next(iter(self.over))]
        self.ctx.note(
            "members_installed", version=new.version, members=len(new.members), master=new.master
        )

    def _call_back(self, old: MemberList, new: MemberList, was_master: bool) -> None:
        self.on_view_changed(old, new)
        if not self.is_joined and new.recovery is None:
            self.is_joined = True
            self.on_joined()
        if self.ctx.is_master and not was_master:
            self.ctx.note("became_master", version=new.version)
            self.on_became_master()

    # -- ways out -------------------------------------------------------------------------

    def stop(self, reason: str, exit_status: int, *, is_end: bool = False) -> None:
        """End: the shell is told why, and what ends with us. Nothing is done or answered any more.

        Args:
            reason: In words.
            exit_status: 0 after a graceful leave.
            is_end: Whether all data members leave.
        """
        self.phase = MemberPhase.ENDED
        self.on_stopping()
        self.ctx.note("stopped", "info" if exit_status == 0 else "error", reason=reason)
        gone = self.discarded(is_end)
        if gone:
            entries = sum(one.entries or 0 for one in gone)
            words = structures_in_words(gone)
            self.ctx.note("discarded", "warning", entries=entries, structures=words)
        self.ctx.emit(Stopped(reason, exit_status, gone))

    def expel(self, reason: str) -> None:
        """End: the cluster goes on without us (M5); the callback tells the member."""
        self.phase = MemberPhase.ENDED
        self.is_joined = False
        self.ctx.note("expelled", "error", reason=reason)
        self.on_expelled(reason)
