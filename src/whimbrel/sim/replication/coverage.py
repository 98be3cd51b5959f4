"""Rare situations of replicas."""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import SyncSent
from whimbrel.core.replication.fragments import Fragment
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Sightings

GAP = "a gap of two in backup versions"
LATE_SYNC = "a sync arrives after its receiver ceased to be a backup"
SYNC = "a backup is made equal to its primary"


class ReplicationSightings(Sightings):
    """Gaps, and how they are made good."""

    messages = (SyncSent,)
    situations = (GAP, LATE_SYNC, SYNC)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        if message.last:
            self.saw(SYNC)
        if host.member.migrations.table.rows[message.partition_id][0] != sender:
            self.saw(LATE_SYNC)

    def out_of_step(
        self, host: Host, fragment: Fragment, before: int, entries: int, counter: int
    ) -> None:
        """E."""
        if counter == before + 2:
            self.saw(GAP)
