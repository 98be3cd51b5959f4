"""Large partitions to one destination are copied one after the other; nothing waits before."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.migration_net import MS, SETTINGS, Net, Node

from whimbrel.core.messages import (
    MigrationDataAnswered,
    MigrationOpened,
    MigrationRequested,
)
from whimbrel.core.model import ClusterState

ENTRIES = 12


def full_net(bytes_max: int, members: int = 2, backups: int = 1) -> Net:
    """Members with entries in every partition, at rest."""
    settings = msgspec.structs.replace(
        SETTINGS, partition_count=24, migration_copy_bytes_max=bytes_max
    )
    net = Net(settings, backups)
    net.add(*"abcdef"[:members])
    net.settle()
    net.fill(ENTRIES)
    return net


def flags_of(net: Net, *names: str) -> int:
    """Partitions whose writes wait, at these members."""
    return sum(len(net.nodes[name].host.flags) for name in names)


def most_flags(net: Net, *names: str) -> dict[str, int]:
    """The most partitions whose writes waited at the same moment, as the net goes on."""
    most = dict.fromkeys(names, 0)

    def look(node: Node) -> None:
        if node.id in most:
            most[node.id] = max(most[node.id], len(node.host.flags))

    net.after_step = look
    return most


def run_until_waiting(net: Net, name: str, count: int) -> None:
    """Until a member has so many requests whose turn has not come."""
    source = net.nodes[name].room.source
    net.run(net.now_us + 1000 * MS, stop=lambda: source.waiting_count >= count)
    assert source.waiting_count >= count


def test_large_partitions_take_turns_and_small_ones_do_not() -> None:
    """Goal: a write waits for one partition's copy and not for ten. Method: the same join with
    room for one partition, and with room for all.
    """
    most = {}
    for bytes_max in (1, 1_000_000):
        net = full_net(bytes_max, members=1)
        found = most_flags(net, "a")
        net.delay_us = lambda is_data: 20 * MS if is_data else MS
        net.add("b")
        net.settle()
        net.check(ENTRIES)
        most[bytes_max] = found["a"]
    # One is being copied, and one may wait for its verdict.
    assert most == {1: 2, 1_000_000: SETTINGS.migration_max_parallel}


def test_each_destination_has_its_own_turn() -> None:
    """Goal: turns leave no connection idle. Method: the only member's data go to two newcomers."""
    net = full_net(1, members=1, backups=0)
    net.add("b", "c")
    run_until_waiting(net, "a", 2)
    net.run_for(0.004)
    copying = net.nodes["a"].room.source.copying()
    assert sorted(outgoing.sending.member for outgoing in copying) == ["b", "c"]
    net.settle()
    net.check(ENTRIES)


def test_a_repeated_request_neither_loses_nor_doubles_its_turn() -> None:
    """Goal: repeats are harmless before the turn, too (ADL-28). Method: every request twice."""
    net = full_net(1)
    net.on_send = lambda _a, _b, m: "twice" if isinstance(m, MigrationRequested) else "deliver"
    net.add("c")
    net.settle()
    net.check(ENTRIES)
    firsts = [m for _, _, m in net.trace if isinstance(m, MigrationOpened)]
    assert len({m.migration.id for m in firsts}) == len(firsts)


@pytest.mark.parametrize(("excess", "together"), [(0, 2), (1, 1)])
def test_what_fits_exactly_begins_together(excess: int, together: int) -> None:
    """Goal: the limit is what may be copied at once, to the byte. Method: behind one large
    partition two wait that fill the limit exactly, or are a byte too large.
    """
    bytes_max = 40
    net = full_net(bytes_max, members=2, backups=0)
    node, source = net.nodes["b"], net.nodes["b"].room.source
    for pid in node.host.data:
        node.host.data[pid] = (bytes(bytes_max),)
    net.delay_us = lambda is_data: 20 * MS if is_data else MS
    net.add("c")
    run_until_waiting(net, "b", 2)
    (first,) = source.copying()
    for number, (request, _) in enumerate(source._waiting.values()):
        size = bytes_max // 2 + excess * (number == 1)
        node.host.data[request.migration.partition_id] = (bytes(size),)
    net.run(net.now_us + 1000 * MS, stop=lambda: first not in source.copying())
    assert len(source.copying()) == together
    net.settle()


@pytest.mark.parametrize(("excess", "together"), [(0, 2), (1, 1)])
def test_what_is_under_way_counts_to_the_byte(excess: int, together: int) -> None:
    """Goal: a request that comes while another one is copied begins if both fit. Method: every
    partition is half of the limit, or a byte more, and the requests come one after the other.
    """
    bytes_max = 40
    net = full_net(bytes_max, members=2, backups=0)
    node, source = net.nodes["b"], net.nodes["b"].room.source
    for pid in node.host.data:
        node.host.data[pid] = (bytes(bytes_max // 2 + excess),)
    net.delay_us = lambda is_data: 20 * MS if is_data else MS
    net.add("c")
    run_until_waiting(net, "b", 1)
    assert len(source.copying()) == together
    net.settle()


@pytest.mark.parametrize("gone", ["destination", "master"])
def test_what_waits_is_given_up_with_who_asked_or_would_take_it(gone: str) -> None:
    """Goal: a request never outlives its reasons (PIM-09, ADL-18). Method: the destination or the
    master dies while requests wait.
    """
    net = full_net(1, members=3)
    net.delay_us = lambda is_data: 20 * MS if is_data else MS
    net.add("d")
    run_until_waiting(net, "b", 1)
    net.crash("d" if gone == "destination" else "a")
    net.settle()
    net.check(ENTRIES)
    assert all(node.room.source.waiting_count == 0 for node in net.live)


def test_a_turn_is_checked_when_it_comes() -> None:
    """Goal: what was true of a request may have changed while it waited (PIM-09). Method: no
    migration is allowed any more when the turn comes.
    """
    net = full_net(1, members=3)
    net.delay_us = lambda is_data: 20 * MS if is_data else MS
    net.add("d")
    run_until_waiting(net, "b", 1)
    node = net.nodes["b"]
    assert "migrations" in node.room.local_work()
    flagged = flags_of(net, "b")
    node.ctx.members = msgspec.structs.replace(node.ctx.members, state=ClusterState.NO_MIGRATION)
    before = len(net.trace)
    net.run(net.now_us + 3000 * MS, stop=lambda: node.room.source.waiting_count == 0)
    answers = [
        m for a, _, m in net.trace[before:] if a == "b" and isinstance(m, MigrationDataAnswered)
    ]
    refused = [m.reason for m in answers if not m.success]
    assert refused and all("cluster state" in reason for reason in refused)
    assert flags_of(net, "b") <= flagged
