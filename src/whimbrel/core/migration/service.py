"""The migration room's face: stimuli in, effects and callbacks out.

Builds the parts for the mode of the cluster, knows which of them handles which message and timer,
and what must happen at the end of every step: messages to ourselves are delivered, the control
loop advances, changed rows are told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from whimbrel.core import messages as m
from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.events import GridEvent, Hook
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.migration.account import ACCOUNT_TIMER, AccountTelling
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.control_loop import RETRY_TIMER, SLICE_TIMER, STAMP_TIMER, ControlLoop
from whimbrel.core.migration.destination import DestinationSide
from whimbrel.core.migration.loopback import Loopback
from whimbrel.core.migration.losses import Losses
from whimbrel.core.migration.mode import ClusterMode, Handlers, Versioning
from whimbrel.core.migration.progress import Figure, MigrationProcess
from whimbrel.core.migration.reporter import MigrationReporter
from whimbrel.core.migration.requests import ask_again
from whimbrel.core.migration.serial.cluster_mode import next_mode
from whimbrel.core.migration.source import SourceSide
from whimbrel.core.migration.stable import STABLE_TIMER, StableTable
from whimbrel.core.migration.state_manager import PartitionStateManager
from whimbrel.core.model import Loss, MemberList, MigrationInfo, RowState
from whimbrel.core.partition.table import PartitionTable
from whimbrel.core.ports import FragmentHost
from whimbrel.errors import ProtocolError

REPEAT_TIMER = "migration.repeat"
INBOX_ROUNDS_MAX = 10_000_000
"""Messages to ourselves in one step; reaching it means that the room talks to itself for ever."""


class Migrations:
    """Table, plan and verdicts of one member.

    Args:
        ctx: Shared by the rooms; ``members`` and ``leaving`` are read here.
        host: The data.

    Attributes:
        table: Rows and versions.
        losses: The marks of what partitions have lost.
        stable: The rows that the cluster goes back to, in STABLE_CLUSTER.
        reporter: What has happened at this member as master: processes, counts.
        loop: The master's side.
        on_rows_changed: Called once per step with the partitions whose row or version changed.
        on_may_leave: At the master, called with a leaving member that is in no row any more;
            again after each repeated request.
        is_grid_empty: Whether no structure is known that could have entries; told by who knows
            them.
    """

    def __init__(self, ctx: Context, host: FragmentHost) -> None:
        self._ctx = ctx
        self._host = host
        self.table = PartitionTable(ctx.settings.partition_count)
        self.losses = Losses(ctx, self.table)
        self.stable = StableTable(ctx, self.table)
        self.reporter = MigrationReporter(ctx)
        self.on_rows_changed: Callable[[Sequence[PartitionId]], None] = lambda _pids: None
        self.on_may_leave: Callable[[MemberId], None] = lambda _member: None
        self.is_grid_empty: Callable[[], bool] = lambda: False
        self._untold: dict[PartitionId, Loss] = {}
        """What we found lost in our seats and the master has not noted."""
        self._leavers: list[MemberId] = []
        self._loopback = Loopback(ctx)
        mode = next_mode(None, ctx.settings.cluster_version, self.table)
        versioning = mode.versioning(ctx, self.table)
        self.manager = PartitionStateManager(ctx, host, self.table, versioning)
        self._build(mode, versioning)

    def _build(self, mode: ClusterMode, versioning: Versioning) -> None:
        """Make the parts for the mode of the cluster."""
        ctx, loopback = self._ctx, self._loopback
        shared = self._shared = MigrationContext(
            ctx,
            self.manager,
            mode,
            versioning,
            loopback,
            self.reporter,
            self.losses,
            self.stable,
        )
        self.subscriber = shared.subscriber
        self.source = SourceSide(shared, self._host)
        self.destination = DestinationSide(shared, self._host)
        self.loop = ControlLoop(shared, lambda: self.is_grid_empty(), self._leavers.append)
        account = AccountTelling(shared, self._host)
        self._handlers: Handlers = {
            **shared.subscriber.handlers(),
            **shared.publisher.handlers(),
            m.StateRequested: account.requested,
            m.StateAnswered: self.loop.recovery.answered,
            m.MigrationRequested: self.source.requested,
            m.MigrationOpened: self.destination.opened,
            m.TransferSent: self.destination.sent,
            m.TransferAnswered: self.source.answered,
            m.MigrationDataAnswered: self.loop.execution.data_answered,
            m.MigrationCommitRequested: self.destination.commit_requested,
            m.MigrationCommitAnswered: self.loop.execution.commit_answered,
            m.PromotionRequested: self.destination.promotion_requested,
            m.PromotionAnswered: self.loop.repair.answered,
            m.LossesTold: self._losses_told,
            m.LossesNoted: self._losses_noted,
            m.StableTableRequested: self.stable.requested,
            m.StableTableTold: self.stable.told,
        }
        self._timers: dict[str, Callable[[], None]] = {
            REPEAT_TIMER: self._repeat,
            STAMP_TIMER: self.loop.stamp_due,
            SLICE_TIMER: self.loop.slice_due,
            ACCOUNT_TIMER: account.go_on,
            STABLE_TIMER: self.stable.ask,
            RETRY_TIMER: lambda: self.loop.trigger("retry after a failed migration"),
        }

    def tell_events(self, emit: Callable[[GridEvent], None]) -> None:
        """Have the events of this master's migrations and losses told (PIM-58)."""
        self.reporter.emit = emit

    def set_hook(self, hook: Hook) -> None:
        """Have the moments of migrations told, as master and as participant (ADL-71, ADL-72)."""
        self.reporter.hook = self.manager.hook = hook

    def _follow_mode(self) -> None:
        """Build anew when the cluster has another version than before (PIM-41, PIM-43).

        What this member takes part in goes on; a master settles all of it before it goes on.
        """
        version, former = self._ctx.members.cluster_version, self._shared.mode
        mode = next_mode(former, version, self.table)
        if mode.name == former.name:
            return
        self._ctx.note("migration.ways", cluster_version=version)
        self.loop.resign()
        self.manager.versions = versioning = mode.versioning(self._ctx, self.table)
        depth = self.loop.depth
        self._build(mode, versioning)
        self.loop.depth = depth

    # -- stimuli --------------------------------------------------------------------------

    def on_message(self, sender: MemberId, message: m.Message) -> bool:
        """Handle a message of this room.

        Returns:
            False when the message is not one of this room's; nothing was done then.

        Raises:
            ProtocolError: The message breaks a rule; nothing of it was applied.
        """
        handler = self._handlers.get(type(message))
        if handler is None:
            return False
        handler(sender, message)
        self.conclude()
        return True

    def on_timer(self, key: str) -> None:
        """Handle a timer whose key starts with ``migration.``."""
        due = self._timers.get(key)
        if due is not None:
            due()
        self.conclude()

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """The member list was replaced; ``ctx.members`` is ``new`` already."""
        self.stable.follow(self.table_mark)
        self._follow_mode()
        self.source.members_changed()
        if self._may_rule() and not self.loop.in_charge:
            self.loop.take_charge()
        elif self.loop.in_charge and not self._ctx.is_master:
            self.loop.resign()
        elif self.loop.in_charge:
            self.loop.members_changed(old, new)
        self.conclude()

    def became_master(self) -> None:
        """This member is master of its list now; may be told more than once."""
        if self._may_rule():
            self.loop.take_charge()
        self.conclude()

    def _may_rule(self) -> bool:
        """Whether we are the master of a cluster that runs: in a recovery nothing is arranged."""
        return self._ctx.is_master and self._ctx.members.recovery is None

    def restore(self, rows: Iterable[RowState], losses: Iterable[Loss]) -> None:
        """Take the table of a cluster that comes back from its files; nobody has one yet."""
        self.table.take_losses(losses)
        for row in rows:
            self.manager.apply_row(row)
        self.conclude()

    def leave_requested(self) -> None:
        """``ctx.leaving`` has a request, a new one or a repeated one."""
        self.loop.leave_requested()
        self.conclude()

    def depth_changed(self, depth: int) -> None:
        """Replicas per row that the live structures need: 1 + the deepest backup count (PIM-30).

        Every member is told, so that a new master knows.
        """
        check(depth > 0, "a row is at least one replica deep")
        before, self.loop.depth = self.loop.replica_depth, depth
        if self.loop.replica_depth != before:
            self.loop.trigger("the needed number of backups changed")
            self.conclude()

    def fewest_backups(self, count: int) -> None:
        """Backups that every live structure has; what is planned back to a stable table counts on
        it (APR-41), and is planned anew when a structure with fewer comes to be.
        """
        before, self.stable.fewest_backups = self.stable.fewest_backups, count
        if count < before and self.stable.rows is not None:
            self.loop.trigger("a structure has fewer backups")
            self.conclude()

    # -- changes of the cluster state (membership.cluster_state.Table) -----------------------

    def local_work(self) -> str:
        """Why this member's part in migrations forbids a change of state, empty when nothing."""
        active = len(self.manager.active) + self.source.waiting_count
        return f"it takes part in {active} migrations; try again when they are over" * bool(active)

    def pending_work(self) -> str:
        """At the master: why the cluster's migrations forbid a change, empty when nothing does."""
        reason = self.loop.pending() or self.local_work()
        return f"migrations are under way or due ({reason}); try again when they are over" * bool(
            reason
        )

    def is_published(self) -> bool:
        """At the master: whether every member has the newest table."""
        return not self.loop.publisher.unacknowledged

    def table_mark(self) -> int:
        """What tables are compared by before a change: the stamp, or the one version below 4.1.

        PIM-31, PIM-32.
        """
        version = self.table_version
        return self.table.stamp if version is None else version

    def knows_stable_table(self) -> bool:
        """Whether the rows that the list calls stable are here, if it names any (APR-34)."""
        return self._ctx.members.stable is None or self.stable.rows is not None

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand without having got their data back."""
        return self._host.seats_without_data()

    def note_without_data(self, found: Sequence[tuple[PartitionId, MemberId]]) -> None:
        """At the master: these members hold nothing in these rows; they lose their seats there."""
        self.loop.repair.note_without_data(found)

    def stand_still_over(self) -> None:
        """A change of state was given up: what waited for it goes on."""
        self.conclude()

    # -- links ----------------------------------------------------------------------------

    def link_restored(self, member: MemberId) -> None:
        """A broken connection to a member stands again: say again what may be lost."""
        self.source.link_restored(member)
        ask_again(self._ctx, self.loop.asking, member)
        self.conclude()

    def seat_lost(self, partition_id: PartitionId, lost_backup_count: int) -> None:
        """A member that came back to its seat found this many backups lost (ADL-06, GCM-09)."""
        loss = self.losses.seat_lost(partition_id, lost_backup_count)
        self.reporter.lost(partition_id, lost_backup_count, self.losses.tell(partition_id))
        if loss is not None:
            self._untold[partition_id] = loss
            self._tell_losses((loss,))
            self.conclude()

    # -- losses ---------------------------------------------------------------------------

    def see_losses(self, name: str) -> bool:
        """At the master: an operator has seen the unseen marks of this name (``Losses.name``).

        Returns:
            False when the unseen marks are others by now; nothing has changed.
        """
        seen = self.losses.see(name)
        if seen:
            self._stage_losses(seen)
            self._ctx.note("losses_seen", partitions=len(seen))
        self.conclude()
        return seen is not None

    def _stage_losses(self, losses: Sequence[Loss]) -> None:
        for loss in losses:
            self.loop.publisher.stage_loss(loss.partition_id)

    def _tell_losses(self, losses: Sequence[Loss]) -> None:
        """Have the master tell everybody; our own table has them already."""
        master = self._ctx.master
        if self.loop.in_charge:
            self._stage_losses(losses)
            self._untold.clear()
        elif master is not None and master != self._ctx.id:
            self._ctx.send(master, m.LossesTold(tuple(losses)))

    def _losses_told(self, sender: MemberId, message: m.LossesTold) -> None:
        count = self.table.partition_count
        if not self.loop.in_charge:
            return  # whoever is the master now will be told
        if not all(0 <= loss.partition_id < count for loss in message.losses):
            raise ProtocolError("a loss is told of an unknown partition")
        self._stage_losses(self.table.take_losses(message.losses))
        self._ctx.send(sender, m.LossesNoted(message.losses))

    def _losses_noted(self, sender: MemberId, message: m.LossesNoted) -> None:
        for loss in message.losses:
            known = self._untold.get(loss.partition_id)
            if known is not None and known.version <= loss.version:
                del self._untold[loss.partition_id]

    # -- the end of a step ----------------------------------------------------------------

    def conclude(self) -> None:
        """Deliver messages to ourselves and advance until nothing is left to do now."""
        cause = self._ctx.cause
        for _ in range(INBOX_ROUNDS_MAX):
            self.loop.advance()
            self.source.take_turns()
            if not self._loopback.inbox:
                break
            posted, message = self._loopback.inbox.popleft()
            self._ctx.resume(posted)
            self._handlers[type(message)](self._ctx.id, message)
        else:
            check(False, "the room comes to rest within a step")
        self._ctx.resume(cause)
        is_waiting = self.source.copying() or self._untold or self.loop.is_waiting
        if is_waiting and not self._ctx.is_armed(REPEAT_TIMER):
            self._ctx.arm(REPEAT_TIMER, max(1, self._ctx.settings.call_timeout_us // 2))
        if self.manager.changed:
            self.on_rows_changed(self.manager.take_changed())
        while self._leavers:
            # Last of all: the callback may change the member list and so come back here.
            self.on_may_leave(self._leavers.pop(0))
            self._ctx.resume(cause)

    def _repeat(self) -> None:
        if self._untold:
            self._tell_losses(list(self._untold.values()))
        self.source.repeat()
        ask_again(self._ctx, self.loop.asking)

    # -- looking --------------------------------------------------------------------------

    def current_process(self) -> dict[str, Figure] | None:
        """The PROCESS document of what is under way at this master, None when nothing is."""
        process = self.reporter.current
        return None if process is None else process.document(self._ctx.now_us)

    def progress(self) -> dict[str, Figure]:
        """The same with zeros and "" when nothing is under way, and what runs and waits now.

        ``active`` and ``queued`` are migrations that run or wait now, promotions included.
        """
        process = self.reporter.current or MigrationProcess(0, "", 0, "")
        promoting = sum(len(batch.migrations) for batch in self.loop.repair.batches.values())
        return {
            **process.document(self._ctx.now_us),
            "active": len(self.loop.execution.running_migrations) + promoting,
            "queued": self.loop.execution.queue.waiting_count,
        }

    def is_settled(self) -> tuple[bool, str]:
        """At the master: whether nothing is active, queued or due and all have the table.

        Returns:
            Whether, and when not, one sentence why.
        """
        if self._ctx.members.recovery is not None:
            return False, "the cluster is coming back from its files"
        reason = self.loop.unsettled()
        return not reason, reason

    def active_migrations(self) -> list[MigrationInfo]:
        """All migrations this member takes part in and whose verdict it does not know."""
        return [active.migration for active in self.manager.active.values()]

    def running_migrations(self) -> list[MigrationInfo]:
        """At the master: migrations that are started and not decided."""
        return [running.migration for running in self.loop.execution.running_migrations.values()]

    def counted_migrations(self) -> list[MigrationInfo]:
        """Those of them that count against ``migration_max_parallel`` (PIM-24)."""
        running_migrations = self.loop.execution.running_migrations.values()
        return [running.migration for running in running_migrations if running.is_counted]

    def completed_migrations(self) -> list[MigrationInfo]:
        """Finished migrations that, as far as we know, not everybody has heard of (ADL-25)."""
        if self.loop.in_charge and not self.loop.recovery.running:
            return self.loop.publisher.completed
        return self.subscriber.completed

    @property
    def table_version(self) -> int | None:
        """The one version of the whole table below cluster version 4.1, else None (PIM-01)."""
        return self._shared.versioning.table_version
