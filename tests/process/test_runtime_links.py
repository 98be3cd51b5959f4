"""Links between members over real sockets: what is told when they break, mend and fail."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.process.runtime_fakes import FakeNode, run, until

from whimbrel.core.ids import Address, MemberId
from whimbrel.core.messages import Heartbeat
from whimbrel.core.stimuli import (
    AddressUnreachable,
    LinkFailed,
    LinkLost,
    LinkRestored,
    Received,
)
from whimbrel.runtime import links as links_module
from whimbrel.wire import links as wire

BEAT = Heartbeat(1, None)


def free_address() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", int(listener.getsockname()[1]))


def test_frames_of_both_channels_arrive_in_order() -> None:
    """Goal: what is sent while the link is made waits; then one write a flush and channel."""

    async def scenario() -> None:
        a, b = FakeNode("a"), FakeNode("b")
        a.links.want(MemberId("b"), await b.listen())
        for number in range(50):
            a.links.send(MemberId("b"), "data", wire.BACKUPS, bytes([number]))
        a.links.send(MemberId("b"), "control", wire.MESSAGE, BEAT, "a-1")
        a.links.flush()
        await until(lambda: len(b.fake.frames) == 50 and b.fake.stimuli, "all frames")
        assert [payload[0] for _, _, payload in b.fake.frames] == list(range(50))
        a.links.send(MemberId("b"), "data", wire.ACKS, b"later")
        a.links.flush()
        await until(lambda: len(b.fake.frames) == 51, "the later one")
        assert isinstance(b.fake.stimuli[0], Received)
        assert b.fake.stimuli[0].sender == "a"
        assert len(b.acceptor.members) == 2
        assert a.links.gauges() == {"links": 1, "links_standing": 1}
        assert a.fake.stimuli == []
        await a.end()
        await b.end()

    run(scenario)


def test_a_break_is_told_at_once_and_mended() -> None:
    """Goal: LinkLost, then LinkRestored; frames of the meantime are dropped and counted."""

    async def scenario() -> None:
        a, b = FakeNode("a"), FakeNode("b")
        a.links.want(MemberId("b"), await b.listen())
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        next(iter(b.acceptor.members)).abort()  # one of two breaks both
        await until(lambda: len(a.fake.stimuli) == 1, "the break")
        a.links.send(MemberId("b"), "data", wire.ACKS, b"lost")
        await until(lambda: len(a.fake.stimuli) == 2, "the mending")
        assert a.fake.stimuli == [LinkLost(MemberId("b")), LinkRestored(MemberId("b"))]
        a.links.send(MemberId("b"), "data", wire.ACKS, b"heard")
        a.links.flush()
        await until(lambda: b.fake.frames, "a frame over the new link")
        assert b.fake.frames == [("a", wire.ACKS, b"heard")]
        assert a.counters["link_frames_dropped"] == 1
        await until(lambda: len(b.acceptor.members) == 2, "the old connections' end")
        await a.end()
        await b.end()

    run(scenario)


def test_refusal_is_failure_and_coming_back_is_restoration() -> None:
    """Goal: nobody listens: LinkLost and LinkFailed at once, each once; later LinkRestored."""

    async def scenario() -> None:
        a, b = FakeNode("a"), FakeNode("b")
        address = await b.listen()
        a.links.want(MemberId("b"), address)
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        await b.stop_listening()
        await until(lambda: len(a.fake.stimuli) == 2, "the failure")
        await asyncio.sleep(0.15)  # two more attempts change nothing
        assert a.fake.stimuli == [LinkLost(MemberId("b")), LinkFailed(MemberId("b"))]
        await b.listen(address.port)
        await until(lambda: len(a.fake.stimuli) == 3, "the return")
        assert a.fake.stimuli[2] == LinkRestored(MemberId("b"))
        await a.end()
        await b.end()

    run(scenario)


def test_another_member_on_the_old_address_is_no_restoration() -> None:
    """Goal: a restart at once on the same address counts as the end of the old member, and the
    newcomer gets nothing that was meant for it (safety rule 4).
    """

    async def scenario() -> None:
        a, b, c = FakeNode("a"), FakeNode("b"), FakeNode("c")
        address = await b.listen()
        a.links.want(MemberId("b"), address)
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        await b.stop_listening()
        await c.listen(address.port)
        a.links.send(MemberId("b"), "data", wire.BACKUPS, b"secret")
        await until(lambda: LinkFailed(MemberId("b")) in a.fake.stimuli, "the failure")
        a.links.send(MemberId("b"), "data", wire.BACKUPS, b"secret")
        a.links.flush()
        await asyncio.sleep(0.1)  # nothing happens: the stranger is told nothing
        assert c.fake.frames == []
        assert LinkRestored(MemberId("b")) not in a.fake.stimuli
        for node in (a, b, c):
            await node.end()

    run(scenario)


def test_silence_is_not_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a member that accepts and says nothing (SIGSTOP) is for the heartbeats to judge."""
    monkeypatch.setattr(links_module, "CONNECT_TIMEOUT_S", 0.02)

    async def scenario() -> None:
        a = FakeNode("a")
        with socket.create_server(("127.0.0.1", 0)) as stopped:
            host, port = stopped.getsockname()[:2]
            a.links.want(MemberId("b"), Address(host, port))
            await asyncio.sleep(0.4)  # nothing happens: a machine that is silent is not gone
            assert a.fake.stimuli == []
            a.links.send_to(Address(host, port), BEAT, "a-1")
            assert a.links._addresses
            await until(lambda: not a.links._addresses, "the address given up")
            assert a.fake.stimuli == []  # a joiner waits for it as for one that seeks (M6)
            await a.end()

    run(scenario)


def test_connections_that_break_off_three_times_are_failure() -> None:
    """Goal: somebody who accepts and hangs up is no member."""

    async def scenario() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        a = FakeNode("a")
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        a.links.want(MemberId("b"), Address(host, port))
        await until(lambda: a.fake.stimuli, "the failure")
        assert a.fake.stimuli == [LinkFailed(MemberId("b"))]
        await a.end()
        server.close()

    run(scenario)


def test_unwanted_links_linger_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: last words still go out; a link wanted again meanwhile stays."""
    monkeypatch.setattr(links_module, "LINGER_S", 0.05)

    async def scenario() -> None:
        a, b = FakeNode("a"), FakeNode("b")
        address = await b.listen()
        a.links.want(MemberId("b"), address)
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        a.links.unwant(MemberId("b"))
        a.links.want(MemberId("b"), address)
        await asyncio.sleep(0.1)  # nothing happens: there is no second connection
        assert a.links.gauges()["links_standing"] == 1
        a.links.unwant(MemberId("b"))
        a.links.send(MemberId("b"), "control", wire.MESSAGE, BEAT, "a-1")
        a.links.flush()
        await until(lambda: b.fake.stimuli, "the last words")
        await until(lambda: not b.acceptor.members, "the end")
        assert a.links.gauges()["links"] == 0
        assert a.fake.stimuli == []
        assert list(a.links.known) == [address]
        a.links.send(MemberId("b"), "control", wire.MESSAGE, BEAT, "a-1")
        assert a.counters["link_frames_dropped"] == 1
        await a.end()
        await b.end()

    run(scenario)


def test_messages_to_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one connection serves several messages, ends when idle, is made again; a dead
    address is told for each try.
    """
    monkeypatch.setattr(links_module, "ADDRESS_IDLE_S", 0.1)

    async def scenario() -> None:
        a, b = FakeNode("a"), FakeNode("b")
        address, dead = await b.listen(), free_address()
        for _ in range(3):
            a.links.send_to(address, BEAT, "a-1")
        await until(lambda: len(b.fake.stimuli) == 3, "three messages")
        assert len(b.acceptor.members) == 1
        await until(lambda: not b.acceptor.members, "the idle end")
        a.links.send_to(address, BEAT, "a-1")
        await until(lambda: len(b.fake.stimuli) == 4, "one more")
        for number in range(2):
            a.links.send_to(dead, BEAT, "a-1")
            await until(lambda: len(a.fake.stimuli) == number + 1, "no answer")  # noqa: B023
        assert a.fake.stimuli == [AddressUnreachable(dead)] * 2
        await a.end()
        await b.end()

    run(scenario)


def test_a_peer_that_does_not_read_is_cut() -> None:
    """Goal: bytes for one member are bounded by a named limit; then the link is made anew."""

    async def scenario() -> None:
        a, b = FakeNode("a", link_backlog_bytes_max=1 << 20), FakeNode("b")
        a.links.want(MemberId("b"), await b.listen())
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        for connection in b.acceptor.members:
            connection.transport.pause_reading()
        for _ in range(200):
            a.links.send(MemberId("b"), "data", wire.BACKUPS, b"x" * 262_144)
            a.links.flush()
            if a.counters.get("links_cut_by_backlog"):
                break
        assert a.counters["links_cut_by_backlog"] == 1
        await until(lambda: LinkRestored(MemberId("b")) in a.fake.stimuli, "the new link")
        await a.end()
        await b.end()

    run(scenario)


def test_a_peer_that_reads_is_not_cut_by_much_at_once() -> None:
    """Goal: more than the limit in one turn is no reason to break the link: it would all be sent
    again, and be too much again. Method: several times the limit, to a peer that reads.
    """

    async def scenario() -> None:
        a, b = FakeNode("a", link_backlog_bytes_max=1 << 20), FakeNode("b")
        a.links.want(MemberId("b"), await b.listen())
        await until(lambda: a.links.gauges()["links_standing"], "the link")
        for _ in range(6):
            a.links.send(MemberId("b"), "data", wire.BACKUPS, bytes(1 << 20))
        a.links.flush()
        await until(lambda: len(b.fake.frames) == 6, "all frames")
        assert "links_cut_by_backlog" not in a.counters
        assert "links_lost" not in a.counters
        await a.end()
        await b.end()

    run(scenario)
