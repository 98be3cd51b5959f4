"""Migration, partition-lost, membership and state events, from where they arise to who listens.

The master's events go to its own listeners and to the members that want them (their interest,
see ``listeners``), once per turn and in batches; membership and state each member tells itself.
Best effort: an event is sent once, and what exceeds the bound of a turn is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whimbrel.core.events import (
    TRAVELLING,
    GridEvent,
    MemberAdded,
    MemberChanged,
    MemberRemoved,
    MigrationFinished,
    MigrationStarted,
    MigrationState,
    PartitionLost,
    ReplicaMigrated,
    StateChanged,
)
from whimbrel.core.ids import PartitionId
from whimbrel.core.model import MemberList, members_came, members_left
from whimbrel.serving.bodies import read_body
from whimbrel.serving.hub import NOTIFY_GRID, Hub
from whimbrel.serving.listeners import GRID, Listeners
from whimbrel.serving.outputs import EventsTold
from whimbrel.wire import custom_types
from whimbrel.wire.codec import encode_event

EVENTS_PER_TURN_MAX = 50_000
"""Events of one turn that are told; a crash at 20,011 partitions with ten members makes 4,004."""
EVENTS_PER_FRAME = 1_000
"""Events in one frame to a member, some 100 kB."""

ADD_MIGRATION = "Client.addMigrationListener"
ADD_LOST = "Client.addPartitionLostListener"
TYPE_STARTED = 0
TYPE_FINISHED = 1

_encode_batch = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(list[TRAVELLING]).decode


class GridEvents:
    """The events of one member's cluster, in and out."""

    def __init__(self, hub: Hub, listeners: Listeners) -> None:
        """Nobody listens yet."""
        self._hub = hub
        self._listeners = listeners
        self.fresh: list[GridEvent] = []
        self.for_shell: list[GridEvent] = []
        self._losses_heard: dict[PartitionId, int] = {}
        """Version of the newest loss of each partition that those who listen here were told."""

    # -- in -------------------------------------------------------------------------------

    def take(self, event: GridEvent) -> None:
        """An event of this master; told at the end of the turn."""
        if not (self._listeners.shell_listens or self._listeners.is_wanted(GRID)):
            return
        if len(self.fresh) >= EVENTS_PER_TURN_MAX:
            self._hub.tally("grid_events_dropped")
            return
        self.fresh.append(event)

    def lists_changed(self, old: MemberList, new: MemberList) -> None:
        """Another member list: every member tells its own program what that means."""
        if not self._listeners.shell_listens or not old.members:
            return
        told = self.for_shell
        gone, came = members_left(old, new), members_came(old, new)
        told.extend(MemberRemoved(info) for info in old.members if info.id in gone)
        told.extend(MemberAdded(info) for info in new.members if info.id in came)
        for info in new.members:
            before = old.get(info.id)
            if before is not None and info.id not in came and before.lite != info.lite:
                told.append(MemberChanged(info))
        if old.state is not new.state:
            told.append(StateChanged(old.state, new.state))

    def on_frame(self, body: bytes) -> None:
        """Events of the master, for listeners that want the whole cluster's.

        Raises:
            ProtocolError: It is no batch of events.
        """
        self._tell(read_body(_decode_batch, body, "events"), is_here=False)

    # -- out ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Tell what has arisen since the last turn."""
        if self.fresh:
            events, self.fresh = self.fresh, []
            self._tell(events, is_here=True)
            members = self._listeners.members_that_want(GRID)
            if members:
                for start in range(0, len(events), EVENTS_PER_FRAME):
                    body = _encode_batch(events[start : start + EVENTS_PER_FRAME])
                    for member in members:
                        self._hub.notify(member, NOTIFY_GRID, body)
        if self.for_shell:
            told, self.for_shell = tuple(self.for_shell), []
            self._hub.outputs.append(EventsTold(told))

    def _tell(self, events: Sequence[GridEvent], *, is_here: bool) -> None:
        """Our clients' listeners, and the program around us; no loss a second time."""
        events = [event for event in events if not self._is_heard(event)]
        if self._listeners.shell_listens:
            self.for_shell.extend(events)
        for event in events if self._listeners.named(GRID) else ():
            self._listeners.deliver(GRID, event, is_here=is_here)

    def _is_heard(self, event: GridEvent) -> bool:
        """Whether another master has told this loss; it counts as told from now on."""
        if not isinstance(event, PartitionLost) or not event.version:
            return False
        if event.version <= self._losses_heard.get(event.partition_id, 0):
            return True
        self._losses_heard[event.partition_id] = event.version
        return False


def encode_migration(event: GridEvent) -> bytes:
    """The event as a listener of ADD_MIGRATION gets it, for no registration yet; b"" for none."""
    match event:
        case MigrationStarted() | MigrationFinished():
            number = TYPE_STARTED if isinstance(event, MigrationStarted) else TYPE_FINISHED
            return encode_event(
                ADD_MIGRATION, "migration", 0, migration_state=_state(event.state), type=number
            )
        case ReplicaMigrated():
            return encode_event(
                ADD_MIGRATION,
                "replica_migration",
                0,
                migration_state=_state(event.state),
                partition_id=event.partition_id,
                replica_index=event.replica_index,
                source_uuid=event.source,
                dest_uuid=event.destination,
                success=event.success,
                elapsed_time=event.elapsed_ms,
            )
    return b""


def encode_lost(event: GridEvent) -> bytes:
    """The same for a listener of ADD_LOST."""
    if not isinstance(event, PartitionLost):
        return b""
    return encode_event(
        ADD_LOST,
        "partition_lost",
        0,
        partition_id=event.partition_id,
        lost_backup_count=event.lost_backup_count,
        source=event.source,
    )


def _state(state: MigrationState) -> custom_types.MigrationState:
    return custom_types.MigrationState(
        state.started_ms, state.planned, state.completed, state.elapsed_ms
    )
