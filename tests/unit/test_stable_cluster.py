"""STABLE_CLUSTER in whole engines: who may come, where rows go, and who knows the stable table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from tests.unit.engine_pump import Node, Pump, quick_settings
from tests.unit.test_cluster_states import (
    is_safe,
    losing,
    master_of,
    revive,
    rows,
    set_state,
    unsafe,
    wish,
)
from tests.unit.test_serving_cluster import check_all, fill, put, verify

from whimbrel.core import messages as m
from whimbrel.core.ids import NO_INDEX, MemberId
from whimbrel.core.model import ClusterState, StableMark
from whimbrel.core.safety import StableWord
from whimbrel.core.settings import PersistenceSettings
from whimbrel.errors import IllegalStateError
from whimbrel.serialization.data import to_data

ACTIVE, STABLE = ClusterState.ACTIVE, ClusterState.STABLE_CLUSTER
FROZEN, NO_MIGRATION = ClusterState.FROZEN, ClusterState.NO_MIGRATION
AT_REST = StableWord("stable", 0)


def formed(count: int, **changes: Any) -> Pump:
    pump = Pump(quick_settings(state_lock_lease_us=20_000_000, **changes))
    pump.form(count)
    return pump


@pytest.fixture
def stable() -> tuple[Pump, list[Any], dict[int, bytes]]:
    """Four members in the state, their rows and their data."""
    pump = formed(4)
    data = fill(pump.client(pump.nodes[0]))
    pump.run(2)
    set_state(pump, STABLE)
    return pump, rows(pump), data


def words(pump: Pump) -> list[StableWord | None]:
    return [node.engine.member.safety.stable_word() for node in pump.living()]


def is_calm(pump: Pump) -> bool:
    """Whether those who live are the cluster, and it is safe."""
    living = sorted(node.id for node in pump.living())
    lists = [sorted(node.engine.member.ctx.members.ids()) for node in pump.living()]
    return all(ids == living for ids in lists) and is_safe(pump)


def is_at_rest(pump: Pump) -> bool:
    return is_calm(pump) and all(word == AT_REST for word in words(pump))


def copies(pump: Pump) -> int:
    processes = master_of(pump).engine.member.migrations.reporter.finished
    return sum(cast("int", process["copies"]) for process in processes)


def reporter(pump: Pump) -> Any:
    return master_of(pump).engine.member.migrations.reporter


# -- entering and leaving the state -------------------------------------------------------


def test_every_member_keeps_the_table_of_the_moment(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-31, APR-34: all have the same rows, before the operator is told that it is done."""
    pump, arranged, _ = stable
    for node in pump.living():
        found = node.engine.member.migrations.stable
        assert list(found.rows or ()) == arranged
        mark = node.engine.member.ctx.members.stable
        assert mark is not None and mark.mark == node.engine.member.migrations.table_mark()
    assert is_at_rest(pump)
    set_state(pump, ACTIVE)
    pump.run(5)
    assert words(pump) == [None] * 4 and rows(pump) == arranged
    assert all(node.engine.member.migrations.stable.rows is None for node in pump.living())


def test_it_is_entered_from_active_alone() -> None:
    """APR-31, APR-33: the wanted topology is what there is when everything may move."""
    pump = formed(4)
    fill(pump.client(pump.nodes[0]))
    for state in (NO_MIGRATION, FROZEN):
        set_state(pump, state)
        assert f"the state is {state}" in wish(pump, STABLE).refusal
    set_state(pump, ACTIVE)
    set_state(pump, STABLE)


def test_it_is_entered_with_all_replicas_alone() -> None:
    """APR-31: what is missing would be missing in the stable table as well."""
    pump = formed(4)
    fill(pump.client(pump.nodes[0]))
    pump.run(2)
    master = master_of(pump).engine.member
    table = master.migrations.table
    row = table.row(0)  # type: ignore[arg-type]
    table.set_row(0, (row[0], *[None] * 6), table.version(0) + 1)  # type: ignore[arg-type]
    result = wish(pump, STABLE)
    assert "not safe" in result.refusal and "missing" in result.refusal
    assert master.ctx.members.state is ACTIVE


def test_the_way_over_frozen_and_back(stable: tuple[Pump, list[Any], dict[int, bytes]]) -> None:
    """APR-32: who left in FROZEN may return in STABLE_CLUSTER too, to the same stable table."""
    pump, arranged, data = stable
    set_state(pump, FROZEN)
    victim = pump.nodes[2]
    pump.kill(victim)
    pump.run(20)
    assert rows(pump) == arranged
    set_state(pump, STABLE)
    pump.run_until(lambda: is_calm(pump), 60)
    assert all(victim.id not in row for row in rows(pump))
    revive(pump, victim)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
    assert rows(pump) == arranged
    verify(pump.client(pump.nodes[0]), data)


# -- who may come -------------------------------------------------------------------------


def test_a_newcomer_is_refused_for_good(stable: tuple[Pump, list[Any], dict[int, bytes]]) -> None:
    """APR-32, APR-33: it ends with 1 and the state is named; after ACTIVE it is one of them."""
    pump, arranged, _ = stable
    stranger = pump.start()
    pump.run(10)
    assert stranger.stopped is not None and stranger.stopped.exit_status == 1
    assert "STABLE_CLUSTER" in stranger.stopped.reason
    assert rows(pump) == arranged and is_at_rest(pump)
    set_state(pump, ACTIVE)
    pump.form(1)
    pump.run_until(lambda: is_calm(pump), 60)
    set_state(pump, STABLE)
    assert is_at_rest(pump) and rows(pump) != arranged


def test_who_left_before_is_a_newcomer() -> None:
    """APR-32: leaving in ACTIVE is for good."""
    pump = formed(4)
    fill(pump.client(pump.nodes[0]))
    gone = pump.nodes[3]
    pump.leave(gone)
    pump.run_until(lambda: is_calm(pump), 60)
    set_state(pump, STABLE)
    back = revive(pump, gone)
    pump.run(10)
    assert back.stopped is not None and "STABLE_CLUSTER" in back.stopped.reason


def test_nobody_changes_between_lite_and_data(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-33: that is scaling up or down, too."""
    pump, _, _ = stable
    found: list[object] = []
    node = pump.nodes[2]
    node.step(lambda: node.engine.member.membership.want_role(True, found.append))
    pump.run(5)
    assert isinstance(found[0], IllegalStateError) and "STABLE_CLUSTER" in str(found[0])


# -- rows go back -------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("way", ["kill", "leave"])
def test_a_returner_gets_its_rows_back(
    stable: tuple[Pump, list[Any], dict[int, bytes]], victim: int, way: str
) -> None:
    """APR-35, APR-36: others take over meanwhile; then the table is the stable one slot by slot."""
    pump, arranged, data = stable
    gone = pump.nodes[victim]
    getattr(pump, way)(gone)
    pump.run_until(lambda: is_calm(pump), 60)
    (word, *_) = words(pump)
    assert word is not None and word.in_use == "interim" and word.slots_differing > 0
    client = pump.client(pump.nodes[2])
    verify(client, data)
    for number in range(20):
        put(client, number, f"newer {number}")
        data[number] = to_data(f"newer {number}")
    revive(pump, gone)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
    assert rows(pump) == arranged
    assert reporter(pump).partitions_lost == 0
    members = master_of(pump).engine.member.ctx.members
    assert not members.missing and members.state is STABLE
    verify(client, data)
    check_all(pump)


def test_who_dies_is_made_up_for_before_anything_is_planned(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-37: promotions are repair and nothing is copied before they are known; what is given back
    is planned, and promotes nobody.
    """
    pump, arranged, _ = stable
    sent: list[type] = []
    mend = losing(pump, (m.PromotionAnswered,))
    deliver = pump._deliver

    def listen(sender: Node, to: Any, kind: int, payload: Any) -> None:
        sent.append(type(payload))
        deliver(sender, to, kind, payload)

    pump._deliver = listen  # type: ignore[method-assign]
    gone = pump.nodes[3]
    pump.kill(gone)
    pump.run(10)
    assert m.PromotionRequested in sent and m.MigrationRequested not in sent
    mend()
    pump.run_until(lambda: is_calm(pump), 60)
    sent.clear()
    pump._deliver, deliver = listen, pump._deliver  # type: ignore[method-assign]
    revive(pump, gone)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
    assert m.MigrationRequested in sent and m.PromotionRequested not in sent
    assert rows(pump) == arranged


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_departures_and_returns(seed: int) -> None:
    """APR-36, APR-38: several absences are kept apart; at the end every row is the stable one."""
    choose = random.Random(seed)
    pump = formed(4)
    data = fill(pump.client(pump.nodes[0]))
    pump.run(2)
    set_state(pump, STABLE)
    arranged = rows(pump)
    away: list[Node] = []
    for _ in range(8):
        if away and (len(away) == 2 or choose.random() < 0.5):
            revive(pump, away.pop(choose.randrange(len(away))))
        else:
            victim = choose.choice(pump.living())
            away.append(victim)
            (pump.kill if choose.random() < 0.7 else pump.leave)(victim)
        pump.run_until(lambda: is_calm(pump), 90)
    for gone in away:
        revive(pump, gone)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 90)
    assert rows(pump) == arranged
    verify(pump.client(pump.living()[0]), data)
    check_all(pump)


@pytest.mark.parametrize("seed", range(5))
def test_no_migration_fails_and_each_event_is_planned_once(seed: int) -> None:
    """APR-63: one plan for each departure and each return, whatever backups there are, and none of
    its migrations fails; the prototype's failed now and then, and all was planned anew.
    """
    choose = random.Random(seed)
    pump = formed(4)
    client = pump.client(pump.nodes[0])
    for backups in choose.sample(range(3), choose.randint(1, 3)):
        fill(client, 40, f"b{backups}")
    pump.run(3)
    set_state(pump, STABLE)
    arranged, master = rows(pump), master_of(pump)
    for _ in range(3):
        gone = choose.choice([node for node in pump.living() if node is not master])
        for is_return in (False, True):
            before = len(reporter(pump).finished)
            if is_return:
                revive(pump, gone)
                pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
            else:
                choose.choice([pump.kill, pump.leave])(gone)
                pump.run_until(lambda: is_calm(pump), 60)
            (process,) = list(reporter(pump).finished)[before:]
            assert process["failed"] == process["remaining"] == 0
    assert rows(pump) == arranged


def test_a_returner_learns_the_stable_table(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-34: it has it as soon as it is in, and is the one to restore by it when all others go."""
    pump, arranged, _ = stable
    gone = pump.nodes[1]
    pump.kill(gone)
    pump.run_until(lambda: is_calm(pump), 60)
    back = revive(pump, gone)
    pump.run_until(lambda: is_at_rest(pump), 60)
    assert list(back.engine.member.migrations.stable.rows or ()) == arranged


def test_a_new_master_without_the_table_asks_before_it_plans(
    stable: tuple[Pump, list[Any], dict[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """APR-34: told in parts, and only then is anything planned."""
    monkeypatch.setattr("whimbrel.core.migration.stable.ROWS_TOLD", 2)
    pump, arranged, _ = stable
    master, second = master_of(pump), pump.nodes[1]
    mend = losing(pump, (m.StableTableTold,))
    forgetful = second.engine.member.migrations.stable
    forgetful.rows, forgetful.packed = None, None
    pump.kill(master)
    pump.run(25)
    assert master_of(pump) is second
    assert any(None in row[:2] for row in rows(pump)), "nothing is copied before it knows where to"
    mend()
    pump.run_until(lambda: is_calm(pump), 60)
    assert list(forgetful.rows or ()) == arranged
    revive(pump, master)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
    assert rows(pump) == arranged


def test_a_table_that_nobody_has_is_told(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-38: rows go where they go in ACTIVE, and an error says so."""
    pump, _, data = stable
    for node in pump.living():
        node.engine.member.migrations.stable.rows = None
    pump.kill(master_of(pump))
    pump.run(25)
    pump.run_until(lambda: is_calm(pump), 60)
    master = master_of(pump)
    assert any(note.kind == "stable_table.lost" for note in master.notes)
    word = master.engine.member.safety.stable_word()
    assert word is not None and word.in_use == "interim" and word.slots_differing > 0
    verify(pump.client(master), data)


def test_what_stays_is_not_copied() -> None:
    """APR-41: where all structures have so many backups, holders step down for the returner."""
    pump = formed(3)
    data = fill(pump.client(pump.nodes[0]), name="b2")
    pump.run(3)
    set_state(pump, STABLE)
    arranged, gone = rows(pump), pump.nodes[2]
    pump.kill(gone)
    pump.run_until(lambda: is_calm(pump), 60)
    losers: list[m.MigrationRequested] = []
    deliver = pump._deliver

    def watch(sender: Node, to: Any, kind: int, payload: Any) -> None:
        if isinstance(payload, m.MigrationRequested):
            step = payload.migration.step
            if step.source not in (None, step.destination) and step.source_new == NO_INDEX:
                losers.append(payload)
        deliver(sender, to, kind, payload)

    pump._deliver = watch  # type: ignore[method-assign]
    revive(pump, gone)
    pump.run_until(lambda: len(pump.living()) == 3 and is_at_rest(pump), 60)
    assert rows(pump) == arranged
    verify(pump.client(pump.nodes[0]), data, "b2")
    assert not losers


def test_a_new_structure_with_fewer_backups_makes_the_plan_anew(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-41: what no longer holds is not counted on."""
    pump, _, _ = stable
    master = master_of(pump).engine.member.migrations
    assert master.stable.fewest_backups == 1
    fill(pump.client(pump.nodes[1]), 1, "b0")
    pump.run(2)
    assert master.stable.fewest_backups == 0 and is_calm(pump)


def test_what_a_row_leads_back_to_is_kept_meanwhile(
    stable: tuple[Pump, list[Any], dict[int, bytes]],
) -> None:
    """APR-42: of a row that it is to stand in again a member keeps what it has, and of no other."""
    pump, arranged, _ = stable
    member = pump.nodes[1].engine.member
    holdings = member.dataplane.holdings
    for partition in member.dataplane.partitions:
        for namespace in list(partition.fragments):
            holdings.give_up(partition, namespace)
        kept = len(holdings.kept.of(partition.pid))
        assert bool(kept) is (member.ctx.id in arranged[partition.pid])


# -- k-safety -----------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["a second loss", "ACTIVE", "it returns"])
def test_k_safety_bears_what_it_says(then: str) -> None:
    """APR-66, APR-67: promotions only while no row lacks more than k; and it is told."""
    pump = formed(4, persistence=PersistenceSettings(k_safety=1))
    client = pump.client(pump.nodes[0])
    data = fill(client, name="b2")
    pump.run(3)
    assert all(row[2] is not None for row in rows(pump))
    set_state(pump, STABLE)
    arranged, before = rows(pump), copies(pump)
    gone = pump.nodes[3]
    pump.kill(gone)
    pump.run(25)
    assert copies(pump) == before
    assert all(row[0] is not None for row in rows(pump))
    assert "persistence.k_safety = 1" in unsafe(pump) and "missing" in unsafe(pump)
    safety = master_of(pump).engine.member.safety
    assert [safety.survives_of(backups) for backups in range(3)] == [0, 1, 1]
    assert safety.survives() == 1
    if then == "it returns":
        revive(pump, gone)
        pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
        assert rows(pump) == arranged
    elif then == "ACTIVE":
        set_state(pump, ACTIVE)
        pump.run_until(lambda: is_calm(pump), 60)
        assert copies(pump) > before and all(row[2] is not None for row in rows(pump))
    else:
        pump.kill(pump.nodes[2])
        pump.run(25)
        assert all(row[1] is not None for row in rows(pump)) and copies(pump) > before
    verify(client, data, "b2")


def test_who_leaves_under_k_safety_hands_over_what_nobody_else_has() -> None:
    """APR-66, P12: it is in no row when it goes, and nothing is copied that others have."""
    pump = formed(4, persistence=PersistenceSettings(k_safety=1))
    client = pump.client(pump.nodes[0])
    data, single = fill(client), fill(client, name="b0")
    pump.run(3)
    set_state(pump, STABLE)
    arranged, gone = rows(pump), pump.nodes[3]
    pump.leave(gone)
    pump.run(5)
    assert all(gone.id not in row and row[0] is not None for row in rows(pump))
    verify(client, data)
    verify(client, single, "b0")
    revive(pump, gone)
    pump.run_until(lambda: len(pump.living()) == 4 and is_at_rest(pump), 60)
    assert rows(pump) == arranged
    verify(client, data)
    verify(client, single, "b0")


def test_k_safety_never_leaves_a_row_empty() -> None:
    """APR-66: a partition whose copies are all gone gets an owner, whatever k is."""
    pump = formed(4, persistence=PersistenceSettings(k_safety=6))
    fill(pump.client(pump.nodes[0]))
    pump.run(2)
    set_state(pump, STABLE)
    for node in pump.nodes[2:]:
        pump.kill(node)
    pump.run(30)
    assert all(row[0] is not None for row in rows(pump))


# -- messages -----------------------------------------------------------------------------


def ask(pump: Pump, node: Node, request: m.StableTableRequested) -> list[m.StableTableTold]:
    """What a member answers to the second member."""
    asker = pump.nodes[1]
    found: list[m.StableTableTold] = []
    room = node.engine.member.ctx
    before: Callable[..., None] = room.send

    def send(to: MemberId, message: m.Message) -> None:
        if isinstance(message, m.StableTableTold):
            found.append(message)
        else:
            before(to, message)

    room.send = send  # type: ignore[method-assign]
    node.step(lambda: node.engine.member.migrations.on_message(asker.id, request))
    del room.send
    return found


@pytest.mark.parametrize("start", [-1, 7, 100])
def test_what_there_is_not_is_not_told(
    stable: tuple[Pump, list[Any], dict[int, bytes]], start: int
) -> None:
    pump, _, _ = stable
    master = master_of(pump)
    mark = master.engine.member.ctx.members.stable
    assert mark is not None
    (told,) = ask(pump, master, m.StableTableRequested(mark, start))
    assert told.rows is None or not told.rows.slots
    other = msgspec.structs.replace(mark, entered=mark.entered + 1)
    (told,) = ask(pump, master, m.StableTableRequested(other, 0))
    assert told.rows is None


def test_a_mark_is_two_numbers() -> None:
    assert StableMark(3, 1 << 63) == msgspec.convert([3, 1 << 63], StableMark)
