"""Replies that a shell may write at once, without taking outputs."""

from __future__ import annotations

from tests.unit.engine_pump import Client, Pump

from whimbrel.wire.codec import encode_request
from whimbrel.wire.frames import ANSWERS, parse_message

KEY = bytes(8) + b"key"
VALUE = bytes(8) + b"value"


def client_of_primary(name: str) -> tuple[Pump, Client, int]:
    """A client of the member that is primary of the partition used here."""
    pump = Pump()
    pump.form(2)
    pid = 3
    primary = pump.nodes[0].engine.member.migrations.table.rows[pid][0]
    node = next(node for node in pump.nodes if node.id == primary)
    client = pump.client(node)
    client.call("Map.put", pid, name=name, key=KEY, value=VALUE, thread_id=1, ttl=-1)
    return pump, client, pid


def feed(pump: Pump, client: Client, data: bytes) -> bytes | None:
    """Give bytes to the engine as a shell does, and ask for what may leave at once."""
    engine = client.node.engine
    engine.client_bytes(client.conn, data, pump.now_us, pump.wall_ms)
    return engine.take_reply(client.conn)


def test_a_read_is_answered_at_once() -> None:
    """Goal: a read needs no further step. Method: the reply is complete, and nothing is left."""
    pump, client, pid = client_of_primary("b0map")
    request = encode_request("Map.get", 77, pid, 0, name="b0map", key=KEY, thread_id=1)
    reply = feed(pump, client, request)
    assert reply is not None
    assert parse_message(reply, ANSWERS)[4] == 0x010201 and reply.endswith(VALUE)
    assert client.node.engine.take_outputs() == []


def test_half_a_request_has_an_empty_reply() -> None:
    """Goal: nothing is to do before a request is complete. Method: cut one in two."""
    pump, client, pid = client_of_primary("b0map")
    request = encode_request("Map.get", 78, pid, 0, name="b0map", key=KEY, thread_id=1)
    assert feed(pump, client, request[:30]) == b""
    reply = feed(pump, client, request[30:])
    assert reply is not None and reply.endswith(VALUE)


def test_everything_else_comes_with_the_outputs() -> None:
    """Goal: what has further effects leaves in order with them. Method: a write among reads, a
    request that is forwarded, one for a connection, an error of the protocol.
    """
    pump, client, pid = client_of_primary("map")
    get = encode_request("Map.get", 5, pid, 0, name="map", key=KEY, thread_id=1)
    put = encode_request(
        "Map.put", 6, pid, 0, name="map", key=KEY, value=VALUE, thread_id=1, ttl=-1
    )
    rows = pump.nodes[0].engine.member.migrations.table.rows
    elsewhere = next(other for other, row in enumerate(rows) if row[0] != client.node.id)
    far = encode_request("Map.get", 7, elsewhere, 0, name="map", key=KEY, thread_id=1)
    size = encode_request("Map.size", 8, -1, 0, name="map")
    for data in (get + put, put + get, far, size):
        assert feed(pump, client, data) is None
        client.node.carry_out()
        pump.settle()
    assert set(client.messages) == {5, 6, 7, 8}
    assert feed(pump, client, b"\x01\x00\x00\x00\x00\x00") is None
    client.node.carry_out()
    assert client.closed


def test_an_error_of_a_read_is_a_reply_too() -> None:
    """Goal: a refused read is answered as well. Method: a partition that does not exist."""
    pump, client, _ = client_of_primary("b0map")
    request = encode_request("Map.get", 9, 1_000, 0, name="b0map", key=KEY, thread_id=1)
    reply = feed(pump, client, request)
    assert reply is not None and parse_message(reply, ANSWERS)[4] == 0
