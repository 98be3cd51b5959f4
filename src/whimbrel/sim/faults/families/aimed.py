"""Aimed harm: faults that a random moment rarely hits, made to hit."""

from __future__ import annotations

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.crash_points import CRASH_POINTS
from whimbrel.sim.faults.nemesis import Family, Nemesis
from whimbrel.sim.safety.words import unsafe_because

SNARE_TURNS = 4
"""Turns for which one kind of crash point stays set when nobody comes to it."""
SEEDS = 1 << 30
FORGETFUL_SHARE = 0.6
"""How often backups lose something when all is well; else somebody may die."""
NAP_FLOOD_MAX = 60
"""Writes that wait for a member that is about to sleep for long."""


def ambush(nemesis: Nemesis) -> None:
    """22 to 25: a member dies right before or after it handles a message of a drawn kind."""
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    if not running:
        return
    host = pick(nemesis.random, running)
    if nemesis.may_lose(host):
        nemesis.do("ambush", host.name, value=1 + nemesis.random.randrange(2 * len(CRASH_POINTS)))
        nemesis.may_return(host)


def snares(nemesis: Nemesis) -> None:
    """22 to 25: everybody has the same crash point; the first who comes to it dies.

    A run goes through the kinds one by one from where its seed begins, so that some runs meet all
    of them; chance alone would need thousands.
    """
    kinds = 2 * len(CRASH_POINTS)
    points = nemesis.crash_points
    if points.code == 0:
        points.code = 1 + nemesis.random.randrange(kinds)
    elif points.was_met or points.turns >= SNARE_TURNS:
        points.code = 1 + points.code % kinds
        points.turns = 0
    points.turns += 1
    nemesis.do("snare", value=points.code)


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


def forgetful(nemesis: Nemesis) -> None:
    """A member's backups have lost some of what they had, and know of it; what differs is copied.

    No death is promised to do that to a member that lives, and what it has is what counts if it is
    promoted. So nobody may die until the product says that all copies are there again.
    """
    world = nemesis.world
    if unsafe_because(world):
        return
    world.budget.safe_point(len(world.places()))
    data = [host for host in nemesis.running() if not host.lite]
    if data and coin(nemesis.random, FORGETFUL_SHARE):
        host = pick(nemesis.random, data)
        world.budget.shrunk(world.now_us, ())
        nemesis.do("forget", host.name, value=nemesis.random.randrange(SEEDS))


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
    if unsafe_because(world) or any(host.is_condemned for host in world.up_hosts()):
        return
    data = [host for host in nemesis.running() if not host.lite and not host.is_draining]
    count = min(world.plan.backup_count, len(world.places()) - 1)
    if count < 1 or len(data) <= count:
        return
    victims = nemesis.random.sample(data, count)
    nemesis.do("salvo", *(host.name for host in victims))
    for host in victims:
        nemesis.may_return(host)


AIMED: tuple[Family, ...] = (ambush, snares, uneven, forgetful, nap, salvo)
