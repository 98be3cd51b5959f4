"""Discovery and joining: from a list of addresses to exactly one cluster."""

from __future__ import annotations

import itertools
import uuid

import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Net, address_of, with_settings

from whimbrel.core.context import Context
from whimbrel.core.effects import SendTo
from whimbrel.core.ids import MemberId
from whimbrel.core.membership.discovery import (
    DISCOVERY_TIMER,
    HEARD_ADDRESSES_MAX,
    new_cluster_id,
)
from whimbrel.core.messages import JoinRefused, JoinRequested, ProbeAnswered, ProbeRequested
from whimbrel.core.model import MemberInfo


@pytest.mark.parametrize("join", [(), (1,)], ids=["no address", "only its own"])
def test_a_member_with_nobody_to_ask_founds_at_once(join: tuple[int, ...]) -> None:
    """Goal: alone means no waiting. Method: start; the list has version 1 and holds us only."""
    net = Net()
    host = net.start(1, join)
    assert host.ctx.members.version == 1 and host.ids == (host.id,)
    assert str(uuid.UUID(host.ctx.members.cluster_id)) == host.ctx.members.cluster_id
    assert host.calls == ["joined", "became_master"]


def test_late_news_of_a_dead_machine_does_not_make_a_founder() -> None:
    """Goal: who has asked a master to let it in founds nothing beside it, though probes of before
    that one was up are only now found to have reached nobody, and the way is slow meanwhile.
    """
    net = Net(settings=with_settings(discovery_interval_us=50_000, call_timeout_us=300_000))
    master = net.start(1, ())
    joiner = net.start(2, (1,))
    while joiner.room.discovery._target is None:
        net.run(1_000)
    net.cut_off([joiner], [master])
    net.cut_off([master], [joiner])
    for _ in range(12):
        joiner.step(lambda: joiner.address_unreachable(master.address))
        net.run(50_000)
    assert joiner.ctx.members.version == 0
    net.heal()
    net.run(3 * SECOND)
    assert joiner.ctx.members == master.ctx.members and len(joiner.ids) == 2


def test_each_founding_has_an_id_of_its_own() -> None:
    """Goal: a founder that restarts with its identity founds another cluster, because its data
    are gone. Method: the same identity and address a second later.
    """
    first = Net().start(1, (), id="kept")
    net = Net()
    net.run(SECOND)
    again = net.start(1, (), id="kept")
    assert again.id == first.id
    assert again.ctx.members.cluster_id != first.ctx.members.cluster_id


def test_the_id_of_a_founding_comes_from_who_and_when() -> None:
    """Goal: identity, start and wall clock each make it another one, so neither a kept uuid nor
    a monotonic clock that begins anew with the machine repeats it; equal inputs repeat it.
    """

    def named(member: str, started_us: int, wall_ms: int) -> str:
        ctx = Context(MemberInfo(MemberId(member), address_of(1)), SETTINGS, started_us)
        ctx.wall_ms = wall_ms
        return new_cluster_id(ctx)

    ids = [named("a", 1, 1), named("b", 1, 1), named("a", 2, 1), named("a", 1, 2)]
    assert len(set(ids)) == len(ids)
    assert named("a", 1, 1) == ids[0]


def test_the_id_of_a_cluster_outlives_its_founder() -> None:
    """Goal: clients see the same cluster as long as its data may be there. Method: joins, a crash
    of the master, and the last of three alone: one id in every list anybody installed.
    """
    net = Net()
    first, second, third = net.cluster(3)
    net.kill(first)
    net.run_until(lambda: net.agreed([second, third]))
    net.kill(second)
    net.run_until(lambda: third.ids == (third.id,))
    assert len({view.cluster_id for host in net.hosts for view in host.views}) == 1


def test_a_search_ends_with_the_first_list() -> None:
    """Goal: a member probes no join address in the rounds of a seeker any more. Method: one that
    has founded after several rounds, and one that has joined.
    """
    net = Net()
    hosts = net.cluster(2)
    assert not any(host.ctx.is_armed(DISCOVERY_TIMER) for host in hosts)


def test_dead_addresses_delay_the_founding_by_two_rounds() -> None:
    """Goal: unreachable addresses do not keep the first one up from founding, but it looks
    twice. Method: three dead addresses; joined after two and before three intervals.
    """
    net = Net()
    host = net.start(1, (7, 8, 1, 9))
    spent_us = net.run_until(lambda: host.joined)
    assert 2 * SETTINGS.discovery_interval_us <= spent_us < 3 * SETTINGS.discovery_interval_us


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
@pytest.mark.parametrize("gap_us", [0, 100_000, 160_000, 310_000])
def test_three_that_start_together_make_one_cluster(order: tuple[int, ...], gap_us: int) -> None:
    """Goal: exactly one cluster whatever the order (M2). Method: all orders, several gaps."""
    for seed in range(5):
        net = Net(seed, delay_us=(100, 140_000))
        for port in order:
            net.start(port, (1, 2, 3))
            net.run(gap_us)
        net.run_until(net.agreed)
        assert len({host.ctx.members.cluster_id for host in net.hosts}) == 1


@pytest.mark.parametrize("ports", [(1, 2), (2, 1), (3, 1, 2), (2, 3, 1)])
@pytest.mark.parametrize("gap_us", [0, 90_000, 200_000])
def test_a_slow_network_makes_one_cluster_too(ports: tuple[int, ...], gap_us: int) -> None:
    """M2, M5: one cluster is founded though messages take longer than rounds of discovery.

    Method: delays of up to six intervals. A seeker that took the probes of a higher one for its
    answers founded a second cluster, because its own probes had not been heard yet.
    """
    for seed in range(30):
        net = Net(seed, delay_us=(100, 900_000))
        for port in ports:
            net.start(port, ports)
            net.run(gap_us)
        net.run_until(lambda: any(host.joined for host in net.hosts))  # noqa: B023
        net.run(2 * SECOND)
        founded = {view.cluster_id for host in net.hosts for view in host.views}
        assert len(founded) == 1, f"seed {seed}"


def test_a_lower_seeker_that_dies_is_not_waited_for() -> None:
    """Goal: waiting for the lowest ends with its life. Method: kill it before it founds."""
    net = Net()
    lowest = net.start(1, (1, 2, 3))
    others = [net.start(2, (1, 2, 3)), net.start(3, (1, 2, 3))]
    net.run(200_000)
    net.kill(lowest)
    net.run_until(lambda: net.agreed(others))
    assert others[0].ctx.is_master


def test_one_way_knowledge_is_enough() -> None:
    """Goal: a seeker that only the other knows of is found. Method: the lower address does not
    list the higher one, which starts first; one cluster results.
    """
    net = Net()
    high = net.start(9, (1, 9))
    low = net.start(1, (1, 5))
    net.run_until(lambda: net.agreed([low, high]))
    assert [host.ctx.is_master for host in (low, high)].count(True) == 1


def test_joins_are_gathered_in_one_list() -> None:
    """Goal: ten joiners cost one or two lists, not ten. Method: start ten at once; the window
    never stays open longer than its maximum.
    """
    net = Net()
    master = net.cluster(1)[0]
    for port in range(2, 12):
        net.start(port, (1,))
    spent_us = net.run_until(net.agreed)
    assert master.ctx.members.version <= 3
    assert spent_us < SETTINGS.join_window_max_us + 200_000


def test_the_join_window_has_a_maximum() -> None:
    """Goal: a stream of joiners does not keep the first one out. Method: one more every 90 ms,
    window 100 ms, maximum 500 ms.
    """
    net = Net(delay_us=(100, 200))
    net.cluster(1)
    first = net.start(2, (1,))
    for port in range(3, 14):
        net.run(90_000)
        net.start(port, (1,))
    net.run_until(net.agreed)
    installed = next(note for note in first.notes if note.kind == "members_installed")
    # The master, the first one, and those of 500 ms at 90 ms each.
    assert installed.fields["members"] == 7


def test_another_cluster_name_is_answered_but_never_joined() -> None:
    """Goal: foreign members are neighbours, no more. Method: two names on one list of addresses;
    each founds its own cluster; the foreign one is noted.
    """
    net = Net()
    ours = net.start(1, (1, 2))
    net.run_until(lambda: ours.joined)
    other = net.start(2, (1, 2), settings=with_settings(cluster_name="prod"))
    net.run_until(lambda: other.joined)
    assert ours.ids == (ours.id,) and other.ids == (other.id,)
    assert any(note.kind == "foreign_cluster" for note in other.notes)
    assert any(note.kind == "foreign_probe" for note in ours.notes)


def test_another_partition_count_is_refused_for_good() -> None:
    """Goal: a misconfigured member ends with a clear reason. Method: 31 against 271."""
    net = Net()
    net.cluster(2)
    wrong = net.start(3, (1, 2), settings=with_settings(partition_count=31))
    net.run_until(lambda: wrong.exit_status() is not None)
    assert wrong.exit_status() == 1
    assert "271 partitions" in wrong.reason() and "partition count" in wrong.reason()


def test_a_join_request_with_another_cluster_name_is_refused() -> None:
    """Goal: the master checks the name itself. Method: a request as a careless member sends it."""
    net = Net()
    master = net.cluster(1)[0]
    joiner = MemberInfo(master.id, address_of(9))
    request = JoinRequested("prod", 271, joiner)
    master.ctx.effects.clear()
    master.room.on_message(joiner.id, joiner.address, request)
    answers = [effect for effect in master.ctx.effects if isinstance(effect, SendTo)]
    assert isinstance(answers[0].message, JoinRefused) and answers[0].message.final
    assert "cluster name" in answers[0].message.reason


def test_a_second_holder_of_an_identity_is_refused() -> None:
    """Goal: one id, one member (M4). Method: another process starts with a live member's id."""
    net = Net()
    hosts = net.cluster(2)
    twin = net.start(3, (1, 2), id=hosts[1].id)
    net.run_until(lambda: twin.exit_status() is not None)
    assert "duplicate id" in twin.reason()
    assert net.agreed(hosts)


def test_silence_at_a_reachable_address_ends_in_a_timeout() -> None:
    """Goal: no founding while somebody may be there, and no endless wait. Method: the only other
    address accepts connections and says nothing.
    """
    net = Net()
    mute = net.start(1, ())
    net.pause(mute)
    seeker = net.start(2, (1, 2))
    net.run(SETTINGS.join_timeout_us - SECOND)
    assert seeker.exit_status() is None and not seeker.joined
    net.run(2 * SECOND)
    assert seeker.exit_status() == 1
    assert "127.0.0.1:1: no answer" in seeker.reason()


def test_other_names_of_addresses_are_understood() -> None:
    """Goal: aliases in the list of addresses do not block founding. Method: a lone member lists
    itself under another name; the dialled name comes back in its own probe.
    """
    net = Net()
    host = net.start(1, (5,))
    probes = ProbeRequested("dev", host.ctx.me, address_of(5))
    assert not host.joined
    host.step(lambda: host.room.on_message(host.id, host.address, probes))
    net.run(SECOND)
    assert host.joined


def test_an_answer_counts_for_the_address_that_was_dialled() -> None:
    """Goal: a member that calls itself otherwise than we dialled it is recognised. Method: the
    answers of a higher seeker for an alias make us found.
    """
    net = Net(settings=with_settings(discovery_interval_us=150_000))
    host = net.start(1, (5,))
    mute = net.start(5, ())
    net.pause(mute)
    seeker = MemberInfo(mute.id, address_of(50))
    for _ in range(2):
        answer = ProbeAnswered("dev", seeker, None, address_of(5))
        host.step(lambda answer=answer: host.room.on_message(seeker.id, seeker.address, answer))  # type: ignore[misc]
        assert not host.joined
        net.run(150_000)
    assert host.joined


def test_a_request_to_a_non_master_is_redirected() -> None:
    """Goal: a joiner that knows only a younger member gets in. Method: join list without the
    master.
    """
    net = Net()
    hosts = net.cluster(3)
    joiner = net.start(9, (3,))
    net.run_until(lambda: net.agreed([*hosts, joiner]))
    assert hosts[0].ctx.is_master and joiner.joined


def test_the_joiner_follows_a_new_master() -> None:
    """Goal: the death of the master in mid-join delays the joiner, no more. Method: kill it in
    the join window.
    """
    net = Net()
    hosts = net.cluster(3)
    joiner = net.start(9, (1, 2, 3))
    net.run(20_000)
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed([*hosts[1:], joiner]))
    assert hosts[1].ctx.is_master and joiner.joined


def test_a_new_process_on_the_address_of_a_member_replaces_it() -> None:
    """Goal: identity is the id, never the address (M4, bug 59). Method: kill and start on the
    same port within the time of a reconnect; old identity out, then new one in.
    """
    net = Net(delay_us=(2_000, 5_000))
    hosts = net.cluster(3)
    for victim in (hosts[2], hosts[0]):
        net.kill(victim)
        net.start(victim.address.port, (1, 2, 3))
        net.run_until(net.agreed, 5 * SECOND)
        assert all(victim.id not in host.ids for host in net.live())


def test_a_restart_with_the_same_identity_is_removed_first() -> None:
    """Goal: a process that kept its id on disk does not slip into the place of its former self,
    whose data it has not (M4). Method: kill and restart with the same id before anybody notices;
    every member sees a list without it first.
    """
    net = Net(delay_us=(2_000, 5_000))
    hosts = net.cluster(3)
    old = hosts[1]
    net.kill(old)
    again = net.start(2, (1, 2, 3), id=old.id)
    net.run_until(net.agreed, 5 * SECOND)
    assert again.joined
    versions = [view.version for view in hosts[0].views if view.get(old.id) is None]
    assert max(versions) > old.ctx.members.version


def test_a_late_message_of_an_earlier_process_displaces_nobody() -> None:
    """Goal: only a later start takes an address over. Method: a probe of an earlier process with
    the address of a member arrives late.
    """
    net = Net()
    hosts = net.cluster(2)
    ghost = MemberInfo(MemberId("ghost"), hosts[1].address, started_us=1)
    probe = ProbeRequested("dev", ghost, None)
    hosts[0].step(lambda: hosts[0].room.on_message(ghost.id, ghost.address, probe))
    net.run(3 * SECOND)
    assert net.agreed(hosts)


def test_links_are_wanted_before_anything_is_sent_over_them() -> None:
    """Goal: the shell can send what it is told to. Method: the world asserts a link per message;
    here: a joiner wants exactly the links to the others.
    """
    net = Net()
    hosts = net.cluster(4)
    for host in hosts:
        assert sorted(host.links) == sorted(other.id for other in hosts if other is not host)


def test_a_seeker_remembers_so_many_that_probe_it() -> None:
    """Safety rule 9: who probes a seeker is looked at, up to a number of addresses; the addresses
    that it was given itself do not count.
    """
    net = Net()
    host = net.start(1, (2, 3))
    for port in range(100, 100 + 2 * HEARD_ADDRESSES_MAX):
        ghost = MemberInfo(MemberId(f"g{port}"), address_of(port), started_us=1)
        probe = ProbeRequested("dev", ghost, None)
        host.room.on_message(ghost.id, ghost.address, probe)
    assert len(host.room.discovery._sights) == HEARD_ADDRESSES_MAX + 2


def test_a_seeker_says_whom_it_waits_for() -> None:
    """Goal: who waits tells for whom, now and then. Method: the only member is stopped as another
    one looks for it: a note in each heartbeat time-out, with the address, and none about dead ones.
    """
    net = Net()
    member = net.cluster(1)[0]
    net.pause(member)
    seeker = net.start(2, (1, 2, 9))
    net.run(12 * SECOND)
    notes = [note for note in seeker.notes if note.kind == "still_seeking"]
    assert len(notes) == 2
    assert notes[0].fields["awaited"] == f"{member.address} (no answer)"
    net.resume(member)
    net.run_until(lambda: net.agreed([member, seeker]), 10 * SECOND)
