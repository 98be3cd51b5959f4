"""Harm by and to clients: floods, readers that do not read, maps destroyed while written."""

from __future__ import annotations

from whimbrel.sim.entropy import log_uniform, pick
from whimbrel.sim.faults.nemesis import Family, Nemesis

FLOOD_MAX = 400
"""Writes of one flood at most, all under way at once."""


def reader(nemesis: Nemesis) -> None:
    """16: a client does not read for a while; replies and events pile up at the member."""
    running, clients = nemesis.running(), nemesis.world.clients
    if running and clients:
        host, client = pick(nemesis.random, running), pick(nemesis.random, clients)
        span_us = log_uniform(nemesis.random, 100_000, 4_000_000)
        nemesis.do("clog", host.name, client.name, value=span_us)


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


def destroy(nemesis: Nemesis) -> None:
    """79: a structure is destroyed while it is written and moved."""
    nemesis.do("destroy")


def flood(nemesis: Nemesis) -> None:
    """82: far more writes at once than the members will take."""
    nemesis.do("flood", value=log_uniform(nemesis.random, 20, FLOOD_MAX))


LOAD: tuple[Family, ...] = (reader, apart, destroy, flood)
