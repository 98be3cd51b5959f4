"""Several engines together: replication, forwarding, whole-map calls, listeners, join, crash.

Everything runs in virtual time over instant ordered delivery (``engine_pump``).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings
from tests.unit.replication_net import map_of

from whimbrel.core.invariants import check_member
from whimbrel.core.stimuli import (
    LeaveWanted,
    LinkFailed,
    LinkLost,
    LinkRestored,
    TimerFired,
)
from whimbrel.serialization.data import to_data
from whimbrel.serving import parking as parking_module
from whimbrel.serving import server as server_module
from whimbrel.serving import session as session_module
from whimbrel.serving.calls import AGE_STEP_US, CALL_TIMEOUT_US

COUNT = 7


def key_of(number: int) -> dict[str, Any]:
    return {"key": to_data(f"key {number}"), "thread_id": 1}


def put(client: Client, number: int, value: Any, name: str = "b1") -> Any:
    return client.call(
        "Map.put", number % COUNT, name=name, **key_of(number), value=to_data(value), ttl=-1
    )


def get(client: Client, number: int, name: str = "b1") -> Any:
    return client.call("Map.get", number % COUNT, name=name, **key_of(number))


def fill(client: Client, count: int = 70, name: str = "b1") -> dict[int, bytes]:
    for number in range(count):
        put(client, number, f"value {number}", name)
    return {number: to_data(f"value {number}") for number in range(count)}


def verify(client: Client, expected: dict[int, bytes], name: str = "b1") -> None:
    wrong = [number for number, value in expected.items() if get(client, number, name) != value]
    assert wrong == []
    assert client.call("Map.size", name=name) == len(expected)


def check_all(pump: Pump) -> None:
    """Every living member is in order, and all have the same table."""
    for node in pump.living():
        check_member(node.engine.member)
    tables = [node.engine.member.migrations.table for node in pump.living()]
    assert all(table.rows == tables[0].rows for table in tables)
    assert all(table.versions == tables[0].versions for table in tables)


def copies(pump: Pump, name: str) -> list[int]:
    """Per partition, on how many living members the map has entries."""
    counts = []
    for pid in range(COUNT):
        held = 0
        for node in pump.living():
            fragment = node.engine.member.dataplane.partitions[pid].fragments.get(map_of(name))
            held += fragment is not None and len(fragment.store) > 0
        counts.append(held)
    return counts


@pytest.fixture
def trio() -> Pump:
    pump = Pump()
    pump.form(3)
    return pump


@pytest.fixture
def telling_trio() -> Pump:
    """Three members whose backups tell backup-aware clients themselves."""
    pump = Pump(quick_settings(backup_acks_to_client=True))
    pump.form(3)
    return pump


def owner(pump: Pump, pid: int) -> Node:
    return next(
        node for node in pump.living() if node.engine.member.dataplane.partitions[pid].is_primary
    )


def test_three_members_share_the_partitions(trio: Pump) -> None:
    """Goal: after joins every partition has one primary and one backup, evenly spread."""
    check_all(trio)
    table = trio.nodes[0].engine.member.migrations.table
    assert sorted(table.primary_count(node.id) for node in trio.nodes) == [2, 2, 3]
    assert all(row[1] is not None and row[2] is None for row in table.rows)


@pytest.mark.parametrize("encoded", [False, True])
def test_a_write_is_on_primary_and_backup(encoded: bool) -> None:
    """Goal: with any member asked, each entry is on exactly two members after the answer."""
    pump = Pump(encoded=encoded)
    pump.form(3)
    client = pump.client(pump.nodes[1])
    expected = fill(client)
    assert copies(pump, "b1") == [2] * COUNT
    for node in pump.nodes:
        verify(pump.client(node, number=node.number + 10), expected)
    check_all(pump)


def test_maps_have_their_own_backup_counts(trio: Pump) -> None:
    """Goal: a map without backups has one copy, one with two has three."""
    client = trio.client(trio.nodes[0])
    fill(client, name="b0 x")
    fill(client, name="b2 x")
    trio.run(10)
    assert copies(trio, "b0 x") == [1] * COUNT
    assert copies(trio, "b2 x") == [3] * COUNT
    check_all(trio)


def test_a_backup_aware_client_has_nothing_to_count(trio: Pump) -> None:
    """Goal: unless it is configured otherwise a member waits for its backups whoever asks: the
    answer comes when they have the write, announces nothing, and nobody is told anything else.
    """
    client = trio.client(owner(trio, 3), smart=True, number=5)
    client.call("Client.localBackupListener")
    correlation = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    assert correlation not in client.messages
    trio.settle()
    assert client.messages[correlation][6] == 0
    assert client.taken_events() == []
    assert copies(trio, "b1")[3] == 2


def test_a_backup_aware_client_counts_acknowledgements(telling_trio: Pump) -> None:
    """Goal: the answer announces one acknowledgement, and the backup's member sends it on the
    client's connection to it; without a connection there the primary passes it on.
    """
    home = owner(telling_trio, 3)
    client = telling_trio.client(home, smart=True, number=5)
    client.call("Client.localBackupListener")
    correlation = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    assert client.messages[correlation][6] == 1
    telling_trio.settle()
    told = client.taken_events()
    assert [fields["source_correlation_id"] for _, _, fields in told] == [correlation]
    row = home.engine.member.migrations.table.rows[3]
    other = next(node for node in telling_trio.nodes if node.id == row[1])
    second = telling_trio.client(other, smart=True, number=5)
    second.call("Client.localBackupListener")
    correlation = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(2), ttl=-1)
    telling_trio.settle()
    assert client.taken_events() == []
    told = second.taken_events()
    assert [fields["source_correlation_id"] for _, _, fields in told] == [correlation]


def test_a_client_without_backup_listener_is_not_asked_to_count(telling_trio: Pump) -> None:
    """Goal: a flagged request on a connection without the listener waits for the backup here."""
    client = telling_trio.client(owner(telling_trio, 3), smart=True)
    correlation = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    assert correlation not in client.messages
    telling_trio.settle()
    assert client.messages[correlation][6] == 0


def test_a_backup_that_dies_is_counted_for_the_client(telling_trio: Pump) -> None:
    """Goal: a backup-aware client never waits for a dead backup's acknowledgement."""
    home = owner(telling_trio, 3)
    client = telling_trio.client(home, smart=True, number=5)
    client.call("Client.localBackupListener")
    row = home.engine.member.migrations.table.rows[3]
    backup = next(node for node in telling_trio.nodes if node.id == row[1])
    backup.alive = False
    correlation = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    assert client.messages[correlation][6] == 1
    telling_trio.settle()
    assert client.taken_events() == []
    telling_trio.kill(backup)
    telling_trio.run(5)
    told = client.taken_events()
    assert [fields["source_correlation_id"] for _, _, fields in told] == [correlation]


def test_whole_map_calls_count_every_partition_once(trio: Pump) -> None:
    """Goal: size, sets and clear through any member see the whole map."""
    expected = fill(trio.client(trio.nodes[0]))
    for node in trio.nodes:
        client = trio.client(node, number=node.number + 10)
        assert client.call("Map.size", name="b1") == len(expected)
        assert sorted(client.call("Map.values", name="b1")) == sorted(expected.values())
        keys = client.call("Map.keySet", name="b1")
        assert sorted(keys) == sorted(key_of(number)["key"] for number in expected)
        assert client.call("Map.containsValue", name="b1", value=expected[5]) is True
    trio.client(trio.nodes[1]).call("Map.clear", name="b1")
    assert trio.client(trio.nodes[2]).call("Map.isEmpty", name="b1") is True
    assert copies(trio, "b1") == [0] * COUNT


@pytest.mark.parametrize("smart", [True, False])
def test_each_change_is_told_exactly_once(trio: Pump, smart: bool) -> None:
    """Goal: a smart client with local listeners everywhere and a unisocket client with one
    cluster-wide listener hear every change once; also after a member came.
    """
    listening = [
        trio.client(node, smart=smart, number=9)
        for node in (trio.nodes if smart else trio.nodes[:1])
    ]
    filter_ = {"include_value": True, "listener_flags": 1 | 2 | 4 | 64, "local_only": smart}
    for client in listening:
        client.call("Map.addEntryListener", name="b1", **filter_)
    writer = trio.client(trio.nodes[2], number=8)

    def heard() -> list[tuple[int, bytes | None]]:
        trio.settle()
        return sorted(
            (fields["event_type"], fields["key"] or b"")
            for client in listening
            for _, _, fields in client.taken_events()
        )

    fill(writer, 20)
    keys = sorted(key_of(number)["key"] for number in range(20))
    assert heard() == [(1, key) for key in keys]
    for number in range(20):
        put(writer, number, "again")
        writer.call("Map.remove", number % COUNT, name="b1", **key_of(number))
    assert heard() == [(2, key) for key in keys] + [(4, key) for key in keys]
    fill(writer, 20)
    heard()
    writer.call("Map.clear", name="b1")
    assert heard() == [(64, b"")]
    if not smart:
        trio.start()
        trio.run(10)
        fill(writer, 20)
        assert heard() == [(1, key) for key in keys]


def test_a_key_listener_that_is_gone_hears_nothing(trio: Pump) -> None:
    """Goal: interest in events ends on all members when the last listener does."""
    client = trio.client(trio.nodes[0])
    registration = client.call(
        "Map.addEntryListener", name="b1", include_value=True, listener_flags=1, local_only=False
    )
    trio.settle()
    assert all(
        node.engine.member.dataplane.events.listened.get(map_of("b1")) == 1 for node in trio.nodes
    )
    client.call("Map.removeEntryListener", name="b1", registration_id=registration)
    trio.settle()
    assert all(
        map_of("b1") not in node.engine.member.dataplane.events.listened for node in trio.nodes
    )


def test_a_joining_member_gets_its_share_and_nothing_is_lost(trio: Pump) -> None:
    """Goal: data move to a fourth member, every entry stays readable through every member."""
    expected = fill(trio.client(trio.nodes[0]), 140)
    newcomer = trio.start()
    trio.run_until(lambda: newcomer.joined, 30)
    trio.run(10)
    check_all(trio)
    table = newcomer.engine.member.migrations.table
    assert sorted(table.primary_count(node.id) for node in trio.nodes) == [1, 2, 2, 2]
    assert copies(trio, "b1") == [2] * COUNT
    for node in trio.nodes:
        verify(trio.client(node, number=node.number + 10), expected)


def test_writes_go_on_while_a_member_joins(trio: Pump) -> None:
    """Goal: every write during a rebalancing is answered without an error and stays."""
    client = trio.client(trio.nodes[1])
    expected = fill(client, 70)
    trio.start()
    for number in range(70, 210):
        put(client, number, f"value {number}")
        expected[number] = to_data(f"value {number}")
        trio.run(0.02)
    trio.run(10)
    verify(client, expected)
    check_all(trio)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_member_loses_nothing(trio: Pump, victim: int) -> None:
    """Goal: after kill -9 of any member, the master too, all entries are there, with backups."""
    survivors = [node for node in trio.nodes if node is not trio.nodes[victim]]
    expected = fill(trio.client(survivors[0]))
    trio.kill(trio.nodes[victim])
    trio.run(30)
    check_all(trio)
    for node in survivors:
        assert len(node.engine.member.ctx.members.members) == 2
        verify(trio.client(node, number=node.number + 20), expected)
    assert copies(trio, "b1") == [2] * COUNT


@pytest.mark.parametrize("leaver", [0, 2])
def test_a_graceful_leave_keeps_maps_without_backup(trio: Pump, leaver: int) -> None:
    """Goal: a leaving member hands over even what has no backup, then stops with status 0."""
    others = [node for node in trio.nodes if node is not trio.nodes[leaver]]
    client = trio.client(others[0])
    expected = fill(client, name="b0 x")
    trio.leave(trio.nodes[leaver])
    stopped = trio.nodes[leaver].stopped
    assert stopped is not None
    assert stopped.exit_status == 0
    trio.run(10)
    verify(client, expected, name="b0 x")
    check_all(trio)


@pytest.mark.parametrize("with_lite", [False, True], ids=["alone", "beside a lite master"])
def test_the_last_member_leaves_while_another_joins(with_lite: bool) -> None:
    """Goal: a graceful leave never takes the data along while there is somebody to have it (P12).
    Method: the only data member leaves, another joins a little earlier or later, copies take their
    time; if it came into this cluster before the leaver ended it has everything.
    """
    outcomes = []
    slow = quick_settings(migration_interval_us=200_000, migration_max_parallel=1)
    for lead_ms in (-200, -50, 0, 60, 110, 180, 204, 260):
        pump = Pump(slow)
        if with_lite:
            pump.start(lite=True)
            pump.run(2)
        leaver = pump.start()
        pump.run(5)
        expected = fill(pump.client(leaver), name="b0 x")
        if lead_ms < 0:
            joiner = pump.start()
            pump.run(-lead_ms / 1_000)
        leaver.handle(LeaveWanted())
        pump.run(max(0, lead_ms) / 1_000)
        if lead_ms >= 0:
            joiner = pump.start()
        pump.run_until(lambda: not leaver.alive and joiner.joined, 60)  # noqa: B023
        pump.run(5)
        assert leaver.stopped is not None and leaver.stopped.exit_status == 0
        was_beside = leaver.engine.member.ctx.is_member(joiner.id)
        outcomes.append(was_beside)
        if was_beside:
            verify(pump.client(joiner), expected, name="b0 x")
            check_all(pump)
    assert True in outcomes and False in outcomes


def test_a_request_forwarded_to_a_member_that_dies(trio: Pump) -> None:
    """Goal: a read is run again elsewhere, a write's outcome is told to be unknown."""
    home = owner(trio, 3)
    other = next(node for node in trio.nodes if node is not home)
    client = trio.client(other)
    put(client, 3, "v")
    home.alive = False
    read = client.ask("Map.get", 3, name="b1", **key_of(3))
    write = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(2), ttl=-1)
    trio.settle()
    assert read not in client.messages
    assert write not in client.messages
    trio.kill(home)
    assert client.answer(read) == to_data("v")
    with pytest.raises(Error) as caught:
        client.answer(write)
    assert caught.value.code == 80


@pytest.mark.parametrize("news", [LinkLost, LinkFailed])
def test_a_request_that_never_left_waits_for_the_next_primary(
    trio: Pump, news: type[LinkLost | LinkFailed]
) -> None:
    """0013: the primary died and its link is known to be down, but it is on the list still. What is
    asked meanwhile is carried out by the next primary, once; what had left before stays unknown.
    """
    home, other = owner(trio, 3), next(n for n in trio.nodes if n is not owner(trio, 3))
    client = trio.client(other)
    put(client, 3, "v")
    home.alive = False
    early = client.ask("Map.put", 3, name="b1", **key_of(10), value=to_data(1), ttl=-1)
    trio.settle()
    other.engine.member.membership.on_link_failed = lambda member: None  # type: ignore[method-assign]
    other.handle(news(home.id))
    del other.engine.member.membership.on_link_failed
    late = client.ask("Map.putIfAbsent", 3, name="b1", **key_of(17), value=to_data(2), ttl=-1)
    old = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data("w"), ttl=-1)
    clear = client.ask("Map.clear", name="b1 other")
    trio.settle()
    assert not client.messages
    trio.kill(home)
    assert client.answer(late) is None
    assert client.answer(old) == to_data("v")
    assert client.answer(clear) == {}
    with pytest.raises(Error) as caught:
        client.answer(early)
    assert caught.value.code == 80
    assert get(client, 17) == to_data(2)
    trio.run(10)
    check_all(trio)


def test_a_request_that_cannot_leave_is_refused_in_the_end(trio: Pump) -> None:
    """C1, 0013: the primary is on the list and the link to it stays down. After a while the client
    hears that nothing has happened, and nothing happens later when the link stands again.
    """
    home, other = owner(trio, 3), next(n for n in trio.nodes if n is not owner(trio, 3))
    client = trio.client(other)
    other.handle(LinkLost(home.id))
    write = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(2), ttl=-1)
    trio.queue.clear()
    trio.run((CALL_TIMEOUT_US + AGE_STEP_US) // 1_000_000 + 1)
    with pytest.raises(Error, match="was not sent") as caught:
        client.answer(write, 0)
    assert caught.value.code == 46
    other.handle(LinkRestored(home.id))
    trio.run(1)
    assert get(client, 3) is None


def test_a_forwarded_request_to_a_member_that_never_answers_ends(trio: Pump) -> None:
    """C1: a forwarded call ends in bounded time though nobody leaves the list.

    Method: a member's heartbeats go on and its answers are lost, as when the way between two that
    are not master is cut. A read ends as timed out, a write as of unknown outcome, and nothing of
    either is kept; a listener's registration ends and the note to that member is kept.
    """
    silent, asked = trio.nodes[1], trio.nodes[2]
    number = next(pid for pid in range(COUNT) if owner(trio, pid) is silent)
    client = trio.client(asked)
    take = silent.engine.server.calls.take_request
    silent.engine.server.calls.take_request = lambda peer, payload: None  # type: ignore[method-assign]
    read = client.ask("Map.get", number, name="b1", **key_of(number))
    write = client.ask("Map.put", number, name="b1", **key_of(number), value=to_data(2), ttl=-1)
    fields = {"include_value": True, "listener_flags": 1, "local_only": False}
    listen = client.ask("Map.addEntryListener", name="b1", **fields)
    trio.run(CALL_TIMEOUT_US // 1_000_000 - 1)
    assert not client.messages
    trio.run(AGE_STEP_US // 1_000_000 + 2)
    for correlation, code in ((read, 38), (write, 80)):
        with pytest.raises(Error, match="has not answered") as caught:
            client.answer(correlation, 0)
        assert caught.value.code == code
    assert client.answer(listen, 0)
    assert asked.engine.server.calls.waiting_count() == 1
    silent.engine.server.calls.take_request = take  # type: ignore[method-assign]
    asked.engine.server.calls.link_restored(silent.id)
    asked.carry_out()
    trio.run(1)
    assert asked.engine.server.calls.waiting_count() == 0
    put(client, number, 3)
    assert len(client.taken_events()) == 1


def test_views_follow_members_and_owners(trio: Pump) -> None:
    """Goal: a registered client learns of a join and of the new owners, in rising versions."""
    client = trio.client(trio.nodes[0])
    client.call("Client.addClusterViewListener")
    client.taken_events()
    newcomer = trio.start()
    trio.run(10)
    events = client.taken_events()
    members = [fields for _, event, fields in events if event == "members_view"]
    tables = [fields for _, event, fields in events if event == "partitions_view"]
    assert len(members[-1]["member_infos"]) == 4
    versions = [fields["version"] for fields in tables]
    assert versions == sorted(set(versions))
    owned = {member.hex(): pids for member, pids in tables[-1]["partitions"]}
    table = newcomer.engine.member.migrations.table
    assert {pid for pids in owned.values() for pid in pids} == set(range(COUNT))
    for member, pids in owned.items():
        assert all(str(table.rows[pid][0]).replace("-", "") == member for pid in pids)


def test_schemas_and_structures_reach_every_member(trio: Pump) -> None:
    """Goal: what one member was told, every other one knows when the client is answered."""
    client = trio.client(trio.nodes[0])
    client.call("Client.createProxy", name="b2 x", service_name="hz:impl:mapService")
    for node in trio.nodes:
        found = trio.client(node, number=node.number + 30).call("Client.getDistributedObjects")
        assert [info.name for info in found] == ["b2 x"]
    trio.run(10)
    rows = trio.nodes[0].engine.member.migrations.table.rows
    assert all(row[2] is not None for row in rows), "rows became deeper for the deeper map"
    newcomer = trio.start()
    trio.run(10)
    found = trio.client(newcomer, number=40).call("Client.getDistributedObjects")
    assert [info.name for info in found] == ["b2 x"]


def test_a_lite_member_serves_clients_and_holds_nothing() -> None:
    """Goal: a lite member forwards everything; with lite members only there is a clear error."""
    pump = Pump()
    lite = pump.start(lite=True)
    pump.run(2)
    client = pump.client(lite)
    with pytest.raises(Error) as caught:
        put(client, 1, 1)
    assert caught.value.code == 67
    pump.start()
    pump.run(5)
    expected = fill(client)
    verify(client, expected)
    assert lite.engine.member.migrations.table.replica_count(lite.id) == 0
    check_all(pump)


def test_questions_are_answered_by_others(trio: Pump) -> None:
    """Goal: a question to another member is answered with its document, or an error sentence."""
    first, second = trio.nodes[0], trio.nodes[1]
    second.engine.questions.documents["who"] = lambda arguments: b'"second"' + arguments
    call = first.engine.ask(second.id, "who", b"{}", trio.now_us, trio.wall_ms)
    first.carry_out()
    trio.settle()
    assert first.answers[call].document == b'"second"{}'
    call = first.engine.ask(None, "nothing", b"{}", trio.now_us, trio.wall_ms)
    first.carry_out()
    trio.settle()
    assert "nothing" in first.answers[call].error
    second.alive = False
    call = first.engine.ask(second.id, "who", b"{}", trio.now_us, trio.wall_ms)
    first.carry_out()
    trio.run(6)
    assert first.answers[call].error


def test_a_write_to_a_migrating_partition_waits_and_runs(trio: Pump) -> None:
    """Goal: GCM-31, GCM-32: while the flag is set reads go on and writes wait; when it is off the
    waiting writes run in order, also those that other members sent on.
    """
    home = owner(trio, 3)
    other = next(node for node in trio.nodes if node is not home)
    client, far = trio.client(home), trio.client(other, number=2)
    put(client, 3, "before")
    plane = home.engine.member.dataplane
    plane.partitions[3].set_migrating(True)
    fields = {"name": "b1", **key_of(3), "ttl": -1}
    first = client.ask("Map.put", 3, **fields, value=to_data("first"))
    second = far.ask("Map.put", 3, **fields, value=to_data("second"))
    trio.run(1)
    assert get(client, 3) == to_data("before")
    assert first not in client.messages
    assert second not in far.messages
    assert home.engine.metrics()["parked_requests"] == 2
    plane.roles.end_source(plane.partitions[3].pid)
    home.engine.handle(TimerFired("any", 0), trio.now_us, trio.wall_ms)
    home.carry_out()
    assert client.answer(first) == to_data("before")
    assert far.answer(second) == to_data("first")
    assert get(client, 3) == to_data("second")


def test_a_write_that_waits_too_long_may_be_repeated(trio: Pump) -> None:
    """Goal: after ``backup_timeout`` a parked write is refused with the error that clients repeat,
    and it has had no effect.
    """
    home = owner(trio, 3)
    client = trio.client(home)
    home.engine.member.dataplane.partitions[3].set_migrating(True)
    write = client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    trio.run(11)
    with pytest.raises(Error) as caught:
        client.answer(write)
    assert caught.value.code == 39
    assert get(client, 3) is None


def test_a_full_lot_refuses_at_once(trio: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a bounded number of writes waits; the next is refused with the repeatable error."""
    monkeypatch.setattr(parking_module, "PARKED_MAX", 5)
    home = owner(trio, 3)
    client = trio.client(home)
    home.engine.member.dataplane.partitions[3].set_migrating(True)
    writes = [
        client.ask("Map.put", 3, name="b1", **key_of(number), value=to_data(1), ttl=-1)
        for number in range(6)
    ]
    with pytest.raises(Error) as caught:
        client.answer(writes[-1])
    assert caught.value.code == 39
    assert home.engine.metrics()["parked_requests"] == 5


def test_one_connection_cannot_take_all_room(trio: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: requests of one connection that wait are bounded; others go on."""
    for module in (server_module, session_module):
        monkeypatch.setattr(module, "IN_FLIGHT_MAX", 5)
    home = owner(trio, 3)
    client = trio.client(home)
    home.engine.member.dataplane.partitions[3].set_migrating(True)
    for number in range(5):
        client.ask("Map.put", 3, name="b1", **key_of(number), value=to_data(1), ttl=-1)
    with pytest.raises(Error) as caught:
        put(client, 3, 1)
    assert caught.value.code == 20
    other = trio.client(home, number=2)
    assert get(other, 3) is None


def test_a_request_of_a_client_that_is_gone_is_dropped(trio: Pump) -> None:
    """Goal: a parked write whose connection ended has no effect."""
    home = owner(trio, 3)
    client = trio.client(home)
    plane = home.engine.member.dataplane
    plane.partitions[3].set_migrating(True)
    client.ask("Map.put", 3, name="b1", **key_of(3), value=to_data(1), ttl=-1)
    home.engine.client_closed(client.conn)
    plane.roles.end_source(plane.partitions[3].pid)
    trio.run(1)
    assert get(trio.client(home, number=2), 3) is None
    assert home.engine.metrics()["parked_requests"] == 0


def test_a_whole_map_call_to_a_silent_member_ends(trio: Pump) -> None:
    """Goal: a whole-map call never waits for ever. Method: a member takes everything in and
    answers nothing, but its heartbeats go on (it is merely not delivered frames).
    """
    client = trio.client(trio.nodes[0])
    fill(client, 20)
    silent = trio.nodes[1].engine
    silent.server.calls.take_request = lambda peer, payload: None  # type: ignore[method-assign]
    size = client.ask("Map.size", name="b1")
    trio.run(29)
    assert size not in client.messages
    trio.run(2)
    with pytest.raises(Error, match="silent") as caught:
        client.answer(size)
    assert caught.value.code == 38
    assert trio.nodes[0].engine.metrics()["whole_map_calls"] == 0
