"""Changing what the whole cluster agreed on: its state and its version (PIM-31).

A change is a transaction of the master: every member stands still under a lock, the master checks
that all stand on the same table and list, and the next member list brings the change to everybody.
So a joiner or a new master learns of it as of any list. Whatever is not committed undoes itself: a
lock has a lease, and holds for one version of the list only. See docs/design/0005.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from whimbrel.core import messages as m
from whimbrel.core.ids import MemberId, PartitionId
from whimbrel.core.membership.membership_state import MemberPhase, MembershipState
from whimbrel.core.model import (
    CLUSTER_VERSIONS,
    ClusterState,
    MemberInfo,
    MemberList,
    StableMark,
)

LOCK_TIMER = "membership.state_lock"
CHANGE_TIMER = "membership.state_change"
LOCK_CALLS_MAX = 4
"""A member that does not answer in so many call time-outs makes the change fail."""
RESULTS_MAX = 100
"""Results remembered for whoever asks again; the oldest are forgotten."""


class StateChangeResult(msgspec.Struct, frozen=True):
    """What became of a wished change; neither done nor refused while it is under way."""

    is_done: bool = False
    """Every member is in the wished state."""
    refusal: str = ""
    """Why nothing has changed, as a sentence."""
    is_passing: bool = False
    """Whether the reason passes by itself in a moment, so that another wish is worth trying."""


UNDER_WAY = StateChangeResult()
DONE = StateChangeResult(is_done=True)


class Table(Protocol):
    """What a change asks of the migration room."""

    def local_work(self) -> str:
        """Why this member's part in migrations forbids a change, empty when nothing does."""

    def pending_work(self) -> str:
        """At the master: what is under way or due in the whole cluster, empty when nothing is."""

    def is_published(self) -> bool:
        """At the master: whether every member has the newest table."""

    def table_mark(self) -> int:
        """What the tables of initiator and participant are compared by (PIM-31, PIM-32)."""

    def knows_stable_table(self) -> bool:
        """Whether the rows that our list calls stable are here, if it names any (APR-34)."""

    def seats_without_data(self) -> tuple[PartitionId, ...]:
        """Partitions in whose rows we stand and whose data we have not got back."""

    def note_without_data(self, found: Sequence[tuple[PartitionId, MemberId]]) -> None:
        """At the master: these members are to be taken out of these rows, they hold nothing."""

    def stand_still_over(self) -> None:
        """The lock is gone: what waited for it may go on."""


class Stage(enum.Enum):
    """Where a transaction stands."""

    LOCKING = "locking"
    COMMITTING = "committing"
    UNLOCKING = "unlocking"
    CONFIRMING = "confirming"


@dataclass(slots=True, eq=False)
class Transaction:
    """A change under way at the master."""

    name: str
    state: ClusterState
    cluster_version: str
    waiting: dict[MemberId, None]
    """Members whose answer to the present stage is missing."""
    cause: str
    list_version: int
    """Of the list the transaction began with; of the list that commits it afterwards."""
    stage: Stage = Stage.LOCKING
    mark: int = 0
    until_us: int = 0
    """When our own lock ends, which is before any other member's does."""
    rounds: int = 0
    refusal: StateChangeResult = DONE
    """The result, once the change is off."""
    without_data: list[tuple[PartitionId, MemberId]] = field(default_factory=list)
    is_kept: bool = False
    """Whether the list that commits it is on our disk, if we have one."""


class ClusterStates:
    """Both sides of a change: the master's transaction and every member's lock."""

    def __init__(self, membership: MembershipState, table: Table) -> None:
        """Begin unlocked.

        Args:
            membership: What the parts share.
            table: The migration room.
        """
        self._membership = membership
        self._ctx = membership.ctx
        self.table = table
        self._lock = ""
        """The transaction that holds our lock, empty when none does."""
        self._transaction: Transaction | None = None
        self._results: dict[str, StateChangeResult] = {}
        self.when_durable: Callable[[Callable[[], None]], None] = lambda then: then()
        """Calls back once all that has happened so far is on our disk; at once without one."""
        self.incomplete: Callable[[], str] = lambda: ""
        """At the master: why not every replica asked for is there, empty when all are."""

    # -- the wish -------------------------------------------------------------------------

    def change(
        self, name: str, state: ClusterState | None, version: str | None
    ) -> StateChangeResult:
        """As master, begin a change, or tell what became of it; may be repeated.

        Args:
            name: Name of the wish, unique; it becomes the transaction's.
            state: The wished cluster state, None to leave it as it is (GCM-11).
            version: The wished cluster version, None to leave it as it is (PIM-44).
        """
        ctx, members = self._ctx, self._ctx.members
        known = self._results.get(name)
        if known is not None:
            return known
        if self._transaction is not None and self._transaction.name == name:
            return UNDER_WAY
        if self._membership.phase is not MemberPhase.MEMBER or not ctx.is_master:
            return _passing("this member is not the master; ask again")
        if self._transaction is not None or self._is_locked():
            return self._remember(name, _refused("another change of the cluster is under way"))
        if members.recovery is not None:
            return self._remember(name, _refused("the cluster is coming back from its files"))
        problem = _objection_to_version(members.cluster_version, version)
        problem = problem or self._objection_to_state(members, state)
        if problem:
            return self._remember(name, _refused(problem))
        wanted = (state or members.state, version or members.cluster_version)
        is_same = wanted == (members.state, members.cluster_version)
        waiting = dict.fromkeys(ctx.others())
        transaction = Transaction(name, *wanted, waiting, ctx.cause, members.version)
        pending = "" if is_same else self.table.pending_work()
        if pending:
            return self._remember(name, _refused(pending))
        if not is_same and not self.table.is_published():
            return self._remember(name, _passing("not every member has the newest table yet"))
        self._transaction = transaction
        if is_same:
            self._confirm(transaction)
        else:
            self._begin(transaction)
        return self._results.get(name, UNDER_WAY)

    def _objection_to_state(self, members: MemberList, state: ClusterState | None) -> str:
        """Why the wanted topology is not reached that would be kept (APR-31), empty when it is."""
        if state is None or not state.is_stable or members.stable is not None:
            return ""
        if not members.state.join_allowed or not members.state.migration_allowed:
            return f"{state} is entered from {ClusterState.ACTIVE}; the state is {members.state}"
        reason = self.incomplete()
        return f"the cluster is not safe: {reason}" if reason else ""

    def _remember(self, name: str, result: StateChangeResult) -> StateChangeResult:
        self._results[name] = result
        while len(self._results) > RESULTS_MAX:
            del self._results[next(iter(self._results))]
        return result

    # -- the master's side ----------------------------------------------------------------

    def _begin(self, transaction: Transaction) -> None:
        """Phase one: stand still, and ask everybody to stand still on the same list and table."""
        transaction.mark = self.table.table_mark()
        transaction.until_us = self._ctx.now_us + self._ctx.settings.state_lock_lease_us
        self._ctx.note(
            "state_change_begun",
            state=transaction.state.value,
            cluster_version=transaction.cluster_version,
        )
        self._take_lock(transaction.name, self._ctx.settings.state_lock_lease_us)
        self._ask(transaction)
        self._proceed()

    def _ask(self, transaction: Transaction) -> None:
        for member in transaction.waiting:
            self._ask_one(transaction, member)
        self._ctx.arm(CHANGE_TIMER, self._ctx.settings.call_timeout_us)

    def _ask_one(self, transaction: Transaction, member: MemberId) -> None:
        """Send the question of the present stage to one member."""
        ctx, name = self._ctx, transaction.name
        ctx.resume(transaction.cause)
        if transaction.stage is Stage.LOCKING:
            lease_us = ctx.settings.state_lock_lease_us
            ctx.send(
                member,
                m.StateLockRequested(name, transaction.list_version, transaction.mark, lease_us),
            )
        elif transaction.stage is Stage.UNLOCKING:
            ctx.send(member, m.StateUnlockRequested(name))
        else:
            ctx.send(member, m.StateConfirmRequested(name, transaction.list_version))

    def on_lock_answered(self, sender: MemberId, answer: m.StateLockAnswered) -> None:
        """A member stands still, or refuses: then the whole change is off."""
        transaction = self._find(answer.transaction, Stage.LOCKING)
        if transaction is None or sender not in transaction.waiting:
            return
        if answer.reason:
            info = self._ctx.members.get(sender)
            place = sender if info is None else info.address
            result = StateChangeResult(
                refusal=f"member {place}: {answer.reason}", is_passing=answer.is_passing
            )
            self._roll_back(transaction, result)
            return
        del transaction.waiting[sender]
        transaction.without_data += [(pid, sender) for pid in answer.without_data]
        self._proceed()

    def on_answered(
        self, sender: MemberId, answer: m.StateUnlockAnswered | m.StateConfirmAnswered
    ) -> None:
        """A member has given its lock back, or has the new list."""
        is_unlock = isinstance(answer, m.StateUnlockAnswered)
        stage = Stage.UNLOCKING if is_unlock else Stage.CONFIRMING
        transaction = self._find(answer.transaction, stage)
        if transaction is not None:
            transaction.waiting.pop(sender, None)
            self._proceed()

    def _find(self, name: str, stage: Stage) -> Transaction | None:
        transaction = self._transaction
        if transaction is None or transaction.name != name or transaction.stage is not stage:
            return None
        return transaction

    def _proceed(self) -> None:
        """Everybody has answered: go to the next stage, or end."""
        transaction = self._transaction
        if transaction is None or transaction.waiting:
            return
        if transaction.stage is Stage.LOCKING:
            self._commit(transaction)
        elif transaction.stage is Stage.CONFIRMING and transaction.is_kept:
            self._end(transaction, DONE)
        elif transaction.stage is Stage.UNLOCKING:
            self._end(transaction, transaction.refusal)

    def _commit(self, transaction: Transaction) -> None:
        """Phase two: everything checked once more under all the locks, the next list commits."""
        members = self._ctx.members
        if self._ctx.now_us >= transaction.until_us:
            self._roll_back(transaction, _refused("the members' locks have run out; try again"))
            return
        state = transaction.state
        problem = self.table.pending_work() or self._objection_to_state(members, state)
        if problem:
            self._roll_back(transaction, _refused(problem))
            return
        if transaction.mark != self.table.table_mark():
            self._roll_back(transaction, _passing("the table has changed meanwhile"))
            return
        if state.promotion_allowed and not members.state.promotion_allowed:
            ours = [(pid, self._ctx.id) for pid in self.table.seats_without_data()]
            self.table.note_without_data([*ours, *transaction.without_data])
        transaction.stage = Stage.COMMITTING
        self._membership.install(
            msgspec.structs.replace(
                members,
                version=members.version + 1,
                state=state,
                cluster_version=transaction.cluster_version,
                missing=_missing_in(state, members),
                stable=_stable_in(state, members, transaction.mark),
            )
        )
        self._confirm(transaction)

    def _confirm(self, transaction: Transaction) -> None:
        """Wait until every member has the list; those that leave are not waited for."""
        transaction.stage = Stage.CONFIRMING
        transaction.list_version = self._ctx.members.version
        transaction.waiting = dict.fromkeys(self._ctx.others())
        self._ask(transaction)

        def kept() -> None:
            transaction.is_kept = True
            self._proceed()

        self.when_durable(kept)

    def _roll_back(
        self, transaction: Transaction, result: StateChangeResult, silent: Sequence[MemberId] = ()
    ) -> None:
        """The change is off: give back every lock; the old state stands.

        Who is silent is told as well, but not waited for: its lease ends without our help.
        """
        transaction.stage = Stage.UNLOCKING
        transaction.refusal = result
        transaction.rounds = 0
        transaction.waiting = dict.fromkeys(self._ctx.others())
        self._ask(transaction)
        for member in silent:
            transaction.waiting.pop(member, None)
        self._release()
        self._proceed()

    def _end(self, transaction: Transaction, result: StateChangeResult) -> None:
        self._transaction = None
        self._ctx.disarm(CHANGE_TIMER)
        self._remember(transaction.name, result)
        if result.refusal:
            cause = self._ctx.cause  # maybe that of a list which ends the change
            self._ctx.resume(transaction.cause)
            self._ctx.note("state_change_refused", "warning", reason=result.refusal)
            self._ctx.resume(cause)

    def on_change_timer(self) -> None:
        """Answers are missing: ask again, or give up what must not wait for ever."""
        transaction = self._transaction
        if transaction is None:
            return
        self._ctx.resume(transaction.cause)
        transaction.rounds += 1
        if transaction.stage is Stage.LOCKING and transaction.rounds >= LOCK_CALLS_MAX:
            silent = tuple(transaction.waiting)
            result = _refused(f"{len(silent)} members do not answer; try again")
            self._roll_back(transaction, result, silent)
        elif transaction.stage is Stage.UNLOCKING and transaction.rounds >= LOCK_CALLS_MAX:
            # Who is silent gives its lock back by itself, when its lease ends.
            self._end(transaction, transaction.refusal)
        else:
            self._ask(transaction)

    def link_restored(self, member: MemberId) -> None:
        """What was under way to a member may be lost."""
        transaction = self._transaction
        if transaction is not None and member in transaction.waiting:
            self._ask_one(transaction, member)

    # -- every member's side --------------------------------------------------------------

    def on_lock_requested(self, sender: MemberId, request: m.StateLockRequested) -> None:
        """Stand still for our master, if we stand where it stands (PIM-31)."""
        self._ctx.send(sender, self.stand_still(sender, request))

    def stand_still(self, sender: MemberId, request: m.StateLockRequested) -> m.StateLockAnswered:
        """The same, for whatever needs it; the answer."""
        name = request.transaction
        result = self._objection(sender, request)
        if result.refusal:
            return m.StateLockAnswered(name, result.refusal, (), result.is_passing)
        if self._lock != name:
            self._take_lock(name, request.lease_us)
        return m.StateLockAnswered(name, "", self.table.seats_without_data())

    def stands_still_for(self, name: str) -> bool:
        """Whether the lock of this transaction holds here."""
        return self._is_locked() and self._lock == name

    def move_again(self, name: str) -> None:
        """Give back the lock of this transaction, if it holds here."""
        if name == self._lock:
            self._release()

    def _objection(self, sender: MemberId, request: m.StateLockRequested) -> StateChangeResult:
        """Why we do not stand still, if we do not; the same lock again is fine."""
        if sender != self._membership.taken_master:
            return _passing("it takes another member for the master")
        if self._is_locked() and self._lock != request.transaction:
            return _refused("another change of the cluster is under way there")
        if request.list_version != self._ctx.members.version:
            return _passing("its member list is another one; try again")
        problem = self.table.local_work()
        if problem:
            return _refused(problem)
        if request.mark != self.table.table_mark():
            return _passing("its partition table is another one; try again")
        return UNDER_WAY

    def on_unlock_requested(self, sender: MemberId, request: m.StateUnlockRequested) -> None:
        """Give back the lock of this transaction; another one's stays."""
        self.move_again(request.transaction)
        self._ctx.send(sender, m.StateUnlockAnswered(request.transaction))

    def on_confirm_requested(self, sender: MemberId, request: m.StateConfirmRequested) -> None:
        """Say that we have the list; without it there is no answer, and it comes again."""
        cause = self._ctx.cause

        def kept() -> None:
            self._ctx.resume(cause)
            self._ctx.send(sender, m.StateConfirmAnswered(request.transaction))

        is_here = self._ctx.members.version >= request.list_version
        if is_here and self.table.knows_stable_table():
            self.when_durable(kept)

    def on_lock_timer(self) -> None:
        """The lease is over: whoever locked us is not heard any more."""
        transaction = self._transaction
        self._ctx.note("state_lock_expired", "warning", transaction=self._lock)
        self._release()
        if transaction is not None and transaction.stage is Stage.LOCKING:
            self._roll_back(transaction, _refused("the members' locks have run out; try again"))

    # -- the lock -------------------------------------------------------------------------

    def _is_locked(self) -> bool:
        return self._ctx.now_us < self._ctx.transition_until_us

    def _take_lock(self, name: str, lease_us: int) -> None:
        self._lock = name
        self._ctx.transition_until_us = self._ctx.now_us + lease_us
        self._ctx.arm(LOCK_TIMER, lease_us)

    def _release(self) -> None:
        self._forget_lock()
        self.table.stand_still_over()

    def _forget_lock(self) -> None:
        self._lock = ""
        self._ctx.transition_until_us = 0
        self._ctx.disarm(LOCK_TIMER)

    def before_list(self, new: MemberList) -> None:
        """A list is about to be installed: a lock is for one list, so it ends here.

        A change that is still locking has failed. Nobody needs to be unlocked for it: all who
        stand still get the new list.
        """
        self._forget_lock()
        transaction = self._transaction
        if transaction is None:
            return
        if transaction.stage is Stage.LOCKING:
            self._end(transaction, _passing("the member list has changed meanwhile; try again"))
        elif transaction.stage is Stage.UNLOCKING:
            self._end(transaction, transaction.refusal)
        elif new.master != self._ctx.id:
            self._end(transaction, _passing("the master has changed; ask again"))

    def after_list(self) -> None:
        """A list is installed: who has left it is not waited for."""
        transaction = self._transaction
        if transaction is not None and transaction.stage is Stage.CONFIRMING:
            is_member = self._ctx.is_member
            waiting = [member for member in transaction.waiting if is_member(member)]
            transaction.waiting = dict.fromkeys(waiting)
            self._proceed()


def _missing_in(state: ClusterState, members: MemberList) -> tuple[MemberInfo, ...]:
    """Who may return in the next state; where no seats are kept, who is back has done so."""
    if state.join_allowed:
        return ()
    if not state.promotion_allowed:
        return members.missing
    return tuple(info for info in members.missing if members.get(info.id) is None)


def _stable_in(state: ClusterState, members: MemberList, mark: int) -> StableMark | None:
    """The stable table in the next state: taken when that is entered, given up for newcomers."""
    if state.join_allowed:
        return None
    if state.is_stable and members.stable is None:
        return StableMark(members.version + 1, mark)
    return members.stable


def _refused(reason: str) -> StateChangeResult:
    return StateChangeResult(refusal=reason)


def _passing(reason: str) -> StateChangeResult:
    return StateChangeResult(refusal=reason, is_passing=True)


def _objection_to_version(present: str, version: str | None) -> str:
    """Why a cluster can never get this version, empty when it can (PIM-43)."""
    if version is None or version == present:
        return ""
    if version not in CLUSTER_VERSIONS:
        return f"cluster version {version} is unknown; there are {', '.join(CLUSTER_VERSIONS)}"
    if CLUSTER_VERSIONS.index(version) < CLUSTER_VERSIONS.index(present):
        return f"the cluster has version {present} and cannot go back to {version}"
    return ""
