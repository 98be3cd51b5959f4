"""Protections switched off, one by one, to see that the scenario files need them.

A scenario file names the protection that its upstream situation calls for (``guard NAME RULES``);
played without it, the run must break one of those rules. As with ``planted``, the core has no
switch for any of them: methods of one simulated member are replaced from outside. Some protections
are planted bugs already and are found under their names there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.jobs import finish
from whimbrel.core.messages import (
    MigrationCommitRequested,
    StateAnswered,
)
from whimbrel.core.migration.control_loop import RETRY_TIMER
from whimbrel.core.migration.keeper import Role
from whimbrel.core.model import MemberList, Verdict
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace
from whimbrel.sim.guards_more import MORE_GUARDS
from whimbrel.sim.planted import BUGS
from whimbrel.sim.planted_rules import anybody_tells_versions
from whimbrel.sim.stores import store_of


def promoted_with_data(engine: Engine) -> None:
    """Only a first backup keeps its data when it is promoted (bugs 2 and 19b)."""
    roles, me = engine.member.dataplane.roles, engine.member.ctx.id
    row_changed = roles.row_changed

    def start_empty(pid: PartitionId, before: Row, after: Row, version: int) -> None:
        if index_in(before, me) > 1 and index_in(after, me) == 0:
            partition = engine.member.dataplane.partitions[pid]
            for namespace in list(partition.fragments):
                partition.drop(namespace)
        row_changed(pid, before, after, version)

    replace(roles, "row_changed", start_empty)


def commit_repeated(engine: Engine) -> None:
    """A request or an answer of a migration that was lost is not sent again (bug 3)."""
    execution = engine.member.migrations._loop.execution
    replace(execution, "repeat", nothing)
    replace(execution, "link_restored", nothing)


def repeated_commit_recognised(engine: Engine) -> None:
    """A destination takes the repeat of a commit for another one and says no (bug 3)."""
    member = engine.member
    destination, table = member.migrations._destination, member.migrations.table
    commit = destination._commit

    def refuse(migration: Any) -> str:
        if table.version(migration.partition_id) == migration.final_version:
            return "the migration is not active at its destination"
        return commit(migration)

    replace(destination, "_commit", refuse)


def promotion_repeated(engine: Engine) -> None:
    """A promotion whose request or answer was lost is not sent again (bugs 4 and 5)."""
    repair = engine.member.migrations._loop.repair
    replace(repair, "repeat", nothing)
    replace(repair, "link_restored", nothing)


def newest_rows_taken(engine: Engine) -> None:
    """A new master starts from its own table, whatever others know (bugs 11 and 13)."""
    member = engine.member
    recovery = member.migrations._loop.recovery
    answered = recovery.answered

    def ignore(sender: MemberId, message: StateAnswered) -> None:
        own = member.migrations.table.image()
        answered(sender, msgspec.structs.replace(message, image=own, completed=()))

    member.migrations._handlers[StateAnswered] = ignore


def copies_settled(engine: Engine) -> None:
    """A new master does not ask about migrations under way (bug 10)."""
    member = engine.member
    recovery = member.migrations._loop.recovery
    answered = recovery.answered

    def ignore(sender: MemberId, message: StateAnswered) -> None:
        answered(sender, msgspec.structs.replace(message, active=()))

    member.migrations._handlers[StateAnswered] = ignore


def stamp_recomputed(engine: Engine) -> None:
    """The cached stamp stays as it is when a row changes (bug 12)."""
    table = engine.member.migrations.table
    set_row = table.set_row

    def keep(pid: PartitionId, row: Row, version: int) -> None:
        stamp = table._stamp
        set_row(pid, row, version)
        table._stamp = stamp or None

    replace(table, "set_row", keep)


def joiner_told_first(engine: Engine) -> None:
    """A plan starts before its participants have acknowledged their rows (bug 16)."""
    loop = engine.member.migrations._loop

    def at_once() -> bool:
        if not loop.repair.is_promoting:
            finish(loop._replacing_lost())
        return not loop.repair.is_promoting

    replace(loop, "_is_repaired", at_once)


def failed_plan_tried_again(engine: Engine) -> None:
    """After a failed migration nothing triggers another plan (bug 17)."""
    ctx = engine.member.ctx
    arm = ctx.arm

    def forget(key: str, delay_us: int) -> None:
        if key != RETRY_TIMER:
            arm(key, delay_us)

    replace(ctx, "arm", forget)


def flag_cleared(engine: Engine) -> None:
    """A source that learns of a failure forgets to let writes in again (bug 19)."""
    member = engine.member
    keeper = member.migrations._keeper
    change = keeper.change

    def leave_flagged(pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        active = keeper.active.get(pid)
        change(pid, row, version, committed)
        if active is not None and active.role is Role.SOURCE and active.migration.id != committed:
            member.dataplane.roles.begin_source(active.migration)

    replace(keeper, "change", leave_flagged)


def leave_asked_again(engine: Engine) -> None:
    """A member that wants to leave asks once, whoever is master later (bug 22)."""
    leave = engine.member.membership.leave
    ask = leave._ask

    def once() -> None:
        if leave._asked is None:
            ask()

    replace(leave, "_ask", once)


def all_may_leave(engine: Engine) -> None:
    """When everybody leaves at once each waits for another one to take its data."""
    replace(engine.member.migrations._loop, "_all_leave", lambda: False)


def told_by_the_primary(engine: Engine) -> None:
    """Versions are believed whoever tells them (bug 8)."""
    anybody_tells_versions(engine)


def lineage_compared(engine: Engine) -> None:
    """A backup counts on under a new primary without comparing where it starts (AE-11)."""
    doubts = engine.member.dataplane.doubts
    mark_dirty = doubts.mark_dirty

    def trust(fragment: Fragment) -> None:
        if fragment.value == fragment.base[fragment.slot]:  # it has just met a new lineage
            fragment.is_dirty = False
        else:
            mark_dirty(fragment)

    replace(doubts, "mark_dirty", trust)


def sync_replaces(engine: Engine) -> None:
    """A sync adds what the primary has and removes nothing (bug 37)."""
    syncs = engine.member.dataplane.syncs
    swap_in = syncs._swap_in

    def merge(partition: PartitionReplica, shadow: Fragment) -> None:
        old = partition.fragments.get(shadow.namespace)
        for key, record in () if old is None else store_of(old).records.items():
            store_of(shadow).records.setdefault(key, record)
        swap_in(partition, shadow)

    replace(syncs, "_swap_in", merge)


def permits_returned(engine: Engine) -> None:
    """A permit that was taken for a request never comes back (bugs 33 and 35)."""
    syncs, settings = engine.member.dataplane.syncs, engine.member.ctx.settings

    def left() -> int:
        return settings.replication_max_parallel - syncs.counters["syncs_requested"]

    replace(syncs, "_free_permits", left)


def copy_complete(engine: Engine) -> None:
    """A destination commits with the part that it has received (GCM-40)."""
    member = engine.member
    destination = member.migrations._destination
    source, host = member.migrations._source, member.dataplane.roles

    def first_only(outgoing: Any) -> None:
        if outgoing.sending.export is None:
            outgoing.sending.export = host.open_export(outgoing.migration)
            outgoing.sending.export.next_parts(1 << 30)
        source._answer(outgoing, True, "")

    replace(source, "_advance", first_only)
    commit = destination.commit_requested

    def accept(sender: MemberId, message: MigrationCommitRequested) -> None:
        incoming = member.migrations._keeper.active.get(message.migration.partition_id)
        if incoming is not None and incoming.role is Role.DESTINATION:
            vars(incoming)["receiving"].complete = True
        commit(sender, message)

    member.migrations._handlers[MigrationCommitRequested] = accept


def departure_fails_commit(engine: Engine) -> None:
    """The master commits a migration whose destination has left (ADL-21)."""
    execution = engine.member.migrations._loop.execution
    decide = execution._decide

    def succeed(flight: Any, verdict: Verdict, reason: str = "") -> None:
        is_gone = reason == "the destination left the member list"
        decide(flight, Verdict.SUCCESS if is_gone else verdict, reason)

    replace(execution, "_decide", succeed)


def plan_made_up_for(engine: Engine) -> None:
    """What was put off while migrations were forbidden is forgotten (GCM-13)."""
    loop = engine.member.migrations._loop
    members_changed = loop.members_changed

    def forget(old: MemberList, new: MemberList) -> None:
        loop.postponed = ""
        members_changed(old, new)

    replace(loop, "members_changed", forget)


_OWN = (
    Bug(promoted_with_data, "a promoted second backup starts empty", "kill", ("D6", "D1", "D7")),
    Bug(commit_repeated, "a lost commit is not repeated", "reset", ("L1",)),
    Bug(repeated_commit_recognised, "a repeated commit is refused", "reset", ("P6", "P2", "L1")),
    Bug(promotion_repeated, "a lost promotion is not repeated", "kill", ("L1",)),
    Bug(newest_rows_taken, "a new master keeps its own table", "kill", ("P2", "X2", "D6", "L1")),
    Bug(copies_settled, "a new master leaves copies open", "kill", ("L1", "P7", "X2")),
    Bug(stamp_recomputed, "a stamp is not recomputed", "kill", ("P11",)),
    Bug(joiner_told_first, "a plan starts too early", "kill", ()),
    Bug(failed_plan_tried_again, "a failed plan is forgotten", "network", ("L1",)),
    Bug(flag_cleared, "a failed copy leaves the flag on", "kill", ("P8", "L1", "R4")),
    Bug(leave_asked_again, "a leaver asks once", "leave", ("L1",)),
    Bug(all_may_leave, "nobody may leave when all want to", "leave", ("L1",)),
    Bug(told_by_the_primary, "versions of a stale primary count", "pause", ("R2", "D9", "L1")),
    Bug(lineage_compared, "a new primary's start is not compared", "kill", ("D9", "L1", "D1")),
    Bug(sync_replaces, "a sync only adds", "kill", ("D9", "L1", "R2")),
    Bug(permits_returned, "permits are not returned", "kill", ("L1", "R3")),
    Bug(plan_made_up_for, "a plan put off is forgotten", "kill", ("L1", "L2")),
    Bug(copy_complete, "a copy ends after its first part", "leave", ("D6", "D1", "L1")),
    Bug(departure_fails_commit, "a departed destination is committed", "move", ("P9", "X2", "D6")),
)

GUARDS: dict[str, Bug] = {**BUGS, **{bug.name: bug for bug in (*_OWN, *MORE_GUARDS)}}
"""By the name that a scenario file gives: what is switched off, or put in."""
