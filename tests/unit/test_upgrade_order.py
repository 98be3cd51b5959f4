"""Goal: the operator's order to raise the cluster version, from the HTTP side to the members."""

from __future__ import annotations

import json

import pytest
from tests.unit.admin_fakes import FakeNode, fakes
from tests.unit.engine_pump import Pump, quick_settings
from tests.unit.test_admin_routes import ask

from whimbrel.config.loader import load
from whimbrel.core.membership.cluster_state import StateChangeResult


@pytest.fixture
def trio() -> list[FakeNode]:
    """Three settled members of a cluster of version 4.0."""
    pump = Pump(quick_settings(cluster_version="4.0"))
    pump.form(3)
    return fakes(pump)


def order(node: FakeNode, version: str) -> tuple[int, dict[str, object]]:
    answer = ask(node, "POST", "/api/v1/upgrade", json={"version": version})
    return answer.status_code, answer.json()


def versions(trio: list[FakeNode]) -> set[str]:
    return {node.engine.member.ctx.members.cluster_version for node in trio}


def test_an_order_through_any_member_upgrades_the_cluster(trio: list[FakeNode]) -> None:
    """PIM-41, PIM-43: any member passes it on; all partitions get the last version, once."""
    table = trio[0].engine.member.migrations.table
    last = max(table.versions)
    shown = json.loads(trio[1].engine.questions.documents["partitions"](b""))
    assert (shown["cluster_version"], shown["version"]) == ("4.0", last)
    status, answer = order(trio[2], "4.1")
    assert (status, answer["cluster_version"]) == (200, "4.1")
    assert versions(trio) == {"4.1"}
    for node in trio:
        assert node.engine.member.migrations.table.versions == [last] * table.partition_count
        assert node.engine.member.migrations.is_settled()[0] == (node is trio[0])
    shown = json.loads(trio[1].engine.questions.documents["partitions"](b""))
    assert (shown["cluster_version"], shown["version"]) == ("4.1", None)
    assert order(trio[1], "4.1")[0] == 200
    assert [note.kind for note in trio[2].notes] == ["upgrade_ordered"]


@pytest.mark.parametrize(("version", "words"), [("4.2", "is unknown"), ("4.0", "cannot go back")])
def test_no_way_back_and_no_unknown_version(trio: list[FakeNode], version: str, words: str) -> None:
    """PIM-43: refused with 409 and a reason; nothing has changed."""
    assert order(trio[1], "4.1")[0] == 200
    trio[0].pump.run(1)
    before = trio[0].engine.member.ctx.members
    status, answer = order(trio[1], version)
    assert status == 409
    assert words in str(answer["error"])
    assert trio[0].engine.member.ctx.members == before


def wish(pump: Pump, name: str) -> StateChangeResult:
    """Have the master wish for 4.1; what has become of it after some time."""
    master = pump.nodes[0].engine.member
    result = master.membership.change_cluster(name, None, "4.1")
    for _ in range(100):
        if result.is_done or result.refusal:
            break
        pump.run(0.1)
        result = master.membership.change_cluster(name, None, "4.1")
    return result


def test_refused_while_migrations_are_due() -> None:
    """PIM-44: the switch is refused in the middle of a plan; nothing has changed then."""
    pump = Pump(quick_settings(cluster_version="4.0", migration_interval_us=200_000))
    nodes = pump.form(2)
    joiner = pump.start()
    pump.run_until(lambda: len(nodes[0].engine.member.ctx.members.members) == 3, 30)
    assert not nodes[0].engine.member.migrations.is_settled()[0]
    assert "migration" in wish(pump, "early").refusal
    assert nodes[0].engine.member.ctx.members.cluster_version == "4.0"
    pump.run_until(lambda: nodes[0].engine.member.migrations.is_settled()[0], 60)
    assert wish(pump, "late").is_done
    assert joiner.engine.member.ctx.members.cluster_version == "4.1"


def test_below_the_switch_one_version_is_compared(trio: list[FakeNode]) -> None:
    """PIM-32: participants of a change compare the version of the whole table, not the stamp."""
    migrations = trio[1].engine.member.migrations
    assert migrations.table_mark() == migrations.table_version
    migrations.table_mark = lambda: 0
    refused = wish(trio[0].pump, "behind")
    assert "table" in refused.refusal and refused.is_passing
    assert versions(trio) == {"4.0"}
    del migrations.table_mark
    assert wish(trio[0].pump, "again").is_done
    assert migrations.table_mark() == migrations.table.stamp


def test_only_the_master_obeys(trio: list[FakeNode]) -> None:
    """PIM-44: no other member begins the change."""
    result = trio[1].engine.member.membership.change_cluster("wish", None, "4.1")
    assert "not the master" in result.refusal
    assert versions(trio) == {"4.0"}


def test_the_key_and_the_body_are_checked(trio: list[FakeNode]) -> None:
    """PIM-41: ``cluster.version`` founds a cluster of that version; a body must name one."""
    for body in ({"to": "4.1"}, {"version": ""}):
        assert ask(trio[0], "POST", "/api/v1/upgrade", json=body).status_code == 400
    config = load(settings=["cluster.version=4.0"])
    assert config.core.cluster_version == "4.0"
