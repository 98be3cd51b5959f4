"""Cluster states in whole engines: what each allows, how one is changed, who returns to a seat."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings
from tests.unit.test_serving_cluster import check_all, copies, fill, get, put, verify

from whimbrel.core import messages as m
from whimbrel.core.ids import MemberId
from whimbrel.core.membership.cluster_state import StateChangeResult
from whimbrel.core.messages import Message
from whimbrel.core.model import ClusterState
from whimbrel.core.safety import Answer, unsafe_because
from whimbrel.core.stimuli import Started
from whimbrel.serialization.data import to_data
from whimbrel.wire.errors import ILLEGAL_STATE

ACTIVE, NO_MIGRATION = ClusterState.ACTIVE, ClusterState.NO_MIGRATION
FROZEN, PASSIVE = ClusterState.FROZEN, ClusterState.PASSIVE
STATES = (ACTIVE, NO_MIGRATION, FROZEN, PASSIVE)
MAPS = "hz:impl:mapService"
WISHES = itertools.count()


def master_of(pump: Pump) -> Node:
    for node in pump.living():
        if node.engine.member.ctx.is_master:
            return node
    raise AssertionError("there is no master")


def wish(pump: Pump, state: ClusterState, name: str = "") -> StateChangeResult:
    """Ask the master, and go on asking until it says what has become of the wish."""
    name = name or f"wish {next(WISHES)}"
    result = StateChangeResult()

    def is_over() -> bool:
        nonlocal result
        master = master_of(pump)
        member = master.engine.member
        member.begin(pump.now_us, pump.wall_ms)
        result = member.membership.change_cluster(name, state)
        master.carry_out()
        pump.settle()
        return result.is_done or bool(result.refusal)

    pump.run_until(is_over, 90)
    return result


def set_state(pump: Pump, state: ClusterState) -> None:
    assert wish(pump, state) == StateChangeResult(is_done=True)
    assert states(pump) == {state}


def states(pump: Pump) -> set[ClusterState]:
    """What the members may do now, each by its own opinion."""
    for node in pump.living():
        node.engine.member.begin(pump.now_us, pump.wall_ms)
    return {node.engine.member.ctx.state for node in pump.living()}


def rows(pump: Pump) -> list[Any]:
    return list(master_of(pump).engine.member.migrations.table.rows)


def settled(pump: Pump) -> tuple[bool, str]:
    return master_of(pump).engine.member.migrations.is_settled()


def unsafe(pump: Pump) -> str:
    """Why the product does not call the cluster safe, as ``status`` would say it."""
    by_id = {node.id: node.engine.member for node in pump.living()}
    for member in by_id.values():
        member.begin(pump.now_us, pump.wall_ms)
    master = master_of(pump).engine.member
    word = master.safety.master_word()
    answers: list[Answer] = []
    for info in master.ctx.members.members:
        asked = by_id.get(info.id)
        silent = f"member {info.address} does not answer"
        answers.append((info, asked.safety.member_word(word.settled) if asked else silent))
    return unsafe_because(word, answers)


def is_safe(pump: Pump) -> bool:
    return not unsafe(pump)


def revive(pump: Pump, node: Node) -> Node:
    """A new process under the identity of a dead one, at its address."""
    fresh = Node(pump, node.number, lite=False)
    pump.nodes[pump.nodes.index(node)] = pump.nodes.pop()  # in its place
    fresh.handle(Started(tuple(other.address for other in pump.nodes)))
    return fresh


def m_started(pump: Pump) -> Any:
    return Started(tuple(other.address for other in pump.nodes))


def losing(pump: Pump, kinds: tuple[type[Message], ...]) -> Callable[[], None]:
    """Lose all messages of these types from now on; the returned function ends that."""
    deliver = pump._deliver

    def pick(sender: Node, to: Any, kind: int, payload: Any) -> None:
        if not isinstance(payload, kinds):
            deliver(sender, to, kind, payload)

    pump._deliver = pick  # type: ignore[method-assign]

    def mend() -> None:
        pump._deliver = deliver  # type: ignore[method-assign]

    return mend


@pytest.fixture
def trio() -> Pump:
    pump = Pump(quick_settings(state_lock_lease_us=20_000_000))
    pump.form(3)
    return pump


# -- what each state allows ---------------------------------------------------------------


def test_names_and_attributes() -> None:
    """GCM-01, GCM-03 to GCM-06, GCM-08: the states in their order, with their attributes."""
    found = [
        (s.value, s.join_allowed, s.migration_allowed, s.promotion_allowed) for s in ClusterState
    ]
    assert found == [
        ("ACTIVE", True, True, True),
        ("NO_MIGRATION", True, False, True),
        ("FROZEN", False, False, False),
        ("PASSIVE", False, False, False),
        ("IN_TRANSITION", False, False, False),
        ("STABLE_CLUSTER", False, True, True),
    ]


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_every_ordered_pair(trio: Pump, before: ClusterState, after: ClusterState) -> None:
    """GCM-11, GCM-13: from every state to every state; nothing moves by that (bug 47)."""
    client = trio.client(trio.nodes[1])
    data = fill(client)
    trio.run(2)
    arranged = rows(trio)
    versions = list(trio.nodes[0].engine.member.migrations.table.versions)
    changes: list[tuple[ClusterState, ClusterState]] = []
    trio.nodes[2].engine.member.on_state_changed = lambda old, new: changes.append((old, new))
    set_state(trio, before)
    set_state(trio, after)
    assert changes == [p for p in ((ACTIVE, before), (before, after)) if p[0] is not p[1]]
    set_state(trio, ACTIVE)
    trio.run(5)
    assert rows(trio) == arranged
    assert list(trio.nodes[0].engine.member.migrations.table.versions) == versions
    assert is_safe(trio)
    verify(client, data)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("migrate", [True, False])
def test_rooms_ask_attributes(
    trio: Pump, monkeypatch: pytest.MonkeyPatch, join: bool, migrate: bool
) -> None:
    """GCM-02: a made-up state with each combination behaves by its attributes, not its name."""
    fill(trio.client(trio.nodes[0]))
    trio.run(2)
    set_state(trio, FROZEN)
    arranged = rows(trio)
    monkeypatch.setattr(ClusterState, "join_allowed", property(lambda _: join))
    monkeypatch.setattr(ClusterState, "migration_allowed", property(lambda _: migrate))
    monkeypatch.setattr(ClusterState, "promotion_allowed", property(lambda _: migrate))
    joiner = trio.start()
    trio.run(10)
    assert joiner.joined is join
    assert (rows(trio) != arranged) is (join and migrate)


def test_no_migration_moves_nothing_and_active_makes_up_for_it(trio: Pump) -> None:
    """GCM-04, GCM-13: two join in NO_MIGRATION and own nothing; ACTIVE gives them their share."""
    client = trio.client(trio.nodes[0])
    data = fill(client)
    trio.run(2)
    set_state(trio, NO_MIGRATION)
    arranged = rows(trio)
    trio.form(2)
    assert all(node.joined for node in trio.nodes)
    assert rows(trio) == arranged
    ready, reason = settled(trio)
    assert not ready and "NO_MIGRATION" in reason and "join" in reason
    verify(client, data)
    set_state(trio, ACTIVE)
    trio.run_until(lambda: is_safe(trio), 30)
    held = {member for row in rows(trio) for member in row if member is not None}
    assert held == {node.id for node in trio.nodes}
    check_all(trio)
    verify(client, data)


def test_no_migration_promotes_and_copies_nothing(trio: Pump) -> None:
    """GCM-04, GCM-08: a primary dies in NO_MIGRATION: promoted, no copy before ACTIVE."""
    client = trio.client(trio.nodes[0])
    data = fill(client)
    trio.run(2)
    set_state(trio, NO_MIGRATION)
    trio.kill(trio.nodes[2])
    trio.run(20)
    assert all(row[0] in (trio.nodes[0].id, trio.nodes[1].id) for row in rows(trio))
    assert 1 in copies(trio, "b1")
    verify(client, data)
    set_state(trio, ACTIVE)
    trio.run_until(lambda: is_safe(trio), 30)
    assert copies(trio, "b1") == [2] * 7
    verify(client, data)


def test_no_migration_gives_lost_partitions_an_owner() -> None:
    """GCM-10: all holders die in NO_MIGRATION: a new empty primary, reported; others stay."""
    pump = Pump()
    pump.form(4)
    client = pump.client(pump.nodes[0])
    fill(client)
    pump.run(2)
    set_state(pump, NO_MIGRATION)
    before = rows(pump)
    gone = {pump.nodes[2].id, pump.nodes[3].id}
    lost = [pid for pid, row in enumerate(before) if {x for x in row if x} <= gone]
    pump.kill(pump.nodes[2])
    pump.kill(pump.nodes[3])
    pump.run(20)
    assert lost, "two of four members hold some partition alone"
    assert master_of(pump).engine.member.migrations.reporter.partitions_lost == len(lost)
    for pid, row in enumerate(rows(pump)):
        survivors = [x for x in before[pid] if x is not None and x not in gone]
        assert row[0] is not None
        if pid not in lost:
            assert [x for x in row if x is not None] == survivors
    for number in range(7):
        put(client, number, "again")
    check_all(pump)


@pytest.mark.parametrize("state", [FROZEN, PASSIVE])
def test_strangers_are_refused_until_active(trio: Pump, state: ClusterState) -> None:
    """GCM-05, GCM-06: nobody new gets in, the refusal names the state; ACTIVE lets it in."""
    fill(trio.client(trio.nodes[0]))
    trio.run(2)
    set_state(trio, state)
    arranged = rows(trio)
    stranger = trio.start()
    trio.run(10)
    assert not stranger.joined and stranger.alive
    refusals = [note for note in stranger.notes if note.kind == "join_refused"]
    assert len(refusals) == 1 and state.value in str(refusals[0].fields["reason"])
    assert rows(trio) == arranged
    set_state_of(trio, ACTIVE, trio.nodes[:3])
    trio.run_until(lambda: stranger.joined, 10)
    trio.run_until(lambda: is_safe(trio), 30)


def set_state_of(pump: Pump, state: ClusterState, nodes: list[Node]) -> None:
    """As ``set_state``, while others run that are no members."""
    assert wish(pump, state) == StateChangeResult(is_done=True)
    assert {node.engine.member.ctx.state for node in nodes} == {state}


ALLOWED = frozenset(
    f"Client.{method}"
    for method in (
        "authentication", "authenticationCustom", "ping", "triggerPartitionAssignment",
        "addClusterViewListener", "localBackupListener", "createProxy", "createProxies",
        "getDistributedObjects", "addDistributedObjectListener",
        "removeDistributedObjectListener", "statistics", "sendSchema", "fetchSchema",
        "sendAllSchemas", "addMigrationListener", "removeMigrationListener",
        "addPartitionLostListener", "removePartitionLostListener",
    )
) | frozenset(
    f"Map.{method}"
    for method in (
        "get", "containsKey", "getAll", "getEntryView", "fetchKeys", "fetchEntries", "size",
        "isEmpty", "containsValue", "keySet", "values", "entrySet", "addEntryListener",
        "addEntryListenerToKey", "removeEntryListener", "addPartitionLostListener",
        "removePartitionLostListener", "isLocked",
    )
) | frozenset(
    f"MultiMap.{method}"
    for method in (
        "get", "containsKey", "containsValue", "containsEntry", "valueCount", "size", "keySet",
        "values", "entrySet", "addEntryListener", "addEntryListenerToKey", "removeEntryListener",
    )
) | frozenset(
    f"Queue.{method}"
    for method in (
        "size", "isEmpty", "remainingCapacity", "peek", "iterator", "contains", "containsAll",
        "addListener", "removeListener",
    )
) | frozenset(
    f"Ringbuffer.{method}"
    for method in (
        "size", "headSequence", "tailSequence", "capacity", "remainingCapacity", "readOne",
        "readMany",
    )
) | {"FlakeIdGenerator.newIdBatch"}  # fmt: skip
"""Requests that run in PASSIVE; the test that walks all requests keeps it complete."""

REFUSED = frozenset(
    f"Map.{method}"
    for method in (
        "put", "set", "remove", "delete", "putIfAbsent", "putWithMaxIdle",
        "putIfAbsentWithMaxIdle", "tryPut", "tryRemove", "replace", "replaceIfSame",
        "removeIfSame", "setTtl", "evict", "putTransient", "setWithMaxIdle",
        "putTransientWithMaxIdle", "putAll", "clear", "evictAll", "flush",
        "lock", "tryLock", "unlock", "forceUnlock",
    )
) | frozenset(
    f"MultiMap.{method}"
    for method in ("put", "putAll", "remove", "removeEntry", "delete", "clear")
) | frozenset(
    f"Queue.{method}"
    for method in (
        "offer", "put", "poll", "take", "remove", "addAll", "compareAndRemoveAll",
        "compareAndRetainAll", "drainTo", "drainToMaxSize", "clear",
    )
) | {"Ringbuffer.add", "Ringbuffer.addAll", "Client.destroyProxy"}  # fmt: skip
"""Requests that change something, named so that a new request is put on one of the two lists."""


def test_every_request_is_allowed_or_refused_in_passive(trio: Pump) -> None:
    """GCM-07: each offered request is on one of the two lists, and PASSIVE guards the one of them
    on every member, shares of whole-map writes included; afterwards nothing is guarded.
    """
    assert not ALLOWED & REFUSED
    set_state(trio, PASSIVE)
    for node in trio.nodes:
        operations = node.engine.server.operations
        offered = [*operations.in_partition.values(), *operations.others.values()]
        assert {row.name for row in offered} == ALLOWED | REFUSED
        assert {row.name for row in offered if row.is_guarded} == REFUSED
        guarded = {row.name for row in operations.shares.values() if row.is_guarded}
        assert guarded == {"clear", "evict_all"}
    set_state(trio, ACTIVE)
    for node in trio.nodes:
        assert not any(row.is_guarded for row in node.engine.server.operations.rows())


def change(client: Client, request: str) -> None:
    if request == "put":
        put(client, 1, "x")
    elif request == "clear":
        client.call("Map.clear", name="b1")
    else:
        client.call("Client.destroyProxy", name="b1", service_name=MAPS)


def test_passive_refuses_writes_and_frozen_does_not(trio: Pump) -> None:
    """GCM-07: in PASSIVE writes and clear fail at once by name, through any member; reads run."""
    clients = [trio.client(node, number=1 + node.number) for node in trio.nodes]
    data = fill(clients[0])
    trio.run(2)
    set_state(trio, FROZEN)
    for client in clients:
        put(client, 1, "value 1")
    set_state(trio, PASSIVE)
    for client in clients:
        for request in ("put", "clear", "destroy"):
            with pytest.raises(Error) as failure:
                change(client, request)
            assert failure.value.code == ILLEGAL_STATE and "PASSIVE" in failure.value.text
        verify(client, data)
    set_state(trio, ACTIVE)
    put(clients[2], 1, "y")


# -- seats --------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_missing_member_returns_to_its_seat(trio: Pump, victim: int) -> None:
    """GCM-09, APR-16: the table stays when a member dies in FROZEN; back under its identity it gets
    its data from the backups before it serves, and no acknowledged write is lost.
    """
    client = trio.client(trio.nodes[(victim + 1) % 3])
    data = fill(client)
    trio.run(2)
    set_state(trio, FROZEN)
    arranged = rows(trio)
    dead = trio.nodes[victim]
    trio.kill(dead)
    trio.run(20)
    assert rows(trio) == arranged
    assert master_of(trio).engine.member.ctx.members.is_missing(dead.id)
    assert "the cluster state is FROZEN" in unsafe(trio), settled(trio)
    served = [number for number in range(70) if arranged[number % 7][0] != dead.id]
    for number in served:
        put(client, number, f"newer {number}")
        data[number] = to_data(f"newer {number}")
    back = revive(trio, dead)
    trio.run_until(lambda: back.joined and is_safe(trio), 40)
    assert rows(trio) == arranged
    verify(client, data)
    check_all(trio)
    put(client, 69, "after")
    data[69] = to_data("after")
    set_state(trio, ACTIVE)
    trio.run_until(lambda: is_safe(trio), 30)
    trio.kill(trio.nodes[(victim + 2) % 3])
    trio.run(25)
    assert master_of(trio).engine.member.migrations.reporter.partitions_lost == 0
    verify(client, data)
    check_all(trio)


def test_what_nobody_has_any_more_is_reported(trio: Pump) -> None:
    """GCM-09, ADL-05: two members die in FROZEN and come back empty: what only they had is lost,
    reported once a partition, and can be written again; the rest is all there.
    """
    client = trio.client(trio.nodes[0])
    data = fill(client)
    trio.run(2)
    set_state(trio, FROZEN)
    dead = trio.nodes[1:]
    gone = {node.id for node in dead}
    lost = {pid for pid, row in enumerate(rows(trio)) if {x for x in row if x} <= gone}
    for node in dead:
        trio.kill(node)
    trio.run(20)
    back = [revive(trio, node) for node in dead]
    trio.run_until(lambda: all(node.joined for node in back) and is_safe(trio), 60)
    assert lost
    counted = sum(node.engine.member.migrations.reporter.partitions_lost for node in trio.nodes)
    assert counted == len(lost)
    kept = {number: value for number, value in data.items() if number % 7 not in lost}
    verify(client, kept)
    for pid in lost:
        put(client, pid, "again")
    check_all(trio)


def test_active_before_the_data_are_back(trio: Pump) -> None:
    """GCM-09, M4: the state allows joining again while a returned member has nothing yet: it loses
    its seats, its backups are promoted, and no write is lost.
    """
    client = trio.client(trio.nodes[0])
    data = fill(client)
    trio.run(2)
    set_state(trio, FROZEN)
    trio.kill(trio.nodes[2])
    trio.run(20)
    mend = losing(trio, (m.RefillRequested, m.SyncRequested))
    back = revive(trio, trio.nodes[2])
    trio.run_until(lambda: back.joined, 20)
    trio.run(3)
    assert back.engine.member.dataplane.roles.seats_without_data()
    set_state(trio, ACTIVE)
    mend()
    trio.run_until(lambda: is_safe(trio), 40)
    assert not back.engine.member.dataplane.roles.seats_without_data()
    assert master_of(trio).engine.member.migrations.reporter.partitions_lost == 0
    verify(client, data)
    assert copies(trio, "b1") == [2] * 7
    check_all(trio)


@pytest.mark.parametrize("state", [NO_MIGRATION, FROZEN, PASSIVE])
def test_a_graceful_leave_needs_no_migration(trio: Pump, state: ClusterState) -> None:
    """GCM-05, GCM-06, GCM-08: a leaver is let go at once; in FROZEN and PASSIVE the table stays,
    in NO_MIGRATION its backups are promoted; nothing that has a backup is lost.
    """
    client = trio.client(trio.nodes[0])
    data = fill(client)
    trio.run(2)
    set_state(trio, state)
    arranged = rows(trio)
    trio.leave(trio.nodes[2], timeout_s=5)
    stopped = trio.nodes[2].stopped
    assert stopped is not None and stopped.exit_status == 0
    trio.run(15)
    assert (rows(trio) == arranged) is (state is not NO_MIGRATION)
    if state is not NO_MIGRATION:
        set_state(trio, ACTIVE)
        trio.run_until(lambda: is_safe(trio), 30)
    verify(client, data)


# -- the change as a transaction ----------------------------------------------------------


def test_refused_while_migrations_run(trio: Pump) -> None:
    """GCM-11, bug 54: while migrations run the change is refused by name and changes nothing."""
    fill(trio.client(trio.nodes[0]))
    trio.run(2)
    mend = losing(trio, (m.TransferAnswered,))
    joiner = trio.start()
    trio.run_until(lambda: joiner.joined, 10)
    trio.run(0.1)
    version = trio.nodes[0].engine.member.ctx.members.version
    result = wish(trio, FROZEN)
    assert "migration" in result.refusal and not result.is_passing
    assert states(trio) == {ACTIVE}
    assert trio.nodes[0].engine.member.ctx.members.version == version
    mend()
    trio.run_until(lambda: is_safe(trio), 60)
    set_state(trio, FROZEN)


def test_another_stamp_refuses_the_change(trio: Pump) -> None:
    """PIM-31, bugs 53 and 54: a member with another table refuses, retryable, and nothing has
    changed anywhere; with the same table it works.
    """
    fill(trio.client(trio.nodes[0]))
    trio.run(2)
    table = trio.nodes[2].engine.member.migrations
    table.table_mark = lambda: 1  # type: ignore[method-assign]
    result = wish(trio, FROZEN)
    assert "table" in result.refusal and result.is_passing
    assert states(trio) == {ACTIVE}
    del table.table_mark
    set_state(trio, FROZEN)


@pytest.mark.parametrize("what", ["due", "table", "lease"])
def test_all_is_checked_again_under_the_locks(trio: Pump, what: str) -> None:
    """PIM-31, GCM-11, FN-14: between the first lock and the last answer a map asks for more
    backups, the table changes, or the locks run out: nothing changes, and everybody goes on.
    """
    client = trio.client(trio.nodes[1])
    data = fill(client)
    trio.run(2)
    mend = losing(trio, (m.StateLockAnswered,))
    master = trio.nodes[0].engine.member
    master.begin(trio.now_us, trio.wall_ms)
    assert master.membership.change_cluster("the wish", FROZEN) == StateChangeResult()
    trio.nodes[0].carry_out()
    trio.settle()
    transaction = master.membership.states._transaction
    assert transaction is not None and len(transaction.waiting) == 2
    table = master.migrations
    if what == "due":
        table.depth_changed(3)
        assert table.pending_work()
    elif what == "table":
        mark = table.table_mark()
        table.table_mark = lambda: mark + 1  # type: ignore[method-assign]
    else:
        transaction.until_us = trio.now_us
    mend()
    for node in trio.nodes[1:]:
        master.begin(trio.now_us, trio.wall_ms)
        answer = m.StateLockAnswered("the wish", "", (), False)
        master.membership.states.on_lock_answered(node.id, answer)
        trio.nodes[0].carry_out()
    trio.settle()
    result = wish(trio, FROZEN, "the wish")
    reason = {"due": "due", "table": "table has changed", "lease": "run out"}[what]
    assert reason in result.refusal and result.is_passing is (what == "table")
    assert states(trio) == {ACTIVE}
    if what == "table":
        del table.table_mark
    trio.run_until(lambda: is_safe(trio), 30)
    set_state(trio, FROZEN)
    verify(client, data)


def test_words_about_another_change_count_for_nothing(trio: Pump) -> None:
    """PIM-31: a yes twice, of a stranger or to another change completes nothing; an unlock of
    another change releases nobody; a request of somebody who is not our master locks nobody.
    """
    fill(trio.client(trio.nodes[1]))
    trio.run(2)
    mend = losing(trio, (m.StateLockAnswered,))
    master = trio.nodes[0].engine.member
    master.begin(trio.now_us, trio.wall_ms)
    master.membership.change_cluster("the wish", FROZEN)
    trio.nodes[0].carry_out()
    trio.settle()
    transactions = master.membership.states
    transaction = transactions._transaction
    assert transaction is not None
    one, other = (node.id for node in trio.nodes[1:])
    for sender, answer in (
        (one, m.StateLockAnswered("another wish", "", (), False)),
        (MemberId("a stranger"), m.StateLockAnswered("the wish", "no", (), False)),
        (one, m.StateLockAnswered("the wish", "", (), False)),
        (one, m.StateLockAnswered("the wish", "no", (), False)),
        (other, m.StateLockAnswered("another wish", "no", (), False)),
    ):
        transactions.on_lock_answered(sender, answer)
    transactions.on_answered(other, m.StateConfirmAnswered("the wish"))
    transactions.on_answered(other, m.StateUnlockAnswered("the wish"))
    assert transactions._transaction is transaction and list(transaction.waiting) == [other]
    assert states(trio) == {ClusterState.IN_TRANSITION}
    locked = trio.nodes[2].engine.member.membership.states
    locked.on_unlock_requested(trio.nodes[0].id, m.StateUnlockRequested("another wish"))
    assert locked._lock == "the wish"
    mend()
    trio.run(5)
    assert states(trio) == {FROZEN}
    set_state(trio, ACTIVE)
    free = trio.nodes[2].engine.member
    free.begin(trio.now_us, trio.wall_ms)
    asked = m.StateLockRequested(
        "mine", free.ctx.members.version, free.migrations.table_mark(), 1_000_000
    )
    free.membership.states.on_lock_requested(one, asked)
    assert states(trio) == {ACTIVE}


@pytest.mark.parametrize("what", ["list", "table", "work", "lock"])
def test_a_member_that_stands_elsewhere_refuses_the_lock(trio: Pump, what: str) -> None:
    """PIM-31: another list, another table, a migration of its own or the lock of another change:
    the member does not stand still; the same lock again is fine and prolongs nothing.
    """
    fill(trio.client(trio.nodes[1]))
    trio.run(2)
    member = trio.nodes[2].engine.member
    member.begin(trio.now_us, trio.wall_ms)
    said: list[m.StateLockAnswered] = []
    member.ctx.send = lambda _to, message: said.append(message)  # type: ignore[method-assign, assignment, arg-type]
    version, mark = member.ctx.members.version, member.migrations.table_mark()
    right = m.StateLockRequested("this", version, mark, 5_000_000)
    wrong = right
    if what == "list":
        wrong = m.StateLockRequested("this", version + 1, mark, 5_000_000)
    elif what == "table":
        wrong = m.StateLockRequested("this", version, mark + 1, 5_000_000)
    elif what == "work":
        member.membership.states.table.local_work = lambda: "busy"  # type: ignore[method-assign]
    else:
        wrong = m.StateLockRequested("that", version, mark, 5_000_000)
        member.membership.states.on_lock_requested(trio.nodes[0].id, right)
        until_us = member.ctx.transition_until_us
        member.begin(trio.now_us + 1_000_000, trio.wall_ms)
        member.membership.states.on_lock_requested(trio.nodes[0].id, right)
        assert [answer.reason for answer in said] == ["", ""]
        assert member.ctx.transition_until_us == until_us
        said.clear()
    member.membership.states.on_lock_requested(trio.nodes[0].id, wrong)
    (answer,) = said
    assert answer.reason and answer.is_passing is (what in ("list", "table"))
    assert (member.ctx.transition_until_us > 0) is (what == "lock")


def test_a_silent_participant_makes_it_fail(trio: Pump) -> None:
    """PIM-31, bug 54: a member that cannot answer: rolled back, everybody may go on; then again."""
    mend = losing(trio, (m.StateLockAnswered,))
    result = wish(trio, PASSIVE)
    assert "do not answer" in result.refusal
    assert states(trio) == {ACTIVE}
    mend()
    set_state(trio, PASSIVE)


def test_a_lost_unlock_ends_with_the_lease(trio: Pump) -> None:
    """PIM-31: what the initiator cannot take back ends by itself when its lease is over."""
    mend = losing(trio, (m.StateLockAnswered, m.StateUnlockRequested))
    result = wish(trio, PASSIVE)
    assert result.refusal
    assert ClusterState.IN_TRANSITION in states(trio)
    trio.run(21)
    assert states(trio) == {ACTIVE}
    mend()
    set_state(trio, PASSIVE)


@pytest.mark.parametrize("who", ["initiator", "participant"])
@pytest.mark.parametrize(
    "point", [m.StateLockRequested, m.StateLockAnswered, m.StateConfirmRequested]
)
def test_somebody_dies_in_the_middle(trio: Pump, who: str, point: type[Message]) -> None:
    """GCM-11, PIM-44, bug 54: initiator or participant dies before the lock, after it, after the
    commit: all survivors end in one state, unlocked, and the next change works.
    """
    client = trio.client(trio.nodes[1])
    data = fill(client)
    trio.run(2)
    mend = losing(trio, (point,))
    member = trio.nodes[0].engine.member
    member.begin(trio.now_us, trio.wall_ms)
    member.membership.change_cluster("the wish", FROZEN)
    trio.nodes[0].carry_out()
    trio.settle()
    trio.kill(trio.nodes[0] if who == "initiator" else trio.nodes[2])
    mend()
    trio.run(30)
    # What was not committed never happened; what was committed is in everybody's list.
    assert states(trio) == {FROZEN if point is m.StateConfirmRequested else ACTIVE}
    set_state(trio, PASSIVE)
    set_state(trio, ACTIVE)
    trio.run_until(lambda: is_safe(trio), 40)
    verify(client, data)


def test_a_change_that_not_everybody_has_excludes_the_next(trio: Pump) -> None:
    """GCM-11: committed but not confirmed, a change is under way still, though nobody is locked."""
    mend = losing(trio, (m.StateConfirmRequested,))
    member = trio.nodes[0].engine.member
    member.begin(trio.now_us, trio.wall_ms)
    member.membership.change_cluster("first", FROZEN)
    trio.nodes[0].carry_out()
    trio.run(1)
    assert states(trio) == {FROZEN}
    assert "under way" in wish(trio, PASSIVE, "second").refusal
    mend()
    assert wish(trio, FROZEN, "first").is_done
    set_state(trio, PASSIVE)


def test_the_same_wish_is_one_change(trio: Pump) -> None:
    """GCM-11: asked again under its name a wish is told its outcome, and nothing begins anew."""
    assert wish(trio, FROZEN, "a").is_done
    version = trio.nodes[0].engine.member.ctx.members.version
    assert wish(trio, FROZEN, "a").is_done
    assert wish(trio, FROZEN, "b").is_done
    assert trio.nodes[0].engine.member.ctx.members.version == version
    assert trio.nodes[1].engine.member.membership.change_cluster("c", ACTIVE).is_passing


def test_reads_wait_for_a_returned_primary(trio: Pump) -> None:
    """GCM-09: until the returned primary has its data, reads of its partitions wait."""
    client = trio.client(trio.nodes[0])
    fill(client)
    trio.run(2)
    set_state(trio, FROZEN)
    dead = trio.nodes[2]
    number = next(pid for pid, row in enumerate(rows(trio)) if row[0] == dead.id)
    trio.kill(dead)
    trio.run(20)
    mend = losing(trio, (m.RefillRequested,))
    back = revive(trio, dead)
    trio.run_until(lambda: back.joined, 20)
    trio.run(1)
    call = client.ask("Map.get", number, name="b1", **key(number))
    trio.run(1)
    assert call not in client.messages
    mend()
    back.engine.member.dataplane.recovery.exchange.link_lost(trio.nodes[0].id)
    back.engine.member.dataplane.recovery.exchange.link_lost(trio.nodes[1].id)
    assert client.answer(call) == to_data(f"value {number}")
    assert get(client, number) == to_data(f"value {number}")


def test_a_returned_backup_stays_without_data_while_the_state_changes(trio: Pump) -> None:
    """GCM-09, ADL-46: a change of state goes by what members said they lack when they were locked;
    a returned backup that gets in step meanwhile does not call itself complete, for its seat will
    be emptied. When the change is rolled back it does.
    """
    fill(trio.client(trio.nodes[0]))
    trio.run(2)
    set_state(trio, FROZEN)
    dead = trio.nodes[2]
    trio.kill(dead)
    trio.run(20)
    mend = losing(trio, (m.VersionsTold, m.TransferSent))
    back = revive(trio, dead)
    trio.run_until(lambda: back.joined, 20)
    held = back.engine.member
    held.begin(trio.now_us, trio.wall_ms)
    held.membership.states._take_lock("a change", 20_000_000)
    lacking = held.dataplane.recovery.lacking
    assert lacking and held.ctx.state is ClusterState.IN_TRANSITION
    mend()
    trio.run(10)
    assert held.ctx.state is ClusterState.IN_TRANSITION
    assert held.dataplane.recovery.lacking == lacking
    trio.run(40)
    assert held.ctx.state is FROZEN and held.dataplane.recovery.lacking == ()


def key(number: int) -> dict[str, Any]:
    return {"key": to_data(f"key {number}"), "thread_id": 1}
