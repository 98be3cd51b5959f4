"""What is built for which cluster version: the one place where the two modes part (PIM-41)."""

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
from whimbrel.core.migration.publication import Publisher, Subscriber
from whimbrel.core.migration.serial.destination import SerialDestination
from whimbrel.core.migration.serial.execution import SerialExecution
from whimbrel.core.migration.serial.publication import SerialPublisher, SerialSubscriber
from whimbrel.core.migration.serial.recovery import SerialRecovery
from whimbrel.core.migration.serial.repair import SerialRepair
from whimbrel.core.migration.serial.upgrade import UpgradedRecovery, UpgradedStateManager
from whimbrel.core.migration.serial.versions import SerialStateManager
from whimbrel.core.migration.state_manager import PartitionStateManager


@dataclass(frozen=True, slots=True)
class ClusterMode:
    """The parts of the migration room that differ by cluster version."""

    manager: type[PartitionStateManager]
    subscriber: type[Subscriber]
    destination: type[DestinationSide]
    loop: LoopParts


MODERN = ClusterMode(PartitionStateManager, Subscriber, DestinationSide, LoopParts())
"""A version for every partition, migrations in parallel, news instead of tables."""
UPGRADED = ClusterMode(
    UpgradedStateManager, Subscriber, DestinationSide, LoopParts(recovery=UpgradedRecovery)
)
"""The same, on a member that was there at the switch."""
SERIAL = ClusterMode(
    SerialStateManager,
    SerialSubscriber,
    SerialDestination,
    # Repair waits for what is under way: it changes the version that this names.
    LoopParts(
        SerialPublisher, SerialRecovery, SerialRepair, SerialExecution, repairs_meanwhile=False
    ),
)
"""One version for the table, one migration at a time, whole tables."""

SERIAL_VERSION = "4.0"


def next_mode(current: ClusterMode | None, cluster_version: str) -> ClusterMode:
    """The mode of a cluster version for a member that was in ``current`` so far; None at its
    start.
    """
    if cluster_version == SERIAL_VERSION:
        return SERIAL
    if current is SERIAL:
        return UPGRADED
    return MODERN if current is None else current


def check_direction(current: ClusterMode, then: ClusterMode, has_table: bool) -> None:
    """A table with a version for every partition never gets back to one version (PIM-43)."""
    check(not (has_table and then is SERIAL and current is not SERIAL), "no cluster is downgraded")


Handlers = dict[type[Message], Callable[[MemberId, Any], None]]


def publication_handlers(subscriber: Subscriber, publisher: Publisher) -> Handlers:
    """Who takes the messages that bring tables; each mode knows its own messages only (PIM-42).

    One of the other mode comes from a member that is before or after the switch; it is dropped
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


def hand_over(before: PartitionStateManager, then: PartitionStateManager) -> None:
    """What a member takes part in, and what it must still tell, survives the switch."""
    then.active.update(before.active)
    then.changed.update(before.changed)
    if isinstance(before, SerialStateManager) and isinstance(then, UpgradedStateManager):
        then.floor = before.version


def version_of(manager: PartitionStateManager) -> int | None:
    """The version of the whole table; None where there is none."""
    return manager.version if isinstance(manager, SerialStateManager) else None
