"""Rare situations of cluster states and of the cluster version."""

from __future__ import annotations

from typing import ClassVar

from whimbrel.core.model import ClusterState, MemberList
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Sightings

DIED_FROZEN = "a member dies while backups may not be promoted"
POSTPONED = "a plan is put off because of the cluster state"
STATE_REFUSED = "a change of the cluster state is refused"
MASTER_CHANGING = "the master dies while the cluster state changes"
UPGRADED = "a cluster goes from 4.0 to 4.1 while it is in use"
STATES = tuple(
    f"the cluster is {state.value}"
    for state in (ClusterState.NO_MIGRATION, ClusterState.FROZEN, ClusterState.PASSIVE)
)


class StateSightings(Sightings):
    """Every state, and deaths in it."""

    situations = (DIED_FROZEN, POSTPONED, STATE_REFUSED, MASTER_CHANGING, UPGRADED, *STATES)
    notes: ClassVar = {"migration.postponed": POSTPONED, "state_change_refused": STATE_REFUSED}

    def ending(self, host: Host, reason: str) -> None:
        """E."""
        if reason != "crash":
            return
        if not host.member.ctx.members.state.promotion_allowed:
            self.saw(DIED_FROZEN)
        if host.member.membership.states._transaction is not None:
            self.saw(MASTER_CHANGING)

    def view(self, host: Host, old: MemberList, new: MemberList) -> None:
        """T."""
        if new.state is not old.state and f"the cluster is {new.state.value}" in STATES:
            self.saw(f"the cluster is {new.state.value}")
        if old.members and old.cluster_version != new.cluster_version:
            self.saw(UPGRADED)
