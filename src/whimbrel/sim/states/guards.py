"""Protections of cluster states."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberList
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, nothing, replace

LEASE_FACTOR = 1_000


def plan_made_up_for(engine: Engine) -> None:
    """What was put off while migrations were forbidden is forgotten (GCM-13)."""
    loop = engine.member.migrations.loop
    members_changed = loop.members_changed

    def forget(old: MemberList, new: MemberList) -> None:
        loop.postponed = ""
        members_changed(old, new)

    replace(loop, "members_changed", forget)


def lock_ends(engine: Engine) -> None:
    """A lock of a change of state outlives its list, and its lease has no end (bug 54)."""
    states = engine.member.membership.states
    take_lock = states._take_lock
    replace(states, "before_list", nothing)
    replace(states, "_take_lock", lambda name, lease_us: take_lock(name, LEASE_FACTOR * lease_us))


def leave_in_any_state(engine: Engine) -> None:
    """Who wants to leave waits until its data are elsewhere, also where nothing may move."""
    loop, ctx = engine.member.migrations.loop, engine.member.ctx
    may_leave = loop.may_leave

    def wait(member: MemberId) -> bool:
        return may_leave(member) and (
            ctx.state.migration_allowed or loop._manager.table.replica_count(member) == 0
        )

    replace(loop, "may_leave", wait)


GUARDS: tuple[Bug, ...] = (
    Bug(plan_made_up_for, "kill", ("L1", "L2")),
    Bug(lock_ends, "kill", ("L1", "L2")),
    Bug(leave_in_any_state, "leave", ("L1", "L2")),
)
