"""Harm to processes and machines: kills, pauses, goings and comings, wall clocks."""

from __future__ import annotations

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis

FLAPS_MAX = 5
"""An unsteady member goes and comes this often at most."""
JUMP_MAX_MS = 6 * 3_600_000
"""A wall clock jumps by six hours at most."""


def crash(nemesis: Nemesis) -> None:
    """22: a process is killed; the master's more often than others'."""
    _kill(nemesis, "crash")


def silent(nemesis: Nemesis) -> None:
    """22: a machine is lost without a word: no refusal, no reset."""
    _kill(nemesis, "silent")


def _kill(nemesis: Nemesis, verb: str) -> None:
    running = nemesis.running()
    if not running:
        return
    host = pick(nemesis.random, running)
    if coin(nemesis.random, 0.25):
        host = running[0]
    if not nemesis.may_lose(host) or not nemesis.is_quiet(host):
        return
    nemesis.do(verb, host.name)
    nemesis.may_return(host)


def pause(nemesis: Nemesis) -> None:
    """29, 30: a process stops and goes on, sometimes after the time-out."""
    running = nemesis.running()
    if len(running) < 2:
        return
    host = pick(nemesis.random, running)
    if not nemesis.is_quiet(host):
        return
    long = coin(nemesis.random, 0.4) and nemesis.may_lose(host)
    span_us = nemesis.long_us() if long else nemesis.short_us()
    if long:
        nemesis.condemn(host)
    nemesis.silence(span_us, host)
    nemesis.do("pause", host.name)
    nemesis.later(span_us, "resume", host.name)


def leave(nemesis: Nemesis) -> None:
    """71: a member leaves gracefully."""
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    if not running:
        return
    host = pick(nemesis.random, running)
    if nemesis.may_leave(host):
        nemesis.do("leave", host.name)


def join(nemesis: Nemesis) -> None:
    """32, 59: a process starts at a place where none runs."""
    down = [host for host in nemesis.world.hosts if not host.is_up and not host.is_outside]
    if down and not nemesis.world.is_dark:  # then it is the supervisor who starts
        nemesis.do("start", pick(nemesis.random, down).name)


def early(nemesis: Nemesis) -> None:
    """28: a member is killed while it starts or while it leaves."""
    hosts = [host for host in nemesis.world.up_hosts() if not host.joined or host.is_leaving]
    if not hosts:
        return
    host = pick(nemesis.random, hosts)
    if not host.joined or nemesis.may_lose(host):
        nemesis.do("crash", host.name)
        nemesis.may_return(host)


def rolling(nemesis: Nemesis) -> None:
    """72: one member after the other leaves and comes back, waiting for nothing but its end."""
    order = nemesis.random.sample(nemesis.world.hosts, len(nemesis.world.hosts))
    at_us = 1
    for host in order:
        if host.is_up:
            nemesis.later(at_us, "leave", host.name)
            at_us += log_uniform(nemesis.random, 500_000, 4_000_000)
            nemesis.later(at_us, "start", host.name)


def blackout(nemesis: Nemesis) -> None:
    """27: the whole cluster is killed at once and started again. Only over the budget."""
    if nemesis.world.plan.profile.over_budget and coin(nemesis.random, 0.3):
        for host in nemesis.world.hosts:
            if host.is_up:
                nemesis.do("crash", host.name)
            nemesis.later(log_uniform(nemesis.random, 10_000, 2_000_000), "start", host.name)


def clock(nemesis: Nemesis) -> None:
    """38 to 40: a member's wall clock jumps forward or back, or stands still for a while."""
    up = nemesis.world.up_hosts()
    if not up:
        return
    host = pick(nemesis.random, up)
    if coin(nemesis.random, 0.3):
        nemesis.do("freeze", host.name)
        nemesis.later(10 * nemesis.short_us(), "jump", host.name)
    else:
        jump_ms = log_uniform(nemesis.random, 10, JUMP_MAX_MS)
        verb = "jump" if coin(nemesis.random, 0.5) else "back"
        nemesis.do(verb, host.name, value=jump_ms)


def crowd(nemesis: Nemesis) -> None:
    """60, 61: everybody who is down starts at once, and by a coin one of them leaves at once."""
    down = [host for host in nemesis.world.hosts if not host.is_up]
    for host in down:
        nemesis.do("start", host.name)
    if down and coin(nemesis.random, 0.5):
        delay_us = log_uniform(nemesis.random, 1_000, 3_000_000)
        nemesis.later(delay_us, "leave", down[0].name)


def exodus(nemesis: Nemesis) -> None:
    """62, 63, 71, 81: several leave at the same moment, the master among them; some ask twice."""
    running = nemesis.running()
    data = [host for host in running if not host.lite and nemesis.is_quiet(host)]
    if len(data) < 2 or not nemesis.world.is_everywhere_active():
        return
    leavers = nemesis.random.sample(data, nemesis.random.randint(1, len(data) - 1))
    for host in leavers:
        nemesis.do("leave", host.name)
        if coin(nemesis.random, 0.3):
            nemesis.later(log_uniform(nemesis.random, 100, 1_000_000), "leave", host.name)
        if coin(nemesis.random, 0.6):
            delay_us = log_uniform(nemesis.random, 500_000, 8_000_000)
            nemesis.later(delay_us, "start", host.name)


def unsteady(nemesis: Nemesis) -> None:
    """66: one member goes and comes several times in a row."""
    running = nemesis.running()
    if nemesis.world.data_member_count() < 2 or not running:
        return
    host = pick(nemesis.random, running)
    at_us = 1
    for _ in range(nemesis.random.randint(2, FLAPS_MAX)):
        nemesis.later(at_us, "leave", host.name)
        at_us += log_uniform(nemesis.random, 200_000, 2_000_000)
        nemesis.later(at_us, "start", host.name)
        at_us += log_uniform(nemesis.random, 10_000, 2_000_000)


def stall(nemesis: Nemesis) -> None:
    """67: every member of one machine stops for one and a half time-outs, then all go on."""
    running = nemesis.running()
    if not running:
        return
    machine = pick(nemesis.random, running).machine
    there = [host for host in running if host.machine == machine]
    if len(there) == len(running) or not nemesis.is_quiet(*there):
        return
    if not nemesis.may_lose(there[0]):
        return
    span_us = nemesis.world.plan.settings.heartbeat_timeout_us * 3 // 2
    nemesis.silence(span_us, *there)
    for host in there:
        nemesis.condemn(host)
        nemesis.do("pause", host.name)
        nemesis.later(span_us, "resume", host.name)


PROCESS: tuple[Family, ...] = (
    crash,
    silent,
    pause,
    leave,
    join,
    early,
    rolling,
    blackout,
    clock,
    crowd,
    exodus,
    unsteady,
    stall,
)
