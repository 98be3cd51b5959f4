"""Rare situations of the member list."""

from __future__ import annotations

from typing import ClassVar

from whimbrel.core.effects import Note
from whimbrel.core.model import MemberList
from whimbrel.sim.host import Host
from whimbrel.sim.membership.rules import ONE_WAY
from whimbrel.sim.rule import Sightings

TWO_MASTERS = "two masters at once"
SAME_ADDRESS = "a member starts on an address whose former member is still listed"
RETURNED = "a member finds its seat again while nobody new may join"
PROMOTED = "a lite member becomes a data member"
DEMOTED = "a data member becomes lite"
ROLE_REFUSED = "a change of role is refused"


class MembershipSightings(Sightings):
    """Who came where, who thought to rule, who changed its role."""

    situations = (
        *(TWO_MASTERS, SAME_ADDRESS, ONE_WAY, RETURNED),
        *(PROMOTED, DEMOTED, ROLE_REFUSED),
    )
    notes: ClassVar = {"member_promoted": PROMOTED, "member_demoted": DEMOTED}

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.get(host.info.id) is not None and new.is_missing(host.info.id):
            self.saw(RETURNED)
        if new.master == host.info.id:
            for other in self.world.up_hosts():
                if other is not host and other.is_master:
                    self.saw(TWO_MASTERS)

    def started(self, host: Host) -> None:
        """A process begins: is the one before it on this address still believed to be there?"""
        for other in self.world.up_hosts():
            if other is host:
                continue
            members = other.member.ctx.members.members
            if any(info.address == host.address for info in members):
                self.saw(SAME_ADDRESS)
                return

    def note(self, host: Host, note: Note) -> None:
        """E."""
        super().note(host, note)
        if note.kind == "role_change_ended" and note.fields["problem"]:
            self.saw(ROLE_REFUSED)
