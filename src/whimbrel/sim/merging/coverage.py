"""Rare situations of merging: every policy, halves of equal size."""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import MergeRequested
from whimbrel.sim.host import Host
from whimbrel.sim.profile import MERGE_POLICIES
from whimbrel.sim.rule import Sightings

EQUAL_HALVES = "equal halves are merged"
POLICIES = tuple(f"merge by {policy}" for policy in MERGE_POLICIES)


class MergeSightings(Sightings):
    """By which policy, and between whom."""

    messages = (MergeRequested,)
    situations = (EQUAL_HALVES, *POLICIES)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        policy = self.world.plan.settings.map_settings(message.name).merge_policy
        self.saw(f"merge by {policy}")

    def note(self, host: Host, note: Note) -> None:
        """E: a master yields; is the part that goes on as big as its own?"""
        member = host.member
        if note.kind != "expelled" or not member.membership.is_split or not member.ctx.is_master:
            return
        for other in self.world.up_hosts():
            ctx = other.member.ctx
            is_apart = ctx.is_master and not ctx.is_member(host.info.id)
            if is_apart and len(ctx.data_members()) == len(member.ctx.data_members()):
                self.saw(EQUAL_HALVES)
