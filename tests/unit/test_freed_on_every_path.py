"""A large store is freed in pieces whichever way its fragment went (GCM-42, design 0012).

What counts as large is set to a few entries, and each way leaves more than that behind.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.engine_pump import quick_settings
from tests.unit.replication_net import COPIED_WHOLE, SECOND, Host, Net, migration
from tests.unit.split_pump import SplitPump
from tests.unit.test_replication_refill import Scene

from whimbrel.core.ids import MemberId, Namespace, PartitionId, Row
from whimbrel.core.merging.leftovers import Leftover
from whimbrel.core.messages import FragmentPart, TransferSent
from whimbrel.core.model import MigrationKind
from whimbrel.core.replication.anti_entropy import ABSENT_US
from whimbrel.core.replication.deferred_free import DeferredFree, Freeable
from whimbrel.core.replication.fragments import Fragment, PartitionReplica
from whimbrel.structures.map import store as map_store
from whimbrel.structures.map.store import GivenUp, MapStore

LARGE = 40
FEW = 10
COPY = migration(MigrationKind.COPY, "c", 5, new=1)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_store, "FREED_AT_ONCE_MAX", FEW)


def filled(row: str = "ab") -> Net:
    """Partition 0 with a map that is large, copied in chunks of a few entries."""
    net = Net("abc", msgspec.structs.replace(COPIED_WHOLE, migration_chunk_bytes_max=400))
    net.set_row(0, row, 5)
    for number in range(LARGE):
        net.put("m", number, "x")
    net.pump()
    return net


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries were given up, each time that some were."""
    sizes: list[int] = []
    take = DeferredFree.take

    def noted(self: DeferredFree, freeable: Freeable | None) -> None:
        if freeable is not None:
            sizes.append(len(freeable))
        take(self, freeable)

    monkeypatch.setattr(DeferredFree, "take", noted)
    return sizes


def passing(net: Net, kind: type, count: int) -> None:
    """Let so many messages of a type through and no more."""
    seen: list[object] = []

    def drop(_sender: MemberId, _target: MemberId, what: object) -> bool:
        if isinstance(what, kind):
            seen.append(what)
        return isinstance(what, kind) and len(seen) > count

    net.drop = drop


def hold(host: Host, pid: int) -> None:
    """A large fragment in a seat."""
    fragment = host.plane.holdings.make(PartitionId(pid), Namespace("map/b2"))
    for number in range(LARGE):
        fragment.store.put(b"%04d" % number, b"12345678", 0)  # type: ignore[attr-defined]
    host.plane.holdings.hold(host.plane.partitions[pid], fragment)


def test_what_the_primary_left_out(given: list[int]) -> None:
    """AE-17: only the primary has heard of the destruction."""
    net = filled()
    net["a"].plane.holdings.destroy(Namespace("map/m"), 1)
    given.clear()
    pruned: list[Namespace] = []
    healing = net["b"].plane.anti_entropy
    prune = healing._left_out

    def noted(partition: PartitionReplica, fragment: Fragment) -> None:
        prune(partition, fragment)
        if fragment.namespace not in partition.fragments:
            pruned.append(fragment.namespace)

    vars(healing)["_left_out"] = noted
    net.advance(3 * ABSENT_US)
    assert not net["b"].plane.partitions[0].fragments
    assert pruned == [Namespace("map/m")], "no sync was what removed it"
    assert given == [LARGE]


def test_what_a_returned_primary_had_in_its_seat(given: list[int]) -> None:
    """GCM-09: what came to be there before the refill was finished makes room for it."""
    scene = Scene()
    scene.restart("a", here="abc")
    host = scene.net["a"]
    hold(host, 0)
    scene.net.advance(2 * SECOND)
    assert len(host.fragment(0, "b2").store) == 1
    assert given == [LARGE]


def test_what_a_sync_that_was_cut_off_had_got(given: list[int]) -> None:
    """AE-16: the link breaks after some messages."""
    net = filled()
    backup = net["b"]
    passing(net, TransferSent, 3)
    backup.plane.doubts.mark_dirty(backup.fragment(0, "m"))
    net.advance(2 * SECOND)
    backup.plane.link_lost(MemberId("a"))
    assert FEW < sum(given) < LARGE
    assert len(backup.fragment(0, "m").store) == LARGE


def test_what_a_refill_that_was_cut_off_had_got(given: list[int]) -> None:
    """GCM-09: the backup is gone after some messages."""
    scene = Scene()
    settings = msgspec.structs.replace(scene.net.settings, migration_chunk_bytes_max=400)
    scene.net.settings = scene.net["b"].ctx.settings = settings
    for number in range(LARGE):
        scene.net.put("b2", number, "x")
    scene.net.pump()
    scene.restart("a", here="abc")
    passing(scene.net, TransferSent, 3)
    scene.net.advance(SECOND)
    scene.net["a"].plane.link_lost(MemberId("b"))
    assert FEW < sum(given) < LARGE


def test_what_was_left_by_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: each store that an incarnation left to the next is given back once it is merged."""
    left: list[object] = []
    released: list[object] = []
    begin, release = Leftover.__init__, MapStore.release

    def noted(self: Leftover, fragment: Fragment, row: Row) -> None:
        left.append(fragment.store)
        begin(self, fragment, row)

    def seen(self: MapStore) -> GivenUp | None:
        released.append(self)
        return release(self)

    monkeypatch.setattr(Leftover, "__init__", noted)
    monkeypatch.setattr(MapStore, "release", seen)
    pump = SplitPump(quick_settings())
    nodes = list(pump.form(4))
    client = pump.client(nodes[3])
    pump.separate(60, nodes[:3], nodes[3:])
    for number in range(20):
        pump.put(client, "m", f"k{number}", "x")
    pump.heal_and_wait()
    assert left
    assert all(any(store is one for one in released) for store in left)


@pytest.mark.parametrize("way", ["rolled back", "begun anew", "not whole", "sent again"])
def test_what_a_migration_had_brought(way: str, given: list[int]) -> None:
    """ADL-43, ADL-74: staged fragments that come to nothing."""
    net = filled("a")
    target = net["c"]
    parts = exported(net)
    target.plane.roles.begin_destination(COPY)
    target.plane.roles.ingest(COPY, parts[:-1] if way == "not whole" else parts)

    if way == "rolled back":
        target.plane.roles.rollback_destination(COPY)
    elif way == "begun anew":
        target.plane.roles.begin_destination(msgspec.structs.replace(COPY, id="another"))
    elif way == "not whole":
        net.set_row(0, "ac", 6, only="c")
    else:
        target.plane.roles.ingest(COPY, parts[:1])
    assert sum(given) > FEW


def exported(net: Net) -> list[FragmentPart]:
    """All parts of what a copy needs."""
    export, last = net["a"].plane.roles.open_export(COPY), False
    parts: list[FragmentPart] = []
    while not last:
        more, last = export.next_parts(400)
        parts += more
    return parts
