"""What a member tells about itself and how that becomes the cluster's documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from tests.unit.admin_fakes import RECOVERY, FakeNode, as_node, fakes, recovers, say_persistent
from tests.unit.engine_pump import Client, Pump, member_id, quick_settings

from whimbrel.admin import documents as documents_module
from whimbrel.admin.documents import ChangeRefusedError, ClusterDocuments, MemberUnknownError
from whimbrel.errors import GridError, OperationError, UsageError
from whimbrel.serialization.data import to_data
from whimbrel.structures.map.settings import MapSettings

T = TypeVar("T")
COUNT = 7


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def put(client: Client, number: int, name: str = "b1") -> None:
    client.call(
        "Map.put",
        number % COUNT,
        name=name,
        key=to_data(f"key {number}"),
        thread_id=1,
        value=to_data("x" * 100),
        ttl=-1,
    )


def formed(count: int, **settings: Any) -> tuple[Pump, list[FakeNode]]:
    pump = Pump(quick_settings(**settings))
    pump.form(count)
    return pump, fakes(pump)


def of(fake: FakeNode) -> ClusterDocuments:
    return ClusterDocuments(as_node(fake))


def own(fake: FakeNode, what: str) -> Any:
    return run(fake.ask(fake.member_id, what))


def test_members_and_partitions_have_the_agreed_shape() -> None:
    """Goal: the members and partitions documents hold what scripts rely on. Method: two members;
    order, master, addresses, trimmed rows, a stamp that both share.
    """
    _, (first, second) = formed(2)
    members = own(second, "members")
    assert [row["uuid"] for row in members] == [member_id(1), member_id(2)]
    assert [row["master"] for row in members] == [True, False]
    assert members[0]["address"] == "127.0.0.1:5701"
    tables = [own(fake, "partitions") for fake in (first, second)]
    assert tables[0] == tables[1]
    assert tables[0]["count"] == len(tables[0]["rows"]) == COUNT
    assert isinstance(tables[0]["stamp"], str)
    assert all(len(row["replicas"]) == 2 and row["version"] > 0 for row in tables[0]["rows"])


def test_a_settled_cluster_is_safe_and_every_member_says_so() -> None:
    """Goal: ``safe`` through any member. Method: three members at rest."""
    _, nodes = formed(3)
    for fake in nodes:
        found = run(of(fake).status())
        assert (found["state"], found["safe"], found["reason"]) == ("ACTIVE", True, "")
        assert found["members"] == 3
        assert found["migrations"] == documents_module.NO_PROCESS
        assert found["partitions_lost"] == 0


def test_safe_is_false_from_the_join_until_the_share_has_arrived() -> None:
    """Goal: after a join ``safe`` stays false until rebalancing is over, and the joiner alone is
    not ready meanwhile. Method: slow migrations, a third member.
    """
    pump, _ = formed(2, migration_interval_us=500_000)
    node = pump.start()
    pump.run_until(lambda: node.joined, 30)
    nodes = fakes(pump)
    status = run(of(nodes[0]).status())
    assert not status["safe"]
    assert status["reason"]
    assert status["migrations"]["planned"] > 0
    assert status["migrations"]["active"] + status["migrations"]["queued"] > 0
    ready = own(nodes[2], "readiness")
    assert not ready["ready"]
    assert "arrived" in ready["reason"] or "way" in ready["reason"]
    while not run(of(nodes[0]).status())["safe"]:
        assert not own(nodes[2], "readiness")["ready"] or pump.now_us > 10_000_000
        pump.run(0.25)
    assert [own(fake, "readiness")["ready"] for fake in nodes] == [True] * 3
    found = run(nodes[0].ask(None, "migrations"))
    assert found["current"] is None
    assert found["history"][-1]["completed"] == found["history"][-1]["planned"] > 0


def test_readiness_asks_nobody() -> None:
    """Goal: a probe is answered although the master is silent. Method: the other member gone."""
    pump, (_, second) = formed(2)
    asked = len(second.asked)
    pump.nodes[0].alive = False
    assert own(second, "readiness")["ready"]
    assert second.asked[asked:] == [(second.member_id, "readiness")]


def test_a_lite_member_is_ready_and_a_leaving_one_is_not() -> None:
    """Goal: readiness follows what a member should hold. Method: a lite member holds nothing; a
    member that was told to leave holds too much.
    """
    pump = Pump()
    pump.form(2)
    pump.start(lite=True)
    pump.run(10)
    nodes = fakes(pump)
    assert own(nodes[2], "readiness") == {"ready": True, "reason": ""}
    assert run(of(nodes[0]).status())["safe"]
    pump.nodes[1].engine.member.membership.leave.is_wanted = True
    assert not own(nodes[1], "readiness")["ready"]


def test_a_silent_master_makes_status_unsafe_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: ``safe`` is false with a reason when the master is not heard; the answer comes within
    the time limit. Method: the master's answers do not come.
    """
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    _, (first, second) = formed(2)
    second.silent[first.member_id] = None
    found = run(of(second).status())
    assert not found["safe"]
    assert "master" in found["reason"]
    assert found["members"] == 2
    assert found["migrations"] == documents_module.NO_PROCESS


def test_a_silent_member_makes_status_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a dead member that nobody has noticed yet is not safe. Method: it does not answer."""
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    _, (first, second) = formed(2)
    first.silent[second.member_id] = None
    assert "127.0.0.1:5702 does not answer" in run(of(first).status())["reason"]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("list_version", 99, "member list"),
        ("stamp", "1", "table"),
        ("unsettled", 3, "3 replicas may not be in step"),
        ("announcing", 1, "announcing"),
    ],
)
def test_every_member_must_agree(field: str, value: object, word: str) -> None:
    """Goal: safe means that every member has the same list and table and is in step. Method: one
    member's answer is spoiled in one field.
    """
    _, (first, second) = formed(2)
    good = run(first.ask(second.member_id, "safety"))
    first.spoiled[second.member_id, "safety"] = {**good, field: value}
    found = run(of(first).status())
    assert not found["safe"]
    assert word in found["reason"]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("settled", False, "because"),
        ("holes", 2, "2 replicas are missing"),
        ("members", ["somebody"], "changing"),
    ],
)
def test_the_master_must_be_at_rest(field: str, value: object, word: str) -> None:
    """Goal: safe needs a settled master with full rows and our list. Method: spoil one field."""
    _, (first, _) = formed(2)
    good = run(first.ask(None, "master"))
    first.spoiled[None, "master"] = {**good, "reason": "because", field: value}
    found = run(of(first).status())
    assert not found["safe"]
    assert word in found["reason"]


def test_missing_replicas_are_counted() -> None:
    """Goal: a hole is no safety. Method: rows shorter than the depth, in all rows and in those of
    one member.
    """
    _, (first, _) = formed(2)
    table = first.engine.member.migrations.table
    row = table.rows[0]
    table.set_row(0, (row[0], *(None,) * 6), table.versions[0] + 1)
    assert run(first.ask(None, "master"))["holes"] == 1
    assert not run(of(first).status())["safe"]


def test_structures_count_primaries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: entries of a map are those of all members together, copies not counted. Method: two
    maps with different backups, three members, names asked in pieces of one.
    """
    monkeypatch.setattr(documents_module, "NAMES_PER_QUESTION", 1)
    pump, nodes = formed(3)
    client = pump.client(pump.nodes[0])
    for number in range(50):
        put(client, number)
    put(client, 1, "b2 deep")
    pump.run(5)
    for fake in nodes:
        rows = {row["name"]: row for row in run(of(fake).structures())}
        assert {name: row["entries"] for name, row in rows.items()} == {"b1": 50, "b2 deep": 1}
        assert {name: row["backups"] for name, row in rows.items()} == {"b1": 1, "b2 deep": 2}
        assert rows["b1"]["kind"] == "map"
        assert rows["b1"]["bytes"] > 50 * 100


def test_a_structure_without_entries_is_there() -> None:
    """Goal: an emptied map is listed with zeros. Method: put and clear."""
    pump, (fake,) = formed(1)
    client = pump.client(pump.nodes[0])
    put(client, 1)
    client.call("Map.clear", name="b1")
    rows = run(of(fake).structures())
    assert [(row["name"], row["entries"], row["bytes"]) for row in rows] == [("b1", 0, 0)]


def test_structures_need_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a count that lacks a member's share is not told. Method: one member is silent."""
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    pump, (first, second) = formed(2)
    put(pump.client(pump.nodes[0]), 1)
    first.silent[second.member_id] = None
    with pytest.raises(OperationError, match=r"127\.0\.0\.1:5702"):
        run(of(first).structures())


def test_too_many_names_are_refused() -> None:
    """Goal: no question makes an answer without bound. Method: one name too many, and nonsense."""
    _, (fake,) = formed(1)
    names = [str(number) for number in range(1_001)]
    with pytest.raises(OperationError, match="1000"):
        run(fake.ask(fake.member_id, "sizes", {"namespaces": names}))
    with pytest.raises(OperationError, match="understand"):
        run(fake.ask(fake.member_id, "sizes", {"namespaces": 3}))


def test_events_of_all_members_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: ``events`` is the cluster's, oldest first, with who told it; a silent member's are
    left out. Method: notes of two members.
    """
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    _, (first, second) = formed(2)
    first.events = [{"at": "2026-01-01T00:00:01", "kind": "a"}, {"at": "2026-01-03", "kind": "c"}]
    second.events = [{"at": "2026-01-02", "kind": "b", "partition": 5}]
    found = run(of(first).events())
    assert [(event["kind"], event["member"]) for event in found] == [
        ("a", first.member_id),
        ("b", second.member_id),
        ("c", first.member_id),
    ]
    first.silent[second.member_id] = None
    assert [event["kind"] for event in run(of(first).events())] == ["a", "c"]


def test_plan_counts_bytes_of_what_would_be_copied() -> None:
    """Goal: ``bytes`` is the data of the partitions that would be copied; the same question has
    the same answer; nothing changes. Method: a join on a cluster with data, and one without.
    """
    pump, nodes = formed(2, migration_interval_us=100_000)
    empty = run(of(nodes[1]).plan(1, [], []))
    assert empty["bytes"] == 0
    client = pump.client(pump.nodes[0])
    for number in range(70):
        put(client, number)
    pump.run(1)
    before = own(nodes[0], "partitions")
    plan = run(of(nodes[1]).plan(1, [], []))
    assert plan == run(of(nodes[0]).plan(1, [], []))
    assert own(nodes[0], "partitions") == before
    assert plan["copies"] == plan["lower_bound_copies"] == 2 * COUNT // 3
    total = sum(row["bytes"] for row in run(of(nodes[0]).structures()))
    assert 0 < plan["bytes"] < 2 * total
    assert "copied" not in plan
    pump.start()
    pump.run(20)
    history = run(nodes[0].ask(None, "migrations"))["history"]
    assert history[-1]["copies"] == plan["copies"]
    assert run(of(nodes[0]).plan(1, [], []))["estimate_s"] is not None


def test_plan_names_unknown_members_and_senseless_questions() -> None:
    """Goal: a plan for nobody is a mistake to be told. Method: unknown member, no question, too
    many, a member twice.
    """
    _, (first, _) = formed(2)
    cluster = of(first)
    with pytest.raises(MemberUnknownError, match="nobody"):
        run(cluster.plan(0, ["nobody"], []))
    with pytest.raises(UsageError):
        run(cluster.plan(0, [], []))
    with pytest.raises(GridError, match="1000"):
        run(cluster.plan(5_000, [], []))
    with pytest.raises(GridError, match="only once"):
        run(cluster.plan(0, [member_id(2)], ["127.0.0.1:5702"]))


def test_shutdown_through_another_member_loses_nothing() -> None:
    """Goal: an operator makes a member leave from anywhere, by uuid or address. Method: three
    members, a map without backups, the third leaves through the second.
    """
    pump, nodes = formed(3)
    client = pump.client(pump.nodes[0])
    for number in range(40):
        put(client, number, "b0")
    found = run(of(nodes[1]).shutdown("127.0.0.1:5703"))
    assert found["member"] == member_id(3)
    pump.run_until(lambda: not pump.nodes[2].alive, 60)
    pump.run(5)
    assert client.call("Map.size", name="b0") == 40
    assert run(of(nodes[0]).status())["members"] == 2
    with pytest.raises(MemberUnknownError):
        run(of(nodes[1]).shutdown(member_id(3)))


def test_an_order_to_leave_reaches_only_whom_it_names() -> None:
    """Goal: an order never reaches a successor with the same address (P12). Method: ask one
    member with another's name.
    """
    pump, (first, second) = formed(2)
    with pytest.raises(OperationError, match="not member"):
        run(first.ask(second.member_id, "leave", {"member": first.member_id}))
    pump.run(5)
    assert all(node.alive for node in pump.nodes)


def test_an_order_that_gets_no_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an operator learns that nobody can say whether the order arrived; one whose member
    has left meanwhile is done. Method: a silent member, then one that dies with the question.
    """
    monkeypatch.setattr(documents_module, "ANSWER_TIMEOUT_S", 0.02)
    pump, (first, second) = formed(2)
    first.silent[second.member_id] = None
    with pytest.raises(OperationError, match="does not answer"):
        run(of(first).shutdown(second.member_id))

    async def dies(*_: object) -> None:
        pump.kill(pump.nodes[1])
        pump.run(1)
        raise OperationError("has left")

    monkeypatch.setattr(first, "ask", dies)
    assert run(of(first).shutdown(second.member_id))["leaving"]


def test_partition_bytes_and_sizes_are_of_primaries() -> None:
    """Goal: bytes per partition are real. Method: one entry; exactly one member reports it."""
    pump, nodes = formed(2)
    put(pump.client(pump.nodes[0]), 3)
    pump.run(1)
    found = [own(fake, "partition_bytes") for fake in nodes]
    assert sorted(len(part) for part in found) == [0, 1]
    merged = {**found[0], **found[1]}
    assert list(merged) == ["3"]
    assert merged["3"] > 100


def test_documents_are_plain_json() -> None:
    """Goal: every document can be read by any JSON reader. Method: decode all that need no
    argument.
    """
    _, (fake,) = formed(1)
    documents = fake.engine.questions.documents
    for name in ("members", "partitions", "safety", "readiness", "master", "migrations"):
        assert json.loads(documents[name](b"")), name
    for name in ("structures", "partition_bytes"):
        assert not json.loads(documents[name](b"")), "nothing is stored yet"


def test_structures_say_whether_they_are_on_disk() -> None:
    """Goal: by this member's settings; nothing is without persistence, nor what lies nowhere.
    Method: two maps and a generator, with persistence as without.
    """
    pump, (fake,) = formed(1)
    client = pump.client(pump.nodes[0])
    put(client, 1, "kept")
    put(client, 1, "volatile")
    client.call("FlakeIdGenerator.newIdBatch", name="ids", batch_size=1)
    names = ("ids", "kept", "volatile")

    def told() -> dict[str, bool]:
        return {row["name"]: row["persistent"] for row in run(of(fake).structures())}

    assert told() == dict.fromkeys(names, False)
    say_persistent(pump, MapSettings("volatile", persistent=False))
    assert told() == {"ids": False, "kept": True, "volatile": False}


def test_status_says_that_nothing_recovers() -> None:
    """Goal: the keys are there from the start, for scripts to look at."""
    _, (fake,) = formed(1)
    found = run(of(fake).status())
    assert (found["recovery"], found["stable"], found["safe"]) == (None, None, True)
    assert run(of(fake).recovery()) is None


def test_a_recovery_is_not_safe_and_asks_nobody() -> None:
    """Goal: while a member recovers, its status is its own word, with the agreed shape, and the
    same on a member that is not the master. Method: two members, the master silent.
    """
    _, (first, second) = formed(2)
    second.silent[first.member_id] = None
    recovers(second)
    asked = len(second.asked)
    found = run(of(second).status())
    assert found["recovery"] == RECOVERY
    assert not found["safe"]
    assert found["reason"] == (
        "the cluster recovers from its files (validating): 1 of 3 members is missing"
    )
    assert found["migrations"] == documents_module.NO_PROCESS and found["members"] == 2
    assert second.asked[asked:] == [(second.member_id, "recovery")]


@pytest.mark.parametrize("order", ["force_start", "partial_start"])
def test_orders_to_a_recovery_go_to_its_master(order: str) -> None:
    """Goal: an operator may ask any member. Method: nothing recovers; then through the second
    member; then a policy that forbids it.
    """
    _, (first, second) = formed(2)
    with pytest.raises(ChangeRefusedError, match="nothing recovers"):
        run(of(second).order_recovery(order))
    orders = recovers(first)
    recovers(second)
    run(of(second).order_recovery(order))
    assert orders == [order]
    assert second.asked[-1] == (None, f"recovery.{order}")
    recovers(first, order)
    with pytest.raises(OperationError, match="FULL_RECOVERY_ONLY"):
        run(of(second).order_recovery(order))
