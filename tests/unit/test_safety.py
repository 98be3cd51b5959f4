"""What safe means, how many failures it survives, and when the cluster is degraded."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

import msgspec
import pytest
from tests.unit.admin_fakes import FakeNode, as_node, fakes
from tests.unit.engine_pump import Node, Pump, quick_settings
from tests.unit.rows import row_from
from tests.unit.test_cluster_states import set_state, unsafe
from tests.unit.test_serving_cluster import fill, put

from whimbrel.admin.documents import ClusterDocuments
from whimbrel.core.ids import REPLICA_SLOTS, Address, MemberId, Row
from whimbrel.core.model import ClusterState, MemberInfo
from whimbrel.core.safety import (
    Answer,
    MasterWord,
    MemberWord,
    copies_of,
    survived_failures,
    unsafe_because,
)
from whimbrel.core.stimuli import Started
from whimbrel.serving.engine import Engine
from whimbrel.structures.kinds import KINDS
from whimbrel.structures.map.settings import MapSettings

INFOS = [MemberInfo(MemberId(name), Address("127.0.0.1", 1)) for name in "ab"]
MASTER = MasterWord(
    True, "", tuple(info.id for info in INFOS), list_version=3, stamp="7", holes=0, survives=1
)
WORD = MemberWord(list_version=3, stamp="7")


def said(**changes: Any) -> MasterWord:
    return msgspec.structs.replace(MASTER, **changes)


def answers(second: MemberWord | str = WORD) -> list[Answer]:
    return [(INFOS[0], WORD), (INFOS[1], second)]


def status(fake: FakeNode) -> Any:
    return asyncio.run(ClusterDocuments(as_node(fake)).status())


def ready(node: Node) -> Any:
    node.engine.member.begin(node.pump.now_us, node.pump.wall_ms)
    return json.loads(node.engine.questions.documents["readiness"](b""))


# -- the definition -----------------------------------------------------------------------


def test_nothing_is_wrong() -> None:
    """Goal: the definition's only way to safe. Method: a settled master, everybody in step."""
    assert unsafe_because(MASTER, answers()) == ""
    assert survived_failures(MASTER, answers()) == 1


@pytest.mark.parametrize(
    ("master", "second", "words"),
    [
        (said(settled=False, reason="a plan is due"), WORD, "a plan is due"),
        (said(members=(MemberId("a"),)), WORD, "list is changing"),
        (said(members=(MemberId("b"), MemberId("a"))), WORD, "list is changing"),
        (MASTER, "member b does not answer", "does not answer"),
        (MASTER, MemberWord(2, stamp="7"), "another member list"),
        (MASTER, MemberWord(3, stamp="8"), "another table"),
        (MASTER, MemberWord(3, announcing=1, stamp="7"), "announcing"),
        (MASTER, MemberWord(3, stamp="7", unsettled=2), "2 replicas may not be in step"),
    ],
)
def test_what_is_not_known_is_not_safe(
    master: MasterWord, second: MemberWord | str, words: str
) -> None:
    """Goal: anything under way or unknown is unsafe, and nothing is said to be survived then."""
    assert words in unsafe_because(master, answers(second))
    assert survived_failures(master, answers(second)) == 0


def test_missing_replicas_leave_what_the_others_bear() -> None:
    """Goal: with a replica missing the cluster is not safe, but what it still survives is told."""
    master = said(holes=2, state="FROZEN", missing=("h:1",), survives=1)
    why = unsafe_because(master, answers())
    assert why == "2 replicas are missing: the seats of h:1 are kept (the cluster state is FROZEN)"
    assert survived_failures(master, answers()) == 1
    assert unsafe_because(said(holes=1), answers()) == "1 replicas are missing"


def deaths_borne(held: list[set[int]]) -> int:
    """Of how many groups every set may die so that each row keeps a place; -1: some has none."""
    for count in range(5):
        for dead in itertools.combinations(range(4), count):
            if any(not places - set(dead) for places in held):
                return count - 1
    raise AssertionError("all groups together hold everything")


@pytest.mark.parametrize("seed", range(40))
def test_copies_against_every_death(seed: int) -> None:
    """Goal: what a table survives is right. Method: random rows with holes and absent holders,
    members in random groups; a dumb twin kills every set of groups.
    """
    generator = random.Random(seed)
    names = [MemberId(name) for name in "abcdef"]
    place_of = {name: generator.randrange(4) for name in names[: generator.randint(1, 6)]}
    rows: list[Row] = []
    for _ in range(4):
        row: list[MemberId | None] = [*names]
        generator.shuffle(row)
        rows.append(row_from(one if generator.random() < 0.8 else None for one in row))
    depth = generator.randint(1, 4)
    copies = copies_of(rows, depth, place_of)
    assert copies.missing == sum(one not in place_of for row in rows for one in row[:depth])
    for backups in range(REPLICA_SLOTS):
        held = [
            {place_of[one] for one in row[: backups + 1] if one is not None and one in place_of}
            for row in rows
        ]
        assert copies.fewest[backups] - 1 == deaths_borne(held)


# -- seats that wait ----------------------------------------------------------------------


@pytest.mark.parametrize("state", [ClusterState.FROZEN, ClusterState.PASSIVE])
@pytest.mark.parametrize("members", [2, 3])
def test_a_seat_that_waits_is_no_replica(state: ClusterState, members: int) -> None:
    """GCM-09: while joining is forbidden a dead member's seats are kept. They hold nothing, so the
    cluster is not safe, survives nothing and its members are not ready, until the member has come
    back and has its data, or the state allows to make up for it.
    """
    pump = Pump(quick_settings(state_lock_lease_us=20_000_000))
    pump.form(members)
    fill(pump.client(pump.nodes[0]))
    pump.run(2)
    observers = fakes(pump)
    set_state(pump, state)
    assert unsafe(pump) == ""
    assert status(observers[0])["survives"] == 1
    pump.kill(pump.nodes[-1])
    pump.run(20)
    found = status(observers[0])
    assert not found["safe"]
    assert "are missing: the seats of 127.0.0.1:570" in found["reason"]
    assert found["survives"] == 0
    assert not ready(pump.nodes[0])["ready"]
    assert "missing" in ready(pump.nodes[0])["reason"]
    assert observers[0].engine.metrics()["replicas_missing"] > 0
    set_state(pump, ClusterState.ACTIVE)
    pump.run_until(lambda: not unsafe(pump), 40)
    assert status(observers[0])["survives"] == min(1, members - 2)
    assert ready(pump.nodes[0])["ready"]


def test_the_kept_seat_of_a_mere_backup() -> None:
    """GCM-09: a cluster whose only other member is missing is not safe even if that one held
    nothing but backups; once the seat is given up a lone member is safe.
    """
    pump = Pump(quick_settings(partition_count=1, state_lock_lease_us=20_000_000))
    pump.form(2)
    set_state(pump, ClusterState.FROZEN)
    backup = pump.nodes[0].engine.member.migrations.table.rows[0][1]
    victim = next(node for node in pump.nodes if node.id == backup)
    pump.kill(victim)
    pump.run(20)
    assert "1 replicas are missing" in unsafe(pump)
    set_state(pump, ClusterState.ACTIVE)
    pump.run_until(lambda: not unsafe(pump), 30)


def test_who_leaves_is_no_place_for_a_replica() -> None:
    """Goal: a member that is leaving need not hold what is asked for. Method: it asks to leave."""
    pump = Pump(quick_settings())
    pump.form(2)
    safety = pump.nodes[0].engine.member.safety
    assert (safety.depth(), safety.degraded_because()) == (2, "")
    pump.nodes[0].engine.member.ctx.leaving = (pump.nodes[1].id,)
    assert safety.depth() == 1
    assert "data members for 2 replicas: 1" in safety.degraded_because()


def test_a_hole_counts_where_nothing_may_move() -> None:
    """GCM-04: NO_MIGRATION promotes and leaves the hole, which is no safety."""
    pump = Pump(quick_settings())
    pump.form(3)
    fill(pump.client(pump.nodes[0]))
    set_state(pump, ClusterState.NO_MIGRATION)
    pump.kill(pump.nodes[1])
    pump.run(20)
    assert unsafe(pump)
    assert pump.nodes[0].engine.metrics()["survives"] == 0


# -- degraded -----------------------------------------------------------------------------


def elsewhere(pump: Pump, host: str) -> Node:
    """A further member on a machine of its own."""
    node = Node(pump, len(pump.nodes) + 1, lite=False)
    info = MemberInfo(node.id, node.address, host=host)
    node.engine = Engine(info, pump.settings, KINDS, pump.now_us)
    node.handle(Started(tuple(other.address for other in pump.nodes)))
    pump.run_until(lambda: node.joined, 30)
    return node


def test_two_members_on_one_host_are_degraded() -> None:
    """ADL-01: with one group for two replicas nothing more can be done: safe, but degraded; status,
    metrics and log say so, and that no failure is survived. A machine more ends it.
    """
    pump = Pump(quick_settings(member_group="host"))
    pump.form(2)
    first = fakes(pump)[0]
    fill(pump.client(pump.nodes[0]))
    found = status(first)
    assert (found["safe"], found["survives"]) == (True, 0)
    assert "groups by host for 2 replicas: 1" in found["degraded"]
    assert "0 of 1 synchronous backups" in found["degraded"]
    figures = first.engine.metrics()
    assert (figures["degraded"], figures["survives"]) == (1, 0)
    assert found["writes_short_of_backups"] == 70
    told = [note for note in pump.nodes[0].notes if note.kind == "safety.degraded"]
    assert told[-1].level == "warning"
    assert "groups by host" in str(told[-1].fields["reason"])
    other = elsewhere(pump, "other")
    pump.run_until(lambda: not unsafe(pump), 30)
    found = status(first)
    assert (found["survives"], found["degraded"]) == (1, "")
    assert first.engine.metrics()["degraded"] == 0
    assert [n.kind for n in pump.nodes[0].notes].count("safety.degraded_over") == 1
    pump.kill(other)
    pump.run(20)
    told = [note for note in pump.nodes[0].notes if note.kind.startswith("safety.")]
    assert told[-1].kind == "safety.degraded"


def test_a_member_without_a_number_is_shown() -> None:
    """Goal: an operator learns who makes no flake ids. Method: take a number away."""
    pump = Pump(quick_settings())
    pump.form(2)
    first = fakes(pump)[0]
    assert status(first)["without_number"] == []
    pump.nodes[1].engine.member.membership.numbers.number = -1
    assert status(first)["without_number"] == [str(pump.nodes[1].address)]


def test_a_lone_member_is_safe_and_survives_nothing() -> None:
    """Goal: as far as there are members: a lone one is safe, says that it survives no failure and
    that writes lack a backup; it is no warning, every cluster begins so. A second one ends it.
    """
    pump = Pump(quick_settings())
    pump.form(1)
    (alone,) = fakes(pump)
    found = status(alone)
    assert (found["safe"], found["reason"], found["survives"]) == (True, "", 0)
    assert "data members for 2 replicas: 1" in found["degraded"]
    notes = [note for note in pump.nodes[0].notes if note.kind.startswith("safety.")]
    assert [(note.kind, note.level) for note in notes] == [("safety.degraded", "info")]
    pump.form(1)
    found = status(alone)
    assert (found["safe"], found["survives"], found["degraded"]) == (True, 1, "")


def test_the_least_of_all_maps_is_survived() -> None:
    """Goal: ``survives`` is the least over the maps there are; without any, what the next one gets.
    Method: three members; maps with two, one and no backups come one after the other.
    """
    pump = Pump(
        quick_settings(structures=(MapSettings("default", 2), *quick_settings().structures[1:]))
    )
    pump.form(3)
    fake = fakes(pump)[0]
    client = pump.client(pump.nodes[0])
    assert status(fake)["survives"] == 1  # rows are two deep until a map asks for more
    assert status(fake)["degraded"] == ""
    for name, survives in (("two", 2), ("b0", 0)):
        put(client, 1, "x", name)
        pump.run_until(lambda: not unsafe(pump), 30)
        assert status(fake)["survives"] == survives
    client.call("Client.destroyProxy", name="b0", service_name="hz:impl:mapService")
    pump.run(5)
    assert status(fake)["survives"] == 2


def test_fewer_members_than_the_deepest_map_wants() -> None:
    """Goal: a map with more backups than other members degrades the cluster while it lives."""
    pump = Pump(quick_settings())
    pump.form(2)
    fake = fakes(pump)[0]
    client = pump.client(pump.nodes[0])
    put(client, 1, "x", "b2 deep")
    pump.run_until(lambda: not unsafe(pump), 30)
    found = status(fake)
    assert (found["safe"], found["survives"]) == (True, 1)
    assert "1 of 2 synchronous backups" in found["degraded"]
    client.call("Client.destroyProxy", name="b2 deep", service_name="hz:impl:mapService")
    pump.run(5)
    assert status(fake)["degraded"] == ""
