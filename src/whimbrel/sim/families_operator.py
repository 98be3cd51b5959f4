"""Harm by operators: cluster states, roles of members, and what is still owed to them.

See ``families`` for what a family is. These two change what the cluster may do, so the rest of a
run waits until the change is undone: ``unfinished`` says what is still owed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whimbrel.core.model import ClusterState
from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.watch import member_of

if TYPE_CHECKING:
    from whimbrel.sim.nemesis import Nemesis
    from whimbrel.sim.world import World

INSIST_US = 1_000_000
"""An operator who wants the cluster ACTIVE looks, and asks again, once in this time."""
RESTRICTED = (ClusterState.NO_MIGRATION, ClusterState.FROZEN, ClusterState.PASSIVE)


def states(nemesis: Nemesis) -> None:
    """77: the cluster is told to stand still in some way, and after a while to go on.

    By a coin a member dies meanwhile and comes back before the end, to the seats that are kept.
    """
    state = pick(nemesis.random, RESTRICTED)
    nemesis.do("state", state.value)
    span_us = log_uniform(nemesis.random, 400_000, 10_000_000)
    nemesis.later(span_us, "state", ClusterState.ACTIVE.value)
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    if running and coin(nemesis.random, 0.6):
        host = pick(nemesis.random, running)
        nemesis.later(span_us // 2, "crash", host.name)
        nemesis.later(span_us * 3 // 4, "start", host.name)


def roles(nemesis: Nemesis) -> None:
    """68: a lite member is promoted, or a data member demoted; now and then the last one."""
    running = nemesis.running()
    lite = [host for host in running if host.lite]
    data = [host for host in running if not host.lite and not host.is_draining]
    is_promotion = coin(nemesis.random, 0.6)
    if lite and (is_promotion or not data):
        nemesis.do("promote", pick(nemesis.random, lite).name)
    elif data and (len(data) > 1 or coin(nemesis.random, 0.2)):
        nemesis.do("demote", pick(nemesis.random, data).name)


def is_everywhere_active(world: World) -> bool:
    """Whether every member believes that the cluster is ACTIVE and no change is under way."""
    for host in world.up_hosts():
        member = member_of(host)
        is_changing = member.membership.states._transaction is not None
        if member.ctx.members.state is not ClusterState.ACTIVE or is_changing:
            return False
    return True


def insist_on_active(nemesis: Nemesis, round_number: int) -> None:
    """After the harm: ask for ACTIVE, again and again until every member is."""
    if not nemesis.is_resting(round_number):
        return
    if not is_everywhere_active(nemesis.world):
        nemesis.do("state", ClusterState.ACTIVE.value)
    nemesis.world.scheduler.after(INSIST_US, insist_on_active, nemesis, round_number)


def unfinished(world: World) -> str:
    """What an operator still waits for, in a few words; empty when it is nothing."""
    for host in world.up_hosts():
        wish = member_of(host).membership.roles.wish
        if wish is not None:
            return f"{host.name} is to become a {'lite' if wish.lite else 'data'} member"
    if not is_everywhere_active(world):
        return "the cluster is not ACTIVE everywhere"
    return ""


OPERATOR_FAMILIES: dict[str, Callable[[Nemesis], None]] = {
    family.__name__: family for family in (states, roles)
}
"""By name."""
