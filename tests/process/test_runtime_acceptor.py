"""The data port: who is let in, who is turned away, and what the engine hears of it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tests.process.runtime_fakes import FakeNode, run, until

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Heartbeat, ProbeRequested
from whimbrel.core.model import MemberInfo
from whimbrel.core.stimuli import Received
from whimbrel.errors import InvariantViolation, ProtocolError
from whimbrel.runtime import clients
from whimbrel.wire import links as wire

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def dial(address: Address) -> Streams:
    return await asyncio.open_connection(address.host, address.port)


async def ended(streams: Streams) -> bool:
    """Whether the other side ended the connection, politely or not."""
    try:
        while await asyncio.wait_for(streams[0].read(65536), 10):
            pass
    except ConnectionError:
        pass
    streams[1].close()
    return True


def greeting(cluster: str = "dev", channel: str = "control", name: str = "peer") -> bytes:
    info = MemberInfo(MemberId(name), Address("127.0.0.1", 9), started_us=5)
    return wire.encode_greeting(wire.Greeting(cluster, info, channel))


def test_a_client_is_known_by_its_first_bytes_however_they_are_cut() -> None:
    """Goal: the engine gets every byte, prelude included, once; and the end of the connection."""

    async def scenario() -> None:
        node = FakeNode()
        streams = await dial(await node.listen())
        for byte in b"CP2abc":
            streams[1].write(bytes([byte]))
            await streams[1].drain()
            await asyncio.sleep(0)
        await until(lambda: node.fake.received.get(1) == b"CP2abc", "all bytes")
        assert node.fake.calls == [("opened", 1, "127.0.0.1")]
        node.acceptor.clients[1].send(b"answer")
        assert await streams[0].readexactly(6) == b"answer"
        streams[1].close()
        await until(lambda: ("closed", 1) in node.fake.calls, "the end")
        assert not node.acceptor.clients
        assert node.flushes >= 2
        await node.end()

    run(scenario)


def test_foreign_bytes_are_turned_away_at_once_and_told_once() -> None:
    """Goal: HTTP, TLS, noise and other versions are closed, each kind of source logged once."""

    async def scenario() -> None:
        node = FakeNode()
        address = await node.listen()
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"CP3", b"HZC", b"\xff", b"WMB9"):
            streams = await dial(address)
            streams[1].write(data)
            assert await ended(streams)
        assert node.counters["connections_foreign"] == 6
        assert [kind for kind, _ in node.hints] == ["foreign_connection"]
        assert "admin port" in str(node.hints[0][1]["text"])
        assert node.fake.calls == []
        await node.end()

    run(scenario)


def test_connections_that_say_nothing_give_way() -> None:
    """Goal: undecided connections are bounded; the oldest goes first, clients stay."""

    async def scenario() -> None:
        node = FakeNode(undecided_max=2)
        address = await node.listen()
        client = await dial(address)
        client[1].write(b"CP2")
        await until(lambda: node.acceptor.clients, "the client")
        oldest = await dial(address)
        await until(
            lambda: node.acceptor.gauges()["connections_undecided"] == 1, "one undecided connection"
        )
        others = [await dial(address) for _ in range(2)]
        assert await ended(oldest)
        assert node.counters["connections_dropped_undecided"] == 1
        assert len(node.acceptor.clients) == 1
        for streams in (client, *others):
            streams[1].close()
        await node.end()

    run(scenario)


def test_handshakes_and_half_messages_have_a_time_limit() -> None:
    """Goal: silent connections, silent members, clients that never authenticate and clients that
    stop within a message are closed in time; a client that is merely idle is not.
    """

    async def scenario() -> None:
        node = FakeNode(handshake_timeout_us=10_000)
        node.acceptor.end()  # the test looks itself, instead of every second
        address = await node.listen()
        kinds = (b"", b"C", wire.PRELUDE, b"CP2 never", b"CP2 half", b"CP2 idle")
        streams = [await dial(address) for _ in kinds]
        for (_, writer), data in zip(streams, kinds, strict=True):
            writer.write(data)
        await until(
            lambda: len(node.fake.received) == 3 and node.acceptor.members, "all are served"
        )
        conns = {data: conn for conn, data in node.fake.received.items()}
        node.fake.unfinished = [(conns[b"CP2 never"], False), (conns[b"CP2 half"], True)]
        await asyncio.sleep(0.02)  # their silence, longer than the time limit, is the fault
        node.acceptor._close_silent()
        for number in range(5):
            assert await ended(streams[number]), kinds[number]
        assert node.counters["connections_too_slow"] == 5
        assert list(node.acceptor.clients) == [conns[b"CP2 idle"]]
        streams[5][1].close()
        await node.end()

    run(scenario)


def test_clients_are_limited_and_members_are_not_kept_out() -> None:
    """Goal: the named limit of clients refuses clients only."""

    async def scenario() -> None:
        node = FakeNode(clients_max=1)
        address = await node.listen()
        first = await dial(address)
        first[1].write(b"CP2")
        await until(lambda: node.acceptor.clients, "the first client")
        second = await dial(address)
        second[1].write(b"CP2")
        assert await ended(second)
        assert node.counters["clients_refused_by_limit"] == 1
        member = await dial(address)
        member[1].write(greeting())
        await until(lambda: any(m.greeting for m in node.acceptor.members), "the member")
        for streams in (first, member):
            streams[1].close()
        await node.end()

    run(scenario)


def test_many_messages_of_one_read_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCM-42: what one read brings beyond STEP_US waits for the next turns, in order and to the
    last frame, also when the sender is gone meanwhile; a bad frame among them ends the connection.
    """
    monkeypatch.setattr(clients, "STEP_US", -1)

    async def scenario() -> None:
        node = FakeNode("me")
        address = await node.listen()
        _, writer = await dial(address)
        writer.write(greeting())
        beats = [Heartbeat(number, None) for number in range(60)]
        frames = [
            wire.encode_frame(wire.MESSAGE, wire.encode_message(beat, "peer-1")) for beat in beats
        ]
        writer.write(b"".join(frames[:40]))
        await until(lambda: len(node.fake.stimuli) == 40, "the first messages")
        writer.write(b"".join(frames[40:]))
        writer.close()
        await until(lambda: len(node.fake.stimuli) == 60, "the rest")
        taken = [one.message for one in node.fake.stimuli if isinstance(one, Received)]
        assert taken == beats
        assert node.occupation.step_us > 0
        streams = await dial(address)
        bad = wire.encode_frame(wire.MESSAGE, b"no message")
        streams[1].write(greeting(name="other") + frames[0] + frames[1] + bad + frames[2])
        assert await ended(streams)
        assert len(node.fake.stimuli) == 62
        assert node.counters["link_protocol_errors"] == 1
        await node.end()

    run(scenario)


def test_member_frames_reach_the_engine_in_order() -> None:
    """Goal: the greeting is answered with ours, messages and other frames are told apart."""

    async def scenario() -> None:
        node = FakeNode("me")
        address = await node.listen()
        reader, writer = await dial(address)
        writer.write(greeting())
        length = struct.unpack("<I", await reader.readexactly(4))[0]
        kind, *payload = await reader.readexactly(length)
        assert kind == wire.GREETING
        assert wire.decode_greeting(bytes(payload)).sender.id == "me"
        beat = Heartbeat(3, None)
        writer.write(
            wire.encode_frame(wire.MESSAGE, wire.encode_message(beat, "peer-1"))
            + wire.encode_frame(wire.BACKUPS, b"x" * 100_000)
            + wire.encode_frame(wire.ACKS, b"")
        )
        await until(lambda: len(node.fake.frames) == 2, "both frames")
        expected = Received(
            MemberId("peer"), Address("127.0.0.1", 9), beat, started_us=5, cause="peer-1"
        )
        assert node.fake.stimuli == [expected]
        assert [(peer, kind) for peer, kind, _ in node.fake.frames] == [("peer", 2), ("peer", 3)]
        writer.close()
        await until(lambda: not node.acceptor.members, "the end")
        await node.end()

    run(scenario)


def test_members_of_another_cluster_may_only_ask() -> None:
    """Goal: a stranger's probe is heard, everything else ends the connection unheard."""

    async def scenario() -> None:
        node = FakeNode()
        address = await node.listen()
        info = MemberInfo(MemberId("peer"), Address("127.0.0.1", 9))
        probe = wire.encode_frame(
            wire.MESSAGE, wire.encode_message(ProbeRequested("other", info), "peer-1")
        )
        beat = wire.encode_frame(wire.MESSAGE, wire.encode_message(Heartbeat(1, None), "peer-1"))
        for bad in (beat, wire.encode_frame(wire.BACKUPS, b"")):
            streams = await dial(address)
            streams[1].write(greeting("other"))
            await until(lambda: any(m.greeting for m in node.acceptor.members), "the greeting")
            streams[1].write(probe + bad)
            assert await ended(streams)
        assert len(node.fake.stimuli) == 2
        assert node.fake.frames == []
        await node.end()

    run(scenario)


def test_bad_member_bytes_end_the_connection_only() -> None:
    """Goal: noise, a wrong length, a second greeting or a payload that the engine refuses cost
    the sender its connection; nothing stops.
    """

    async def scenario() -> None:
        node = FakeNode()
        address = await node.listen()
        node.fake.raises = ProtocolError("not backups")
        good = greeting()
        for data in (
            wire.PRELUDE + b"\xff" * 300,
            wire.PRELUDE + wire.encode_frame(wire.MESSAGE, b""),
            good + b"\0\0\0\0\0",
            good + good[4:],
            good + wire.encode_frame(wire.MESSAGE, b"\xc1"),
            good + wire.encode_frame(wire.BACKUPS, b"?"),
        ):
            streams = await dial(address)
            streams[1].write(data)
            assert await ended(streams), data
        assert node.counters["link_protocol_errors"] == 6
        assert node.crashes == []
        assert not node.acceptor.members
        await node.end()

    run(scenario)


def test_a_broken_engine_is_reported_not_swallowed() -> None:
    """Goal: an InvariantViolation on the way of a request reaches the node (safety rule 8)."""

    async def scenario() -> None:
        node = FakeNode()
        node.fake.raises = InvariantViolation("a fact")
        streams = await dial(await node.listen())
        streams[1].write(b"CP2x")
        await until(lambda: node.crashes, "the crash")
        assert isinstance(node.crashes[0], InvariantViolation)
        streams[1].close()
        await node.end()

    run(scenario)


def test_a_client_that_does_not_read_is_paused_then_cut() -> None:
    """Goal: unsent answers are bounded: first no more requests are read, then it is cut."""

    async def scenario() -> None:
        node = FakeNode(client_high_water_bytes=4096)
        address = await node.listen()
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await node.loop.sock_connect(raw, (address.host, address.port))
        await node.loop.sock_sendall(raw, b"CP2")
        await until(lambda: node.acceptor.clients, "the client")
        client = node.acceptor.clients[1]
        while ("paused", 1) not in node.fake.calls:
            client.send(b"a" * 65536)
            await asyncio.sleep(0)
        read = 0
        while ("resumed", 1) not in node.fake.calls:
            read += len(await node.loop.sock_recv(raw, 65536))
        assert read > 0
        for _ in range(1000):
            if node.counters.get("clients_cut_by_backlog"):
                break
            client.send(b"a" * 65536)
        await until(lambda: ("closed", 1) in node.fake.calls, "the cut")
        assert node.counters["clients_cut_by_backlog"] == 1
        client.send(b"late")  # must be harmless
        raw.close()
        await node.end()

    run(scenario)


def test_the_engine_closes_a_client_after_its_last_answer() -> None:
    """Goal: what was written before the close arrives; the engine is not told of its own close."""

    async def scenario() -> None:
        node = FakeNode()
        streams = await dial(await node.listen())
        streams[1].write(b"CP2")
        await until(lambda: node.acceptor.clients, "the client")
        node.acceptor.clients[1].send(b"no" * 1000)
        node.acceptor.close_client(1)
        assert await streams[0].read(-1) == b"no" * 1000
        streams[1].close()
        assert ("closed", 1) not in node.fake.calls
        await node.end()

    run(scenario)
