"""Goal: the operator's order to raise the cluster version, from the HTTP side to the members."""

from __future__ import annotations

import json

import pytest
from tests.unit.admin_fakes import FakeNode, fakes
from tests.unit.engine_pump import Pump, quick_settings
from tests.unit.test_admin_routes import ask

from whimbrel.config.loader import load
from whimbrel.core.model import ClusterState
from whimbrel.core.upgrade import UpgradeOutcome, upgrade_cluster


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
    assert order(trio[2], "4.1") == (200, {"cluster_version": "4.1", "refusal": ""})
    trio[0].pump.run(1)
    assert versions(trio) == {"4.1"}
    for node in trio:
        assert node.engine.member.migrations.table.versions == [last] * table.partition_count
        assert node.engine.member.migrations.is_settled()[0] == (node is trio[0])
    shown = json.loads(trio[1].engine.questions.documents["partitions"](b""))
    assert (shown["cluster_version"], shown["version"]) == ("4.1", None)
    assert order(trio[1], "4.1") == (200, {"cluster_version": "4.1", "refusal": ""})
    assert [note.kind for note in trio[2].notes] == ["upgrade_ordered"]


@pytest.mark.parametrize(
    ("version", "words"), [("4.2", "is unknown"), ("", "is unknown"), ("4.0", "cannot go back")]
)
def test_no_way_back_and_no_unknown_version(trio: list[FakeNode], version: str, words: str) -> None:
    """PIM-43: refused with 409 and a reason; nothing has changed."""
    assert order(trio[1], "4.1")[0] == 200
    trio[0].pump.run(1)
    before = trio[0].engine.member.ctx.members
    status, answer = order(trio[1], version)
    assert status == 409
    assert words in str(answer["error"])
    assert trio[0].engine.member.ctx.members == before


def test_refused_while_tables_differ_or_migrations_are_due() -> None:
    """PIM-32, PIM-44: below 4.1 everybody must stand at the same version of the table."""
    pump = Pump(quick_settings(cluster_version="4.0", migration_interval_us=200_000))
    nodes = pump.form(2)
    joiner = pump.start()
    pump.run_until(lambda: len(nodes[0].engine.member.ctx.members.members) == 3, 30)
    assert not nodes[0].engine.member.migrations.is_settled()[0]
    found = upgrade_cluster(nodes[0].engine.member, "4.1")
    assert found.cluster_version == "4.0"
    assert "try again when the cluster is settled" in found.refusal
    pump.run_until(lambda: nodes[0].engine.member.migrations.is_settled()[0], 60)
    assert upgrade_cluster(nodes[0].engine.member, "4.1") == UpgradeOutcome("4.1")
    pump.run(2)
    assert joiner.engine.member.ctx.members.cluster_version == "4.1"


def test_only_the_master_obeys_and_only_undisturbed(trio: list[FakeNode]) -> None:
    """PIM-44: no other member, not while another change is under way, not while one leaves."""
    members = [node.engine.member for node in trio]
    assert "not the master" in upgrade_cluster(members[1], "4.1").refusal
    ctx = members[0].ctx
    ctx.transition_until_us = ctx.now_us + 1
    assert ctx.state is ClusterState.IN_TRANSITION
    assert "another change" in upgrade_cluster(members[0], "4.1").refusal
    ctx.transition_until_us = 0
    ctx.leaving = (members[2].ctx.id,)
    assert "leaving" in upgrade_cluster(members[0], "4.1").refusal
    assert versions(trio) == {"4.0"}


def test_the_key_and_the_body_are_checked(trio: list[FakeNode]) -> None:
    """PIM-41: ``cluster.version`` founds a cluster of that version; a body must name one."""
    assert ask(trio[0], "POST", "/api/v1/upgrade", json={"to": "4.1"}).status_code == 400
    config = load(settings=["cluster.version=4.0"])
    assert config.core.cluster_version == "4.0"
