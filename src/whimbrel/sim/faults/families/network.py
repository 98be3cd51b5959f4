"""Harm to paths: cuts, clogs, resets and slowness between members, in all shapes."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis
from whimbrel.sim.host import Host

Pair = tuple[Host, Host]

FLAPS_MAX = 5
"""A flapping link goes off and on this often at most."""


def _cut_pairs(nemesis: Nemesis, pairs: Iterable[Pair], span_us: int) -> None:
    """Cut these directions and heal each after the span."""
    for source, target in pairs:
        nemesis.do("cut", source.name, target.name)
        nemesis.later(span_us, "heal", source.name, target.name)


def _both(ones: Iterable[Host], others: list[Host]) -> list[Pair]:
    pairs = [(one, other) for one in ones for other in others if one is not other]
    return pairs + [(other, one) for one, other in pairs]


def _span_us(nemesis: Nemesis) -> int:
    """A short silence; where clusters may split, by a coin one that outlasts the time-out."""
    is_long = nemesis.world.plan.profile.split and coin(nemesis.random, 0.4)
    return nemesis.long_us() if is_long else nemesis.short_us()


def _silence_all(nemesis: Nemesis, hosts: list[Host], span_us: int) -> None:
    nemesis.silence(span_us, *hosts)
    if span_us >= nemesis.world.plan.settings.heartbeat_timeout_us:
        for host in hosts:
            host.condemn()


def cut(nemesis: Nemesis) -> None:
    """5, 10: one direction between two members is silent for a while."""
    if nemesis.world.plan.profile.split and coin(nemesis.random, 0.6):
        _split(nemesis)
        return
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    span_us = nemesis.short_us()
    nemesis.silence(span_us, *pair)
    nemesis.do("cut", pair[0].name, pair[1].name)
    nemesis.later(span_us, "heal", pair[0].name, pair[1].name)


def _split(nemesis: Nemesis) -> None:
    """Cut a random part off for longer than the timeout, by a coin in one direction only."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    part = nemesis.random.sample(running, nemesis.random.randint(1, len(running) // 2))
    rest = [host for host in running if host not in part]
    span_us = nemesis.long_us()
    nemesis.silence(span_us, *running)
    is_one_way = coin(nemesis.random, 0.4)
    for inside in part:
        inside.condemn()
        for outside in rest:
            nemesis.do("cut", inside.name, outside.name)
            nemesis.later(span_us, "heal", inside.name, outside.name)
            if not is_one_way:
                nemesis.do("cut", outside.name, inside.name)
                nemesis.later(span_us, "heal", outside.name, inside.name)


def clog(nemesis: Nemesis) -> None:
    """5: what goes in one direction between two members waits for a while."""
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    span_us = nemesis.short_us()
    nemesis.silence(span_us, *pair)
    nemesis.slow_pairs = [pair, *nemesis.slow_pairs[:3]]
    nemesis.do("clog", pair[0].name, pair[1].name, value=span_us)


def reset(nemesis: Nemesis) -> None:
    """14: a connection breaks, best one with much in flight."""
    pair = nemesis.pair()
    clients = nemesis.world.clients
    if clients and coin(nemesis.random, 0.3):
        running = nemesis.running()
        if running:
            client, host = pick(nemesis.random, clients), pick(nemesis.random, running)
            nemesis.do("reset", client.name, host.name)
        return
    if nemesis.slow_pairs and coin(nemesis.random, 0.5):
        pair = pick(nemesis.random, nemesis.slow_pairs)
    if pair is not None:
        nemesis.do("reset", pair[0].name, pair[1].name)


def slow(nemesis: Nemesis) -> None:
    """31: one direction between two members is several times slower."""
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    span_us = 10 * nemesis.short_us()
    nemesis.do("slow", pair[0].name, pair[1].name, value=pick(nemesis.random, (2, 5, 10)))
    nemesis.later(span_us, "slow", pair[0].name, pair[1].name)


def swizzle(nemesis: Nemesis) -> None:
    """6: the links of a random part are clogged one after the other, let go in another order."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    count = nemesis.random.randint(1, len(running) - 1)
    part = nemesis.random.sample(running, count)
    most_us = nemesis.short_us()
    nemesis.silence(most_us, *running)
    for source, target in _both(part, running):
        start_us = nemesis.random.randrange(1 + most_us // 2)
        end_us = nemesis.random.randrange(start_us, most_us + 1)
        nemesis.later(start_us, "cut", source.name, target.name)
        nemesis.later(end_us + 1, "heal", source.name, target.name)


def halves(nemesis: Nemesis) -> None:
    """7, 8, 9: a two-way partition: random halves, one member alone, or the master alone."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    kind = nemesis.random.randrange(3)
    part = [running[0]]
    if kind == 0:
        part = nemesis.random.sample(running, len(running) // 2)
    elif kind == 1:
        part = [pick(nemesis.random, running)]
    else:
        part = [host for host in running if host.is_master] or part
    span_us = _span_us(nemesis)
    _silence_all(nemesis, running, span_us)
    _cut_pairs(nemesis, _both(part, [host for host in running if host not in part]), span_us)


def deaf(nemesis: Nemesis) -> None:
    """10: a member hears all and is heard by none, or the reverse."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    host = pick(nemesis.random, running)
    _deafen(nemesis, host, running, running, _span_us(nemesis))


def one_way(nemesis: Nemesis) -> None:
    """10: as ``deaf``, for longer than such a member may stay on the others' list (L5)."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    host = pick(nemesis.random, running)
    span_us = nemesis.world.plan.one_way_bound_us + nemesis.long_us()
    _deafen(nemesis, host, running, nemesis.world.hosts, span_us)


def _deafen(
    nemesis: Nemesis, host: Host, running: list[Host], others: list[Host], span_us: int
) -> None:
    """By a coin let nothing reach the others, or nothing of theirs reach the host."""
    _silence_all(nemesis, running, span_us)
    pairs = [(host, other) for other in others if other is not host]
    if coin(nemesis.random, 0.5):
        pairs = [(other, source) for source, other in pairs]
    _cut_pairs(nemesis, pairs, span_us)
    nemesis.world.tell("one_way", host, span_us)


def shape(nemesis: Nemesis) -> None:
    """11, 12: two halves joined by one member, or a ring in which each sees its neighbours."""
    running = nemesis.running()
    if len(running) < 3 or not nemesis.is_quiet(*running):
        return
    order = nemesis.random.sample(running, len(running))
    span_us = _span_us(nemesis)
    _silence_all(nemesis, running, span_us)
    if coin(nemesis.random, 0.5):
        middle = len(order) // 2
        _cut_pairs(nemesis, _both(order[:middle], order[middle + 1 :]), span_us)
        return
    count = len(order)
    far = [
        (order[one], order[two])
        for one in range(count)
        for two in range(count)
        if (one - two) % count not in (0, 1, count - 1)
    ]
    _cut_pairs(nemesis, far, span_us)


def flap(nemesis: Nemesis) -> None:
    """13: a link goes off and on several times, each time shorter than the time-out allows."""
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    heard_us = 3 * nemesis.world.plan.settings.heartbeat_interval_us
    at_us = 1
    for _ in range(nemesis.random.randint(2, FLAPS_MAX)):
        off_us = nemesis.short_us()
        for source, target in (pair, pair[::-1]):
            nemesis.later(at_us, "cut", source.name, target.name)
            nemesis.later(at_us + off_us, "heal", source.name, target.name)
        at_us += off_us + heard_us
    nemesis.silence(at_us, *pair)


def narrow(nemesis: Nemesis) -> None:
    """17: the bandwidth of a path drops: items leave one by one with a gap between them."""
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    gap_us = log_uniform(nemesis.random, 200, 5_000)
    nemesis.do("narrow", pair[0].name, pair[1].name, value=gap_us)
    nemesis.later(2 * nemesis.short_us(), "narrow", pair[0].name, pair[1].name)


def double(nemesis: Nemesis) -> None:
    """3, 4: control messages of a path arrive twice, the second time late and out of order."""
    pair = nemesis.pair()
    if pair is not None:
        most_us = log_uniform(nemesis.random, 100, 800_000)
        nemesis.do("double", pair[0].name, pair[1].name, value=most_us)
        nemesis.later(2 * nemesis.short_us(), "double", pair[0].name, pair[1].name)


def grey(nemesis: Nemesis) -> None:
    """31: everything to and from one member is many times slower than before."""
    running = nemesis.running()
    if len(running) < 2:
        return
    host = pick(nemesis.random, running)
    if not nemesis.is_quiet(host):
        return
    network = nemesis.world.plan.network
    usual_us = network.delay_us + 6 * network.tail_us
    if network.spike_probability:
        usual_us += 4 * network.spike_us
    most = nemesis.world.plan.settings.heartbeat_timeout_us // (5 * usual_us)
    if most < 2:
        return
    factor = min(100, most)
    span_us = 4 * nemesis.short_us()
    nemesis.silence(span_us, host)
    for source, target in _both([host], running):
        nemesis.do("slow", source.name, target.name, value=factor)
        nemesis.later(span_us, "slow", source.name, target.name)


NETWORK: tuple[Family, ...] = (
    cut,
    clog,
    reset,
    slow,
    swizzle,
    halves,
    deaf,
    one_way,
    shape,
    flap,
    narrow,
    double,
    grey,
)
