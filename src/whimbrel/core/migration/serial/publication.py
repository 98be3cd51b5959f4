"""Whole tables for everybody after each change: the old way of publishing (paper 07, 1.1).

A member gets the next table when it has acknowledged the last one; changes meanwhile travel in
one table. Between two tables a participant learns what it lacks from the finished migrations that
every request carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from whimbrel.core import messages as m
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.migration.mode import Handlers, Withheld
from whimbrel.core.migration.serial.versioning import apply_table
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import MigrationInfo
from whimbrel.core.partition.table import PartitionTable

_UNKNOWN = -1
"""Stands for the table version of a member that has not told it."""


@dataclass(slots=True, eq=False)
class Reader:
    """What the master knows about one member's table."""

    asked: MemberId
    acked: int = _UNKNOWN
    """The table version at which it last said it stands."""
    is_owed: bool = False
    """Whether marks of losses have changed since the table was last sent."""
    is_waiting: bool = False
    """Whether a table is on its way to it that it has not acknowledged."""
    sent_us: int = 0
    """When that was sent."""
    cause: str = ""
    """Of that."""


class TablePublisher:
    """The master's side, one whole table at a time; see ``mode.Publisher``."""

    is_opening = has_parts_left = False

    def __init__(self, ctx: Context, table: PartitionTable, withheld: Withheld) -> None:
        self._ctx = ctx
        self._table = table
        self._withheld = withheld
        self._readers: dict[MemberId, Reader] = {}
        self._recent: deque[MigrationInfo] = deque()

    def handlers(self) -> Handlers:
        """Where members' tables stand; one that lacks the newest gets it anyway."""
        return {
            m.LegacyTableAnswered: self.table_answered,
            m.LegacyTableRequested: self.legacy_table_requested,
            m.TableRequested: lambda _sender, _message: None,
        }

    # -- taking and losing charge ---------------------------------------------------------

    def start(self, completed: Iterable[MigrationInfo]) -> None:
        """Begin as master: everybody is owed the table (ADL-14)."""
        self.stop()
        self._recent.extend(completed)
        self.members_changed(())

    def stop(self) -> None:
        """Forget everything; this member is not master, or not yet."""
        self._readers.clear()
        self._recent.clear()

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Forget members that left; newcomers are owed the table."""
        for member in gone:
            self._readers.pop(member, None)
        for member in self._ctx.others():
            self._readers.setdefault(member, Reader(member))
        self._trim()

    # -- news -----------------------------------------------------------------------------

    def stage_completed(self, migration: MigrationInfo) -> None:
        """A migration was decided; requests carry it until everybody has the table (PIM-07)."""
        self._recent.append(migration)

    def stage_row(self, partition_id: PartitionId) -> None:
        """A row was changed otherwise: the next table tells it."""

    def stage_loss(self, partition_id: PartitionId) -> None:
        """The version of the table does not tell it: everybody is owed the table again."""
        for reader in self._readers.values():
            reader.is_owed = True
        self.ask_for_acknowledgements()

    def ask_for_acknowledgements(self) -> None:
        """Whoever says its version again has got what was sent before."""
        for reader in self._readers.values():
            if not reader.is_waiting:
                reader.acked = _UNKNOWN

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
        version = self._table.version_max
        message: m.LegacyTablePublished | None = None
        for member, reader in self._readers.items():
            if not reader.is_waiting and reader.acked < version:
                message = message or m.LegacyTablePublished(
                    version, self._table.image(), tuple(self._recent)
                )
                reader.is_waiting, reader.is_owed = True, False
                reader.sent_us, reader.cause = self._ctx.now_us, self._ctx.cause
                self._ctx.send(member, message)

    def go_on(self) -> None:
        """A table is one message."""

    def owes_parts(self, member: MemberId) -> bool:
        """A table is one message."""
        return False

    # -- answers --------------------------------------------------------------------------

    def table_answered(self, sender: MemberId, message: m.LegacyTableAnswered) -> None:
        """A member tells where its table stands now."""
        reader = self._readers.get(sender)
        if reader is not None:
            reader.acked = _UNKNOWN if reader.is_owed else message.version
            reader.is_waiting = False
            self._trim()

    def legacy_table_requested(self, sender: MemberId, message: m.LegacyTableRequested) -> None:
        """A member noticed that its table is older than ours."""
        reader = self._readers.get(sender)
        if reader is not None and not reader.is_waiting:
            reader.acked = min(reader.acked, message.version)

    def unanswered(self) -> list[Reader]:
        """Members that have not acknowledged the table on its way."""
        return [reader for reader in self._readers.values() if reader.is_waiting]

    def ask(self, request: Reader) -> None:
        """Send the table again, as it is now."""
        self._ctx.resume(request.cause)
        request.is_waiting, request.acked = False, _UNKNOWN
        self.flush()

    def publish_stamp(self) -> None:
        """The periodic comparison of tables (ADL-10): only the version travels."""
        if self._table.initialised:
            version = m.LegacyVersionPublished(self._table.version_max)
            self._ctx.broadcast(version, list(self._readers))

    @property
    def unacknowledged(self) -> list[MemberId]:
        """Members that have not acknowledged the newest table, in list order."""
        version = self._table.version_max
        readers = self._readers if self._table.initialised else {}
        return [member for member, reader in readers.items() if reader.acked < version]

    def _trim(self) -> None:
        """Drop the finished migrations that everybody knows, or that are too many (ADL-25)."""
        newest = self._table.version_max
        known = min((reader.acked for reader in self._readers.values()), default=newest)
        limit = self._ctx.settings.completed_batch_max
        while self._recent and (
            self._recent[0].final_version <= known or len(self._recent) > limit
        ):
            self._recent.popleft()


class TableSubscriber:
    """Every member's side; see ``mode.Subscriber``."""

    def __init__(self, ctx: Context, manager: PartitionStateManager) -> None:
        self._ctx = ctx
        self._manager = manager
        self._recent: dict[str, MigrationInfo] = {}
        self._told = 0
        """Version of the last table that was taken in: it has told what is not newer."""

    def handlers(self) -> Handlers:
        """Tables, and the version that the master's stands at."""
        return {
            m.LegacyTablePublished: self.table_published,
            m.LegacyVersionPublished: self.version_published,
        }

    @property
    def completed(self) -> list[MigrationInfo]:
        """Finished migrations that, as far as we know, somebody may not know (ADL-26)."""
        return list(self._recent.values())

    def forget(self) -> None:
        """This member has become master: its publisher keeps the finished migrations."""
        self._recent.clear()

    def remember(self, migration: MigrationInfo) -> None:
        """Keep a migration committed here until a table has told it to all (ADL-30).

        The newest ``migration_max_parallel`` of them, as in the other mode.
        """
        self._recent.setdefault(migration.id, migration)
        own = [one.id for one in self._recent.values() if one.final_version > self._told]
        for key in own[: -self._ctx.settings.migration_max_parallel]:
            del self._recent[key]

    def table_published(self, sender: MemberId, message: m.LegacyTablePublished) -> None:
        """Apply a table of the member we take for master; others change nothing (ADL-08).

        Raises:
            ProtocolError: It is not a whole table of its version; nothing was applied.
        """
        if sender != self._ctx.master or sender == self._ctx.id:
            self._ctx.note("migration.foreign_table", "warning", sender=sender)
            return
        table = self._manager.table
        rows = table.take_image(message.image)
        if apply_table(self._manager, message.version, rows):
            own = [one for one in self._recent.values() if one.final_version > message.version]
            self._recent = {one.id: one for one in (*message.completed, *own)}
            self._told = message.version
        self._ctx.send(sender, m.LegacyTableAnswered(table.version_max))

    def version_published(self, sender: MemberId, message: m.LegacyVersionPublished) -> None:
        """Ask for the table when the master's is newer (ADL-10)."""
        if sender != self._ctx.master or sender == self._ctx.id:
            return
        version = self._manager.table.version_max
        if message.version > version:
            self._ctx.send(sender, m.LegacyTableRequested(version))
