"""Events of migrations, losses, members and states: what is told, to whom, and what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.engine_pump import Client, Node, Pump, quick_settings
from tests.unit.migration_net import SETTINGS, Net
from tests.unit.test_serving_cluster import fill

from whimbrel.core.events import (
    Endpoint,
    GridEvent,
    MemberAdded,
    MemberChanged,
    MemberRemoved,
    MigrationFinished,
    MigrationStarted,
    Moment,
    PartitionLost,
    PartitionMigrationEvent,
    ReplicaMigrated,
    StateChanged,
    event_of,
    event_of_row,
)
from whimbrel.core.ids import MemberId, PartitionId, ReplicaIndex
from whimbrel.core.migration.reporter import MigrationReporter
from whimbrel.core.model import ClusterState, MigrationInfo, MigrationKind, Step
from whimbrel.errors import ProtocolError
from whimbrel.serving import grid_events as grid_module
from whimbrel.serving.views import HOST_ATTRIBUTE, ZONE_ATTRIBUTE, client_member
from whimbrel.wire.links import NOTIFY

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


# -- the master ---------------------------------------------------------------------------


def heard(net: Net) -> list[GridEvent]:
    """What the present master tells from now on."""
    events: list[GridEvent] = []
    net.master.room.tell_events(events.append)
    return events


def check_processes(events: list[GridEvent]) -> list[list[GridEvent]]:
    """PIM-21, PIM-58: each process starts, counts every replica once, and ends once."""
    processes: list[list[GridEvent]] = []
    for event in events:
        if isinstance(event, MigrationStarted):
            state = event.state
            assert (state.completed, state.failed) == (0, 0)
            assert state.remaining == state.planned > 0
            processes.append([event])
        elif isinstance(event, MigrationFinished | ReplicaMigrated):
            processes[-1].append(event)
    for process in processes:
        first, *replicas, last = process
        assert isinstance(first, MigrationStarted) and isinstance(last, MigrationFinished)
        done = 0
        for replica in replicas:
            assert isinstance(replica, ReplicaMigrated)
            done += 1
            state = replica.state
            assert state.completed + state.failed == done
            assert state.remaining == state.planned - done >= 0
            assert state.planned == first.state.planned
        assert last.state.completed + last.state.failed == done
    return processes


def test_a_join_is_one_process_with_all_replica_indexes() -> None:
    """PIM-58, PIM-21, bug 68: started, each replica of every index, finished; the counts agree
    with the process document; a copy has no source.
    """
    net = Net(backup_count=2)
    net.add("a", "b")
    net.settle()
    net.fill()
    events = heard(net)
    before = len(net.master.room.reporter.finished)
    net.add("c")
    net.settle()
    [process] = check_processes(events)
    replicas = [event for event in process if isinstance(event, ReplicaMigrated)]
    [document] = list(net.master.room.reporter.finished)[before:]
    assert len(replicas) == document["completed"] and all(event.success for event in replicas)
    assert {event.replica_index for event in replicas} > {0}
    assert any(event.source is None for event in replicas), "a copy displaces nobody"
    assert all(event.destination is not None for event in replicas)
    table = net.master.room.table
    for event in replicas:
        assert event.destination in table.row(event.partition_id)


def test_promotions_and_plan_are_processes_of_their_own() -> None:
    """FN-16, ADL-06, bug 67: after a crash first the promotions, then the plan; a lost primary
    alone is a loss of 0 backups.
    """
    net = Net()
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    events = heard(net)
    owned = [pid for pid, row in enumerate(net.master.room.table.rows) if row[0] == "c"]
    net.crash("c")
    net.settle()
    promotions, plan = check_processes(events)
    promoted = [event for event in promotions if isinstance(event, ReplicaMigrated)]
    assert sorted(event.partition_id for event in promoted) == owned
    assert all(event.source is None and event.replica_index == 0 for event in promoted)
    assert len(plan) > 2
    lost = [event for event in events if isinstance(event, PartitionLost)]
    assert sorted(event.partition_id for event in lost) == owned
    assert all((event.lost_backup_count, event.source) == (0, "a") for event in lost)


def test_lost_partitions_are_a_process_and_losses_of_six() -> None:
    """ADL-05, FN-16, bug 27: partitions without any replica are told lost with 6, and their new
    empty primaries are a process of their own.
    """
    net = Net(backup_count=0)
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    events = heard(net)
    owned = [pid for pid, row in enumerate(net.master.room.table.rows) if row[0] == "c"]
    net.crash("c")
    net.settle()
    lost = [event for event in events if isinstance(event, PartitionLost)]
    assert [event.partition_id for event in lost] == owned
    assert all(event.lost_backup_count == 6 for event in lost)
    first = check_processes(events)[0]
    assert [event.partition_id for event in first if isinstance(event, ReplicaMigrated)] == owned


def test_a_failed_replica_is_told_and_the_process_ends() -> None:
    """PIM-58: the destination dies; its migrations fail, the process ends with fewer completed
    than planned, and a new one starts.
    """
    net = Net()
    net.add("a", "b")
    net.settle()
    net.fill()
    events = heard(net)
    net.add("c")
    net.run_sending(12)
    net.crash("c")
    net.settle()
    processes = check_processes(events)
    failed = [e for e in events if isinstance(e, ReplicaMigrated) and not e.success]
    assert failed and all(event.destination == "c" for event in failed)
    ends = [process[-1] for process in processes]
    assert any(isinstance(e, MigrationFinished) and e.state.failed for e in ends)


def test_a_plan_that_another_takes_the_place_of_ends() -> None:
    """PIM-58, PIM-21: a second member joins at every moment of the first one's join: whatever was
    planned is a process with an end, and no later plan is counted in it (found by rule P14: the end
    of a plan was not told when nothing of it ran at that moment).
    """
    paced = msgspec.structs.replace(SETTINGS, migration_interval_us=1_000_000)
    for count in range(0, 60, 3):
        net = Net(paced)
        net.add("a", "b")
        net.settle()
        net.fill()
        events = heard(net)
        net.add("c")
        net.run_sending(count)
        net.run_for(0.5)
        net.add("d")
        net.settle()
        processes = check_processes(events)
        planned = sum(
            one[0].state.planned for one in processes if isinstance(one[0], MigrationStarted)
        )
        assert planned >= sum(len(process) - 2 for process in processes)
        for document in net.master.room.reporter.finished:
            figures = [int(str(document[name])) for name in ("planned", "completed", "failed")]
            assert figures[0] >= figures[1] + figures[2]


def test_nothing_to_do_is_no_process() -> None:
    """PIM-58: a process of nothing is not told."""
    net = Net()
    net.add("a")
    net.settle()
    reporter = MigrationReporter(net.master.ctx)
    events: list[GridEvent] = []
    reporter.emit = events.append
    assert reporter.tell_plan(0) is None
    reporter.end(None)
    assert events == []


# -- moments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "indexes", "source", "destination"),
    [
        (MigrationKind.MOVE, (0, -1, -1, 0), (0, -1), (-1, 0)),
        (MigrationKind.MOVE, (2, -1, -1, 2), (2, -1), (-1, 2)),
        (MigrationKind.COPY, (-1, -1, -1, 1), (0, 0), (-1, 1)),
        (MigrationKind.SHIFT_DOWN, (0, 2, -1, 0), (0, 2), (-1, 0)),
        (MigrationKind.SHIFT_UP, (-1, -1, 3, 1), (0, 0), (3, 1)),
        (MigrationKind.SHIFT_UP, (1, -1, 3, 1), (1, -1), (3, 1)),
        (MigrationKind.SHIFT_UP_SHIFT_DOWN, (0, 2, 2, 0), (0, 2), (2, 0)),
        (MigrationKind.PROMOTION, (-1, -1, 1, 0), (0, 0), (1, 0)),
    ],
)
def test_the_four_indexes_of_every_kind(
    kind: MigrationKind,
    indexes: tuple[int, int, int, int],
    source: tuple[int, int],
    destination: tuple[int, int],
) -> None:
    """ADL-71, bug 14: both endpoints see their own present and new index."""
    displaced = A if indexes[0] >= 0 else None
    step = Step(kind, displaced, B, *map(ReplicaIndex, indexes))
    migration = MigrationInfo("m", PartitionId(4), step, C, 1)
    holder = A if displaced else C
    seen = event_of(migration, Endpoint.SOURCE, holder)
    assert (seen.current_replica_index, seen.new_replica_index) == source
    seen = event_of(migration, Endpoint.DESTINATION, B)
    assert (seen.current_replica_index, seen.new_replica_index) == destination
    assert seen.partition_id == 4


@pytest.mark.parametrize(
    ("before", "after", "endpoint"),
    [
        (1, 0, Endpoint.DESTINATION),
        (-1, 2, Endpoint.DESTINATION),
        (2, -1, Endpoint.SOURCE),
        (0, 1, Endpoint.SOURCE),
        (1, 1, None),
    ],
)
def test_members_that_take_no_part_see_their_change(
    before: int, after: int, endpoint: Endpoint | None
) -> None:
    """ADL-71: a promoted backup gains, a former backup gives away, others see nothing."""
    seen = event_of_row(PartitionId(1), ReplicaIndex(before), ReplicaIndex(after))
    assert (None if seen is None else seen.endpoint) == endpoint


def test_before_the_table_and_one_end_after_it() -> None:
    """ADL-72, bug 6: at every member each BEFORE comes while the row is the old one and is
    followed by exactly one COMMIT or ROLLBACK with the new one; promotions too.
    """
    net = Net()
    net.add("a", "b", "c")
    net.settle()
    net.fill()
    moments: list[tuple[str, Moment, PartitionMigrationEvent]] = []
    open_before: dict[tuple[str, int], int] = {}

    def watch(name: str) -> None:
        room = net.nodes[name].room

        def hook(moment: Moment, event: PartitionMigrationEvent) -> None:
            moments.append((name, moment, event))
            key, version = (name, event.partition_id), room.table.version(event.partition_id)
            if moment is Moment.BEFORE:
                assert key not in open_before
                open_before[key] = version
            elif moment in (Moment.COMMIT, Moment.ROLLBACK):
                assert open_before.pop(key) < version

        room.set_hook(hook)

    for name in ("a", "b", "c"):
        watch(name)
    net.add("d")
    watch("d")
    net.settle()
    net.crash("b")
    net.settle()
    assert {key for key in open_before if key[0] != "b"} == set()
    kinds = {(moment, event.endpoint) for _, moment, event in moments}
    assert {(Moment.START, Endpoint.MASTER), (Moment.COMPLETE, Endpoint.MASTER)} < kinds
    assert {(Moment.COMMIT, Endpoint.SOURCE), (Moment.COMMIT, Endpoint.DESTINATION)} < kinds
    promoted = [e for _, m, e in moments if m is Moment.COMMIT and e.new_replica_index == 0]
    assert any(event.current_replica_index == 1 for event in promoted)


# -- who hears ----------------------------------------------------------------------------


def listen(node: Node) -> list[GridEvent]:
    """The events that the program around a member is told from now on."""
    node.engine.want_events(True, node.pump.now_us, node.pump.wall_ms)
    node.carry_out()
    return node.told


def test_every_member_hears_of_migrations_and_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIM-58, bug 27: a join and a crash, heard at the master and elsewhere alike; who does not
    listen is sent nothing.
    """
    pump = Pump()
    pump.form(3)
    master, other, silent = (*pump.nodes,)
    told = [listen(master), listen(other)]
    pump.run(1)
    frames: list[bytes] = []
    monkeypatch.setattr(silent.engine.server.grid, "on_frame", frames.append)
    fill(pump.client(master))
    fourth = pump.start()
    pump.run(10)
    pump.kill(silent)
    pump.run(20)
    travelled = [[e for e in events if not isinstance(e, MemberAdded | MemberRemoved)]
                 for events in told]  # fmt: skip
    assert travelled[0] == travelled[1] and not frames
    check_processes(travelled[0])
    assert any(isinstance(event, PartitionLost) for event in travelled[1])
    for events in told:
        came = [event.member.id for event in events if isinstance(event, MemberAdded)]
        gone = [event.member.id for event in events if isinstance(event, MemberRemoved)]
        assert (came, gone) == ([fourth.id], [silent.id])


def test_a_newcomer_and_a_new_master_know_who_listens() -> None:
    """PIM-58: interest outlives the master: the next one tells its events to whoever listens."""
    pump = Pump()
    pump.form(3)
    told = listen(pump.nodes[2])
    pump.run(1)
    pump.kill(pump.nodes[0])
    pump.run(20)
    assert any(isinstance(event, PartitionLost) for event in told)
    check_processes(told)
    told.clear()
    pump.nodes[2].engine.want_events(False, pump.now_us, pump.wall_ms)
    pump.start()
    pump.run(10)
    assert told == []


def test_a_change_of_role_and_of_state_is_told() -> None:
    """GCM-23, GCM-01: promotion is a change of a member, a new state is told with the old one."""
    pump = Pump()
    pump.form(2)
    lite = pump.start(lite=True)
    pump.run(5)
    told = listen(pump.nodes[1])
    lite.engine.want_role(False, lambda error: None, pump.now_us, pump.wall_ms)
    lite.carry_out()
    pump.run(5)
    [changed] = [event for event in told if isinstance(event, MemberChanged)]
    assert (changed.member.id, changed.member.lite) == (lite.id, False)
    members = pump.nodes[1].engine.member.ctx.members
    frozen = msgspec.structs.replace(members, state=ClusterState.FROZEN)
    pump.nodes[1].engine.server.grid.lists_changed(members, frozen)
    pump.nodes[1].carry_out()
    assert told[-1] == StateChanged(ClusterState.ACTIVE, ClusterState.FROZEN)


def test_a_turn_tells_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIM-58: beyond the bound events are dropped and counted; frames are cut to their size."""
    monkeypatch.setattr(grid_module, "EVENTS_PER_TURN_MAX", 3)
    monkeypatch.setattr(grid_module, "EVENTS_PER_FRAME", 2)
    pump = Pump()
    pump.form(2)
    told = listen(pump.nodes[1])
    pump.run(1)
    server = pump.nodes[0].engine.server
    for pid in range(5):
        server.grid.take(PartitionLost(PartitionId(pid), 0, pump.nodes[0].id))
    pump.nodes[0].carry_out()
    pump.settle()
    assert [event.partition_id for event in told if isinstance(event, PartitionLost)] == [0, 1, 2]
    assert server.counters["grid_events_dropped"] == 2
    with pytest.raises(ProtocolError, match="not events"):
        server.peer_frame(pump.nodes[1].id, NOTIFY, b"\x02nonsense")


# -- clients ------------------------------------------------------------------------------


def register(client: Client, name: str, /, **fields: Any) -> bytes:
    registration: bytes = client.call(name, **fields)
    return registration


def test_clients_hear_by_the_protocol() -> None:
    """PIM-58, FN-16: migration and lost listeners of smart and unisocket clients, twice
    registered twice told, removal idempotent; a map's losses only where all copies are gone.
    """
    pump = Pump()
    pump.form(3)
    master, other = pump.nodes[0], pump.nodes[1]
    smart, uni = pump.client(master), pump.client(other, number=2)
    local_elsewhere = pump.client(other, number=3)
    fill(smart, name="b0")
    fill(smart, name="b1")
    for client, local in ((smart, True), (uni, False), (local_elsewhere, True)):
        register(client, "Client.addMigrationListener", local_only=local)
        register(client, "Client.addPartitionLostListener", local_only=local)
    register(uni, "Map.addPartitionLostListener", name="b0", local_only=False)
    twice = register(uni, "Client.addPartitionLostListener", local_only=False)
    pump.run(1)
    pump.kill(pump.nodes[2])
    pump.run(20)
    events = {client: client.taken_events() for client in (smart, uni, local_elsewhere)}
    assert events[local_elsewhere] == []
    lost = [fields for name, kind, fields in events[smart] if kind == "partition_lost"]
    assert lost and all(fields["lost_backup_count"] == 0 for fields in lost)
    kinds = [kind for _, kind, _ in events[uni]]
    assert kinds.count("partition_lost") == 2 * len(lost)
    assert kinds.count("map_partition_lost") == len(lost), "b0 has no backup, b1 has one"
    for client in (smart, uni):
        states = [f for _, kind, f in events[client] if kind == "migration"]
        assert [fields["type"] for fields in states] == [0, 1] * (len(states) // 2) != []
        moved = [f for _, kind, f in events[client] if kind == "replica_migration"]
        assert len(moved) == sum(
            fields["migration_state"].completed_migrations
            for fields in states
            if fields["type"] == 1
        )
        assert all(fields["success"] for fields in moved)
    remove = "Client.removePartitionLostListener"
    assert uni.call(remove, registration_id=twice) is True
    assert uni.call(remove, registration_id=twice) is False
    assert uni.call("Client.triggerPartitionAssignment") == {}


def test_clients_see_where_members_are() -> None:
    """The member list tells a client zone and host of each member."""
    pump = Pump(quick_settings())
    node = pump.start()
    info = msgspec.structs.replace(node.engine.member.ctx.me, zone="z1", host="box")
    assert client_member(info).attributes == {ZONE_ATTRIBUTE: "z1", HOST_ATTRIBUTE: "box"}
