"""Kinds of harm beyond a kill, a pause and a cut of two: what a family draws when it is its turn.

Each function is a family of faults of one name; the numbers in its docstring are those of the
faults in docs/simulator.md. A family draws from the nemesis's generator only, asks the budget
before it puts a copy at risk, and acts through verbs that a scenario file can hold (``deeds``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from whimbrel.sim.entropy import coin, log_uniform, pick
from whimbrel.sim.families_aimed import AIMED_FAMILIES
from whimbrel.sim.families_operator import OPERATOR_FAMILIES, is_everywhere_active
from whimbrel.sim.traps import TRAPS

if TYPE_CHECKING:
    from whimbrel.sim.host import Host
    from whimbrel.sim.nemesis import Nemesis

Pair = tuple["Host", "Host"]

FLAPS_MAX = 5
"""A flapping link goes off and on this often at most."""
FLOOD_MAX = 400
"""Writes of one flood at most, all under way at once."""
JUMP_MAX_MS = 6 * 3_600_000
"""A wall clock jumps by six hours at most."""


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
            nemesis.split_off(host)


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
        part = [host for host in running if nemesis.is_master(host)] or part
    span_us = _span_us(nemesis)
    _silence_all(nemesis, running, span_us)
    _cut_pairs(nemesis, _both(part, [host for host in running if host not in part]), span_us)


def deaf(nemesis: Nemesis) -> None:
    """10: a member hears all and is heard by none, or the reverse."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    host = pick(nemesis.random, running)
    span_us = _span_us(nemesis)
    _silence_all(nemesis, running, span_us)
    others = [other for other in running if other is not host]
    pairs = [(host, other) for other in others]
    if coin(nemesis.random, 0.5):
        pairs = [(other, host) for other in others]
    _cut_pairs(nemesis, pairs, span_us)
    nemesis.world.watch.one_way_began(host, span_us)


def one_way(nemesis: Nemesis) -> None:
    """10: as ``deaf``, for longer than such a member may stay on the others' list (L5)."""
    running = nemesis.running()
    if len(running) < 2 or not nemesis.is_quiet(*running):
        return
    host = pick(nemesis.random, running)
    span_us = nemesis.world.plan.one_way_bound_us + nemesis.long_us()
    _silence_all(nemesis, running, span_us)
    others = [other for other in nemesis.world.hosts if other is not host]
    pairs = [(host, other) for other in others]
    if coin(nemesis.random, 0.5):
        pairs = [(other, host) for other in others]
    _cut_pairs(nemesis, pairs, span_us)
    nemesis.world.watch.one_way_began(host, span_us)


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


def reader(nemesis: Nemesis) -> None:
    """16: a client does not read for a while; replies and events pile up at the member."""
    running, clients = nemesis.running(), nemesis.world.clients
    if running and clients:
        host, client = pick(nemesis.random, running), pick(nemesis.random, clients)
        span_us = log_uniform(nemesis.random, 100_000, 4_000_000)
        nemesis.do("clog", host.name, client.name, value=span_us)


def narrow(nemesis: Nemesis) -> None:
    """17: the bandwidth of a path drops: items leave one by one with a gap between them."""
    pair = nemesis.pair()
    if pair is None or not nemesis.is_quiet(*pair):
        return
    gap_us = log_uniform(nemesis.random, 200, 5_000)
    nemesis.do("narrow", pair[0].name, pair[1].name, value=gap_us)
    nemesis.later(2 * nemesis.short_us(), "narrow", pair[0].name, pair[1].name)


def apart(nemesis: Nemesis) -> None:
    """18: a client is cut from some members and not from others."""
    running, clients = nemesis.running(), nemesis.world.clients
    if not running or not clients:
        return
    client = pick(nemesis.random, clients)
    span_us = log_uniform(nemesis.random, 100_000, 6_000_000)
    for host in nemesis.random.sample(running, nemesis.random.randint(1, len(running))):
        for source, target in ((client.name, host.name), (host.name, client.name)):
            nemesis.do("cut", source, target)
            nemesis.later(span_us, "heal", source, target)


def double(nemesis: Nemesis) -> None:
    """3, 4: control messages of a path arrive twice, the second time late and out of order."""
    pair = nemesis.pair()
    if pair is not None:
        most_us = log_uniform(nemesis.random, 100, 800_000)
        nemesis.do("double", pair[0].name, pair[1].name, value=most_us)
        nemesis.later(2 * nemesis.short_us(), "double", pair[0].name, pair[1].name)


def ambush(nemesis: Nemesis) -> None:
    """22 to 25: a member dies right before or after it handles a message of a drawn kind."""
    running = [host for host in nemesis.running() if nemesis.is_quiet(host)]
    if not running:
        return
    host = pick(nemesis.random, running)
    if nemesis.may_lose(host):
        nemesis.do("ambush", host.name, value=1 + nemesis.random.randrange(2 * len(TRAPS)))
        nemesis.may_return(host)


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
    if len(data) < 2 or not is_everywhere_active(nemesis.world):
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


def destroy(nemesis: Nemesis) -> None:
    """79: a structure is destroyed while it is written and moved."""
    nemesis.do("destroy")


def flood(nemesis: Nemesis) -> None:
    """82: far more writes at once than the members will take."""
    nemesis.do("flood", value=log_uniform(nemesis.random, 20, FLOOD_MAX))


MORE_FAMILIES: dict[str, Callable[[Nemesis], None]] = {
    family.__name__: family
    for family in (
        swizzle,
        halves,
        deaf,
        one_way,
        shape,
        flap,
        reader,
        narrow,
        apart,
        double,
        ambush,
        early,
        rolling,
        blackout,
        grey,
        clock,
        crowd,
        exodus,
        unsteady,
        stall,
        destroy,
        flood,
    )
}
MORE_FAMILIES |= AIMED_FAMILIES | OPERATOR_FAMILIES
"""By name; the others are methods of the nemesis."""
