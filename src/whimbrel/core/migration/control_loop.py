"""The master's control loop: from a trigger to a settled table, in the paper's order (ADL-49).

    settle a change of master -> repair -> repartition and plan -> execute -> let members leave

The loop keeps no state between runs (ADL-50): a trigger stops the plan, waits for what runs, and
starts again from the table as it is then. What each stage does is in its own module.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.core.check import check
from whimbrel.core.ids import EMPTY_ROW, REPLICA_SLOTS, MemberId, PartitionId, Row
from whimbrel.core.jobs import Job, finish
from whimbrel.core.migration.context import MigrationContext
from whimbrel.core.migration.member_changes import forfeited, reason_of
from whimbrel.core.migration.plan_execution import DISPATCH_TIMER, PlanExecution
from whimbrel.core.migration.progress import MigrationProcess
from whimbrel.core.migration.recovery import Recovery
from whimbrel.core.migration.repair import Repair
from whimbrel.core.migration.requests import Asking
from whimbrel.core.model import ClusterState, MemberList, Step, members_left
from whimbrel.core.partition.assignment import assigning
from whimbrel.core.partition.groups import group_warnings, member_groups
from whimbrel.core.partition.planner import plan_row, remove_cycles
from whimbrel.core.partition.stable import restoring
from whimbrel.core.partition.table import filled_count

RETRY_TIMER = "migration.retry"
STAMP_TIMER = "migration.stamp"
SLICE_TIMER = "migration.slice"
"""Fires at once while there is more to do than one step may."""
ROWS_PLANNED = 64
"""Rows that change and are planned in one piece, about 20 us each."""
ROWS_LOOKED = 4_096
"""Rows that are compared with their targets in one piece."""
FAILED_PLANS_NOTED = 5
"""After this many failed plans in a row, and each further time, the cause is told loudly."""
UNEVEN = "members are uneven"
"""Reason of a plan that only levels."""
LEVELLINGS_MAX = 3
"""Plans in a row that may level by nothing."""
DEPTH_DEFAULT = 2
"""Replicas per row before anybody has said: a primary and one backup."""


_THE_END = object()
"""Stands for the end of a job."""


class ControlLoop:
    """What the master does; idle on every other member.

    Args:
        shared: What it shares with the participant's side.
        is_grid_empty: Whether no structure is known that could have entries.
        on_may_leave: Told which leaving member is in no row any more.
    """

    def __init__(
        self,
        shared: MigrationContext,
        is_grid_empty: Callable[[], bool],
        on_may_leave: Callable[[MemberId], None],
    ) -> None:
        self._ctx, self._manager, self._versioning = shared.ctx, shared.manager, shared.versioning
        self._subscriber, self._reporter = shared.subscriber, shared.reporter
        self._stable = shared.stable
        self._on_may_leave = on_may_leave
        self.publisher = shared.publisher
        self.recovery = Recovery(shared.ctx, shared.manager, shared.mode.settling)
        self.repair = Repair(shared)
        self.execution = PlanExecution(shared, is_grid_empty)
        self.asking: tuple[Asking, ...]
        self.asking = (self.recovery, self.publisher, self.execution, self.repair)
        """Whose requests are repeated until they are answered."""
        self.in_charge = False
        """Whether this member acts as master; it may still be fetching."""
        self.depth = DEPTH_DEFAULT
        self._due: str | None = None
        self._due_cause = ""
        self._planning = False
        self._job_cause = ""
        self._job: Job[None] | None = None
        """The stage under way at a large table, in pieces; while it lasts nobody changes the table,
        and whatever calls for another run drops it."""
        self._repaired_us: int | None = None
        """When the rows of this run were repaired and the lost ones replaced; None before."""
        self._process: MigrationProcess | None = None
        self._failed_plans = 0
        self._unevenness = 0
        """Sum of the squares of members' loads when they were last called uneven."""
        self._levellings = 0
        """Plans in a row that were made to level and lowered that sum by nothing."""
        self._planned_leaving: tuple[MemberId, ...] = ()
        self._told_to_leave: dict[MemberId, None] = {}
        self.postponed = ""
        """Why a plan is due that the cluster state does not allow; empty when none is (GCM-13)."""
        self.when_durable: Callable[[Callable[[], None]], None] = lambda then: then()
        """Calls once the list of members outlives this process: at once where nothing is kept."""
        self._undurable = 0
        """Lists that might be forgotten yet."""

    # -- triggers -------------------------------------------------------------------------

    def take_charge(self) -> None:
        """This member is master now: first find out how things stand (ADL-11)."""
        if self.in_charge:
            return
        self.in_charge = True
        self._due = None
        self.postponed = ""
        self._await_durable()
        self.recovery.start()
        self._ctx.arm(STAMP_TIMER, self._ctx.settings.table_send_interval_us)

    def resign(self) -> None:
        """This member is not master any more; whoever is will settle what was open."""
        self.in_charge = False
        self._due = None
        self._planning = False
        self._job = None
        for timer in (RETRY_TIMER, STAMP_TIMER, DISPATCH_TIMER, SLICE_TIMER):
            self._ctx.disarm(timer)
        self.recovery.stop()
        self.repair.stop()
        self.execution.stop()
        self.publisher.stop()
        self._told_to_leave.clear()
        for process in list(self._reporter.open):
            process.running = 0
            self._reporter.close(process)
        self._process = None

    def members_changed(self, old: MemberList, new: MemberList) -> None:
        """A new list: settle what departures settle; plan anew when the data members changed."""
        gone = dict.fromkeys(members_left(old, new))
        cause = self._ctx.cause
        self._await_durable()
        self.recovery.members_changed(gone)
        if self.recovery.running:
            self._job = None
            return
        self.repair.note_departed(forfeited(old, new))
        self.publisher.members_changed(gone)
        self.execution.members_changed(gone)
        self.repair.members_changed(gone)
        self._ctx.resume(cause)
        if old.state is not new.state:
            self.publisher.ask_for_acknowledgements()
        reason = reason_of(old, new)
        if not reason and new.state.promotion_allowed and self.repair.owed:
            reason = "members came back without data"
        if reason and new.state.promotion_allowed:
            self._failed_plans = 0
            self.trigger(reason)
        elif self.postponed and new.state.promotion_allowed and old.state is not new.state:
            self.trigger(self.postponed)

    def _await_durable(self) -> None:
        """Give nobody data before this list is durable.

        A member that is on no list in anybody's files is not waited for when all come back (S3),
        and what it alone had would be stale.
        """
        self._undurable += 1
        self.when_durable(self._is_durable)

    def _is_durable(self) -> None:
        self._undurable -= 1

    def trigger(self, reason: str) -> None:
        """Run the loop again as soon as what runs now has ended (ADL-50).

        Partitions nobody works on are repaired at once, so that no promotion waits for a copy.
        """
        if not self.in_charge or self.recovery.running:
            return
        self._ctx.disarm(RETRY_TIMER)
        if self._due is None:
            self._due, self._due_cause = reason, self._ctx.cause
        if self._planning:  # what is planned instead is a process of its own (FN-16)
            self._close_process()
        self._planning = False
        self._job = None
        self.execution.drop_rest()
        busy = self.execution.running_migrations or self.repair.is_promoting
        if self._manager.table.initialised and busy and self._ctx.state.promotion_allowed:
            self._close_process()
            if self._versioning.may_begin(1):
                self._process = self._reporter.begin(reason, self._ctx.cause)
                self.repair.run(self._process, self.execution.running_migrations)

    def stamp_due(self) -> None:
        """Time to compare tables (ADL-10)."""
        if not self.in_charge:
            return
        self._ctx.arm(STAMP_TIMER, self._ctx.settings.table_send_interval_us)
        if not self.recovery.running:
            self.publisher.flush()
            self.publisher.publish_stamp()

    # -- the loop -------------------------------------------------------------------------

    def advance(self) -> None:
        """Do all that can be done now; called at the end of every step of the member."""
        if not self.in_charge:
            return
        if self.recovery.running:
            if self.recovery.unanswered():
                return
            if self._job is None:
                self._begin(self._finishing_recovery())
            if self.recovery.running:
                self._go_on_soon()
                return
        self.publisher.flush()
        if self._planning:
            self._resume()
            self.execution.advance()
            if self.execution.is_idle:
                self._end_plan()
        if not self.execution.running_migrations and not self.repair.is_promoting:
            if self._due is not None and self._may_repair():
                self._repair()
            is_next = self._process is not None and not self._planning and self._job is None
            is_next = is_next and self._stable.is_decided
            if is_next and not self._undurable and self._is_repaired():
                self._plan()
        self.publisher.flush()
        self._let_leave()
        self._go_on_soon()

    # -- pieces ---------------------------------------------------------------------------

    def _begin(self, job: Job[None]) -> None:
        """Do a stage: at once when the table is small, else piece by piece."""
        if self._manager.table.partition_count > self._ctx.settings.step_rows_max:
            self._job, self._job_cause = job, self._ctx.cause
        else:
            finish(job)

    def _go_on_soon(self) -> None:
        """Have the next turn go on with what this step has left."""
        more = self._job is not None or self.publisher.has_parts_left or self.repair.has_rows_left
        if more and not self._ctx.is_armed(SLICE_TIMER):
            self._ctx.arm(SLICE_TIMER, 0)

    def slice_due(self) -> None:
        """Do the next piece of one thing: repair first, because writes wait for it.

        Then tables: no plan is made before a newcomer has all of its own (PIM-05).
        """
        job = self._job
        if self.repair.has_rows_left:
            self.repair.go_on(self.execution.running_migrations)
        elif self.publisher.has_parts_left:
            self.publisher.go_on()
            self.publisher.flush()
            self.repair.send_held()
        elif job is not None:
            self._ctx.resume(self._job_cause)
            if next(job, _THE_END) is _THE_END and self._job is job:
                self._job = None

    # -- stages ---------------------------------------------------------------------------

    def _finishing_recovery(self) -> Job[None]:
        """Everybody has answered: decide, publish, and only then go on (ADL-14)."""
        settlement = yield from self.recovery.finishing(self._subscriber.completed)
        # Who came back to its seats (GCM-09) knows that it has no data, and gets them back.
        missing = self._ctx.members.is_missing
        self.repair.note_without_data(
            [(pid, member) for pid, member in settlement.without_data if not missing(member)]
        )
        self._subscriber.forget()
        self.publisher.start(settlement.completed)
        self._ctx.note(
            "migration.table_settled",
            completed=len(settlement.completed),
            rolled_back=len(settlement.rolled_back),
        )
        self.repair.tell_known()
        self.trigger("change of master")

    def _may_repair(self) -> bool:
        """Whether the state lets rows be repaired; what is due is put off else (GCM-08).

        A new master's whole table goes out before that, its last part too (ADL-14). The first
        arrangement gives data to members, so it waits for their list.
        """
        if self.publisher.is_opening:
            return False
        if self._undurable and not self._manager.table.initialised:
            return False
        if self._ctx.state.promotion_allowed:
            return True
        if self._ctx.state is not ClusterState.IN_TRANSITION:
            self.postponed, self._due = self._due or self.postponed, None
        return False

    def _repair(self) -> None:
        """Stage one of a run: first arrangement, or the repair of the rows."""
        reason, self._due = self._due or "", None
        self._repaired_us = None
        self._planned_leaving = self._ctx.leaving
        self._told_to_leave.clear()
        if self._process is None:
            self._process = self._reporter.begin(reason, self._due_cause)
        self._resume()
        if self._manager.table.initialised:
            self.repair.run(self._process, ())
        else:
            self._arrange_first()

    def _is_repaired(self) -> bool:
        """Whether stage one is over: all promoted, and the repaired rows known (PIM-05).

        Fragments travel on another connection than tables, so a participant that does not have
        the row yet would refuse. A member that does not answer is waited for only so long.
        """
        if self.repair.is_promoting:
            return False
        self._resume()
        if self._repaired_us is None:
            self._begin(self._replacing_lost())
        if self._repaired_us is None:
            return False
        if self._ctx.now_us - self._repaired_us >= self._ctx.settings.call_timeout_us:
            return True
        data_members = dict.fromkeys(member.id for member in self._ctx.data_members())
        return not any(member in data_members for member in self.publisher.unacknowledged)

    def _replacing_lost(self) -> Job[None]:
        """Give partitions without any replica a new, empty primary (ADL-05)."""
        lost = self._manager.table.empty_partitions() if self._manager.table.initialised else []
        if lost and self._groups():
            targets = yield from self._targets()
            primaries = {pid: targets[pid][0] for pid in lost}
            yield from self.repair.replacing_lost(
                {pid: member for pid, member in primaries.items() if member is not None}
            )
        self.publisher.flush()
        self._repaired_us = self._ctx.now_us

    def _plan(self) -> None:
        """Stage two: repartition, cancel cycles, decide kinds and order, queue (ADL-49)."""
        process = self._process
        if process is None or not self._manager.table.initialised or not self._groups():
            self._close_process()
            return
        self._begin(self._planning_of(process))

    def _planning_of(self, process: MigrationProcess) -> Job[None]:
        plan: list[tuple[PartitionId, tuple[Step, ...]]] = []
        stuck = 0
        fewest = 1 if self._stable.rows is None else max(1, self._stable.fewest_backups)
        for number, (pid, row, target) in enumerate((yield from self._differences()), 1):
            steps = plan_row(row, target, fewest)
            if steps:
                plan.append((pid, steps))
            elif remove_cycles(row, target) != row:
                stuck += 1
            if not number % ROWS_PLANNED:
                yield
        if stuck:
            self._ctx.note("migration.rows_left", partitions=stuck)
        if not plan:
            self.postponed = ""
            self._plan_succeeded()
            return
        if not self._ctx.state.migration_allowed:
            self._put_off(process.reason)
            return
        self.postponed = ""
        yield from self.execution.queue.loading(plan, self.execution.late)
        self.execution.load(plan, process)
        self._planning = True
        self._ctx.note("migration.planned", steps=process.planned, reason=process.reason)
        self.publisher.flush()
        self.execution.advance()
        if self.execution.is_idle:
            self._end_plan()

    def _differences(self) -> Job[list[tuple[PartitionId, Row, Row]]]:
        """The rows with a primary that are to change, and what is wanted instead."""
        found: list[tuple[PartitionId, Row, Row]] = []
        targets, rows = (yield from self._targets()), self._manager.table.rows
        for start in range(0, len(rows), ROWS_LOOKED):
            found += [
                (PartitionId(pid), rows[pid], targets[pid])
                for pid in range(start, min(start + ROWS_LOOKED, len(rows)))
                if rows[pid] != targets[pid] and rows[pid][0] is not None
            ]
            yield
        return found

    def _put_off(self, reason: str) -> None:
        """The state forbids what was planned; it is made up for when it allows it (GCM-13).

        While the state is just changing nothing is put off: the run goes on when that is over.
        """
        if self._ctx.state is ClusterState.IN_TRANSITION:
            return
        if not self.postponed:
            self._ctx.note(
                "migration.postponed", reason=reason, state=self._ctx.members.state.value
            )
        self.postponed = self.postponed or reason
        self._close_process()

    def _groups(self) -> list[tuple[MemberId, ...]]:
        """The members that may get replicas, by place: neither lite nor leaving (ADL-01)."""
        members, settings = self._ctx.staying(), self._ctx.settings
        return member_groups(members, settings.member_group, settings.member_group_patterns)

    def _targets(self) -> Job[list[Row]]:
        """The rows that repartitioning wants."""
        table, stable = self._manager.table, self._stable.rows
        changes = table.change_count
        if stable is None:
            targets = yield from assigning(
                table.rows, self._groups(), self.replica_depth, self._ctx.leaving
            )
        else:
            missing_max = self._ctx.settings.persistence.k_safety
            targets = yield from restoring(
                table.rows, stable, self._groups(), self.replica_depth, missing_max
            )
        check(table.change_count == changes, "no row changes while a plan is made")
        return targets

    @property
    def replica_depth(self) -> int:
        """Replicas per row, before it is capped by the number of groups (PIM-30)."""
        if self._ctx.settings.plan_depth == "deep":
            return REPLICA_SLOTS
        return max(1, min(REPLICA_SLOTS, self.depth))

    def _arrange_first(self) -> None:
        """The first arrangement: rows are set, nothing moves; version = replicas (PIM-13)."""
        groups = self._groups()
        if not groups:
            return
        count = self._manager.table.partition_count
        targets = finish(assigning([EMPTY_ROW] * count, groups, self.replica_depth))
        for pid, row in enumerate(targets):
            before = self._versioning.of(PartitionId(pid))
            self._manager.change(PartitionId(pid), row, before + filled_count(row))
            self.publisher.stage_row(PartitionId(pid))
        self._ctx.note("migration.first_arrangement", partitions=count, groups=len(groups))

    # -- ends -----------------------------------------------------------------------------

    def _resume(self) -> None:
        """The process goes on."""
        if self._process is not None:
            self._ctx.resume(self._process.cause)

    def _close_process(self) -> None:
        if self._process is not None:
            self._reporter.close(self._process)
            self._process = None

    def _end_plan(self) -> None:
        """All of the plan is decided, or it failed and nothing of it runs any more."""
        self._planning = False
        failure = self.execution.failure
        if not failure:
            self._plan_succeeded()
            return
        self._close_process()
        self._failed_plans += 1
        if self._failed_plans % FAILED_PLANS_NOTED == 0:
            self._ctx.note("migration.plans_fail", "warning", plans=self._failed_plans, why=failure)
        if self._due is None:
            self._ctx.arm(RETRY_TIMER, self._ctx.settings.migration_retry_us)

    def _plan_succeeded(self) -> None:
        """The table is as wanted."""
        process = self._process
        self._close_process()
        self._failed_plans = 0
        if process is not None and process.planned:
            self._ctx.note(
                "migration.finished",
                reason=process.reason,
                copies=process.copies,
                promotions=process.promotions,
                bytes=process.bytes_moved,
                entries=process.entries_moved,
            )
            self._make_up(process.reason)
        settings = self._ctx.settings
        for sentence in group_warnings(
            self._ctx.data_members(),
            settings.member_group,
            settings.member_group_patterns,
            self.replica_depth,
        ):
            self._ctx.note("migration.group_warning", "warning", sentence=sentence)

    def _make_up(self, reason: str) -> None:
        """Plan again when members differ by more than one primary or replica.

        So it is after a dropped plan, or when more than one plan can do is to be levelled: a row
        that has changed in a plan has fewer ways to change further.

        A few times only when it does not help: such a plan may first have had holders to level, but
        what goes on without levelling would go on for ever (never a hot loop).
        """
        if self._stable.rows is not None:
            return  # what is uneven is so until the others are back
        table = self._manager.table
        members = [member for group in self._groups() for member in group]
        primaries = [table.primary_count(member) for member in members]
        replicas = [table.replica_count(member) for member in members]
        if not members or max(max(one) - min(one) for one in (primaries, replicas)) < 2:
            return
        unevenness = sum(count * count for count in (*primaries, *replicas))
        is_news = reason != UNEVEN or unevenness < self._unevenness
        self._levellings = 1 if is_news else self._levellings + 1
        self._unevenness = unevenness
        if self._levellings <= LEVELLINGS_MAX:
            self.trigger(UNEVEN)

    # -- leaving --------------------------------------------------------------------------

    def leave_requested(self) -> None:
        """Somebody asks, maybe again, to leave: plan without it, or tell it again that it may."""
        if not self.in_charge or self.recovery.running:
            return
        if self._has_unplanned_leaver() and self._ctx.members.state.migration_allowed:
            self.trigger("a member wants to leave")
        else:
            self._told_to_leave.clear()

    def _has_unplanned_leaver(self) -> bool:
        return any(member not in self._planned_leaving for member in self._ctx.leaving)

    def may_leave(self, member: MemberId) -> bool:
        """Whether a member is in no row, and everybody knows that.

        Where migrations are not allowed nothing can be handed over: it goes at once, as if it had
        crashed, but orderly (FN-12).
        """
        if not self.in_charge or self.recovery.running:
            return False
        if self._ctx.state is ClusterState.IN_TRANSITION:
            return False
        if not self._ctx.state.migration_allowed or self._all_leave():
            return True
        return (
            member in self._planned_leaving
            and self._manager.table.replica_count(member) == 0
            and not self.execution.involves(member)
            and not self.publisher.unacknowledged
        )

    def _all_leave(self) -> bool:
        """Whether every data member wants to leave: then there is nobody to hand over to."""
        return not self._ctx.staying()

    def _let_leave(self) -> None:
        """Tell members that have handed over everything, once per request."""
        for member in self._ctx.leaving:
            if member not in self._told_to_leave and self.may_leave(member):
                self._told_to_leave[member] = None
                self._on_may_leave(member)

    # -- state ----------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What is active, queued, pending or due, or who lacks the table; empty when nothing is."""
        state, table = self._ctx.members.state, self._manager.table
        behind = self.publisher.unacknowledged
        put_off = f"put off while the cluster state is {state}: {self.postponed}"
        lacking = {
            f"{len(behind)} members have not acknowledged the table": behind,
            "the partitions are not assigned yet": not table.initialised,
            put_off: self.postponed and state.promotion_allowed,
            "a member wants to leave": self._has_unplanned_leaver(),
            "partitions without any replica": table.empty_partitions(),
        }
        return self.pending() or next((reason for reason, is_so in lacking.items() if is_so), "")

    def pending(self) -> str:
        """What is under way or due at this master, in words; empty when nothing is."""
        if not self.in_charge:
            return "this member is not the master"
        if self.recovery.running:
            waiting = self.recovery.unanswered()
            return f"the new master is fetching the table from {len(waiting)} members"
        execution = self.execution
        busy = {
            "promotions are under way": self.repair.is_promoting,
            "migrations are due": execution.running_migrations or execution.queue.waiting_count,
            "a new plan is due": self._due is not None,
            "a plan is under way": self._process is not None,
            "a failed plan will be tried again": self._ctx.is_armed(RETRY_TIMER),
        }
        return next((reason for reason, is_so in busy.items() if is_so), "")

    @property
    def is_waiting(self) -> bool:
        """Whether something is unanswered that must be repeated."""
        return self.in_charge and bool(
            self.recovery.running
            or self.execution.running_migrations
            or self.repair.is_promoting
            or self.publisher.unacknowledged
        )
