"""What differs by cluster version: one interface for each difference, two implementations of each.

Parallel migrations (from 4.1 on) are in ``parallel`` and ``publication``, others in ``serial``.
Everything else in this room is the same for both and asks these interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.messages import Message
from whimbrel.core.migration.requests import Asking
from whimbrel.core.migration.settlement import Account, Settlement
from whimbrel.core.migration.state_manager import PartitionStateManager, Versions
from whimbrel.core.model import MigrationInfo, RowState
from whimbrel.core.partition.table import PartitionTable

Handlers = dict[type[Message], Callable[[MemberId, Any], None]]
"""Who takes which message; ``Any`` because each takes its own type."""
Settling = Callable[[PartitionStateManager, Sequence[Account], int], Job[Settlement]]
"""Decides a change of master and brings our own table to it, in pieces of so many rows."""


class Versioning(Versions, Protocol):
    """What follows from what a version is of."""

    @property
    def table_version(self) -> int | None:
        """The one version of the whole table; None where every row has its own."""

    @property
    def rows_max(self) -> int:
        """Rows that one step of a repair changes and tells."""

    def may_begin(self, under_way: int) -> bool:
        """Whether rows may change while so many migrations or batches of promotions run."""

    def numbered(self, promotions: tuple[MigrationInfo, ...]) -> tuple[MigrationInfo, ...]:
        """A batch that begins now, with the versions that its promotions start from."""

    def promoted_rows(self, promotions: Sequence[MigrationInfo]) -> list[RowState]:
        """What the promoted member is told: rows as they are when all have been promoted."""

    def take_promoted(
        self, manager: PartitionStateManager, rows: Sequence[RowState]
    ) -> tuple[Collection[PartitionId], str]:
        """The same at that member: which of them it has taken, or why none.

        Raises:
            ProtocolError: They are not what is told in this mode; nothing was applied.
        """

    def decide_promotions(
        self, manager: PartitionStateManager, decided: Sequence[MigrationInfo]
    ) -> Sequence[MigrationInfo]:
        """Apply the verdict of one batch; returns what everybody is to be told of it."""


class Publisher(Asking, Protocol):
    """The master's side of publication: how its decisions reach every member."""

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that not every member has acknowledged (ADL-25), in order."""

    @property
    def unacknowledged(self) -> list[MemberId]:
        """Members that have not acknowledged the newest table, in list order."""

    @property
    def is_opening(self) -> bool:
        """Whether somebody has yet to be sent a part of the table of ``start`` (ADL-14)."""

    @property
    def has_parts_left(self) -> bool:
        """Whether ``go_on`` has something to do."""

    def handlers(self) -> Handlers:
        """Who takes what members answer and ask."""

    def start(self, completed: Iterable[MigrationInfo]) -> None:
        """Begin as master: everybody is owed the whole table and these migrations (ADL-14)."""

    def stop(self) -> None:
        """Forget everything; this member is not master, or not yet."""

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Forget members that left, owe newcomers the whole table."""

    def stage_completed(self, migration: MigrationInfo) -> None:
        """Tell everybody about a finished migration with the next flush (ADL-23)."""

    def stage_row(self, partition_id: PartitionId) -> None:
        """Tell everybody about a row that was changed otherwise."""

    def stage_loss(self, partition_id: PartitionId) -> None:
        """Tell everybody about a mark that changed and its row did not."""

    def ask_for_acknowledgements(self) -> None:
        """Have everybody say again where it stands: who does has also got what was sent before.

        So after a change of state no migration is begun while a member stands in the old one.
        """

    def completed_of(self, partition_id: PartitionId) -> tuple[MigrationInfo, ...]:
        """What a request for a partition carries (PIM-07, PIM-08), in order."""

    def flush(self) -> None:
        """Send what was staged, and whole tables to those who are owed one."""

    def go_on(self) -> None:
        """Send the next part of a large whole table."""

    def owes_parts(self, member: MemberId) -> bool:
        """Whether a member is being sent a whole table, and nothing else before its last part."""

    def publish_stamp(self) -> None:
        """The periodic comparison of tables (ADL-10)."""


class Subscriber(Protocol):
    """Every member's side of publication."""

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that, as far as we know, somebody may not know (ADL-26)."""

    def handlers(self) -> Handlers:
        """Who takes what the master publishes."""

    def forget(self) -> None:
        """This member has become master: its publisher keeps the finished migrations."""

    def remember(self, migration: MigrationInfo) -> None:
        """Keep a migration committed here until a publication has told it to all (ADL-30)."""


Withheld = Collection[PartitionId]
"""Partitions that are left out of whole tables: somebody stands there that has not their data, or
has them in memory alone."""


@dataclass(frozen=True, slots=True)
class ClusterMode:
    """How a cluster of some version migrates: what is built for it."""

    name: str
    versioning: Callable[[Context, PartitionTable], Versioning]
    publisher: Callable[[Context, PartitionTable, Withheld], Publisher]
    subscriber: Callable[[Context, PartitionStateManager], Subscriber]
    settling: Settling
