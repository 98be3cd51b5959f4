"""What the parts of the migration room share; built anew when the cluster has another mode."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import Any

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.migration.loopback import Loopback
from whimbrel.core.migration.losses import Losses
from whimbrel.core.migration.mode import ClusterMode, Publisher, Subscriber, Versioning
from whimbrel.core.migration.reporter import MigrationReporter
from whimbrel.core.migration.stable import StableTable
from whimbrel.core.migration.state_manager import PartitionStateManager


@dataclass(slots=True, eq=False)
class MigrationContext:
    """The table, the ways it is told and decided, and who hears of it; decides nothing itself."""

    ctx: Context
    manager: PartitionStateManager
    mode: ClusterMode
    versioning: Versioning
    loopback: Loopback
    reporter: MigrationReporter
    losses: Losses
    stable: StableTable
    owed: dict[PartitionId, dict[MemberId, None]] = field(default_factory=dict)
    """Members to be taken out of a row although they may be on the list: they left and came
    back with the same identity, and have none of the data (M4)."""
    unkept: dict[PartitionId, None] = field(default_factory=dict)
    """Rows that a commit here has led to, while what came with it is not on our disk: a source that
    hears of the row lets go of its data."""
    publisher: Publisher = field(init=False)
    subscriber: Subscriber = field(init=False)

    def __post_init__(self) -> None:
        """Let the mode bring its way of publishing."""
        withheld: ChainMap[PartitionId, Any] = ChainMap(self.owed, self.unkept)
        self.publisher = self.mode.publisher(self.ctx, self.manager.table, withheld)
        self.subscriber = self.mode.subscriber(self.ctx, self.manager)
