"""Bugs of migrations: what is copied, and who commits when."""

from __future__ import annotations

from typing import Any

from whimbrel.core.events import Moment, PartitionMigrationEvent
from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.messages import (
    Message,
    MigrationCommitRequested,
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
)
from whimbrel.core.migration.state_manager import ActiveMigration
from whimbrel.core.model import MigrationInfo, Step, Verdict
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace

CAP_FACTOR = 10


def cleared_before_commit(engine: Engine) -> None:
    """A source drops its data once they are copied, not once the master has committed."""
    member = engine.member
    source = member.migrations.source
    answer = source._answer

    def drop(outgoing: Any, success: bool, reason: str) -> None:
        answer(outgoing, success, reason)
        step: Step = outgoing.migration.step
        if success and step.source == member.ctx.id and step.source_new < 0:
            replica = member.dataplane.partitions[outgoing.migration.partition_id]
            for namespace in list(replica.fragments):
                del replica.fragments[namespace]

    replace(source, "_answer", drop)


def failed_version_not_raised(engine: Engine) -> None:
    """A failed migration leaves the version one short, so a returning destination is not beaten."""
    member = engine.member
    manager = member.migrations.manager
    apply_completed = manager.apply_completed

    def apply(migration: MigrationInfo) -> bool:
        pid = migration.partition_id
        if (
            migration.verdict is Verdict.FAILED
            and migration.master == member.ctx.id
            and manager.table.versions[pid] == migration.initial_version
        ):
            row = manager.table.rows[pid]
            manager.change(pid, row, migration.initial_version + migration.step.increment)
            return True
        return apply_completed(migration)

    replace(manager, "apply_completed", apply)


def writes_while_migrating(engine: Engine) -> None:
    """The migrating flag is never set: writes go on while the partition is copied."""
    replace(engine.member.dataplane.roles, "begin_source", lambda _migration: None)


def committed_too_early(engine: Engine) -> None:
    """The master commits when the data are copied; the destination is only told."""
    member = engine.member
    execution = member.migrations.loop.execution
    data_answered = execution.data_answered

    def decide(sender: MemberId, message: MigrationDataAnswered) -> None:
        data_answered(sender, message)
        running = execution._by_id.get(message.migration_id)
        if running is None or not message.success:
            return
        execution._decide(running, Verdict.SUCCESS)
        commit = MigrationCommitRequested(running.migration.with_verdict(Verdict.SUCCESS), ())
        if running.destination != member.ctx.id:
            member.ctx.send(running.destination, commit)

    member.migrations._handlers[MigrationDataAnswered] = decide


def any_table_version(engine: Engine) -> None:
    """Below 4.1, a request is taken at any lower version of the table, as if ours were that one.

    So that members are behind at all, the master does not wait until they have the table; alone
    this only makes requests fail.
    """
    migrations = engine.member.migrations
    loop, table = migrations.loop, migrations.table

    def accept(kind: type[Message]) -> None:
        take = migrations._handlers[kind]

        def taken(sender: MemberId, message: Any) -> None:
            table.version_max = max(table.version_max, message.migration.initial_version)
            take(sender, message)

        migrations._handlers[kind] = taken

    for kind in (MigrationRequested, MigrationOpened, MigrationCommitRequested):
        accept(kind)
    replace(loop, "_is_repaired", lambda: not loop.repair.is_promoting)


def cap_ignored(engine: Engine) -> None:
    """A member takes part in ten times as many migrations as it may."""
    execution = engine.member.migrations.loop.execution
    limit = execution._parallel_max

    def raised() -> int:
        return limit() * CAP_FACTOR

    replace(execution, "_parallel_max", raised)


def promotions_not_told(engine: Engine) -> None:
    """Services hear of migrations only, not of a row that gives this member another index."""
    manager = engine.member.migrations.manager
    announce = manager._announce

    def silent(
        pid: PartitionId, before: Row, after: Row, active: ActiveMigration | None, committed: str
    ) -> tuple[PartitionMigrationEvent | None, Moment]:
        if active is None:
            return None, Moment.COMMIT
        return announce(pid, before, after, active, committed)

    replace(manager, "_announce", silent)


BUGS: tuple[Bug, ...] = (
    Bug(cleared_before_commit, "leave", ("D6", "D1", "L1")),
    Bug(failed_version_not_raised, "move", ("P2", "P6", "P7", "P11", "X2", "L1")),
    Bug(writes_while_migrating, "leave", ("D1", "D3", "D4", "D6", "L1")),
    Bug(committed_too_early, "leave", ("P6",)),
    Bug(any_table_version, "serial-move", ("X2", "P2")),
    Bug(cap_ignored, "swarm", ("P8", "X1")),
    Bug(promotions_not_told, "kill", ("P13",)),
)
