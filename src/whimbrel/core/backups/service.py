"""The room of backups: the master's jobs and schedule, every member's part in them (0020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from whimbrel.core.backups.flow import Fail, Flow, Resume, Wait
from whimbrel.core.backups.jobs import Jobs, Wish
from whimbrel.core.backups.manifest import DEFAULT_PLACE
from whimbrel.core.backups.moments import MINUTE_MS, Cron, moment_of
from whimbrel.core.backups.offering import STEP_TIMER, Offering
from whimbrel.core.backups.participant import NotNowError, Participant
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.kinds import StructureService
from whimbrel.core.membership.membership_state import MemberPhase
from whimbrel.core.membership.service import Membership
from whimbrel.core.merging.service import Merging
from whimbrel.core.messages import BackupAnswered, BackupAsked, BackupGivenUp, Message
from whimbrel.core.messages import backups as b
from whimbrel.core.migration.service import Migrations
from whimbrel.core.model import BackupSchedule, MemberList
from whimbrel.core.persistence.service import Persistence
from whimbrel.core.registry import Registry
from whimbrel.core.replication.dataplane import DataPlane
from whimbrel.errors import GridError, IllegalStateError, OperationError

TICK_TIMER: Final = "backups.tick"
TICK_US: Final = 500_000
"""How often members are asked again, and it is looked whether the schedule is due."""
RESULTS_MAX: Final = 100
"""Jobs that are over and remembered for whoever asks; the oldest are forgotten."""
CATCH_UP_MINUTES: Final = 60
"""A time that was missed by more, because a machine slept, is not looked for."""
CHANGING: Final = ("create", "delete", "restore")
"""Of these one is under way at most; who only looks waits for nobody."""

Json = dict[str, Any]


class Job:
    """A job of the master. Implements ``jobs.Rounds``.

    Attributes:
        wish: What is to be done.
        at: What it is at, in a word.
        document: What came of it, None before.
        problem: Why nothing came of it, empty before.
    """

    def __init__(self, room: Backups, name: str, wish: Wish) -> None:
        self._room = room
        self.name = name
        self.wish = wish
        self.at = ""
        self.document: object = None
        self.problem = ""
        self.is_over = False
        self.round = 0
        self.flow: Flow[object] | None = None
        self._orders: dict[MemberId, b.Order] = {}
        """Of the members that have not answered."""
        self._answers: dict[MemberId, Any] = {}
        self._progress: dict[MemberId, tuple[int, int]] = {}
        self._resume: Resume | None = None
        self._fail: Fail | None = None
        self._pause: tuple[int, Resume] | None = None

    # -- for the work ---------------------------------------------------------------------------

    def ask(self, orders: Mapping[MemberId, b.Order]) -> Wait:
        """See ``Rounds``."""

        def wait(resume: Resume, fail: Fail) -> None:
            self.round += 1
            self._orders, self._answers, self._progress = dict(orders), {}, {}
            self._resume, self._fail = resume, fail
            number = self.round
            for member in list(orders):
                if self.round == number:
                    self._send(member)
            if not orders:
                resume({})

        return wait

    def pause(self, pause_us: int) -> Wait:
        """See ``Rounds``."""

        def wait(resume: Resume, _fail: Fail) -> None:
            self._pause = self._room.ctx.now_us + pause_us, resume

        return wait

    def release(self) -> None:
        """See ``Rounds``."""
        for member in self._room.ctx.members.ids():
            self._room.send(member, BackupGivenUp(self.name))

    def announced(self) -> Wait:
        """See ``Rounds``."""
        return self._room.offering.when(self._room.offering.is_announced)

    def phase(self, name: str) -> None:
        """See ``Rounds``."""
        self.at = name

    # -- from outside ---------------------------------------------------------------------------

    def _send(self, member: MemberId) -> None:
        order = self._orders.get(member)
        if order is None:
            return
        ctx = self._room.ctx
        if not ctx.is_member(member):
            self._end_round(OperationError(f"member {member} has left"))
        else:
            self._room.send(member, BackupAsked(self.name, self.round, order))  # type: ignore[arg-type]

    def tick(self) -> None:
        """Ask again who has not answered."""
        if self._pause is not None and self._room.ctx.now_us >= self._pause[0]:
            resume, self._pause = self._pause[1], None
            resume(None)
        number = self.round
        for member in list(self._orders):
            if self.round == number:
                self._send(member)

    def on_answered(self, sender: MemberId, answered: BackupAnswered) -> None:
        """A member is done with its part of the round, or not."""
        if answered.round != self.round or sender not in self._orders:
            return
        if answered.refusal:
            info = self._room.ctx.members.get(sender)
            words = f"member {sender if info is None else info.address}: {answered.refusal}"
            kind = NotNowError if answered.is_passing else OperationError
            self._end_round(kind(words))
        elif answered.answer is None:
            self._progress[sender] = answered.done, answered.total
        else:
            del self._orders[sender]
            self._progress[sender] = answered.done, answered.total
            self._answers[sender] = answered.answer
            if not self._orders and self._resume is not None:
                resume, self._resume = self._resume, None
                resume(self._answers)

    def _end_round(self, problem: GridError) -> None:
        self._orders.clear()
        self._resume = None
        if self._fail is not None:
            fail, self._fail = self._fail, None
            fail(problem)

    def told(self) -> Json:
        """How it stands, as a document."""
        done, total = map(sum, zip((0, 0), *self._progress.values(), strict=True))
        return {
            "job": self.name,
            "what": self.wish.what,
            "id": self.wish.id,
            "phase": self.at,
            "done": done,
            "total": total,
            "over": self.is_over,
            "problem": self.problem,
            "document": self.document,
        }


class Backups:
    """Backups of one member: its part in them, and all of them while it is the master.

    Attributes:
        ctx: The member's.
        offering: What is restored, on its way to primaries.
        counters: Of backups that were made, that failed, and that were left out.
    """

    def __init__(
        self,
        ctx: Context,
        plane: DataPlane,
        persistence: Persistence,
        membership: Membership,
        migrations: Migrations,
        services: Mapping[str, StructureService],
        registry: Registry,
        merging: Merging,
    ) -> None:
        self.ctx = ctx
        self._membership = membership
        self.offering = Offering(
            ctx, migrations.table, services, registry, merging.target, plane.holdings.free
        )
        merging.on_others_answered = self.offering.on_answered
        self._participant = Participant(
            ctx, plane, persistence, membership.states, services, registry, self.offering,
            self.send,
        )  # fmt: skip
        self._work = Jobs(ctx, migrations, migrations.table, registry)
        self._jobs: dict[str, Job] = {}
        self._looked_minute = 0
        """Up to which the schedule was looked at; 0 before we are the master."""
        self._last: Json | None = None
        self.counters = {"backups_made": 0, "backups_failed": 0, "backups_skipped": 0}

    # -- orders -----------------------------------------------------------------------------------

    def start(self, wish: Wish) -> str:
        """As master, begin a job; its name.

        Raises:
            IllegalStateError: This is not the master, the cluster is not ready, or one that
                changes something is under way.
        """
        if self._membership.phase is not MemberPhase.MEMBER or not self.ctx.is_master:
            raise IllegalStateError("this member is not the master; ask again")
        if self.ctx.members.recovery is not None:
            raise IllegalStateError("the cluster is coming back from its files")
        other = self._changing()
        if other is not None and wish.what in CHANGING:
            raise IllegalStateError(f"another backup or restore is under way ({other.wish.what})")
        name = self.ctx.next_name("backup")
        job = self._jobs[name] = Job(self, name, wish)

        def done(document: object) -> None:
            job.document = document
            self._ended(job)

        def failed(problem: GridError) -> None:
            job.problem = str(problem)
            self._ended(job)

        job.flow = Flow(self.ctx, self._work.work(wish, job), done, failed)
        job.flow.start()
        if not job.is_over:
            self._arm()
        return name

    def _changing(self) -> Job | None:
        jobs = self._jobs.values()
        return next((one for one in jobs if not one.is_over and one.wish.what in CHANGING), None)

    def _ended(self, job: Job) -> None:
        job.is_over = True
        job.release()
        if job.wish.what in CHANGING:
            self._last = {**job.told(), "at_ms": self.ctx.wall_ms}
        if job.wish.what == "create":
            self.counters["backups_failed" if job.problem else "backups_made"] += 1
        if job.problem and job.wish.what in CHANGING:
            self.ctx.note(
                "backup_failed", "error", what=job.wish.what, id=job.wish.id, reason=job.problem
            )
        over = [one.name for one in self._jobs.values() if one.is_over]
        for name in over[:-RESULTS_MAX]:
            del self._jobs[name]

    def job(self, name: str) -> Json | None:
        """How a job stands; None for one that is not known here."""
        found = self._jobs.get(name)
        return None if found is None else found.told()

    def document(self) -> Json:
        """What is under way and what came of the last one; schedule and counts."""
        job = self._changing()
        return {
            "running": None if job is None else job.told(),
            "last": self._last,
            "schedule": self.schedule(),
            **self.counters,
        }

    def figures(self) -> dict[str, float]:
        """Counters by name; none where nothing is kept on disk."""
        if not self.ctx.settings.persistence.enabled:
            return {}
        return {f"{name}_total": value for name, value in self.counters.items()}

    # -- the schedule -----------------------------------------------------------------------------

    def schedule(self) -> Json:
        """The schedule, of which both is None where there is none."""
        found = self.ctx.members.backup_schedule
        return {"cron": found and found.cron, "keep": found and found.keep}

    def set_schedule(self, schedule: BackupSchedule | None) -> None:
        """As master, have another schedule; every member knows it with the next list.

        Raises:
            IllegalStateError: This is not the master, or the cluster is not ready.
            UsageError: It is none.
        """
        members = self.ctx.members
        if self._membership.phase is not MemberPhase.MEMBER or not self.ctx.is_master:
            raise IllegalStateError("this member is not the master; ask again")
        if members.recovery is not None:
            raise IllegalStateError("the cluster is coming back from its files")
        if schedule is not None:
            Cron(schedule.cron)
        if schedule == members.backup_schedule:
            return
        self._membership.install(
            msgspec.structs.replace(members, version=members.version + 1, backup_schedule=schedule)
        )
        fields = self.schedule()
        self.ctx.note("backup_schedule_set", cron=fields["cron"], keep=fields["keep"])

    def _look_at_schedule(self) -> None:
        """Make a backup where one is due; a time at which none can be made is told."""
        schedule, now = self.ctx.members.backup_schedule, self.ctx.wall_ms // MINUTE_MS
        before, self._looked_minute = self._looked_minute, now
        if schedule is None or not before or now <= before:
            return
        cron = Cron(schedule.cron)
        minutes = range(max(before + 1, now - CATCH_UP_MINUTES), now + 1)
        due = [one for one in minutes if cron.is_due(moment_of(one * MINUTE_MS))]
        if not due:
            return
        skipped, reason = len(due) - 1, "the clock went on without us"
        try:
            wish = Wish("create", DEFAULT_PLACE, is_scheduled=True, keep=schedule.keep)
            self.start(wish)
        except IllegalStateError as problem:
            skipped, reason = skipped + 1, str(problem)
        if skipped:
            self.counters["backups_skipped"] += skipped
            self.ctx.note("backup_skipped", "warning", times=skipped, reason=reason)

    # -- what comes in ----------------------------------------------------------------------------

    def send(self, to: MemberId, message: Message) -> None:
        """Say something to a member, maybe to ourselves."""
        if to == self.ctx.id:
            self.on_message(to, message)
        else:
            self.ctx.send(to, message)

    def on_message(self, sender: MemberId, message: Message) -> None:
        """Take a message of this room."""
        if isinstance(message, BackupAsked):
            if sender == self._membership.taken_master:
                self._participant.on_asked(sender, message)
                self._arm()
        elif isinstance(message, BackupAnswered):
            job = self._jobs.get(message.job)
            if job is not None and not job.is_over:
                job.on_answered(sender, message)
        elif isinstance(message, BackupGivenUp):
            self._participant.give_up(message.job)

    def on_timer(self, key: str) -> None:
        """A timer whose key starts with ``backups.`` fired."""
        if key == STEP_TIMER:
            self.offering.on_step()
        elif key == TICK_TIMER:
            self._tick()

    def _tick(self) -> None:
        self._participant.tick()
        if self._is_in_charge:
            self._look_at_schedule()
        else:
            self._looked_minute = 0
        for job in [one for one in self._jobs.values() if not one.is_over]:
            if self._is_in_charge:
                job.tick()
                continue
            if job.flow is not None:
                job.flow.give_up()
            job.problem = "the master has changed meanwhile; nothing of it counts"
            if job.wish.what == "restore":
                job.problem = "the master has changed meanwhile; some of it may be restored"
            self._ended(job)
        self._arm()

    @property
    def _is_in_charge(self) -> bool:
        return self._membership.phase is MemberPhase.MEMBER and self.ctx.is_master

    def _arm(self) -> None:
        """Look again soon, as long as there is anything to look at."""
        is_scheduled = self.ctx.members.backup_schedule is not None and self.ctx.is_master
        is_busy = self._participant.is_busy or any(not one.is_over for one in self._jobs.values())
        if (is_scheduled or is_busy) and not self.ctx.is_armed(TICK_TIMER):
            self.ctx.arm(TICK_TIMER, TICK_US)

    def view_changed(self, old: MemberList, new: MemberList) -> None:
        """A list is installed."""
        if old.master is not None and old.master != new.master:
            self._participant.master_changed()
        if new.master == self.ctx.id and not self._looked_minute:
            self._looked_minute = self.ctx.wall_ms // MINUTE_MS
        self._arm()
