"""The source side of a migration: the partition's primary copies to the destination.

Knows the checks of a request (ADL-27, ADL-28, PIM-08, PIM-09), how a copy is opened, repeated and
given up. Large partitions take turns: until its turn comes a request
has not begun, nothing waits for it, and it is checked anew. It decides nothing about the outcome:
after its answer to the master it keeps the migrating flag and all its data until it learns the
verdict (ADL-20).
"""

from __future__ import annotations

from whimbrel.core.context import Context
from whimbrel.core.events import Endpoint
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    Purpose,
    TransferAnswered,
)
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.state_manager import ActiveMigration, PartitionStateManager
from whimbrel.core.model import MigrationInfo
from whimbrel.core.ports import FragmentHost
from whimbrel.core.replication.transfer import Sending
from whimbrel.errors import SerializationError

BACKOFF_FACTOR_MAX = 5
"""An unanswered fragment is repeated after 1, 2, ... up to this many call timeouts."""


class Outgoing(ActiveMigration):
    """A migration of which we are the data source."""

    def __init__(self, migration: MigrationInfo, sending: Sending, size_bytes: int) -> None:
        super().__init__(migration, Endpoint.SOURCE)
        self.sending = sending
        self.size_bytes = size_bytes
        self.answer: MigrationDataAnswered | None = None
        """What the master was told; None while copying."""


class SourceSide:
    """All migrations of which this member is the data source."""

    def __init__(self, shared: MigrationContext, host: FragmentHost) -> None:
        self._ctx, self._manager, self._loopback = shared.ctx, shared.manager, shared.loopback
        self._host = host
        self._waiting: dict[PartitionId, tuple[MigrationRequested, str]] = {}
        """Requests whose turn has not come and their causes; at most one for a partition."""

    @property
    def waiting_count(self) -> int:
        """Migrations that were asked for and have not begun."""
        return len(self._waiting)

    # -- the master's request -------------------------------------------------------------

    def requested(self, sender: MemberId, message: MigrationRequested) -> None:
        """Queue for copying, or say again what came of it, or refuse."""
        migration = message.migration
        if sender != self._ctx.master or migration.master != sender:
            self._ctx.note("migration.foreign_request", "warning", sender=sender)
            return
        self._manager.apply_carried(migration.partition_id, message.completed)
        mine = self._manager.find(migration.id, migration.partition_id)
        if isinstance(mine, Outgoing):
            if mine.answer is not None:
                self._loopback.post(sender, mine.answer)
            return
        reason = self._refusal(migration)
        if reason:
            self._loopback.post(sender, MigrationDataAnswered(migration.id, False, reason, 0))
            return
        waits = self._waiting.get(migration.partition_id)
        if waits is None or waits[0].migration.id != migration.id:
            self._waiting[migration.partition_id] = (message, self._ctx.cause)

    def take_turns(self) -> None:
        """Begin what may begin: the oldest to each destination, more as long as they are small."""
        if not self._waiting:
            return
        bytes_max = self._ctx.settings.migration_copy_bytes_max
        under_way: dict[MemberId, int] = {}
        for outgoing in self.copying():
            member = outgoing.sending.member
            under_way[member] = under_way.get(member, 0) + outgoing.size_bytes
        for pid, (request, cause) in list(self._waiting.items()):
            migration = request.migration
            destination = migration.step.destination
            if destination is None or self._ctx.master != migration.master:
                del self._waiting[pid]  # another master settles what this one began
                continue
            size = self._host.copy_bytes(migration)
            before = under_way.get(destination)
            # What has to wait keeps its place: it counts for those behind it, too.
            under_way[destination] = (before or 0) + size
            if before is None or under_way[destination] <= bytes_max:
                del self._waiting[pid]
                self._ctx.resume(cause)
                self._begin(request, destination, size)

    def _begin(self, request: MigrationRequested, destination: MemberId, size_bytes: int) -> None:
        """Start copying, unless what was true when it was asked for no longer is."""
        migration = request.migration
        reason = self._refusal(migration)
        if reason:
            self._tell(MigrationDataAnswered(migration.id, False, reason, 0), migration.master)
            return
        pid = migration.partition_id
        sending = Sending(self._ctx, Purpose.MIGRATION, migration.id, pid, destination)
        self._manager.begin(Outgoing(migration, sending, size_bytes))
        sending.send(MigrationOpened(migration, request.completed))

    def _refusal(self, migration: MigrationInfo) -> str:
        """Why this request cannot run here, empty when it can (FN-6)."""
        destination = migration.step.destination
        if destination is None or destination == self._ctx.id:
            return "the request names no other member as destination"
        reason = participant_refusal(self._ctx, self._manager, migration)
        if reason:
            return reason
        pid = migration.partition_id
        if self._manager.table.row(pid)[0] != self._ctx.id:
            return "this member is not the primary of the partition"
        if pid in self._host.seats_without_data():
            return "this member has not got the partition's data back yet"
        if not self._ctx.is_member(destination):
            return "the destination is not in the member list"
        return ""

    # -- copying --------------------------------------------------------------------------

    def answered(self, sender: MemberId, message: TransferAnswered) -> None:
        """The destination took the message in flight, or could not; go on, or tell the master."""
        for outgoing in self.copying():
            sending = outgoing.sending
            if sending.transfer != message.transfer or sending.member != sender:
                continue
            if not message.success:
                self._answer(outgoing, False, message.reason)
            elif message.sequence == sending.sequence:
                self._advance(outgoing, message)

    def _advance(self, outgoing: Outgoing, answer: TransferAnswered) -> None:
        """The message in flight has arrived: send the next one, or report the end."""
        sending = outgoing.sending
        if sending.export is None:
            sending.export = self._host.open_export(outgoing.migration)
        try:
            if not sending.advance(answer, or_nothing=True):
                self._answer(outgoing, True, "")
        except SerializationError as error:
            self._answer(outgoing, False, f"the destination answers damage: {error}")

    def _answer(self, outgoing: Outgoing, success: bool, reason: str) -> None:
        """Tell the master; the flag stays on until the verdict is known (GCM-40)."""
        sending = outgoing.sending
        sending.export = None
        outgoing.answer = MigrationDataAnswered(
            outgoing.migration.id,
            success,
            reason,
            sending.bytes_moved,
            sending.entries_moved,
        )
        self._tell(outgoing.answer, outgoing.migration.master)

    def _tell(self, answer: MigrationDataAnswered, master: MemberId) -> None:
        """Answer the migration's master, unless another has taken over meanwhile."""
        if self._ctx.master == master:
            self._loopback.post(master, answer)

    # -- time, links, members -------------------------------------------------------------

    def copying(self) -> list[Outgoing]:
        """Migrations whose fragment in flight is not answered yet."""
        return [
            active
            for active in self._manager.active.values()
            if isinstance(active, Outgoing) and active.answer is None
        ]

    def repeat(self) -> None:
        """Send unanswered fragments again, ever more patiently; receivers drop repeats.

        A destination that takes nothing for ``migration_timeout_us`` is given up. A copy that
        makes progress is not: however large the partition, starting anew would not help it.
        """
        for outgoing in self.copying():
            sending = outgoing.sending
            silence_us = self._ctx.now_us - sending.progress_us
            if silence_us >= self._ctx.settings.migration_timeout_us:
                self._ctx.resume(sending.cause)
                self._answer(outgoing, False, "the destination took nothing within the time-out")
                continue
            factor = min(sending.attempts, BACKOFF_FACTOR_MAX)
            due_us = sending.sent_us + factor * self._ctx.settings.call_timeout_us
            if self._ctx.now_us >= due_us:
                sending.repeat()

    def link_restored(self, member: MemberId) -> None:
        """The link to a member was broken: what was in flight to it may be lost."""
        for active in self._manager.active.values():
            if not isinstance(active, Outgoing):
                continue
            if active.answer is None and active.sending.member == member:
                active.sending.repeat()
            elif active.answer is not None and active.migration.master == member:
                self._ctx.resume(active.sending.cause)
                self._tell(active.answer, member)

    def members_changed(self) -> None:
        """A destination that has left takes nothing more; the master decides what follows."""
        for outgoing in self.copying():
            if not self._ctx.is_member(outgoing.sending.member):
                self._answer(outgoing, False, "the destination left the member list")


def participant_refusal(
    ctx: Context, manager: PartitionStateManager, migration: MigrationInfo
) -> str:
    """The checks source and destination share (ADL-27, PIM-09); empty when all pass."""
    pid = migration.partition_id
    if not ctx.state.migration_allowed:
        return f"the cluster state is {ctx.state} here: no migrations (GCM-02)"
    if pid in manager.active:
        return "another migration of the partition is undecided here"
    local = manager.versions.of(pid)
    if local != migration.initial_version:
        return f"the partition version is {local} here, not {migration.initial_version}"
    return ""
