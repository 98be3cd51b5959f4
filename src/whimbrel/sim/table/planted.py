"""Bugs of the partition table, of plans and promotions."""

from __future__ import annotations

from whimbrel.core.ids import REPLICA_SLOTS, Address, MemberId, PartitionId, Row, index_in
from whimbrel.core.jobs import Job
from whimbrel.core.messages import SuspicionTold
from whimbrel.core.model import MemberList, RowState
from whimbrel.serving.engine import Engine
from whimbrel.serving.session import Request
from whimbrel.sim.bug import Bug, replace
from whimbrel.wire.frames import parse_message


def local_promotion(engine: Engine) -> None:
    """The first backup promotes itself when it sees the primary leave (before 3.7)."""
    member = engine.member
    manager = member.migrations.manager
    view_changed = member.membership.on_view_changed

    def promote(old: MemberList, new: MemberList) -> None:
        view_changed(old, new)
        mine = member.ctx.id
        for pid, row in enumerate(manager.table.rows):
            if row[1] == mine and row[0] is not None and new.get(row[0]) is None:
                promoted: Row = (mine, None, *row[2:])
                manager.change(PartitionId(pid), promoted, manager.table.versions[pid] + 2)

    member.membership.on_view_changed = promote


def promoted_from_cold(engine: Engine) -> None:
    """Repair promotes the coldest backup instead of the hottest."""
    member = engine.member
    manager = member.migrations.manager
    change = manager.change

    def swap(pid: PartitionId, row: Row, version: int, committed: str = "") -> None:
        before = manager.table.rows[pid]
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

    replace(manager, "change", swap)


def equal_version_taken(engine: Engine) -> None:
    """A row is taken once more although its version is the one that is held."""
    manager = engine.member.migrations.manager
    apply_row = manager.apply_row

    def take(state: RowState) -> bool:
        if state.version == manager.table.version(state.partition_id) > 0:
            manager.change(state.partition_id, state.row, state.version)
            return True
        return apply_row(state)

    replace(manager, "apply_row", take)


def cyclic_target(engine: Engine) -> None:
    """The assignment wants primary and first backup of a partition to change places."""
    loop = engine.member.migrations.loop
    targets_of = loop._targets

    def swapped() -> Job[list[Row]]:
        targets = yield from targets_of()
        for pid, row in enumerate(loop._manager.table.rows):
            if row[0] is not None and row[1] is not None:
                targets[pid] = (row[1], row[0], *row[2:])
                break
        return targets

    replace(loop, "_targets", swapped)


def backup_takes_writes(engine: Engine) -> None:
    """A first backup carries writes out itself instead of sending them to the primary."""
    server, dataplane = engine.server, engine.member.dataplane
    route = server.forwarding.route

    def take(request: Request) -> None:
        operation = server.operations.in_partition.get(request.type)
        partition = dataplane.partitions[request.partition]
        is_write = operation is not None and operation.is_write
        if operation is None or not is_write or partition.index != 1 or not partition.fragments:
            route(request)
            return
        request.origin.in_flight -= 1
        partition.is_primary = partition.writable = True
        operation.run(request.origin, partition, parse_message(request.data))
        partition.is_primary = partition.writable = False

    replace(server.forwarding, "route", take)


def removal_not_believed(engine: Engine) -> None:
    """A member that has woken from a pause does not believe that it was removed."""
    expulsion = engine.member.membership.expulsion
    on_told = expulsion.on_told

    def sceptical(sender: MemberId, address: Address, told: SuspicionTold) -> None:
        if not expulsion._heartbeats.was_paused():
            on_told(sender, address, told)

    replace(expulsion, "on_told", sceptical)


def newcomers_stay_empty(engine: Engine) -> None:
    """The assignment leaves a full row as it is, so nothing ever moves to a newcomer."""
    loop = engine.member.migrations.loop
    targets_of = loop._targets

    def lazy() -> Job[list[Row]]:
        targets = yield from targets_of()
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
            for row, target in zip(loop._manager.table.rows, targets, strict=True)
        ]

    replace(loop, "_targets", lazy)


def restless_plans(engine: Engine) -> None:
    """Each plan wants the coldest replica of a row elsewhere, and each end triggers another."""
    loop = engine.member.migrations.loop
    targets_of, succeeded = loop._targets, loop._plan_succeeded
    turns = [0]

    def elsewhere() -> Job[list[Row]]:
        targets = yield from targets_of()
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


BUGS: tuple[Bug, ...] = (
    Bug(local_promotion, "kill", ("P4", "P1")),
    Bug(promoted_from_cold, "kill", ("D7", "P2", "P14", "X2", "D1")),
    Bug(equal_version_taken, "kill", ("P1", "X2", "L1")),
    Bug(cyclic_target, "kill", ("P10", "L1")),
    Bug(backup_takes_writes, "kill", ("P3",)),
    Bug(removal_not_believed, "pause", ("P3",)),
    Bug(newcomers_stay_empty, "kill", ("P10",)),
    Bug(restless_plans, "kill", ("L4",)),
)
