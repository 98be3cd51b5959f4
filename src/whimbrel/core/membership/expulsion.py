"""Those who are not on our list, and lists that we are not on (M5, M6).

Knows when to tell somebody that the cluster goes on without it, when to believe that about
ourselves, and how a part of the cluster that was lost sight of is looked for. When two parts
that went separate ways meet, the weaker one gives way: fewer members, then the lower list version,
then the greater id of its master. Both sides compute the same from one list each. Two lists without
a common member are a split: then ``parts`` decides. What the weaker part held is merged then, and
also where each had removed the other's master (``split_brain.is_split``).
"""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.membership.detector import FOLLOWS_ANOTHER
from whimbrel.core.membership.heartbeats import Heartbeats
from whimbrel.core.membership.membership_state import MembershipState
from whimbrel.core.membership.split_brain import is_apart, is_split, is_weaker
from whimbrel.core.messages import ProbeAnswered, ProbeRequested, SuspicionTold

SEARCH_TIMER = "membership.search"
TOLD_MAX = 1_000
"""Strangers whose last answer is remembered, so that each gets one per heartbeat interval."""


class Expulsion:
    """Suspicions told and taken, and the search for lost members."""

    def __init__(self, membership: MembershipState, heartbeats: Heartbeats) -> None:
        """Begin with ``start`` when the first list is installed."""
        self._membership = membership
        self._ctx = membership.ctx
        self._heartbeats = heartbeats
        self._told_us: dict[MemberId, int] = {}

    # -- telling --------------------------------------------------------------------------

    def answer(self, stranger: MemberId, address: Address, version: int) -> None:
        """Answer a message of somebody who is not on our list.

        The master always answers. Others do when their list is newer than the stranger's: it
        may have lost its way to the master only. A younger list than the stranger's proves
        nothing; it may have been admitted by a list that has not reached us yet.

        Args:
            stranger: Who sent the message.
            address: Where it listens.
            version: Version of its member list, -1 when unknown.
        """
        if self._ctx.is_master or self._ctx.members.version > version >= 0:
            self.tell(stranger, address)

    def tell(self, stranger: MemberId, address: Address) -> None:
        """Tell of our list whoever does not go with it, once in a heartbeat interval (FN-11)."""
        ctx = self._ctx
        if self._heartbeats.was_paused():
            # Our list may be long out of date; the others know better and will tell us.
            return
        last_us = self._told_us.pop(stranger, None)
        if last_us is not None and ctx.now_us - last_us < ctx.settings.heartbeat_interval_us:
            self._told_us[stranger] = last_us
            return
        self._told_us[stranger] = ctx.now_us
        if len(self._told_us) > TOLD_MAX:
            del self._told_us[next(iter(self._told_us))]
        if ctx.is_member(stranger):
            ctx.send(stranger, self._membership.suspicion(stranger))
        else:
            ctx.send_to(address, self._membership.suspicion(stranger))

    # -- being told -----------------------------------------------------------------------

    def on_told(self, sender: MemberId, address: Address, told: SuspicionTold) -> None:
        """Somebody goes on without us: end, or treat the sender as the one who is lost."""
        membership, ctx = self._membership, self._ctx
        if told.to not in (None, ctx.id) or self._is_incompatible(told):
            return
        rules = ctx.is_master or membership.is_claiming
        if ctx.id in told.members:
            # Not for a follower: it is on its master's list, or on one it will get in time.
            if rules and ctx.is_member(sender):
                membership.detector.gone(sender, FOLLOWS_ANOTHER)
        elif self._must_yield(sender, told):
            if ctx.is_master:
                for member in ctx.others():
                    ctx.send(member, msgspec.structs.replace(told, to=member))
            membership.is_split = is_split(ctx.members, told)
            membership.gone_on, membership.gone_on_at = told.members, told.addresses
            membership.expel(
                f"list version {told.list_version} of master {told.master} is without us"
            )
        elif ctx.is_member(sender):
            # It lives in a weaker part of the cluster: for ours it is dead.
            membership.detector.gone(sender, FOLLOWS_ANOTHER)
        elif ctx.is_master:
            self.tell(sender, address)

    def _is_incompatible(self, told: SuspicionTold) -> bool:
        """Whether it is a cluster that we can never join: neither gives way, both say so."""
        if told.partition_count in (0, self._ctx.settings.partition_count):
            return False
        self._ctx.note(
            "incompatible_cluster",
            "warning",
            master=told.master,
            address=str(told.addresses[0]) if told.addresses else None,
            partition_count=told.partition_count,
            our_partition_count=self._ctx.settings.partition_count,
        )
        if self._ctx.is_master and told.master is not None and told.addresses:
            self.tell(told.master, told.addresses[0])
        return True

    def _must_yield(self, sender: MemberId, told: SuspicionTold) -> bool:
        ours, version = self._ctx.members, told.list_version
        if told.members and told.is_recovering is not (ours.recovery is not None):
            # Who recovers has served nobody. It follows its own cluster, and no other one yet.
            return ours.recovery is not None and told.cluster_id == ours.cluster_id
        if not told.members:
            if sender == self._membership.taken_master:
                return version >= ours.version
            return sender == told.master and version > ours.version
        mine = [
            member
            for member in ours.ids()
            if not self._membership.detector.is_suspected(member)
            and (version < ours.version or member not in told.members)
        ]
        theirs = [
            member for member in told.members if version > ours.version or ours.get(member) is None
        ]
        if not theirs:
            return False
        if version > ours.version and self._heartbeats.was_paused():
            # While we slept they went on, with writes that we know nothing of.
            return True
        if told.addresses and is_apart(ours, told):
            return is_weaker(ours, told)
        if (len(theirs), version) != (len(mine), ours.version):
            return (len(theirs), version) > (len(mine), ours.version)
        return (told.master or "") < (ours.master or "")

    # -- searching ------------------------------------------------------------------------

    def start(self) -> None:
        """Search in every heartbeat time-out, as long as we are a member."""
        self._ctx.arm(SEARCH_TIMER, self._ctx.settings.heartbeat_timeout_us)

    def on_timer(self) -> None:
        """Probe the addresses where members of this cluster once were or may be.

        The master looks for all that was removed, a follower where only its own join addresses
        say: a part may be known to nobody else.
        """
        membership, ctx = self._membership, self._ctx
        here = {info.address for info in ctx.members.members}
        for address in dict.fromkeys((*membership.join_addresses, *membership.former)):
            if address not in here and (ctx.is_master or address not in membership.former):
                probe = ProbeRequested(ctx.settings.cluster_name, ctx.me, address)
                ctx.send_to(address, probe)
        self.start()

    def on_answer(self, sender: MemberId, address: Address, answer: ProbeAnswered) -> None:
        """Tell another part of this cluster that we are here; it answers or gives way.

        Parts are told by their masters, so a follower passes the answer on to its own.
        """
        master = answer.master
        if (
            answer.cluster_name != self._ctx.settings.cluster_name
            or master is None
            or self._ctx.is_member(master.id)
        ):
            return
        if self._ctx.is_master:
            self.tell(master.id, master.address)
        elif self._ctx.master is not None:
            self._ctx.send(self._ctx.master, answer)
