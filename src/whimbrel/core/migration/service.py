"""The migration room's face: stimuli in, effects and callbacks out.

Knows which part handles which message and timer, and what must happen at the end of every step:
messages to ourselves are delivered, the control loop advances, changed rows are told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.events import GridEvent, Hook, PartitionLost
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.messages import (
    LossesNoted,
    LossesTold,
    Message,
    MigrationCommitAnswered,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
    PromotionAnswered,
    PromotionRequested,
    StateAnswered,
    StateRequested,
    TableRequested,
    TransferAnswered,
    TransferSent,
)
from whimbrel.core.migration.account import ACCOUNT_TIMER, AccountTelling
from whimbrel.core.migration.control_loop import RETRY_TIMER, SLICE_TIMER, STAMP_TIMER, ControlLoop
from whimbrel.core.migration.loopback import Loopback
from whimbrel.core.migration.losses import LOST_ALL, Losses, told_structures
from whimbrel.core.migration.progress import Figure, MigrationProcess
from whimbrel.core.migration.serial.cluster_mode import (
    check_direction,
    hand_over,
    next_mode,
    publication_handlers,
    version_of,
)
from whimbrel.core.migration.source import SourceSide
from whimbrel.core.model import Loss, MemberList, MigrationInfo
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
        on_rows_changed: Called once per step with the partitions whose row or version changed.
        on_may_leave: At the master, called with a leaving member that is in no row any more;
            again after each repeated request.
        on_migration_decided: At the master, called with every migration and promotion that has
            its verdict, and the microseconds from its start to it; CLEAR steps copy nothing and
            are not told.
    """

    def __init__(self, ctx: Context, host: FragmentHost) -> None:
        self._ctx = ctx
        self.table = PartitionTable(ctx.settings.partition_count)
        self.on_rows_changed: Callable[[Sequence[PartitionId]], None] | None = None
        self.on_may_leave: Callable[[MemberId], None] | None = None
        self.on_migration_decided: Callable[[MigrationInfo, int], None] | None = None
        self.partitions_lost = 0
        """Times that this member told that every replica of a partition is gone."""
        self.losses = Losses(ctx, self.table)
        self._untold: dict[PartitionId, Loss] = {}
        """What we found lost in our seats and the master has not noted."""
        self.is_grid_empty: Callable[[], bool] = lambda: False
        """Whether no structure is known that could have entries; told by who knows them."""
        self._leavers: list[MemberId] = []
        self._host = host
        self._loopback = Loopback(ctx)
        self._emit: Callable[[GridEvent], None] | None = None
        self._hook: Hook | None = None
        self._mode = next_mode(None, ctx.settings.cluster_version)
        self._build()

    def _build(self) -> None:
        """Make the parts for the mode of the cluster."""
        ctx, mode = self._ctx, self._mode
        self._manager = mode.manager(ctx, self._host, self.table)
        self._subscriber = mode.subscriber(ctx, self._manager)
        self._source = SourceSide(ctx, self._host, self._manager, self._loopback)
        self._destination = mode.destination(
            ctx, self._host, self._manager, self._subscriber, self._loopback
        )
        self._loop = ControlLoop(
            mode.loop,
            ctx,
            self._manager,
            self._subscriber,
            self._loopback,
            self._lost,
            self._leavers.append,
        )
        self._account = AccountTelling(ctx, self._manager, self._subscriber)
        self._loop.execution.on_verdict = self._tell_verdict
        self._loop.execution.is_grid_empty = lambda: self.is_grid_empty()
        self._loop.repair.on_verdict = self._tell_verdict
        self._loop.repair.losses = self.losses
        self._loop.repair.on_known_loss = self._tell_known
        self._listen()
        self._handlers = self._make_handlers()
        self._timers: dict[str, Callable[[], None]] = {
            REPEAT_TIMER: self._repeat,
            STAMP_TIMER: self._loop.stamp_due,
            SLICE_TIMER: self._loop.slice_due,
            ACCOUNT_TIMER: self._account.go_on,
            RETRY_TIMER: self._loop.retry_due,
        }

    def _make_handlers(self) -> dict[type[Message], Callable[[MemberId, Any], None]]:
        """Who takes which message; ``Any`` because each takes its own type."""
        loop = self._loop
        return {
            **publication_handlers(self._subscriber, loop.publisher),
            TableRequested: self._table_requested,
            StateRequested: self._state_requested,
            StateAnswered: loop.recovery.answered,
            MigrationRequested: self._source.requested,
            MigrationOpened: self._destination.opened,
            TransferSent: self._destination.sent,
            TransferAnswered: self._source.answered,
            MigrationDataAnswered: loop.execution.data_answered,
            MigrationCommitRequested: self._destination.commit_requested,
            MigrationCommitAnswered: loop.execution.commit_answered,
            PromotionRequested: self._destination.promotion_requested,
            PromotionAnswered: loop.repair.answered,
            LossesTold: self._losses_told,
            LossesNoted: self._losses_noted,
        }

    def tell_events(self, emit: Callable[[GridEvent], None]) -> None:
        """Have the events of this master's migrations and losses told (PIM-58)."""
        self._emit = emit
        self._listen()

    def set_hook(self, hook: Hook) -> None:
        """Have the moments of migrations told, as master and as participant (ADL-71, ADL-72)."""
        self._hook = hook
        self._listen()

    def _listen(self) -> None:
        """Give the parts whom they tell."""
        self._loop.reporter.emit = self._emit
        self._loop.reporter.hook = self._manager.hook = self._hook

    def _follow_mode(self) -> None:
        """Build anew when the cluster has another version than before (PIM-41, PIM-43).

        What this member takes part in goes on; a master settles all of it before it goes on.
        """
        mode = next_mode(self._mode, self._ctx.members.cluster_version)
        if mode is self._mode:
            return
        check_direction(self._mode, mode, self.table.initialised)
        self._ctx.note("migration.ways", cluster_version=self._ctx.members.cluster_version)
        manager, loop, self._mode = self._manager, self._loop, mode
        loop.resign()
        self._build()
        hand_over(manager, self._manager)
        self._loop.history, self._loop.depth = loop.history, loop.depth

    # -- stimuli --------------------------------------------------------------------------

    def on_message(self, sender: MemberId, message: Message) -> bool:
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
        self._conclude()
        return True

    def on_timer(self, key: str) -> None:
        """Handle a timer whose key starts with ``migration.``."""
        due = self._timers.get(key)
        if due is not None:
            due()
        self._conclude()

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """The member list was replaced; ``ctx.members`` is ``new`` already."""
        self._follow_mode()
        self._source.members_changed()
        if self._ctx.is_master and not self._loop.in_charge:
            self._loop.take_charge()
        elif self._loop.in_charge and not self._ctx.is_master:
            self._loop.resign()
        elif self._loop.in_charge:
            self._loop.members_changed(old, new)
        self._conclude()

    def became_master(self) -> None:
        """This member is master of its list now; may be told more than once."""
        if self._ctx.is_master:
            self._loop.take_charge()
        self._conclude()

    def leave_requested(self) -> None:
        """``ctx.leaving`` has a request, a new one or a repeated one."""
        self._loop.leave_requested()
        self._conclude()

    def depth_changed(self, depth: int) -> None:
        """Replicas per row that the live structures need: 1 + the deepest backup count (PIM-30).

        Every member is told, so that a new master knows.
        """
        check(depth > 0, "a row is at least one replica deep")
        before, self._loop.depth = self._loop.replica_depth, depth
        if self._loop.replica_depth != before:
            self._loop.trigger("the needed number of backups changed")
            self._conclude()

    # -- changes of the cluster state (membership.cluster_state.Table) -----------------------

    def local_work(self) -> str:
        """Why this member's part in migrations forbids a change of state, empty when nothing."""
        active = len(self._manager.active) + self._source.waiting_count
        return f"it takes part in {active} migrations; try again when they are over" * bool(active)

    def pending_work(self) -> str:
        """At the master: why the cluster's migrations forbid a change, empty when nothing does."""
        reason = self._loop.pending() or self.local_work()
        return f"migrations are under way or due ({reason}); try again when they are over" * bool(
            reason
        )

    def is_published(self) -> bool:
        """At the master: whether every member has the newest table."""
        return not self._loop.publisher.unacknowledged

    def table_mark(self) -> int:
        """What tables are compared by before a change: the stamp, or the one version below 4.1.

        PIM-31, PIM-32.
        """
        version = version_of(self._manager)
        return self.table.stamp if version is None else version

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand without having got their data back."""
        return self._host.seats_without_data()

    def note_without_data(self, found: Sequence[tuple[PartitionId, MemberId]]) -> None:
        """At the master: these members hold nothing in these rows; they lose their seats there."""
        self._loop.repair.note_without_data(found)

    def stand_still_over(self) -> None:
        """A change of state was given up: what waited for it goes on."""
        self._conclude()

    # -- links ----------------------------------------------------------------------------

    def link_restored(self, member: MemberId) -> None:
        """A broken connection to a member stands again: say again what may be lost."""
        self._source.link_restored(member)
        if self._loop.in_charge:
            self._loop.recovery.link_restored(member)
            self._loop.publisher.link_restored(member)
            self._loop.execution.link_restored(member)
            self._loop.repair.link_restored(member)
        self._conclude()

    def seat_lost(self, partition_id: PartitionId, lost_backup_count: int) -> None:
        """A member that came back to its seat found this many backups lost (ADL-06, GCM-09)."""
        loss = self.losses.seat_lost(partition_id, lost_backup_count)
        self._lost(partition_id, lost_backup_count)
        if loss is not None:
            self._untold[partition_id] = loss
            self._tell_losses((loss,))
            self._conclude()

    # -- losses ---------------------------------------------------------------------------

    def see_losses(self, name: str) -> bool:
        """At the master: an operator has seen the unseen marks of this name (``Losses.name``).

        Returns:
            False when the unseen marks are others by now; nothing has changed.
        """
        seen = self.losses.see(name)
        for loss in seen or ():
            self._loop.publisher.stage_loss(loss.partition_id)
        if seen:
            self._ctx.note("losses_seen", partitions=len(seen))
        self._conclude()
        return seen is not None

    def _tell_losses(self, losses: Sequence[Loss]) -> None:
        """Have the master tell everybody; our own table has them already."""
        master = self._ctx.master
        if self._loop.in_charge:
            for loss in losses:
                self._loop.publisher.stage_loss(loss.partition_id)
            self._untold.clear()
        elif master is not None and master != self._ctx.id:
            self._ctx.send(master, LossesTold(tuple(losses)))

    def _losses_told(self, sender: MemberId, message: LossesTold) -> None:
        count = self.table.partition_count
        if not self._loop.in_charge:
            return  # whoever is the master now will be told
        if not all(0 <= loss.partition_id < count for loss in message.losses):
            raise ProtocolError("a loss is told of an unknown partition")
        for loss in self.table.take_losses(message.losses):
            self._loop.publisher.stage_loss(loss.partition_id)
        self._ctx.send(sender, LossesNoted(message.losses))

    def _losses_noted(self, sender: MemberId, message: LossesNoted) -> None:
        for loss in message.losses:
            known = self._untold.get(loss.partition_id)
            if known is not None and known.version <= loss.version:
                del self._untold[loss.partition_id]

    # -- answers of our own ---------------------------------------------------------------

    def _table_requested(self, sender: MemberId, message: TableRequested) -> None:
        if self._loop.in_charge and not self._loop.recovery.running:
            self._loop.publisher.table_requested(sender, message.stamp)

    def _state_requested(self, sender: MemberId, message: StateRequested) -> None:
        """Tell the new master all we know (ADL-11); only the one we take for master."""
        if sender != self._ctx.master or sender == self._ctx.id:
            return
        self._account.begin(sender, message.round)

    # -- the end of a step ----------------------------------------------------------------

    def _conclude(self) -> None:
        """Deliver messages to ourselves and advance until nothing is left to do now."""
        cause = self._ctx.cause
        for _ in range(INBOX_ROUNDS_MAX):
            self._loop.advance()
            self._source.take_turns()
            if not self._loopback.inbox:
                break
            posted, message = self._loopback.inbox.popleft()
            self._ctx.resume(posted)
            self._handlers[type(message)](self._ctx.id, message)
        else:
            check(False, "the room comes to rest within a step")
        self._ctx.resume(cause)
        if self._is_waiting() and not self._ctx.is_armed(REPEAT_TIMER):
            self._ctx.arm(REPEAT_TIMER, max(1, self._ctx.settings.call_timeout_us // 2))
        if self._manager.changed:
            changed = self._manager.take_changed()
            if self.on_rows_changed is not None:
                self.on_rows_changed(changed)
        while self._leavers:
            # Last of all: the callback may change the member list and so come back here.
            member = self._leavers.pop(0)
            if self.on_may_leave is not None:
                self.on_may_leave(member)
                self._ctx.resume(cause)

    def _is_waiting(self) -> bool:
        """Whether something is unanswered that must be repeated."""
        loop = self._loop
        if self._source.is_copying or self._untold:
            return True
        return loop.in_charge and bool(
            loop.recovery.running
            or loop.execution.running_migrations
            or loop.repair.is_promoting
            or loop.publisher.unacknowledged
        )

    def _repeat(self) -> None:
        if self._untold:
            self._tell_losses(list(self._untold.values()))
        self._source.repeat()
        if self._loop.in_charge:
            self._loop.recovery.repeat()
            self._loop.publisher.repeat()
            self._loop.execution.repeat()
            self._loop.repair.repeat()

    def _lost(self, partition_id: PartitionId, lost_backup_count: int) -> None:
        self._say_lost(partition_id, lost_backup_count, self.losses.tell(partition_id))

    def _tell_known(self, loss: Loss) -> None:
        """An earlier master knew of it and may have told nobody."""
        known = self.losses.tell(loss.partition_id)
        self._say_lost(loss.partition_id, loss.lost_backup_count, known, is_known=True)

    def _say_lost(
        self, pid: PartitionId, lost_backup_count: int, loss: Loss | None, is_known: bool = False
    ) -> None:
        """Tell a primary's loss; ``loss`` is what went with it, None when nothing did."""
        self.partitions_lost += lost_backup_count == LOST_ALL
        level = "info" if loss is None and lost_backup_count != LOST_ALL else "error"
        self._ctx.note(
            "partition.lost",
            level,
            partition=pid,
            lost_backup_count=lost_backup_count,
            **({} if loss is None else {"structures": told_structures(loss)}),
            **({"known_before": True} if is_known else {}),
        )
        emit = self._loop.reporter.emit
        if emit is not None:
            version = 0 if loss is None else loss.version
            emit(PartitionLost(pid, lost_backup_count, self._ctx.id, version))

    def _tell_verdict(self, migration: MigrationInfo, elapsed_us: int) -> None:
        if self.on_migration_decided is not None:
            self.on_migration_decided(migration, elapsed_us)

    # -- looking --------------------------------------------------------------------------

    @property
    def history(self) -> deque[dict[str, Figure]]:
        """Finished processes of this master, oldest first: PROCESS documents."""
        return self._loop.history.finished

    @property
    def is_fetching(self) -> bool:
        """Whether this new master still collects the members' tables (FN-10)."""
        return self._loop.recovery.running

    @property
    def is_opening(self) -> bool:
        """Whether this new master has yet to send a part of the table it begins with (ADL-14)."""
        return self._loop.publisher.is_opening

    def current_process(self) -> dict[str, Figure] | None:
        """The PROCESS document of what is under way at this master, None when nothing is."""
        process = self._loop.history.current
        return None if process is None else process.document(self._ctx.now_us)

    def progress(self) -> dict[str, Figure]:
        """Figures of the process under way at this master; zeros and "" when there is none.

        ``active`` and ``queued`` count migrations that run or wait now, promotions included.
        """
        process = self._loop.history.current or MigrationProcess(0, "", 0, "")
        promoting = sum(len(batch.migrations) for batch in self._loop.repair.batches.values())
        return {
            "active": len(self._loop.execution.running_migrations) + promoting,
            "queued": self._loop.execution.queue.waiting_count,
            "planned": process.planned,
            "completed": process.completed,
            "failed": process.failed,
            "remaining": process.remaining,
            "copies": process.copies,
            "promotions": process.promotions,
            "bytes": process.bytes_moved,
            "started_us": process.started_us,
            "reason": process.reason,
        }

    def is_settled(self) -> tuple[bool, str]:
        """At the master: whether nothing is active, queued or due and all have the table.

        Returns:
            Whether, and when not, one sentence why.
        """
        return self._loop.is_settled()

    def active_migration(self, partition_id: PartitionId) -> MigrationInfo | None:
        """The migration of a partition that this member takes part in, None when there is none."""
        active = self._manager.active.get(partition_id)
        return None if active is None else active.migration

    def active_migrations(self) -> list[MigrationInfo]:
        """All migrations this member takes part in and whose verdict it does not know."""
        return [active.migration for active in self._manager.active.values()]

    def running_migrations(self) -> list[MigrationInfo]:
        """At the master: migrations that are started and not decided."""
        return [running.migration for running in self._loop.execution.running_migrations.values()]

    def counted_migrations(self) -> list[MigrationInfo]:
        """Those of them that count against ``migration_max_parallel`` (PIM-24)."""
        running_migrations = self._loop.execution.running_migrations.values()
        return [running.migration for running in running_migrations if running.is_counted]

    def completed_migrations(self) -> list[MigrationInfo]:
        """Finished migrations that, as far as we know, not everybody has heard of (ADL-25)."""
        if self._loop.in_charge and not self._loop.recovery.running:
            return self._loop.publisher.completed
        return self._subscriber.completed

    @property
    def table_version(self) -> int | None:
        """The one version of the whole table below cluster version 4.1, else None (PIM-01)."""
        return version_of(self._manager)

    @property
    def replica_depth(self) -> int:
        """Replicas per row that plans aim at, before the number of groups caps it."""
        return self._loop.replica_depth

    @property
    def is_in_charge(self) -> bool:
        """Whether this member acts as master."""
        return self._loop.in_charge
