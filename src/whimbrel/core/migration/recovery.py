"""Settling a change of master: the newest row of every partition, and every open migration.

``settle`` is a pure function of what the members answered; ``Recovery`` asks them. Nothing is
published and nothing planned until every other member has answered or left (ADL-11 to ADL-13).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.jobs import Job
from whimbrel.core.messages import StateAnswered, StateRequested
from whimbrel.core.migration.state_manager import PartitionStateManager, step_fits
from whimbrel.core.model import MigrationInfo, RowState, Verdict

ROWS_COMPARED = 2_048
"""Rows of an account that are compared in one piece of settling, about 1 us each."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one member knows: its rows, and the migrations it has seen finished or takes part in."""

    member: MemberId
    rows: tuple[RowState, ...]
    completed: tuple[MigrationInfo, ...]
    active: tuple[MigrationInfo, ...]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the new master decided."""

    rows: tuple[RowState, ...]
    """The rows from which to start, newest per partition, ascending."""
    completed: tuple[MigrationInfo, ...]
    """Finished migrations to apply to those rows in this order, and to publish."""
    rolled_back: tuple[MigrationInfo, ...]
    """Those of ``completed`` that nobody knew to be finished (ADL-29)."""
    without_data: tuple[tuple[PartitionId, MemberId], ...]
    """Members that stand in the newest row of a partition they have never heard of: they have
    restarted with their identity (M4), or were arranged and not told, and hold nothing."""


def settling(accounts: Sequence[Account]) -> Job[Settlement]:
    """Decide the table and every open migration; independent of the order of the accounts.

    An open migration whose partition has moved on is decided by the row: only its verdict can
    have moved it, because a partition has one migration at a time. Otherwise it fails, and its
    version rises by its increment and one (PIM-14, PIM-15).

    Raises:
        InvariantViolation: Two members hold different rows under one version.
    """
    newest: dict[PartitionId, RowState] = {}
    for account in accounts:
        for number, row in enumerate(account.rows, 1):
            if not number % ROWS_COMPARED:
                yield
            best = newest.get(row.partition_id)
            if best is None or row.version > best.version:
                newest[row.partition_id] = row
            elif row.version == best.version:
                check(row.row == best.row, "equal partition versions mean equal rows")
    completed: dict[str, MigrationInfo] = {}
    for account in accounts:
        for migration in account.completed:
            known = completed.get(migration.id)
            # A failed verdict overrules a commit at a destination that was cut off (ADL-21).
            if known is None or migration.final_version > known.final_version:
                completed[migration.id] = migration
    open_ones = {migration.id: migration for account in accounts for migration in account.active}
    yield
    # Also an open one that somebody has seen finished: its final version decides it (ADL-30).
    in_doubt = {one.partition_id: newest.get(one.partition_id) for one in open_ones.values()}
    versions = _versions_after(
        {pid: row for pid, row in in_doubt.items() if row is not None}, completed.values()
    )
    rolled_back = tuple(
        migration.with_verdict(Verdict.FAILED)
        for migration in sorted(open_ones.values(), key=_order)
        if versions.get(migration.partition_id, 0) <= migration.initial_version
    )
    finished = sorted([*completed.values(), *rolled_back], key=_order)
    rows = tuple([newest[pid] for pid in sorted(newest)])
    yield
    lacking = yield from without_data(newest, accounts)
    return Settlement(rows, tuple(finished), rolled_back, lacking)


def without_data(
    newest: dict[PartitionId, RowState], accounts: Sequence[Account]
) -> Job[tuple[tuple[PartitionId, MemberId], ...]]:
    """Who stands in a row without having any version of it."""
    found: list[tuple[PartitionId, MemberId]] = []
    pids = sorted(newest)
    for account in sorted(accounts, key=lambda account: account.member):
        known = {row.partition_id: None for row in account.rows if row.version}
        yield
        for start in range(0, len(pids), 2 * ROWS_COMPARED):
            found += [
                (pid, account.member)
                for pid in pids[start : start + 2 * ROWS_COMPARED]
                if account.member in newest[pid].row and pid not in known
            ]
            yield
    return tuple(found)


def _order(migration: MigrationInfo) -> tuple[int, int, str]:
    return (migration.partition_id, migration.initial_version, migration.id)


def _versions_after(
    newest: dict[PartitionId, RowState], completed: Iterable[MigrationInfo]
) -> dict[PartitionId, int]:
    """Versions once the finished migrations are applied to the newest rows, never lower."""
    states = {pid: (state.version, state.row) for pid, state in newest.items()}
    for migration in sorted(completed, key=_order):
        state = states.get(migration.partition_id)
        if state is None:
            continue
        version, row = state
        succeeded = migration.verdict is Verdict.SUCCESS and migration.initial_version == version
        if succeeded and step_fits(migration.step, row):
            row = migration.step.apply(row)
        states[migration.partition_id] = (max(version, migration.final_version), row)
    return {pid: version for pid, (version, _) in states.items()}


def applying(
    manager: PartitionStateManager, settlement: Settlement, rows_max: int
) -> Job[list[PartitionId]]:
    """Bring our own table to the decision, in pieces of so many changed rows.

    A part of it does no harm: whoever settles again after it finds the same, because the rows are
    the newest known, and a migration that was rolled back here has been decided by its row's
    higher version.

    Returns:
        Partitions whose version had to be raised without a row being known (PIM-15).
    """
    changed = manager.table.change_count
    for number, row in enumerate(settlement.rows, 1):
        manager.apply_row(row)
        if manager.table.change_count >= changed + rows_max or not number % ROWS_COMPARED:
            changed = manager.table.change_count
            yield
    raised: list[PartitionId] = []
    for number, migration in enumerate(settlement.completed, 1):
        if not number % rows_max:
            yield
        if manager.apply_completed(migration):
            continue
        pid = migration.partition_id
        manager.change(pid, manager.table.row(pid), migration.final_version)
        raised.append(pid)
    return raised


class Recovery:
    """Asks every other member for its state and waits for all (ADL-13)."""

    def __init__(self, ctx: Context, manager: PartitionStateManager) -> None:
        self._ctx = ctx
        self._manager = manager
        self.running = False
        self._cause = ""
        self._round = 0
        self._answers: dict[MemberId, Account] = {}
        self._arriving: dict[MemberId, list[RowState]] = {}
        """Rows of answers whose last part has not come."""
        self._parts: dict[MemberId, int] = {}
        """How many parts of those have come."""
        self._asked_us: dict[MemberId, int] = {}

    def start(self) -> None:
        """Ask everybody."""
        self.running = True
        self._cause = self._ctx.cause
        self._round = self._ctx.next_number()
        self._forget()
        self._ask_new()

    def stop(self) -> None:
        """Forget the round."""
        self.running = False
        self._forget()

    def _forget(self) -> None:
        for table in (self._answers, self._arriving, self._parts, self._asked_us):
            table.clear()

    def _ask_new(self) -> None:
        for member in self._ctx.others():
            if member not in self._asked_us:
                self._ask(member)

    def _ask(self, member: MemberId) -> None:
        self._ctx.resume(self._cause)
        self._asked_us[member] = self._ctx.now_us
        self._ctx.send(member, StateRequested(self._round))

    def members_changed(self, gone: Collection[MemberId]) -> None:
        """Those who left are not waited for, nor heard; newcomers are asked as well."""
        if not self.running:
            return
        for member in gone:
            for table in (self._answers, self._arriving, self._parts, self._asked_us):
                table.pop(member, None)
        self._ask_new()

    def answered(self, sender: MemberId, message: StateAnswered) -> None:
        """Take an answer of this round, or the next part of one.

        An answer that begins again replaces what has come of it; one with a gap is asked for
        again when the call times out.

        Raises:
            ProtocolError: The image breaks a rule.
        """
        if not self.running or message.round != self._round or sender not in self._asked_us:
            return
        rows = list(self._manager.table.rows_of(message.image))
        self._manager.table.take_losses(message.image.losses)
        if not message.part:
            self._arriving[sender], self._parts[sender] = [], 0
        if message.part != self._parts.get(sender):
            return
        self._parts[sender] += 1
        self._arriving[sender] += rows
        self._asked_us[sender] = self._ctx.now_us
        if not message.more:
            del self._parts[sender]
            whole = tuple(self._arriving.pop(sender))
            self._answers[sender] = Account(sender, whole, message.completed, message.active)

    def waiting_for(self) -> list[MemberId]:
        """Members that have neither answered nor left."""
        return [member for member in self._asked_us if member not in self._answers]

    def repeat(self) -> None:
        """Ask again whoever has not answered within the call timeout."""
        if not self.running:
            return
        for member in self.waiting_for():
            waited_us = self._ctx.now_us - self._asked_us[member]
            if waited_us >= self._ctx.settings.call_timeout_us:
                self._ask(member)

    def link_restored(self, member: MemberId) -> None:
        """The question or its answer may be lost."""
        if self.running and member in self._asked_us and member not in self._answers:
            self._ask(member)

    def finishing(self, own_completed: Iterable[MigrationInfo]) -> Job[Settlement]:
        """All have answered: decide, and bring our own table to the decision.

        Begun anew when a member has left or come before the end.
        """
        self._ctx.resume(self._cause)
        accounts = yield from self._accounts(own_completed)
        settlement = yield from settling(accounts)
        yield from applying(self._manager, settlement, self._ctx.settings.step_rows_max)
        self.stop()
        return settlement

    def _accounts(self, own_completed: Iterable[MigrationInfo]) -> Job[list[Account]]:
        """Everybody's account, our own first."""
        check(self.running and not self.waiting_for(), "everybody has answered or left")
        table = self._manager.table
        rows: list[RowState] = []
        for pid in range(table.partition_count):
            rows.append(table.state(PartitionId(pid)))
            if not (pid + 1) % ROWS_COMPARED:
                yield
        own = Account(
            self._ctx.id,
            tuple(rows),
            tuple(own_completed),
            tuple(active.migration for active in self._manager.active.values()),
        )
        return [own, *self._answers.values()]
