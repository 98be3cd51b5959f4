"""Bad input from clients, by the numbers of the checklist: refused early, counted by reason.

Each test sends bytes to a real engine, looks at what comes back, and that another client is served
as before. What real sockets add is in ``tests/process/test_bad_input.py``.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from tests.unit.engine_pump import Client, Error, Node, Pump, quick_settings
from tests.unit.wire_samples import frame

from whimbrel.serialization.data import to_data
from whimbrel.serving.session import UNREAD_BYTES_MAX
from whimbrel.wire.codec import encode_request
from whimbrel.wire.frames import (
    AUTHENTICATED,
    BEGIN,
    BEGIN_FRAGMENT,
    END,
    END_FRAGMENT,
    FINAL,
    JOINS_MAX,
    NULL,
    UNAUTHENTICATED,
    UNFRAGMENTED,
)
from whimbrel.wire.protocol_table import SHAPES, message_type

KEY, VALUE = to_data("k"), to_data("v")


@pytest.fixture
def node() -> Node:
    pump = Pump()
    pump.form(1)
    return pump.nodes[0]


def count(node: Node, reason: str) -> int:
    """How often something was refused for a reason."""
    return int(node.engine.metrics().get(f"refused_{reason}_total", 0))


def is_served(node: Node) -> bool:
    """Whether somebody else can still write and read."""
    other = node.pump.client(node, number=90)
    fields: dict[str, Any] = {"name": "fine", "key": KEY, "thread_id": 1}
    other.call("Map.set", 3, **fields, value=VALUE, ttl=-1)
    found = other.call("Map.get", 3, **fields)
    node.engine.client_closed(other.conn)
    node.clients.pop(other.conn)
    return bool(found == VALUE)


def head(kind: int, correlation: int = 5, partition: int = 3) -> bytes:
    return struct.pack("<iqi", kind, correlation, partition)


def request(kind: int, *frames: bytes, fixed: bytes = bytes(8)) -> bytes:
    """A request from frames made by hand; the last one should be FINAL."""
    return frame(head(kind) + fixed, UNFRAGMENTED) + b"".join(frames)


def fragment(identity: int, flags: int, *frames: bytes) -> bytes:
    return frame(struct.pack("<q", identity), flags) + b"".join(frames)


GET = message_type("Map.get")
SIZE_HEAD = frame(head(message_type("Map.size")), 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<iH", 0, UNFRAGMENTED) + bytes(40), "frame_length"),
        (struct.pack("<iH", -1, UNFRAGMENTED) + bytes(40), "frame_length"),
        (struct.pack("<iH", -(2**31), UNFRAGMENTED) + bytes(40), "frame_length"),
        (struct.pack("<iH", 21, UNFRAGMENTED) + bytes(40), "frame_length"),
        (request(GET) + struct.pack("<iH", 5, FINAL), "frame_length"),
        (struct.pack("<iH", 2**31 - 1, UNFRAGMENTED) + bytes(40), "message_limit"),
        (struct.pack("<iH", AUTHENTICATED.message_bytes_max + 1, UNFRAGMENTED), "message_limit"),
        (request(GET) + request(GET), "frame_order"),
        (fragment(1, 0, frame(b"x", FINAL)), "fragments"),
        (fragment(1, END_FRAGMENT, frame(b"x", FINAL)), "fragments"),
        (fragment(1, BEGIN_FRAGMENT, SIZE_HEAD, frame(b"m", FINAL)) * 2, "fragments"),
        (
            fragment(1, BEGIN_FRAGMENT, SIZE_HEAD, frame(b"m", FINAL))
            + fragment(1, END_FRAGMENT, frame(b"x", FINAL)) * 2,
            "fragments",
        ),
        (
            b"".join(
                fragment(number, BEGIN_FRAGMENT, SIZE_HEAD, frame(b"m", FINAL))
                for number in range(JOINS_MAX + 1)
            ),
            "fragments",
        ),
    ],
)
def test_frames_that_end_the_connection(node: Node, data: bytes, reason: str) -> None:
    """Goal: bad input 1, 2, 6: impossible lengths and fragments end the connection, are
    counted by reason, and nobody else notices. Method: hand-made frames after authentication.
    """
    client = node.pump.client(node)
    client.send(data)
    assert client.closed
    assert count(node, reason) == 1
    assert node.engine.metrics()["protocol_errors_total"] == 1
    assert is_served(node)


def test_announced_lengths_take_no_memory(node: Node) -> None:
    """Goal: bad input 2, 9: 99 MiB that are only announced cost nothing."""
    client = node.pump.client(node)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[1]
        client.send(struct.pack("<iH", 99 * 1024 * 1024, UNFRAGMENTED) + head(GET))
        assert tracemalloc.get_traced_memory()[1] - before < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert not client.closed
    assert node.engine.unfinished_clients() == [(client.conn, True)]


def test_before_authentication_little_is_accepted(node: Node) -> None:
    """Goal: bad input 2, 19: a stranger's message has 64 KiB, so a very long password ends
    the connection before it is looked at.
    """
    client = Client(node)
    client.connect()
    fields = client.credentials(username="u", password="p" * UNAUTHENTICATED.message_bytes_max)
    client.send(encode_request("Client.authentication", 1, **fields))
    assert client.closed
    assert count(node, "message_limit") == 1


def test_endless_fragments_end_at_the_limit(node: Node) -> None:
    """Goal: bad input 6: fragments that never end are cut off at the limit of one message and
    their bytes freed. Method: the limit of strangers, for it is small.
    """
    client = Client(node)
    client.connect()
    client.send(fragment(1, BEGIN_FRAGMENT, SIZE_HEAD, frame(b"m" * 1000, FINAL)))
    connection = node.engine.server.intake.connections[client.conn]
    for _ in range(100):
        client.send(fragment(1, 0, frame(b"m" * 1000, FINAL)))
    assert client.closed
    assert connection.splitter.pending_bytes == 0
    assert count(node, "message_limit") == 1


def test_byte_by_byte_works_and_is_noticed_when_it_stops(node: Node) -> None:
    """Goal: bad input 3: any cut is fine; half a message is reported to the shell's clock."""
    client = node.pump.client(node)
    data = encode_request("Map.get", 77, 3, name="m", key=KEY, thread_id=1)
    for at in range(len(data) - 1):
        client.send(data[at : at + 1])
    assert node.engine.unfinished_clients() == [(client.conn, True)]
    client.send(data[-1:])
    assert node.engine.unfinished_clients() == []
    assert client.answer(77) is None


def test_many_tiny_requests_are_all_answered(node: Node) -> None:
    """Goal: bad input 4: 20,000 requests in one chunk are answered, others are served."""
    client = node.pump.client(node)
    ping = encode_request("Client.ping", 1)
    client.send(b"".join(ping[:10] + struct.pack("<q", n) + ping[18:] for n in range(20_000)))
    assert len(client.messages) == 20_000
    assert is_served(node)


def test_messages_of_no_use_are_answered_by_error(node: Node) -> None:
    """Goal: bad input 5: an unknown type, a response, an event and an unsupported request get
    an error of their own each, and the connection goes on.
    """
    client = node.pump.client(node)
    for number, kind in enumerate((0x7F7F7F00, -2, GET + 1, GET + 2), 1):
        client.send(frame(head(kind, number), UNFRAGMENTED | FINAL))
        with pytest.raises(Error, match="no request of type") as caught:
            client.answer(number)
        assert caught.value.code == 61
        assert count(node, "unknown_request") == number
    with pytest.raises(Error, match="not offered"):
        client.call("Map.aggregate", name="m", aggregator=VALUE)
    assert count(node, "unsupported") == 1
    client.send(frame(head(0), UNFRAGMENTED | FINAL))
    assert count(node, "type_0") == 1
    assert not client.closed
    with pytest.raises(Error, match="already"):
        client.call("Client.authentication", **client.credentials())


def test_nothing_is_taken_before_authentication(node: Node) -> None:
    """Goal: bad input 5: data before authentication is refused and changes nothing; so is an
    authentication that cannot be read.
    """
    early = Client(node)
    early.connect()
    early.send(encode_request("Map.set", 9, 3, name="m", key=KEY, value=VALUE, thread_id=1, ttl=0))
    assert early.closed
    assert count(node, "unauthenticated") == 1
    damaged = Client(node)
    damaged.connect()
    damaged.send(frame(head(message_type("Client.authentication")), UNFRAGMENTED | FINAL))
    assert damaged.closed
    assert count(node, "malformed") == 1
    assert node.engine.metrics()["clients"] == 0
    assert node.pump.client(node, number=3).call("Map.size", name="m") == 0


def test_a_correlation_id_used_twice_gets_both_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: bad input 7: ids are the client's affair: each request is answered by itself."""
    client = node.pump.client(node)
    got: list[bytes] = []
    monkeypatch.setattr(client, "receive", got.append)
    put = {"name": "m", "key": KEY, "thread_id": 1, "ttl": -1}
    for value in (to_data(1), to_data(2)):
        client.send(encode_request("Map.put", 7, 3, **put, value=value))
    assert len(got) == 2
    assert got[0] != got[1]
    assert node.engine.server.intake.connections[client.conn].in_flight == 0
    assert is_served(node)


@pytest.mark.parametrize("partition", [-1, -2, 7, 271, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", ["Map.get", "Map.set", "Map.putAll", "Map.fetchKeys"])
def test_partitions_that_do_not_exist(node: Node, name: str, partition: int) -> None:
    """Goal: bad input 8: -2, the count itself and huge numbers are errors that name them."""
    fields: dict[str, dict[str, Any]] = {
        "Map.get": {"key": KEY, "thread_id": 1},
        "Map.set": {"key": KEY, "value": VALUE, "thread_id": 1, "ttl": -1},
        "Map.putAll": {"entries": [(KEY, VALUE)]},
        "Map.fetchKeys": {"iteration_pointers": [], "batch": 5},
    }
    client = node.pump.client(node)
    with pytest.raises(Error, match=str(partition)) as caught:
        client.call(name, partition, name="m", **fields[name])
    assert caught.value.code == 23
    assert count(node, "partition_id") == 1
    assert client.call("Map.size", name="m") == 0


NULL_FRAME = frame(b"", NULL)


@pytest.mark.parametrize(
    "data",
    [
        request(GET, NULL_FRAME, frame(KEY, FINAL)),
        request(GET, frame(b"m"), frame(b"", NULL | FINAL)),
        request(GET, frame(b"m", FINAL)),
        request(GET, frame(b"m"), frame(b"x" * 7, FINAL)),
        request(GET, frame(b"m"), frame(KEY, FINAL), fixed=b""),
        request(message_type("Map.putAll"), frame(b"m"), frame(b"", BEGIN), frame(KEY, FINAL)),
        request(
            message_type("Map.putAll"),
            frame(b"m"),
            frame(b"", BEGIN),
            frame(KEY),
            NULL_FRAME,
            frame(b"", END | FINAL),
        ),
        request(
            message_type("Map.fetchKeys"),
            frame(b"m"),
            frame(b"\xff\xff\xff\x7f\0\0\0", FINAL),
        ),
        request(message_type("Client.createProxy"), NULL_FRAME, frame(b"s", FINAL)),
    ],
)
def test_fields_that_are_missing_or_do_not_fit(node: Node, data: bytes) -> None:
    """Goal: bad input 9: null where a value is required, a list that announces more than is
    there, a cut one: a decode error to that call, the connection goes on.
    """
    client = node.pump.client(node)
    client.send(data)
    with pytest.raises(Error) as caught:
        client.answer(5)
    assert caught.value.code == 23
    assert count(node, "malformed") == 1
    assert not client.closed
    assert client.call("Map.size", name="m") == 0


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", b"\xed\xa0\x80", b"a\xc0\x80", b"", b"n" * 1_001, b"n" * 1024 * 1024]
)
@pytest.mark.parametrize("kind", ["Map.get", "Map.size", "Client.createProxy"])
def test_names_that_are_refused(node: Node, kind: str, raw: bytes) -> None:
    """Goal: bad input 10: what is no UTF-8 (surrogates and overlong NUL included), empty or
    very long is refused, by every kind of request; no structure comes to be.
    """
    client = node.pump.client(node)
    second = b"hz:impl:mapService" if kind == "Client.createProxy" else KEY
    frames = [frame(raw), frame(second, FINAL)]
    client.send(request(message_type(kind), *frames))
    with pytest.raises(Error) as caught:
        client.answer(5)
    assert caught.value.code == 23
    assert count(node, "name") + count(node, "malformed") == 1
    assert node.engine.metrics()["structures"] == 0


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "<script>alert(1)</script>", "a\0b", "\u202egnp", "%2e%2e/", "n" * 1_000],
)
def test_names_that_are_kept_as_they_are(node: Node, name: str) -> None:
    """Goal: bad input 10: paths, markup, NUL, right-to-left marks are letters like others."""
    client = node.pump.client(node)
    client.call("Map.set", 3, name=name, key=KEY, value=VALUE, thread_id=1, ttl=-1)
    assert client.call("Map.get", 3, name=name, key=KEY, thread_id=1) == VALUE
    found = client.call("Client.getDistributedObjects")
    assert [info.name for info in found] == [name]


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"cluster": "other"}, 1, "cluster_name"),
        ({"cluster": "x" * 10_000}, 1, "cluster_name"),
        ({"username": "u", "password": "wrong"}, 1, "credentials"),
        ({"username": "u", "password": "p" * 50_000}, 1, "credentials"),
        ({"serialization_version": 9}, 2, "serialization_version"),
    ],
)
def test_authentications_that_fail(
    node: Node, fields: dict[str, Any], status: int, reason: str
) -> None:
    """Goal: bad input 19: the answer says no more than that it failed, the connection ends,
    and the reason is counted; a wrong name and wrong credentials look the same.
    """
    client = Client(node)
    answer = client.open(**fields)
    assert answer["status"] == status
    assert answer["partition_count"] == -1
    assert answer["member_uuid"] is None
    assert client.closed
    assert count(node, reason) == 1
    assert is_served(node)


def test_a_thousand_tries_leave_nothing_behind(node: Node) -> None:
    """Goal: bad input 19: each try costs its sender a connection and us a counter."""
    for _ in range(1_000):
        assert Client(node).open(username="u", password="guess")["status"] == 1
    figures = node.engine.metrics()
    assert figures["authentications_failed_total"] == count(node, "credentials") == 1_000
    assert figures["client_connections"] == figures["clients"] == 0
    assert len(node.engine.server.clients) == 0
    assert is_served(node)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", b"CP3", b"\0"])
def test_other_protocols_are_not_clients(node: Node, first: bytes) -> None:
    """Goal: bad input 17: the first wrong byte ends the connection. The door of a real
    member turns such callers away before the engine sees them.
    """
    client = Client(node)
    node.clients[client.conn] = client
    node.engine.client_opened(client.conn, "test")
    client.send(first)
    assert client.closed
    assert count(node, "prelude") == 1


def test_a_client_that_never_reads_is_cut(node: Node) -> None:
    """Goal: bad input 23: while a client does not read its requests wait, in bounded memory."""
    client = node.pump.client(node)
    node.engine.client_paused(client.conn)
    big = encode_request(
        "Map.set", 1, 3, name="m", key=KEY, value=bytes(1024 * 1024), thread_id=1, ttl=-1
    )
    for _ in range(UNREAD_BYTES_MAX // len(big) + 2):
        client.send(big)
    assert client.closed
    assert count(node, "unread_replies") == 1
    assert node.pump.client(node, number=3).call("Map.size", name="m") == 0


def test_every_request_survives_hostile_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bad input 5-10: whatever stands in a well-formed request of any type, there is
    an answer, an error or nothing, never the end of the member. Method: every type of the table
    with extreme numbers, odd names and tiny values, on a member of two.
    """
    pump = Pump(quick_settings())
    pump.form(2)
    client = pump.client(pump.nodes[0])
    monkeypatch.setattr(client, "receive", lambda data: None)
    numbers = (0, -1, 2**31 - 1, -(2**31))
    correlation = 10
    for shape in SHAPES.values():
        for number in numbers:
            if shape.name.startswith("Client.authentication"):
                continue
            fields: dict[str, Any] = {}
            for field in shape.request:
                fields[field.name] = _hostile(field.type, number)
            if any(value is _hostile for value in fields.values()):
                continue
            for partition in (-1, 3):
                correlation += 1
                client.send(encode_request(shape.name, correlation, partition, **fields))
    pump.run(1)
    assert not client.closed
    assert all(is_served(node) for node in pump.nodes)


def _hostile(kind: str, number: int) -> Any:
    """An extreme value of a type of the table; this function itself where there is none."""
    simple: dict[str, Any] = {
        "bool": True,
        "byte": 255,
        "int": number,
        "long": number * 2**32,
        "uuid": bytes(16),
        "string": "a\0/../<b>",
        "bytes": b"\xff" * 9,
        "data": b"\xff" * 8,
        "list_data": [b"\xff" * 8] * 3,
        "entries_data_data": [(b"\xff" * 8, b"\0" * 8)] * 2,
        "pairs_int_int": [(number, -1), (number, number)],
        "list_string": ["", "x"],
        "ints": [number],
        "longs": [number],
        "uuids": [],
    }
    return simple.get(kind, _hostile)
