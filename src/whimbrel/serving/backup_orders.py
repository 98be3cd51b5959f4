"""Orders of operators about backups, as JSON documents that the master is asked for."""

from __future__ import annotations

import msgspec

from whimbrel.core.backups.jobs import Wish
from whimbrel.core.backups.manifest import check_id, place_of
from whimbrel.core.backups.moments import Cron
from whimbrel.core.member import Member
from whimbrel.core.model import BackupSchedule
from whimbrel.errors import IllegalStateError, UsageError
from whimbrel.serving.questions import decoded

JOBS = ("create", "list", "verify", "delete", "restore")


class JobOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job about backups.

    Attributes:
        what: One of JOBS.
        place: An absolute path that all members can use; empty for ``DATA_DIR/backups`` of each.
        id: Of the backup; may be empty to create, and to restore the youngest one.
        pattern: ``KIND/NAME`` with ``*`` and ``?``; empty for all structures.
        at_ms: A moment, in ms since 1970.
    """

    what: str
    place: str = ""
    id: str = ""
    incremental: bool = False
    pattern: str = ""
    at_ms: int | None = None
    replace: bool = False


class JobQuestion(msgspec.Struct, frozen=True):
    """Asks how a job stands."""

    job: str


class ScheduleOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another schedule; None for no schedule at all."""

    cron: str | None = None
    keep: int | None = None


def wish_of(order: JobOrder) -> Wish:
    """What an order wishes for.

    Raises:
        UsageError: It makes no sense.
    """
    if order.what not in JOBS:
        raise UsageError(f"there is no job {order.what!r}; it is one of {', '.join(JOBS)}")
    if order.what in ("verify", "delete") and not order.id:
        raise UsageError(f"which backup? {order.what} needs an id")
    return Wish(
        order.what,
        place_of(order.place),
        check_id(order.id) if order.id else "",
        is_incremental=order.incremental,
        pattern=order.pattern,
        at_ms=order.at_ms,
        may_replace=order.replace,
    )


def schedule_of(order: ScheduleOrder) -> BackupSchedule | None:
    """The schedule that an order wishes for, None for none.

    Raises:
        UsageError: It is none.
    """
    if order.cron is None:
        return None
    Cron(order.cron)
    if order.keep is None or order.keep < 1:
        raise UsageError("keep is how many scheduled backups stay, one at least")
    return BackupSchedule(order.cron, order.keep)


class BackupOrders:
    """What a member does for operators about backups."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def backups(self, _: bytes = b"") -> object:
        """As master, what is under way, what came of the last one, and the schedule."""
        return self._member.backups.document()

    def start(self, arguments: bytes) -> object:
        """As master, begin a job; its name is in the document, or why it is refused.

        Raises:
            UsageError: The order makes no sense.
        """
        wish = wish_of(decoded(arguments, JobOrder, "an order about backups"))
        try:
            return {"job": self._member.backups.start(wish), "refusal": ""}
        except IllegalStateError as problem:
            return {"job": None, "refusal": str(problem)}

    def job(self, arguments: bytes) -> object:
        """As master, how a job stands; null for one that is not known (any more)."""
        return self._member.backups.job(decoded(arguments, JobQuestion).job)

    def set_schedule(self, arguments: bytes) -> object:
        """As master, have another schedule.

        Raises:
            UsageError: It is none.
            IllegalStateError: This is not the master.
        """
        schedule = schedule_of(decoded(arguments, ScheduleOrder, "a schedule"))
        self._member.backups.set_schedule(schedule)
        return self._member.backups.schedule()
