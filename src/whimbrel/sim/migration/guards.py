"""Protections of migrations: what is copied, who commits when, what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from whimbrel.core.events import (
    Endpoint,
    GridEvent,
    Hook,
    Moment,
    PartitionMigrationEvent,
    ReplicaMigrated,
)
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, Row
from whimbrel.core.messages import MigrationCommitRequested, TransferAnswered
from whimbrel.core.migration.state_manager import ActiveMigration
from whimbrel.core.model import MigrationInfo, Verdict
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def commit_repeated(engine: Engine) -> None:
    """A request or an answer of a migration that was lost is not sent again (bug 3)."""
    execution = engine.member.migrations.loop.execution
    replace(execution, "unanswered", list)


def repeated_commit_recognised(engine: Engine) -> None:
    """A destination takes the repeat of a commit for another one and says no (bug 3)."""
    member = engine.member
    destination, table = member.migrations.destination, member.migrations.table
    commit = destination._commit

    def refuse(migration: Any) -> str:
        if table.version(migration.partition_id) == migration.final_version:
            return "the migration is not active at its destination"
        return commit(migration)

    replace(destination, "_commit", refuse)


def flag_cleared(engine: Engine) -> None:
    """A source that learns of a failure forgets to let writes in again (bug 19)."""
    member = engine.member
    manager = member.migrations.manager
    change = manager.change

    def leave_flagged(pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        active = manager.active.get(pid)
        change(pid, row, version, committed)
        if (
            active is not None
            and active.endpoint is Endpoint.SOURCE
            and active.migration.id != committed
        ):
            member.dataplane.roles.begin_source(active.migration)

    replace(manager, "change", leave_flagged)


def copy_complete(engine: Engine) -> None:
    """A destination commits with the part that it has received (GCM-40)."""
    member = engine.member
    destination = member.migrations.destination
    source, host = member.migrations.source, member.dataplane.roles

    def first_only(outgoing: Any, _answer: TransferAnswered) -> None:
        if outgoing.sending.export is None:
            outgoing.sending.export = host.open_export(outgoing.migration)
            outgoing.sending.export.next_parts(1 << 30)
        source._answer(outgoing, True, "")

    replace(source, "_advance", first_only)
    commit = destination.commit_requested

    def accept(sender: MemberId, message: MigrationCommitRequested) -> None:
        incoming = member.migrations.manager.active.get(message.migration.partition_id)
        if incoming is not None and incoming.endpoint is Endpoint.DESTINATION:
            vars(incoming)["receiving"].complete = True
        commit(sender, message)

    member.migrations._handlers[MigrationCommitRequested] = accept


def departure_fails_commit(engine: Engine) -> None:
    """The master commits a migration whose destination has left (ADL-21)."""
    execution = engine.member.migrations.loop.execution
    decide = execution._decide

    def succeed(running: Any, verdict: Verdict, reason: str = "") -> None:
        is_gone = reason == "the destination left the member list"
        decide(running, Verdict.SUCCESS if is_gone else verdict, reason)

    replace(execution, "_decide", succeed)


def told_before_table(engine: Engine) -> None:
    """Services hear of a change that is to come when the table has changed already (bug 6)."""
    migrations = engine.member.migrations
    set_hook = migrations.set_hook

    def late(hook: Hook) -> None:
        waiting: dict[int, PartitionMigrationEvent] = {}

        def tell(moment: Moment, event: PartitionMigrationEvent) -> None:
            if moment is Moment.BEFORE:
                waiting[event.partition_id] = event
                return
            before = waiting.pop(event.partition_id, None)
            if before is not None:
                hook(Moment.BEFORE, before)
            hook(moment, event)

        set_hook(tell)

    replace(migrations, "set_hook", late)


def own_indexes_told(engine: Engine) -> None:
    """The index that a migration leads to is not told to services (bug 14)."""
    manager = engine.member.migrations.manager
    event = manager._event

    def without_index(active: ActiveMigration) -> PartitionMigrationEvent:
        return msgspec.structs.replace(event(active), new_replica_index=NO_INDEX)

    replace(manager, "_event", without_index)


def carried_applied(engine: Engine) -> None:
    """The finished migrations that a request carries are not looked at (bug 7)."""
    replace(engine.member.migrations.manager, "apply_carried", nothing)


def kept_until_acknowledged(engine: Engine) -> None:
    """The master forgets a finished migration as soon as it is told (ADL-25)."""
    publisher = engine.member.migrations.loop.publisher
    replace(publisher, "completed_of", lambda _pid: ())


def failure_counted(engine: Engine) -> None:
    """A failed migration keeps its permits: the counter says that it still runs (bug 18)."""
    execution = engine.member.migrations.loop.execution
    decide = execution._decide

    def keep(running: Any, verdict: Verdict, reason: str = "") -> None:
        if verdict is Verdict.FAILED:
            replace(execution.queue, "release", nothing)
        try:
            decide(running, verdict, reason)
        finally:
            vars(execution.queue).pop("release", None)

    replace(execution, "_decide", keep)


def source_may_die(engine: Engine) -> None:
    """The master fails a migration whose source leaves although its destination may have it."""
    execution = engine.member.migrations.loop.execution
    members_changed = execution.members_changed

    def fail(gone: Collection[MemberId]) -> None:
        for running in list(execution.running_migrations.values()):
            if running.source in gone and running.destination not in gone:
                execution._decide(running, Verdict.FAILED, "the source left the member list")
        members_changed(gone)

    replace(execution, "members_changed", fail)


def every_index_told(engine: Engine) -> None:
    """Listeners hear of primaries only, as before version 4.0 (bug 68)."""
    migrations = engine.member.migrations
    tell_events = migrations.tell_events

    def quietly(emit: Callable[[GridEvent], None]) -> None:
        def primaries(event: GridEvent) -> None:
            if not isinstance(event, ReplicaMigrated) or event.replica_index == 0:
                emit(event)

        tell_events(primaries)

    replace(migrations, "tell_events", quietly)


def chunks_bounded(engine: Engine) -> None:
    """A fragment travels in one message, however large it is (bug 41)."""
    dataplane = engine.member.dataplane
    open_export = dataplane.roles.open_export

    def whole(migration: MigrationInfo) -> Any:
        export = open_export(migration)
        export._in_one = True
        return export

    replace(dataplane.roles, "open_export", whole)


GUARDS: tuple[Bug, ...] = (
    Bug(commit_repeated, "reset", ("L1",)),
    Bug(repeated_commit_recognised, "reset", ("P6", "P2", "L1")),
    Bug(flag_cleared, "kill", ("P8", "L1", "R4")),
    Bug(copy_complete, "leave", ("D6", "D1", "L1")),
    Bug(departure_fails_commit, "move", ("P9", "X2", "D6")),
    Bug(told_before_table, "kill", ("P13",)),
    Bug(own_indexes_told, "kill", ("P13",)),
    Bug(carried_applied, "move", ()),
    Bug(kept_until_acknowledged, "move", ()),
    Bug(failure_counted, "move", ("L1", "L2")),
    Bug(source_may_die, "move", ("P2", "P6", "P7", "X2")),
    Bug(every_index_told, "move", ("P14",)),
    Bug(chunks_bounded, "move", ("X1",)),
)
