"""Harm to members that keep files: all of them at once, and their disks."""

from __future__ import annotations

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis

AGAIN_SHARE = 0.4
"""How often the cluster dies again before it is long back."""
ILL_US = (200_000, 8_000_000)
"""How long a disk is slow or full."""
ROOM_BYTES = (1, 3_000)
FINAL_US = 3_000_000
"""So long after a sync was to fail all know that its member has stopped. Whose files are those of
the newest list and may lack what it was told of would keep everybody waiting: an operator's matter.
"""


def outage(nemesis: Nemesis) -> None:
    """27, 45, 46: all processes are killed, or all machines lose their power; maybe repeatedly."""
    if any(not nemesis.is_quiet(host) for host in nemesis.world.hosts):
        return
    nemesis.do("outage", value=int(coin(nemesis.random, 0.5)))
    nemesis.supervisor.owe_all()
    if coin(nemesis.random, AGAIN_SHARE):
        nemesis.world.scheduler.after(log_uniform(nemesis.random, 1_000, 8_000_000), again, nemesis)


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


DISKS: tuple[Family, ...] = (outage, dragging, full, unsynced)
