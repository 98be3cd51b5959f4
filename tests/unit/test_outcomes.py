"""What each error says about the effect: the table of docs/design/0013, row by row (D1, D2, R4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine_pump import Error, Node, Pump, quick_settings
from tests.unit.replication_net import map_of
from tests.unit.test_cluster_states import set_state

from whimbrel.core.model import ClusterState
from whimbrel.serialization.data import to_data
from whimbrel.serving import calls as calls_module
from whimbrel.serving import parking as parking_module
from whimbrel.serving import scatter as scatter_module
from whimbrel.serving import server as server_module
from whimbrel.serving import session as session_module
from whimbrel.serving.calls import CALL_TIMEOUT_US
from whimbrel.serving.forwarding import HOPS_MAX
from whimbrel.serving.scatter import GATHER_TIMEOUT_US
from whimbrel.structures.map import service as map_module
from whimbrel.wire import errors as codes
from whimbrel.wire.codec import encode_request
from whimbrel.wire.errors import ALWAYS_RETRIED
from whimbrel.wire.frames import parse_message

ROOT = Path(__file__).resolve().parents[2]
NOTE = ROOT / "docs" / "design" / "0013-outcomes.md"
COUNT = 7
PID = 3
PATIENCE_S = 2 + (GATHER_TIMEOUT_US + CALL_TIMEOUT_US) // 1_000_000

Patch = pytest.MonkeyPatch


def table() -> dict[int, tuple[str, str, str]]:
    """Code to (name, effect, repeated) of the note's first table."""
    rows = {}
    for line in NOTE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].isdigit():
            rows[int(cells[0])] = (cells[1], cells[3], cells[4])
    return rows


def sendable() -> dict[int, str]:
    """The codes that the serving layer names, and those of our exceptions."""
    folder = Path(server_module.__file__).parent
    named = {
        getattr(codes, name)
        for path in folder.glob("*.py")
        for name in re.findall(r"\bcodes\.([A-Z_]+)\b", path.read_text())
    }
    names = {number: name for name, number in vars(codes).items() if type(number) is int}
    return {number: names[number] for number in named | {number for _, number in codes._BY_ERROR}}


class Scene:
    """Members, and a client that has begun a call: a ``putIfAbsent`` unless it says otherwise."""

    def __init__(self, patch: Patch, **settings: Any) -> None:
        self.patch = patch
        self.pump = Pump(quick_settings(**settings))
        self.nodes = self.pump.form(3)
        self.home = next(node for node in self.nodes if self.partition(node).is_primary)
        """The primary of the key's partition."""
        row = self.partition(self.home).row
        self.backup = next(node for node in self.nodes if node.id == row[1])
        self.other = next(node for node in self.nodes if node.id not in row)
        self.client = self.pump.client(self.home)
        self.call = 0

    @staticmethod
    def partition(node: Node, pid: int = PID) -> Any:
        return node.engine.member.dataplane.partitions[pid]

    def put(self, key: str = "k", value: str = "v") -> Scene:
        """Begin the write that is judged."""
        fields = {"key": to_data(key), "thread_id": 1, "value": to_data(value), "ttl": -1}
        self.call = self.client.ask("Map.putIfAbsent", PID, name="b1", **fields)
        return self

    def clear(self) -> Scene:
        """Begin to clear a map that has an entry in each partition."""
        self.call = self.client.ask("Map.clear", name="b1")
        return self

    def fill(self) -> Scene:
        """An entry in each partition; the client is that of a member without a copy of one."""
        for pid in range(COUNT):
            fields = {"key": to_data(pid), "thread_id": 1, "value": to_data("v"), "ttl": -1}
            self.client.call("Map.set", pid, name="b1", **fields)
        self.client = self.pump.client(self.other)
        return self

    def size(self) -> int:
        """Entries of the map at its primaries."""
        stores = [
            replica.fragments[map_of("b1")].store
            for node in self.pump.living()
            for replica in node.engine.member.dataplane.partitions
            if replica.is_primary and map_of("b1") in replica.fragments
        ]
        return sum(len(store) for store in stores)

    def ends_in(self) -> int:
        """The error in which the call ends."""
        with pytest.raises(Error) as caught:
            self.client.answer(self.call, PATIENCE_S)
        return caught.value.code

    def is_silent(self, node: Node) -> None:
        """From now on a member takes in no call of others, though its heartbeats go on."""
        calls = node.engine.server.calls
        self.patch.setattr(calls, "take_request", lambda peer, payload: None)


# -- the table --------------------------------------------------------------------------------


def test_the_table_has_every_code_that_is_sent() -> None:
    """Goal: the note and the code name the same errors; what clients repeat has no effect."""
    rows = table()
    assert {code: name for code, (name, _, _) in rows.items()} == sendable()
    assert [code for code, (_, effect, _) in rows.items() if effect != "none"] == [80]
    repeated = {code for code, (_, _, repeats) in rows.items() if repeats == "yes"}
    assert repeated == set(rows) & ALWAYS_RETRIED


def overload(patch: Patch) -> Scene:
    scene = Scene(patch, unacknowledged_backups_max=1)
    patch.setattr(scene.backup.engine.member.dataplane.incoming, "apply_backups", lambda *_: None)
    return scene.put("first").put()


def connection_full(patch: Patch) -> Scene:
    for module in (server_module, session_module):
        patch.setattr(module, "IN_FLIGHT_MAX", 0)
    return Scene(patch).put()


def calls_full(patch: Patch) -> Scene:
    scene = Scene(patch)
    patch.setattr(calls_module, "CALLS_PER_MEMBER_MAX", 1)
    scene.client = scene.pump.client(scene.other)
    return scene.put("first").put()


def too_large(patch: Patch) -> Scene:
    patch.setattr(map_module, "ENTRY_BYTES_MAX", 30)
    return Scene(patch).put(value="v" * 20)


def not_all_fit(patch: Patch) -> Scene:
    patch.setattr(map_module, "ENTRY_BYTES_MAX", 40)
    scene = Scene(patch)
    entries = [(to_data("k"), to_data("v")), (to_data("l"), to_data("v" * 40))]
    fields = {"entries": entries, "trigger_map_loader": False}
    scene.call = scene.client.ask("Map.putAll", PID, name="b1", **fields)
    return scene


def not_all_are_keys(patch: Patch) -> Scene:
    scene = Scene(patch)
    fields = {"entries": [(to_data("k"), to_data("v")), (b"short", to_data("v"))]}
    scene.call = scene.client.ask("Map.putAll", PID, name="b1", trigger_map_loader=False, **fields)
    return scene


def passive(patch: Patch) -> Scene:
    scene = Scene(patch)
    set_state(scene.pump, ClusterState.PASSIVE)
    return scene.put()


def parked_when_it_became_passive(patch: Patch) -> Scene:
    scene = Scene(patch)
    scene.partition(scene.home).set_migrating(True)
    scene.put()
    admission = scene.home.engine.server.admission
    admission.is_passive = True
    admission.guard()
    scene.partition(scene.home).set_migrating(False)
    return scene


def parked_in_vain(patch: Patch) -> Scene:
    scene = Scene(patch)
    scene.partition(scene.home).set_migrating(True)
    scene.put()
    scene.pump.run(11)
    scene.partition(scene.home).set_migrating(False)
    return scene


def lot_full(patch: Patch) -> Scene:
    scene = Scene(patch)
    patch.setattr(parking_module, "PARKED_MAX", 0)
    patch.setattr(scene.home.engine.server.parking, "count", 1)
    scene.partition(scene.home).set_migrating(True)
    scene.put()
    scene.partition(scene.home).set_migrating(False)
    patch.setattr(scene.home.engine.server.parking, "count", 0)
    return scene


def part_too_small(patch: Patch) -> Scene:
    scene = Scene(patch, split_brain_minimum_size=3)
    scene.pump.kill(scene.other)
    scene.pump.run(10)
    return scene.put()


def moved_on(patch: Patch) -> Scene:
    scene = Scene(patch)
    scene.client = scene.pump.client(scene.other)
    connection = scene.other.engine.server.intake.connections[scene.client.conn]
    scene.call = 99
    fields = {"key": to_data("k"), "thread_id": 1, "value": to_data("v"), "ttl": -1}
    request = encode_request("Map.putIfAbsent", scene.call, PID, 0, name="b1", **fields)
    scene.other.engine.server.dispatch(connection, parse_message(request), HOPS_MAX)
    scene.other.carry_out()
    return scene


def not_offered(patch: Patch) -> Scene:
    scene = Scene(patch)
    fields = {"key": to_data("k"), "thread_id": 1, "ttl": -1, "reference_id": 1}
    scene.call = scene.client.ask("MultiMap.lock", PID, name="b1", **fields)
    return scene


def not_the_owner(patch: Patch) -> Scene:
    scene = Scene(patch)
    fields = {"key": to_data("k"), "thread_id": 1, "reference_id": 1}
    scene.call = scene.client.ask("Map.unlock", PID, name="b1", **fields)
    return scene


def no_data_member(patch: Patch) -> Scene:
    scene = Scene(patch)
    lite = scene.pump.start(lite=True)
    scene.pump.run_until(lambda: lite.joined, 30)
    scene.client = scene.pump.client(lite)
    for node in scene.nodes[:3]:
        scene.pump.kill(node)
    scene.pump.run(30)
    return scene.put()


@pytest.mark.parametrize(
    ("code", "make"),
    [
        (codes.OVERLOAD, overload),
        (codes.OVERLOAD, connection_full),
        (codes.OVERLOAD, calls_full),
        (codes.ILLEGAL_ARGUMENT, too_large),
        (codes.ILLEGAL_ARGUMENT, not_all_fit),
        (codes.ILLEGAL_ARGUMENT, not_all_are_keys),
        (codes.ILLEGAL_MONITOR_STATE, not_the_owner),
        (codes.ILLEGAL_STATE, passive),
        (codes.ILLEGAL_STATE, parked_when_it_became_passive),
        (codes.PARTITION_MIGRATING, parked_in_vain),
        (codes.PARTITION_MIGRATING, lot_full),
        (codes.SPLIT_BRAIN_PROTECTION, part_too_small),
        (codes.RETRYABLE, moved_on),
        (codes.UNSUPPORTED_OPERATION, not_offered),
        (codes.NO_DATA_MEMBER, no_data_member),
    ],
)
def test_a_write_that_fails_has_had_no_effect(
    code: int, make: Callable[[Patch], Scene], monkeypatch: Patch
) -> None:
    """Goal: each error but one says "nothing has happened", and nobody holds the value afterwards.
    Method: the circumstance that the table names, then what stood in the way is taken away.
    """
    scene = make(monkeypatch)
    assert table()[code][1] == "none"
    assert scene.ends_in() == code
    monkeypatch.undo()
    scene.pump.run(15)
    for node in scene.pump.living():
        held = scene.partition(node).fragments.get(map_of("b1"))
        assert held is None or to_data("k")[8:] not in b"".join(held.store.records)


# -- unknown outcomes -------------------------------------------------------------------------


def backup_is_silent(scene: Scene) -> None:
    plane = scene.backup.engine.member.dataplane
    scene.patch.setattr(plane.incoming, "apply_backups", lambda sender, payload: None)
    scene.put()


def backup_refuses(scene: Scene) -> None:
    """The backup takes itself for the primary, and the primary hears of it a moment later."""
    replica = scene.partition(scene.home)
    row, version = replica.row, replica.version
    swapped = (row[1], row[0], *row[2:])
    for node, moment in ((scene.backup, 0), (scene.home, 1)):
        node.engine.member.begin(scene.pump.now_us, scene.pump.wall_ms)
        if moment:
            scene.put()
            scene.pump.settle()
            assert scene.call not in scene.client.messages
        node.engine.member.dataplane.roles.row_changed(replica.pid, row, swapped, version + 2)
        node.carry_out()


def primary_dies(scene: Scene) -> None:
    scene.client = scene.pump.client(scene.other)
    scene.patch.setattr(scene.home.engine.server.calls, "answer", lambda *_: None)
    scene.put()
    scene.pump.settle()
    scene.pump.kill(scene.home)


def primary_is_silent(scene: Scene) -> None:
    scene.client = scene.pump.client(scene.other)
    scene.patch.setattr(scene.home.engine.server.calls, "answer", lambda *_: None)
    scene.put()


@pytest.mark.parametrize(
    "make", [backup_is_silent, backup_refuses, primary_dies, primary_is_silent]
)
def test_what_may_have_happened_is_told_as_unknown(
    make: Callable[[Scene], None], monkeypatch: Patch
) -> None:
    """Goal: a write that is done somewhere never ends in an error that says that it is not, least
    of all in one that clients repeat: ``putIfAbsent`` would lose against itself.
    """
    scene = Scene(monkeypatch)
    make(scene)
    code = scene.ends_in()
    assert code == codes.INDETERMINATE and code not in ALWAYS_RETRIED
    assert scene.size() == 1 or scene.partition(scene.home).fragments[map_of("b1")].store


# -- writes to whole maps ---------------------------------------------------------------------


def silent_member(scene: Scene) -> int:
    scene.is_silent(scene.home)
    return codes.OPERATION_TIMEOUT


def full_of_calls(scene: Scene) -> int:
    scene.patch.setattr(calls_module, "CALLS_PER_MEMBER_MAX", 0)
    outgoing = scene.other.engine.server.calls._outgoing
    assert scene.home.id in outgoing or scene.client.call("Map.size", name="b1") == COUNT
    outgoing[scene.home.id].waiting[0] = calls_module.Call(scene.home.id, 0, 0, b"", None)
    return codes.OVERLOAD


def protected_member(scene: Scene) -> int:
    """One member is on a shorter list than the others."""
    admission = scene.home.engine.server.admission
    scene.patch.setattr(type(admission.protection), "size", 0)
    admission.members_changed()
    return codes.SPLIT_BRAIN_PROTECTION


def unknown_call(scene: Scene) -> int:
    scene.patch.delitem(scene.home.engine.server.operations.shares, ("map", "clear"))
    return codes.GENERIC


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("make", [silent_member, full_of_calls, protected_member, unknown_call])
def test_a_half_done_write_to_a_whole_map_has_not_failed(
    make: Callable[[Scene], int], begun: bool, monkeypatch: Patch
) -> None:
    """Goal: what ends a ``clear`` is told as it is as long as no partition was cleared, and as an
    unknown outcome afterwards. Method: one member does not do its share; the others do, or have
    nothing to clear, or do not either.
    """
    scene = Scene(monkeypatch, split_brain_minimum_size=1).fill()
    code = make(scene)
    if not begun:
        for node in scene.nodes:
            for replica in node.engine.member.dataplane.partitions:
                if node is not scene.home and replica.is_primary:
                    del replica.fragments[next(iter(replica.fragments))]
    before = scene.size()
    scene.clear()
    if begun or make is silent_member:
        assert scene.ends_in() == codes.INDETERMINATE
        assert (scene.size() < before) == begun
    else:
        assert scene.ends_in() == code
        assert scene.size() == before


def test_a_clear_goes_on_where_a_backup_could_not_keep_up(monkeypatch: Patch) -> None:
    """Goal: a share that is refused as overload in the middle is asked for again, not told as a
    failure of a call that has cleared other partitions.
    """
    scene = Scene(monkeypatch, unacknowledged_backups_max=1).fill()
    held = scene.backup.engine.member.dataplane
    monkeypatch.setattr(held.incoming, "apply_backups", lambda sender, payload: None)
    scene.client = scene.pump.client(scene.home)
    scene.put("one write too many")
    scene.clear()
    scene.pump.run(1)
    assert scene.call not in scene.client.messages and scene.size() > 1
    monkeypatch.undo()
    for node in (scene.home, scene.other):
        node.engine.member.dataplane.link_restored(scene.backup.id)
    assert scene.client.answer(scene.call, PATIENCE_S) == {}
    assert scene.size() == 0


def test_a_read_of_a_whole_map_says_what_was_wrong(monkeypatch: Patch) -> None:
    """Goal: reads have no effect, so their errors stay what they are."""
    scene = Scene(monkeypatch).fill()
    for limit, code in (("GATHER_BYTES_MAX", codes.MESSAGE_TOO_BIG), ("SHARE_BYTES_MAX", 18)):
        with monkeypatch.context() as patch:
            patch.setattr(scatter_module, limit, 1)
            scene.call = scene.client.ask("Map.keySet", name="b1")
            assert scene.ends_in() == code
    scene.is_silent(scene.home)
    scene.call = scene.client.ask("Map.keySet", name="b1")
    assert scene.ends_in() == codes.OPERATION_TIMEOUT
