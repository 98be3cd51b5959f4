"""The bulk client against members that lose connections, refuse and stay silent."""

from __future__ import annotations

import socket
from collections import Counter
from typing import Any

import pytest
from tests.unit.client_members import PARTITIONS, Cluster, Member

from whimbrel.client import bulk, links
from whimbrel.client.bulk import BulkClient, parse_address
from whimbrel.core.ids import Address
from whimbrel.errors import (
    AuthenticationError,
    OperationError,
    SerializationError,
    UnsupportedError,
    UsageError,
)
from whimbrel.serialization.compact import CompactSchema, Kind
from whimbrel.serialization.data import to_data
from whimbrel.wire import errors as codes

ENTRIES = [(to_data(number), to_data(f"value {number}")) for number in range(500)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OWNER_RETRY_S", 0.05)
    monkeypatch.setattr(links, "CONNECT_RETRY_S", 0.02)
    monkeypatch.setattr(links, "SILENCE_S", 0.3)
    monkeypatch.setattr(bulk, "REPEAT_FIRST_S", 0.005)
    monkeypatch.setattr(bulk, "REPEAT_LAST_S", 0.05)


def connect(cluster: Cluster, timeout_s: float = 5.0) -> BulkClient:
    return BulkClient(cluster.addresses, cluster.name, timeout_s)


def test_entries_go_in_and_come_out() -> None:
    """Goal: put, get, walk, size, clear over three members; requests go to the owners."""
    with Cluster(3) as cluster, connect(cluster) as client:
        assert client.partition_count == PARTITIONS and len(client.members()) == 3
        assert [o is not None for o in client.owners()] == [True] * PARTITIONS
        client.create_map("m")
        assert client.put_all("m", client.by_partition(ENTRIES)) == 500
        assert client.size("m") == 500
        assert client.get_all("m", [key for key, _ in ENTRIES[:50]] + [to_data("no")]) == dict(
            ENTRIES[:50]
        )
        walked = [entry for _, entries in client.scan("m") for entry in entries]
        assert sorted(walked) == sorted(ENTRIES)
        some = [(pid, e) for pid, entries in client.scan("m", [3], batch=7) for e in entries]
        assert {pid for pid, _ in some} == {3}
        assert len(some) == len(client.by_partition(ENTRIES)[3])
        assert all("Map.putAll" in member.seen for member in cluster.members)
        client.clear("m")
        assert list(client.scan("m")) == []
        client.destroy_map("m")


def test_batches_stay_near_their_bounds() -> None:
    """Goal: a putAll holds about 256 KiB and 5,000 entries; one large entry travels alone."""
    big = [(b"k" * 8 + bytes([number]), bytes(100_000)) for number in range(10)]
    many = [(b"%08d" % number, bytes(8)) for number in range(12_000)]
    lone = [(b"k" * 9, bytes(900_000))]
    assert [len(b) for b in bulk._batches(big, bulk._entry_bytes)] == [2] * 5
    assert [len(b) for b in bulk._batches(many, bulk._entry_bytes)] == [5_000, 5_000, 2_000]
    assert [len(b) for b in bulk._batches(lone + big[:1], bulk._entry_bytes)] == [1, 1]
    assert list(bulk._batches([], len)) == []


def test_retryable_errors_are_repeated() -> None:
    """Goal: errors that say that nothing happened, overload and unknown outcomes are repeated
    (bulk calls are idempotent); each partition meets one of each.
    """
    left = {
        pid: [codes.RETRYABLE, codes.PARTITION_MIGRATING, codes.OVERLOAD, codes.INDETERMINATE]
        for pid in range(PARTITIONS)
    }

    def disturb(_member: Member, name: str, pid: int) -> int | None:
        return left[pid].pop() if name == "Map.putAll" and left.get(pid) else None

    with Cluster(2, disturb=disturb) as cluster, connect(cluster) as client:
        assert client.put_all("m", client.by_partition(ENTRIES)) == 500
        assert client.size("m") == 500
    assert not any(left.values())


def test_other_errors_are_raised() -> None:
    """Goal: what a repetition cannot heal is raised at once with the member's sentence."""

    def disturb(_member: Member, name: str, _pid: int) -> int | None:
        refused = {"Map.clear": codes.UNSUPPORTED_OPERATION, "Map.size": codes.SERIALIZATION}
        return refused.get(name)

    with Cluster(1, disturb=disturb) as cluster, connect(cluster) as client:
        with pytest.raises(UnsupportedError, match=r"disturbed \(error 61"):
            client.clear("m")
        with pytest.raises(SerializationError):
            client.size("m")
        with pytest.raises(UsageError, match="at least one entry"):
            list(client.scan("m", batch=0))


def test_a_walk_survives_the_death_of_a_member() -> None:
    """Goal: after a member dies in mid-walk the walk goes on at the others and misses nothing."""
    counts: Counter[str] = Counter()

    def disturb(member: Member, name: str, _pid: int) -> int | None:
        counts[name] += 1
        if name == "Map.fetchEntries" and counts[name] == 9 and len(member.cluster.alive()) > 1:
            member.close()
        return None

    with Cluster(3, disturb=disturb) as cluster, connect(cluster) as client:
        client.put_all("m", client.by_partition(ENTRIES))
        walked = {key for _, entries in client.scan("m", batch=5) for key, _ in entries}
        assert walked == {key for key, _ in ENTRIES}
        assert len(cluster.alive()) == 2


def test_a_silent_member_is_given_up() -> None:
    """Goal: a connection that owes answers and does not even answer a ping is dropped, and the
    calls go elsewhere.
    """
    with Cluster(2) as cluster, connect(cluster) as client:
        client.put_all("m", client.by_partition(ENTRIES[:50]))
        cluster.members[1].silent = True
        assert client.put_all("m", client.by_partition(ENTRIES)) == 500
        assert "Client.ping" in cluster.members[1].seen


def test_out_of_time_is_told() -> None:
    """Goal: a call that never succeeds ends after the time-out with its last reason."""
    code = [codes.RETRYABLE]

    def disturb(_member: Member, name: str, pid: int) -> int | None:
        return code[0] if name == "Map.putAll" and pid == 2 else None

    with Cluster(1, disturb=disturb) as cluster, connect(cluster, 0.3) as client:
        with pytest.raises(OperationError, match=r"putAll for partition 2 .* 0\.3 s: disturbed"):
            client.put_all("m", client.by_partition(ENTRIES))
        cluster.close()
        with pytest.raises(OperationError, match=r"size did not succeed .*127\.0\.0\.1:\d+: "):
            client.size("m")


def test_a_member_without_answer_runs_into_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with nobody else to ask, silence ends in an error, not in waiting for ever."""
    monkeypatch.setattr(links, "SILENCE_S", 60.0)
    with Cluster(1) as cluster, connect(cluster, 0.6) as client:
        cluster.members[0].silent = True
        with pytest.raises(OperationError, match="no answer"):
            client.size("m")


def test_the_wrong_name_is_named() -> None:
    """Goal: another cluster's members refuse at once; the error names the cluster wanted."""
    with Cluster(2, name="prod") as cluster:
        with pytest.raises(AuthenticationError, match="'dev'"):
            BulkClient(cluster.addresses, "dev", 5.0)
        client = BulkClient(cluster.addresses, "prod", 5.0)
        client.close()


def test_unreachable_addresses_are_named() -> None:
    """Goal: nobody there: the error lists every address with its reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OperationError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
        BulkClient([f"127.0.0.1:{port}"], "dev", 0.1)
    with pytest.raises(UsageError, match="at least one"):
        BulkClient([], "dev")


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:0", "host:70000", ":1"])
def test_bad_addresses_are_refused(text: str) -> None:
    """Goal: an address that cannot be is a clear error."""
    with pytest.raises(UsageError, match="host:port"):
        parse_address(text)


def test_addresses_may_be_ipv6() -> None:
    """Goal: brackets around an IPv6 host are taken off; an address passes through."""
    assert parse_address("[::1]:5701") == Address("::1", 5701)
    assert parse_address(Address("h", 1)) == Address("h", 1)


def test_schemas_reach_every_member() -> None:
    """Goal: sending a schema is repeated until every member of the list holds it."""
    schema = CompactSchema("t", [("a", Kind.INT32)])
    with Cluster(3) as cluster, connect(cluster) as client:
        cluster.schema_holders = 1
        client.send_schema(schema)
        assert sum(m.seen.count("Client.sendSchema") for m in cluster.members) == 3
        fetched = client.fetch_schema(schema.id)
        assert fetched is not None and fetched.id == schema.id
        assert client.fetch_schema(2) is None


def test_a_schema_that_stays_behind_is_told() -> None:
    """Goal: the error names the member that lacks the schema."""
    schema = CompactSchema("t", [("a", Kind.INT32)])
    with Cluster(2) as cluster, connect(cluster, 0.1) as client:
        cluster.schema_holders = -10_000
        with pytest.raises(OperationError, match=r"did not reach .*00000002-?0000"):
            client.send_schema(schema)


def test_an_abandoned_walk_leaves_the_client_usable() -> None:
    """Goal: a walk that is given up half-way, and calls inside a walk, disturb nothing."""
    with Cluster(2) as cluster, connect(cluster) as client:
        client.put_all("m", client.by_partition(ENTRIES))
        for _ in client.scan("m", batch=3):
            break
        seen: dict[bytes, Any] = {}
        for _, entries in client.scan("m", batch=40):
            seen.update(entries)
            assert client.size("m") == 500
        assert len(seen) == 500
