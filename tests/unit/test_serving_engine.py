"""One engine alone: sessions, single-key and whole-map calls, errors, limits, damaged input."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, member_id, quick_settings
from tests.unit.wire_samples import frame

from whimbrel.serialization.data import to_data
from whimbrel.serving import intake as intake_module
from whimbrel.serving.outputs import ToClient
from whimbrel.structures.map.settings import MapSettings
from whimbrel.wire.codec import encode_request
from whimbrel.wire.custom_types import FieldDescriptor, Schema
from whimbrel.wire.frames import ANSWERS, AUTHENTICATED, FINAL, PRELUDE


@pytest.fixture
def pump() -> Pump:
    pump = Pump()
    pump.form(1)
    return pump


@pytest.fixture
def client(pump: Pump) -> Client:
    return pump.client(pump.nodes[0])


def put(client: Client, key: Any, value: Any, name: str = "m", partition: int = 3) -> Any:
    return client.call(
        "Map.put",
        partition,
        name=name,
        key=to_data(key),
        value=to_data(value),
        thread_id=1,
        ttl=-1,
    )


def get(client: Client, key: Any, name: str = "m", partition: int = 3) -> Any:
    return client.call("Map.get", partition, name=name, key=to_data(key), thread_id=1)


# -- sessions ---------------------------------------------------------------------------------


def test_authentication_tells_who_we_are(pump: Pump) -> None:
    """Goal: the answer names member, cluster, partition count, address and version."""
    answer = Client(pump.nodes[0]).open()
    assert answer["status"] == 0
    assert answer["partition_count"] == 7
    assert answer["server_version"] == "5.7.0"
    assert answer["address"] == pump.nodes[0].address
    assert answer["member_uuid"] == bytes.fromhex(member_id(1).replace("-", ""))
    assert answer["cluster_id"] is not None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"cluster": "other"}, 1),
        ({"username": "u", "password": "p"}, 1),
        ({"serialization_version": 9}, 2),
    ],
)
def test_refused_authentications_are_answered_and_closed(
    pump: Pump, fields: dict[str, Any], status: int
) -> None:
    """Goal: a client learns by status why it is refused, then the connection ends."""
    client = Client(pump.nodes[0])
    assert client.open(**fields)["status"] == status
    assert client.closed


def test_custom_credentials_are_refused(pump: Pump) -> None:
    """Goal: credentials that nobody configured are refused with status 1."""
    client = Client(pump.nodes[0])
    client.connect()
    fields = client.credentials(credentials=b"token")
    del fields["username"], fields["password"]
    assert client.call("Client.authenticationCustom", **fields)["status"] == 1
    assert client.closed


def test_nothing_runs_before_authentication(pump: Pump, client: Client) -> None:
    """Goal: a write on a fresh connection is refused, ends the connection and changes nothing."""
    stranger = Client(pump.nodes[0])
    stranger.connect()
    with pytest.raises(Error):
        put(stranger, "k", "v")
    assert stranger.closed
    assert get(client, "k") is None


def test_a_member_that_has_not_joined_closes(pump: Pump) -> None:
    """Goal: a client is sent away, not refused for good, while the member has no cluster yet."""
    node = Node(pump, 9, lite=False)
    client = Client(node)
    with pytest.raises(EOFError):
        client.open()
    assert "joined" in client.closed


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"CP3", b"cp2", b"\x16\x03\x01", b"X"]
)
def test_a_wrong_prelude_ends_the_connection(pump: Pump, first: bytes) -> None:
    """Goal: what is not a client is not listened to."""
    client = Client(pump.nodes[0])
    client.node.clients[client.conn] = client
    client.node.engine.client_opened(client.conn, "test")
    client.send(first)
    assert client.closed


def test_bytes_may_come_one_by_one(pump: Pump) -> None:
    """Goal: splitting is not an error."""
    client = Client(pump.nodes[0])
    client.node.clients[client.conn] = client
    client.node.engine.client_opened(client.conn, "test")
    message = encode_request("Client.authentication", 5, **client.credentials())
    for byte in PRELUDE + message:
        client.send(bytes([byte]))
    assert client.answer(5)["status"] == 0


def test_closing_forgets_the_connection(pump: Pump, client: Client) -> None:
    """Goal: nothing of a closed connection stays."""
    client.call(
        "Map.addEntryListener", name="m", include_value=True, listener_flags=1, local_only=True
    )
    client.call("Client.addClusterViewListener")
    engine = pump.nodes[0].engine
    assert engine.metrics()["listeners"] == 1
    engine.client_closed(client.conn)
    assert engine.metrics()["listeners"] == 0
    assert engine.metrics()["client_connections"] == 0


# -- maps -------------------------------------------------------------------------------------


def test_put_get_remove(client: Client) -> None:
    """Goal: the hot calls do what they say."""
    assert put(client, "k", 1) is None
    assert put(client, "k", 2) == to_data(1)
    assert get(client, "k") == to_data(2)
    key = to_data("k")
    assert client.call("Map.containsKey", 3, name="m", key=key, thread_id=1) is True
    client.call("Map.set", 3, name="m", key=key, value=to_data(3), thread_id=1, ttl=-1)
    assert client.call("Map.remove", 3, name="m", key=key, thread_id=1) == to_data(3)
    assert client.call("Map.remove", 3, name="m", key=key, thread_id=1) is None
    assert client.call("Map.delete", 3, name="m", key=key, thread_id=1) is False
    assert get(client, "k") is None


def test_conditional_calls(client: Client) -> None:
    """Goal: replace, putIfAbsent and their like act only when they should."""
    key = {"name": "m", "key": to_data("k")}
    thread = {"thread_id": 1}
    one, two = to_data(1), to_data(2)
    assert client.call("Map.replace", 3, **key, value=one, **thread) is None
    assert client.call("Map.putIfAbsent", 3, **key, value=one, **thread, ttl=-1) is None
    assert client.call("Map.putIfAbsent", 3, **key, value=two, **thread, ttl=-1) == one
    assert client.call("Map.replace", 3, **key, value=two, **thread) == one
    same = client.call("Map.replaceIfSame", 3, **key, test_value=one, value=two, **thread)
    assert same is False
    same = client.call("Map.replaceIfSame", 3, **key, test_value=two, value=one, **thread)
    assert same is True
    assert client.call("Map.removeIfSame", 3, **key, value=two, **thread) is False
    assert client.call("Map.removeIfSame", 3, **key, value=one, **thread) is True
    assert client.call("Map.tryPut", 3, **key, value=one, **thread, timeout=0) is True
    assert client.call("Map.evict", 3, **key, **thread) is True
    assert client.call("Map.containsKey", 3, **key, **thread) is False


def test_time_to_live_and_entry_view(pump: Pump, client: Client) -> None:
    """Goal: an entry with a time to live is gone after it; the view tells the limit."""
    key = {"name": "m", "key": to_data("k"), "thread_id": 1}
    client.call("Map.put", 3, **key, value=to_data(1), ttl=2_000)
    view = client.call("Map.getEntryView", 3, **key)
    assert view["response"].ttl == 2_000
    assert (view["response"].hits, view["response"].last_access_time) == (-1, -1)
    assert view["response"].value == to_data(1)
    pump.run(2.5)
    assert client.call("Map.get", 3, **key) is None
    assert client.call("Map.size", name="m") == 0


def test_bulk_calls(client: Client) -> None:
    """Goal: putAll and getAll work on the partition they name."""
    entries = [(to_data(number), to_data(-number)) for number in range(100)]
    client.call("Map.putAll", 2, name="m", entries=entries)
    keys = [key for key, _ in entries[:10]] + [to_data("absent")]
    found = client.call("Map.getAll", 2, name="m", keys=keys)
    assert sorted(found) == sorted(entries[:10])


def test_whole_map_calls(client: Client) -> None:
    """Goal: size, sets, contains, clear see all partitions."""
    for number in range(21):
        put(client, number, number + 100, partition=number % 7)
    assert client.call("Map.size", name="m") == 21
    assert client.call("Map.isEmpty", name="m") is False
    assert sorted(client.call("Map.keySet", name="m")) == sorted(map(to_data, range(21)))
    assert len(client.call("Map.values", name="m")) == 21
    assert dict(client.call("Map.entrySet", name="m"))[to_data(5)] == to_data(105)
    assert client.call("Map.containsValue", name="m", value=to_data(120)) is True
    assert client.call("Map.containsValue", name="m", value=to_data(121)) is False
    client.call("Map.clear", name="m")
    assert client.call("Map.size", name="m") == 0
    assert client.call("Map.isEmpty", name="m") is True


@pytest.mark.parametrize("start", [[], [(2**31 - 1, -1)]])
def test_iteration_returns_each_entry_once(client: Client, start: list[tuple[int, int]]) -> None:
    """Goal: fetchEntries and fetchKeys walk over a partition in batches, each entry once."""
    entries = {to_data(number): to_data(str(number)) for number in range(250)}
    client.call("Map.putAll", 4, name="m", entries=list(entries.items()))
    found: list[tuple[bytes, bytes]] = []
    pointers = start
    while not pointers or pointers[-1][0] >= 0:
        page = client.call("Map.fetchEntries", 4, name="m", iteration_pointers=pointers, batch=40)
        found += page["entries"]
        pointers = page["iteration_pointers"]
    assert len(found) == 250
    assert dict(found) == entries
    keys = client.call("Map.fetchKeys", 4, name="m", iteration_pointers=start, batch=1000)["keys"]
    assert sorted(keys) == sorted(entries)


# -- errors -----------------------------------------------------------------------------------


def test_unsupported_requests_are_refused_by_name(client: Client) -> None:
    """Goal: the error names the request; the connection goes on."""
    with pytest.raises(Error, match=r"Map\.aggregate") as caught:
        client.call("Map.aggregate", name="m", aggregator=to_data(1))
    assert caught.value.code == 61
    fields = {"key": to_data(1), "thread_id": 1, "ttl": 1, "reference_id": 1}
    with pytest.raises(Error, match=r"MultiMap\.lock"):
        client.call("MultiMap.lock", 3, name="m", **fields)
    client.send(frame(b"\x00\x01\x05\x00" + bytes(12), 0xC000 | FINAL))
    client.correlation = 0
    with pytest.raises(Error, match=r"List\.size"):
        client.answer(0)
    assert put(client, 1, 1) is None


@pytest.mark.parametrize("partition", [-1, 7, 1 << 30, -2])
def test_a_partition_that_does_not_exist_is_an_error(client: Client, partition: int) -> None:
    """Goal: a partition id out of range is an illegal argument."""
    with pytest.raises(Error, match=str(partition)) as caught:
        get(client, 1, partition=partition)
    assert caught.value.code == 23


def test_bad_names_are_refused(client: Client) -> None:
    """Goal: an empty or endless map name is an illegal argument."""
    for name in ("", "n" * 1001):
        with pytest.raises(Error) as caught:
            put(client, 1, 1, name=name)
        assert caught.value.code == 23


def test_a_half_message_of_type_0_is_met_with_silence(client: Client) -> None:
    """Goal: the official client's test suite sends a first frame of type 0 without an end."""
    client.send(frame(bytes(4) + (77).to_bytes(8, "little") + b"\xff" * 4, 0xC000))
    assert put(client, 1, 1) is None
    assert not client.closed


def test_other_services_proxies_are_refused(client: Client) -> None:
    """Goal: only structures of kinds that are offered can be created."""
    with pytest.raises(Error, match="listService"):
        client.call("Client.createProxy", name="q", service_name="hz:impl:listService")


@pytest.mark.parametrize("seed", range(30))
def test_garbage_never_breaks_the_engine(pump: Pump, client: Client, seed: int) -> None:
    """Goal: damaged requests get an error, an answer or a closed connection; others are served.
    Method: seeded changes of bytes in valid requests, on an authenticated connection.
    """
    rng = random.Random(seed)
    key, value = to_data("k"), to_data("v")
    filter_ = {"include_value": True, "listener_flags": 255, "local_only": False}
    samples = [
        encode_request("Map.put", 9, 3, name="x", key=key, value=value, thread_id=1, ttl=-1),
        encode_request("Map.get", 9, 3, name="x", key=key, thread_id=1),
        encode_request("Map.putAll", 9, 3, name="x", entries=[(key, value)] * 3),
        encode_request("Map.getAll", 9, 3, name="x", keys=[key]),
        encode_request("Map.fetchKeys", 9, 3, name="x", iteration_pointers=[(5, 0)], batch=3),
        encode_request("Map.addEntryListenerToKey", 9, name="x", key=key, **filter_),
        encode_request("Map.entrySet", 9, name="x"),
        encode_request("Client.createProxy", 9, name="x", service_name="hz:impl:mapService"),
        encode_request("Client.sendSchema", 9, schema=Schema("t", [FieldDescriptor("f", 1)])),
        encode_request("Client.statistics", 9, timestamp=1, client_attributes="", metrics_blob=b""),
        encode_request("Client.fetchSchema", 9, schema_id=4),
    ]
    for _ in range(40):
        bad = Client(pump.nodes[0], smart=True, number=rng.randrange(2, 99))
        bad.open()
        for _ in range(5):
            sample = bytearray(rng.choice(samples))
            for _ in range(rng.randint(1, 6)):
                sample[rng.randrange(len(sample))] = rng.randrange(256)
            if rng.random() < 0.2:
                del sample[rng.randrange(len(sample)) :]
            bad.splitter = type(bad.splitter)(AUTHENTICATED, ANSWERS)
            bad.send(bytes(sample))
        bad.node.engine.client_closed(bad.conn)
    pump.run(0.2)
    assert put(client, "k", "v", name="fine") is None
    assert get(client, "k", name="fine") == to_data("v")


# -- structures, schemas, statistics ----------------------------------------------------------


def test_structures_come_and_go(client: Client) -> None:
    """Goal: created maps are listed, destroyed ones are empty and gone; listeners hear it."""
    service = "hz:impl:mapService"
    client.call("Client.addDistributedObjectListener", local_only=True)
    client.call("Client.createProxy", name="a", service_name=service)
    client.call("Client.createProxy", name="a", service_name=service)
    put(client, 1, 1, name="b")
    put(client, 1, 1, name="a")
    names = [info.name for info in client.call("Client.getDistributedObjects")]
    assert names == ["a", "b"]
    client.call("Client.destroyProxy", name="a", service_name=service)
    names = [info.name for info in client.call("Client.getDistributedObjects")]
    assert names == ["b"]
    assert get(client, 1, name="a") is None
    told = [(fields["name"], fields["event_type"]) for _, _, fields in client.taken_events()]
    assert told == [("a", "CREATED"), ("b", "CREATED"), ("a", "DESTROYED")]
    put(client, 1, 1, name="a")
    assert len(client.call("Client.getDistributedObjects")) == 2


def test_schemas_are_kept(client: Client) -> None:
    """Goal: a sent schema can be fetched by its id; the answer names the members that hold it."""
    schema = Schema("person", [FieldDescriptor("age", 9), FieldDescriptor("name", 17)])
    holders = client.call("Client.sendSchema", schema=schema)
    assert holders == [bytes.fromhex(member_id(1).replace("-", ""))]
    key = client.node.engine.member.registry.schemas()[0].key
    assert client.call("Client.fetchSchema", schema_id=int(key)) == schema
    assert client.call("Client.fetchSchema", schema_id=int(key) ^ 1) is None
    client.call("Client.sendAllSchemas", schemas=[schema, Schema("empty", [])])
    assert len(client.node.engine.member.registry.schemas()) == 2


def test_statistics_are_kept_per_client(client: Client) -> None:
    """Goal: the last statistics of a client can be looked up."""
    for number in (1, 2):
        client.call(
            "Client.statistics", timestamp=number, client_attributes="a=b", metrics_blob=b"\x01"
        )
    kept = client.node.engine.clients.statistics
    assert [entry.timestamp_ms for entry in kept.values()] == [2]


def test_ping(client: Client) -> None:
    """Goal: a ping is answered, and so is a wish that partitions be arranged."""
    assert client.call("Client.ping") == {}
    assert client.call("Client.triggerPartitionAssignment") == {}


# -- views and events -------------------------------------------------------------------------


def test_views_are_told_at_registration(client: Client) -> None:
    """Goal: members and partitions are told at once."""
    client.call("Client.addClusterViewListener")
    members, partitions = client.taken_events()
    assert [info.address.port for info in members[2]["member_infos"]] == [5701]
    assert members[2]["version"] >= 1
    assert sorted(partitions[2]["partitions"][0][1]) == list(range(7))


def test_events_of_a_map(client: Client) -> None:
    """Goal: flags, key filter and include_value are obeyed, a removed listener is silent."""
    everything = client.call(
        "Map.addEntryListener", name="m", include_value=True, listener_flags=1 | 2 | 4 | 64,
        local_only=True,
    )  # fmt: skip
    client.call(
        "Map.addEntryListenerToKey", name="m", key=to_data(7), include_value=False,
        listener_flags=4, local_only=True,
    )  # fmt: skip
    put(client, 7, "a")
    put(client, 7, "b")
    put(client, 8, "c")
    client.call("Map.remove", 3, name="m", key=to_data(8), thread_id=1)
    put(client, 9, "d")
    client.call("Map.clear", name="m")
    told = [
        (name, fields["event_type"], fields["key"]) for name, _, fields in client.taken_events()
    ]
    plain, keyed = "Map.addEntryListener", "Map.addEntryListenerToKey"
    assert told == [
        (plain, 1, to_data(7)),
        (plain, 4, to_data(7)),
        (keyed, 4, to_data(7)),
        (plain, 1, to_data(8)),
        (plain, 2, to_data(8)),
        (plain, 1, to_data(9)),
        (plain, 64, None),
    ]
    assert client.call("Map.removeEntryListener", name="m", registration_id=everything) is True
    assert client.call("Map.removeEntryListener", name="m", registration_id=everything) is False
    put(client, 8, "e")
    assert client.taken_events() == []


def test_an_expired_entry_is_told_once(pump: Pump, client: Client) -> None:
    """Goal: expiry is an event of its own, told once although reads go on."""
    client.call(
        "Map.addEntryListener", name="m", include_value=True, listener_flags=16, local_only=True
    )
    for number in range(20):
        client.call("Map.put", number % 7, name="m", key=to_data(number), value=to_data(1),
                    thread_id=1, ttl=1_000)  # fmt: skip
    for _ in range(10):
        pump.run(0.5)
        assert get(client, 1, partition=1) in (None, to_data(1))
    told = [fields["key"] for _, _, fields in client.taken_events()]
    assert sorted(told) == sorted(to_data(number) for number in range(20))


# -- limits -----------------------------------------------------------------------------------


def test_large_replies_are_made_turn_by_turn(
    pump: Pump, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: many reads of a large value in one chunk do not pile up replies. Method: the limit is
    100 KB; 50 reads of 64 KB come at once; each take has little, all are answered in the end.
    """
    monkeypatch.setattr(intake_module, "REPLY_BYTES_PER_TURN", 100_000)
    put(client, "big", "x" * 65_536)
    engine = pump.nodes[0].engine
    request = [
        encode_request("Map.get", 100 + number, 3, name="m", key=to_data("big"), thread_id=1)
        for number in range(50)
    ]
    engine.client_bytes(client.conn, b"".join(request), pump.now_us, pump.wall_ms)
    takes = 0
    while True:
        for output in engine.take_outputs():
            assert isinstance(output, ToClient)
            data = output.data
            assert len(data) < 200_000
            client.receive(data)
        takes += 1
        if not engine.overflowing:
            break
        engine.resume_input(pump.now_us, pump.wall_ms)
    assert takes == 25
    assert all(100 + number in client.messages for number in range(50))


def test_a_paused_client_waits_and_is_bounded(
    pump: Pump, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: while a client does not read nothing of it runs; sending on and on ends it."""
    monkeypatch.setattr(intake_module, "UNREAD_BYTES_MAX", 1_000)
    engine = pump.nodes[0].engine
    engine.client_paused(client.conn)
    correlation = client.ask("Client.ping")
    assert correlation not in client.messages
    engine.client_resumed(client.conn, pump.now_us, pump.wall_ms)
    client.node.carry_out()
    assert correlation in client.messages
    engine.client_paused(client.conn)
    for _ in range(100):
        client.ask("Client.ping")
    assert "read" in client.closed


def test_metrics_count_requests(client: Client) -> None:
    """Goal: requests, errors and sessions are counted by name."""
    put(client, 1, 1)
    get(client, 1)
    with pytest.raises(Error):
        get(client, 1, partition=99)
    figures = client.node.engine.metrics()
    assert figures["requests_map_put_total"] == 1
    assert figures["requests_map_get_total"] == 1
    assert figures["errors_23_total"] == 1
    assert figures["clients"] == 1
    assert figures["authentications_total"] == 1


def test_settings_choose_backups() -> None:
    """Goal: the registry tells each map's configured backups."""
    settings = quick_settings()
    assert settings.structure(MapSettings, "b0 x").backup_count == 0
