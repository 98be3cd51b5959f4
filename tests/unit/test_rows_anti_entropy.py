"""Goal: anti-entropy touches what is inconsistent and nothing else; namespaces are plain values."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.replication_net import (
    COPIED_WHOLE,
    SECOND,
    SETTINGS,
    Host,
    M,
    Net,
    key,
    map_of,
    migration,
    value,
)

from whimbrel.core.ids import MemberId, Namespace, PartitionId, ReplicaIndex, split_namespace
from whimbrel.core.messages import SyncRequested, TransferSent, VersionsTold
from whimbrel.core.model import MigrationKind
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import ProtocolError, SerializationError
from whimbrel.structures.map.service import EVICTED
from whimbrel.wire.links import decode_message, encode_message

QUICK = msgspec.structs.replace(SETTINGS, backup_sync_interval_us=4 * SECOND)


def two(settings: CoreSettings = QUICK) -> Net:
    """Members a and b, partition 0 on both, nothing under way."""
    net = Net("ab", settings)
    net.set_row(0, "ab", 2)
    net.pump()
    return net


def lose(net: Net, name: str, number: int = 7) -> None:
    """A backup operation disappears: the primary counts it, nobody gets it."""
    fragment = net["a"].fragment(0, name)
    targets, fragment.sync_targets = fragment.sync_targets, ()
    net.put(name, number, "lost by the backup")
    fragment.sync_targets = targets


def syncs(net: Net) -> list[SyncRequested]:
    """Sync requests so far that name something."""
    return [m for _, _, m in net.log if isinstance(m, SyncRequested) and m.namespaces]


def test_the_next_operation_is_applied_and_the_replica_stays_clean() -> None:
    """AE-05: received = own + 1: applied, vector set, not dirty, no request (R1)."""
    net = two()
    net.put("m", 1, "first")
    net.pump()
    backup = net["b"].fragment(0, "m")
    assert backup.value == 1
    net.put("m", 1, "second")
    net.pump()
    assert net["b"].content(0, "m") == {key(1): value("second")}
    assert backup.value == 2 and not backup.is_dirty
    net.advance(3 * SECOND)
    assert not syncs(net) and net["b"].plane.unsettled() == 0


def test_an_operation_that_fails_does_not_advance_the_vector() -> None:
    """AE-05, bug 31: a damaged operation is not counted and its frame is not acknowledged."""
    net = two()
    net.put("m", 1, "first")
    net.pump()
    net.put("m", 2, "second")
    ((_, payload),) = net["a"].plane.outgoing.take_backups()
    backup = net["b"].plane.incoming
    with pytest.raises(ProtocolError):
        backup.apply_backups(MemberId("a"), payload[:-3])
    assert net["b"].fragment(0, "m").value == 1 and not backup.take_acks()
    assert net["b"].content(0, "m") == {key(1): value("first")}
    backup.apply_backups(MemberId("a"), payload)
    assert net["b"].fragment(0, "m").value == 2 and backup.take_acks()


def test_a_sync_moves_one_of_many_maps() -> None:
    """AE-20, AE-29, AE-32, AE-40: ten equal maps, one is stale: a tenth of the bytes travels, and
    the other nine are the very same objects afterwards.
    """
    net = two(msgspec.structs.replace(COPIED_WHOLE, backup_sync_interval_us=4 * SECOND))
    names = [f"map{number}" for number in range(10)]
    for name in names:
        for number in range(40):
            net.put(name, number, f"{name} {number} {'x' * 60}")
    net.pump()
    net.advance(2 * SECOND)
    whole = sum(len(k) + len(v) for name in names for k, v in net["a"].content(0, name).items())
    before = {name: net["b"].fragment(0, name) for name in names}
    lose(net, "map3")
    net.advance(8 * SECOND)
    (request,) = syncs(net)
    assert request.namespaces == ("map/map3",)
    moved = sum(len(p.data) for _, _, m in net.log if isinstance(m, TransferSent) for p in m.parts)
    assert 0.8 * whole / 10 < moved < 1.5 * whole / 10
    for name in names:
        assert (net["b"].fragment(0, name) is before[name]) == (name != "map3")
        net.check_equal(0, "ab", name)


@pytest.mark.parametrize(("chunk", "messages"), [(200, 5), (1_000_000, 1)])
def test_an_answer_in_one_message_or_in_several(chunk: int, messages: int) -> None:
    """AE-23, AE-14: the primary chooses; the backup takes both; one message is in flight."""
    net = two(msgspec.structs.replace(QUICK, migration_chunk_bytes_max=chunk))
    for name in ("m", "n"):
        for number in range(20):
            net.put(name, number, "x" * 20)
    net.pump()
    net.advance(2 * SECOND)
    lose(net, "m")
    lose(net, "n")
    net.advance(8 * SECOND)
    sent = [m for _, _, m in net.log if isinstance(m, TransferSent)]
    assert len(sent) == 1 if messages == 1 else len(sent) >= messages
    assert [m.sequence for m in sent] == list(range(1, len(sent) + 1))
    for name in ("m", "n"):
        net.check_equal(0, "ab", name)
    assert net["b"].plane.unsettled() == 0


def test_a_namespace_is_a_value() -> None:
    """AE-25, AE-38: service and object name it; equal ones are one key; the wire keeps it."""
    one, same, other = Namespace("map/m"), Namespace("map/" + "m"), Namespace("map/n")
    assert one == same and len({one: 1, same: 2, other: 3}) == 2
    fragment = two()["a"].plane.holdings.make(PartitionId(0), one)
    assert fragment.namespace == one and split_namespace(one) == ("map", "m")
    request = SyncRequested(1, PartitionId(0), 2, ReplicaIndex(1), (one, other))
    assert decode_message(encode_message(request, "a-1")) == ("a-1", request)


def test_whether_a_namespace_is_known() -> None:
    """AE-28: own: yes; a foreign service's: refused, from a sync as well; destroyed: pruned."""
    net = two()
    net.put("m", 1, "x")
    net.pump()
    net.advance(5 * SECOND)
    plane = net["b"].plane
    assert plane.holdings.make(PartitionId(0), map_of("any")).namespace == map_of("any")
    with pytest.raises(SerializationError, match="queue/q"):
        plane.holdings.make(PartitionId(0), Namespace("queue/q"))
    told = [m for _, _, m in net.log if isinstance(m, VersionsTold)]
    replica = [one for m in told for one in m.replicas if one.partition_id == 0][-1]
    vector = net["a"].fragment(0, "m").vector()
    strange = msgspec.structs.replace(
        replica, vectors={Namespace("map/m"): vector, Namespace("queue/q"): vector}
    )
    plane.on_message(MemberId("a"), VersionsTold((strange,)))
    assert list(plane.partitions[0].fragments) == ["map/m"]
    net["a"].plane.holdings.destroy(Namespace("map/m"), 1)
    net.advance(12 * SECOND)
    assert not plane.partitions[0].fragments


@pytest.mark.parametrize(("new", "travel"), [(0, ["b0", "m", "b2"]), (1, ["m", "b2"]), (2, ["b2"])])
def test_the_namespaces_of_a_replica_index(new: int, travel: list[str]) -> None:
    """AE-27, GCM-33: maps of 0, 1 and 2 backups: an index gets those that reach it, and only
    those; index 2 gets the last one.
    """
    net = Net("abcd")
    net.set_row(0, "ab", 2)
    for name in ("b0", "m", "b2"):
        net.put(name, 1, "x")
    net.pump()
    export = net["a"].plane.roles.open_export(migration(MigrationKind.COPY, "c", 2, new=new))
    parts, last = export.next_parts(1_000_000)
    assert last and [part.namespace for part in parts] == [f"map/{name}" for name in travel]


CHANGES: dict[str, Callable[[Host], object]] = {
    "put": lambda host: host.maps.put(host.plane.partitions[0], M, key(1), value("new"), None),
    "set": lambda host: host.maps.set(host.plane.partitions[0], M, key(1), value("new"), None),
    "put_if_absent": lambda host: host.maps.put_if_absent(
        host.plane.partitions[0], M, key(5), value("new"), None
    ),
    "replace": lambda host: host.maps.replace(
        host.plane.partitions[0], M, key(1), value("y"), None
    ),
    "remove": lambda host: host.maps.remove(host.plane.partitions[0], M, key(1), None),
    "evict": lambda host: host.maps.remove(host.plane.partitions[0], M, key(1), None, EVICTED),
    "set_ttl": lambda host: host.maps.set_ttl(host.plane.partitions[0], M, key(1), 60_000, None),
    "put_all": lambda host: host.maps.put_all(
        host.plane.partitions[0], M, [(key(8), value("8"))], None
    ),
    "clear": lambda host: host.maps.clear(host.plane.partitions[0], M, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_operation_and_its_backup_name_the_same_namespace(name: str) -> None:
    """AE-31, AE-33: every kind of change counts and applies in its own map, at both members."""
    net = two()
    for map_name in ("m", "n"):
        net.put(map_name, 1, "old")
    net.pump()
    counts = {one: net["a"].fragment(0, one).value for one in ("m", "n")}
    CHANGES[name](net["a"])
    net.pump()
    assert net["a"].fragment(0, "m").value > counts["m"]
    assert net["a"].fragment(0, "n").value == counts["n"]
    for map_name in ("m", "n"):
        net.check_equal(0, "ab", map_name)
    net.advance(2 * SECOND)
    assert not syncs(net) and net["b"].plane.unsettled() == 0


def test_the_first_operation_on_a_map_carries_its_namespace() -> None:
    """AE-33: the map exists nowhere before; afterwards at primary and backup, counted once."""
    net = two()
    net.put("fresh", 1, "x")
    net.pump()
    for name in "ab":
        assert net[name].fragment(0, "fresh").value == 1
    net.check_equal(0, "ab", "fresh")
