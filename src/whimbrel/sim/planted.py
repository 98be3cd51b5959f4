"""Bugs put in on purpose, to see that the checkers catch them.

Each is a real mistake of systems like ours (facts/reliability sections 2.1 and 6.9), made by
replacing a method of one simulated member's rooms from outside. The core has no switch for any of
them. A checker is trusted only after it has caught one.
"""

from __future__ import annotations

from typing import Any

from whimbrel.core.ids import MemberId, PartitionId, Row, index_in
from whimbrel.core.merging.policies import latest_update
from whimbrel.core.messages import (
    Message,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
)
from whimbrel.core.migration.serial.versions import serial_keeper
from whimbrel.core.model import MemberList, MigrationInfo, Step, Verdict
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.core.structures.record import EntryView
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace
from whimbrel.sim.planted_more import MORE_BUGS
from whimbrel.sim.planted_rules import RULE_BUGS


def local_promotion(engine: Engine) -> None:
    """The first backup promotes itself when it sees the primary leave (before 3.7)."""
    member = engine.member
    keeper = member.migrations._keeper
    view_changed = member.membership.on_view_changed

    def promote(old: MemberList, new: MemberList) -> None:
        if view_changed is not None:
            view_changed(old, new)
        mine = member.ctx.id
        for pid, row in enumerate(keeper.table.rows):
            if row[1] == mine and row[0] is not None and new.get(row[0]) is None:
                promoted: Row = (mine, None, *row[2:])
                keeper.change(PartitionId(pid), promoted, keeper.table.versions[pid] + 2)

    member.membership.on_view_changed = promote


def cleared_before_commit(engine: Engine) -> None:
    """A source drops its data once they are copied, not once the master has committed."""
    member = engine.member
    source = member.migrations._source
    answer = source._answer

    def drop(outgoing: Any, success: bool, reason: str) -> None:
        answer(outgoing, success, reason)
        step: Step = outgoing.migration.step
        if success and step.source == member.ctx.id and step.source_new < 0:
            replica = member.dataplane.partitions[outgoing.migration.partition_id]
            for namespace in list(replica.fragments):
                replica.drop(namespace)

    replace(source, "_answer", drop)


def failed_version_not_raised(engine: Engine) -> None:
    """A failed migration leaves the version one short, so a returning destination is not beaten."""
    member = engine.member
    keeper = member.migrations._keeper
    apply_completed = keeper.apply_completed

    def apply(migration: MigrationInfo) -> bool:
        pid = migration.partition_id
        if (
            migration.verdict is Verdict.FAILED
            and migration.master == member.ctx.id
            and keeper.table.versions[pid] == migration.initial_version
        ):
            row = keeper.table.rows[pid]
            keeper.change(pid, row, migration.initial_version + migration.step.increment)
            return True
        return apply_completed(migration)

    replace(keeper, "apply_completed", apply)


def members_in_set_order(engine: Engine) -> None:
    """Members are told things in the order of a set of strings: another one in each process."""
    ctx = engine.member.ctx
    others = ctx.others

    def shuffled() -> list[MemberId]:
        return list(set(others()))

    replace(ctx, "others", shuffled)


def acknowledged_before_backup(engine: Engine) -> None:
    """The client is answered before any backup has the write."""
    dataplane = engine.member.dataplane
    change = dataplane.holdings.change

    def forget_reply(
        partition: PartitionReplica,
        fragment: Fragment,
        operation: bytes,
        _reply: object,
    ) -> None:
        change(partition, fragment, operation, None)

    replace(dataplane.holdings, "change", forget_reply)


def gap_ignored(engine: Engine) -> None:
    """A broken connection's backups are not repeated, and the receiver takes the gap for order."""
    incoming = engine.member.dataplane.incoming
    apply_backups, out_of_step = incoming.apply_backups, incoming._apply_out_of_step

    def accept(sender: MemberId, payload: bytes) -> None:
        inbox = incoming.inboxes.get(sender)
        sequence = int.from_bytes(payload[12:20], "little")
        if inbox is not None and sequence > inbox.applied + 1 > 1:
            inbox.applied = sequence - 1
        apply_backups(sender, payload)

    def take(fragment: Fragment, counter: int, counters: Any, operation: bytes) -> None:
        out_of_step(fragment, counter, counters, operation)
        fragment.is_dirty = False

    backups_not_repeated(engine)
    replace(incoming, "apply_backups", accept)
    replace(incoming, "_apply_out_of_step", take)


def not_cleared(engine: Engine) -> None:
    """A member that leaves a row keeps the data (leak after commit, demotion, rollback)."""
    replace(engine.member.dataplane.roles, "_drop_beyond", lambda _partition: None)


def reused_identity(engine: Engine) -> None:
    """A restarted process takes the identity that its address had before."""


def loss_not_told(engine: Engine) -> None:
    """The event of a lost partition is dropped."""
    replace(engine.member.migrations._loop.repair, "_on_lost", lambda _pid, _count: None)


def impatient_master(engine: Engine) -> None:
    """A new master decides with what it knows itself, without hearing the others."""
    replace(engine.member.migrations._loop.recovery, "waiting_for", list)


def writes_while_migrating(engine: Engine) -> None:
    """The migrating flag is never set: writes go on while the partition is copied."""
    replace(engine.member.dataplane.roles, "begin_source", lambda _migration: None)


def committed_too_early(engine: Engine) -> None:
    """The master commits when the data are copied; the destination is only told."""
    member = engine.member
    execution = member.migrations._loop.execution
    data_answered = execution.data_answered

    def decide(sender: MemberId, message: MigrationDataAnswered) -> None:
        data_answered(sender, message)
        pid = execution._by_id.get(message.migration_id)
        if pid is None or not message.success:
            return
        flight = execution.flights[pid]
        execution._decide(flight, Verdict.SUCCESS)
        commit = MigrationCommitRequested(flight.migration.with_verdict(Verdict.SUCCESS), ())
        if flight.destination != member.ctx.id:
            member.ctx.send(flight.destination, commit)

    member.migrations._handlers[MigrationDataAnswered] = decide


def left_with_data(engine: Engine) -> None:
    """The master lets a leaving member go before its data are elsewhere."""
    loop = engine.member.migrations._loop
    may_leave, ctx = loop.may_leave, engine.member.ctx

    def allow(member: MemberId) -> bool:
        return may_leave(member) or member in ctx.leaving

    replace(loop, "may_leave", allow)


def timer_generation_ignored(engine: Engine) -> None:
    """Any firing of a timer counts, also one that was replaced or taken back."""
    ctx = engine.member.ctx
    take_timer = ctx.take_timer

    def fire(key: str, generation: int) -> bool:
        take_timer(key, generation)
        return True

    replace(ctx, "take_timer", fire)


def own_pause_unnoticed(engine: Engine) -> None:
    """A member that was stopped takes the others' silence for their death."""
    replace(engine.member.membership.heartbeats, "notice_pause", lambda: None)


def backups_not_repeated(engine: Engine) -> None:
    """What a broken connection lost is taken for done instead of being sent again."""
    dataplane = engine.member.dataplane
    link_lost = dataplane.link_lost

    def give_up(member: MemberId) -> None:
        outbox = dataplane.outgoing.outboxes.get(member)
        if outbox is not None:
            outbox.acknowledge(outbox.sequence, dataplane.outgoing.completed)
        link_lost(member)

    replace(dataplane, "link_lost", give_up)


def promoted_from_cold(engine: Engine) -> None:
    """Repair promotes the coldest backup instead of the hottest."""
    member = engine.member
    keeper = member.migrations._keeper
    change = keeper.change

    def swap(pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        before = keeper.table.rows[pid]
        if member.ctx.is_master and before[0] is None and row[0] is not None:
            coldest = (
                max(index_in(before, one) for one in before if one is not None)
                if any(before)
                else 0
            )
            if coldest > 0 and before[coldest] != row[0]:
                slots = list(before)
                slots[0], slots[coldest] = slots[coldest], None
                row = tuple(slots)
        change(pid, row, version, committed)

    replace(keeper, "change", swap)


def merged_by_wall_clock(engine: Engine) -> None:
    """A merge compares times, whatever the map's policy says."""

    def ask(
        policy: object, name: str, existing: EntryView | None, merging: EntryView
    ) -> bytes | None:
        return latest_update(existing, merging)

    replace(engine.member.merging.target, "_ask", ask)


def dropped_by_the_smaller_part(engine: Engine) -> None:
    """A part that yields forgets what it held and counts nothing."""
    replace(engine.member, "_keep_for_merge", lambda: None)


def any_table_version(engine: Engine) -> None:
    """Below 4.1, a request is taken at any lower version of the table, as if ours were that one.

    So that members are behind at all, the master does not wait until they have the table; alone
    this only makes requests fail.
    """
    migrations = engine.member.migrations
    loop, keeper = migrations._loop, serial_keeper(migrations._keeper)

    def accept(kind: type[Message]) -> None:
        take = migrations._handlers[kind]

        def taken(sender: MemberId, message: Any) -> None:
            keeper.version = max(keeper.version, message.migration.initial_version)
            take(sender, message)

        migrations._handlers[kind] = taken

    for kind in (MigrationRequested, MigrationOpened, MigrationCommitRequested):
        accept(kind)
    replace(loop, "_is_repaired", lambda: not loop.repair.is_promoting)


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(local_promotion, "a backup promotes itself", "kill", ("P4", "P1")),
        Bug(cleared_before_commit, "a source clears too early", "leave", ("D6", "D1", "L1")),
        Bug(
            failed_version_not_raised,
            "a failed commit does not move the version on",
            "move",
            ("P2", "P6", "P7", "P11", "X2", "L1"),
        ),
        Bug(members_in_set_order, "a set decides an order", "kill", ("X3",)),
        Bug(acknowledged_before_backup, "acknowledged before the backup", "kill", ("R4", "D1")),
        Bug(gap_ignored, "a gap is ignored", "reset", ("R1", "D9", "D1", "L1")),
        Bug(not_cleared, "data stay where they do not belong", "leave", ("D8", "L1", "X1")),
        Bug(
            reused_identity,
            "identity is the address",
            "kill",
            ("M4", "M1", "X2", "L1", "D1"),
            keeps_identity=True,
        ),
        Bug(loss_not_told, "a lost partition is not told", "over", ("D7",)),
        Bug(impatient_master, "a new master does not wait", "kill", ("M3",)),
        Bug(
            writes_while_migrating,
            "writes while migrating",
            "leave",
            ("D1", "D3", "D4", "D6", "L1"),
        ),
        Bug(committed_too_early, "the master commits first", "leave", ("P6",)),
        Bug(
            left_with_data,
            "a member leaves with its data",
            "leave",
            ("P12", "D6", "D7", "D1", "L1"),
        ),
        Bug(timer_generation_ignored, "old timers count", "swarm", ("X1", "L1", "X2", "D6", "D1")),
        Bug(own_pause_unnoticed, "a pause is taken for others' death", "pause", ("M4", "M5", "L1")),
        Bug(merged_by_wall_clock, "a merge goes by the clock only", "split", ("D10",)),
        Bug(dropped_by_the_smaller_part, "data of a split are dropped", "split", ("D10",)),
        Bug(any_table_version, "taken at another table version", "serial-move", ("X2", "P2")),
        Bug(promoted_from_cold, "the coldest is promoted", "kill", ("D7", "P2", "P14", "X2", "D1")),
        *MORE_BUGS,
        *RULE_BUGS,
    )
}
"""By name."""
