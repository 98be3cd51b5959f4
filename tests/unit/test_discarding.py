"""What ends with the last members is said before it is gone, and nobody loses it unasked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.admin_fakes import say_persistent
from tests.unit.engine_pump import Node, Pump, quick_settings
from tests.unit.replication_net import map_of
from tests.unit.test_admin_documents import formed, of, put, run
from tests.unit.test_cluster_states import FROZEN, set_state
from tests.unit.test_serving_cluster import fill

from whimbrel.admin.documents import ChangeRefusedError
from whimbrel.core.effects import Note
from whimbrel.core.model import LostStructure
from whimbrel.core.stimuli import LeaveWanted
from whimbrel.structures.map.settings import MapSettings

VOLATILE = MapSettings("volatile", 1, persistent=False)
ENTRIES = 40


def said(pump: Pump) -> list[Note]:
    return [note for node in pump.nodes for note in node.notes if note.kind == "discarded"]


def all_leave(pump: Pump) -> None:
    for node in pump.living():
        node.handle(LeaveWanted())
    pump.run_until(lambda: not pump.living(), 60)


@pytest.mark.parametrize("name", ["b0", "b1", "b2"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_members_that_leave_together_say_once_what_goes(count: int, name: str) -> None:
    """Goal: whoever ends last, each entry is said once in all. Method: all leave at once."""
    pump, _ = formed(count)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, name)
    pump.run(3)
    all_leave(pump)
    assert sum(int(note.fields["entries"] or 0) for note in said(pump)) == ENTRIES
    assert all(str(note.fields["structures"]).startswith(f"map {name} (") for note in said(pump))
    assert {note.level for note in said(pump)} == {"warning"}


def test_everybody_knows_that_all_leave() -> None:
    """Goal: the permission says so, whoever gives it: two may end before they hear of each other.
    Method: a lite master stays and two leave; each is asked what ends with it as one of all.
    """
    pump = Pump(quick_settings())
    master = pump.start(lite=True)
    pump.run_until(lambda: master.joined, 30)
    pump.form(2)
    put(pump.client(master), 1, "b1")
    asked: list[bool] = []

    def spy(node: Node) -> None:
        discarded = node.engine.member.discarded

        def ask(is_end: bool) -> tuple[LostStructure, ...]:
            asked.append(is_end)
            return discarded(is_end)

        node.engine.member.membership.discarded = ask

    for node in pump.nodes[1:]:
        spy(node)
        node.handle(LeaveWanted())
    pump.run_until(lambda: pump.living() == [master], 60)
    assert asked == [True] * 2
    assert sum(int(note.fields["entries"] or 0) for note in said(pump)) == 1


def test_members_that_leave_one_after_the_other_say_it_last() -> None:
    """Goal: who hands over says nothing, the last one says all of it. Method: one by one."""
    pump, _ = formed(3)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, "b0")
    for node in list(pump.living()):
        assert not said(pump)
        pump.leave(node)
    (note,) = said(pump)
    assert note.fields["structures"] == f"map b0 ({ENTRIES} entries)"


def test_an_empty_grid_has_nothing_to_say() -> None:
    """Goal: no false alarm. Method: a map that was emptied."""
    pump, _ = formed(2)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    client.call("Map.clear", name="b1")
    all_leave(pump)
    assert not said(pump)


def test_who_leaves_where_nothing_may_move_says_what_it_held_alone() -> None:
    """Goal: in FROZEN a leave moves nothing: what has no backup goes, the rest stays.
    Method: one of three leaves; its entries of the map without backups are said.
    """
    pump = Pump(quick_settings())
    pump.form(3)
    client = pump.client(pump.nodes[0])
    fill(client, name="b0")
    fill(client, name="b1")
    pump.run(2)
    set_state(pump, FROZEN)
    leaver = pump.nodes[2]
    held = sum(
        len(part.fragments[map_of("b0")].store)
        for part in leaver.engine.member.dataplane.partitions
        if part.is_primary and map_of("b0") in part.fragments
    )
    pump.leave(leaver)
    (note,) = said(pump)
    assert held and note.fields["entries"] == held
    assert "b1" not in str(note.fields["structures"])


def test_the_last_data_member_is_shut_down_only_with_leave_to_discard() -> None:
    """Goal: an order never discards data unasked. Method: two members, the second leaves, then
    the first without and with ``discard``; the refusal names what would go.
    """
    pump, (first, second) = formed(2)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, "b1")
    assert run(of(first).shutdown(second.member_id))["discarded"] == []
    pump.run_until(lambda: not pump.nodes[1].alive, 60)
    with pytest.raises(ChangeRefusedError, match=rf"map b1 \({ENTRIES} entries\).*--discard"):
        run(of(first).shutdown(first.member_id))
    pump.run(5)
    assert pump.nodes[0].alive
    found = run(of(first).shutdown(first.member_id, discard=True))
    assert found["discarded"] == [{"kind": "map", "name": "b1", "entries": ENTRIES}]
    pump.run_until(lambda: not pump.living(), 60)


def test_of_two_orders_at_once_the_second_is_refused() -> None:
    """Goal: nobody slips past the other. Method: both before either has begun to leave."""
    pump, (first, second) = formed(2)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    order: dict[str, Any] = {"member": first.member_id}
    assert json.loads(pump.nodes[0].engine.questions.documents["may_leave"](b(order))) == {
        "is_last": False
    }
    with pytest.raises(ChangeRefusedError, match="b1"):
        run(of(first).shutdown(second.member_id))


def b(content: object) -> bytes:
    return json.dumps(content).encode()


def test_the_whole_cluster_is_shut_down_only_with_leave_to_discard() -> None:
    """Goal: as for the last member. Method: entries, then none."""
    pump, (first, _) = formed(2)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    with pytest.raises(ChangeRefusedError, match="whole cluster"):
        run(of(first).shutdown_all())
    client.call("Map.clear", name="b1")
    found = run(of(first).shutdown_all())
    assert len(found["members"]) == 2 and found["discarded"] == []
    pump.run_until(lambda: not pump.living(), 60)


def test_with_leave_to_discard_the_whole_cluster_ends() -> None:
    """Goal: the answer says what goes."""
    pump, (first, _) = formed(2)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    found = run(of(first).shutdown_all(discard=True))
    assert found["discarded"] == [{"kind": "map", "name": "b1", "entries": 1}]
    pump.run_until(lambda: not pump.living(), 60)


def test_what_is_persistent_does_not_end_with_the_last_members() -> None:
    """Goal: the next start brings it back, so it is no loss to speak of; what is in memory only
    is. Method: a persistent map, one that is not; all leave at once.
    """
    pump, _ = formed(2)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, "b1")
        put(client, number, "volatile")
    say_persistent(pump, VOLATILE)
    pump.run(3)
    all_leave(pump)
    assert sum(int(note.fields["entries"] or 0) for note in said(pump)) == ENTRIES
    assert not [note for note in said(pump) if "b1" in str(note.fields["structures"])]


def test_only_what_is_not_persistent_keeps_the_last_data_member() -> None:
    """Goal: the last one may be shut down without a word about what its disk keeps. Method: one
    member with a persistent map alone, and with one more that is not.
    """
    pump, (fake,) = formed(1)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    put(client, 1, "volatile")
    say_persistent(pump, VOLATILE)
    with pytest.raises(ChangeRefusedError, match=r"discard map volatile \(1 entries\), because"):
        run(of(fake).shutdown(fake.member_id))
    client.call("Map.clear", name="volatile")
    assert run(of(fake).shutdown(fake.member_id))["discarded"] == []
    pump.run_until(lambda: not pump.living(), 60)
    assert not said(pump)


def test_with_persistence_the_whole_cluster_ends_when_it_is_told_to() -> None:
    """Goal: it is the ordinary end of a cluster that comes back; what was to be in memory only is
    told, and nobody has to confirm it again.
    """
    pump, (first, _) = formed(2)
    client = pump.client(pump.nodes[0])
    put(client, 1, "b1")
    put(client, 1, "volatile")
    say_persistent(pump, VOLATILE)
    found = run(of(first).shutdown_all())
    assert found["discarded"] == [{"kind": "map", "name": "volatile", "entries": 1}]
    pump.run_until(lambda: not pump.living(), 60)
