"""How the faults that a family draws are carried out; each verb may stand in a scenario file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from whimbrel.sim.stores import unsafe_because

if TYPE_CHECKING:
    from whimbrel.sim.host import Host
    from whimbrel.sim.nemesis import FaultEvent
    from whimbrel.sim.world import World


FOR_EVER_US = 1 << 62
"""Longer than any run."""
NOTICED_US = 9_000_000
"""Clients give a connection up on which nothing comes back after this span."""


def _narrow(world: World, event: FaultEvent) -> None:
    """Items of a path leave with a gap between them; 0 ends it."""
    world.network.path(event.names[0], event.names[1]).gap_us = max(1, event.value)


def _double(world: World, event: FaultEvent) -> None:
    """Control messages of a path arrive twice, the second one up to a span later; 0 ends it."""
    world.network.path(event.names[0], event.names[1]).double_us = event.value


def _ambush(world: World, event: FaultEvent) -> None:
    host = world.host_named(event.names[0])
    if host.is_up:
        world.traps.set(host, event.value)


def _salvo(world: World, event: FaultEvent) -> None:
    """Members die at one moment. If the product calls it safe, all copies are there (budget)."""
    if not unsafe_because(world):
        world.budget.safe_point(len(world.places()))
    for host in map(world.host_named, event.names):
        if host.is_up:
            world.lose_by_crash(host)


def _snare(world: World, event: FaultEvent) -> None:
    """Everybody who runs gets the same trap."""
    world.traps.set_everywhere([host for host in world.up_hosts() if host.joined], event.value)


def _freeze(world: World, event: FaultEvent) -> None:
    world.host_named(event.names[0]).wall_frozen_ms = world.host_named(event.names[0]).wall_ms()
    world.clocks_jumped()


def _jump(world: World, event: FaultEvent) -> None:
    """The wall clock goes forward; one that stood still shows the true time again."""
    host = world.host_named(event.names[0])
    world.clocks_jumped()
    host.wall_frozen_ms = None
    host.skew_ms += event.value
    world.clocks_jumped()


def _back(world: World, event: FaultEvent) -> None:
    world.host_named(event.names[0]).skew_ms -= event.value
    world.clocks_jumped()


def _destroy(world: World, event: FaultEvent) -> None:
    world.workload.destroy_scratch()


def _flood(world: World, event: FaultEvent) -> None:
    world.workload.flood(event.value)


def _promote(world: World, event: FaultEvent) -> None:
    """An operator orders a member to become a data member."""
    _order_role(world.host_named(event.names[0]), "promote")


def _demote(world: World, event: FaultEvent) -> None:
    """An operator orders a member to become lite; its copies are moved away first."""
    host = world.host_named(event.names[0])
    if host.is_up and host.joined and not host.lite:
        host.is_draining = True
        world.budget.shrunk(world.now_us, world.places())
    _order_role(host, "demote")


def _order_role(host: Host, what: str) -> None:
    if host.is_up and host.joined:
        host.order_self(what, msgspec.json.encode({"member": host.info.id}))


def _forsake(world: World, event: FaultEvent) -> None:
    """A member is left outside for ever: 1 dead, 2 stopped, 3 deaf, 4 mute (the core goes on)."""
    host = world.host_named(event.names[0])
    if not host.is_up:
        return
    world.nemesis.condemn(host)
    if event.value == 1:
        host.crash(silent=True)
        return
    host.is_outside = True
    world.network.isolated[host.name] = None
    if event.value == 2:
        host.pause()
    for name in [*(one.name for one in world.hosts), *(one.name for one in world.clients)]:
        if event.value != 4:
            world.network.cut(name, host.name)
        if event.value != 3:
            world.network.cut(host.name, name)
    for client in world.clients:
        client.machine_vanished(host, NOTICED_US)
    if event.value in (3, 4):
        world.watch.one_way_began(host, FOR_EVER_US)


def _withhold(world: World, event: FaultEvent) -> None:
    """The news are slow: control messages reach a member a span later; data frames flow."""
    world.moments.withhold(world.host_named(event.names[0]), event.value)


MORE_VERBS: dict[str, Callable[[World, FaultEvent], None]] = {
    "narrow": _narrow,
    "double": _double,
    "ambush": _ambush,
    "snare": _snare,
    "salvo": _salvo,
    "freeze": _freeze,
    "jump": _jump,
    "back": _back,
    "destroy": _destroy,
    "flood": _flood,
    "promote": _promote,
    "demote": _demote,
    "forsake": _forsake,
    "withhold": _withhold,
}
