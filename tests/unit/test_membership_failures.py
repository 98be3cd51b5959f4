"""Heartbeats, suspicion, removal, mastership claims, pauses, one-way links."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Host, Net

from whimbrel.core.ids import MemberId
from whimbrel.core.messages import (
    ClaimRequested,
    Heartbeat,
    MembersPublished,
    SuspicionTold,
)
from whimbrel.core.model import MemberList

TIMEOUT_US = SETTINGS.heartbeat_timeout_us


def say(net: Net, sender: Host, receiver: Host, message: object) -> None:
    """Deliver a message now, as if it came over a link."""
    receiver.step(
        lambda: receiver.room.on_message(sender.id, sender.address, message)  # type: ignore[arg-type]
    )


# -- detection ----------------------------------------------------------------------------


def test_a_quiet_cluster_stays_as_it_is() -> None:
    """Goal: no false alarm (M1). Method: five members for ten minutes; the list never changes
    and each member sends some four heartbeats a second.
    """
    net = Net()
    hosts = net.cluster(5)
    version, sent = hosts[0].ctx.members.version, hosts[1].messages_sent
    net.run(600 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version
    assert 4 * 595 <= hosts[1].messages_sent - sent <= 4 * 605


def test_a_mute_member_is_removed_after_the_timeout() -> None:
    """Goal: silence is judged in time, not before (M5). Method: pause a member for good."""
    net = Net()
    hosts = net.cluster(3)
    net.pause(hosts[1])
    rest = [hosts[0], hosts[2]]
    spent_us = net.run_until(lambda: net.agreed(rest))
    assert TIMEOUT_US - SECOND < spent_us < TIMEOUT_US + 2 * SECOND


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_dead_process_is_removed_at_once(victim: int) -> None:
    """Goal: a refused connection needs no time-out, also when the master dies. Method: kill one
    of three; the others agree within a tenth of a second.
    """
    net = Net()
    hosts = net.cluster(3)
    net.kill(hosts[victim])
    rest = [host for host in hosts if host.alive]
    assert net.run_until(lambda: net.agreed(rest)) < SECOND // 10


def test_a_broken_link_that_comes_back_changes_nothing() -> None:
    """Goal: only a link that cannot be made again is a failure; one that could, after all, is
    none for a member that does not decide. Method: fail and restore at a non-master.
    """
    net = Net()
    hosts = net.cluster(3)
    version = hosts[0].ctx.members.version
    hosts[1].step(lambda: hosts[1].room.on_link_failed(hosts[2].id))
    assert hosts[1].room.detector.suspected() == [hosts[2].id]
    net.run(2 * SECOND)
    assert hosts[1].room.detector.suspected() == [hosts[2].id], "hearing it is not reaching it"
    hosts[1].step(lambda: hosts[1].room.on_link_restored(hosts[2].id))
    assert hosts[1].room.detector.suspected() == []
    net.run(10 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


def test_hearing_again_clears_a_suspicion() -> None:
    """Goal: silence is forgiven. Method: cut two non-masters from each other for longer than
    the time-out, heal; nobody was removed and nobody is suspected.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[1]], [hosts[2]])
    net.run(2 * TIMEOUT_US)
    assert hosts[2].room.detector.suspected() == [hosts[1].id]
    net.heal()
    net.run(3 * TIMEOUT_US)
    assert net.agreed(hosts)
    assert not any(host.room.detector.suspected() for host in hosts)


def test_an_older_list_version_in_a_heartbeat_brings_the_list_again() -> None:
    """Goal: a lost publication is repeated (ADL-10 for lists). Method: lose the publication of a
    join to one member only.
    """
    net = Net()
    hosts = net.cluster(2)
    net.cut([hosts[0]], [hosts[1]])
    joiner = net.start(3, (1,))
    net.run_until(lambda: joiner.joined)
    net.run(SECOND // 2)
    assert not hosts[1].ctx.is_member(joiner.id)
    net.heal()
    net.run_until(net.agreed, 2 * SECOND)


# -- pauses -------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 2], ids=["master", "other"])
def test_a_short_pause_changes_nothing(who: int) -> None:
    """Goal: a pause below the time-out is no failure. Method: four seconds of five."""
    net = Net()
    hosts = net.cluster(3)
    version = hosts[0].ctx.members.version
    net.pause(hosts[who])
    net.run(4 * SECOND)
    net.resume(hosts[who])
    net.run(20 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("who", ["master", "other"])
def test_a_paused_member_wakes_and_is_expelled(count: int, who: str) -> None:
    """Goal: the sleeper learns that the others went on, and harms nobody (M5). Method: pause for
    a minute; it must suspect nobody for its own pause, and end; the others stay.
    """
    net = Net()
    hosts = net.cluster(count)
    sleeper = hosts[0] if who == "master" else hosts[-1]
    rest = [host for host in hosts if host is not sleeper]
    net.pause(sleeper)
    net.run_until(lambda: net.agreed(rest))
    net.run(60 * SECOND)
    views = len(sleeper.views)
    net.resume(sleeper)
    net.run_until(lambda: sleeper.expelled is not None, 5 * SECOND)
    assert len(sleeper.views) == views, "it removed somebody before it ended"
    net.run(20 * SECOND)
    assert net.agreed(rest)


def test_a_sleeping_majority_does_not_overrule_who_stayed_awake() -> None:
    """Goal: what the only waking member did is not lost to two that slept. Method: two of three
    sleep; the third goes on alone; they wake and give way.
    """
    for sleepers in ((0, 1), (0, 2), (1, 2)):
        net = Net()
        hosts = net.cluster(3)
        awake = next(host for number, host in enumerate(hosts) if number not in sleepers)
        for number in sleepers:
            net.pause(hosts[number])
        net.run_until(lambda: net.agreed([awake]))  # noqa: B023
        net.run(60 * SECOND)
        for number in sleepers:
            net.resume(hosts[number])
        net.run(10 * SECOND)
        assert awake.joined and all(hosts[number].expelled for number in sleepers)


def test_everybody_paused_at_once_changes_nothing() -> None:
    """Goal: a machine that sleeps wakes with its cluster. Method: pause all for an hour."""
    net = Net()
    hosts = net.cluster(4)
    version = hosts[0].ctx.members.version
    for host in hosts:
        net.pause(host)
    net.run(3600 * SECOND)
    for host in hosts:
        net.resume(host)
    net.run(60 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version


# -- one-way links ------------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 1, 3], ids=["master", "second", "youngest"])
@pytest.mark.parametrize("way", ["hears nobody", "is heard by nobody", "neither"])
def test_a_half_connected_member_ends_outside(who: int, way: str) -> None:
    """Goal: a member that hears but is not heard, or the reverse, ends outside the list and the
    core goes on (L5); when the cut heals it learns it and leaves (M5, M6). Method: cut one of
    four, one way or both, wait, look at the core, heal.
    """
    net = Net()
    hosts = net.cluster(4)
    outsider = hosts[who]
    core = [host for host in hosts if host is not outsider]
    if way != "is heard by nobody":
        net.cut(core, [outsider])
    if way != "hears nobody":
        net.cut([outsider], core)
    net.run_until(lambda: net.agreed(core), 60 * SECOND)
    net.run(20 * SECOND)
    assert net.agreed(core) and all(host.expelled is None for host in core)
    net.heal()
    net.run(30 * SECOND)
    assert outsider.expelled is not None and net.agreed(core)


def test_a_cut_between_master_and_second_leaves_one_cluster() -> None:
    """Goal: a claim that the others refuse ends with the claimant's removal. Method: two-way cut
    of the two oldest of four.
    """
    net = Net()
    hosts = net.cluster(4)
    net.cut([hosts[0]], [hosts[1]], both=True)
    net.run_until(lambda: net.agreed([hosts[0], hosts[2], hosts[3]]))
    net.run_until(lambda: hosts[1].expelled is not None)
    assert all(host.expelled is None for host in hosts if host is not hosts[1])


@pytest.mark.parametrize("split", [1, 2, 3])
def test_two_halves_meet_again_as_one_cluster(split: int) -> None:
    """Goal: after a split healed the weaker part gives way as a whole and its processes join
    anew (M6); there is no third cluster. Method: five members, first ``split`` of them cut off.
    """
    net = Net()
    hosts = net.cluster(5)
    one, other = hosts[:split], hosts[split:]
    net.cut(one, other, both=True)
    net.run_until(lambda: net.agreed(one) and net.agreed(other))
    assert one[0].ctx.is_master and other[0].ctx.is_master, "M2: disjoint views, a master each"
    net.respawn = True
    net.heal()
    net.run_until(lambda: len(net.live()) == 5 and net.agreed(), 120 * SECOND)
    winner = one if len(one) > len(other) else other
    assert all(host.alive for host in winner)


def test_equal_halves_choose_the_same_winner() -> None:
    """Goal: ties have a rule that both sides know (M6). Method: two of four against two."""
    for seed in range(10):
        net = Net(seed)
        hosts = net.cluster(4)
        net.cut(hosts[:2], hosts[2:], both=True)
        net.run_until(lambda: net.agreed(hosts[:2]) and net.agreed(hosts[2:]))  # noqa: B023
        net.heal()
        net.respawn = True
        net.run_until(net.agreed, 120 * SECOND)
        assert sum(host.alive for host in hosts) == 2


# -- claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [(0,), (0, 1), (0, 1, 2), (0, 2), (1, 2), (0, 4), (0, 1, 2, 3)])
def test_the_oldest_survivor_becomes_master(dead: tuple[int, ...]) -> None:
    """Goal: a claim ends with the oldest survivor as master (M2), also when candidates die with
    the master. Method: kill subsets of five at once; the version jumps when the master died.
    """
    for seed in range(5):
        net = Net(seed)
        hosts = net.cluster(5)
        version = hosts[0].ctx.members.version
        for number in dead:
            net.kill(hosts[number])
        net.run_until(net.agreed, 3 * SECOND)
        rest = net.live()
        assert rest[0].ctx.is_master and rest == [host for host in hosts if host.alive]
        if 0 in dead:
            assert rest[0].ctx.members.version > version + 1
            assert rest[0].calls[-1] == "became_master"


@pytest.mark.parametrize("delay_us", [1, 500, 1_500, 3_000, 5_000, 8_000])
def test_the_claimant_dies_while_claiming(delay_us: int) -> None:
    """Goal: a dead claimant binds nobody. Method: the second oldest dies shortly after the
    master, at several moments of its claim.
    """
    for seed in range(10):
        net = Net(seed)
        hosts = net.cluster(5)
        net.kill(hosts[0])
        net.run(delay_us)
        net.kill(hosts[1])
        net.run_until(net.agreed, 3 * SECOND)
        assert hosts[2].ctx.is_master


def test_a_newer_list_shown_in_an_answer_wins() -> None:
    """Goal: what the old master published last is not lost (ADL-15 for lists). Method: a member
    joins, only the youngest gets the new list, the master dies; the joiner is kept.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[0]], [hosts[1]])
    joiner = net.start(4, (1,))
    net.run_until(lambda: joiner.joined and hosts[2].ctx.is_member(joiner.id))
    assert not hosts[1].ctx.is_member(joiner.id)
    net.kill(hosts[0])
    net.run_until(lambda: net.agreed([*hosts[1:], joiner]), 5 * SECOND)
    assert hosts[1].ctx.is_master


def test_a_claimant_that_was_removed_learns_it_from_an_answer() -> None:
    """Goal: a claim does not undo a removal (M5). Method: the master removes the second oldest
    and dies before that one hears of it; the youngest knows and ends as master.
    """
    net = Net()
    hosts = net.cluster(3)
    net.cut([hosts[0]], [hosts[1]])
    hosts[0].step(lambda: hosts[0].room.on_link_failed(hosts[1].id))
    net.run_until(lambda: not hosts[2].ctx.is_member(hosts[1].id))
    net.kill(hosts[0])
    net.run_until(lambda: hosts[1].expelled is not None, 5 * SECOND)
    net.run_until(lambda: net.agreed([hosts[2]]))


def test_a_member_that_never_answers_a_claim_is_dropped() -> None:
    """Goal: a claim ends in bounded time. Method: one of four is paused when the master dies; the
    claim is over after the claim time-out, or earlier by silence, without the sleeper.
    """
    net = Net()
    hosts = net.cluster(4)
    net.pause(hosts[2])
    net.kill(hosts[0])
    rest = [hosts[1], hosts[3]]
    limit_us = min(SETTINGS.claim_timeout_us, TIMEOUT_US) + 2 * SECOND
    assert net.run_until(lambda: net.agreed(rest)) <= limit_us
    net.resume(hosts[2])
    net.run_until(lambda: hosts[2].expelled is not None, 5 * SECOND)


def test_a_claim_is_abandoned_when_an_older_member_is_heard() -> None:
    """Goal: a suspicion that clears ends the claim, and those who agreed follow the old master
    again. Method: the master is heard again while one member still has not answered.
    """
    net = Net()
    hosts = net.cluster(4)
    version = hosts[0].ctx.members.version
    net.cut([hosts[0]], hosts[1:])
    net.run(2 * SECOND)
    net.cut([hosts[3]], [hosts[1]])
    net.run_until(lambda: hosts[1].room.is_claiming)
    net.run_until(lambda: hosts[2].room.accepted == hosts[1].id)
    net.heal()
    net.cut([hosts[3]], [hosts[1]])
    net.run_until(lambda: not hosts[1].room.is_claiming)
    net.heal()
    net.run(20 * SECOND)
    assert net.agreed(hosts) and hosts[0].ctx.members.version == version
    assert hosts[2].room.accepted is None
    assert any(note.kind == "claim_abandoned" for note in hosts[1].notes)


def test_a_claim_is_refused_while_an_older_member_is_trusted() -> None:
    """Goal: one member's suspicion is not everybody's. Method: a claim of the second oldest while
    the third hears the master; then the third suspects it too and says so unasked.
    """
    net = Net()
    hosts = net.cluster(3)
    net.pause(hosts[0])
    say(net, hosts[1], hosts[2], ClaimRequested(hosts[1].ctx.members.version, 77))
    assert hosts[2].room.accepted is None
    hosts[2].step(lambda: hosts[2].room.on_link_failed(hosts[0].id))
    assert hosts[2].room.accepted == hosts[1].id


# -- lists --------------------------------------------------------------------------------


def test_a_list_of_a_non_master_changes_nothing() -> None:
    """Goal: only the master's list counts (M1, ADL-08 for lists). Method: a newer list from the
    youngest; the receiver keeps its own and tells the sender.
    """
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    forged = MemberList(ours.version + 5, ours.members[1:], ours.cluster_id)
    sent = hosts[1].messages_sent
    say(net, hosts[2], hosts[1], MembersPublished(forged))
    assert hosts[1].ctx.members is ours and hosts[1].messages_sent == sent + 1


@pytest.mark.parametrize("change", [0, -1])
def test_an_equal_or_older_list_of_the_master_changes_nothing(change: int) -> None:
    """Goal: versions rise (M1). Method: the master's own list again, and an older one."""
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    again = MemberList(ours.version + change, ours.members, ours.cluster_id)
    say(net, hosts[0], hosts[1], MembersPublished(again))
    assert hosts[1].ctx.members is ours


def test_a_list_of_the_master_without_us_expels_us() -> None:
    """Goal: being left out is being told (M5). Method: a newer list without the receiver."""
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members
    kept = tuple(info for info in ours.members if info.id != hosts[1].id)
    say(net, hosts[0], hosts[1], MembersPublished(MemberList(ours.version + 1, kept)))
    assert hosts[1].expelled is not None


@pytest.mark.parametrize(("version", "sender"), list(itertools.product([-1, 0, 1], [0, 2])))
def test_a_plain_suspicion_counts_from_whom_and_how_new_it_is(version: int, sender: int) -> None:
    """Goal: a suspicion without a member list counts from our master at our version or above,
    from another only as master of a newer list (M5). Method: all cases.
    """
    net = Net()
    hosts = net.cluster(3)
    ours = hosts[1].ctx.members.version
    teller = hosts[sender]
    say(net, teller, hosts[1], SuspicionTold(ours + version, teller.id))
    is_believed = version >= 0 if sender == 0 else version > 0
    assert (hosts[1].expelled is not None) == is_believed


def test_a_heartbeat_of_a_stranger_is_answered_by_the_master() -> None:
    """Goal: a member that was removed learns it (M5). Method: heartbeats of somebody unknown, to
    the master and to others: they answer only if their list is newer.
    """
    net = Net()
    hosts = net.cluster(2)
    stranger = net.start(9, ())
    counts = []
    for receiver, version in ((0, 99), (1, 99), (1, 1)):
        before = hosts[receiver].messages_sent
        say(net, stranger, hosts[receiver], Heartbeat(version, MemberId("x")))
        counts.append(hosts[receiver].messages_sent - before)
    assert counts == [1, 0, 1]
