"""Goal: locks of maps mean to clients what the protocol says, from any member, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, product
from typing import Any

import msgspec
import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings
from tests.unit.split_pump import SplitPump

from whimbrel.core.ids import CALLER_BYTES, Attempt, PartitionId
from whimbrel.errors import ProtocolError
from whimbrel.serialization.data import to_data
from whimbrel.serving import presence as presence_module
from whimbrel.serving.presence import GONE_US, ROUND_US, THERE, WANTED
from whimbrel.serving.wait_frames import Head, read_head
from whimbrel.wire import errors as codes

PID = PartitionId(3)
K, V, W = to_data("k"), to_data("v"), to_data("w")
NEVER = -1
FREED_S = (GONE_US + 2 * ROUND_US) / 1_000_000
"""From the end of a client to that of its locks, at most."""

Patch = pytest.MonkeyPatch


class Scene:
    """Three members: the home of the keys, its backup, and another."""

    def __init__(self, count: int = 3) -> None:
        self.pump = Pump(quick_settings())
        self.pump.form(count)
        row = self.pump.nodes[0].engine.member.dataplane.partitions[PID].row
        by_id = {node.id: node for node in self.pump.nodes}
        self.home, self.backup = (by_id[member] for member in row[:2] if member is not None)
        self.other = next((node for node in self.pump.nodes if node.id not in row[:2]), self.home)
        self.reference = 0

    def at(self, where: str, number: int = 1) -> Client:
        """A client of one of the members; its number is its uuid."""
        node: Node = getattr(self, where)
        return self.pump.client(node, number=number)

    def fields(self, method: str, thread: int, **fields: Any) -> dict[str, Any]:
        """What a request needs beside what the test is about."""
        if method in ("lock", "tryLock", "unlock", "forceUnlock"):
            self.reference += 1
            fields.setdefault("reference_id", self.reference)
        if method not in ("isLocked", "forceUnlock", "setTtl", "putAll", "clear", "evictAll"):
            fields["thread_id"] = thread
        defaults = {"lock": {"ttl": NEVER}, "tryLock": {"lease": NEVER, "timeout": 0}}
        return {"name": "m", "key": K, **defaults.get(method, {}), **fields}

    def call(self, client: Client, method: str, thread: int = 1, **fields: Any) -> Any:
        """A call on the key."""
        asked = self.ask(client, method, thread, **fields)
        return client.answer(asked)

    def ask(self, client: Client, method: str, thread: int = 1, **fields: Any) -> int:
        """Begin a call; everything comes to rest."""
        asked = client.ask(f"Map.{method}", PID, **self.fields(method, thread, **fields))
        self.pump.settle()
        return asked

    def put(self, client: Client, value: bytes = V, thread: int = 1) -> int:
        """Begin a put."""
        return self.ask(client, "put", thread, value=value, ttl=NEVER)

    def close(self, client: Client) -> None:
        """A client's connection breaks."""
        client.node.clients.pop(client.conn)
        client.node.engine.client_closed(client.conn)
        client.node.carry_out()

    @staticmethod
    def partition(node: Node) -> Any:
        return node.engine.member.dataplane.partitions[PID]

    def partition_primary(self) -> Node:
        """Who serves the keys now."""
        return next(node for node in self.pump.living() if self.partition(node).is_primary)

    def held(self) -> int:
        """Locks at the primaries, as the metrics tell."""
        self.pump.run(0.2)
        figures = [node.engine.metrics() for node in self.pump.living()]
        return int(sum(one["map_locks_held"] for one in figures))


@pytest.fixture
def scene() -> Scene:
    return Scene()


BOTH = pytest.mark.parametrize("where", ["home", "other"])
"""The client is at the primary, or its calls are sent on."""


@contextmanager
def refused(code: int) -> Iterator[None]:
    with pytest.raises(Error) as caught:
        yield
    assert caught.value.code == code


def is_open(client: Client, call: int) -> bool:
    return call not in client.messages


# -- locks --------------------------------------------------------------------------------


@BOTH
def test_a_lock_and_its_end(scene: Scene, where: str) -> None:
    """Goal: every request, its answers, and the error of who is not the owner, as clients know it:
    the owner is a thread of a client, whichever member its calls come through.
    """
    mine, theirs = scene.at(where, 1), scene.at("backup", 2)
    assert scene.call(mine, "isLocked") is False
    assert scene.call(mine, "lock") == {}
    assert scene.call(mine, "tryLock") is True
    assert scene.call(theirs, "isLocked") is True
    assert scene.call(theirs, "tryLock") is False and scene.call(mine, "tryLock", 2) is False
    for client, thread in ((theirs, 1), (mine, 2)):
        with refused(codes.ILLEGAL_MONITOR_STATE):
            scene.call(client, "unlock", thread)
    assert scene.held() == 1
    assert scene.call(mine, "unlock") == {} and scene.call(theirs, "tryLock") is False
    assert scene.call(mine, "unlock") == {} and scene.call(theirs, "isLocked") is False
    with refused(codes.ILLEGAL_MONITOR_STATE):
        scene.call(mine, "unlock")
    assert scene.call(theirs, "tryLock") is True and scene.call(mine, "forceUnlock") == {}
    with refused(codes.ILLEGAL_MONITOR_STATE):
        scene.call(theirs, "unlock")
    assert scene.call(mine, "forceUnlock", name="never") == {}
    assert scene.call(mine, "isLocked", name="nobody knows") is False
    assert scene.held() == 0
    assert theirs.call("Map.size", name="m") == 0


def test_a_client_without_a_uuid_holds_nothing(scene: Scene) -> None:
    """Goal: nobody would notice the end of a client that has not said who it is."""
    client = Client(scene.home)
    client.open(uuid=None)
    with refused(codes.ILLEGAL_ARGUMENT):
        scene.call(client, "lock")
    assert scene.call(scene.at("home", 2), "tryLock") is True
    assert scene.call(client, "tryPut", value=V, timeout=0) is False
    assert scene.call(client, "tryPut", value=V, timeout=0, key=W) is True


@BOTH
def test_the_longest_waiting_gets_the_lock(scene: Scene, where: str) -> None:
    """Goal: ``lock`` waits for ever, and is served by age, whatever ends the lock before it: an
    unlock, force, the end of a lease.
    """
    owner = scene.at("home", 9)
    waiting = [scene.at(where, number) for number in (1, 2, 3)]
    scene.call(owner, "lock")
    calls = []
    for client in waiting:
        scene.pump.run(0.3)
        calls.append(scene.ask(client, "lock", ttl=2_000))
    scene.pump.run(40)
    assert all(is_open(client, call) for client, call in zip(waiting, calls, strict=True))
    scene.call(owner, "unlock")
    assert waiting[0].answer(calls[0], 1) == {}
    scene.call(owner, "forceUnlock")
    assert waiting[1].answer(calls[1], 1) == {}
    assert is_open(waiting[2], calls[2])
    scene.pump.run(2.2)
    assert waiting[2].answer(calls[2], 1) == {}
    scene.pump.run(2.2)
    assert scene.call(owner, "isLocked") is False and scene.held() == 0
    assert scene.home.engine.metrics()["map_locks_ended_total"] == 2


@BOTH
def test_a_timed_call_gives_up_on_time(scene: Scene, where: str) -> None:
    """Goal: ``tryLock``, ``tryPut`` and ``tryRemove`` give up after their time, with false and
    without effect, and succeed where the lock gets free before.
    """
    owner, client = scene.at("home", 9), scene.at(where, 1)
    scene.call(owner, "lock")
    timed: list[tuple[str, dict[str, Any]]] = [
        ("tryLock", {"lease": NEVER}), ("tryPut", {"value": V}), ("tryRemove", {})
    ]  # fmt: skip
    for method, fields in timed:
        assert scene.call(client, method, timeout=0, **fields) is False
        call = scene.ask(client, method, timeout=3_000, **fields)
        scene.pump.run(2.9)
        assert is_open(client, call)
        scene.pump.run(0.2)
        assert client.answer(call) is False
    calls = [scene.ask(client, method, timeout=3_000, **fields) for method, fields in timed[1:]]
    scene.call(owner, "unlock")
    assert [client.answer(call) for call in calls] == [True, True]
    assert scene.call(client, "tryLock", timeout=3_000) is True


# -- writes of others -----------------------------------------------------------------------


WRITES: list[tuple[str, dict[str, Any]]] = [
    ("put", {"value": W, "ttl": NEVER}),
    ("set", {"value": W, "ttl": NEVER}),
    ("remove", {}),
    ("delete", {}),
    ("putIfAbsent", {"value": W, "ttl": NEVER}),
    ("putTransient", {"value": W, "ttl": NEVER}),
    ("putWithMaxIdle", {"value": W, "ttl": NEVER, "max_idle": NEVER}),
    ("putIfAbsentWithMaxIdle", {"value": W, "ttl": NEVER, "max_idle": NEVER}),
    ("putTransientWithMaxIdle", {"value": W, "ttl": NEVER, "max_idle": NEVER}),
    ("setWithMaxIdle", {"value": W, "ttl": NEVER, "max_idle": NEVER}),
    ("replace", {"value": W}),
    ("replaceIfSame", {"test_value": V, "value": W}),
    ("removeIfSame", {"value": V}),
    ("setTtl", {"ttl": 0}),
]


@BOTH
def test_writes_of_others_wait(scene: Scene, where: str) -> None:
    """Goal: each write of another waits until the key is free, in order of age, and goes through
    then; the owner's pass, and so do reads and other keys.
    """
    owner, client = scene.at("home", 9), scene.at(where, 1)
    scene.call(owner, "put", value=V, ttl=NEVER)
    scene.call(owner, "lock")
    calls = []
    for method, fields in WRITES:
        scene.pump.run(0.06)
        calls.append(scene.ask(client, method, **fields))
    scene.pump.run(15)
    assert all(is_open(client, call) for call in calls)
    assert scene.call(client, "get") == V and scene.call(client, "containsKey") is True
    assert scene.call(client, "put", value=W, ttl=NEVER, key=W) is None
    assert scene.call(owner, "put", value=V, ttl=NEVER) == V
    assert scene.call(owner, "remove") == V
    assert scene.call(owner, "set", value=V, ttl=NEVER) == {}
    scene.call(owner, "unlock")
    answers = [client.answer(call, 1) for call in calls]
    assert answers[:6] == [V, {}, W, False, None, {}]
    assert answers[6:] == [W, W, None, None, W, False, False, True]
    assert client.node.engine.metrics()["waiting_calls"] == 0


def test_what_does_not_wait(scene: Scene) -> None:
    """Goal: as in the field: evict of a locked key is false, evictAll and clear leave it, putAll
    asks for no lock.
    """
    owner, client = scene.at("home", 9), scene.at("other", 1)
    for key in (K, W):
        scene.call(owner, "put", value=V, ttl=NEVER, key=key)
    scene.call(owner, "lock")
    assert scene.call(client, "evict") is False and scene.call(client, "evict", key=W) is True
    for method in ("evictAll", "clear"):
        scene.call(owner, "set", value=V, ttl=NEVER, key=W)
        client.call(f"Map.{method}", name="m")
        assert client.call("Map.keySet", name="m") == [K]
    client.call("Map.putAll", PID, name="m", entries=[(K, W)], trigger_map_loader=False)
    assert scene.call(client, "get") == W and scene.call(client, "isLocked") is True
    assert scene.call(owner, "evict") is True and scene.call(client, "isLocked") is True


def test_a_write_that_waits_lets_lockers_behind_it_in(scene: Scene) -> None:
    """Goal: one wake serves all that can be served: writers in line, then the next who locks, and
    those behind wait for that one.
    """
    owner = scene.at("home", 9)
    scene.call(owner, "lock")
    line = [(scene.at(where, number), where) for number, where in enumerate(
        ("home", "other", "backup", "other", "home"), 1)]  # fmt: skip
    calls = []
    for number, (client, _) in enumerate(line):
        scene.pump.run(0.2)
        calls.append(scene.ask(client, "lock") if number == 2 else scene.put(client))
    scene.call(owner, "unlock")
    scene.pump.run(1)
    assert [is_open(c, call) for (c, _), call in zip(line, calls, strict=True)] == [
        False, False, False, True, True
    ]  # fmt: skip
    scene.call(line[2][0], "unlock")
    assert line[3][0].answer(calls[3], 1) == V and line[4][0].answer(calls[4], 1) == V


# -- deaths and moves -----------------------------------------------------------------------


def test_a_death_of_the_home_ends_no_lock(scene: Scene) -> None:
    """AE-37: at the next primary the owner holds the key as often as before, a lease has as long to
    go as it had, writes that wait go on waiting.
    """
    owner, client = scene.at("backup", 9), scene.at("other", 1)
    scene.call(owner, "lock")
    scene.call(owner, "lock")
    scene.call(owner, "lock", key=W, ttl=60_000)
    wait, write = scene.ask(client, "lock", key=W), scene.put(client)
    begun_us = scene.pump.now_us
    scene.pump.kill(scene.home)
    scene.pump.run_until(lambda: scene.partition(scene.backup).is_primary, 60)
    scene.pump.run(2)
    assert scene.call(owner, "unlock") == {} and scene.call(client, "tryLock") is False
    assert is_open(client, write) and is_open(client, wait)
    assert scene.call(owner, "unlock") == {}
    assert client.answer(write, 2) is None
    assert client.answer(wait, 70) == {}
    assert 60 <= (scene.pump.now_us - begun_us) / 1_000_000 <= 61


def test_locks_move_with_their_partition() -> None:
    """AE-36, AE-37: a partition that moves takes its locks along, where it has entries and where it
    has none; destroying the map ends them, and who waits looks again.
    """
    scene = Scene(2)
    owner, client = scene.at("home", 9), scene.at("backup", 1)
    for pid in range(7):
        owner.call("Map.lock", pid, **scene.fields("lock", 1))
    scene.call(owner, "put", value=V, ttl=NEVER)
    for _ in range(2):
        scene.pump.start()
        scene.pump.run(20)
    leaving = scene.partition_primary()
    if leaving is owner.node:
        owner = scene.at("backup", 9)
    scene.pump.leave(leaving)
    scene.pump.run(5)
    assert scene.held() == 7
    for pid in range(7):
        assert client.call("Map.isLocked", pid, name="m", key=K) is True
        assert client.call("Map.tryLock", pid, **scene.fields("tryLock", 1)) is False
    wait = scene.ask(client, "lock")
    write = scene.ask(client, "put", value=W, ttl=NEVER, key=W)
    assert is_open(client, wait) and not is_open(client, write)
    client.call("Client.destroyProxy", name="m", service_name="hz:impl:mapService")
    assert client.answer(wait, 2) == {}
    assert client.call("Map.isLocked", 4, name="m", key=K) is False


def test_a_call_whose_primary_died_is_repeated_once(scene: Scene) -> None:
    """Goal: a lock whose answer was lost with the primary is the caller's at the next one, once.
    Method: the primary dies when its backup has the lock and its answer is under way.
    """
    client = scene.at("other", 1)
    for method in ("lock", "unlock"):
        home = scene.partition_primary()
        call = client.ask(f"Map.{method}", PID, **scene.fields(method, 1))
        backups = scene.partition(home).row[1]
        backup = next(node for node in scene.pump.nodes if node.id == backups)

        def has_it(node: Node = backup, wanted: int = int(method == "lock")) -> bool:
            fragment = scene.partition(node).fragments.get("map/m")
            locks = None if fragment is None else fragment.store.locks
            return locks is not None and len(locks.held) == wanted

        while not has_it():
            scene.pump.deliver_next()
        if home is not client.node:
            scene.pump.kill(home)
        assert client.answer(call, 60) == {}
        scene.pump.run(20)
    assert scene.call(client, "isLocked") is False


# -- clients that are gone ------------------------------------------------------------------


@BOTH
def test_a_client_that_is_gone_frees_its_locks(scene: Scene, where: str) -> None:
    """Goal: a client that no member is connected to for 5 s loses its locks, the next in line gets
    them; nobody else loses any. The primary hears of it wherever the client was connected.
    """
    gone, stays, waiting = scene.at(where, 1), scene.at(where, 2), scene.at("backup", 3)
    scene.call(gone, "lock")
    scene.call(gone, "lock", 5, key=W)
    scene.call(stays, "lock", key=V)
    call = scene.ask(waiting, "lock")
    scene.pump.run(30)
    assert is_open(waiting, call) and scene.held() == 3
    scene.close(gone)
    scene.pump.run(GONE_US / 1_000_000 - 0.1)
    assert is_open(waiting, call)
    assert waiting.answer(call, FREED_S) == {}
    assert scene.call(waiting, "isLocked", key=W) is False
    assert scene.call(waiting, "isLocked", key=V) is True
    assert scene.home.engine.metrics()["map_locks_of_gone_clients_total"] == 2


def test_a_client_that_comes_back_keeps_its_locks(scene: Scene) -> None:
    """Goal: a client is not gone while some member is connected to it, nor when it connects anew
    within the limit, to whichever member.
    """
    client, other = scene.at("other", 1), scene.at("home", 2)
    second = scene.at("backup", 1)
    scene.call(client, "lock")
    scene.close(client)
    scene.pump.run(20)
    assert scene.call(other, "tryLock") is False
    for where in ("home", "backup", "other"):
        scene.close(second)
        scene.pump.run(GONE_US / 1_000_000 - 0.5)
        second = scene.at(where, 1)
        scene.pump.run(2)
    assert scene.call(other, "tryLock") is False and scene.call(second, "unlock") == {}


def test_the_only_member_that_knew_the_client_dies(scene: Scene) -> None:
    """Goal: a member that is gone is connected to nobody."""
    client, other = scene.at("other", 1), scene.at("home", 2)
    scene.call(client, "lock")
    scene.pump.kill(scene.other)
    scene.pump.run_until(lambda: len(scene.home.engine.member.ctx.members.members) == 2, 60)
    call = scene.ask(other, "lock")
    assert other.answer(call, FREED_S) == {}


def test_nobody_is_gone_while_a_member_is_silent(scene: Scene) -> None:
    """Goal: a member that is on the list and does not answer may be connected to the client."""
    client, other = scene.at("other", 1), scene.at("home", 2)
    scene.call(client, "lock")
    scene.pump.run(2)
    link = scene.home.links.pop(scene.other.id)
    scene.close(client)
    scene.pump.run(FREED_S)
    assert scene.call(other, "tryLock") is False
    scene.home.links[scene.other.id] = link
    scene.home.link_lost(scene.other.id)
    scene.home.link_restored(scene.other.id)
    call = scene.ask(other, "lock")
    assert other.answer(call, FREED_S + 1) == {}


def test_the_next_primary_frees_as_well(scene: Scene) -> None:
    """Goal: locks of a client that vanishes together with the home are freed by its successor."""
    client, other = scene.at("other", 1), scene.at("backup", 2)
    scene.call(client, "lock")
    scene.close(client)
    scene.pump.kill(scene.home)
    call = scene.ask(other, "lock")
    assert other.answer(call, 60 + FREED_S) == {}


def test_a_client_that_dies_waiting_gets_nothing(scene: Scene) -> None:
    """Goal: a lock is not handed to a client that is gone."""
    owner, gone, other = scene.at("home", 9), scene.at("other", 1), scene.at("backup", 2)
    scene.call(owner, "lock")
    scene.ask(gone, "lock")
    scene.close(gone)
    call = scene.ask(other, "lock")
    scene.call(owner, "unlock")
    assert other.answer(call, 2) == {}


def test_many_clients_are_asked_for_in_turn(scene: Scene, monkeypatch: Patch) -> None:
    """Goal: a round asks for a bounded number of clients, and each has its turn."""
    monkeypatch.setattr(presence_module, "CLIENTS_PER_ROUND_MAX", 2)
    clients = [scene.at("other", number) for number in range(1, 6)]
    for number, client in enumerate(clients):
        scene.call(client, "lock", key=to_data(number))
    scene.pump.run(20)
    assert scene.held() == 5
    for client in clients[:4]:
        scene.close(client)
    scene.pump.run(3 * FREED_S)
    assert scene.held() == 1


def test_a_newcomer_is_asked_before_anybody_is_gone(scene: Scene) -> None:
    """Goal: who comes to the cluster may know the client; a round that did not ask it decides
    nothing.
    """
    client = scene.at("other", 1)
    scene.call(client, "lock")
    scene.pump.run(1)
    presence = scene.home.engine.server.presence
    now = scene.home.engine.member.ctx.members
    others = tuple(info for info in now.members if info.id != scene.other.id)
    before = msgspec.structs.replace(now, members=others)

    def is_asking() -> bool:
        return presence._round is not None

    presence._ask([client.uuid])
    presence.members_changed(now, before)
    assert is_asking()
    presence.members_changed(before, now)
    assert not is_asking()
    scene.pump.run(FREED_S)
    assert scene.held() == 1


def test_a_client_that_locks_is_there(scene: Scene) -> None:
    """Goal: a client that was missing for a while and comes back is counted anew from its next
    lock on, whatever a round under way has heard of it.
    """
    client = scene.at("other", 1)
    scene.call(client, "lock")
    scene.close(client)
    scene.pump.run(3)
    presence = scene.home.engine.server.presence
    assert list(presence._absent) == [client.uuid]
    presence._ask([client.uuid])
    asked: Any = presence._round
    back = scene.at("other", 1)
    back.ask("Map.lock", PID, **scene.fields("lock", 1, key=W))
    scene.pump.run_until(lambda: client.uuid in asked.there, 1)
    assert not presence._absent
    scene.close(back)
    scene.pump.run(GONE_US / 1_000_000 - 1)
    assert scene.held() == 2
    scene.pump.run(3)
    assert scene.held() == 0


def test_nobody_asks_while_nothing_is_held(scene: Scene) -> None:
    """Goal: where there are no locks nobody is asked anything."""
    scene.at("other", 1)
    scene.pump.run(5)
    assert not any(node.engine.server.presence._number for node in scene.pump.nodes)


# -- bytes --------------------------------------------------------------------------------


def test_the_head_of_a_forward() -> None:
    """Goal: whatever it says comes back as it went; what is cut short is refused."""
    client: Any = bytes(range(16))
    caller = bytes(range(CALLER_BYTES))
    attempts = (
        None,
        Attempt(caller, 5, is_repetition=False),
        Attempt(caller, 5, is_repetition=True),
    )
    for owner, waited, attempt in product((None, client), (None, (7, 9)), attempts):
        head = Head(3, owner, waited, attempt)
        data = head.encode()
        assert read_head(data + b"request") == (head, len(data))
        for end in range(1, len(data)):
            with pytest.raises(ProtocolError):
                read_head(data[:end])


def test_bad_notes_are_refused(scene: Scene) -> None:
    """Goal: what no member of ours would say about clients changes nothing."""
    notes = scene.home.engine.server.scatter.notes
    for name in (WANTED, THERE):
        with pytest.raises(ProtocolError):
            notes[name](scene.other.id, b"nonsense")
    client = scene.at("other", 1)
    scene.call(client, "lock")
    notes[THERE](scene.other.id, b"\x92\xcd\x27\x0f\x90")
    scene.pump.run(3)
    assert scene.held() == 1


# -- splits -------------------------------------------------------------------------------


def test_after_a_split_the_locks_of_the_bigger_part_stand() -> None:
    """Goal: each part goes on with the locks that it has; when they meet those of the smaller one
    are gone, also where a map has locks and no entries, and it says how many there were.
    """
    pump = SplitPump(quick_settings())
    nodes = list(pump.form(4))
    bigger, smaller = pump.client(nodes[0], number=1), pump.client(nodes[3], number=2)
    pids, references = range(7), count(1)

    def call(client: Client, method: str, pid: int, name: str = "m") -> Any:
        fields: dict[str, Any] = {"name": name, "key": K}
        if method != "isLocked":
            fields |= {"thread_id": 1, "reference_id": next(references)}
        if method == "tryLock":
            fields |= {"lease": NEVER, "timeout": 0}
        return client.call(f"Map.{method}", pid, **fields)

    for pid in pids:
        assert call(bigger, "tryLock", pid, "both") is True
    pump.separate(60, nodes[:3], nodes[3:])
    for pid in pids:
        assert call(bigger, "isLocked", pid, "both") is True
        assert call(bigger, "tryLock", pid) is True and call(smaller, "tryLock", pid) is True
        assert call(smaller, "tryLock", pid, "theirs") is True
        assert call(smaller, "isLocked", pid, "both") is False, "its owner is gone there"
    pump.heal_and_wait()
    pump.run(2)
    for pid in pids:
        assert call(bigger, "isLocked", pid, "theirs") is False
        assert call(bigger, "isLocked", pid, "both") is True
        assert call(bigger, "unlock", pid) == {} and call(bigger, "isLocked", pid) is False
    assert sum(told["locks"] for told in pump.notes("split_brain.locks_dropped")) == 14
    figures = [node.engine.metrics() for node in pump.living()]
    assert sum(one["map_locks_dropped_after_split_total"] for one in figures) == 14
