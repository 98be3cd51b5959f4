"""What an operator and listeners see of lost data, on whole members (docs/design/0014)."""

from __future__ import annotations

import pytest
from tests.unit.admin_fakes import FakeNode, as_node
from tests.unit.engine_pump import Node, Pump
from tests.unit.replication_net import map_of
from tests.unit.test_admin_documents import formed, of, put, run
from tests.unit.test_cluster_states import master_of
from tests.unit.test_grid_events import listen

from whimbrel.admin import documents as documents_module
from whimbrel.admin.documents import ChangeRefusedError
from whimbrel.admin.metrics import Metrics
from whimbrel.core.events import PartitionLost
from whimbrel.core.ids import Namespace, PartitionId
from whimbrel.core.messages import Census
from whimbrel.core.replication import census as census_module

ENTRIES = 40


def uneven_grid(members: int) -> tuple[Pump, list[FakeNode]]:
    """A map without backups beside one with a backup; the primaries have told their entries."""
    pump, nodes = formed(members)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, "b0")
        put(client, number, "b1")
    pump.run(5)
    return pump, nodes


def entries_of(node: Node, name: str) -> int:
    parts = node.engine.member.dataplane.partitions
    return sum(
        len(part.fragments[map_of(name)].store)
        for part in parts
        if part.is_primary and map_of(name) in part.fragments
    )


def living_fake(pump: Pump, nodes: list[FakeNode]) -> FakeNode:
    return next(fake for fake in nodes if fake.node is master_of(pump))


def lines_of(fake: FakeNode) -> dict[str, float]:
    page = Metrics(as_node(fake)).page().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in page if not line.startswith("#")}  # fmt: skip


@pytest.mark.parametrize("successors", [0, 1, 2])
def test_the_losses_of_one_map_are_seen_after_any_change_of_master(successors: int) -> None:
    """Goal: entries of a map with fewer backups are gone: every member's status and metrics say
    so, with their number, however many masters die. Method: a member dies, then masters.
    """
    pump, nodes = uneven_grid(5)
    victim = pump.nodes[4]
    held = entries_of(victim, "b0")
    owned = victim.engine.server.table.primary_count(victim.id)
    pump.kill(victim)
    pump.run(20)
    status = run(of(living_fake(pump, nodes)).status())
    (row,) = status["losses"]["structures"]
    assert held and (row["kind"], row["name"], row["entries"]) == ("map", "b0", held)
    assert status["partitions_lost"] == row["partitions"] == owned and row["as_of_ms"]
    assert status["losses"]["whole"] == 0 and status["safe"]
    known = {mark["partition"] for mark in run(of(living_fake(pump, nodes)).losses())["marks"]}
    for _ in range(successors):
        pump.kill(master_of(pump))
        pump.run(20)
    for fake in (fake for fake in nodes if fake.node.alive):
        marks = run(of(fake).losses())["marks"]
        assert known <= {mark["partition"] for mark in marks}
        assert run(of(fake).status())["partitions_lost"] == len(marks)
        lines = lines_of(fake)
        assert lines["whimbrel_partitions_lost"] == len(marks)
        label = '{kind="map",structure="b0"}'
        assert lines[f"whimbrel_structure_partitions_lost{label}"] == len(marks)
    told = [note for note in master_of(pump).notes if note.kind == "partition.lost"]
    assert known <= {note.fields["partition"] for note in told if note.level == "error"}


def test_an_operator_acknowledges_what_was_shown() -> None:
    """Goal: what was shown goes on all members, and nothing else. Method: the name of an older
    document, then the present one, through a member that is not the master.
    """
    pump, nodes = uneven_grid(4)
    pump.kill(pump.nodes[3])
    pump.run(20)
    first = run(of(nodes[1]).losses())["name"]
    pump.kill(pump.nodes[2])
    pump.run(20)
    with pytest.raises(ChangeRefusedError, match="look at it again"):
        run(of(nodes[1]).see_losses(first))
    assert run(of(nodes[1]).status())["partitions_lost"]
    run(of(nodes[1]).see_losses(run(of(nodes[1]).losses())["name"]))
    pump.run(1)
    for fake in nodes[:2]:
        assert run(of(fake).losses()) == {
            "name": "", "partitions": 0, "whole": 0, "structures": [], "marks": [],
        }  # fmt: skip
        assert not [name for name in lines_of(fake) if "structure_partitions_lost" in name]
    pump.kill(pump.nodes[0])
    pump.run(20)
    again = run(of(nodes[1]).status())
    assert again["losses"]["partitions"] == again["partitions_lost"] > 0, "b0 has lost more"


def test_a_listener_hears_of_each_loss_once() -> None:
    """Goal: the next master tells again what it did not tell itself; who has heard it is not told
    twice, who has not hears it. Method: one listens from the beginning, one after the first loss.
    """
    pump, _ = uneven_grid(5)
    early = listen(pump.nodes[2])
    pump.run(1)
    pump.kill(pump.nodes[4])
    pump.run(20)
    late = listen(pump.nodes[3])
    pump.run(1)
    pump.kill(pump.nodes[0])
    pump.run(20)
    for told in (early, late):
        marked = [event for event in told if isinstance(event, PartitionLost) and event.version]
        keys = [(event.partition_id, event.version) for event in marked]
        assert len(keys) == len(set(keys)) > 0
    first = {event.partition_id for event in early
             if isinstance(event, PartitionLost) and event.source == pump.nodes[0].id}  # fmt: skip
    assert first
    assert first <= {event.partition_id for event in late if isinstance(event, PartitionLost)}


def test_nothing_is_lost_within_the_backups() -> None:
    """Goal: no false alarm. Method: only a map with one backup; one member dies."""
    pump, nodes = formed(3)
    client = pump.client(pump.nodes[0])
    for number in range(ENTRIES):
        put(client, number, "b1")
    pump.run(5)
    pump.kill(pump.nodes[2])
    pump.run(20)
    assert run(of(nodes[0]).status())["partitions_lost"] == 0
    assert lines_of(nodes[0])["whimbrel_partitions_lost"] == 0


def test_entries_are_unknown_when_the_master_dies_with_them() -> None:
    """Goal: no number is made up. Method: master and primary die together."""
    pump, nodes = uneven_grid(4)
    pump.kill(pump.nodes[0])
    pump.kill(pump.nodes[3])
    pump.run(20)
    rows = run(of(nodes[1]).status())["losses"]["structures"]
    assert {row["name"]: row["entries"] for row in rows}["b0"] is None


def test_a_census_counts_all_partitions_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a heartbeat counts so much at most, and what it leaves comes with the next ones."""
    monkeypatch.setattr(census_module, "FRAGMENTS_MAX", 2)
    pump, _ = uneven_grid(1)
    counts = pump.nodes[0].engine.member.entry_counts
    counts._next = 0
    seen: dict[int, int] = {}
    for _ in range(7):
        census = counts.make()
        assert census is not None
        assert sum(map(len, census.entries.values())) <= 2
        for pid, held in census.entries.items():
            seen[pid] = sum(held.values())
    assert sorted(seen) == list(range(7)) and sum(seen.values()) == 2 * ENTRIES


def test_a_new_master_does_not_go_by_what_it_was_told_long_ago() -> None:
    """Goal: numbers of an earlier time as master are forgotten, not told as the last ones."""
    pump, _ = uneven_grid(2)
    member = pump.nodes[0].engine.member
    told = [member.entry_counts.last_told(PartitionId(pid), Namespace("map/b0"))[0]
            for pid in range(7)]  # fmt: skip
    assert any(told)
    member._became_master()
    for pid in range(7):
        assert member.entry_counts.last_told(PartitionId(pid), Namespace("map/b0")) == (None, None)


def test_only_a_primary_is_believed_about_its_entries() -> None:
    """Goal: late words of a former primary, and positions that are not there, change nothing."""
    pump, _ = uneven_grid(2)
    member = pump.nodes[0].engine.member
    counts, name = member.entry_counts, Namespace("map/b0")
    theirs = next(pid for pid, row in enumerate(member.migrations.table.rows)
                  if row[0] == pump.nodes[1].id)  # fmt: skip
    pid = PartitionId(theirs)
    before = counts.last_told(pid, name)
    assert before[0]
    counts.take(member.ctx.id, Census((name,), {pid: {0: 999}}))
    assert counts.last_told(pid, name) == before
    counts.take(pump.nodes[1].id, Census((name,), {pid: {0: 7, 5: 1}, PartitionId(99): {0: 1}}))
    assert counts.last_told(pid, name)[0] == 7
    assert counts.last_told(pid, Namespace("map/none"))[0] == 0


def test_without_its_master_a_member_tells_its_own_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a member that does not hear the master still says what it knows."""
    pump, nodes = uneven_grid(3)
    pump.kill(pump.nodes[2])
    pump.run(20)
    known = run(of(nodes[1]).losses())
    assert known["partitions"]
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    nodes[1].silent[nodes[0].member_id] = None
    assert run(of(nodes[1]).losses()) == known
    status = run(of(nodes[1]).status())
    assert not status["safe"] and status["partitions_lost"] == known["partitions"]
