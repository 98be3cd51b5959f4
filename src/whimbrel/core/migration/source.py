"""The source side of a migration: the partition's primary copies to the destination.

Knows the checks of a request (ADL-27, ADL-28, PIM-08, PIM-09), the probe, and one fragment
message in flight at a time (GCM-36). Large partitions take turns: until its turn comes a request
has not begun, nothing waits for it, and it is checked anew. It decides nothing about the outcome:
after its answer to the master it keeps the migrating flag and all its data until it learns the
verdict (ADL-20).
"""

from __future__ import annotations

from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    FragmentAnswered,
    FragmentPart,
    FragmentSent,
    MigrationDataAnswered,
    MigrationRequested,
)
from whimbrel.core.migration.keeper import ActiveMigration, Role, TableKeeper
from whimbrel.core.migration.mail import Mail
from whimbrel.core.model import MigrationInfo
from whimbrel.core.ports import Export, FragmentHost

BACKOFF_FACTOR_MAX = 5
"""An unanswered fragment is repeated after 1, 2, ... up to this many call timeouts."""


class Outgoing(ActiveMigration):
    """A migration of which we are the data source."""

    def __init__(
        self, request: MigrationRequested, destination: MemberId, size_bytes: int, cause: str
    ) -> None:
        super().__init__(request.migration, Role.SOURCE)
        self.cause = cause
        self.destination = destination
        self.completed = request.completed
        self.size_bytes = size_bytes
        self.export: Export | None = None
        self.sequence = 0
        """Number of the fragment message in flight; 0 is the probe."""
        self.parts: tuple[FragmentPart, ...] = ()
        self.last = False
        self.bytes_moved = 0
        self.sent_us = 0
        self.progress_us = 0
        """When the destination last took something, or the migration began."""
        self.attempts = 0
        self.answer: MigrationDataAnswered | None = None
        """What the master was told; None while copying."""


class SourceSide:
    """All migrations of which this member is the data source."""

    def __init__(self, ctx: Context, host: FragmentHost, keeper: TableKeeper, mail: Mail) -> None:
        self._ctx = ctx
        self._host = host
        self._keeper = keeper
        self._mail = mail
        self._waiting: dict[PartitionId, MigrationRequested] = {}
        """Requests whose turn has not come, oldest first; at most one for a partition."""
        self._causes: dict[PartitionId, str] = {}
        """Of the newest request for each partition."""

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
        self._keeper.apply_carried(migration.partition_id, message.completed)
        mine = self._keeper.find(migration.id, migration.partition_id)
        if isinstance(mine, Outgoing):
            if mine.answer is not None:
                self._mail.post(sender, mine.answer)
            return
        reason = self._refusal(migration)
        if reason:
            self._mail.post(sender, MigrationDataAnswered(migration.id, False, reason, 0))
            return
        waits = self._waiting.get(migration.partition_id)
        if waits is None or waits.migration.id != migration.id:
            self._waiting[migration.partition_id] = message
            self._causes[migration.partition_id] = self._ctx.cause

    def take_turns(self) -> None:
        """Begin what may begin: the oldest to each destination, more as long as they are small."""
        if not self._waiting:
            return
        bytes_max = self._ctx.settings.migration_copy_bytes_max
        under_way: dict[MemberId, int] = {}
        for outgoing in self.copying():
            size = under_way.get(outgoing.destination, 0) + outgoing.size_bytes
            under_way[outgoing.destination] = size
        for pid, request in list(self._waiting.items()):
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
                self._begin(request, destination, size)

    def _begin(self, request: MigrationRequested, destination: MemberId, size_bytes: int) -> None:
        """Start copying, unless what was true when it was asked for no longer is."""
        cause = self._causes.pop(request.migration.partition_id)
        self._ctx.resume(cause)
        reason = self._refusal(request.migration)
        if reason:
            answer = MigrationDataAnswered(request.migration.id, False, reason, 0)
            self._tell(answer, request.migration.master)
            return
        outgoing = Outgoing(request, destination, size_bytes, cause)
        outgoing.progress_us = self._ctx.now_us
        self._keeper.begin(outgoing)
        self._send(outgoing)

    def _refusal(self, migration: MigrationInfo) -> str:
        """Why this request cannot run here, empty when it can (facts 4.3 step 2)."""
        destination = migration.step.destination
        if destination is None or destination == self._ctx.id:
            return "the request names no other member as destination"
        reason = participant_refusal(self._ctx, self._keeper, migration)
        if reason:
            return reason
        pid = migration.partition_id
        if self._keeper.table.row(pid)[0] != self._ctx.id:
            return "this member is not the primary of the partition"
        if pid in self._host.seats_without_data():
            return "this member has not got the partition's data back yet"
        if not self._ctx.is_member(destination):
            return "the destination is not in the member list"
        return ""

    # -- copying --------------------------------------------------------------------------

    def fragment_answered(self, sender: MemberId, message: FragmentAnswered) -> None:
        """The destination took the message in flight, or could not; go on, or tell the master."""
        outgoing = self._find(message.migration_id)
        if outgoing is None or outgoing.answer is not None or sender != outgoing.destination:
            return
        if not message.success:
            self._answer(outgoing, False, message.reason)
        elif message.sequence == outgoing.sequence:
            outgoing.progress_us = self._ctx.now_us
            self._advance(outgoing)

    def _find(self, migration_id: str) -> Outgoing | None:
        for active in self._keeper.active.values():
            if active.migration.id == migration_id and isinstance(active, Outgoing):
                return active
        return None

    def _advance(self, outgoing: Outgoing) -> None:
        """The message in flight has arrived: send the next one, or report the end."""
        if outgoing.last:
            self._answer(outgoing, True, "")
            return
        if outgoing.export is None:
            outgoing.export = self._host.open_export(outgoing.migration)
        bytes_max = self._ctx.settings.migration_chunk_bytes_max
        outgoing.parts, outgoing.last = outgoing.export.next_parts(bytes_max)
        if outgoing.last and not outgoing.parts and outgoing.sequence == 0:
            self._answer(outgoing, True, "")  # nothing to copy: the probe was enough
            return
        outgoing.bytes_moved += sum(len(part.data) for part in outgoing.parts)
        outgoing.sequence += 1
        outgoing.attempts = 0
        self._send(outgoing)

    def _send(self, outgoing: Outgoing) -> None:
        outgoing.sent_us = self._ctx.now_us
        outgoing.attempts += 1
        message = FragmentSent(
            outgoing.migration,
            outgoing.sequence,
            outgoing.parts,
            outgoing.last,
            outgoing.completed if outgoing.sequence == 0 else (),
        )
        self._mail.post(outgoing.destination, message)

    def _answer(self, outgoing: Outgoing, success: bool, reason: str) -> None:
        """Tell the master; the flag stays on until the verdict is known (GCM-40)."""
        outgoing.export = None
        outgoing.parts = ()
        outgoing.answer = MigrationDataAnswered(
            outgoing.migration.id, success, reason, outgoing.bytes_moved
        )
        self._tell(outgoing.answer, outgoing.migration.master)

    def _tell(self, answer: MigrationDataAnswered, master: MemberId) -> None:
        """Answer the migration's master, unless another has taken over meanwhile."""
        if self._ctx.master == master:
            self._mail.post(master, answer)

    # -- time, links, members -------------------------------------------------------------

    def copying(self) -> list[Outgoing]:
        """Migrations whose fragment in flight is not answered yet."""
        return [
            active
            for active in self._keeper.active.values()
            if isinstance(active, Outgoing) and active.answer is None
        ]

    @property
    def is_copying(self) -> bool:
        """Whether some fragment in flight is not answered yet."""
        actives = self._keeper.active.values()
        return any(isinstance(one, Outgoing) and one.answer is None for one in actives)

    def repeat(self) -> None:
        """Send unanswered fragments again, ever more patiently; receivers drop repeats.

        A destination that takes nothing for ``migration_timeout_us`` is given up. A copy that
        makes progress is not: however large the partition, starting anew would not help it.
        """
        for outgoing in self.copying():
            self._ctx.resume(outgoing.cause)
            silence_us = self._ctx.now_us - outgoing.progress_us
            if silence_us >= self._ctx.settings.migration_timeout_us:
                self._answer(outgoing, False, "the destination took nothing within the time-out")
                continue
            factor = min(outgoing.attempts, BACKOFF_FACTOR_MAX)
            due_us = outgoing.sent_us + factor * self._ctx.settings.call_timeout_us
            if self._ctx.now_us >= due_us:
                self._send(outgoing)

    def link_restored(self, member: MemberId) -> None:
        """The link to a member was broken: what was in flight to it may be lost."""
        for active in self._keeper.active.values():
            if not isinstance(active, Outgoing):
                continue
            self._ctx.resume(active.cause)
            if active.answer is None and active.destination == member:
                self._send(active)
            elif active.answer is not None and active.migration.master == member:
                self._tell(active.answer, member)

    def members_changed(self) -> None:
        """A destination that has left takes nothing more; the master decides what follows."""
        for outgoing in self.copying():
            if not self._ctx.is_member(outgoing.destination):
                self._answer(outgoing, False, "the destination left the member list")


def participant_refusal(ctx: Context, keeper: TableKeeper, migration: MigrationInfo) -> str:
    """The checks source and destination share (ADL-27, PIM-09); empty when all pass."""
    pid = migration.partition_id
    if not ctx.state.migration_allowed:
        return f"the cluster state is {ctx.state} here: no migrations (GCM-02)"
    if pid in keeper.active:
        return "another migration of the partition is undecided here"
    local = keeper.current_version(pid)
    if local != migration.initial_version:
        return f"the partition version is {local} here, not {migration.initial_version}"
    return ""
