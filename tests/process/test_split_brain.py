"""Real members are cut into two parts, go on apart, and are healed (M5, M6, L3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.process.runtime_members import MemberProcess, free_ports

from whimbrel.testing import FaultNetwork, LocalCluster, local_cluster
from whimbrel.testing.waiting import wait_until

PATIENCE_S = 60.0
SETTINGS = {
    "partition.count": 31,
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 2.0,
    "membership.claim_timeout_s": 2.0,
}


def await_members(cluster: LocalCluster, via: int, count: int) -> None:
    """Wait until a member's own list has so many members."""

    def look() -> tuple[bool, int]:
        seen = len(cluster.get("/api/v1/members", via))
        return seen == count, seen

    wait_until(look, PATIENCE_S, f"{count} members seen by member {via}")


def map_of(cluster: LocalCluster, index: int, name: str) -> Any:
    """A map through a client with a single connection, to one member."""
    address = cluster.members[index].address
    client = cluster.client(cluster_members=[address], smart_routing=False)
    return client.get_map(name).blocking()


def test_two_halves_merge_after_healing() -> None:
    """Goal: M6, L3: the smaller part rejoins with what it wrote; the count of what is gone is told.
    Method: three members behind a network that is cut two to one for longer than the time-out.
    """
    with FaultNetwork() as network, local_cluster(3, settings=SETTINGS, network=network) as cluster:
        big, small = map_of(cluster, 0, "m"), map_of(cluster, 2, "m")
        for number in range(50):
            big.set(f"k{number}", "common")
        cluster.wait_until_safe(PATIENCE_S)
        network.split([0, 1], [2])
        await_members(cluster, 0, 2)
        await_members(cluster, 2, 1)
        for number in range(50):
            big.set(f"k{number}", "big")
            small.set(f"k{number}", "small")
        small.set("only-small", "x")
        network.heal_all()
        await_members(cluster, 0, 3)
        cluster.wait_until_safe(PATIENCE_S)

        def merged() -> tuple[bool, list[dict[str, Any]]]:
            told = [e for e in cluster.get("/api/v1/events") if e["kind"] == "split_brain.merged"]
            return bool(told), told

        (told,) = wait_until(merged, PATIENCE_S, "merged")
        assert told["map"] == "m"
        assert told["discarded"] == 50
        assert told["added"] == 1
        assert big.get("only-small") == "x"
        assert {big.get(f"k{number}") for number in range(50)} == {"big"}


def test_small_part_refuses_writes() -> None:
    """Goal: M6: below split_brain_protection.minimum_size writes fail at once, and status says it.
    Method: the single member of a cut cluster is written to, then the cut is healed.
    """
    settings = {**SETTINGS, "split_brain_protection.minimum_size": 2}
    with FaultNetwork() as network, local_cluster(3, settings=settings, network=network) as cluster:
        big, small = map_of(cluster, 0, "m"), map_of(cluster, 2, "m")
        big.set("k", "before")
        cluster.wait_until_safe(PATIENCE_S)
        network.split([0, 1], [2])
        await_members(cluster, 2, 1)
        with pytest.raises(Exception, match="minimum_size asks for 2"):
            small.set("k", "small")
        shown = cluster.get("/api/v1/cluster", 2)["split_brain_protection"]
        assert shown == {
            "minimum_size": 2, "protects": "write", "data_members": 1, "refusing": True,
        }  # fmt: skip
        await_members(cluster, 0, 2)
        big.set("k", "big")
        network.heal_all()
        await_members(cluster, 0, 3)
        cluster.wait_until_safe(PATIENCE_S)
        assert big.get("k") == "big"


def test_minimum_size_of_one_map() -> None:
    """Goal: M6: a map's own minimum size refuses that map alone, by the longest pattern; status and
    metrics say so, and a healed cluster serves it again. Method: settings as an operator gives
    them, a member that is cut off, the official client.
    """
    settings = {
        **SETTINGS,
        "map.orders*.split_brain_minimum_size": 2,
        "map.orders*.split_brain_protects": "read_write",
        "map.orders.log.split_brain_minimum_size": 0,
    }
    names = ("orders", "orders.log", "m")
    with FaultNetwork() as network, local_cluster(3, settings=settings, network=network) as cluster:
        big = {name: map_of(cluster, 0, name) for name in names}
        small = {name: map_of(cluster, 2, name) for name in names}
        for name in names:
            big[name].set("k", "before")
        cluster.wait_until_safe(PATIENCE_S)
        network.split([0, 1], [2])
        await_members(cluster, 2, 1)
        await_members(cluster, 0, 2)
        asks = r"map\.orders\*\.split_brain_minimum_size asks for 2"
        calls: tuple[Callable[[], Any], ...] = (
            lambda: small["orders"].set("k", "small"),
            lambda: small["orders"].get("k"),
            lambda: small["orders"].put_all({"k": "small"}),
            lambda: small["orders"].clear(),
            lambda: small["orders"].size(),
        )
        for refused in calls:
            with pytest.raises(Exception, match=asks):
                refused()
        for name in ("orders.log", "m"):
            small[name].set("only-small", name)
            assert small[name].get("only-small") == name
        for name in names:
            big[name].set("k", "big")
        shown = cluster.get("/api/v1/cluster", 2)["split_brain_protection"]
        assert not shown["refusing"]
        assert shown["maps"]["orders*"] == {
            "minimum_size": 2, "protects": "read_write", "refusing": True,
        }  # fmt: skip
        network.heal_all()
        await_members(cluster, 0, 3)
        cluster.wait_until_safe(PATIENCE_S)
        again = map_of(cluster, 2, "orders")
        assert again.get("k") == "big"
        again.set("k", "again")
        assert big["orders"].get("k") == "again"


def test_one_way_cut_and_delay() -> None:
    """Goal: M2: a member that is heard by nobody is removed although it hears; a slow path is not.
    Method: bytes of one member are held back in one direction, after a delay that is bearable.
    """
    with FaultNetwork() as network, local_cluster(3, settings=SETTINGS, network=network) as cluster:
        network.delay(2, 0, 0.05)
        big = map_of(cluster, 0, "m")
        for number in range(20):
            big.set(f"k{number}", number)
        await_members(cluster, 0, 3)
        network.heal_all()
        for other in (0, 1):
            network.cut(2, other, one_way=True)
        await_members(cluster, 0, 2)
        network.heal_all()
        await_members(cluster, 0, 3)
        cluster.wait_until_safe(PATIENCE_S)
        assert [big.get(f"k{number}") for number in range(20)] == list(range(20))


def test_who_gives_way_joins_whom_it_heard(tmp_path: Path) -> None:
    """Goal: M6: a cluster whose own join list reaches nobody joins the one that found it, once.
    Method: two members of which one looks for a third, which is configured with nobody.
    """

    def start(port: int, *joins: int) -> MemberProcess:
        folder = tmp_path / str(port)
        folder.mkdir()
        settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        join = ["--join", ",".join(f"127.0.0.1:{other}" for other in joins)] if joins else []
        return MemberProcess(folder, "--port", str(port), *settings, *join)

    def events(member: MemberProcess, kind: str) -> list[dict[str, Any]]:
        return [note for note in member.notes() if note["event"] == kind]

    one, two, alone = free_ports(3)
    members = [start(one, two, alone), start(two, one)]
    try:
        for member in members:
            member.ready()
        members.append(start(alone))
        members[-1].ready()

        def seen() -> tuple[bool, list[int]]:
            sizes = [events(member, "members_installed")[-1]["members"] for member in members]
            return sizes == [3, 3, 3], sizes

        wait_until(seen, PATIENCE_S, "three members on every list")
        assert len(events(members[-1], "cluster_founded")) == 1
        assert len([note for note in events(members[-1], "expelled") if "member" in note]) == 1
    finally:
        for member in members:
            member.destroy()
