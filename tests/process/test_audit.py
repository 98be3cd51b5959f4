"""``whimbrel audit --online`` against real members, one of which is damaged."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import whimbrel
from whimbrel.structures.map.store import MapStore
from whimbrel.testing import LocalCluster, local_cluster

SETTINGS: dict[str, object] = {"partition.count": 7, "membership.heartbeat_interval_s": 0.2}
PATIENCE_S = 60
ENTRIES = 2_000
KEYS = 100
"""That a client writes to all the time."""


def command(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "whimbrel", "audit", "--online", "--admin", url, *words]


def audit(url: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the document of an audit."""
    done = subprocess.run(
        command(url, "--json", *words), capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


class Writer:
    """A client that writes to keys of its own until it is told to end."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._map = cluster.client().get_map("busy").blocking()
        self._ends = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        for number in itertools.count():
            if self._ends.is_set():
                return
            self._map.set(number % KEYS, f"{number}")
            self.count += 1

    def until_all_are_there(self) -> None:
        """Wait until each of its keys has been written once."""
        for _ in range(10 * PATIENCE_S):
            if self.count >= KEYS:
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.count} writes in {PATIENCE_S} s")

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def damage(member: whimbrel.Member) -> int:
    """Three entries of one backup fragment go without a word; which partition."""
    for partition in member.node.engine.member.dataplane.partitions:
        fragment = partition.fragments.get("map/calm")  # type: ignore[call-overload]
        if partition.index == 1 and fragment is not None:
            store = fragment.store
            assert isinstance(store, MapStore)
            for key in list(store.records)[:3]:
                store.remove(key)
            return int(partition.pid)
    raise AssertionError("the member is nobody's backup")


def test_an_operator_finds_and_mends_a_silent_difference() -> None:
    """Goal: the whole way: equal under load is 0, a backup that lost entries without a word is 1
    and told with member and number, repaired is 0, and equal again; in a table, too. Method: two
    processes, and a member in this one whose store is damaged.
    """
    with local_cluster(2, settings=SETTINGS) as cluster:
        calm = cluster.client().get_map("calm").blocking()
        calm.put_all({number: f"value {number}" for number in range(ENTRIES)})
        config = {**SETTINGS, "cluster.name": cluster.name, "network.port": 0}
        config["network.join"] = cluster.addresses()[0]

        async def scenario() -> None:
            async with await whimbrel.Member.start({**config, "log.level": "error"}) as member:
                await until_safe(member)
                writer = await asyncio.to_thread(Writer, cluster)
                try:
                    await asyncio.to_thread(writer.until_all_are_there)
                    await asyncio.to_thread(find_and_mend, cluster, member)
                finally:
                    await asyncio.to_thread(writer.end)
                assert writer.count > KEYS

        asyncio.run(scenario())


async def until_safe(member: whimbrel.Member) -> None:
    """Wait until the cluster is; the helper of the processes does not know of this member."""
    for _ in range(5 * PATIENCE_S):
        if await member.is_cluster_safe():
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the cluster does not become safe")


def find_and_mend(cluster: LocalCluster, member: whimbrel.Member) -> None:
    url = cluster.admin_url
    status, found = audit(url)
    rows = {one["map"]: one["rows"] for one in found["maps"]}
    assert (status, found["equal"], rows) == (0, True, {"busy": KEYS, "calm": ENTRIES})
    pid = damage(member)
    status, found = audit(url, "--map", "calm")
    (one,) = found["differences"]
    assert (status, found["equal"], one["missing"]) == (1, False, 3)
    assert (one["partition"], one["member"]) == (pid, member.id)
    shown = subprocess.run(command(url), capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 1 and "3 missing" in shown.stdout and "map/busy" in shown.stdout
    status, found = audit(url, "--repair")
    assert (status, found["repaired"]) == (0, 3)
    assert audit(url)[1]["equal"]


def test_mistakes_and_interruptions_end_with_words() -> None:
    """Goal: what cannot be done is 2 with a sentence, nobody there is 3; Ctrl-C ends the audit at
    the member. Method: one member; an audit of maps that are not there; an interrupted one.
    """
    with local_cluster(1, settings=SETTINGS) as cluster:
        url = cluster.admin_url
        for words, status in (
            (["--map", "none*"], 2),
            (["--map", "a", "--kind", "queue"], 2),
        ):
            done = subprocess.run(
                command(url, *words), capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == status and "Traceback" not in done.stderr
            assert len(done.stderr.splitlines()) == 1
        gone = subprocess.run(
            command("http://127.0.0.1:1"), capture_output=True, text=True, timeout=60, check=False
        )
        assert gone.returncode == 3 and "127.0.0.1:1" in gone.stderr
        cluster.client().get_map("m").blocking().put(1, 1)
        process = subprocess.Popen(command(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode in (0, 130, -signal.SIGINT)
        assert audit(url)[0] == 0
