"""Protections of the partition table, of plans and promotions."""

from __future__ import annotations

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.jobs import Job, finish
from whimbrel.core.migration.control_loop import RETRY_TIMER
from whimbrel.core.model import MemberList
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace


def promotion_repeated(engine: Engine) -> None:
    """A promotion whose request or answer was lost is not sent again (bugs 4 and 5)."""
    repair = engine.member.migrations.loop.repair
    replace(repair, "unanswered", list)


def promoted_may_die(engine: Engine) -> None:
    """The master waits for the answer of a promoted member that has left (ADL-21)."""
    replace(engine.member.migrations.loop.repair, "members_changed", nothing)


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
    loop = engine.member.migrations.loop

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


def groups_kept(engine: Engine) -> None:
    """Members of one machine count as places of their own (bug 19c)."""
    ctx, loop = engine.member.ctx, engine.member.migrations.loop

    def alone() -> list[tuple[MemberId, ...]]:
        return [(info.id,) for info in ctx.data_members() if info.id not in ctx.leaving]

    replace(loop, "_groups", alone)


def lost_owner_anyway(engine: Engine) -> None:
    """A partition without any replica gets an owner only where migrations are allowed (bug 48)."""
    ctx, loop = engine.member.ctx, engine.member.migrations.loop
    replacing_lost = loop._replacing_lost

    def only_active() -> Job[None]:
        if ctx.state.migration_allowed:
            yield from replacing_lost()

    replace(loop, "_replacing_lost", only_active)


def promotion_is_change(engine: Engine) -> None:
    """A list in which a member changed between lite and data leads to no plan (bug 50)."""
    loop = engine.member.migrations.loop
    members_changed = loop.members_changed

    def overlook(old: MemberList, new: MemberList) -> None:
        if old.ids() != new.ids() or old.state is not new.state:
            members_changed(old, new)

    replace(loop, "members_changed", overlook)


def lite_hold_nothing(engine: Engine) -> None:
    """Lite members get replicas like everybody else."""
    ctx, loop = engine.member.ctx, engine.member.migrations.loop

    def everybody() -> list[tuple[MemberId, ...]]:
        return [(info.id,) for info in ctx.members.members if info.id not in ctx.leaving]

    replace(loop, "_groups", everybody)


GUARDS: tuple[Bug, ...] = (
    Bug(promotion_repeated, "kill", ("L1",)),
    Bug(promoted_may_die, "kill", ("L1",)),
    Bug(stamp_recomputed, "kill", ("P11",)),
    Bug(joiner_told_first, "kill", ()),
    Bug(failed_plan_tried_again, "network", ("L1",)),
    Bug(groups_kept, "swarm", ("D6", "D7", "D1")),
    Bug(lost_owner_anyway, "over", ("C1", "L1")),
    Bug(promotion_is_change, "swarm", ("L1",)),
    Bug(lite_hold_nothing, "swarm", ("P9",)),
)
