"""Rare situations of the partition table."""

from __future__ import annotations

from typing import Any

from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.messages import TablePublished
from whimbrel.core.model import MigrationKind
from whimbrel.sim.host import Host
from whimbrel.sim.rule import Sightings
from whimbrel.sim.table.rules import STALE_WRITE

STALE_TABLE = "a stale table arrives"
DIRTY_PROMOTION = "a backup is promoted while it is dirty"
STALE_PRIMARY = "a paused primary wakes after it was removed"
PROMOTION = f"migration {MigrationKind.PROMOTION.value}"


class TableSightings(Sightings):
    """Old news, promotions, primaries that are none any more."""

    messages = (TablePublished,)
    situations = (STALE_TABLE, DIRTY_PROMOTION, STALE_PRIMARY, STALE_WRITE, PROMOTION)

    def received(self, host: Host, sender: MemberId, message: Any) -> None:
        """E."""
        image, versions = message.image, host.member.migrations.table.versions
        numbers = zip(image.partitions, image.versions, strict=True)
        if any(version < versions[pid] for pid, version in numbers):
            self.saw(STALE_TABLE)

    def row(self, host: Host, pid: PartitionId, before: Row, after: Row, version: int) -> None:
        """T: the row is there, the data have not followed."""
        mine = host.info.id
        if after[0] != mine or before[0] == mine or index_in(before, mine) < 1:
            return
        self.saw(PROMOTION)
        partition = host.member.dataplane.partitions[pid]
        if any(fragment.is_dirty for fragment in partition.fragments.values()):
            self.saw(DIRTY_PROMOTION)

    def note(self, host: Host, note: Note) -> None:
        """E."""
        if note.kind == "was_paused":
            mine = host.info.id
            if host.member.migrations.table.primary_count(mine) and not any(
                other.member.ctx.is_member(mine)
                for other in self.world.up_hosts()
                if other is not host
            ):
                self.saw(STALE_PRIMARY)
