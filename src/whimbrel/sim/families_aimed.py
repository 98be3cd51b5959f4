"""Aimed harm: faults that a random moment rarely hits, made to hit (see ``families``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.stores import unsafe_because
from whimbrel.sim.traps import TRAPS

if TYPE_CHECKING:
    from whimbrel.sim.nemesis import Nemesis

SNARE_TURNS = 4
"""Turns for which one kind of trap stays set when nobody steps into it."""
NAP_FLOOD_MAX = 60
"""Writes that wait for a member that is about to sleep for long."""


def snares(nemesis: Nemesis) -> None:
    """22 to 25: everybody has the same trap, and the first who steps into it dies.

    A run goes through the kinds one by one from where its seed begins, so that some runs meet all
    of them; chance alone would need thousands.
    """
    kinds = 2 * len(TRAPS)
    traps = nemesis.world.traps
    if traps.code == 0:
        traps.code = 1 + nemesis.random.randrange(kinds)
    elif traps.has_sprung or traps.turns >= SNARE_TURNS:
        traps.code = 1 + traps.code % kinds
        traps.turns = 0
    traps.turns += 1
    nemesis.do("snare", value=traps.code)


def uneven(nemesis: Nemesis) -> None:
    """24, 26: a member dies while another one lacks what it sent; by a coin a third one follows.

    So backups differ when one of them is promoted, and some are promoted while they are dirty.
    """
    data = [host for host in nemesis.running() if not host.lite and nemesis.is_quiet(host)]
    if len(data) < 3:
        return
    first, behind, second = nemesis.random.sample(data, 3)
    span_us = nemesis.short_us()
    nemesis.silence(span_us, first, behind)
    nemesis.do("clog", first.name, behind.name, value=span_us)
    nemesis.later(span_us // 2, "crash", first.name)
    nemesis.may_return(first)
    if coin(nemesis.random, 0.6):
        pause_us = log_uniform(nemesis.random, 1_000, 2_000_000)
        nemesis.later(span_us // 2 + pause_us, "crash", second.name)
        nemesis.may_return(second)


def nap(nemesis: Nemesis) -> None:
    """29: a member sleeps for longer than the time-out while writes wait for it, and wakes."""
    running = [host for host in nemesis.running() if not host.lite and nemesis.is_quiet(host)]
    if len(running) < 2:
        return
    host = pick(nemesis.random, running)
    if not nemesis.may_lose(host):
        return
    span_us = nemesis.long_us()
    nemesis.condemn(host)
    nemesis.silence(span_us, host)
    nemesis.do("pause", host.name)
    nemesis.do("flood", value=log_uniform(nemesis.random, 10, NAP_FLOOD_MAX))
    nemesis.later(span_us, "resume", host.name)


def salvo(nemesis: Nemesis) -> None:
    """26: at a moment that the product calls safe, as many members die at once as it may bear."""
    world = nemesis.world
    if unsafe_because(world) or any(nemesis.is_condemned(host) for host in world.up_hosts()):
        return
    data = [host for host in nemesis.running() if not host.lite and not host.is_draining]
    count = min(world.plan.backup_count, len(world.places()) - 1)
    if count < 1 or len(data) <= count:
        return
    victims = nemesis.random.sample(data, count)
    nemesis.do("salvo", *(host.name for host in victims))
    for host in victims:
        nemesis.may_return(host)


AIMED_FAMILIES: dict[str, Callable[[Nemesis], None]] = {
    family.__name__: family for family in (snares, uneven, nap, salvo)
}
"""By name."""
