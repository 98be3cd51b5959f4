"""A net of replicas some of which are away: they leave a stable cluster, or keep their seats, and
return with what their files had.

What the membership and migration rooms do is played; who is away, and what follows, is real.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from tests.unit.replication_net import SECOND, SETTINGS, Net, key, map_of, migration

from whimbrel.core.ids import MemberId, PartitionId, Row
from whimbrel.core.model import ClusterState, MemberList, MigrationInfo, MigrationKind, StableMark
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.replication.key_log import KeyLog
from whimbrel.core.settings import ComparisonBounds, CoreSettings, PersistenceSettings
from whimbrel.structures.map.record import stored_key
from whimbrel.structures.map.store import MapStore

TAILED = msgspec.structs.replace(SETTINGS, persistence=PersistenceSettings(enabled=True))
KEPT = msgspec.structs.replace(TAILED, comparison=ComparisonBounds(tail_bytes_max=0))
"""A log begins with the moment at which somebody leaves, and does not go back further."""
STABLE, FROZEN = ClusterState.STABLE_CLUSTER, ClusterState.FROZEN
MAP = "b2"
"""Its two backups are b and c."""
P0 = PartitionId(0)
BACK = migration(MigrationKind.COPY, "c", 8, new=2)


def settings_with(**bounds: int) -> CoreSettings:
    bounds = {"tail_bytes_max": 0, **bounds}
    return msgspec.structs.replace(KEPT, comparison=ComparisonBounds(**bounds))


def three(entries: int = 100, settings: CoreSettings = KEPT, names: str = "abc") -> Net:
    """Members with the map in partition 0, in the row of their names, which is the stable one."""
    net = Net(names, settings)
    list_members(net, names, STABLE)
    net.set_row(0, names, 4)
    for number in range(entries):
        net.put(MAP, number, f"first {number}")
    net.pump()
    net.advance(2 * SECOND)
    net.log.clear()
    return net


def list_members(net: Net, names: str, state: ClusterState) -> None:
    """A member list with these members; all others of the stable row may return."""
    net._version += 1
    infos = {name: host.info for name, host in net.by_id.items()}
    before = next(host.ctx.members for name, host in net.by_id.items() if name in names)
    away = [name for name in infos if name not in names or before.is_missing(MemberId(name))]
    missing = tuple(infos[name] for name in away)
    stable = tuple(MemberId(name) for name in infos)
    members = tuple(infos[MemberId(name)] for name in names)
    mark = StableMark(1, 1) if state is STABLE else None
    new = MemberList(net._version, members, state=state, missing=missing, stable=mark)
    for name in names:
        host = net[name]

        def awaits(pid: PartitionId, row: Row, host: Any = host) -> bool:
            return pid == 0 and any(one not in row or not host.ctx.is_member(one) for one in stable)

        host.begin()
        host.plane.holdings.key_logs.awaits = awaits
        net.install(host, new)
        host.plane.holdings.key_logs.look_at_all()


def copy_of(store: MapStore) -> MapStore:
    """The same content, locks and all."""
    copy, cursor, last = MapStore(), store.open_cursor(), False
    while not last:
        data, _, last = store.export(cursor, 1_000_000)
        copy.ingest(data)
    return copy


def set_row(net: Net, row: str, version: int, only: str = "") -> None:
    """The same with what follows from it in a whole member."""
    net.set_row(0, row, version, only or row.replace("-", ""))
    for name in only or row.replace("-", ""):
        net[name].plane.holdings.key_logs.look_at([P0])


def leave(net: Net, name: str, stay: str, row: str, version: int) -> Fragment:
    """A member leaves the stable cluster with what it has; that is its base when it returns."""
    host = net[name]
    partition = host.plane.partitions[0]
    base = partition.fragments[map_of(MAP)]
    host.alive = False
    list_members(net, stay, STABLE)
    set_row(net, row, version, stay)
    return base


def come_back(net: Net, name: str, names: str, base: Fragment) -> None:
    """It is on the list again, holds nothing, and keeps what it had."""
    host = net.restart(name, 7_000 + net._version)
    kept = host.plane.holdings.make_as(
        P0, base.namespace, (base.sync_count, base.async_count), base.generation
    )
    kept.store = copy_of(cast("MapStore", base.store))
    kept.install(base.vector(), base.slot + 1)
    kept.is_dirty = base.is_dirty
    host.plane.holdings.kept.keep(kept)
    list_members(net, names, STABLE)


def copy_back(
    net: Net, step: MigrationInfo = BACK, row: str = "abc", source: str = "a", chunk: int = 4_000
) -> dict[str, int]:
    """Copy, commit; what the source has counted of it."""
    figures = net[source].plane.holdings.copies
    before = dict(figures)
    net.migrate(step, source, chunk)
    set_row(net, row, step.initial_version + step.step.increment)
    net[source].plane.roles.end_source(P0)
    net.pump()
    return {name: count - before[name] for name, count in figures.items() if count != before[name]}


def log_of(net: Net, name: str, of: str = MAP) -> KeyLog:
    found = net[name].fragment(0, of).key_log
    assert found is not None
    return found


def keys_of(net: Net, name: str) -> set[bytes]:
    return set(log_of(net, name).keys)


def stored(number: int) -> bytes:
    return stored_key(key(number))


def store_of(net: Net, name: str, of: str = MAP) -> MapStore:
    return cast("MapStore", net[name].fragment(0, of).store)


def change(net: Net, operation: bytes, at: str = "a") -> None:
    """Count and send an operation that was carried out on the primary's store."""
    host = net[at]
    host.begin()
    host.plane.holdings.change(host.plane.partitions[0], host.fragment(0, MAP), operation, None)


def remove(net: Net, *numbers: int, at: str = "a") -> None:
    for number in numbers:
        change(net, store_of(net, at).remove(stored(number))[1], at)


def frozen() -> tuple[Net, Fragment]:
    """The backup b is away in FROZEN, and keeps its seat."""
    net = Net("ab", KEPT)
    list_members(net, "ab", FROZEN)
    net.set_row(0, "ab", 4)
    for number in range(100):
        net.put("m", number, f"first {number}")
    net.pump()
    net.advance(2 * SECOND)
    base = net["b"].fragment(0, "m")
    net["b"].alive = False
    list_members(net, "a", FROZEN)
    net.log.clear()
    return net, base


def return_to_seat(net: Net, base: Fragment) -> None:
    """It is in its seat again, with what its files had."""
    host = net.restart("b", 7_777)
    list_members(net, "ab", FROZEN)
    net["a"].begin()
    net["a"].plane.outgoing.refresh_targets(net["a"].plane.partitions[0])
    host.begin()
    held = host.plane.holdings.make_as(P0, base.namespace, (1, 0), base.generation)
    held.store = copy_of(cast("MapStore", base.store))
    held.apply = held.store.apply
    held.install(base.vector(), 1)
    host.plane.partitions[0].fragments[base.namespace] = held
    net.set_row(0, "ab", 4, "b")
