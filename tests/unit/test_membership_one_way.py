"""Join lists that reach in one direction only: parts of a cluster still become one (M6)."""

from __future__ import annotations

import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Host, Net, address_of, with_settings

LISTS = {
    "the last knows nobody": {1: [3], 2: [3, 1], 3: []},
    "the first knows nobody": {1: [], 2: [1], 3: [1]},
    "chain": {1: [2], 2: [3], 3: []},
    "chain upwards": {1: [], 2: [1], 3: [2], 4: [3]},
    "one knows all": {1: [], 2: [], 3: [], 4: [1, 2, 3]},
    "all know one": {1: [2], 2: [], 3: [2], 4: [2]},
    "two pairs, one link": {1: [2], 2: [1], 3: [4], 4: [3, 1]},
    "two pairs, a follower knows": {1: [], 2: [1, 3], 3: [], 4: [3]},
    "with dead addresses": {1: [90, 2], 2: [91], 3: [92, 1, 90]},
}


def started(net: Net, lists: dict[int, list[int]], gap_us: int) -> None:
    """Members with these join lists, one after the other."""
    for port, joins in lists.items():
        net.start(port, joins)
        net.run(gap_us)


def settle(net: Net, count: int, seconds: int) -> None:
    """Wait until so many are one cluster, and see that they stay it."""
    net.run_until(lambda: len(net.live()) == count and net.agreed(), seconds * SECOND)
    views = [len(host.views) for host in net.live()]
    net.run(30 * SECOND)
    assert net.agreed()
    assert [len(host.views) for host in net.live()] == views


@pytest.mark.parametrize("gap_us", [0, SECOND // 3, 3 * SECOND])
@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_lists_that_connect_all_make_one_cluster(lists: dict[int, list[int]], gap_us: int) -> None:
    """M6: whoever is known to one is found by all, also where nobody is configured with it.

    Method: lists of many shapes; who gives way comes back with its own list and what it heard.
    """
    net = Net(seed=gap_us)
    net.respawn = True
    started(net, lists, gap_us)
    settle(net, len(lists), 90)


def two_parts(net: Net) -> tuple[Host, Host, Host]:
    """A master with a follower, and one that is alone and configured with nobody; not met yet."""
    master = net.start(1, [2, 3])
    net.run_until(lambda: master.joined)
    follower = net.start(2, [1])
    net.run_until(lambda: net.agreed([master, follower]))
    alone = net.start(3)
    net.run_until(lambda: alone.joined)
    return master, follower, alone


def successor(net: Net, host: Host) -> Host:
    """Who listens where an expelled process did; waits for it."""
    net.run_until(lambda: net.listening(host.address) not in (None, host))
    found = net.listening(host.address)
    assert found is not None
    return found


def founded(host: Host) -> bool:
    return any(note.kind == "cluster_founded" for note in host.notes)


def test_who_gives_way_joins_whom_it_heard() -> None:
    """M6: the next incarnation asks the winning master and its members; it founds nothing."""
    net = Net()
    net.respawn = True
    master, follower, alone = two_parts(net)
    heir = successor(net, alone)
    assert alone.room.gone_on_at == (master.address, follower.address)
    assert heir.room.join_addresses == (master.address, follower.address)
    net.run_until(lambda: net.agreed([master, follower, heir]), 5 * SECOND)
    assert not founded(heir)


def test_who_was_handed_nothing_goes_round() -> None:
    """M6: without what was heard each incarnation founds a cluster, and is expelled once more."""
    net = Net()
    net.respawn, net.hands_on = True, False
    _, _, alone = two_parts(net)
    net.run(40 * SECOND)
    heirs = [host for host in net.hosts if host.address == alone.address]
    assert len(heirs) > 3 and all(map(founded, heirs))


def test_the_master_that_was_heard_dies_meanwhile() -> None:
    """M6: a follower that was heard as well leads to the next master."""
    net = Net()
    net.respawn = True
    master, follower, alone = two_parts(net)
    net.run_until(lambda: not alone.alive)
    net.kill(master)
    heir = successor(net, alone)
    net.run_until(lambda: net.agreed([follower, heir]), 30 * SECOND)
    assert not founded(heir)


def test_all_that_were_heard_die_meanwhile() -> None:
    """M6: with nobody left there the member goes on by its own list: it founds."""
    net = Net()
    net.respawn = True
    master, follower, alone = two_parts(net)
    net.run_until(lambda: not alone.alive)
    net.kill(master)
    net.kill(follower)
    heir = successor(net, alone)
    net.run_until(lambda: heir.joined, 2 * SECOND)
    assert founded(heir)


@pytest.mark.parametrize("answers_first", [False, True])
def test_who_was_heard_falls_silent(answers_first: bool) -> None:
    """M6: who only accepts is waited for during the heartbeat time-out, and no longer.

    Method: the master sleeps before the heir asks, or after it has named itself; in the second
    case nobody else knows it, so it is asked for until then.
    """
    net = Net()
    heard = net.start(1)
    net.run_until(lambda: heard.joined)
    if not answers_first:
        net.pause(heard)
    heir = net.start(3, heard=(heard.address,))
    if answers_first:
        net.run_until(lambda: heir.room.discovery._target is not None)
        net.pause(heard)
    timeout_us = net.settings.heartbeat_timeout_us
    net.run(timeout_us - SECOND)
    assert not heir.joined and heir.alive
    net.run(3 * SECOND)
    assert heir.ids == (heir.id,) and founded(heir)


def test_nothing_is_founded_while_who_was_heard_answers() -> None:
    """M6: a master that answers and does not let the heir in yet is waited for.

    Method: it takes no join request, for longer than the heartbeat time-out.
    """
    net = Net()
    heard = net.start(1)
    net.run_until(lambda: heard.joined)
    admit = heard.room.joining.on_request
    vars(heard.room.joining)["on_request"] = lambda request: None
    heir = net.start(3, heard=(heard.address,))
    net.run(3 * net.settings.heartbeat_timeout_us)
    assert not heir.joined and heir.alive
    vars(heard.room.joining)["on_request"] = admit
    net.run_until(lambda: net.agreed([heard, heir]), 5 * SECOND)
    assert not founded(heir)


def test_a_configured_address_is_waited_for_as_ever() -> None:
    """M6: what was heard as well changes nothing about an address of the member's own list."""
    net = Net(settings=with_settings(join_timeout_us=20 * SECOND))
    silent = net.start(1)
    net.run_until(lambda: silent.joined)
    net.pause(silent)
    heir = net.start(3, [1], heard=(silent.address,))
    net.run(25 * SECOND)
    assert heir.exit_status() == 1 and not founded(heir)


def test_clusters_of_another_partition_count_stay_apart() -> None:
    """M6: no part gives way to one that would never let it in; both say so."""
    net = Net()
    net.respawn = True
    one = net.start(1, [2])
    net.run_until(lambda: one.joined)
    other = net.start(2, settings=with_settings(partition_count=SETTINGS.partition_count + 1))
    net.run(60 * SECOND)
    assert one.alive and other.alive
    for host, known in ((one, other), (other, one)):
        notes = [note for note in host.notes if note.kind == "incompatible_cluster"]
        assert notes and notes[0].fields["master"] == known.id
        assert notes[0].fields["address"] == str(known.address)
        assert notes[0].fields["partition_count"] == known.ctx.settings.partition_count


def test_followers_leave_removed_members_to_the_master() -> None:
    """M6: a follower looks only where the master need not know to look."""
    net = Net()
    hosts = net.cluster(3)
    net.kill(hosts[2])
    net.run_until(lambda: net.agreed(hosts[:2]))
    asked: list[Host] = []
    send_to = net.send_to

    def watch(host: Host, address: object, message: object) -> None:
        if address == address_of(3):
            asked.append(host)
        send_to(host, address, message)  # type: ignore[arg-type]

    net.send_to = watch  # type: ignore[method-assign, assignment]
    net.run(3 * net.settings.heartbeat_timeout_us)
    assert asked and all(host is hosts[0] for host in asked)
