"""Bad input at the ports of real members, by the numbers of the checklist.

Two members that everything here talks to; at the end of each test both still run, still are one
cluster and still serve, and the reason stands in ``/metrics``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from tests.unit.wire_samples import frame

from whimbrel.core import messages as m
from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Message
from whimbrel.core.model import MemberInfo
from whimbrel.serialization.data import to_data
from whimbrel.testing import LocalCluster, local_cluster
from whimbrel.testing.cluster import LocalMember
from whimbrel.testing.waiting import wait_until
from whimbrel.wire import links as wire
from whimbrel.wire.codec import decode_response, encode_request
from whimbrel.wire.frames import (
    ANSWERS,
    AUTHENTICATED,
    FINAL,
    PRELUDE,
    UNFRAGMENTED,
    MessageSplitter,
)

HANDSHAKE_S = 1
PATIENCE_S = 15.0
STRANGER = MemberId("77777777-0000-4000-8000-000000000077")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"network.handshake_timeout_s": HANDSHAKE_S, "partition.count": 13}
    with local_cluster(2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def member(cluster: LocalCluster) -> Iterator[LocalMember]:
    """The member to be bothered; afterwards everything must be as it was."""
    yield cluster.members[0]
    assert [one.exit_status for one in cluster.members] == [None, None]
    assert cluster.status()["members"] == 2
    client = cluster.client()
    fine = client.get_map("fine").blocking()
    fine.set("k", 1)
    assert fine.get("k") == 1
    client.shutdown()


def metrics(member: LocalMember) -> dict[str, float]:
    """The member's figures by name."""
    connection = http.client.HTTPConnection("127.0.0.1", member.admin_port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def counted(member: LocalMember, name: str) -> Callable[[], float]:
    """How often something was counted since now."""
    before = metrics(member).get(f"whimbrel_{name}_total", 0)
    return lambda: metrics(member).get(f"whimbrel_{name}_total", 0) - before


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def is_ended(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, politely or not."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass
    connection.close()
    return True


class Raw:
    """A client made by hand."""

    def __init__(self, cluster: str, port: int, number: int = 5, **fields: Any) -> None:
        self.socket = dial(port)
        self._splitter = MessageSplitter(AUTHENTICATED, ANSWERS)
        credentials: dict[str, Any] = {
            "cluster_name": cluster,
            "username": None,
            "password": None,
            "uuid": number.to_bytes(16, "big"),
            "client_type": "TST",
            "serialization_version": 1,
            "client_version": "5.7.0",
            "client_name": "raw",
            "labels": [],
        }
        credentials.update(fields)
        self.send(PRELUDE + encode_request("Client.authentication", 1, **credentials))
        self.greeting: dict[str, Any] = decode_response(self.receive(1)[0])[1]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, count: int) -> list[Any]:
        """So many messages."""
        found: list[Any] = []
        while len(found) < count:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the member ended the connection")
            found += self._splitter.feed(data)
        return found


def notes(member: LocalMember, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in member.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize(
    ("data", "counter"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "connections_foreign_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "connections_foreign_tls"),
        (b"\0\xff\x13 noise", "connections_foreign_other"),
        (b"CP1", "connections_foreign_version"),
        (b"CP2" + struct.pack("<iH", 0, UNFRAGMENTED) + bytes(40), "refused_frame_length"),
        (b"CP2" + struct.pack("<iH", -5, UNFRAGMENTED) + bytes(40), "refused_frame_length"),
        (b"CP2" + struct.pack("<iH", 2**31 - 1, UNFRAGMENTED) + bytes(40), "refused_message_limit"),
        (b"CP2" + encode_request("Map.size", 1, name="m"), "refused_unauthenticated"),
        (b"CP2" + frame(b"\0\x01\0\0" + bytes(20), UNFRAGMENTED | FINAL), "refused_malformed"),
        (wire.PRELUDE + bytes(20), "link_refused_frame_length"),
        (wire.PRELUDE + b"\xff" * 20, "link_refused_frame_length"),
        (wire.PRELUDE + wire.encode_frame(wire.MESSAGE, b"\x90"), "link_refused_order"),
        (wire.PRELUDE + wire.encode_frame(wire.GREETING, b"\x90"), "link_refused_greeting"),
        (wire.PRELUDE + b"\x02\0\0\0\x63\0", "link_refused_frame_kind"),
    ],
)
def test_bytes_that_end_their_connection(member: LocalMember, data: bytes, counter: str) -> None:
    """Goal: bad input 1, 2, 5, 9, 17: closed at once, counted by reason."""
    count = counted(member, counter)
    connection = dial(member.port)
    connection.sendall(data)
    assert is_ended(connection)
    assert count() == 1


def test_what_never_finishes_is_closed_in_time(cluster: LocalCluster, member: LocalMember) -> None:
    """Goal: bad input 3: silence before the first byte, within the first bytes, before
    authentication and within a message ends after ``network.handshake_timeout_s``.
    """
    count = counted(member, "connections_too_slow")
    starts = (b"", b"C", b"CP2", wire.PRELUDE, b"CP2" + struct.pack("<iH", 100, UNFRAGMENTED))
    silent = [dial(member.port) for _ in starts]
    for connection, start in zip(silent, starts, strict=True):
        connection.sendall(start)
    half = Raw(cluster.name, member.port)
    half.send(struct.pack("<iH", 90, UNFRAGMENTED) + bytes(10))
    for connection in (*silent, half.socket):
        assert is_ended(connection)
    assert count() == len(starts) + 1


def test_a_flood_of_tiny_requests_is_fair(cluster: LocalCluster, member: LocalMember) -> None:
    """Goal: bad input 4: 100,000 requests in one go are all answered; who comes in between
    waits for a part of that time only. Method: another client asks once the first is answered.
    """
    flood, other = Raw(cluster.name, member.port, 6), Raw(cluster.name, member.port, 7)
    pings = b"".join([encode_request("Client.ping", 1)] * 100_000)
    with contextlib.closing(flood.socket), contextlib.closing(other.socket):
        sender = threading.Thread(target=flood.send, args=(pings,))
        sender.start()
        answered = len(flood.receive(1))
        begin_s = time.monotonic()
        other.send(encode_request("Client.ping", 2))
        assert len(other.receive(1)) == 1
        waited_s = time.monotonic() - begin_s
        answered += len(flood.receive(100_000 - answered))
        total_s = time.monotonic() - begin_s
        sender.join()
    assert answered == 100_000
    assert waited_s < max(0.5, 0.5 * total_s), "in one go it would wait for nearly all of it"


def test_binary_on_the_admin_port(member: LocalMember) -> None:
    """Goal: bad input 17: the admin port answers noise with 400, logs one line for its source
    and counts the rest.
    """
    count = counted(member, "admin_requests_refused")
    for data in (PRELUDE + b"\xff" * 60, b"\x16\x03\x01" + b"\xff" * 60, b"\0") * 20:
        connection = dial(member.admin_port)
        connection.sendall(data + b"\r\n\r\n")
        assert b" 400 " in connection.recv(4096).splitlines()[0]
        connection.close()
    assert count() == 60
    assert len(notes(member, "admin_request_refused")) == 1
    assert "Invalid HTTP" not in "".join(
        line for line in member.log.read_text().splitlines() if "uvicorn" in line
    )


def test_a_hint_is_logged_once_per_source(cluster: LocalCluster, member: LocalMember) -> None:
    """Goal: bad input 17, 19: whoever comes a hundred times fills no log, and is counted."""
    foreign, failed = counted(member, "connections_foreign"), counted(member, "refused_credentials")
    for _ in range(100):
        connection = dial(member.port)
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert is_ended(connection)
        raw = Raw(cluster.name, member.port, username="admin", password="guess" * 1_000)
        assert raw.greeting["status"] == 1
        assert is_ended(raw.socket)
    assert foreign() == failed() == 100
    assert len(notes(member, "foreign_connection")) == 1
    refusals = notes(member, "client_refused")
    assert len(refusals) == 1
    assert "guess" not in member.log.read_text()


def test_wrong_name_and_wrong_password_look_the_same(
    cluster: LocalCluster, member: LocalMember
) -> None:
    """Goal: bad input 19: the answers differ in nothing but the number of the call."""
    count = counted(member, "authentications_failed")
    wrong: tuple[dict[str, Any], ...] = (
        {"cluster_name": "prod"},
        {"username": "admin", "password": "admin"},
        {"username": "admin", "password": "x" * 60_000},
    )
    answers = [Raw(cluster.name, member.port, **fields) for fields in wrong]
    assert answers[0].greeting == answers[1].greeting == answers[2].greeting
    assert all(is_ended(raw.socket) for raw in answers)
    assert count() == 3


def greet(
    member: LocalMember, cluster: str, message: Callable[[MemberInfo], Message], **fields: Any
) -> None:
    """Say something like a member, and go."""
    info = MemberInfo(
        fields.pop("id", STRANGER), fields.pop("address", Address("127.0.0.1", 9)), **fields
    )
    with dial(member.port) as connection:
        connection.sendall(wire.encode_greeting(wire.Greeting(cluster, info, "control")))
        wait_for_greeting(connection)
        payload = wire.encode_message(message(info), "stranger-1")
        connection.sendall(wire.encode_frame(wire.MESSAGE, payload))
        connection.shutdown(socket.SHUT_WR)
        is_ended(connection)


def wait_for_greeting(connection: socket.socket) -> None:
    splitter = wire.FrameSplitter()
    while not splitter.feed(connection.recv(65_536)):
        pass


def test_strangers_that_greet_like_members(cluster: LocalCluster, member: LocalMember) -> None:
    """Goal: bad input 20: names that no name server can be asked for, identities that are
    none, other clusters, other partition counts, lists and entries of no form: nobody joins,
    nothing stops.
    """
    name = cluster.name
    probe = lambda info: m.ProbeRequested(name, info)  # noqa: E731
    join = lambda info: m.JoinRequested(name, 13, info)  # noqa: E731
    entry = m.RegistryEntry("map", "x", 1, STRANGER, True, b"?")
    entries = counted(member, "link_refused_registry_entry")
    identities = counted(member, "link_refused_member_id")
    for host in ("h" * 200, "a..b", "a\0b", "\ud7ff", "", "127.0.0.1.5"):
        greet(member, name, probe, address=Address(host, 9))
    greet(member, name, join, id=MemberId("x"))
    greet(member, "other", lambda info: m.JoinRequested("other", 13, info))
    greet(member, name, lambda info: m.JoinRequested(name, 271, info))
    greet(member, name, lambda _: m.RegistryTold(1, (entry,)))
    assert entries() == identities() == 1
    assert len(notes(member, "join_refused")) >= 1


@pytest.mark.parametrize("pid", range(4))
def test_a_client_that_never_reads_costs_little(
    cluster: LocalCluster, member: LocalMember, pid: int
) -> None:
    """Goal: bad input 23: 400 MB of answers that nobody reads take bounded memory, here and
    on the member that is asked for them; no link between members breaks, others are served.
    Method: several partitions, so that both members are primary of one.
    """
    greedy, other = Raw(cluster.name, member.port, 8), Raw(cluster.name, member.port, 9)
    value = to_data(bytes(1024 * 1024))
    fields: dict[str, Any] = {"name": "big", "key": to_data("k"), "thread_id": 1}
    other.send(encode_request("Map.set", 2, pid, **fields, value=value, ttl=-1))
    other.receive(1)
    processes = [psutil.Process(one.process.pid) for one in cluster.members]
    before = [process.memory_info().rss for process in processes]
    paused = counted(member, "clients_paused")
    greedy.send(b"".join(encode_request("Map.get", n, pid, **fields) for n in range(2, 402)))
    wait_until(lambda: (paused() > 0, "no pause"), PATIENCE_S, "paused")
    other.send(encode_request("Map.size", 3, name="big"))
    other.receive(1)
    for process, rss in zip(processes, before, strict=True):
        assert process.memory_info().rss - rss < 200 * 1024 * 1024
    assert all(metrics(one).get("whimbrel_links_lost_total", 0) == 0 for one in cluster.members)
    for client in (greedy, other):
        client.socket.close()


def test_one_answer_may_be_longer_than_the_limit(
    cluster: LocalCluster, member: LocalMember
) -> None:
    """Goal: bad input 23 from the other side: a client that reads gets 80 MB in one answer,
    more than may stay unread, and no connection is cut for it.
    """
    cut = counted(member, "clients_cut_by_backlog")
    client = Raw(cluster.name, member.port, 11)
    value = to_data(bytes(1024 * 1024))
    for number in range(80):
        fields: dict[str, Any] = {"name": "large", "key": to_data(number), "thread_id": 1}
        client.send(encode_request("Map.set", 2, number % 13, **fields, value=value, ttl=-1))
        client.receive(1)
    client.send(encode_request("Map.entrySet", 3, name="large"))
    (answer,) = client.receive(1)
    assert len(decode_response(answer)[1]["response"]) == 80
    client.send(encode_request("Map.clear", 4, name="large"))
    client.receive(1)
    client.socket.close()
    assert cut() == 0
