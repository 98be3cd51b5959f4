"""Whole tables for everybody after each change: the old way of publishing (paper 07, 1.1).

A member gets the next table when it has acknowledged the last one; changes meanwhile travel in
one table. Between two tables a participant learns what it lacks from the finished migrations that
every request carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    LegacyTableAnswered,
    LegacyTablePublished,
    LegacyTableRequested,
    LegacyVersionPublished,
)
from whimbrel.core.migration.publication import Publisher, Subscriber
from whimbrel.core.migration.serial.versions import serial_manager
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo

_UNKNOWN = -1
"""Stands for the table version of a member that has not told it."""


class Reader:
    """What the master knows about one member's table."""

    __slots__ = ("acked", "cause", "is_owed", "sent_us")

    def __init__(self) -> None:
        self.acked = _UNKNOWN
        """The table version at which it last said it stands."""
        self.is_owed = False
        """Whether marks of losses have changed since the table was last sent."""
        self.sent_us: int | None = None
        """When the table was sent that it has not acknowledged; None when there is none."""
        self.cause = ""
        """Of that table."""


class SerialPublisher(Publisher):
    """The master's side: the same face as the modern publisher, one whole table at a time."""

    def __init__(
        self, ctx: Context, manager: PartitionStateManager, withheld: Collection[PartitionId]
    ) -> None:
        super().__init__(ctx, manager, withheld)
        self._manager = serial_manager(manager)
        self.readers: dict[MemberId, Reader] = {}
        self._recent: deque[MigrationInfo] = deque()

    # -- taking and losing charge ---------------------------------------------------------

    def start(self, completed: Iterable[MigrationInfo]) -> None:
        """Begin as master: everybody is owed the table (ADL-14)."""
        self.stop()
        self._recent.extend(completed)
        self.members_changed(())

    def stop(self) -> None:
        """Forget everything; this member is not master, or not yet."""
        self.readers.clear()
        self._recent.clear()

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Forget members that left; newcomers are owed the table."""
        for member in gone:
            self.readers.pop(member, None)
        for member in self._ctx.others():
            self.readers.setdefault(member, Reader())
        self._trim()

    # -- news -----------------------------------------------------------------------------

    def stage_completed(self, migration: MigrationInfo) -> None:
        """A migration was decided; requests carry it until everybody has the table (PIM-07)."""
        self._recent.append(migration)

    def stage_row(self, partition_id: PartitionId) -> None:
        """A row was changed otherwise: the next table tells it."""

    def stage_loss(self, partition_id: PartitionId) -> None:
        """The version of the table does not tell it: everybody is owed the table again."""
        for reader in self.readers.values():
            reader.is_owed = True
        self.ask_for_acknowledgements()

    def completed_of(self, partition_id: PartitionId) -> tuple[MigrationInfo, ...]:
        """All finished migrations that not every member knows, whatever their partition."""
        return tuple(self._recent)

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that not every member has acknowledged (ADL-25), in order."""
        return list(self._recent)

    def flush(self) -> None:
        """Send the table to everybody who has an older one and no table on its way.

        While a row names a member that has restarted without its data, nobody is told that row.
        """
        self._trim()
        if not self._table.initialised or self._withheld:
            return
        message: LegacyTablePublished | None = None
        for member, reader in self.readers.items():
            if reader.sent_us is None and reader.acked < self._manager.version:
                message = message or self._make()
                reader.sent_us, reader.cause = self._ctx.now_us, self._ctx.cause
                reader.is_owed = False
                self._ctx.send(member, message)

    def _make(self) -> LegacyTablePublished:
        return LegacyTablePublished(self._manager.version, self._table.image(), tuple(self._recent))

    # -- answers --------------------------------------------------------------------------

    def table_answered(self, sender: MemberId, message: LegacyTableAnswered) -> None:
        """A member tells where its table stands now."""
        reader = self.readers.get(sender)
        if reader is not None:
            reader.acked = _UNKNOWN if reader.is_owed else message.version
            reader.sent_us = None
            self._trim()

    def legacy_table_requested(self, sender: MemberId, message: LegacyTableRequested) -> None:
        """A member noticed that its table is older than ours."""
        reader = self.readers.get(sender)
        if reader is not None and reader.sent_us is None:
            reader.acked = min(reader.acked, message.version)

    def table_requested(self, sender: MemberId, stamp: int) -> None:
        """A member suspects that there is a newer table; one it lacks is due to it anyway."""

    def repeat(self) -> None:
        """Send again to everybody who has not answered within the call timeout."""
        due_us = self._ctx.now_us - self._ctx.settings.call_timeout_us
        for reader in self.readers.values():
            if reader.sent_us is not None and reader.sent_us <= due_us:
                self._ctx.resume(reader.cause)
                reader.sent_us = None
                reader.acked = _UNKNOWN
        self.flush()

    def ask_for_acknowledgements(self) -> None:
        """As in the modern way: whoever says its version again has got what was sent before."""
        for reader in self.readers.values():
            if reader.sent_us is None:
                reader.acked = _UNKNOWN

    def link_restored(self, member: MemberId) -> None:
        """The link was broken: the table on its way may be lost."""
        reader = self.readers.get(member)
        if reader is not None and reader.sent_us is not None:
            self._ctx.resume(reader.cause)
            reader.sent_us = None
            reader.acked = _UNKNOWN
            self.flush()

    def publish_stamp(self) -> None:
        """The periodic comparison of tables (ADL-10): only the version travels."""
        if self._table.initialised:
            self._ctx.broadcast(LegacyVersionPublished(self._manager.version), list(self.readers))

    @property
    def unacknowledged(self) -> list[MemberId]:
        """Members that have not acknowledged the newest table, in list order."""
        if not self._table.initialised:
            return []
        version = self._manager.version
        return [member for member, reader in self.readers.items() if reader.acked < version]

    def _trim(self) -> None:
        """Drop the finished migrations that everybody knows, or that are too many (ADL-25)."""
        newest = self._manager.version
        known = min((reader.acked for reader in self.readers.values()), default=newest)
        limit = self._ctx.settings.completed_batch_max
        while self._recent and (
            self._recent[0].final_version <= known or len(self._recent) > limit
        ):
            self._recent.popleft()


class SerialSubscriber(Subscriber):
    """Every member's side."""

    def __init__(self, ctx: Context, manager: PartitionStateManager) -> None:
        super().__init__(ctx, manager)
        self._serial = serial_manager(manager)
        self._recent: dict[str, MigrationInfo] = {}
        self._told = 0
        """Version of the last table that was taken in: it has told what is not newer."""

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that, as far as we know, somebody may not know (ADL-26)."""
        return list(self._recent.values())

    def forget(self) -> None:
        """This member has become master: its publisher keeps the finished migrations."""
        self._recent.clear()

    def remember(self, migration: MigrationInfo) -> None:
        """Keep a migration committed here until a table has told it to all (ADL-30).

        The newest ``migration_max_parallel`` of them, as in the modern way.
        """
        self._recent.setdefault(migration.id, migration)
        own = [one.id for one in self._recent.values() if one.final_version > self._told]
        for key in own[: -self._ctx.settings.migration_max_parallel]:
            del self._recent[key]

    def table_published(self, sender: MemberId, message: LegacyTablePublished) -> None:
        """Apply a table of the member we take for master; others change nothing (ADL-08).

        Raises:
            ProtocolError: It is not a whole table of its version; nothing was applied.
        """
        if sender != self._ctx.master or sender == self._ctx.id:
            self._ctx.note("migration.foreign_table", "warning", sender=sender)
            return
        rows = list(self._serial.table.rows_of(message.image))
        self._serial.table.take_losses(message.image.losses)
        if self._serial.apply_table(message.version, rows):
            own = [one for one in self._recent.values() if one.final_version > message.version]
            self._recent = {one.id: one for one in (*message.completed, *own)}
            self._told = message.version
        self._ctx.send(sender, LegacyTableAnswered(self._serial.version))

    def version_published(self, sender: MemberId, message: LegacyVersionPublished) -> None:
        """Ask for the table when the master's is newer (ADL-10)."""
        if sender != self._ctx.master or sender == self._ctx.id:
            return
        if message.version > self._serial.version:
            self._ctx.send(sender, LegacyTableRequested(self._serial.version))
