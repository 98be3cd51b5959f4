"""The end of a turn: what a step of this member has produced becomes outputs.

Replies whose backups are there, calls that waited for a change, events, what clients are told of
the grid, what every origin has collected, backup operations and the answers to those of others, in
this order. A turn may have been one put, so this is its path as well: what has nothing to do is
seen by looking at a flag or a list, without a call.
"""

from __future__ import annotations

import struct
from functools import partial

from whimbrel.core.ids import MemberId
from whimbrel.core.merging.target import MergeWait
from whimbrel.core.persistence.log import DiskLog
from whimbrel.errors import ProtocolError
from whimbrel.serving.grid_events import GridEvents
from whimbrel.serving.hub import NOTIFY_BACKUPS, SMALL_REPLY_BYTES, Hub
from whimbrel.serving.listeners import Listeners, StructureEvent
from whimbrel.serving.outputs import BULK, ToPeer
from whimbrel.serving.session import Connection, Origin
from whimbrel.serving.views import Views
from whimbrel.serving.waits import Waits
from whimbrel.serving.write_group import WriteGroup
from whimbrel.wire import errors as codes
from whimbrel.wire.fast_codec import backup_event
from whimbrel.wire.links import ACKS, BACKUPS

_BACKUP_NOTICE = struct.Struct("<16sq")
"""Client and correlation id of the call whose backup is done."""


def correlation_of(message: bytes) -> int:
    """The correlation id of an encoded message."""
    return int.from_bytes(message[10:18], "little", signed=True)


class TurnEnd:
    """Turns what a step has produced into outputs of the hub."""

    def __init__(
        self, hub: Hub, waits: Waits, listeners: Listeners, grid: GridEvents, views: Views
    ) -> None:
        """Nothing has been produced yet."""
        dataplane = hub.dataplane
        self._hub = hub
        self._incoming = dataplane.incoming
        self._outgoing = dataplane.outgoing
        self._persistence = hub.member.persistence
        self._wakes = dataplane.wakes
        self._events = dataplane.events
        self._happened = dataplane.events.happened
        self._waits = waits
        self._listeners = listeners
        self._grid = grid
        self._views = views

    def flush(self) -> None:
        """Turn what a step has produced into outputs: replies, events, backups, their answers."""
        if self._outgoing.completed:
            self._take_completed()
        if self._wakes.pending or self._happened or self._listeners.has_news:
            self._take_news()
        grid, views = self._grid, self._views
        if grid.fresh or grid.for_shell or (views.table_dirty and views.listeners):
            grid.flush()
            views.flush()
        if self._incoming.notifications:
            self._take_notifications()
        hub = self._hub
        if hub.dirty:
            dirty, hub.dirty = hub.dirty, []
            for origin in dirty:
                hub.flush_origin(origin)
        if self._outgoing.has_backups:
            for member, payload in self._outgoing.take_backups():
                hub.outputs.append(ToPeer(member, BULK, BACKUPS, payload))
        if self._persistence.log is not None:
            self._flush_to_disk(self._persistence.log)
        elif self._incoming.owes_acks:
            for member, payload in self._incoming.take_acks():
                hub.outputs.append(ToPeer(member, BULK, ACKS, payload))

    # -- replies --------------------------------------------------------------------------

    def _take_completed(self) -> None:
        """Send the replies whose backups are there; tell what became of the others."""
        hub, outgoing = self._hub, self._outgoing
        completed, outgoing.completed = outgoing.completed, []
        for reply in completed:
            owner, payload = reply.owner, reply.payload
            if isinstance(owner, Origin):
                if type(payload) is bytes:
                    owner.in_flight -= 1
                    if reply.failed:
                        self._fail_write(owner, correlation_of(payload), reply.failed)
                    elif owner.dirty and owner.alive and len(payload) <= SMALL_REPLY_BYTES:
                        owner.out.append(payload)  # as ``deliver``: the path of every put
                    else:
                        hub.deliver(owner, payload)
                elif isinstance(owner, Connection) and isinstance(payload, int):
                    self._release_backups(owner, payload, reply.released)
            elif isinstance(owner, WriteGroup | MergeWait):
                owner.take(reply)

    def _fail_write(self, origin: Origin, correlation: int, reason: str) -> None:
        """Whatever a backup said or did not say, the write is done here: others may have it too."""
        text = f"the write is done here but not on every backup: {reason}"
        self._hub.fail(origin, correlation, codes.INDETERMINATE, text)

    def _release_backups(self, connection: Connection, correlation: int, count: int) -> None:
        """A client counts backups that will never tell it anything: tell it ourselves."""
        listener = connection.backup_correlation
        if listener is not None:
            for _ in range(count):
                self._hub.deliver(connection, backup_event(listener, correlation))

    # -- news -----------------------------------------------------------------------------

    def _take_news(self) -> None:
        """Go on with calls that waited; publish what the services of structures have told."""
        if self._wakes.pending:
            self._waits.wake()
        listeners = self._listeners
        if self._happened:
            source = self._hub.ctx.id
            for event in self._events.take():
                listeners.publish(StructureEvent(*event, source))
        if listeners.has_news:
            listeners.tell_news()

    # -- backups --------------------------------------------------------------------------

    def _flush_to_disk(self, disk: DiskLog) -> None:
        """Acknowledge what came from primaries and need not be on disk first; let works leave."""
        for member, payload in self._incoming.take_acks():
            if not disk.hold_back(partial(self._release_ack, member, payload)):
                self._hub.outputs.append(ToPeer(member, BULK, ACKS, payload))
        disk.flush()

    def _release_ack(self, member: MemberId, payload: bytes, is_kept: bool) -> None:
        """Send an acknowledgement; one of what the disk did not take says so."""
        if not is_kept:
            payload = self._incoming.refuse_held(member, payload)
        self._hub.outputs.append(ToPeer(member, BULK, ACKS, payload))

    def _take_notifications(self) -> None:
        """Clients whose calls we have backed up hear of it once that is on our disk, if it must."""
        backed_up = self._incoming.take_notifications()
        disk = self._persistence.log
        if disk is None or not disk.hold_back(partial(self._tell_backups, backed_up)):
            self._tell_backups(backed_up, True)

    def _tell_backups(self, backed_up: list[tuple[bytes, int, MemberId]], is_kept: bool) -> None:
        """Tell clients of backups; those that are not connected here by the primary."""
        if not is_kept:
            return
        notices: dict[MemberId, list[bytes]] = {}
        for client_id, correlation, primary in backed_up:
            if not self._tell_backup_done(client_id, correlation):
                notice = _BACKUP_NOTICE.pack(client_id, correlation)
                notices.setdefault(primary, []).append(notice)
        for primary, packed in notices.items():
            self._hub.notify(primary, NOTIFY_BACKUPS, b"".join(packed))

    def on_backups_done(self, body: bytes) -> None:
        """A backup tells of calls of clients that are not connected to it.

        Raises:
            ProtocolError: The notice does not follow its format.
        """
        if len(body) % _BACKUP_NOTICE.size:
            raise ProtocolError("a notice of backups ends within one of them")
        for client_id, correlation in _BACKUP_NOTICE.iter_unpack(body):
            self._tell_backup_done(client_id, correlation)

    def _tell_backup_done(self, client_id: bytes, correlation: int) -> bool:
        """Tell a client that a backup of its call is done; False when it is not connected here."""
        connection = self._hub.clients.get(client_id)
        if connection is None or connection.backup_correlation is None:
            return False
        listener = connection.backup_correlation
        self._hub.deliver(connection, backup_event(listener, correlation))
        return True
