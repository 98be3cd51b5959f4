"""What is built for which cluster version: the one place where the two paths part (PIM-41)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from whimbrel.core.check import check
from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    LegacyTableAnswered,
    LegacyTablePublished,
    LegacyTableRequested,
    LegacyVersionPublished,
    Message,
    PublicationAnswered,
    StampPublished,
    TablePublished,
)
from whimbrel.core.migration.control_loop import LoopParts
from whimbrel.core.migration.destination import DestinationSide
from whimbrel.core.migration.keeper import TableKeeper
from whimbrel.core.migration.publication import Publisher, Subscriber
from whimbrel.core.migration.serial.destination import SerialDestination
from whimbrel.core.migration.serial.execution import SerialExecution
from whimbrel.core.migration.serial.publication import SerialPublisher, SerialSubscriber
from whimbrel.core.migration.serial.recovery import SerialRecovery
from whimbrel.core.migration.serial.repair import SerialRepair
from whimbrel.core.migration.serial.upgrade import UpgradedKeeper, UpgradedRecovery
from whimbrel.core.migration.serial.versions import SerialKeeper


@dataclass(frozen=True, slots=True)
class Ways:
    """The parts of the migration room that differ by cluster version."""

    keeper: type[TableKeeper]
    subscriber: type[Subscriber]
    destination: type[DestinationSide]
    loop: LoopParts


MODERN = Ways(TableKeeper, Subscriber, DestinationSide, LoopParts())
"""A version for every partition, migrations in parallel, news instead of tables."""
UPGRADED = Ways(UpgradedKeeper, Subscriber, DestinationSide, LoopParts(recovery=UpgradedRecovery))
"""The same, on a member that was there at the switch."""
SERIAL = Ways(
    SerialKeeper,
    SerialSubscriber,
    SerialDestination,
    # Repair waits for what is under way: it changes the version that this names.
    LoopParts(
        SerialPublisher, SerialRecovery, SerialRepair, SerialExecution, repairs_meanwhile=False
    ),
)
"""One version for the table, one migration at a time, whole tables."""

SERIAL_VERSION = "4.0"


def next_ways(current: Ways | None, cluster_version: str) -> Ways:
    """The ways of a cluster version for a member that had ``current`` so far; None at its start."""
    if cluster_version == SERIAL_VERSION:
        return SERIAL
    if current is SERIAL:
        return UPGRADED
    return MODERN if current is None else current


def check_direction(current: Ways, then: Ways, has_table: bool) -> None:
    """A table with a version for every partition never gets back to one version (PIM-43)."""
    check(not (has_table and then is SERIAL and current is not SERIAL), "no cluster is downgraded")


Handlers = dict[type[Message], Callable[[MemberId, Any], None]]


def publication_handlers(subscriber: Subscriber, publisher: Publisher) -> Handlers:
    """Who takes the messages that bring tables; each way knows its own messages only (PIM-42).

    One of the other way comes from a member that is before or after the switch; it is dropped
    and comes again until the sender is where we are.
    """
    if isinstance(subscriber, SerialSubscriber) and isinstance(publisher, SerialPublisher):
        return {
            LegacyTablePublished: subscriber.table_published,
            LegacyVersionPublished: subscriber.version_published,
            LegacyTableAnswered: publisher.table_answered,
            LegacyTableRequested: publisher.legacy_table_requested,
        }
    return {
        TablePublished: subscriber.published,
        StampPublished: subscriber.stamp_published,
        PublicationAnswered: publisher.answered,
    }


def hand_over(before: TableKeeper, then: TableKeeper) -> None:
    """What a member takes part in, and what it must still tell, survives the switch."""
    then.active.update(before.active)
    then.changed.update(before.changed)
    if isinstance(before, SerialKeeper) and isinstance(then, UpgradedKeeper):
        then.floor = before.version


def version_of(keeper: TableKeeper) -> int | None:
    """The version of the whole table; None where there is none."""
    return keeper.version if isinstance(keeper, SerialKeeper) else None
