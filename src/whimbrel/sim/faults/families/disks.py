"""Harm to members that keep files: all of them at once, and their disks."""

from __future__ import annotations

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import FULL

AGAIN_SHARE = 0.4
"""How often the cluster dies again before it is long back."""
STAY_SHARE = 0.5
"""How often, with a partial policy, somebody stays away when everybody has died."""
ROT_SHARE = 0.3
"""How often somebody's disk is damaged meanwhile."""
SEEDS = 1 << 30
ILL_US = (200_000, 8_000_000)
"""How long a disk is slow, full or closed."""
ROOM_BYTES = (1, 3_000)
FINAL_US = 3_000_000
"""So long after a sync was to fail all know that its member has stopped. Whose files are those of
the newest list and may lack what it was told of would keep everybody waiting: an operator's matter.
"""


def outage(nemesis: Nemesis) -> None:
    """27, 45, 46: all processes are killed, or all machines lose their power; maybe repeatedly.

    50: as far as the budget bears it the files of one do not come back as they were, or at all.
    """
    if any(not nemesis.is_quiet(host) for host in nemesis.world.hosts):
        return
    absent, rotten = _draw_lost(nemesis)
    for host in (absent, rotten):
        if host is not None:
            nemesis.world.book_loss(host)
    nemesis.do("outage", value=int(coin(nemesis.random, 0.5)))
    if rotten is not None:
        nemesis.do("rot", rotten.name, value=nemesis.random.randrange(SEEDS))
    nemesis.supervisor.owe_all(absent)
    if coin(nemesis.random, AGAIN_SHARE):
        nemesis.world.scheduler.after(log_uniform(nemesis.random, 1_000, 8_000_000), again, nemesis)


def _draw_lost(nemesis: Nemesis) -> tuple[Host | None, Host | None]:
    """Who stays away, and whose disk is damaged; nobody or one of them."""
    running = [host for host in nemesis.running() if not host.lite]
    if not running or nemesis.world.is_dark or not nemesis.may_lose(running[0]):
        return None, None
    host = pick(nemesis.random, running)
    policy = nemesis.world.plan.settings.persistence.recovery_policy
    if policy != FULL and coin(nemesis.random, STAY_SHARE):
        return host, None
    return None, host if coin(nemesis.random, ROT_SHARE) else None


def shutdown(nemesis: Nemesis) -> None:
    """63: everybody is asked to leave at one moment, and comes back."""
    hosts = nemesis.world.up_hosts()
    if nemesis.world.budget.losses:
        return
    are_well = all(host.joined and not (host.is_leaving or host.disk.is_ill) for host in hosts)
    if hosts and are_well and all(map(nemesis.is_quiet, nemesis.world.hosts)):
        nemesis.do("shutdown")
        nemesis.supervisor.owe_all()


def again(nemesis: Nemesis) -> None:
    """During the recovery, if the round is not over by then."""
    if nemesis.active:
        outage(nemesis)


def dragging(nemesis: Nemesis) -> None:
    """55: a disk is slow for a while."""
    _ail(nemesis, "drag", 0)


def full(nemesis: Nemesis) -> None:
    """54: a disk is full, and has room again."""
    _ail(nemesis, "fill", log_uniform(nemesis.random, *ROOM_BYTES))


def closed(nemesis: Nemesis) -> None:
    """57: a disk can be read only, and is as before."""
    _ail(nemesis, "close", 0)


def _ail(nemesis: Nemesis, verb: str, value: int) -> None:
    up = [host for host in nemesis.world.up_hosts() if not host.disk.is_ill]
    if up:
        host = pick(nemesis.random, up)
        nemesis.do(verb, host.name, value=value)
        nemesis.later(log_uniform(nemesis.random, *ILL_US), "mend", host.name)


def unsynced(nemesis: Nemesis) -> None:
    """47: a sync fails; its member stops and may come back."""
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    host = pick(nemesis.random, running) if running else None
    if host is not None and nemesis.may_lose(host) and not nemesis.world.is_dark:
        nemesis.silence(FINAL_US, host)
        nemesis.condemn(host)
        nemesis.do("unsync", host.name)


DISKS: tuple[Family, ...] = (outage, shutdown, dragging, full, closed, unsynced)
