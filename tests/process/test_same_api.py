"""What a user sees does not depend on how the cluster migrates (ADL-75, AE-39).

One script of client calls runs against a cluster with parallel migrations, one with the serial
mode of version 4.0 and one that moves partitions whole; before a join, and while a join moves
data. Whatever a call returned, raised or told a listener must be the same everywhere.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whimbrel
from whimbrel.client.bulk import BulkClient
from whimbrel.client.values import dumps, loads
from whimbrel.testing import LocalCluster
from whimbrel.testing.waiting import wait_until

PATIENCE_S = 60.0
PARTITIONS = 61
SETTINGS = {
    "partition.count": PARTITIONS,
    "migration.interval_s": 0.25,
    "membership.heartbeat_interval_s": 0.2,
    "membership.heartbeat_timeout_s": 10,
    "map.idle*.max_idle_s": 300,
    "map.two*.backup_count": 2,
}
VARIANTS = {
    "parallel": {"cluster.version": "4.1"},
    "serial": {"cluster.version": "4.0"},
    "whole": {"cluster.version": "4.1", "migration.fragments_enabled": "false"},
}
MANY = {f"key {number}": {"n": number, "text": "x" * (number % 50)} for number in range(300)}

Transcript = list[tuple[str, Any]]
_numbers = itertools.count(1)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns; of an error its type, so that refusals are compared too."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def single_keys(found: Any) -> Transcript:
    """Every call about one key, on absent and present keys."""
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("get absent", lambda: found.get("a")),
        ("put first", lambda: found.put("a", 1)),
        ("put again", lambda: found.put("a", 2)),
        ("set", lambda: found.set("a", 3)),
        ("get", lambda: found.get("a")),
        ("put_if_absent present", lambda: found.put_if_absent("a", 9)),
        ("put_if_absent absent", lambda: found.put_if_absent("b", 4, ttl=300)),
        ("try_put", lambda: found.try_put("c", 5, 1)),
        ("put_transient", lambda: found.put_transient("d", 6, ttl=300)),
        ("contains_key", lambda: (found.contains_key("a"), found.contains_key("z"))),
        ("replace absent", lambda: found.replace("z", 1)),
        ("replace", lambda: found.replace("a", 10)),
        ("replace_if_same wrong", lambda: found.replace_if_same("a", 7, 8)),
        ("replace_if_same", lambda: found.replace_if_same("a", 10, 11)),
        ("remove_if_same wrong", lambda: found.remove_if_same("a", 7)),
        ("remove_if_same", lambda: found.remove_if_same("a", 11)),
        ("remove absent", lambda: found.remove("a")),
        ("remove", lambda: found.remove("b")),
        ("try_remove", lambda: (found.try_remove("c", 1), found.try_remove("c", 1))),
        ("delete", lambda: (found.delete("d"), found.contains_key("d"))),
        ("put with limits", lambda: found.put("e", 7, ttl=300, max_idle=200)),
        ("set with limits", lambda: found.set("f", 8, ttl=300, max_idle=200)),
        ("set_ttl", lambda: (found.set_ttl("e", 400), found.set_ttl("z", 400))),
        ("get_entry_view", lambda: _view(found.get_entry_view("e"))),
        ("get_entry_view absent", lambda: found.get_entry_view("z")),
        ("evict", lambda: (found.evict("e"), found.evict("e"))),
        ("null value", lambda: found.put("a", None)),
        ("lock", lambda: (found.lock("a"), found.is_locked("a"), found.try_lock("a", timeout=0))),
        ("unlock", lambda: (found.unlock("a"), found.unlock("a"), found.is_locked("a"))),
        ("unlock again", lambda: found.unlock("a")),
        ("force_unlock", lambda: (found.lock("a"), found.force_unlock("a"), found.is_locked("a"))),
        ("not offered", lambda: found.add_index(["a"])),
    ]
    return [(name, outcome(call)) for name, call in calls]


def _view(view: Any) -> tuple[Any, ...]:
    """The parts of an entry view that do not depend on when it was made."""
    return (view.key, view.value, view.ttl, view.max_idle)


def whole_map(found: Any) -> Transcript:
    """Every call about many keys or all."""
    wanted = [*MANY, "absent"]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("is_empty", lambda: found.is_empty()),
        ("put_all", lambda: found.put_all(MANY)),
        ("size", lambda: found.size()),
        ("get_all", lambda: found.get_all(wanted)),
        ("key_set", lambda: sorted(found.key_set())),
        ("values", lambda: sorted(value["n"] for value in found.values())),
        ("entry_set", lambda: (len(found.entry_set()), dict(found.entry_set()))),
        ("contains_value", lambda: found.contains_value(MANY["key 7"])),
        ("contains_value absent", lambda: found.contains_value("nowhere")),
        ("flush", lambda: found.flush()),
        ("evict_all", lambda: (found.evict_all(), found.size())),
        ("put_all again", lambda: found.put_all(MANY)),
        ("clear", lambda: (found.clear(), found.size(), found.is_empty(), found.key_set())),
    ]
    return [(name, outcome(call)) for name, call in calls]


def listening(found: Any) -> Transcript:
    """What an entry listener hears of changes to its map, key by key in order; until removed."""
    heard: dict[str, list[tuple[Any, ...]]] = {}
    whole: list[tuple[Any, ...]] = []
    lock = threading.Lock()

    def hear(event: Any) -> None:
        with lock:
            told = (
                event.event_type,
                event.value,
                event.old_value,
                event.number_of_affected_entries,
            )
            (whole if event.key is None else heard.setdefault(event.key, [])).append(told)

    listener = found.add_entry_listener(
        include_value=True,
        added_func=hear,
        updated_func=hear,
        removed_func=hear,
        evicted_func=hear,
        clear_all_func=hear,
        evict_all_func=hear,
    )
    for number in range(20):
        key = f"k{number}"
        found.put(key, number)
        found.put(key, number + 1)
        found.remove(key)
        found.set(key, number + 2)
        found.evict(key)
        found.put(key, number + 3)
    found.evict_all()
    found.put("k0", "last")
    found.clear()

    def complete() -> tuple[bool, int]:
        with lock:
            count = sum(map(len, heard.values()))
            return count >= 20 * 6 + 1 and len(whole) >= 2, count

    wait_until(complete, PATIENCE_S, "all events of the listener")
    removed = found.remove_entry_listener(listener)
    found.put("k1", "unheard")
    with lock:
        return [
            ("heard", {key: list(events) for key, events in sorted(heard.items())}),
            ("heard of the whole map", sorted(whole)),
            ("listener removed", removed),
        ]


def bulk(client: BulkClient, name: str) -> Transcript:
    """Everything our own client offers."""
    entries = [(dumps(key), dumps(number)) for number, key in enumerate(MANY)]
    client.create_map(name)
    put = client.put_all(name, client.by_partition(entries))
    got = client.get_all(name, [dumps(key) for key in (*MANY, "absent")])
    scanned = {
        loads(key): (loads(value), pid)
        for pid, page in client.scan(name, batch=3)
        for key, value in page
    }
    size = client.size(name)
    client.clear(name)
    emptied = client.size(name)
    client.put_all(name, client.by_partition(entries[:5]))
    client.destroy_map(name)
    return [
        ("bulk put", put),
        ("bulk get", sorted((loads(key), loads(value)) for key, value in got.items())),
        ("bulk scan", sorted(scanned.items())),
        ("bulk size", (size, emptied, client.size(name))),
        ("partitions", client.partition_count),
    ]


def script(clients: list[Any], own: BulkClient) -> Transcript:
    """All of it, in maps that nobody has used before; with each of the official clients."""
    number = next(_numbers)
    done: Transcript = []
    for which, client in enumerate(clients):
        name = f"{number} {which}"
        for kind in ("one", "two", "idle"):
            done += single_keys(client.get_map(f"{kind} {name}").blocking())
        done += whole_map(client.get_map(f"all {name}").blocking())
        done += listening(client.get_map(f"heard {name}").blocking())
        destroyed = client.get_map(f"gone {name}").blocking()
        destroyed.put_all(MANY)
        done.append(("destroy", destroyed.destroy()))
        done.append(("destroyed", client.get_map(f"gone {name}").blocking().size()))
        count = client.partition_service.get_partition_count()
        done.append(("partition service", count))
        owners = {client.partition_service.get_partition_owner(pid) for pid in range(count)}
        members = {member.uuid for member in client.cluster_service.get_members()}
        done.append(("owners are members", owners <= members))
    return done + bulk(own, f"bulk {number}")


def is_migrating(cluster: LocalCluster) -> bool:
    """Whether replicas are on their way, as operators see it."""
    moves = cluster.get("/api/v1/cluster")["migrations"]
    return bool(moves["active"] + moves["queued"])


def transcripts(cluster: LocalCluster) -> tuple[Transcript, list[Transcript]]:
    """The script once at rest, and again and again while a member joins."""
    clients = [cluster.client(), cluster.client(smart_routing=False)]
    with BulkClient(cluster.addresses(), cluster.name) as own:
        kept = clients[0].get_map("kept").blocking()
        kept.put_all(MANY)
        cluster.wait_until_safe(PATIENCE_S)
        before = script(clients, own)
        cluster.wait_until_safe(PATIENCE_S)
        cluster.launch().await_ready(PATIENCE_S)
        wait_until(lambda: (is_migrating(cluster), None), PATIENCE_S, "migrations to begin")
        during: list[Transcript] = []
        while not during or is_migrating(cluster):
            done = script(clients, own)
            if is_migrating(cluster):
                during.append(done)
            else:
                assert during, "the script took longer than the join"
        cluster.wait_until_safe(PATIENCE_S)
        assert kept.get_all(list(MANY)) == MANY
        return before, during


@pytest.fixture(scope="module")
def expected() -> Transcript:
    """The script on a single member, where nothing ever migrates."""
    with whimbrel.local_cluster(members=1, settings=SETTINGS) as cluster:
        clients = [cluster.client(), cluster.client(smart_routing=False)]
        with BulkClient(cluster.addresses(), cluster.name) as own:
            return script(clients, own)


def test_the_script_says_what_the_calls_promise(expected: Transcript) -> None:
    """ADL-75: the transcript that the others are compared with is itself right."""
    said = dict(expected)
    assert said["put again"] == 1 and said["get"] == 3
    assert said["replace_if_same wrong"] is False and said["replace_if_same"] is True
    assert said["get_entry_view"] == ("e", 7, 400_000, 200_000)
    assert said["get_all"] == MANY
    assert said["entry_set"] == (len(MANY), MANY)
    assert said["clear"] == (None, 0, True, [])
    assert said["lock"] == (None, True, True) and said["unlock"] == (None, None, False)
    assert said["unlock again"] == "IllegalMonitorStateError"
    assert said["force_unlock"] == (None, None, False)
    assert said["not offered"] == "UnsupportedOperationError"
    assert [event[0] for event in said["heard"]["k5"]] == [1, 4, 2, 1, 8, 1]
    assert said["bulk size"] == (len(MANY), 0, 0)
    assert len(said["bulk scan"]) == len(MANY)
    assert said["owners are members"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_call_is_the_same_in_each_mode(
    variant: str, expected: Transcript, tmp_path: Path
) -> None:
    """ADL-75, AE-39: each call of the official client (smart and with one connection) and of our
    own returns, raises and tells listeners the same in serial, parallel and unsplit migration, at
    rest and while a join moves data, as on a single member that never moves anything.
    """
    settings = {**SETTINGS, **VARIANTS[variant]}
    with whimbrel.local_cluster(members=2, settings=settings, folder=tmp_path) as cluster:
        version = cluster.get("/api/v1/partitions")["cluster_version"]
        assert version == settings["cluster.version"]
        before, during = transcripts(cluster)
    assert before == expected
    assert len(during) >= 1
    for transcript in during:
        assert transcript == expected
