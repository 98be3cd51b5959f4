"""Harm by operators: cluster states, roles of members, the order to upgrade; audits.

These change what the cluster may do, so the rest of a run waits until the change is undone
(``Nemesis.unfinished``).
"""

from __future__ import annotations

from whimbrel.core.model import ClusterState
from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis

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


def stable(nemesis: Nemesis) -> None:
    """The topology is declared to be as wanted; members die or leave, and return in any order.

    Mostly all are back for a while before the state ends, so that it shows where rows have gone.
    """
    random, state = nemesis.random, ClusterState.STABLE_CLUSTER
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    if not running:
        return
    nemesis.do("state", state.value)
    span_us = log_uniform(random, 4_000_000, 20_000_000)
    chosen = random.sample(running, min(len(running) - 1, pick(random, (1, 1, 2, 2, 3))))
    for host in chosen:
        way = "crash" if coin(random, 0.7) else "leave"
        nemesis.later(round(span_us * random.uniform(0.1, 0.35)), way, host.name)
        nemesis.later(round(span_us * random.uniform(0.35, 0.6)), "start", host.name)
    if coin(random, 0.2):  # a way over a state that keeps seats, and back to the same table
        nemesis.later(span_us // 3, "state", ClusterState.FROZEN.value)
        nemesis.later(span_us // 2, "state", state.value)
    nemesis.later(span_us, "state", ClusterState.ACTIVE.value)


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


def upgrade(nemesis: Nemesis) -> None:
    """73: the order to go from 4.0 to 4.1, given to anybody."""
    running = nemesis.running()
    if running:
        nemesis.do("upgrade", pick(nemesis.random, running).name)


def audits(nemesis: Nemesis) -> None:
    """No fault: all replicas are compared, by way of any member, now and then with repair."""
    running = nemesis.running()
    if running:
        host = pick(nemesis.random, running)
        nemesis.do("audit", host.name, value=int(coin(nemesis.random, 0.3)))


OPERATOR: tuple[Family, ...] = (states, stable, roles, upgrade, audits)
