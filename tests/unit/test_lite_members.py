"""Lite members in whole clusters of engines: no replicas, promotion, demotion, orders by HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.unit.admin_fakes import FakeNode, as_node, fakes
from tests.unit.engine_pump import Client, Error, Node, Pump, member_id, quick_settings
from tests.unit.test_serving_cluster import check_all, fill, put, verify

from whimbrel.admin import documents as documents_module
from whimbrel.admin.routes import make_app
from whimbrel.errors import GridError
from whimbrel.wire import errors as codes

Ended = list[GridError | None]


def start_lite(pump: Pump) -> Node:
    node = pump.start(lite=True)
    pump.run_until(lambda: node.joined, 30)
    return node


def want(node: Node, *, lite: bool) -> Ended:
    ended: Ended = []
    node.engine.want_role(lite, ended.append, node.pump.now_us, node.pump.wall_ms)
    node.carry_out()
    node.pump.settle()
    return ended


def rows(pump: Pump) -> list[tuple[Any, ...]]:
    table = pump.living()[0].engine.member.migrations.table
    return [tuple(row) for row in table.rows]


def holders(pump: Pump) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for row in rows(pump):
        for member in row:
            if member is not None:
                found[member] = found.get(member, 0) + 1
    return found


def test_lite_members_move_nothing_and_hold_nothing() -> None:
    """GCM-14: two lite members come and go, no row changes; a data member dies between them and
    the missing backups are refilled among data members only.
    """
    pump = Pump()
    pump.form(3)
    client = pump.client(pump.nodes[0])
    expected = fill(client)
    pump.run(5)
    before = rows(pump)
    lites = [start_lite(pump), start_lite(pump)]
    pump.run(5)
    assert rows(pump) == before
    pump.kill(pump.nodes[2])
    pump.run(20)
    assert list(holders(pump)) and set(holders(pump)) == {pump.nodes[0].id, pump.nodes[1].id}
    assert all(sum(member is not None for member in row) == 2 for row in rows(pump))
    verify(pump.client(lites[0], number=2), expected)
    before = rows(pump)
    pump.leave(lites[0])
    pump.kill(lites[1])
    pump.run(20)
    assert rows(pump) == before
    check_all(pump)


def test_a_cluster_of_lite_members_says_so() -> None:
    """GCM-14, bug 51: no data member is an error at once, for one key and for a whole map; a data
    member joins and the same calls work.
    """
    pump = Pump()
    lite = start_lite(pump)
    client = pump.client(lite)
    with pytest.raises(Error, match="no member of the cluster holds data") as refused:
        put(client, 1, "x")
    assert refused.value.code == codes.NO_DATA_MEMBER
    with pytest.raises(Error) as refused:
        client.call("Map.size", name="b1")
    assert refused.value.code == codes.NO_DATA_MEMBER
    data = pump.start()
    pump.run_until(lambda: data.joined, 30)
    pump.run(5)
    put(client, 1, "x")
    assert client.call("Map.size", name="b1") == 1
    assert set(holders(pump)) == {data.id} and lite.engine.member.ctx.is_master


def test_three_lite_members_promoted_keep_a_backup() -> None:
    """GCM-15, GCM-22, bug 50: three lite members, all promoted, entries with one backup, one is
    killed: all remain, and every member's plan counts three data members.
    """
    pump = Pump()
    nodes = [start_lite(pump) for _ in range(3)]
    for node in nodes:
        ended = want(node, lite=False)
        pump.run_until(lambda ended=ended: bool(ended), 10)
        assert ended == [None]
    pump.run(10)
    assert set(holders(pump)) == {node.id for node in nodes}
    expected = fill(pump.client(nodes[0]), 1_000)
    pump.run(5)
    pump.kill(nodes[1])
    pump.run(20)
    verify(pump.client(nodes[2], number=2), expected)
    check_all(pump)


def test_a_promoted_member_takes_its_share() -> None:
    """GCM-22: the promoted member gets its share by migration while the data stay readable."""
    pump = Pump()
    pump.form(2)
    client = pump.client(pump.nodes[0])
    expected = fill(client)
    lite = start_lite(pump)
    assert want(lite, lite=False) == [None]
    pump.run(20)
    shares = holders(pump)
    assert len(shares) == 3 and max(shares.values()) - min(shares.values()) <= 1
    verify(client, expected)
    check_all(pump)


def test_a_demoted_member_hands_over_and_stays() -> None:
    """FN-13: the demoted member's replicas move first; then it is lite, holds nothing, serves."""
    pump = Pump()
    pump.form(3)
    expected = fill(pump.client(pump.nodes[0]))
    ended = want(pump.nodes[1], lite=True)
    held: Client | None = pump.client(pump.nodes[1], number=2)
    pump.run_until(lambda: bool(ended), 60)
    assert ended == [None] and pump.nodes[1].engine.member.ctx.me.lite
    pump.run(10)
    assert pump.nodes[1].id not in holders(pump)
    assert all(sum(member is not None for member in row) == 2 for row in rows(pump))
    assert held is not None
    verify(held, expected)
    check_all(pump)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 3, 9, 18, 30])
def test_a_member_dies_while_another_is_demoted(victim: int, after: int) -> None:
    """FN-13, GCM-25: master, bystander or the demoted one dies after so many deliveries of the
    drain: nothing is lost, no lite member holds data, and the call ends.
    """
    pump = Pump()
    pump.form(4)
    client = pump.client(pump.nodes[3])
    expected = fill(client)
    pump.run(5)
    demoted = pump.nodes[1]
    ended: Ended = []
    demoted.engine.want_role(True, ended.append, pump.now_us, pump.wall_ms)
    demoted.carry_out()
    for _ in range(min(after, len(pump.queue) + after)):
        if pump.queue:
            pump.deliver_next()
    pump.kill(pump.nodes[victim])
    pump.run(90)
    if victim == 1:
        assert demoted.id not in holders(pump)
    else:
        assert ended == [None] and demoted.engine.member.ctx.me.lite
        assert demoted.id not in holders(pump)
    assert all(sum(member is not None for member in row) == 2 for row in rows(pump))
    verify(client, expected)
    check_all(pump)


# -- orders -------------------------------------------------------------------------------


def order(fake: FakeNode, what: str, **body: object) -> httpx.Response:
    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(as_node(fake)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(f"/api/v1/{what}", json=body)

    return asyncio.run(work())


def test_orders_by_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCM-27: promote and demote through any member; each refusal has its status and words."""
    monkeypatch.setattr(documents_module, "ROLE_WAIT_S", 0.1)
    pump = Pump(quick_settings(migration_interval_us=1_000_000))
    pump.form(2)
    lite = start_lite(pump)
    pair = fakes(pump)
    answer = order(pair[0], "promote", member=str(lite.address))
    assert (answer.status_code, answer.json()["done"], answer.json()["lite"]) == (200, True, False)
    pump.run(20)
    again = order(pair[0], "promote", member=lite.id)
    assert again.status_code == 409 and "data member already" in again.json()["error"]
    assert order(pair[1], "promote", member="nobody").status_code == 404
    assert order(pair[1], "promote", membre="x").status_code == 400
    assert order(pair[1], "demote", member=lite.id, number=987654).status_code == 503
    waiting = order(pair[1], "demote", member=lite.id)
    assert waiting.status_code == 202 and not waiting.json()["done"]
    pump.run(20)
    found = order(pair[0], "demote", member=lite.id, number=waiting.json()["number"])
    assert (found.status_code, found.json()["done"], found.json()["lite"]) == (200, True, True)
    assert lite.engine.member.ctx.me.lite


def test_an_order_for_another_member_is_refused() -> None:
    """GCM-27: an order never reaches a successor with another identity."""
    pump = Pump()
    pump.form(1)
    fake = fakes(pump)[0]
    for what in ("promote", "demote"):
        with pytest.raises(GridError, match="this is not member"):
            asyncio.run(fake.ask(None, what, {"member": member_id(9)}))
        with pytest.raises(GridError, match="not an order"):
            asyncio.run(fake.ask(None, what, {}))
    with pytest.raises(GridError, match="remembers no order 5"):
        asyncio.run(fake.ask(None, "role", {"number": 5}))
    with pytest.raises(GridError, match="not a question"):
        asyncio.run(fake.ask(None, "role", {}))
