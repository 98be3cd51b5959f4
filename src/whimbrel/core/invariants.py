"""What must always be true of one member, checked from outside between two steps.

The rooms check their own facts as they go; these functions look across rooms, for tests, the
simulator and an operator who suspects a bug. Linear in the number of partitions.
"""

from __future__ import annotations

from whimbrel.core.check import check
from whimbrel.core.ids import NO_INDEX, MemberId, PartitionId, index_in
from whimbrel.core.member import Member


def check_member(member: Member) -> None:
    """Check everything that must hold for one member.

    Raises:
        InvariantViolation: Something does not; the text is the fact.
    """
    check_stamp(member)
    check_roles(member)
    check_fragments(member)
    check_migrations(member)
    check_queues(member)


def check_stamp(member: Member) -> None:
    """The cached stamp is that of the versions (PIM-17)."""
    table = member.migrations.table
    check(table.stamp == table.recompute_stamp(), "the table's cached stamp is right")


def check_roles(member: Member) -> None:
    """Each partition's role follows from the table's row (ADL-71)."""
    table = member.migrations.table
    for replica in member.dataplane.partitions:
        row = table.rows[replica.pid]
        check(replica.row == row, "the data plane knows the table's row")
        index = index_in(row, member.ctx.id)
        check(replica.index == index, "our replica index is that of the row")
        is_primary = index == 0 and replica.has_data
        check(replica.is_primary == is_primary, "we are primary where the row says so")
        check(
            replica.writable == (replica.is_primary and not replica.migrating),
            "a partition is writable when we are its primary and it does not migrate",
        )


def check_fragments(member: Member) -> None:
    """No fragment above its structure's backup count, none where we have no role (ADL-73).

    What is loaded from files waits for its rows.
    """
    for replica in member.dataplane.partitions:
        if member.ctx.members.recovery is not None or not replica.version:
            continue
        if replica.pid in member.migrations.manager.active or replica.is_behind:
            continue
        for fragment in replica.fragments.values():
            check(replica.index != NO_INDEX, "a member holds fragments only where it is a replica")
            check(
                replica.index <= fragment.backup_count,
                "a backup holds only fragments that ask for a backup at its index",
            )


def check_migrations(member: Member) -> None:
    """The migrating flag has a migration, and the master keeps the cap (PIM-24)."""
    for replica in member.dataplane.partitions:
        if replica.migrating:
            is_active = replica.pid in member.migrations.manager.active
            check(is_active, "the migrating flag belongs to an active migration")
    running: dict[PartitionId, None] = {}
    load: dict[MemberId, int] = {}
    for migration in member.migrations.running_migrations():
        check(migration.partition_id not in running, "a partition has one running migration")
        running[migration.partition_id] = None
    for migration in member.migrations.counted_migrations():
        source = member.migrations.table.rows[migration.partition_id][0]
        for end in dict.fromkeys((source, migration.step.destination)):
            if end is not None:
                load[end] = load.get(end, 0) + 1
    cap = member.ctx.settings.migration_max_parallel
    check(
        all(count <= cap for count in load.values()),
        "no member takes part in more migrations than migration_max_parallel",
    )


def check_queues(member: Member) -> None:
    """Queues are within their limits.

    On top of the batch come at most ``migration_max_parallel`` migrations that this member has
    committed as a destination and not read of yet.
    """
    settings = member.ctx.settings
    limit = settings.completed_batch_max + settings.migration_max_parallel
    check(
        len(member.migrations.completed_migrations()) <= limit,
        "finished migrations that not everybody knows are within completed_batch_max",
    )
