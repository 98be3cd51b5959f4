"""Goal: a registration hears each event once, at however many members its client makes it, while
members come and go. Method: clients that make one registration with every member they are connected
to, as official clients do, and requests that make events arise at each member.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, member_id, quick_settings
from tests.unit.split_pump import SplitPump, data

from whimbrel.core.ids import Namespace
from whimbrel.core.stimuli import LeaveWanted
from whimbrel.errors import ProtocolError
from whimbrel.serving import listeners as listeners_module
from whimbrel.serving.hub import NOTIFY_EVENT
from whimbrel.serving.interest import (
    MARK_BYTES,
    Interest,
    Interests,
    Marks,
    encode_interest,
    mark_of,
)
from whimbrel.serving.listeners import GRID
from whimbrel.wire.codec import encode_request
from whimbrel.wire.frames import (
    AUTHENTICATED,
    BACKUP_AWARE,
    REQUESTS,
    MessageSplitter,
    RawMessage,
)
from whimbrel.wire.links import NOTIFY

LISTEN = "MultiMap.addEntryListener"
STOP = "MultiMap.removeEntryListener"


class Scene(SplitPump):
    """Three members; a client that writes through the last of them."""

    def __init__(self, members: int = 3) -> None:
        super().__init__(quick_settings())
        self.form(members)
        self.keys = 0

    def everywhere(self, number: int = 9, **fields: Any) -> list[Client]:
        """The connections of a client that listens with every member."""
        return [self.listener(node, number, **fields) for node in self.living()]

    def listener(self, node: Node, number: int = 9, **fields: Any) -> Client:
        """A connection that listens to everything."""
        client = self.client(node, number=number)
        client.correlation += 10 * node.number
        listen(client, **fields)
        return client

    def primary(self, partition: int) -> Node:
        """Whose events the changes of a partition are."""
        by_id = {node.id: node for node in self.nodes}
        row = self.living()[0].engine.member.dataplane.partitions[partition].row
        assert row[0] is not None
        return by_id[row[0]]

    def change(self, at: Node | None = None) -> list[str]:
        """Add an entry in each partition, so that an event arises at each member, or in those of
        one member alone; the keys.
        """
        writer = self.client(self.living()[-1])
        count = self.settings.partition_count
        primaries = {partition: self.primary(partition) for partition in range(count)}
        assert all(node in primaries.values() for node in self.living())
        added = []
        for partition, primary in primaries.items():
            if at in (None, primary):
                self.keys += 1
                added.append(f"key {self.keys}")
                put(writer, partition, added[-1])
        self.settle()
        return added

    def close(self, client: Client) -> None:
        """The client's connection breaks, and its member knows."""
        client.node.clients.pop(client.conn)
        client.node.engine.client_closed(client.conn)
        client.node.carry_out()
        self.settle()

    def notices(self) -> list[tuple[int, int]]:
        """Numbers of the sender and the receiver of each notice of an event from now on."""
        sent: list[tuple[int, int]] = []
        arrive = self.arrive

        def look(source: Node, target: Node, frame: Any) -> None:
            if frame.kind == NOTIFY and frame.payload[:1] == NOTIFY_EVENT:
                sent.append((source.number, target.number))
            arrive(source, target, frame)

        self.arrive = look  # type: ignore[method-assign]
        return sent


def put(writer: Client, partition: int, key: str, name: str = "m") -> None:
    fields = {"name": name, "key": data(key), "value": data("value"), "thread_id": 1}
    assert writer.call("MultiMap.put", partition, **fields)


def listen(client: Client, **fields: Any) -> bytes:
    """Listen to everything in the multimap m, unless the fields say otherwise."""
    wanted = {"name": "m", "include_value": False, "local_only": False, **fields}
    registration: bytes = client.call(LISTEN, **wanted)
    return registration


def heard(*clients: Client) -> Counter[str]:
    """How often each key was told to connections of a client since the last call."""
    events = [fields for client in clients for _, _, fields in client.taken_events()]
    return Counter(event["key"][8:].decode() for event in events)


def once(keys: list[str]) -> Counter[str]:
    return Counter(keys)


# -- a client that registers everywhere -------------------------------------------------------


def test_an_event_is_told_by_the_member_where_it_arises() -> None:
    """Whichever that is; nothing travels."""
    scene = Scene()
    clients, sent = scene.everywhere(), scene.notices()
    keys = scene.change()
    assert [len(client.events) > 0 for client in clients] == [True] * 3
    assert heard(*clients) == once(keys)
    assert sent == []


@pytest.mark.parametrize(
    ("method", "fields", "change"),
    [
        ("MultiMap.addEntryListener", {"include_value": True}, "MultiMap.put"),
        (
            "MultiMap.addEntryListenerToKey",
            {"include_value": True, "key": data("k")},
            "MultiMap.put",
        ),
        ("Map.addEntryListener", {"include_value": True, "listener_flags": 1}, "Map.put"),
        ("Queue.addListener", {"include_value": True}, "Queue.put"),
    ],
)
def test_it_is_so_for_each_kind(method: str, fields: dict[str, Any], change: str) -> None:
    """Listeners of keys, of maps and of queues."""
    scene = Scene()
    clients = [scene.client(node, number=9) for node in scene.nodes]
    for client in clients:
        client.call(method, name="m", local_only=False, **fields)
    values = {"name": "m", "key": data("k"), "value": data("v"), "thread_id": 1, "ttl": -1}
    wanted = {"MultiMap": ("name", "key", "value", "thread_id"), "Queue": ("name", "value")}
    names = wanted.get(change.split(".")[0], tuple(values))
    scene.client(scene.nodes[0]).call(change, 3, **{name: values[name] for name in names})
    scene.settle()
    assert sum(len(client.taken_events()) for client in clients) == 1


def test_what_concerns_a_whole_structure_is_told_once() -> None:
    """It arises at the member that was asked, which need not have the client."""
    scene = Scene()
    clients = scene.everywhere()
    scene.change()
    heard(*clients)
    scene.client(scene.nodes[1]).call("MultiMap.clear", name="m")
    scene.settle()
    assert [len(client.taken_events()) for client in clients] == [0, 1, 0]
    scene.change()
    heard(*clients)
    scene.close(clients[1])
    scene.client(scene.nodes[1]).call("MultiMap.clear", name="m")
    scene.settle()
    assert sum(len(client.taken_events()) for client in clients) == 1


def test_a_structure_that_nobody_listens_to_leaves_nothing_behind() -> None:
    """What concerns a whole structure is told whether somebody listens or not."""
    scene = Scene()
    scene.change()
    scene.client(scene.nodes[1]).call("MultiMap.clear", name="m")
    assert not scene.nodes[1].engine.server.listeners._tellers


@pytest.mark.parametrize("local_only", [False, True])
def test_a_newcomer_without_the_client_leaves_it_to_one_member(local_only: bool) -> None:
    """Before the client is connected there, and after; one notice goes for each event. It is so for
    one that asks each member for everything, and one that asks each for what happens there.
    """
    scene = Scene()
    clients = scene.everywhere(local_only=local_only)
    newcomer = scene.start()
    scene.run_until(lambda: newcomer.joined, 30)
    scene.run(10)
    sent = scene.notices()
    keys = scene.change()
    assert heard(*clients) == once(keys)
    of_newcomer = [pid for pid in range(7) if scene.primary(pid) is newcomer]
    assert [source for source, _ in sent] == [newcomer.number] * len(of_newcomer)
    before = len(sent)
    clients.append(scene.listener(newcomer, local_only=local_only))
    keys = scene.change()
    assert len(clients[-1].events) == len(of_newcomer)
    assert heard(*clients) == once(keys)
    assert len(sent) == before


@pytest.mark.parametrize("local_only", [False, True])
def test_a_join_costs_no_event_and_doubles_none(local_only: bool) -> None:
    """Written all through the rebalancing; the client comes to the newcomer in the middle."""
    scene = Scene()
    clients = scene.everywhere(local_only=local_only)
    writer = scene.client(scene.nodes[1])
    newcomer = scene.start()
    keys = [f"key {number}" for number in range(200)]
    for number, key in enumerate(keys):
        scene.run(0.05)
        put(writer, number % 7, key)
        if number == 140:
            assert newcomer.joined
            clients.append(scene.listener(newcomer, local_only=local_only))
    scene.settle()
    assert heard(*clients) == once(keys)


def test_who_listens_nearby_hears_newcomers_until_it_ends() -> None:
    """Goal: what a newcomer is told of listeners for one member's events alone is their own: not of
    those that were made when it was there, of what the cluster itself tells, or that have ended.
    """
    scene = Scene()
    early = scene.listener(scene.nodes[0], 5, local_only=True)
    ending = scene.client(scene.nodes[0], number=6)
    registration = listen(ending, local_only=True)
    early.call("Client.addPartitionLostListener", local_only=True)
    newcomer = scene.start()
    scene.run_until(lambda: newcomer.joined, 30)
    scene.run(10)
    late = scene.listener(scene.nodes[0], 7, local_only=True)
    interests = newcomer.engine.server.listeners._interests
    keys = scene.change(newcomer)
    assert heard(early) == heard(ending) == once(keys) and heard(late) == Counter()
    assert not interests.members(GRID)
    ending.call(STOP, name="m", registration_id=registration)
    scene.settle()
    keys = scene.change(newcomer)
    assert heard(early) == once(keys) and heard(ending) == Counter()
    scene.close(early)
    assert not interests.tellers(Namespace("multimap/m"), ())


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_graceful_leave_costs_no_event_and_doubles_none(leaver: int) -> None:
    """Whoever leaves, the client being connected to all; one that it is not connected to then tells
    another.
    """
    scene = Scene()
    clients = scene.everywhere()
    stays = next(node for number, node in enumerate(scene.nodes) if number != leaver)
    writer = scene.client(stays)
    keys: list[str] = []

    def write() -> bool:
        keys.append(f"key {len(keys)} of the leave")
        put(writer, len(keys) % 7, keys[-1])
        return not scene.nodes[leaver].alive

    scene.nodes[leaver].handle(LeaveWanted())
    scene.run_until(write, 60)
    scene.run(1)
    keys += scene.change()
    newcomer = scene.start()
    scene.run_until(lambda: newcomer.joined, 30)
    scene.run(10)
    keys += scene.change()
    assert heard(*clients) == once(keys)


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_after_a_death_another_member_tells(dead: int) -> None:
    """A member without the client finds another to tell it, whoever told it before."""
    scene = Scene()
    clients = scene.everywhere()
    newcomer = scene.start()
    scene.run(10)
    scene.kill(scene.nodes[dead])
    scene.run(30)
    heard(*clients)
    keys = scene.change()
    assert heard(*clients) == once(keys)
    assert newcomer in {scene.primary(pid) for pid in range(7)}


def test_a_member_whose_client_is_gone_leaves_it_to_another() -> None:
    """One connection after the other breaks; the last one is told everything, and then nobody."""
    scene = Scene()
    clients, sent = scene.everywhere(), scene.notices()
    for client in clients[:2]:
        scene.close(client)
        keys = scene.change()
        assert heard(*clients) == once(keys)
    assert sent
    scene.close(clients[2])
    sent.clear()
    scene.change()
    assert heard(*clients) == Counter() and sent == []


def test_a_registration_that_is_removed_is_told_nothing() -> None:
    """At one member after the other, as clients do it; the others hear on."""
    scene = Scene()
    clients = [scene.client(node, number=9) for node in scene.nodes]
    registrations = [listen(client) for client in clients]
    for number, client in enumerate(clients[:2]):
        assert client.call(STOP, name="m", registration_id=registrations[number])
        scene.settle()
        keys = scene.change()
        assert not client.events
        assert heard(*clients) == once(keys)
    assert clients[2].call(STOP, name="m", registration_id=registrations[2])
    scene.settle()
    sent = scene.notices()
    scene.change()
    assert heard(*clients) == Counter() and sent == []
    assert not any(node.engine.member.dataplane.events.listened for node in scene.nodes)


# -- one connection, several clients, several registrations -----------------------------------


def test_a_client_with_one_connection_is_told_everything() -> None:
    """Also by those who have other listeners of the structure."""
    scene = Scene()
    nearby = scene.listener(scene.nodes[1], 7, local_only=True)
    one, other = scene.listener(scene.nodes[0], 5), scene.listener(scene.nodes[1], 6)
    keys = scene.change()
    assert heard(one) == once(keys) and heard(other) == once(keys)
    assert 0 < heard(nearby).total() < len(keys)


def test_a_member_tells_only_those_that_are_left_to_it() -> None:
    """It has a client with one connection, and one that another member tells."""
    scene = Scene()
    both = [scene.listener(node) for node in scene.nodes[:2]]
    single = scene.listener(scene.nodes[0], 5)
    keys = scene.change()
    assert heard(*both) == once(keys) and heard(single) == once(keys)


@pytest.mark.parametrize("at", [(1, 1), (0, 1)])
def test_equal_requests_of_two_clients_are_two(at: tuple[int, int]) -> None:
    """At one member and at two; an event travels once to each member."""
    scene = Scene()
    both = [scene.listener(scene.nodes[node], number) for number, node in enumerate(at, 5)]
    sent = scene.notices()
    keys = scene.change(scene.nodes[2])
    assert [heard(one) for one in both] == [once(keys)] * 2
    assert len(sent) == len(keys) * len(set(at))


def test_clients_without_a_name_of_their_own_are_not_one() -> None:
    """A client need not say its uuid."""
    scene = Scene()
    both = [Client(node) for node in scene.nodes[:2]]
    for one in both:
        one.open(uuid=None)
        listen(one)
    keys = scene.change()
    assert [heard(one) for one in both] == [once(keys)] * 2


@pytest.mark.parametrize("smart", [True, False])
def test_two_equal_registrations_are_both_told(smart: bool) -> None:
    """Of one connection, here and from elsewhere, and at every member; one that ends leaves the
    other as it is.
    """
    scene = Scene()
    clients = scene.everywhere() if smart else [scene.listener(scene.nodes[1])]
    second = [listen(client) for client in clients]
    keys = scene.change()
    assert heard(*clients) == once(keys * 2)
    for client, registration in zip(clients, second, strict=True):
        assert client.call(STOP, name="m", registration_id=registration)
    keys = scene.change()
    assert heard(*clients) == once(keys)


def test_different_registrations_are_told_each() -> None:
    """One connection asks with and without values, and for a key: a request is not another."""
    scene = Scene()
    client = scene.listener(scene.nodes[0])
    elsewhere = scene.listener(scene.nodes[1], include_value=True)
    keys = scene.change()
    assert heard(client) == heard(elsewhere) == once(keys)


def test_a_client_that_comes_back_elsewhere_is_told_there() -> None:
    """Its former member takes the old connection for whole, and does not know better; whatever
    arises at others is told to the new one, whichever member is older.
    """
    for former, new in ((0, 1), (1, 0)):
        scene = Scene()
        scene.listener(scene.nodes[former])
        client = scene.listener(scene.nodes[new])
        keys = scene.change(scene.nodes[2]) + scene.change(scene.nodes[new])
        assert heard(client) == once(keys)


def test_what_changes_in_a_turn_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many registrations at once, and the end of a connection with its listeners."""
    scene = Scene()
    client, notes = scene.client(scene.nodes[0]), 0
    scatter = scene.nodes[0].engine.server.scatter
    tell = scatter.tell

    def count(members: Any, what: str, *rest: Any) -> None:
        nonlocal notes
        notes += len(members)
        tell(members, what, *rest)

    monkeypatch.setattr(scatter, "tell", count)
    fields = {"include_value": False, "local_only": False}
    asked = range(101, 121)
    client.send(b"".join(encode_request(LISTEN, n, -1, name=f"m{n}", **fields) for n in asked))
    registrations = [client.answer(number) for number in asked]
    assert len(dict.fromkeys(registrations)) == 20 and notes == 2
    listened = scene.nodes[1].engine.member.dataplane.events.listened
    assert list(listened.values()) == [1] * 20
    scene.close(client)
    assert notes == 4 and not listened


# -- bounds and bad input ---------------------------------------------------------------------


def test_listeners_of_a_member_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with them what it tells others that it wants."""
    monkeypatch.setattr(listeners_module, "LISTENERS_MAX", 2)
    scene = Scene(2)
    client = scene.listener(scene.nodes[0])
    listen(client, include_value=True)
    with pytest.raises(Error, match="at most 2 listeners"):
        listen(client)


NOT_NOTICES = (
    b"",
    b"\x01",
    b"\x01\0\0\0" + bytes(7),
    b"\x01\0\0\0" + bytes(8),
    bytes(4) + b"\x90",
    b"\xff" * 30,
)


@pytest.mark.parametrize("body", NOT_NOTICES)
def test_what_is_no_notice_is_refused(body: bytes) -> None:
    """Neither marks that are cut short nor an event without fields break more than the link."""
    scene = Scene(2)
    server = scene.nodes[0].engine.server
    with pytest.raises(ProtocolError, match="not an event"):
        server.peer_frame(scene.nodes[1].id, NOTIFY, NOTIFY_EVENT + body)


# -- marks and interests ----------------------------------------------------------------------


def raw(correlation: int, partition: int = -1, flags: int = 0, **fields: Any) -> RawMessage:
    values = {"name": "m", "include_value": True, "local_only": False, **fields}
    method = "MultiMap.addEntryListenerToKey" if "key" in fields else LISTEN
    splitter = MessageSplitter(AUTHENTICATED, REQUESTS)
    return splitter.feed(encode_request(method, correlation, partition, flags, **values))[0]


def test_a_mark_is_the_client_and_what_it_asks() -> None:
    """The same at every member, whatever the connection has sent before."""
    one = mark_of(b"one", raw(1))
    assert len(one) == MARK_BYTES
    assert mark_of(b"one", raw(77, 5, BACKUP_AWARE)) == one
    request = encode_request("Queue.addListener", 1, name="m", include_value=True, local_only=False)
    (of_a_queue,) = MessageSplitter(AUTHENTICATED, REQUESTS).feed(request)
    others = [
        mark_of(b"one", of_a_queue),
        mark_of(b"two", raw(1)),
        mark_of(b"one", raw(1, name="n")),
        mark_of(b"one", raw(1, include_value=False)),
        mark_of(b"one", raw(1, key=data("k"))),
        mark_of(b"one", raw(1, key=data("l"))),
    ]
    assert len(dict.fromkeys([one, *others])) == 7


A, B, C = (letter * MARK_BYTES for letter in (b"a", b"b", b"c"))
M, N = Namespace("multimap/m"), Namespace("multimap/n")


class Heard:
    """Interests of members 1, 2, ... and what they say has changed."""

    def __init__(self) -> None:
        self.changes: list[tuple[Namespace, int]] = []
        self.interests = Interests(
            member_id(9), lambda name, change: self.changes.append((name, change))
        )

    def take(self, member: int, number: int, marks: Marks) -> list[tuple[Namespace, int]]:
        """What changes by an interest."""
        self.changes.clear()
        self.interests.take(member_id(member), encode_interest(Interest(number, marks, {})))
        return self.changes[:]

    def tellers(self, name: Namespace = M, here: tuple[bytes, ...] = ()) -> dict[int, bytes]:
        """The marks, joined, of each member that is told."""
        told = self.interests.tellers(name, here)
        return {int(member[:8], 16): b"".join(marks) for member, marks in told.items()}


def test_each_mark_is_told_by_one_member() -> None:
    """The one that made it known last, however often it says so again; not what is told here."""
    heard = Heard()
    assert heard.take(1, 1, {M: (A, B)}) == [(M, 1)]
    assert heard.take(2, 1, {M: (B, C), N: (A,), GRID: ()}) == [(M, 1), (N, 1), (GRID, 1)]
    assert heard.tellers() == {1: A, 2: B + C}
    assert heard.tellers(here=(A, C)) == {2: B} and heard.tellers(N) == {2: A}
    assert heard.take(1, 2, {M: (A, B, C)}) == [(M, 0)]
    assert heard.tellers() == {1: A + C, 2: B}
    assert heard.interests.members(GRID) == [member_id(2)]
    assert heard.take(2, 2, {N: (A,)}) == [(M, -1), (N, 0), (GRID, -1)]
    assert heard.tellers() == {1: A + B + C}
    assert heard.tellers(GRID) == {} and heard.interests.members(GRID) == []
    heard.changes.clear()
    for _ in range(2):
        heard.interests.forget(member_id(1))
    assert heard.changes == [(M, -1)] and heard.tellers() == {}


def test_an_old_interest_is_no_news() -> None:
    """Repeated or late, it changes nothing."""
    heard = Heard()
    heard.take(1, 5, {M: (A,)})
    for number in (5, 4):
        assert heard.take(1, number, {}) == []
    assert heard.tellers() == {1: A}


@pytest.mark.parametrize("body", [b"", b"\x92\x01\x81\xa1m\x91\xc4\x01a", b"\x92\x01\x90"])
def test_what_is_no_interest_is_refused(body: bytes) -> None:
    """A mark has its length."""
    with pytest.raises(ProtocolError, match="not an interest"):
        Heard().interests.take(member_id(1), body)
