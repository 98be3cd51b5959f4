"""How faults are carried out; each verb may stand in a scenario file."""

from __future__ import annotations

import random

import msgspec

from whimbrel.core.model import CLUSTER_VERSION
from whimbrel.sim.disk import Fault
from whimbrel.sim.entropy import coin
from whimbrel.sim.faults.event import FaultEvent
from whimbrel.sim.faults.nemesis import Action, Nemesis
from whimbrel.sim.host import Host
from whimbrel.sim.persisted import rot_somewhere
from whimbrel.sim.safety.words import unsafe_because
from whimbrel.structures.map.store import MapStore

FOR_EVER_US = 1 << 62
"""Longer than any run."""
FORGOTTEN_SHARE = 0.2
"""Of the entries of a backup that has lost some."""
NOTICED_US = 9_000_000
"""Clients give a connection up on which nothing comes back after this span."""


def crash(nemesis: Nemesis, event: FaultEvent) -> None:
    """The process dies, or the whole machine without a word (``silent``)."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if host.is_up:
        world.lose_by_crash(host, silent=event.verb == "silent")


def start(nemesis: Nemesis, event: FaultEvent) -> None:
    """A process starts at a place where none runs."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if not host.is_up and not host.is_outside:
        world.break_links_to(host, notice=True)
        world.start(host)


def joins(nemesis: Nemesis, event: FaultEvent) -> None:
    """From its next start the first place is configured with the addresses of the others."""
    host, *others = [nemesis.world.host_named(name) for name in event.names]
    host.joins = tuple(other.address for other in others)


def pause(nemesis: Nemesis, event: FaultEvent) -> None:
    """The process stops."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    nemesis.paused_us.setdefault(host.name, world.now_us)
    host.pause()


def resume(nemesis: Nemesis, event: FaultEvent) -> None:
    """It goes on; after a time-out the cluster has gone on without it."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    span_us = world.now_us - nemesis.paused_us.pop(host.name, world.now_us)
    is_long = span_us >= world.plan.settings.heartbeat_timeout_us
    if is_long and host.is_paused and not host.is_condemned:
        nemesis.condemn(host)
    host.resume()


def leave(nemesis: Nemesis, event: FaultEvent) -> None:
    """The member is asked to leave gracefully."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if host.is_up and not host.lite:  # first: the master may act on it in this very step
        world.budget.shrunk(world.now_us, world.places(without=host))
    host.leave()


def state(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator wishes a cluster state, by way of the member that started first."""
    world = nemesis.world
    for host in world.up_hosts():
        if host.joined and not host.is_paused:
            wish = {"wish": f"sim {world.now_us}", "state": event.names[0]}
            host.order("change_cluster", msgspec.json.encode(wish))
            return


def upgrade(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator asks one member for cluster version 4.1; refused orders are given again."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if host.is_up and host.joined:
        wish = {"wish": f"sim {world.now_us}", "cluster_version": CLUSTER_VERSION}
        host.order("change_cluster", msgspec.json.encode(wish))


def cut(nemesis: Nemesis, event: FaultEvent) -> None:
    """Nothing gets through in one direction, until ``heal``."""
    nemesis.world.network.cut(event.names[0], event.names[1])


def heal(nemesis: Nemesis, event: FaultEvent) -> None:
    """What was held back by a cut arrives."""
    nemesis.world.network.heal(event.names[0], event.names[1])


def clog(nemesis: Nemesis, event: FaultEvent) -> None:
    """One direction is held back for a span."""
    nemesis.world.network.clog(event.names[0], event.names[1], event.value)


def slow(nemesis: Nemesis, event: FaultEvent) -> None:
    """One direction is so many times slower; 0 ends it."""
    nemesis.world.network.path(event.names[0], event.names[1]).slow_factor = max(1, event.value)


def calm(nemesis: Nemesis, _event: FaultEvent) -> None:
    """All paths are as before."""
    nemesis.world.network.heal_all()


def reset(nemesis: Nemesis, event: FaultEvent) -> None:
    """The connections from one to the other break."""
    world = nemesis.world
    one, two = event.names
    target = world.host_named(two)
    for client in world.clients:
        if client.name == one:
            client.break_connection(target)
            return
    source = world.host_named(one)
    for link in source.links.values():
        if link.target is target and link.target_incarnation == target.incarnation:
            link.break_now(world.network.draw_delay_us(world.network.path(two, one)))


def narrow(nemesis: Nemesis, event: FaultEvent) -> None:
    """Items of a path leave with a gap between them; 0 ends it."""
    nemesis.world.network.path(event.names[0], event.names[1]).gap_us = max(1, event.value)


def double(nemesis: Nemesis, event: FaultEvent) -> None:
    """Control messages of a path arrive twice, the second one up to a span later; 0 ends it."""
    nemesis.world.network.path(event.names[0], event.names[1]).double_us = event.value


def ambush(nemesis: Nemesis, event: FaultEvent) -> None:
    """A crash point is set for one member."""
    host = nemesis.world.host_named(event.names[0])
    if host.is_up:
        nemesis.crash_points.set(host, event.value)


def backup(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator orders a backup of this name at the first member that serves."""
    for host in nemesis.world.up_hosts():
        if host.joined and not host.is_paused:
            order = {"what": "create", "id": event.names[0]}
            host.order("backup.start", msgspec.json.encode(order))
            return


def outage(nemesis: Nemesis, event: FaultEvent) -> None:
    """Everybody dies at one moment: all processes, or all machines by a loss of power (1)."""
    nemesis.world.lose_all(power=event.value == 1)


def shutdown(nemesis: Nemesis, event: FaultEvent) -> None:
    """Everybody is asked to leave at one moment."""
    nemesis.world.shut_down()


def rot(nemesis: Nemesis, event: FaultEvent) -> None:
    """A bit on the disk of a place changes while nobody runs there; the number draws which."""
    host = nemesis.world.host_named(event.names[0])
    file = "" if host.is_up else rot_somewhere(host.disk, random.Random(event.value))
    if file:
        nemesis.supervisor.rotten(host)
        nemesis.world.tell("rotten", host, file)


def drag(nemesis: Nemesis, event: FaultEvent) -> None:
    """The disk of a place takes up to half a second for each work, until ``mend``."""
    nemesis.world.host_named(event.names[0]).disk.is_slow = True


def fill(nemesis: Nemesis, event: FaultEvent) -> None:
    """The disk of a place has room for so many bytes more, until ``mend``."""
    disk = nemesis.world.host_named(event.names[0]).disk
    disk.bytes_max = disk.used_bytes + event.value


def close(nemesis: Nemesis, event: FaultEvent) -> None:
    """The disk of a place can be read only, until ``mend``."""
    nemesis.world.host_named(event.names[0]).disk.is_read_only = True


def unsync(nemesis: Nemesis, event: FaultEvent) -> None:
    """The next sync of a place's disk fails, which is final for the member there (S5)."""
    nemesis.world.host_named(event.names[0]).disk.arm(Fault.SYNC_ERROR)


def mend(nemesis: Nemesis, event: FaultEvent) -> None:
    """A disk is what it was."""
    nemesis.world.host_named(event.names[0]).disk.mend()


def salvo(nemesis: Nemesis, event: FaultEvent) -> None:
    """Members die at one moment. If the product calls it safe, all copies are there (budget)."""
    world = nemesis.world
    if not unsafe_because(world):
        world.budget.safe_point(len(world.places()))
    for host in map(world.host_named, event.names):
        if host.is_up:
            world.lose_by_crash(host)


def snare(nemesis: Nemesis, event: FaultEvent) -> None:
    """Everybody who runs gets the same crash point."""
    nemesis.crash_points.set_everywhere(
        [host for host in nemesis.world.up_hosts() if host.joined], event.value
    )


def freeze(nemesis: Nemesis, event: FaultEvent) -> None:
    """The wall clock stands still."""
    world = nemesis.world
    world.host_named(event.names[0]).wall_frozen_ms = world.host_named(event.names[0]).wall_ms()
    world.clocks_jumped()


def jump(nemesis: Nemesis, event: FaultEvent) -> None:
    """The wall clock goes forward; one that stood still shows the true time again."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    world.clocks_jumped()
    host.wall_frozen_ms = None
    host.skew_ms += event.value
    world.clocks_jumped()


def back(nemesis: Nemesis, event: FaultEvent) -> None:
    """The wall clock goes back."""
    world = nemesis.world
    world.host_named(event.names[0]).skew_ms -= event.value
    world.clocks_jumped()


def destroy(nemesis: Nemesis, event: FaultEvent) -> None:
    """A structure is written and destroyed a moment later."""
    nemesis.workload.destroy()


def forget(nemesis: Nemesis, event: FaultEvent) -> None:
    """Backups at a place lack some entries, as if operations were lost, and doubt what they hold.

    The number draws which.
    """
    host = nemesis.world.host_named(event.names[0])
    if not host.is_up:
        return
    generator = random.Random(event.value)
    plane = host.member.dataplane
    for partition in plane.partitions:
        for fragment in partition.fragments.values() if partition.index > 0 else ():
            store = fragment.store
            if isinstance(store, MapStore):
                for key in [key for key in store.records if coin(generator, FORGOTTEN_SHARE)]:
                    store.remove(key)
            plane.doubts.mark_dirty(fragment)


def flood(nemesis: Nemesis, event: FaultEvent) -> None:
    """So many writes begin at once."""
    nemesis.workload.flood(event.value)


def promote(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator orders a member to become a data member."""
    _order_role(nemesis.world.host_named(event.names[0]), "promote")


def demote(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator orders a member to become lite; its copies are moved away first."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if host.is_up and host.joined and not host.lite:
        host.is_draining = True
        world.budget.shrunk(world.now_us, world.places())
    _order_role(host, "demote")


def _order_role(host: Host, what: str) -> None:
    if host.is_up and host.joined:
        host.order(what, msgspec.json.encode({"member": host.info.id}), host.info.id)


def audit(nemesis: Nemesis, event: FaultEvent) -> None:
    """An operator has a member audit all replicas, and (1) repair what differs."""
    host = nemesis.world.host_named(event.names[0])
    if host.is_up and host.joined:
        order = msgspec.json.encode({"repair": event.value == 1})
        host.order("audit.start", order, host.info.id)


def forsake(nemesis: Nemesis, event: FaultEvent) -> None:
    """A member is left outside for ever: 1 dead, 2 stopped, 3 deaf, 4 mute (the core goes on)."""
    world = nemesis.world
    host = world.host_named(event.names[0])
    if not host.is_up:
        return
    nemesis.condemn(host)
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
        world.tell("one_way", host, FOR_EVER_US)


def withhold(nemesis: Nemesis, event: FaultEvent) -> None:
    """The news are slow: control messages reach a member a span later; data frames flow."""
    nemesis.triggers.withhold(nemesis.world.host_named(event.names[0]), event.value)


ACTIONS: dict[str, Action] = {
    "silent": crash,
    "crash": crash,
    "start": start,
    "joins": joins,
    "pause": pause,
    "resume": resume,
    "leave": leave,
    "state": state,
    "upgrade": upgrade,
    "cut": cut,
    "heal": heal,
    "clog": clog,
    "slow": slow,
    "calm": calm,
    "reset": reset,
    "narrow": narrow,
    "double": double,
    "ambush": ambush,
    "backup": backup,
    "outage": outage,
    "shutdown": shutdown,
    "rot": rot,
    "drag": drag,
    "fill": fill,
    "close": close,
    "unsync": unsync,
    "mend": mend,
    "salvo": salvo,
    "snare": snare,
    "freeze": freeze,
    "jump": jump,
    "back": back,
    "destroy": destroy,
    "flood": flood,
    "forget": forget,
    "promote": promote,
    "demote": demote,
    "audit": audit,
    "forsake": forsake,
    "withhold": withhold,
}
"""By the verb."""
