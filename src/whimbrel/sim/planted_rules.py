"""Bugs put in on purpose for one rule each: C2, C5, D12, D13, L4, L5, M2, O1, P3, P10, P13, R2, R3.

A rule that other rules always outrun is a rule that nobody has seen working. Each bug here must be
reported by the very rule it was made for. See ``planted``, which lists them with its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whimbrel.core.events import Moment, PartitionMigrationEvent
from whimbrel.core.ids import REPLICA_SLOTS, Address, MemberId, PartitionId, Row
from whimbrel.core.messages import ReplicaVersions, SuspicionTold, TableImage
from whimbrel.core.migration.keeper import ActiveMigration
from whimbrel.core.model import MemberList
from whimbrel.core.replication.fragments import PartitionReplica
from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Origin, Request
from whimbrel.sim.bug import Bug, replace
from whimbrel.wire.errors import RETRYABLE
from whimbrel.wire.frames import RawMessage, parse_message

PERMITS_MANY = 1_000
"""More syncs at once than any run could begin."""


def lists_not_told(engine: Engine) -> None:
    """Clients never hear that a member has come or gone."""
    replace(engine.server.views, "members_changed", lambda: None)


def backup_takes_writes(engine: Engine) -> None:
    """A first backup carries writes out itself instead of sending them to the primary."""
    server, dataplane = engine.server, engine.member.dataplane
    route = server.forwarding.route

    def take(request: Request) -> None:
        operation = server.partition_operations.get(request.type)
        partition = dataplane.partition(request.partition)
        is_write = operation is not None and operation.write
        if operation is None or not is_write or partition.index != 1 or not partition.maps:
            route(request)
            return
        request.origin.in_flight -= 1
        partition.is_primary = partition.writable = True
        operation.run(request.origin, partition, parse_message(request.data))
        partition.is_primary = partition.writable = False

    replace(server.forwarding, "route", take)


def removal_not_believed(engine: Engine) -> None:
    """A member that has woken from a pause does not believe that it was removed."""
    strangers = engine.member.membership.strangers
    on_told = strangers.on_told

    def sceptical(sender: MemberId, address: Address, told: SuspicionTold) -> None:
        if not strangers._heartbeats.was_paused():
            on_told(sender, address, told)

    replace(strangers, "on_told", sceptical)


def promotions_not_told(engine: Engine) -> None:
    """Services hear of migrations only, not of a row that gives this member another index."""
    keeper = engine.member.migrations._keeper
    announce = keeper._announce

    def silent(
        pid: PartitionId, before: Row, after: Row, active: ActiveMigration | None, committed: str
    ) -> tuple[PartitionMigrationEvent | None, Moment]:
        if active is None:
            return None, Moment.COMMIT
        return announce(pid, before, after, active, committed)

    replace(keeper, "_announce", silent)


def newcomers_stay_empty(engine: Engine) -> None:
    """The assignment leaves a full row as it is, so nothing ever moves to a newcomer."""
    loop = engine.member.migrations._loop
    targets_of = loop._targets

    def lazy() -> list[Row]:
        groups = len(loop._groups())
        depth = min(loop.replica_depth, groups)
        members = engine.member.ctx.members
        leaving = engine.member.ctx.leaving
        return [
            row
            if row[0] is not None
            and all(one is not None and members.get(one) for one in row[:depth])
            and not any(one in leaving for one in row if one is not None)
            else target
            for row, target in zip(loop._keeper.table.rows, targets_of(), strict=True)
        ]

    replace(loop, "_targets", lazy)


def restless_plans(engine: Engine) -> None:
    """Each plan wants the coldest replica of a row elsewhere, and each end triggers another."""
    loop = engine.member.migrations._loop
    targets_of, succeeded = loop._targets, loop._plan_succeeded
    turns = [0]

    def elsewhere() -> list[Row]:
        targets = targets_of()
        data = [member for group in loop._groups() for member in group]
        pid = turns[0] % len(targets)
        row = list(targets[pid])
        coldest = max((index for index in range(REPLICA_SLOTS) if row[index]), default=0)
        free = [member for member in data if member not in row]
        if coldest and free:
            row[coldest] = free[turns[0] % len(free)]
            targets[pid] = tuple(row)
        return targets

    def again() -> None:
        turns[0] += 1
        succeeded()
        loop.trigger("it might be better")

    replace(loop, "_targets", elsewhere)
    replace(loop, "_plan_succeeded", again)


def silent_kept(engine: Engine) -> None:
    """The master removes only whom nothing can be sent to, not who is silent."""
    membership = engine.member.membership
    detector = membership.detector

    def remove() -> None:
        suspected = [one for one in detector.suspected() if one not in detector._silent]
        members = membership.ctx.members
        kept = tuple(info for info in members.members if info.id not in suspected)
        if suspected:
            membership.install(members.with_members(kept))

    replace(membership, "_remove_suspected", remove)


def former_master_kept(engine: Engine) -> None:
    """Whoever claims mastership leaves the suspected master on its list, as the youngest."""
    membership = engine.member.membership
    ctx, install = membership.ctx, membership.install

    def keep(new: MemberList) -> None:
        master = ctx.members.master
        former = None if master is None else ctx.members.get(master)
        if new.master == ctx.id and former is not None and new.get(former.id) is None:
            new = msgspec.structs.replace(new, members=(*new.members, former))
        install(new)

    replace(membership, "install", keep)


def anybody_tells_versions(engine: Engine) -> None:
    """Versions are believed whoever tells them, and backups tell theirs, too."""
    anti_entropy = engine.member.dataplane.anti_entropy
    told = anti_entropy._told

    def believe(sender: MemberId, replica: ReplicaVersions) -> None:
        partition = engine.member.dataplane.partitions[replica.partition_id]
        told(
            partition.primary or sender,
            msgspec.structs.replace(
                replica, index=partition.index, partition_version=partition.version
            ),
        )

    replace(anti_entropy, "_told", believe)


def permits_without_limit(engine: Engine) -> None:
    """Syncs are asked for and answered however many are under way.

    So that there are many at all, backups doubt what they hold whenever their row changes; alone
    this only costs time.
    """
    ctx = engine.member.ctx
    anti_entropy = engine.member.dataplane.anti_entropy
    role_taken = anti_entropy.role_taken
    ctx.settings = msgspec.structs.replace(ctx.settings, replication_max_parallel=PERMITS_MANY)

    def doubt(partition: PartitionReplica) -> None:
        role_taken(partition)
        for fragment in partition.fragments.values() if partition.index > 0 else ():
            engine.member.dataplane.doubts.mark_dirty(fragment)

    replace(anti_entropy, "role_taken", doubt)


def passive_takes_writes(engine: Engine) -> None:
    """Writes are taken in PASSIVE as in any other state."""
    server = engine.server
    dispatch = server.dispatch

    def take(origin: Origin, message: RawMessage, hops: int = 0) -> None:
        server.is_passive = False
        dispatch(origin, message, hops)

    replace(server, "dispatch", take)


def anybody_may_join(engine: Engine) -> None:
    """Newcomers are admitted whatever the cluster state says."""
    replace(engine.member.membership.joining, "_may_join", lambda _joiner: True)


def losses_kept_by_master(engine: Engine) -> None:
    """A lost partition is known to the acting master alone, and only as long as it lives."""
    table = engine.member.migrations.table
    image = table.image

    def without_losses(partition_ids: Iterable[PartitionId] | None = None) -> TableImage:
        return msgspec.structs.replace(image(partition_ids), losses=())

    replace(table, "image", without_losses)


def losses_of_rows_only(engine: Engine) -> None:
    """Only a partition without any replica counts as lost, not a map with fewer backups."""
    losses = engine.member.migrations.losses
    losses.structures_lost = None


def late_backup_is_retryable(engine: Engine) -> None:
    """A write that is not on every backup in time is told to have had no effect."""
    server = engine.server

    def fail_write(origin: Origin, correlation: int, reason: str) -> None:
        server.fail(origin, correlation, RETRYABLE, reason)

    replace(server, "_fail_write", fail_write)


def missing_seats_count(engine: Engine) -> None:
    """A seat that waits for a missing member counts as a replica that is there."""
    safety, table = engine.member.safety, engine.member.migrations.table
    replace(safety, "missing_replicas", lambda: table.hole_count(safety.depth()))


def doubt_not_counted(engine: Engine) -> None:
    """Replicas that are known to lack something count as in step."""
    replace(engine.member.dataplane, "unsettled", lambda: 0)


def survives_by_settings(engine: Engine) -> None:
    """As many failures are promised to be borne as there are backups configured."""
    safety = engine.member.safety
    replace(safety, "survives", lambda: max(safety._backups_asked()))


RULE_BUGS: tuple[Bug, ...] = (
    Bug(lists_not_told, "clients keep an old list", "kill", ("C2",)),
    Bug(backup_takes_writes, "a backup takes writes", "kill", ("P3",)),
    Bug(removal_not_believed, "a woken primary goes on", "pause", ("P3",)),
    Bug(promotions_not_told, "services hear of no promotion", "kill", ("P13",)),
    Bug(newcomers_stay_empty, "a newcomer gets nothing", "kill", ("P10",)),
    Bug(restless_plans, "plans without end", "kill", ("L4",)),
    Bug(silent_kept, "a silent member stays", "oneway", ("L5",)),
    Bug(former_master_kept, "two masters on one list", "pause", ("M2",)),
    Bug(anybody_tells_versions, "anybody tells versions", "kill", ("R2",)),
    Bug(permits_without_limit, "permits have no limit", "ambush", ("R3",)),
    Bug(passive_takes_writes, "writes in PASSIVE", "states", ("O1",)),
    Bug(anybody_may_join, "joins while frozen", "mixed", ("O1",)),
    Bug(losses_kept_by_master, "losses die with the master", "over", ("D12",)),
    Bug(losses_of_rows_only, "losses of one map are not told", "over", ("D12",)),
    Bug(late_backup_is_retryable, "done and called failed", "nap", ("C5",)),
    Bug(missing_seats_count, "safe with a seat empty", "states", ("D13",)),
    Bug(doubt_not_counted, "safe while replicas differ", "salvo", ("D13",)),
    Bug(survives_by_settings, "promises more than it has", "salvo", ("D13",)),
)
