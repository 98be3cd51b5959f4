"""Real members are killed, paused, sent away and replaced while the official client writes.

A writer keeps what was acknowledged; when the cluster is safe again, all of that must be there.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from tests.process.test_bad_input import metrics

from whimbrel.testing import LocalCluster, local_cluster
from whimbrel.testing.waiting import wait_until

PATIENCE_S = 40.0
WRITES_BEFORE = 200
"""Acknowledged writes before something happens, and once more afterwards."""
SETTINGS = {
    "partition.count": 31,
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 2.5,
    "map.b0*.backup_count": 0,
}


class Writer:
    """Writes rising numbers under changing keys, one at a time, until it is stopped."""

    def __init__(self, client: Any, name: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self.failures: list[str] = []
        self._open: dict[int, list[int]] = {}
        """Values of calls that ended without an answer, since the last answer for their key."""
        self._map = client.get_map(name).blocking()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = number % 997
            try:
                self._map.set(key, number)
            except Exception as problem:
                self.failures.append(repr(problem))
                self._open.setdefault(key, []).append(number)
            else:
                self.acknowledged[key] = number
                self._open.pop(key, None)

    @property
    def count(self) -> int:
        """Newest acknowledged number."""
        return max(self.acknowledged.values(), default=0)

    def go_on(self) -> None:
        """Wait until so many further writes were acknowledged."""
        goal = self.count + WRITES_BEFORE
        wait_until(
            lambda: (self.count >= goal, (self.count, self.failures[-1:])),
            PATIENCE_S,
            f"{goal} writes",
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def lost(self, client: Any) -> dict[int, tuple[int, Any]]:
        """Keys that do not hold what was acknowledged last, or what came later."""
        found = client.get_map(self._map.name).blocking().get_all(list(self.acknowledged))
        return {
            key: (value, found.get(key))
            for key, value in self.acknowledged.items()
            if found.get(key) not in (value, *self._open.get(key, ()))
        }


def member_ids(cluster: LocalCluster, via: int) -> list[str]:
    """The list of a member, oldest first."""
    found = cluster.get("/api/v1/members", via)
    members = found["members"] if isinstance(found, dict) else found
    return [str(member["uuid"]) for member in members]


def judge(cluster: LocalCluster, *writers: Writer) -> None:
    """The cluster is safe and everything acknowledged is there, for a fresh client too."""
    for writer in writers:
        writer.go_on()
        writer.stop()
    cluster.wait_until_safe(PATIENCE_S)
    assert cluster.status()["partitions_lost"] == 0
    client = cluster.client()
    for writer in writers:
        assert writer.acknowledged
        assert writer.lost(client) == {}


@pytest.mark.parametrize("victim", [0, 2])
def test_writes_survive_the_kill_of_a_member(victim: int) -> None:
    """Goal: D1, M3, P3: kill -9 of the master or of another member loses no acknowledged write.
    Method: one backup, a client that knows all owners and one with a single connection.
    """
    with local_cluster(3, settings=SETTINGS) as cluster:
        staying = cluster.members[1].address
        smart = Writer(cluster.client(), "smart")
        single = Writer(cluster.client(cluster_members=[staying], smart_routing=False), "single")
        for writer in (smart, single):
            writer.go_on()
        assert cluster.kill(victim) == -9
        judge(cluster, smart, single)
        assert cluster.members[victim].uuid not in member_ids(cluster, 1)


def test_a_write_whose_primary_is_known_to_be_gone_goes_to_the_next() -> None:
    """Goal: D1, R4: what never left a member has not failed, nor is its outcome unknown. Method:
    the master stands still, so a member that is killed stays on the list; a client of the third
    one, which has noticed that the connection broke, writes keys of the dead one meanwhile.
    """
    with local_cluster(3, settings=SETTINGS) as cluster:
        cluster.wait_until_safe(PATIENCE_S)
        survivor, victim = cluster.members[1:]
        client = cluster.client(
            cluster_members=[survivor.address],
            smart_routing=False,
            fail_on_indeterminate_operation_state=True,
        )
        entries = client.get_map("m")
        for key in range(100):
            entries.set(key, key).result()
        cluster.pause(0)
        assert cluster.kill(2) == -9

        def noticed() -> tuple[bool, dict[str, float]]:
            found = metrics(survivor)
            return found["whimbrel_links_standing"] == 1, found

        wait_until(noticed, PATIENCE_S, "the broken connection")
        assert victim.uuid in member_ids(cluster, 1)
        writes = {key: entries.put(key, -key) for key in range(100)}
        cluster.resume(0)
        assert {key: write.result() for key, write in writes.items()} == {n: n for n in range(100)}
        assert entries.get_all(range(100)).result() == {key: -key for key in range(100)}


def test_a_paused_member_is_expelled_and_comes_back_as_another() -> None:
    """Goal: M4, D1: a member that stands still for longer than the time-out is removed; when it
    goes on it learns that, joins with a new uuid, and acknowledged writes are all there.
    """
    with local_cluster(3, settings=SETTINGS) as cluster:
        old = cluster.members[2]
        writer = Writer(cluster.client(cluster_members=[cluster.members[0].address]), "m")
        writer.go_on()
        cluster.pause(2)

        def removed() -> tuple[bool, list[str]]:
            ids = member_ids(cluster, 0)
            return old.uuid not in ids, ids

        wait_until(removed, PATIENCE_S, "removed")
        writer.go_on()
        cluster.resume(2)

        def returned() -> tuple[bool, list[str]]:
            ids = member_ids(cluster, 0)
            return len(ids) == 3, ids

        ids = wait_until(returned, PATIENCE_S, "back")
        assert old.uuid not in ids
        assert old.is_running
        judge(cluster, writer)
        assert member_ids(cluster, 2) == ids


def test_two_members_that_leave_at_once_lose_nothing_without_backups() -> None:
    """Goal: P6, D6: SIGTERM to two of four at the same moment hands over everything, although
    there is one copy only, while writes go on.
    """
    with local_cluster(4, settings=SETTINGS) as cluster:
        client = cluster.client(cluster_members=[cluster.members[0].address])
        writer = Writer(client, "b0 map")
        client.get_map("b0 full").blocking().put_all({n: str(n) * 50 for n in range(2_000)})
        writer.go_on()
        leavers = [cluster.members[1], cluster.members[3]]
        for member in leavers:
            member.send(signal.SIGTERM)
        assert [member.await_end(PATIENCE_S) for member in leavers] == [0, 0]
        judge(cluster, writer)
        found = cluster.client().get_map("b0 full").blocking()
        assert found.size() == 2_000
        assert dict(found.entry_set()) == {n: str(n) * 50 for n in range(2_000)}


def test_a_member_is_replaced_on_its_port() -> None:
    """Goal: M4, D1: a new process on the port of one that was killed is somebody new; the dead
    one is off the list, data is there, and a client that knew the address goes on.
    """
    with local_cluster(3, settings=SETTINGS) as cluster:
        old = cluster.members[1]
        writer = Writer(cluster.client(), "m")
        writer.go_on()
        assert cluster.kill(1) == -9
        new = cluster.add_member(port=old.port)
        assert new.port == old.port
        assert new.uuid != old.uuid
        judge(cluster, writer)
        ids = member_ids(cluster, 0)
        assert ids == [cluster.members[0].uuid, cluster.members[2].uuid, new.uuid]
